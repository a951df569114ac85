//! Promise: an error names the server and its last failure, repeats nothing, and says what to do.

use std::thread;
use std::time::Duration;

use leasehold::{CancelToken, Client, ClientBuilder, Error};
use support::{
    BlackHole, Cluster, ClusterSetup, FakeSentinel, FakeServer, Proxy, Server, Traffic, free_port,
    ms, refusing_url, sentinel_url,
};

use crate::malformed::redirecting;

support::tests![
    unreachable_server_is_named_with_its_last_error,
    every_call_names_the_unreachable_server,
    cancellable_call_says_why_nothing_was_sent,
    error_says_how_long_there_was_no_reply,
    error_behind_an_open_breaker_quotes_the_last_failure,
    silent_peer_is_suspected_of_expecting_tls,
    closing_peer_is_suspected_of_expecting_tls,
    hanging_server_is_not_suspected_of_expecting_tls,
    unresolved_host_is_named,
    wrong_or_missing_password_is_reported_as_such,
    full_client_table_is_quoted,
    errors_of_a_replica_and_a_full_server_say_what_to_do,
    missing_command_of_a_script_is_named,
    missing_command_without_a_line_is_one_of_a_list,
    redirects_without_end_are_not_blamed_on_the_url,
    failing_server_of_several_is_named,
    server_of_a_bad_key_or_of_missing_replicas_is_named,
    errors_without_an_outage_repeat_nothing,
    #[cfg(feature = "tls")]
    tls::tls_on_a_plain_port_suggests_redis_url,
    #[cfg(feature = "tls")]
    tls::plain_connection_to_a_tls_port_suggests_rediss_url,
    #[cfg(feature = "tls")]
    tls::untrusted_certificate_suggests_tls_root
];

const COMMAND_TIMEOUT: Duration = ms(250);

fn builder(url: impl Into<String>) -> ClientBuilder {
    support::builder_within(url, COMMAND_TIMEOUT)
}

fn client(url: impl Into<String>) -> Client {
    builder(url).build().unwrap()
}

/// Returns a client for tests in which the server or the system replies, even if a busy machine
/// delays the reply.
fn patient_client(url: impl Into<String>) -> Client {
    let patience = ms(2_500);
    let builder = builder(url).connect_timeout(patience);
    builder.command_timeout(patience).build().unwrap()
}

/// Returns the messages of an error and of its sources.
fn chain(error: &Error) -> Vec<String> {
    let mut texts = vec![error.to_string()];
    let mut next = std::error::Error::source(error);
    while let Some(source) = next {
        texts.push(source.to_string());
        next = source.source();
    }
    texts
}

/// Asserts that no part of a printed error chain occurs twice and that each message is one line.
///
/// Returns the printed chain.
#[track_caller]
fn without_repetition(error: &Error) -> String {
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
fn address(url: &str) -> &str {
    url.rsplit(['/', '@']).next().unwrap()
}

fn unreachable_server_is_named_with_its_last_error() {
    let url = refusing_url();
    let text = without_repetition(&try_lock(&patient_client(&url)));
    let start = format!("could not connect to {} for ", address(&url));
    assert!(text.starts_with(&start), "{text}");
    assert!(text.contains("(last: Connection refused"), "{text}");
}

fn every_call_names_the_unreachable_server() {
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
        let text = without_repetition(&error);
        assert!(text.contains(address(&url)), "{text}");
        assert!(text.contains("Connection refused"), "{text}");
    }
}

/// The client sends a cancellable call in the background, and the call ends before that gives up.
fn cancellable_call_says_why_nothing_was_sent() {
    let (port, hole) = (free_port(), BlackHole::start());
    let sentinel = FakeSentinel::naming(port, Some(1));
    let server = Server::start();
    server.run("CONFIG", &["SET", "requirepass", "s3cret"]);
    let one = |url: String| Client::builder().url(url);
    let quorum = Client::builder().quorum([(); 3].map(|()| refusing_url()));
    let cluster = format!("redis+cluster://127.0.0.1:{port}");
    let cases = [
        (one(refusing_url()), "Connection refused"),
        (one(cluster), "Connection refused"),
        (quorum, "Connection refused"),
        (one(sentinel_url([sentinel.port()])), "the sentinels name"),
        (one(hole.url()), "use rediss://"),
        (one(server.url()), "assword"),
        (one("redis://nowhere.invalid:7000".into()), "(last: "),
    ];
    thread::scope(|scope| {
        for (builder, expected) in cases {
            scope.spawn(move || {
                let builder = builder
                    .command_timeout(ms(5_000))
                    .connect_timeout(ms(5_000));
                let client = builder.unreachable_for(ms(1_000)).build().unwrap();
                let mutex = client.mutex("a").cancel_on(&CancelToken::new());
                let text = without_repetition(&mutex.lock().unwrap_err());
                assert!(text.contains(expected), "expected {expected}: {text}");
            });
        }
    });
}

