//! The end of a round: its meaning for the kernel, and for the keys that members have.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::kernel::RUNS_WITHIN;
use crate::kernel::command::What;
use crate::kernel::fault::Fault;
use crate::kernel::undo::{Counts, PendingRelease, Proof, may_run_until};
use crate::majority::Member;
use crate::mutant::{Mutant, is_on};
use crate::protocol::answer::Answer;
use crate::quorum::lease::{Lease, RoundNo, Slot};
use crate::quorum::round::{AtServer, BUSY, Round};
use crate::quorum::{Event, Quorum, Sent, Turn, forgets_at};
use crate::validity::validity;

impl Quorum {
    /// Ends a round if it is decided, or `late`, maybe because its call has left.
    pub(super) fn judge(&mut self, no: RoundNo, late: bool, has_left: bool, turn: &mut Turn<'_>) {
        let now = turn.now;
        let is_open = |round: &&mut Round| !round.is_over || is_on(Mutant::TicketEndsTwice);
        let Some(round) = self.rounds.get_mut(&no).filter(is_open) else {
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
            self.next = self.next.min(round.next(now));
            return;
        }
        (turn.members).round_ended(&round.undecided(), &end, has_left);
        round.is_over = true;
        self.open.remove(&no);
        let again = round.again(&end, now);
        round.goes_on = again.is_some();
        match again {
            Some(again) => {
                let again = self.add(again, now);
                self.go_on(again, turn);
            }
            None => {
                let end = self.meant(no, end);
                self.end(no, end, turn);
            }
        }
        self.forget(no);
    }

    /// Returns what the end of a round means for the kernel.
    pub(super) fn meant(
        &mut self,
        no: RoundNo,
        end: Result<Answer, Fault>,
    ) -> Result<Answer, Fault> {
        let round = &self.rounds[&no];
        let name = round.command.lock.key(0).name;
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
    pub(super) fn end(&mut self, no: RoundNo, end: Result<Answer, Fault>, turn: &mut Turn<'_>) {
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
            What::Acquire { .. } => {
                round.sends_no_more();
                if !is_lost {
                    self.hold(no, sent, now);
                }
            }
            What::Renew { ttl, .. } | What::Downgrade { ttl, .. } => {
                if let Some(lease) = self.leases.change(&round.id) {
                    lease.prolong(*ttl, forgets_at(*ttl, now, self.command_timeout));
                    match &end {
                        Ok(Answer::Ours) => {
                            lease.set_end(sent.after(validity(*ttl)), round.may_shorten());
                        }
                        Ok(_) => lease.is_over = true,
                        Err(_) => {}
                    }
                }
                if round.at.contains(&AtServer::Unknown) {
                    self.limit(no, turn);
                }
            }
            _ => {}
        }
        let ticket = self.rounds[&no].ticket;
        let is_renewed = matches!(end, Ok(Answer::Ours)) && self.rounds[&no].changes_lease();
        turn.end(ticket, end, sent);
        if is_renewed {
            self.heal(no, turn);
        }
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
    pub(super) fn give_back(&mut self, no: RoundNo, turn: &mut Turn<'_>) {
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
            let ends_by = match at {
                AtServer::Asked | AtServer::Yes => Proof::AnyAnswer,
                AtServer::Unknown => Proof::KeySeen,
                AtServer::NotSent | AtServer::No => continue,
            };
            if is_forgotten {
                continue;
            }
            let release = PendingRelease::new(&lock, &id, until, ends_by);
            if at == AtServer::Unknown {
                self.left.push(member, release, turn.now);
            } else if let Some((command, batch)) = self.left.push_now(member, release, turn.now) {
                self.send(member, command, Sent::Undo(member, batch), turn);
            }
        }
    }

