//! The virtual server: several independent members that keep each lock, as one server would. It
//! takes each command of the kernel, sends it to the members, and ends it once. No I/O, no clock.
//!
//! ```text
//! submit ──▶ a round: a command for each member ──▶ their ends ──▶ one end
//!    │                └──it was not won──▶ left: pending releases of what it has taken
//!    └──ids to release──▶ left ──▶ the members' answers ──▶ one end
//! ```

mod lease;
mod left;
pub(crate) mod messages;
pub(crate) mod round;
mod tokens;
pub(crate) mod votes;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::error::Cause;
use crate::holder_id::HolderId;
use crate::kernel::RUNS_WITHIN;
use crate::kernel::batch::Batch;
use crate::kernel::command::{Attempt, Command, What};
use crate::kernel::engine::Ticket;
use crate::kernel::fault::Fault;
use crate::kernel::table::entry_name;
use crate::kernel::undo::{Counts, PendingRelease, may_run_until};
use crate::majority::{Majority, Member};
use crate::mutant::{Mutant, is_on};
use crate::protocol::answer::Answer;
use crate::protocol::primitive::Primitive;
use crate::quorum::lease::{Leases, Slot};
use crate::quorum::left::{Left, OfId, Undoing};
use crate::quorum::round::{AtServer, BUSY, Members, Round, RoundNo};
use crate::quorum::tokens::Tokens;
use crate::validity::validity;

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
    last_round: RoundNo,
    /// The commands at members that have not ended.
    sent: HashMap<PartNo, Sent>,
    last_part: PartNo,
    leases: Leases,
    left: Left,
    tokens: Tokens,
    is_closed: bool,
}

/// Why a command was sent to a member.
#[derive(Debug)]
enum Sent {
    Vote(RoundNo, Member),
    Undo(Member, Batch),
}

/// One turn: the time, the members, and what the turn has led to.
pub(crate) struct Turn<'a> {
    pub(crate) now: Instant,
    pub(crate) members: &'a dyn Members,
    /// The commands for the members.
    pub(crate) send: Vec<(Member, PartNo, Command)>,
    /// What the kernel must be told, in this order.
    pub(crate) events: Vec<Event>,
}

/// What the kernel must be told.
#[derive(Debug)]
pub(crate) enum Event {
    /// The end of its command, and when the first command for it was sent.
    Ended(Ticket, Result<Answer, Fault>, Instant),
    /// A change of the lease with this id to this ttl may run later.
    Limit(Arc<dyn Primitive>, HolderId, Duration),
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

