//! Promise: at its deadline a waiting call reports what the servers said, however slow they are.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use leasehold::{Backoff, Client, WaitPolicy};
use support::{FakeServer, Request, default_reply, eventually, let_pass, ms};

support::tests![
    time_to_connect_does_not_count_as_time_of_a_reply,
    fair_call_on_a_slow_server_finds_the_lock_taken,
    split_vote_is_tried_again_behind_other_calls,
    refusal_by_an_attempt_that_is_undone_meanwhile_is_none
];

/// Longer than any test.
const LONG: Duration = ms(60_000);

/// Returns a policy that retries after this pause, without pub/sub.
fn every(pause: Duration) -> WaitPolicy {
    WaitPolicy::Backoff(Backoff::new(pause, pause).jitter(0.0))
}

/// Returns the reply of an acquiring script that refuses. For a set, `name` is the index of the
/// held name, from 1.
fn refused(holder: &str, remaining: Duration, name: Option<usize>) -> Vec<u8> {
    let (count, length, left) = (4 + name.iter().count(), holder.len(), remaining.as_millis());
    let name = name.map_or_else(String::new, |name| format!(":{name}\r\n"));
    format!("*{count}\r\n:0\r\n${length}\r\n{holder}\r\n:{left}\r\n:-1\r\n{name}").into_bytes()
}

fn granted(token: &str) -> Vec<u8> {
    format!("${}\r\n{token}\r\n", token.len()).into_bytes()
}

/// The reply to commands that are not the subject of a test.
fn other_reply(request: &Request) -> Option<Vec<u8>> {
    match request.name().as_str() {
        "release" | "queue_release" => Some(b":1\r\n".to_vec()),
        _ => default_reply(request),
    }
}

/// The first command takes long to connect. The second is still sent before the deadline.
fn time_to_connect_does_not_count_as_time_of_a_reply() {
    let acquires = AtomicUsize::new(0);
    let server = FakeServer::start(move |request| match request.name().as_str() {
        "CLIENT" if request.words[1].eq_ignore_ascii_case(b"setname") => {
            let_pass(ms(800));
            other_reply(request)
        }
        "acquire" if acquires.fetch_add(1, Ordering::SeqCst) == 0 => Some(refused("x", LONG, None)),
        "acquire" | "queue_enter" => Some(granted("7")),
        _ => other_reply(request),
    });
    let client = Client::builder()
        .url(server.url())
        .connect_timeout(LONG)
        .command_timeout(LONG)
        .build()
        .unwrap();
    let mutex = client.mutex("a").wait_policy(every(ms(50)));
    let guard = mutex.try_lock_for(ms(2_200)).unwrap();
    assert!(guard.is_ok(), "the second attempt is granted");
}

/// Another call of the client refreshes the places; each refresh takes 400 ms, and one is in flight
/// at the deadline.
fn fair_call_on_a_slow_server_finds_the_lock_taken() {
    let server = FakeServer::start(|request| match request.name().as_str() {
        "queue_enter" => Some(refused("x", ms(10), None)),
        "queue_refresh" => {
            let_pass(ms(400));
            let places = request.args().len() - 1;
            let waiting = ":0\r\n".repeat(places);
            Some(format!("*{}\r\n{waiting}:10\r\n:-1\r\n", places + 2).into_bytes())
        }
        _ => other_reply(request),
    });
    let client = Client::open(server.url()).unwrap();
    let fair = client.fair_mutex("a").wait_policy(every(LONG));
    // The shorter the ttl, the earlier the refreshes.
    let refreshing = fair.clone().ttl(ms(400));
    let refreshing = thread::spawn(move || refreshing.lock().map(drop));
    eventually(LONG, || server.requests("queue_enter").len() == 1);
    let outcome = fair.try_lock_for(ms(2_000));
    assert!(matches!(outcome, Ok(Err(_))), "{outcome:?}");
    client.shutdown(LONG);
    assert!(refreshing.join().unwrap().is_err(), "shut down");
}

