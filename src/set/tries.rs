//! The tries of the releases of a set by its holder's thread.
//!
//! ```text
//! all are sent ──each has an end, or is useless──▶ over
//!   ▲   │
//!   │   └──some have no answer──▶ deadline, closed, or only one try ──yes──▶ given up
//!   └── those are sent again ◀── pause ◀──no──┘
//! ```

use std::borrow::Cow;

use crate::clock::Instant;
use crate::kernel::command::Command;
use crate::kernel::fault::Fault;
use crate::kernel::release_tries::{NextTry, ReleaseTries};
use crate::protocol::answer::Answer;

/// The end of the release of a part.
#[derive(Debug)]
pub(crate) struct SetEnd {
    pub(crate) end: Result<Answer, Fault>,
    /// A try got no reply.
    pub(crate) may_have_run: bool,
}

/// The releases of the parts of a set, in their order.
pub(crate) struct SetTries {
    commands: Vec<Command>,
    /// The end of each command; empty until all have been sent.
    ends: Vec<SetEnd>,
    tries: ReleaseTries,
}

impl SetTries {
    /// The tries of these commands by `deadline`, or a single one.
    pub(crate) fn new(commands: Vec<Command>, deadline: Instant, tries_once: bool) -> Self {
        Self {
            commands,
            ends: Vec::new(),
            tries: ReleaseTries::new(deadline, tries_once),
        }
    }

    /// All its commands.
    #[cfg(sim)]
    pub(crate) fn commands(&self) -> &[Command] {
        &self.commands
    }

    /// Returns the commands to be sent.
    pub(crate) fn open(&self) -> Cow<'_, [Command]> {
        if self.ends.is_empty() {
            return Cow::Borrowed(&self.commands);
        }
        let open = self.commands.iter().zip(&self.ends);
        let open = open.filter(|(_, it)| it.is_open());
        open.map(|(command, _)| command.clone()).collect()
    }

    /// Records the ends of the open commands, in their order, and returns the next step. `server`
    /// names the server in messages.
    pub(crate) fn ended(
        &mut self,
        ends: Vec<Result<Answer, Fault>>,
        server: &str,
        is_closed: bool,
        now: Instant,
    ) -> NextTry {
        if self.ends.is_empty() {
            self.ends = ends.into_iter().map(SetEnd::of).collect();
        } else {
            let open = self.ends.iter_mut().filter(|it| it.is_open());
            for (open, end) in open.zip(ends) {
                let had_run = open.may_have_run;
                *open = SetEnd::of(end);
                open.may_have_run |= had_run;
            }
        }
        match self.ends.iter().find(|it| it.is_open()) {
            Some(open) => self.tries.ended(&open.end, server, is_closed, now),
            None => NextTry::Over,
        }
    }

    /// Returns whether the server has refused a try.
    pub(crate) fn was_refused(&self) -> bool {
        self.tries.was_refused()
    }

    /// Returns why a command has failed, if one has.
    pub(crate) fn fault(&self) -> Option<&Fault> {
        self.ends.iter().find_map(|it| it.end.as_ref().err())
    }

    /// Returns the last ends of the commands.
    pub(crate) fn into_ends(self) -> (Vec<Command>, Vec<SetEnd>) {
        (self.commands, self.ends)
    }
}

impl SetEnd {
    /// The end of the first try.
    pub(crate) fn of(end: Result<Answer, Fault>) -> Self {
        Self {
            may_have_run: matches!(end, Err(Fault::Unknown(_))),
            end,
        }
    }

    /// Returns whether another try may be answered.
    fn is_open(&self) -> bool {
        !matches!(
            self.end,
            Ok(_) | Err(Fault::NotReplicated(_) | Fault::Rejected(_))
        )
    }
}
