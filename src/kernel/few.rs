//! A list that usually has at most one item.

use std::ops::{Deref, DerefMut};

/// A vector that allocates nothing for a single item.
#[derive(Debug)]
pub(crate) enum Few<T> {
    One(Option<T>),
    Many(Vec<T>),
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self::One(None)
    }
}

impl<T> Few<T> {
    pub(super) fn push(&mut self, item: T) {
        match self {
            Self::One(one) => match one.take() {
                None => *one = Some(item),
                Some(first) => *self = Self::Many(vec![first, item]),
            },
            Self::Many(items) => items.push(item),
        }
    }

    /// Removes and returns the item at index `n`.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub(super) fn remove(&mut self, n: usize) -> T {
        match self {
            Self::One(one) => {
                let found = one.take_if(|_| n == 0);
                found.expect("the index is below the number of items")
            }
            Self::Many(items) => items.remove(n),
        }
    }

    /// Returns the items, in their order.
    pub(super) fn into_items(self) -> impl Iterator<Item = T> {
        let (one, many) = match self {
            Self::One(one) => (one, Vec::new()),
            Self::Many(items) => (None, items),
        };
        one.into_iter().chain(many)
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::One(one) => one.as_slice(),
            Self::Many(items) => items,
        }
    }
}

impl<T> DerefMut for Few<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::One(one) => one.as_mut_slice(),
            Self::Many(items) => items,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_stay_in_their_order() {
        let mut few = Few::default();
        assert!(few.is_empty());
        for n in 0..3 {
            few.push(n);
            assert!(few.iter().copied().eq(0..=n));
        }
        assert_eq!(few.remove(1), 1);
        few[1] = 7;
        assert!(few.into_items().eq([0, 7]));
        let mut few = Few::default();
        few.push(4);
        assert_eq!((few.remove(0), few.len()), (4, 0));
    }
}
