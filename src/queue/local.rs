//! The names that this client holds or waits for, each with its local queue. No I/O.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::lease::handoff::NoHandoff;
use crate::lease::held::{HeldLease, Holding};
use crate::name::{Name, NameTable};
use crate::protocol::place::{Next, TokenBlock};
use crate::protocol::primitive::Primitive;
use crate::queue::answers::LastRefusal;
use crate::queue::local_queue::{Announcer, FleetYield, LocalQueue};
use crate::queue::places::Places;
use crate::queue::sets::SetQueue;
use crate::random;
use crate::sync::Mutex;
use crate::token::FencingToken;

/// How long no client asks for the lock after a plain release, so that other programs can acquire
/// it.
const FREE_FOR: Duration = Duration::from_millis(2);

/// The client that must ask first after a plain release may have died. So the others refresh their
/// places, too, from this time after its message on: each at a random moment of the next 20 ms, or
/// of 4 ms for each client that waits. So five of them do so in the first 20 ms, however many wait.
const OTHERS_AFTER: Duration = Duration::from_millis(20);
const OTHERS_WITHIN: Duration = Duration::from_millis(20);
const FOR_EACH: Duration = Duration::from_millis(4);

/// The names that this client holds or waits for.
///
/// Two waiters of a name send commands to Redis:
///
/// * the first in the queue,
/// * the contender, which release messages wake: the first waiter under
///   [`WaitPolicy::Wake`](crate::WaitPolicy), or the first in the queue if there is none.
///
/// Usually one waiter is both. They differ if the first waits under `Backoff`: it sleeps through
/// its pauses, and must not delay those behind it. Any other waiter sleeps until it becomes one of
/// the two, or until shortly before its deadline, when it may send a command, too.
///
/// If some of the waiters share a place in Redis and others do not, the first and the contender
/// among those that share it send commands, too.
///
/// Waking a busy waiter takes effect at its next sleep, so no wake-up is lost between an attempt
/// and the sleep after it.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    pub(super) names: Mutex<NameTable<LocalQueue>>,
    /// The places of calls that have one each.
    pub(crate) own_places: Places,
    /// The waiters for sets of names; each has a place in one queue in Redis at a time.
    pub(crate) sets: SetQueue,
    /// The places that the calls of a local queue share: at most one for each name.
    pub(crate) shared_places: Places,
}

impl Waiters {
    /// Returns whether the calling thread acquired the lease that holds `name`.
    ///
    /// Always false in release builds, which do not record the thread.
    pub(crate) fn is_held_by_us(&self, name: &Name) -> bool {
        self.has_queue(name, |queue| queue.held.is_held_by_us())
    }

    /// Hands a lease off at `now` to the first waiter for its name; returns the [`Holding`]
    /// of the previous holder.
    ///
    /// Only the holder with `token` can do so.
    pub(crate) fn hand_off(
        &self,
        hold: &Arc<HeldLease>,
        token: FencingToken,
        has_renewed: bool,
        now: Instant,
    ) -> Result<Holding, NoHandoff> {
        let mut names = self.names.lock();
        let queue = names.get_mut(hold.keys.key(0).name);
        let queue = queue.ok_or(NoHandoff::Release)?;
        let (before, parker) = queue.hand_off(hold, token, has_renewed, now)?;
        // Outside the lock: the waiter needs no reply from Redis and continues at once.
        drop(names);
        if let Some(parker) = parker {
            parker.unpark();
        }
        Ok(before)
    }

    /// Returns whether any call waits for the name.
    pub(crate) fn anybody_for(&self, name: &Name) -> bool {
        self.has_queue(name, |queue| !queue.waiters.is_empty())
    }

    /// Returns the last refusal of the name, if a call of this client waits for it.
    pub(crate) fn last_refusal(&self, name: &Name) -> Option<LastRefusal> {
        let names = self.names.lock();
        names.get(name)?.answers().last_refusal().cloned()
    }

    /// Returns whether any call waits for the name that shares a place in Redis with others.
    pub(crate) fn anybody_shares_place(&self, name: &Name) -> bool {
        self.has_queue(name, LocalQueue::anybody_shares_place)
    }

