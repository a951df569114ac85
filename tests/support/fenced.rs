//! A resource that checks fencing tokens, as one protected by a lock should.

use parking_lot::Mutex;

/// A value that rejects writes with a fencing token older than the newest it has seen.
pub struct Fenced<T> {
    state: Mutex<(u64, T)>,
}

/// The error of a write whose token is older than the newest one seen.
#[derive(Debug, PartialEq, Eq)]
pub struct Stale {
    pub token: u64,
    pub newest: u64,
}

impl<T: Clone> Fenced<T> {
    pub fn new(value: T) -> Self {
        Self {
            state: Mutex::new((0, value)),
        }
    }

    pub fn write(&self, token: u64, value: T) -> Result<(), Stale> {
        let mut state = self.state.lock();
        if token < state.0 {
            return Err(Stale {
                token,
                newest: state.0,
            });
        }
        *state = (token, value);
        Ok(())
    }

    pub fn read(&self) -> T {
        self.state.lock().1.clone()
    }
}
