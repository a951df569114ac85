//! Acquires a lock: checks the call, runs it on the calling thread, and counts the outcome.

use std::fmt::Display;
use std::slice;
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::Duration;

use crate::cancel::CancelToken;
use crate::client::release::release_unheld;
use crate::client::running::{self, Driven, Next};
use crate::client::{failure, taken};
use crate::clock::{Instant, sleep};
use crate::config::{LeaseTerms, Settings};
use crate::error::Error;
use crate::holder_id::HolderId;
use crate::kernel::Kernel;
use crate::kernel::call::{Call, Step};
use crate::kernel::command::Command;
use crate::kernel::effects::Effects;
use crate::kernel::failure::{Failure, Refused};
use crate::kernel::held::HeldLease;
use crate::kernel::holder::{Holder, Reports};
use crate::kernel::unlock::Unlock;
use crate::kernel::waiter::CallTerms;
use crate::kernel::waiter::{Outcome, Wait};
use crate::logging;
use crate::parker::Parker;
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

/// The course of a call, for the statistics.
#[derive(Default)]
pub(super) struct Progress {
    /// It has waited for another holder.
    pub(super) has_waited: bool,
    /// When the holding began.
    pub(super) began: Option<Instant>,
}

/// A call that acquires a lock, or the locks of a set.
pub(super) struct Caller<'a> {
    pub(super) runtime: &'a Arc<Runtime>,
    pub(super) locks: &'a [Arc<dyn Primitive>],
    /// The names that it acquires, for messages.
    pub(super) what: &'a dyn Display,
    pub(super) settings: &'a Settings,
    pub(super) limit: WaitLimit,
    pub(super) start: Instant,
}

/// Acquires the lock, waiting within `limit`. Returns [`Taken`] if it is taken then, or at the
/// first refusal with [`WaitLimit::None`].
pub(crate) fn acquire(
    runtime: &Arc<Runtime>,
    lock: &Arc<dyn Primitive>,
    settings: &Settings,
    limit: WaitLimit,
) -> Result<Result<Acquired, Taken>, Error> {
    let caller = Caller {
        runtime,
        locks: slice::from_ref(lock),
        what: lock,
        settings,
        limit,
        start: Instant::now(),
    };
    caller.check_process()?;
    let mut progress = Progress::default();
    let outcome = caller.run(lock, &mut progress);
    caller.count(&outcome, &progress);
    outcome
}

