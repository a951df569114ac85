//! One renewal of a lease, sent to each of its servers.

use std::sync::Arc;

use crate::clock::Instant;
use crate::lease::held::HeldLease;
use crate::lease::status::RenewalRequest;
use crate::protocol::answer::Answer;
use crate::protocol::primitive::Primitive;
use crate::protocol::verb::Verb;
use crate::redis::{Fault, Majority, Verdict, Votes};
use crate::sync::Mutex;

/// A renewal that is under way on every server of a lease. It is over once the replies decide it,
/// so that a server that hangs delays nothing.
pub(crate) struct RenewalRound {
    pub(crate) hold: Arc<HeldLease>,
    pub(crate) request: RenewalRequest,
    /// The votes, while the round is open.
    open: Mutex<Option<Open>>,
}

/// The part of a renewal that one server gets.
pub(crate) struct RenewalPart {
    pub(crate) round: Arc<RenewalRound>,
    /// The keys that one script call covers.
    pub(crate) keys: Arc<dyn Primitive>,
}

impl RenewalPart {
    pub(crate) fn new(round: &Arc<RenewalRound>, keys: &Arc<dyn Primitive>) -> Self {
        Self {
            round: Arc::clone(round),
            keys: Arc::clone(keys),
        }
    }
}

struct Open {
    votes: Votes,
    /// When the first of the parts counted so far was sent: the lease lasts from then.
    sent: Instant,
    fault: Option<Fault>,
}

impl RenewalRound {
    pub(crate) fn new(hold: Arc<HeldLease>, request: RenewalRequest, size: Majority) -> Self {
        let open = Open {
            votes: Votes::new(Verb::Renew, size),
            sent: Instant::NEVER,
            fault: None,
        };
        Self {
            hold,
            request,
            open: Mutex::new(Some(open)),
        }
    }

    /// Counts a server's reply to the part sent at `sent`. If this reply decides the round, returns
    /// when the first of the counted parts was sent, and the result.
    pub(crate) fn cast(
        &self,
        sent: Instant,
        answer: Result<Answer, Fault>,
    ) -> Option<(Instant, Result<Answer, Fault>)> {
        let mut slot = self.open.lock();
        let open = slot.as_mut()?;
        open.sent = open.sent.min(sent);
        let vote = answer.map_err(|fault| open.fault = Some(fault)).ok();
        open.votes.count(vote);
        let answer = match open.votes.verdict() {
            Verdict::Open => return None,
            Verdict::Decided(answer) => Ok(answer),
            // At least one server failed.
            Verdict::Unknown => Err(open.fault.take()?),
        };
        let sent = open.sent;
        *slot = None;
        Some((sent, answer))
    }
}
