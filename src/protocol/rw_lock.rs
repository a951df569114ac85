//! The read-write lock: its keys, and the calls of its two sides. It shares its keys and the
//! scripts of the queue with the fair lock of the same name.

use std::slice;
use std::time::Duration;

use crate::holder_id::HolderId;
use crate::protocol::keys::Keys;
use crate::protocol::mutex;
use crate::protocol::primitive::{Acquire, Admission, AtRelease, Primitive, RedisQueue};
use crate::protocol::queue_keys::{LOCKS, QueueKeys, QueueRules, keys_of_lock, queue_script};
use crate::protocol::renew_many::RenewMany;
use crate::protocol::script::{Arg, Call, Script, script};
use crate::protocol::verb::Verb;

/// One writer, or any number of readers.
pub(super) static RULES: QueueRules = QueueRules {
    scripts: &LOCKS,
    admission: Admission::Shared,
    is_of_lock: true,
    is_shared: true,
};
pub(super) static DOWNGRADE: Script =
    queue_script!("downgrade", [], "locks", "later_end", "keep_reader");
pub(super) static RENEW: Script = script!(
    "renew_shared",
    "state",
    "last_token",
    "now",
    "locks",
    "later_end",
    "keep_reader"
);
static RENEW_EACH: Script = script!(
    "renew_shared_many",
    "state",
    "each_reader",
    "last_token",
    "now",
    "locks",
    "later_end",
    "keep_reader"
);
pub(super) static RENEW_MANY: RenewMany = RenewMany {
    script: &RENEW_EACH,
    most: 32,
};
pub(super) static INSPECT: Script = script!("inspect_shared", "now");

/// The keys and calls of one side of an [`RwLock`](crate::RwLock).
#[derive(Debug)]
pub(crate) struct RwLockKeys {
    /// Its further key is that of the readers.
    queue: QueueKeys,
    /// The keys that an inspection reads besides the lock key: the fence and the readers.
    inspected: [Vec<u8>; 2],
    reads: bool,
}

impl RwLockKeys {
    /// Returns the side of the readers, or that of the writers.
    pub(crate) fn of(keys: Keys, reads: bool) -> Self {
        let others = keys_of_lock(&keys);
        let [fence, _, _, readers] = &others;
        Self {
            inspected: [fence.clone(), readers.clone()],
            queue: QueueKeys::new(keys, others, &RULES),
            reads,
        }
    }

    /// Reads the writer, or the readers, at most 10,000 of them.
    pub(crate) fn holders(&self) -> Call<'_> {
        let keys: [&[Vec<u8>]; 2] = [&self.queue.keys.locks, &self.inspected];
        Call::new(Verb::InspectShared, &INSPECT, keys, [])
    }
}

impl Primitive for RwLockKeys {
    fn keys(&self) -> &Keys {
        &self.queue.keys
    }

    fn acquire<'a>(&'a self, request: Acquire<'a>) -> Call<'a> {
        let want: &[u8] = if self.reads { b"r" } else { b"1" };
        self.queue.enter(&request, Arg::Bytes(want), 1)
    }

    /// Releases a reader as well as a writer, on either side: after a downgrade without a reply,
    /// only Redis knows which of them `value` is.
    fn release<'a>(&'a self, value: &'a [u8], _: AtRelease) -> Call<'a> {
        self.queue.release(value)
    }

    fn undo<'a>(&'a self, arguments: &'a [Vec<u8>]) -> Call<'a> {
        self.queue.undo(arguments)
    }

    fn renew<'a>(&'a self, id: &'a HolderId, ttl: Duration, may_shorten: bool) -> Call<'a> {
        if !self.reads {
            return mutex::renew(&self.queue.keys, &mutex::RENEW, id, ttl, may_shorten);
        }
        let [_, readers] = &self.inspected;
        let args = [
            Arg::id(id),
            Arg::millis(ttl),
            Arg::Number(may_shorten.into()),
        ];
        let keys: [&[Vec<u8>]; 2] = [&self.queue.keys.locks, slice::from_ref(readers)];
        Call::new(Verb::Renew, &RENEW, keys, args)
    }

    fn renew_many(&self) -> Option<&'static RenewMany> {
        Some(if self.reads {
            &RENEW_MANY
        } else {
            &mutex::RENEW_MANY
        })
    }

    fn downgrade<'a>(&'a self, id: &'a HolderId, ttl: Duration) -> Call<'a> {
        let args = [Arg::id(id), Arg::millis(ttl)];
        Call {
            ends_with_readers: false,
            ..self.queue.call(Verb::Renew, &DOWNGRADE, args)
        }
    }

    fn queue(&self) -> Option<&dyn RedisQueue> {
        Some(&self.queue)
    }

    fn is_shared(&self) -> bool {
        self.reads
    }

    fn needs_queues(&self) -> Option<(&'static str, &'static str)> {
        Some((
            "a read-write lock",
            "the servers of a quorum share no queue",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::slot::slot;

    fn sides(name: &str) -> [RwLockKeys; 2] {
        let keys = || Keys::new(name.into(), "lock:", "lock_release:");
        [true, false].map(|reads| RwLockKeys::of(keys(), reads))
    }

    #[test]
    fn all_keys_of_a_read_write_lock_are_in_one_slot() {
        for name in ["a", "{u1}:a", "a{b"] {
            let [reader, _] = sides(name);
            let id = HolderId::fresh("o");
            let ttl = Duration::from_secs(1);
            for call in [
                reader.release(b"", AtRelease::Usual),
                reader.renew(&id, ttl, false),
                reader.holders(),
            ] {
                let [locks, others] = call.keys;
                let mut slots = locks.iter().chain(others).map(|key| slot(key));
                assert!(
                    slots.all(|slot| slot == reader.keys().key(0).slot()),
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn both_sides_share_the_queue_and_the_fence_of_the_fair_lock() {
        let [reader, writer] = sides("a");
        assert_eq!(reader.queue.key(), b"leasehold:queue:{lock:a}");
        let keys = reader.release(b"", AtRelease::Usual).keys;
        assert_eq!(keys, writer.release(b"", AtRelease::Usual).keys);
        assert_eq!(keys[1][0], b"leasehold:fence:{lock:a}");
        assert_eq!(keys[1][3], b"leasehold:readers:{lock:a}");
    }

    #[test]
    fn a_writer_is_renewed_by_its_key_alone_and_a_reader_by_two() {
        let (id, ttl) = (HolderId::fresh("o"), Duration::from_secs(1));
        let keys = sides("a").map(|side| {
            let call = side.renew(&id, ttl, false);
            (call.script.name, call.keys.concat().len())
        });
        assert_eq!(keys, [("renew_shared", 2), ("renew", 1)]);
    }
}
