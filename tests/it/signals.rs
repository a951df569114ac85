//! Promise: a signal that the program handles breaks no connection and fails no call.
//!
//! The kernel delivers a process's signals to its main thread, where a child process runs its role.

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

/// With this delay nearly all of a call is spent in a read, which a signal can interrupt.
const DELAY: Duration = ms(8);

const RUNS_FOR: Duration = Duration::from_secs(3);

fn a_signal_breaks_no_connection() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    proxy.delay(Duration::ZERO, DELAY);
    Child::spawn("signals::signalled", &[("URL", &proxy.url())])
        .wait()
        .succeeded();
    // One connection of the calls, and one of the io thread.
    let connections = proxy.connections();
    assert!(connections <= 2, "{connections} connections were made");
}

/// Locks and unlocks on the thread that receives 1000 signals a second.
fn signalled() {
    let handled = Arc::new(AtomicUsize::new(0));
    signal_hook::flag::register_usize(SIGUSR1, Arc::clone(&handled), 1)
        .expect("the handler can be registered");
    let is_over = Arc::new(AtomicBool::new(false));
    let own = getpid();
    let signalling = thread::spawn({
        let is_over = Arc::clone(&is_over);
        move || send_signals(own, &is_over)
    });
    let client = Client::open(&parameter("URL")).expect("the URL is valid");
    let mutex = client.mutex("x");
    let began = Instant::now();
    let mut pairs = 0;
    while began.elapsed() < RUNS_FOR {
        let guard = mutex.lock().expect("the lock is free");
        let _ = guard.unlock().expect("the server answers");
        pairs += 1;
    }
    is_over.store(true, Ordering::SeqCst);
    let sent = signalling.join().expect("signals can be sent");
    assert_eq!(handled.load(Ordering::SeqCst), 1, "signals are handled");
    assert!(pairs > 10 && sent > 500, "{pairs} pairs, {sent} signals");
}

/// Sends a signal every millisecond until `is_over`; returns the number of signals.
fn send_signals(to: Pid, is_over: &AtomicBool) -> usize {
    let mut sent = 0;
    while !is_over.load(Ordering::SeqCst) {
        kill_process(to, Signal::USR1).expect("a process can signal itself");
        sent += 1;
        thread::sleep(ms(1));
    }
    sent
}
