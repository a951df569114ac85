//! The rounds of the engine: when their commands are sent, and what becomes of their ends.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::error::Cause;
use crate::kernel::command::{Attempt, Command, What};
use crate::kernel::context::Context;
use crate::kernel::engine::{Engine, Purpose, ServerNo, Ticket, Turn};
use crate::kernel::entry::LockEntry;
use crate::kernel::fault::Fault;
use crate::kernel::round::{AtServer, Round, RoundNo};
use crate::kernel::schedule::Item;
use crate::kernel::table::entry_name;
use crate::kernel::tokens::Tokens;
use crate::kernel::undo::{PendingRelease, Proof};
use crate::kernel::{Kernel, RUNS_WITHIN};
use crate::mutant::{Mutant, is_on};
use crate::protocol::answer::Answer;

/// The rounds whose commands have not all ended.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    all: BTreeMap<RoundNo, Round>,
    last: RoundNo,
    tokens: Tokens,
}

impl Rounds {
    fn add(&mut self, round: Round) {
        self.last += 1;
        self.all.insert(self.last, round);
    }

    /// Returns what the end of a round means for the kernel.
    fn settle(&mut self, no: RoundNo, end: Result<Answer, Fault>) -> Result<Answer, Fault> {
        let round = &self.all[&no];
        let name = entry_name(&*round.command.lock);
        match end {
            Ok(Answer::Busy(_)) => return Ok(Answer::Busy(self.tokens.split(name))),
            Ok(Answer::TooLow(counter)) if self.tokens.too_low(name, counter) => {
                let cause = Cause::text("other clients used higher fencing tokens each time");
                return Err(Fault::NotRun(cause));
            }
            Ok(Answer::TooLow(_)) => return Ok(Answer::Busy(Duration::ZERO)),
            Ok(Answer::Granted(_)) => self.tokens.granted(name),
            Ok(Answer::Refused(_)) => self.tokens.refused(name),
            _ => {}
        }
        end
    }

    /// Returns whether the round acquires a lock.
    pub(super) fn proposes(&self, no: RoundNo) -> bool {
        self.all.get(&no).is_some_and(Round::is_proposal)
    }

    /// Returns whether the command of the kernel is that of a round.
    pub(super) fn decides(&self, ticket: Ticket) -> bool {
        self.all.values().any(|round| round.ticket == ticket)
    }
}

impl Engine {
    /// Begins a round; its commands are sent by [`advance`](Self::advance).
    pub(super) fn begin_round(
        &mut self,
        ticket: Ticket,
        mut command: Command,
        mut purpose: Purpose,
        turn: &mut Turn<'_>,
    ) {
        let limits = &turn.cx.kernel.limits;
        let until = turn.cx.now.after(limits.command_timeout);
        if let What::Acquire { attempt, .. } = &mut command.what {
            if let Err(fault) = turn.route.admit(&command.lock) {
                return self.apply(purpose, Err(fault), turn.cx.now, turn);
            }
            let clock = turn.cx.kernel.wall(turn.cx.now);
            let name = entry_name(&*command.lock);
            *attempt = Attempt::Propose(self.rounds.tokens.propose(name, clock));
        }
        let mut round = Round::new(ticket, command, limits.size, until);
        round.began = turn.cx.now;
        match &mut purpose {
            Purpose::Ask(asked) => asked.at = Some(Arc::clone(&round.at)),
            Purpose::Release(lease, _) => {
                if let Some(taken) = &lease.at {
                    round.release_of(Arc::clone(taken), lease.key_may_last());
                }
            }
            _ => {}
        }
        self.in_flight.insert(ticket, purpose);
        self.rounds.add(round);
    }

    /// Sends what the open rounds have not sent yet, and ends those whose time is over. Returns
    /// whether a round has ended.
    pub(super) fn advance(&mut self, turn: &mut Turn<'_>) -> bool {
        let (kernel, now) = (turn.cx.kernel, turn.cx.now);
        if self.rounds.all.is_empty() && !kernel.is_quorum() {
            return false;
        }
        let abandoned = mem::take(&mut *kernel.abandoned.lock());
        let mut has_ended = false;
        let open = self.rounds.all.iter().filter(|(_, round)| {
            !round.is_over || is_on(Mutant::NotSentIsSentLate) && round.is_proposal()
        });
        let open: Vec<RoundNo> = open.map(|(no, _)| *no).collect();
        for no in open {
            for server in 0..kernel.limits.size.all {
                self.cast(no, server, turn);
            }
            let Some(round) = self.rounds.all.get_mut(&no) else {
                continue;
            };
            let has_left = round.is_proposal() && abandoned.contains(&round.id);
            let is_late = now >= round.until || has_left;
            if is_late {
                round.note_unconnected(turn.route);
            }
            has_ended |= self.judge(no, is_late, has_left, turn);
        }
        let open = self.rounds.all.values().filter(|round| !round.is_over);
        if let Some(at) = open.map(|round| round.next(now)).min() {
            turn.cx.put(Item::Rounds, [at, at]);
        }
        has_ended
    }

