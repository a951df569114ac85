//! The calls of this client that wait in the queue of one lock in Redis. No I/O, no clock.
//!
//! Calls that also wait in a local queue share one place. Otherwise each call has its own place. If
//! the call with the shared place leaves without the lock, the place stays in the queue, and the
//! next call takes it over.
//!
//! The states of a waiter:
//!
//! ```text
//! join --> no place --- begin_entering --> entering --- note_entered --> waiting <--+
//!            ^  ^                             |                          |  |  |    |
//!            |  +-- forget_id (got no place) -+                          |  |  +----+
//!            |                                                           |  | refreshed:
//!            +--- refreshed: no longer in the queue ---------------------+  | still waiting
//!            |                                                              |
//!            +--- taken -------- granted <--- message, or refreshed --------+
//! ```
//!
//! A call takes a grant with `position`. If it ends before it reads its position, it uses
//! `take_grant`.
//!
//! A grant message can arrive while the call is entering. It counts once the reply has confirmed
//! the place. `begin_entering` fails if another call has taken the shared place. The call that
//! wanted to enter then stays without one.
//!
//! A shared place passes from one call to the next, together with a grant that it has received:
//!
//! ```text
//! waiting under Backoff --- take_over by a call under Wake ------------------+
//!                                                                            v
//! waiting or granted --- hand_over, others wait --> left --- take_over --> waiting or granted
//!                                                    |
//!                                                    +--- nobody waits: leaves the queue
//! ```
//!
//! One refresh at a time covers all waiters of a name.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::parker::Parker;
use crate::protocol::place::{Refreshed, TokenBlock};
use crate::protocol::primitive::Primitive;
use crate::queue::answers::Answers;
use crate::queue::position::{Grant, Position, next_attempt};
use crate::wait_policy::Backoff;

/// The least time from a command to the refresh that the expiry of the lock makes due.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);

/// The longest sleep of the other calls while one call's refresh is in flight.
const MAX_REFRESH_WAIT: Duration = Duration::from_secs(1);

/// The calls that wait for one name, in order of arrival.
#[derive(Debug)]
pub(super) struct NamePlaces {
    pub(super) keys: Arc<dyn Primitive>,
    pub(super) waiters: Vec<PlaceWaiter>,
    calls_share_a_place: bool,
    /// The place that a call has left to the others.
    pub(super) left: Option<PlaceWaiter>,
    /// The serial of the waiter that is refreshing the places of all.
    refreshing: Option<u64>,
    /// No refresh before this instant: the last one got no reply.
    pub(super) no_refresh_before: Instant,
    /// A refresh is due at once: the lock may be free, or a grant message may have been missed.
    refresh_now: bool,
    pub(super) answers: Answers,
}

/// A waiting call, or the place that a call has left to the others.
#[derive(Debug)]
pub(super) struct PlaceWaiter {
    /// Identifies the call, which may use several holder ids in succession.
    pub(super) serial: u64,
    /// The id of the call's place, from the moment when it begins to enter.
    pub(super) id: Option<HolderId>,
    pub(super) parker: Parker,
    /// The sending time of the last command whose reply said that the call waits. Any grant is
    /// newer.
    ///
    /// `None` until the first reply.
    pub(super) seen_waiting: Option<Instant>,
    /// When the next refresh is due.
    due: Instant,
    /// When a refresh is due because of the last plain release. The reply to a command that ran
    /// before does not change this.
    after_plain: Instant,
    pub(super) pace: RefreshPace,
    /// How often the place must be refreshed. The call that entered the queue chose this, and a
    /// call that takes the place over keeps it.
    refresh_every: Duration,
    pub(super) granted: Option<TokenBlock>,
    pub(super) refusals: u32,
    /// False once no reply to a refresh could arrive before the call's deadline.
    refreshes: bool,
    /// When the call's current sleep ends if nothing wakes it.
    sleeps_until: Instant,
}

/// The interval between refreshes of a waiter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RefreshPace {
    pub(crate) every: Duration,
    /// `Some` if the call receives no grant messages.
    pub(crate) backoff: Option<Backoff>,
}

/// A reply that says that a call must wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitingReply {
    /// When its command was sent.
    pub(crate) sent: Instant,
    pub(crate) arrived: Instant,
    /// Whether grant messages reach this client, as far as is known.
    pub(crate) is_listening: bool,
}

