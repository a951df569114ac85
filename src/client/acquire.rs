//! Acquires a lock: checks the call, runs it on the calling thread, and counts the outcome.

use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::Duration;

use crate::cancel::CancelToken;
use crate::client::release::release_unheld;
use crate::client::{failure, taken};
use crate::clock::{Instant, nap, sleep};
use crate::config::{LeaseTerms, Settings};
use crate::error::Error;
use crate::kernel::acquiring::Acquiring;
use crate::kernel::call::{CallTerms, Step};
use crate::kernel::command::Command;
use crate::kernel::effects::Effects;
use crate::kernel::held::{HeldLease, Holder, Reports};
use crate::kernel::waiter::{Failure, Outcome, Refused, Wait};
use crate::logging;
use crate::protocol::primitive::Primitive;
use crate::runtime::Runtime;
use crate::taken::Taken;
use crate::token::FencingToken;
use crate::wait_policy::{RECONNECT, WaitPolicy};

/// How long a call waits for a lock that is held.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitLimit {
    /// Does not wait.
    None,
    Until(Instant),
    /// Waits without a deadline.
    Endless,
}

/// A lease, and the token of the holder that it was acquired for.
pub(crate) type Acquired = (Arc<HeldLease>, FencingToken);

/// A call that acquires a lock.
pub(super) struct Caller<'a> {
    pub(super) runtime: &'a Arc<Runtime>,
    pub(super) lock: &'a Arc<dyn Primitive>,
    pub(super) settings: &'a Settings,
    limit: WaitLimit,
    start: Instant,
}

/// Acquires the lock, waiting within `limit`. Returns [`Taken`] if it is taken then, or at the
/// first refusal with [`WaitLimit::None`].
pub(crate) fn acquire(
    runtime: &Arc<Runtime>,
    lock: &Arc<dyn Primitive>,
    settings: &Settings,
    limit: WaitLimit,
) -> Result<Result<Acquired, Taken>, Error> {
    runtime.process.check()?;
    if (settings.cancel.as_ref()).is_some_and(|it| !it.process().is_that_of(runtime.process)) {
        return Err(Error::Forked);
    }
    let caller = Caller {
        runtime,
        lock,
        settings,
        limit,
        start: Instant::now(),
    };
    let mut has_waited = false;
    let outcome = caller.run(&mut has_waited);
    caller.count(&outcome, has_waited);
    outcome
}