impl Caller<'_> {
    fn run(
        &self,
        lock: &Arc<dyn Primitive>,
        progress: &mut Progress,
    ) -> Result<Result<Acquired, Taken>, Error> {
        let runtime = self.runtime;
        runtime.check(lock)?;
        let terms = self.prepare()?;
        let (wait, deadline) = self.waits();
        let wants = CallTerms {
            lock: Arc::clone(lock),
            terms,
            wait,
            deadline,
            holder: self.holder(&terms),
            by_engine: self.settings.cancel.is_some(),
        };
        let now = self.start;
        let lingering = runtime.decide(|kernel, fx| kernel.release_for(&wants, now, fx));
        self.release_lingering(lingering, deadline);
        let mut call = Call::new(&runtime.kernel, wants, self.start);
        let outcome = running::run(self, &mut call, deadline);
        *progress = Progress {
            has_waited: call.has_waited(),
            began: call.began(),
        };
        match outcome {
            Outcome::Lease(lease, token) => {
                let id = &lease.id;
                self.log_granted(id, token, &terms);
                Ok(Ok((lease, token)))
            }
            Outcome::Refused(last) => self.refused(last.as_ref()),
            Outcome::Failed(why) => Err(failure::error(runtime, &**lock, why, Instant::now())),
        }
    }

    /// Returns [`Error::Forked`] in a child of the process that made the client or the token.
    pub(super) fn check_process(&self) -> Result<(), Error> {
        let process = self.runtime.process;
        process.check()?;
        match &self.settings.cancel {
            Some(token) if !token.process().is_that_of(process) => Err(Error::Forked),
            _ => Ok(()),
        }
    }

    /// Returns the terms of the lease, after what can fail without a command.
    pub(super) fn prepare(&self) -> Result<LeaseTerms, Error> {
        let terms = self.settings.terms(&self.runtime.config)?;
        self.runtime.deployment.check_terms(&terms)?;
        self.check_not_ended()?;
        self.start_threads()?;
        Ok(terms)
    }

    /// Returns how the call waits, and until when.
    pub(super) fn waits(&self) -> (Wait, Instant) {
        let queue = || Wait::Queue(self.settings.wait);
        match self.limit {
            WaitLimit::None => {
                let timeout = self.runtime.deployment.command_timeout();
                (Wait::Once, self.start.after(timeout))
            }
            WaitLimit::Until(deadline) => (queue(), deadline),
            WaitLimit::Endless => (queue(), Instant::NEVER),
        }
    }

    pub(super) fn holder(&self, terms: &LeaseTerms) -> Holder {
        Holder {
            handoffs: terms.handoffs,
            linger: terms.linger,
            thread: this_thread(),
            reports: reports_of(self.settings),
        }
    }

    /// Releases what lingers under the names of the call, and what the call does not take. What
    /// gets no reply is repeated in the background; then Redis refuses the call until that has run.
    pub(super) fn release_lingering(
        &self,
        lingering: Vec<(Arc<HeldLease>, Unlock)>,
        deadline: Instant,
    ) {
        let timeout = self.runtime.deployment.command_timeout();
        let until = deadline.min(self.start.after(timeout));
        for (lease, release) in lingering {
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

    /// Counts the outcome.
    pub(super) fn count<T>(&self, outcome: &Result<Result<T, Taken>, Error>, progress: &Progress) {
        let counters = &self.runtime.meters.counters;
        match (outcome, self.limit) {
            (Ok(Ok(_)), _) => {
                let began = progress.began.unwrap_or(self.start);
                let meters = &self.runtime.meters;
                meters.acquired(progress.has_waited, self.start.until(began));
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

impl Driven for Call {
    type Outcome = Outcome;
    type Commands = (Command, Instant);

    fn begin(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) -> Next<Self> {
        Self::begin(self, kernel, now, fx).into()
    }

    /// If no reply comes, the undo of the command goes out behind it.
    fn send(
        &mut self,
        (command, until): (Command, Instant),
        runtime: &Runtime,
        fx: &mut Effects,
    ) -> Next<Self> {
        log_attempt(&command);
        let mut step = None;
        runtime.acquire(&command, until, &mut |end, sent| {
            let now = Instant::now();
            step = Some(self.replied(&runtime.kernel, end, sent, now, fx));
            fx.undo.take()
        });
        let step = step.expect("`Runtime::acquire` reports the end of each command");
        step.into()
    }

    fn parker(&self) -> Option<&Parker> {
        Some(&self.cell()?.parker)
    }

    fn woken(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) -> Next<Self> {
        Self::woken(self, kernel, now, fx).into()
    }

    fn leave(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) -> Outcome {
        Self::leave(self, kernel, Failure::Cancelled, now, fx)
    }

    fn abandon(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) {
        Self::abandon(self, kernel, now, fx);
    }

    fn has_waited(&self) -> bool {
        Self::has_waited(self)
    }
}

impl From<Step> for Next<Call> {
    fn from(step: Step) -> Self {
        match step {
            Step::Send(command, until) => Self::Send((command, until)),
            Step::Park(until) => Self::Park(until),
            Step::Done(outcome) => Self::Done(outcome),
        }
    }
}

pub(super) fn log_attempt(command: &Command) {
    if let Some(id) = command.acquires() {
        let lock = &command.lock;
        logging::trace!(
            name:% = lock, holder:% = id.as_str(); "acquire {lock} as {}", id.as_str()
        );
    }
}

impl Caller<'_> {
    /// Returns the outcome of a call that was refused.
    pub(super) fn refused<T>(&self, last: Option<&Refused>) -> Result<Result<T, Taken>, Error> {
        // Without a deadline, only the attempt limit of the policy ends a wait without the lock.
        if let (WaitLimit::Endless, WaitPolicy::Backoff(backoff)) =
            (self.limit, &self.settings.wait)
        {
            let attempts = backoff.limit().unwrap_or_default();
            return Err(Error::AttemptsUsedUp { attempts });
        }
        let now = Instant::now();
        let held = (self.runtime).decide(|kernel, fx| {
            let mut locks = self.locks.iter().enumerate();
            locks.find_map(|(n, lock)| Some((n, kernel.holder_of(&**lock, now, fx)?)))
        });
        let taken = taken::taken(self.locks, held, last, now);
        self.log_refused("refused", taken.remaining());
        Ok(Err(taken))
    }

    fn ttl(&self) -> Duration {
        self.settings.ttl.unwrap_or(self.runtime.config.ttl)
    }

    pub(super) fn log_granted(&self, id: &HolderId, token: FencingToken, terms: &LeaseTerms) {
        // Called for a record only: reading the clock costs time.
        let waited = || self.start.until(Instant::now());
        logging::debug!(
            name:% = self.what, holder:% = id.short(), token = token.value(),
            ttl_ms = terms.ttl.as_millis() as u64, waited_us = waited().as_micros() as u64,
            outcome = "acquired", trace_id = self.settings.trace_id.as_deref();
            "acquired {} (holder {}, token {token}, ttl {:?}, waited {:?})",
            self.what, id.short(), terms.ttl, waited()
        );
    }

    pub(super) fn log_waiting(&self) {
        self.log_refused("waiting", None);
        let mut locks = self.locks.iter();
        if let Some(lock) = locks.find(|lock| is_held_by_us(self.runtime, lock).0) {
            let name = lock.keys().key(0).name;
            logging::warn!(
                name:% = name;
                "this thread waits for {name}, which it locked itself: locks are not reentrant"
            );
        }
    }

    /// Logs a refusal; `outcome` says what follows from it.
    fn log_refused(&self, outcome: &str, remaining: Option<Duration>) {
        logging::debug!(
            name:% = self.what, outcome = outcome, ttl_ms = self.ttl().as_millis() as u64,
            remaining_ms = remaining.map(|left| left.as_millis() as u64),
            trace_id = self.settings.trace_id.as_deref();
            "{outcome} {}: the lock is held, or other calls are ahead in its queue", self.what
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
