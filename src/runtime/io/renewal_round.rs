//! One question about a lease, put to each of the servers that keep it by that server's own thread.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::clock::Instant;
use crate::lease::held::HeldLease;
use crate::lease::state::RenewalRequest;
use crate::protocol::kind::{KeyState, Keys};
use crate::protocol::script::Reply;
use crate::redis::{Fault, LeaseVotes, Majority, Verdict};

/// A renewal that is on its way to every server of a lease. It is over once the answers decide it: a
/// server that hangs delays nobody.
pub(crate) struct RenewalRound {
    pub(crate) hold: Arc<HeldLease>,
    pub(crate) ask: RenewalRequest,
    /// `None` once it is over.
    open: Mutex<Option<Open>>,
}

/// What is asked of one server about it.
pub(crate) struct RenewalPart {
    pub(crate) ballot: Arc<RenewalRound>,
    /// What one script can be about.
    pub(crate) keys: Arc<Keys>,
}

impl RenewalPart {
    pub(crate) fn new(ballot: &Arc<RenewalRound>, keys: &Arc<Keys>) -> Self {
        Self {
            ballot: Arc::clone(ballot),
            keys: Arc::clone(keys),
        }
    }
}

struct Open {
    tally: LeaseVotes,
    /// When the first was asked: the lease counts from then.
    sent: Instant,
    fault: Option<Fault>,
}

impl RenewalRound {
    pub(crate) fn new(hold: Arc<HeldLease>, ask: RenewalRequest, size: Majority) -> Self {
        let open = Open {
            tally: LeaseVotes::new(size),
            sent: Instant::NEVER,
            fault: None,
        };
        Self {
            hold,
            ask,
            open: Mutex::new(Some(open)),
        }
    }

    /// Counts what a server answered to what was sent at `sent`.
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
                open.tally.count(KeyState::read(&reply), value);
            }
            Err(fault) => {
                open.tally.count(None, &[]);
                open.fault = Some(fault);
            }
        }
        let outcome = open.tally.outcome()?;
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
