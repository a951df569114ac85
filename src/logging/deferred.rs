//! The calls of a user's code, such as a logger, from the client's own threads.

use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Runs `act`, which may call a user's code: a logger, a metrics recorder, or the drop of a
/// closure. If that code panics, only the rest of `act` is lost. The panic hook has already printed
/// its message.
pub(crate) fn contain(act: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(act));
}

/// A call of a user's code.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs on another thread, and never waits; returns a job that it cannot run.
#[derive(Clone)]
pub(crate) struct Later(pub(crate) Arc<dyn Fn(Job) -> Result<(), Job> + Send + Sync>);

impl fmt::Debug for Later {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Later")
    }
}

thread_local! {
    static LATER: RefCell<Option<Later>> = const { RefCell::new(None) };
}

/// Has another thread run the logger and the recorder, from now on, for the calling thread: one on
/// which leases depend.
pub(crate) fn defer_to(later: Later) {
    LATER.set(Some(later));
}

/// Runs a user's code that may be slow, and contains its panic: now, or later on another thread if
/// leases depend on this one.
pub(crate) fn run_slow(job: impl FnOnce() + Send + 'static) {
    match later() {
        Some(later) => {
            if let Err(job) = later.0(Box::new(job)) {
                contain(job);
            }
        }
        None => contain(job),
    }
}

/// Returns whether another thread runs slow code for this one.
pub(super) fn is_deferring() -> bool {
    later().is_some()
}

fn later() -> Option<Later> {
    // Fails if a value of a thread that ends, such as a guard, logs after this one was dropped.
    LATER.try_with(|later| later.borrow().clone()).ok()?
}
