//! A thousand threads that wait for one name, and ten thousand held locks.

use std::thread;
use std::time::{Duration, Instant};

use common::floor::pair::connect;
use common::monitor::Monitor;
use common::processor_time;
use distributed_lock_core::traits::{DistributedLock, LockProvider};
use leasehold::Client;
use redis::{Connection, Script};
use support::{Child, Server, ms, resident_kib, tell_parent};

use crate::contention::{Candidate, TTL, is_quick};
use crate::kinds;
use crate::provider::{distributed_lock_provider, runtime};
use crate::record::Record;
use crate::results::{BARE, OURS};
use common::fleet::{Locker, Section};

const WAITERS: usize = 1_000;
const LEASES: usize = 10_000;

/// The candidates that wait without end. The others return errors, or wait as one of these does.
const WAITING: [&str; 8] = [
    "mutex",
    "poller",
    "rslock-tuned",
    "redlock-tuned",
    "redis-lock-tuned",
    "distributed-lock-tuned",
    "redis-py",
    "redisson",
];

pub(crate) const ROLES: [(&str, fn()); 3] =
    [("holder", hold), ("crowd", crowd), ("leases", leases)];

pub(crate) fn run(candidates: &[Candidate], record: &mut Record) {
    // Redisson's waiters ask again after 30 s, which a quick run would not see.
    let waits = |kind: &str| WAITING.contains(&kind) && !(is_quick() && kind == "redisson");
    for (label, kind) in candidates.iter().filter(|(_, kind)| waits(kind)) {
        record.add("waiting_requests_per_s", label, requests_of_waiters(kind));
    }
    for (label, kind) in [
        (OURS, "mutex"),
        ("distributed-lock-redis, tuned", "distributed-lock-tuned"),
    ] {
        let server = Server::start().long_lived();
        let child = Child::spawn("leases", &[("URL", &server.url()), ("KIND", kind)]);
        let said = child.next_line();
        let mut said = said.split(' ').map(|it| it.parse().expect("a number"));
        for key in ["held_core_pct", "held_mib"] {
            record.add(key, label, said.next().expect("two numbers"));
        }
    }
    for (label, renew) in [(BARE, ONE), ("Redisson by hand", HUNDRED)] {
        record.add("held_core_pct", label, renewals_by_hand(&renew));
    }
}

/// Returns the requests a second of all waiters together.
fn requests_of_waiters(kind: &str) -> f64 {
    let server = Server::start().long_lived();
    let parameters = [("URL", &*server.url()), ("KIND", kind)];
    let holder = Child::spawn("holder", &parameters);
    thread::sleep(ms(300));
    // No lease ends during the measurement. Redisson's are renewed as those of leasehold: its
    // waiters sleep for the remaining ttl of 30 s.
    let is_redisson = kind == "redisson";
    if kind != "mutex" && !is_redisson {
        let keys: Vec<String> = redis::cmd("KEYS")
            .arg("*")
            .query(&mut server.connection())
            .unwrap();
        keys.iter().for_each(|key| server.run("PERSIST", &[key]));
    }
    let crowd = Child::spawn("crowd", &parameters);
    crowd.wait_for_line("all wait");
    thread::sleep(ms(1_000));
    let monitor = Monitor::start(&server);
    let began = Instant::now();
    match (kind, is_quick()) {
        ("mutex", false) => thread::sleep(ms(10_000)),
        // Until each waiter has asked again once.
        ("redisson", _) => (0..3).for_each(|_| {
            thread::sleep(ms(10_000));
            server.run("PEXPIRE", &[crate::contention::NAME, "30000"]);
        }),
        _ => thread::sleep(ms(2_000)),
    }
    let requests = monitor.stop() as f64 / began.elapsed().as_secs_f64();
    drop((crowd, holder));
    requests
}

fn opened() -> Box<dyn Fn() -> Locker> {
    kinds::open(&support::parameter("KIND"), &support::parameter("URL"))
}

/// The role of a process that holds the lock until it is killed.
fn hold() {
    let held = opened()()(&Section::alone(Duration::from_secs(300)));
    held.expect("the lock is free");
}

/// The role of a process whose threads wait for the lock until it is killed.
fn crowd() {
    let lockers = opened();
    let lockers: Vec<Locker> = (0..WAITERS).map(|_| lockers()).collect();
    for mut locker in lockers {
        let wait = move || locker(&Section::alone(Duration::ZERO));
        let waiter = thread::Builder::new().stack_size(512 * 1024);
        waiter.spawn(wait).expect("a thread can be started");
    }
    tell_parent("all wait");
    thread::sleep(Duration::from_secs(300));
}

