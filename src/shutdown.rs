//! The end of a client: all leases released, all threads joined, in a bounded time.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::kind::Found;
use crate::lease::Standing;
use crate::lost::Lost;
use crate::threads::Shared;
use crate::undo::Undo;

/// What [`Client::shutdown`](crate::Client::shutdown) did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShutdownReport {
    released: usize,
    already_lost: usize,
    unreleased: usize,
    woken: usize,
    is_joined: bool,
}

impl ShutdownReport {
    /// Leases that were held and are released.
    pub fn released(&self) -> usize {
        self.released
    }

    /// Leases that Redis no longer knew as ours.
    pub fn already_lost(&self) -> usize {
        self.already_lost
    }

    /// Leases whose release was not confirmed in time: their ttl ends them, or the longer one that an
    /// unanswered [`extend`](crate::MutexGuard::extend) asked for.
    pub fn unreleased(&self) -> usize {
        self.unreleased
    }

    /// Calls that waited for a lock and were sent away with [`Error::Closed`](crate::Error::Closed).
    pub fn woken(&self) -> usize {
        self.woken
    }

    /// Whether nothing is left behind: every release was confirmed and every thread has ended,
    /// but for the one that called if that is one of ours.
    pub fn is_clean(&self) -> bool {
        self.unreleased == 0 && self.is_joined
    }
}

/// Refuses new work, sends waiters away, releases what is held, and ends the threads.
pub(crate) fn shutdown(shared: &Shared, within: Duration) -> ShutdownReport {
    let deadline = Instant::now().after(within);
    if !shared.close() {
        return ShutdownReport {
            is_joined: true,
            ..ShutdownReport::default()
        };
    }
    // However short `within` is, what needs no answer from Redis is done.
    let last = deadline.max(Instant::now().after(shared.servers.command_timeout()));
    for (keys, id) in shared.waiters.places.leave_all() {
        shared.undo(Undo::of_release(keys, id, last));
    }
    let woken = shared.waiters.ring_all();
    // What the timer has in hand would be missing below; it does no I/O, so it ends at once.
    shared.timer.stop();
    let timer_is_joined = shared.timer.join(last);
    // Their holders are told first: nobody works on under a lock that is given away.
    let held = shared.timer.drain().into_iter().filter(|hold| {
        // One that has run out, unnoticed, was lost to that.
        hold.stand(Instant::now());
        hold.lose(Lost::ShutDown);
        shared.tell_loss(hold);
        // One whose holder lets go at this moment is its holder's to release.
        matches!(hold.stand(Instant::now()), Standing::Lost(Lost::ShutDown))
    });
    let held: Vec<_> = held.collect();
    let mut report = ShutdownReport {
        woken,
        unreleased: held.len(),
        ..ShutdownReport::default()
    };
    let answers = shared.release(held, last);
    while let Ok(found) = answers.recv_timeout(Instant::now().until(deadline)) {
        match found {
            Found::Ours => report.released += 1,
            Found::Nobody | Found::Another => report.already_lost += 1,
        }
        report.unreleased -= 1;
    }
    report.is_joined = timer_is_joined & stop(shared, last);
    log::debug!("shut down: {report:?}");
    report
}

/// Ends the threads; false if one did not end by `until` and was left to end by itself.
pub(crate) fn stop(shared: &Shared, until: Instant) -> bool {
    shared.close();
    shared.timer.stop();
    shared.switches.stop();
    shared.callbacks.stop();
    // Publishing to a server that says nothing must leave time for the others.
    let patience = Instant::now().until(until) / 4;
    let sites = shared.sites.all();
    for site in &sites {
        site.stop(Instant::now().after(patience / sites.len() as u32));
    }
    let mut joined = vec![
        shared.timer.join(until),
        shared.switches.join(until),
        shared.callbacks.join(until),
    ];
    joined.extend(sites.iter().map(|site| site.join(until)));
    shared.servers.close();
    joined.into_iter().all(|is_joined| is_joined)
}

/// What ends with the last client, lock or guard.
pub(crate) struct Core {
    pub(crate) shared: Arc<Shared>,
}

impl Drop for Core {
    fn drop(&mut self) {
        // After a shutdown there is nothing left to stop.
        if !self.shared.is_closed() {
            let until = Instant::now().after(self.shared.servers.command_timeout());
            stop(&self.shared, until);
        }
    }
}
