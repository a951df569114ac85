//! Acquires a lock: checks the call, runs the wait loop, and counts the outcome.
//!
//! The wait loop with a local queue; a fair lock has its own in `fair_wait.rs`:
//!
//! ```text
//! join a queue --> position? <----- woken, or timed out before the deadline -----+
//!                     |                                                          |
//!   Behind -----------+-- sleep; shortly before the deadline, try Redis if the --+
//!                     |   replies to others do not suffice                       |
//!   HeldLocally ------+-- sleep until the holder wakes this call, or backstop ---+
//!                     |                                                          |
//!   Yield ------------+-- sleep for 1 ms, or until the release message ----------+
//!                     |                                                          |
//!   HandedOff --------+-- take the lease --> Acquired                            |
//!                     |   lost before that --------------------------------------+
//!                     |                                                          |
//!   Contend ----------+-- try Redis: granted --> Acquired                        |
//!                         refused: join that name's queue, sleep until a --------+
//!                         release, the end of the ttl or the backstop            |
//!                         split vote, or no reply: sleep for a backoff ----------+
//!
//! From any of them: --> None once the deadline has passed and the name is known to be taken
//!                   --> Err once Redis has been silent for too long, or after a shutdown
//! ```

use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Instant, nap};
use crate::config::Settings;
use crate::error::Error;
use crate::lease::held::HeldLease;
use crate::lock::attempt::{Attempt, Attempted, SPLIT_VOTE_BACKOFF};
use crate::lock::fair_wait::FairWait;
use crate::lock::release::pass_on_unclaimed;
use crate::lock::wait_state::WaitState;
use crate::protocol::keys::Keys;
use crate::queue::answers::Answers;
use crate::queue::local::{Position, QueueTicket, TakeOver};
use crate::redis::Fault;
use crate::runtime::Runtime;
use crate::stats::Wake;
use crate::wait_policy::{Backoff, WaitPolicy, jittered};

/// How long a call waits for a lock that is held.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitLimit {
    /// Does not wait.
    None,
    Until(Instant),
    /// Waits without a deadline.
    Endless,
}

/// Pauses between attempts of a waiter whose subscription is not live yet.
const UNSUBSCRIBED_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(50), Duration::from_secs(1));

/// How long the first waiter lets other clients go first after a run of hand-offs.
///
/// Longer than a pub/sub message takes. The yield ends early when this client receives the release
/// message, since the other clients receive it at the same time.
const FLEET_YIELD: Duration = Duration::from_millis(1);

/// Acquires the lock, waiting within `limit`.
///
/// Returns `None` only by the rule of
/// [`Answers::is_taken`](crate::queue::answers::Answers::is_taken), or while this client holds the
/// lock.
pub(crate) fn acquire(
    runtime: &Arc<Runtime>,
    keys: &Arc<Keys>,
    settings: &Settings,
    limit: WaitLimit,
) -> Result<Option<Arc<HeldLease>>, Error> {
    let start = Instant::now();
    let mut has_waited = false;
    let outcome = take(runtime, keys, settings, limit, start, &mut has_waited);
    let counters = &runtime.meters.counters;
    match (&outcome, limit) {
        (Ok(Some(hold)), _) => {
            runtime.begin_stats(hold.keys.key(0));
            let since = hold.since().unwrap_or(start);
            runtime.meters.acquired(has_waited, start.until(since));
        }
        (Ok(None), WaitLimit::Until(deadline)) if Instant::now() >= deadline => {
            counters.timed_out.up();
        }
        (Ok(None) | Err(Error::AttemptsUsedUp { .. }), _) => counters.refused.up(),
        (Err(_), _) => counters.failed.up(),
    }
    outcome
}