fn error_says_how_long_there_was_no_reply() {
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
    let start = format!("no reply from {} for ", address(&proxy.url()));
    for (error, seconds) in [
        (unlock, " ms"),
        (lock, " s (last: the peer accepted the connection"),
    ] {
        let text = without_repetition(&error);
        assert!(text.starts_with(&start) && text.contains(seconds), "{text}");
    }
}

/// The breaker rejects all attempts of the call, so its error quotes the failure of another call.
fn error_behind_an_open_breaker_quotes_the_last_failure() {
    let url = refusing_url();
    let client = builder(&url)
        .breaker(1)
        .unreachable_for(ms(600))
        .build()
        .unwrap();
    try_lock(&client);
    let refused = try_lock(&client);
    assert!(matches!(refused, Error::CircuitOpen { .. }), "{refused:?}");
    let text = without_repetition(&refused);
    assert!(text.contains("(last: Connection refused"), "{text}");
    let text = without_repetition(&client.mutex("a").lock().unwrap_err());
    let start = format!("could not connect to {} for ", address(&url));
    assert!(text.starts_with(&start), "{text}");
    assert!(text.contains("(last: Connection refused"), "{text}");
}

/// The peer accepts connections and never replies. The errors of the first call and of later ones
/// all suggest TLS.
fn silent_peer_is_suspected_of_expecting_tls() {
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
        let text = without_repetition(&error);
        let address = format!("127.0.0.1:{}", hole.port());
        assert!(
            text.contains(&address) && text.contains("use rediss://"),
            "{text}"
        );
    }
}

fn closing_peer_is_suspected_of_expecting_tls() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    proxy.set_all(Traffic::CutOnReply);
    let text = without_repetition(&try_lock(&patient_client(proxy.url())));
    assert!(
        text.contains("closed") && text.contains("use rediss://"),
        "{text}"
    );
    let cluster = proxy.url().replace("redis://", "redis+cluster://");
    let text = without_repetition(&try_lock(&patient_client(cluster)));
    assert!(
        text.contains("closed") && text.contains("use rediss://"),
        "{text}"
    );
}

/// The server has replied before, so missing TLS cannot be the cause.
fn hanging_server_is_not_suspected_of_expecting_tls() {
    let server = Server::start();
    let client = client(server.url());
    drop(client.mutex("a").lock().unwrap());
    server.pause();
    for _ in 0..3 {
        let text = without_repetition(&try_lock(&client));
        assert!(!text.contains("rediss"), "{text}");
    }
}

fn unresolved_host_is_named() {
    let text = without_repetition(&try_lock(&client("redis://nowhere.invalid:7000")));
    assert!(text.contains("nowhere.invalid:7000"), "{text}");
}

fn wrong_or_missing_password_is_reported_as_such() {
    let server = Server::start();
    server.run("CONFIG", &["SET", "requirepass", "s3cret"]);
    let port = server.port();
    for url in [
        format!("redis://:wr0ng@127.0.0.1:{port}"),
        format!("redis://127.0.0.1:{port}"),
    ] {
        let error = try_lock(&patient_client(url));
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        let text = without_repetition(&error);
        assert!(
            text.contains(&format!("127.0.0.1:{port} refused ")),
            "{text}"
        );
        assert!(text.contains("assword"), "{text}");
        assert!(!text.contains("AuthenticationFailed"), "{text}");
    }
}

fn full_client_table_is_quoted() {
    // A real server also closes the connection, which can reset it before the client has read the
    // text.
    let server = FakeServer::sending(b"-ERR max number of clients reached\r\n", false);
    let text = without_repetition(&try_lock(&patient_client(server.url())));
    assert!(text.contains("max number of clients reached"), "{text}");
    assert!(text.contains(&server.port().to_string()), "{text}");
}

