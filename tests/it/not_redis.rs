//! Promise: a call to a server that is not Redis fails at once with the first bytes of its reply.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leasehold::{Client, ClientBuilder, Error};
use support::{FakeServer, Request, builder};

support::tests![
    http_reply_is_quoted_in_the_error,
    another_protocol_is_reported_at_once,
    another_protocol_is_dialed_once_for_a_call,
    the_error_about_a_tls_peer_suggests_rediss,
    false_sentinels_and_cluster_nodes_are_reported,
    a_quorum_of_other_servers_is_reported,
    well_formed_nonsense_ends_the_call_at_the_third_reply,
    endless_well_formed_nonsense_is_reported,
    an_occasional_malformed_reply_does_not_end_a_wait
];

/// Longer than any test, so that no call ends because its server was unreachable for this long.
const FOR_EVER: Duration = Duration::from_secs(600);

/// The limit for calls that must fail at once, generous for a busy machine.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

const MESSAGE: &str = "this does not look like Redis";

fn builder_that_waits(url: &str) -> ClientBuilder {
    builder(url).unreachable_for(FOR_EVER)
}

/// Peers: the protocol, the bytes each sends, and how an error shows the first of them.
const PEERS: [(&str, &[u8], &str); 4] = [
    (
        "SSH",
        b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n",
        "\"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\\r\\n",
    ),
    (
        "HTTP",
        b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
        "\"HTTP/1.1 400 Bad Request\\r\\nConnection: cl\"",
    ),
    (
        "TLS",
        b"\x15\x03\x01\0\x02\x02\x46",
        "\"\\x15\\x03\\x01\\x00\\x02\\x02F",
    ),
    (
        "bytes",
        b"\x1b[2J\xe2\x80\xae\xff",
        "\"\\x1b[2J\\u{202e}\\xff",
    ),
];

fn server_replying(words: &'static [u8]) -> FakeServer {
    FakeServer::start(move |_| Some(words.to_vec()))
}

#[track_caller]
fn assert_reports(error: &Error, shown: &str) {
    let text = error.to_string();
    assert!(text.contains(MESSAGE) && text.contains(shown), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
}

fn http_reply_is_quoted_in_the_error() {
    let server = server_replying(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    let client = builder_that_waits(&server.url()).build().unwrap();
    let error = client.mutex("a").lock().unwrap_err();
    assert_reports(&error, "HTTP/1.1 400");
}

fn another_protocol_is_reported_at_once() {
    for (peer, words, shown) in PEERS {
        for server in [server_replying(words), FakeServer::sending(words, false)] {
            let client = builder_that_waits(&server.url()).build().unwrap();
            let began = Instant::now();
            assert_reports(&client.mutex("a").lock().unwrap_err(), shown);
            assert_reports(&client.mutex("b").try_lock().unwrap_err(), shown);
            assert_reports(&client.fair_mutex("c").lock().unwrap_err(), shown);
            assert_reports(&client.mutex_all(["d", "e"]).lock().unwrap_err(), shown);
            assert!(
                began.elapsed() < WAIT_LIMIT,
                "{peer}: {:?}",
                began.elapsed()
            );
        }
    }
}

fn another_protocol_is_dialed_once_for_a_call() {
    let command_timeout = Duration::from_secs(10);
    for (peer, words, shown) in PEERS {
        let server = server_replying(words);
        let client = builder_that_waits(&server.url()).command_timeout(command_timeout);
        let client = client.build().unwrap();
        let began = Instant::now();
        assert_reports(&client.mutex("a").try_lock().unwrap_err(), shown);
        assert!(began.elapsed() < command_timeout / 2, "{peer}");
        let log_ons = server.requests("CLIENT");
        let is_first = |request: &Request| request.connection == 0;
        assert!(log_ons.iter().all(is_first), "{peer}: {log_ons:?}");
    }
}

fn the_error_about_a_tls_peer_suggests_rediss() {
    let server = server_replying(b"\x15\x03\x01\0\x02\x02\x46");
    let client = builder_that_waits(&server.url()).build().unwrap();
    let text = client.mutex("a").lock().unwrap_err().to_string();
    assert!(text.contains("rediss://"), "{text}");
}

fn false_sentinels_and_cluster_nodes_are_reported() {
    let (_, words, shown) = PEERS[1];
    let server = server_replying(words);
    for url in [
        format!("redis+cluster://127.0.0.1:{}", server.port()),
        format!("redis+sentinel://127.0.0.1:{}/m", server.port()),
    ] {
        let client = builder_that_waits(&url).build().unwrap();
        assert_reports(&client.mutex("a").lock().unwrap_err(), shown);
    }
}

fn a_quorum_of_other_servers_is_reported() {
    let (_, words, shown) = PEERS[1];
    let servers: Vec<FakeServer> = (0..3).map(|_| server_replying(words)).collect();
    let client = Client::builder().quorum(servers.iter().map(FakeServer::url));
    let client = client.unreachable_for(FOR_EVER).build().unwrap();
    assert_reports(&client.mutex("a").lock().unwrap_err(), shown);
}

/// Replies OK to everything, so every log-on succeeds.
fn reply_ok(_: &Request) -> Option<Vec<u8>> {
    Some(b"+OK\r\n".to_vec())
}

fn well_formed_nonsense_ends_the_call_at_the_third_reply() {
    let server = FakeServer::start(reply_ok);
    let client = builder_that_waits(&server.url()).build().unwrap();
    assert_reports(&client.mutex("a").lock().unwrap_err(), "\"+OK\\r\\n\"");
    assert_eq!(server.requests("acquire").len(), 3);
    assert_reports(&client.fair_mutex("a").lock().unwrap_err(), "\"+OK\\r\\n\"");
    assert_eq!(server.requests("queue_enter").len(), 3);
}

fn endless_well_formed_nonsense_is_reported() {
    let server = FakeServer::sending(b"+OK\r\n", true);
    let client = builder_that_waits(&server.url()).build().unwrap();
    let began = Instant::now();
    assert_reports(&client.mutex("a").lock().unwrap_err(), "\"+OK\\r\\n");
    assert!(began.elapsed() < WAIT_LIMIT, "{:?}", began.elapsed());
}

fn an_occasional_malformed_reply_does_not_end_a_wait() {
    let replies = AtomicUsize::new(0);
    let server = FakeServer::start(move |request| match request.name().as_str() {
        "acquire" | "queue_enter" => Some(match replies.fetch_add(1, Ordering::SeqCst) {
            2 | 5 => b"*4\r\n:0\r\n$1\r\nx\r\n:10\r\n:-1\r\n".to_vec(),
            8 => b"$1\r\n7\r\n".to_vec(),
            _ => b"+OK\r\n".to_vec(),
        }),
        // The place is gone: the call enters the queue again.
        "queue_refresh" => Some(b"*3\r\n:-1\r\n:-2\r\n:-1\r\n".to_vec()),
        "queue_undo" => Some(b"*1\r\n:0\r\n".to_vec()),
        "release" => Some(b":1\r\n".to_vec()),
        _ => None,
    });
    let client = builder_that_waits(&server.url()).build().unwrap();
    let guard = client.mutex("a").lock().unwrap();
    assert_eq!(guard.fencing_token().value(), 7);
}
