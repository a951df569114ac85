//! Promise: dropping a guard or a client never panics, never blocks longer than the command
//! timeout, and leaves no lock and no thread.

use std::cell::Cell;
use std::fs;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use leasehold::crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use leasehold::{Backoff, Client, ClientBuilder, Lost, Mutex, MutexGuard, WaitPolicy};
use support::{Child, Control, Proxy, SLACK, Server, eventually, log_records_about, ms, parameter};

support::roles![
    last_owners,
    drop_in_on_lost,
    drop_in_on_renew,
    drop_after_server_died,
    drop_in_thread_local
];

support::tests![
    a_guard_of_a_killed_server_is_dropped_in_time,
    a_guard_of_a_silent_server_is_dropped_in_time_and_released_later,
    the_last_guard_of_a_silent_server_is_dropped_in_time,
    the_last_client_of_a_silent_server_is_dropped_in_time,
    the_last_guard_of_a_slow_server_is_dropped_in_time,
    basic_drop_releases_the_lock,
    a_guard_dropped_by_a_panic_releases_its_lock,
    a_panic_after_the_server_died_is_not_a_double_panic,
    a_guard_dropped_after_shutdown_leaves_the_next_holder_alone,
    a_guard_can_be_dropped_on_another_thread,
    a_forgotten_guard_expires_with_its_ttl,
    a_kept_guard_is_dropped_without_a_warning,
    a_guard_outlives_its_client,
    no_thread_outlives_the_last_owner_of_a_client,
    the_last_owner_can_be_dropped_in_on_lost,
    the_last_owner_can_be_dropped_in_on_renew,
    no_thread_is_left_of_a_client_whose_server_died,
    a_destructor_of_a_thread_local_can_drop_guards_and_wait,
    callbacks_are_dropped_by_threads_that_may_wait
];

const MINUTE: Duration = Duration::from_secs(60);

/// The limit for events that must happen at once, generous for a busy machine.
const WAIT_LIMIT: Duration = Duration::from_secs(5);

const COMMAND_TIMEOUT: Duration = ms(800);

fn builder(url: impl Into<String>) -> ClientBuilder {
    Client::builder().url(url).command_timeout(COMMAND_TIMEOUT)
}

fn client(server: &Server) -> Client {
    builder(server.url()).build().unwrap()
}

/// Runs the role in a child process, where all of leasehold's threads belong to the role.
fn run_in_child(role: &str) {
    let server = Server::start();
    let child = Child::spawn(role, &[("URL", &server.url())]);
    child.wait().succeeded();
    assert_eq!(server.get("lock:a"), None);
}

/// Returns the names of the threads that clients of this process run.
fn leasehold_threads() -> Vec<String> {
    // Without `/proc` the list is empty, and the tests only check that nothing hangs.
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten();
    tasks
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("comm")).ok())
        .filter(|name| name.starts_with("leasehold-"))
        .collect()
}

/// Makes the client of `mutex` start its engine, subscriber and callback threads. The mutex must
/// have a callback.
fn start_all_threads(mutex: &Mutex) {
    let guard = mutex.lock().unwrap();
    let waiter = thread::spawn({
        let mutex = mutex.clone();
        move || drop(mutex.lock().unwrap())
    });
    if cfg!(target_os = "linux") {
        eventually(WAIT_LIMIT, || {
            let has = |name: &str| {
                leasehold_threads()
                    .iter()
                    .any(|thread| thread.starts_with(name))
            };
            // The kernel cuts the names after 15 bytes.
            ["engin", "subsc", "callb"]
                .iter()
                .all(|name| has(&format!("leasehold-{name}")))
        });
    }
    drop(guard);
    waiter.join().unwrap();
}

fn basic_drop_releases_the_lock() {
    let server = Server::start();
    let (one, two) = (client(&server), client(&server));
    let guard = one.mutex("a").lock().unwrap();
    drop(guard);
    assert!(two.mutex("a").try_lock().unwrap().is_ok());
}

fn a_guard_dropped_by_a_panic_releases_its_lock() {
    let server = Server::start();
    let (one, two) = (client(&server), client(&server));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _guard = one.mutex("a").lock().unwrap();
        panic!("with a guard");
    }));
    assert!(panicked.is_err());
    assert!(two.mutex("a").try_lock().unwrap().is_ok());
}

fn a_panic_after_the_server_died_is_not_a_double_panic() {
    let mut server = Server::start();
    let client = client(&server);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _guard = client.mutex("a").lock().unwrap();
        server.kill();
        panic!("with a guard");
    }));
    assert!(matches!(panicked, Err(why) if why.downcast_ref() == Some(&"with a guard")));
}

