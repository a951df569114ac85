//! The leases over a quorum: what each has at each member, and until when it counts.
//!
//! ```text
//! a member: Empty ◀──refused, not sent── Asked ──granted──▶ Has ──found released──▶ Released
//!             ▲                            └──no reply──▶ Unknown                  or Empty
//!             └──a release found nothing── Has, Unknown
//! ```

use std::collections::HashMap;
use std::time::Duration;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::kernel::undo::Proof;
use crate::majority::Member;

/// What a member has of a lease, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// Nothing, and no command will change that.
    Empty,
    /// The acquiring command was sent, and has no reply yet.
    Asked,
    Has,
    /// The acquiring command may have run, or may run later.
    Unknown,
    /// It had the key, and has released it.
    Released,
}

impl Slot {
    /// Returns the reply that ends a release there; `None` if there is nothing to release.
    pub(super) fn ends_by(self) -> Option<Proof> {
        match self {
            Self::Empty | Self::Released => None,
            Self::Unknown => Some(Proof::KeySeen),
            Self::Has | Self::Asked => Some(Proof::AnyAnswer),
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
    pub(super) slots: Box<[Slot]>,
    /// Until when it is certainly held, unless it is over.
    pub(super) valid_until: Instant,
    /// It is being released, or was lost.
    pub(super) is_over: bool,
    /// The longest ttl of its commands.
    longest: Duration,
    /// When its keys have expired, although nobody has released it.
    forget_at: Instant,
}

impl Lease {
    /// Returns for how long its keys may exist if no release arrives. A delayed command may run
    /// just before a key expires, and set its longest ttl once more.
    pub(super) fn may_last(&self) -> Duration {
        self.longest.saturating_mul(2)
    }

    /// A command gives its keys this ttl, and may last until then.
    pub(super) fn prolong(&mut self, ttl: Duration, forget_at: Instant) {
        self.longest = self.longest.max(ttl);
        self.forget_at = self.forget_at.max(forget_at);
    }

    /// A release has ended at a member. One that found nothing says nothing of a command that may
    /// run later.
    pub(super) fn released_at(&mut self, member: Member, was_there: bool) {
        let slot = &mut self.slots[member];
        if was_there {
            *slot = Slot::Released;
        } else if *slot == Slot::Has {
            *slot = Slot::Empty;
        }
    }

    /// Returns whether no member has anything of it.
    pub(super) fn is_gone(&self) -> bool {
        let mut slots = self.slots.iter();
        slots.all(|slot| matches!(slot, Slot::Empty | Slot::Released))
    }
}

impl Leases {
    pub(super) fn insert(
        &mut self,
        id: &HolderId,
        slots: Box<[Slot]>,
        ttl: Duration,
        valid_until: Instant,
        [now, forget_at]: [Instant; 2],
    ) {
        if self.leases.len() >= 2 * self.left.max(FEW) {
            self.leases.retain(|_, lease| lease.forget_at > now);
            self.left = self.leases.len();
        }
        let lease = Lease {
            slots,
            valid_until,
            is_over: false,
            longest: ttl,
            forget_at,
        };
        self.leases.insert(id.clone(), lease);
    }

    pub(super) fn of(&self, id: &HolderId) -> Option<&Lease> {
        self.leases.get(id)
    }

    pub(super) fn change(&mut self, id: &HolderId) -> Option<&mut Lease> {
        self.leases.get_mut(id)
    }

    pub(super) fn remove(&mut self, id: &HolderId) {
        self.leases.remove(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_whose_keys_have_expired_are_forgotten() {
        let at = |ms| Instant::START.after(Duration::from_millis(ms));
        let id = |n: u64| {
            let text = format!("o:00000000-0000-4000-8000-{n:012x}");
            HolderId::parse(text.as_bytes()).unwrap()
        };
        let mut leases = Leases::default();
        let ttl = Duration::from_millis(50);
        for n in 0..10_000 {
            let times = [at(n), at(n + 100)];
            leases.insert(&id(n), Box::new([Slot::Has]), ttl, at(n + 50), times);
            let renewed = leases.change(&id(0)).expect("it is renewed");
            renewed.prolong(ttl, at(n + 100));
            let young = id(n.saturating_sub(99));
            assert!(leases.of(&young).is_some(), "its key may last");
            assert!(leases.leases.len() <= 2 * 101 + 1);
        }
    }
}
