//! A lock of one process by hand, without a server: a line of threads, each with a channel.

use std::collections::VecDeque;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};

/// A lock that passes from each holder to the thread that has waited longest.
#[derive(Default)]
pub struct Line {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    is_taken: bool,
    waiting: VecDeque<SyncSender<()>>,
}

impl Line {
    /// Runs `section` while this thread has the lock.
    pub fn run(&self, section: impl FnOnce()) {
        self.take();
        section();
        self.give();
    }

    fn take(&self) {
        let turn = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if !state.is_taken {
                state.is_taken = true;
                return;
            }
            let (sender, turn) = sync_channel(1);
            state.waiting.push_back(sender);
            turn
        };
        turn.recv().expect("each holder wakes the next one");
    }

    fn give(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let next = state.waiting.pop_front();
        state.is_taken = next.is_some();
        drop(state);
        if let Some(next) = next {
            // Fails only if the thread has panicked.
            let _ = next.send(());
        }
    }
}
