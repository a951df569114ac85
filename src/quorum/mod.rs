//! The virtual server: several independent members that keep each lock, as one server would. It
//! takes each command of the kernel, sends it to the members, and ends it once. No I/O, no clock.
//!
//! ```text
//! submit ──▶ a round: a command for each member ──▶ their ends ──▶ one end
//!    │                ├──it was not won──▶ left: pending releases of what it has taken
//!    │                └──a renewal was won──▶ heal: a member that lost the key joins again
//!    └──ids to release──▶ left ──▶ the members' answers ──▶ one end
//! ```

mod heal;
pub(crate) mod lease;
mod left;
pub(crate) mod messages;
mod outcome;
pub(crate) mod round;
mod tokens;
pub(crate) mod votes;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::error::Cause;
use crate::holder_id::HolderId;
#[cfg(sim)]
use crate::holder_id::is_same_holder;
use crate::kernel::RUNS_WITHIN;
use crate::kernel::batch::Batch;
use crate::kernel::command::{Attempt, Command, What};
use crate::kernel::engine::Ticket;
use crate::kernel::fault::Fault;
use crate::kernel::undo::{Counts, PendingRelease, Proof, may_run_until};
use crate::majority::{Majority, Member};
use crate::mutant::{Mutant, is_on};
use crate::protocol::answer::Answer;
use crate::protocol::primitive::Primitive;
use crate::quorum::lease::{Leases, LinkNo, NO_LINK, RoundNo, Slot};
use crate::quorum::left::{Left, OfId, Undoing};
use crate::quorum::round::{AtServer, Members, Round};
use crate::quorum::tokens::Tokens;

/// The number of a command at one member.
pub(crate) type PartNo = u64;

/// The virtual server. Owned by the engine's thread.
#[derive(Debug)]
pub(crate) struct Quorum {
    size: Majority,
    command_timeout: Duration,
    /// The wall clock at [`Instant::START`], in µs: for the tokens.
    wall: u64,
    /// The rounds whose commands have not all ended.
    rounds: BTreeMap<RoundNo, Round>,
    /// Those of them that are not over: few, even while a member hangs.
    open: BTreeSet<RoundNo>,
    last_round: RoundNo,
    /// The commands at members that have not ended.
    sent: HashMap<PartNo, Sent>,
    last_part: PartNo,
    leases: Leases,
    left: Left,
    tokens: Tokens,
    is_closed: bool,
    /// When the first open round must be looked at.
    next: Instant,
}

/// Why a command was sent to a member.
#[derive(Debug)]
enum Sent {
    Vote(RoundNo, Member),
    /// The lease with this id is to get its key there, under this number.
    Join(HolderId, Member, u16, Instant),
    Undo(Member, Batch),
}

/// One turn: the time, the members, and what the turn has led to.
pub(crate) struct Turn<'a> {
    pub(crate) now: Instant,
    pub(crate) members: &'a dyn Members,
    /// The commands for the members.
    pub(crate) send: Vec<(Member, PartNo, Command)>,
    /// The news for the kernel, in their order.
    pub(crate) events: Vec<Event>,
}

/// News for the kernel.
#[derive(Debug)]
pub(crate) enum Event {
    /// The end of its command, and when the first command for it was sent.
    Ended(Ticket, Result<Answer, Fault>, Instant),
    /// A change of the lease with this id to this ttl may run later.
    Limit(Arc<dyn Primitive>, HolderId, Duration),
    /// The lease with this id must be renewed at once: a member has lost its key.
    Doubt(Arc<dyn Primitive>, HolderId),
}

impl<'a> Turn<'a> {
    pub(crate) fn new(now: Instant, members: &'a dyn Members) -> Self {
        Self {
            now,
            members,
            send: Vec::new(),
            events: Vec::new(),
        }
    }

    fn end(&mut self, ticket: Ticket, end: Result<Answer, Fault>, sent: Instant) {
        self.events.push(Event::Ended(ticket, end, sent));
    }
}

