//! What a lock protects, as it ought to be built: it turns away whoever was overtaken.

use parking_lot::Mutex;

/// Accepts a write only with a token that is not older than the last one it saw.
pub struct Fenced<T> {
    state: Mutex<(u64, T)>,
}

/// The write came with the token of a lease that somebody newer has overtaken.
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