impl RefreshPace {
    /// Returns when to refresh a place after a reply. The lock is held for `remaining` longer;
    /// `None` if its key does not expire.
    pub(super) fn next(
        self,
        reply: WaitingReply,
        remaining: Option<Duration>,
        refusals: u32,
    ) -> Instant {
        if let Some(backoff) = self.backoff {
            let pause = backoff.pause(refusals.saturating_sub(1));
            return reply.sent.after(self.every.min(pause));
        }
        let pause = match reply.is_listening {
            true => self.every,
            // No message announces a grant: only a refresh finds it.
            false => self.every / 4,
        };
        let earliest = reply.sent.after(SHORTEST_PAUSE);
        let regular = reply.sent.after(pause);
        next_attempt(regular, reply.arrived, remaining, earliest)
    }
}

impl PlaceWaiter {
    /// Records a reply that says that the call must wait.
    pub(super) fn refused(&mut self, reply: WaitingReply, remaining: Option<Duration>) {
        self.seen_waiting = self.seen_waiting.max(Some(reply.sent));
        self.refusals = self.refusals.saturating_add(1);
        let pace = RefreshPace {
            every: self.refresh_every,
            ..self.pace
        };
        self.due = pace.next(reply, remaining, self.refusals);
    }

    /// Returns the grant to the call, if it has one and a reply has confirmed its place.
    pub(super) fn grant(&self) -> Option<Grant> {
        Some(Grant {
            id: self.id.clone()?,
            tokens: self.granted?,
            seen_waiting: self.seen_waiting?,
            refresh_every: self.refresh_every,
        })
    }

    fn due(&self) -> Instant {
        self.due.min(self.after_plain)
    }

    /// Returns whether the call has a place in Redis and no grant yet.
    fn waits(&self) -> bool {
        self.id.is_some() && self.seen_waiting.is_some() && self.granted.is_none()
    }

    /// Returns a waiter without a place in Redis.
    pub(super) fn new(serial: u64, parker: Parker, pace: RefreshPace) -> Self {
        Self {
            serial,
            id: None,
            parker,
            seen_waiting: None,
            due: Instant::NEVER,
            after_plain: Instant::NEVER,
            pace,
            refresh_every: pace.every,
            granted: None,
            refusals: 0,
            refreshes: true,
            sleeps_until: Instant::START,
        }
    }

    /// Makes the call wait under `id`; `None` if it has no place any more. Returns the previous id,
    /// to which a grant no longer counts.
    pub(super) fn wait_under(&mut self, id: Option<HolderId>) -> Option<HolderId> {
        self.seen_waiting = None;
        self.granted = None;
        self.after_plain = Instant::NEVER;
        self.refresh_every = self.pace.every;
        std::mem::replace(&mut self.id, id)
    }

    /// Takes over the place of another call, and a grant to it.
    fn take_over(&mut self, from: &mut Self) {
        self.wait_under(from.id.take());
        self.seen_waiting = from.seen_waiting.take();
        self.granted = from.granted.take();
        self.refresh_every = from.refresh_every;
        self.due = from.due;
        self.after_plain = from.after_plain;
    }

    /// Gives up the place, and a grant to it. Returns them for another call to take over.
    fn give_up_place(&mut self) -> Self {
        let mut place = Self::new(self.serial, self.parker.clone(), self.pace);
        place.take_over(self);
        place
    }

    /// Records a grant; returns false if it is not the first.
    pub(super) fn note_grant(&mut self, tokens: TokenBlock) -> bool {
        if self.granted.is_some() {
            return false;
        }
        self.granted = Some(tokens);
        true
    }
}

impl NamePlaces {
    pub(super) fn new(keys: &Arc<dyn Primitive>) -> Self {
        Self {
            keys: Arc::clone(keys),
            waiters: Vec::new(),
            // A lock with places has a queue in Redis. With a local queue, too, its calls share one
            // place.
            calls_share_a_place: keys.has_local_queue(),
            left: None,
            refreshing: None,
            no_refresh_before: Instant::START,
            refresh_now: false,
            answers: Answers::default(),
        }
    }

    pub(super) fn waiter(&mut self, serial: u64) -> &mut PlaceWaiter {
        let mut waiters = self.waiters.iter_mut();
        waiters
            .find(|waiter| waiter.serial == serial)
            .expect("only dropping the ticket removes its waiter")
    }