/// Acquires the lock without counting the outcome.
///
/// Sets `has_waited` if the call waited for another holder.
fn take(
    runtime: &Arc<Runtime>,
    keys: &Arc<Keys>,
    settings: &Settings,
    limit: WaitLimit,
    start: Instant,
    has_waited: &mut bool,
) -> Result<Option<Arc<HeldLease>>, Error> {
    keys.check()?;
    runtime.deployment.check(keys)?;
    let terms = settings.terms(&runtime.config)?;
    runtime.deployment.check_terms(&terms)?;
    runtime.check_open()?;
    runtime.start()?;
    if settings.on_lost.is_some() || settings.on_renew.is_some() {
        runtime.callbacks.start()?;
    }
    let attempt = Attempt::new(runtime, keys, settings, terms, start);
    let deadline = match limit {
        WaitLimit::None => {
            let name = keys.key(0).name;
            attempt.others_wait.set(runtime.waiters.anybody_for(name));
            return at_once(&attempt);
        }
        WaitLimit::Until(deadline) => deadline,
        WaitLimit::Endless => Instant::NEVER,
    };
    let (hold, attempts) = match keys.queue() {
        Some(line) => {
            let mut wait = FairWait::new(&attempt, line, deadline);
            let hold = wait.run()?;
            *has_waited = wait.state.has_waited;
            (hold, wait.refusals())
        }
        None => {
            let mut wait = LocalWait::new(&attempt, deadline);
            let hold = wait.run()?;
            *has_waited = wait.state.has_waited;
            (hold, wait.refusals)
        }
    };
    match (hold, limit) {
        // Without a deadline, only the attempt limit of the policy ends a wait.
        (None, WaitLimit::Endless) => Err(Error::AttemptsUsedUp { attempts }),
        (hold, _) => Ok(hold),
    }
}

/// Makes one attempt, within the command timeout.
fn at_once(attempt: &Attempt<'_>) -> Result<Option<Arc<HeldLease>>, Error> {
    let remaining = if attempt.held_here().is_some() {
        None
    } else {
        let deadline = attempt
            .start
            .after(attempt.runtime.deployment.command_timeout());
        match attempt.try_until_answered(deadline)? {
            Attempted::Acquired(hold) => return Ok(Some(hold)),
            Attempted::Refused(_, remaining) => remaining,
            Attempted::SplitVote => None,
        }
    };
    attempt.log_refused("refused", remaining);
    Ok(None)
}

/// How a turn of the wait loop ended: with the call's outcome, or with whether a wake-up ended its
/// sleep (a timeout otherwise).
type Next = ControlFlow<Option<Arc<HeldLease>>, bool>;

/// A call waiting in this client's queue for a name.
///
/// A call for several names waits in the queue of one of them at a time: the name that was refused.
/// Two such calls therefore never wait for each other.
struct LocalWait<'a> {
    attempt: &'a Attempt<'a>,
    /// Index of the name in whose queue the call waits.
    name_index: usize,
    ticket: QueueTicket<'a>,
    deadline: Instant,
    state: WaitState<'a>,
    /// Refusals by Redis in this call.
    refusals: u32,
    /// Split votes in a row.
    splits: u32,
    /// Refusals in a row that each named another name than the one before.
    moves: u32,
    /// The reason to record if the sleep ends without a wake-up.
    timeout_wake: Option<Wake>,
    /// A counted wake-up led to the current attempt; a refusal makes it a spurious one.
    was_woken: bool,
}

impl<'a> LocalWait<'a> {
    fn new(attempt: &'a Attempt<'a>, deadline: Instant) -> Self {
        let name_index = match attempt.keys.names.len() {
            1 => 0,
            // If this client holds one of the names, Redis would refuse that name.
            _ => attempt.held_here().unwrap_or(0),
        };
        Self {
            attempt,
            name_index,
            ticket: attempt.runtime.waiters.join(
                attempt.keys.key(name_index).name,
                (attempt.terms.handoffs > 0).then_some(attempt.terms),
                attempt.settings.wait == WaitPolicy::Wake,
            ),
            deadline,
            state: WaitState::new(attempt, deadline),
            refusals: 0,
            splits: 0,
            moves: 0,
            timeout_wake: None,
            was_woken: false,
        }
    }

    fn run(&mut self) -> Result<Option<Arc<HeldLease>>, Error> {
        let outcome = self.wait();
        if matches!(outcome, Ok(Some(_))) || self.attempt.runtime.is_closed() {
            return outcome;
        }
        // A lease may have been handed to this call in the meantime: take it.
        self.take().map_or(outcome, |hold| Ok(Some(hold)))
    }

