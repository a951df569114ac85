//! Promise: an error names the server and what it last said, says each thing once, and says what to do.

use std::time::Duration;

use leasehold::{Client, ClientBuilder, Error};
use support::{BlackHole, Proxy, Server, Traffic, free_port, ms, refusing_url};

support::tests![
    unreachable_server_is_named_with_its_last_error,
    every_call_names_a_server_that_is_not_there,
    a_lock_that_gives_up_says_for_how_long_there_was_no_reply,
    a_lock_behind_an_open_breaker_says_what_the_server_last_said,
    a_peer_that_accepts_and_says_nothing_may_expect_tls,
    a_peer_that_closes_instead_of_a_reply_may_expect_tls,
    a_server_that_hangs_is_not_suspected_of_tls,
    a_name_that_does_not_resolve,
    a_wrong_password_and_none,
    a_server_with_too_many_clients_is_quoted,
    a_replica_and_a_full_server,
    servers_of_several_are_named,
    what_needs_no_outage,
    #[cfg(feature = "tls")]
    tls::a_plain_port_that_is_spoken_to_with_tls,
    #[cfg(feature = "tls")]
    tls::a_port_for_tls_that_is_spoken_to_without,
    #[cfg(feature = "tls")]
    tls::a_certificate_that_is_not_trusted
];

const COMMAND_TIMEOUT: Duration = ms(250);

fn builder(url: impl Into<String>) -> ClientBuilder {
    Client::builder()
        .url(url)
        .connect_timeout(COMMAND_TIMEOUT)
        .command_timeout(COMMAND_TIMEOUT)
}

fn client(url: impl Into<String>) -> Client {
    builder(url).build().unwrap()
}

/// The texts of an error and of its sources.
fn chain(error: &Error) -> Vec<String> {
    let mut texts = vec![error.to_string()];
    let mut next = std::error::Error::source(error);
    while let Some(source) = next {
        texts.push(source.to_string());
        next = source.source();
    }
    texts
}

/// Fails if a printed chain says anything twice, or more than one line. Returns what it says.
#[track_caller]
fn says_each_thing_once(error: &Error) -> String {
    let texts = chain(error);
    let printed = texts.join(": ");
    let mut parts: Vec<&str> = printed
        .split([':', ';', '(', ')'])
        .map(str::trim)
        .filter(|part| part.contains(char::is_alphabetic))
        .collect();
    let count = parts.len();
    parts.sort_unstable();
    parts.dedup();
    assert_eq!(parts.len(), count, "{printed}");
    for (n, text) in texts.iter().enumerate() {
        let others = texts.iter().enumerate().filter(|(other, _)| *other != n);
        for (_, other) in others {
            assert!(!other.contains(text.as_str()), "{texts:?}");
        }
        assert!(!text.contains('\n'), "{text}");
    }
    printed
}

#[track_caller]
fn try_lock(client: &Client) -> Error {
    client.mutex("a").try_lock().expect_err("an error")
}

#[track_caller]
fn place(url: &str) -> &str {
    url.rsplit(['/', '@']).next().unwrap()
}

fn unreachable_server_is_named_with_its_last_error() {
    let url = refusing_url();
    let text = says_each_thing_once(&try_lock(&client(&url)));
    let start = format!("no reply from {} for ", place(&url));
    assert!(text.starts_with(&start), "{text}");
    assert!(text.contains("(last: Connection refused"), "{text}");
}

fn every_call_names_a_server_that_is_not_there() {
    let url = refusing_url();
    let client = builder(&url).unreachable_for(ms(600)).build().unwrap();
    for error in [
        client.mutex("a").lock().unwrap_err(),
        client.mutex("a").try_lock_for(ms(300)).unwrap_err(),
        client.fair_mutex("a").try_lock().unwrap_err(),
        client.mutex_all(["a", "b"]).try_lock().unwrap_err(),
        client.ping().unwrap_err(),
        client.mutex("a").inspect().unwrap_err(),
        client.mutex("a").force_unlock().unwrap_err(),
    ] {
        let text = says_each_thing_once(&error);
        assert!(text.contains(place(&url)), "{text}");
        assert!(text.contains("Connection refused"), "{text}");
    }
}