impl Quorum {
    /// `wall` is the wall clock at [`Instant::START`], in µs.
    pub(crate) fn new(size: Majority, command_timeout: Duration, wall: u64) -> Self {
        Self {
            size,
            command_timeout,
            wall,
            rounds: BTreeMap::new(),
            open: BTreeSet::new(),
            last_round: 0,
            sent: HashMap::new(),
            last_part: 0,
            leases: Leases::default(),
            left: Left::new(size),
            tokens: Tokens::default(),
            is_closed: false,
            next: Instant::NEVER,
        }
    }

    // ------------------------------------------------------------------ commands of the kernel

    /// Takes a command of the kernel; [`due`](Self::due) sends it.
    pub(crate) fn submit(&mut self, ticket: Ticket, mut command: Command, turn: &mut Turn<'_>) {
        let now = turn.now;
        let until = now.after(self.command_timeout);
        let mut not_before = Instant::START;
        match &mut command.what {
            What::Undo { ids } => {
                let ids = std::mem::take(ids);
                return self.undo(ticket, &command.lock, ids, turn);
            }
            What::Acquire { attempt, .. } => {
                if let Err(fault) = turn.members.admit(&command.lock) {
                    return turn.end(ticket, Err(fault), now);
                }
                let name = command.lock.key(0).name;
                let is_full = |member| self.left.is_full(member, name);
                if is_on(Mutant::FullMemberRefuses) && (0..self.size.all).any(is_full) {
                    let cause = Cause::text("too many earlier calls have no answer");
                    return turn.end(ticket, Err(Fault::NotRun(cause)), now);
                }
                let wall = self.wall_at(now);
                let (token, pause) = self.tokens.propose(name, wall);
                *attempt = Attempt::Propose(token);
                not_before = now.after(pause);
            }
            _ => {}
        }
        let mut round = Round::new(ticket, command, self.size, [now, until]);
        round.not_before = not_before;
        match (self.leases.change(&round.id), &round.command.what) {
            (Some(lease), What::Leave { .. }) => lease.is_over = true,
            (Some(lease), What::Renew { ttl, .. } | What::Downgrade { ttl, .. }) => {
                lease.prolong(*ttl, forgets_at(*ttl, now, self.command_timeout));
            }
            (None, What::Renew { .. } | What::Downgrade { .. }) => {
                // Its keys have expired.
                return turn.end(ticket, Ok(Answer::Gone), now);
            }
            _ => {}
        }
        self.add(round, now);
    }

    fn add(&mut self, round: Round, now: Instant) -> RoundNo {
        self.next = self.next.min(round.next(now));
        self.last_round += 1;
        self.rounds.insert(self.last_round, round);
        self.open.insert(self.last_round);
        self.last_round
    }

    /// Releases ids at the members that may have them: all, if it is not known.
    fn undo(
        &mut self,
        ticket: Ticket,
        lock: &Arc<dyn Primitive>,
        ids: Vec<HolderId>,
        turn: &mut Turn<'_>,
    ) {
        let now = turn.now;
        let mut open = Vec::with_capacity(ids.len());
        for id in ids {
            let mut of = OfId {
                open: Vec::new(),
                released: 0,
                unheard: 0,
            };
            let lease = self.leases.change(&id);
            let lasts = lease.as_ref().map_or(RUNS_WITHIN, |it| it.may_last());
            let until = now.after(lasts.max(RUNS_WITHIN));
            let slots = lease.map(|lease| {
                lease.is_over = true;
                &lease.slots
            });
            for member in 0..self.size.all {
                // One that was forgotten may be anywhere.
                let slot = slots.as_ref().map(|slots| slots[member]);
                of.released += usize::from(slot == Some(Slot::Released));
                let Some(number) = slot.map_or(Some(0), Slot::number) else {
                    continue;
                };
                let id = id.numbered(number);
                if slot.is_none() && self.left.has(member, &id) {
                    // It knows better which reply ends it. One that was answered had nothing.
                    if self.left.awaits(member, &id) {
                        of.open.push((member, number));
                    }
                    continue;
                }
                of.open.push((member, number));
                let release = PendingRelease::new(lock, &id, until, Proof::AnyAnswer);
                // The kernel counts it.
                let release = release.counting(Counts::Nothing);
                self.left.push_ended(member, release, now);
            }
            open.push((id, of));
        }
        let undoing = Undoing {
            ticket,
            began: now,
            ids: open,
        };
        if let Some((undoing, end)) = self.left.wait_for(undoing, self.size) {
            turn.end(undoing.ticket, end, now);
        }
    }

