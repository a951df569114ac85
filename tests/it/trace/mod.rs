//! Promise: keys, arguments, commands and replies on the wire match the recordings in this folder.

mod line;
mod one_server;
mod placeholders;
mod recording;
mod several_servers;
mod shared;

use std::time::Duration;

use leasehold::{Client, ClientBuilder};
use support::{Recorder, Server, ms};

use self::recording::Trace;

support::tests![
    one_server::undos_are_as_recorded,
    one_server::mutex_calls_are_as_recorded,
    one_server::log_on_is_as_recorded,
    one_server::mutex_all_calls_are_as_recorded,
    one_server::fair_mutex_calls_are_as_recorded,
    shared::semaphore_calls_are_as_recorded,
    shared::rw_lock_calls_are_as_recorded,
    one_server::shared_stats_are_as_recorded,
    one_server::min_replicas_calls_are_as_recorded,
    several_servers::quorum_calls_are_as_recorded,
    several_servers::cluster_calls_are_as_recorded,
    several_servers::sentinel_calls_are_as_recorded
];

const TTL: Duration = ms(60_000);
const LONGER: Duration = ms(120_000);

/// The time for `keep_for`. It is shorter than two command timeouts (10 s), which `keep_for` then
/// requests instead, so the recorded ttl is always the same. If the time were over before the call,
/// `keep_for` would release the lock instead.
const SHORT: Duration = ms(9_000);

/// Longer than any test, so that nothing happens on a timer.
const NEVER: Duration = ms(3_600_000);

fn recorded(server: &Server) -> Trace {
    Trace::of(vec![("server", Recorder::to(server.port()))])
}

/// Returns a builder for clients that send the same commands even on a slow machine, because no
/// call times out. Longer timeouts would delay the end of a client with an unreachable server.
fn builder() -> ClientBuilder {
    let patience = ms(5_000);
    let builder = Client::builder().owner("owner");
    let builder = builder.connect_timeout(patience).command_timeout(patience);
    builder.ttl(TTL)
}

fn client(trace: &Trace) -> Client {
    builder().url(trace.url()).build().unwrap()
}
