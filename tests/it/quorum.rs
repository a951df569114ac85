//! Promise: a quorum of names of one server is refused, and no vote is awaited for ever.

use leasehold::{Client, ClientBuilder, Error};
use support::{Proxy, Server, eventually, ms};

support::tests![
    hung_server_of_three_stops_no_name,
    lock_ends_if_the_votes_stay_split,
    three_names_of_one_server_are_refused,
    two_names_of_one_server_among_three_are_refused,
    names_that_become_one_server_are_refused_later,
    key_of_a_refused_call_is_released
];

fn builder(servers: &[&Proxy]) -> ClientBuilder {
    let urls = servers.iter().map(|proxy| proxy.url());
    Client::builder().quorum(urls).unreachable_for(ms(1_000))
}

/// Fails the test unless `error` names `count` of the proxies, and they are one server.
#[track_caller]
fn assert_names(error: &Error, proxies: &[&Proxy]) {
    assert!(matches!(error, Error::Config(_)), "{error:?}");
    let text = error.to_string();
    let names = |proxy: &&&Proxy| text.contains(&format!("127.0.0.1:{}", proxy.port()));
    assert_eq!(proxies.iter().filter(names).count(), 2, "{text}");
    assert!(text.contains("one server twice"), "{text}");
}

/// Asserts that every kind of call that a quorum supports fails, and names two of the proxies.
#[track_caller]
fn assert_refused(client: &Client, proxies: &[&Proxy]) {
    let limit = ms(10_000);
    let one = client.mutex("a");
    let all = client.mutex_all(["c", "d"]);
    for error in [
        refusal(|| one.lock().map(drop)),
        refusal(|| one.try_lock().map(drop)),
        refusal(|| one.try_lock_for(limit).map(drop)),
        refusal(|| all.lock().map(drop)),
        refusal(|| all.try_lock().map(drop)),
    ] {
        assert_names(&error, proxies);
    }
}

/// Returns the error of the call. On a busy machine, a call may have its majority long before the
/// last server is connected or has replied: then a later call finds the error.
#[track_caller]
fn refusal(call: impl Fn() -> Result<(), Error>) -> Error {
    let mut error = None;
    eventually(ms(10_000), || {
        error = call().err();
        error.is_some()
    });
    error.unwrap()
}

fn three_names_of_one_server_are_refused() {
    let server = Server::start();
    let [a, b, c] = [(); 3].map(|()| Proxy::new(&server));
    let names = [&a, &b, &c];
    assert_refused(&builder(&names).build().unwrap(), &names);
    let client = builder(&names).build().unwrap();
    let all = client.mutex_all(["c", "d"]);
    let error = refusal(|| all.lock().map(drop));
    assert_names(&error, &names);
}

fn two_names_of_one_server_among_three_are_refused() {
    let (server, other) = (Server::start(), Server::start());
    let [a, b] = [(); 2].map(|()| Proxy::new(&server));
    let c = Proxy::new(&other);
    for names in [[&a, &b, &c], [&c, &a, &b], [&a, &c, &b]] {
        let client = builder(&names).build().unwrap();
        assert_refused(&client, &[&a, &b]);
    }
}

/// The address of a member is given to another one while the client works.
fn names_that_become_one_server_are_refused_later() {
    let servers = [(); 3].map(|()| Server::start());
    let proxies = [0, 1, 2].map(|n| Proxy::new(&servers[n]));
    let [a, b, c] = &proxies;
    let client = builder(&[a, b, c]).build().unwrap();
    for _ in 0..3 {
        drop(client.mutex("a").lock().unwrap());
    }
    b.forward_to(a.port());
    b.cut();
    let error = refusal(|| client.mutex("a").lock().map(drop));
    assert_names(&error, &[a, b]);
}

fn key_of_a_refused_call_is_released() {
    let (server, other) = (Server::start(), Server::start());
    let [a, b] = [(); 2].map(|()| Proxy::new(&server));
    let c = Proxy::new(&other);
    let client = builder(&[&a, &b, &c]).build().unwrap();
    refusal(|| client.mutex("a").lock().map(drop));
    for server in [&server, &other] {
        let exists = || -> bool {
            let mut connection = server.connection();
            redis::cmd("EXISTS")
                .arg("lock:a")
                .query(&mut connection)
                .unwrap()
        };
        eventually(ms(5_000), || !exists());
    }
}

/// Each pair leaves an id at the hung server, whose command may run later: nobody asked for a
/// name with more than 1,000 of them until their time was over.
fn hung_server_of_three_stops_no_name() {
    let servers = [(); 3].map(|()| Server::start());
    let proxies = [0, 1, 2].map(|n| Proxy::new(&servers[n]));
    let client = Client::builder()
        .quorum(proxies.iter().map(Proxy::url))
        .command_timeout(ms(30_000))
        .build()
        .unwrap();
    let mutex = client.mutex("a");
    let pair = || {
        let guard = mutex.try_lock_for(ms(5_000)).unwrap();
        guard.expect("free").unlock().unwrap();
    };
    for _ in 0..10 {
        pair();
    }
    servers[2].pause();
    for _ in 0..1_200 {
        pair();
    }
    proxies[2].cut();
    for _ in 0..100 {
        pair();
    }
    servers[2].resume();
    for _ in 0..100 {
        pair();
    }
}

/// Foreign keys without an expiry, a different one on each server.
fn lock_ends_if_the_votes_stay_split() {
    let servers = [(); 3].map(|()| Server::start());
    let proxies = [0, 1, 2].map(|n| Proxy::new(&servers[n]));
    for (n, server) in servers.iter().enumerate() {
        let mut connection = server.connection();
        let set = redis::cmd("SET").arg("lock:a").arg(n).exec(&mut connection);
        set.unwrap();
    }
    let [a, b, c] = &proxies;
    let client = builder(&[a, b, c]).build().unwrap();
    let error = client.mutex("a").lock().unwrap_err();
    assert!(error.is_unreachable(), "{error:?}");
    assert!(
        error.to_string().contains("keys of several holders"),
        "{error}"
    );
    // On a busy machine, an attempt may get no reply in time.
    eventually(ms(10_000), || {
        matches!(client.mutex("a").try_lock(), Ok(Err(_)))
    });
}
