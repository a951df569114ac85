//! Promise: a signal that the program handles breaks no connection and fails no call.
//!
//! The kernel delivers a signal to the thread that has the id given to `kill`. Other threads get it
//! only while that one blocks it.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::unbounded;
use leasehold::Client;
use rustix::process::{Pid, Signal, getpid, kill_process};
use signal_hook::consts::SIGUSR1;
use support::{Child, Proxy, Server, SetOnDrop, eventually, ms, parameter, tell_parent};

support::roles![caller, holder_and_waiter];

support::timed![
    a_signal_breaks_no_connection,
    a_signal_to_the_engine_breaks_no_connection,
    a_signal_to_the_subscriber_breaks_no_connection
];

/// With this delay nearly all of a call is spent in a read, which a signal can interrupt.
const DELAY: Duration = ms(8);

/// How many signals a thread receives at least, one each millisecond.
const SIGNALS: usize = 1_000;

/// How many calls or renewals they interrupt at least.
const CALLS: usize = 20;

/// Longer than any test.
const NEVER: Duration = Duration::from_secs(300);

const WAIT_LIMIT: Duration = Duration::from_secs(30);

fn a_signal_breaks_no_connection() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    proxy.delay(Duration::ZERO, DELAY);
    Child::spawn("signals::caller", &[("URL", &proxy.url())])
        .wait()
        .succeeded();
    // One connection of the calls, and one of the engine.
    let connections = proxy.connections();
    assert!(connections <= 2, "{connections} connections were made");
}

/// Locks and unlocks on the main thread, which receives 1000 signals a second.
fn caller() {
    let client = Client::open(parameter("URL")).expect("the URL is valid");
    let mutex = client.mutex("x");
    repeat_while_signalled(getpid(), || {
        let guard = mutex.lock().expect("the lock is free");
        guard.unlock().expect("the server answers");
    });
}

fn a_signal_to_the_engine_breaks_no_connection() {
    assert_signals_break_no_connection("leasehold-engin");
}

fn a_signal_to_the_subscriber_breaks_no_connection() {
    assert_signals_break_no_connection("leasehold-subscriber");
}

fn assert_signals_break_no_connection(thread: &str) {
    let server = Server::start();
    let holder = server.client();
    let held = holder.mutex("held").lock().unwrap();
    let proxy = Proxy::new(&server);
    proxy.delay(Duration::ZERO, DELAY);
    let parameters = [("URL", &*proxy.url()), ("THREAD", thread)];
    let child = Child::spawn("signals::holder_and_waiter", &parameters);
    child.wait_for_line("signals were sent");
    // The subscription still receives the release.
    held.unlock().unwrap();
    child.wait().succeeded();
    // One connection of the engine, one of the subscriber, one of the calls, and one that a call
    // opened but no longer needed.
    let connections = proxy.connections();
    assert!(connections <= 4, "{connections} connections were made");
}

/// Holds a lock that is renewed often, and waits for another, while one of its threads receives
/// 1000 signals a second.
fn holder_and_waiter() {
    let client = Client::builder().url(parameter("URL"));
    let client = client.build().expect("the URL is valid");
    let (renewed, renewals) = unbounded();
    let mutex = client.mutex("renewed").renew_every(ms(20));
    let mutex = mutex.on_renew(move |_| {
        let _ = renewed.send(());
    });
    let _guard = mutex.lock().expect("the lock is free");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| client.mutex("held").try_lock_for(NEVER).map(drop));
        eventually(WAIT_LIMIT, || task(&parameter("THREAD")).is_some());
        let to = task(&parameter("THREAD")).expect("the thread runs");
        repeat_while_signalled(to, || {
            renewals.recv().expect("the lease is renewed");
        });
        tell_parent("signals were sent");
        waiting.join().expect("no panic").expect("the lock is free");
    });
    let failed = client.stats().totals.renewals_failed;
    assert_eq!(failed, 0, "renewals failed");
}

/// Returns the id of this process's thread with this name, of which the kernel keeps 15 bytes.
fn task(name: &str) -> Option<Pid> {
    let kept = &name[..name.len().min(15)];
    let mut tasks = fs::read_dir("/proc/self/task")
        .expect("this is Linux")
        .flatten();
    let is_it = |path: std::path::PathBuf| {
        fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim_end() == kept)
    };
    let task = tasks.find(|task| is_it(task.path()))?;
    Pid::from_raw(task.file_name().to_str()?.parse().ok()?)
}

/// Repeats a call while a thread of this process receives a signal every millisecond.
fn repeat_while_signalled(to: Pid, mut call: impl FnMut()) {
    let handled = Arc::new(AtomicUsize::new(0));
    signal_hook::flag::register_usize(SIGUSR1, Arc::clone(&handled), 1)
        .expect("the handler can be registered");
    let sent = AtomicUsize::new(0);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let end = SetOnDrop(&is_over);
        let signalling = scope.spawn(|| send_signals(to, &sent, &is_over));
        let mut calls = 0;
        while calls < CALLS || sent.load(Ordering::SeqCst) < SIGNALS {
            call();
            calls += 1;
        }
        drop(end);
        signalling.join().expect("signals can be sent");
    });
    assert_eq!(handled.load(Ordering::SeqCst), 1, "signals are handled");
}

/// Sends a signal every millisecond until `is_over`, and counts them.
fn send_signals(to: Pid, sent: &AtomicUsize, is_over: &AtomicBool) {
    while !is_over.load(Ordering::SeqCst) {
        kill_process(to, Signal::USR1).expect("a process can signal itself");
        sent.fetch_add(1, Ordering::SeqCst);
        thread::sleep(ms(1));
    }
}
