//! One of a thing, mostly; or several.

use std::fmt;
use std::ops::Deref;
use std::slice;

/// As a boxed slice, but that one alone takes no allocation.
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
    fn smoke() {
        for length in 0..4 {
            let few: OneOrMany<i32> = (0..length).collect();
            assert!(few.iter().copied().eq(0..length));
            assert_eq!(matches!(few, OneOrMany::One(_)), length == 1);
        }
    }
}