    /// Releases at a member what a round has not certainly released there.
    pub(super) fn release_at(&mut self, no: RoundNo, member: Member, turn: &Turn<'_>) {
        let round = &self.rounds[&no];
        let lease = self.leases.of(&round.id);
        let number = lease.map_or(Some(0), |lease| lease.slots[member].number());
        let may_last = lease.map_or(Duration::ZERO, Lease::may_last);
        let ends_unknown = is_on(Mutant::ReleaseEndsTheUnknown);
        let number = number.filter(|_| round.is_missing(member));
        let of_unknown = ends_unknown && self.left.has(member, &round.id);
        let number = if of_unknown { Some(0) } else { number };
        let Some(number) = number else {
            return;
        };
        if is_on(Mutant::MissingReleaseIsForgotten) {
            return;
        }
        let until = turn.now.after(may_last.max(RUNS_WITHIN));
        let id = round.id.numbered(number);
        let release = PendingRelease::new(&round.command.lock, &id, until, Proof::AnyAnswer);
        // The kernel counts it if too few have released it.
        let release = release.counting(Counts::Nothing);
        self.left.push_ended(member, release, turn.now);
    }

    /// A round has acquired a lease.
    pub(super) fn hold(&mut self, no: RoundNo, sent: Instant, now: Instant) {
        let round = &self.rounds[&no];
        let What::Acquire { ttl, tokens, .. } = round.command.what else {
            return;
        };
        let slots = (0..self.size.all).map(|member| match round.at[member] {
            AtServer::Asked => Slot::Asked(0, no),
            AtServer::Yes => Slot::Has(0, round.links[member]),
            AtServer::NotSent | AtServer::No | AtServer::Unknown => Slot::Empty(no),
        });
        let last_token = round.token().saturating_add(tokens.saturating_sub(1));
        let valid_until = sent.after(validity(ttl));
        let times = [valid_until, forgets_at(ttl, now, self.command_timeout)];
        let (lock, id) = (Arc::clone(&round.command.lock), round.id.clone());
        let lease = Lease::new(&lock, slots.collect(), last_token, ttl, times);
        self.leases.insert(&id, lease, now);
        let until = may_run_until(ttl, now);
        for member in 0..self.size.all {
            if self.rounds[&no].at[member] == AtServer::Unknown {
                let release = PendingRelease::new(&lock, &id, until, Proof::KeySeen);
                self.push_unknown(member, release, now);
            }
        }
    }

    /// A change of ttl may run later at a member.
    pub(super) fn limit(&mut self, no: RoundNo, turn: &mut Turn<'_>) {
        let round = &self.rounds[&no];
        let What::Renew {
            ttl,
            may_shorten: true,
            ..
        } = round.command.what
        else {
            return;
        };
        if is_on(Mutant::LateShorteningIsForgotten) {
            return;
        }
        if let Some(lease) = self.leases.change(&round.id) {
            let valid_until = turn.now.after(validity(ttl));
            lease.valid_until = lease.valid_until.min(valid_until);
        }
        let lock = Arc::clone(&round.command.lock);
        turn.events.push(Event::Limit(lock, round.id.clone(), ttl));
    }

    /// The acquiring command of a round that is over has ended at a member.
    pub(super) fn acquired_late(&mut self, no: RoundNo, member: Member, turn: &Turn<'_>) {
        let round = &self.rounds[&no];
        let What::Acquire { ttl, .. } = round.command.what else {
            return;
        };
        let (at, lock) = (round.at[member], &round.command.lock);
        let Some(lease) = self.leases.change(&round.id) else {
            if at == AtServer::Unknown {
                // Its undo is behind it on the same pipeline, which has ended.
                self.left.doubt(member, lock, &round.id);
            }
            return;
        };
        lease.prolong(ttl, forgets_at(ttl, turn.now, self.command_timeout));
        if lease.slots[member].number() == Some(0) {
            lease.slots[member] = match at {
                AtServer::Yes => Slot::Has(0, round.links[member]),
                _ => Slot::Empty(no),
            };
        }
        if at == AtServer::Unknown {
            let until = turn.now.after(lease.may_last().max(RUNS_WITHIN));
            let release = PendingRelease::new(lock, &round.id, until, Proof::KeySeen);
            self.push_unknown(member, release, turn.now);
        }
    }

    /// A member may have a key, or get one later, that the lease does not count on.
    pub(super) fn push_unknown(&mut self, member: Member, release: PendingRelease, now: Instant) {
        // The lease itself is counted by the kernel.
        let release = release.counting(Counts::Nothing);
        if !is_on(Mutant::UnknownIsNotUndone) {
            self.left.push_unknown(member, release, now);
        }
    }
}
