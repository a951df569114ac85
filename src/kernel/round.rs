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

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::config::LeaseTerms;
use crate::error::Cause;
use crate::holder_id::HolderId;
use crate::kernel::command::{Command, What};
use crate::kernel::engine::{Engine, Item, ItemKey, Link, Outgoing, Purpose, Route, ServerNo};
use crate::kernel::fault::Fault;
use crate::kernel::held::HeldLease;
use crate::kernel::lease::{LeaseWork, OperationCell, WorkKind};
use crate::kernel::mutant::{Mutant, is_on};
use crate::kernel::pending::{PendingRelease, Proof};
use crate::kernel::request::{Asked, RequestNo};
use crate::kernel::table::entry_name;
use crate::kernel::unlock::Unlocked;
use crate::kernel::votes::{Majority, Verdict, Votes};
use crate::kernel::waiter::Failure;
use crate::kernel::{Discard, Effects, Kernel, RUNS_WITHIN};
use crate::name::Name;
use crate::protocol::answer::{Answer, Wanted};
use crate::protocol::primitive::Primitive;
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

    fn set(&self, server: ServerNo, at: AtServer) {
        self.0.lock()[server] = at;
    }

    fn has(&self, at: AtServer) -> bool {
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
    /// A set in several slots has all its names.
    Confirm(Name, RequestNo, HolderId, LeaseTerms),
}

#[derive(Debug)]
pub(super) struct Round {
    kind: RoundKind,
    command: Command,
    id: HolderId,
    /// The terms of the lease that it acquires.
    ttl: Duration,
    size: Majority,
    /// The locks of the slots, if the commands go to several slots and not to the servers of a
    /// quorum.
    slots: Vec<Arc<dyn Primitive>>,
    at: Arc<AtServers>,
    votes: Votes,
    first_sent: Option<Instant>,
    /// How often it was tried before, and when its commands are sent.
    tries: u32,
    not_before: Instant,
    began: Instant,
    /// When it was won although a connection was still being made: it waits for that until
    /// then.
    waits_until: Option<Instant>,
    until: Instant,
    is_over: bool,
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
        match self.is_proposal || !self.was_sent {
            // The round itself releases what it has taken.
            true => Fault::NotRun(cause),
            false => Fault::Unknown(cause),
        }
    }
}

