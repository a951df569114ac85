//! The lock of one name on a server with queues, a cohort lock (Dice, Marathe, Shavit 2012).
//! Clients wait in a queue in Redis. The calls of each client, a cohort, wait in a local queue.

use std::sync::Arc;
use std::time::Duration;

use crate::holder_id::HolderId;
use crate::protocol::fair::lock_queue;
use crate::protocol::keys::Keys;
use crate::protocol::mutex::{self, ACQUIRE};
use crate::protocol::primitive::{Acquire, AtRelease, Primitive, Queueing, RedisQueue};
use crate::protocol::queue_keys::{QueueKeys, queue_script};
use crate::protocol::renew_many::RenewMany;
use crate::protocol::script::{Arg, Call, Script, script};
use crate::protocol::verb::Verb;

/// Releases the lock: grants it to the first waiter, or frees it.
pub(super) static RELEASE: Script = script!(
    "cohort_release",
    "state",
    "leave_free",
    "rewrite",
    "last_token",
    "now",
    "locks",
    "queue",
    "plain"
);
/// Sets what the places of a client want from now on, and refreshes them.
pub(super) static REFRESH: Script = queue_script!("queue_refresh", [], "locks", "cohort_refresh");

/// The keys and calls of a [`Mutex`](crate::Mutex), unless a quorum keeps it.
#[derive(Debug)]
pub(crate) struct CohortKeys {
    /// The queue of the name, which its fair lock and its read-write lock use, too.
    queue: QueueKeys,
}

impl CohortKeys {
    pub(crate) fn of(keys: Keys) -> Arc<dyn Primitive> {
        Arc::new(Self {
            queue: lock_queue(keys),
        })
    }
}

impl Primitive for CohortKeys {
    fn keys(&self) -> &Keys {
        &self.queue.keys
    }

    /// Acquires the lock if it is free. A call with `Queueing::Barge` ignores the queue. Other
    /// calls acquire it only if no client waits there.
    fn acquire<'a>(&'a self, request: Acquire<'a>) -> Call<'a> {
        if let Queueing::Barge = request.queueing {
            return mutex::acquire(self.keys(), &request, [&ACQUIRE, &mutex::PROPOSE]);
        }
        let tokens = request.tokens.max(1);
        self.queue.enter(&request, Arg::Block(tokens), tokens)
    }

    /// Also grants the lock to the next client, unless it is a plain release.
    fn release<'a>(&'a self, value: &'a [u8], at: AtRelease) -> Call<'a> {
        let may_be_plain = match at {
            AtRelease::MayBePlain => Arg::Number(1),
            AtRelease::Usual => Arg::Absent,
        };
        let channel = Arg::Bytes(&self.keys().channels[0]);
        let args = [Arg::Bytes(value), channel, may_be_plain];
        let call = self.queue.call(Verb::PassOn, &RELEASE, args);
        call.or_without_queue(&mutex::RELEASE)
    }

    fn undo<'a>(&'a self, arguments: &'a [Vec<u8>]) -> Call<'a> {
        let call = self.queue.undo(arguments);
        call.or_without_queue(&mutex::UNDO)
    }

    fn renew<'a>(&'a self, id: &'a HolderId, ttl: Duration, may_shorten: bool) -> Call<'a> {
        mutex::renew(self.keys(), &mutex::RENEW, id, ttl, may_shorten)
    }

    fn renew_many(&self) -> Option<&'static RenewMany> {
        Some(&mutex::RENEW_MANY)
    }

    fn queue(&self) -> Option<&dyn RedisQueue> {
        Some(self)
    }

    fn has_local_queue(&self) -> bool {
        true
    }
}

impl RedisQueue for CohortKeys {
    fn key(&self) -> &[u8] {
        self.queue.key()
    }

    fn places(&self) -> &[u8] {
        self.queue.places()
    }

    fn refresh<'a>(&'a self, tokens: u64, inbox: &'a [u8], ids: &'a [Vec<u8>]) -> Call<'a> {
        let args = [Arg::Block(tokens), Arg::Bytes(inbox)];
        let verb = self.queue.refresh_verb(ids);
        self.queue.call(verb, &REFRESH, args).followed_by(ids)
    }
}