fn errors_of_a_replica_and_a_full_server_say_what_to_do() {
    let server = Server::start();
    let replica = server.replica();
    let text = without_repetition(&try_lock(&patient_client(replica.url())));
    assert!(
        text.contains("READONLY") && text.contains("must name the master"),
        "{text}"
    );
    server.run("CONFIG", &["SET", "maxmemory", "1"]);
    let text = without_repetition(&try_lock(&patient_client(server.url())));
    assert!(text.contains("OOM") && text.contains("maxmemory"), "{text}");
    assert!(text.contains(&server.port().to_string()), "{text}");
}

/// A server with a renamed command, and managed services that forbid one in scripts.
fn missing_command_of_a_script_is_named() {
    let lacks = |command| Server::with(&["--rename-command", command, ""]);
    // A free lock needs neither PTTL nor GET.
    for (command, named) in [
        ("TIME", "GET or SET or TIME"),
        ("PTTL", "PTTL"),
        ("GET", "GET"),
    ] {
        let server = lacks(command);
        let _held = (command != "TIME").then(|| server.run("SET", &["lock:a", "x"]));
        let error = try_lock(&patient_client(server.url()));
        let text = without_repetition(&error);
        assert!(text.contains(&format!("the command {named},")), "{text}");
        assert!(text.contains("this server cannot be used"), "{text}");
        assert!(text.contains(&server.port().to_string()), "{text}");
        assert!(!error.is_retryable(), "{error:?}");
    }
    let server = lacks("RPUSH");
    let client = patient_client(server.url());
    let guard = client.mutex("a").lock().unwrap();
    let waiter = patient_client(server.url());
    let text = without_repetition(&waiter.mutex("a").lock().unwrap_err());
    assert!(text.contains("the command RPUSH,"), "{text}");
    drop(guard);
    let server = lacks("EVALSHA");
    let error = try_lock(&patient_client(server.url()));
    assert!(error.to_string().contains("EVALSHA") && !error.is_retryable());
}

/// The texts of other servers name no line of the script. It handles some errors itself, too.
fn missing_command_without_a_line_is_one_of_a_list() {
    let text = "ERR This Redis command is not allowed from script";
    let server = FakeServer::start(move |request| {
        let is_script = request.words[0].starts_with(b"EVAL");
        is_script.then(|| format!("-{text}\r\n").into_bytes())
    });
    let error = try_lock(&patient_client(server.url()));
    let said = without_repetition(&error);
    assert!(said.contains("the command GET or SET or TIME,"), "{said}");
    assert!(said.contains("this server cannot be used"), "{said}");
    assert_eq!(server.requests("acquire").len(), 1, "no second try");
}

fn redirects_without_end_are_not_blamed_on_the_url() {
    let node = redirecting("MOVED 5 127.0.0.1:{port}");
    let node = format!("127.0.0.1:{}", node.port());
    let text = without_repetition(&try_lock(&patient_client(format!(
        "redis+cluster://{node}"
    ))));
    assert!(text.contains("redirected again: MOVED 5"), "{text}");
    assert!(text.contains("CLUSTER SLOTS"), "{text}");
    assert!(!text.contains("use redis+cluster"), "{text}");
    let text = without_repetition(&try_lock(&patient_client(format!("redis://{node}"))));
    assert!(text.contains("use redis+cluster"), "{text}");
}

fn failing_server_of_several_is_named() {
    let (one, two) = (free_port(), free_port());
    let server = Server::start();
    let at = |port: u16| format!("redis://127.0.0.1:{port}");
    let quorum = Client::builder()
        .quorum([at(one), at(two), server.url()])
        .connect_timeout(ms(1_000))
        .command_timeout(ms(1_000))
        .build()
        .unwrap();
    let sentinel = format!("redis+sentinel://127.0.0.1:{one}/m");
    let cluster = format!("redis+cluster://127.0.0.1:{one}");
    for client in [quorum, patient_client(sentinel), patient_client(cluster)] {
        let text = without_repetition(&try_lock(&client));
        assert!(text.contains(&format!("127.0.0.1:{one}")), "{text}");
        assert!(text.contains("Connection refused"), "{text}");
    }
}