fn a_lock_that_gives_up_says_for_how_long_there_was_no_reply() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = builder(proxy.url())
        .unreachable_for(ms(1_500))
        .build()
        .unwrap();
    let waiting = client.mutex("a");
    let held = waiting.lock().unwrap();
    let unlock = {
        proxy.set_all(Traffic::DropBoth);
        held.unlock().unwrap_err()
    };
    let lock = waiting.lock().unwrap_err();
    let start = format!("no reply from {} for ", place(&proxy.url()));
    for (error, seconds) in [
        (unlock, " ms"),
        (lock, " s (last: the peer accepted the connection"),
    ] {
        let text = says_each_thing_once(&error);
        assert!(text.starts_with(&start) && text.contains(seconds), "{text}");
    }
}

/// Every call of its own is turned away, so it reports the failure of another call.
fn a_lock_behind_an_open_breaker_says_what_the_server_last_said() {
    let url = refusing_url();
    let client = builder(&url)
        .breaker(1)
        .unreachable_for(ms(600))
        .build()
        .unwrap();
    try_lock(&client);
    let refused = try_lock(&client);
    assert!(matches!(refused, Error::CircuitOpen { .. }), "{refused:?}");
    let text = says_each_thing_once(&refused);
    assert!(text.contains("(last: Connection refused"), "{text}");
    let text = says_each_thing_once(&client.mutex("a").lock().unwrap_err());
    let start = format!("no reply from {} for ", place(&url));
    assert!(text.starts_with(&start), "{text}");
    assert!(text.contains("(last: Connection refused"), "{text}");
}

/// The first call and later ones: the connection that they wait for is accepted long before it fails.
fn a_peer_that_accepts_and_says_nothing_may_expect_tls() {
    let hole = BlackHole::start();
    let client = builder(hole.url())
        .unreachable_for(ms(600))
        .build()
        .unwrap();
    for error in [
        try_lock(&client),
        client.mutex("a").lock().unwrap_err(),
        client.ping().unwrap_err(),
    ] {
        let text = says_each_thing_once(&error);
        let place = format!("127.0.0.1:{}", hole.port());
        assert!(
            text.contains(&place) && text.contains("use rediss://"),
            "{text}"
        );
    }
}

fn a_peer_that_closes_instead_of_a_reply_may_expect_tls() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    proxy.set_all(Traffic::CutOnReply);
    let text = says_each_thing_once(&try_lock(&client(proxy.url())));
    assert!(
        text.contains("closed") && text.contains("use rediss://"),
        "{text}"
    );
    let cluster = proxy.url().replace("redis://", "redis+cluster://");
    let text = says_each_thing_once(&try_lock(&client(cluster)));
    assert!(
        text.contains("closed") && text.contains("use rediss://"),
        "{text}"
    );
}

/// It has replied before, so TLS is not what is missing.
fn a_server_that_hangs_is_not_suspected_of_tls() {
    let server = Server::start();
    let client = client(server.url());
    drop(client.mutex("a").lock().unwrap());
    server.pause();
    for _ in 0..3 {
        let text = says_each_thing_once(&try_lock(&client));
        assert!(!text.contains("rediss"), "{text}");
    }
}

fn a_name_that_does_not_resolve() {
    let text = says_each_thing_once(&try_lock(&client("redis://nowhere.invalid:7000")));
    assert!(text.contains("nowhere.invalid:7000"), "{text}");
}

fn a_wrong_password_and_none() {
    let server = Server::start();
    server.run("CONFIG", &["SET", "requirepass", "s3cret"]);
    let port = server.port();
    for url in [
        format!("redis://:wr0ng@127.0.0.1:{port}"),
        format!("redis://127.0.0.1:{port}"),
    ] {
        let error = try_lock(&client(url));
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        let text = says_each_thing_once(&error);
        assert!(
            text.contains(&format!("127.0.0.1:{port} refused ")),
            "{text}"
        );
        assert!(text.contains("assword"), "{text}");
        assert!(!text.contains("AuthenticationFailed"), "{text}");
    }
}

fn a_server_with_too_many_clients_is_quoted() {
    let server = Server::with(&["--maxclients", "1"]);
    let _only = server.connection();
    let text = says_each_thing_once(&try_lock(&client(server.url())));
    assert!(text.contains("max number of clients reached"), "{text}");
    assert!(text.contains(&server.port().to_string()), "{text}");
}