    /// Returns the waiter with this id, or the place with this id that a call has left to the
    /// others.
    pub(super) fn with_id(&mut self, id: &HolderId) -> Option<&mut PlaceWaiter> {
        let mut all = self.waiters.iter_mut().chain(&mut self.left);
        all.find(|waiter| waiter.id.as_ref() == Some(id))
    }

    /// Returns whether any call has a place, or is entering.
    pub(super) fn has_place(&self) -> bool {
        let mut all = self.waiters.iter().chain(&self.left);
        all.any(|waiter| waiter.id.is_some())
    }

    /// Returns whether the calls share a place, and a call other than this waiter has it, is
    /// entering, or has left it.
    pub(super) fn is_taken_by_other(&self, serial: u64) -> bool {
        let others = self.waiters.iter().filter(|it| it.serial != serial);
        self.calls_share_a_place && others.chain(&self.left).any(|other| other.id.is_some())
    }

    /// Gives the shared place to the waiter if a call has left it.
    ///
    /// A call under `WaitPolicy::Backoff` sleeps through its pauses and must not delay the others.
    /// So a waiter under `Wake` also takes the place from such a call.
    fn take_shared(&mut self, serial: u64) {
        let mut from = self.left.take();
        let has_place_under_backoff = |waiter: &&mut PlaceWaiter| {
            waiter.serial != serial && waiter.waits() && waiter.pace.backoff.is_some()
        };
        if from.is_none() && self.waiter(serial).pace.backoff.is_none() {
            let owner = self.waiters.iter_mut().find(has_place_under_backoff);
            from = owner.map(PlaceWaiter::give_up_place);
        }
        let Some(mut from) = from else {
            return;
        };
        let waiter = self.waiter(serial);
        waiter.take_over(&mut from);
        if waiter.pace.backoff.is_none() && from.pace.backoff.is_some() && waiter.waits() {
            // The place may have no inbox: a new refresh gives it one. One that is already in
            // flight may not.
            self.refresh_now = true;
        }
    }

    /// Leaves the shared place of the waiter to the other calls if `others_wait`.
    ///
    /// Otherwise returns the id with which the caller must leave the queue: that of the waiter, or
    /// that of the place which an earlier call has left.
    pub(super) fn hand_over(&mut self, serial: u64, others_wait: bool) -> Option<HolderId> {
        let has_place = self.waiter(serial).seen_waiting.is_some();
        if !self.calls_share_a_place || !others_wait || !has_place {
            let left = self.left.take_if(|_| !others_wait);
            let own = self.waiter(serial).wait_under(None);
            return own.or_else(|| left?.id);
        }
        self.left = Some(self.waiter(serial).give_up_place());
        self.refreshing = self.refreshing.filter(|refreshing| *refreshing != serial);
        self.wake_without_place(serial);
        None
    }

    /// Wakes the calls without a place, except the one with this serial. They can take over the
    /// shared place, or enter if no call has it.
    pub(super) fn wake_without_place(&self, serial: u64) {
        if self.calls_share_a_place {
            let waiters = self.waiters.iter();
            let without = waiters.filter(|it| it.id.is_none() && it.serial != serial);
            without.for_each(|waiter| waiter.parker.unpark());
        }
    }

    /// Makes a refresh due at `at` because of a plain release. Since the one before, the lock was
    /// held again.
    pub(super) fn refresh_after_plain(&mut self, at: Instant) {
        let all = self.waiters.iter_mut().chain(&mut self.left);
        for waiter in all.filter(|waiter| waiter.id.is_some()) {
            waiter.after_plain = at;
            if at < waiter.sleeps_until {
                waiter.parker.unpark();
            }
        }
    }

    pub(super) fn remove(&mut self, serial: u64) {
        self.waiters.retain(|waiter| waiter.serial != serial);
        // The call may have panicked during its refresh.
        self.refreshing = self.refreshing.filter(|refreshing| *refreshing != serial);
        self.wake_one_to_refresh();
        self.wake_one_that_oversleeps();
    }

    /// Wakes a waiter if all of them sleep beyond the next refresh: the waiter that has left would
    /// have run it.
    fn wake_one_that_oversleeps(&self) {
        let sleepers = || self.waiters.iter().filter(|it| it.waits() && it.refreshes);
        let Some(first) = sleepers().min_by_key(|waiter| waiter.due()) else {
            return;
        };
        if self.refreshing.is_none() && sleepers().all(|waiter| waiter.sleeps_until > first.due()) {
            first.parker.unpark();
        }
    }