    /// Nobody waits for the acquiring commands with these ids any more: those that have not ended
    /// end now.
    pub(crate) fn leave(&mut self, ids: &[HolderId], turn: &mut Turn<'_>) {
        if ids.is_empty() {
            return;
        }
        let is_left = |no: &RoundNo| {
            let round = &self.rounds[no];
            round.is_proposal() && ids.contains(&round.id)
        };
        let left: Vec<RoundNo> = self.open.iter().copied().filter(is_left).collect();
        for no in left {
            self.judge(no, true, true, turn);
        }
    }

    /// The client is closed: what is left is released without pauses. If the end `awaits` what was
    /// left before, it waits for the replies.
    pub(crate) fn close(&mut self, awaits: bool) {
        if !std::mem::replace(&mut self.is_closed, true) {
            self.left.close(awaits);
        }
    }

    // ------------------------------------------------------------------ commands of members

    /// Makes what is due: commands that were not sent yet, the ends of rounds whose time is over,
    /// releases.
    pub(crate) fn due(&mut self, turn: &mut Turn<'_>) {
        let open: Vec<RoundNo> = if is_on(Mutant::NotSentIsSentLate) {
            let all = self.rounds.iter();
            let sends = all.filter(|(_, round)| !round.is_over || round.is_proposal());
            sends.map(|(no, _)| *no).collect()
        } else {
            self.open.iter().copied().collect()
        };
        for no in open {
            self.go_on(no, turn);
        }
        for member in 0..self.size.all {
            for (command, batch) in self.left.take_due(member, turn.now) {
                self.send(member, command, Sent::Undo(member, batch), turn);
            }
            for id in self.left.take_unheard(member) {
                self.answered(member, (&id, None), turn);
            }
        }
        let next = self.open.iter().map(|no| self.rounds[no].next(turn.now));
        self.next = next.fold(Instant::NEVER, Instant::min);
    }

    /// Sends what an open round has not sent, and ends it if it is decided.
    fn go_on(&mut self, no: RoundNo, turn: &mut Turn<'_>) {
        for member in 0..self.size.all {
            self.cast(no, member, turn);
        }
        if let Some(round) = self.rounds.get(&no) {
            let is_late = turn.now >= round.until && !is_on(Mutant::RoundNeverEnds);
            self.judge(no, is_late, false, turn);
        }
    }

    /// Returns when [`due`](Self::due) has something to make, unless a connection changes before.
    pub(crate) fn next(&self) -> Instant {
        self.next.min(self.left.next())
    }

    fn send(&mut self, member: Member, command: Command, sent: Sent, turn: &mut Turn<'_>) {
        self.last_part += 1;
        self.sent.insert(self.last_part, sent);
        turn.send.push((member, self.last_part, command));
    }

    /// Sends a round's command to a member, if it was not sent and the pipeline is up.
    fn cast(&mut self, no: RoundNo, member: Member, turn: &mut Turn<'_>) {
        let Some(round) = self.rounds.get_mut(&no) else {
            return;
        };
        let lease = self.leases.of(&round.id).filter(|_| !round.is_proposal());
        let slot = lease.map(|lease| lease.slots[member]);
        let missing = match lease {
            Some(lease) if round.at[member] == AtServer::NotSent => lease.missing(member),
            _ => None,
        };
        let turn_of = (turn.now, turn.members);
        if let Some(command) = round.cast(member, (slot, missing), &self.left, turn_of) {
            self.send(member, command, Sent::Vote(no, member), turn);
        }
    }

    /// Applies the end of a command at a member.
    pub(crate) fn ended(
        &mut self,
        part: PartNo,
        (end, link): (Result<Answer, Fault>, LinkNo),
        turn: &mut Turn<'_>,
    ) {
        match self.sent.remove(&part) {
            None => {}
            Some(Sent::Join(id, member, number, sent)) => {
                self.joined((&id, member, number, sent), (end, link), turn);
            }
            Some(Sent::Undo(member, batch)) => {
                for (id, was_there) in self.left.settle(member, &batch, end, turn.now) {
                    self.released(member, &id, was_there, turn);
                }
            }
            Some(Sent::Vote(no, member)) => self.voted(no, member, (end, link), turn),
        }
    }

