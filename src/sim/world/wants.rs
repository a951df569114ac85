//! The calls that the simulated programs choose: a kind of lock, a name, and terms.

use std::sync::Arc;
use std::time::Duration;

use super::{COMMAND_TIMEOUT, NEVER, World};
use crate::config::LeaseTerms;
use crate::kernel::holder::Holder;
use crate::kernel::waiter::CallTerms;
use crate::kernel::waiter::Wait;
use crate::name::Name;
use crate::protocol::cohort::CohortKeys;
use crate::protocol::fair::FairMutexKeys;
use crate::protocol::keys::{Keys, Layout};
use crate::protocol::mutex::MutexKeys;
use crate::protocol::primitive::Primitive;
use crate::protocol::rw_lock::RwLockKeys;
use crate::protocol::semaphore::SemaphoreKeys;
use crate::replicas::Replicas;
use crate::set::acquire::SetTerms;
use crate::set::names::SetNames;
use crate::sim::plan::{Family, Kind, Rng};
use crate::sim::server::{MS, Time};
use crate::wait_policy::{Backoff, WaitPolicy};

/// The terms of a call of a thread.
pub(super) enum Wants {
    One(CallTerms),
    Set(SetTerms),
}

/// Chooses how a call waits: once or not, until when, by which policy; for how long it may hold.
fn how_it_waits(rng: &mut Rng, share: u64, now: Time) -> (bool, Time, WaitPolicy, Duration) {
    let is_once = rng.chance(150);
    let deadline = match (is_once, rng.chance(300)) {
        (true, _) => now + COMMAND_TIMEOUT,
        (false, true) => now + rng.range(5 * MS, 3_000 * MS),
        (false, false) => NEVER,
    };
    let policy = if rng.chance(share) {
        let base = Duration::from_millis(rng.range(1, 40));
        let backoff = Backoff::new(base, base * 20);
        WaitPolicy::Backoff(if rng.chance(300) {
            backoff.attempts(rng.range(1, 6) as u32)
        } else {
            backoff
        })
    } else {
        WaitPolicy::Wake
    };
    let max_hold = if rng.chance(40) {
        Duration::from_millis(rng.range(5, 300))
    } else {
        Duration::MAX
    };
    (is_once, deadline, policy, max_hold)
}

impl World {
    pub(super) fn lock_of(&mut self, client: usize, name: u64, kind: Kind) -> Arc<dyn Primitive> {
        let tag = match kind {
            Kind::Mutex => 0,
            Kind::NoQueue => 1,
            Kind::Fair => 2,
            Kind::Reader => 3,
            Kind::Writer => 4,
            Kind::Permits(k) => 4 + k as u8,
            Kind::Set | Kind::PlainSet | Kind::SlotSet(_) => unreachable!("of several names"),
        };
        let locks = &mut self.clients[client].locks;
        let make = || -> Arc<dyn Primitive> {
            let keys = Keys::new(Name::from(format!("n{name}")), "lock:", "lock_release:");
            match kind {
                Kind::Mutex => CohortKeys::of(keys),
                Kind::NoQueue => MutexKeys::of(keys),
                Kind::Fair => FairMutexKeys::of(keys),
                Kind::Reader => Arc::new(RwLockKeys::of(keys, true)),
                Kind::Writer => Arc::new(RwLockKeys::of(keys, false)),
                Kind::Permits(k) => Arc::new(SemaphoreKeys::of(keys, 3, k)),
                Kind::Set | Kind::PlainSet | Kind::SlotSet(_) => unreachable!("as above"),
            }
        };
        let lock = Arc::clone(locks.entry((name, tag)).or_insert_with(make));
        self.names.insert(lock.key(0).name.clone());
        lock
    }

    /// Chooses the next call of a thread.
    pub(super) fn wants(&mut self, client: usize, thread: usize) -> Wants {
        let (kinds, names) = (self.plan.kinds.clone(), self.plan.names);
        let is_short = self.plan.family == Family::ShortTtl;
        let (ttl, handoffs, share) = (self.plan.ttl, self.plan.handoffs, self.plan.backoff);
        let caller = &mut self.clients[client].callers[thread];
        caller.ops -= 1;
        caller.is_cancelled = false;
        let rng = &mut caller.rng;
        let kind = kinds[rng.below(kinds.len() as u64) as usize];
        let name = match kind {
            // All but one of them, or all.
            Kind::Set | Kind::PlainSet | Kind::SlotSet(_) => {
                let all = (1 << names) - 1;
                let without = if names > 2 && rng.chance(600) {
                    1 << rng.below(names)
                } else {
                    0
                };
                all & !without
            }
            _ => rng.below(names),
        };
        let (is_once, deadline, policy, max_hold) = how_it_waits(rng, share, self.now);
        // Servers of a quorum have no replicas.
        let has_replicas = rng.chance(30) && self.plan.servers == 1;
        let replicas = has_replicas.then_some(Replicas {
            wanted: 1,
            within: Duration::from_millis(50),
        });
        let by_engine = rng.chance(250);
        let lingers = self.plan.linger > 0 && rng.chance(800);
        let renews = !rng.chance(if is_short { 300 } else { 80 });
        let odd_ttl = rng.chance(60);
        let ttl = if odd_ttl { ttl * 3 / 2 } else { ttl };
        let ttl = Duration::from_micros(ttl / MS * MS);
        let deadline = self.clocks[client].at(deadline);
        let wait = if is_once {
            Wait::Once
        } else {
            Wait::Queue(policy)
        };
        if kind.is_set() {
            let terms = LeaseTerms {
                ttl,
                renew_every: renews.then_some(ttl / 3),
                max_hold,
                replicas,
                handoffs: 0,
                linger: Duration::ZERO,
            };
            return Wants::Set(SetTerms {
                names: set_names(name, kind),
                terms,
                wait,
                deadline,
                holder: Holder::default(),
                by_engine: by_engine || self.plan.engine_sends(),
                side_by_side: self.plan.is_quorum(),
            });
        }
        let lock = self.lock_of(client, name, kind);
        let in_line = lock.has_local_queue();
        let linger = if lingers && in_line {
            Duration::from_micros(self.plan.linger)
        } else {
            Duration::ZERO
        };
        Wants::One(CallTerms {
            lock,
            terms: LeaseTerms {
                ttl,
                renew_every: renews.then_some(ttl / 3),
                max_hold,
                replicas,
                handoffs: if in_line { handoffs } else { 0 },
                linger,
            },
            wait,
            deadline,
            holder: Holder {
                handoffs: if in_line { handoffs } else { 0 },
                linger,
                ..Holder::default()
            },
            by_engine,
        })
    }
}

/// Returns the names whose bits are set.
fn set_names(names: u64, kind: Kind) -> Arc<SetNames> {
    let (layout, has_queues) = match kind {
        Kind::SlotSet(has_queues) => (Layout::Slots, has_queues),
        _ => (Layout::OneServer, kind == Kind::Set),
    };
    let names = (0..8).filter(|n| names >> n & 1 == 1);
    let names = names.map(|n| Name::from(format!("n{n}"))).collect();
    SetNames::of(names, "lock:", "lock_release:", layout, has_queues)
}
