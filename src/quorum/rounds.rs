//! The rounds of a client: when their commands are sent, and what becomes of their ends.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::kernel::command::{Attempt, Command, What};
use crate::kernel::effects::Effects;
use crate::kernel::engine::{Engine, Outgoing, ServerNo, Ticket};
use crate::kernel::fault::Fault;
use crate::kernel::granted::AtServer;
use crate::kernel::table::entry_name;
use crate::kernel::undo::{PendingRelease, may_run_until};
use crate::kernel::{Kernel, RUNS_WITHIN};
use crate::mutant::{Mutant, is_on};
use crate::protocol::answer::Answer;
use crate::quorum::round::{Members, Round, RoundNo};
use crate::quorum::tokens::Tokens;

/// The rounds whose commands have not all ended.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    all: BTreeMap<RoundNo, Round>,
    last: RoundNo,
    /// The commands of rounds at servers that have not ended.
    sent: HashMap<Ticket, (RoundNo, ServerNo)>,
    tokens: Tokens,
}

/// One turn: what the rounds need, and the commands that they have made.
pub(super) struct Turn<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) engine: &'a mut Engine,
    pub(super) members: &'a dyn Members,
    pub(super) now: Instant,
    pub(super) fx: &'a mut Effects,
    /// The commands for the servers.
    pub(super) out: Vec<Outgoing>,
}

impl<'a> Turn<'a> {
    pub(super) fn new(
        (kernel, engine): (&'a Kernel, &'a mut Engine),
        members: &'a dyn Members,
        now: Instant,
        fx: &'a mut Effects,
    ) -> Self {
        Self {
            kernel,
            engine,
            members,
            now,
            fx,
            out: Vec::new(),
        }
    }

    /// The end of a command of the kernel.
    fn end(&mut self, ticket: Ticket, end: Result<Answer, Fault>, sent: Instant) {
        let times = [sent, self.now];
        let more = (self.engine).ended(self.kernel, ticket, end, times, self.members, self.fx);
        debug_assert!(more.is_empty(), "renewals are not joined over a quorum");
    }

    /// Returns when nothing can be at a server any more under an id whose commands give it this
    /// ttl: the last of them may be under way for a timeout, and so may a release behind it.
    fn forgets_at(&self, ttl: Duration) -> Instant {
        let timeout = self.kernel.limits.command_timeout;
        may_run_until(ttl, self.now).after(timeout.saturating_mul(2))
    }

    /// A change of ttl may run later at a server.
    fn limit(&self, command: &Command) {
        if let What::Renew {
            id,
            ttl,
            may_shorten: true,
        } = &command.what
            && !is_on(Mutant::LateShorteningIsForgotten)
        {
            self.kernel.limit(&*command.lock, id, *ttl);
        }
    }
}

impl Rounds {
    /// Begins a round for a command of the kernel; [`advance`](Self::advance) sends it. Returns
    /// whether it has ended at once.
    pub(super) fn begin(
        &mut self,
        ticket: Ticket,
        mut command: Command,
        turn: &mut Turn<'_>,
    ) -> bool {
        let (kernel, now) = (turn.kernel, turn.now);
        let until = now.after(kernel.limits.command_timeout);
        let mut not_before = Instant::START;
        if let What::Acquire { attempt, .. } = &mut command.what {
            if let Err(fault) = turn.members.admit(&command.lock) {
                turn.end(ticket, Err(fault), now);
                return true;
            }
            let name = entry_name(&*command.lock);
            let (token, pause) = self.tokens.propose(name, kernel.wall(now));
            *attempt = Attempt::Propose(token);
            not_before = now.after(pause);
        }
        let mut round = Round::new(ticket, command, kernel.limits.size, [now, until]);
        round.not_before = not_before;
        let mut pending = kernel.pending.lock();
        match &round.command.what {
            What::Leave { .. } => {
                if let Some(at) = pending.granted.of(&round.id) {
                    round.release_of(at);
                }
            }
            What::Renew { ttl, .. } | What::Downgrade { ttl, .. } => {
                (pending.granted).prolong(&round.id, *ttl, turn.forgets_at(*ttl));
            }
            _ => {}
        }
        drop(pending);
        self.add(round);
        false
    }

    fn add(&mut self, round: Round) {
        self.last += 1;
        self.all.insert(self.last, round);
    }

    /// Sends what the open rounds have not sent yet, and ends those whose time is over, or whose
    /// call has `left`. Returns whether a round has ended.
    pub(super) fn advance(&mut self, left: &[HolderId], turn: &mut Turn<'_>) -> bool {
        let mut has_ended = false;
        let open = self.all.iter().filter(|(_, round)| {
            !round.is_over || is_on(Mutant::NotSentIsSentLate) && round.is_proposal()
        });
        let open: Vec<RoundNo> = open.map(|(no, _)| *no).collect();
        for no in open {
            for server in 0..turn.kernel.limits.size.all {
                self.cast(no, server, turn);
            }
            let Some(round) = self.all.get_mut(&no) else {
                continue;
            };
            let has_left = round.is_proposal() && left.contains(&round.id);
            let is_late = turn.now >= round.until || has_left;
            if is_late {
                round.note_unconnected(turn.members);
            }
            has_ended |= self.judge(no, is_late, has_left, turn);
        }
        let open = self.all.values().filter(|round| !round.is_over);
        if let Some(at) = open.map(|round| round.next(turn.now)).min() {
            turn.kernel.wake_sender_at(at, turn.now, turn.fx);
        }
        has_ended
    }