    /// Returns whether the name has a queue for which `test` is true.
    fn has_queue(&self, name: &Name, test: impl FnOnce(&LocalQueue) -> bool) -> bool {
        self.names.lock().get(name).is_some_and(test)
    }

    /// Returns a lease of this client that makes Redis refuse the name to another lease,
    /// `is_shared` or not, if there is one.
    ///
    /// Never one of a semaphore, which may have permits for further calls.
    pub(crate) fn excludes(&self, name: &Name, is_shared: bool) -> Option<Arc<HeldLease>> {
        let hold = self
            .names
            .lock()
            .get(name)?
            .held
            .excludes(is_shared)?
            .clone();
        // Upgraded and dropped outside the lock: the lease may own a user's closure.
        hold.upgrade()
    }

    /// Records that this client now holds the names of `hold`.
    ///
    /// Returns the leases that this evicts; see `HeldLeases::insert`.
    pub(crate) fn granted(&self, hold: &Arc<HeldLease>) -> Vec<Weak<HeldLease>> {
        let keys = &hold.keys;
        let before = keys.names.iter().flat_map(|name| {
            let mut names = self.names.lock();
            let queue = match names.get_mut(name) {
                Some(queue) => queue,
                None => names
                    .entry(name.clone())
                    .or_insert_with(|| LocalQueue::with_capacity(keys.capacity())),
            };
            queue.granted(hold.id.clone(), Arc::downgrade(hold), hold.is_shared())
        });
        before.collect()
    }

    /// Records that `hold` shares its names from now on.
    pub(crate) fn share(&self, hold: &HeldLease) {
        let mut names = self.names.lock();
        for name in hold.keys.names.iter() {
            if let Some(queue) = names.get_mut(name) {
                queue.share(&hold.id);
            }
        }
    }

    /// Makes other clients go first when `hold` ends, after a run of hand-offs.
    pub(crate) fn yield_to_fleet(&self, hold: &HeldLease) {
        if let Some(queue) = self.names.lock().get_mut(hold.keys.key(0).name) {
            queue.fleet_yield = FleetYield::Due;
        }
    }

    /// Records that a lease has ended, and wakes waiters of each of its names to try Redis.
    ///
    /// `released` is when a release confirmed that it was held until then.
    pub(crate) fn ended(&self, hold: &HeldLease, released: Option<Instant>) {
        for name in hold.keys.names.iter() {
            self.ended_one(name, &hold.id, released);
        }
    }

    fn ended_one(&self, name: &Name, id: &HolderId, released: Option<Instant>) {
        let mut names = self.names.lock();
        let Some(queue) = names.get_mut(name) else {
            return;
        };
        queue.ended(id, released);
        if queue.is_idle() {
            names.remove(name);
        }
    }

    /// Handles a release message.
    ///
    /// Returns the lease if the message names one that this client still holds: the lease may be
    /// lost, so Redis must be asked about it.
    pub(crate) fn announced(
        &self,
        name: &Name,
        payload: &[u8],
        announcer: Announcer,
    ) -> Option<Weak<HeldLease>> {
        // The release of a fair lock is announced only if no call was granted it, so the lock is
        // free.
        self.own_places.refresh_now(name);
        self.sets.ask_now(name);
        let has_place = self.shared_places.refresh_now(name);
        self.note_message(name, payload, announcer, has_place)
    }

    /// Handles a message that the lock is free. If it names a lease, returns that lease if this
    /// client still holds it.
    ///
    /// If this client `has_place`, the call with that place asks for all calls that share it.
    fn note_message(
        &self,
        name: &Name,
        payload: &[u8],
        announcer: Announcer,
        has_place: bool,
    ) -> Option<Weak<HeldLease>> {
        let mut names = self.names.lock();
        let queue = names.get_mut(name)?;
        let held = queue.held.find(payload).cloned();
        if held.is_none() && !(has_place && queue.contender_shares_place()) {
            queue.announced(payload, announcer);
        }
        held
    }

    /// Returns the places for a kind of lock.
    pub(crate) fn places_of(&self, keys: &Arc<dyn Primitive>) -> &Places {
        match keys.has_local_queue() {
            true => &self.shared_places,
            false => &self.own_places,
        }
    }

