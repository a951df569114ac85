//! How a set waits that has nothing meanwhile: without queues, and for a moment before it tries
//! again. It watches the name that it missed.
//!
//! ```text
//! an attempt ──another holder has a name──▶ until that may be free, by a message or by its ttl
//!    ▲  ├──nobody is known to have it────▶ for a short pause: votes were split
//!    │  └──no reply──────────────────────▶ at once, then for growing pauses
//!    └─────────────────────────────────────┘ until the deadline, or the attempts are used up
//! ```

use std::time::Duration;

use crate::clock::{Instant, LONGEST_SLEEP};
use crate::kernel::failure::{Failure, Refused};
use crate::kernel::last_reply::last_attempt;
use crate::kernel::places::{UNSUBSCRIBED, next_attempt};
use crate::kernel::refusals::no_holder_since;
use crate::kernel::waiter::Wait;
use crate::kernel::watch::{News, Watching};
use crate::majority::SPLIT;
use crate::mutant::{Mutant, is_on};
use crate::parker::Parker;
use crate::set::call::{Missed, SetCall, SetOutcome, Turn, Why};
use crate::wait_policy::{BUSY, RECONNECT, WaitPolicy, jittered};

/// The longest pause while a breaker is open: the answer to another command closes it.
const OPEN_PAUSE: Duration = Duration::from_millis(250);

/// When a set makes its next attempt.
#[derive(Default)]
pub(super) struct Watched {
    /// The name that it watches, by its index.
    pub(super) watch: Option<(usize, Watching)>,
    /// When it tries again if no message comes.
    until: Option<Instant>,
    /// How often it was refused.
    refusals: u32,
    /// How often in a row nobody refused it, and since when.
    splits: u32,
    split_since: Option<Instant>,
    /// How often in a row it got no reply, and why the last time.
    failures: u32,
    failure: Option<Failure>,
}

pub(super) enum Next {
    Attempt,
    Park(Instant),
    Done(SetOutcome),
}

impl Watched {
    /// Returns the parker that its thread sleeps on.
    pub(super) fn parker(&self) -> Option<&Parker> {
        self.watch.as_ref().map(|(_, watch)| watch.parker())
    }

    /// An attempt has missed a name, and the set has nothing any more.
    pub(super) fn missed(
        &mut self,
        missed: Missed,
        call: &mut SetCall,
        turn: &mut Turn<'_>,
    ) -> Next {
        let name = missed.name;
        if !matches!(missed.why, Why::ByNobody(_)) {
            (self.splits, self.split_since) = (0, None);
        }
        if !matches!(missed.why, Why::Failed(_)) {
            (self.failures, self.failure) = (0, None);
        }
        match missed.why {
            Why::Refused(by) => self.refused(name, by, call, turn),
            Why::ByNobody(by) => self.refused_by_nobody(name, by, call, turn),
            Why::Failed(failure) => self.failed(name, failure, call, turn),
        }
    }

    /// Another holder has a name, or this client itself: the set waits until it may be free.
    fn refused(
        &mut self,
        name: usize,
        by: Option<Refused>,
        call: &mut SetCall,
        turn: &mut Turn<'_>,
    ) -> Next {
        self.refusals += 1;
        let (wait, deadline) = (call.wants.wait.clone(), call.wants.deadline);
        if wait == Wait::Once || turn.now >= deadline || wait.is_used_up(self.refusals) {
            return Next::Done(SetOutcome::Refused(by));
        }
        call.has_waited = true;
        let lock = &*call.wants.names.at_once()[name];
        let by = by.or_else(|| turn.kernel.refused_by_own(lock, turn.now, turn.fx));
        let by = by.map(|by| by.of_name(name));
        if let Wait::Queue(WaitPolicy::Backoff(backoff)) = wait {
            call.note_refusal(by);
            let until = turn.now.after(backoff.pause(self.refusals - 1));
            return self.pause(name, until, call, turn);
        }
        let is_new = !self.watches(name, true);
        let has_news = !is_new && self.watch.as_ref().is_some_and(|it| it.1.has_news());
        self.watch(name, true, call, turn);
        let watch = self.watch.as_ref();
        let is_live = watch.is_some_and(|(_, watch)| turn.kernel.is_live(watch));
        let until = self.asks_again_at(by.as_ref(), is_live, call, turn);
        call.note_refusal(by);
        self.until = Some(until);
        // A message may have come before the watch began.
        let may_have_missed = is_new && is_live && !is_on(Mutant::WatchAfterTheRefusal);
        if has_news || may_have_missed {
            Next::Attempt
        } else {
            self.park(until, call, turn)
        }
    }

    /// Nobody is known to have a name: the next attempt may get it, if others do not try just then.
    fn refused_by_nobody(
        &mut self,
        name: usize,
        by: Option<Refused>,
        call: &mut SetCall,
        turn: &mut Turn<'_>,
    ) -> Next {
        let since = *self.split_since.get_or_insert(turn.now);
        let is_split = by.is_some();
        call.note_refusal(by);
        // Split votes are a proof that it was taken, and no reply is none.
        if !is_split && let Some(outcome) = self.gives_up(call, turn) {
            return Next::Done(outcome);
        }
        if turn.now >= call.wants.deadline {
            return Next::Done(SetOutcome::Refused(call.last.take()));
        }
        if since.until(turn.now) >= turn.kernel.shared.limits.unreachable_for {
            let failure = if is_split {
                no_holder_since(since, SPLIT)
            } else {
                Failure::unreachable(None)
            };
            return Next::Done(SetOutcome::Failed(failure));
        }
        let until = turn.now.after(BUSY.pause(self.splits));
        self.splits = self.splits.saturating_add(1);
        self.pause(name, until, call, turn)
    }

