//! Rounds: one command to each server of a quorum, whose votes together decide it.
//!
//! ```text
//! open ──every answer──▶ verdict? ──decided──▶ over: what it means is applied, from `first_sent`
//!   │                       └──open──▶ open
//!   └──its time is over, or its call has left──▶ over
//!
//! a server: NotSent ──its pipeline is up──▶ Asked ──reply──▶ Yes, No
//!              │                              └──its pipeline ended, no reply──▶ Unknown
//!              └──its pipeline is down, or the round is over: never sent──▶ No
//!
//! an acquiring round that is over without a lease:
//!   Yes, Asked: the release follows the command on the same pipeline
//!   Unknown:    a pending release, until the key was seen      NotSent, No: nothing
//! ```
//!
//! A vote that comes after the end changes only what is known of its server.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::error::Cause;
use crate::holder_id::HolderId;
use crate::kernel::Kernel;
use crate::kernel::command::{Command, What};
use crate::kernel::engine::{Link, Route, ServerNo, Ticket};
use crate::kernel::fault::Fault;
use crate::kernel::lease::end_for_lease;
use crate::kernel::undo::Proof;
use crate::kernel::votes::{Majority, Verdict, Votes};
use crate::mutant::{Mutant, is_on};
use crate::protocol::answer::{Answer, Wanted};
use crate::protocol::verb::Verb;
use crate::sync::Mutex;
use crate::wait_policy::RECONNECT;

pub(crate) type RoundNo = u64;

/// How long a proposal that is won waits for connections that are being made.
const CONNECTS_WITHIN: Duration = Duration::from_millis(10);

/// What is known of a round's command at one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtServer {
    NotSent,
    /// It was sent, and has no reply yet.
    Asked,
    /// It has run, and took, confirmed or released the key.
    Yes,
    /// It has run and did nothing, or it never runs.
    No,
    /// It may have run, or may run later.
    Unknown,
}

/// What is known of a round's command at each server. Its lock is a leaf.
#[derive(Debug)]
pub(crate) struct AtServers(Mutex<Box<[AtServer]>>);

impl AtServers {
    fn new(servers: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(vec![AtServer::NotSent; servers].into())))
    }

    pub(crate) fn of(&self, server: ServerNo) -> AtServer {
        self.0.lock()[server]
    }

    pub(super) fn set(&self, server: ServerNo, at: AtServer) {
        self.0.lock()[server] = at;
    }

    pub(super) fn has(&self, at: AtServer) -> bool {
        self.0.lock().contains(&at)
    }
}

#[derive(Debug)]
pub(super) struct Round {
    /// The command of the kernel that it decides.
    pub(super) ticket: Ticket,
    pub(super) command: Command,
    pub(super) id: HolderId,
    /// What the lease that it releases has at each server, and for how long its keys may last.
    pub(super) releases: Option<(Arc<AtServers>, Duration)>,
    pub(super) size: Majority,
    pub(super) at: Arc<AtServers>,
    pub(super) votes: Votes,
    pub(super) first_sent: Option<Instant>,
    /// How often it was tried before, and when its commands are sent.
    tries: u32,
    not_before: Instant,
    pub(super) began: Instant,
    /// When it was won although a connection was still being made: it waits for that until
    /// then.
    pub(super) waits_until: Option<Instant>,
    pub(super) until: Instant,
    pub(super) is_over: bool,
    /// A server has refused a proposal because of its own id: it has run before.
    has_own_id: bool,
    /// A server has refused a proposal because of what this client is releasing there.
    is_in_own_way: bool,
    /// The servers that gave no vote, and why.
    faults: Vec<(ServerNo, Fault)>,
    /// How many servers have replied without an error.
    answers: usize,
}

/// What is known of a round that has no outcome.
pub(crate) struct Undecided<'a> {
    pub(crate) size: Majority,
    /// The servers that gave no vote, and why.
    pub(crate) faults: &'a [(ServerNo, Fault)],
    /// How many servers have replied without an error.
    pub(crate) answers: usize,
    pub(crate) is_in_own_way: bool,
    pub(crate) was_sent: bool,
    pub(crate) is_proposal: bool,
}

impl Undecided<'_> {
    /// Returns the first rejection if so many servers reject it that it cannot win, and the first
    /// cause otherwise.
    pub(crate) fn first_fault(&self) -> Fault {
        let faults = || self.faults.iter().map(|(_, fault)| fault);
        let rejected = faults().filter(|fault| matches!(fault, Fault::Rejected(_)));
        if rejected.clone().count() > self.size.spare()
            && let Some(fault) = rejected.clone().next()
        {
            return fault.clone();
        }
        let cause = faults().find_map(|fault| fault.cause());
        let cause = cause.cloned();
        self.fault(cause.unwrap_or_else(|| Cause::text("too few servers answered")))
    }

    /// Returns the fault with this cause.
    pub(crate) fn fault(&self, cause: Cause) -> Fault {
        if self.is_proposal || !self.was_sent {
            // The round itself releases what it has taken.
            Fault::NotRun(cause)
        } else {
            Fault::Unknown(cause)
        }
    }
}

