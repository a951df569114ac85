//! Promise: every later holder's fencing token is higher, even if the server lost data in between.
//!
//! Tokens stay below 2^53.

use std::ops::Deref;
use std::thread;

use leasehold::{Client, Error, Lease, Lost};
use support::fair::{
    PATIENCE, QUEUE, granted, lock_in_turn, spawn_in_queue, wait_for_queue_length,
};
use support::permits::{PERMITS_FENCE, PERMITS_QUEUE, acquire_in_turn};
use support::{Proxy, Server, Traffic, eventually, micros_since_1970, ms, nearly_a_token};

support::tests![
    tokens_rise_and_start_at_the_servers_time,
    tokens_rise_from_client_to_client,
    token_rises_after_an_expiry,
    token_rises_after_flushall,
    token_rises_after_an_empty_restart,
    token_rises_after_a_restart_from_an_old_snapshot,
    token_rises_after_the_promotion_of_a_lagging_replica,
    token_ahead_of_the_clock_is_incremented_by_one,
    tokens_stay_below_two_to_the_53,
    fence_outlasts_each_grant_by_a_day,
    unusable_fence_stays_as_it_is,
    plain_and_fair_locks_share_rising_tokens,
    fair_token_rises_after_an_expiry_and_stays_below_two_to_the_53
];

const FENCE: &str = "leasehold:fence:{lock:a}";
const LIMIT: u64 = 1 << 53;

/// Acquires and releases the lock, and returns its token.
fn lock_and_release(client: &Client) -> u64 {
    client
        .mutex("a")
        .with(|guard| guard.fencing_token().value())
        .unwrap()
}

/// Returns the tokens of two holders of the fair lock: the first finds it free, the second waits
/// for the first.
fn lock_fairly_twice(server: &Server, client: &Client) -> [u64; 2] {
    let mutex = client.fair_mutex("a");
    let guard = mutex.lock().unwrap();
    thread::scope(|scope| {
        let next = scope.spawn(|| lock_in_turn(&mutex).fencing_token().value());
        wait_for_queue_length(server, 1);
        let found_free = guard.fencing_token().value();
        drop(guard);
        [found_free, next.join().unwrap()]
    })
}

fn set_fence(server: &Server, value: u64) {
    server.run("SET", &[FENCE, &value.to_string()]);
}

fn stored_token(server: &Server) -> u64 {
    let fence = server.get(FENCE).expect("a token is stored");
    String::from_utf8(fence).unwrap().parse().unwrap()
}

fn tokens_rise_and_start_at_the_servers_time() {
    let server = Server::start();
    let client = server.client();
    let before = micros_since_1970();
    let first = lock_and_release(&client);
    assert!((before..=micros_since_1970()).contains(&first) && first < LIMIT);
    let mut tokens = vec![first];
    tokens.extend((1..100).map(|_| lock_and_release(&client)));
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later));
    assert_eq!(stored_token(&server), tokens[99]);
}

fn tokens_rise_from_client_to_client() {
    let server = Server::start();
    let (one, two) = (server.client(), server.client());
    let first = lock_and_release(&one);
    let second = lock_and_release(&two);
    assert!(first < second && second < lock_and_release(&one));
}

fn token_rises_after_an_expiry() {
    let server = Server::start();
    let (one, two) = (server.client(), server.client());
    let expired = one
        .mutex("a")
        .ttl(ms(100))
        .auto_renew(false)
        .lock()
        .unwrap();
    assert_eq!(expired.lost().recv_timeout(ms(10_000)), Ok(Lost::Expired));
    assert!(lock_and_release(&two) > expired.fencing_token().value());
}

fn token_rises_after_flushall() {
    let server = Server::start();
    let (one, two) = (server.client(), server.client());
    let flush = || {
        server.run("FLUSHALL", &[]);
    };
    let first = lock_and_release(&one);
    flush();
    let held = one.mutex("a").lock().unwrap();
    assert!(held.fencing_token().value() > first);
    flush();
    assert!(lock_and_release(&two) > held.fencing_token().value());
}

fn token_rises_after_an_empty_restart() {
    let mut server = Server::start();
    let client = server.client();
    let before = lock_and_release(&client);
    server.restart();
    assert_eq!(server.keys(), [] as [Vec<u8>; 0]);
    assert!(lock_and_release(&client) > before);
}

fn token_rises_after_a_restart_from_an_old_snapshot() {
    let mut server = Server::start();
    let client = server.client();
    let old = lock_and_release(&client);
    let snapshot = server.snapshot();
    let newest = (0..20).map(|_| lock_and_release(&client)).max().unwrap();
    server.restart_from(&snapshot);
    assert_eq!(stored_token(&server), old);
    assert!(lock_and_release(&client) > newest);
}

