//! An event at the line of a name: its instant, the facts that the line may know beyond itself, and
//! the fates of ids.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::kernel::effects::Effects;
use crate::kernel::few::Few;
use crate::kernel::request::{Request, RequestNo, RequestState};
use crate::kernel::undo::{Counts, Proof};
use crate::protocol::primitive::Primitive;

/// The settings of a client that the kernel needs.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) command_timeout: Duration,
    /// A call gives up if Redis has not answered for this long.
    pub(crate) unreachable_for: Duration,
    /// The longest pause of a call that waits without a queue in Redis.
    pub(crate) backstop: Duration,
    /// A replica may become the master: recent releases are then repeated.
    pub(crate) may_fail_over: bool,
    /// The server that answers has the only copy of the keys.
    pub(crate) replies_are_final: bool,
    /// The engine sends the commands of calls and the releases, not the program's threads.
    pub(crate) engine_sends: bool,
    /// The wall clock at [`Instant::START`], in µs: to notice if it runs ahead.
    pub(crate) wall: u64,
}

/// The numbers and the holder ids of a client: none is given twice.
#[derive(Debug)]
pub(crate) struct Numbers {
    /// The first part of the client's holder ids.
    owner: Arc<str>,
    serial: AtomicU64,
}

/// The bearing of a client's leases on the calls of their name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Own {
    /// One of them excludes all others.
    pub(super) alone: bool,
    /// One of them excludes all others, or all but others that share the lock.
    pub(super) full: bool,
    /// The line waits for the end of one, which can be handed to it.
    pub(crate) line_waits: bool,
}

/// The facts about the holder that a reply names: a command of this client may have the lock, which
/// nobody here owns.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KnownHolder {
    /// Its id may be one of this client.
    pub(super) is_own: bool,
    /// Its release is pending, or has ended since the command was sent.
    pub(super) is_released: bool,
    /// Its release has ended.
    pub(super) is_undone: bool,
    /// A release of the name has no answer yet.
    pub(super) has_unanswered: bool,
}

/// The fate of the id of an acquiring command.
#[derive(Debug)]
pub(super) enum IdFate {
    /// A grant message can name it from now on, for this request.
    InUse(HolderId, RequestNo),
    /// It holds nothing.
    Nothing(HolderId),
    /// It took nothing, as far as is known. What answers the engine's commands may still give
    /// something back that it had taken: it refuses nobody.
    NothingKnown(HolderId),
    /// Its command serves nobody any more, and is under way.
    Abandoned(HolderId),
    /// It may hold something, for this ttl at most, and has to be released.
    ToUndo {
        lock: Arc<dyn Primitive>,
        id: HolderId,
        ttl: Duration,
        ends_by: Proof,
        counts: Counts,
    },
}

/// An event at the line of a name.
pub(super) struct LineEvent<'a> {
    pub(super) now: Instant,
    pub(super) limits: &'a Limits,
    pub(super) numbers: &'a Numbers,
    pub(super) is_closed: bool,
    pub(super) own: Own,
    pub(super) fx: &'a mut Effects,
    /// The fates of ids in this event.
    pub(super) ids: Few<IdFate>,
}

impl Numbers {
    pub(super) fn new(owner: &str) -> Self {
        Self {
            owner: owner.into(),
            serial: AtomicU64::new(0),
        }
    }

    /// Returns a number for a call, a request or a lease.
    pub(super) fn next(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn fresh_id(&self, lock: &dyn Primitive) -> HolderId {
        lock.fresh_id(&self.owner)
    }

    /// Parses an id that may be one of this client: another client can have the same owner.
    pub(super) fn own_id(&self, id: &[u8]) -> Option<HolderId> {
        let may_be_own = id.starts_with(self.owner.as_bytes());
        may_be_own.then(|| HolderId::parse(id)).flatten()
    }
}

impl Own {
    /// Returns whether a lease makes Redis refuse a further one, `is_shared` or not.
    pub(super) fn excludes(self, is_shared: bool) -> bool {
        if is_shared { self.alone } else { self.full }
    }
}

impl LineEvent<'_> {
    /// The id holds nothing.
    pub(super) fn forget(&mut self, id: &HolderId) {
        self.ids.push(IdFate::Nothing(id.clone()));
    }

    /// The id took nothing, as far as is known.
    pub(super) fn forget_attempt(&mut self, id: &HolderId) {
        self.ids.push(IdFate::NothingKnown(id.clone()));
    }

    /// The id may hold something for a request: it has to be released.
    pub(super) fn undo(&mut self, request: &Request, id: &HolderId, ends_by: Proof) {
        let is_place = matches!(request.state, RequestState::Queued(_));
        self.ids.push(IdFate::ToUndo {
            lock: Arc::clone(&request.lock),
            id: id.clone(),
            ttl: request.key_may_get(),
            ends_by,
            counts: if is_place {
                Counts::Nothing
            } else {
                Counts::Lease
            },
        });
    }
}
