//! Promise: if a server logs connections on more slowly than its clients make them, all of them get
//! one. A dial that takes long delays neither a shutdown nor another server.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, ClientBuilder};
use parking_lot::{Mutex, MutexGuard};
use support::{BlackHole, FakeServer, default_reply, eventually, let_pass, ms};

support::tests![
    all_clients_of_a_slow_server_get_a_connection,
    server_that_is_slower_than_the_timeout_is_reached,
    dial_goes_on_when_its_call_gives_up,
    shutdown_ends_a_long_dial
];

/// The limit for events that must happen, generous for a slow machine.
const WAIT_LIMIT: Duration = ms(20_000);

const CONNECT_TIMEOUT: Duration = ms(50);

fn builder(url: &str) -> ClientBuilder {
    Client::builder().url(url).connect_timeout(CONNECT_TIMEOUT)
}

/// Starts a server that replies to the first command of each connection when `log_on` returns.
fn server(log_on: impl Fn() + Send + Sync + 'static) -> FakeServer {
    FakeServer::with_writer(move |request, client| {
        if request.words.iter().any(|word| word == b"LIB-NAME") {
            log_on();
        }
        std::io::Write::write_all(client, &default_reply(request).unwrap_or_default())
    })
}

fn is_served(client: &Client) -> bool {
    client.ping().is_ok()
}

/// A connection that its client has given up takes as long as any other.
fn all_clients_of_a_slow_server_get_a_connection() {
    let line = Arc::new(Mutex::new(()));
    let server = server(move || {
        let first = line.lock();
        let_pass(ms(30));
        MutexGuard::unlock_fair(first);
    });
    let start = Instant::now();
    thread::scope(|scope| {
        for _ in 0..24 {
            let client = builder(&server.url()).build().unwrap();
            scope.spawn(move || eventually(WAIT_LIMIT, || is_served(&client)));
        }
    });
    let took = start.elapsed();
    assert!(took < WAIT_LIMIT / 2, "{took:?}");
}

fn server_that_is_slower_than_the_timeout_is_reached() {
    let server = server(|| let_pass(3 * CONNECT_TIMEOUT));
    let client = builder(&server.url()).build().unwrap();
    eventually(WAIT_LIMIT, || is_served(&client));
}

fn dial_goes_on_when_its_call_gives_up() {
    let server = server(|| let_pass(ms(300)));
    let client = Client::builder().url(server.url()).command_timeout(ms(50));
    let client = client.connect_timeout(WAIT_LIMIT).build().unwrap();
    assert!(!is_served(&client));
    eventually(WAIT_LIMIT, || is_served(&client));
    let log_ons = server.requests("CLIENT");
    assert!(log_ons.iter().all(|it| it.connection == 0), "{log_ons:?}");
}

fn shutdown_ends_a_long_dial() {
    let silent = BlackHole::start();
    let client = builder(&silent.url()).command_timeout(ms(100)).build();
    let client = client.unwrap();
    // By then, a dial may take 64 times the timeout.
    eventually(WAIT_LIMIT, || {
        assert!(!is_served(&client));
        silent.connections() >= 3
    });
    let start = Instant::now();
    let report = client.shutdown(ms(10_000));
    assert!(report.is_clean(), "{report:?}");
    assert!(start.elapsed() < ms(800), "{:?}", start.elapsed());
}
