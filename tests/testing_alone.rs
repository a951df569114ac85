//! Promise: `testing::suspend` ends leases at once, and a thousand servers leave nothing behind.
//!
//! These tests move the clock of their process, or count its threads, so they run one at a time.
#![cfg(feature = "testing")]

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::AsRawFd as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::testing::{Server, suspend};
use leasehold::{Client, Error, Lost};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{eventually, let_pass, ms, processor_time, thread_count};

/// Long enough for a machine that is overloaded.
const LONG: Duration = Duration::from_secs(60);

/// Keeps the other tests of this process waiting.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn suspended_machine_loses_its_leases_at_once() {
    let _alone = alone();
    let server = Server::start();
    let client = server.client();
    let guard = client.mutex("a").ttl(LONG * 60).lock().unwrap();
    let (sender, tells) = crossbeam_channel::bounded(1);
    let longer = client.mutex("b").ttl(LONG * 300);
    let longer = longer.on_lost(move |_| sender.send(()).unwrap());
    let kept = longer.lock().unwrap();
    suspend(LONG * 61);
    assert!(!guard.is_held());
    assert_eq!(guard.lost().recv_timeout(LONG), Ok(Lost::Expired));
    assert!(matches!(
        guard.ensure_held(),
        Err(Error::Lost(Lost::Expired))
    ));
    assert!(kept.is_held(), "its lease is longer");
    assert!(tells.try_recv().is_err());
}

#[test]
fn suspended_process_has_passed_its_deadlines() {
    let _alone = alone();
    let server = Server::start();
    let client = server.client();
    let _foreign = server.hold("a");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| client.mutex("a").try_lock_for(LONG * 60));
        eventually(LONG, || client.mutex("a").waiting().unwrap() == 1);
        suspend(LONG * 60);
        // An error if the suspend interrupted one of its commands.
        assert!(!matches!(waiter.join().unwrap(), Ok(Ok(_))));
    });
}

#[test]
fn suspend_wakes_waiting_calls() {
    let _alone = alone();
    let server = Server::start();
    let client = server.client();
    // A name for each round: a subscription outlives its call, and `waiting` counts it.
    let mut times = ["a", "b", "c", "d", "e"].map(|name| {
        let _foreign = server.hold(name);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| client.mutex(name).try_lock_for(LONG * 60));
            eventually(LONG, || client.mutex(name).waiting().unwrap() == 1);
            let began = Instant::now();
            suspend(LONG * 60);
            let _ = waiter.join().unwrap();
            began.elapsed()
        })
    });
    // A call that is not woken reads the clock once a second. The median counts, because one call
    // may not sleep yet, and this machine may be overloaded.
    times.sort_unstable();
    assert!(times[2] < ms(500), "{times:?}");
}

#[test]
fn server_clock_stands_when_the_process_is_suspended() {
    let _alone = alone();
    let server = Server::start();
    let guard = server.client().mutex("a").lock().unwrap();
    suspend(LONG);
    assert!(server.is_locked("a"));
    drop(guard);
}

#[test]
fn thousand_servers_run_beside_each_other_and_leave_nothing() {
    let _alone = alone();
    let limit = getrlimit(Resource::Nofile);
    let enough = limit.maximum.map_or(4096, |maximum| maximum.min(4096));
    let enough = limit.current.map_or(enough, |current| current.max(enough));
    let raised = Rlimit {
        current: Some(enough),
        ..limit
    };
    setrlimit(Resource::Nofile, raised).unwrap();

    let servers: Vec<Server> = (0..1_000).map(|_| Server::start()).collect();
    for server in &servers {
        let client = Client::builder().url(server.url()).owner(server.url());
        let client = client.build().unwrap();
        let guard = client.mutex("a").lock().unwrap();
        assert_eq!(guard.holder_id().owner(), server.url());
        assert!(server.is_locked("a"));
    }
    assert_eq!(thread_count("testing-server"), 1_000);
    let address = |server: &Server| server.url().trim_start_matches("redis://").to_owned();
    let addresses: Vec<String> = servers.iter().map(address).collect();
    drop(servers);
    // The kernel lists a thread for a moment after it was joined.
    eventually(LONG, || thread_count("testing-server") == 0);
    // Another program may have a port again, but hardly all of them.
    let refused = addresses
        .iter()
        .filter(|at| TcpStream::connect(at.as_str()).is_err());
    assert!(refused.count() > 900);
}

/// A connection that cannot be accepted keeps the listener ready.
#[test]
fn server_without_a_file_descriptor_for_a_connection_sleeps() {
    let _alone = alone();
    let server = Server::start();
    let pause = server.pause();
    let address = server.url().trim_start_matches("redis://");
    let mut waiting = TcpStream::connect(address).unwrap();
    let all_taken = NoDescriptors::begin();
    drop(pause);
    let before = processor_time();
    let_pass(ms(500));
    let used = processor_time() - before;
    drop(all_taken);
    assert!(used < ms(100), "{used:?} of processor time");
    waiting.write_all(b"*1\r\n$4\r\nPING\r\n").unwrap();
    waiting.set_read_timeout(Some(LONG)).unwrap();
    let mut reply = [0; 7];
    waiting.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"+PONG\r\n", "it is accepted later");
}

#[test]
fn cut_server_comes_back_without_a_free_file_descriptor() {
    let _alone = alone();
    let server = Server::start();
    let outage = server.cut();
    let all_taken = NoDescriptors::begin();
    drop(outage);
    drop(all_taken);
    server.client().ping().unwrap();
}

/// Lets this process open no file descriptor, until it is dropped.
struct NoDescriptors(Rlimit);

impl NoDescriptors {
    fn begin() -> Self {
        let before = getrlimit(Resource::Nofile);
        let lowest_free = File::open("/dev/null").unwrap().as_raw_fd();
        let lowered = Rlimit {
            current: Some(u64::try_from(lowest_free).unwrap()),
            ..before
        };
        setrlimit(Resource::Nofile, lowered).unwrap();
        Self(before)
    }
}

impl Drop for NoDescriptors {
    fn drop(&mut self) {
        setrlimit(Resource::Nofile, self.0).unwrap();
    }
}

#[test]
fn dropped_server_cannot_be_reached() {
    let _alone = alone();
    let server = Server::start();
    let client = Client::builder().url(server.url()).command_timeout(ms(200));
    let client = client.build().unwrap();
    client.ping().unwrap();
    drop(server);
    let error = client.ping().unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}