impl Caller<'_> {
    fn run(&self, has_waited: &mut bool) -> Result<Result<Acquired, Taken>, Error> {
        let runtime = self.runtime;
        runtime.check(self.lock)?;
        let terms = self.settings.terms(&runtime.config)?;
        runtime.deployment.check_terms(&terms)?;
        self.check_not_ended()?;
        self.start_threads()?;
        let wants = self.terms_of_call(terms);
        self.release_lingering(&wants);
        let mut call = Running::new(self, wants);
        let outcome = call.run();
        *has_waited = call.call.has_waited();
        drop(call);
        match outcome {
            Outcome::Lease(lease, token) => {
                self.log_granted(&lease, token, &terms);
                Ok(Ok((lease, token)))
            }
            Outcome::Refused(last) => self.refused(last.as_ref()),
            Outcome::Failed(why) => Err(failure::error(runtime, &**self.lock, why, Instant::now())),
        }
    }

    fn terms_of_call(&self, terms: LeaseTerms) -> CallTerms {
        let settings = self.settings;
        let (wait, deadline) = match self.limit {
            WaitLimit::None => {
                let timeout = self.runtime.deployment.command_timeout();
                (Wait::Once, self.start.after(timeout))
            }
            WaitLimit::Until(deadline) => (Wait::Queue(settings.wait), deadline),
            WaitLimit::Endless => (Wait::Queue(settings.wait), Instant::NEVER),
        };
        CallTerms {
            lock: Arc::clone(self.lock),
            terms,
            wait,
            deadline,
            holder: Holder {
                handoffs: terms.handoffs,
                linger: terms.linger,
                thread: this_thread(),
                is_silent: false,
                reports: reports_of(settings),
            },
            by_engine: settings.cancel.is_some(),
        }
    }

    /// Releases what lingers under the names of the lock, unless this call takes it. What gets no
    /// reply is repeated in the background; then Redis refuses the call until that has run.
    fn release_lingering(&self, wants: &CallTerms) {
        let now = self.start;
        let releases = (self.runtime).decide(|kernel, fx| kernel.release_for(wants, now, fx));
        let timeout = self.runtime.deployment.command_timeout();
        let until = wants.deadline.min(now.after(timeout));
        for (lease, release) in releases {
            let _ = release_unheld(self.runtime, &lease, release, until);
        }
    }

    fn is_cancelled(&self) -> bool {
        let token = self.settings.cancel.as_ref();
        token.is_some_and(CancelToken::is_cancelled)
    }

    fn check_not_ended(&self) -> Result<(), Error> {
        self.runtime.check_not_closed()?;
        if self.is_cancelled() {
            Err(Error::Cancelled)
        } else {
            Ok(())
        }
    }

    /// Starts the threads that a lease needs. Tries again while the system has none left, as long
    /// as the call may wait.
    fn start_threads(&self) -> Result<(), Error> {
        let has_callbacks = self.settings.on_lost.is_some() || self.settings.on_renew.is_some();
        let start = || {
            self.runtime.start()?;
            if has_callbacks {
                self.runtime.callbacks.start()
            } else {
                Ok(())
            }
        };
        let mut failures = 0;
        loop {
            let error = match start() {
                Err(error @ Error::Thread { .. }) => error,
                started => return started,
            };
            self.check_not_ended()?;
            let left = match self.limit {
                WaitLimit::None => Duration::ZERO,
                WaitLimit::Until(deadline) => Instant::now().until(deadline),
                WaitLimit::Endless => Duration::MAX,
            };
            if left.is_zero() {
                return Err(error);
            }
            sleep(RECONNECT.pause(failures).min(left));
            failures += 1;
        }
    }

    fn count(&self, outcome: &Result<Result<Acquired, Taken>, Error>, has_waited: bool) {
        let counters = &self.runtime.meters.counters;
        match (outcome, self.limit) {
            (Ok(Ok((lease, _))), _) => {
                let since = lease.since().unwrap_or(self.start);
                let meters = &self.runtime.meters;
                meters.acquired(has_waited, self.start.until(since));
            }
            (Ok(Err(_)), WaitLimit::Until(deadline)) if Instant::now() >= deadline => {
                counters.timed_out.up();
            }
            (Ok(Err(_)) | Err(Error::AttemptsUsedUp { .. }), _) => counters.refused.up(),
            (Err(Error::Cancelled), _) => counters.cancelled.up(),
            (Err(_), _) => counters.failed.up(),
        }
    }
}

/// A call that runs. If its thread unwinds, what it has or gets is released by the engine.
struct Running<'a> {
    caller: &'a Caller<'a>,
    deadline: Instant,
    call: Acquiring,
    is_over: bool,
}

impl<'a> Running<'a> {
    fn new(caller: &'a Caller<'a>, wants: CallTerms) -> Self {
        Self {
            deadline: wants.deadline,
            call: Acquiring::new(&caller.runtime.kernel, wants, caller.start),
            caller,
            is_over: false,
        }
    }

    fn run(&mut self) -> Outcome {
        let runtime = self.caller.runtime;
        let mut fx = Effects::default();
        let mut step = self.call.begin(&runtime.kernel, Instant::now(), &mut fx);
        let mut has_logged = false;
        loop {
            if !has_logged && matches!(step, Step::Park(_)) && self.call.has_waited() {
                has_logged = true;
                self.caller.log_waiting();
            }
            self.is_over = matches!(step, Step::Done(_));
            runtime.carry_out_by(std::mem::take(&mut fx), self.deadline);
            step = match step {
                Step::Done(outcome) => return outcome,
                Step::Send(command, until) => self.send(&command, until, &mut fx),
                // A call that must still log that it waits looks for that once a second.
                Step::Park(until) if !has_logged => {
                    let now = Instant::now();
                    self.sleep(now.after(nap(now, until)), &mut fx)
                }
                Step::Park(until) => self.sleep(until, &mut fx),
            };
        }
    }

    /// Sends a command on this thread. If no reply comes, its undo goes out behind it.
    fn send(&mut self, command: &Command, until: Instant, fx: &mut Effects) -> Step {
        let runtime = self.caller.runtime;
        if let Some(id) = command.acquires() {
            let lock = &command.lock;
            logging::trace!(
                name:% = lock, holder:% = id.as_str(); "acquire {lock} as {}", id.as_str()
            );
        }
        let mut step = None;
        runtime.acquire(command, until, &mut |end, sent| {
            let now = Instant::now();
            step = Some(self.call.replied(&runtime.kernel, end, [sent, now], fx));
            fx.undo.take()
        });
        step.expect("`Runtime::acquire` reports the end of each command")
    }