    /// Sends a round's command to a server, if it was not sent and the pipeline is up.
    fn cast(&mut self, no: RoundNo, server: ServerNo, turn: &mut Turn<'_>) {
        let Some(round) = self.all.get_mut(&no) else {
            return;
        };
        if let Some(command) = round.cast(server, turn.now, turn.members) {
            let ticket = turn.engine.ticket();
            self.sent.insert(ticket, (no, server));
            turn.out.push(Outgoing {
                server,
                ticket,
                command,
            });
        }
    }

    /// Applies the end of a round's command at a server. Returns it if it is none of these.
    pub(super) fn ended(
        &mut self,
        ticket: Ticket,
        end: Result<Answer, Fault>,
        turn: &mut Turn<'_>,
    ) -> Result<(), Result<Answer, Fault>> {
        let Some((no, server)) = self.sent.remove(&ticket) else {
            return Err(end);
        };
        let now = turn.now;
        if let Ok(Answer::TooLow(counter)) = &end {
            self.tokens.learn(turn.kernel.wall(now), *counter);
        }
        let Some(round) = self.all.get_mut(&no) else {
            return Ok(());
        };
        let (at, vote) = round.read(turn.kernel, server, end, (now, turn.members));
        round.at[server] = at;
        if round.is_over {
            self.voted_late(no, server, vote, turn)
        } else {
            round.votes.count(vote);
            self.judge(no, false, false, turn);
        }
        self.forget(no, turn.kernel);
        Ok(())
    }

    fn voted_late(
        &mut self,
        no: RoundNo,
        server: ServerNo,
        vote: Option<Answer>,
        turn: &mut Turn<'_>,
    ) {
        let round = &self.all[&no];
        let at = round.at[server];
        let is_unknown = at == AtServer::Unknown;
        match &round.command.what {
            What::Acquire { ttl, .. } => {
                let until = turn.forgets_at(*ttl);
                let mut pending = turn.kernel.pending.lock();
                pending.granted.note(&round.id, server, at, until);
                if is_unknown {
                    // Its undo is behind it on the same pipeline, which has ended.
                    pending.doubt(server, &round.command.lock, &round.id);
                }
            }
            What::Leave { .. } => release_at(round, server, turn),
            _ if is_unknown => turn.limit(&round.command),
            _ => {}
        }
        if round.is_proposal() && is_on(Mutant::LateVoteCounts) {
            let lock = Arc::clone(&round.command.lock);
            let is_next = |it: &&mut Round| {
                it.is_proposal() && !it.is_over && Arc::ptr_eq(&it.command.lock, &lock)
            };
            if let Some(next) = self.all.values_mut().find(is_next) {
                next.votes.count(vote);
            }
        }
    }

    /// Forgets a round that is over once no server has a command of it.
    fn forget(&mut self, no: RoundNo, kernel: &Kernel) {
        let is_done = |round: &Round| round.is_over && !round.at.contains(&AtServer::Asked);
        if !self.all.get(&no).is_some_and(is_done) {
            return;
        }
        let round = self.all.remove(&no);
        if let Some(round) = round.filter(|round| round.is_release() && !round.goes_on) {
            kernel.pending.lock().granted.remove(&round.id);
        }
    }

    /// Ends a round if it is decided, or `late`, maybe because its call has left. Returns whether
    /// it has ended.
    fn judge(&mut self, no: RoundNo, late: bool, has_left: bool, turn: &mut Turn<'_>) -> bool {
        let now = turn.now;
        let Some(round) = self.all.get_mut(&no).filter(|round| !round.is_over) else {
            return false;
        };
        let Some(end) = round.end(late, turn.members) else {
            return false;
        };
        let is_won = matches!(end, Ok(Answer::Granted(_)));
        if is_won && !late && round.waits_for_connections(now, turn.members) {
            let at = round.next(now);
            turn.kernel.wake_sender_at(at, now, turn.fx);
            return false;
        }
        (turn.members).round_ended(&round.undecided(), &end, has_left);
        round.is_over = true;
        let again = round.again(&end, now);
        round.goes_on = again.is_some();
        match again {
            Some(again) => {
                let at = again.next(now);
                self.add(again);
                turn.kernel.wake_sender_at(at, now, turn.fx);
            }
            None => {
                let end = self.settle(no, end);
                self.end(no, end, turn);
            }
        }
        self.forget(no, turn.kernel);
        true
    }

