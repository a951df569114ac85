//! Promise: a lock has one holder at a time among all processes and threads, and its fencing tokens
//! rise in the order of the critical sections.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use leasehold::Lost;
use parking_lot::Mutex;
use support::{Counters, Fenced, Server, Stale, eventually, ms};

support::tests![
    processes_and_threads_count_exactly,
    basic_exclusion_holds_between_two_clients,
    threads_of_one_client_take_turns,
    overtaken_holder_can_neither_write_nor_release
];

const COUNTERS: Counters = Counters {
    processes: 8,
    threads: 4,
    rounds: 250,
};

fn basic_exclusion_holds_between_two_clients() {
    let server = Server::start();
    let (one, two) = (server.client(), server.client());
    let guard = one.mutex("a").lock().unwrap();
    assert!(two.mutex("a").try_lock().unwrap().is_err());
    assert!(two.mutex("b").try_lock().unwrap().is_ok());
    guard.unlock().unwrap();
    assert!(two.mutex("a").try_lock().unwrap().is_ok());
}

fn processes_and_threads_count_exactly() {
    let server = Server::start();
    COUNTERS.count_exactly(&[server.url()], &server);
}

fn threads_of_one_client_take_turns() {
    let server = Server::start();
    let client = server.client();
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
    let (one, two) = (server.client(), server.client());
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

    let before = server.script_calls();
    assert_eq!(overtaken.unlock().unwrap_err().lost(), Some(Lost::Expired));
    // The release of the lost lease runs in the background and finds the key of the newer one.
    eventually(ms(10_000), || server.script_calls() > before);
    newer.unlock().unwrap();
}
