//! The fair lock: its queue in Redis, its calls, and how long its grants and places last.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::holder::HolderId;
use crate::protocol::keys::Keys;
use crate::protocol::mutex;
use crate::protocol::primitive::{Acquire, Admission, AtRelease, Primitive, RedisQueue};
use crate::protocol::queue_keys::{
    QueueKeys, QueueRules, QueueScripts, queue_script, queue_scripts,
};
use crate::protocol::script::{Arg, Call, Script, script};

/// The longest provisional time, for which a grant lasts without a renewal, and a place without a
/// refresh. A waiter that died delays the others for at most this long.
const PROVISIONAL: Duration = Duration::from_secs(3);

/// The longest time between two refreshes of a place.
const REFRESH: Duration = Duration::from_millis(900);

/// One holder at a time.
pub(super) static RULES: QueueRules = QueueRules {
    scripts: queue_scripts!("", "admit_lock", "lock_key"),
    admission: Admission::Exclusive,
    is_shared: false,
};

/// How long a grant lasts until its first renewal, and a place in the queue without a refresh.
pub(crate) fn provisional(ttl: Duration) -> Duration {
    ttl.min(PROVISIONAL)
}

/// How long after one refresh the next is sent: after a quarter of the ttl, less a tenth for
/// threads that wake late; at most [`REFRESH`].
pub(crate) fn refresh_every(ttl: Duration) -> Duration {
    (ttl / 40 * 9).min(REFRESH)
}

/// Returns how long a grant to a place lasts that is refreshed this often: no longer than
/// [`provisional`] of its ttl.
pub(crate) fn provisional_of(refresh_every: Duration) -> Duration {
    provisional(refresh_every / 9 * 10 * 4)
}

/// The keys and calls of a [`FairMutex`](crate::FairMutex).
#[derive(Debug)]
pub(crate) struct FairMutexKeys(QueueKeys);

impl FairMutexKeys {
    pub(crate) fn of(keys: Keys) -> Arc<dyn Primitive> {
        Arc::new(Self(lock_queue(keys)))
    }
}

/// Returns the keys of a lock with the queue of its name.
pub(super) fn lock_queue(keys: Keys) -> QueueKeys {
    QueueKeys::of_lock(keys, &RULES)
}

impl Primitive for FairMutexKeys {
    fn keys(&self) -> &Keys {
        &self.0.keys
    }

    fn acquire<'a>(&'a self, request: Acquire<'a>) -> Call<'a> {
        let tokens = request.tokens.max(1);
        self.0.enter(&request, Arg::Number(tokens), tokens)
    }

    fn release<'a>(&'a self, value: &'a [u8], _: AtRelease) -> Call<'a> {
        self.0.release(value)
    }

    fn undo<'a>(&'a self, arguments: &'a [Vec<u8>]) -> Call<'a> {
        self.0.undo(arguments)
    }

    fn renew<'a>(&'a self, id: &'a HolderId, ttl: Duration, may_shorten: bool) -> Call<'a> {
        mutex::renew(&self.0.keys, &mutex::RENEW, id, ttl, may_shorten)
    }

    fn queue(&self) -> Option<&dyn RedisQueue> {
        Some(&self.0)
    }

    fn check_quorum(&self) -> Result<(), Error> {
        Err(Error::Config(
            "a fair lock needs one server, Sentinel or Cluster: the servers of a quorum share no \
             queue"
                .into(),
        ))
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
            let [locks, queue] = keys.release(b"", AtRelease::Plain).keys;
            let mut slots = locks.iter().chain(queue).map(|key| slot(key));
            assert!(slots.all(|slot| slot == keys.key(0).slot()), "{name}");
        }
        let keys = FairMutexKeys::of(Keys::new("a".into(), "lock:", "r:"));
        assert_eq!(keys.queue().unwrap().key(), b"leasehold:queue:{lock:a}");
    }
}
