//! Promise: a change of ttl that runs late ends no lease that its holder counts on.

use std::time::Duration;

use leasehold::{Client, ClientBuilder, MutexGuard};
use support::{Proxy, Server, Traffic, eventually, expect_unreachable, ms};

support::tests![
    shortening_that_a_server_of_a_quorum_runs_late_leaves_no_second_holder,
    slow_server_of_a_quorum_limits_no_later_ttl,
    kept_lock_that_may_end_early_is_told
];

const COMMAND_TIMEOUT: Duration = ms(500);

/// Long enough for the client to connect again to a server, even on a busy machine.
const SHORT: Duration = ms(6_000);

const LONG: Duration = ms(60_000);

/// Far longer than any step takes, even on a busy machine.
const PATIENCE: Duration = ms(20_000);

fn with_timeouts(builder: ClientBuilder) -> ClientBuilder {
    let builder = builder.ttl(LONG);
    let builder = builder.connect_timeout(COMMAND_TIMEOUT);
    builder.command_timeout(COMMAND_TIMEOUT)
}

fn quorum_of(proxies: &[Proxy; 3]) -> ClientBuilder {
    let builder = Client::builder().quorum(proxies.each_ref().map(Proxy::url));
    with_timeouts(builder)
}

/// Locks at all three servers. One that is slow to connect takes no part in a lock: the others
/// would then be needed for each later command.
fn lock_at_all(client: &Client, servers: &[Server; 3]) -> MutexGuard {
    let mutex = client.mutex("a").auto_renew(false);
    let mut locked = None;
    eventually(PATIENCE, || {
        drop(locked.take());
        let Ok(guard) = mutex.lock() else {
            return false;
        };
        // An earlier attempt may still have a key somewhere.
        let id = guard.holder_id().as_str().as_bytes().to_vec();
        locked = Some(guard);
        let mut keys = servers.iter().map(|server| server.get("lock:a"));
        keys.all(|key| key.as_ref() == Some(&id))
    });
    locked.expect("the wait above ends when it is locked")
}

/// Two of three servers confirm the shorter ttl. The third and one of these confirm the longer one,
/// and then the third runs the shorter one.
fn shortening_that_a_server_of_a_quorum_runs_late_leaves_no_second_holder() {
    let servers = [(); 3].map(|()| Server::start());
    let proxies = servers.each_ref().map(Proxy::new);
    let client = quorum_of(&proxies).build().unwrap();
    let guard = lock_at_all(&client, &servers);

    let [_, missing, late] = &proxies;
    let before = late.connections();
    late.set_open(Traffic::StallRequests);
    eventually(PATIENCE, || guard.set_ttl(SHORT).is_ok());
    // The longer ttl must not follow on the same connection.
    eventually(PATIENCE, || late.connections() > before);
    missing.set_all(Traffic::DropBoth);
    eventually(PATIENCE, || guard.set_ttl(LONG).is_ok());
    late.set_open(Traffic::Pass);
    missing.set_all(Traffic::Cut);
    missing.set_future(Traffic::Pass);

    let urls = servers.each_ref().map(Server::url);
    let other = with_timeouts(Client::builder().quorum(urls))
        .build()
        .unwrap();
    let next = other.mutex("a").lock().unwrap();
    assert!(!guard.is_held(), "{guard:?} and {next:?}");
}

fn slow_server_of_a_quorum_limits_no_later_ttl() {
    let servers = [(); 3].map(|()| Server::start());
    let proxies = servers.each_ref().map(Proxy::new);
    proxies[2].delay(ms(0), ms(50));
    let client = quorum_of(&proxies).command_timeout(PATIENCE);
    let client = client.build().unwrap();
    let guard = client
        .mutex("a")
        .auto_renew(false)
        .ttl(2 * LONG)
        .lock()
        .unwrap();
    guard.set_ttl(LONG / 2).unwrap();
    guard.set_ttl(LONG).unwrap();
    assert!(guard.remaining() > Some(LONG / 3 * 2), "{guard:?}");
}

fn kept_lock_that_may_end_early_is_told() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = with_timeouts(Client::builder().url(proxy.url()))
        .build()
        .unwrap();
    let guard = client.mutex("a").auto_renew(false).lock().unwrap();
    guard.renew().unwrap();
    proxy.set_open(Traffic::StallRequests);
    expect_unreachable(guard.set_ttl(SHORT));
    expect_unreachable(guard.keep_for(LONG));
    let left = || server.pttl("lock:a");
    assert!(left() > 50_000, "{} ms: the longer ttl is set", left());
    proxy.set_open(Traffic::Pass);
    eventually(PATIENCE, || left() <= SHORT.as_millis() as i64);
}
