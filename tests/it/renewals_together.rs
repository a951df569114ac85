//! Promise: renewals that fall due together are one command, and no lease is held for longer or
//! shorter because of the others in it.

use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, unbounded};
use leasehold::{Client, Lost, MutexGuard, RwLockReadGuard, SemaphorePermit};
use support::{Cluster, Exchange, Recorder, Replicas, Server, eventually, ms};

support::tests![
    an_error_reply_is_followed_by_renewals_one_by_one,
    many_leases_of_each_kind_are_renewed_by_one_command,
    a_cluster_renews_together_what_is_in_one_slot,
    replicas_acknowledge_the_renewals_of_many,
    only_the_leases_that_others_have_taken_are_lost,
    a_key_of_another_type_ends_no_other_lease,
    the_renewal_of_a_holder_goes_alone,
    leases_of_another_ttl_are_renewed_by_another_command,
    a_loss_is_told_although_replicas_must_acknowledge_the_others
];

const WAIT_LIMIT: Duration = ms(10_000);

/// Far longer than any test: only renewals, and what they find, end or prolong a lease.
const TTL: Duration = ms(60_000);

const EVERY: Duration = ms(400);

/// The scripts that renew.
const SCRIPTS: [&str; 6] = [
    "renew",
    "renew_many",
    "renew_shared",
    "renew_shared_many",
    "permits_renew",
    "permits_renew_many",
];

fn recorded(server: &Server) -> (Recorder, Client) {
    let recorder = Recorder::to(server.port());
    let url = format!("redis://127.0.0.1:{}", recorder.port());
    let client = Client::builder().url(url).command_timeout(WAIT_LIMIT);
    (recorder, client.build().unwrap())
}

fn mutexes(client: &Client, count: usize) -> Vec<MutexGuard> {
    let lock = |n| {
        let mutex = client.mutex(format!("{n}")).ttl(TTL).renew_every(EVERY);
        mutex.lock().unwrap()
    };
    (0..count).map(lock).collect()
}

/// The renewals so far: the script of each, and of how many leases it was.
fn renewals(recorder: &Recorder) -> Vec<(String, usize)> {
    let renewal = |exchange: Exchange| {
        if exchange.is_message() || exchange.reply.is_none() {
            return None;
        }
        let name = exchange.request.name();
        let leases = if name.ends_with("_many") {
            exchange.request.args().len() - 1
        } else {
            1
        };
        SCRIPTS.contains(&&*name).then_some((name, leases))
    };
    recorder
        .exchanges()
        .into_iter()
        .filter_map(renewal)
        .collect()
}

/// Waits until this number of leases was renewed from now on; returns the commands.
#[track_caller]
fn next_renewals(recorder: &Recorder, leases: usize) -> Vec<(String, usize)> {
    let before = renewals(recorder).len();
    let new = || renewals(recorder).split_off(before);
    eventually(WAIT_LIMIT, || {
        new().iter().map(|it| it.1).sum::<usize>() >= leases
    });
    new()
}

fn many_leases_of_each_kind_are_renewed_by_one_command() {
    let server = Server::start();
    let (recorder, client) = recorded(&server);
    let count = 40;
    let fair = |n| {
        let lock = client.fair_mutex(format!("f{n}"));
        lock.ttl(TTL).renew_every(EVERY).lock().unwrap()
    };
    let fair: Vec<MutexGuard> = (0..count).map(fair).collect();
    check_together(&recorder, &server, "renew_many", "lock:f1", count);
    fair.into_iter().for_each(|guard| guard.unlock().unwrap());

    let mutexes = mutexes(&client, count);
    check_together(&recorder, &server, "renew_many", "lock:1", count);
    mutexes
        .into_iter()
        .for_each(|guard| guard.unlock().unwrap());

    let write = |n| {
        let lock = client.rw_lock(format!("w{n}"));
        lock.ttl(TTL).renew_every(EVERY).write().unwrap()
    };
    let writers: Vec<_> = (0..count).map(write).collect();
    check_together(&recorder, &server, "renew_many", "lock:w1", count);
    writers
        .into_iter()
        .for_each(|guard| guard.unlock().unwrap());

    // Some of them share a lock.
    let read = |n| {
        let lock = client.rw_lock(format!("r{}", n / 2));
        lock.ttl(TTL).renew_every(EVERY).read().unwrap()
    };
    let readers: Vec<RwLockReadGuard> = (0..count).map(read).collect();
    check_together(&recorder, &server, "renew_shared_many", "lock:r1", count);
    readers
        .into_iter()
        .for_each(|guard| guard.unlock().unwrap());

    let acquire = |n| {
        let semaphore = client.semaphore(format!("s{}", n / 20), 100);
        semaphore.ttl(TTL).renew_every(EVERY).acquire().unwrap()
    };
    let permits: Vec<SemaphorePermit> = (0..count).map(acquire).collect();
    let key = "leasehold:permits:{lock:s1}";
    check_together(&recorder, &server, "permits_renew_many", key, count);
    permits
        .into_iter()
        .for_each(|permit| permit.release().unwrap());
}

