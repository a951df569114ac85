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
use crate::holder_id::{HolderId, is_same_holder};
use crate::kernel::command::{Command, What};
use crate::kernel::engine::{Route, Ticket};
use crate::kernel::fault::{Fault, end_for_lease};
use crate::majority::{Majority, Member, SPLIT};
use crate::mutant::{Mutant, is_on};
use crate::protocol::answer::{Answer, Wanted};
use crate::protocol::primitive::Primitive;
use crate::protocol::verb::Verb;
use crate::quorum::lease::{LinkNo, NO_LINK, Slot};
use crate::quorum::left::Left;
use crate::quorum::votes::{Verdict, Votes};
use crate::wait_policy::RECONNECT;

/// The state of a round's command at one member, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AtServer {
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

/// The state of the engine's pipeline to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    Up,
    /// It may soon be up: a round waits for it.
    Connecting,
    /// It was lost, or could not be opened: a round goes on without it.
    Down,
}

/// The facts about the servers that the rounds must know.
pub(crate) trait Members: Route {
    /// Returns the state of the pipeline to a server. The first of the calls that want it gives up
    /// at `_wanted_by`.
    fn link(&self, _: Member, _wanted_by: Instant) -> Link {
        Link::Up
    }

    /// Returns why there is no pipeline to a server.
    fn not_connected(&self, _: Member) -> Fault {
        Fault::NotRun(Cause::text("not connected"))
    }

    /// Returns a fault if no proposal may be sent now.
    fn admit(&self, _: &Arc<dyn Primitive>) -> Result<(), Fault> {
        Ok(())
    }

    /// A server has refused a proposal because of its own id, which is a fresh one.
    fn ran_twice(&self, _: &Arc<dyn Primitive>) {}

    /// Returns why a round has no outcome.
    fn undecided(&self, round: &Undecided<'_>) -> Fault {
        round.first_fault()
    }

    /// A round has ended; `is_cut_short` if its call has left.
    fn round_ended(&self, _: &Undecided<'_>, _: &Result<Answer, Fault>, _is_cut_short: bool) {}
}

/// Votes that give the lock to nobody, before the pause is known.
pub(super) const BUSY: Answer = Answer::Busy {
    pause: Duration::ZERO,
    cause: SPLIT,
};

/// How long a proposal that is won waits for connections that are being made.
const CONNECTS_WITHIN: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct Round {
    /// The command of the kernel that it decides.
    pub(super) ticket: Ticket,
    pub(super) command: Command,
    pub(super) id: HolderId,
    pub(super) size: Majority,
    /// The state of the command at each server, and the number of the id there.
    pub(super) at: Box<[AtServer]>,
    pub(super) numbers: Box<[u16]>,
    /// The connections over which the servers have answered.
    pub(super) links: Box<[LinkNo]>,
    /// The connection of a member has ended that had confirmed its key last, and the key is gone.
    pub(super) has_lost: bool,
    pub(super) votes: Votes,
    pub(super) first_sent: Option<Instant>,
    /// How often it was tried before, and when its commands are sent.
    tries: u32,
    pub(super) not_before: Instant,
    began: Instant,
    /// When it was won although a connection was still being made: it waits for that until
    /// then.
    pub(super) waits_until: Option<Instant>,
    pub(super) until: Instant,
    pub(super) is_over: bool,
    /// Its release is tried once more, by another round.
    pub(super) goes_on: bool,
    /// A server has refused a proposal because of its own id: it has run before.
    has_own_id: bool,
    /// A server has refused a proposal because of what this client is releasing there.
    is_in_own_way: bool,
    /// The servers that gave no vote, and why.
    faults: Vec<(Member, Fault)>,
    /// How many servers have replied without an error.
    answers: usize,
}

/// What is known of a round that has no outcome.
pub(crate) struct Undecided<'a> {
    pub(crate) size: Majority,
    /// The servers that gave no vote, and why.
    pub(crate) faults: &'a [(Member, Fault)],
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
    pub(super) fn new(
        ticket: Ticket,
        command: Command,
        size: Majority,
        [began, until]: [Instant; 2],
    ) -> Self {
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
            size,
            at: vec![AtServer::NotSent; size.all].into(),
            numbers: vec![0; size.all].into(),
            links: vec![NO_LINK; size.all].into(),
            has_lost: false,
            votes: Votes::new(verb, size),
            first_sent: None,
            tries: 0,
            not_before: Instant::START,
            began,
            waits_until: None,
            until,
            is_over: false,
            goes_on: false,
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

    /// Returns the token that it proposes.
    pub(super) fn token(&self) -> u64 {
        match &self.command.what {
            What::Acquire { attempt, .. } => attempt.proposes().unwrap_or_default(),
            _ => 0,
        }
    }

    pub(super) fn changes_lease(&self) -> bool {
        !self.is_release() && !self.is_proposal()
    }

    /// Returns whether it may give the keys a shorter ttl than they have.
    pub(super) fn may_shorten(&self) -> bool {
        let what = &self.command.what;
        matches!(
            what,
            What::Renew {
                may_shorten: true,
                ..
            }
        )
    }

    /// The rest is never sent.
    pub(super) fn sends_no_more(&mut self) {
        for at in &mut self.at {
            if *at == AtServer::NotSent && !is_on(Mutant::NotSentIsSentLate) {
                *at = AtServer::No;
            }
        }
    }

    /// Reads the end of the command at a server: what is known there now, and the vote.
    pub(super) fn read(
        &mut self,
        left: &Left,
        server: Member,
        end: Result<Answer, Fault>,
        (now, members): (Instant, &dyn Members),
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
            Answer::Refused(by) if is_same_holder(&by.holder, self.id.as_str().as_bytes()) => {
                self.has_own_id = true;
                members.ran_twice(&self.command.lock);
                (AtServer::Unknown, None)
            }
            // What nobody here owns: no refusal, the server is free once that is released.
            Answer::Refused(by)
                if left.had_since(server, &by.holder, self.first_sent.unwrap_or(now))
                    && !is_on(Mutant::OwnIdRefusesRound) =>
            {
                self.is_in_own_way = true;
                (AtServer::No, None)
            }
            Answer::Refused(_) | Answer::TooLow(_) => (AtServer::No, Some(answer)),
            _ => (AtServer::Unknown, None),
        }
    }

