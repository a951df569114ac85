//! Acquires a set of names.

use std::sync::Arc;

use crate::client::acquire::{Caller, WaitLimit};
use crate::client::failure;
use crate::clock::{Instant, nap};
use crate::config::Settings;
use crate::error::Error;
use crate::kernel::command::Command;
use crate::kernel::effects::Effects;
use crate::kernel::waiter::Failure;
use crate::logging;
use crate::runtime::Runtime;
use crate::set::acquire::{SetAcquire, SetOutcome, SetStep, SetTerms};
use crate::set::lease::SetLease;
use crate::set::names::SetNames;
use crate::taken::Taken;

/// Acquires all names, waiting within `limit`. Returns [`Taken`] if one is taken then, or at the
/// first refusal with [`WaitLimit::None`].
pub(crate) fn acquire(
    runtime: &Arc<Runtime>,
    names: &Arc<SetNames>,
    settings: &Settings,
    limit: WaitLimit,
) -> Result<Result<Arc<SetLease>, Taken>, Error> {
    let caller = Caller {
        runtime,
        locks: names.at_once(),
        what: &**names,
        settings,
        limit,
        start: Instant::now(),
    };
    caller.check_process()?;
    let mut has_waited = false;
    let outcome = caller.run_set(names, &mut has_waited);
    caller.count(&outcome, |lease| lease.since(), has_waited);
    outcome
}

impl Caller<'_> {
    fn run_set(
        &self,
        names: &Arc<SetNames>,
        has_waited: &mut bool,
    ) -> Result<Result<Arc<SetLease>, Taken>, Error> {
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
        };
        let mut call = RunningSet {
            caller: self,
            deadline,
            call: SetAcquire::new(wants, self.start),
            is_over: false,
        };
        let outcome = call.run();
        *has_waited = call.call.has_waited();
        drop(call);
        match outcome {
            SetOutcome::Held(lease) => {
                if let (Some(id), Some(token)) =
                    (lease.holder_ids().first(), lease.tokens().first())
                {
                    self.log_granted(id, *token, &terms);
                }
                Ok(Ok(lease))
            }
            SetOutcome::Refused(last) => self.refused(last.as_ref()),
            SetOutcome::Failed(why) => {
                let first = &*names.at_once()[0];
                Err(failure::error(runtime, first, why, Instant::now()))
            }
        }
    }
}

/// A call that runs. If its thread unwinds, what it has or gets is released by the engine.
struct RunningSet<'a> {
    caller: &'a Caller<'a>,
    deadline: Instant,
    call: SetAcquire,
    is_over: bool,
}

impl RunningSet<'_> {
    fn run(&mut self) -> SetOutcome {
        let runtime = self.caller.runtime;
        let mut fx = Effects::default();
        let mut step = self.call.begin(&runtime.kernel, Instant::now(), &mut fx);
        let mut has_logged = false;
        loop {
            if !has_logged && matches!(step, SetStep::Park(_)) && self.call.has_waited() {
                has_logged = true;
                self.caller.log_waiting();
            }
            self.is_over = matches!(step, SetStep::Done(_));
            runtime.carry_out_by(std::mem::take(&mut fx), self.deadline);
            step = match step {
                SetStep::Done(outcome) => return outcome,
                SetStep::Send(commands, until) => self.send(&commands, until, &mut fx),
                SetStep::GiveBack(commands, until) => {
                    let ends = runtime.send_all(&commands, until);
                    (self.call).gave_back(ends, &runtime.kernel, Instant::now(), &mut fx)
                }
                // A call that must still log that it waits looks for that once a second.
                SetStep::Park(until) if !has_logged => {
                    let now = Instant::now();
                    self.sleep(now.after(nap(now, until)), &mut fx)
                }
                SetStep::Park(until) => self.sleep(until, &mut fx),
            };
        }
    }

    /// Sends commands on this thread. If one gets no reply, its undo goes out behind them.
    fn send(&mut self, commands: &[Command], until: Instant, fx: &mut Effects) -> SetStep {
        let runtime = self.caller.runtime;
        for command in commands {
            if let Some(id) = command.acquires() {
                let lock = &command.lock;
                logging::trace!(
                    name:% = lock, holder:% = id.as_str(); "acquire {lock} as {}", id.as_str()
                );
            }
        }
        let (kernel, call) = (&runtime.kernel, &mut self.call);
        let mut step = None;
        if let [command] = commands {
            runtime.acquire(command, until, &mut |end, sent| {
                let times = [sent, Instant::now()];
                step = Some(call.replied(vec![end], times, kernel, fx));
                call.take_undos().pop()
            });
        } else {
            runtime.acquire_all(commands, until, &mut |ends, sent| {
                let times = [sent, Instant::now()];
                step = Some(call.replied(ends, times, kernel, fx));
                call.take_undos()
            });
        }
        step.expect("`Runtime::acquire_all` reports the ends of its commands once")
    }

    /// Sleeps until the call is woken or cancelled, and until then at most.
    fn sleep(&mut self, until: Instant, fx: &mut Effects) -> SetStep {
        let kernel = &self.caller.runtime.kernel;
        let parker = (self.call.parker()).expect("a call sleeps only after `SetStep::Park`");
        match &self.caller.settings.cancel {
            Some(token) => token.park(parker, until),
            None => parker.park(until),
        }
        if self.caller.is_cancelled() {
            let now = Instant::now();
            SetStep::Done((self.call).leave(Failure::Cancelled, kernel, now, fx))
        } else {
            self.call.woken(kernel, Instant::now(), fx)
        }
    }
}

impl Drop for RunningSet<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            let mut fx = Effects::default();
            let runtime = self.caller.runtime;
            (self.call).abandon(&runtime.kernel, Instant::now(), &mut fx);
            runtime.carry_out_by(fx, self.deadline);
        }
    }
}
