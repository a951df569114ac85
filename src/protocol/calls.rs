//! The calls of every lock: each is built by the file of the lock's kind.

use std::time::Duration;

use crate::holder::HolderId;
use crate::protocol::keys::{Keys, LockKind};
use crate::protocol::script::Call;
use crate::protocol::{all, fair, mutex};

impl Keys {
    /// Acquires the lock. Reserves `block` tokens for a plain lock, and one for each name of
    /// others.
    pub(crate) fn acquire<'a>(&'a self, id: &'a HolderId, ttl: Duration, block: u64) -> Call<'a> {
        match self.kind() {
            LockKind::Mutex => mutex::acquire(self, id, ttl, block),
            LockKind::All => all::acquire(self, id, ttl),
            LockKind::Fair(queue) => queue.enter(self, id, ttl, None),
        }
    }

    /// Acquires the lock on one server of a quorum, under a token that the client proposes.
    /// Reserves `block` tokens for a plain lock. No fair lock is kept on a quorum.
    pub(crate) fn propose<'a>(
        &'a self,
        id: &'a HolderId,
        ttl: Duration,
        token: u64,
        block: u64,
    ) -> Call<'a> {
        match self.kind() {
            LockKind::Mutex | LockKind::Fair(_) => mutex::propose(self, id, ttl, token, block),
            LockKind::All => all::propose(self, id, ttl, token),
        }
    }

    /// Releases the lock if its key holds `value`; a fair lock is passed to the next waiter, or its
    /// place in the queue is removed.
    pub(crate) fn release<'a>(&'a self, value: &'a [u8]) -> Call<'a> {
        match self.kind() {
            LockKind::Mutex => mutex::release(self, value),
            LockKind::All => all::release(self, value),
            LockKind::Fair(queue) => fair::release(self, queue, value),
        }
    }

    /// Releases a plain lock; the reply includes the number of subscribers that received the
    /// wake-up.
    pub(crate) fn release_and_count<'a>(&'a self, id: &'a HolderId) -> Call<'a> {
        mutex::release_and_count(self, id)
    }

    /// Releases the lock if one of several holder ids holds it, and removes all of them from the
    /// queue of a fair lock. `arguments` come from [`undo_arguments`](Self::undo_arguments).
    pub(crate) fn undo<'a>(&'a self, arguments: &'a [Vec<u8>]) -> Call<'a> {
        match self.kind() {
            LockKind::Mutex | LockKind::All => mutex::undo(self, arguments),
            LockKind::Fair(queue) => fair::undo(self, queue, arguments),
        }
    }

    /// The wake channels, then the holder ids: the arguments of [`undo`](Self::undo).
    pub(crate) fn undo_arguments(&self, ids: &[&HolderId]) -> Vec<Vec<u8>> {
        let channels = self.channels.iter().cloned();
        let ids = ids.iter().map(|id| id.as_str().into());
        channels.chain(ids).collect()
    }

    /// Sets the ttl; shortens it only if `may_shorten`.
    pub(crate) fn renew<'a>(
        &'a self,
        id: &'a HolderId,
        ttl: Duration,
        may_shorten: bool,
    ) -> Call<'a> {
        match self.kind() {
            LockKind::Mutex | LockKind::Fair(_) => mutex::renew(self, id, ttl, may_shorten),
            LockKind::All => all::renew(self, id, ttl, may_shorten),
        }
    }

    /// Reads the holder of a lock of one name.
    pub(crate) fn inspect(&self) -> Call<'_> {
        mutex::inspect(self)
    }

    /// Reads the last fencing token of a lock of one name.
    pub(crate) fn last_token(&self) -> Call<'_> {
        mutex::last_token(self)
    }
}
