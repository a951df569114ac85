//! Promise: an impossible reply, one that Redis would never send, grants nothing and loses nothing.
//! The client closes the connection and counts the call as unanswered.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use leasehold::{Client, ClientBuilder, Error, MutexGuard, Taken};
use support::{FakeServer, eventually, ms};

support::tests![
    no_lease_is_lost_or_renewed_by_an_impossible_reply,
    only_a_server_that_reports_the_master_role_is_used,
    well_formed_replies_grant_and_release,
    an_acquire_with_an_impossible_reply_is_undone,
    an_acquire_of_a_set_with_an_impossible_reply_is_undone,
    a_fair_lock_with_an_impossible_reply_is_undone,
    an_enter_that_ran_twice_is_refreshed,
    an_impossible_reply_grants_nothing_to_a_queued_waiter,
    a_quorum_counts_no_impossible_vote,
    no_lease_is_lost_by_an_impossible_reply_in_the_background,
    a_release_with_an_impossible_reply_is_repeated,
    an_impossible_reply_to_a_query_is_an_error,
    each_reply_to_a_combined_write_is_checked,
    a_surplus_reply_does_not_answer_the_next_call,
    a_surplus_reply_at_log_on_grants_nothing,
    a_surplus_reply_to_a_renewal_loses_nothing,
    a_quorum_closes_a_connection_with_a_surplus_reply,
    a_malformed_redirect_is_not_followed,
    a_scan_whose_cursor_repeats_is_an_error,
    a_scan_reply_that_is_too_large_opens_no_breaker
];

const GRANTED: &str = "$16\r\n1700000000000000\r\n";

pub(super) fn reply_bytes(reply: &str) -> Option<Vec<u8>> {
    Some(reply.as_bytes().to_vec())
}

/// Longer than any pause between attempts of an undo, on a busy machine.
const WAIT_LIMIT: Duration = ms(30_000);

/// Returns a builder for clients that reach the server even on a busy machine.
fn builder(url: &str) -> ClientBuilder {
    let patience = ms(2_000);
    let builder = Client::builder().url(url);
    builder.connect_timeout(patience).command_timeout(patience)
}

fn client(url: &str) -> Client {
    builder(url).build().unwrap()
}

/// Replies to `script` with `reply`, and to every release with success.
fn server_replying(script: &'static str, reply: &'static str) -> FakeServer {
    FakeServer::start(move |request| match request.name().as_str() {
        name if name == script => reply_bytes(reply),
        "acquire" => reply_bytes(GRANTED),
        "release" | "queue_release" => reply_bytes(":1\r\n"),
        "undo" | "queue_undo" => reply_bytes("*1\r\n:0\r\n"),
        _ => None,
    })
}

/// Grants every acquire; replies to `script` with `reply` the first time and with `then` later.
fn server_replying_once(
    script: &'static str,
    reply: &'static str,
    then: &'static str,
) -> FakeServer {
    let is_first = AtomicBool::new(true);
    FakeServer::start(move |request| match request.name().as_str() {
        "acquire" => reply_bytes(GRANTED),
        name if name == script && is_first.swap(false, Ordering::SeqCst) => reply_bytes(reply),
        name if name == script => reply_bytes(then),
        _ => None,
    })
}

/// Waits until every acquire that the server received is undone and its connection is closed.
/// Returns the number of acquires.
#[track_caller]
fn wait_until_undone(server: &FakeServer, script: &str) -> usize {
    let acquires = server.requests(script);
    for acquire in &acquires {
        eventually(WAIT_LIMIT, || {
            server.has_undo_of(&acquire.args()[0]) && server.is_closed(acquire.connection)
        });
    }
    acquires.len()
}

#[track_caller]
fn assert_undone(server: &FakeServer, script: &str) {
    assert_ne!(wait_until_undone(server, script), 0, "nothing was sent");
}

#[track_caller]
fn assert_unanswered<T>(outcome: &Result<Result<T, Taken>, Error>, reply: &str) {
    match outcome {
        Err(Error::Unreachable { .. }) => {}
        Err(error) => panic!("{reply:?}: {error}"),
        Ok(granted) => panic!("{reply:?}: granted: {}", granted.is_ok()),
    }
}

