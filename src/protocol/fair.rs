//! The fair lock: its queue in Redis, and its calls.

use std::sync::Arc;
use std::time::Duration;

use crate::holder_id::HolderId;
use crate::protocol::keys::Keys;
use crate::protocol::mutex;
use crate::protocol::primitive::{Acquire, Admission, AtRelease, Primitive, RedisQueue};
use crate::protocol::queue_keys::{LOCKS, QueueKeys, QueueRules};
use crate::protocol::renew_many::RenewMany;
use crate::protocol::script::{Arg, Call};

/// One holder at a time.
pub(super) static RULES: QueueRules = QueueRules {
    scripts: &LOCKS,
    admission: Admission::Exclusive,
    is_of_lock: true,
    is_shared: false,
};

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

    fn renew_many(&self) -> Option<&'static RenewMany> {
        Some(&mutex::RENEW_MANY)
    }

    fn queue(&self) -> Option<&dyn RedisQueue> {
        Some(&self.0)
    }

    fn needs_queues(&self) -> Option<(&'static str, &'static str)> {
        Some(("a fair lock", "the servers of a quorum share no queue"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::slot::slot;

    #[test]
    fn all_keys_of_a_fair_lock_are_in_one_slot() {
        for name in ["a", "{u1}:a", "a{b"] {
            let keys = FairMutexKeys::of(Keys::new(name.into(), "lock:", "lock_release:"));
            let [locks, queue] = keys.release(b"", AtRelease::Usual).keys;
            let mut slots = locks.iter().chain(queue).map(|key| slot(key));
            assert!(slots.all(|slot| slot == keys.key(0).slot()), "{name}");
        }
        let keys = FairMutexKeys::of(Keys::new("a".into(), "lock:", "r:"));
        assert_eq!(keys.queue().unwrap().key(), b"leasehold:queue:{lock:a}");
    }
}
