//! Promise: after a fork, the client of the parent goes on as before. In the child its calls fail
//! at once, its guards hold nothing, and its drops do nothing; a new client works there.

use std::fs::File;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::TryRecvError;
use fork::fork;
use leasehold::{CancelToken, Client, Error, Lost, Mutex, MutexGuard, WithError};
use rustix::fs::{FlockOperation, flock};
use support::{
    Child, Cluster, Server, SetOnDrop, TempDir, assert_released, eventually, ms, parameter,
    thread_count,
};

support::roles![uses_everything, works_apart, forks_under_load];

support::tests![
    a_fork_while_all_threads_work_leaves_a_child_that_works,
    parent_and_child_work_apart,
    calls_fail_at_once_in_the_child_of_a_cluster_client,
    calls_fail_at_once_in_the_child,
    calls_fail_at_once_in_the_child_of_a_quorum_client
];

/// Each process acquires its lock this many times.
const ROUNDS: u32 = 10_000;

/// Each of so many rounds acquires a lock that both processes use.
const SHARED_EVERY: u32 = 50;

const FORKS: u32 = 200;

/// More than a child needs, even on a busy machine.
const LIMIT: Duration = ms(30_000);

/// No call of the child waits for anything.
const AT_ONCE: Duration = ms(500);

fn run(role: &str, url: &str) {
    let folder = TempDir::create();
    let file = folder.join("section");
    File::create(&file).unwrap();
    let file = file.to_str().unwrap();
    let child = Child::spawn(&format!("fork::{role}"), &[("URL", url), ("FILE", file)]);
    child.wait().succeeded();
}

fn client() -> Client {
    let builder = Client::builder().url(parameter("URL"));
    builder.build().expect("the URL is valid")
}

fn is_forked<T>(outcome: Result<T, Error>) -> bool {
    let error = outcome.err();
    let says_so = |error: &Error| error.to_string().contains("before fork");
    matches!(&error, Some(error @ Error::Forked) if says_so(error))
}

fn calls_fail_at_once_in_the_child() {
    let server = Server::start();
    run("uses_everything", &server.url());
}

fn calls_fail_at_once_in_the_child_of_a_cluster_client() {
    let cluster = Cluster::start(3, 0);
    run("uses_everything", &cluster.url());
}

fn calls_fail_at_once_in_the_child_of_a_quorum_client() {
    let servers = [(); 3].map(|()| Server::start());
    let hosts = servers
        .each_ref()
        .map(|server| format!("127.0.0.1:{}", server.port()));
    run(
        "uses_everything",
        &format!("redis+quorum://{}", hosts.join(",")),
    );
}

/// Makes every call, in a child. The parent keeps what it holds.
fn uses_everything() {
    let is_quorum = parameter("URL").contains("quorum");
    let client = client();
    let token = CancelToken::new();
    let mutex = client
        .mutex("a")
        .on_lost(|_| panic!("the parent loses nothing"));
    let mut guard = Some(mutex.lock().expect("the lock is free"));
    let set = client.mutex_all(["{s}b", "{s}c"]);
    let mut set_guard = Some(set.lock().expect("the locks are free"));
    let others = || {
        let permit = client.semaphore("d", 3).acquire().expect("it is free");
        (permit, client.rw_lock("e").write().expect("it is free"))
    };
    let mut others = (!is_quorum).then(others);

    let begin = Instant::now();
    let child = fork(|| {
        calls_of_the_client_fail(&client);
        let cancellable = mutex.clone().cancel_on(&token);
        for mutex in [&mutex, &cancellable, &client.mutex("new")] {
            calls_of_the_lock_fail(mutex);
        }
        assert!(is_forked(set.lock()) && is_forked(set.try_lock_for(LIMIT)));
        calls_of_other_locks_fail(&client);
        let guard = guard.take().expect("the parent holds it");
        calls_of_the_guard_fail(&guard);
        let set_guard = set_guard.take().expect("the parent holds it");
        assert!(is_forked(set_guard.ensure_held()) && !set_guard.is_held());
        assert!(is_forked(set_guard.unlock()));
        if let Some((permit, writing)) = others.take() {
            assert!(!permit.is_held() && is_forked(permit.release()));
            let reading = writing.downgrade();
            assert!(!reading.is_held() && is_forked(reading.unlock()));
        }
        token.cancel();
        assert!(token.is_cancelled());
        let clones = (mutex.clone(), set.clone(), client.clone(), token.clone());
        drop((guard, clones));
        let took = begin.elapsed();
        assert!(took < AT_ONCE, "the child's calls took {took:?}");
    });
    let child = child.expect("the machine has room for another process");
    assert_eq!(child.wait(LIMIT), Some(0), "the child failed or hangs");
    assert!(!token.is_cancelled());
    let guard = guard.expect("the child took a copy");
    guard.renew().expect("the lock is held");
    assert_released(guard.unlock());
    assert_released(set_guard.expect("the child took a copy").unlock());
    if let Some((permit, writing)) = others {
        assert_released(permit.release());
        assert_released(writing.downgrade().unlock());
    }
}

