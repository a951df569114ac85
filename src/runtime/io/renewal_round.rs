//! One question about a lease, put to each of the servers that keep it by that server's own thread.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::clock::Instant;
use crate::lease::held::Hold;
use crate::lease::state::Ask;
use crate::protocol::kind::{Found, Keys};
use crate::protocol::script::Reply;
use crate::redis::{Counted, Fault, Size, Tally};
use crate::runtime::Shared;
use crate::runtime::io::renewal::renewed;

/// A renewal that is on its way to every server of a lease. It is over once the answers decide it: a
/// server that hangs delays nobody.
pub(crate) struct Ballot {
    pub(crate) hold: Arc<Hold>,
    pub(crate) ask: Ask,
    /// `None` once it is over.
    open: Mutex<Option<Open>>,
}

/// What is asked of one server about it.
pub(crate) struct Paper {
    pub(crate) ballot: Arc<Ballot>,
    /// What one script can be about.
    pub(crate) keys: Arc<Keys>,
}

impl Paper {
    pub(crate) fn new(ballot: &Arc<Ballot>, keys: &Arc<Keys>) -> Self {
        Self {
            ballot: Arc::clone(ballot),
            keys: Arc::clone(keys),
        }
    }
}

struct Open {
    tally: Tally,
    /// When the first was asked: the lease counts from then.
    sent: Instant,
    fault: Option<Fault>,
}

impl Ballot {
    pub(crate) fn new(hold: Arc<Hold>, ask: Ask, size: Size) -> Self {
        let open = Open {
            tally: Tally::new(size),
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
    pub(crate) fn cast(&self, shared: &Shared, sent: Instant, answer: Result<Reply, Fault>) {
        let mut slot = self.open.lock();
        let Some(open) = slot.as_mut() else { return };
        open.sent = open.sent.min(sent);
        match answer {
            Ok(reply) => {
                let value: &[u8] = match &reply {
                    Reply::Text(value) => value,
                    _ => &[],
                };
                open.tally.count(Found::read(&reply), value);
            }
            Err(fault) => {
                open.tally.count(None, &[]);
                open.fault = Some(fault);
            }
        }
        let Some(outcome) = open.tally.outcome() else {
            return;
        };
        let Some(open) = slot.take() else { return };
        drop(slot);
        let answer = match (outcome, open.fault) {
            (Counted::Ours, _) => Ok(Reply::Int(1)),
            (Counted::Nobody, _) => Ok(Reply::Int(0)),
            (Counted::Another(value), _) => Ok(Reply::Text(value)),
            (Counted::Unknown, Some(fault)) => Err(fault),
            (Counted::Unknown, None) => Ok(Reply::Other),
        };
        renewed(shared, &self.hold, self.ask, open.sent, &answer);
    }
}