impl Round {
    pub(super) fn new(ticket: Ticket, command: Command, size: Majority, until: Instant) -> Self {
        let (verb, id) = match &command.what {
            What::Acquire {
                id,
                tokens,
                attempt,
                ..
            } => {
                let wanted = Wanted {
                    after: false,
                    reserved: tokens.saturating_sub(1),
                    proposed: attempt.proposes(),
                };
                (Verb::Acquire(wanted), id.clone())
            }
            What::Renew { id, .. } | What::Downgrade { id, .. } => (Verb::Renew, id.clone()),
            What::Leave { id, .. } => (Verb::Release, id.clone()),
            what => unreachable!("no round for {what:?}"),
        };
        Self {
            ticket,
            command,
            id,
            releases: None,
            size,
            at: AtServers::new(size.all),
            votes: Votes::new(verb, size),
            first_sent: None,
            tries: 0,
            not_before: Instant::START,
            began: Instant::START,
            waits_until: None,
            until,
            is_over: false,
            has_own_id: false,
            is_in_own_way: false,
            faults: Vec::new(),
            answers: 0,
        }
    }

    pub(super) fn is_release(&self) -> bool {
        matches!(self.command.what, What::Leave { .. })
    }

    pub(super) fn is_proposal(&self) -> bool {
        matches!(self.command.what, What::Acquire { .. })
    }

    fn changes_lease(&self) -> bool {
        !self.is_release() && !self.is_proposal()
    }

    /// It releases a lease that has this at the servers: those that have nothing are not asked.
    pub(super) fn release_of(&mut self, taken: Arc<AtServers>, may_last: Duration) {
        for server in 0..self.size.all {
            if let AtServer::NotSent | AtServer::No = taken.of(server) {
                self.at.set(server, AtServer::No);
                self.votes.count(Some(Answer::Gone));
            }
        }
        self.releases = Some((taken, may_last));
    }

    /// Reads the end of the command at a server: what is known there now, and the vote.
    pub(super) fn read(
        &mut self,
        kernel: &Kernel,
        server: ServerNo,
        end: Result<Answer, Fault>,
        (now, route): (Instant, &dyn Route),
    ) -> (AtServer, Option<Answer>) {
        let end = if self.changes_lease() {
            end_for_lease(end)
        } else {
            end
        };
        let answer = match end {
            Ok(answer) => answer,
            Err(fault) => return (self.fault_at(server, fault), None),
        };
        self.answers += 1;
        if !self.is_proposal() {
            return match answer.key_state() {
                Some(_) if answer.is_done() => (AtServer::Yes, Some(answer)),
                Some(_) => (AtServer::No, Some(answer)),
                None => (AtServer::Unknown, None),
            };
        }
        match answer {
            Answer::Granted(_) => (AtServer::Yes, Some(answer)),
            Answer::Refused(by) if by.holder == self.id.as_str().as_bytes() => {
                self.has_own_id = true;
                route.ran_twice(&self.command.lock);
                (AtServer::Unknown, None)
            }
            // What nobody here owns: no refusal, the server is free once that is released.
            Answer::Refused(by)
                if (kernel.pending.lock()).had_since(
                    server,
                    &by.holder,
                    self.first_sent.unwrap_or(now),
                ) && !is_on(Mutant::OwnIdRefusesRound) =>
            {
                self.is_in_own_way = true;
                (AtServer::No, None)
            }
            Answer::Refused(_) | Answer::TooLow(_) => (AtServer::No, Some(answer)),
            _ => (AtServer::Unknown, None),
        }
    }

    fn fault_at(&mut self, server: ServerNo, fault: Fault) -> AtServer {
        let known = match &fault {
            Fault::NotRun(_) | Fault::Open(_) => AtServer::No,
            Fault::Unknown(_) => AtServer::Unknown,
            // An error reply: what it may have taken is released.
            Fault::Rejected(_) | Fault::NotReplicated(_) => AtServer::Yes,
        };
        self.faults.push((server, fault));
        // A release goes on as a pending one.
        if self.is_release() || self.changes_lease() && known == AtServer::Yes {
            AtServer::Unknown
        } else {
            known
        }
    }

    /// Returns the command for a server if it can be sent now, and the server that it is sent to.
    pub(super) fn cast(
        &mut self,
        server: ServerNo,
        now: Instant,
        route: &dyn Route,
    ) -> Option<(ServerNo, Command)> {
        if self.at.of(server) != AtServer::NotSent || now < self.not_before {
            return None;
        }
        match route.link(server, self.command.wanted_by) {
            Link::Connecting => None,
            Link::Down => {
                let known = if self.is_release() {
                    // It goes on as a pending one.
                    AtServer::Unknown
                } else {
                    AtServer::No
                };
                self.at.set(server, known);
                self.votes.count(None);
                self.faults.push((server, route.not_connected(server)));
                None
            }
            Link::Up => {
                self.at.set(server, AtServer::Asked);
                self.first_sent.get_or_insert(now);
                Some((server, self.command.clone()))
            }
        }
    }