fn well_formed_replies_grant_and_release() {
    let server = server_replying_once("release", ":1\r\n", ":0\r\n");
    let guard = client(&server.url()).mutex("a").lock().unwrap();
    assert_eq!(guard.fencing_token().value(), 1_700_000_000_000_000);
    guard.unlock().unwrap();
}

fn an_acquire_with_an_impossible_reply_is_undone() {
    for reply in [
        "$1\r\n0\r\n",
        "$2\r\n-1\r\n",
        "$16\r\n9007199254740992\r\n",
        "$0\r\n\r\n",
        "*2\r\n:1\r\n:7\r\n",
        "*1\r\n$1\r\n7\r\n",
        "*1\r\n:1\r\n",
        "*1\r\n:3\r\n",
        ":1\r\n",
        "$-1\r\n",
        "+OK\r\n",
        "*4\r\n:0\r\n:7\r\n:100\r\n:-1\r\n",
        "*4\r\n:0\r\n$3\r\nabc\r\n:-3\r\n:-1\r\n",
        "*4\r\n:0\r\n$3\r\nabc\r\n:100\r\n$1\r\n7\r\n",
        "*5\r\n:0\r\n$3\r\nabc\r\n:100\r\n:-1\r\n:2\r\n",
        "*2\r\n:2\r\n:9007199254740992\r\n",
    ] {
        let server = server_replying("acquire", reply);
        let client = client(&server.url());
        assert_unanswered(&client.mutex("a").try_lock(), reply);
        assert_undone(&server, "acquire");
    }
}

fn an_acquire_of_a_set_with_an_impossible_reply_is_undone() {
    for reply in [
        "*5\r\n:0\r\n$3\r\nabc\r\n:100\r\n:-1\r\n:0\r\n",
        "*2\r\n:1\r\n:7\r\n",
        "$2\r\n-1\r\n",
        ":1\r\n",
        "+OK\r\n",
    ] {
        let server = server_replying("acquire_after", reply);
        let all = client(&server.url()).mutex_all(["a", "b"]);
        assert_unanswered(&all.try_lock(), reply);
        assert_undone(&server, "acquire_after");
        let first = &server.requests("acquire")[0];
        eventually(WAIT_LIMIT, || server.has_undo_of(&first.args()[0]));
    }
}

fn a_fair_lock_with_an_impossible_reply_is_undone() {
    for reply in ["$1\r\n0\r\n", "*2\r\n:1\r\n:7\r\n", "+OK\r\n"] {
        let server = server_replying("queue_enter", reply);
        let fair = client(&server.url()).fair_mutex("a");
        assert_unanswered(&fair.try_lock_for(ms(5_000)), reply);
        assert_undone(&server, "queue_enter");
    }
}

/// The reply is a refusal that names the call's own id. The first run of the enter acquired the
/// lock, and the second was refused because of the first.
fn an_enter_that_ran_twice_is_refreshed() {
    let server = FakeServer::start(move |request| match request.name().as_str() {
        "queue_enter" => {
            let id = String::from_utf8_lossy(&request.args()[0]).into_owned();
            let length = id.len();
            reply_bytes(&format!(
                "*4\r\n:0\r\n${length}\r\n{id}\r\n:9999\r\n:-1\r\n"
            ))
        }
        // The place was granted the lock by the first run.
        "queue_refresh" => reply_bytes("*3\r\n:1700000000000000\r\n:9999\r\n:-1\r\n"),
        "queue_release" => reply_bytes(":1\r\n"),
        _ => None,
    });
    let fair = client(&server.url()).fair_mutex("a");
    let guard = fair.try_lock_for(ms(5_000)).unwrap();
    assert_eq!(server.requests("queue_enter").len(), 1);
    guard.unwrap().unlock().unwrap();
}

fn an_impossible_reply_grants_nothing_to_a_queued_waiter() {
    for reply in [
        "*3\r\n:9007199254740992\r\n:100\r\n:-1\r\n",
        "*3\r\n:0\r\n:-3\r\n:-1\r\n",
        "*4\r\n:0\r\n:7\r\n:100\r\n:-1\r\n",
        "*2\r\n:7\r\n:100\r\n",
        "*1\r\n:7\r\n",
        ":7\r\n",
    ] {
        let server = FakeServer::start(move |request| match request.name().as_str() {
            "queue_enter" => reply_bytes("*4\r\n:0\r\n$1\r\nx\r\n:60000\r\n:-1\r\n"),
            "queue_refresh" => reply_bytes(reply),
            "queue_release" => reply_bytes(":1\r\n"),
            _ => None,
        });
        let fair = client(&server.url()).fair_mutex("a");
        let granted = fair.try_lock_for(ms(2_500));
        assert!(!matches!(granted, Ok(Ok(_))), "{reply:?}");
        assert!(!server.requests("queue_refresh").is_empty());
    }
}

