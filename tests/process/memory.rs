//! Promise: a process that has locked many different names grows neither in memory nor in threads
//! or connections.

use std::cell::{Cell, RefCell};
use std::fs;
use std::thread;

use crossbeam_channel::bounded;
use leasehold::Client;
use support::{Child, Server, eventually, let_pass, ms, own_threads, parameter, tell_parent};

support::roles![
    many_names,
    many_sets,
    many_semaphores,
    many_rw_locks,
    contended_names,
    contended_semaphores,
    contended_rw_locks,
    threads
];

support::tests![
    five_thousand_more_names_add_nothing,
    five_thousand_more_names_in_sets_add_nothing,
    five_thousand_more_semaphores_add_nothing,
    more_read_write_locks_add_nothing,
    contended_names_add_nothing_once_released,
    contended_semaphores_add_nothing_once_released,
    contended_read_write_locks_add_nothing_once_released,
    threads_start_when_needed_and_never_per_lock
];

/// How much the second half of the names may add, in KiB.
const ADDED: u64 = 512;

const NAMES: usize = 5_000;

/// The number of contended names: more than the unused subscriptions that a client keeps.
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
        let threads = without_recorder(own_threads()).join(" ");
        tell_parent(&format!("{} {threads}", resident()));
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
    fn assert_not_grown_since(&self, before: &Self, added: u64) {
        assert!(
            self.kib <= before.kib + added,
            "{} KiB more",
            self.kib - before.kib
        );
        assert_eq!(self.threads, before.threads);
    }
}

