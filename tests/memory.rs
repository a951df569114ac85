//! Promise: a process that has locked many different names is as small as before, and has as many threads and connections.

use std::fs;
use std::process::ExitCode;
use std::thread;

use crossbeam_channel::bounded;
use leasehold::{Client, Unlocked};
use support::{Child, Server, eventually, ms, parameter, tell_parent};

fn main() -> ExitCode {
    support::run(&[TESTS], &[], &[], &[ROLES])
}

support::roles![many_names, many_sets, contended_names, threads];

support::tests![
    ten_thousand_names_more_add_nothing,
    neither_do_they_in_sets,
    names_that_were_waited_for_add_nothing,
    a_subscription_that_nobody_uses_ends,
    threads_start_when_needed_and_none_is_there_for_a_lock
];

/// What the second lot of names may add, in KiB.
const ADDED: u64 = 1024;

const NAMES: usize = 10_000;

/// More than may linger, so that subscriptions have to go.
const CONTENDED: usize = 1_100;

fn client() -> Client {
    Client::open(&parameter("URL")).unwrap()
}

/// What a process has, as it says itself.
#[derive(Debug)]
struct Size {
    kib: u64,
    threads: Vec<String>,
}

impl Size {
    /// In a child: says how large it is.
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
    fn grew_no_further_than(&self, before: &Self) {
        assert!(
            self.kib <= before.kib + ADDED,
            "{} KiB more",
            self.kib - before.kib
        );
        assert_eq!(self.threads, before.threads);
    }
}

/// In KiB. The kernel's quicker figures lag behind by some pages for each processor.
fn resident() -> u64 {
    let rollup = fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.unwrap().parse().unwrap()
}

/// The client's threads, as the kernel names them: by fifteen bytes at the most. Without dialers, which come and go.
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

/// In a child: waits until its parent has looked at the server.
fn pause(go: &mut redis::Connection) {
    let _: (String, String) = redis::cmd("BLPOP")
        .arg("go")
        .arg(30)
        .query(go)
        .expect("the parent goes on");
}

/// In a child: a connection to pause on, which is there from the start.
fn connection() -> redis::Connection {
    let client = redis::Client::open(parameter("URL")).unwrap();
    client.get_connection().unwrap()
}

fn go_on(server: &Server) {
    let () = redis::cmd("RPUSH")
        .arg("go")
        .arg("on")
        .query(&mut server.connection())
        .unwrap();
}

fn connections(server: &Server) -> usize {
    server.client_list().len()
}

fn ten_thousand_names_more_add_nothing() {
    names_add_nothing("many_names");
}

fn neither_do_they_in_sets() {
    names_add_nothing("many_sets");
}

fn names_add_nothing(role: &str) {
    let server = Server::start();
    let child = Child::spawn(role, &[("URL", &server.url())]);
    let first = Size::receive(&child);
    let before = connections(&server);
    go_on(&server);
    let second = Size::receive(&child);
    second.grew_no_further_than(&first);
    assert_eq!(second.threads, ["leasehold-io", "leasehold-timer"]);
    assert_eq!(connections(&server), before);
    go_on(&server);
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
        pause(&mut go);
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
        pause(&mut go);
    }
}

fn names_that_were_waited_for_add_nothing() {
    let server = Server::start();
    let child = Child::spawn("contended_names", &[("URL", &server.url())]);
    let first = Size::receive(&child);
    let before = connections(&server);
    go_on(&server);
    let second = Size::receive(&child);
    second.grew_no_further_than(&first);
    // Those there are may need one more at a time by chance.
    assert!(connections(&server) <= before + 3);
    // A subscription may linger for a while, but not many may.
    eventually(ms(5_000), || {
        server.subscribed_channels("lock_release:*") < CONTENDED
    });
    go_on(&server);
    child.wait().succeeded();
}

fn a_subscription_that_nobody_uses_ends() {
    let server = Server::start();
    let (holder, waiter) = (
        Client::open(&server.url()).unwrap(),
        Client::open(&server.url()).unwrap(),
    );
    let mut connection = server.connection();
    wait_for(&holder, &waiter, "a", &mut connection);
    eventually(ms(20_000), || {
        server.subscribed_channels("lock_release:*") == 0
    });
    // The next waiter is heard for as the first one was.
    wait_for(&holder, &waiter, "a", &mut connection);
}

fn contended_names() {
    let (holder, waiter, mut go) = (client(), client(), connection());
    for lot in 0..2 {
        for n in 0..CONTENDED {
            wait_for(&holder, &waiter, &format!("account:{lot}:{n}"), &mut go);
        }
        Size::report();
        pause(&mut go);
    }
}

/// One client waits, and hears, of the release by another.
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

fn threads_start_when_needed_and_none_is_there_for_a_lock() {
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

    // Refused at once is not waiting.
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
