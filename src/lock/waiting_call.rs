//! A call that waits: the queues it waits in, how long it sleeps, and what it knows at its
//! deadline.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Instant, nap};
use crate::error::Error;
use crate::lease::held::HeldLease;
use crate::lock::attempt::{Attempt, SPLIT_VOTE_BACKOFF};
use crate::lock::place::{Place, leave};
use crate::lock::release::pass_on_unclaimed;
use crate::lock::set_place::SetPlace;
use crate::logging;
use crate::name::Name;
use crate::queue::answers::{Answers, Span};
use crate::queue::fair::SharedPlace;
use crate::queue::local::QueueTicket;
use crate::queue::parker::Parker;
use crate::queue::position::{Position, Queue};
use crate::redis::Fault;
use crate::runtime::subscriber::subscription::Subscription;
use crate::stats::Wake;
use crate::wait_policy::{Backoff, WaitPolicy, jittered};

/// Pauses between attempts of a waiter whose subscription is not live yet.
const UNSUBSCRIBED_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(50), Duration::from_secs(1));

/// How a sleep ended.
pub(crate) enum SleepEnd {
    /// With a wake-up: the position has changed.
    Woken,
    /// Without one, for this reason: the call tries Redis even if this client holds the name.
    TimedOut(Option<Wake>),
}

/// The end of a wait, with the outcome of the call. As an `Err`, so that `?` ends the wait.
pub(crate) struct Over(pub(crate) Result<Option<Arc<HeldLease>>, Error>);

impl From<Error> for Over {
    fn from(error: Error) -> Self {
        Self(Err(error))
    }
}

