//! The thread that makes the connections of a pool.

use std::cell::Cell;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, Thread};
use std::time::Duration;

use rustix::net::Shutdown;

use crate::clock::{Instant, nap};
use crate::connect_failure::ConnectFailure;
use crate::error::Cause;
use crate::error_reply::{is_final_at_logon, library_text};
use crate::logging;
use crate::redis::conn::connection::Connection;
use crate::redis::conn::dial::ConnectError;
use crate::redis::conn::pool::Pool;
use crate::redis::conn::pool_state::PoolState;
use crate::redis::conn::writable::MOST_COMPARISONS;
use crate::shortage::Shortage;
use crate::sync::MutexGuard;

impl Pool {
    /// Starts a dialer if a connection is wanted and no dialer works, or the working one hangs.
    ///
    /// Dialing has its own thread: name resolution and connecting to a unix socket may block for
    /// longer than a caller has time. If no thread can be started, records that as a failure, and
    /// returns when to try again.
    pub(super) fn ensure_dialer(
        self: &Arc<Self>,
        state: &mut PoolState,
        now: Instant,
    ) -> Option<Instant> {
        // Asking the sentinels may take the whole timeout, too.
        let timeout = self.connector.connect_timeout;
        let limit = timeout + state.dialing.limit(timeout) + Duration::from_millis(100);
        if !state.wants_connection(self.cap) {
            return None;
        }
        if !state.dialing.needs_dialer(now, limit) {
            // It may rest.
            state.sleeper.iter().for_each(Thread::unpark);
            return None;
        }
        let number = state.dialing.start(now);
        let pool = Arc::clone(self);
        let spawned = self.connector.dialers.spawn(move || pool.dial(number));
        let cause = Cause::of_shortage(spawned.err()?);
        state.dialing.stop();
        state.dialing.failed(now, ConnectError::of_client(cause));
        Some(now.after(state.dialing.pause(now)))
    }

    /// Makes connections until none is wanted, the dialer is abandoned, or a failure ends all
    /// waits.
    ///
    /// A dialer can be abandoned whenever the state is unlocked, even before it first runs.
    fn dial(self: &Arc<Self>, number: u64) {
        let mut state = self.state.lock();
        loop {
            let now = Instant::now();
            if !state.dialing.begin(number, now) {
                return;
            }
            if !state.wants_connection(self.cap) {
                let Some(at) = self.compares_at(&state) else {
                    return state.dialing.stop();
                };
                if now < at {
                    state.dialing.rests_until(at);
                    rest(&mut state, now.until(at));
                } else {
                    MutexGuard::unlocked(&mut state, || self.compare_idle());
                }
                continue;
            }
            let pause = state.dialing.pause(now);
            if !pause.is_zero() {
                rest(&mut state, pause);
                continue;
            }
            let soonest = state.soonest.take().unwrap_or(Instant::NEVER);
            let limit = state.dialing.limit(self.connector.connect_timeout);
            let made = MutexGuard::unlocked(&mut state, || self.make(number, soonest, limit));
            if state.dialing.is_current(number) {
                state.accepted = None;
            }
            let (has_failed, ends_waits) = match &made {
                Ok(_) => (false, false),
                Err(error) => (true, error.ends_waits()),
            };
            match made {
                Ok(connection) if self.has_use_for(&connection, &state) => {
                    self.add(connection, &mut state);
                }
                Ok(connection) => MutexGuard::unlocked(&mut state, || drop(connection)),
                Err(connect_error) if self.counts(number, &state) => {
                    state.dialing.failed(Instant::now(), connect_error)
                }
                Err(_) => {}
            }
            if has_failed {
                // The calls that were waiting may end with this failure.
                self.wake_all(&state)
            } else {
                // Thousands may wait for one connection.
                self.wake_next(&state)
            }
            if ends_waits && state.dialing.is_current(number) {
                // All waiting calls fail with this error. The next call starts a dialer, which
                // first pauses.
                return state.dialing.stop();
            }
        }
    }

    /// Adds a new connection to the pool.
    fn add(&self, connection: Connection, state: &mut PoolState) {
        state.dialing.connected(Instant::now());
        self.is_unproven.store(true, Ordering::Relaxed);
        if !connection.is_compared {
            state.comparisons = MOST_COMPARISONS;
        }
        state.idle.push(connection);
        state.offer_idle();
    }