fn a_guard_of_a_killed_server_is_dropped_in_time() {
    support::log_records();
    let mut server = Server::start();
    let client = client(&server);
    let guard = client.mutex("of-the-killed").lock().unwrap();
    server.kill();
    let dropped = Control::run(COMMAND_TIMEOUT, || drop(guard));
    dropped.no_later_than(SLACK);
    let warned = |line: &support::LogRecord| line.level == log::Level::Warn;
    assert!(log_records_about("of-the-killed").iter().any(warned));
}

fn a_guard_of_a_silent_server_is_dropped_in_time_and_released_later() {
    let server = Server::start();
    let client = client(&server);
    let guard = client.mutex("a").ttl(MINUTE).lock().unwrap();
    server.pause();
    let dropped = Control::run(COMMAND_TIMEOUT, || drop(guard));
    server.resume();
    dropped.no_later_than(SLACK);
    eventually(WAIT_LIMIT, || server.get("lock:a").is_none());
}

/// The release and the end of the threads share one command timeout.
fn the_last_guard_of_a_silent_server_is_dropped_in_time() {
    let server = Server::start();
    let guard = client(&server).mutex("a").ttl(MINUTE).lock().unwrap();
    server.pause();
    let dropped = Control::run(COMMAND_TIMEOUT, || drop(guard));
    server.resume();
    dropped.no_later_than(SLACK);
}

/// The client is dropped while it repeats the release of a guard, without a reply.
fn the_last_client_of_a_silent_server_is_dropped_in_time() {
    let server = Server::start();
    let client = client(&server);
    start_all_threads(&client.mutex("a").on_lost(|_| ()));
    let guard = client.mutex("b").ttl(MINUTE).lock().unwrap();
    server.pause();
    drop(guard);
    let dropped = Control::run(COMMAND_TIMEOUT, || drop(client));
    server.resume();
    dropped.no_later_than(SLACK);
}

fn the_last_guard_of_a_slow_server_is_dropped_in_time() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = builder(proxy.url()).build().unwrap();
    start_all_threads(&client.mutex("a").on_lost(|_| ()));
    let guard = client.mutex("b").ttl(MINUTE).lock().unwrap();
    drop(client);
    proxy.delay(Duration::ZERO, COMMAND_TIMEOUT * 3 / 4);
    let dropped = Control::run(COMMAND_TIMEOUT, || drop(guard));
    dropped.no_later_than(SLACK);
}

fn a_guard_dropped_after_shutdown_leaves_the_next_holder_alone() {
    let server = Server::start();
    let (one, two) = (client(&server), client(&server));
    let (dropped, unlocked) = (
        one.mutex("a").lock().unwrap(),
        one.mutex("b").lock().unwrap(),
    );
    assert!(one.shutdown(WAIT_LIMIT).is_clean());
    assert!(!dropped.is_held() && !unlocked.is_held());
    let next = [
        two.mutex("a")
            .try_lock()
            .unwrap()
            .expect("the lock is free"),
        two.mutex("b")
            .try_lock()
            .unwrap()
            .expect("the lock is free"),
    ];
    drop(dropped);
    assert_eq!(unlocked.unlock().unwrap_err().lost(), Some(Lost::ShutDown));
    for guard in next {
        guard.unlock().unwrap();
    }
}

fn a_guard_can_be_dropped_on_another_thread() {
    let server = Server::start();
    let client = client(&server);
    let mutex = client.mutex("a").ttl(MINUTE);
    let guard = mutex.lock().unwrap();
    let (served, waiter) = bounded(1);
    thread::spawn({
        let mutex = mutex.clone();
        move || served.send(mutex.lock().map(drop))
    });
    server.wait_until_waiter_sleeps("lock_release:a");
    thread::spawn(move || drop(guard)).join().unwrap();
    waiter.recv_timeout(WAIT_LIMIT).unwrap().unwrap();

    let taken_there = thread::spawn(move || mutex.lock().unwrap()).join().unwrap();
    assert!(client.mutex("a").try_lock().unwrap().is_err());
    drop(taken_there);
    assert!(client.mutex("a").try_lock().unwrap().is_ok());
}

fn a_forgotten_guard_expires_with_its_ttl() {
    let server = Server::start();
    let (one, two) = (client(&server), client(&server));
    let mutex = one.mutex("a").ttl(ms(300)).auto_renew(false);
    for waiting in [&one, &two] {
        let guard = mutex.lock().unwrap();
        let lost = guard.lost();
        mem::forget(guard);
        assert!(waiting.mutex("a").try_lock().unwrap().is_err());
        let next = waiting.mutex("a").try_lock_for(WAIT_LIMIT).unwrap();
        assert!(next.is_ok());
        assert_eq!(lost.recv_timeout(WAIT_LIMIT), Ok(Lost::Expired));
    }
}

