//! The guards of faults: a fault lasts until its guard is dropped.

use std::fmt;
use std::sync::Arc;

use super::shared::Shared;

/// The server answers nothing until this is dropped; see [`Server::pause`](super::Server::pause).
///
/// If there are several, the server answers again when the last one is dropped.
///
/// ```
/// # use std::time::Duration;
/// # use leasehold::testing::Server;
/// # let server = Server::start();
/// # let client = server.client();
/// let pause = server.pause();
/// # let limit = Duration::from_millis(20);
/// assert!(client.mutex("seat:12A").try_lock_for(limit).is_err());
/// drop(pause);
/// assert!(client.mutex("seat:12A").lock().is_ok());
/// ```
#[must_use = "the server answers again when this is dropped"]
pub struct Pause(Arc<Shared>);

impl Pause {
    pub(super) fn begin(shared: &Arc<Shared>) -> Self {
        shared.change(|state| state.faults.pauses += 1);
        Self(Arc::clone(shared))
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        self.0.change_if_running(|state| state.faults.pauses -= 1);
    }
}

/// The server cannot be reached until this is dropped; see [`Server::cut`](super::Server::cut).
///
/// If there are several, the server can be reached again when the last one is dropped.
///
/// ```
/// # use std::time::Duration;
/// # use leasehold::testing::Server;
/// # let server = Server::start();
/// # let client = server.client();
/// let outage = server.cut();
/// # let limit = Duration::from_millis(20);
/// assert!(client.mutex("seat:12A").try_lock_for(limit).is_err());
/// drop(outage);
/// assert!(client.mutex("seat:12A").lock().is_ok());
/// ```
#[must_use = "the server can be reached again when this is dropped"]
pub struct Cut(Arc<Shared>);

impl Cut {
    pub(super) fn begin(shared: &Arc<Shared>) -> Self {
        shared.change(|state| {
            // First, because it may panic: no guard would then end the cut.
            state.close_port();
            state.faults.cuts += 1;
        });
        Self(Arc::clone(shared))
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        self.0.change_if_running(|state| {
            state.faults.cuts -= 1;
            if state.faults.cuts == 0 {
                state.open_port();
            }
        });
    }
}

/// The server refuses scripts until this is dropped; see
/// [`Server::refuse`](super::Server::refuse).
///
/// If there are several, the error of the newest one applies.
///
/// ```
/// # use leasehold::{Error, testing::Server};
/// # let server = Server::start();
/// # let client = server.client();
/// let refusal = server.refuse("NOPERM this user has no permissions to run the 'evalsha' command");
/// assert!(matches!(client.mutex("seat:12A").lock(), Err(Error::Refused { .. })));
/// drop(refusal);
/// assert!(client.mutex("seat:12A").lock().is_ok());
/// ```
#[must_use = "the server runs scripts again when this is dropped"]
pub struct Refusal {
    shared: Arc<Shared>,
    number: u64,
}

impl Refusal {
    pub(super) fn begin(shared: &Arc<Shared>, error: &str) -> Self {
        // The writer of replies adds the `-` with which RESP marks an error.
        let error = error.trim_start_matches('-').to_owned();
        let number = shared.change(|state| state.faults.refuse(error));
        Self {
            shared: Arc::clone(shared),
            number,
        }
    }
}

impl Drop for Refusal {
    fn drop(&mut self) {
        let number = self.number;
        self.shared
            .change_if_running(|state| state.faults.end_refusal(number));
    }
}

impl fmt::Debug for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pause").finish_non_exhaustive()
    }
}

impl fmt::Debug for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cut").finish_non_exhaustive()
    }
}

impl fmt::Debug for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refusal").finish_non_exhaustive()
    }
}