    /// Records that Redis has granted the lock to `id`; ignored if no call waits under it.
    pub(crate) fn granted_by_message(&self, id: &HolderId, tokens: TokenBlock) {
        self.own_places.granted(id, tokens);
        self.shared_places.granted(id, tokens);
        self.sets.granted(id);
    }

    /// Records a plain release of this client at `now`: its calls do not ask for the lock at once.
    pub(crate) fn note_plain_release(&self, name: &Name, now: Instant) {
        self.shared_places.note_contended(name, now.after(FREE_FOR));
    }

    /// Handles the message of a plain release: the lock is free, and the client of one place must
    /// ask for it before the others.
    ///
    /// Returns what [`announced`](Self::announced) does.
    pub(crate) fn announced_plain(
        &self,
        name: &Name,
        payload: &[u8],
        next: &Next,
        announcer: Announcer,
        now: Instant,
    ) -> Option<Weak<HeldLease>> {
        let first_at = now.after(FREE_FOR);
        let within = OTHERS_WITHIN.max(FOR_EACH * next.waiting);
        let others_at = now.after(OTHERS_AFTER + within.mul_f64(random::chance()));
        self.shared_places.note_contended(name, first_at);
        for places in [&self.shared_places, &self.own_places] {
            places.refresh_in_turn(name, &next.first, first_at, others_at);
        }
        self.sets
            .ask_in_turn(name, &next.first, first_at, others_at);
        let has_place = self.shared_places.shared(name).is_taken;
        // Wakes a contender that neither has nor shares a place. If it can share one, it first
        // sleeps until `first_at`.
        self.note_message(name, payload, announcer, has_place)
    }

    /// Wakes the waiters that ask Redis for the name: this client may have missed messages.
    pub(crate) fn wake_to_retry(&self, name: &Name) {
        self.own_places.refresh_now(name);
        self.sets.ask_now(name);
        let has_place = self.shared_places.refresh_now(name);
        if let Some(queue) = self.names.lock().get_mut(name)
            && !(has_place && queue.contender_shares_place())
        {
            queue.wake_contender();
        }
    }

    /// Wakes the waiters of the name that send commands to Redis.
    pub(crate) fn wake_active(&self, name: &Name) {
        if let Some(queue) = self.names.lock().get_mut(name) {
            queue.wake_active();
        }
    }

    /// Returns the names that any call waits for.
    pub(crate) fn waiting(&self) -> Vec<Name> {
        let mut waiting = self.own_places.names();
        waiting.extend(self.sets.names());
        let names = self.names.lock();
        let plain = names.iter().filter(|(_, queue)| !queue.waiters.is_empty());
        waiting.extend(plain.map(|(name, _)| name.clone()));
        waiting
    }

    /// Returns whether any call waits.
    #[cfg(test)]
    pub(crate) fn anybody(&self) -> bool {
        let names = self.names.lock();
        names.values().any(|queue| !queue.waiters.is_empty())
            || self.own_places.anybody()
            || self.sets.anybody()
    }

    /// Returns whether no name has an entry.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.names.lock().is_empty()
    }

    /// Wakes all waiters; returns how many.
    pub(crate) fn wake_all(&self) -> usize {
        let placed = self.own_places.wake_all() + self.sets.wake_all();
        let mut names = self.names.lock();
        let waiters = names.values_mut().flat_map(|queue| &mut queue.waiters);
        let queued = waiters.map(|waiter| waiter.wake()).count();
        drop(names);
        // Last, and not counted: their calls wait in the local queues, too. A call that is woken
        // may leave its queue before it is counted.
        self.shared_places.wake_all();
        queued + placed
    }

    /// Returns how many leases this client holds, a set's once for each of its names, and how many
    /// of its calls sleep for a name.
    pub(crate) fn count(&self) -> (u64, u64) {
        let names = self.names.lock();
        let held: usize = names.values().map(|queue| queue.held.len()).sum();
        let waiters = names.values().flat_map(|queue| &queue.waiters);
        let asleep = waiters.filter(|waiter| waiter.parker.is_some());
        let asleep = asleep.count() + self.own_places.count() + self.sets.count();
        (held as u64, asleep as u64)
    }
}

#[cfg(test)]
mod tests;
