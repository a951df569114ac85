//! The tries of a release by its holder's thread.
//!
//! ```text
//! sent ──a reply shows what it found, or that it is useless──▶ over
//!   ▲ │
//!   │ └──no answer──▶ deadline, closed, or only one try ──yes──▶ given up: the engine repeats it
//!   └──── pause ◀──no──┘
//! ```

use crate::clock::Instant;
use crate::error::Cause;
use crate::kernel::fault::Fault;
use crate::protocol::answer::Answer;
use crate::wait_policy::RECONNECT;

pub(crate) struct ReleaseTries {
    deadline: Instant,
    tries_once: bool,
    failures: u32,
    may_have_run: bool,
    was_refused: bool,
    last_cause: Option<Cause>,
}

/// The next step after a try.
pub(crate) enum NextTry {
    /// The release is over: the reply shows its result, or that another try is useless.
    Over,
    /// The thread tries again at this instant.
    Again(Instant),
    /// The thread stops trying, and the engine repeats the release.
    GivenUp(Cause),
}

impl ReleaseTries {
    /// The tries of a release by `deadline`, or a single one.
    pub(crate) fn new(deadline: Instant, tries_once: bool) -> Self {
        Self {
            deadline,
            tries_once,
            failures: 0,
            may_have_run: false,
            was_refused: false,
            last_cause: None,
        }
    }

    /// Records the end of a try, and returns the next step. `server` names the server in messages.
    pub(crate) fn ended(
        &mut self,
        end: &Result<Answer, Fault>,
        server: &str,
        is_closed: bool,
        now: Instant,
    ) -> NextTry {
        let is_over = now >= self.deadline;
        let cause = match end {
            Ok(_) | Err(Fault::NotReplicated(_) | Fault::Rejected(_)) => return NextTry::Over,
            Err(Fault::NotRun(cause)) if is_over => {
                cause.clone().or_refusal_before(self.last_cause.as_ref())
            }
            Err(Fault::NotRun(cause)) => cause.clone(),
            // The breaker never stops a release.
            Err(Fault::Open(open)) => (**open).clone().last_at(server),
            Err(Fault::Unknown(cause)) => {
                self.may_have_run = true;
                cause.clone()
            }
        };
        self.was_refused |= cause.is_of_server();
        let cause = cause.or_said_before(&mut self.last_cause);
        if is_over || is_closed || self.tries_once {
            return NextTry::GivenUp(cause);
        }
        self.failures += 1;
        NextTry::Again(match self.failures {
            // A pooled connection that had died unnoticed costs one attempt and no pause.
            1 => now,
            failures => now.after(RECONNECT.pause(failures - 2)).min(self.deadline),
        })
    }

    /// Returns whether a try without a reply may have run: it may be what removed the key.
    pub(crate) fn may_have_run(&self) -> bool {
        self.may_have_run
    }

    /// Returns whether the server has refused a try.
    pub(crate) fn was_refused(&self) -> bool {
        self.was_refused
    }
}
