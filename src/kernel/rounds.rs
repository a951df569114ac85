//! The rounds of the engine: when their commands are sent, and what becomes of their ends.

use std::mem;
use std::sync::Arc;

use crate::clock::Instant;
use crate::kernel::Kernel;
use crate::kernel::command::Command;
use crate::kernel::effects::Effects;
use crate::kernel::engine::{Engine, Purpose, ServerNo, Turn};
use crate::kernel::fault::Fault;
use crate::kernel::lease::{LeaseWork, WorkKind};
use crate::kernel::round::{AtServer, Round, RoundKind, RoundNo};
use crate::kernel::schedule::Item;
use crate::kernel::table::entry_name;
use crate::kernel::undo::{PendingRelease, Proof};
use crate::mutant::{Mutant, is_on};
use crate::protocol::answer::Answer;

impl Engine {
    /// Begins a round; its commands are sent by [`advance`](Self::advance).
    pub(super) fn begin_round(&mut self, kind: RoundKind, command: Command, turn: &Turn<'_>) {
        let limits = &turn.cx.kernel.limits;
        let until = turn.cx.now.after(limits.command_timeout);
        let mut round = Round::new(kind, command, limits.size, until);
        round.began = turn.cx.now;
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
            RoundKind::Lease(_) => {}
        }
        self.add_round(round);
    }

    fn add_round(&mut self, round: Round) {
        self.next_round += 1;
        self.rounds.insert(self.next_round, round);
    }

    /// Sends what the open rounds have not sent yet, and ends those whose time is over. Returns
    /// whether a round has ended.
    pub(super) fn advance(&mut self, turn: &mut Turn<'_>) -> bool {
        let (kernel, now) = (turn.cx.kernel, turn.cx.now);
        if self.rounds.is_empty() && !kernel.is_quorum() {
            return false;
        }
        let abandoned = mem::take(&mut *kernel.abandoned.lock());
        let mut has_ended = false;
        let open = self.rounds.iter().filter(|(_, round)| {
            !round.is_over || is_on(Mutant::NotSentIsSentLate) && round.is_proposal()
        });
        let open: Vec<RoundNo> = open.map(|(no, _)| *no).collect();
        for no in open {
            for server in 0..self.rounds[&no].size.all {
                self.cast(no, server, turn);
            }
            let Some(round) = self.rounds.get_mut(&no) else {
                continue;
            };
            let has_left = round.is_proposal() && abandoned.contains(&round.id);
            let is_late = now >= round.until || has_left;
            if is_late {
                round.note_unconnected(turn.route);
            }
            has_ended |= self.judge(no, is_late, has_left, turn);
        }
        let open = self.rounds.values().filter(|round| !round.is_over);
        if let Some(at) = open.map(|round| round.next(now)).min() {
            turn.cx.put(Item::Rounds, [at, at]);
        }
        has_ended
    }

    /// Sends a round's command to a server, if it was not sent and the pipeline is up.
    fn cast(&mut self, no: RoundNo, server: ServerNo, turn: &mut Turn<'_>) {
        let Some(round) = self.rounds.get_mut(&no) else {
            return;
        };
        if let Some((to, command)) = round.cast(server, turn.cx.now, turn.route) {
            let purpose = Purpose::Vote { round: no, server };
            self.send(to, command, purpose, turn);
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
        let Some(round) = self.rounds.get_mut(&no) else {
            return;
        };
        let (at, vote) = round.read(turn.cx.kernel, server, end, (turn.cx.now, turn.route));
        round.at.set(server, at);
        if round.is_over {
            self.voted_late(no, server, vote, turn)
        } else {
            round.votes.count(vote);
            self.judge(no, false, false, turn);
        }
        self.forget_round(no, turn.cx.fx);
    }

    fn voted_late(
        &mut self,
        no: RoundNo,
        server: ServerNo,
        vote: Option<Answer>,
        turn: &mut Turn<'_>,
    ) {
        let round = &self.rounds[&no];
        let is_unknown = round.at.of(server) == AtServer::Unknown;
        match &round.kind {
            RoundKind::Propose(asked) if is_unknown => {
                // Its undo is behind it on the same pipeline, which has ended.
                let mut pending = turn.cx.kernel.pending.lock();
                pending.doubt(server, &asked.lock, &asked.id);
            }
            RoundKind::Lease(work) if is_unknown => limit(work),
            RoundKind::Release(lease, ..) if round.is_missing(lease, server) => {
                turn.cx.release_at(lease, server);
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
    fn judge(&mut self, no: RoundNo, late: bool, has_left: bool, turn: &mut Turn<'_>) -> bool {
        let now = turn.cx.now;
        let Some(round) = self.rounds.get_mut(&no).filter(|round| !round.is_over) else {
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
            Some(again) => self.add_round(again),
            None => self.apply(no, end, turn),
        }
        self.forget_round(no, turn.cx.fx);
        true
    }

    /// Applies the end of a round.
    fn apply(&mut self, no: RoundNo, end: Result<Answer, Fault>, turn: &mut Turn<'_>) {
        let (round, cx) = (&self.rounds[&no], &mut turn.cx);
        let sent = if is_on(Mutant::RoundCountsFromReply) {
            cx.now
        } else {
            round.first_sent.unwrap_or(cx.now)
        };
        match &round.kind {
            RoundKind::Propose(asked) => {
                let is_held = cx.with_entry(&asked.lock, |entry, cx| {
                    entry.answered(asked, end, sent, None, cx);
                    entry.holds(&asked.id)
                });
                self.close_proposal(no, is_held, turn);
            }
            RoundKind::Lease(work) => {
                if round.at.has(AtServer::Unknown) {
                    limit(work);
                }
                cx.lease_answered(work, end, sent);
            }
            RoundKind::Release(lease, cell) => round.released(lease, cell, end, sent, cx),
        }
    }

    /// Gives back what a proposal has taken, unless this client holds the lock by it.
    fn close_proposal(&mut self, no: RoundNo, is_held: bool, turn: &mut Turn<'_>) {
        for server in 0..self.rounds[&no].size.all {
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
            let (now, until) = (turn.cx.now, turn.cx.may_run_until(round.ttl));
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
        let Some(round) = self.rounds.get(&no) else {
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

    /// Returns whether the round acquires a lock.
    pub(super) fn proposes(&self, no: RoundNo) -> bool {
        self.rounds.get(&no).is_some_and(Round::is_proposal)
    }

    /// Returns whether a round may still change something under this id.
    #[cfg(sim)]
    pub(crate) fn knows(&self, id: &str) -> bool {
        self.rounds.values().any(|round| round.id.as_str() == id)
    }

    #[cfg(sim)]
    pub(crate) fn rounds(&self) -> usize {
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
