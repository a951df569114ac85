//! Promise: a lock has one holder at a time among all processes and threads, and its fencing tokens
//! rise in the order of the critical sections.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use leasehold::{Client, Error, Lost, Unlocked};
use parking_lot::Mutex;
use support::{Counters, Fenced, Server, Stale, eventually, ms};

support::tests![
    basic_exclusion_holds_between_two_clients,
    processes_and_threads_count_exactly,
    threads_of_one_client_take_turns,
    overtaken_holder_can_neither_write_nor_release,
    with_holds_the_lock_until_the_section_ends,
    with_releases_on_panic,
    with_reports_a_loss_during_the_section,
    try_with_runs_the_section_only_under_the_lock
];

const COUNTERS: Counters = Counters {
    processes: 8,
    threads: 4,
    rounds: 250,
};

fn client(server: &Server) -> Client {
    Client::open(server.url()).unwrap()
}

fn basic_exclusion_holds_between_two_clients() {
    let server = Server::start();
    let (one, two) = (client(&server), client(&server));
    let guard = one.mutex("a").lock().unwrap();
    assert!(two.mutex("a").try_lock().unwrap().is_none());
    assert!(two.mutex("b").try_lock().unwrap().is_some());
    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
    assert!(two.mutex("a").try_lock().unwrap().is_some());
}

fn processes_and_threads_count_exactly() {
    let server = Server::start();
    COUNTERS.count_exactly(&[server.url()], &server);
}

fn threads_of_one_client_take_turns() {
    let server = Server::start();
    let client = client(&server);
    let inside = AtomicBool::new(false);
    let count = AtomicU32::new(0);
    let tokens = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let guard = client.mutex("a").lock().unwrap();
                    assert!(!inside.swap(true, Ordering::Relaxed));
                    let seen = count.load(Ordering::Relaxed);
                    thread::yield_now();
                    count.store(seen + 1, Ordering::Relaxed);
                    tokens.lock().push(guard.fencing_token());
                    inside.store(false, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(count.into_inner(), 800);
    assert!(
        tokens
            .into_inner()
            .is_sorted_by(|earlier, later| earlier < later)
    );
}

fn overtaken_holder_can_neither_write_nor_release() {
    let server = Server::start();
    let (one, two) = (client(&server), client(&server));
    let account = Fenced::new("empty");
    let overtaken = one
        .mutex("a")
        .ttl(ms(100))
        .auto_renew(false)
        .lock()
        .unwrap();
    assert_eq!(
        account.write(overtaken.fencing_token().value(), "first"),
        Ok(())
    );
    overtaken
        .lost()
        .recv_timeout(ms(10_000))
        .expect("the lease expires");
    let newer = two.mutex("a").lock().unwrap();
    assert_eq!(
        account.write(newer.fencing_token().value(), "second"),
        Ok(())
    );
    assert_eq!(
        account.write(overtaken.fencing_token().value(), "late"),
        Err(Stale {
            token: overtaken.fencing_token().value(),
            newest: newer.fencing_token().value(),
        })
    );
    assert_eq!(account.read(), "second");

    let before = server.calls(&["evalsha", "eval"]);
    assert_eq!(
        overtaken.unlock().unwrap(),
        Unlocked::AlreadyLost(Lost::Expired)
    );
    // The release of the lost lease runs in the background and finds the key of the newer one.
    eventually(ms(10_000), || server.calls(&["evalsha", "eval"]) > before);
    assert_eq!(newer.unlock().unwrap(), Unlocked::Released);
}

fn with_holds_the_lock_until_the_section_ends() {
    let server = Server::start();
    let (one, two) = (client(&server), client(&server));
    let mutex = one.mutex("a");
    let refused = mutex.with(|guard| {
        assert!(guard.is_held());
        two.mutex("a").try_lock().unwrap().is_none()
    });
    assert!(refused.unwrap());
    assert!(two.mutex("a").try_lock().unwrap().is_some());
}

fn with_releases_on_panic() {
    let server = Server::start();
    let (one, two) = (client(&server), client(&server));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        one.mutex("a").with(|_| panic!("of the section"))
    }));
    assert!(matches!(panicked, Err(why) if why.downcast_ref() == Some(&"of the section")));
    assert!(two.mutex("a").try_lock().unwrap().is_some());
}

fn with_reports_a_loss_during_the_section() {
    let server = Server::start();
    let result = client(&server).mutex("a").with(|_| {
        server.run("DEL", &["lock:a"]);
    });
    assert!(matches!(result, Err(Error::Lost(Lost::Deleted))));
}

fn try_with_runs_the_section_only_under_the_lock() {
    let server = Server::start();
    let (one, two) = (client(&server), client(&server));
    let guard = one.mutex("a").lock().unwrap();
    let kept_out = two
        .mutex("a")
        .try_with(|_| unreachable!("the lock is held"));
    assert!(kept_out.unwrap().is_none());
    drop(guard);
    let token = two.mutex("a").try_with(|guard| guard.fencing_token());
    assert!(token.unwrap().is_some());
    assert!(one.mutex("a").try_lock().unwrap().is_some());
}
