//! The thread that makes the connections of a pool.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::MutexGuard;

use crate::clock::{Instant, sleep};
use crate::error::{Cause, Error};
use crate::error_reply::{is_final_at_logon, library_text};
use crate::logging;
use crate::redis::conn::connection::Connection;
use crate::redis::conn::dial::ConnectError;
use crate::redis::conn::pool::Pool;
use crate::redis::conn::pool_state::PoolState;
use crate::thread_group::DIALER;

impl Pool {
    /// Starts a dialer if a connection is wanted and no dialer works. Dialing has its own thread:
    /// name resolution and connecting to a unix socket may block for longer than a caller has time.
    pub(super) fn ensure_dialer(
        self: &Arc<Self>,
        state: &mut PoolState,
        now: Instant,
    ) -> Result<(), Error> {
        // Connecting and logging on may each take the whole timeout.
        let limit = self.connector.connect_timeout * 2 + Duration::from_millis(100);
        if !state.wants_connection(self.cap) || !state.dialing.needs_dialer(now, limit) {
            return Ok(());
        }
        let number = state.dialing.start(now);
        let pool = Arc::clone(self);
        let spawned = self.connector.dialers.spawn(move || pool.dial(number));
        spawned.map_err(|error| {
            state.dialing.came_back(number);
            state.dialing.stop();
            Error::Thread {
                name: DIALER,
                cause: Arc::new(error),
            }
        })
    }

    /// Makes connections until none is wanted.
    fn dial(&self, number: u64) {
        let mut state = self.state.lock();
        loop {
            let now = Instant::now();
            let pause = state.dialing.pause(now);
            if !state.wants_connection(self.cap) {
                return state.dialing.stop();
            }
            state.dialing.begin(number, now);
            if !pause.is_zero() {
                MutexGuard::unlocked(&mut state, || sleep(pause));
                if !state.dialing.came_back(number) {
                    return;
                }
                continue;
            }
            let made = MutexGuard::unlocked(&mut state, || self.connect());
            let is_current = state.dialing.came_back(number);
            let ends_waits = made.as_ref().is_err_and(ConnectError::ends_waits);
            match made {
                Ok(connection) if connection.generation == self.generation() => {
                    state.dialing.succeeded();
                    state.idle.push(connection);
                    if state.callers.is_empty() {
                        // The caller that requested it has another connection now, and a combined
                        // call may wait for a connection that does not come back.
                        state.dismiss_one();
                    }
                }
                // It leads to the previous master.
                Ok(connection) => MutexGuard::unlocked(&mut state, || drop(connection)),
                Err(connect_error) if is_current => {
                    state.dialing.failed(Instant::now(), connect_error)
                }
                // Another dialer has taken over; its result counts.
                Err(_) => {}
            }
            self.wake_all(&state);
            if !is_current {
                return;
            }
            if ends_waits {
                // All waiting calls fail with it. The next call starts a dialer, which first
                // pauses.
                return state.dialing.stop();
            }
        }
    }

    /// Makes one connection. A panic of the client library or of a user's logger counts as a
    /// failure: the dialer must free its place.
    fn connect(&self) -> Result<Connection, ConnectError> {
        let mut generation = self.generation();
        let made = catch_unwind(AssertUnwindSafe(|| {
            let moved = || {
                self.leave(generation);
                generation += 1;
            };
            let made = self.connector.connect(moved).map(|mut connection| {
                connection.generation = generation;
                connection
            });
            made.map_err(|error| {
                let server = self.connector.label.as_str();
                let text = library_text(&error);
                logging::debug!(server = server; "no connection to {server}: {text}");
                ConnectError {
                    is_final: is_final_at_logon(&error),
                    is_servers_fault: true,
                    cause: self.connector.no_connection(error),
                }
            })
        }));
        made.unwrap_or_else(|_| {
            Err(ConnectError {
                cause: Cause::text("connecting panicked"),
                is_final: false,
                is_servers_fault: true,
            })
        })
    }
}
