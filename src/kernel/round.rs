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
use crate::kernel::command::Command;
use crate::kernel::context::Context;
use crate::kernel::effects::Discard;
use crate::kernel::engine::{Link, Route, ServerNo};
use crate::kernel::fault::Fault;
use crate::kernel::held::HeldLease;
use crate::kernel::lease::{LeaseWork, OperationCell, end_for_lease};
use crate::kernel::request::Asked;
use crate::kernel::unlock::Unlocked;
use crate::kernel::votes::{Majority, Verdict, Votes};
use crate::kernel::waiter::Failure;
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

/// What a round does.
#[derive(Debug)]
pub(super) enum RoundKind {
    Propose(Asked),
    Lease(LeaseWork),
    /// The holder of the lease waits for the end.
    Release(Arc<HeldLease>, Arc<OperationCell>),
}

#[derive(Debug)]
pub(super) struct Round {
    pub(super) kind: RoundKind,
    pub(super) command: Command,
    pub(super) id: HolderId,
    /// The terms of the lease that it acquires.
    pub(super) ttl: Duration,
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
    pub(super) fn new(kind: RoundKind, command: Command, size: Majority, until: Instant) -> Self {
        let (verb, id, ttl) = match &kind {
            RoundKind::Propose(asked) => {
                let wanted = Wanted {
                    after: false,
                    reserved: asked.tokens.saturating_sub(1),
                    proposed: asked.attempt.proposes(),
                };
                (Verb::Acquire(wanted), asked.id.clone(), asked.ttl)
            }
            RoundKind::Lease(work) => (Verb::Renew, work.lease.id.clone(), Duration::ZERO),
            RoundKind::Release(lease, _) => (Verb::Release, lease.id.clone(), Duration::ZERO),
        };
        Self {
            kind,
            command,
            id,
            ttl,
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

    pub(super) fn into_lease(self) -> Option<Discard> {
        match self.kind {
            RoundKind::Release(lease, _) => Some(Discard::Lease(lease)),
            RoundKind::Lease(work) => Some(Discard::Lease(work.lease)),
            RoundKind::Propose(_) => None,
        }
    }

    pub(super) fn is_release(&self) -> bool {
        matches!(self.kind, RoundKind::Release(..))
    }

    pub(super) fn is_proposal(&self) -> bool {
        matches!(self.kind, RoundKind::Propose(_))
    }

    /// Reads the end of the command at a server: what is known there now, and the vote.
    pub(super) fn read(
        &mut self,
        kernel: &Kernel,
        server: ServerNo,
        end: Result<Answer, Fault>,
        (now, route): (Instant, &dyn Route),
    ) -> (AtServer, Option<Answer>) {
        let end = match self.kind {
            RoundKind::Lease(_) => end_for_lease(end),
            _ => end,
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
            Answer::Refused(_) => (AtServer::No, Some(answer)),
            Answer::TooLow(counter) => {
                kernel.learn_token(counter, now);
                (AtServer::No, Some(answer))
            }
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
        match self.kind {
            // It goes on as a pending release.
            RoundKind::Release(..) => AtServer::Unknown,
            RoundKind::Lease(_) if known == AtServer::Yes => AtServer::Unknown,
            RoundKind::Lease(_) | RoundKind::Propose(_) => known,
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
                let known = match self.kind {
                    // Its release goes on as a pending one.
                    RoundKind::Release(..) => AtServer::Unknown,
                    _ => AtServer::No,
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
            Verdict::Decided(_) if self.has_own_id => {
                Err(Fault::NotRun(Cause::text("the acquire script ran twice")))
            }
            Verdict::Decided(answer) => Ok(answer),
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
        let (RoundKind::Release(lease, cell), Err(Fault::NotRun(_) | Fault::Unknown(_))) =
            (&self.kind, end)
        else {
            return None;
        };
        let not_before = match self.tries {
            0 => now,
            tries => now.after(RECONNECT.pause(tries - 1)),
        };
        // A command that is under way could end this round late.
        if not_before >= self.until || self.at.has(AtServer::Asked) {
            return None;
        }
        let kind = RoundKind::Release(Arc::clone(lease), Arc::clone(cell));
        let mut again = Self::new(kind, self.command.clone(), self.size, self.until);
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

    /// The round has released its lease, as far as servers have answered.
    pub(super) fn released(
        &self,
        lease: &Arc<HeldLease>,
        cell: &Arc<OperationCell>,
        end: Result<Answer, Fault>,
        sent: Instant,
        cx: &mut Context<'_>,
    ) {
        let cause = end.as_ref().err().and_then(Fault::cause).cloned();
        let may_have_run = self.tries > 0;
        let result = match (cx.kernel).unlocked(lease, end, may_have_run, cx.now, cx.fx) {
            Unlocked::Released | Unlocked::Lost(_) => Ok(()),
            Unlocked::Unconfirmed => Err(Failure::Unreachable {
                since: Some(sent),
                cause,
            }),
        };
        cx.fx.operation_ended(cell, result);
        for server in 0..self.size.all {
            if self.is_missing(lease, server) {
                cx.release_at(lease, server);
            }
        }
    }

    /// Returns whether the release of a lease has not certainly ended at a server, and has no
    /// command there.
    pub(super) fn is_missing(&self, lease: &HeldLease, server: ServerNo) -> bool {
        match self.at.of(server) {
            AtServer::NotSent | AtServer::Unknown => true,
            AtServer::Asked | AtServer::Yes => false,
            // The acquiring command may run later.
            AtServer::No if is_on(Mutant::ReleaseEndsTheUnknown) => false,
            AtServer::No => {
                let at = lease.at.as_ref();
                at.is_some_and(|at| at.of(server) == AtServer::Unknown)
            }
        }
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