fn a_quorum_counts_no_impossible_vote() {
    let count = 3;
    for reply in [
        "*2\r\n:1\r\n:7\r\n",
        "*2\r\n:1\r\n:0\r\n",
        "*1\r\n:3\r\n",
        "*2\r\n:2\r\n:1\r\n",
        "+OK\r\n",
    ] {
        let servers: Vec<FakeServer> = (0..count)
            .map(|_| server_replying("propose", reply))
            .collect();
        let client = Client::quorum(servers.iter().map(FakeServer::url)).unwrap();
        assert_unanswered(&client.mutex("a").try_lock(), reply);
        let asked = servers
            .iter()
            .filter(|server| wait_until_undone(server, "propose") > 0);
        // A call does not wait for a third connection that is slow to open.
        assert!(asked.count() >= 2, "{reply:?}: no majority was asked");
    }
}

fn lock_with_renewal_reply(reply: &'static str) -> (FakeServer, MutexGuard) {
    let server = server_replying_once("renew", reply, ":1\r\n");
    let guard = client(&server.url()).mutex("a").lock().unwrap();
    (server, guard)
}

fn no_lease_is_lost_or_renewed_by_an_impossible_reply() {
    for reply in ["+taken\r\n", "*2\r\n:1\r\n:1\r\n", ":2\r\n", "$-1\r\n"] {
        let (server, guard) = lock_with_renewal_reply(reply);
        let error = guard.renew().unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{reply:?}");
        assert!(guard.is_held(), "{reply:?}");
        let renewal = server.requests("renew").remove(0);
        eventually(WAIT_LIMIT, || server.is_closed(renewal.connection));
        guard.renew().unwrap();
    }
}

fn no_lease_is_lost_by_an_impossible_reply_in_the_background() {
    let server = server_replying_once("renew", "+taken\r\n", ":1\r\n");
    let mutex = client(&server.url()).mutex("a").ttl(ms(30_000));
    let guard = mutex.renew_every(ms(200)).lock().unwrap();
    eventually(WAIT_LIMIT, || server.requests("renew").len() > 2);
    assert!(guard.is_held());
}

fn a_release_with_an_impossible_reply_is_repeated() {
    for reply in ["+taken\r\n", "*2\r\n:1\r\n:1\r\n", ":9\r\n", "$-1\r\n"] {
        let server = server_replying_once("release", reply, ":0\r\n");
        let client = client(&server.url());
        let unlocked = client.mutex("a").lock().unwrap().unlock();
        unlocked.unwrap_or_else(|error| panic!("{reply:?}: {error}"));
        let releases = server.requests("release");
        assert!(releases.len() > 1, "{reply:?}");
        eventually(WAIT_LIMIT, || server.is_closed(releases[0].connection));
    }
}

fn an_impossible_reply_to_a_query_is_an_error() {
    let assert_query_fails = |command: &'static str, reply: &'static str| {
        let server = server_replying(command, reply);
        let mutex = client(&server.url()).mutex("a");
        let error = match command {
            "inspect" => mutex.inspect().map(drop),
            "fence" => mutex.last_fencing_token().map(drop),
            "LLEN" => mutex.waiting().map(drop),
            "SCAN" => client(&server.url()).list("").map(drop),
            _ => client(&server.url()).ping().map(drop),
        };
        let error = error.unwrap_err();
        assert!(error.is_unreachable(), "{reply:?}: {error}");
    };
    assert_query_fails("inspect", "*3\r\n$1\r\nx\r\n:-9\r\n$-1\r\n");
    assert_query_fails("inspect", "*3\r\n$1\r\nx\r\n:9\r\n:7\r\n");
    assert_query_fails("inspect", "+OK\r\n");
    assert_query_fails("fence", "+7\r\n");
    assert_query_fails("LLEN", ":-1\r\n");
    assert_query_fails("LLEN", "+1\r\n");
    assert_query_fails("SCAN", "*2\r\n$1\r\nx\r\n*0\r\n");
    assert_query_fails("SCAN", "*2\r\n$1\r\n0\r\n*1\r\n:7\r\n");
    assert_query_fails("PING", "+OK\r\n");
}

