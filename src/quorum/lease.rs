//! The leases over a quorum: under which id each member has the key, and until when it counts.
//!
//! ```text
//!          no reply: its undo is pending there         a renewal finds it gone, and the connection
//!        ┌────────────────────────────────────┐        that confirmed it last has ended since
//!        ▼                                    │              ┌──────────────────────────┐
//!      Empty ──acquire, join: the next number─▶ Asked ──granted──▶ Has ─────────────────┼──▶ Empty
//!        ▲                                    │                   │ │ gone, and it has not
//!        └──refused, not sent─────────────────┘                   │ └──────────────────▶ Closed
//!                                                                 └──released──────────▶ Released
//! ```
//!
//! A member whose slot is empty is joined in a renewal (`heal.rs`); one whose slot is closed never
//! is: somebody has deleted the key there.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::majority::Member;
use crate::mutant::{Mutant, is_on};
use crate::protocol::answer::Answer;
use crate::protocol::primitive::Primitive;

/// The number of a round. A later one is higher.
pub(crate) type RoundNo = u64;

/// The number of a connection to a member, from 1. A later one is higher.
pub(crate) type LinkNo = u64;

/// No connection has confirmed the key.
pub(super) const NO_LINK: LinkNo = 0;

/// The part of a lease at one member, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// Nothing. This was the newest round when that became known.
    Empty(RoundNo),
    /// A command that may take the key under the id with this number was sent, and has no reply
    /// yet. The slot was empty since that round.
    Asked(u16, RoundNo),
    /// The key has the id with this number, as the last reply over this connection said.
    Has(u16, LinkNo),
    /// It had the key, and has released it.
    Released,
    /// Nothing, and somebody has deleted it there.
    Closed,
}

impl Slot {
    /// Returns the number of the id that may have the key.
    pub(super) fn number(self) -> Option<u16> {
        match self {
            Self::Asked(number, _) | Self::Has(number, _) => Some(number),
            Self::Empty(_) | Self::Released | Self::Closed => None,
        }
    }
}

/// How many leases are known at least before old ones are looked for.
const FEW: usize = 64;

/// The leases that were granted, until they are released.
#[derive(Debug, Default)]
pub(super) struct Leases {
    leases: HashMap<HolderId, Lease>,
    /// How many were left when old ones were last looked for.
    left: usize,
}

#[derive(Debug)]
pub(super) struct Lease {
    pub(super) lock: Arc<dyn Primitive>,
    pub(super) slots: Box<[Slot]>,
    /// The values of other holders that renewals have found in place of its keys.
    pub(super) foreign: Vec<(Member, Vec<u8>)>,
    /// The last token of its block.
    pub(super) last_token: u64,
    /// The number of the next id.
    pub(super) next_number: u16,
    /// Until when it is held, unless it is over, as far as its commands say. The kernel may know of
    /// an earlier end.
    pub(super) valid_until: Instant,
    /// It is being released, or was lost.
    pub(super) is_over: bool,
    /// The longest ttl of its commands.
    longest: Duration,
    /// When its keys have expired, although nobody has released it.
    forget_at: Instant,
}

impl Lease {
    pub(super) fn new(
        lock: &Arc<dyn Primitive>,
        slots: Box<[Slot]>,
        last_token: u64,
        ttl: Duration,
        [valid_until, forget_at]: [Instant; 2],
    ) -> Self {
        Self {
            lock: Arc::clone(lock),
            slots,
            foreign: Vec::new(),
            last_token,
            next_number: 1,
            valid_until,
            is_over: false,
            longest: ttl,
            forget_at,
        }
    }

    /// A majority has confirmed it, until then at least. A check asks for a ttl that the keys have
    /// anyway: only a command that `may_shorten` ends a lease earlier.
    pub(super) fn set_end(&mut self, end: Instant, may_shorten: bool) {
        if may_shorten {
            self.valid_until = end;
        } else {
            self.valid_until = self.valid_until.max(end);
        }
    }