/// The role of a process that holds many locks: tells its parent the share of a core in %, and the
/// memory in MiB.
fn leases() {
    let (kind, url) = (support::parameter("KIND"), support::parameter("URL"));
    let watched = if is_quick() { ms(3_400) } else { ms(10_000) };
    if kind == "mutex" {
        let client = Client::builder().url(&url).ttl(TTL).build().unwrap();
        drop(client.mutex("first").lock().unwrap());
        let before = resident_kib();
        let lock = |n| client.mutex(format!("account:{n}")).lock().unwrap();
        let guards: Vec<_> = (0..LEASES).map(lock).collect();
        tell_costs(before, || thread::sleep(watched));
        assert!(guards.iter().all(|guard| guard.is_held()));
    } else {
        let runtime = runtime();
        let provider = distributed_lock_provider(&runtime, &[url], true);
        let lock = |n: usize| runtime.block_on(provider.create_lock(&n.to_string()).acquire(None));
        drop(lock(LEASES).unwrap());
        let before = resident_kib();
        let handles: Vec<_> = (0..LEASES).map(|n| lock(n).unwrap()).collect();
        let wait = || runtime.block_on(async { tokio::time::sleep(watched).await });
        tell_costs(before, wait);
        assert_eq!(handles.len(), LEASES);
    }
    // Not one release for each lock.
    std::process::exit(0);
}

fn tell_costs(before_kib: f64, wait: impl FnOnce()) {
    let (began, used) = (Instant::now(), processor_time());
    wait();
    let used = (processor_time() - used).as_secs_f64();
    let share = 100.0 * used / began.elapsed().as_secs_f64();
    let mib = (resident_kib() - before_kib) / 1024.0;
    tell_parent(&format!("{share:.3} {mib:.3}"));
}

/// How locks are renewed by hand: the commands that hold one, the script, and how many locks one
/// call of it renews.
struct Renew {
    hold: &'static str,
    script: &'static str,
    locks: usize,
}

/// The compare-and-expire of other crates.
const ONE: Renew = Renew {
    hold: "SET",
    script: "if redis.call('GET', KEYS[1]) == ARGV[2] then \
             return redis.call('PEXPIRE', KEYS[1], ARGV[1]) else return 0 end",
    locks: 1,
};

/// `LockTask` of Redisson, with its default size of a batch.
const HUNDRED: Renew = Renew {
    hold: "HSET",
    script: "local renewed = {} \
             for n = 1, #KEYS do \
               if redis.call('HEXISTS', KEYS[n], ARGV[n + 1]) == 1 then \
                 redis.call('PEXPIRE', KEYS[n], ARGV[1]) table.insert(renewed, 1) \
               else table.insert(renewed, 0) end \
             end \
             return renewed",
    locks: 100,
};

/// Returns the share of a core for renewals by hand, every third of the ttl, in %. The calls are
/// sent in pipelines of 100.
fn renewals_by_hand(renew: &Renew) -> f64 {
    let passes = if is_quick() { 1 } else { 4 };
    let server = Server::start().long_lived();
    let mut connection = connect(&server.url());
    let names: Vec<String> = (0..LEASES).map(|n| format!("account:{n}")).collect();
    let id = "an id of the same length as others: 6cb6e8f3b8a54b5b";
    for names in names.chunks(100) {
        let mut pipe = redis::pipe();
        for name in names {
            let hold = pipe.cmd(renew.hold).arg(name).arg(id);
            if renew.hold == "HSET" {
                hold.arg(1);
            }
        }
        pipe.exec(&mut connection).unwrap();
    }
    let script = Script::new(renew.script);
    script.prepare_invoke().load(&mut connection).unwrap();
    let used = processor_time();
    for _ in 0..passes {
        for names in names.chunks(100 * renew.locks) {
            renew_all(&mut connection, &script, names.chunks(renew.locks), id);
        }
    }
    let used = (processor_time() - used).as_secs_f64();
    100.0 * used / f64::from(passes) / (TTL.as_secs_f64() / 3.0)
}

fn renew_all<'a>(
    connection: &mut Connection,
    script: &Script,
    batches: impl Iterator<Item = &'a [String]>,
    id: &str,
) {
    let mut pipe = redis::pipe();
    for names in batches {
        let mut call = script.key(names);
        call.arg(TTL.as_millis() as u64);
        names.iter().for_each(|_| {
            call.arg(id);
        });
        pipe.invoke_script(&call);
    }
    pipe.exec(connection).unwrap();
}