/// Checks that the leases are renewed by this script, most of them together, and that the key then
/// lasts for the whole ttl again.
#[track_caller]
fn check_together(recorder: &Recorder, server: &Server, script: &str, key: &str, leases: usize) {
    // The first ones are due when the leases were acquired, which takes time.
    next_renewals(recorder, leases);
    server.run("PEXPIRE", &[key, "30000"]);
    let renewals = next_renewals(recorder, 3 * leases);
    assert!(renewals.iter().any(|it| it.0 == script), "{renewals:?}");
    assert!(renewals.len() <= leases, "{renewals:?}");
    assert!(server.pttl(key) > 40_000, "{key}");
}

fn losses(guards: &[MutexGuard]) -> Vec<Receiver<Lost>> {
    guards.iter().map(|guard| guard.lost()).collect()
}

fn only_the_leases_that_others_have_taken_are_lost() {
    let server = Server::start();
    let (recorder, client) = recorded(&server);
    let guards = mutexes(&client, 100);
    let losses = losses(&guards);
    next_renewals(&recorder, 100);
    server.run("SET", &["lock:17", "somebody"]);
    server.run("DEL", &["lock:71"]);
    assert_eq!(losses[17].recv_timeout(WAIT_LIMIT), Ok(Lost::Taken));
    assert_eq!(losses[71].recv_timeout(WAIT_LIMIT), Ok(Lost::Deleted));
    server.run("PEXPIRE", &["lock:16", "30000"]);
    next_renewals(&recorder, 300);
    assert!(server.pttl("lock:16") > 40_000);
    for (n, guard) in guards.iter().enumerate() {
        assert_eq!(guard.is_held(), ![17, 71].contains(&n), "{n}");
    }
    assert_eq!(server.get("lock:17").as_deref(), Some(&b"somebody"[..]));
    // Those that were acquired one by one on a busy machine gather.
    eventually(WAIT_LIMIT, || {
        renewals(&recorder).iter().any(|it| it.1 > 50)
    });
}

fn an_error_reply_is_followed_by_renewals_one_by_one() {
    for error in [
        "-OOM command not allowed when used memory > 'maxmemory'.\r\n",
        "-BUSY Redis is busy running a script.\r\n",
        "-READONLY You can't write against a read only replica.\r\n",
        "-NOPERM No permissions to access a key\r\n",
        "-ERR user_script:9: something else\r\n",
    ] {
        let server = Server::start();
        let (recorder, client) = recorded(&server);
        let guards = mutexes(&client, 30);
        recorder.replace(move |request| {
            let is_many = !request.words.is_empty() && request.name() == "renew_many";
            is_many.then(|| error.to_owned())
        });
        next_renewals(&recorder, 100);
        server.run("PEXPIRE", &["lock:9", "30000"]);
        let renewals = next_renewals(&recorder, 200);
        let alone = renewals.iter().filter(|it| it.0 == "renew").count();
        assert!(alone >= 30, "{error}: {renewals:?}");
        assert!(server.pttl("lock:9") > 40_000, "{error}");
        assert!(guards.iter().all(|guard| guard.is_held()), "{error}");
    }
}

fn a_key_of_another_type_ends_no_other_lease() {
    let server = Server::start();
    let (recorder, client) = recorded(&server);
    let guards = mutexes(&client, 30);
    next_renewals(&recorder, 30);
    server.run("DEL", &["lock:3"]);
    server.run("RPUSH", &["lock:3", "a"]);
    next_renewals(&recorder, 60);
    server.run("PEXPIRE", &["lock:9", "30000"]);
    next_renewals(&recorder, 120);
    assert!(server.pttl("lock:9") > 40_000);
    let others = guards.iter().enumerate().filter(|(n, _)| *n != 3);
    assert!(others.into_iter().all(|(_, guard)| guard.is_held()));
}

fn the_renewal_of_a_holder_goes_alone() {
    let server = Server::start();
    let (recorder, client) = recorded(&server);
    let guards = mutexes(&client, 30);
    next_renewals(&recorder, 100);
    let alone = || {
        let id = guards[7].holder_id().as_str().as_bytes().to_vec();
        let of_seventh = |exchange: &Exchange| {
            !exchange.is_message()
                && exchange.request.name() == "renew"
                && exchange.request.args()[0] == id
        };
        recorder
            .exchanges()
            .iter()
            .filter(|it| of_seventh(it))
            .count()
    };
    let before = alone();
    for _ in 0..5 {
        guards[7].renew().unwrap();
    }
    assert!(alone() >= before + 5);
}

