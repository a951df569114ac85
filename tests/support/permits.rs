//! Helpers for tests of the semaphore `a`: its permits and its queue on the server.

use std::thread::{Scope, ScopedJoinHandle};

use leasehold::{Semaphore, SemaphorePermit};

use super::fair::{PATIENCE, granted, only_keys_remain, places_in, spawn_in_queue};
use super::server::Server;
use super::time::eventually;

pub const PERMITS: &str = "leasehold:permits:{lock:a}";
pub const PERMITS_QUEUE: &str = "leasehold:permits-queue:{lock:a}";
pub const PERMITS_PLACES: &str = "leasehold:permits-places:{lock:a}";
pub const PERMITS_FENCE: &str = "leasehold:permits-fence:{lock:a}";

/// The contents of a semaphore's sorted set.
#[derive(Debug, PartialEq, Eq)]
pub struct Set {
    /// The number of permits that are out, by the set's counter.
    pub out: u64,
    /// The holder ids, each with its number of permits.
    pub holders: Vec<(String, u64)>,
}

impl Set {
    /// Reads the set of a key.
    ///
    /// # Panics
    ///
    /// If its counter is not the sum of its holders' permits.
    #[track_caller]
    pub fn read(connection: &mut redis::Connection, key: &str) -> Self {
        let mut range = redis::cmd("ZRANGEBYSCORE");
        let members: Vec<(String, f64)> = range
            .arg(&[key, "-inf", "+inf", "WITHSCORES"])
            .query(connection)
            .expect("the set can be read");
        let (mut out, mut holders) = (0, Vec::new());
        for (member, score) in members {
            if member == "out" {
                out = (-score) as u64;
            } else {
                let (permits, _) = member.split_once(' ').expect("a number of permits");
                let permits = permits.parse().expect("a number of permits");
                holders.push((member, permits));
            }
        }
        let sum: u64 = holders.iter().map(|(_, permits)| permits).sum();
        assert_eq!(out, sum, "the counter of {holders:?}");
        Self { out, holders }
    }
}

/// Returns how many permits of the semaphore `a` are out.
#[track_caller]
pub fn permits_out(server: &Server) -> u64 {
    Set::read(&mut server.connection(), PERMITS).out
}

pub fn permits_queue_length(server: &Server) -> usize {
    places_in(server, PERMITS_QUEUE)
}

#[track_caller]
pub fn wait_for_permits_queue(server: &Server, count: usize) {
    eventually(PATIENCE, || permits_queue_length(server) == count);
}

/// Releases permits that must still be held.
#[track_caller]
pub fn give_back(permit: SemaphorePermit) {
    permit.release().unwrap();
}

/// Waits for permits for at most [`PATIENCE`].
#[track_caller]
pub fn acquire_in_turn(semaphore: &Semaphore) -> SemaphorePermit {
    granted(semaphore.try_acquire_for(PATIENCE))
}

/// Starts a thread that waits for permits, and returns once it is in the queue and its client
/// listens.
#[track_caller]
pub fn spawn_acquiring<'scope>(
    scope: &'scope Scope<'scope, '_>,
    server: &Server,
    semaphore: Semaphore,
) -> ScopedJoinHandle<'scope, SemaphorePermit> {
    let waiting = spawn_in_queue(scope, server, PERMITS_QUEUE, move || {
        acquire_in_turn(&semaphore)
    });
    server.wait_until_waiter_sleeps("leasehold:grants");
    waiting
}

/// Waits until a fence is the only key of the semaphore.
#[track_caller]
pub fn wait_until_only_permit_fences_remain(server: &Server) {
    eventually(PATIENCE, || {
        only_keys_remain(server, b"leasehold:permits-fence:")
    });
}
