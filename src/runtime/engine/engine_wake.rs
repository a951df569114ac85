//! The wake-up of the engine's thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task;

use crate::runtime::wake::Wake;

/// Wakes the engine's thread. It exists before the thread, which looks for work when it starts.
#[derive(Debug)]
pub(crate) struct EngineWake(Wake);

impl EngineWake {
    /// # Errors
    ///
    /// The error of the system, if it has no pipe left.
    pub(in crate::runtime) fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self(Wake::new()?)))
    }

    /// Wakes the thread.
    pub(in crate::runtime) fn wake(&self) {
        self.0.wake();
    }

    /// Takes the wake-ups that have arrived. Afterwards the thread reads what others have left.
    pub(in crate::runtime) fn drain(&self) {
        self.0.drain();
    }
}

impl AsFd for EngineWake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// For the pools, which know nothing of the engine.
impl task::Wake for EngineWake {
    fn wake(self: Arc<Self>) {
        Self::wake(&self);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        Self::wake(self);
    }
}
