//! Promise: at most one holder at a time, and the calls that take and let go say truly how it went.

mod support;

use std::time::Duration;

use leasehold::{Client, Error, Unlocked};
use support::{Server, ms};

fn client(server: &Server) -> Client {
    Client::open(&server.url()).unwrap()
}

#[test]
fn smoke() {
    let server = Server::start();
    let client = client(&server);
    client.ping().unwrap();
    let mutex = client.mutex("a");
    let guard = mutex.lock().unwrap();
    assert!(guard.is_held());
    assert!(guard.remaining().unwrap() > Duration::from_secs(9));
    let held: String = redis::cmd("GET")
        .arg("lock:a")
        .query(&mut server.connection())
        .unwrap();
    assert_eq!(held, guard.holder_id().as_str());
    assert!(mutex.try_lock().unwrap().is_none());
    assert!(mutex.try_lock_for(ms(50)).unwrap().is_none());
    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
    let again = mutex.try_lock().unwrap().unwrap();
    drop(again);
    let held: Option<String> = redis::cmd("GET")
        .arg("lock:a")
        .query(&mut server.connection())
        .unwrap();
    assert_eq!(held, None);
}

#[test]
fn another_client_is_refused_and_woken() {
    let server = Server::start();
    let (one, two) = (client(&server), client(&server));
    let guard = one.mutex("a").lock().unwrap();
    assert!(two.mutex("a").try_lock().unwrap().is_none());
    let waiter = std::thread::spawn(move || two.mutex("a").lock().unwrap().fencing_token());
    std::thread::sleep(ms(100));
    let first = guard.fencing_token();
    let _ = guard.unlock().unwrap();
    assert!(waiter.join().unwrap() > first);
}

#[test]
fn many_threads() {
    let server = Server::start();
    let client = client(&server);
    let count = std::sync::atomic::AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let _guard = client.mutex("a").lock().unwrap();
                    let seen = count.load(std::sync::atomic::Ordering::Relaxed);
                    std::thread::yield_now();
                    count.store(seen + 1, std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(count.into_inner(), 1600);
}

#[test]
fn no_server() {
    let client = Client::open(&support::nobody()).unwrap();
    assert!(matches!(
        client.mutex("a").try_lock(),
        Err(Error::Unreachable { .. })
    ));
}
