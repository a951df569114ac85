//! The traffic between clients and one server.

use std::thread;
use std::time::Duration;

use crossbeam_channel::unbounded;
use leasehold::{Client, Mutex};
use support::{Replicas, Server, assert_released, eventually, ms};

use super::recording::compare;
use super::{LONGER, NEVER, SHORT, TTL, builder, client, recorded};

pub(super) fn log_on_is_as_recorded() {
    let server = Server::start();
    let own = server.client().mutex("x").lock().unwrap();
    let version = format!("LIB-VER {}", env!("CARGO_PKG_VERSION"));
    let trace = recorded(&server).with_log_on();
    let trace = trace.naming(own.holder_id().owner(), "<host>/<process>");
    let mut trace = trace.naming(&version, "LIB-VER <version>");
    server.run(
        "ACL",
        &["SETUSER", "ann", "on", ">secret", "~*", "&*", "+@all"],
    );
    let url = trace.url();
    let at = |login: &str, rest: &str| url.replace("//", &format!("//{login}")) + rest;
    let mut ping = |title: &str, url: String| {
        let client = builder().url(url).build().unwrap();
        trace.step(title, |_| client.ping().unwrap());
    };
    ping("with a name", at("", ""));
    ping("in database 2", at("", "/2"));
    ping("as a user", at("ann:secret@", ""));
    ping("with RESP3", at("", "?protocol=3"));
    ping(
        "with RESP3, as a user in database 2",
        at("ann:secret@", "/2?protocol=3"),
    );
    server.run("CONFIG", &["SET", "requirepass", "open"]);
    ping("with a password", at(":open@", ""));
    ping("with RESP3 and a password", at(":open@", "?protocol=3"));
    let unnamed = Client::open(at(":open@", "")).unwrap();
    trace.step("with the usual name", |_| unnamed.ping().unwrap());
    compare("log_on.txt", &[trace.end("Log-on")]);
}

pub(super) fn mutex_calls_are_as_recorded() {
    compare("mutex.txt", &[calls(), waiting(), hand_off()]);
}

fn calls() -> String {
    let server = Server::start();
    let mut trace = recorded(&server);
    let (one, two) = (client(&trace), client(&trace));
    let [mutex, other] = [&one, &two].map(|client| client.mutex("a"));
    trace.step("inspect, free", |_| mutex.inspect().unwrap());
    trace.step("last_fencing_token, none", |_| {
        mutex.last_fencing_token().unwrap()
    });
    let guard = trace.step("try_lock", |_| mutex.try_lock().unwrap().unwrap());
    trace.step("try_lock, held", |_| {
        assert!(other.try_lock().unwrap().is_err())
    });
    trace.step("inspect", |_| other.inspect().unwrap());
    trace.step("last_fencing_token", |_| {
        other.last_fencing_token().unwrap()
    });
    trace.step("waiting", |_| other.waiting().unwrap());
    trace.step("list", |_| one.list("").unwrap());
    trace.step("renew", |_| guard.renew().unwrap());
    trace.step("set_ttl", |_| guard.set_ttl(LONGER).unwrap());
    trace.step("renew after set_ttl", |_| guard.renew().unwrap());
    trace.step("set_ttl to a shorter ttl", |_| guard.set_ttl(TTL).unwrap());
    trace.step("unlock", |_| assert_released(guard.unlock()));
    let guard = trace.step("lock", |_| mutex.lock().unwrap());
    trace.step("force_unlock", |_| assert!(other.force_unlock().unwrap()));
    trace.step("force_unlock, free", |_| {
        assert!(!other.force_unlock().unwrap())
    });
    trace.step("unlock, too late", |_| {
        assert!(guard.unlock().unwrap_err().lost().is_some());
    });
    let (renewed, renewals) = unbounded();
    let mutex = mutex.renew_every(ms(500)).on_renew(move |_| {
        let _ = renewed.send(());
    });
    let guard = trace.step("with renewals", |_| {
        let guard = mutex.lock().unwrap();
        renewals.recv().unwrap();
        guard
    });
    trace.step("the drop of a guard", |_| drop(guard));
    server.run("SET", &["leasehold:fence:{lock:a}", "word"]);
    trace.step("try_lock, the fence is no number", |_| {
        other.try_lock().unwrap_err()
    });
    let keys = builder()
        .key_prefix("k:")
        .channel_prefix("c:")
        .url(trace.url());
    let mutex = keys.build().unwrap().mutex("{tag}a");
    trace.step("with other prefixes and a hash tag", |_| {
        drop(mutex.lock().unwrap())
    });
    let guard = two.mutex("b").lock().unwrap();
    trace.skip();
    trace.step("keep_for", |_| guard.keep_for(SHORT).unwrap());
    trace.end("Mutex: calls")
}