    /// Returns whether it is certainly held at `now`.
    pub(super) fn is_valid(&self, now: Instant) -> bool {
        !self.is_over && now < self.valid_until
    }

    /// Returns what a renewal would find at a member that has nothing of it, as far as is known.
    pub(super) fn missing(&self, member: Member) -> Option<Answer> {
        let mut foreign = self.foreign.iter().rev();
        match (foreign.find(|(at, _)| *at == member), self.slots[member]) {
            (Some((_, value)), _) => Some(Answer::Foreign(value.clone())),
            (None, Slot::Empty(_)) => None,
            (None, _) => Some(Answer::Gone),
        }
    }

    /// Returns for how long its keys may exist if no release arrives. A delayed command may run
    /// just before a key expires, and set its longest ttl once more.
    pub(super) fn may_last(&self) -> Duration {
        self.longest.saturating_mul(2)
    }

    /// Returns its longest ttl.
    pub(super) fn longest(&self) -> Duration {
        self.longest
    }

    /// A command gives its keys this ttl, and may last until then.
    pub(super) fn prolong(&mut self, ttl: Duration, forget_at: Instant) {
        self.longest = self.longest.max(ttl);
        self.forget_at = self.forget_at.max(forget_at);
    }

    /// A release of the id with this number has ended at a member.
    pub(super) fn released_at(&mut self, member: Member, number: u16, was_there: bool) {
        let slot = &mut self.slots[member];
        if slot.number() != Some(number) && !is_on(Mutant::LateVoteOfAnotherId) {
            return;
        }
        if was_there {
            *slot = Slot::Released;
        } else if let Slot::Has(..) = slot {
            *slot = Slot::Closed;
        }
    }

    /// Returns whether no member has anything of it.
    fn is_gone(&self) -> bool {
        self.slots.iter().all(|slot| slot.number().is_none())
    }
}

impl Leases {
    pub(super) fn insert(&mut self, id: &HolderId, lease: Lease, now: Instant) {
        if self.leases.len() >= 2 * self.left.max(FEW) {
            let is_kept = |lease: &Lease| {
                if is_on(Mutant::LeaseIsForgottenEarly) {
                    lease.valid_until > now
                } else {
                    lease.forget_at > now
                }
            };
            self.leases.retain(|_, lease| is_kept(lease));
            self.left = self.leases.len();
        }
        self.leases.insert(id.clone(), lease);
    }

    pub(super) fn of(&self, id: &HolderId) -> Option<&Lease> {
        self.leases.get(id)
    }

    pub(super) fn change(&mut self, id: &HolderId) -> Option<&mut Lease> {
        self.leases.get_mut(id)
    }

    /// Removes a lease that is over, if no member has anything of it.
    pub(super) fn remove_released(&mut self, id: &HolderId) {
        if (self.of(id)).is_some_and(|lease| lease.is_over && lease.is_gone()) {
            self.leases.remove(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::keys::Keys;
    use crate::protocol::mutex::MutexKeys;

    #[test]
    fn leases_whose_keys_have_expired_are_forgotten() {
        let at = |ms| Instant::START.after(Duration::from_millis(ms));
        let id = |n: u64| {
            let text = format!("o:00000000-0000-4000-8000-{n:09x}000");
            HolderId::parse(text.as_bytes()).unwrap()
        };
        let lock = MutexKeys::of(Keys::new("a".into(), "lock:", "lock_release:"));
        let mut leases = Leases::default();
        let ttl = Duration::from_millis(50);
        for n in 0..10_000 {
            let slots = Box::new([Slot::Has(0, 0)]);
            let lease = Lease::new(&lock, slots, n, ttl, [at(n + 50), at(n + 100)]);
            leases.insert(&id(n), lease, at(n));
            let renewed = leases.change(&id(0)).expect("it is renewed");
            renewed.prolong(ttl, at(n + 100));
            let young = id(n.saturating_sub(99));
            assert!(leases.of(&young).is_some(), "its key may last");
            assert!(leases.leases.len() <= 2 * 101 + 1);
        }
    }
}
