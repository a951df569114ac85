//! The names of a set: each once, in the order in which all sets take them.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::error::Error;
use crate::name::{Listed, Name};
use crate::protocol::cohort::CohortKeys;
use crate::protocol::fair::FairMutexKeys;
use crate::protocol::keys::{Keys, Layout};
use crate::protocol::mutex::MutexKeys;
use crate::protocol::primitive::Primitive;

/// The names of a set, and the lock of each.
#[derive(Debug)]
pub(crate) struct SetNames {
    names: Arc<[Name]>,
    at_once: Box<[Arc<dyn Primitive>]>,
    /// Empty without queues.
    in_queue: Box<[Arc<dyn Primitive>]>,
    slots: Box<[Range<usize>]>,
}

impl SetNames {
    /// Returns the set of these names, each taken once. In a cluster they are sorted by slot first.
    pub(crate) fn of(
        mut names: Vec<Name>,
        key_prefix: &str,
        channel_prefix: &str,
        layout: Layout,
        has_queues: bool,
    ) -> Arc<Self> {
        names.sort_unstable();
        names.dedup();
        let keys = |name: &Name| Keys::new(name.clone(), key_prefix, channel_prefix);
        let slot = |name: &Name| match layout {
            Layout::Slots => keys(name).key(0).slot(),
            Layout::OneServer => 0,
        };
        names.sort_by_cached_key(slot);
        let mut end = 0;
        let slots = names.chunk_by(|a, b| slot(a) == slot(b)).map(|of_slot| {
            let start = end;
            end += of_slot.len();
            start..end
        });
        let each = |lock: fn(Keys) -> Arc<dyn Primitive>| -> Box<[_]> {
            let keys = names.iter().map(keys);
            keys.map(lock).collect()
        };
        let (at_once, in_queue) = if has_queues {
            (each(CohortKeys::of), each(FairMutexKeys::of))
        } else {
            (each(MutexKeys::of), Box::default())
        };
        Arc::new(Self {
            slots: slots.collect(),
            at_once,
            in_queue,
            names: names.into(),
        })
    }

    pub(crate) fn names(&self) -> &Arc<[Name]> {
        &self.names
    }

    /// The lock of each name that an attempt at all of them takes, which ignores queues.
    pub(crate) fn at_once(&self) -> &[Arc<dyn Primitive>] {
        &self.at_once
    }

    /// The fair lock of each name, for calls that wait; empty without queues.
    pub(crate) fn in_queue(&self) -> &[Arc<dyn Primitive>] {
        &self.in_queue
    }

    /// The names of each slot of a cluster, by their indexes; elsewhere all of them.
    pub(crate) fn slots(&self) -> &[Range<usize>] {
        &self.slots
    }

    /// Checks that a set can have these names.
    ///
    /// # Errors
    ///
    /// `Error::Config` if there is no name, or a lock cannot have one of them.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.names.is_empty() {
            return Err(Error::Config(
                "mutex_all was given no name: pass at least one".into(),
            ));
        }
        self.at_once.iter().try_for_each(|lock| lock.check())
    }
}

/// At most two names, then the number of the others: there can be a thousand.
impl fmt::Display for SetNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Listed(&self.names).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str], layout: Layout, has_queues: bool) -> Arc<SetNames> {
        let names = names.iter().map(|name| Name::from(*name)).collect();
        SetNames::of(names, "lock:", "r:", layout, has_queues)
    }

    #[test]
    fn names_are_sorted_and_each_is_there_once() {
        let names = set(&["b", "c", "a", "b"], Layout::OneServer, true);
        assert_eq!(**names.names(), ["a", "b", "c"].map(Name::from));
        assert_eq!(names.to_string(), "a, b and 1 more");
        assert_eq!(names.slots(), std::slice::from_ref(&(0..3)));
        for locks in [names.at_once(), names.in_queue()] {
            let of_locks = locks.iter().map(|lock| lock.key(0).name);
            assert!(of_locks.eq(names.names().iter()));
        }
        let names = set(&["b", "a"], Layout::OneServer, false);
        assert_eq!(names.to_string(), "a and b");
        assert!(names.in_queue().is_empty());
        assert!(names.at_once()[0].queue().is_none());
    }

    #[test]
    fn invalid_names_are_rejected() {
        let error = set(&[], Layout::Slots, true)
            .check()
            .unwrap_err()
            .to_string();
        assert!(error.contains("no name"), "{error}");
        assert!(set(&["a", ""], Layout::OneServer, true).check().is_err());
        assert!(set(&["a"], Layout::OneServer, true).check().is_ok());
    }

    #[test]
    fn in_a_cluster_names_are_sorted_by_slot() {
        let names = set(&["{x}1", "a", "b", "{x}2"], Layout::Slots, true);
        let slot = |n: usize| names.at_once()[n].key(0).slot();
        assert!((0..4).map(slot).is_sorted());
        assert_eq!(names.slots().len(), 3);
        assert!(names.slots().iter().flat_map(Clone::clone).eq(0..4));
        for of_slot in names.slots() {
            assert!(of_slot.clone().all(|n| slot(n) == slot(of_slot.start)));
        }
        assert_eq!(set(&["{x}1", "{x}2"], Layout::Slots, true).slots().len(), 1);
    }
}