/// Returns a sentinel that names the server at `port` as the master.
fn sentinel(port: u16) -> FakeServer {
    FakeServer::start(move |request| {
        let port = port.to_string();
        let length = port.len();
        let address = format!("*2\r\n$9\r\n127.0.0.1\r\n${length}\r\n{port}\r\n");
        (request.name() == "SENTINEL").then(|| address.into_bytes())
    })
}

fn only_a_server_that_reports_the_master_role_is_used() {
    for role in [":1\r\n", "$-1\r\n", "*0\r\n", "+master\r\n"] {
        let server = FakeServer::start(move |request| match request.name().as_str() {
            "ROLE" => reply_bytes(role),
            "acquire" => reply_bytes(GRANTED),
            "release" => reply_bytes(":1\r\n"),
            _ => None,
        });
        let sentinel = sentinel(server.port());
        let url = format!("redis+sentinel://127.0.0.1:{}/m", sentinel.port());
        assert_unanswered(&client(&url).mutex("a").try_lock(), role);
        assert!(server.requests("acquire").is_empty(), "{role:?}");
    }
}

/// The first acquire on a connection is refused, slowly enough for the other calls to wait for the
/// connection: they are then written together. The first reply to that write is impossible, and
/// closes the connection. So only a combined write carries a third acquire.
fn each_reply_to_a_combined_write_is_checked() {
    let acquires = Mutex::new(HashMap::new());
    let server = FakeServer::start(move |request| match request.name().as_str() {
        "acquire" => {
            let mut acquires = acquires.lock().unwrap();
            let before: &mut usize = acquires.entry(request.connection).or_default();
            *before += 1;
            match *before {
                1 => {
                    support::let_pass(ms(20));
                    reply_bytes(REFUSED)
                }
                2 => reply_bytes("$1\r\n0\r\n"),
                _ => reply_bytes(GRANTED),
            }
        }
        "release" => reply_bytes(":1\r\n"),
        _ => None,
    });
    let most_on_a_connection = || {
        let mut counts = HashMap::new();
        for acquire in server.requests("acquire") {
            *counts.entry(acquire.connection).or_insert(0) += 1;
        }
        counts.into_values().max()
    };
    let builder = builder(&server.url()).max_connections(1).breaker(0);
    let client = builder.build().unwrap();
    // In each round, a thread may come too late to wait for the others.
    eventually(WAIT_LIMIT, || {
        thread::scope(|scope| {
            for n in 0..12 {
                let mutex = client.mutex(format!("a{n}"));
                scope.spawn(move || assert!(!matches!(mutex.try_lock(), Ok(Ok(_)))));
            }
        });
        most_on_a_connection() > Some(2)
    });
}

const REFUSED: &str = "*4\r\n:0\r\n$1\r\nx\r\n:60000\r\n:-1\r\n";

fn a_surplus_reply_does_not_answer_the_next_call() {
    let is_first = AtomicBool::new(true);
    let server = FakeServer::start(move |request| match request.name().as_str() {
        "acquire" if is_first.swap(false, Ordering::SeqCst) => reply_bytes(GRANTED),
        "acquire" => reply_bytes(REFUSED),
        "release" => reply_bytes(&format!(":1\r\n{GRANTED}")),
        _ => None,
    });
    let client = client(&server.url());
    let guard = client.mutex("a").lock().unwrap();
    guard.unlock().unwrap();
    assert!(client.mutex("b").try_lock().unwrap().is_err());
    let release = server.requests("release").remove(0);
    eventually(WAIT_LIMIT, || server.is_closed(release.connection));
}

fn a_surplus_reply_at_log_on_grants_nothing() {
    let server = FakeServer::start(move |request| match request.name().as_str() {
        "CLIENT" if request.words.contains(&b"SETNAME".to_vec()) => {
            reply_bytes(&format!("+OK\r\n{GRANTED}"))
        }
        "acquire" => reply_bytes(REFUSED),
        "release" => reply_bytes(":1\r\n"),
        _ => None,
    });
    let outcome = client(&server.url()).mutex("a").try_lock();
    assert_unanswered(&outcome, "a surplus grant");
}