    /// Returns when an open round is looked at.
    pub(super) fn next(&self, now: Instant) -> Instant {
        if self.not_before <= now {
            self.until.min(self.waits_until.unwrap_or(self.until))
        } else {
            self.not_before
        }
    }

    /// The time of the round is over: notes the servers for whose connection it has waited.
    pub(super) fn note_unconnected(&mut self, route: &dyn Route) {
        for server in 0..self.size.all {
            if self.at.of(server) == AtServer::NotSent {
                self.faults.push((server, route.not_connected(server)));
            }
        }
    }

    /// Returns the end of the round if it is decided, or if it is `late`.
    pub(super) fn end(&self, late: bool, route: &dyn Route) -> Option<Result<Answer, Fault>> {
        Some(match self.votes.verdict() {
            Verdict::Decided(_) | Verdict::Split if self.has_own_id => {
                Err(Fault::NotRun(Cause::text("the acquire script ran twice")))
            }
            // The try before has removed it.
            Verdict::Decided(Answer::Gone | Answer::Foreign(_)) if self.tries > 0 => {
                Ok(Answer::Ours)
            }
            Verdict::Decided(answer) => Ok(answer),
            Verdict::Split => Ok(Answer::Busy(Duration::ZERO)),
            Verdict::Open if !late => return None,
            // The release is tried again once all have answered.
            Verdict::Unknown if !late && self.is_release() && self.at.has(AtServer::Asked) => {
                return None;
            }
            Verdict::Open | Verdict::Unknown => Err(route.undecided(&self.undecided())),
        })
    }

    /// Returns whether a proposal that is won waits for a connection that is still being made: for
    /// a moment, or as long as the majority took to connect if that was longer. So a server that is
    /// only a little slower takes part in the first lock.
    pub(super) fn waits_for_connections(&mut self, now: Instant, route: &dyn Route) -> bool {
        let is_connecting = |server| {
            self.at.of(server) == AtServer::NotSent
                && route.link(server, self.command.wanted_by) == Link::Connecting
        };
        if !self.is_proposal() || !(0..self.size.all).any(is_connecting) {
            return false;
        }
        let until = now.after(CONNECTS_WITHIN.max(self.began.until(now)));
        now < *self.waits_until.get_or_insert(until)
    }

    /// Returns the next try of a release that too few servers have answered, if time is left. It
    /// leaves out those.
    pub(super) fn again(&self, end: &Result<Answer, Fault>, now: Instant) -> Option<Self> {
        if !self.is_release() || !matches!(end, Err(Fault::NotRun(_) | Fault::Unknown(_))) {
            return None;
        }
        let not_before = match self.tries {
            0 => now,
            tries => now.after(RECONNECT.pause(tries - 1)),
        };
        // A command that is under way could end this round late.
        if not_before >= self.until || self.at.has(AtServer::Asked) {
            return None;
        }
        let mut again = Self::new(self.ticket, self.command.clone(), self.size, self.until);
        again.releases = self.releases.clone();
        again.tries = self.tries + 1;
        again.not_before = not_before;
        for server in 0..self.size.all {
            let answer = match self.at.of(server) {
                AtServer::Yes => Answer::Ours,
                AtServer::No => Answer::Gone,
                AtServer::NotSent | AtServer::Asked | AtServer::Unknown => continue,
            };
            again.at.set(server, self.at.of(server));
            again.votes.count(Some(answer));
        }
        Some(again)
    }

    /// Returns what ends the release at a server if that has not certainly ended, and has no
    /// command there.
    pub(super) fn missing(&self, server: ServerNo) -> Option<Proof> {
        let taken = self.releases.as_ref().map(|(taken, _)| taken.of(server));
        let may_run_later = taken == Some(AtServer::Unknown);
        match self.at.of(server) {
            AtServer::NotSent | AtServer::Unknown => {}
            AtServer::Asked | AtServer::Yes => return None,
            // The acquiring command may run later.
            AtServer::No if may_run_later && !is_on(Mutant::ReleaseEndsTheUnknown) => {}
            AtServer::No => return None,
        }
        Some(if may_run_later {
            Proof::KeySeen
        } else {
            Proof::AnyAnswer
        })
    }

    pub(super) fn undecided(&self) -> Undecided<'_> {
        Undecided {
            size: self.size,
            faults: &self.faults,
            answers: self.answers,
            is_in_own_way: self.is_in_own_way,
            was_sent: self.first_sent.is_some(),
            is_proposal: self.is_proposal(),
        }
    }
}