    fn wait(&mut self) -> Result<Option<Arc<HeldLease>>, Error> {
        // Try Redis even if this client holds the name.
        let mut must_try = false;
        loop {
            self.attempt.runtime.check_open()?;
            let next = match self.ticket.position(must_try) {
                Position::Behind => self.behind()?,
                Position::HandedOff => match self.take() {
                    Some(hold) => return Ok(Some(hold)),
                    // The lease was lost before this call took it: ask Redis.
                    None => Continue(true),
                },
                Position::Yield => Continue(self.park(FLEET_YIELD)),
                Position::HeldLocally => self.held_locally()?,
                Position::Contend => self.contend()?,
            };
            let woken = match next {
                Continue(woken) => woken,
                Break(outcome) => return Ok(outcome),
            };
            must_try = !woken;
            if Instant::now() >= self.deadline && self.is_taken() {
                return Ok(None);
            }
            self.count_wake(woken);
        }
    }

    /// Waits behind others.
    ///
    /// Shortly before the deadline, tries Redis if the replies to the others do not suffice.
    fn behind(&mut self) -> Result<Next, Error> {
        self.state.log_waiting_once(self.name_index, None);
        let asked = Instant::now();
        if let Some(woken) = self.wait_behind()? {
            return Ok(Continue(woken));
        }
        Ok(match self.try_out_of_turn()? {
            Some(Attempted::Acquired(hold)) => Break(Some(hold)),
            Some(Attempted::Refused(name, remaining)) => {
                self.move_to_queue_of(name);
                match self.handle_refusal(asked, remaining) {
                    Some(_) => Continue(false),
                    None => Break(None),
                }
            }
            Some(Attempted::SplitVote) | None => Continue(false),
        })
    }

    /// Sleeps while this client holds the name.
    fn held_locally(&mut self) -> Result<Next, Error> {
        self.state.log_waiting_once(self.name_index, None);
        self.state.ensure_subscribed(self.name_index)?;
        self.count_spurious_wake();
        // The holder wakes this call. The attempt after a timeout is for a wake-up that was missed.
        Ok(Continue(self.sleep_after_refusal(
            true,
            None,
            Instant::NEVER,
        )))
    }

    /// Asks Redis, and sleeps unless the lock was granted.
    fn contend(&mut self) -> Result<Next, Error> {
        if self.state.has_waited && self.is_too_late() {
            return Ok(Continue(self.park(Duration::MAX)));
        }
        // An instant that is too early is safe, and the start of the call saves reading the clock.
        let asked = match self.state.has_waited {
            true => Instant::now(),
            false => self.attempt.start,
        };
        self.attempt.others_wait.set(self.ticket.about_to_try());
        match self.attempt.try_once(self.deadline) {
            Ok(Attempted::Acquired(hold)) => Ok(Break(Some(hold))),
            Ok(Attempted::Refused(name, remaining)) => self.refused(asked, name, remaining),
            Ok(Attempted::SplitVote) => {
                self.note_refusal(asked, Some(Duration::ZERO));
                self.state.log_waiting_once(self.name_index, None);
                self.splits = self.splits.saturating_add(1);
                let pause = SPLIT_VOTE_BACKOFF.pause(self.splits - 1);
                Ok(Continue(self.park(pause)))
            }
            Err(fault) => {
                let Some(pause) = self.handle_fault(fault)? else {
                    return Ok(Break(None));
                };
                self.park(pause);
                // Without a reply the name may be free: try again even if this client holds it.
                Ok(Continue(false))
            }
        }
    }