fn waiting() -> String {
    let server = Server::start();
    // The client enters the queue while it subscribes: its mark says whether it listens yet.
    let trace = recorded(&server).naming("+1 n", "+1 <n or l>");
    let mut trace = trace.naming("+1 l", "+1 <n or l>");
    let (one, two) = (client(&trace), client(&trace));
    let [mutex, other] = [&one, &two].map(|client| client.mutex("a"));
    let guard = trace.step("lock", |_| mutex.lock().unwrap());
    let waiter = trace.step("another client waits", |passed| {
        let waiter = thread::spawn(move || other.lock().unwrap());
        passed.wait_for("queue_enter", 1);
        passed.wait_for_retry("queue_refresh");
        waiter
    });
    let guard = trace.step("unlock grants it the lock", |passed| {
        assert_released(guard.unlock());
        let guard = waiter.join().unwrap();
        passed.wait_for("renew", 1);
        guard
    });
    trace.step("its unlock", |passed| {
        assert_released(guard.unlock());
        passed.wait_for("message", 1);
    });
    let guard = trace.step("lock of another name", |_| one.mutex("b").lock().unwrap());
    let waiter = trace.step("a client with a subscription waits for it", |passed| {
        let mutex = two.mutex("b");
        let waiter = thread::spawn(move || mutex.lock().unwrap());
        passed.wait_for("queue_enter", 1);
        passed.wait_for_retry("queue_refresh");
        waiter
    });
    trace.meanwhile(&["queue_refresh", "PUBLISH probe", "message probe"]);
    drop(guard);
    drop(waiter.join().unwrap());
    trace.end("Mutex: waiting")
}

fn hand_off() -> String {
    let server = Server::start();
    let mut trace = recorded(&server);
    let client = client(&trace);
    let mutex = client.mutex("a").local_handoffs(8);
    let guard = trace.step("lock", |_| mutex.lock().unwrap());
    let (first, second) = trace.step("two more threads wait", |_| {
        let waiting = |count| {
            let mutex = mutex.clone();
            let waiter = thread::spawn(move || mutex.lock().unwrap());
            eventually(ms(20_000), || client.stats().waiting == count);
            waiter
        };
        let waiters = (waiting(1), waiting(2));
        eventually(ms(20_000), || server.subscribers("lock_release:a") > 0);
        waiters
    });
    let guard = trace.step("unlock wakes the first, which reserves tokens", |passed| {
        assert_released(guard.unlock());
        passed.wait_for("message", 1);
        first.join().unwrap()
    });
    let guard = trace.step("its unlock hands the lock to the second", |_| {
        assert_released(guard.unlock());
        second.join().unwrap()
    });
    trace.step("its unlock", |passed| {
        assert_released(guard.unlock());
        passed.wait_for("message", 1);
    });
    trace.end("Mutex: hand-off within a client")
}

pub(super) fn mutex_all_calls_are_as_recorded() {
    let server = Server::start();
    keep_tokens_apart(&server, "b");
    let mut trace = recorded(&server);
    let (one, two) = (client(&trace), client(&trace));
    let [all, other] = [&one, &two].map(|client| client.mutex_all(["b", "a"]));
    let guard = trace.step("try_lock", |_| all.try_lock().unwrap().unwrap());
    trace.step("try_lock, held", |_| {
        assert!(other.try_lock().unwrap().is_err())
    });
    trace.step("renew", |_| guard.renew().unwrap());
    trace.step("set_ttl", |_| guard.set_ttl(LONGER).unwrap());
    trace.step("unlock", |_| assert_released(guard.unlock()));
    // It waits for the last name: for another, it would ask for the next one before or after the
    // release of that.
    let guard = trace.step("lock of the last name", |_| one.mutex("b").lock().unwrap());
    let waiter = trace.step("another client waits for it", |passed| {
        let waiter = thread::spawn(move || other.lock().unwrap());
        passed.wait_for("queue_enter", 1);
        passed.wait_for_retry("queue_refresh");
        waiter
    });
    trace.meanwhile(&["queue_refresh"]);
    // The name that it has meanwhile is renewed if the next one takes longer than 3 ms.
    trace.leave_out(&["renew"]);
    let guard = trace.step("unlock wakes it", |passed| {
        assert_released(guard.unlock());
        passed.wait_for("message", 1);
        waiter.join().unwrap()
    });
    trace.step("its unlock", |passed| {
        assert_released(guard.unlock());
        passed.wait_for("message", 1);
    });
    server.run("SET", &["leasehold:fence:{lock:b}", "word"]);
    trace.step("try_lock, a fence is no number", |passed| {
        all.try_lock().unwrap_err();
        passed.wait_for("release", 1);
    });
    compare("mutex_all.txt", &[trace.end("MutexAll on one server")]);
}

