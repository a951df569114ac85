//! The signals that this process blocks, and that the command does not.

use std::sync::OnceLock;

use nix::sys::signal::{SigSet, SigmaskHow, Signal, raise};

use crate::stops;

/// The mask with which this program was started.
static FORMER: OnceLock<SigSet> = OnceLock::new();

/// Blocks the signals that a write to a terminal (SIGTTOU) or a file (SIGXFSZ) can cause, in this
/// thread and in those that it starts: they must not stop or end this process while it holds a
/// lock. The write then succeeds, or fails with an error. Rust programs ignore SIGPIPE.
///
/// With a handler instead, the kernel would signal this process's whole group, and repeat the
/// write.
pub(crate) fn block_signals_of_writes() {
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGTTOU);
    mask.add(Signal::SIGXFSZ);
    // These calls fail only for invalid arguments.
    if let Ok(former) = mask.thread_swap_mask(SigmaskHow::SIG_BLOCK) {
        let _ = FORMER.set(former);
    }
    // It says that the command has ended. A parent can leave it blocked by mistake.
    let _ = SigSet::from(Signal::SIGCHLD).thread_unblock();
}

/// Restores the mask with which this program was started, in this thread, for a child to inherit.
/// Call [`stops::end_unblocked`] when this thread has ended.
pub(crate) fn restore_mask() {
    // A process of the same pipeline may have caused SIGTTOU for its whole group earlier. It would
    // stop this process now. CONT discards it, and a TSTP.
    let _ = raise(Signal::SIGCONT);
    stops::begin_unblocked();
    if let Some(former) = FORMER.get() {
        let _ = former.thread_set_mask();
    }
}
