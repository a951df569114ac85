//! Promise: a process that has locked many different names grows neither in memory nor in threads
//! or connections.

use std::fs;
use std::process::ExitCode;
use std::thread;

use crossbeam_channel::bounded;
use leasehold::{Client, Unlocked};
use support::{Child, Server, eventually, ms, parameter, tell_parent};

fn main() -> ExitCode {
    support::run(&[TESTS], &[], &[], &[ROLES])
}

support::roles![
    many_names,
    many_sets,
    many_semaphores,
    contended_names,
    threads
];

support::tests![
    ten_thousand_more_names_add_nothing,
    ten_thousand_more_names_in_sets_add_nothing,
    ten_thousand_more_semaphores_add_nothing,
    contended_names_add_nothing_once_released,
    threads_start_when_needed_and_never_per_lock
];

/// How much the second half of the names may add, in KiB.
const ADDED: u64 = 1024;

const NAMES: usize = 10_000;

/// More names than a client keeps unused subscriptions for.
const CONTENDED: usize = 1_100;

fn client() -> Client {
    Client::open(parameter("URL")).unwrap()
}

/// The memory and threads of a child, as it reports them.
#[derive(Debug)]
struct Size {
    kib: u64,
    threads: Vec<String>,
}

impl Size {
    /// In a child: sends its size to its parent.
    fn report() {
        tell_parent(&format!("{} {}", resident(), own_threads().join(" ")));
    }

    fn receive(child: &Child) -> Self {
        let line = child.next_line();
        let mut words = line.split(' ').map(str::to_owned);
        Self {
            kib: words.next().unwrap().parse().unwrap(),
            threads: words.collect(),
        }
    }

    #[track_caller]
    fn assert_not_grown_since(&self, before: &Self) {
        assert!(
            self.kib <= before.kib + ADDED,
            "{} KiB more",
            self.kib - before.kib
        );
        assert_eq!(self.threads, before.threads);
    }
}

/// Returns the resident memory in KiB. The kernel's faster counters lag by some pages per CPU.
fn resident() -> u64 {
    let rollup = fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.unwrap().parse().unwrap()
}

/// Returns the names of the client's threads, of which the kernel keeps 15 bytes.
///
/// Dialer threads, which end after each connection, are left out.
fn own_threads() -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .map(|name| name.trim_end().to_owned())
        .filter(|name| name.starts_with("leasehold-") && name != "leasehold-dial")
        .collect();
    names.sort();
    names
}

/// In a child: waits until the parent has checked the server.
fn wait_for_parent(go: &mut redis::Connection) {
    let _: (String, String) = redis::cmd("BLPOP")
        .arg("go")
        .arg(30)
        .query(go)
        .expect("the parent resumes this child");
}

/// In a child: opens the connection for `wait_for_parent`, before the first size is reported.
fn connection() -> redis::Connection {
    let client = redis::Client::open(parameter("URL")).unwrap();
    client.get_connection().unwrap()
}

fn resume_child(server: &Server) {
    let () = redis::cmd("RPUSH")
        .arg("go")
        .arg("on")
        .query(&mut server.connection())
        .unwrap();
}

fn connections(server: &Server) -> usize {
    server.client_list().len()
}

fn ten_thousand_more_names_add_nothing() {
    names_add_nothing("many_names");
}

fn ten_thousand_more_names_in_sets_add_nothing() {
    names_add_nothing("many_sets");
}

fn ten_thousand_more_semaphores_add_nothing() {
    names_add_nothing("many_semaphores");
}

fn names_add_nothing(role: &str) {
    let server = Server::start();
    let child = Child::spawn(role, &[("URL", &server.url())]);
    let first = Size::receive(&child);
    let before = connections(&server);
    resume_child(&server);
    let second = Size::receive(&child);
    second.assert_not_grown_since(&first);
    assert_eq!(second.threads, ["leasehold-io", "leasehold-timer"]);
    assert_eq!(connections(&server), before);
    resume_child(&server);
    child.wait().succeeded();
}

fn many_names() {
    let (client, mut go) = (client(), connection());
    for lot in 0..2 {
        for n in 0..NAMES {
            let mutex = client.mutex(format!("account:{lot}:{n}"));
            assert_eq!(mutex.lock().unwrap().unlock().unwrap(), Unlocked::Released);
        }
        Size::report();
        wait_for_parent(&mut go);
    }
}