/// A call waiting for a lock.
///
/// A call for several names waits in the queue of one of them at a time: the name that was refused.
pub(crate) struct WaitingCall<'a> {
    pub(crate) attempt: &'a Attempt<'a>,
    /// Index of the name in whose queue the call waits.
    name_index: usize,
    /// `None` if each call of this client has its own place in Redis.
    pub(crate) local: Option<QueueTicket<'a>>,
    /// `None` if the lock has no queue in Redis, or if the call has not joined it yet.
    pub(crate) place: Option<Place<'a>>,
    /// `None` unless the lock has several names with queues in Redis.
    pub(crate) set_place: Option<SetPlace<'a>>,
    /// The calls of this client share a place in Redis.
    pub(crate) shares_place: bool,
    subscription: Option<Subscription<'a>>,
    /// Refusals by Redis in this call that gave it no place.
    pub(crate) refusals: u32,
    /// Refusals in a row that each named another name than the one before.
    moves: u32,
    /// Split votes in a row.
    pub(crate) splits: u32,
    /// How long the last reply took.
    last_reply_took: Duration,
    /// The call has made a refresh of its place due early, for its deadline.
    pub(crate) has_hurried: bool,
    /// The call has waited for another holder; this was logged, or need not be.
    pub(crate) has_waited: bool,
    /// A counted wake-up led to the current attempt; a refusal makes it a spurious one.
    pub(crate) was_woken: bool,
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
            last_reply_took: Duration::ZERO,
            has_hurried: false,
            has_waited: false,
            was_woken: false,
        };
        let has_local_queue = call.set_place.is_none() && attempt.keys.has_local_queue();
        if has_local_queue {
            // If this client holds one of the names, Redis would refuse that name.
            call.name_index = attempt.held_here().unwrap_or(0);
            call.join_local_queue(attempt.terms.handoffs > 0);
        }
        match has_local_queue {
            true => call.set_shares_place(attempt.keys.queue().is_some()),
            false => call.join_queue(),
        }
        call
    }

    /// Joins the local queue of the current name; leaves the one before it.
    fn join_local_queue(&mut self, takes_hand_offs: bool) {
        let attempt = self.attempt;
        self.local = Some(attempt.runtime.waiters.join(
            attempt.keys.key(self.name_index).name,
            takes_hand_offs.then_some(attempt.terms),
            attempt.settings.wait == WaitPolicy::Wake,
        ));
    }

    /// Leaves the queue in Redis with the place of an earlier call of this client, if no other call
    /// waits that could take it over.
    fn leave_last_place(&self, name_index: usize) {
        let Attempt { runtime, keys, .. } = self.attempt;
        let name = keys.key(name_index).name;
        if keys.has_local_queue()
            && !runtime.waiters.anybody_for(name)
            && let Some((keys, id)) = runtime.waiters.cohorts.take_left(name)
        {
            leave(self.attempt, &keys, id);
        }
    }

    fn set_shares_place(&mut self, shares_place: bool) {
        self.shares_place = shares_place;
        if let Some(local) = &self.local {
            local.set_shares_place(shares_place);
        }
    }

    /// Returns what this client knows about the name, if its calls share a place in Redis.
    pub(crate) fn shared(&self) -> Option<SharedPlace> {
        let Attempt { runtime, keys, .. } = self.attempt;
        let name = keys.key(self.name_index).name;
        (self.shares_place).then(|| runtime.waiters.cohorts.shared(name))
    }

    /// Joins the calls of this client that share a place in Redis, if it is time for that. Returns
    /// true if it did.
    ///
    /// The first attempt of a call takes a free lock only. A call that is refused joins, and one
    /// whose client has a place, or was refused a moment before `now` and is still subscribed.
    pub(crate) fn joins_queue(&mut self, shared: SharedPlace, now: Instant) -> bool {
        let Attempt { runtime, keys, .. } = self.attempt;
        let was_refused = || {
            shared.was_refused(now)
                && self.attempt.settings.wait == WaitPolicy::Wake
                && runtime
                    .endpoints
                    .subscribed(keys.key(self.name_index).channel)
                    > 0
        };
        let is_time = shared.is_taken || self.refusals > 0 || was_refused();
        if self.place.is_some() || !is_time || self.attempt.held_here().is_some() {
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

    /// Returns the name if another call of this client has a place in its queue.
    pub(crate) fn name_with_place(&self) -> Option<&'a Name> {
        let shared = self.shared()?;
        let name = self.attempt.keys.key(self.name_index).name;
        shared.is_taken.then_some(name)
    }

    /// Gives up the place in Redis if `error` says that this client's user may have none. Returns
    /// whether the call then goes on without it.
    pub(crate) fn forgoes_queue(&mut self, error: &Error) -> bool {
        if !error.lacks_right() || !self.attempt.keys.forgo_queue() {
            return false;
        }
        logging::warn!(
            name:% = self.attempt.keys;
            "this client waits for releases instead of in queues in Redis: {error}"
        );
        self.place = None;
        self.set_shares_place(false);
        if self.set_place.take().is_some() {
            self.join_local_queue(false);
        }
        true
    }

    /// The queues that the call waits in, in the order in which they decide.
    fn queues(&self) -> impl Iterator<Item = &dyn Queue> {
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
            // The place counts even if other calls of this client are ahead by now, or hold a lease
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
        let Attempt { runtime, keys, .. } = self.attempt;
        // After a failover, the subscription to the previous server is useless.
        let current = self.subscription.as_ref();
        if !current.is_some_and(|current| current.is_current(&runtime.deployment))
            && self.attempt.settings.wait == WaitPolicy::Wake
        {
            let until = self.attempt.silence.reply_deadline();
            self.subscription = Some(runtime.subscribe(keys.key(self.name_index), until)?);
        }
        Ok(self.subscription.as_ref())
    }

    /// How many replies said that the lock is held, or that other calls are ahead.
    pub(crate) fn refusals(&self) -> u32 {
        let place = self.place.as_ref();
        let by_place = place.map_or(0, |place| place.ticket.refusals());
        self.refusals.saturating_add(by_place)
    }

    /// Returns whether the policy allows no more attempts.
    pub(crate) fn is_used_up(&self) -> bool {
        let limit = match self.attempt.settings.wait {
            WaitPolicy::Wake => None,
            WaitPolicy::Backoff(backoff) => backoff.limit(),
        };
        limit.is_some_and(|limit| self.refusals() >= limit)
    }

    /// Returns whether this call may report at its deadline that another holder has the name.
    pub(crate) fn is_taken(&self) -> bool {
        // In this order: the end of a lease held here is recorded as a refusal first.
        self.attempt.held_here().is_some() || self.queue().answers().is_taken(self.span())
    }

    /// Returns the end of a call at its deadline, `now`, if others ask on its behalf.
    pub(crate) fn over_at_deadline(&self, now: Instant) -> Over {
        Over(match self.is_taken() {
            true => Ok(None),
            false => Err(self.attempt.silence.error_for_others(now)),
        })
    }

    /// Returns whether a further command could not be answered in time and none is needed.
    pub(crate) fn is_too_late(&self, now: Instant) -> bool {
        !self.span().has_time(now) && self.is_taken()
    }

    /// The time from the start of the call to its deadline.
    pub(crate) fn span(&self) -> Span {
        Span {
            start: self.attempt.start,
            deadline: self.attempt.deadline,
            last_reply_took: self.last_reply_took,
        }
    }

    /// Records what Redis said, for all calls of this client that wait with this one.
    pub(crate) fn update_answers(&self, mut act: impl FnMut(&mut Answers)) {
        self.queues()
            .for_each(|queue| queue.update_answers(&mut act));
    }

    /// Records that the call is about to ask Redis; returns whether other calls of this client wait
    /// behind it.
    pub(crate) fn about_to_try(&self, now: Instant) -> bool {
        let queues = self.queues();
        queues.fold(false, |others_wait, queue| {
            queue.about_to_try(now) | others_wait
        })
    }

    /// Records the refusal that arrived now to a command sent at `sent`.
    pub(crate) fn note_refusal(&mut self, sent: Instant, remaining: Option<Duration>) {
        let arrived = Instant::now();
        self.update_answers(|answers| answers.refused(sent, arrived, remaining));
        self.note_reply(sent, arrived);
        if self.shares_place {
            let name = self.attempt.keys.key(self.name_index).name;
            (self.attempt.runtime.waiters.cohorts).note_refused(name, arrived);
        }
    }

    /// Records the reply that arrived at `arrived` to a command sent at `sent`.
    pub(crate) fn note_reply(&mut self, sent: Instant, arrived: Instant) {
        self.attempt.silence.note_reply();
        self.last_reply_took = sent.until(arrived);
    }

    /// Records a command without a reply, and returns how long to pause.
    ///
    /// At the deadline an earlier refusal is a better outcome than the fault, if it still counts.
    pub(crate) fn pause_after(&self, fault: Fault) -> Result<Duration, Over> {
        let now = Instant::now();
        // A command with no time left is not sent: that says nothing about the server.
        let is_unsent = matches!(fault, Fault::NotRun(_)) && now >= self.attempt.deadline;
        let was_taken = is_unsent && self.is_taken();
        if !was_taken {
            self.update_answers(|answers| answers.failed(now));
        }
        self.attempt.silence.pause_after(fault).map_err(|error| {
            let is_at_deadline = Instant::now() >= self.attempt.deadline;
            let is_taken = || was_taken || is_at_deadline && self.is_taken();
            Over(match error {
                error if error.is_unreachable() && is_taken() => Ok(None),
                error => Err(error),
            })
        })
    }

    /// Logs, once, that this call waits.
    pub(crate) fn log_waiting_once(&mut self, remaining: Option<Duration>) {
        if std::mem::replace(&mut self.has_waited, true) {
            return;
        }
        self.attempt.log_refused("waiting", remaining);
        let name = self.attempt.keys.key(self.name_index).name;
        if cfg!(debug_assertions) && self.attempt.runtime.waiters.is_held_by_us(name) {
            logging::warn!(
                name:% = name;
                "this thread waits for {name}, which it locked itself: locks are not reentrant"
            );
        }
    }

    /// Counts the wake-up or the timeout that ended a sleep.
    pub(crate) fn count_wake(&mut self, end: SleepEnd) {
        let wake = match end {
            SleepEnd::Woken => self.queue().take_wake(),
            SleepEnd::TimedOut(wake) => wake,
        };
        self.was_woken = wake.is_some_and(|wake| self.attempt.runtime.meters.woke(wake));
    }

    /// Counts the last wake-up as spurious: another holder has the name.
    pub(crate) fn count_spurious_wake(&mut self) {
        if std::mem::take(&mut self.was_woken) {
            self.attempt.runtime.meters.counters.spurious_wakes.up();
        }
    }

    /// Sleeps after a refusal until woken, or until `latest` at most.
    pub(crate) fn sleep_after_refusal(
        &self,
        is_subscribed: bool,
        remaining: Option<Duration>,
        latest: Instant,
    ) -> SleepEnd {
        let (pause, timeout_wake) = self.pause_after_refusal(is_subscribed, remaining);
        let end = self.park_until(latest.min(Instant::now().after(pause)));
        self.attempt.silence.restart();
        match end {
            SleepEnd::Woken => SleepEnd::Woken,
            SleepEnd::TimedOut(_) => SleepEnd::TimedOut(Some(timeout_wake)),
        }
    }

    /// How long to sleep after a refusal without a wake-up, and the reason to record then.
    fn pause_after_refusal(
        &self,
        is_subscribed: bool,
        remaining: Option<Duration>,
    ) -> (Duration, Wake) {
        let backstop = self.attempt.runtime.config.backstop;
        let refusals = self.refusals.saturating_sub(1);
        let pause = match &self.attempt.settings.wait {
            WaitPolicy::Backoff(backoff) => return (backoff.pause(refusals), Wake::Backstop),
            WaitPolicy::Wake if is_subscribed => jittered(backstop),
            WaitPolicy::Wake => UNSUBSCRIBED_BACKOFF.pause(refusals).min(backstop),
        };
        // The expiry of a key is not announced. Redis rounds the remaining time down to whole ms.
        let rounded = |left: Duration| left.saturating_add(Duration::from_millis(1));
        match remaining.map(rounded) {
            Some(left) if left < pause => (left, Wake::Ttl),
            _ => (pause, Wake::Backstop),
        }
    }

    /// Sleeps while this call needs no reply of its own; fails if Redis was silent for too long.
    pub(crate) fn sleep_while_others_ask(
        &self,
        now: Instant,
        until: Instant,
    ) -> Result<SleepEnd, Over> {
        let silence = &self.attempt.silence;
        if silence.is_too_long(now) {
            return Err(silence.error_for_others(now).into());
        }
        Ok(self.sleep(until.min(silence.gives_up_at(now))))
    }

    /// Sleeps for `pause`, or until woken or the deadline.
    pub(crate) fn park(&self, pause: Duration) -> SleepEnd {
        self.park_until(Instant::now().after(pause))
    }

    /// Sleeps until `until`, or until woken or the deadline.
    pub(crate) fn park_until(&self, until: Instant) -> SleepEnd {
        let until = until.min(self.attempt.deadline);
        loop {
            let end = self.sleep(until);
            if matches!(end, SleepEnd::Woken)
                || Instant::now() >= until
                || self.attempt.runtime.is_closed()
            {
                return end;
            }
        }
    }

    /// Sleeps until `until`, or until woken or the deadline, but no longer than the clock allows.
    fn sleep(&self, until: Instant) -> SleepEnd {
        // Not from the start of the turn, which may be long ago: the sleep would end too late.
        let pause = nap(Instant::now(), until.min(self.attempt.deadline));
        match self.queue().parker().park_timeout(pause) {
            true => SleepEnd::Woken,
            false => SleepEnd::TimedOut(None),
        }
    }
}

/// However the wait ends, a lease that was handed to this call goes to the next waiter.
impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        // First: the call that comes next in the local queue takes over the place.
        self.place = None;
        if let Some(handed) = self.local.as_ref().and_then(QueueTicket::leave) {
            pass_on_unclaimed(self.attempt.runtime, &handed);
        }
        self.leave_last_place(self.name_index);
    }
}
