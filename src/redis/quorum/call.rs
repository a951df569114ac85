//! A call to a quorum: its breaker, its turn under the cap, and one round to all servers.

use crate::clock::Instant;
use crate::logging;
use crate::protocol::answer::Answer;
use crate::protocol::script::Call;
use crate::redis::conn::callers::Cap;
use crate::redis::fault::Fault;
use crate::redis::quorum::Quorum;
use crate::redis::quorum::round::Round;
use crate::redis::undoable::Undoable;

impl Quorum {
    /// Sends `call` to all servers and waits at most until `until` for enough replies to decide it.
    ///
    /// If an acquiring call fails, this round or the servers' io threads release what it may have
    /// left behind. The caller has nothing to undo.
    pub(crate) fn call(
        &self,
        call: Call<'_>,
        until: Instant,
        cap_rule: Cap,
        undoable: Option<&Undoable<'_>>,
    ) -> Result<(Answer, Instant), Fault> {
        let asked = Instant::now();
        if cap_rule == Cap::Counted {
            self.condition.admit(&self.label)?;
        }
        let _permit = self.permits.take(cap_rule, until)?;
        let answer = Round::new(self, Some(call), until, undoable).run();
        match &answer {
            Err(Fault::NotRun(cause) | Fault::Unknown(cause)) => {
                let had_time = asked.until(until) >= self.command_timeout / 10 * 9;
                if self.condition.failed(Some(cause), had_time) {
                    logging::warn!(
                        "no majority has answered again and again, calls fail at once: {cause}"
                    );
                }
            }
            _ => {
                self.condition.answered(Instant::now());
            }
        }
        answer
    }

    /// Pings all servers; succeeds if a majority replies.
    pub(crate) fn ping(&self, until: Instant) -> Result<(), Fault> {
        let _permit = self.permits.take(Cap::Counted, until)?;
        Round::new(self, None, until, None).run().map(drop)
    }
}
