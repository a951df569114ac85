//! Promise: a master that has become a replica refuses every call, of every kind of lock. What it
//! knows may be outdated, so it never says that a lock is taken, lost or held.

use std::any::Any;
use std::collections::BTreeSet;
use std::thread;

use leasehold::{Client, Error};
use support::{
    Exchange, Recorder, Server, assert_released, connect_to_all, eventually, expect_unreachable,
    free_port, ms,
};

support::tests![
    no_script_on_a_demoted_master_succeeds,
    demoted_members_of_a_quorum_do_not_refuse
];

/// A kind of lock, and the name that the test uses for it.
struct Kind {
    name: &'static str,
    /// The hold of another client that makes a call of this kind fail.
    other: fn(&Client, &str) -> Box<dyn Any>,
    try_lock: fn(&Client, &str) -> Result<(), Error>,
    /// Waits for the lock, and releases it.
    lock: fn(&Client, &str),
    /// Acquires the lock. The function that it returns renews and releases it, which must fail.
    hold: fn(&Client, &str) -> Box<dyn FnOnce() + Send>,
}

/// Makes a kind of lock from its name, the lock, its two ways to acquire, its release, and what
/// another client acquires.
macro_rules! kind {
    (
        $name:literal, $lock:expr, $acquire:ident, $try_acquire:ident, $release:ident,
        $other:ident
    ) => {
        Kind {
            name: $name,
            other: |client, name| Box::new(($lock)(client, name).$other().unwrap()),
            try_lock: |client, name| ($lock)(client, name).$try_acquire().map(drop),
            lock: |client, name| {
                assert_released(($lock)(client, name).$acquire().unwrap().$release());
            },
            hold: |client, name| {
                let guard = ($lock)(client, name).$acquire().unwrap();
                Box::new(move || {
                    expect_unreachable(guard.renew());
                    assert!(guard.is_held(), $name);
                    expect_unreachable(guard.$release());
                })
            },
        }
    };
}

fn kinds() -> [Kind; 7] {
    [
        kind!("mutex", Client::mutex, lock, try_lock, unlock, lock),
        kind!("fair", Client::fair_mutex, lock, try_lock, unlock, lock),
        kind!("write", Client::rw_lock, write, try_write, unlock, write),
        kind!(
            "write behind readers",
            Client::rw_lock,
            write,
            try_write,
            unlock,
            read
        ),
        kind!("read", Client::rw_lock, read, try_read, unlock, write),
        kind!(
            "permits",
            |client: &Client, name: &str| client.semaphore(name, 1),
            acquire,
            try_acquire,
            release,
            acquire
        ),
        kind!(
            "set",
            |client: &Client, name: &str| client.mutex_all([name, "set's second name"]),
            lock,
            try_lock,
            unlock,
            lock
        ),
    ]
}

fn no_script_on_a_demoted_master_succeeds() {
    let server = Server::start();
    let proxy = Recorder::to(server.port());
    // A client for each call: after an error, the breaker of a client sends nothing for a while.
    let client = || {
        let builder = Client::builder().url(format!("redis://127.0.0.1:{}", proxy.port()));
        builder.command_timeout(ms(700)).build().unwrap()
    };
    let kinds = kinds();
    let mut owned = Vec::new();
    for kind in &kinds {
        let own = client();
        owned.push(((kind.hold)(&own, kind.name), own));
    }
    // The leases above end, and another client holds the same names.
    server.run("FLUSHALL", &[]);
    let holder = server.client();
    let held: Vec<_> = (kinds.iter())
        .map(|kind| (kind.other)(&holder, kind.name))
        .collect();
    let waiters: Vec<_> = kinds.iter().map(|_| client()).collect();
    let triers: Vec<_> = kinds.iter().map(|_| client()).collect();
    // A slow machine must not connect within the timeout of the calls below.
    for client in &triers {
        client.ping().unwrap();
    }
    thread::scope(|scope| {
        for (kind, client) in kinds.iter().zip(&waiters) {
            scope.spawn(|| (kind.lock)(client, kind.name));
        }
        eventually(ms(10_000), || places(&server) == kinds.len());
        // The new master does not exist, so the replica keeps its data.
        server.run("REPLICAOF", &["127.0.0.1", &free_port().to_string()]);
        let before = proxy.exchanges().len();
        let since = || proxy.exchanges().split_off(before);
        thread::scope(|scope| {
            for (call, _) in &mut owned {
                let call = std::mem::replace(call, Box::new(|| ()));
                scope.spawn(call);
            }
            for (kind, client) in kinds.iter().zip(&triers) {
                scope.spawn(move || {
                    expect_unreachable((kind.try_lock)(client, kind.name));
                });
            }
        });
        let refused = || scripts_with(&since(), is_refusal);
        let refreshes = || {
            let refused = refused().into_iter();
            refused
                .filter(|(script, _)| script == "queue_refresh")
                .count()
        };
        eventually(ms(5_000), || refreshes() == kinds.len());
        assert_only_refusals(&kinds, &since());
        server.run("REPLICAOF", &["NO", "ONE"]);
        drop(held);
    });
}

