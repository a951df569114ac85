//! Helpers for tests of the fair lock `a`: its queue on the server, and its waiters.

use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use leasehold::{Client, Error, FairMutex, MutexGuard, Taken};

use super::outcome::assert_released;
use super::proxy::Proxy;
use super::server::Server;
use super::time::{eventually, ms};

pub const QUEUE: &str = "leasehold:queue:{lock:a}";
pub const PLACES: &str = "leasehold:places:{lock:a}";

/// The limit for everything that must happen; only a failing test waits this long.
pub const PATIENCE: Duration = ms(30_000);

/// Returns the lock `a` of a new client.
pub fn fair_mutex(server: &Server) -> FairMutex {
    server.client().fair_mutex("a")
}

/// Returns the holder id in the lock's key.
pub fn holder(server: &Server) -> Option<String> {
    Some(String::from_utf8(server.get("lock:a")?).expect("a holder id is UTF-8"))
}

/// Returns the number of places in the queue.
pub fn queue_length(server: &Server) -> usize {
    places_in(server, QUEUE)
}

/// Returns the number of places in the queue with this key.
pub fn places_in(server: &Server, queue: &str) -> usize {
    redis::cmd("LLEN")
        .arg(queue)
        .query(&mut server.connection())
        .expect("LLEN answers")
}

/// Adds a place at the end of the queue. It lasts for a minute.
pub fn push_place(server: &Server, id: &str, want: &str, mark_and_inbox: &str) {
    let now = server.micros() / 1_000;
    server.run("RPUSH", &[QUEUE, id]);
    let place = format!("{now} 60000 {want} {now} {mark_and_inbox}");
    server.run("HSET", &[PLACES, id, &place]);
}

#[track_caller]
pub fn wait_for_queue_length(server: &Server, count: usize) {
    eventually(PATIENCE, || queue_length(server) == count);
}

/// Returns whether fences are the only keys in Redis.
pub fn only_fences_remain(server: &Server) -> bool {
    only_keys_remain(server, b"leasehold:fence:")
}

/// Returns whether all keys in Redis start with this prefix.
pub fn only_keys_remain(server: &Server, prefix: &[u8]) -> bool {
    server.keys().iter().all(|key| key.starts_with(prefix))
}

#[track_caller]
pub fn wait_until_only_fences_remain(server: &Server) {
    eventually(PATIENCE, || only_fences_remain(server));
}

/// Returns the client once it has taken a lock: its connection is open and the scripts are loaded.
pub fn warmed_up(client: Client) -> Client {
    assert_released(client.fair_mutex("warm").lock().unwrap().unlock());
    client
}

/// Returns what a call with the limit [`PATIENCE`] was granted; fails the test if it gave up.
#[track_caller]
pub fn granted<T>(outcome: Result<Result<T, Taken>, Error>) -> T {
    outcome.unwrap().expect("the waiter gets its turn")
}

/// Waits for the lock for at most [`PATIENCE`].
#[track_caller]
pub fn lock_in_turn(mutex: &FairMutex) -> MutexGuard {
    granted(mutex.try_lock_for(PATIENCE))
}

/// Starts a thread that waits, and returns once it has a place in the queue with this key.
#[track_caller]
pub fn spawn_in_queue<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    server: &Server,
    queue: &str,
    wait: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    let before = places_in(server, queue);
    let waiting = scope.spawn(wait);
    eventually(PATIENCE, || places_in(server, queue) == before + 1);
    waiting
}

/// Starts a thread that waits for the lock, and returns once it is in the queue.
#[track_caller]
pub fn spawn_waiter<'scope>(
    scope: &'scope Scope<'scope, '_>,
    server: &Server,
    mutex: FairMutex,
) -> ScopedJoinHandle<'scope, MutexGuard> {
    spawn_in_queue(scope, server, QUEUE, move || lock_in_turn(&mutex))
}

/// Starts a waiter as [`spawn_waiter`] does, and returns once its client is subscribed.
pub fn spawn_subscribed_waiter<'scope>(
    scope: &'scope Scope<'scope, '_>,
    server: &Server,
    mutex: FairMutex,
) -> ScopedJoinHandle<'scope, MutexGuard> {
    let waiting = spawn_waiter(scope, server, mutex);
    server.wait_until_waiter_sleeps("lock_release:a");
    waiting
}

/// Returns the connection on which the proxy's only client is subscribed.
#[track_caller]
pub fn subscription_connection(proxy: &Proxy) -> usize {
    let subscribed = proxy.connections_that_sent("SUBSCRIBE");
    assert_eq!(subscribed.len(), 1);
    subscribed[0]
}

/// Returns how many commands the client has sent. While it only waits in a queue, the next ones are
/// refreshes of its places.
pub fn refresh_count(client: &Client) -> u64 {
    client.stats().command.count
}

/// Waits for the next refresh and returns their number. The one after it is a while away.
#[track_caller]
pub fn wait_for_refresh(client: &Client) -> u64 {
    let before = refresh_count(client);
    eventually(PATIENCE, || refresh_count(client) > before);
    refresh_count(client)
}
