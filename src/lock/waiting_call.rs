//! A call that waits: the queues in which it waits, and its subscription.

use std::cell::Cell;
use std::time::Duration;

use crate::clock::Instant;
use crate::error::Error;
use crate::lock::attempt::{Attempt, SPLIT_VOTE_BACKOFF};
use crate::lock::place::{Place, leave};
use crate::lock::release::pass_on_unclaimed;
use crate::lock::set_place::SetPlace;
use crate::logging;
use crate::name::Name;
use crate::parker::Parker;
use crate::protocol::keys::Key;
use crate::queue::answers::Answers;
use crate::queue::local_ticket::QueueTicket;
use crate::queue::places::SharedPlace;
use crate::queue::position::{Position, Queue};
use crate::runtime::subscriber::subscription::Subscription;
use crate::wait_policy::WaitPolicy;

/// A call waiting for a lock.
///
/// A call for several names waits in the queue of one of them at a time: the name that was refused.
pub(crate) struct WaitingCall<'a> {
    pub(crate) attempt: &'a Attempt<'a>,
    /// Index of the name in whose queue the call waits.
    pub(crate) name_index: usize,
    /// `None` if each call of this client has its own place in Redis.
    pub(crate) local: Option<QueueTicket<'a>>,
    /// `None` if the lock has no queue in Redis, or if the call has not joined it yet.
    pub(crate) place: Option<Place<'a>>,
    /// `None` unless the lock has several names with queues in Redis.
    pub(crate) set_place: Option<SetPlace<'a>>,
    /// The calls of this client share a place in Redis.
    pub(crate) shares_place: bool,
    subscription: Option<Subscription<'a>>,
    /// How often Redis refused this call, without the refusals that `place` counts.
    pub(crate) refusals: u32,
    /// Refusals in a row that each named another name than the one before.
    moves: u32,
    /// Split votes in a row.
    pub(crate) splits: u32,
    /// When the first of these was asked.
    pub(crate) split_since: Option<Instant>,
    /// How long the last reply took.
    pub(crate) last_reply_took: Duration,
    /// The call has made a refresh of the shared place due early, for its deadline.
    pub(crate) has_refreshed_early: bool,
    /// The call has waited for another holder; this was logged, or need not be.
    pub(crate) has_waited: bool,
    /// The call was woken, and it is not known yet whether it gets the lock now.
    pub(crate) was_woken: Cell<bool>,
}

impl<'a> WaitingCall<'a> {
    pub(crate) fn new(attempt: &'a Attempt<'a>) -> Self {
        let mut call = Self {
            attempt,
            name_index: 0,
            local: None,
            place: None,
            set_place: (attempt.keys.set_queues()).map(|queues| SetPlace::new(attempt, queues)),
            shares_place: false,
            subscription: None,
            refusals: 0,
            moves: 0,
            splits: 0,
            split_since: None,
            last_reply_took: Duration::ZERO,
            has_refreshed_early: false,
            has_waited: false,
            was_woken: Cell::new(false),
        };
        let has_local_queue = call.set_place.is_none() && attempt.keys.has_local_queue();
        if has_local_queue {
            // If this client holds one of the names, Redis would refuse that name.
            call.name_index = attempt.held_here().unwrap_or(0);
            call.join_local_queue(attempt.terms.handoffs > 0);
        }
        match &call.local {
            Some(local) if attempt.keys.calls_share_a_place() => {
                local.share_place();
                call.shares_place = true;
            }
            Some(_) => {}
            None => call.join_queue(),
        }
        call
    }