    /// Returns whether a failure of the dialer counts. It does not if the dialer is abandoned, or
    /// if nobody can want its connection any more.
    fn counts(&self, number: u64, state: &PoolState) -> bool {
        state.dialing.is_current(number) && self.may_dial(state)
    }

    /// Returns false if the pool has given up the connection's generation, as after a failover.
    /// Also returns false if the pool is closed and no call waits: an idle connection of a closed
    /// pool would stay open.
    fn has_use_for(&self, connection: &Connection, state: &PoolState) -> bool {
        self.is_current(connection.generation) && self.may_dial(state)
    }

    /// Makes one connection, unless the address leads to two servers. A panic of the client library
    /// or of a user's logger counts as a failure: the dialer must free its place.
    fn make(
        self: &Arc<Self>,
        number: u64,
        soonest: Instant,
        limit: Duration,
    ) -> Result<Connection, ConnectError> {
        let made = catch_unwind(AssertUnwindSafe(|| {
            let connection = self.connect(number, soonest, limit)?;
            let checked = self.check_writable(connection);
            let checked = checked.map_err(|error| ConnectError::of_server(Cause::from(error)))?;
            let two = || Cause::text("two servers behind the address take writes");
            checked.ok_or_else(|| ConnectError::of_server(two()))
        }));
        made.unwrap_or_else(|_| {
            let cause = Cause::text("connecting panicked");
            Err(ConnectError::of_server(cause))
        })
    }

    fn connect(
        &self,
        number: u64,
        soonest: Instant,
        limit: Duration,
    ) -> Result<Connection, ConnectError> {
        let mut generation = self.generation();
        let is_accepted = Cell::new(false);
        let accepted = |socket: BorrowedFd<'_>| {
            is_accepted.set(true);
            self.accepted(number, socket);
        };
        let moved = || {
            generation = self.leave_for_new(generation);
            self.connector.moved();
        };
        let made = (self.connector).connect(soonest, limit, &accepted, moved);
        let mut connection = made.map_err(|error| {
            let server = self.connector.label.as_str();
            let text = library_text(&error);
            logging::debug!(server = server; "no connection to {server}: {text}");
            ConnectError {
                is_final: is_final_at_logon(&error),
                is_servers_fault: Shortage::of(&error).is_none()
                    && ConnectFailure::of(&error).is_none_or(ConnectFailure::is_servers_fault),
                is_unanswered: error.is_timeout() && is_accepted.get(),
                cause: self.connector.no_connection(error, limit),
            }
        })?;
        connection.generation = generation;
        Ok(connection)
    }

    /// Keeps the socket of a connection that the peer has accepted, so that another thread can end
    /// the dialer's wait for the log-on. Ends it at once if the dialer was abandoned, or the pool
    /// closed.
    fn accepted(&self, number: u64, socket: BorrowedFd<'_>) {
        let mut state = self.state.lock();
        if self.counts(number, &state) {
            // Without a descriptor left, the connection takes as long as it may.
            state.accepted = socket.try_clone_to_owned().ok();
        } else {
            end_log_on(socket);
        }
    }

    /// Ends the pause or the log-on of the dialer.
    pub(super) fn hurry_dialer(&self, state: &mut PoolState) {
        if let Some(sleeper) = state.sleeper.take() {
            sleeper.unpark();
        }
        if let Some(accepted) = state.accepted.take() {
            end_log_on(accepted.as_fd());
        }
    }
}

/// Sleeps for that long, or until another thread has something for the dialer to do.
fn rest(state: &mut MutexGuard<'_, PoolState>, time: Duration) {
    state.sleeper = Some(thread::current());
    let now = Instant::now();
    MutexGuard::unlocked(state, || thread::park_timeout(nap(now, now.after(time))));
}

