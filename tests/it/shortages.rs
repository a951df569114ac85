//! Promise: if this process has no file descriptor or thread left, calls say that and not that the
//! server fails. Held locks stay held, waiting calls go on, and all recovers without a restart.

use std::fs::{self, File};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::bounded;
use leasehold::{CancelToken, Client, Error, HealthState};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{Child, Server, eventually, let_pass, ms, parameter};

support::roles![without_descriptors, without_threads];

support::tests![
    calls_of_a_quorum_without_descriptors_say_so_and_recover,
    calls_without_descriptors_say_so_and_recover,
    calls_without_threads_say_so_and_recover
];

/// Silence of the server for this long would end a waiting call.
const UNREACHABLE_FOR: Duration = ms(300);

/// Long enough for a waiting call to notice a silence, and to fail.
const LONGER: Duration = ms(900);

const WAIT_LIMIT: Duration = ms(20_000);

fn run(role: &str, url: &str) {
    let child = Child::spawn(&format!("shortages::{role}"), &[("URL", url)]);
    child.wait().succeeded();
}

fn client() -> Client {
    let builder = Client::builder().url(parameter("URL")).breaker(2);
    let builder = builder
        .command_timeout(ms(400))
        .unreachable_for(UNREACHABLE_FOR);
    builder.build().expect("the URL is valid")
}

fn calls_without_descriptors_say_so_and_recover() {
    run("without_descriptors", &Server::start().url());
}

fn calls_of_a_quorum_without_descriptors_say_so_and_recover() {
    let servers = [(); 3].map(|()| Server::start());
    let hosts = servers
        .each_ref()
        .map(|server| format!("127.0.0.1:{}", server.port()));
    run(
        "without_descriptors",
        &format!("redis+quorum://{}", hosts.join(",")),
    );
}

fn calls_without_threads_say_so_and_recover() {
    run("without_threads", &Server::start().url());
}

fn limit(resource: Resource, current: u64) {
    let maximum = getrlimit(resource).maximum;
    let limit = Rlimit {
        current: Some(current),
        maximum,
    };
    setrlimit(resource, limit).expect("a limit can be lowered");
}

fn without_descriptors() {
    let holder = client();
    let guard = holder.mutex("held").renew_every(ms(200)).ttl(ms(1_500));
    let guard = guard.lock().expect("the lock is free");
    // Starts all its threads, which also open files.
    let new = client();
    limit(Resource::Nofile, 64);
    let mut files = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        files.push(file);
    }
    let is_shortage = |error: &Error| {
        let text = error.to_string();
        assert!(text.contains("no file descriptor left"), "{text}");
        matches!(error, Error::Shortage { .. })
    };
    calls_report_a_shortage(&new, is_shortage);
    // The first may have been sent before the shortage.
    let renewed = holder.stats().totals.renewals_ok;
    eventually(WAIT_LIMIT, || {
        holder.stats().totals.renewals_ok >= renewed + 2
    });
    assert!(guard.is_held());
    assert_recovers(&new, || drop(files));
    guard.unlock().expect("it is connected");
}

/// Makes calls of a client that has no connection.
fn calls_report_a_shortage(new: &Client, is_shortage: impl Fn(&Error) -> bool) {
    for _ in 0..5 {
        let error = new.mutex("a").try_lock().expect_err("nothing can be sent");
        assert!(is_shortage(&error), "{error:?}");
        assert!(error.is_retryable() && !error.is_unreachable(), "{error}");
    }
    let error = new
        .mutex("a")
        .try_lock_for(ms(500))
        .expect_err("nothing can be sent");
    assert!(is_shortage(&error), "{error:?}");
    assert_eq!(new.stats().open_breakers, 0);
    for server in new.health().servers {
        assert_ne!(server.state, HealthState::Fails, "{server}");
    }
}

/// Waits for a lock during the shortage, and gets it after `end`.
fn assert_recovers(new: &Client, end: impl FnOnce()) {
    let mutex = new.mutex("a");
    let is_over = Arc::new(AtomicBool::new(false));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let guard = mutex.lock().expect("the call goes on");
            assert!(is_over.load(Ordering::SeqCst));
            guard.unlock().expect("Redis answers");
        });
        let_pass(LONGER);
        is_over.store(true, Ordering::SeqCst);
        end();
        waiting.join().expect("no panic");
    });
}

fn without_threads() {
    let holder = client();
    let guard = holder.mutex("held").renew_every(ms(200)).ttl(ms(1_500));
    let guard = guard.lock().expect("the lock is free");
    let new = client();
    let token = CancelToken::new();
    // The waiting call needs its thread before there are none.
    let (start, started) = bounded::<()>(1);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            started.recv().expect("the test goes on");
            let mutexes = [new.mutex("a"), new.mutex("b").cancel_on(&token)];
            mutexes.map(|mutex| mutex.lock().map(drop))
        });
        let before = getrlimit(Resource::As);
        let sleepers = use_up_threads();
        let is_shortage = |error: &Error| matches!(error, Error::Thread { .. });
        calls_report_a_shortage(&new, is_shortage);
        let error = new.mutex("a").cancel_on(&token).try_lock().map(drop);
        assert!(matches!(error, Err(Error::Thread { .. })), "{error:?}");
        start.send(()).expect("the thread waits");
        let_pass(LONGER);
        assert!(!waiting.is_finished(), "the calls go on");
        assert!(guard.is_held());
        for (is_over, sleeper) in sleepers {
            is_over.store(true, Ordering::SeqCst);
            sleeper.thread().unpark();
            sleeper.join().expect("no panic");
        }
        setrlimit(Resource::As, before).expect("the limit can be raised again");
        for outcome in waiting.join().expect("no panic") {
            outcome.expect("there are threads again");
        }
    });
    guard.unlock().expect("it is connected");
}

type Sleeper = (Arc<AtomicBool>, JoinHandle<()>);

/// Limits the memory of this process to less than another stack of the usual size, and starts
/// threads until none of the stacks that ended threads have left is free. What is left of the
/// memory is for other purposes: the process aborts if a thread finds none.
fn use_up_threads() -> Vec<Sleeper> {
    const LEFT: u64 = (2 << 20) - (128 << 10);
    let pages = fs::read_to_string("/proc/self/statm").expect("this is Linux");
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    limit(Resource::As, pages * 4_096 + LEFT);
    let mut sleepers = Vec::new();
    loop {
        let is_over = Arc::new(AtomicBool::new(false));
        let body = {
            let is_over = Arc::clone(&is_over);
            move || {
                while !is_over.load(Ordering::SeqCst) {
                    thread::park();
                }
            }
        };
        match thread::Builder::new().spawn(body) {
            Ok(sleeper) => sleepers.push((is_over, sleeper)),
            Err(_) => break,
        }
    }
    sleepers
}
