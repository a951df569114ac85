//! The interface between a kind of lock and the layers above, which serve all kinds alike.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use crate::error::Error;
use crate::holder_id::HolderId;
use crate::protocol::keys::Keys;
use crate::protocol::renew_many::RenewMany;
use crate::protocol::script::{Arg, Call};

/// A kind of lock: its keys and its calls.
///
/// Each kind is implemented in a separate file of this folder, next to its scripts. The
/// [`Verb`](crate::protocol::verb::Verb) of a call determines how its reply is read.
pub(crate) trait Primitive: fmt::Debug + Send + Sync {
    fn keys(&self) -> &Keys;

    /// Acquires the lock, or joins its queue in Redis.
    fn acquire<'a>(&'a self, request: Acquire<'a>) -> Call<'a>;

    /// Releases the lock if `value`, usually a holder id, holds it. Otherwise removes the place of
    /// `value` from the queue in Redis.
    fn release<'a>(&'a self, value: &'a [u8], at: AtRelease) -> Call<'a>;

    /// Releases the lock, or removes the place, of each of several holder ids.
    ///
    /// `arguments` are those of [`Keys::undo_arguments`].
    fn undo<'a>(&'a self, arguments: &'a [Vec<u8>]) -> Call<'a>;

    /// Sets the ttl; shortens it only if `may_shorten`.
    fn renew<'a>(&'a self, id: &'a HolderId, ttl: Duration, may_shorten: bool) -> Call<'a>;

    /// The script that renews many leases of this kind; `None` if each of them is renewed alone.
    fn renew_many(&self) -> Option<&'static RenewMany> {
        None
    }

    /// Returns a new id for a lease of `owner`.
    fn fresh_id(&self, owner: &str) -> HolderId {
        HolderId::fresh(owner)
    }

    /// Returns an error if the names, or the numbers of permits, are invalid.
    fn check(&self) -> Result<(), Error> {
        self.keys().check()
    }

    /// Makes the holder, a writer, a reader from now on. Other readers may then join it.
    ///
    /// Sets the ttl, and never shortens it. May be repeated. Called for read-write locks only.
    fn downgrade<'a>(&'a self, id: &'a HolderId, ttl: Duration) -> Call<'a> {
        self.renew(id, ttl, false)
    }

    /// How many permits a call wants, and how many the semaphore has; `None` for a lock.
    fn permits(&self) -> Option<(u32, u32)> {
        None
    }

    /// Returns true if holders of this kind share the lock.
    fn is_shared(&self) -> bool {
        false
    }

    /// The number of leases of one client that can hold a name at a time, unless they share it.
    fn capacity(&self) -> usize {
        1
    }

    /// The queue in Redis in which calls wait, if there is one.
    fn queue(&self) -> Option<&dyn RedisQueue> {
        None
    }

    /// Returns true if the calls of each client wait behind each other in a queue of that client.
    ///
    /// If there is a queue in Redis, too, only the first of them has a place there.
    fn has_local_queue(&self) -> bool {
        self.queue().is_none()
    }

    /// Returns what the kind is called, and why a quorum cannot keep it, if it needs queues in
    /// Redis.
    fn needs_queues(&self) -> Option<(&'static str, &'static str)> {
        None
    }
}

/// A further effect of a release, if the kind of lock can have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtRelease {
    Usual,
    /// May delete the key although clients wait in the queue, so that other programs can acquire
    /// the lock.
    MayBePlain,
}

/// The parameters of a call that acquires a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acquire<'a> {
    pub(crate) id: &'a HolderId,
    pub(crate) ttl: Duration,
    /// How many fencing tokens to reserve, if the lock can be handed off.
    pub(crate) tokens: u64,
    /// The first token, if the client proposes it to the servers of a quorum.
    pub(crate) proposed: Option<u64>,
    /// Other servers keep the lease: a free key is taken whatever the token.
    pub(crate) joins: bool,
    /// Acquires one token, and only while this key has this value: the lock and the holder id of
    /// the call before. A fair lock does not have such calls.
    pub(crate) after: Option<(&'a [u8], &'a [u8])>,
    pub(crate) queueing: Queueing<'a>,
}

impl<'a> Acquire<'a> {
    /// The mark and the inbox of the place to take, or 0 for none.
    pub(super) fn place(&self) -> Arg<'a> {
        match self.queueing {
            Queueing::Join(place) => Arg::Place(place.mark(), place.inbox),
            Queueing::Barge => Arg::Number(0),
        }
    }
}

/// The relation of a call to the clients that wait in the queue of its lock in Redis.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Queueing<'a> {
    /// Acquires the lock although others wait, unless it is fair.
    Barge,
    /// Acquires the lock only if nobody waits; takes this place if it is refused.
    Join(NewPlace<'a>),
}

/// A place that a call takes at the end of a queue in Redis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewPlace<'a> {
    /// The channel to which grants are published; empty if the client receives no messages.
    pub(crate) inbox: &'a Vec<u8>,
    pub(crate) reached: Reached,
}

impl NewPlace<'_> {
    /// The mark of the place: see `queue.lua`.
    pub(super) fn mark(&self) -> &'static [u8] {
        match self.reached {
            Reached::WhileListening => b"l",
            Reached::Soon => b"n",
            Reached::Always => b"a",
        }
    }
}

/// When a grant reaches a waiter. A grant passes over the waiters that it does not reach.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reached {
    /// While its client listens to the inbox.
    WhileListening,
    /// Always until the first refresh at which its client listens, then while it listens. The
    /// client is about to listen for the first time, and refreshes when it does.
    Soon,
    /// Always: its client may listen at another node, where the server cannot see it.
    Always,
}

/// The places that one refresh can have.
///
/// Kinds of lock can share a queue in Redis and its scripts. But a reply that grants several places
/// at once is valid only for readers and writers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Admission {
    /// One holder at a time.
    Exclusive,
    /// One writer, or several readers.
    Shared,
}

/// A queue in Redis of the calls that wait for a lock, from all clients.
pub(crate) trait RedisQueue {
    /// The list of the waiters' holder ids, in order.
    fn key(&self) -> &[u8];

    /// The hash of the waiters' places.
    fn places(&self) -> &[u8];

    /// The rules by which the queue admits waiters.
    fn admission(&self) -> Admission {
        Admission::Exclusive
    }

    /// Refreshes the places of `ids`; later grants to them are published to `inbox`. The places of
    /// a [`Mutex`](crate::Mutex) want this number of `tokens` from now on.
    fn refresh<'a>(&'a self, tokens: u64, inbox: &'a [u8], ids: &'a [Vec<u8>]) -> Call<'a>;
}

/// A lock is used by its keys, whatever its kind.
impl Deref for dyn Primitive {
    type Target = Keys;

    fn deref(&self) -> &Keys {
        self.keys()
    }
}

impl fmt::Display for dyn Primitive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.keys().fmt(f)
    }
}
