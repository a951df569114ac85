//! Promise: a call to something that is no Redis does not wait for it to become one. It fails soon, and says what it read.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leasehold::{Client, ClientBuilder, Error};
use support::{FakeServer, Request, builder, ms};

support::tests![
    http_reply_is_quoted_in_the_error,
    another_protocol_is_named_at_once,
    another_protocol_is_dialed_once_for_a_call,
    a_tls_peer_is_recognised,
    sentinels_and_nodes_of_a_cluster_that_are_none_are_named_too,
    a_quorum_of_others_is_named,
    nonsense_in_good_form_is_believed_three_times,
    endless_nonsense_in_good_form_is_no_redis_either,
    a_malformed_reply_now_and_then_ends_no_wait
];

/// Longer than any test: no call here ends because Redis was away for so long.
const FOR_EVER: Duration = Duration::from_secs(600);

/// What "at once" may take on a machine that has other things to do.
const SOON: Duration = Duration::from_secs(60);

const SAYS: &str = "this does not look like Redis";

fn patient(url: &str) -> ClientBuilder {
    builder(url).unreachable_for(FOR_EVER)
}

/// Peers, what each of them sends, and how an error shows the beginning of that.
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

fn asked(words: &'static [u8]) -> FakeServer {
    FakeServer::start(move |_| Some(words.to_vec()))
}

#[track_caller]
fn assert_says(error: &Error, shown: &str) {
    let text = error.to_string();
    assert!(text.contains(SAYS) && text.contains(shown), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
}

fn http_reply_is_quoted_in_the_error() {
    let server = asked(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    let client = patient(&server.url()).build().unwrap();
    let error = client.mutex("a").lock().unwrap_err();
    assert_says(&error, "HTTP/1.1 400");
}

fn another_protocol_is_named_at_once() {
    for (peer, words, shown) in PEERS {
        for server in [asked(words), FakeServer::sending(words, false)] {
            let client = patient(&server.url()).build().unwrap();
            let began = Instant::now();
            assert_says(&client.mutex("a").lock().unwrap_err(), shown);
            assert_says(&client.mutex("b").try_lock().unwrap_err(), shown);
            assert_says(&client.fair_mutex("c").lock().unwrap_err(), shown);
            assert_says(&client.mutex_all(["d", "e"]).lock().unwrap_err(), shown);
            assert!(began.elapsed() < SOON, "{peer}: {:?}", began.elapsed());
        }
    }
}

fn another_protocol_is_dialed_once_for_a_call() {
    let command_timeout = Duration::from_secs(10);
    for (peer, words, shown) in PEERS {
        let server = asked(words);
        let client = patient(&server.url()).command_timeout(command_timeout);
        let client = client.build().unwrap();
        let began = Instant::now();
        assert_says(&client.mutex("a").try_lock().unwrap_err(), shown);
        assert!(began.elapsed() < command_timeout / 2, "{peer}");
        let log_ons = server.requests("CLIENT");
        let is_first = |request: &Request| request.connection == 0;
        assert!(log_ons.iter().all(is_first), "{peer}: {log_ons:?}");
    }
}

fn a_tls_peer_is_recognised() {
    let server = asked(b"\x15\x03\x01\0\x02\x02\x46");
    let client = patient(&server.url()).build().unwrap();
    let text = client.mutex("a").lock().unwrap_err().to_string();
    assert!(text.contains("rediss://"), "{text}");
}

fn sentinels_and_nodes_of_a_cluster_that_are_none_are_named_too() {
    let (_, words, shown) = PEERS[1];
    let server = asked(words);
    for url in [
        format!("redis+cluster://127.0.0.1:{}", server.port()),
        format!("redis+sentinel://127.0.0.1:{}/m", server.port()),
    ] {
        let client = patient(&url).build().unwrap();
        assert_says(&client.mutex("a").lock().unwrap_err(), shown);
    }
}

fn a_quorum_of_others_is_named() {
    let (_, words, shown) = PEERS[1];
    let servers: Vec<FakeServer> = (0..3).map(|_| asked(words)).collect();
    let client = Client::builder().quorum(servers.iter().map(FakeServer::url));
    let client = client.unreachable_for(FOR_EVER).build().unwrap();
    assert_says(&client.mutex("a").lock().unwrap_err(), shown);
}

/// As one that takes every log-on does.
fn ok(_: &Request) -> Option<Vec<u8>> {
    Some(b"+OK\r\n".to_vec())
}

fn nonsense_in_good_form_is_believed_three_times() {
    let server = FakeServer::start(ok);
    let client = patient(&server.url()).build().unwrap();
    assert_says(&client.mutex("a").lock().unwrap_err(), "\"+OK\\r\\n\"");
    assert_eq!(server.requests("acquire").len(), 3);
    assert_says(&client.fair_mutex("a").lock().unwrap_err(), "\"+OK\\r\\n\"");
    assert_eq!(server.requests("fair_enter").len(), 3);
}

fn endless_nonsense_in_good_form_is_no_redis_either() {
    let server = FakeServer::sending(b"+OK\r\n", true);
    let client = patient(&server.url()).build().unwrap();
    let began = Instant::now();
    assert_says(&client.mutex("a").lock().unwrap_err(), "\"+OK\\r\\n\"");
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

fn a_malformed_reply_now_and_then_ends_no_wait() {
    let replies = AtomicUsize::new(0);
    let server = FakeServer::start(move |request| match request.name().as_str() {
        "acquire" => Some(match replies.fetch_add(1, Ordering::SeqCst) {
            2 | 5 => b"*3\r\n:0\r\n$1\r\nx\r\n:10\r\n".to_vec(),
            8 => b"*2\r\n:1\r\n:7\r\n".to_vec(),
            _ => b"+OK\r\n".to_vec(),
        }),
        "release" => Some(b":1\r\n".to_vec()),
        _ => None,
    });
    let client = patient(&server.url()).backstop(ms(50)).build().unwrap();
    let guard = client.mutex("a").lock().unwrap();
    assert_eq!(guard.fencing_token().value(), 7);
}
