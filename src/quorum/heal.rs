//! Healing: a member that has lost the key of a lease gets it back in a renewal, under a new id.
//!
//! ```text
//! a renewal finds the key gone at a member
//!    ├──its connection has ended since it last confirmed the key: Empty
//!    │     ▼
//!    │   a later renewal is won by the others ──▶ join: the next number, the last token
//!    │     ▲                                        │ granted, and the lease is valid: Has
//!    │     ├──refused, not sent─────────────────────┤
//!    │     └──no reply: its undo is pending there───┘ refused by an id of the lease: Closed
//!    └──it has not: somebody has deleted the key there: Closed
//! ```
//!
//! A lock that an operator has released stays released: a forced release, `DEL` and `FLUSHALL` end
//! no connection, and a restart does. And a join needs a majority of *other* members that have just
//! confirmed the lease. A number that may have been taken is not used again: a late command for an
//! earlier key of the lease names no later one.
//!
//! A join that was sent before a forced release may be granted after it. That key is released with
//! the lease, once its loss is known or its guard is dropped, or expires with it.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::holder_id::{HolderId, MOST_NUMBERS, is_same_holder};
use crate::kernel::command::{Attempt, Command, What};
use crate::kernel::fault::Fault;
use crate::kernel::undo::{Counts, PendingRelease, Proof, may_run_until};
use crate::majority::Member;
use crate::mutant::{Mutant, is_on};
use crate::protocol::answer::Answer;
use crate::quorum::lease::{Lease, LinkNo, RoundNo, Slot};
use crate::quorum::round::Link;
use crate::quorum::{Event, Quorum, Sent, Turn};

/// By how much the key of a member that joins lasts longer than the rest of its lease, at least.
const LEAST: Duration = Duration::from_millis(10);

/// The consequence of a join's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterJoin {
    Nothing,
    /// The key that it may have taken is released, until this proof.
    Undo(Proof),
    /// The member has refused it by another id of the lease: it is another one's server.
    IsSame,
}

impl Lease {
    /// A renewal has found the key at a member.
    pub(super) fn confirmed(&mut self, member: Member, number: u16, link: LinkNo) {
        if let Slot::Has(has, _) = self.slots[member]
            && has == number
        {
            self.slots[member] = Slot::Has(number, link);
        }
    }

    /// A renewal has found that a member does not have the key any more; `newest` is the newest
    /// round. Returns whether the member may join again.
    pub(super) fn emptied(
        &mut self,
        member: Member,
        number: u16,
        link: LinkNo,
        newest: RoundNo,
    ) -> bool {
        let Slot::Has(has, confirmed_by) = self.slots[member] else {
            return false;
        };
        if has != number {
            return false;
        }
        let may_join = confirmed_by != link || is_on(Mutant::DeletedIsHealed);
        self.slots[member] = if may_join {
            Slot::Empty(newest)
        } else {
            Slot::Closed
        };
        may_join
    }

    /// A message has announced that somebody else has released the key with this number.
    pub(super) fn deleted(&mut self, member: Member, number: u16) {
        if self.slots[member].number() == Some(number) && !is_on(Mutant::DeletedIsHealed) {
            self.slots[member] = Slot::Closed;
        }
    }

    /// Returns the members that join now that the others have confirmed the lease in this round,
    /// and under which numbers.
    pub(super) fn joins(
        &mut self,
        round: RoundNo,
        now: Instant,
        is_up: impl Fn(Member) -> bool,
    ) -> Vec<(Member, u16)> {
        let mut joins = Vec::new();
        if !self.is_valid(now) {
            return joins;
        }
        for member in 0..self.slots.len() {
            let Slot::Empty(since) = self.slots[member] else {
                continue;
            };
            // A key that is gone since this round may have been deleted at the others, too.
            let is_new = since >= round && !is_on(Mutant::HealsBeforeTheOthers);
            if is_new || self.next_number > MOST_NUMBERS || !is_up(member) {
                continue;
            }
            let number = if is_on(Mutant::JoinTakesTheOldId) {
                0
            } else {
                self.next_number
            };
            self.next_number += 1;
            self.slots[member] = Slot::Asked(number, since);
            joins.push((member, number));
        }
        joins
    }

    /// Returns the command by which a member joins.
    pub(super) fn join(&self, id: &HolderId, number: u16, ttl: Duration) -> Command {
        let token = if is_on(Mutant::JoinBringsTheFirstToken) {
            1
        } else {
            self.last_token
        };
        let what = What::Acquire {
            id: id.numbered(number),
            ttl,
            tokens: 1,
            attempt: Attempt::Join(token),
        };
        Command::new(&self.lock, what)
    }