fn leases_of_another_ttl_are_renewed_by_another_command() {
    let server = Server::start();
    let (recorder, client) = recorded(&server);
    let lock = |n: usize| {
        let ttl = if n.is_multiple_of(2) { TTL } else { 2 * TTL };
        let mutex = client.mutex(format!("{n}")).ttl(ttl).renew_every(EVERY);
        mutex.lock().unwrap()
    };
    let guards: Vec<_> = (0..60).map(lock).collect();
    next_renewals(&recorder, 200);
    for n in 0..60 {
        server.run("PEXPIRE", &[&format!("lock:{n}"), "30000"]);
    }
    next_renewals(&recorder, 200);
    for n in 0..60 {
        let most = if n % 2 == 0 { 60_000 } else { 120_000 };
        let left = server.pttl(format!("lock:{n}"));
        assert!((most - 20_000..=most).contains(&left), "{n}: {left}");
    }
    assert!(guards.iter().all(|guard| guard.is_held()));
}

fn waiting_for_a_replica(url: &str, count: usize) -> (Vec<MutexGuard>, Receiver<usize>) {
    let client = Client::builder().url(url);
    let client = client.command_timeout(WAIT_LIMIT);
    let client = client.min_replicas(1, ms(5_000)).build().unwrap();
    let (report, renewals) = unbounded();
    let lock = |n| {
        let report = report.clone();
        let mutex = client.mutex(format!("{n}")).ttl(TTL).renew_every(EVERY);
        let mutex = mutex.on_renew(move |_| _ = report.send(n));
        mutex.lock().unwrap()
    };
    ((0..count).map(lock).collect(), renewals)
}

fn replicas_acknowledge_the_renewals_of_many() {
    let replicas = Replicas::start(1);
    let count = 20;
    let (guards, renewals) = waiting_for_a_replica(&replicas.master().url(), count);
    for _ in 0..5 * count {
        renewals.recv_timeout(WAIT_LIMIT).unwrap();
    }
    assert!(guards.iter().all(|guard| guard.is_held()));
    let stats = replicas.master().command_stats();
    let before = (stats.calls("pexpire"), stats.calls("wait"));
    for _ in 0..5 * count {
        renewals.recv_timeout(WAIT_LIMIT).unwrap();
    }
    let stats = replicas.master().command_stats();
    let renewed = stats.calls("pexpire") - before.0;
    assert!(stats.calls("wait") - before.1 <= renewed / 2);
}

fn a_loss_is_told_although_replicas_must_acknowledge_the_others() {
    let replicas = Replicas::start(1);
    let (guards, renewals) = waiting_for_a_replica(&replicas.master().url(), 20);
    for _ in 0..60 {
        renewals.recv_timeout(WAIT_LIMIT).unwrap();
    }
    let losses = losses(&guards);
    replicas.master().run("SET", &["lock:5", "somebody"]);
    assert_eq!(losses[5].recv_timeout(WAIT_LIMIT), Ok(Lost::Taken));
    for _ in 0..60 {
        assert_ne!(renewals.recv_timeout(WAIT_LIMIT).unwrap(), 5);
    }
    assert_eq!(guards.iter().filter(|guard| guard.is_held()).count(), 19);
    let other = losses[4].recv_timeout(ms(1));
    assert_eq!(other, Err(RecvTimeoutError::Timeout));
}

fn a_cluster_renews_together_what_is_in_one_slot() {
    let cluster = Cluster::start(3, 0);
    let client = Client::open(cluster.url()).unwrap();
    let lock = |name: String| {
        let mutex = client.mutex(name).ttl(TTL).renew_every(EVERY);
        mutex.lock().unwrap()
    };
    let together: Vec<_> = (0..20).map(|n| lock(format!("{{x}}{n}"))).collect();
    let apart: Vec<_> = (0..20).map(|n| lock(format!("{n}"))).collect();
    let key = |guard: &MutexGuard| format!("lock:{}", guard.name());
    let shorten = || {
        for guard in together.iter().chain(&apart) {
            let node = cluster.master_of(&key(guard));
            let command = ["PEXPIRE", &key(guard), "30000"];
            let _: i64 = cluster.ask(node, &command).unwrap();
        }
    };
    let are_renewed = || {
        together.iter().chain(&apart).all(|guard| {
            let node = cluster.master_of(&key(guard));
            let left: i64 = cluster.ask(node, &["PTTL", &key(guard)]).unwrap();
            left > 40_000
        })
    };
    shorten();
    eventually(WAIT_LIMIT, are_renewed);
    // Half of the keys move away: the node refuses a command with keys of both sides.
    let slot = cluster.slot("lock:{x}0");
    let from = cluster.owner(slot);
    let to = (from + 1) % 3;
    cluster.begin_migration(slot, from, to);
    for guard in &together[..10] {
        cluster.move_key(&key(guard), from, to);
    }
    for guard in &together[10..] {
        let command = ["PEXPIRE", &key(guard), "30000"];
        let _: i64 = cluster.ask(from, &command).unwrap();
    }
    eventually(WAIT_LIMIT, || {
        together[10..].iter().all(|guard| {
            let left: i64 = cluster.ask(from, &["PTTL", &key(guard)]).unwrap();
            left > 40_000
        })
    });
    cluster.move_keys(slot, from, to);
    cluster.end_migration(slot, from, to);
    shorten();
    eventually(WAIT_LIMIT, are_renewed);
    assert!(together.iter().chain(&apart).all(|guard| guard.is_held()));
}
