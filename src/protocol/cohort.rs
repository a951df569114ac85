//! The lock of one name on a server with queues: its clients wait in a queue in Redis, and the
//! calls of each client behind each other.

use std::sync::Arc;
use std::time::Duration;

use crate::holder::HolderId;
use crate::protocol::answer::Wanted;
use crate::protocol::fair::{self, FairMutexKeys};
use crate::protocol::keys::Keys;
use crate::protocol::mutex::{self, ACQUIRE};
use crate::protocol::primitive::{Acquire, Primitive, RedisQueue};
use crate::protocol::rights::QueueRights;
use crate::protocol::script::{Arg, Call, Script, WithoutQueue, script};
use crate::protocol::verb::Verb;

/// Makes the refresh of a queue, behind the Lua functions of the queue and one that says what the
/// places of a client want.
macro_rules! cohort_script {
    ($name:literal, $commands:literal) => {
        script!(
            $name,
            $commands,
            "last_token",
            "now",
            "admit_lock",
            "queue",
            "cohort_refresh"
        )
    };
}

/// Grants to the first waiter, or frees the lock.
///
/// The functions of the queue are inside a function, which runs only if a client waits.
pub(super) static RELEASE: Script = script!(
    "cohort_release",
    "get pttl pexpire set del lindex hdel lrem time lpop hget hset",
    "rewrite",
    "open_queue",
    "last_token",
    "now",
    "admit_lock",
    "queue",
    "pass_on"
);
pub(super) static REFRESH: Script = cohort_script!(
    "queue_refresh",
    "time get set del pttl lindex lpop lrem hget hset hdel pexpire"
);

/// The keys and calls of a [`Mutex`](crate::Mutex), unless a quorum keeps it.
#[derive(Debug)]
pub(crate) struct CohortKeys {
    /// Both kinds of lock share the queue of a name.
    fair: FairMutexKeys,
    rights: Arc<QueueRights>,
}

impl CohortKeys {
    pub(crate) fn of(keys: Keys, rights: &Arc<QueueRights>) -> Arc<dyn Primitive> {
        Arc::new(Self {
            fair: FairMutexKeys::new(keys),
            rights: Arc::clone(rights),
        })
    }

    /// Returns `call`, or the same without a queue if the user may not use queues.
    fn or_without_queue<'a>(&'a self, call: Call<'a>, without: &'static Script) -> Call<'a> {
        let call = Call {
            without_queue: Some(WithoutQueue {
                script: without,
                rights: &self.rights,
            }),
            ..call
        };
        match self.rights.are_missing() {
            true => call.without_queue().unwrap_or(call),
            false => call,
        }
    }
}

impl Primitive for CohortKeys {
    fn keys(&self) -> &Keys {
        self.fair.keys()
    }

    /// Without a place, acquires the lock if it is free, even if clients wait in the queue.
    fn acquire<'a>(&'a self, request: Acquire<'a>) -> Call<'a> {
        let Some(place) = request.place else {
            return mutex::acquire(self.keys(), &request, [&ACQUIRE, &mutex::PROPOSE]);
        };
        let tokens = request.tokens.max(1);
        let args = [
            Arg::id(request.id),
            Arg::millis(request.ttl),
            Arg::Block(tokens),
            Arg::Bytes(place.mark()),
        ];
        let wanted = Wanted {
            reserved: tokens - 1,
            ..Wanted::ONE
        };
        let call = self.fair.call(Verb::Acquire(wanted), &fair::ENTER, args);
        call.followed_by(std::slice::from_ref(place.inbox))
    }

    /// Also passes the lock to the next client.
    ///
    /// With `counts`, the release may leave the lock free for a moment instead.
    fn release<'a>(&'a self, value: &'a [u8], counts: bool) -> Call<'a> {
        let may_leave_open = match counts {
            true => Arg::Number(1),
            false => Arg::Absent,
        };
        let channel = Arg::Bytes(&self.keys().channels[0]);
        let args = [Arg::Bytes(value), channel, may_leave_open];
        let call = self.fair.call(Verb::PassOn, &RELEASE, args);
        self.or_without_queue(call, &mutex::RELEASE)
    }

    fn undo<'a>(&'a self, arguments: &'a [Vec<u8>]) -> Call<'a> {
        self.or_without_queue(self.fair.undo(arguments), &mutex::UNDO)
    }

    fn renew<'a>(&'a self, id: &'a HolderId, ttl: Duration, may_shorten: bool) -> Call<'a> {
        self.fair.renew(id, ttl, may_shorten)
    }

    fn queue(&self) -> Option<&dyn RedisQueue> {
        match self.rights.are_missing() {
            true => None,
            false => Some(self),
        }
    }

    fn has_local_queue(&self) -> bool {
        true
    }

    fn forgo_queue(&self) -> bool {
        self.rights.refused();
        true
    }
}

impl RedisQueue for CohortKeys {
    fn key(&self) -> &[u8] {
        self.fair.key()
    }

    fn places(&self) -> &[u8] {
        self.fair.places()
    }

    fn refresh<'a>(&'a self, inbox: &'a [u8], ids: &'a [Vec<u8>]) -> Call<'a> {
        self.refresh_for(1, inbox, ids)
    }

    fn refresh_for<'a>(&'a self, tokens: u64, inbox: &'a [u8], ids: &'a [Vec<u8>]) -> Call<'a> {
        let args = [Arg::Block(tokens), Arg::Bytes(inbox)];
        let verb = Verb::Refresh {
            places: ids.len(),
            is_shared: false,
        };
        self.fair.call(verb, &REFRESH, args).followed_by(ids)
    }
}
