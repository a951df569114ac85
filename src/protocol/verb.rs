//! The kinds of calls, and the replies that each can have. Any other reply shows that the peer is
//! not Redis.

use crate::protocol::answer::{Answer, Undone, Wanted};
use crate::protocol::permits_out::PermitsOut;
use crate::protocol::place::Refreshed;
use crate::protocol::renew_many;
use crate::protocol::reply::Reply;

/// The kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Acquire(Wanted),
    Release,
    /// Releases a cohort lock: grants it to the next client in its queue, or frees it.
    PassOn,
    /// Releases the lock, or removes the place, of each of this number of holder ids.
    Undo(usize),
    Renew,
    /// Renews this number of leases.
    RenewMany(usize),
    /// Reads the holder.
    Inspect,
    /// Reads the last fencing token.
    ReadFence,
    /// Reads the holders of a semaphore's permits.
    InspectPermits,
    /// Reads the writer or the readers of a read-write lock.
    InspectShared,
    /// Refreshes this number of places in a queue. Several can be granted at once only if the lock
    /// is shared.
    Refresh {
        places: usize,
        is_shared: bool,
    },
    /// Adds to the shared statistics.
    AddStats,
    /// A command that replies with a number, such as `WAIT` and `PUBLISH`.
    Count,
    Asking,
    Ping,
    /// Writes nothing, and is refused unless the server accepts writes.
    Probe,
}

impl Verb {
    /// Returns whether the reply lists holders: then it may have 1 MiB.
    pub(crate) fn lists_holders(self) -> bool {
        matches!(self, Self::InspectPermits | Self::InspectShared)
    }

    /// Returns whether an open circuit breaker stops the call: only what acquires or waits. The
    /// holders of locks must be able to renew and release them.
    pub(crate) fn is_stopped_by_breaker(self) -> bool {
        matches!(self, Self::Acquire(_) | Self::Refresh { .. })
    }

    /// Returns whether the answer says if the caller had the lock until then.
    pub(crate) fn releases(self) -> bool {
        matches!(self, Self::Release | Self::PassOn)
    }

    /// Returns whether an answer shows that the server accepts writes.
    pub(crate) fn writes(self) -> bool {
        !matches!(
            self,
            Self::Inspect
                | Self::InspectPermits
                | Self::InspectShared
                | Self::ReadFence
                | Self::Count
                | Self::Asking
                | Self::Ping
        )
    }

    /// Reads a reply; `None` if no such call can have it.
    pub(crate) fn read(self, reply: Reply) -> Option<Answer> {
        match self {
            Self::Acquire(wanted) => Answer::read_acquired(reply, wanted),
            Self::Release => Answer::read_key(reply),
            Self::PassOn => Answer::read_passed_on(reply),
            Self::Undo(ids) => Undone::read(reply, ids).map(Answer::Undone),
            Self::Renew => Answer::read_key(reply),
            Self::RenewMany(leases) => renew_many::read(reply, leases).map(Answer::Renewed),
            Self::Inspect => Answer::read_holder(reply),
            Self::InspectPermits => PermitsOut::read(reply).map(Answer::Permits),
            Self::InspectShared => Answer::read_holders(reply),
            Self::Refresh { places, is_shared } => {
                let found = Refreshed::read(reply, places, is_shared);
                found.map(|(places, refusal)| Answer::Places(places, refusal))
            }
            Self::ReadFence => reply.into_text_or_nil().map(Answer::Fence),
            Self::AddStats => matches!(reply, Reply::Int(1)).then_some(Answer::Done),
            Self::Count => reply.count().map(Answer::Count),
            Self::Asking => is_status(&reply, "OK").then_some(Answer::Done),
            Self::Ping => is_status(&reply, "PONG").then_some(Answer::Done),
            Self::Probe => matches!(reply, Reply::Int(0 | 1)).then_some(Answer::Done),
        }
    }
}

fn is_status(reply: &Reply, text: &str) -> bool {
    matches!(reply, Reply::Status(status) if status == text)
}