/// Returns the refusal of a member of a quorum, which does not say since when the name is held.
fn refused_by_member(holder: &str, remaining: Duration, name: Option<usize>) -> Vec<u8> {
    let reply = String::from_utf8(refused(holder, remaining, name)).unwrap();
    let count = 3 + name.iter().count();
    let reply = reply.replacen(":-1\r\n", "", 1);
    format!("*{count}{}", &reply[2..]).into_bytes()
}

/// A call for `a` and `b` is refused because of `b`, and waits behind a call for `b` that sleeps.
/// The servers are slow, so its last attempt begins early. It ends with a split vote, and the next
/// attempt is granted.
fn split_vote_is_tried_again_behind_other_calls() {
    let reply = |n: usize| {
        let attempts = AtomicUsize::new(0);
        move |request: &Request| match request.name().as_str() {
            "propose" => {
                let is_for_b = request.words[3] == b"lock:b";
                let attempt = is_for_b.then(|| attempts.fetch_add(1, Ordering::SeqCst));
                let_pass(match attempt {
                    Some(1) => ms(450),
                    Some(2) => ms(550),
                    _ => ms(0),
                });
                Some(match (attempt, n) {
                    // The first one is that of the call which sleeps.
                    (Some(0 | 1), _) | (Some(2), 0) => refused_by_member("x", ms(250), None),
                    (Some(2), 1) => refused_by_member("y", ms(250), None),
                    _ => {
                        let token = String::from_utf8_lossy(&request.args()[2]);
                        format!("*2\r\n:1\r\n:{token}\r\n").into_bytes()
                    }
                })
            }
            _ => other_reply(request),
        }
    };
    let servers: Vec<_> = (0..3).map(|n| FakeServer::start(reply(n))).collect();
    let client = Client::builder()
        .quorum(servers.iter().map(|server| server.url()))
        .command_timeout(LONG)
        .build()
        .unwrap();
    let first = client.mutex("b").wait_policy(every(LONG));
    let first = thread::spawn(move || first.lock().map(drop));
    eventually(LONG, || client.stats().waiting == 1);
    let both = client.mutex_all(["a", "b"]).wait_policy(every(ms(1)));
    let guard = both.try_lock_for(ms(3_300)).unwrap();
    assert!(guard.is_ok(), "the third attempt is granted");
    client.shutdown(LONG);
    assert!(first.join().unwrap().is_err(), "shut down");
}

/// The server may have run the first attempt, so it is undone. The second attempt meets its lease,
/// but the client reads that reply after the one to the undo.
fn refusal_by_an_attempt_that_is_undone_meanwhile_is_none() {
    let (first, undone) = (OnceLock::new(), AtomicBool::new(false));
    let acquires = AtomicUsize::new(0);
    let server = FakeServer::start(move |request| match request.name().as_str() {
        "acquire" => match acquires.fetch_add(1, Ordering::SeqCst) {
            0 => {
                first
                    .set(String::from_utf8(request.args()[0].clone()).unwrap())
                    .unwrap();
                Some(b"-ERR a reply that may pass\r\n".to_vec())
            }
            1 => {
                eventually(LONG, || undone.load(Ordering::SeqCst));
                // The client reads the reply to the undo meanwhile.
                let_pass(ms(100));
                Some(refused(first.get()?, LONG, None))
            }
            _ => Some(granted("7")),
        },
        "release" => {
            // An attempt that is sent after the reply to the undo is not refused by the lease.
            eventually(LONG, || acquires.load(Ordering::SeqCst) > 1);
            undone.store(true, Ordering::SeqCst);
            Some(b":1\r\n".to_vec())
        }
        _ => other_reply(request),
    });
    let client = Client::open(server.url()).unwrap();
    let outcome = client.mutex("a").try_lock().unwrap();
    assert!(outcome.is_ok(), "{outcome:?}");
    assert_eq!(server.requests("acquire").len(), 3);
}
