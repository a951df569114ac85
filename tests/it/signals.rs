//! Promise: a signal that the program handles breaks no connection and delays no call.
//!
//! The kernel gives a process's signals to its main thread, where a child plays its role.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::Client;
use rustix::process::{Pid, Signal, getpid, kill_process};
use signal_hook::consts::SIGUSR1;
use support::{Child, Proxy, Server, ms, parameter};

support::roles![signalled];

support::timed![a_signal_breaks_no_connection];

/// Nearly all of a call is spent in a read that a signal can interrupt.
const DELAY: Duration = ms(8);

const FOR: Duration = Duration::from_secs(3);

fn a_signal_breaks_no_connection() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    proxy.delay(Duration::ZERO, DELAY);
    Child::spawn("signals::signalled", &[("URL", &proxy.url())])
        .wait()
        .succeeded();
    // One that the calls share, and one of the io thread.
    let connections = proxy.connections();
    assert!(connections <= 3, "{connections} connections were made");
}

/// Locks and unlocks under a thousand signals a second, on the thread that they are delivered to.
fn signalled() {
    let handled = Arc::new(AtomicUsize::new(0));
    signal_hook::flag::register_usize(SIGUSR1, Arc::clone(&handled), 1).expect("it can be handled");
    let is_over = Arc::new(AtomicBool::new(false));
    let own = getpid();
    let signalling = thread::spawn({
        let is_over = Arc::clone(&is_over);
        move || signal(own, &is_over)
    });
    let client = Client::open(&parameter("URL")).expect("the url is one");
    let mutex = client.mutex("x");
    let began = Instant::now();
    let mut pairs = 0;
    while began.elapsed() < FOR {
        let guard = mutex.lock().expect("the lock is free");
        let _ = guard.unlock().expect("the server answers");
        pairs += 1;
    }
    is_over.store(true, Ordering::SeqCst);
    let sent = signalling.join().expect("signals can be sent");
    assert_eq!(handled.load(Ordering::SeqCst), 1, "signals are handled");
    assert!(pairs > 10 && sent > 500, "{pairs} pairs, {sent} signals");
}

/// Returns how many signals were sent.
fn signal(to: Pid, is_over: &AtomicBool) -> usize {
    let mut sent = 0;
    while !is_over.load(Ordering::SeqCst) {
        kill_process(to, Signal::USR1).expect("it is this process");
        sent += 1;
        thread::sleep(ms(1));
    }
    sent
}