    /// The first release of an id at a member that has an answer.
    fn released(&mut self, member: Member, id: &HolderId, was_there: bool, turn: &mut Turn<'_>) {
        let base = id.base();
        if let Some(lease) = self.leases.change(&base) {
            lease.released_at(member, id.number(), was_there);
            self.leases.remove_released(&base);
        }
        self.answered(member, (id, Some(was_there)), turn);
    }

    fn answered(&mut self, member: Member, answer: (&HolderId, Option<bool>), turn: &mut Turn<'_>) {
        if let Some((undoing, end)) = self.left.answered(member, answer, self.size) {
            turn.end(undoing.ticket, end, undoing.began);
        }
    }

    fn voted(
        &mut self,
        no: RoundNo,
        member: Member,
        (end, link): (Result<Answer, Fault>, LinkNo),
        turn: &mut Turn<'_>,
    ) {
        if let Ok(Answer::TooLow(counter)) = &end {
            let wall = self.wall_at(turn.now);
            self.tokens.learn(wall, *counter);
        }
        let Some(round) = self.rounds.get_mut(&no) else {
            return;
        };
        // After an error reply it is not known whether the key was ever there.
        let link = if end.is_ok() { link } else { NO_LINK };
        let (at, vote) = round.read(&self.left, member, end, (turn.now, turn.members));
        (round.at[member], round.links[member]) = (at, link);
        let number = round.numbers[member];
        if let Some(lease) = self.leases.change(&round.id) {
            match at {
                AtServer::Yes if round.is_release() => lease.released_at(member, number, true),
                AtServer::No if round.is_release() => lease.released_at(member, number, false),
                AtServer::Yes if round.changes_lease() => lease.confirmed(member, number, link),
                AtServer::No if round.changes_lease() && vote.is_some() => {
                    round.has_lost |= lease.emptied(member, number, link, self.last_round);
                    lease.foreign.retain(|(at, _)| *at != member);
                    if let Some(Answer::Foreign(value)) = &vote {
                        lease.foreign.push((member, value.clone()));
                    }
                }
                _ => {}
            }
        }
        if round.is_over {
            self.voted_late(no, member, vote, turn);
            if is_on(Mutant::TicketEndsTwice) {
                self.judge(no, true, false, turn);
            }
        } else {
            round.votes.count(vote);
            self.judge(no, false, false, turn);
        }
        self.forget(no);
    }

    fn voted_late(
        &mut self,
        no: RoundNo,
        member: Member,
        vote: Option<Answer>,
        turn: &mut Turn<'_>,
    ) {
        let round = &self.rounds[&no];
        let at = round.at[member];
        let is_unknown = at == AtServer::Unknown;
        match &round.command.what {
            What::Acquire { .. } => self.acquired_late(no, member, turn),
            What::Leave { .. } => self.release_at(no, member, turn),
            _ if is_unknown => self.limit(no, turn),
            _ => self.renew_what_was_lost(no, turn),
        }
        let round = &self.rounds[&no];
        if round.is_proposal() && is_on(Mutant::LateVoteCounts) {
            let lock = Arc::clone(&round.command.lock);
            let is_next = |it: &&mut Round| {
                it.is_proposal() && !it.is_over && Arc::ptr_eq(&it.command.lock, &lock)
            };
            if let Some(next) = self.rounds.values_mut().find(is_next) {
                next.votes.count(vote);
            }
        }
    }

    /// Forgets a round that is over once no member has a command of it.
    fn forget(&mut self, no: RoundNo) {
        let is_done = |round: &Round| round.is_over && !round.at.contains(&AtServer::Asked);
        if !self.rounds.get(&no).is_some_and(is_done) {
            return;
        }
        let round = self.rounds.remove(&no);
        if let Some(round) = round.filter(|round| round.is_release() && !round.goes_on) {
            self.leases.remove_released(&round.id);
        }
    }

    // ------------------------------------------------------------------ looks