impl Round {
    fn new(kind: RoundKind, command: Command, size: Majority, until: Instant) -> Self {
        let (verb, id, ttl) = match (&kind, &command.what) {
            (RoundKind::Propose(asked), What::Propose { token, tokens, .. }) => {
                let wanted = Wanted {
                    names: command.lock.names.len(),
                    reserved: tokens.saturating_sub(1),
                    proposed: Some(*token),
                };
                (Verb::Acquire(wanted), asked.id.clone(), asked.ttl)
            }
            (RoundKind::Propose(_), _) => unreachable!("only proposals ask a quorum"),
            (RoundKind::Lease(work), _) => (Verb::Renew, work.lease.id.clone(), Duration::ZERO),
            (RoundKind::Release(lease, ..), _) => {
                let verb = Verb::Release;
                (verb, lease.id.clone(), Duration::ZERO)
            }
            (RoundKind::Confirm(_, _, id, _), _) => (Verb::Renew, id.clone(), Duration::ZERO),
        };
        let slots = command.lock.slots().to_vec();
        let size = match slots.len() {
            0 => size,
            slots => Majority::each(slots),
        };
        Self {
            kind,
            command,
            id,
            ttl,
            size,
            slots,
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

    /// Returns when the first command was sent.
    fn sent(&self, now: Instant) -> Instant {
        self.first_sent.unwrap_or(now)
    }

    fn into_lease(self) -> Option<Discard> {
        match self.kind {
            RoundKind::Release(lease, _) => Some(Discard::Lease(lease)),
            RoundKind::Lease(work) => Some(Discard::Lease(work.lease)),
            RoundKind::Propose(_) | RoundKind::Confirm(..) => None,
        }
    }

    fn is_release(&self) -> bool {
        matches!(self.kind, RoundKind::Release(..))
    }

    fn is_proposal(&self) -> bool {
        matches!(self.kind, RoundKind::Propose(_))
    }

    /// Reads the end of the command at a server: what is known there now, and the vote.
    fn read(
        &mut self,
        kernel: &Kernel,
        server: ServerNo,
        end: Result<Answer, Fault>,
        (now, route): (Instant, &dyn Route),
    ) -> (AtServer, Option<Answer>) {
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
                if (kernel.pending.lock()).had_since(server, &by.holder, self.sent(now))
                    && !is_on(Mutant::OwnIdRefusesRound) =>
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
            RoundKind::Lease(_) | RoundKind::Propose(_) | RoundKind::Confirm(..) => known,
        }
    }

    /// Returns the end of the round if it is decided, or if it is `late`.
    fn end(&self, late: bool, route: &dyn Route) -> Option<Result<Answer, Fault>> {
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
            Verdict::Open | Verdict::Unknown => Err(match self.slots.is_empty() {
                true => route.undecided(&self.undecided()),
                false => self.undecided().first_fault(),
            }),
        })
    }

    /// Returns whether a proposal that is won waits for a connection that is still being made: for
    /// a moment, or as long as the majority took to connect if that was longer. So a server that is
    /// only a little slower takes part in the first lock.
    fn waits_for_connections(&mut self, now: Instant, route: &dyn Route) -> bool {
        let is_connecting = |server| {
            self.at.of(server) == AtServer::NotSent && route.link(server) == Link::Connecting
        };
        if !self.is_proposal() || !(0..self.size.all).any(is_connecting) {
            return false;
        }
        let until = now.after(CONNECTS_WITHIN.max(self.began.until(now)));
        now < *self.waits_until.get_or_insert(until)
    }

    /// Returns the next try of a release that too few servers have answered, if time is left. It
    /// leaves out those.
    fn again(&self, now: Instant) -> Option<Self> {
        let RoundKind::Release(lease, cell) = &self.kind else {
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
    fn released(
        &self,
        kernel: &Kernel,
        (lease, cell): (&Arc<HeldLease>, &Arc<OperationCell>),
        end: Result<Answer, Fault>,
        [sent, now]: [Instant; 2],
        fx: &mut Effects,
    ) {
        let cause = end.as_ref().err().and_then(Fault::cause).cloned();
        let may_have_run = self.tries > 0;
        let result = match kernel.unlocked(lease, end, may_have_run, now, fx) {
            Unlocked::Released | Unlocked::Lost(_) => Ok(()),
            Unlocked::Unconfirmed => Err(Failure::Unreachable {
                since: Some(sent),
                cause,
            }),
        };
        fx.operation_ended(cell, result);
        for server in 0..self.size.all {
            if self.is_missing(lease, server) {
                release_at(kernel, lease, server, now, fx);
            }
        }
    }

    /// Returns whether the release of a lease has not certainly ended at a server, and has no
    /// command there.
    fn is_missing(&self, lease: &HeldLease, server: ServerNo) -> bool {
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

    fn undecided(&self) -> Undecided<'_> {
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

impl Engine {
    /// Begins a round; its commands are sent by [`advance`](Self::advance).
    pub(super) fn begin_round(
        &mut self,
        kernel: &Kernel,
        kind: RoundKind,
        command: Command,
        now: Instant,
    ) {
        let until = now.after(kernel.limits.command_timeout);
        let mut round = Round::new(kind, command, kernel.limits.size, until);
        round.began = now;
        match &mut round.kind {
            RoundKind::Propose(asked) => asked.at = Some(Arc::clone(&round.at)),
            RoundKind::Release(lease, ..) => {
                // Servers that have nothing of the lease are not asked.
                for server in 0..round.size.all {
                    let taken = lease.at.as_ref().map(|at| at.of(server));
                    if matches!(taken, Some(AtServer::NotSent | AtServer::No)) {
                        round.at.set(server, AtServer::No);
                        round.votes.count(Some(Answer::Gone));
                    }
                }
            }
            RoundKind::Lease(_) | RoundKind::Confirm(..) => {}
        }
        self.next_round += 1;
        self.rounds.insert(self.next_round, round);
    }

    /// Sends what the open rounds have not sent yet, and ends those whose time is over. Returns
    /// whether a round has ended.
    pub(super) fn advance(
        &mut self,
        kernel: &Kernel,
        now: Instant,
        route: &dyn Route,
        out: &mut Vec<Outgoing>,
        fx: &mut Effects,
    ) -> bool {
        if self.rounds.is_empty() && !kernel.is_quorum() {
            return false;
        }
        let abandoned = std::mem::take(&mut *kernel.abandoned.lock());
        let mut has_ended = false;
        let open = self.rounds.iter().filter(|(_, round)| {
            !round.is_over || is_on(Mutant::NotSentIsSentLate) && round.is_proposal()
        });
        let open: Vec<RoundNo> = open.map(|(no, _)| *no).collect();
        for no in open {
            for server in 0..self.rounds[&no].size.all {
                self.cast(no, server, now, route, out);
            }
            let round = &self.rounds[&no];
            let has_left = round.is_proposal() && abandoned.contains(&round.id);
            let is_late = now >= round.until || has_left;
            if is_late {
                self.note_unconnected(no, route);
            }
            has_ended |= self.judge(kernel, no, (is_late, has_left), (now, route), out, fx);
        }
        let open = self.rounds.values().filter(|round| !round.is_over);
        let next = open.map(|round| match round.not_before <= now {
            true => round.until.min(round.waits_until.unwrap_or(round.until)),
            false => round.not_before,
        });
        let next = next.min();
        if let Some(at) = next {
            kernel.put(ItemKey::Rounds, Item::Rounds, [at, at], fx);
        }
        has_ended
    }

    /// Sends a round's command to a server, if it was not sent and the pipeline is up.
    fn cast(
        &mut self,
        no: RoundNo,
        server: ServerNo,
        now: Instant,
        route: &dyn Route,
        out: &mut Vec<Outgoing>,
    ) {
        let round = self.rounds.get_mut(&no).expect("the caller has it");
        if round.at.of(server) != AtServer::NotSent || now < round.not_before {
            return;
        }
        let link = match round.slots.is_empty() {
            true => route.link(server),
            false => Link::Up,
        };
        match link {
            Link::Connecting => {}
            Link::Down => {
                let known = match round.kind {
                    // Its release goes on as a pending one.
                    RoundKind::Release(..) => AtServer::Unknown,
                    _ => AtServer::No,
                };
                round.at.set(server, known);
                round.votes.count(None);
                round.faults.push((server, route.not_connected(server)));
            }
            Link::Up => {
                round.at.set(server, AtServer::Asked);
                round.first_sent.get_or_insert(now);
                let mut command = round.command.clone();
                let mut to = server;
                if let Some(part) = round.slots.get(server) {
                    command.lock = Arc::clone(part);
                    to = 0;
                }
                let purpose = Purpose::Vote { round: no, server };
                self.send(to, command, purpose, out);
            }
        }
    }

    /// The time of a round is over: notes the servers for whose connection it has waited.
    fn note_unconnected(&mut self, no: RoundNo, route: &dyn Route) {
        let round = self.rounds.get_mut(&no).expect("the caller has it");
        for server in 0..round.size.all {
            if round.at.of(server) == AtServer::NotSent {
                round.faults.push((server, route.not_connected(server)));
            }
        }
    }

    /// Applies the end of a round's command at a server.
    pub(super) fn voted(
        &mut self,
        kernel: &Kernel,
        (no, server): (RoundNo, ServerNo),
        end: Result<Answer, Fault>,
        (now, route): (Instant, &dyn Route),
        out: &mut Vec<Outgoing>,
        fx: &mut Effects,
    ) {
        let Some(round) = self.rounds.get_mut(&no) else {
            return;
        };
        let (at, vote) = round.read(kernel, server, end, (now, route));
        round.at.set(server, at);
        match round.is_over {
            true => self.voted_late(kernel, no, server, vote, now, fx),
            false => {
                round.votes.count(vote);
                self.judge(kernel, no, (false, false), (now, route), out, fx);
            }
        }
        self.forget_round(no, fx);
    }

    fn voted_late(
        &mut self,
        kernel: &Kernel,
        no: RoundNo,
        server: ServerNo,
        vote: Option<Answer>,
        now: Instant,
        fx: &mut Effects,
    ) {
        let round = &self.rounds[&no];
        let is_unknown = round.at.of(server) == AtServer::Unknown;
        match &round.kind {
            RoundKind::Propose(asked) if is_unknown => {
                // Its undo is behind it on the same pipeline, which has ended.
                kernel.pending.lock().doubt(server, &asked.lock, &asked.id);
            }
            RoundKind::Lease(work) if is_unknown => limit(work),
            RoundKind::Release(lease, ..) if round.is_missing(lease, server) => {
                release_at(kernel, lease, server, now, fx);
            }
            RoundKind::Propose(asked) if is_on(Mutant::LateVoteCounts) => {
                let no = asked.no;
                let is_next = |it: &&mut Round| match &it.kind {
                    RoundKind::Propose(asked) => asked.no == no && !it.is_over,
                    _ => false,
                };
                if let Some(next) = self.rounds.values_mut().find(is_next) {
                    next.votes.count(vote);
                }
            }
            _ => {}
        }
    }

    /// Forgets a round that is over once no server has a command of it.
    fn forget_round(&mut self, no: RoundNo, fx: &mut Effects) {
        let is_done = |round: &Round| round.is_over && !round.at.has(AtServer::Asked);
        if self.rounds.get(&no).is_some_and(is_done) {
            let round = self.rounds.remove(&no);
            fx.discard.extend(round.and_then(Round::into_lease));
        }
    }

    /// Forgets all rounds.
    pub(super) fn end_rounds(&mut self, fx: &mut Effects) {
        let rounds = mem::take(&mut self.rounds).into_values();
        fx.discard.extend(rounds.filter_map(Round::into_lease));
    }

    /// Returns whether a holder waits for a release.
    pub(crate) fn has_open_releases(&self) -> bool {
        let mut rounds = self.rounds.values();
        rounds.any(|round| !round.is_over && round.is_release())
    }

    /// Ends a round if it is decided, or `late`, maybe because its call has left. Returns whether
    /// it has ended.
    fn judge(
        &mut self,
        kernel: &Kernel,
        no: RoundNo,
        (late, has_left): (bool, bool),
        (now, route): (Instant, &dyn Route),
        out: &mut Vec<Outgoing>,
        fx: &mut Effects,
    ) -> bool {
        let round = self.rounds.get_mut(&no).expect("the caller has it");
        let end = round.end(late, route);
        let Some(end) = end.filter(|_| !round.is_over) else {
            return false;
        };
        let is_won = matches!(end, Ok(Answer::Granted(_)));
        if is_won && !late && round.waits_for_connections(now, route) {
            let at = round.waits_until.unwrap_or(now);
            kernel.put(ItemKey::Rounds, Item::Rounds, [at, at], fx);
            return false;
        }
        if round.slots.is_empty() {
            route.round_ended(&round.undecided(), &end, has_left);
        }
        round.is_over = true;
        let mut sent = round.sent(now);
        if is_on(Mutant::RoundCountsFromReply) {
            sent = now;
        }
        if let RoundKind::Release(..) = round.kind
            && matches!(end, Err(Fault::NotRun(_) | Fault::Unknown(_)))
            && let Some(again) = round.again(now)
        {
            self.next_round += 1;
            self.rounds.insert(self.next_round, again);
            self.forget_round(no, fx);
            return true;
        }
        match &round.kind {
            RoundKind::Propose(asked) => {
                let lock = Arc::clone(&asked.lock);
                let is_held = kernel.with_entry(&lock, now, fx, |entry, cx| {
                    entry.answered(asked, end, sent, cx);
                    entry.holds(&asked.id)
                });
                self.close_proposal(kernel, no, is_held, now, out, fx);
            }
            RoundKind::Lease(work) => {
                if (0..round.size.all).any(|server| round.at.of(server) == AtServer::Unknown) {
                    limit(work);
                }
                kernel.lease_answered(work, end, [sent, now], false, fx);
            }
            RoundKind::Confirm(name, request, id, terms) => {
                kernel.with_existing(name, now, fx, |entry, cx| {
                    entry.confirmed((*request, id), terms, end, sent, cx);
                });
            }
            RoundKind::Release(lease, cell) => {
                round.released(kernel, (lease, cell), end, [sent, now], fx);
            }
        }
        self.forget_round(no, fx);
        true
    }

    /// Gives back what a proposal has taken, unless this client holds the lock by it.
    fn close_proposal(
        &mut self,
        kernel: &Kernel,
        no: RoundNo,
        is_held: bool,
        now: Instant,
        out: &mut Vec<Outgoing>,
        fx: &mut Effects,
    ) {
        for server in 0..kernel.limits.size.all {
            let round = &self.rounds[&no];
            let at = round.at.of(server);
            let ends_by = match at {
                AtServer::NotSent if is_on(Mutant::NotSentIsSentLate) => continue,
                AtServer::NotSent => {
                    // It is never sent late.
                    round.at.set(server, AtServer::No);
                    continue;
                }
                AtServer::No => continue,
                _ if is_held => continue,
                AtServer::Asked if is_on(Mutant::AskedIsNotUndone) => continue,
                AtServer::Yes | AtServer::Asked => Proof::AnyAnswer,
                AtServer::Unknown if is_on(Mutant::UnknownIsNotUndone) => continue,
                AtServer::Unknown => Proof::KeySeen,
            };
            let release = PendingRelease {
                server,
                lock: Arc::clone(&round.command.lock),
                id: round.id.clone(),
                until: now.after(round.ttl.saturating_mul(2).max(RUNS_WITHIN)),
                ends_by,
                counts: None,
                is_place: false,
            };
            let mut pending = kernel.pending.lock();
            let command = match at {
                AtServer::Unknown => {
                    pending.push(release, now);
                    None
                }
                _ => pending.push_now(release, now),
            };
            kernel.put_pending(pending.next(), fx);
            drop(pending);
            if let Some((command, batch)) = command {
                self.send(server, command, Purpose::Undo(batch), out);
            }
        }
    }

    /// Returns whether a command may be sent again, with its script's text: a proposal only while
    /// its round is open, or its lease is. Otherwise its release may already be behind it.
    pub(super) fn may_resend_vote(&self, kernel: &Kernel, no: RoundNo, now: Instant) -> bool {
        let Some(round) = self.rounds.get(&no) else {
            return false;
        };
        if !round.is_over || !round.is_proposal() || is_on(Mutant::ProposalIsResentLate) {
            return true;
        }
        // Without this server's key, the lease would have no vote to spare.
        let name = entry_name(&*round.command.lock);
        let shard = kernel.table.shard(&name).lock();
        let held = shard.get(&*name).and_then(|entry| {
            let mut held = entry.held.iter();
            held.find(|held| held.lease.id == round.id)
        });
        held.is_some_and(|held| held.lease.remaining(now).is_some())
    }

    /// Returns whether the round acquires a lock.
    pub(super) fn proposes(&self, no: RoundNo) -> bool {
        self.rounds.get(&no).is_some_and(Round::is_proposal)
    }

    /// Returns whether a round may still change something under this id.
    #[cfg(sim)]
    pub(super) fn knows(&self, id: &str) -> bool {
        self.rounds.values().any(|round| round.id.as_str() == id)
    }

    #[cfg(sim)]
    pub(super) fn rounds(&self) -> usize {
        self.rounds.len()
    }
}

/// A change of ttl may run later at a server.
fn limit(work: &LeaseWork) {
    if let WorkKind::SetTtl(ttl, _) = work.kind
        && !is_on(Mutant::LateShorteningIsForgotten)
    {
        work.lease.limit(ttl);
    }
}

/// Leaves the release of an ended lease at one server to the pending releases.
fn release_at(
    kernel: &Kernel,
    lease: &Arc<HeldLease>,
    server: ServerNo,
    now: Instant,
    fx: &mut Effects,
) {
    if is_on(Mutant::MissingReleaseIsForgotten) {
        return;
    }
    let ends_by = match lease.at.as_ref().map(|at| at.of(server)) {
        Some(AtServer::Unknown) => Proof::KeySeen,
        _ => Proof::AnyAnswer,
    };
    let places = places_of(kernel, &lease.lock);
    let (server, lock) = places[server].clone();
    let release = PendingRelease {
        server,
        lock,
        id: lease.id.clone(),
        until: now.after(lease.key_may_last().max(RUNS_WITHIN)),
        ends_by,
        counts: None,
        is_place: false,
    };
    kernel.pend(release, now, fx);
}

/// Returns where the keys of a lock are: at each server of a quorum, or in each slot.
pub(super) fn places_of(
    kernel: &Kernel,
    lock: &Arc<dyn Primitive>,
) -> Vec<(ServerNo, Arc<dyn Primitive>)> {
    match kernel.is_quorum() {
        true => {
            let servers = 0..kernel.limits.size.all;
            servers.map(|server| (server, Arc::clone(lock))).collect()
        }
        false => lock
            .parts()
            .iter()
            .map(|part| (0, Arc::clone(part)))
            .collect(),
    }
}