    /// Sleeps after Redis refused the name with index `name`, until a release or a timeout.
    fn refused(
        &mut self,
        asked: Instant,
        name: usize,
        remaining: Option<Duration>,
    ) -> Result<Next, Error> {
        let has_moved = self.move_to_queue_of(name);
        let Some(remaining) = self.handle_refusal(asked, remaining) else {
            return Ok(Break(None));
        };
        // A subscription that was live before the attempt receives every release after it. One that
        // becomes live later wakes this call to try again.
        let is_subscribed = self
            .state
            .ensure_subscribed(self.name_index)?
            .is_some_and(|subscription| subscription.hears_since(asked));
        self.splits = 0;
        if has_moved && self.attempt.settings.wait == WaitPolicy::Wake {
            // A release before this call joined the queue woke other waiters: try at once, as if
            // it had woken this one.
            self.back_off_after_move();
            return Ok(Continue(true));
        }
        let latest = self.state.span().asks_again_by(Instant::now());
        Ok(Continue(self.sleep_after_refusal(
            is_subscribed,
            remaining,
            latest,
        )))
    }

    /// Takes the lease that was handed to this call, unless it has been lost since.
    fn take(&mut self) -> Option<Arc<HeldLease>> {
        let Attempt { runtime, terms, .. } = self.attempt;
        let now = Instant::now();
        let holding = |token| self.attempt.holding(token, now);
        let hold = match self.ticket.take(now, terms.max_hold, holding) {
            TakeOver::Held(hold) => hold,
            TakeOver::Nothing => return None,
            TakeOver::Lost(handed) => {
                pass_on_unclaimed(runtime, &handed);
                return None;
            }
        };
        if terms.max_hold < Duration::MAX {
            runtime.reschedule(&hold);
        }
        self.state.has_waited = true;
        runtime.meters.woke(Wake::HandOff);
        self.attempt.log_granted(&hold);
        Some(hold)
    }

    /// Tries Redis from behind other waiters, shortly before the deadline.
    ///
    /// Returns `None` at the deadline if Redis did not reply and an earlier refusal is recent
    /// enough.
    fn try_out_of_turn(&self) -> Result<Option<Attempted>, Error> {
        self.ticket.about_to_try();
        self.attempt.others_wait.set(true);
        match self.attempt.try_until_answered(self.deadline) {
            Err(error) if error.is_unreachable() => {
                let now = Instant::now();
                self.ticket.answers(|answers| answers.failed(now));
                if !self.is_taken() {
                    return Err(error);
                }
                self.park(now.until(self.deadline));
                Ok(None)
            }
            answer => answer.map(Some),
        }
    }

    /// Joins the queue of the name that was refused; returns false if the call is in it already.
    fn move_to_queue_of(&mut self, name: usize) -> bool {
        if name == self.name_index {
            self.moves = 0;
            return false;
        }
        self.moves = self.moves.saturating_add(1);
        self.name_index = name;
        self.state.subscription = None;
        self.ticket.answers(Answers::answered);
        let Attempt {
            runtime,
            keys,
            settings,
            ..
        } = self.attempt;
        // Leaving the old queue wakes the next waiter there, which then tries Redis.
        let wakes_on_release = settings.wait == WaitPolicy::Wake;
        self.ticket = runtime
            .waiters
            .join(keys.key(name).name, None, wakes_on_release);
        true
    }

    /// Pauses before the next attempt if the refused name keeps changing.
    ///
    /// In a cluster, callers that undo a partly acquired set take and release its names in turn.
    /// Without a pause they would send this waiter from one queue to another without end.
    fn back_off_after_move(&self) {
        let is_in_parts = self.attempt.keys.parts().len() > 1;
        let moves = self.moves - u32::from(!is_in_parts);
        if moves > 0 {
            self.park(SPLIT_VOTE_BACKOFF.pause(moves - 1));
        }
    }

    /// Returns whether this call may report at its deadline that another holder has the name.
    fn is_taken(&self) -> bool {
        self.ticket.is_taken(self.state.span()) || self.attempt.held_here().is_some()
    }

    /// Sleeps behind other waiters.
    ///
    /// Returns true if woken and false after a timeout. Returns `None` shortly before the deadline
    /// if this call needs a reply of its own.
    fn wait_behind(&self) -> Result<Option<bool>, Error> {
        let now = Instant::now();
        if self.attempt.is_unreachable(now) {
            return Err(self.attempt.unreachable_for_others(now));
        }
        let gives_up_at = self.attempt.gives_up_at(now);
        let last_attempt = self.state.span().last_attempt();
        if now < last_attempt {
            return Ok(Some(self.sleep(now, last_attempt.min(gives_up_at))));
        }
        let needs_another_reply = || {
            self.ticket
                .answers(|answers| answers.needs_another_reply(self.state.span()))
        };
        if now < self.deadline && (!needs_another_reply() || self.attempt.held_here().is_some()) {
            Ok(Some(self.sleep(now, self.deadline.min(gives_up_at))))
        } else {
            Ok(None)
        }
    }