    /// Returns what the end of a round means for the kernel.
    fn settle(&mut self, no: RoundNo, end: Result<Answer, Fault>) -> Result<Answer, Fault> {
        let round = &self.all[&no];
        let name = entry_name(&*round.command.lock);
        match end {
            Ok(Answer::Busy(_)) => return Ok(Answer::Busy(self.tokens.split(name))),
            Ok(Answer::TooLow(counter)) => {
                self.tokens.too_low(name, counter, round.token());
                return Ok(Answer::Busy(Duration::ZERO));
            }
            Ok(Answer::Granted(_)) => self.tokens.granted(name),
            Ok(Answer::Refused(_)) => self.tokens.refused(name),
            _ => {}
        }
        end
    }

    /// Applies the end of a round, and gives back what it has left.
    fn end(&mut self, no: RoundNo, end: Result<Answer, Fault>, turn: &mut Turn<'_>) {
        let Some(round) = self.all.get_mut(&no) else {
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
                    let until = turn.forgets_at(ttl);
                    let mut pending = turn.kernel.pending.lock();
                    (pending.granted).insert(&round.id, round.at.clone(), ttl, [now, until]);
                }
            }
            What::Renew { ttl, .. } | What::Downgrade { ttl, .. } => {
                let until = turn.forgets_at(*ttl);
                (turn.kernel.pending.lock().granted).prolong(&round.id, *ttl, until);
                if round.at.contains(&AtServer::Unknown) {
                    turn.limit(&round.command);
                }
            }
            _ => {}
        }
        turn.end(round.ticket, end, sent);
        let round = &self.all[&no];
        if round.is_release() {
            for server in 0..round.size.all {
                release_at(round, server, turn);
            }
        }
        if round.is_proposal() && is_lost {
            give_back(round, turn);
        }
    }

    /// Returns whether a command may be sent again, with its script's text: a proposal only while
    /// its round is open, or its lease is. Otherwise its release may already be behind it. `None`
    /// if it is no command of a round.
    pub(super) fn may_resend(&self, kernel: &Kernel, ticket: Ticket, now: Instant) -> Option<bool> {
        let (no, _) = self.sent.get(&ticket)?;
        let Some(round) = self.all.get(no) else {
            return Some(false);
        };
        if !round.is_over || !round.is_proposal() || is_on(Mutant::ProposalIsResentLate) {
            return Some(true);
        }
        // Without this server's key, the lease would have no vote to spare.
        Some(kernel.is_valid(&*round.command.lock, &round.id, now))
    }

    /// Returns whether a command at a server may acquire something.
    pub(super) fn may_acquire(&self) -> bool {
        let mut sent = self.sent.values();
        sent.any(|(no, _)| self.all.get(no).is_some_and(Round::is_proposal))
    }

    /// Returns whether the command of the kernel is that of a round.
    pub(super) fn decides(&self, ticket: Ticket) -> bool {
        self.all.values().any(|round| round.ticket == ticket)
    }

    /// Returns whether no server has a command of a round.
    pub(super) fn is_idle(&self) -> bool {
        self.sent.is_empty()
    }

    /// Returns whether a round may still change something under this id.
    #[cfg(sim)]
    pub(super) fn knows(&self, id: &str) -> bool {
        self.all.values().any(|round| round.id.as_str() == id)
    }

    #[cfg(sim)]
    pub(super) fn len(&self) -> usize {
        self.all.len() + self.sent.len()
    }
}

/// Gives back what a proposal has taken that was not won.
fn give_back(round: &Round, turn: &mut Turn<'_>) {
    let What::Acquire { ttl, .. } = round.command.what else {
        return;
    };
    let until = may_run_until(ttl, turn.now);
    for (server, at) in round.at.iter().enumerate() {
        let is_forgotten = match at {
            AtServer::Asked => is_on(Mutant::AskedIsNotUndone),
            AtServer::Unknown => is_on(Mutant::UnknownIsNotUndone),
            AtServer::NotSent | AtServer::Yes | AtServer::No => false,
        };
        let Some(ends_by) = at.ends_by().filter(|_| !is_forgotten) else {
            continue;
        };
        let place = (server, &round.command.lock);
        let release = PendingRelease::new(place, &round.id, until, ends_by);
        if *at == AtServer::Unknown {
            turn.kernel.undo_later(release, turn.now, turn.fx);
        } else {
            let undo = (turn.engine).undo_now(turn.kernel, release, turn.now, turn.fx);
            turn.out.extend(undo);
        }
    }
}

/// Releases at a server what a round has not certainly released there.
fn release_at(round: &Round, server: ServerNo, turn: &mut Turn<'_>) {
    let pending = turn.kernel.pending.lock();
    let granted = pending.granted.of(&round.id).map(|at| at[server]);
    let may_last = pending.granted.may_last(&round.id);
    drop(pending);
    let Some(ends_by) = round.missing(server, granted) else {
        return;
    };
    if is_on(Mutant::MissingReleaseIsForgotten) {
        return;
    }
    let until = turn.now.after(may_last.max(RUNS_WITHIN));
    let place = (server, &round.command.lock);
    let release = PendingRelease::new(place, &round.id, until, ends_by);
    turn.kernel.release_at(release, turn.now, turn.fx);
}