fn a_kept_guard_is_dropped_without_a_warning() {
    let about = || log_records_about("kept-and-dropped");
    assert!(about().is_empty());
    let server = Server::start();
    let client = client(&server);
    let kept = client.mutex("kept-and-dropped").lock().unwrap();
    kept.keep_for(ms(1)).unwrap();
    // The key expires after two command timeouts.
    eventually(WAIT_LIMIT, || server.is_free("kept-and-dropped"));
    drop(kept);
    let lines = about();
    assert!(
        lines.iter().all(|line| line.level > log::Level::Warn),
        "{lines:?}"
    );
    assert!(!lines.is_empty(), "the end of the lease is logged");
}

fn a_guard_outlives_its_client() {
    let server = Server::start();
    let (renewed, renewals) = unbounded();
    let client = client(&server);
    let mutex = client.mutex("a").ttl(ms(600)).on_renew(move |_| {
        let _ = renewed.send(());
    });
    let guard = mutex.lock().unwrap();
    drop((client, mutex));
    for _ in 0..5 {
        renewals
            .recv_timeout(WAIT_LIMIT)
            .expect("the lease is renewed");
    }
    assert!(guard.is_held());
    assert_eq!(
        server.get("lock:a").unwrap(),
        guard.holder_id().as_str().as_bytes()
    );
    let lost = guard.lost();
    server.run("DEL", &["lock:a"]);
    assert_eq!(lost.recv_timeout(WAIT_LIMIT), Ok(Lost::Deleted));
}

fn no_thread_outlives_the_last_owner_of_a_client() {
    run_in_child("drop::last_owners");
}

fn last_owners() {
    // The kernel may list a thread for a moment after its end. While one thread ends, the list may
    // lack another that still runs, but three lists in a row hardly ever do.
    let has_no_threads = || (0..3).all(|_| leasehold_threads().is_empty());
    let wait_until_no_threads = || eventually(WAIT_LIMIT, has_no_threads);
    let open = || {
        let client = builder(parameter("URL")).build().unwrap();
        let mutex = client.mutex("a").on_lost(|_| ());
        // Threads start only when needed.
        wait_until_no_threads();
        start_all_threads(&mutex);
        let guard = mutex.lock().unwrap();
        (client, mutex, guard)
    };

    let (client, mutex, guard) = open();
    drop((client, mutex));
    drop(guard);
    wait_until_no_threads();

    let (client, mutex, guard) = open();
    drop((guard, client));
    drop(mutex);
    wait_until_no_threads();

    let (client, mutex, guard) = open();
    drop((mutex, guard));
    let other = client.clone();
    drop(client);
    thread::spawn(move || drop(other)).join().unwrap();
    wait_until_no_threads();

    let (client, _mutex, guard) = open();
    assert!(client.shutdown(WAIT_LIMIT).is_clean());
    wait_until_no_threads();
    drop(guard);
}

/// The last owners of a client, until a callback takes them.
type LastOwners = Arc<parking_lot::Mutex<Option<(Client, Mutex, MutexGuard)>>>;

/// Drops the last owners in the callback that `set` adds to a mutex; asserts that the callback
/// returns and that no thread is left.
fn drop_last_owner_in_callback(set: impl FnOnce(Mutex, Box<dyn Fn() + Send + Sync>) -> Mutex) {
    // With a long timeout, a thread that waits for its own end fails the test.
    let client = builder(parameter("URL")).command_timeout(MINUTE).build();
    let client = client.unwrap();
    let (dropped, done): (Sender<()>, Receiver<()>) = unbounded();
    let last = LastOwners::default();
    let callback = {
        let last = Arc::clone(&last);
        move || {
            // The first callback after the owners are stored drops them.
            if let Some(last) = last.lock().take() {
                drop(last);
                dropped.send(()).unwrap();
            }
        }
    };
    let mutex = set(client.mutex("a").ttl(ms(300)), Box::new(callback));
    // Locked until the owners are stored: a callback that runs before that waits for them.
    let mut slot = last.lock();
    start_all_threads(&client.mutex("b").on_lost(|_| ()));
    let guard = mutex.lock().unwrap();
    *slot = Some((client, mutex, guard));
    drop(slot);
    done.recv_timeout(WAIT_LIMIT).expect("the callback returns");
    eventually(WAIT_LIMIT, || leasehold_threads().is_empty());
}

fn the_last_owner_can_be_dropped_in_on_lost() {
    run_in_child("drop::drop_in_on_lost");
}

fn drop_in_on_lost() {
    drop_last_owner_in_callback(|mutex, callback| {
        mutex.auto_renew(false).on_lost(move |_| callback())
    });
}

fn the_last_owner_can_be_dropped_in_on_renew() {
    run_in_child("drop::drop_in_on_renew");
}

fn drop_in_on_renew() {
    drop_last_owner_in_callback(|mutex, callback| mutex.on_renew(move |_| callback()));
}

