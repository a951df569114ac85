//! Promise: calls of several threads that share one write fail and are undone independently.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Error, MutexGuard, Taken};
use parking_lot::Mutex;
use support::fair::PATIENCE;
use support::{Proxy, Replicas, Server, SetOnDrop, Traffic, eventually, let_pass, ms};

support::timed![
    basic_calls_work_over_one_shared_connection,
    waiting_calls_share_one_write,
    exclusion_and_tokens_hold_over_threads_and_names,
    calls_on_a_hung_server_return_in_time_and_are_undone,
    unanswered_batch_ends_its_connection_and_each_acquire_is_undone_on_it,
    short_deadline_does_not_fail_other_calls,
    flushed_scripts_fail_no_call,
    calls_that_wait_for_replicas_are_not_batched,
    release_does_not_wait_for_the_connection_limit,
    only_calls_written_to_a_stuck_connection_wait_for_it,
    only_calls_written_to_a_dead_connection_fail,
    answer_that_was_read_is_delivered_while_others_are_missing
];

const THREADS: usize = 32;

const COMMAND_TIMEOUT: Duration = ms(400);

/// Far longer than any test, so that no key expires.
const TTL: Duration = ms(300_000);

/// How much longer than its limit a call may take on a busy machine.
const NOISE: Duration = ms(600);

/// Returns a client with at most this many connections; further calls join the next write.
fn client(url: &str, connections: usize) -> Client {
    client_with(url, connections, COMMAND_TIMEOUT)
}

fn client_with(url: &str, connections: usize, timeout: Duration) -> Client {
    let client = Client::builder()
        .url(url)
        .ttl(TTL)
        .command_timeout(timeout)
        .max_connections(connections)
        .build()
        .unwrap();
    // Loads the scripts and opens a connection.
    let guard = client.mutex("warm").lock().unwrap();
    guard.unlock().unwrap();
    client
}

fn lock_count(server: &Server) -> usize {
    let keys = server.keys().into_iter();
    keys.filter(|key| key.starts_with(b"lock:")).count()
}

/// Calls `run` in each of several threads at once. Returns the results and how long each took.
fn in_parallel<T: Send>(threads: usize, run: impl Fn(usize) -> T + Sync) -> Vec<(T, Duration)> {
    let start = Barrier::new(threads);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|n| {
                let (start, run) = (&start, &run);
                scope.spawn(move || {
                    start.wait();
                    let began = Instant::now();
                    (run(n), began.elapsed())
                })
            })
            .collect();
        let threads = threads.into_iter();
        threads.map(|thread| thread.join().unwrap()).collect()
    })
}

fn try_lock(client: &Client, n: usize) -> Result<Result<MutexGuard, Taken>, Error> {
    client.mutex(format!("name-{n}")).try_lock()
}

fn basic_calls_work_over_one_shared_connection() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = client(&proxy.url(), 1);
    // A reply takes so long that the other calls find the only connection in use.
    proxy.delay(Duration::ZERO, ms(1));
    for (granted, _) in in_parallel(THREADS, |n| try_lock(&client, n)) {
        let guard = granted.unwrap().expect("no other thread uses the name");
        guard.unlock().unwrap();
    }
    assert_eq!(lock_count(&server), 0);
}

fn waiting_calls_share_one_write() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let one_by_one = 32 * ms(50);
    let client = client_with(&proxy.url(), 1, one_by_one);
    proxy.delay(Duration::ZERO, ms(50));
    // One by one, the calls would take 32 times as long as a reply.
    for (granted, took) in in_parallel(THREADS, |n| try_lock(&client, n)) {
        drop(granted.unwrap().expect("no other thread uses the name"));
        assert!(took < one_by_one / 2);
    }
}

fn exclusion_and_tokens_hold_over_threads_and_names() {
    const NAMES: usize = 8;
    let server = Server::start();
    let client = client(&server.url(), 2);
    let names: Vec<_> = (0..NAMES)
        .map(|_| (AtomicBool::new(false), Mutex::new(Vec::new())))
        .collect();
    in_parallel(THREADS, |n| {
        for round in 0..50 {
            let name = (n + round) % NAMES;
            let (inside, tokens) = &names[name];
            let guard = client.mutex(format!("name-{name}")).lock().unwrap();
            assert!(!inside.swap(true, Ordering::SeqCst), "two holders");
            tokens.lock().push(guard.fencing_token());
            thread::yield_now();
            inside.store(false, Ordering::SeqCst);
            guard.unlock().unwrap();
        }
    });
    for (_, tokens) in &names {
        let tokens = tokens.lock();
        assert_eq!(tokens.len(), THREADS * 50 / NAMES);
        assert!(tokens.is_sorted_by(|a, b| a < b));
    }
}