fn token_rises_after_the_promotion_of_a_lagging_replica() {
    let master = Server::start();
    let link = Proxy::new(&master);
    let replica = Server::with(&["--replicaof", "127.0.0.1", &link.port().to_string()]);
    eventually(ms(10_000), || {
        replica.info("replication", "master_link_status").as_deref() == Some("up")
    });
    let known = lock_and_release(&master.client());
    // The replica has received the token and the release.
    eventually(ms(10_000), || {
        replica.get(FENCE).is_some() && replica.get("lock:a").is_none()
    });
    link.set_all(Traffic::Stall);
    let newest = (0..20)
        .map(|_| lock_and_release(&master.client()))
        .max()
        .unwrap();
    replica.run("REPLICAOF", &["NO", "ONE"]);
    assert_eq!(stored_token(&replica), known);
    assert!(lock_and_release(&replica.client()) > newest);
}

fn token_ahead_of_the_clock_is_incremented_by_one() {
    let server = Server::start();
    let ahead = micros_since_1970() + 3_600_000_000;
    set_fence(&server, ahead);
    let client = server.client();
    assert_eq!(lock_and_release(&client), ahead + 1);
    assert_eq!(lock_and_release(&client), ahead + 2);
    assert_eq!(stored_token(&server), ahead + 2);
}

fn tokens_stay_below_two_to_the_53() {
    let server = Server::start();
    set_fence(&server, LIMIT - 2);
    let client = server.client();
    assert_eq!(lock_and_release(&client), LIMIT - 1);
    match client.mutex("a").lock() {
        Err(Error::BadFence { key, .. }) => assert_eq!(key, FENCE),
        other => panic!("{other:?}"),
    }
    assert_eq!(server.keys(), [FENCE.as_bytes()]);
    assert_eq!(stored_token(&server), LIMIT - 1);
}

/// One grant: calls the function right before it, and returns the token.
type Grant<'a> = Box<dyn Fn(&dyn Fn()) -> u64 + 'a>;

/// Returns a grant to a call that finds the lock free.
fn at_once<'a, T: Deref<Target = Lease>>(lock: impl Fn() -> T + 'a) -> Grant<'a> {
    Box::new(move |prepare| {
        prepare();
        lock().fencing_token().value()
    })
}

/// Returns a grant to a call that waits in the queue with this key.
fn in_queue<'a, T: Deref<Target = Lease> + Send + 'a>(
    server: &'a Server,
    queue: &'a str,
    hold: impl Fn() -> T + 'a,
    wait: impl Fn() -> T + Sync + 'a,
) -> Grant<'a> {
    Box::new(move |prepare| {
        let held = hold();
        thread::scope(|scope| {
            let waiting = spawn_in_queue(scope, server, queue, &wait);
            prepare();
            drop(held);
            waiting.join().unwrap().fencing_token().value()
        })
    })
}

/// The first grant of each 1000 s renews the expiry, and so does each while the fence is ahead of
/// the clock, and each by a token that a client of a quorum proposes.
fn fence_outlasts_each_grant_by_a_day() {
    let server = Server::start();
    let builder = || Client::builder().url(server.url());
    let (one, two) = (builder().build().unwrap(), builder().build().unwrap());
    let plain = builder().queues(false).build().unwrap();
    let quorum = Client::quorum([server.url()]).unwrap();
    let lock = |client: &Client| granted(client.mutex("a").try_lock_for(PATIENCE));
    let fair = |client: &Client| lock_in_turn(&client.fair_mutex("a"));
    let write = |client: &Client| granted(client.rw_lock("a").try_write_for(PATIENCE));
    let all = |client: &Client| granted(client.mutex_all(["a", "b"]).try_lock_for(PATIENCE));
    let acquire = |client: &Client| acquire_in_turn(&client.semaphore("a", 1));
    let by_one: [(&str, &str, Grant); 13] = [
        ("Mutex", FENCE, at_once(|| lock(&one))),
        ("FairMutex", FENCE, at_once(|| fair(&one))),
        ("writer", FENCE, at_once(|| write(&one))),
        ("MutexAll", FENCE, at_once(|| all(&one))),
        ("permit", PERMITS_FENCE, at_once(|| acquire(&one))),
        ("plain Mutex", FENCE, at_once(|| lock(&plain))),
        ("plain MutexAll", FENCE, at_once(|| all(&plain))),
        ("Mutex of a quorum", FENCE, at_once(|| lock(&quorum))),
        ("MutexAll of a quorum", FENCE, at_once(|| all(&quorum))),
        (
            "waiting Mutex",
            FENCE,
            in_queue(&server, QUEUE, || lock(&one), || lock(&two)),
        ),
        (
            "waiting FairMutex",
            FENCE,
            in_queue(&server, QUEUE, || fair(&one), || fair(&two)),
        ),
        (
            "waiting MutexAll",
            FENCE,
            in_queue(&server, QUEUE, || all(&one), || all(&two)),
        ),
        (
            "waiting for a permit",
            PERMITS_FENCE,
            in_queue(&server, PERMITS_QUEUE, || acquire(&one), || acquire(&two)),
        ),
    ];
    for (kind, key, grant) in by_one {
        assert_expiry_after(&server, kind, key, &grant);
    }
}

