//! Items that are found by their numbers, and under keys, in an order.
//!
//! Most names have one call and one request at a time: one or two items are looked through, which
//! costs less than an index. With more, an item is found, added, changed and removed in O(log n).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::ops::{Deref, DerefMut, RangeInclusive};

use crate::kernel::steps::visited;

/// The most items that are looked through. With seven of them, an index is faster.
const FEW: usize = 2;

/// An item that is found under keys.
pub(super) trait Keyed {
    type Key: Copy + Debug + Ord;

    /// Passes each of its keys to `found`.
    fn keys(&self, found: impl FnMut(Self::Key));
}

type Number = u64;
type Index<K> = BTreeSet<(K, Number)>;

#[derive(Debug)]
pub(super) struct Indexed<T: Keyed> {
    items: BTreeMap<Number, Box<T>>,
    /// `None` while there are few items.
    index: Option<Box<Index<T::Key>>>,
}

/// An item that is being changed: afterwards it is found under its new keys.
pub(super) struct Change<'a, T: Keyed> {
    no: Number,
    item: &'a mut T,
    index: Option<&'a mut Index<T::Key>>,
    /// Its keys in the index.
    before: Vec<T::Key>,
}

impl<T: Keyed> Default for Indexed<T> {
    fn default() -> Self {
        Self {
            items: BTreeMap::new(),
            index: None,
        }
    }
}

impl<T: Keyed> Indexed<T> {
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(super) fn get(&self, no: Number) -> Option<&T> {
        self.items.get(&no).map(|item| &**item)
    }

    /// Walks over all items, in the order of their numbers.
    pub(super) fn walk(&self) -> impl Iterator<Item = &T> {
        self.items
            .values()
            .map(|item| &**item)
            .inspect(|_| visited(1))
    }

    /// Adds an item under a number that none has.
    pub(super) fn insert(&mut self, no: Number, item: T) {
        if let Some(index) = &mut self.index {
            item.keys(|key| _ = index.insert((key, no)));
        }
        self.items.insert(no, Box::new(item));
        if self.index.is_none() && self.items.len() > FEW {
            let mut index = Index::new();
            for (no, item) in &self.items {
                item.keys(|key| _ = index.insert((key, *no)));
            }
            self.index = Some(Box::new(index));
        }
    }

    pub(super) fn remove(&mut self, no: Number) -> Option<T> {
        let item = self.items.remove(&no)?;
        if let Some(index) = &mut self.index {
            item.keys(|key| _ = index.remove(&(key, no)));
        }
        // Half of them: an item that comes and goes makes no index each time.
        self.index.take_if(|_| self.items.len() <= FEW / 2);
        Some(*item)
    }

    pub(super) fn change(&mut self, no: Number) -> Option<Change<'_, T>> {
        let item = self.items.get_mut(&no)?;
        visited(1);
        let index = self.index.as_deref_mut();
        let before = index.as_ref().map_or_else(Vec::new, |_| keys(&**item));
        Some(Change {
            no,
            item,
            index,
            before,
        })
    }

    /// Returns the first of these keys that an item has, with its number.
    pub(super) fn first(&self, of: RangeInclusive<T::Key>) -> Option<(T::Key, Number)> {
        if let Some(index) = &self.index {
            // One search: both ends of a range would be two.
            let first = index.range((*of.start(), Number::MIN)..).next();
            return first.filter(|(key, _)| key <= of.end()).copied();
        }
        let mut first = None;
        self.look_through(&of, |found| {
            first = Some(first.map_or(found, |first| found.min(first)));
        });
        first
    }

    /// Returns the last of these keys that an item has, with its number.
    pub(super) fn last(&self, of: RangeInclusive<T::Key>) -> Option<(T::Key, Number)> {
        if let Some(index) = &self.index {
            let last = index.range(..=(*of.end(), Number::MAX)).next_back();
            return last.filter(|(key, _)| key >= of.start()).copied();
        }
        let mut last = None;
        self.look_through(&of, |found| last = last.max(Some(found)));
        last
    }

    /// Returns the items that have one of these keys, in the order of the keys.
    pub(super) fn range(
        &self,
        of: RangeInclusive<T::Key>,
    ) -> impl Iterator<Item = (T::Key, Number)> {
        let mut few = Vec::new();
        if self.index.is_none() {
            self.look_through(&of, |found| few.push(found));
            few.sort_unstable();
        }
        let indexed = self.index.as_deref().into_iter();
        let indexed = indexed.flat_map(move |index| {
            let (from, to) = of.clone().into_inner();
            let found = index.range((from, Number::MIN)..).copied();
            found.take_while(move |(key, _)| *key <= to)
        });
        few.into_iter().chain(indexed).inspect(|_| visited(1))
    }

    fn look_through(&self, of: &RangeInclusive<T::Key>, mut found: impl FnMut((T::Key, Number))) {
        for (no, item) in &self.items {
            item.keys(|key| {
                if of.contains(&key) {
                    found((key, *no));
                }
            });
        }
    }
}

fn keys<T: Keyed>(item: &T) -> Vec<T::Key> {
    let mut keys = Vec::with_capacity(8);
    item.keys(|key| keys.push(key));
    keys
}

impl<T: Keyed> Deref for Change<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.item
    }
}

impl<T: Keyed> DerefMut for Change<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.item
    }
}

impl<T: Keyed> Drop for Change<'_, T> {
    fn drop(&mut self) {
        let Some(index) = &mut self.index else {
            return;
        };
        let after = keys(&*self.item);
        for key in self.before.iter().filter(|key| !after.contains(key)) {
            index.remove(&(*key, self.no));
        }
        for key in after.iter().filter(|key| !self.before.contains(key)) {
            index.insert((*key, self.no));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Found under each of two instants.
    #[derive(Debug)]
    struct Item([u32; 2]);

    impl Keyed for Item {
        type Key = u32;

        fn keys(&self, found: impl FnMut(u32)) {
            self.0.into_iter().for_each(found);
        }
    }

    fn found(items: &Indexed<Item>, of: RangeInclusive<u32>) -> Vec<(u32, Number)> {
        items.range(of).collect()
    }

    /// The same is found whether there are few items or many.
    #[test]
    fn items_are_found_under_their_keys() {
        let mut items = Indexed::default();
        for size in 1..=3 * FEW as u32 {
            items.insert(size.into(), Item([100 - size, 200]));
            for no in 1..=size {
                items.change(no.into()).unwrap().0[1] = 200 + no % 3;
            }
            let mut low: Vec<_> = (1..=size).map(|no| (100 - no, no.into())).collect();
            low.reverse();
            assert_eq!(found(&items, 0..=100), low);
            assert_eq!(items.first(0..=100), low.first().copied());
            assert_eq!(items.last(0..=100), low.last().copied());
            let all = (1..=size).map(|no| (200 + no % 3, Number::from(no)));
            let mut high: Vec<_> = all.collect();
            high.sort_unstable();
            assert_eq!(found(&items, 200..=300), high);
            assert_eq!(items.first(101..=199), None);
            assert_eq!(items.index.is_some(), size > FEW as u32);
        }
        for no in 1..=3 * FEW as u32 {
            assert_eq!(items.remove(no.into()).unwrap().0[0], 100 - no);
            assert_eq!(items.first(0..=100).is_none(), items.is_empty());
            assert!(
                found(&items, 0..=300)
                    .iter()
                    .all(|(_, found)| *found > no.into())
            );
        }
        assert!(items.index.is_none() && items.remove(1).is_none());
    }
}