/// Locks and unlocks a name in each of these `threads` until a call fails. Calls `break_server`
/// once they have done so more than 10 times each on average. Returns for each thread whether the
/// call that failed was `try_lock` rather than `unlock`, and how long it took.
fn call_until_failure(
    client: &Client,
    threads: usize,
    break_server: impl FnOnce(),
) -> Vec<(bool, Duration)> {
    let pairs = AtomicUsize::new(0);
    thread::scope(|scope| {
        let calls: Vec<_> = (0..threads)
            .map(|n| {
                let pairs = &pairs;
                scope.spawn(move || {
                    let mutex = client.mutex(format!("name-{n}"));
                    loop {
                        let began = Instant::now();
                        let guard = match mutex.try_lock() {
                            Ok(granted) => granted.expect("no other thread uses the name"),
                            Err(_) => return (true, began.elapsed()),
                        };
                        let began = Instant::now();
                        if guard.unlock().is_err() {
                            return (false, began.elapsed());
                        }
                        pairs.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        eventually(ms(10_000), || pairs.load(Ordering::Relaxed) > 10 * threads);
        break_server();
        let calls = calls.into_iter();
        calls.map(|thread| thread.join().unwrap()).collect()
    })
}

#[track_caller]
fn assert_in_time(failed: &[(bool, Duration)]) {
    let longest = failed.iter().map(|(_, took)| took).max().unwrap();
    assert!(*longest < COMMAND_TIMEOUT + NOISE, "{longest:?}");
}

fn calls_on_a_hung_server_return_in_time_and_are_undone() {
    let server = Server::start();
    let client = client(&server.url(), 1);
    assert_in_time(&call_until_failure(&client, THREADS, || server.pause()));
    server.resume();
    eventually(ms(5_000), || lock_count(&server) == 0);
    assert_works_again(&client);
}

fn unanswered_batch_ends_its_connection_and_each_acquire_is_undone_on_it() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = client(&proxy.url(), 1);
    // An undo is a script's text, which is written without waiting: those of a few calls find room
    // in the socket's buffer on a busy machine, too.
    const FEW: usize = 8;
    let failed = call_until_failure(&client, FEW, || {
        proxy.set_future(Traffic::DropBoth);
        // Counted once: a connection that is accepted later must keep dropping all bytes. An open
        // one is stalled even if it has not sent a call yet.
        let open = proxy.connections();
        let set_all = |traffic| (0..open).for_each(|n| proxy.set_nth(n, traffic));
        // Repeated until one write has acquired several locks and their replies are stalled.
        eventually(ms(10_000), || {
            set_all(Traffic::StallReplies);
            // Lets the write in flight arrive. If it contains too few calls, the next may have
            // more.
            let_pass(ms(20));
            let has_hit = lock_count(&server) > 2;
            if !has_hit {
                set_all(Traffic::Pass);
            }
            has_hit
        });
    });
    assert_in_time(&failed);
    // Releases over other connections are lost: check only the names whose `try_lock` failed.
    for (n, _) in failed
        .iter()
        .enumerate()
        .filter(|(_, (is_try_lock, _))| *is_try_lock)
    {
        eventually(PATIENCE, || server.get(format!("lock:name-{n}")).is_none());
    }
    proxy.cut();
    proxy.set_future(Traffic::Pass);
    // The client repeats the releases that were lost.
    eventually(ms(20_000), || lock_count(&server) == 0);
    assert_works_again(&client);
}

/// Asserts that new calls work: no late reply is taken for the reply to a later command.
fn assert_works_again(client: &Client) {
    for (granted, _) in in_parallel(THREADS, |n| client.mutex(format!("name-{n}")).lock()) {
        granted.unwrap().unlock().unwrap();
    }
}

fn short_deadline_does_not_fail_other_calls() {
    const SHORT_DEADLINE: Duration = ms(600);
    let server = Server::start();
    let proxy = Proxy::new(&server);
    // A long command timeout: the calls without a short deadline must get their reply even on a
    // busy machine.
    let client = client_with(&proxy.url(), 1, PATIENCE);
    proxy.delay(Duration::ZERO, ms(400));
    let (open, sent) = (proxy.connections(), proxy.request_bytes());
    let answers = in_parallel(THREADS, |n| {
        let mutex = client.mutex(format!("name-{n}"));
        if n != 1 {
            // The call of thread 1 is in flight: all others find the only connection in use.
            eventually(ms(10_000), || proxy.request_bytes() > sent);
        }
        let began = Instant::now();
        let answer = match n % 2 {
            // Sent when the reply to thread 1 arrives, after 400 ms. Its own reply would arrive
            // after another 400 ms, when its deadline has passed: it begins less than 200 ms after
            // thread 1 has sent its request.
            0 => mutex.try_lock_for(SHORT_DEADLINE),
            _ => mutex.try_lock(),
        };
        (answer, began.elapsed())
    });
    // The undos of the calls that gave up use one more connection.
    assert!(proxy.connections() <= open + 1);
    for (n, ((answer, took), _)) in answers.into_iter().enumerate() {
        match n % 2 {
            0 => {
                assert!(!matches!(answer, Ok(Ok(_))), "{answer:?}");
                assert!(took < SHORT_DEADLINE + NOISE, "{took:?}");
            }
            _ => drop(answer.unwrap().expect("no other thread uses the name")),
        }
    }
    eventually(ms(5_000), || lock_count(&server) == 0);
}

fn flushed_scripts_fail_no_call() {
    let server = Server::start();
    // A call that finds no script is repeated alone while the others wait. On a busy machine this
    // takes long.
    let client = client_with(&server.url(), 1, ms(10_000));
    in_parallel(THREADS, |n| {
        if n == 0 {
            let mut connection = server.connection();
            for _ in 0..100 {
                let mut flush = redis::cmd("SCRIPT");
                flush.arg("FLUSH").exec(&mut connection).unwrap();
                // Between two flushes, some calls find their script and some do not.
                let_pass(ms(2));
            }
            return;
        }
        for _ in 0..100 {
            let granted = try_lock(&client, n).unwrap();
            let guard = granted.expect("no other thread uses the name");
            guard.unlock().unwrap();
        }
    });
    // No call needed a second attempt.
    assert_eq!(
        client.stats().totals.attempts,
        1 + 100 * (THREADS as u64 - 1)
    );
}

fn calls_that_wait_for_replicas_are_not_batched() {
    let servers = Replicas::start(1);
    let server = servers.master();
    let client = client(&server.url(), 1);
    // A paused replica delays only the calls that wait for it.
    servers.pause(0);
    let answers = in_parallel(8, |n| {
        let mutex = client.mutex(format!("name-{n}"));
        match n % 2 {
            0 => mutex.min_replicas(1, ms(100)).try_lock().map(drop),
            _ => mutex.lock().map(drop),
        }
    });
    for (n, (answer, _)) in answers.into_iter().enumerate() {
        match n % 2 {
            // Not replicated, or out of time behind other calls that wait for replicas.
            0 => assert!(answer.is_err()),
            _ => answer.unwrap(),
        }
    }
    servers.resume(0);
    eventually(ms(5_000), || lock_count(server) == 0);
}

fn release_does_not_wait_for_the_connection_limit() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let timeout = ms(1_500);
    let client = client_with(&proxy.url(), 1, timeout);
    let guard = client.mutex("held").lock().unwrap();
    proxy.set_open(Traffic::StallReplies);
    let attempts = || client.stats().totals.attempts;
    let before = attempts();
    thread::scope(|scope| {
        let answers = scope.spawn(|| in_parallel(THREADS, |n| try_lock(&client, n).is_ok()));
        // The only connection carries an unanswered call, and the other calls wait for it.
        eventually(ms(10_000), || attempts() == before + THREADS as u64);
        // Time for the waiting calls to open another connection, which they must not.
        let_pass(ms(100));
        assert_eq!(proxy.connections_that_sent("EVALSHA").len(), 1);
        let began = Instant::now();
        guard.unlock().unwrap();
        assert!(began.elapsed() < timeout / 2);
        answers.join().unwrap();
    });
}

/// How many connections the threads of `calls_during_a_failing_batch` share.
const CONNECTIONS: usize = 16;

/// Collects the durations of the calls for which `is_bad` returns true. Its arguments are whether
/// the call succeeded, and how long it took.
struct BadCalls {
    is_bad: fn(bool, Duration) -> bool,
    calls: Mutex<Vec<Duration>>,
}

impl BadCalls {
    fn watch<T>(&self, call: impl FnOnce() -> Result<T, Error>) -> Option<T> {
        let began = Instant::now();
        let answer = call();
        let took = began.elapsed();
        if (self.is_bad)(answer.is_ok(), took) {
            self.calls.lock().push(took);
        }
        answer.ok()
    }
}

/// Locks and unlocks a name in each of many threads. Applies `traffic` to the first write of 8
/// calls or more, and calls `wait` with the number of its connection and the bad calls so far. The
/// threads continue until `wait` returns. Returns how many calls the write contained, and the
/// durations of the bad calls.
fn calls_during_a_failing_batch(
    proxy: &Proxy,
    client: &Client,
    traffic: Traffic,
    is_bad: fn(bool, Duration) -> bool,
    wait: impl FnOnce(usize, &Mutex<Vec<Duration>>),
) -> (usize, Vec<Duration>) {
    const CALLERS: usize = 128;
    let (is_over, pairs) = (AtomicBool::new(false), AtomicUsize::new(0));
    let calls = Mutex::default();
    let bad = BadCalls { is_bad, calls };
    let batch = thread::scope(|scope| {
        let _end = SetOnDrop(&is_over);
        for n in 0..CALLERS {
            let (is_over, pairs, bad) = (&is_over, &pairs, &bad);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    // Refused if the thread's previous release got no reply.
                    if let Some(Ok(guard)) = bad.watch(|| try_lock(client, n)) {
                        bad.watch(|| guard.unlock());
                        pairs.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let done = || pairs.load(Ordering::Relaxed);
        eventually(ms(20_000), || done() > 4 * CALLERS);
        proxy.set_on_batch(8, traffic);
        eventually(ms(20_000), || proxy.found_batch().is_some());
        let (connection, batch) = proxy.found_batch().unwrap();
        let before = done();
        wait(connection, &bad.calls);
        let after = done();
        assert!(after > before + CALLERS, "other calls continue");
        batch
    });
    (batch, bad.calls.into_inner())
}

fn only_calls_written_to_a_stuck_connection_wait_for_it() {
    const STUCK: Duration = ms(1_000);
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = client_with(&proxy.url(), CONNECTIONS, ms(10_000));
    let (batch, slow) = calls_during_a_failing_batch(
        &proxy,
        &client,
        Traffic::StallRequests,
        |_, took| took > STUCK * 4 / 5,
        |connection, _| {
            let_pass(STUCK);
            proxy.set_nth(connection, Traffic::Pass);
        },
    );
    assert!(
        (1..=batch).contains(&slow.len()),
        "{batch} calls were in the write, but {} waited: {slow:?}",
        slow.len()
    );
    assert_eq!(lock_count(&server), 0);
}

fn only_calls_written_to_a_dead_connection_fail() {
    const TIMEOUT: Duration = ms(1_000);
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = client_with(&proxy.url(), CONNECTIONS, TIMEOUT);
    let (batch, failed) = calls_during_a_failing_batch(
        &proxy,
        &client,
        Traffic::DropBoth,
        |succeeded, _| !succeeded,
        |_, failed| eventually(ms(20_000), || !failed.lock().is_empty()),
    );
    assert!(
        (1..=batch).contains(&failed.len()),
        "{batch} calls were in the write, but {} failed: {failed:?}",
        failed.len()
    );
    assert_works_again(&client);
    eventually(ms(5_000), || lock_count(&server) == 0);
}

fn answer_that_was_read_is_delivered_while_others_are_missing() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = client_with(&proxy.url(), 1, ms(10_000));
    proxy.set_open(Traffic::StallReplies);
    proxy.set_on_batch(8, Traffic::StallAfterOneReply);
    let returned = AtomicUsize::new(0);
    let attempts = || client.stats().totals.attempts;
    let before = attempts();
    thread::scope(|scope| {
        let answers = scope.spawn(|| {
            in_parallel(THREADS, |n| {
                let granted = try_lock(&client, n);
                returned.fetch_add(1, Ordering::Relaxed);
                granted.unwrap().expect("no other thread uses the name")
            })
        });
        eventually(ms(10_000), || attempts() == before + THREADS as u64);
        // The call in flight gets its reply, and the calls that wait are sent in one write.
        proxy.set_open(Traffic::Pass);
        eventually(ms(10_000), || proxy.found_batch().is_some());
        // Two calls have their reply: the call in flight, and the first call of the write.
        eventually(ms(5_000), || returned.load(Ordering::Relaxed) == 2);
        proxy.set_open(Traffic::Pass);
        drop(answers.join().unwrap());
    });
    assert_eq!(lock_count(&server), 0);
}