fn a_surplus_reply_to_a_renewal_loses_nothing() {
    let server = server_replying_once("renew", ":1\r\n:0\r\n", ":1\r\n");
    let mutex = client(&server.url()).mutex("a").ttl(ms(60_000));
    let guard = mutex.renew_every(ms(200)).lock().unwrap();
    eventually(WAIT_LIMIT, || server.requests("renew").len() > 2);
    assert!(guard.is_held());
}

fn a_quorum_closes_a_connection_with_a_surplus_reply() {
    let servers: Vec<FakeServer> = (0..3)
        .map(|_| {
            FakeServer::start(|request| match request.name().as_str() {
                "propose" => {
                    let token = String::from_utf8_lossy(&request.args()[2]);
                    reply_bytes(&format!("*2\r\n:1\r\n:{token}\r\n"))
                }
                "release" => reply_bytes(":1\r\n:1\r\n"),
                _ => None,
            })
        })
        .collect();
    let client = Client::quorum(servers.iter().map(FakeServer::url)).unwrap();
    let guard = client.mutex("a").lock().unwrap();
    guard.unlock().unwrap();
    // A call does not wait for a third connection that is slow to open.
    let is_asked = |server: &&FakeServer| !server.requests("propose").is_empty();
    let asked: Vec<_> = servers.iter().filter(is_asked).collect();
    assert!(asked.len() >= 2);
    for server in asked {
        eventually(WAIT_LIMIT, || !server.requests("release").is_empty());
        let release = server.requests("release").remove(0);
        eventually(WAIT_LIMIT, || server.is_closed(release.connection));
    }
}

/// Returns the only node of a cluster. It redirects each acquire with `redirect`, in which `{port}`
/// stands for its own port.
pub(super) fn redirecting(redirect: &'static str) -> FakeServer {
    let port: Arc<OnceLock<u16>> = Arc::default();
    let known = Arc::clone(&port);
    let node = FakeServer::start(move |request| match request.name().as_str() {
        "CLUSTER" => {
            let port = known.get().expect("set before the client starts");
            reply_bytes(&format!(
                "*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:{port}\r\n$1\r\ni\r\n"
            ))
        }
        "acquire" => {
            let port = known.get().expect("set before the client starts");
            reply_bytes(&format!("-{redirect}\r\n").replace("{port}", &port.to_string()))
        }
        "release" => reply_bytes(":0\r\n"),
        _ => None,
    });
    port.set(node.port()).unwrap();
    node
}

fn a_malformed_redirect_is_not_followed() {
    let redirects = [
        "MOVED 16384 127.0.0.1:6379",
        "MOVED 5 6379",
        "MOVED 5 127.0.0.1:0",
        "MOVED 5 127.0.0.1:70000",
        "MOVED",
        "ASK -1 127.0.0.1:6379",
        "ASK 5 127.0.0.1:0",
    ];
    thread::scope(|scope| {
        for redirect in redirects {
            scope.spawn(move || {
                let node = redirecting(redirect);
                let url = format!("redis+cluster://127.0.0.1:{}", node.port());
                let client = client(&url);
                assert_unanswered(&client.mutex("a").try_lock(), redirect);
                assert_undone(&node, "acquire");
            });
        }
    });
}

fn a_scan_whose_cursor_repeats_is_an_error() {
    let server = server_replying("SCAN", "*2\r\n$1\r\n7\r\n*0\r\n");
    let error = client(&server.url()).list("").unwrap_err();
    assert!(error.is_unreachable(), "{error:?}");
    let text = error.to_string();
    assert!(
        text.contains("SCAN does not end") && text.contains("cursor 7"),
        "{text}"
    );
}

fn a_scan_reply_that_is_too_large_opens_no_breaker() {
    let server = FakeServer::start(|request| match request.name().as_str() {
        "SCAN" => reply_bytes("$1000000000000\r\n"),
        "acquire" => reply_bytes(GRANTED),
        "release" => reply_bytes(":1\r\n"),
        _ => None,
    });
    let client = builder(&server.url()).breaker(1).build().unwrap();
    let text = client.list("").unwrap_err().to_string();
    assert!(text.contains("larger than the limits"), "{text}");
    assert!(client.mutex("a").try_lock().unwrap().is_ok());
}