    /// Sleeps until the call is woken or cancelled, and until then at most.
    fn sleep(&mut self, until: Instant, fx: &mut Effects) -> Step {
        let kernel = &self.caller.runtime.kernel;
        let parker = &self
            .call
            .cell()
            .expect("a call sleeps only after `Step::Park`, which sets its cell")
            .parker;
        match &self.caller.settings.cancel {
            Some(token) => token.park(parker, until),
            None => parker.park(until),
        }
        if self.caller.is_cancelled() {
            Step::Done((self.call).leave(kernel, Failure::Cancelled, Instant::now(), fx))
        } else {
            self.call.woken(kernel, Instant::now(), fx)
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            let mut fx = Effects::default();
            let runtime = self.caller.runtime;
            (self.call).abandon(&runtime.kernel, Instant::now(), &mut fx);
            runtime.carry_out_by(fx, self.deadline);
        }
    }
}

impl Caller<'_> {
    /// Returns the outcome of a call that was refused.
    fn refused(&self, last: Option<&Refused>) -> Result<Result<Acquired, Taken>, Error> {
        // Without a deadline, only the attempt limit of the policy ends a wait without the lock.
        if let (WaitLimit::Endless, WaitPolicy::Backoff(backoff)) =
            (self.limit, &self.settings.wait)
        {
            let attempts = backoff.limit().unwrap_or_default();
            return Err(Error::AttemptsUsedUp { attempts });
        }
        let now = Instant::now();
        let held = (self.runtime).decide(|kernel, fx| kernel.holder_of(&**self.lock, now, fx));
        let taken = taken::taken(&**self.lock, held, last, now);
        self.log_refused("refused", taken.remaining());
        Ok(Err(taken))
    }

    fn ttl(&self) -> Duration {
        self.settings.ttl.unwrap_or(self.runtime.config.ttl)
    }

    fn log_granted(&self, lease: &HeldLease, token: FencingToken, terms: &LeaseTerms) {
        // Called for a record only: reading the clock costs time.
        let waited = || self.start.until(Instant::now());
        logging::debug!(
            name:% = lease.lock, holder:% = lease.id.short(), token = token.value(),
            ttl_ms = terms.ttl.as_millis() as u64, waited_us = waited().as_micros() as u64,
            outcome = "acquired", trace_id = self.settings.trace_id.as_deref();
            "acquired {} (holder {}, token {token}, ttl {:?}, waited {:?})",
            lease.lock, lease.id.short(), terms.ttl, waited()
        );
    }

    fn log_waiting(&self) {
        self.log_refused("waiting", None);
        if is_held_by_us(self.runtime, self.lock).0 {
            let name = self.lock.keys().key(0).name;
            logging::warn!(
                name:% = name;
                "this thread waits for {name}, which it locked itself: locks are not reentrant"
            );
        }
    }

    /// Logs a refusal; `outcome` says what follows from it.
    fn log_refused(&self, outcome: &str, remaining: Option<Duration>) {
        logging::debug!(
            name:% = self.lock, outcome = outcome, ttl_ms = self.ttl().as_millis() as u64,
            remaining_ms = remaining.map(|left| left.as_millis() as u64),
            trace_id = self.settings.trace_id.as_deref();
            "{outcome} {}: the lock is held, or other calls are ahead in its queue", self.lock
        );
    }
}

/// The thread whose call this is in debug builds; `None` in release builds, which warn of nothing.
fn this_thread() -> Option<ThreadId> {
    cfg!(debug_assertions).then(|| thread::current().id())
}

/// Returns whether this thread holds a lease of the lock's name, in debug builds; also returns
/// whether a call for the lock must wait for a lease of this client.
pub(crate) fn is_held_by_us(runtime: &Runtime, lock: &Arc<dyn Primitive>) -> (bool, bool) {
    let Some(thread) = this_thread() else {
        return (false, false);
    };
    runtime.decide(|kernel, fx| kernel.is_held_by(&**lock, thread, Instant::now(), fx))
}

/// Returns what a holder wants to be told, if it is anything.
fn reports_of(settings: &Settings) -> Option<Box<Reports>> {
    let reports = Reports {
        trace_id: settings.trace_id.clone(),
        on_lost: settings.on_lost.clone(),
        on_renew: settings.on_renew.clone(),
    };
    (reports.trace_id.is_some() || reports.has_callbacks()).then(|| Box::new(reports))
}