    fn fault_at(&mut self, server: Member, fault: Fault) -> AtServer {
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

    /// Returns the command for a server if it can be sent now. The lease that it is about has this
    /// slot there, if it is known.
    pub(super) fn cast(
        &mut self,
        server: Member,
        (slot, missing): (Option<Slot>, Option<Answer>),
        left: &Left,
        (now, members): (Instant, &dyn Members),
    ) -> Option<Command> {
        if self.at[server] != AtServer::NotSent || now < self.not_before {
            return None;
        }
        let Some(number) = slot.map_or(Some(0), Slot::number) else {
            // Nothing is there: it is not asked.
            self.at[server] = AtServer::No;
            let vote = if is_on(Mutant::EmptySlotIsOurs) {
                Some(Answer::Ours)
            } else {
                missing
            };
            match vote {
                Some(vote) => self.votes.count(Some(vote)),
                None => self.votes.count_absent(),
            }
            return None;
        };
        let name = self.command.lock.key(0).name;
        match members.link(server, self.command.wanted_by) {
            Link::Connecting => None,
            Link::Down => {
                self.go_without(server, members.not_connected(server));
                None
            }
            Link::Up if self.is_proposal() && left.is_full(server, name) => {
                let cause = Cause::text("it has not answered about too many earlier calls");
                self.go_without(server, Fault::NotRun(cause));
                None
            }
            Link::Up => {
                self.at[server] = AtServer::Asked;
                self.numbers[server] = number;
                self.first_sent.get_or_insert(now);
                let command = self.command.clone();
                Some(match number {
                    0 => command,
                    number => command.under(self.id.numbered(number)),
                })
            }
        }
    }

    /// The command is not sent to a server.
    fn go_without(&mut self, server: Member, fault: Fault) {
        self.at[server] = if self.is_release() {
            // It goes on as a pending one.
            AtServer::Unknown
        } else {
            AtServer::No
        };
        self.votes.count(None);
        self.faults.push((server, fault));
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
    pub(super) fn note_unconnected(&mut self, members: &dyn Members) {
        for server in 0..self.size.all {
            if self.at[server] == AtServer::NotSent {
                self.faults.push((server, members.not_connected(server)));
            }
        }
    }

    /// Returns the end of the round if it is decided, or if it is `late`.
    pub(super) fn end(&self, late: bool, members: &dyn Members) -> Option<Result<Answer, Fault>> {
        if !late && self.at.contains(&AtServer::Asked) && is_on(Mutant::HangingMemberIsAwaited) {
            return None;
        }
        Some(match self.votes.verdict() {
            Verdict::Decided(_) | Verdict::Split if self.has_own_id => {
                Err(Fault::NotRun(Cause::text("the acquire script ran twice")))
            }
            // The try before has removed it.
            Verdict::Decided(Answer::Gone | Answer::Foreign(_)) if self.tries > 0 => {
                Ok(Answer::Ours)
            }
            Verdict::Decided(answer) => Ok(answer),
            Verdict::Split => Ok(BUSY),
            Verdict::Open if !late => return None,
            // The release is tried again once all have answered.
            Verdict::Unknown
                if !late && self.is_release() && self.at.contains(&AtServer::Asked) =>
            {
                return None;
            }
            Verdict::Open | Verdict::Unknown => Err(members.undecided(&self.undecided())),
        })
    }

    /// Returns whether a proposal that is won waits for a connection that is still being made: for
    /// a moment, or as long as the majority took to connect if that was longer. So a server that is
    /// only a little slower takes part in the first lock.
    pub(super) fn waits_for_connections(&mut self, now: Instant, members: &dyn Members) -> bool {
        let is_connecting = |server| {
            self.at[server] == AtServer::NotSent
                && members.link(server, self.command.wanted_by) == Link::Connecting
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
        if not_before >= self.until || self.at.contains(&AtServer::Asked) {
            return None;
        }
        let mut again = Self::new(
            self.ticket,
            self.command.clone(),
            self.size,
            [self.began, self.until],
        );
        again.tries = self.tries + 1;
        again.not_before = not_before;
        for server in 0..self.size.all {
            let answer = match self.at[server] {
                AtServer::Yes => Answer::Ours,
                AtServer::No => Answer::Gone,
                AtServer::NotSent | AtServer::Asked | AtServer::Unknown => continue,
            };
            if !is_on(Mutant::MemberVotesTwice) {
                again.at[server] = self.at[server];
            }
            again.votes.count(Some(answer));
        }
        Some(again)
    }

    /// Returns whether a release has not certainly ended at a server, and has no command there.
    pub(super) fn is_missing(&self, server: Member) -> bool {
        matches!(self.at[server], AtServer::NotSent | AtServer::Unknown)
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