fn many_sets() {
    let (client, mut go) = (client(), connection());
    for lot in 0..2 {
        for n in 0..NAMES / 10 {
            let names = (0..10).map(|m| format!("account:{lot}:{n}:{m}"));
            let guard = client.mutex_all(names).lock().unwrap();
            assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
        }
        Size::report();
        wait_for_parent(&mut go);
    }
}

fn many_semaphores() {
    let (client, mut go) = (client(), connection());
    for lot in 0..2 {
        for n in 0..NAMES {
            let semaphore = client.semaphore(format!("account:{lot}:{n}"), 2);
            let permit = semaphore.acquire().unwrap();
            assert_eq!(permit.release().unwrap(), Unlocked::Released);
        }
        Size::report();
        wait_for_parent(&mut go);
    }
}

fn contended_names_add_nothing_once_released() {
    let server = Server::start();
    let child = Child::spawn("contended_names", &[("URL", &server.url())]);
    let first = Size::receive(&child);
    let before = connections(&server);
    resume_child(&server);
    let second = Size::receive(&child);
    second.assert_not_grown_since(&first);
    // By chance, more calls may overlap than before.
    assert!(connections(&server) <= before + 3);
    // Only a limited number of unused subscriptions is kept.
    eventually(ms(5_000), || {
        server.subscribed_channels("lock_release:*") < CONTENDED
    });
    resume_child(&server);
    child.wait().succeeded();
}

fn contended_names() {
    let (holder, waiter, mut go) = (client(), client(), connection());
    for lot in 0..2 {
        for n in 0..CONTENDED {
            wait_for(&holder, &waiter, &format!("account:{lot}:{n}"), &mut go);
        }
        Size::report();
        wait_for_parent(&mut go);
    }
}

/// Makes one client wait, subscribed, for a lock that another client then releases.
fn wait_for(holder: &Client, waiter: &Client, name: &str, connection: &mut redis::Connection) {
    let guard = holder.mutex(name).lock().unwrap();
    let waiting = waiter.mutex(name);
    thread::scope(|scope| {
        let waiting = scope.spawn(move || waiting.lock().unwrap().unlock().unwrap());
        let channel = format!("lock_release:{name}");
        eventually(ms(10_000), || {
            let (_, listeners): (String, usize) = redis::cmd("PUBSUB")
                .arg("NUMSUB")
                .arg(&channel)
                .query(connection)
                .unwrap();
            listeners > 0
        });
        assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
        assert_eq!(waiting.join().unwrap(), Unlocked::Released);
    });
}

fn threads_start_when_needed_and_never_per_lock() {
    let server = Server::start();
    let child = Child::spawn("threads", &[("URL", &server.url())]);
    child.wait().succeeded();
}

fn threads() {
    const LOCKS: usize = 500;
    const WAITERS: usize = 20;
    let is = |expected: &[&str]| eventually(ms(5_000), || own_threads() == expected);
    let client = client();
    let other = self::client();
    client.ping().unwrap();
    let mutexes: Vec<_> = (0..LOCKS).map(|n| client.mutex(format!("{n}"))).collect();
    is(&[]);

    let guards: Vec<_> = mutexes.iter().map(|mutex| mutex.lock().unwrap()).collect();
    is(&["leasehold-io", "leasehold-timer"]);

    // `try_lock` does not wait, so it starts no thread.
    assert!(client.mutex("0").try_lock().unwrap().is_none());
    is(&["leasehold-io", "leasehold-timer"]);

    let (entered, entries) = bounded(0);
    thread::scope(|scope| {
        for n in 0..WAITERS {
            let (mutex, entered) = (other.mutex(format!("{n}")), entered.clone());
            scope.spawn(move || {
                let guard = mutex.lock().unwrap();
                entered.send(()).unwrap();
                assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
            });
        }
        is(&[
            "leasehold-io",
            "leasehold-io",
            "leasehold-subsc",
            "leasehold-timer",
            "leasehold-timer",
        ]);
        drop(guards);
        for _ in 0..WAITERS {
            entries.recv().unwrap();
        }
    });
    drop(other);
    is(&["leasehold-io", "leasehold-timer"]);

    let guard = client.mutex("callback").on_lost(|_| ()).lock().unwrap();
    is(&["leasehold-callb", "leasehold-io", "leasehold-timer"]);
    drop((client, mutexes));
    is(&["leasehold-callb", "leasehold-io", "leasehold-timer"]);
    drop(guard);
    is(&[]);
}
