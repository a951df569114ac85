//! The shutdown of a client: releases all leases and joins all threads, in bounded time.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::logging;
use crate::runtime::Runtime;

/// The result of [`Client::shutdown`](crate::Client::shutdown).
///
/// ```
/// # use std::time::Duration;
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
/// let guard = client.mutex("nightly").lock()?;
/// let report = client.shutdown(Duration::from_secs(5));
/// assert_eq!(report.released, 1);
/// if !report.is_clean() {
///     eprintln!("{report}"); // 1 leases released, 0 already lost, …
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// How many leases were released: of a set, one for each name.
    pub released: usize,
    /// How many leases this client no longer held, according to Redis.
    ///
    /// Check what ran under them.
    pub already_lost: usize,
    /// How many leases have no confirmed release.
    ///
    /// Each of them ends after its ttl, or after a longer ttl that an unanswered
    /// [`set_ttl`](crate::Lease::set_ttl) asked for: after twice that time if a renewal or
    /// `set_ttl` got no reply. A lease that a call without a reply may have acquired counts,
    /// unless Redis has answered its undo.
    pub unreleased: usize,
    /// How many waiting calls failed with [`Error::Closed`](crate::Error::Closed).
    pub woken: usize,
    /// How many threads were still connecting to a server.
    ///
    /// Each of them ends by itself within
    /// [`connect_timeout`](crate::ClientBuilder::connect_timeout), or within twice that time with
    /// Sentinel. The system's name resolution can take longer: it cannot be interrupted.
    pub dialers: usize,
    /// Whether every other thread of the client has ended.
    ///
    /// If a callback called `shutdown`, its own thread does not count.
    pub is_joined: bool,
}

impl ShutdownReport {
    /// Returns whether every release was confirmed and every thread has ended.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let report = client.shutdown(Duration::from_secs(5));
    /// let exit_code = if report.is_clean() { 0 } else { 1 };
    /// # assert_eq!(exit_code, 0);
    /// ```
    pub fn is_clean(&self) -> bool {
        self.unreleased == 0 && self.is_joined && self.dialers == 0
    }
}

impl fmt::Display for ShutdownReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} leases released, {} already lost, {} without a confirmed release; {} calls woken",
            self.released, self.already_lost, self.unreleased, self.woken
        )?;
        if self.dialers > 0 {
            write!(f, "; {} threads still connect", self.dialers)?;
        }
        if self.is_joined {
            Ok(())
        } else {
            f.write_str("; not all threads have ended")
        }
    }
}

/// Refuses new calls, wakes all waiters, releases all leases, and ends the threads.
pub(crate) fn shutdown(runtime: &Runtime, within: Duration) -> ShutdownReport {
    let deadline = Instant::now().after(within);
    // The leases and threads of a forked client are those of the parent.
    let woken = if runtime.process.is_forked() {
        None
    } else {
        runtime.decide(|kernel, fx| kernel.await_releases(Instant::now(), fx));
        runtime.close()
    };
    let Some(woken) = woken else {
        return ShutdownReport {
            is_joined: true,
            ..ShutdownReport::default()
        };
    };
    // The end of all steps but one: the wait for the replies to the releases ends at `deadline`.
    // Even with a short `within`, the others have a command timeout.
    let last = deadline.max(Instant::now().after(runtime.deployment.command_timeout()));
    runtime.engine.wait_for_releases(deadline);
    let is_joined = stop(runtime, last);
    let (_, tally) = runtime.kernel.shutdown_tally();
    let report = ShutdownReport {
        released: tally.released,
        already_lost: tally.already_lost,
        unreleased: tally.unreleased + runtime.kernel.unconfirmed() + runtime.engine.may_exist(),
        woken,
        dialers: runtime.config.dialers.wait(last),
        is_joined,
    };
    logging::debug!("shut down: {report:?}");
    report
}

/// Ends the threads; returns false if one has not ended by `until` and was not joined.
pub(crate) fn stop(runtime: &Runtime, until: Instant) -> bool {
    runtime.close();
    runtime.engine.stop();
    runtime.endpoints.subscriber_thread.stop();
    let mut is_joined = runtime.engine.worker.join(until);
    is_joined &= runtime.endpoints.subscriber_thread.join(until);
    // Last: it logs for the others.
    runtime.callbacks.stop();
    is_joined &= runtime.callbacks.worker.join(until);
    runtime.deployment.close();
    is_joined
}

/// The state shared by clients, locks and guards; dropping the last of them ends the threads.
pub(crate) struct Core {
    pub(crate) runtime: Arc<Runtime>,
}

impl Drop for Core {
    fn drop(&mut self) {
        if self.runtime.process.is_forked() {
            // The child never drops the runtime: that would take locks, and detach threads that
            // do not exist in it.
            std::mem::forget(Arc::clone(&self.runtime));
            return;
        }
        // `shutdown` has already ended the threads.
        if !self.runtime.is_closed() {
            let timeout = self.runtime.deployment.command_timeout();
            stop(&self.runtime, Instant::now().after(timeout));
        }
    }
}
