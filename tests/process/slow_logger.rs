//! Promise: a logger or recorder that is slow delays no renewal, no loss and no wake-up.

use std::sync::Once;
use std::thread;
use std::time::Duration;

use leasehold::{Client, Lost};
use support::{Server, eventually, ms};

support::own_process![
    leases_are_renewed_while_the_logger_is_slow,
    losses_are_told_while_the_logger_is_slow,
    leases_outlast_an_outage_while_the_logger_is_slow,
];

const PATIENCE: Duration = ms(20_000);

/// Several times longer than a lease lasts without a renewal.
const SLOW: Duration = ms(5_000);

const TTL: Duration = ms(1_500);

/// Sleeps on the threads of a client. Their callers are slowed down by their own logger only.
fn sleep_on_client_threads() {
    let thread = thread::current();
    if thread
        .name()
        .is_some_and(|name| name.starts_with("leasehold-"))
    {
        thread::sleep(SLOW);
    }
}

struct SlowLogger;

impl log::Log for SlowLogger {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, _: &log::Record<'_>) {
        sleep_on_client_threads();
    }

    fn flush(&self) {}
}

#[cfg(feature = "metrics")]
mod recorder {
    use metrics::{
        Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    };

    use super::sleep_on_client_threads;

    pub(super) struct SlowRecorder;

    impl Recorder for SlowRecorder {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
            sleep_on_client_threads();
            Counter::noop()
        }

        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::noop()
        }

        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::noop()
        }
    }
}

fn client(server: &Server) -> Client {
    static SET: Once = Once::new();
    SET.call_once(|| {
        log::set_logger(&SlowLogger).unwrap();
        log::set_max_level(log::LevelFilter::Trace);
        #[cfg(feature = "metrics")]
        metrics::set_global_recorder(recorder::SlowRecorder).unwrap();
    });
    let builder = Client::builder().url(server.url()).ttl(TTL);
    builder.command_timeout(ms(500)).build().unwrap()
}

/// Counters are exported after two seconds, each renewal is logged.
fn leases_are_renewed_while_the_logger_is_slow() {
    let server = Server::start();
    let client = client(&server);
    let guard = client.mutex("a").ttl(ms(900)).renew_every(ms(200));
    let guard = guard.lock().unwrap();
    // The last of them are sent after an export.
    eventually(PATIENCE, || client.stats().totals.renewals_ok >= 13);
    assert!(guard.lost().try_recv().is_err());
    guard.ensure_held().unwrap();
}

fn losses_are_told_while_the_logger_is_slow() {
    let server = Server::start();
    let client = client(&server);
    let guards = ["a", "b"].map(|name| client.mutex(name).lock().unwrap());
    let losses = guards.each_ref().map(|guard| guard.lost());
    eventually(PATIENCE, || client.stats().totals.renewals_ok > 0);
    server.run("DEL", &["lock:a", "lock:b"]);
    for lost in losses {
        assert_eq!(lost.recv_timeout(SLOW / 2), Ok(Lost::Deleted));
    }
}

/// The dialers log each failure, and the subscriber each connection.
fn leases_outlast_an_outage_while_the_logger_is_slow() {
    let mut server = Server::start();
    let client = client(&server);
    let guard = client.mutex("a").ttl(ms(60_000)).renew_every(ms(100));
    let guard = guard.lock().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| drop(client.mutex("a").try_lock_for(ms(4_000))));
        eventually(PATIENCE, || client.stats().waiting == 1);
        server.kill();
        eventually(PATIENCE, || client.stats().totals.renewals_failed > 2);
        server.restart();
        let lost = guard.lost().recv_timeout(SLOW / 2);
        // The waiter may have been faster than the renewal.
        assert!(matches!(lost, Ok(Lost::Deleted | Lost::Taken)), "{lost:?}");
    });
}