/// Asserts that every script after the demotion was refused as a write, at least four of each kind.
fn assert_only_refusals(kinds: &[Kind], exchanges: &[Exchange]) {
    let refused = scripts_with(exchanges, is_refusal);
    for kind in kinds {
        let of_kind = refused
            .iter()
            .filter(|(_, key)| key.trim_end_matches('}').ends_with(kind.name));
        // A set has no script of its own for a refresh.
        let least = if kind.name == "set" { 4 } else { 5 };
        assert!(of_kind.count() >= least, "{}: {refused:?}", kind.name);
    }
    // The command for the second name of a set has not run if that for the first one was refused.
    let others = scripts_with(exchanges, |reply| {
        !is_refusal(reply) && !reply.starts_with("-NOSCRIPT") && reply != "0"
    });
    assert!(others.is_empty(), "{others:?}");
}

/// Returns whether a replica has refused a write. Redis 6.2 puts other words before the code.
fn is_refusal(reply: &str) -> bool {
    reply.starts_with('-') && reply.contains("READONLY ")
}

/// Returns how many places are in the queues of all names.
fn places(server: &Server) -> usize {
    let mut connection = server.connection();
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg("leasehold:*places:*")
        .query(&mut connection)
        .unwrap();
    let lengths = keys.iter().map(|key| {
        redis::cmd("HLEN")
            .arg(key)
            .query::<usize>(&mut connection)
            .unwrap()
    });
    lengths.sum()
}

/// Returns the scripts with a reply of this kind, each with its first key.
fn scripts_with(
    exchanges: &[Exchange],
    is_such: impl Fn(&str) -> bool,
) -> BTreeSet<(String, String)> {
    let such = exchanges.iter().filter(|exchange| {
        let words = &exchange.request.words;
        words.first().is_some_and(|word| word.starts_with(b"EVAL"))
            && exchange.reply.as_deref().is_some_and(&is_such)
    });
    let script = |exchange: &Exchange| {
        let key = String::from_utf8_lossy(&exchange.request.words[3]);
        (exchange.request.name(), key.into_owned())
    };
    such.map(script).collect()
}

/// Two of three members have become replicas. That they know a holder does not mean that the lock
/// is taken.
fn demoted_members_of_a_quorum_do_not_refuse() {
    let servers = [(); 3].map(|()| Server::start());
    let client = || {
        let urls = servers.each_ref().map(Server::url);
        let builder = Client::builder().quorum(urls);
        builder.command_timeout(ms(700)).build().unwrap()
    };
    let [holder, one, two] = [(); 3].map(|()| client());
    for client in [&one, &two] {
        connect_to_all(client, &servers);
    }
    let held = holder.mutex("a").lock().unwrap();
    let held_set = holder.mutex_all(["b", "c"]).lock().unwrap();
    for server in &servers[..2] {
        server.run("REPLICAOF", &["127.0.0.1", &free_port().to_string()]);
    }
    expect_unreachable(one.mutex("a").try_lock());
    expect_unreachable(two.mutex_all(["b", "c"]).try_lock());
    for server in &servers[..2] {
        server.run("REPLICAOF", &["NO", "ONE"]);
    }
    assert_released(held.unlock());
    assert_released(held_set.unlock());
}
