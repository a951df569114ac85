//! A watch: how a set waits for names without queues, by messages that one may be free.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::kernel::call::Step;
use crate::kernel::context::Context;
use crate::kernel::entry::LockEntry;
use crate::kernel::last_reply::last_attempt;
use crate::kernel::places::{UNSUBSCRIBED, next_attempt};
use crate::kernel::set::{SetAcquire, Stage};
use crate::kernel::table::entry_name;
use crate::kernel::unlock::named;
use crate::kernel::waiter::{Failure, Outcome, Refused, Wait, WaiterCell};
use crate::mutant::{Mutant, is_on};
use crate::protocol::primitive::Primitive;
use crate::protocol::refusal::RefusedName;
use crate::wait_policy::{WaitPolicy, jittered};

/// A call for a set that was refused because of a name, in the entry of the name.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) cell: Arc<WaiterCell>,
    /// The lock of this name.
    pub(super) lock: Arc<dyn Primitive>,
    /// Messages wake the call.
    pub(super) wakes: bool,
}

/// The name that last refused a call for a set.
pub(crate) struct Watching {
    /// Its index.
    pub(super) name: usize,
    pub(crate) lock: Arc<dyn Primitive>,
    /// Its messages wake the call.
    pub(crate) wakes: bool,
    pub(super) cell: Arc<WaiterCell>,
    /// When the call asks again if no message comes.
    pub(super) until: Instant,
}

impl Watching {
    pub(super) fn begin(
        name: usize,
        lock: &Arc<dyn Primitive>,
        wakes: bool,
        cx: &mut Context<'_>,
    ) -> Self {
        let cell = Arc::new(WaiterCell::new());
        cx.with_entry(lock, |entry, cx| {
            entry.extras().watches.push(Watch {
                cell: Arc::clone(&cell),
                lock: Arc::clone(lock),
                wakes,
            });
            if cx.kernel.is_closed() {
                entry.end_watches(&Failure::Closed, cx);
            }
        });
        Self {
            name,
            lock: Arc::clone(lock),
            wakes,
            cell,
            until: cx.now,
        }
    }

    /// Returns whether the name may be free, or the client is closed.
    pub(crate) fn has_news(&self) -> bool {
        self.cell.outcome.lock().is_some()
    }

    pub(super) fn end(self, cx: &mut Context<'_>) {
        cx.with_existing(&entry_name(&*self.lock), |entry, _| {
            let watches = &mut entry.extras().watches;
            watches.retain(|watch| !Arc::ptr_eq(&watch.cell, &self.cell));
        });
    }
}

impl SetAcquire {
    /// A name is taken: with queues the call waits there, otherwise until the name may be free.
    pub(super) fn refused(&mut self, by: Option<Refused>, cx: &mut Context<'_>) -> Step {
        self.has_waited = true;
        let by = by.or_else(|| self.refused_by_own(cx));
        if self.has_queues() {
            // It counts if the deadline comes before a queue has answered.
            self.last = by.or_else(|| self.last.take());
            return self.ask_for(0, cx);
        }
        self.id = cx.kernel.fresh_id(&*self.wants.lock);
        if let Wait::Queue(WaitPolicy::Backoff(backoff)) = &self.wants.wait {
            let until = cx.now.after(backoff.pause(self.refusals - 1));
            self.last = by;
            return self.watch((0, false), until, cx);
        }
        let name = match &by {
            Some(by) => by.by.name,
            // A lease of this client lingers, which the watch ends.
            None => (cx.kernel.holder_of(&*self.wants.lock, cx.now, cx.fx)).map_or(0, |it| it.0),
        };
        let hears = |watch: &Watching| watch.name == name && watch.wakes;
        let is_new = !self.watch.as_ref().is_some_and(hears);
        if is_new {
            self.end_watch(cx);
        }
        if self.watch.as_ref().is_some_and(Watching::has_news) {
            return self.attempt(cx);
        }
        let name_of = entry_name(&*self.names[name]);
        let is_live = cx.with_existing(&name_of, |entry, _| entry.is_listening) == Some(true);
        let until = self.asks_again_at(by.as_ref(), is_live, cx);
        self.last = by;
        let step = self.watch((name, true), until, cx);
        // A message may have come before the call could hear it.
        if is_new && is_live && !is_on(Mutant::WatchBeginsAfterTheRefusal) {
            self.attempt(cx)
        } else {
            step
        }
    }

    /// Returns the refusal by a lease of this client, for which Redis was not asked. Nobody holds
    /// one that lingers.
    pub(super) fn refused_by_own(&self, cx: &mut Context<'_>) -> Option<Refused> {
        let own = cx.kernel.holder_of(&*self.wants.lock, cx.now, cx.fx);
        let (name, lease) = own.filter(|(_, lease)| !lease.lingers())?;
        let by = RefusedName {
            name,
            remaining: None,
            ..named(&lease)
        };
        Some(Refused::until_now(cx.now, cx.now, Arc::new(by)))
    }

    /// Returns when a refused call asks again if no message comes.
    fn asks_again_at(&self, by: Option<&Refused>, is_live: bool, cx: &Context<'_>) -> Instant {
        let (now, backstop) = (cx.now, cx.kernel.limits.backstop);
        let pause = if is_live {
            jittered(backstop)
        } else {
            UNSUBSCRIBED.pause(self.refusals - 1).min(backstop)
        };
        let (remaining, took) = by.map_or((None, Duration::ZERO), |by| {
            (by.by.remaining, by.sent.until(by.arrived))
        });
        let at = next_attempt(now.after(pause), now, remaining, now);
        let last = last_attempt(self.start, self.wants.deadline, took);
        if now < last { at.min(last) } else { at }
    }

    /// Begins to wait until a name may be free, and until `until` at most.
    pub(super) fn watch(
        &mut self,
        (name, wakes): (usize, bool),
        until: Instant,
        cx: &mut Context<'_>,
    ) -> Step {
        self.stage = Stage::Watch;
        let lock = &self.names[name];
        let watch = self
            .watch
            .get_or_insert_with(|| Watching::begin(name, lock, wakes, cx));
        watch.until = until;
        Step::Park(until.min(self.wants.deadline))
    }

    /// The thread was unparked, or a nap is over.
    pub(super) fn watched(&mut self, cx: &mut Context<'_>) -> Step {
        let watch = self
            .watch
            .as_ref()
            .expect("a set is in this stage only while it has one");
        let until = watch.until;
        let outcome = watch.cell.outcome.lock().take();
        match outcome {
            Some(Outcome::Failed(Failure::Closed)) => Step::Done(Outcome::Failed(Failure::Closed)),
            _ if cx.now >= self.wants.deadline => {
                Step::Done(Outcome::Failed(Failure::unreachable(None)))
            }
            None if cx.now < until => Step::Park(until.min(self.wants.deadline)),
            _ => self.attempt(cx),
        }
    }

    pub(super) fn end_watch(&mut self, cx: &mut Context<'_>) {
        if let Some(watch) = self.watch.take() {
            watch.end(cx);
        }
    }
}

impl LockEntry {
    /// The name may be free, or the client is closed: calls for sets go on.
    pub(super) fn end_watches(&self, failure: &Failure, cx: &mut Context<'_>) {
        let is_closed = matches!(failure, Failure::Closed);
        let ended = self.watches().iter().filter(|it| it.wakes || is_closed);
        for watch in ended {
            *watch.cell.outcome.lock() = Some(Outcome::Failed(failure.clone()));
            cx.fx.wake.push(Arc::clone(&watch.cell));
        }
    }
}