    /// Applies the end of a join. `is_pending` is whether the id that refused it is being released
    /// at this member.
    fn joined(
        &mut self,
        (member, number): (Member, u16),
        end: Result<Answer, Fault>,
        (link, now): (LinkNo, Instant),
        is_pending: impl Fn(&[u8]) -> bool,
        id: &HolderId,
    ) -> AfterJoin {
        let is_valid = self.is_valid(now) || is_on(Mutant::LateJoinRevives);
        let since = match self.slots[member] {
            Slot::Asked(asked, since) if asked == number => since,
            // Its release is behind it.
            _ => RoundNo::MAX,
        };
        let (slot, after) = match end {
            Ok(Answer::Granted(_)) if is_valid => (Slot::Has(number, link), AfterJoin::Nothing),
            Ok(Answer::Granted(_)) => (Slot::Empty(since), AfterJoin::Undo(Proof::AnyAnswer)),
            Ok(Answer::Refused(by))
                if is_same_holder(&by.holder, id.as_str().as_bytes())
                    && !is_pending(&by.holder) =>
            {
                if is_on(Mutant::OwnIdJoins) {
                    (Slot::Has(number, link), AfterJoin::Nothing)
                } else {
                    (Slot::Closed, AfterJoin::IsSame)
                }
            }
            Ok(Answer::Refused(_) | Answer::TooLow(_)) | Err(Fault::NotRun(_) | Fault::Open(_)) => {
                (Slot::Empty(since), AfterJoin::Nothing)
            }
            // An error reply: what it may have taken is released.
            Err(Fault::Rejected(_) | Fault::NotReplicated(_)) => {
                (Slot::Empty(since), AfterJoin::Undo(Proof::AnyAnswer))
            }
            Ok(_) | Err(Fault::Unknown(_)) => (Slot::Empty(since), AfterJoin::Undo(Proof::KeySeen)),
        };
        if since < RoundNo::MAX {
            self.slots[member] = slot;
        }
        let has_taken_nothing = after == AfterJoin::Nothing && !matches!(slot, Slot::Has(..));
        if has_taken_nothing && number + 1 == self.next_number {
            self.next_number = number;
        }
        after
    }
}

impl Quorum {
    /// A renewal was won: members that have lost the key join again, or the lease is renewed at
    /// once for those that have lost it just now.
    pub(super) fn heal(&mut self, no: RoundNo, turn: &mut Turn<'_>) {
        let round = &self.rounds[&no];
        let (What::Renew { ttl, .. } | What::Downgrade { ttl, .. }) = round.command.what else {
            return;
        };
        let (id, wanted_by) = (round.id.clone(), round.command.wanted_by);
        let Some(lease) = self.leases.change(&id) else {
            return;
        };
        let is_up = |member| turn.members.link(member, wanted_by) == Link::Up;
        for (member, number) in lease.joins(no, turn.now, is_up) {
            let Some(lease) = self.leases.of(&id) else {
                return;
            };
            // A check asks for a ttl that the keys have anyway. With this one, the key lasts for as
            // long as the lease by a clock that is up to a tenth faster.
            let left = turn.now.until(lease.valid_until);
            let command = lease.join(&id, number, ttl.max(left + left / 9 + LEAST));
            let join = Sent::Join(id.clone(), member, number, turn.now);
            self.send(member, command, join, turn);
        }
        self.renew_what_was_lost(no, turn);
    }

    /// A member has lost the key of a lease that was renewed: it joins in the next renewal.
    pub(super) fn renew_what_was_lost(&mut self, no: RoundNo, turn: &mut Turn<'_>) {
        let Some(round) = self
            .rounds
            .get_mut(&no)
            .filter(|it| it.is_over && it.has_lost)
        else {
            return;
        };
        round.has_lost = false;
        if (self.leases.of(&round.id)).is_some_and(|lease| lease.is_valid(turn.now)) {
            let lock = Arc::clone(&round.command.lock);
            turn.events.push(Event::Doubt(lock, round.id.clone()));
        }
    }

    /// Applies the end of a join.
    pub(super) fn joined(
        &mut self,
        (id, member, number, sent): (&HolderId, Member, u16, Instant),
        (end, link): (Result<Answer, Fault>, LinkNo),
        turn: &mut Turn<'_>,
    ) {
        let (now, left) = (turn.now, &self.left);
        let is_pending = |holder: &[u8]| left.had_since(member, holder, sent);
        let Some(lease) = self.leases.change(id) else {
            return;
        };
        let after = lease.joined((member, number), end, (link, now), is_pending, id);
        let has_joined = lease.slots[member] == Slot::Has(number, link);
        let (lock, until) = (Arc::clone(&lease.lock), may_run_until(lease.longest(), now));
        match after {
            AfterJoin::Nothing => {}
            AfterJoin::IsSame => turn.members.ran_twice(&lock),
            AfterJoin::Undo(ends_by) => {
                let release = PendingRelease::new(&lock, &id.numbered(number), until, ends_by);
                if ends_by == Proof::KeySeen {
                    self.push_unknown(member, release, now);
                } else {
                    let release = release.counting(Counts::Nothing);
                    self.left.push_ended(member, release, now);
                }
            }
        }
        if has_joined && is_on(Mutant::JoinVotesAtOnce) {
            let open = |no: &RoundNo| self.rounds[no].changes_lease() && self.rounds[no].id == *id;
            if let Some(no) = self.open.iter().copied().find(open)
                && let Some(round) = self.rounds.get_mut(&no)
            {
                round.votes.count(Some(Answer::Ours));
                self.judge(no, false, false, turn);
            }
        }
    }

    /// A member has announced that the key with this id was released there by somebody else.
    pub(crate) fn deleted(&mut self, member: Member, id: &HolderId) {
        if let Some(lease) = self.leases.change(&id.base()) {
            lease.deleted(member, id.number());
        }
    }
}
