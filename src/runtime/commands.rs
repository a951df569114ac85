//! The commands of a client: those of the kernel's engine, sent to one server as they are, or
//! through the virtual server to each member of a quorum.
//!
//! ```text
//! the engine ──one server──────────────────▶ its command  ──▶ its end ─────▶ the engine
//!     └──a quorum──▶ the virtual server ──▶ commands ──▶ ends ──▶ one end ──┘
//! ```

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::kernel::Kernel;
use crate::kernel::command::Command;
use crate::kernel::effects::Effects;
use crate::kernel::engine::{Engine, Outgoing};
use crate::kernel::fault::Fault;
use crate::majority::Member;
use crate::protocol::answer::Answer;
use crate::quorum::lease::LinkNo;
use crate::quorum::round::Members;
use crate::quorum::{Event, Quorum, Turn};

/// The commands in flight. Owned by the engine's thread.
#[derive(Debug, Default)]
pub(crate) struct Commands {
    engine: Engine,
    /// `None` with one server.
    quorum: Option<Quorum>,
}

/// A command for a server.
#[derive(Debug)]
pub(crate) struct ForServer {
    /// The number of a member of a quorum; 0 elsewhere.
    pub(crate) server: Member,
    pub(crate) no: u64,
    pub(crate) command: Command,
}

/// The end of a command.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) no: u64,
    pub(crate) end: Result<Answer, Fault>,
    /// The instant before it was sent.
    pub(crate) sent: Instant,
    /// The number of the connection over which it was answered. A later one is higher.
    pub(crate) link: LinkNo,
}

impl Commands {
    pub(crate) fn new(quorum: Option<Quorum>) -> Self {
        Self {
            engine: Engine::default(),
            quorum,
        }
    }

    /// Returns the commands that are due.
    pub(crate) fn due(
        &mut self,
        kernel: &Kernel,
        now: Instant,
        members: &dyn Members,
        fx: &mut Effects,
    ) -> Vec<ForServer> {
        let mut due = self.engine.due(kernel, now, members, fx);
        let Some(quorum) = &mut self.quorum else {
            if kernel.shared.limits.engine_sends {
                // Their commands are under way, or have ended as not run.
                kernel.take_left();
            }
            return for_one_server(due);
        };
        if kernel.is_closed() {
            quorum.close(kernel.awaits_open());
        }
        let mut turn = Turn::new(now, members);
        loop {
            for Outgoing { ticket, command } in due {
                quorum.submit(ticket, command, &mut turn);
            }
            quorum.leave(&kernel.take_left(), &mut turn);
            quorum.due(&mut turn);
            if turn.events.is_empty() {
                break;
            }
            tell(&mut self.engine, kernel, &mut turn, fx);
            due = self.engine.due(kernel, now, members, fx);
        }
        kernel.wake_sender_at(quorum.next(), now, fx);
        for_members(turn)
    }

    /// Applies the end of a command, exactly once for each number. Returns the commands to send
    /// then.
    pub(crate) fn ended(
        &mut self,
        kernel: &Kernel,
        ended: End,
        now: Instant,
        members: &dyn Members,
        fx: &mut Effects,
    ) -> Vec<ForServer> {
        let End {
            no,
            end,
            sent,
            link,
        } = ended;
        let Some(quorum) = &mut self.quorum else {
            let times = [sent, now];
            return for_one_server((self.engine).ended(kernel, no, end, times, members, fx));
        };
        let mut turn = Turn::new(now, members);
        quorum.ended(no, (end, link), &mut turn);
        tell(&mut self.engine, kernel, &mut turn, fx);
        kernel.wake_sender_at(quorum.next(), now, fx);
        for_members(turn)
    }

    /// Somebody else has released the key with this id at a member.
    pub(crate) fn deleted(&mut self, member: Member, id: &HolderId) {
        if let Some(quorum) = &mut self.quorum {
            quorum.deleted(member, id);
        }
    }

    /// Returns whether a command may be sent now: for the first time, to another server, or with
    /// its script's text. Otherwise it must end as `NotRun`.
    pub(crate) fn may_resend(&self, kernel: &Kernel, no: u64, now: Instant) -> bool {
        match &self.quorum {
            Some(quorum) => quorum.may_send(no, now),
            None => self.engine.may_resend(kernel, no, now),
        }
    }

    /// Ends the commands: their thread must not drop what may own a user's closure.
    pub(crate) fn end(&mut self, fx: &mut Effects) {
        self.engine.end(fx);
    }

    /// Returns whether a command in flight may acquire something.
    pub(crate) fn may_acquire(&self) -> bool {
        self.engine.may_acquire() || self.quorum.as_ref().is_some_and(Quorum::may_acquire)
    }

    /// Returns whether nothing was sent that has not ended, and no holder waits for a release.
    pub(crate) fn is_idle(&self) -> bool {
        let Some(quorum) = &self.quorum else {
            return self.engine.is_idle(|_| false);
        };
        if !quorum.is_unsent() {
            return false;
        }
        // A round may never send the rest of its commands.
        let open = quorum.tickets();
        self.engine.is_idle(|ticket| open.contains(&ticket))
    }

    /// Returns whether no release is due at `now` that the kernel does not know, and the end of the
    /// client waits for none.
    pub(crate) fn has_no_release(&self, now: Instant) -> bool {
        let quorum = self.quorum.as_ref();
        quorum.is_none_or(|quorum| quorum.is_idle(now))
    }

    /// Returns whether the end of the client waits for no reply that the kernel does not wait for.
    pub(crate) fn has_released(&self) -> bool {
        self.quorum.as_ref().is_none_or(Quorum::is_answered)
    }

    /// Returns how many leases may exist that the kernel does not know, because their releases have
    /// no reply.
    pub(crate) fn may_exist(&self) -> usize {
        self.quorum.as_ref().map_or(0, Quorum::may_exist)
    }
}

/// For the checks of the simulation.
#[cfg(sim)]
impl Commands {
    /// Returns the virtual server.
    pub(crate) fn quorum(&self) -> Option<&Quorum> {
        self.quorum.as_ref()
    }

    /// Returns the commands, rounds and releases that have not ended.
    pub(crate) fn in_flight(&self) -> usize {
        self.engine.in_flight() + self.quorum.as_ref().map_or(0, Quorum::in_flight)
    }
}

/// Tells the kernel what a turn of the virtual server has led to.
fn tell(engine: &mut Engine, kernel: &Kernel, turn: &mut Turn<'_>, fx: &mut Effects) {
    for event in std::mem::take(&mut turn.events) {
        match event {
            Event::Ended(ticket, end, sent) => {
                let times = [sent, turn.now];
                let more = engine.ended(kernel, ticket, end, times, turn.members, fx);
                debug_assert!(more.is_empty(), "renewals are not joined over a quorum");
            }
            Event::Limit(lock, id, ttl) => kernel.limit(&*lock, &id, ttl),
            Event::Doubt(lock, id) => {
                let (name, id) = (lock.key(0).name, id.as_str().as_bytes());
                kernel.doubt(name, id, turn.now, fx);
            }
        }
    }
}

fn for_one_server(due: Vec<Outgoing>) -> Vec<ForServer> {
    let due = due.into_iter().map(|out| ForServer {
        server: 0,
        no: out.ticket,
        command: out.command,
    });
    due.collect()
}

fn for_members(turn: Turn<'_>) -> Vec<ForServer> {
    let send = turn.send.into_iter();
    let send = send.map(|(server, no, command)| ForServer {
        server,
        no,
        command,
    });
    send.collect()
}