    /// Returns whether a command may be sent again, with its script's text: a proposal only while
    /// its round is open, or its lease is. Otherwise its release may already be behind it.
    pub(crate) fn may_send(&self, part: PartNo, now: Instant) -> bool {
        let round = match self.sent.get(&part) {
            Some(Sent::Vote(no, _)) => self.rounds.get(no),
            Some(Sent::Join(id, ..)) => {
                return self.leases.of(id).is_some_and(|lease| lease.is_valid(now));
            }
            found => return found.is_some(),
        };
        let Some(round) = round else {
            return false;
        };
        if !round.is_over || !round.is_proposal() || is_on(Mutant::ProposalIsResentLate) {
            return true;
        }
        // Without this member's key, the lease would have no vote to spare.
        let lease = self.leases.of(&round.id);
        lease.is_some_and(|lease| lease.is_valid(now))
    }

    /// Returns whether a command at a member may acquire something.
    pub(crate) fn may_acquire(&self) -> bool {
        self.sent.values().any(|sent| match sent {
            Sent::Vote(no, _) => self.rounds.get(no).is_some_and(Round::is_proposal),
            Sent::Join(..) => true,
            Sent::Undo(..) => false,
        })
    }

    /// Returns the commands of the kernel that have not ended. Walks all rounds.
    pub(crate) fn tickets(&self) -> HashSet<Ticket> {
        let of_rounds = self.rounds.values().map(|round| round.ticket);
        of_rounds.chain(self.left.tickets()).collect()
    }

    /// Returns whether no member has a command.
    pub(crate) fn is_unsent(&self) -> bool {
        self.sent.is_empty()
    }

    /// Returns whether no release is due at `now`, and the end of the client waits for no reply.
    pub(crate) fn is_idle(&self, now: Instant) -> bool {
        self.is_closed && self.left.is_idle(now)
    }

    /// Returns whether the end of the client waits for no reply.
    pub(crate) fn is_answered(&self) -> bool {
        self.is_closed && self.left.is_answered()
    }

    /// Returns how many leases may exist that the kernel does not know. Walks all releases.
    pub(crate) fn may_exist(&self) -> usize {
        self.left.may_exist(self.size)
    }

    fn wall_at(&self, now: Instant) -> u64 {
        self.wall.saturating_add(now.as_nanos() / 1000)
    }
}

/// For the checks of the simulation.
#[cfg(sim)]
impl Quorum {
    /// Returns whether something may still change at a member under this id.
    pub(crate) fn knows(&self, member: Member, id: &str) -> bool {
        let is_join = |sent: &Sent| match sent {
            Sent::Join(of, at, number, _) => *at == member && of.numbered(*number).as_str() == id,
            _ => false,
        };
        let is_its = |it: &HolderId| is_same_holder(it.as_str().as_bytes(), id.as_bytes());
        self.rounds.values().any(|round| is_its(&round.id))
            || self.sent.values().any(is_join)
            || self.has_left(member, id)
    }

    /// Returns whether a lease counts on its key at a member.
    pub(crate) fn counts_on(&self, member: Member, id: &str) -> bool {
        let id = HolderId::parse(id.as_bytes());
        let lease = id.and_then(|id| self.leases.of(&id));
        lease.is_some_and(|lease| matches!(lease.slots[member], Slot::Has(..)))
    }

    /// Returns whether the release of an id is pending at a member.
    pub(crate) fn has_left(&self, member: Member, id: &str) -> bool {
        self.left.at(member).has(id.as_bytes())
    }

    /// Returns whether the release of an id was forgotten because there were too many.
    pub(crate) fn has_forgotten(&self, id: &str) -> bool {
        (0..self.size.all).any(|member| self.left.at(member).has_forgotten(id))
    }

    /// Returns the commands, rounds and releases that have not ended.
    pub(crate) fn in_flight(&self) -> usize {
        self.rounds.len() + self.sent.len() + self.left.len()
    }
}

/// Returns when nothing can be at a member any more under an id whose commands give it this ttl:
/// the last of them may be under way for a timeout, and so may a release behind it.
fn forgets_at(ttl: Duration, now: Instant, command_timeout: Duration) -> Instant {
    may_run_until(ttl, now).after(command_timeout.saturating_mul(2))
}