/// Reports the thread that drops it.
struct Witness(Sender<String>);

impl Drop for Witness {
    fn drop(&mut self) {
        let thread = thread::current();
        let _ = self.0.send(thread.name().unwrap_or("no name").to_owned());
    }
}

impl Witness {
    fn stays(&self) {}
}

/// A callback can own what waits for a server when it is dropped. Renewals and messages must not.
fn callbacks_are_dropped_by_threads_that_may_wait() {
    let servers = [(); 3].map(|()| Server::start());
    // The last reply of each round comes when no call waits for it any more.
    let late = Proxy::new(&servers[2]);
    late.delay(ms(0), ms(100));
    let urls = [servers[0].url(), servers[1].url(), late.url()];
    let (quorum, one) = (Client::quorum(urls).unwrap(), client(&servers[0]));
    let (report, drops) = unbounded();
    for _ in 0..5 {
        for client in [&quorum, &one] {
            let witness = Witness(report.clone());
            let guard = client.mutex("a").on_lost(move |_| witness.stays()).lock();
            guard.unwrap().unlock().unwrap();
            let witness = Witness(report.clone());
            let set = client.mutex_all(["b", "c"]);
            let guard = set.on_renew(move |_| witness.stays()).lock().unwrap();
            guard.renew().unwrap();
            guard.unlock().unwrap();
        }
    }
    for _ in 0..20 {
        let thread = drops.recv_timeout(WAIT_LIMIT).expect("all are dropped");
        let is_ours = thread.starts_with("leasehold-") && !thread.starts_with("leasehold-callb");
        assert!(!is_ours, "{thread} drops a callback");
    }
}

fn no_thread_is_left_of_a_client_whose_server_died() {
    let mut server = Server::start();
    let child = Child::spawn("drop::drop_after_server_died", &[("URL", &server.url())]);
    child.wait_for_line("holding");
    server.kill();
    child.wait_for_line("dropped");
    child.wait().succeeded();
}

fn drop_after_server_died() {
    let mutex = builder(parameter("URL"))
        .build()
        .unwrap()
        .mutex("a")
        .ttl(ms(500))
        .on_lost(|_| ());
    start_all_threads(&mutex);
    let guard = mutex.lock().unwrap();
    support::tell_parent("holding");
    assert_eq!(guard.lost().recv_timeout(WAIT_LIMIT), Ok(Lost::Expired));
    drop((guard, mutex));
    support::tell_parent("dropped");
    eventually(WAIT_LIMIT, || leasehold_threads().is_empty());
}

/// Calls its closure when it is destroyed: at the end of its thread, as a thread-local.
struct AtTheEnd(Cell<Option<Box<dyn FnOnce()>>>);

impl Drop for AtTheEnd {
    fn drop(&mut self) {
        if let Some(act) = self.0.take() {
            act();
        }
    }
}

thread_local! {
    static AT_THE_END: AtTheEnd = const { AtTheEnd(Cell::new(None)) };
}

fn a_destructor_of_a_thread_local_can_drop_guards_and_wait() {
    let finished = Child::spawn("drop::drop_in_thread_local", &[])
        .wait()
        .succeeded();
    assert_eq!(finished.lines, ["all done"], "{}", finished.output);
}

fn drop_in_thread_local() {
    let (server, mut killed) = (Server::start(), Server::start());
    let (one, two, three) = (client(&server), client(&server), client(&killed));
    let held = one.mutex("a").lock().unwrap();
    let guards = [
        two.mutex("b").lock().unwrap(),
        three.mutex("c").lock().unwrap(),
    ];
    killed.kill();
    let last_use = move || {
        let random = catch_unwind(|| drop(rand::rng()));
        assert!(
            random.is_err(),
            "`rand` is still usable: this runs too early"
        );
        drop(guards);
        let limit = ms(300);
        assert!(two.mutex("a").try_lock_for(limit).unwrap().is_err());
        assert!(two.fair_mutex("a").try_lock_for(limit).unwrap().is_err());
        assert!(
            two.mutex_all(["a", "b"])
                .try_lock_for(limit)
                .unwrap()
                .is_err()
        );
        let pauses = WaitPolicy::Backoff(Backoff::new(ms(5), ms(50)));
        assert!(
            two.mutex("a")
                .wait_policy(pauses)
                .try_lock_for(limit)
                .unwrap()
                .is_err()
        );
        drop(held);
        two.mutex("a").lock().unwrap().unlock().unwrap();
        drop((one, two, three));
        support::tell_parent("all done");
    };
    thread::spawn(move || {
        // A thread-local that is used later is destroyed earlier.
        AT_THE_END.with(|end| end.0.set(Some(Box::new(last_use))));
        drop(rand::rng());
    })
    .join()
    .unwrap();
}