    /// A change of ttl may run later at a member.
    fn limit(&mut self, command: &Command) {
        if let What::Renew {
            id,
            ttl,
            may_shorten: true,
        } = &command.what
            && !is_on(Mutant::LateShorteningIsForgotten)
        {
            let lock = Arc::clone(&command.lock);
            self.events.push(Event::Limit(lock, id.clone(), *ttl));
        }
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
            last_round: 0,
            sent: HashMap::new(),
            last_part: 0,
            leases: Leases::default(),
            left: Left::new(size),
            tokens: Tokens::default(),
            is_closed: false,
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
                let wall = self.wall_at(now);
                let (token, pause) = self.tokens.propose(entry_name(&*command.lock), wall);
                *attempt = Attempt::Propose(token);
                not_before = now.after(pause);
            }
            _ => {}
        }
        let mut round = Round::new(ticket, command, self.size, [now, until]);
        round.not_before = not_before;
        let forgets_at = |ttl| forgets_at(ttl, now, self.command_timeout);
        if let Some(lease) = self.leases.change(&round.id) {
            match &round.command.what {
                What::Leave { .. } => {
                    lease.is_over = true;
                    round.release_of(&lease.slots);
                }
                What::Renew { ttl, .. } | What::Downgrade { ttl, .. } => {
                    lease.prolong(*ttl, forgets_at(*ttl));
                }
                _ => {}
            }
        }
        self.add(round);
    }

    fn add(&mut self, round: Round) {
        self.last_round += 1;
        self.rounds.insert(self.last_round, round);
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
                open: 0,
                released: 0,
            };
            let lease = self.leases.change(&id);
            let lasts = lease.as_ref().map_or(RUNS_WITHIN, |it| it.may_last());
            let until = now.after(lasts.max(RUNS_WITHIN));
            let slots = lease.map(|lease| {
                lease.is_over = true;
                &lease.slots
            });
            for member in 0..self.size.all {
                // The commands of a lease that was forgotten have ended.
                let slot = slots.as_ref().map_or(Slot::Has, |slots| slots[member]);
                of.released += usize::from(slot == Slot::Released);
                let Some(ends_by) = slot.ends_by() else {
                    continue;
                };
                of.open |= 1 << member;
                let mut release = PendingRelease::new(lock, &id, until, ends_by);
                // The kernel counts it.
                release.counts = Counts::Nothing;
                self.left.push_ended(member, release, now);
            }
            open.push((id, of));
        }
        let undoing = Undoing {
            ticket,
            began: now,
            until: now.after(self.command_timeout),
            ids: open,
        };
        if let Some(answer) = self.left.wait_for(undoing, self.size) {
            turn.end(ticket, Ok(answer), now);
        }
    }

    /// Nobody waits for the acquiring commands with these ids any more: those that have not ended
    /// end now.
    pub(crate) fn leave(&mut self, ids: &[HolderId], turn: &mut Turn<'_>) {
        let is_left = |round: &Round| round.is_proposal() && ids.contains(&round.id);
        let left = self.rounds.iter().filter(|(_, round)| is_left(round));
        let left: Vec<RoundNo> = left.map(|(no, _)| *no).collect();
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
        let open = self.rounds.iter().filter(|(_, round)| {
            !round.is_over || is_on(Mutant::NotSentIsSentLate) && round.is_proposal()
        });
        let open: Vec<RoundNo> = open.map(|(no, _)| *no).collect();
        for no in open {
            for member in 0..self.size.all {
                self.cast(no, member, turn);
            }
            if let Some(round) = self.rounds.get(&no) {
                let is_late = turn.now >= round.until;
                self.judge(no, is_late, false, turn);
            }
        }
        while let Some(undoing) = self.left.take_late(turn.now) {
            let fault = Fault::Unknown(Cause::text("too few servers answered"));
            turn.end(undoing.ticket, Err(fault), undoing.began);
        }
        for member in 0..self.size.all {
            for (command, batch) in self.left.take_due(member, turn.now) {
                self.send(member, command, Sent::Undo(member, batch), turn);
            }
        }
    }

    /// Returns when [`due`](Self::due) has something to make, unless a connection changes before.
    pub(crate) fn next(&self, now: Instant) -> Instant {
        let open = self.rounds.values().filter(|round| !round.is_over);
        let rounds = open.map(|round| round.next(now));
        rounds.fold(self.left.next(), Instant::min)
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
        if let Some(command) = round.cast(member, turn.now, turn.members) {
            self.send(member, command, Sent::Vote(no, member), turn);
        }
    }

    /// Applies the end of a command at a member.
    pub(crate) fn ended(&mut self, part: PartNo, end: Result<Answer, Fault>, turn: &mut Turn<'_>) {
        match self.sent.remove(&part) {
            None => {}
            Some(Sent::Undo(member, batch)) => {
                for (id, was_there) in self.left.settle(member, &batch, end, turn.now) {
                    self.released(member, &id, was_there, turn);
                }
            }
            Some(Sent::Vote(no, member)) => self.voted(no, member, end, turn),
        }
    }

    /// The first release of an id at a member that has an answer.
    fn released(&mut self, member: Member, id: &HolderId, was_there: bool, turn: &mut Turn<'_>) {
        if let Some(lease) = self.leases.change(id) {
            lease.released_at(member, was_there);
            if lease.is_gone() {
                self.leases.remove(id);
            }
        }
        let decided = self.left.answered(member, (id, was_there), self.size);
        if let Some((undoing, answer)) = decided {
            turn.end(undoing.ticket, Ok(answer), undoing.began);
        }
    }

    fn voted(
        &mut self,
        no: RoundNo,
        member: Member,
        end: Result<Answer, Fault>,
        turn: &mut Turn<'_>,
    ) {
        if let Ok(Answer::TooLow(counter)) = &end {
            let wall = self.wall_at(turn.now);
            self.tokens.learn(wall, *counter);
        }
        let Some(round) = self.rounds.get_mut(&no) else {
            return;
        };
        let (at, vote) = round.read(&self.left, member, end, (turn.now, turn.members));
        round.at[member] = at;
        if round.is_release()
            && let Some(lease) = self.leases.change(&round.id)
        {
            match at {
                AtServer::Yes => lease.released_at(member, true),
                AtServer::No => lease.released_at(member, false),
                _ => {}
            }
        }
        if round.is_over {
            self.voted_late(no, member, vote, turn)
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
            What::Acquire { ttl, .. } => {
                if let Some(lease) = self.leases.change(&round.id) {
                    lease.slots[member] = at.slot();
                    lease.prolong(*ttl, forgets_at(*ttl, turn.now, self.command_timeout));
                }
                if is_unknown {
                    // Its undo is behind it on the same pipeline, which has ended.
                    (self.left).doubt(member, &round.command.lock, &round.id);
                }
            }
            What::Leave { .. } => self.release_at(no, member, turn),
            _ if is_unknown => turn.limit(&round.command),
            _ => {}
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
        if let Some(round) = round.filter(|round| round.is_release() && !round.goes_on)
            && self.leases.of(&round.id).is_some_and(|it| it.is_gone())
        {
            self.leases.remove(&round.id);
        }
    }

    // ------------------------------------------------------------------ the end of a round

    /// Ends a round if it is decided, or `late`, maybe because its call has left.
    fn judge(&mut self, no: RoundNo, late: bool, has_left: bool, turn: &mut Turn<'_>) {
        let now = turn.now;
        let Some(round) = self.rounds.get_mut(&no).filter(|round| !round.is_over) else {
            return;
        };
        if late {
            round.note_unconnected(turn.members);
        }
        let Some(end) = round.end(late, turn.members) else {
            return;
        };
        let is_won = matches!(end, Ok(Answer::Granted(_)));
        if is_won && !late && round.waits_for_connections(now, turn.members) {
            return;
        }
        (turn.members).round_ended(&round.undecided(), &end, has_left);
        round.is_over = true;
        let again = round.again(&end, now);
        round.goes_on = again.is_some();
        match again {
            Some(again) => self.add(again),
            None => {
                let end = self.meant(no, end);
                self.end(no, end, turn);
            }
        }
        self.forget(no);
    }

    /// Returns what the end of a round means for the kernel.
    fn meant(&mut self, no: RoundNo, end: Result<Answer, Fault>) -> Result<Answer, Fault> {
        let round = &self.rounds[&no];
        let name = entry_name(&*round.command.lock);
        match end {
            Ok(Answer::Busy { cause, .. }) => {
                let pause = self.tokens.split(name);
                return Ok(Answer::Busy { pause, cause });
            }
            Ok(Answer::TooLow(counter)) => {
                self.tokens.too_low(name, counter, round.token());
                return Ok(BUSY);
            }
            Ok(Answer::Granted(_)) => self.tokens.granted(name),
            Ok(Answer::Refused(_)) => self.tokens.refused(name),
            _ => {}
        }
        end
    }

    /// Applies the end of a round, and gives back what it has left.
    fn end(&mut self, no: RoundNo, end: Result<Answer, Fault>, turn: &mut Turn<'_>) {
        let Some(round) = self.rounds.get_mut(&no) else {
            return;
        };
        let now = turn.now;
        let sent = if is_on(Mutant::RoundCountsFromReply) {
            now
        } else {
            round.first_sent.unwrap_or(now)
        };
        let is_lost = !matches!(end, Ok(Answer::Granted(_)));
        match &round.command.what {
            What::Acquire { ttl, .. } => {
                let ttl = *ttl;
                round.sends_no_more();
                if !is_lost {
                    let slots = round.at.iter().map(|at| at.slot()).collect();
                    let valid_until = sent.after(validity(ttl));
                    let times = [now, forgets_at(ttl, now, self.command_timeout)];
                    (self.leases).insert(&round.id, slots, ttl, valid_until, times);
                }
            }
            What::Renew { ttl, .. } | What::Downgrade { ttl, .. } => {
                if let Some(lease) = self.leases.change(&round.id) {
                    lease.prolong(*ttl, forgets_at(*ttl, now, self.command_timeout));
                    match &end {
                        Ok(Answer::Ours) => lease.valid_until = sent.after(validity(*ttl)),
                        Ok(_) => lease.is_over = true,
                        Err(_) => {}
                    }
                }
                if round.at.contains(&AtServer::Unknown) {
                    turn.limit(&round.command);
                }
            }
            _ => {}
        }
        turn.end(round.ticket, end, sent);
        let round = &self.rounds[&no];
        if round.is_release() {
            for member in 0..self.size.all {
                self.release_at(no, member, turn);
            }
        } else if round.is_proposal() && is_lost {
            self.give_back(no, turn);
        }
    }

    /// Gives back what a proposal has taken that was not won.
    fn give_back(&mut self, no: RoundNo, turn: &mut Turn<'_>) {
        let round = &self.rounds[&no];
        let What::Acquire { ttl, .. } = round.command.what else {
            return;
        };
        let until = may_run_until(ttl, turn.now);
        let (lock, id) = (Arc::clone(&round.command.lock), round.id.clone());
        for member in 0..self.size.all {
            let at = self.rounds[&no].at[member];
            let is_forgotten = match at {
                AtServer::Asked => is_on(Mutant::AskedIsNotUndone),
                AtServer::Unknown => is_on(Mutant::UnknownIsNotUndone),
                AtServer::NotSent | AtServer::Yes | AtServer::No => false,
            };
            let Some(ends_by) = at.slot().ends_by().filter(|_| !is_forgotten) else {
                continue;
            };
            let release = PendingRelease::new(&lock, &id, until, ends_by);
            if at == AtServer::Unknown {
                self.left.push(member, release, turn.now);
            } else if let Some((command, batch)) = self.left.push_now(member, release, turn.now) {
                self.send(member, command, Sent::Undo(member, batch), turn);
            }
        }
    }

    /// Releases at a member what a round has not certainly released there.
    fn release_at(&mut self, no: RoundNo, member: Member, turn: &Turn<'_>) {
        let round = &self.rounds[&no];
        let lease = self.leases.of(&round.id);
        let slot = lease.map(|lease| lease.slots[member]);
        let may_last = lease.map_or(Duration::ZERO, |lease| lease.may_last());
        let Some(ends_by) = round.missing(member, slot) else {
            return;
        };
        if is_on(Mutant::MissingReleaseIsForgotten) {
            return;
        }
        let until = turn.now.after(may_last.max(RUNS_WITHIN));
        let mut release = PendingRelease::new(&round.command.lock, &round.id, until, ends_by);
        // The kernel counts it if too few have released it.
        release.counts = Counts::Nothing;
        self.left.push_ended(member, release, turn.now);
    }

    // ------------------------------------------------------------------ looks

    /// Returns whether a command may be sent again, with its script's text: a proposal only while
    /// its round is open, or its lease is. Otherwise its release may already be behind it.
    pub(crate) fn may_send(&self, part: PartNo, now: Instant) -> bool {
        let round = match self.sent.get(&part) {
            Some(Sent::Vote(no, _)) => self.rounds.get(no),
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
        lease.is_some_and(|lease| !lease.is_over && now < lease.valid_until)
    }

    /// Returns whether a command at a member may acquire something.
    pub(crate) fn may_acquire(&self) -> bool {
        self.sent.values().any(|sent| match sent {
            Sent::Vote(no, _) => self.rounds.get(no).is_some_and(Round::is_proposal),
            Sent::Undo(..) => false,
        })
    }

    /// Returns whether it has a command of the kernel that has not ended.
    pub(crate) fn decides(&self, ticket: Ticket) -> bool {
        self.rounds.values().any(|round| round.ticket == ticket) || self.left.decides(ticket)
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
        self.rounds.values().any(|round| round.id.as_str() == id) || self.has_left(member, id)
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
