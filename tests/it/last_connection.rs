//! Promise: a held lock needs no new connection while one works: it is renewed and released, and
//! other calls go on, although the server accepts no further connection.

use std::thread;
use std::time::Duration;

use leasehold::{Client, ClientBuilder, Error};
use redis::Connection;
use support::{Server, eventually, let_pass, ms};

support::tests![
    locks_are_renewed_and_released_while_maxclients_is_reached,
    locks_are_renewed_and_released_after_the_password_has_changed,
    locks_of_a_quorum_are_renewed_and_released_while_maxclients_is_reached,
    threads_share_the_last_connection,
    subscription_leaves_the_last_connection_to_the_holder
];

const TTL: Duration = ms(900);

const WAIT_LIMIT: Duration = ms(20_000);

fn builder(url: &str) -> ClientBuilder {
    let builder = Client::builder().url(url).ttl(TTL);
    // A breaker that the failures of new connections would open.
    builder.command_timeout(ms(1_000)).breaker(3)
}

/// Makes the server refuse further connections.
fn refuse_connections(control: &mut Connection) {
    let clients = info(control, "connected_clients");
    redis::cmd("CONFIG")
        .arg(&["SET", "maxclients", &clients])
        .exec(control)
        .unwrap();
}

fn info(control: &mut Connection, field: &str) -> String {
    let text: String = redis::cmd("INFO").arg("clients").query(control).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let value = line.and_then(|line| line.strip_prefix(':'));
    value.expect("INFO has the field").to_owned()
}

/// Holds a lock for longer than its ttl after `shut`, which makes the server accept no further
/// connection. Other calls must work meanwhile, and the release.
fn hold_without_connecting(client: &Client, shut: impl FnOnce()) {
    let guard = client.mutex("held").lock().unwrap();
    shut();
    let renewals = client.stats().totals.renewals_ok;
    eventually(WAIT_LIMIT, || {
        client.stats().totals.renewals_ok >= renewals + 6
    });
    assert!(guard.is_held());
    assert_eq!(client.stats().totals.renewals_failed, 0);
    assert!(client.mutex("held").try_lock().unwrap().is_err());
    let second = client.mutex("second").try_lock().unwrap();
    let second = second.expect("the lock is free");
    guard.unlock().unwrap();
    second.unlock().unwrap();
    assert_eq!(client.stats().open_breakers, 0);
}

fn locks_are_renewed_and_released_while_maxclients_is_reached() {
    let server = Server::start();
    let mut control = server.connection();
    let client = builder(&server.url()).build().unwrap();
    hold_without_connecting(&client, || refuse_connections(&mut control));
    // The server does refuse others.
    let refused = builder(&server.url())
        .build()
        .unwrap()
        .mutex("held")
        .try_lock();
    assert!(refused.is_err(), "{refused:?}");
    let permit = client.semaphore("permits", 2).acquire().unwrap();
    let writing = client.rw_lock("catalogue").write().unwrap();
    let set = client.mutex_all(["one", "two"]).lock().unwrap();
    let_pass(TTL);
    for unlocked in [permit.release(), writing.unlock(), set.unlock()] {
        unlocked.unwrap();
    }
}

fn locks_are_renewed_and_released_after_the_password_has_changed() {
    let server = Server::start();
    let mut control = server.connection();
    let client = builder(&server.url()).build().unwrap();
    hold_without_connecting(&client, || {
        redis::cmd("CONFIG")
            .arg(&["SET", "requirepass", "another"])
            .exec(&mut control)
            .unwrap();
    });
}

fn locks_of_a_quorum_are_renewed_and_released_while_maxclients_is_reached() {
    let servers = [(); 3].map(|()| Server::start());
    let hosts = servers
        .each_ref()
        .map(|it| format!("127.0.0.1:{}", it.port()));
    let mut controls = servers.each_ref().map(Server::connection);
    let client = builder(&format!("redis+quorum://{}", hosts.join(",")));
    let client = client.build().unwrap();
    hold_without_connecting(&client, || controls.iter_mut().for_each(refuse_connections));
}

fn threads_share_the_last_connection() {
    let server = Server::start();
    let mut control = server.connection();
    let client = builder(&server.url()).build().unwrap();
    let guard = client.mutex("held").lock().unwrap();
    refuse_connections(&mut control);
    let rounds = || {
        for n in 0..20 {
            let name = format!("{:?} {n}", thread::current().id());
            let outcome = client.mutex(name).lock().unwrap().unlock();
            outcome.unwrap();
        }
    };
    thread::scope(|scope| {
        (0..6).for_each(|_| drop(scope.spawn(rounds)));
    });
    guard.unlock().unwrap();
}

/// The subscriber of a waiting call wants a connection of its own, and gets none.
fn subscription_leaves_the_last_connection_to_the_holder() {
    let server = Server::start();
    let mut control = server.connection();
    let other = builder(&server.url()).build().unwrap();
    let taken = other.mutex("taken").lock().unwrap();
    let client = builder(&server.url()).build().unwrap();
    let guard = client.mutex("held").lock().unwrap();
    refuse_connections(&mut control);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| client.mutex("taken").lock().map(drop));
        let failed = || {
            client
                .health()
                .subscribers
                .iter()
                .any(|it| it.last_error.is_some())
        };
        eventually(WAIT_LIMIT, failed);
        assert!(client.health().servers[0].latency.is_some());
        guard.renew().unwrap();
        guard.unlock().unwrap();
        taken.unlock().unwrap();
        let outcome: Result<(), Error> = waiting.join().unwrap();
        outcome.unwrap();
    });
}
