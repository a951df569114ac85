//! A list that usually has one item.

use std::fmt;
use std::ops::Deref;
use std::slice;

/// A boxed slice that needs no allocation for a single item.
#[derive(Clone, PartialEq)]
pub(crate) enum OneOrMany<T> {
    One(T),
    Several(Box<[T]>),
}

impl<T> Deref for OneOrMany<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::One(one) => slice::from_ref(one),
            Self::Several(several) => several,
        }
    }
}

impl<T> FromIterator<T> for OneOrMany<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut items = items.into_iter();
        match (items.next(), items.next()) {
            (Some(one), None) => Self::One(one),
            (first, second) => {
                let several = first.into_iter().chain(second).chain(items);
                Self::Several(several.collect())
            }
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for OneOrMany<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(one) => one.fmt(f),
            Self::Several(several) => several.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_item_is_not_boxed() {
        for length in 0..4 {
            let items: OneOrMany<i32> = (0..length).collect();
            assert!(items.iter().copied().eq(0..length));
            assert_eq!(matches!(items, OneOrMany::One(_)), length == 1);
        }
    }
}
