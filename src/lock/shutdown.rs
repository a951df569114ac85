//! The shutdown of a client: releases all leases and joins all threads, in bounded time.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::lease::release::Release;
use crate::lease::status::LeaseStatus;
use crate::logging;
use crate::lost::Lost;
use crate::protocol::answer::KeyState;
use crate::queue::places::Places;
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
    /// How many leases were released.
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
    /// How many calls with a [`CancelToken`](crate::CancelToken) still waited for a reply.
    ///
    /// Each of them runs on its own thread. Cancelled calls count, although their callers have
    /// returned. Each call undoes what it has sent, and ends within two
    /// [command timeouts](crate::ClientBuilder::command_timeout).
    pub calls: usize,
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
        self.unreleased == 0 && self.is_joined && self.calls == 0 && self.dialers == 0
    }
}

impl fmt::Display for ShutdownReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} leases released, {} already lost, {} without a confirmed release; {} calls woken",
            self.released, self.already_lost, self.unreleased, self.woken
        )?;
        if self.calls > 0 {
            write!(f, "; {} calls still wait for a reply", self.calls)?;
        }
        if self.dialers > 0 {
            write!(f, "; {} threads still connect", self.dialers)?;
        }
        match self.is_joined {
            true => Ok(()),
            false => f.write_str("; not all threads have ended"),
        }
    }
}

/// Refuses new calls, wakes all waiters, releases all leases, and ends the threads.
pub(crate) fn shutdown(runtime: &Runtime, within: Duration) -> ShutdownReport {
    let deadline = Instant::now().after(within);
    // The leases and threads of a forked client are those of the parent.
    if runtime.process.is_forked() || !runtime.close() {
        return ShutdownReport {
            is_joined: true,
            ..ShutdownReport::default()
        };
    }
    // The end of all steps but one: the wait for the replies to the releases ends at `deadline`.
    // Even with a short `within`, the others have a command timeout.
    let last = deadline.max(Instant::now().after(runtime.deployment.command_timeout()));
    let waiters = &runtime.waiters;
    let places = [&waiters.own_places, &waiters.shared_places];
    let places = places.into_iter().flat_map(Places::leave_all);
    for (keys, id) in places.chain(waiters.sets.leave_all()) {
        runtime.release(Release::of_place(keys, id, last));
    }
    let woken = runtime.waiters.wake_all();
    // Holders are notified before the release, so that none continues under a lock that is already
    // free.
    let held = runtime.lose_all().into_iter().filter(|hold| {
        runtime.announce_loss(hold);
        // Leaves out a lease that its holder is releasing, and one that was lost before.
        matches!(
            hold.status(Instant::now()),
            LeaseStatus::Lost(Lost::ShutDown)
        )
    });
    let held: Vec<_> = held.collect();
    let mut report = ShutdownReport {
        woken,
        unreleased: held.len(),
        ..ShutdownReport::default()
    };
    let answers = runtime.release_all(&held, last);
    while let Ok(found) = answers.recv_timeout(Instant::now().until(deadline)) {
        match found {
            KeyState::Ours => report.released += 1,
            KeyState::Gone | KeyState::Foreign => report.already_lost += 1,
        }
        report.unreleased -= 1;
    }
    // The engine must outlive the calls: it undoes the commands of a call that fails.
    report.calls = end_calls(runtime, last);
    report.is_joined = stop(runtime, last);
    report.dialers = runtime.config.dialers.wait(last);
    report.unreleased += runtime.unconfirmed();
    logging::debug!("shut down: {report:?}");
    report
}

/// Waits for the calls that can be cancelled, at most until `until`; returns how many still run.
pub(crate) fn end_calls(runtime: &Runtime, until: Instant) -> usize {
    if runtime.calls.wait(Instant::START) > 0 {
        // A call without a connection has nothing to undo.
        runtime.deployment.end_connecting();
    }
    runtime.calls.wait(until)
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
            // Only cancelled calls still run, and their callers have returned. Such a call may yet
            // get a reply and release what it was granted. The engine undoes what fails, so it ends
            // after the calls.
            end_calls(
                &self.runtime,
                Instant::now().after(timeout.saturating_mul(2)),
            );
            stop(&self.runtime, Instant::now().after(timeout));
        }
    }
}

#[cfg(test)]
mod tests {
    use support::{Server, eventually, ms};

    use super::*;
    use crate::error::Cause;
    use crate::lease::held::tests::held_for_an_hour;
    use crate::lock::release::release;
    use crate::redis::IgnoredRelease;
    use crate::runtime::tests::runtime_of;

    const LONG: Duration = ms(60_000);

    /// In a cluster, a call may get its first refusal after the shutdown, and then subscribes.
    #[test]
    fn threads_started_after_the_shutdown_end() {
        let server = Server::start();
        let runtime = runtime_of(&server.url());
        assert!(shutdown(&runtime, LONG).is_clean());
        let keys = runtime.keys("a".into());
        drop(runtime.subscribe(keys.key(0)).unwrap());
        let owned_by_threads = Arc::downgrade(&runtime);
        drop(runtime);
        eventually(LONG, || owned_by_threads.strong_count() == 0);
    }

    /// An earlier release got no answer, and the threads that would repeat this one have ended.
    #[test]
    fn a_release_for_the_background_is_sent_after_the_shutdown() {
        let server = Server::start();
        let runtime = runtime_of(&server.url());
        assert!(shutdown(&runtime, LONG).is_clean());
        let now = Instant::now();
        let hold = held_for_an_hour(now);
        let mut set = redis::cmd("SET");
        set.arg("lock:a").arg(hold.id.as_str());
        set.exec(&mut server.connection()).unwrap();
        let ignored = IgnoredRelease {
            cause: Cause::silence("no reply"),
            was_refused: false,
        };
        (runtime.deployment).note_ignored_release(&hold.keys, now, &ignored);
        let outcome = release(&runtime, &hold, hold.token(), now, now.after(LONG));
        assert!(outcome.is_err(), "{outcome:?}");
        assert_eq!(server.get("lock:a"), None);
    }
}
