//! A call that can be cancelled. It runs on its own thread, so that its caller can leave it at
//! any moment.
//!
//! Only its own thread can end what a call waits for: a reply, a connection, the address of a host.
//! So the caller of a cancelled call returns at once, and that thread ends the call in the
//! background: it leaves the queue, undoes a command without a reply, and releases a lock that it
//! is granted.
//!
//! ```text
//!             the call ends                   its caller takes the outcome
//!   Running ----------------> Ended(outcome) ------------------------------> Left
//!      |
//!      |  its caller leaves                   the call ends
//!      +------------------------> Left ------------------------------------> a lock is released
//! ```

use std::convert::Infallible;
use std::sync::Arc;
use std::thread;

use crossbeam_channel::{bounded, select};

use crate::cancel::CancelToken;
use crate::clock::Instant;
use crate::error::Error;
use crate::lease::held::HeldLease;
use crate::lock::release::release;
use crate::logging;
use crate::logging::contain;
use crate::queue::held_leases::act_for;
use crate::runtime::Runtime;
use crate::sync::Mutex;
use crate::taken::Taken;
use crate::thread_group::CALL;

/// The outcome of a call, and whether it waited for another holder.
pub(super) type CallOutcome = (Result<Result<Arc<HeldLease>, Taken>, Error>, bool);

enum Progress {
    Running,
    Ended(CallOutcome),
    /// The caller has left with the outcome, or without one.
    Left,
}

/// Runs `call` on its own thread and returns its outcome, or [`Error::Cancelled`] as soon as
/// `token` is cancelled.
pub(super) fn until_cancelled(
    runtime: &Arc<Runtime>,
    token: &CancelToken,
    call: impl FnOnce() -> CallOutcome + Send + 'static,
) -> CallOutcome {
    if token.is_cancelled() {
        return (Err(Error::Cancelled), false);
    }
    let progress = Arc::new(Mutex::new(Progress::Running));
    let (running, ended) = bounded::<Infallible>(0);
    let body = {
        let (runtime, progress) = (Arc::clone(runtime), Arc::clone(&progress));
        let caller = thread::current().id();
        move || {
            // Debug builds warn if the caller waits for a lock that it holds itself.
            act_for(caller);
            // Wakes the caller when this thread ends, even by a panic.
            let _running = running;
            let outcome = call();
            let mut progress = progress.lock();
            if let Progress::Left = *progress {
                drop(progress);
                give_back(&runtime, outcome);
            } else {
                *progress = Progress::Ended(outcome);
            }
        }
    };
    if let Err(cause) = runtime.calls.spawn(body) {
        let (name, cause) = (CALL, Arc::new(cause));
        return (Err(Error::Thread { name, cause }), false);
    }
    select! {
        recv(ended) -> _ => {}
        recv(token.receiver()) -> _ => {}
    }
    let progress = std::mem::replace(&mut *progress.lock(), Progress::Left);
    if let Progress::Ended(outcome) = progress {
        // Even if the token is cancelled by now: the call was faster.
        return outcome;
    }
    // A thread that has ended without an outcome has panicked.
    assert!(
        token.is_cancelled(),
        "the call has panicked on its own thread"
    );
    (Err(Error::Cancelled), false)
}

/// Releases what was granted to a call whose caller has left.
fn give_back(runtime: &Runtime, (outcome, _): CallOutcome) {
    let Ok(Ok(hold)) = outcome else {
        return;
    };
    logging::debug!(
        name:% = hold.keys, holder:% = hold.id.short(), outcome = "cancelled",
        trace_id = hold.trace_id().as_deref();
        "releasing {}, which was granted after its call was cancelled (holder {})",
        hold.keys, hold.id.short()
    );
    let callbacks = hold.remove_holder();
    let now = Instant::now();
    let deadline = now.after(runtime.deployment.command_timeout());
    // A release that fails is logged and repeated.
    let _ = release(runtime, &hold, hold.token(), now, deadline);
    // Last: a destructor of the user may panic, or end this client.
    contain(|| drop(callbacks));
}