fn calls_of_the_client_fail(client: &Client) {
    assert!(is_forked(client.ping()));
    assert!(is_forked(client.shared_stats()));
    assert!(is_forked(client.release_lingering()));
    assert!(is_forked(client.list("")));
    assert!(is_forked(client.list_permits("")));
    let report = client.shutdown(LIMIT);
    assert_eq!((report.released, report.is_clean()), (0, true));
    let health = client.health();
    assert!(!health.is_healthy());
    assert!(health.to_string().contains("before fork"), "{health}");
    assert_eq!((client.stats().held, client.stats().waiting), (0, 0));
    let _ = format!("{client:?}");
}

fn calls_of_the_lock_fail(mutex: &Mutex) {
    assert!(is_forked(mutex.lock()));
    assert!(is_forked(mutex.try_lock()));
    assert!(is_forked(mutex.try_lock_for(LIMIT)));
    let with = mutex.with(|_| panic!("the lock is not held here"));
    assert!(matches!(with, Err(WithError::NotAcquired(Error::Forked))));
    assert!(is_forked(mutex.inspect()));
    assert!(is_forked(mutex.waiting()));
    assert!(is_forked(mutex.longest_wait()));
    assert!(is_forked(mutex.last_fencing_token()));
    assert!(is_forked(mutex.force_unlock()));
    let _ = format!("{mutex:?}");
}

fn calls_of_other_locks_fail(client: &Client) {
    let fair = client.fair_mutex("a");
    assert!(is_forked(fair.lock()) && is_forked(fair.waiting()) && is_forked(fair.inspect()));
    let lock = client.rw_lock("e");
    assert!(is_forked(lock.read()) && is_forked(lock.write()) && is_forked(lock.inspect()));
    assert!(is_forked(lock.waiting()) && is_forked(lock.force_unlock()));
    let semaphore = client.semaphore("d", 3).many(2);
    assert!(is_forked(semaphore.acquire()) && is_forked(semaphore.available()));
    assert!(is_forked(semaphore.inspect()) && is_forked(semaphore.waiting()));
}

fn calls_of_the_guard_fail(guard: &MutexGuard) {
    assert!(!guard.is_held());
    assert_eq!(guard.remaining(), None);
    assert!(is_forked(guard.ensure_held()));
    assert!(is_forked(guard.renew()));
    assert!(is_forked(guard.set_ttl(LIMIT)));
    let lost = guard.lost();
    assert_eq!(lost.try_recv(), Ok(Lost::Forked));
    assert_eq!(lost.try_recv(), Err(TryRecvError::Disconnected));
    let shown = format!("{guard:?}");
    assert!(shown.contains("Forked"), "{shown}");
}

fn parent_and_child_work_apart() {
    let server = Server::start();
    run("works_apart", &server.url());
}

