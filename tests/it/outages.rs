//! Promise: a call whose deadline passes in an outage is refused only if another client must
//! still hold the lock.

use std::thread;
use std::time::Duration;

use leasehold::{Client, ClientBuilder, Error, Taken};
use support::fair::{wait_for_queue_length, wait_for_refresh};
use support::{Server, eventually, ms};

support::tests![
    a_fair_key_that_outlasts_the_deadline_is_reported_held_after_a_refresh,
    one_of_several_keys_that_expires_in_an_outage_is_not_reported_held,
    a_key_that_expires_in_an_outage_is_not_reported_held,
    a_quorum_key_that_expires_in_an_outage_is_not_reported_held,
    a_fair_lock_that_expires_in_an_outage_is_not_reported_held,
    a_key_that_outlasts_the_deadline_is_reported_held,
    a_name_that_this_client_holds_is_reported_held,
    an_old_refusal_is_rechecked_before_the_deadline
];

/// The limit for events that must happen, generous for a slow machine.
const WAIT_LIMIT: Duration = ms(20_000);

fn builder() -> ClientBuilder {
    Client::builder().command_timeout(ms(500))
}

const KEY: &str = "lock:a";

/// The ttl of a key that outlasts every call.
const OUTLASTS: &str = "60000";

/// The ttl of a key that expires in the outage.
const EXPIRES: &str = "2000";

/// The time limit of the calls. Even on a slow machine, all of them wait, and a key with the ttl
/// [`EXPIRES`] expires, before it ends.
const LIMIT: Duration = ms(6_000);

/// Sets the lock's key on every server, as another client would.
fn set_foreign_lock(servers: &[Server]) {
    for server in servers {
        server.run("SET", &[KEY, "foreign", "PX", OUTLASTS]);
    }
}

/// Runs a call in several threads. Once all of them wait and have been refused with a key that
/// lasts `ttl_ms`, stops the servers. Returns for each thread whether it got the lock.
fn results_when_servers_stop<G>(
    servers: &[Server],
    client: &Client,
    ttl_ms: &str,
    callers: u64,
    call: impl Fn() -> Result<Result<G, Taken>, Error> + Sync,
) -> Vec<Result<bool, Error>> {
    let answers = thread::scope(|scope| {
        let call = || call().map(|guard| guard.is_ok());
        let calls: Vec<_> = (0..callers).map(|_| scope.spawn(call)).collect();
        eventually(WAIT_LIMIT, || client.stats().waiting == callers);
        for server in servers {
            server.wait_until_waiter_sleeps("lock_release:a");
        }
        refuse_again(servers, client, ttl_ms);
        servers.iter().for_each(Server::pause);
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    servers.iter().for_each(Server::resume);
    answers
}

/// Sets the key's ttl, and waits until the client's contender is refused again: it is woken, unless
/// this client has the name. Otherwise a caller that joined the queue late would know of no
/// refusal.
fn refuse_again(servers: &[Server], client: &Client, ttl_ms: &str) {
    let replies = || client.stats().command.count;
    let before = replies();
    for server in servers {
        server.run("PEXPIRE", &[KEY, ttl_ms]);
    }
    for server in servers {
        server.run("PUBLISH", &["lock_release:a", "anything"]);
    }
    eventually(WAIT_LIMIT, || replies() >= before + servers.len() as u64);
}

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
    let assert_not_reported = |callers| {
        let servers = [Server::start()];
        let client = builder().url(servers[0].url()).build().unwrap();
        set_foreign_lock(&servers);
        let call = || client.mutex("a").try_lock_for(LIMIT);
        assert_all_unreachable(results_when_servers_stop(
            &servers, &client, EXPIRES, callers, call,
        ));
    };
    thread::scope(|scope| {
        for callers in [1, 5] {
            scope.spawn(move || assert_not_reported(callers));
        }
    });
}

fn one_of_several_keys_that_expires_in_an_outage_is_not_reported_held() {
    let servers = [Server::start()];
    let client = builder().url(servers[0].url()).build().unwrap();
    set_foreign_lock(&servers);
    let call = || client.mutex_all(["a", "b"]).try_lock_for(LIMIT);
    assert_all_unreachable(results_when_servers_stop(
        &servers, &client, EXPIRES, 1, call,
    ));
}

fn a_fair_lock_that_expires_in_an_outage_is_not_reported_held() {
    let servers = [Server::start()];
    let client = builder().url(servers[0].url()).build().unwrap();
    set_foreign_lock(&servers);
    let call = || client.fair_mutex("a").try_lock_for(LIMIT);
    assert_all_unreachable(results_when_servers_stop(
        &servers, &client, EXPIRES, 3, call,
    ));
}

fn a_quorum_key_that_expires_in_an_outage_is_not_reported_held() {
    let servers = [(); 3].map(|()| Server::start());
    let urls = servers.each_ref().map(Server::url);
    let client = builder().quorum(urls).build().unwrap();
    set_foreign_lock(&servers);
    let call = || client.mutex("a").try_lock_for(LIMIT);
    assert_all_unreachable(results_when_servers_stop(
        &servers, &client, EXPIRES, 3, call,
    ));
}

fn a_key_that_outlasts_the_deadline_is_reported_held() {
    let servers = [Server::start()];
    let client = builder().url(servers[0].url()).build().unwrap();
    set_foreign_lock(&servers);
    let call = || client.mutex("a").try_lock_for(LIMIT);
    for answer in results_when_servers_stop(&servers, &client, OUTLASTS, 5, call) {
        assert!(matches!(answer, Ok(false)), "{answer:?}");
    }
}

/// The reply to a refresh says for how long the key lasts, like the one to the first command.
fn a_fair_key_that_outlasts_the_deadline_is_reported_held_after_a_refresh() {
    let servers = [Server::start()];
    let client = builder().url(servers[0].url()).build().unwrap();
    set_foreign_lock(&servers);
    let mutex = client.fair_mutex("a");
    thread::scope(|scope| {
        let call = || mutex.try_lock_for(LIMIT).map(|guard| guard.is_ok());
        let calls = [(); 3].map(|()| scope.spawn(call));
        eventually(WAIT_LIMIT, || client.stats().waiting == 3);
        wait_for_queue_length(&servers[0], 3);
        wait_for_refresh(&client);
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
    let call = || client.mutex("a").try_lock_for(LIMIT);
    for answer in results_when_servers_stop(&servers, &client, OUTLASTS, 5, call) {
        assert!(matches!(answer, Ok(false)), "{answer:?}");
    }
    // The server has just gone on. Until it has replied, a release does not wait for it.
    eventually(WAIT_LIMIT, || client.mutex("b").try_lock().is_ok());
    guard.unlock().unwrap();
}

fn an_old_refusal_is_rechecked_before_the_deadline() {
    let servers = [Server::start()];
    let client = builder()
        .url(servers[0].url())
        .queues(false)
        .build()
        .unwrap();
    set_foreign_lock(&servers);
    thread::scope(|scope| {
        // Each has time for the lock after the one before it.
        let calls = [0, 1_000, 2_000].map(|later| {
            let (mutex, limit) = (client.mutex("a"), LIMIT + ms(later));
            scope.spawn(move || mutex.try_lock_for(limit).unwrap().is_ok())
        });
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
