//! Promise: a call whose deadline passes in an outage returns `None` only if another client must
//! still hold the lock.

use std::thread;
use std::time::Duration;

use leasehold::{Client, ClientBuilder, Error};
use support::{Proxy, Server, eventually, ms};

support::tests![
    a_key_that_expires_in_an_outage_is_not_reported_held,
    one_of_several_keys_that_expires_in_an_outage_is_not_reported_held,
    a_fair_lock_that_expires_in_an_outage_is_not_reported_held,
    a_quorum_key_that_expires_in_an_outage_is_not_reported_held,
    a_key_that_outlasts_the_deadline_is_reported_held,
    a_fair_key_that_outlasts_the_deadline_is_reported_held_after_a_refresh,
    a_name_that_this_client_holds_is_reported_held,
    an_old_refusal_is_rechecked_before_the_deadline,
    an_old_refusal_by_a_distant_server_is_rechecked
];

/// The limit for events that must happen, generous for a slow machine.
const WAIT_LIMIT: Duration = ms(20_000);

/// Longer than any test, so that no waiter polls.
const NO_BACKSTOP: Duration = ms(40_000);

fn builder() -> ClientBuilder {
    Client::builder().command_timeout(ms(500))
}

/// Sets the lock's key on every server, as another client would.
fn set_foreign_lock(servers: &[Server], ttl_ms: &str) {
    for server in servers {
        server.run("SET", &["lock:a", "foreign", "PX", ttl_ms]);
    }
}