    /// Returns what the waiter must do at `now`.
    pub(super) fn position(&mut self, serial: u64, now: Instant) -> Position {
        if self.calls_share_a_place && self.waiter(serial).id.is_none() {
            self.take_shared(serial);
            if self.waiter(serial).id.is_none() && self.has_place() {
                return Position::Behind;
            }
        }
        let position = self.next_position(serial, now);
        if let Position::Placed(until) = position {
            self.waiter(serial).sleeps_until = until;
        }
        position
    }

    fn next_position(&mut self, serial: u64, now: Instant) -> Position {
        let no_refresh_before = self.no_refresh_before;
        let is_due_at_once = self.refresh_now;
        let waiter = self.waiter(serial);
        if let Some(grant) = waiter.grant() {
            return Position::Granted(grant);
        }
        if !waiter.waits() {
            return Position::Contend;
        }
        if !waiter.refreshes {
            return Position::Placed(Instant::NEVER);
        }
        let every = waiter.refresh_every;
        let due = if is_due_at_once { now } else { waiter.due() };
        let due = due.max(no_refresh_before);
        if due > now {
            return Position::Placed(due);
        }
        if self.refreshing.is_some() {
            // When that refresh ends, it wakes a waiter if another one is due.
            return Position::Placed(now.after(MAX_REFRESH_WAIT.min(every)));
        }
        self.refreshing = Some(serial);
        self.refresh_now = false;
        let waiting = self.waiters.iter_mut().filter(|waiter| waiter.waits());
        let ids = waiting.filter_map(|waiter| {
            waiter.after_plain = Instant::NEVER;
            waiter.id.clone()
        });
        Position::Refresh(ids.collect())
    }

    /// Makes a refresh due at once.
    pub(super) fn refresh_now(&mut self) {
        if self.calls_share_a_place && !self.has_place() {
            // There is no place to refresh. The calls try the lock before one of them enters.
            return;
        }
        self.refresh_now = true;
        self.wake_one_to_refresh();
    }

    /// Wakes one waiter to run a refresh that is due.
    fn wake_one_to_refresh(&self) {
        if self.refresh_now
            && self.refreshing.is_none()
            && let mut waiters = self.waiters.iter()
            && let Some(first) = waiters.find(|waiter| waiter.waits() && waiter.refreshes)
        {
            first.parker.unpark();
        }
    }

    /// Records the replies to a refresh of `ids`.
    ///
    /// Returns the ids whose places are gone.
    pub(super) fn note_refreshed(
        &mut self,
        ids: &[HolderId],
        answers: &[Refreshed],
        reply: WaitingReply,
    ) -> Vec<HolderId> {
        self.refreshing = None;
        self.no_refresh_before = Instant::START;
        let answers: HashMap<_, _> = ids.iter().zip(answers).collect();
        let (mut gone, mut without_place) = (Vec::new(), None);
        // Skips a waiter that has received a grant or has changed its id in the meantime.
        for waiter in self.waiters.iter_mut().filter(|waiter| waiter.waits()) {
            match waiter.id.as_ref().and_then(|id| answers.get(id)) {
                Some(Refreshed::Waiting(remaining)) => waiter.refused(reply, *remaining),
                Some(Refreshed::Granted(token)) => {
                    waiter.note_grant(TokenBlock::one(*token));
                    waiter.parker.unpark();
                }
                Some(Refreshed::Gone) => {
                    gone.extend(waiter.wait_under(None));
                    waiter.parker.unpark();
                    without_place = Some(waiter.serial);
                }
                None => {}
            }
        }
        if let Some(serial) = without_place {
            self.wake_without_place(serial);
        }
        self.wake_one_to_refresh();
        gone
    }

    /// Passes a refresh that is due on to another waiter: no reply to this call could arrive before
    /// its deadline.
    pub(super) fn pass_refresh_on(&mut self, serial: u64) {
        self.waiter(serial).refreshes = false;
        self.note_not_refreshed(Instant::START);
        self.wake_one_to_refresh();
    }

    /// Records that a refresh failed; none is due again before `no_refresh_before`.
    pub(super) fn note_not_refreshed(&mut self, no_refresh_before: Instant) {
        self.refreshing = None;
        self.no_refresh_before = no_refresh_before;
        self.refresh_now = true;
    }
}
