//! The fair lock: its queue in Redis, its calls, and how long its grants and places last.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::holder::HolderId;
use crate::protocol::answer::Wanted;
use crate::protocol::keys::{Keys, sibling_key};
use crate::protocol::mutex;
use crate::protocol::primitive::{Acquire, Primitive, RedisQueue};
use crate::protocol::script::{Arg, Call, Script, script};
use crate::protocol::verb::Verb;

/// The longest time for which a grant lasts without a renewal, and a place without a refresh. A
/// waiter that died delays the others for at most this long.
const PROVISIONAL: Duration = Duration::from_secs(3);

/// The longest time between two refreshes of a place.
const REFRESH: Duration = Duration::from_secs(1);

/// Makes a script of a queue, with the Lua functions of the queue and those that admit waiters to a
/// lock.
macro_rules! queue_script {
    ($name:literal, $commands:literal) => {
        script!(
            $name,
            concat!(
                "time get set del pttl lindex lpop lrem hget hset hdel",
                $commands
            ),
            "last_token",
            "now",
            "admit_lock",
            "queue"
        )
    };
}

pub(super) static ENTER: Script = queue_script!("queue_enter", " pexpire rpush");
pub(super) static REFRESH_PLACES: Script = queue_script!("queue_refresh", " pexpire");
pub(super) static RELEASE: Script = queue_script!("queue_release", "");
pub(super) static UNDO: Script = queue_script!("queue_undo", "");

/// How long a grant lasts until its first renewal, and a place in the queue without a refresh.
pub(crate) fn provisional(ttl: Duration) -> Duration {
    ttl.min(PROVISIONAL)
}

/// How long after one refresh the next is sent: a tenth early, for threads that wake late.
pub(crate) fn refresh_every(ttl: Duration) -> Duration {
    (ttl / 4).min(REFRESH) / 10 * 9
}

/// Returns how long a grant to a place lasts that is refreshed this often: no longer than
/// [`provisional`] of its ttl.
pub(crate) fn provisional_of(refresh_every: Duration) -> Duration {
    provisional(refresh_every / 9 * 10 * 4)
}

/// The keys and calls of a [`FairMutex`](crate::FairMutex).
#[derive(Debug)]
pub(crate) struct FairMutexKeys {
    keys: Keys,
    /// The fence, the queue, and the places: the holder id of each waiter with its refresh time.
    queue: [Vec<u8>; 3],
}

impl FairMutexKeys {
    pub(crate) fn of(keys: Keys) -> Arc<dyn Primitive> {
        Arc::new(Self::new(keys))
    }

    pub(super) fn new(keys: Keys) -> Self {
        Self {
            queue: [
                keys.fence().to_vec(),
                sibling_key(&keys.locks[0], "queue"),
                sibling_key(&keys.locks[0], "places"),
            ],
            keys,
        }
    }

    pub(super) fn call<'a, const N: usize>(
        &'a self,
        verb: Verb,
        script: &'static Script,
        args: [Arg<'a>; N],
    ) -> Call<'a> {
        Call::new(verb, script, [&self.keys.locks, &self.queue], args)
    }
}

impl Primitive for FairMutexKeys {
    fn keys(&self) -> &Keys {
        &self.keys
    }

    fn acquire<'a>(&'a self, request: Acquire<'a>) -> Call<'a> {
        let tokens = request.tokens.max(1);
        let args = [
            Arg::id(request.id),
            Arg::millis(request.ttl),
            Arg::Number(tokens),
            Arg::Bytes(request.mark()),
        ];
        let wanted = Wanted {
            reserved: tokens - 1,
            ..Wanted::ONE
        };
        let inbox = request.place.map(|place| slice::from_ref(place.inbox));
        self.call(Verb::Acquire(wanted), &ENTER, args)
            .followed_by(inbox.unwrap_or_default())
    }

    /// Also passes the lock to the next waiter.
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
        mutex::renew(&self.keys, &mutex::RENEW, id, ttl, may_shorten)
    }

    fn queue(&self) -> Option<&dyn RedisQueue> {
        Some(self)
    }

    fn check_quorum(&self) -> Result<(), Error> {
        Err(Error::Config(
            "a fair lock needs one server, Sentinel or Cluster: the servers of a quorum share no \
             queue"
                .into(),
        ))
    }
}

impl RedisQueue for FairMutexKeys {
    fn key(&self) -> &[u8] {
        let [_, queue, _] = &self.queue;
        queue
    }

    fn places(&self) -> &[u8] {
        let [_, _, places] = &self.queue;
        places
    }

    fn refresh<'a>(&'a self, inbox: &'a [u8], ids: &'a [Vec<u8>]) -> Call<'a> {
        let verb = Verb::Refresh {
            places: ids.len(),
            is_shared: false,
        };
        self.call(verb, &REFRESH_PLACES, [Arg::Bytes(inbox)])
            .followed_by(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::slot::slot;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn a_place_is_refreshed_three_times_within_its_provisional_time() {
        assert_eq!(provisional(ms(10_000)), ms(3_000));
        assert_eq!(provisional(ms(500)), ms(500));
        assert_eq!(refresh_every(ms(10_000)), ms(900));
        assert_eq!(refresh_every(ms(400)), ms(90));
        for ttl in [10, 11, 400, 2_999, 3_000, 3_999, 4_000, 10_000].map(ms) {
            let lasts = provisional_of(refresh_every(ttl));
            assert!(
                lasts <= provisional(ttl) && lasts + ms(1) > provisional(ttl),
                "{ttl:?}"
            );
        }
    }

    #[test]
    fn all_keys_of_a_fair_lock_are_in_one_slot() {
        for name in ["a", "{u1}:a", "a{b"] {
            let keys = FairMutexKeys::of(Keys::new(name.into(), "lock:", "lock_release:"));
            let [locks, queue] = keys.release(b"", false).keys;
            let mut slots = locks.iter().chain(queue).map(|key| slot(key));
            assert!(slots.all(|slot| slot == keys.key(0).slot()), "{name}");
        }
        let keys = FairMutexKeys::of(Keys::new("a".into(), "lock:", "r:"));
        assert_eq!(keys.queue().unwrap().key(), b"leasehold:queue:{lock:a}");
    }
}