/// Asserts that a kind of grant keeps the expiry of a fence of the same 1000 s, and renews others.
#[track_caller]
fn assert_expiry_after(server: &Server, kind: &str, key: &str, grant: &Grant) {
    const INTERVAL: u64 = 1_000_000_000;
    let now = server.micros();
    let (recent, last) = (now - 1, now - now % INTERVAL - 1);
    for fence in [Some(recent), Some(last), Some(now + INTERVAL), None] {
        let token = grant(&|| {
            server.run("DEL", &[key]);
            if let Some(fence) = fence {
                server.run("SET", &[key, &fence.to_string(), "EX", "100"]);
            }
        });
        assert!(Some(token) > fence, "{kind}: {token} after {fence:?}");
        let is_kept = fence.is_some_and(|fence| {
            fence < now && fence / INTERVAL == token / INTERVAL && !kind.contains("quorum")
        });
        // The clock reaches the token by then.
        let ahead = match fence {
            Some(fence) if fence > now && !kind.contains("quorum") => 1_000_000,
            _ => 0,
        };
        let expected = if is_kept {
            1..=100_000
        } else {
            ahead + 89_900_000..=ahead + 90_000_000
        };
        let left = server.pttl(key);
        assert!(
            expected.contains(&left),
            "{kind}: {left} ms after {fence:?}"
        );
    }
}

fn unusable_fence_stays_as_it_is() {
    let server = Server::start();
    let client = server.client();
    for fence in [
        "",
        "-5",
        "1e15",
        "0x10",
        " 7",
        "1.5",
        "9007199254740991",
        "words",
        &nearly_a_token(),
    ] {
        server.run("SET", &[FENCE, fence, "EX", "100"]);
        assert!(matches!(
            client.mutex("a").lock(),
            Err(Error::BadFence { .. })
        ));
        assert!(matches!(
            client.fair_mutex("a").lock(),
            Err(Error::BadFence { .. })
        ));
        assert_eq!(server.keys(), [FENCE.as_bytes()]);
        assert_eq!(server.get(FENCE).as_deref(), Some(fence.as_bytes()));
        let left = server.pttl(FENCE);
        assert!((1..=100_000).contains(&left), "{left} ms");
    }
}

fn plain_and_fair_locks_share_rising_tokens() {
    let mut server = Server::start();
    let client = server.client();
    let mut last = 0;
    // `ahead` is the stored token, if it is ahead of the clock.
    let mut assert_tokens_rise = |server: &Server, ahead: Option<u64>| {
        let before = lock_and_release(&client);
        let [found_free, passed_on] = lock_fairly_twice(server, &client);
        let after = lock_and_release(&client);
        let tokens = [last, before, found_free, passed_on, after];
        assert!(tokens.is_sorted_by(|earlier, later| earlier < later));
        if let Some(ahead) = ahead {
            assert_eq!(after, ahead + 4, "each token is one higher");
        }
        assert_eq!(stored_token(server), after);
        last = after;
    };
    assert_tokens_rise(&server, None);
    let snapshot = server.snapshot();
    assert_tokens_rise(&server, None);
    server.run("FLUSHALL", &[]);
    assert_tokens_rise(&server, None);
    server.restart();
    assert_tokens_rise(&server, None);
    server.restart_from(&snapshot);
    assert_tokens_rise(&server, None);
    let ahead = micros_since_1970() + 3_600_000_000;
    set_fence(&server, ahead);
    assert_tokens_rise(&server, Some(ahead));
}

fn fair_token_rises_after_an_expiry_and_stays_below_two_to_the_53() {
    let server = Server::start();
    let client = server.client();
    let mutex = client.fair_mutex("a").ttl(ms(100)).auto_renew(false);
    let expired = mutex.lock().unwrap();
    assert_eq!(expired.lost().recv_timeout(ms(10_000)), Ok(Lost::Expired));
    let [later, _] = lock_fairly_twice(&server, &client);
    assert!(later > expired.fencing_token().value());
    set_fence(&server, LIMIT - 3);
    assert_eq!(lock_fairly_twice(&server, &client), [LIMIT - 2, LIMIT - 1]);
    match client.fair_mutex("a").lock() {
        Err(Error::BadFence { key, .. }) => assert_eq!(key, FENCE),
        other => panic!("{other:?}"),
    }
    assert_eq!(server.keys(), [FENCE.as_bytes()]);
}
