//! The commands of a client: those of the kernel's engine, and over a quorum those of its rounds.
//!
//! ```text
//! the engine ──one server─────────────────▶ its command         ──▶ its end ─────▶ the engine
//!     └──a quorum──▶ a round ──▶ a command for each server ──▶ their ends ──▶ one end ──┘
//!                    └──it was not won: pending releases of what it has taken
//! ```

use crate::clock::Instant;
use crate::kernel::Kernel;
use crate::kernel::command::What;
use crate::kernel::effects::Effects;
use crate::kernel::engine::{Engine, Outgoing, Ticket};
use crate::kernel::fault::Fault;
use crate::protocol::answer::Answer;
use crate::quorum::round::Members;
use crate::quorum::rounds::{Rounds, Turn};

/// The commands in flight. Owned by the engine's thread.
#[derive(Debug, Default)]
pub(crate) struct Commands {
    engine: Engine,
    rounds: Rounds,
}

impl Commands {
    /// Returns the commands that are due.
    pub(crate) fn due(
        &mut self,
        kernel: &Kernel,
        now: Instant,
        members: &dyn Members,
        fx: &mut Effects,
    ) -> Vec<Outgoing> {
        let mut due = self.engine.due(kernel, now, members, fx);
        if !kernel.limits.is_quorum {
            if kernel.limits.engine_sends {
                // Their commands are under way, or have ended as not run.
                kernel.take_left();
            }
            return due;
        }
        let mut turn = Turn::new((kernel, &mut self.engine), members, now, fx);
        loop {
            let mut has_ended = false;
            for out in due {
                if let What::Undo { .. } = out.command.what {
                    // The kernel knows where it must be sent.
                    turn.out.push(out);
                } else {
                    has_ended |= self.rounds.begin(out.ticket, out.command, &mut turn);
                }
            }
            has_ended |= self.rounds.advance(&kernel.take_left(), &mut turn);
            if !has_ended {
                return turn.out;
            }
            due = turn.engine.due(kernel, now, members, turn.fx);
        }
    }

    /// Applies the end of a command, exactly once for each ticket. Returns the commands to send
    /// then.
    pub(crate) fn ended(
        &mut self,
        kernel: &Kernel,
        ticket: Ticket,
        end: Result<Answer, Fault>,
        [sent, now]: [Instant; 2],
        members: &dyn Members,
        fx: &mut Effects,
    ) -> Vec<Outgoing> {
        let mut turn = Turn::new((kernel, &mut self.engine), members, now, fx);
        match self.rounds.ended(ticket, end, &mut turn) {
            Ok(()) => turn.out,
            Err(end) => (self.engine).ended(kernel, ticket, end, [sent, now], members, fx),
        }
    }

    /// Returns whether a command may be sent now: for the first time, to another server, or with
    /// its script's text. Otherwise it must end as `NotRun`.
    pub(crate) fn may_resend(&self, kernel: &Kernel, ticket: Ticket, now: Instant) -> bool {
        let of_round = self.rounds.may_resend(kernel, ticket, now);
        of_round.unwrap_or_else(|| self.engine.may_resend(kernel, ticket, now))
    }

    /// Ends the commands: their thread must not drop what may own a user's closure.
    pub(crate) fn end(&mut self, fx: &mut Effects) {
        self.rounds = Rounds::default();
        self.engine.end(fx);
    }

    /// Returns whether a command in flight may acquire something.
    pub(crate) fn may_acquire(&self) -> bool {
        self.engine.may_acquire() || self.rounds.may_acquire()
    }

    /// Returns whether nothing was sent that has not ended, and no holder waits for a release.
    pub(crate) fn is_idle(&self) -> bool {
        // A round may never send the rest of its commands.
        self.rounds.is_idle() && self.engine.is_idle(|ticket| self.rounds.decides(ticket))
    }

    /// Returns whether a round may still change something under this id.
    #[cfg(sim)]
    pub(crate) fn knows(&self, id: &str) -> bool {
        self.rounds.knows(id)
    }

    /// Returns the commands and rounds that have not ended.
    #[cfg(sim)]
    pub(crate) fn in_flight(&self) -> usize {
        self.engine.in_flight() + self.rounds.len()
    }
}