    /// Sends a round's command to a server, if it was not sent and the pipeline is up.
    fn cast(&mut self, no: RoundNo, server: ServerNo, turn: &mut Turn<'_>) {
        let Some(round) = self.rounds.all.get_mut(&no) else {
            return;
        };
        if let Some((to, command)) = round.cast(server, turn.cx.now, turn.route) {
            self.send(to, command, Purpose::Vote(no, server), turn);
        }
    }

    /// Applies the end of a round's command at a server.
    pub(super) fn voted(
        &mut self,
        no: RoundNo,
        server: ServerNo,
        end: Result<Answer, Fault>,
        turn: &mut Turn<'_>,
    ) {
        let (now, clock) = (turn.cx.now, turn.cx.kernel.wall(turn.cx.now));
        if let Ok(Answer::TooLow(counter)) = &end {
            self.rounds.tokens.learn(clock, *counter);
        }
        let Some(round) = self.rounds.all.get_mut(&no) else {
            return;
        };
        let (at, vote) = round.read(turn.cx.kernel, server, end, (now, turn.route));
        round.at.set(server, at);
        if round.is_over {
            self.voted_late(no, server, vote, turn)
        } else {
            round.votes.count(vote);
            self.judge(no, false, false, turn);
        }
        self.forget_round(no);
    }

    fn voted_late(
        &mut self,
        no: RoundNo,
        server: ServerNo,
        vote: Option<Answer>,
        turn: &mut Turn<'_>,
    ) {
        let round = &self.rounds.all[&no];
        let is_unknown = round.at.of(server) == AtServer::Unknown;
        match &round.command.what {
            What::Acquire { .. } if is_unknown => {
                // Its undo is behind it on the same pipeline, which has ended.
                let mut pending = turn.cx.kernel.pending.lock();
                pending.doubt(server, &round.command.lock, &round.id);
            }
            What::Acquire { .. } if is_on(Mutant::LateVoteCounts) => {
                let lock = Arc::clone(&round.command.lock);
                let is_next = |it: &&mut Round| {
                    it.is_proposal() && !it.is_over && Arc::ptr_eq(&it.command.lock, &lock)
                };
                if let Some(next) = self.rounds.all.values_mut().find(is_next) {
                    next.votes.count(vote);
                }
            }
            What::Leave { .. } => release_at(round, server, turn),
            _ if is_unknown => turn.cx.limit(&round.command),
            _ => {}
        }
    }

    /// Forgets a round that is over once no server has a command of it.
    fn forget_round(&mut self, no: RoundNo) {
        let is_done = |round: &Round| round.is_over && !round.at.has(AtServer::Asked);
        if self.rounds.all.get(&no).is_some_and(is_done) {
            self.rounds.all.remove(&no);
        }
    }

    /// Ends a round if it is decided, or `late`, maybe because its call has left. Returns whether
    /// it has ended.
    fn judge(&mut self, no: RoundNo, late: bool, has_left: bool, turn: &mut Turn<'_>) -> bool {
        let now = turn.cx.now;
        let Some(round) = self.rounds.all.get_mut(&no).filter(|round| !round.is_over) else {
            return false;
        };
        let Some(end) = round.end(late, turn.route) else {
            return false;
        };
        let is_won = matches!(end, Ok(Answer::Granted(_)));
        if is_won && !late && round.waits_for_connections(now, turn.route) {
            let at = round.waits_until.unwrap_or(now);
            turn.cx.put(Item::Rounds, [at, at]);
            return false;
        }
        let is_cut_short = has_left;
        (turn.route).round_ended(&round.undecided(), &end, is_cut_short);
        round.is_over = true;
        match round.again(&end, now) {
            Some(again) => self.rounds.add(again),
            None => {
                let end = self.rounds.settle(no, end);
                self.end_round(no, end, turn);
            }
        }
        self.forget_round(no);
        true
    }

