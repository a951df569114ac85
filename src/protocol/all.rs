//! The lock of several names, all or none. In a cluster it has a part for each slot.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use crate::holder::HolderId;
use crate::name::Name;
use crate::protocol::keys::Keys;
use crate::protocol::mutex::{self, MutexKeys};
use crate::protocol::primitive::{Acquire, Primitive};
use crate::protocol::script::{Arg, Call, Script, script};
use crate::protocol::verb::Verb;

pub(super) static ACQUIRE_ALL: Script =
    script!("acquire_all", "get pttl set del time", "last_token");
pub(super) static PROPOSE_ALL: Script = script!("propose_all", "get pttl set del", "last_token");
pub(super) static RELEASE_ALL: Script =
    script!("release_all", "get del pttl pexpire set", "rewrite");
pub(super) static RENEW_ALL: Script = script!("renew_all", "get pttl pexpire set del", "rewrite");

/// The keys and calls of a [`MutexAll`](crate::MutexAll).
#[derive(Debug)]
pub(crate) struct MutexAllKeys {
    keys: Keys,
    slots: Vec<Arc<dyn Primitive>>,
}

impl MutexAllKeys {
    /// Returns the lock of these names, each taken once. One name is locked like any mutex.
    pub(crate) fn of(
        mut names: Vec<Name>,
        key_prefix: &str,
        channel_prefix: &str,
        is_cluster: bool,
    ) -> Arc<dyn Primitive> {
        // Sorted, so that every client tries them in the same order.
        names.sort_unstable();
        names.dedup();
        let keys_of = |names: &[Name]| Keys::of(names, key_prefix, channel_prefix);
        let part_of = |names: &[Name]| Self::part(keys_of(names));
        let mut slots = Vec::new();
        if is_cluster {
            let slot = |name: &Name| keys_of(slice::from_ref(name)).key(0).slot();
            names.sort_by_cached_key(slot);
            slots = names
                .chunk_by(|a, b| slot(a) == slot(b))
                .map(part_of)
                .collect();
        }
        match slots.len() {
            0 | 1 => part_of(&names),
            _ => Arc::new(Self {
                keys: keys_of(&names),
                slots,
            }),
        }
    }

    /// Returns the lock of names that one script call can acquire.
    fn part(keys: Keys) -> Arc<dyn Primitive> {
        match keys.names.len() {
            1 => MutexKeys::of(keys),
            _ => Arc::new(Self {
                keys,
                slots: Vec::new(),
            }),
        }
    }
}

impl Primitive for MutexAllKeys {
    fn keys(&self) -> &Keys {
        &self.keys
    }

    fn acquire<'a>(&'a self, request: Acquire<'a>) -> Call<'a> {
        // Sets are never handed off.
        let request = Acquire {
            tokens: 1,
            ..request
        };
        mutex::acquire(&self.keys, &request, [&ACQUIRE_ALL, &PROPOSE_ALL])
    }

    fn release<'a>(&'a self, value: &'a [u8], _: bool) -> Call<'a> {
        let verb = Verb::Release { counts: false };
        let keys: [&[Vec<u8>]; 2] = [&self.keys.locks, &[]];
        Call::new(verb, &RELEASE_ALL, keys, [Arg::Bytes(value)]).followed_by(&self.keys.channels)
    }

    fn undo<'a>(&'a self, arguments: &'a [Vec<u8>]) -> Call<'a> {
        mutex::undo(&self.keys, arguments)
    }

    fn renew<'a>(&'a self, id: &'a HolderId, ttl: Duration, may_shorten: bool) -> Call<'a> {
        mutex::renew(&self.keys, &RENEW_ALL, id, ttl, may_shorten)
    }

    fn slots(&self) -> &[Arc<dyn Primitive>] {
        &self.slots
    }

    fn outlives_its_loss(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(names: &[&str], is_cluster: bool) -> Arc<dyn Primitive> {
        let names = names.iter().map(|name| Name::from(*name)).collect();
        MutexAllKeys::of(names, "lock:", "r:", is_cluster)
    }

    #[test]
    fn several_names_are_sorted_and_each_is_there_once() {
        let keys = all(&["b", "c", "a", "b"], false);
        assert_eq!(*keys.names, ["a", "b", "c"].map(Name::from));
        assert_eq!(keys.locks[2], b"lock:c");
        assert_eq!(keys.to_string(), "a, b and 1 more");
        assert_eq!(all(&["b", "a"], false).to_string(), "a and b");
        let error = all(&[], false).check().unwrap_err().to_string();
        assert!(error.contains("no name"), "{error}");
        assert!(all(&["a", ""], false).check().is_err());
    }

    #[test]
    fn one_name_is_locked_like_a_mutex() {
        for is_cluster in [false, true] {
            let keys = all(&["a", "a"], is_cluster);
            assert_eq!(keys.release(b"v", false).script.name, "release");
            assert!(!keys.outlives_its_loss());
        }
    }

    #[test]
    fn in_a_cluster_names_are_grouped_by_slot() {
        let keys = all(&["{x}1", "a", "b", "{x}2"], true);
        let slots: Vec<u16> = (0..4).map(|n| keys.key(n).slot()).collect();
        assert!(slots.is_sorted());
        assert_eq!(keys.parts().len(), 3);
        let parts = keys.parts().iter().flat_map(|part| part.names.iter());
        assert!(parts.eq(keys.names.iter()), "in the same order");
        assert_eq!(all(&["{x}1", "{x}2"], true).parts().len(), 1);
    }
}
