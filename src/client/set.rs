//! Acquires a set of names.

use std::sync::Arc;

use crate::client::acquire::{Caller, Progress, WaitLimit, log_attempt};
use crate::client::failure;
use crate::client::hold::SetHold;
use crate::client::running::{self, Driven, Next};
use crate::clock::Instant;
use crate::config::Settings;
use crate::error::Error;
use crate::kernel::Kernel;
use crate::kernel::command::Command;
use crate::kernel::effects::Effects;
use crate::kernel::failure::Failure;
use crate::parker::Parker;
use crate::runtime::Runtime;
use crate::set::acquire::{SetAcquire, SetOutcome, SetStep, SetTerms};
use crate::set::names::SetNames;
use crate::taken::Taken;

/// Acquires all names, waiting within `limit`. Returns [`Taken`] if one is taken then, or at the
/// first refusal with [`WaitLimit::None`].
pub(crate) fn acquire(
    runtime: &Arc<Runtime>,
    names: &Arc<SetNames>,
    settings: &Settings,
    limit: WaitLimit,
) -> Result<Result<SetHold, Taken>, Error> {
    let caller = Caller {
        runtime,
        locks: names.at_once(),
        what: &**names,
        settings,
        limit,
        start: Instant::now(),
    };
    caller.check_process()?;
    let mut progress = Progress::default();
    let outcome = caller.run_set(names, &mut progress);
    caller.count(&outcome, &progress);
    outcome
}

impl Caller<'_> {
    fn run_set(
        &self,
        names: &Arc<SetNames>,
        progress: &mut Progress,
    ) -> Result<Result<SetHold, Taken>, Error> {
        let runtime = self.runtime;
        names.check()?;
        for lock in names.at_once() {
            runtime.check(lock)?;
        }
        let terms = self.prepare()?;
        let (wait, deadline) = self.waits();
        let (locks, now) = (names.at_once(), self.start);
        let lingering = runtime.decide(|kernel, fx| kernel.release_for_parts(locks, now, fx));
        self.release_lingering(lingering, deadline);
        let wants = SetTerms {
            names: Arc::clone(names),
            terms,
            wait,
            deadline,
            holder: self.holder(&terms),
            by_engine: self.settings.cancel.is_some(),
            side_by_side: runtime.deployment.is_quorum(),
        };
        let mut call = SetAcquire::new(wants, self.start);
        let outcome = running::run(self, &mut call, deadline);
        progress.has_waited = call.has_waited();
        match outcome {
            SetOutcome::Held(lease) => {
                progress.began = lease.since();
                let hold = SetHold::new(lease);
                self.log_granted(hold.id(), hold.token(), &terms);
                Ok(Ok(hold))
            }
            SetOutcome::Refused(last) => self.refused(last.as_ref()),
            SetOutcome::Failed(why) => {
                let first = &*names.at_once()[0];
                Err(failure::error(runtime, first, why, Instant::now()))
            }
        }
    }
}

/// Commands of a set, and until when the thread waits for their replies.
pub(super) enum SetCommands {
    Acquire(Vec<Command>, Instant),
    GiveBack(Vec<Command>, Instant),
}

impl Driven for SetAcquire {
    type Outcome = SetOutcome;
    type Commands = SetCommands;

    fn begin(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) -> Next<Self> {
        Self::begin(self, kernel, now, fx).into()
    }

    /// If one of the acquiring commands gets no reply, the undos go out behind them.
    fn send(&mut self, what: SetCommands, runtime: &Runtime, fx: &mut Effects) -> Next<Self> {
        let kernel = &runtime.kernel;
        let (commands, until) = match what {
            SetCommands::Acquire(commands, until) => (commands, until),
            SetCommands::GiveBack(commands, until) => {
                let ends = runtime.send_all(&commands, until);
                return self.gave_back(ends, kernel, Instant::now(), fx).into();
            }
        };
        commands.iter().for_each(log_attempt);
        let mut step = None;
        if let [command] = &*commands {
            runtime.acquire(command, until, &mut |end, sent| {
                let times = [sent, Instant::now()];
                step = Some(self.replied(vec![end], times, kernel, fx));
                self.take_undos().pop()
            });
        } else {
            runtime.acquire_all(&commands, until, &mut |ends, sent| {
                let times = [sent, Instant::now()];
                step = Some(self.replied(ends, times, kernel, fx));
                self.take_undos()
            });
        }
        let step = step.expect("`Runtime::acquire_all` reports the ends of its commands once");
        step.into()
    }

    fn parker(&self) -> Option<&Parker> {
        Self::parker(self)
    }

    fn woken(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) -> Next<Self> {
        Self::woken(self, kernel, now, fx).into()
    }

    fn leave(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) -> SetOutcome {
        Self::leave(self, Failure::Cancelled, kernel, now, fx)
    }

    fn abandon(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) {
        Self::abandon(self, kernel, now, fx);
    }

    fn has_waited(&self) -> bool {
        Self::has_waited(self)
    }
}

impl From<SetStep> for Next<SetAcquire> {
    fn from(step: SetStep) -> Self {
        match step {
            SetStep::Send(commands, until) => Self::Send(SetCommands::Acquire(commands, until)),
            SetStep::GiveBack(commands, until) => {
                Self::Send(SetCommands::GiveBack(commands, until))
            }
            SetStep::Park(until) => Self::Park(until),
            SetStep::Done(outcome) => Self::Done(outcome),
        }
    }
}