    /// Records a refusal and returns `remaining`, or `None` if the policy allows no more attempts.
    #[expect(
        clippy::option_option,
        reason = "a key may have no end, and a wait may be over"
    )]
    fn handle_refusal(
        &mut self,
        asked: Instant,
        remaining: Option<Duration>,
    ) -> Option<Option<Duration>> {
        self.note_refusal(asked, remaining);
        self.count_spurious_wake();
        self.refusals = self.refusals.saturating_add(1);
        self.state.log_waiting_once(self.name_index, remaining);
        match &self.attempt.settings.wait {
            WaitPolicy::Backoff(backoff)
                if backoff.limit().is_some_and(|limit| self.refusals >= limit) =>
            {
                None
            }
            _ => Some(remaining),
        }
    }

    fn is_too_late(&self) -> bool {
        let now = Instant::now();
        self.state.is_too_late(now, || self.is_taken())
    }

    fn note_refusal(&mut self, asked: Instant, remaining: Option<Duration>) {
        let now = Instant::now();
        self.ticket
            .answers(|answers| answers.refused(now, remaining));
        self.state.note_reply(asked, now);
    }

    /// Records an attempt without a reply, and returns how long to pause.
    ///
    /// Returns `None` if the deadline has passed and an earlier refusal is the better result.
    fn handle_fault(&mut self, fault: Fault) -> Result<Option<Duration>, Error> {
        let now = Instant::now();
        self.ticket.answers(|answers| answers.failed(now));
        match self.state.pause_after_fault(fault) {
            Ok(pause) => Ok(Some(pause)),
            Err(error) if self.state.is_refusal_better(&error, || self.is_taken()) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sleeps after a refusal until woken (returns true) or until `latest` at most.
    fn sleep_after_refusal(
        &mut self,
        is_subscribed: bool,
        remaining: Option<Duration>,
        latest: Instant,
    ) -> bool {
        let (pause, timeout_wake) = self.pause_after_refusal(is_subscribed, remaining);
        self.timeout_wake = Some(timeout_wake);
        let woken = self.park(pause.min(Instant::now().until(latest)));
        self.attempt.restart_silence();
        woken
    }

    /// Counts the wake-up or the timeout that ended the sleep.
    fn count_wake(&mut self, woken: bool) {
        let timeout_wake = self.timeout_wake.take();
        let wake = if woken {
            self.ticket.take_wake()
        } else {
            timeout_wake
        };
        self.was_woken = wake.is_some_and(|wake| self.attempt.runtime.meters.woke(wake));
    }

    /// Counts the last wake-up as spurious: another holder has the name.
    fn count_spurious_wake(&mut self) {
        if std::mem::take(&mut self.was_woken) {
            self.attempt.runtime.meters.counters.spurious_wakes.up();
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

    /// Sleeps for `pause`, or until woken (returns true).
    fn park(&self, pause: Duration) -> bool {
        let end = Instant::now().after(pause).min(self.deadline);
        loop {
            let now = Instant::now();
            if self.sleep(now, end) {
                return true;
            }
            if now >= end || self.attempt.runtime.is_closed() {
                return false;
            }
        }
    }

    /// Sleeps until `until` or woken (returns true), but no longer than the clock allows.
    fn sleep(&self, now: Instant, until: Instant) -> bool {
        self.ticket.parker().park_timeout(nap(now, until))
    }
}

/// However the wait ends, a lease that was handed to this call goes to the next waiter.
impl Drop for LocalWait<'_> {
    fn drop(&mut self) {
        if let Some(handed) = self.ticket.leave() {
            pass_on_unclaimed(self.attempt.runtime, &handed);
        }
    }
}