    /// The key of the name in whose queue the call waits.
    fn key(&self) -> Key<'a> {
        self.attempt.keys.key(self.name_index)
    }

    /// The name in whose queue the call waits.
    pub(crate) fn name(&self) -> &'a Name {
        self.key().name
    }

    /// Joins the local queue of the current name; leaves the one before it.
    fn join_local_queue(&mut self, takes_hand_offs: bool) {
        let attempt = self.attempt;
        self.local = Some(attempt.runtime.waiters.join(
            self.name(),
            takes_hand_offs.then_some(attempt.terms),
            attempt.settings.wait == WaitPolicy::Wake,
        ));
    }

    /// Removes from the queue in Redis a place that an earlier call of this client has left, unless
    /// a call waits that can take it over. A call for a set in several slots cannot.
    fn leave_last_place(&self, name_index: usize) {
        let Attempt { runtime, keys, .. } = self.attempt;
        let name = keys.key(name_index).name;
        if keys.has_local_queue()
            && !runtime.waiters.anybody_shares_place(name)
            && let Some((keys, id)) = runtime.waiters.shared_places.take_left(name)
        {
            leave(self.attempt, &keys, id);
        }
    }

    /// Returns what this client knows about the name, if its calls share a place in Redis.
    pub(crate) fn shared(&self) -> Option<SharedPlace> {
        let shared_places = &self.attempt.runtime.waiters.shared_places;
        (self.shares_place).then(|| shared_places.shared(self.name()))
    }

    /// Joins the calls of this client that share a place in Redis, if it is time for that. Returns
    /// whether it did.
    ///
    /// Usually the first attempt of a call acquires the lock if it is free, and otherwise takes no
    /// place. It is time to join if
    ///
    /// * the call was refused before,
    /// * this client has a place, or
    /// * under `Wake`: others wanted the lock a moment before `now`.
    ///
    /// It is not time while this client has a lease that excludes all others.
    pub(crate) fn join_queue_if_due(&mut self, shared: SharedPlace, now: Instant) -> bool {
        let is_time = shared.is_taken
            || self.refusals > 0
            || self.attempt.settings.wait == WaitPolicy::Wake && shared.is_contended(now);
        if self.place.is_some() || !is_time || self.attempt.is_held_alone() {
            return false;
        }
        self.join_queue();
        self.place.is_some()
    }

    fn join_queue(&mut self) {
        if let Some(queue_keys) = self.attempt.keys.queue() {
            let parker = self.local.as_ref().map(QueueTicket::parker);
            let parker = parker.map_or_else(Parker::new, Parker::clone);
            self.place = Some(Place::new(self.attempt, queue_keys, parker));
        }
    }

    /// Leaves the place in Redis to another call of this client, if `others_share` it. Otherwise
    /// leaves the queue there.
    fn end_place(&mut self, others_share: bool) {
        if let Some(place) = self.place.take() {
            place.end(others_share);
        }
    }

    /// The queues that the call waits in, in the order in which they decide.
    pub(crate) fn queues(&self) -> impl Iterator<Item = &dyn Queue> {
        let local = self.local.as_ref().map(|ticket| ticket as &dyn Queue);
        let place = self.place.as_ref().map(|place| &place.ticket as &dyn Queue);
        let set = self.set_place.as_ref();
        let set = set.map(|place| &place.ticket as &dyn Queue);
        local.into_iter().chain(place).chain(set)
    }

    /// The first queue, whose answers count at the deadline. All have the same parker.
    pub(crate) fn queue(&self) -> &dyn Queue {
        let mut queues = self.queues();
        queues.next().expect("every call joined one in `new`")
    }

    pub(crate) fn position(&self, now: Instant, must_try: bool) -> Position {
        if let (Some(local), Some(place)) = (&self.local, &self.place)
            && place.ticket.has_place()
        {
            // The place counts even if other calls of this client are now ahead, or hold a lease
            // that was lost.
            return match local.position(now, must_try) {
                Position::HandedOff => Position::HandedOff,
                _ => place.ticket.position(now, must_try),
            };
        }
        let mut positions = self.queues().map(|queue| queue.position(now, must_try));
        let decides = positions.find(|position| *position != Position::Contend);
        decides.unwrap_or(Position::Contend)
    }

    /// Joins the queue of the name that was refused; returns false if the call is in it already.
    pub(crate) fn move_to_queue_of(&mut self, name: usize) -> bool {
        if name == self.name_index {
            self.moves = 0;
            return false;
        }
        self.moves = self.moves.saturating_add(1);
        let before = std::mem::replace(&mut self.name_index, name);
        self.subscription = None;
        if self.set_place.is_some() {
            return true;
        }
        self.update_answers(Answers::answered);
        // Leaving the old queue wakes the next waiter there, which then tries Redis.
        self.join_local_queue(false);
        self.leave_last_place(before);
        true
    }

    /// Pauses before the next attempt if the refused name keeps changing.
    ///
    /// In a cluster, callers that undo a partly acquired set take and release its names in turn.
    /// Without a pause they would send this waiter from one queue to another without end.
    pub(crate) fn back_off_after_move(&self) {
        let moves = self.moves - u32::from(!self.attempt.keys.is_split());
        if moves > 0 {
            self.park(SPLIT_VOTE_BACKOFF.pause(moves - 1));
        }
    }

    /// Subscribes to releases and grants of the current name, if the policy is `Wake`.
    ///
    /// Returns the subscription, or `None` under `Backoff`. Once it is live, the waiter is woken:
    /// earlier messages did not arrive.
    pub(crate) fn ensure_subscribed(&mut self) -> Result<Option<&Subscription<'a>>, Error> {
        let runtime = self.attempt.runtime;
        // After a failover, the subscription to the previous server is useless.
        let current = self.subscription.as_ref();
        if !current.is_some_and(|current| current.is_current(&runtime.deployment))
            && self.attempt.settings.wait == WaitPolicy::Wake
        {
            self.subscription = match runtime.subscribe(self.key()) {
                // Without a thread for it, the call asks again after pauses.
                Err(Error::Thread { .. } | Error::Shortage { .. }) => None,
                subscription => Some(subscription?),
            };
        }
        Ok(self.subscription.as_ref())
    }

    /// Logs, once, that this call waits.
    pub(crate) fn log_waiting_once(&mut self, remaining: Option<Duration>) {
        if std::mem::replace(&mut self.has_waited, true) {
            return;
        }
        self.attempt.log_refused("waiting", remaining);
        let name = self.name();
        if cfg!(debug_assertions) && self.attempt.runtime.waiters.is_held_by_us(name) {
            logging::warn!(
                name:% = name;
                "this thread waits for {name}, which it locked itself: locks are not reentrant"
            );
        }
    }
}

/// Passes a lease that was handed to this call, and that it has not taken, to the next waiter.
impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        let had_place = self.place.is_some();
        // First: the call that comes next in the local queue takes over the place.
        self.end_place((self.local.as_ref()).is_some_and(QueueTicket::others_share_place));
        if let Some(handed) = self.local.as_ref().and_then(QueueTicket::leave) {
            pass_on_unclaimed(self.attempt.runtime, &handed);
        }
        self.leave_last_place(self.name_index);
        let waiters = &self.attempt.runtime.waiters;
        if had_place && waiters.shared_places.is_left(self.name()) {
            // The next call may be in a pause of its backoff. If it was the first in the queue
            // already, the end of this call has not woken it.
            waiters.wake_active(self.name());
        }
    }
}