fn a_replica_and_a_full_server() {
    let server = Server::start();
    let replica = server.replica();
    let text = says_each_thing_once(&try_lock(&client(replica.url())));
    assert!(
        text.contains("READONLY") && text.contains("point the URL at the master"),
        "{text}"
    );
    server.run("CONFIG", &["SET", "maxmemory", "1"]);
    let text = says_each_thing_once(&try_lock(&client(server.url())));
    assert!(text.contains("OOM") && text.contains("maxmemory"), "{text}");
    assert!(text.contains(&server.port().to_string()), "{text}");
}

fn servers_of_several_are_named() {
    let (one, two) = (free_port(), free_port());
    let server = Server::start();
    let at = |port: u16| format!("redis://127.0.0.1:{port}");
    let quorum = Client::builder()
        .quorum([at(one), at(two), server.url()])
        .connect_timeout(COMMAND_TIMEOUT)
        .command_timeout(COMMAND_TIMEOUT)
        .build()
        .unwrap();
    let sentinel = format!("redis+sentinel://127.0.0.1:{one}/m");
    let cluster = format!("redis+cluster://127.0.0.1:{one}");
    for client in [quorum, client(sentinel), client(cluster)] {
        let text = says_each_thing_once(&try_lock(&client));
        assert!(text.contains(&format!("127.0.0.1:{one}")), "{text}");
        assert!(text.contains("Connection refused"), "{text}");
    }
}

fn what_needs_no_outage() {
    let server = Server::start();
    server.run("RPUSH", &["lock:list", "x"]);
    let client = client(server.url());
    let held = client.mutex("a").lock().unwrap();
    let lost = client.mutex("b").lock().unwrap();
    server.run("DEL", &["lock:b"]);
    let waits = leasehold::Backoff::new(ms(1), ms(1)).attempts(1);
    let wait = leasehold::WaitPolicy::Backoff(waits);
    for error in [
        client.mutex("list").try_lock().unwrap_err(),
        client.mutex("").try_lock().unwrap_err(),
        client.mutex("a").wait(wait).lock().unwrap_err(),
        client
            .mutex("c")
            .min_replicas(1, ms(10))
            .lock()
            .unwrap_err(),
        lost.renew().unwrap_err(),
        Client::open("redis://h:70000").unwrap_err(),
    ] {
        says_each_thing_once(&error);
    }
    drop(held);
    client.shutdown(ms(1_000)).unwrap();
    says_each_thing_once(&client.mutex("a").lock().unwrap_err());
}

#[cfg(feature = "tls")]
mod tls {
    use super::*;

    pub(super) fn a_plain_port_that_is_spoken_to_with_tls() {
        let server = Server::start();
        let hole = BlackHole::start();
        for port in [server.port(), hole.port()] {
            let url = format!("rediss://127.0.0.1:{port}");
            // The connection itself must succeed for the cause to be the missing handshake.
            let client = builder(url)
                .connect_timeout(ms(2_000))
                .command_timeout(ms(2_000));
            let text = says_each_thing_once(&try_lock(&client.build().unwrap()));
            assert!(text.contains(&port.to_string()), "{text}");
            assert!(text.contains("use redis://"), "{text}");
        }
    }

    pub(super) fn a_port_for_tls_that_is_spoken_to_without() {
        if !Server::has_tls() {
            println!("this server's binary has no TLS: nothing to check against");
            return;
        }
        let port = free_port();
        let _server = support::tls_server(port, "server");
        let text = says_each_thing_once(&try_lock(&client(format!("redis://localhost:{port}"))));
        assert!(text.contains("use rediss://"), "{text}");
    }

    pub(super) fn a_certificate_that_is_not_trusted() {
        if !Server::has_tls() {
            println!("this server's binary has no TLS: nothing to check against");
            return;
        }
        let port = free_port();
        let _server = support::tls_server(port, "server");
        let text = says_each_thing_once(&try_lock(&client(format!("rediss://localhost:{port}"))));
        assert!(
            text.contains(&format!("no TLS connection to localhost:{port}: ")),
            "{text}"
        );
        assert!(text.contains("tls_root"), "{text}");
    }
}