pub(super) fn fair_mutex_calls_are_as_recorded() {
    let server = Server::start();
    let mut trace = recorded(&server);
    let (one, two) = (client(&trace), client(&trace));
    let [fair, other] = [&one, &two].map(|client| client.fair_mutex("a"));
    let guard = trace.step("try_lock", |_| fair.try_lock().unwrap().unwrap());
    trace.step("try_lock, held", |_| {
        assert!(other.try_lock().unwrap().is_err())
    });
    trace.step("renew", |_| guard.renew().unwrap());
    trace.step("inspect", |_| fair.inspect().unwrap());
    let waiter = trace.step("another client waits", |passed| {
        let other = other.clone();
        let waiter = thread::spawn(move || other.lock().unwrap());
        passed.wait_for("queue_enter", 1);
        passed.wait_for_retry("queue_refresh");
        waiter
    });
    trace.step("waiting", |_| assert_eq!(fair.waiting().unwrap(), 1));
    let guard = trace.step("unlock grants it the lock", |passed| {
        assert_released(guard.unlock());
        let guard = waiter.join().unwrap();
        passed.wait_for("renew", 1);
        guard
    });
    trace.meanwhile(&["queue_refresh"]);
    trace.step("a waiter gives up", |passed| {
        assert!(fair.try_lock_for(ms(500)).unwrap().is_err());
        passed.wait_for("queue_release", 1);
    });
    trace.step("its unlock", |passed| {
        assert_released(guard.unlock());
        passed.wait_for("message", 2);
    });
    let guard = trace.step("lock", |_| fair.lock().unwrap());
    trace.step("force_unlock", |passed| {
        assert!(other.force_unlock().unwrap());
        passed.wait_for("message", 2);
        // The holder received the message about its own lease, and checks it.
        passed.wait_for("renew", 1);
    });
    drop(guard);
    compare("fair_mutex.txt", &[trace.end("FairMutex on one server")]);
}

/// Tokens are times in µs. The recording shows one that is at most 63 µs after another as
/// `<token n + µs>`, so the tokens of two names must not be that close by chance.
fn keep_tokens_apart(server: &Server, name: &str) {
    let fence = format!("leasehold:fence:{{lock:{name}}}");
    server.run("SET", &[&fence, "4000000000000000"]);
}

/// An acquire whose reply was lost is undone, and so is one that may still run.
pub(super) fn undos_are_as_recorded() {
    let kinds = [
        ("acquire", "release", "queue_undo"),
        ("queue_enter", "queue_release", "queue_undo"),
    ];
    let scenes = kinds.map(|(acquire, release, undo)| {
        let server = Server::start();
        let mut trace = recorded(&server);
        let client = client(&trace);
        let try_lock = |limit: Duration| match acquire {
            "queue_enter" => client.fair_mutex("a").try_lock_for(limit).map(drop),
            _ => client.mutex("a").try_lock_for(limit).map(drop),
        };
        trace.step("lock and unlock", |_| try_lock(NEVER).unwrap());
        trace.step("a reply is lost", |passed| {
            passed.lose_reply_to(acquire);
            let _ = try_lock(ms(500));
            passed.wait_for(release, 1);
        });
        trace.leave_out(&[acquire, release, undo]);
        trace.step("two requests are lost, each with its release", |passed| {
            for _ in 0..2 {
                passed.lose(acquire);
                let _ = try_lock(ms(500));
            }
        });
        if undo != release {
            trace.meanwhile(&[undo]);
        }
        trace.end(&format!("Undo of {acquire}"))
    });
    compare("undo.txt", &scenes);
}

pub(super) fn shared_stats_are_as_recorded() {
    let server = Server::start();
    let mut trace = recorded(&server);
    let client = builder()
        .shared_stats(true)
        .url(trace.url())
        .build()
        .unwrap();
    let guard = trace.step("lock", |_| client.mutex("a").lock().unwrap());
    trace.step("what was counted", |passed| passed.wait_for("add_stats", 1));
    trace.step("shared_stats", |_| client.shared_stats().unwrap());
    drop(guard);
    compare("shared_stats.txt", &[trace.end("Shared statistics")]);
}

pub(super) fn min_replicas_calls_are_as_recorded() {
    let servers = Replicas::start(1);
    keep_tokens_apart(servers.master(), "b");
    let mut trace = recorded(servers.master());
    let client = client(&trace);
    let within = ms(4_000);
    let mutex: Mutex = client.mutex("a").min_replicas(1, within);
    let guard = trace.step("lock", |_| mutex.lock().unwrap());
    trace.step("renew", |_| guard.renew().unwrap());
    trace.step("set_ttl", |_| guard.set_ttl(LONGER).unwrap());
    trace.step("unlock", |_| assert_released(guard.unlock()));
    let all = client.mutex_all(["a", "b"]).min_replicas(1, within);
    trace.step("MutexAll: lock and unlock", |_| drop(all.lock().unwrap()));
    let fair = client.fair_mutex("a").min_replicas(1, within);
    trace.step("FairMutex: lock and unlock", |_| drop(fair.lock().unwrap()));
    compare("min_replicas.txt", &[trace.end("min_replicas")]);
}