/// Acquires and releases in both processes, in the child with a client of its own.
fn works_apart() {
    let client = client();
    let held = client.mutex("held").lock().expect("the lock is free");
    let [parents, childs] = ["parent", "child"];
    let child = fork(|| {
        let own = self::client();
        rounds(&own, childs, || {
            assert!(is_forked(client.mutex(parents).try_lock()));
            assert!(!held.is_held());
        });
    });
    let child = child.expect("the machine has room for another process");
    rounds(&client, parents, || assert!(held.is_held()));
    assert_eq!(child.wait(LIMIT), Some(0), "the child failed or hangs");
    held.ensure_held().expect("the child has not released it");
    let stats = client.stats().totals;
    assert_eq!(
        (stats.lost(), stats.failed, stats.renewals_failed),
        (0, 0, 0)
    );
}

fn rounds(client: &Client, name: &str, mut check: impl FnMut()) {
    let file = File::open(parameter("FILE")).expect("the test has made it");
    let (own, shared) = (client.mutex(name), client.mutex("shared"));
    for n in 0..ROUNDS {
        check();
        let is_shared = n % SHARED_EVERY == 0;
        let mutex = if is_shared { &shared } else { &own };
        let guard = mutex.lock().expect("Redis answers");
        assert!(guard.is_held());
        if is_shared {
            // Fails if the other process is in its section.
            flock(&file, FlockOperation::NonBlockingLockExclusive).expect("one holder at a time");
            flock(&file, FlockOperation::Unlock).expect("it is locked");
        }
        assert_released(guard.unlock());
    }
}

fn a_fork_while_all_threads_work_leaves_a_child_that_works() {
    let server = Server::start();
    run("forks_under_load", &server.url());
}

/// Forks again and again while other threads may have locked anything. Each child uses and drops
/// what it has of the parent, and works with a client of its own.
fn forks_under_load() {
    let client = client();
    let token = CancelToken::new();
    let is_over = AtomicBool::new(false);
    let have_begun = Barrier::new(7);
    thread::scope(|scope| {
        let _end = SetOnDrop(&is_over);
        for n in 0..6 {
            let mutex = client.mutex(format!("{}", n / 2));
            let is_over = &is_over;
            let have_begun = &have_begun;
            scope.spawn(move || {
                drop(mutex.lock().expect("Redis answers"));
                have_begun.wait();
                while !is_over.load(Ordering::Relaxed) {
                    drop(mutex.lock().expect("Redis answers"));
                }
            });
        }
        // None of these threads may be starting at a fork, as below.
        have_begun.wait();
        let mut failed = None;
        for n in 0..FORKS {
            let mut guard = Some(client.mutex("held").lock().expect("Redis answers"));
            // A thread of std holds a lock of std while it starts or ends. If that happens at the
            // fork, the child can start no thread.
            eventually(LIMIT, || thread_count("leasehold-dial") == 0);
            let child = fork(|| use_in_child(n, &client, &token, guard.take()));
            let child = child.expect("the machine has room for another process");
            let status = child.wait(LIMIT);
            if status != Some(0) {
                failed = Some((n, status));
                break;
            }
            let guard = guard.expect("the child took a copy");
            assert_released(guard.unlock());
        }
        assert_eq!(failed, None, "a child failed, or hung and was killed");
    });
}

fn use_in_child(n: u32, parents: &Client, token: &CancelToken, guard: Option<MutexGuard>) {
    let guard = guard.expect("the parent holds it");
    assert!(!guard.is_held());
    assert_eq!(guard.lost().try_recv(), Ok(Lost::Forked));
    assert_eq!(parents.stats().waiting, 0);
    assert!(!parents.health().is_healthy());
    assert!(is_forked(parents.mutex("0").cancel_on(token).lock()));
    token.cancel();
    drop(guard);
    drop(parents.clone());

    let own = client();
    thread::scope(|scope| {
        for thread in 0..8 {
            let mutex = own.mutex(format!("child {n}: {}", thread / 4));
            scope.spawn(move || {
                for _ in 0..5 {
                    let guard = mutex.lock().expect("Redis answers");
                    guard.renew().expect("Redis answers");
                    assert!(guard.is_held());
                }
            });
        }
    });
    let report = own.shutdown(LIMIT);
    assert!(report.is_clean(), "{report:?}");
}