    /// Applies the end of a round, and gives back what it has left.
    fn end_round(&mut self, no: RoundNo, end: Result<Answer, Fault>, turn: &mut Turn<'_>) {
        let round = &self.rounds.all[&no];
        let sent = if is_on(Mutant::RoundCountsFromReply) {
            turn.cx.now
        } else {
            round.first_sent.unwrap_or(turn.cx.now)
        };
        if !round.is_proposal() && !round.is_release() && round.at.has(AtServer::Unknown) {
            turn.cx.limit(&round.command);
        }
        if let Some(purpose) = self.in_flight.remove(&round.ticket) {
            self.apply(purpose, end, sent, turn);
        }
        let round = &self.rounds.all[&no];
        if round.is_release() {
            for server in 0..round.size.all {
                release_at(round, server, turn);
            }
        }
        if round.is_proposal() {
            let name = entry_name(&*round.command.lock);
            let holds = |entry: &mut LockEntry, _: &mut Context<'_>| entry.holds(&round.id);
            let is_held = turn.cx.with_existing(name, holds).unwrap_or(false);
            self.close_proposal(no, is_held, turn);
        }
    }

    /// Gives back what a proposal has taken, unless this client holds the lock by it.
    fn close_proposal(&mut self, no: RoundNo, is_held: bool, turn: &mut Turn<'_>) {
        for server in 0..self.rounds.all[&no].size.all {
            let round = &self.rounds.all[&no];
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
            let What::Acquire { ttl, .. } = round.command.what else {
                return;
            };
            let (now, until) = (turn.cx.now, turn.cx.may_run_until(ttl));
            let place = (server, &round.command.lock);
            let release = PendingRelease::new(place, &round.id, until, ends_by);
            let command = turn.cx.with_pending(|pending, _| match at {
                AtServer::Unknown => {
                    pending.push(release, now);
                    None
                }
                _ => pending.push_now(release, now),
            });
            if let Some((command, batch)) = command {
                self.send(server, command, Purpose::Undo(batch), turn);
            }
        }
    }

    /// Returns whether a command may be sent again, with its script's text: a proposal only while
    /// its round is open, or its lease is. Otherwise its release may already be behind it.
    pub(super) fn may_resend_vote(&self, kernel: &Kernel, no: RoundNo, now: Instant) -> bool {
        let Some(round) = self.rounds.all.get(&no) else {
            return false;
        };
        if !round.is_over || !round.is_proposal() || is_on(Mutant::ProposalIsResentLate) {
            return true;
        }
        // Without this server's key, the lease would have no vote to spare.
        let name = entry_name(&*round.command.lock);
        let shard = kernel.table.shard(name).lock();
        let mut held = shard
            .get(name)
            .into_iter()
            .flat_map(|entry| entry.held.iter());
        let found = held.find(|held| held.lease.id == round.id);
        found.is_some_and(|held| held.lease.remaining(now).is_some())
    }

    /// Returns whether a round may still change something under this id.
    #[cfg(sim)]
    pub(crate) fn knows(&self, id: &str) -> bool {
        self.rounds
            .all
            .values()
            .any(|round| round.id.as_str() == id)
    }

    #[cfg(sim)]
    pub(crate) fn rounds(&self) -> usize {
        self.rounds.all.len()
    }
}

/// Releases at a server what a round has not certainly released there.
fn release_at(round: &Round, server: ServerNo, turn: &mut Turn<'_>) {
    let (Some(ends_by), Some((_, may_last))) = (round.missing(server), &round.releases) else {
        return;
    };
    if is_on(Mutant::MissingReleaseIsForgotten) {
        return;
    }
    let until = turn.cx.now.after((*may_last).max(RUNS_WITHIN));
    let place = (server, &round.command.lock);
    let release = PendingRelease::new(place, &round.id, until, ends_by);
    turn.cx.pend_ended(release);
}

impl Context<'_> {
    /// A change of ttl may run later at a server.
    fn limit(&mut self, command: &Command) {
        let What::Renew {
            id,
            ttl,
            may_shorten: true,
        } = &command.what
        else {
            return;
        };
        if is_on(Mutant::LateShorteningIsForgotten) {
            return;
        }
        self.with_existing(entry_name(&*command.lock), |entry, _| {
            let held = entry.held.iter().find(|held| held.lease.id == *id);
            if let Some(held) = held {
                held.lease.limit(*ttl);
            }
        });
    }
}
