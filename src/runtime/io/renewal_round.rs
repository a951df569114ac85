//! One renewal of a lease, sent to each of its servers by that server's own thread.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::clock::Instant;
use crate::lease::held::HeldLease;
use crate::lease::state::RenewalRequest;
use crate::protocol::answer::KeyState;
use crate::protocol::keys::Keys;
use crate::protocol::script::Reply;
use crate::redis::{Fault, LeaseVotes, Majority, Verdict};

/// A renewal that is under way on every server of a lease. It is over once the replies decide it,
/// so that a server that hangs delays nothing.
pub(crate) struct RenewalRound {
    pub(crate) hold: Arc<HeldLease>,
    pub(crate) request: RenewalRequest,
    /// `None` once the round is over.
    open: Mutex<Option<Open>>,
}

/// The part of a renewal that one server gets.
pub(crate) struct RenewalPart {
    pub(crate) round: Arc<RenewalRound>,
    /// The keys that one script call covers.
    pub(crate) keys: Arc<Keys>,
}

impl RenewalPart {
    pub(crate) fn new(round: &Arc<RenewalRound>, keys: &Arc<Keys>) -> Self {
        Self {
            round: Arc::clone(round),
            keys: Arc::clone(keys),
        }
    }
}

struct Open {
    votes: LeaseVotes,
    /// When the first part was sent: the lease lasts from then.
    sent: Instant,
    fault: Option<Fault>,
}

impl RenewalRound {
    pub(crate) fn new(hold: Arc<HeldLease>, request: RenewalRequest, size: Majority) -> Self {
        let open = Open {
            votes: LeaseVotes::new(size),
            sent: Instant::NEVER,
            fault: None,
        };
        Self {
            hold,
            request,
            open: Mutex::new(Some(open)),
        }
    }

    /// Counts a server's reply to the part sent at `sent`. Returns the result of the whole round,
    /// and when it was first sent, if this reply decides it.
    pub(crate) fn cast(
        &self,
        sent: Instant,
        answer: Result<Reply, Fault>,
    ) -> Option<(Instant, Result<Reply, Fault>)> {
        let mut slot = self.open.lock();
        let open = slot.as_mut()?;
        open.sent = open.sent.min(sent);
        match answer {
            Ok(reply) => {
                let value: &[u8] = match &reply {
                    Reply::Text(value) => value,
                    _ => &[],
                };
                open.votes.count(KeyState::read(&reply), value);
            }
            Err(fault) => {
                open.votes.count(None, &[]);
                open.fault = Some(fault);
            }
        }
        let outcome = open.votes.outcome()?;
        let open = slot.take()?;
        drop(slot);
        let answer = match (outcome, open.fault) {
            (Verdict::Ours, _) => Ok(Reply::Int(1)),
            (Verdict::Nobody, _) => Ok(Reply::Int(0)),
            (Verdict::Another(value), _) => Ok(Reply::Text(value)),
            (Verdict::Unknown, Some(fault)) => Err(fault),
            (Verdict::Unknown, None) => Ok(Reply::Other),
        };
        Some((open.sent, answer))
    }
}
