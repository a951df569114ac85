//! State shared by the server's thread and the test.

use std::io::{self, PipeReader, PipeWriter, Write as _};
use std::time::Duration;

use super::state::ServerState;

use crate::sync::{Condvar, Mutex};

/// Longer than any round of the server's thread takes, even on an overloaded machine.
const LONGEST_ROUND: Duration = Duration::from_secs(60);

pub(super) struct Shared {
    pub(super) state: Mutex<ServerState>,
    /// Notified at the start of every round of the thread.
    pub(super) round: Condvar,
    /// A byte written here ends the thread's wait for its sockets.
    waker: PipeWriter,
}

impl Shared {
    pub(super) fn new(state: ServerState) -> io::Result<(Self, PipeReader)> {
        let (reader, waker) = io::pipe()?;
        let shared = Self {
            state: Mutex::new(state),
            round: Condvar::new(),
            waker,
        };
        Ok((shared, reader))
    }

    /// Changes the state, and returns when the thread has begun another round: it has then finished
    /// what it did before the change.
    ///
    /// The caller must have borrowed the server, so that its thread runs.
    pub(super) fn change<T>(&self, act: impl FnOnce(&mut ServerState) -> T) -> T {
        self.change_if_running(act)
            .expect("a server runs while it is borrowed")
    }

    /// Like [`change`](Self::change), for a guard, which can outlive the server.
    ///
    /// Returns `None`, and changes nothing, if the server has been dropped.
    pub(super) fn change_if_running<T>(
        &self,
        act: impl FnOnce(&mut ServerState) -> T,
    ) -> Option<T> {
        let mut state = self.state.lock();
        if state.is_stopping {
            return None;
        }
        let result = act(&mut state);
        state.deliver();
        let before = state.rounds;
        self.wake();
        while state.rounds == before {
            let is_over = self.round.wait_for(&mut state, LONGEST_ROUND);
            assert!(!is_over, "the thread of a testing::Server has ended");
        }
        Some(result)
    }

    fn wake(&self) {
        // Fails only if the thread has ended.
        let _ = (&self.waker).write(&[0]);
    }

    /// Makes the thread end, without waiting for that.
    pub(super) fn stop(&self) {
        self.state.lock().is_stopping = true;
        self.wake();
    }
}