    /// The command for a name got no reply. A pooled connection that had died unnoticed costs one
    /// attempt and no pause.
    fn failed(
        &mut self,
        name: usize,
        failure: Failure,
        call: &mut SetCall,
        turn: &mut Turn<'_>,
    ) -> Next {
        let is_open = matches!(failure, Failure::Open { .. });
        if call.wants.wait == Wait::Once && is_open {
            return Next::Done(SetOutcome::Failed(failure));
        }
        let until = match (&failure, self.failures) {
            (Failure::Open { open, .. }, _) => turn.now.after(open.retry_in.min(OPEN_PAUSE)),
            (_, 0) => turn.now,
            (_, failures) => turn.now.after(RECONNECT.pause(failures - 1)),
        };
        self.failures = self.failures.saturating_add(1);
        self.failure = Some(failure);
        if let Some(outcome) = self.gives_up(call, turn) {
            return Next::Done(outcome);
        }
        let step = self.pause(name, until, call, turn);
        if until <= turn.now {
            Next::Attempt
        } else {
            step
        }
    }

    /// Returns the outcome of a call whose deadline has passed, or for which Redis was silent for
    /// too long.
    fn gives_up(&mut self, call: &mut SetCall, turn: &mut Turn<'_>) -> Option<SetOutcome> {
        let watch = self.watch.as_ref();
        let known = watch.and_then(|(_, watch)| turn.kernel.failure_at(watch, call.start));
        let (failure, at) = match known {
            Some((failure, at)) => (Some(failure), at),
            None => (None, Instant::NEVER),
        };
        let failure = failure.or_else(|| self.failure.clone());
        let failure = failure.unwrap_or_else(|| Failure::unreachable(None));
        if turn.now >= call.wants.deadline {
            return Some(call.at_deadline(failure, turn));
        }
        (turn.now >= at).then(|| SetOutcome::Failed(failure.after_long()))
    }

    fn watches(&self, name: usize, wakes: bool) -> bool {
        let watch = self.watch.as_ref();
        watch.is_some_and(|(watched, watch)| *watched == name && watch.wakes == wakes)
    }

    /// Watches a name, and no other one.
    fn watch(&mut self, name: usize, wakes: bool, call: &SetCall, turn: &mut Turn<'_>) {
        if !self.watches(name, wakes) {
            let lock = &call.wants.names.at_once()[name];
            // The entry of the name lasts with one of them.
            let new = turn.kernel.watch(lock, wakes, turn.now, turn.fx);
            self.end(turn);
            self.watch = Some((name, new));
        }
    }

    /// Begins a pause that no message ends.
    fn pause(&mut self, name: usize, until: Instant, call: &SetCall, turn: &mut Turn<'_>) -> Next {
        self.watch(name, false, call, turn);
        self.until = Some(until);
        self.park(until, call, turn)
    }

    /// No deadline of the engine wakes a watching call after a stop of the machine.
    fn park(&self, until: Instant, call: &SetCall, turn: &Turn<'_>) -> Next {
        let nap = turn.now.after(LONGEST_SLEEP);
        Next::Park(until.min(call.wants.deadline).min(nap))
    }

    /// Returns when a refused call asks again if no message comes.
    fn asks_again_at(
        &self,
        by: Option<&Refused>,
        is_live: bool,
        call: &SetCall,
        turn: &Turn<'_>,
    ) -> Instant {
        let (now, backstop) = (turn.now, turn.kernel.shared.limits.backstop);
        let pause = if is_live {
            jittered(backstop)
        } else {
            UNSUBSCRIBED.pause(self.refusals - 1).min(backstop)
        };
        let (remaining, took) = by.map_or((None, Duration::ZERO), |by| {
            (by.by.remaining, by.sent.until(by.arrived))
        });
        let at = next_attempt(now.after(pause), now, remaining, now);
        let last = last_attempt(call.start, call.wants.deadline, took);
        if now < last { at.min(last) } else { at }
    }

    /// The thread was unparked, or a nap is over, or the deadline has come.
    pub(super) fn woken(&mut self, call: &mut SetCall, turn: &mut Turn<'_>) -> Next {
        let news = self.watch.as_ref().and_then(|(_, watch)| watch.take_news());
        if news == Some(News::Closed) {
            return Next::Done(SetOutcome::Failed(Failure::Closed));
        }
        if let Some(outcome) = self.gives_up(call, turn) {
            return Next::Done(outcome);
        }
        match self.until {
            Some(until) if news.is_none() && turn.now < until => self.park(until, call, turn),
            _ => Next::Attempt,
        }
    }

    /// An attempt begins: only later news count.
    pub(super) fn forget_news(&self) {
        if let Some((_, watch)) = &self.watch {
            watch.take_news();
        }
    }

    /// The call ends, or goes on elsewhere.
    pub(super) fn end(&mut self, turn: &mut Turn<'_>) {
        if let Some((_, watch)) = self.watch.take() {
            turn.kernel.end_watch(watch, turn.now, turn.fx);
        }
    }
}
