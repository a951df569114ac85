//! Promise: a logger that panics loses its own records, but no lease, guard or thread.

use std::cell::Cell;
use std::panic;
use std::sync::Once;
use std::thread;
use std::time::Duration;

use leasehold::{Client, ClientBuilder, Error, Lost};
use support::{Server, eventually, ms};

support::own_process![
    lease_is_renewed_after_its_renewal_was_logged,
    granted_lock_returns_its_guard,
    waiter_gets_its_guard,
    loss_is_reported,
];

const PATIENCE: Duration = ms(20_000);

const COMMAND_TIMEOUT: Duration = ms(250);

thread_local! {
    static PANICS_HERE: Cell<bool> = const { Cell::new(false) };
}

const PANIC_MESSAGE: &str = "of the logger";

/// A logger that panics on every thread of a client, and on test threads with `PANICS_HERE`.
struct PanickingLogger;

impl log::Log for PanickingLogger {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, _: &log::Record<'_>) {
        let thread = thread::current();
        let is_ours = thread
            .name()
            .is_some_and(|name| name.starts_with("leasehold-"));
        if is_ours || PANICS_HERE.get() {
            panic::panic_any(PANIC_MESSAGE);
        }
    }

    fn flush(&self) {}
}

fn builder(server: &Server) -> ClientBuilder {
    static SET: Once = Once::new();
    SET.call_once(|| {
        log::set_logger(&PanickingLogger).unwrap();
        log::set_max_level(log::LevelFilter::Trace);
        // The logger panics too often to print every panic.
        let default_hook = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if info.payload().downcast_ref() != Some(&PANIC_MESSAGE) {
                default_hook(info);
            }
        }));
    });
    Client::builder()
        .url(server.url())
        .ttl(ms(60_000))
        .command_timeout(COMMAND_TIMEOUT)
}

fn client(server: &Server) -> Client {
    builder(server).build().unwrap()
}

fn lease_is_renewed_after_its_renewal_was_logged() {
    let server = Server::start();
    let client = client(&server);
    let guard = client.mutex("a").renew_every(ms(50)).lock().unwrap();
    let renewed = || client.stats().totals.renewals_ok;
    eventually(PATIENCE, || renewed() > 3);
    // The server's failure is logged between sending a batch and reading its replies.
    server.pause();
    eventually(PATIENCE, || {
        matches!(client.mutex("b").try_lock(), Err(Error::CircuitOpen { .. }))
    });
    server.resume();
    let before = renewed();
    eventually(PATIENCE, || renewed() > before + 3);
    guard.unlock().unwrap();
}

fn granted_lock_returns_its_guard() {
    let server = Server::start();
    let client = client(&server);
    PANICS_HERE.set(true);
    let guard = client.mutex("a").lock().unwrap();
    assert!(client.mutex("a").try_lock().unwrap().is_err());
    guard.unlock().unwrap();
    drop(client.mutex("a").try_lock().unwrap().unwrap());
    drop(client.mutex_all(["a", "b"]).lock().unwrap());
    drop(client.fair_mutex("a").lock().unwrap());
    assert_eq!((server.get("lock:a"), server.get("lock:b")), (None, None));
}

fn waiter_gets_its_guard() {
    let server = Server::start();
    let clients = [client(&server), client(&server)];
    let guard = clients[0].mutex("a").lock().unwrap();
    thread::scope(|scope| {
        // Some waiters get the lock from a thread of their client, others from Redis.
        for client in clients.iter().cycle().take(6) {
            scope.spawn(|| {
                PANICS_HERE.set(true);
                let guard = client.mutex("a").lock().unwrap();
                guard.unlock().unwrap();
            });
        }
        eventually(PATIENCE, || {
            clients
                .iter()
                .map(|client| client.stats().waiting)
                .sum::<u64>()
                == 6
        });
        guard.unlock().unwrap();
    });
    assert_eq!(server.get("lock:a"), None);
}

fn loss_is_reported() {
    let server = Server::start();
    let client = client(&server);
    PANICS_HERE.set(true);
    let (report, losses) = crossbeam_channel::unbounded();
    let on_lost = move |lost: &Lost| report.send(*lost).unwrap();
    let mutex = client.mutex("a").renew_every(ms(50)).on_lost(on_lost);
    let guard = mutex.lock().unwrap();
    server.run("DEL", &["lock:a"]);
    assert_eq!(losses.recv_timeout(PATIENCE), Ok(Lost::Deleted));
    assert_eq!(guard.unlock().unwrap_err().lost(), Some(Lost::Deleted));
    drop(mutex.lock().unwrap());
    let report = client.shutdown(PATIENCE);
    assert!(report.is_clean(), "{report:?}");
}
