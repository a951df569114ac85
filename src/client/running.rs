//! A call that its thread drives until it is done: of one lock, or of a set.

use crate::cancel::CancelToken;
use crate::client::acquire::Caller;
use crate::clock::{Instant, nap};
use crate::kernel::Kernel;
use crate::kernel::effects::Effects;
use crate::parker::Parker;
use crate::runtime::Runtime;

/// A call as the kernel, or the code of sets above it, decides about it.
pub(super) trait Driven: Sized {
    type Outcome;
    /// Commands that its thread sends.
    type Commands;

    fn begin(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) -> Next<Self>;

    /// Sends commands on this thread, waits for their ends, and applies them.
    fn send(&mut self, what: Self::Commands, runtime: &Runtime, fx: &mut Effects) -> Next<Self>;

    /// The parker of its thread, while it sleeps.
    fn parker(&self) -> Option<&Parker>;

    /// The thread was unparked, or a nap is over, or the deadline has come.
    fn woken(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) -> Next<Self>;

    /// The call is cancelled. An outcome that is already stored wins.
    fn leave(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) -> Self::Outcome;

    /// The thread unwinds: the engine releases what the call has or gets.
    fn abandon(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects);

    /// Returns whether it has waited for another holder.
    fn has_waited(&self) -> bool;
}

/// The next step of the thread of a call.
pub(super) enum Next<D: Driven> {
    Send(D::Commands),
    /// Sleeps until it is unparked, and until then at most.
    Park(Instant),
    Done(D::Outcome),
}

/// Runs a call on this thread, and returns its outcome.
pub(super) fn run<D: Driven>(caller: &Caller<'_>, call: &mut D, deadline: Instant) -> D::Outcome {
    let mut running = Running {
        caller,
        deadline,
        call,
        is_over: false,
    };
    running.run()
}

/// A call that runs. If its thread unwinds, the engine releases what the call has or gets.
struct Running<'a, D: Driven> {
    caller: &'a Caller<'a>,
    deadline: Instant,
    call: &'a mut D,
    is_over: bool,
}

impl<D: Driven> Running<'_, D> {
    fn run(&mut self) -> D::Outcome {
        let runtime = self.caller.runtime;
        let mut fx = Effects::default();
        let mut next = (self.call).begin(&runtime.kernel, Instant::now(), &mut fx);
        let mut has_logged = false;
        loop {
            if !has_logged && matches!(next, Next::Park(_)) && self.call.has_waited() {
                has_logged = true;
                self.caller.log_waiting();
            }
            self.is_over = matches!(next, Next::Done(_));
            runtime.carry_out_by(std::mem::take(&mut fx), self.deadline);
            next = match next {
                Next::Done(outcome) => return outcome,
                Next::Send(what) => self.call.send(what, runtime, &mut fx),
                // A call that must still log that it waits looks for that once a second.
                Next::Park(until) if !has_logged => {
                    let now = Instant::now();
                    self.sleep(now.after(nap(now, until)), &mut fx)
                }
                Next::Park(until) => self.sleep(until, &mut fx),
            };
        }
    }

    /// Sleeps until the call is woken or cancelled, and until then at most.
    fn sleep(&mut self, until: Instant, fx: &mut Effects) -> Next<D> {
        let kernel = &self.caller.runtime.kernel;
        let parker = (self.call.parker()).expect("a call has a parker from `Next::Park` on");
        let token = self.caller.settings.cancel.as_ref();
        match token {
            Some(token) => token.park(parker, until),
            None => parker.park(until),
        }
        if token.is_some_and(CancelToken::is_cancelled) {
            Next::Done(self.call.leave(kernel, Instant::now(), fx))
        } else {
            self.call.woken(kernel, Instant::now(), fx)
        }
    }
}

impl<D: Driven> Drop for Running<'_, D> {
    fn drop(&mut self) {
        if !self.is_over {
            let mut fx = Effects::default();
            let runtime = self.caller.runtime;
            (self.call).abandon(&runtime.kernel, Instant::now(), &mut fx);
            runtime.carry_out_by(fx, self.deadline);
        }
    }
}
