//! The read-write lock: its keys, and the calls of its two sides. It shares the queue, the places
//! and the fence with the fair lock of the same name.

use std::slice;
use std::time::Duration;

use crate::error::Error;
use crate::holder::HolderId;
use crate::protocol::answer::Wanted;
use crate::protocol::keys::{Keys, sibling_key};
use crate::protocol::mutex;
use crate::protocol::primitive::{Acquire, Admission, Primitive, RedisQueue};
use crate::protocol::script::{Arg, Call, Script, script};
use crate::protocol::verb::Verb;

/// Makes a script of the queue, with the Lua functions that admit readers and writers.
macro_rules! shared_script {
    ($name:literal, $commands:literal) => {
        script!(
            $name,
            concat!(
                "time get set del pttl lindex lpop lrem hget hset hdel exists pexpireat zadd ",
                "zrem zscore zremrangebyscore",
                $commands
            ),
            "last_token",
            "now",
            "readers",
            "admit_shared",
            "queue"
        )
    };
}

pub(super) static ENTER: Script = shared_script!("queue_enter", " pexpire rpush");
pub(super) static REFRESH: Script = shared_script!("queue_refresh", " pexpire");
pub(super) static RELEASE: Script = shared_script!("queue_release", "");
pub(super) static UNDO: Script = shared_script!("queue_undo", "");
pub(super) static DOWNGRADE: Script = script!(
    "downgrade",
    "time get set del pttl lindex lpop lrem hget hset hdel exists pexpireat zadd zrem zscore \
     zremrangebyscore",
    "last_token",
    "now",
    "readers",
    "keep_reader",
    "admit_shared",
    "queue"
);
pub(super) static RENEW: Script = script!(
    "renew_shared",
    "time get set del pttl exists pexpireat zadd zremrangebyscore zscore",
    "now",
    "readers",
    "keep_reader"
);
pub(super) static INSPECT: Script = script!("inspect_shared", "time get pttl zrangebyscore", "now");

/// The keys and calls of one side of an [`RwLock`](crate::RwLock).
#[derive(Debug)]
pub(crate) struct RwLockKeys {
    keys: Keys,
    /// The fence, the queue, the places and the readers.
    queue: [Vec<u8>; 4],
    /// The fence and the readers.
    inspected: [Vec<u8>; 2],
    reads: bool,
}

impl RwLockKeys {
    /// Returns the side of the readers, or that of the writers.
    pub(crate) fn of(keys: Keys, reads: bool) -> Self {
        let readers = sibling_key(&keys.locks[0], "readers");
        Self {
            queue: [
                keys.fence().to_vec(),
                sibling_key(&keys.locks[0], "queue"),
                sibling_key(&keys.locks[0], "places"),
                readers.clone(),
            ],
            inspected: [keys.fence().to_vec(), readers],
            keys,
            reads,
        }
    }

    fn call<'a, const N: usize>(
        &'a self,
        verb: Verb,
        script: &'static Script,
        args: [Arg<'a>; N],
    ) -> Call<'a> {
        Call::new(verb, script, [&self.keys.locks, &self.queue], args)
    }

    /// Reads the writer, or all readers.
    pub(crate) fn holders(&self) -> Call<'_> {
        let keys: [&[Vec<u8>]; 2] = [&self.keys.locks, &self.inspected];
        Call::new(Verb::InspectShared, &INSPECT, keys, [])
    }
}

impl Primitive for RwLockKeys {
    fn keys(&self) -> &Keys {
        &self.keys
    }

    fn acquire<'a>(&'a self, request: Acquire<'a>) -> Call<'a> {
        let args = [
            Arg::id(request.id),
            Arg::millis(request.ttl),
            Arg::Bytes(if self.reads { b"r" } else { b"1" }),
            Arg::Bytes(request.mark()),
        ];
        let inbox = request.place.map(|place| slice::from_ref(place.inbox));
        self.call(Verb::Acquire(Wanted::ONE), &ENTER, args)
            .followed_by(inbox.unwrap_or_default())
    }

    /// Releases the lease of a reader or of a writer, whichever this side is: after a downgrade
    /// without a reply, only Redis knows.
    fn release<'a>(&'a self, value: &'a [u8], _: bool) -> Call<'a> {
        let verb = Verb::Release { counts: false };
        self.call(verb, &RELEASE, [Arg::Bytes(value)])
            .followed_by(&self.keys.channels)
    }

    fn undo<'a>(&'a self, arguments: &'a [Vec<u8>]) -> Call<'a> {
        let verb = Verb::Undo(self.keys.undone_ids(arguments));
        self.call(verb, &UNDO, []).followed_by(arguments)
    }

    fn renew<'a>(&'a self, id: &'a HolderId, ttl: Duration, may_shorten: bool) -> Call<'a> {
        if !self.reads {
            return mutex::renew(&self.keys, &mutex::RENEW, id, ttl, may_shorten);
        }
        let [_, _, _, readers] = &self.queue;
        let args = [
            Arg::id(id),
            Arg::millis(ttl),
            Arg::Number(may_shorten.into()),
        ];
        let keys: [&[Vec<u8>]; 2] = [&self.keys.locks, slice::from_ref(readers)];
        Call::new(Verb::Renew, &RENEW, keys, args)
    }

    fn downgrade<'a>(&'a self, id: &'a HolderId, ttl: Duration) -> Call<'a> {
        let args = [Arg::id(id), Arg::millis(ttl)];
        self.call(Verb::Renew, &DOWNGRADE, args)
    }

    fn queue(&self) -> Option<&dyn RedisQueue> {
        Some(self)
    }

    fn is_shared(&self) -> bool {
        self.reads
    }

    fn check_quorum(&self) -> Result<(), Error> {
        Err(Error::Config(
            "a read-write lock needs one server, Sentinel or Cluster: the servers of a quorum \
             share no queue"
                .into(),
        ))
    }
}

impl RedisQueue for RwLockKeys {
    fn key(&self) -> &[u8] {
        let [_, queue, ..] = &self.queue;
        queue
    }

    fn places(&self) -> &[u8] {
        let [_, _, places, _] = &self.queue;
        places
    }

    fn admission(&self) -> Admission {
        Admission::Shared
    }

    fn refresh<'a>(&'a self, inbox: &'a [u8], ids: &'a [Vec<u8>]) -> Call<'a> {
        let verb = Verb::Refresh {
            places: ids.len(),
            is_shared: true,
        };
        self.call(verb, &REFRESH, [Arg::Bytes(inbox)])
            .followed_by(ids)
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
                reader.release(b"", false),
                reader.renew(&id, ttl, false),
                reader.holders(),
            ] {
                let [locks, others] = call.keys;
                let mut slots = locks.iter().chain(others).map(|key| slot(key));
                assert!(
                    slots.all(|slot| slot == reader.keys.key(0).slot()),
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn both_sides_share_the_queue_and_the_fence_of_the_fair_lock() {
        let [reader, writer] = sides("a");
        assert_eq!(RedisQueue::key(&reader), b"leasehold:queue:{lock:a}");
        let keys = reader.release(b"", false).keys;
        assert_eq!(keys, writer.release(b"", false).keys);
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