/// Runs a call in several threads, stops the servers once all of them wait, and returns for each
/// thread whether it got the lock.
fn results_when_servers_stop<G>(
    servers: &[Server],
    client: &Client,
    callers: u64,
    call: impl Fn() -> Result<Option<G>, Error> + Sync,
) -> Vec<Result<bool, Error>> {
    let answers = thread::scope(|scope| {
        let call = || call().map(|guard| guard.is_some());
        let calls: Vec<_> = (0..callers).map(|_| scope.spawn(call)).collect();
        for server in servers {
            server.wait_until_waiter_sleeps("lock_release:a");
        }
        eventually(WAIT_LIMIT, || client.stats().waiting == callers);
        servers.iter().for_each(Server::pause);
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    servers.iter().for_each(Server::resume);
    answers
}

const KEY_LASTS_MS: &str = "3000";

/// Longer than the key's lifetime.
const LIMIT: Duration = ms(5_000);

#[track_caller]
fn assert_all_unreachable(answers: Vec<Result<bool, Error>>) {
    for answer in answers {
        assert!(
            matches!(&answer, Err(error) if error.is_unreachable()),
            "{answer:?}"
        );
    }
}

fn a_key_that_expires_in_an_outage_is_not_reported_held() {
    let servers = [Server::start()];
    let client = builder().url(servers[0].url()).build().unwrap();
    for callers in [1, 5] {
        set_foreign_lock(&servers, KEY_LASTS_MS);
        let call = || client.mutex("a").try_lock_for(LIMIT);
        assert_all_unreachable(results_when_servers_stop(&servers, &client, callers, call));
    }
}

fn one_of_several_keys_that_expires_in_an_outage_is_not_reported_held() {
    let servers = [Server::start()];
    let client = builder().url(servers[0].url()).build().unwrap();
    set_foreign_lock(&servers, KEY_LASTS_MS);
    let call = || client.mutex_all(["a", "b"]).try_lock_for(LIMIT);
    assert_all_unreachable(results_when_servers_stop(&servers, &client, 3, call));
}

fn a_fair_lock_that_expires_in_an_outage_is_not_reported_held() {
    let servers = [Server::start()];
    let client = builder().url(servers[0].url()).build().unwrap();
    set_foreign_lock(&servers, KEY_LASTS_MS);
    let call = || client.fair_mutex("a").try_lock_for(LIMIT);
    assert_all_unreachable(results_when_servers_stop(&servers, &client, 3, call));
}

fn a_quorum_key_that_expires_in_an_outage_is_not_reported_held() {
    let servers = [(); 3].map(|()| Server::start());
    let urls = servers.each_ref().map(Server::url);
    let client = builder().quorum(urls).build().unwrap();
    set_foreign_lock(&servers, KEY_LASTS_MS);
    let call = || client.mutex("a").try_lock_for(LIMIT);
    assert_all_unreachable(results_when_servers_stop(&servers, &client, 3, call));
}

fn a_key_that_outlasts_the_deadline_is_reported_held() {
    let servers = [Server::start()];
    let client = builder().url(servers[0].url()).build().unwrap();
    set_foreign_lock(&servers, "60000");
    let call = || client.mutex("a").try_lock_for(ms(3_000));
    for answer in results_when_servers_stop(&servers, &client, 5, call) {
        assert!(matches!(answer, Ok(false)), "{answer:?}");
    }
}

/// The reply to a refresh says for how long the key lasts, like the one to the first command.
fn a_fair_key_that_outlasts_the_deadline_is_reported_held_after_a_refresh() {
    let servers = [Server::start()];
    let client = builder().url(servers[0].url()).build().unwrap();
    set_foreign_lock(&servers, "60000");
    let mutex = client.fair_mutex("a");
    thread::scope(|scope| {
        let call = || mutex.try_lock_for(LIMIT).map(|guard| guard.is_some());
        let calls = [(); 3].map(|()| scope.spawn(call));
        // A refresh that finds the lock held counts as a spurious wake-up.
        eventually(WAIT_LIMIT, || client.stats().totals.spurious_wakes > 0);
        eventually(WAIT_LIMIT, || client.stats().waiting == 3);
        servers[0].pause();
        for call in calls {
            let outcome = call.join().unwrap();
            assert!(matches!(outcome, Ok(false)), "{outcome:?}");
        }
    });
    servers[0].resume();
}

fn a_name_that_this_client_holds_is_reported_held() {
    let servers = [Server::start()];
    let client = builder().url(servers[0].url()).build().unwrap();
    let guard = client.mutex("a").ttl(ms(60_000)).lock().unwrap();
    let call = || client.mutex("a").try_lock_for(ms(3_000));
    for answer in results_when_servers_stop(&servers, &client, 5, call) {
        assert!(matches!(answer, Ok(false)), "{answer:?}");
    }
    let _ = guard.unlock().unwrap();
}

fn an_old_refusal_is_rechecked_before_the_deadline() {
    let servers = [Server::start()];
    let client = builder()
        .url(servers[0].url())
        .backstop(NO_BACKSTOP)
        .build()
        .unwrap();
    set_foreign_lock(&servers, "60000");
    thread::scope(|scope| {
        let call = || client.mutex("a").try_lock_for(ms(3_000)).unwrap().is_some();
        let calls = [(); 3].map(|()| scope.spawn(call));
        servers[0].wait_until_waiter_sleeps("lock_release:a");
        eventually(WAIT_LIMIT, || client.stats().waiting == 3);
        // Deleted without a message.
        servers[0].run("DEL", &["lock:a"]);
        let got = calls.map(|call| call.join().unwrap());
        assert_eq!(
            got.iter().filter(|got| **got).count(),
            3,
            "all of them, one after the other"
        );
    });
}

fn an_old_refusal_by_a_distant_server_is_rechecked() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = builder().url(proxy.url()).backstop(NO_BACKSTOP);
    let client = client.command_timeout(ms(2_000)).build().unwrap();
    client.ping().unwrap();
    proxy.delay(ms(0), ms(150));
    set_foreign_lock(std::slice::from_ref(&server), "60000");
    thread::scope(|scope| {
        let call = scope.spawn(|| client.mutex("a").try_lock_for(ms(5_000)).unwrap().is_some());
        server.wait_until_waiter_sleeps("lock_release:a");
        // One attempt before the call waits, one when it waits, and one when it is subscribed.
        eventually(WAIT_LIMIT, || client.stats().totals.attempts == 3);
        // Deleted without a message.
        server.run("DEL", &["lock:a"]);
        assert!(call.join().unwrap());
    });
}