#[track_caller]
fn assert_named(error: &Error, port: u16) {
    let address = format!("127.0.0.1:{port}");
    assert_eq!(error.server(), Some(&*address), "{error:?}");
    let text = without_repetition(error);
    assert!(text.contains(&address), "{text}");
}

fn server_of_a_bad_key_or_of_missing_replicas_is_named() {
    let one = Server::start();
    one.run("RPUSH", &["lock:list", "x"]);
    one.run("SET", &["leasehold:fence:{lock:a}", "x"]);
    let client = patient_client(one.url());
    let replicated = client.mutex("b").min_replicas(1, ms(10));
    for error in [
        client.mutex("list").try_lock().unwrap_err(),
        client.mutex("list").inspect().unwrap_err(),
        client.mutex("a").lock().unwrap_err(),
        client.mutex("a").last_fencing_token().unwrap_err(),
        client.mutex_all(["b", "list"]).lock().unwrap_err(),
        replicated.lock().unwrap_err(),
    ] {
        assert_named(&error, one.port());
    }

    let cluster = Cluster::with(ClusterSetup::steady(3, 0));
    let client = patient_client(cluster.url());
    for n in 0..3 {
        let node = cluster.node(n);
        let name = cluster.name_owned_by("a", n);
        node.run("SET", &[&format!("leasehold:fence:{{lock:{name}}}"), "x"]);
        let error = client.mutex(&name).lock().unwrap_err();
        assert!(matches!(error, Error::BadFence { .. }), "{error:?}");
        assert_named(&error, node.port());
    }
}

fn errors_without_an_outage_repeat_nothing() {
    let server = Server::start();
    server.run("RPUSH", &["lock:list", "x"]);
    let client = patient_client(server.url());
    let held = client.mutex("a").lock().unwrap();
    let lost = client.mutex("b").lock().unwrap();
    server.run("DEL", &["lock:b"]);
    let waits = leasehold::Backoff::new(ms(1), ms(1)).attempts(1);
    let wait = leasehold::WaitPolicy::Backoff(waits);
    for error in [
        client.mutex("list").try_lock().unwrap_err(),
        client.mutex("").try_lock().unwrap_err(),
        client.mutex("a").wait_policy(wait).lock().unwrap_err(),
        client
            .mutex("c")
            .min_replicas(1, ms(10))
            .lock()
            .unwrap_err(),
        lost.renew().unwrap_err(),
        Client::open("redis://h:70000").unwrap_err(),
    ] {
        without_repetition(&error);
    }
    drop(held);
    client.shutdown(ms(1_000));
    without_repetition(&client.mutex("a").lock().unwrap_err());
}

#[cfg(feature = "tls")]
mod tls {
    use super::*;

    pub(super) fn tls_on_a_plain_port_suggests_redis_url() {
        let server = Server::start();
        let hole = BlackHole::start();
        for port in [server.port(), hole.port()] {
            let url = format!("rediss://127.0.0.1:{port}");
            // The connection itself must succeed for the cause to be the missing handshake.
            let client = builder(url)
                .connect_timeout(ms(2_000))
                .command_timeout(ms(2_000));
            let text = without_repetition(&try_lock(&client.build().unwrap()));
            assert!(text.contains(&port.to_string()), "{text}");
            assert!(text.contains("use redis://"), "{text}");
        }
    }

    pub(super) fn plain_connection_to_a_tls_port_suggests_rediss_url() {
        if Server::lacks_tls() {
            return;
        }
        let port = free_port();
        let _server = support::tls_server(port, "server");
        let text = without_repetition(&try_lock(&patient_client(format!(
            "redis://localhost:{port}"
        ))));
        assert!(text.contains("use rediss://"), "{text}");
    }

    pub(super) fn untrusted_certificate_suggests_tls_root() {
        if Server::lacks_tls() {
            return;
        }
        let port = free_port();
        let _server = support::tls_server(port, "server");
        let text = without_repetition(&try_lock(&patient_client(format!(
            "rediss://localhost:{port}"
        ))));
        assert!(
            text.contains(&format!("no TLS connection to localhost:{port}: ")),
            "{text}"
        );
        assert!(text.contains("tls_root"), "{text}");
    }
}