/// Returns the resident memory in KiB, without that of files: the kernel loads the program's code
/// only when it is used. `/proc/self/statm` is faster to read, but lags by some pages per CPU.
fn resident() -> u64 {
    let rollup = fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = rollup
        .lines()
        .find_map(|line| line.strip_prefix("Anonymous:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.unwrap().parse().unwrap()
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

fn five_thousand_more_names_add_nothing() {
    names_add_nothing("memory::many_names");
}

fn five_thousand_more_names_in_sets_add_nothing() {
    names_add_nothing("memory::many_sets");
}

fn five_thousand_more_semaphores_add_nothing() {
    names_add_nothing("memory::many_semaphores");
}

fn more_read_write_locks_add_nothing() {
    names_add_nothing("memory::many_rw_locks");
}

fn names_add_nothing(role: &str) {
    let server = Server::start();
    let child = Child::spawn(role, &[("URL", &server.url())]);
    let first = Size::receive(&child);
    let before = connections(&server);
    resume_child(&server);
    let second = Size::receive(&child);
    second.assert_not_grown_since(&first, ADDED);
    assert_eq!(second.threads, ["leasehold-engin"]);
    assert_eq!(connections(&server), before);
    resume_child(&server);
    child.wait().succeeded();
}

fn many_names() {
    in_lots(NAMES, |client, name| {
        let mutex = client.mutex(name);
        mutex.lock().unwrap().unlock().unwrap();
    });
}

fn many_sets() {
    in_lots(NAMES / 10, |client, name| {
        let names = (0..10).map(|n| format!("{name}:{n}"));
        let guard = client.mutex_all(names).lock().unwrap();
        guard.unlock().unwrap();
    });
}

fn many_semaphores() {
    in_lots(NAMES, |client, name| {
        let permit = client.semaphore(name, 2).acquire().unwrap();
        permit.release().unwrap();
    });
}

fn many_rw_locks() {
    in_lots(NAMES / 2, |client, name| {
        let lock = client.rw_lock(name);
        let readers = [lock.read().unwrap(), lock.read().unwrap()];
        for reader in readers {
            reader.unlock().unwrap();
        }
        let reader = lock.write().unwrap().downgrade();
        reader.unlock().unwrap();
    });
}

/// In a child: uses `count` names, reports its size, and does so again with as many other names.
fn in_lots(count: usize, use_name: impl Fn(&Client, &str)) {
    in_lots_after(0, count, use_name);
}

/// As [`in_lots`], after some lots without a report.
fn in_lots_after(unreported: usize, count: usize, use_name: impl Fn(&Client, &str)) {
    let (client, mut go) = (client(), connection());
    for lot in 0..unreported + 2 {
        for n in 0..count {
            use_name(&client, &format!("account:{lot}:{n}"));
        }
        if lot >= unreported {
            Size::report();
            wait_for_parent(&mut go);
        }
    }
}

/// In a child: uses contended names. A client remembers one for a second: the pauses limit how many
/// it has at once, on a fast and on a slow machine, and the first lot shows about the most.
fn in_contended_lots(use_name: impl Fn(&Client, &str)) {
    let used = Cell::new(0_usize);
    in_lots_after(1, CONTENDED, |client, name| {
        used.set(used.get() + 1);
        if used.get().is_multiple_of(CONTENDED / 5) {
            let_pass(ms(1_100));
        }
        use_name(client, name);
    });
}

fn contended_names_add_nothing_once_released() {
    contention_adds_nothing("memory::contended_names", CONTENDED - 1);
}

fn contended_semaphores_add_nothing_once_released() {
    // All waiters of a client for permits share one channel. The client's subscriber has another.
    contention_adds_nothing("memory::contended_semaphores", 2);
}

fn contended_read_write_locks_add_nothing_once_released() {
    contention_adds_nothing("memory::contended_rw_locks", CONTENDED - 1);
}

/// A client keeps a limited number of unused subscriptions: at most `channels`.
fn contention_adds_nothing(role: &str, channels: usize) {
    let server = Server::start();
    let child = Child::spawn(role, &[("URL", &server.url())]);
    let first = Size::receive(&child);
    let before = connections(&server);
    resume_child(&server);
    let second = Size::receive(&child);
    second.assert_not_grown_since(&first, 2 * ADDED);
    // By chance, more calls may overlap than in the first half, each over its own connection.
    assert!(connections(&server) <= before + 3);
    eventually(ms(5_000), || server.subscribed_channels("*") <= channels);
    resume_child(&server);
    child.wait().succeeded();
}

fn contended_names() {
    let (holder, redis) = (client(), RefCell::new(connection()));
    in_contended_lots(|waiter, name| {
        let guard = holder.mutex(name).lock().unwrap();
        let waiting = waiter.mutex(name);
        let is_subscribed = || {
            let (_, listeners): (String, usize) = redis::cmd("PUBSUB")
                .arg("NUMSUB")
                .arg(format!("lock_release:{name}"))
                .query(&mut redis.borrow_mut())
                .unwrap();
            listeners > 0
        };
        release_to(
            || waiting.lock().unwrap().unlock().unwrap(),
            is_subscribed,
            || guard.unlock().unwrap(),
        );
    });
}

fn contended_semaphores() {
    let holder = client();
    in_contended_lots(|waiter, name| {
        let of_holder = holder.semaphore(name, 1);
        let permit = of_holder.acquire().unwrap();
        let waiting = waiter.semaphore(name, 1);
        release_to(
            || waiting.acquire().unwrap().release().unwrap(),
            || of_holder.waiting().unwrap() == 1,
            || permit.release().unwrap(),
        );
    });
}

fn contended_rw_locks() {
    let holder = client();
    in_contended_lots(|waiter, name| {
        let of_holder = holder.rw_lock(name);
        let guard = of_holder.write().unwrap();
        let waiting = waiter.rw_lock(name);
        release_to(
            || waiting.read().unwrap().unlock().unwrap(),
            || of_holder.waiting().unwrap() == 1,
            || guard.unlock().unwrap(),
        );
    });
}

/// Makes a call wait for a lock that another client then releases.
fn release_to(
    acquire_and_release: impl FnOnce() + Send,
    waits: impl FnMut() -> bool,
    release: impl FnOnce(),
) {
    thread::scope(|scope| {
        let waiting = scope.spawn(acquire_and_release);
        eventually(ms(10_000), waits);
        release();
        waiting.join().unwrap();
    });
}

/// Leaves out the callback thread if it runs the recorder: with the feature `metrics`, it starts
/// two seconds after the first lock.
fn without_recorder(mut threads: Vec<String>) -> Vec<String> {
    threads.retain(|name| !(cfg!(feature = "metrics") && name == "leasehold-callb"));
    threads
}

fn threads_start_when_needed_and_never_per_lock() {
    let server = Server::start();
    let child = Child::spawn("memory::threads", &[("URL", &server.url())]);
    child.wait().succeeded();
}

fn threads() {
    const LOCKS: usize = 500;
    const WAITERS: usize = 20;
    let threads_become = |expected: &[&str]| {
        let expected = without_recorder(expected.iter().map(|&name| name.to_owned()).collect());
        eventually(ms(5_000), || without_recorder(own_threads()) == expected);
    };
    let client = client();
    let other = self::client();
    client.ping().unwrap();
    let mutexes: Vec<_> = (0..LOCKS).map(|n| client.mutex(format!("{n}"))).collect();
    threads_become(&[]);

    let guards: Vec<_> = mutexes.iter().map(|mutex| mutex.lock().unwrap()).collect();
    threads_become(&["leasehold-engin"]);

    // `try_lock` does not wait, so it starts no thread.
    assert!(client.mutex("0").try_lock().unwrap().is_err());
    threads_become(&["leasehold-engin"]);

    let (entered, entries) = bounded(0);
    thread::scope(|scope| {
        for n in 0..WAITERS {
            let (mutex, entered) = (other.mutex(format!("{n}")), entered.clone());
            scope.spawn(move || {
                let guard = mutex.lock().unwrap();
                entered.send(()).unwrap();
                guard.unlock().unwrap();
            });
        }
        threads_become(&["leasehold-engin", "leasehold-engin", "leasehold-subsc"]);
        drop(guards);
        for _ in 0..WAITERS {
            entries.recv().unwrap();
        }
    });
    drop(other);
    threads_become(&["leasehold-engin"]);

    let guard = client.mutex("callback").on_lost(|_| ()).lock().unwrap();
    threads_become(&["leasehold-callb", "leasehold-engin"]);
    drop((client, mutexes));
    threads_become(&["leasehold-callb", "leasehold-engin"]);
    drop(guard);
    threads_become(&[]);
}
