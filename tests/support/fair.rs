//! A fair lock, `a`: its queue as the server has it, and those who wait in it.

use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use leasehold::{Client, FairMutex, MutexGuard, Unlocked};

use super::proxy::Proxy;
use super::server::Server;
use super::time::{eventually, ms};

pub const QUEUE: &str = "leasehold:queue:{lock:a}";
pub const PLACES: &str = "leasehold:places:{lock:a}";

/// Long enough for anything that is to come, and short enough for a test that fails.
pub const PATIENCE: Duration = ms(30_000);

pub fn holder(server: &Server) -> Option<String> {
    Some(String::from_utf8(server.get("lock:a")?).expect("an id of ours"))
}

pub fn queue_length(server: &Server) -> usize {
    redis::cmd("LLEN")
        .arg(QUEUE)
        .query(&mut server.connection())
        .expect("LLEN answers")
}

#[track_caller]
pub fn wait_for_queue_length(server: &Server, count: usize) {
    eventually(PATIENCE, || queue_length(server) == count);
}

/// All that is left in Redis, of any name, is fences.
pub fn only_fences_remain(server: &Server) -> bool {
    let mut keys = server.keys().into_iter();
    keys.all(|key| key.starts_with(b"leasehold:fence:"))
}

#[track_caller]
pub fn wait_until_only_fences_remain(server: &Server) {
    eventually(ms(5_000), || only_fences_remain(server));
}

#[track_caller]
pub fn unlock(guard: MutexGuard) {
    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
}

/// The client, which has taken a lock by now, so that nothing but the lock itself is left to be sent.
pub fn warmed_up(client: Client) -> Client {
    unlock(client.fair_mutex("warm").lock().unwrap());
    client
}

/// Waits for its turn, but not for ever if the test has failed.
#[track_caller]
pub fn lock_in_turn(mutex: &FairMutex) -> MutexGuard {
    let guard = mutex.try_lock_for(PATIENCE).unwrap();
    guard.expect("its turn comes")
}

/// Waits in a thread of its own, and is in the queue when this returns.
pub fn spawn_waiter<'scope>(
    scope: &'scope Scope<'scope, '_>,
    server: &Server,
    mutex: FairMutex,
) -> ScopedJoinHandle<'scope, MutexGuard> {
    let before = queue_length(server);
    let waiting = scope.spawn(move || lock_in_turn(&mutex));
    wait_for_queue_length(server, before + 1);
    waiting
}

/// And hears.
pub fn spawn_subscribed_waiter<'scope>(
    scope: &'scope Scope<'scope, '_>,
    server: &Server,
    mutex: FairMutex,
) -> ScopedJoinHandle<'scope, MutexGuard> {
    let waiting = spawn_waiter(scope, server, mutex);
    server.wait_until_waiter_sleeps("lock_release:a");
    waiting
}

/// The connection over which the proxy's only client hears.
#[track_caller]
pub fn subscription_connection(proxy: &Proxy) -> usize {
    let hears = proxy.connections_that_sent("SUBSCRIBE");
    assert_eq!(hears.len(), 1);
    hears[0]
}

/// How often the client's waiter has asked by itself.
pub fn refresh_count(client: &Client) -> u64 {
    client.stats().totals.wakes_backstop
}

/// Returns when the client's waiter has just asked by itself, and does not for a while: how often it has.
#[track_caller]
pub fn wait_for_refresh(client: &Client) -> u64 {
    let before = refresh_count(client);
    eventually(PATIENCE, || refresh_count(client) > before);
    refresh_count(client)
}
