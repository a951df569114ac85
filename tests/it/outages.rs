//! Promise: at its deadline in an outage a call says `None` only where somebody else must still hold the lock.

use std::thread;
use std::time::Duration;

use leasehold::{Client, ClientBuilder, Error};
use support::{Proxy, Server, eventually, ms};

support::tests![
    a_key_that_expires_while_redis_is_stopped_is_not_said_to_be_held,
    nor_is_one_of_several,
    nor_is_that_of_a_fair_lock,
    nor_is_that_of_a_quorum,
    a_key_that_outlasts_the_deadline_is_said_to_be_held,
    a_name_that_this_client_holds_is_said_to_be_held,
    an_old_refusal_is_asked_about_once_more_before_the_deadline,
    an_old_refusal_by_a_distant_server_is_asked_about_once_more
];

/// Long enough for anything that is to come.
const PATIENCE: Duration = ms(20_000);

/// So long that nobody looks around by itself.
const NO_BACKSTOP: Duration = ms(40_000);

fn builder() -> ClientBuilder {
    Client::builder().command_timeout(ms(500))
}

/// Has somebody else take the lock on every server.
fn take(servers: &[Server], ttl_ms: &str) {
    for server in servers {
        server.run("SET", &["lock:a", "foreign", "PX", ttl_ms]);
    }
}

/// Calls from several threads at once, and once all of them have been refused, and wait, stops the servers: whether each
/// got the lock.
fn stopped_while_they_wait<G>(
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
        eventually(PATIENCE, || client.stats().waiting == callers);
        servers.iter().for_each(Server::pause);
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    servers.iter().for_each(Server::resume);
    answers
}

const KEY_LASTS_MS: &str = "3000";

/// Longer than the key lasts.
const LIMIT: Duration = ms(5_000);

#[track_caller]
fn nobody_knows(answers: Vec<Result<bool, Error>>) {
    for answer in answers {
        assert!(
            matches!(&answer, Err(error) if error.is_unreachable()),
            "{answer:?}"
        );
    }
}

fn a_key_that_expires_while_redis_is_stopped_is_not_said_to_be_held() {
    let servers = [Server::start()];
    let client = builder().url(servers[0].url()).build().unwrap();
    for callers in [1, 5] {
        take(&servers, KEY_LASTS_MS);
        let call = || client.mutex("a").try_lock_for(LIMIT);
        nobody_knows(stopped_while_they_wait(&servers, &client, callers, call));
    }
}

fn nor_is_one_of_several() {
    let servers = [Server::start()];
    let client = builder().url(servers[0].url()).build().unwrap();
    take(&servers, KEY_LASTS_MS);
    let call = || client.mutex_all(["a", "b"]).try_lock_for(LIMIT);
    nobody_knows(stopped_while_they_wait(&servers, &client, 3, call));
}

fn nor_is_that_of_a_fair_lock() {
    let servers = [Server::start()];
    let client = builder().url(servers[0].url()).build().unwrap();
    take(&servers, KEY_LASTS_MS);
    let call = || client.fair_mutex("a").try_lock_for(LIMIT);
    nobody_knows(stopped_while_they_wait(&servers, &client, 3, call));
}

fn nor_is_that_of_a_quorum() {
    let servers = [(); 3].map(|()| Server::start());
    let urls = servers.each_ref().map(Server::url);
    let client = builder().quorum(urls).build().unwrap();
    take(&servers, KEY_LASTS_MS);
    let call = || client.mutex("a").try_lock_for(LIMIT);
    nobody_knows(stopped_while_they_wait(&servers, &client, 3, call));
}

fn a_key_that_outlasts_the_deadline_is_said_to_be_held() {
    let servers = [Server::start()];
    let client = builder().url(servers[0].url()).build().unwrap();
    take(&servers, "60000");
    let call = || client.mutex("a").try_lock_for(ms(3_000));
    for answer in stopped_while_they_wait(&servers, &client, 5, call) {
        assert!(matches!(answer, Ok(false)), "{answer:?}");
    }
}

fn a_name_that_this_client_holds_is_said_to_be_held() {
    let servers = [Server::start()];
    let client = builder().url(servers[0].url()).build().unwrap();
    let guard = client.mutex("a").ttl(ms(60_000)).lock().unwrap();
    let call = || client.mutex("a").try_lock_for(ms(3_000));
    for answer in stopped_while_they_wait(&servers, &client, 5, call) {
        assert!(matches!(answer, Ok(false)), "{answer:?}");
    }
    let _ = guard.unlock().unwrap();
}

fn an_old_refusal_is_asked_about_once_more_before_the_deadline() {
    let servers = [Server::start()];
    let client = builder()
        .url(servers[0].url())
        .backstop(NO_BACKSTOP)
        .build()
        .unwrap();
    take(&servers, "60000");
    thread::scope(|scope| {
        let call = || client.mutex("a").try_lock_for(ms(3_000)).unwrap().is_some();
        let calls = [(); 3].map(|()| scope.spawn(call));
        servers[0].wait_until_waiter_sleeps("lock_release:a");
        eventually(PATIENCE, || client.stats().waiting == 3);
        // Nobody is told of it.
        servers[0].run("DEL", &["lock:a"]);
        let got = calls.map(|call| call.join().unwrap());
        assert_eq!(
            got.iter().filter(|got| **got).count(),
            3,
            "one after the other"
        );
    });
}

fn an_old_refusal_by_a_distant_server_is_asked_about_once_more() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = builder().url(proxy.url()).backstop(NO_BACKSTOP);
    let client = client.command_timeout(ms(2_000)).build().unwrap();
    client.ping().unwrap();
    proxy.delay(ms(0), ms(150));
    take(std::slice::from_ref(&server), "60000");
    thread::scope(|scope| {
        let call = scope.spawn(|| client.mutex("a").try_lock_for(ms(5_000)).unwrap().is_some());
        server.wait_until_waiter_sleeps("lock_release:a");
        // One attempt before the call waits, one when it waits, and one when it is subscribed.
        eventually(PATIENCE, || client.stats().totals.attempts == 3);
        // Nobody is told of it.
        server.run("DEL", &["lock:a"]);
        assert!(call.join().unwrap());
    });
}