/// Ends all waits for a socket.
fn end_log_on(socket: BorrowedFd<'_>) {
    // Fails if the peer has closed it.
    let _ = rustix::net::shutdown(socket, Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::net::TcpListener;
    use std::sync::atomic::AtomicUsize;
    use std::task::{Wake, Waker};

    use crate::config::Config;
    use crate::redis::conn::callers::{Cap, this_thread};
    use crate::redis::conn::connector::Connector;
    use crate::url::Address;

    const LONG: Duration = Duration::from_secs(60);

    /// Returns a listener, and a pool for `cap` connections to it.
    fn listener_and_pool(cap: usize) -> (TcpListener, Arc<Pool>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::parse(&format!("redis://{}", listener.local_addr().unwrap()));
        let connector = Connector::to_server(address.unwrap(), None, &Config::default());
        (listener, Arc::new(Pool::new(connector, cap)))
    }

    #[test]
    fn connection_made_for_nobody_after_the_close_is_closed() {
        let (listener, pool) = listener_and_pool(1);
        let request = pool.request(Instant::NEVER, this_thread());
        let mut server = listener.accept().unwrap().0;
        drop(request);
        pool.close();
        // The log-on succeeds.
        server.write_all(b"+OK\r\n+OK\r\n+OK\r\n").unwrap();
        assert_eq!(pool.connector.dialers.wait(Instant::now().after(LONG)), 0);
        assert_eq!(pool.state.lock().dialing.failed_times, 0);
        assert_eq!(pool.connector.connections(), 0);
    }

    #[test]
    fn dialer_abandoned_before_it_runs_ends_and_leaves_room_for_another() {
        let (_silent, pool) = listener_and_pool(1);
        pool.state.lock().callers.join(Cap::Exempt, this_thread());
        // More often than hanging dialers are replaced.
        for _ in 0..20 {
            // The new dialer cannot run before the lock is released.
            let mut state = pool.state.lock();
            assert!(pool.ensure_dialer(&mut state, Instant::now()).is_none());
            state.dialing.abandon_current();
        }
        assert_eq!(pool.connector.dialers.wait(Instant::now().after(LONG)), 0);
        let mut state = pool.state.lock();
        let now = Instant::now();
        state.dialing.start(now);
        assert!(state.dialing.needs_dialer(now.after(LONG), Duration::ZERO));
    }

    #[test]
    fn connection_that_was_made_wakes_one_waiter() {
        struct Woken(AtomicUsize);
        impl Wake for Woken {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let (listener, pool) = listener_and_pool(1);
        let woken = Arc::new(Woken(AtomicUsize::new(0)));
        for _ in 0..100 {
            let waker = Waker::from(Arc::clone(&woken));
            pool.state.lock().callers.join(Cap::Counted, waker);
        }
        let dialer = pool.ensure_dialer(&mut pool.state.lock(), Instant::now());
        assert!(dialer.is_none(), "it has started");
        let mut server = listener.accept().unwrap().0;
        server.write_all(b"+OK\r\n+OK\r\n+OK\r\n").unwrap();
        assert_eq!(pool.connector.dialers.wait(Instant::now().after(LONG)), 0);
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
    }

    /// There is room to dial for the second waiter, and its wake-up went to the first.
    #[test]
    fn waiter_that_gets_a_connection_wakes_the_next_one() {
        let (listener, pool) = listener_and_pool(2);
        let accepting = thread::spawn(move || {
            [(); 2].map(|()| {
                let mut stream = listener.accept().unwrap().0;
                stream.write_all(b"+OK\r\n+OK\r\n+OK\r\n").unwrap();
                stream
            })
        });
        let acquire = |pool: &Arc<Pool>| {
            let pooled = pool.acquire_connection(Instant::now().after(LONG), Cap::Counted);
            pooled
                .unwrap_or_else(|_| panic!("it is accepted"))
                .into_connection()
        };
        let [failed, returned] = [acquire(&pool), acquire(&pool)];
        let _streams = accepting.join().unwrap();
        let first = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || acquire(&pool))
        };
        while pool.state.lock().callers.is_empty() {
            thread::yield_now();
        }
        let mut state = pool.state.lock();
        state.callers.join(Cap::Counted, this_thread());
        // Before the first waiter runs, one connection is closed and the other is put back.
        drop(failed);
        pool.vacated(&mut state);
        state.put_back(returned);
        pool.wake_next(&state);
        drop(state);
        let _taken = first.join().unwrap();
        let until = Instant::now().after(LONG);
        thread::park_timeout(LONG);
        assert!(Instant::now() < until, "the second waiter was not woken");
    }
}
