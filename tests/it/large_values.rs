//! Promise: neither a foreign value of megabytes nor thousands of holders disturb another lock, and
//! calls about their keys succeed.

use std::ops::RangeInclusive;
use std::thread;

use leasehold::{Client, Error, Holder, Lost};
use redis::Value;
use support::permits::PERMITS;
use support::scripts;
use support::{Server, eventually, ms};

support::tests![
    no_script_returns_more_than_the_start_of_a_foreign_value,
    renewals_report_a_lock_taken_by_a_large_value_and_renew_the_others,
    unlock_reports_that_a_large_value_took_the_lock,
    waiting_for_a_large_value_ends_at_the_deadline,
    inspect_and_list_show_the_start_of_a_large_value,
    a_large_fence_is_an_error_and_hides_no_holder,
    force_unlock_deletes_values_of_all_lengths,
    a_release_deletes_no_other_value_with_the_same_start,
    long_names_are_listed_in_pages_of_any_weight,
    many_holders_of_permits_are_returned_up_to_the_limit,
    many_readers_are_returned_up_to_the_limit,
    reads_of_many_holders_fail_no_call_of_other_threads,
];

/// More bytes than the client accepts in one reply.
const LARGE: usize = 2 << 20;

/// The number of bytes of a foreign value that a script returns, and the length of the digest that
/// follows them.
const CUT: usize = 1088;
const DIGEST: usize = 40;

/// The largest reply: the start of the value, its digest and the start of a fence.
const SMALL: usize = CUT + DIGEST + 17;

/// The most holders that an inspection returns.
const MOST_HOLDERS: usize = 10_000;

/// An inspection returns at least this many holders with ids of more than 1 KiB. Its reply then has
/// nearly 1 MiB.
const MOST_LONG: usize = 900;

const FENCE: &str = "leasehold:fence:{lock:a}";

/// Returns a client for replies of megabytes on a busy machine.
fn client(url: &str) -> Client {
    let patience = ms(20_000);
    let builder = Client::builder().url(url);
    let builder = builder.connect_timeout(patience).command_timeout(patience);
    builder.build().unwrap()
}

fn set(server: &Server, key: &str, value: &[u8]) {
    redis::cmd("SET")
        .arg(key)
        .arg(value)
        .exec(&mut server.connection())
        .unwrap();
}

fn set_large(server: &Server, key: &str) {
    set(server, key, &vec![b'7'; LARGE]);
}

const FAIR_KEYS: [&str; 5] = ["lock:a", "fence", "queue", "places", "readers"];

/// The scripts that read a lock's value: name, source and keys.
const SCRIPTS: [(&str, &str, &[&str]); 10] = [
    ("acquire", scripts::ACQUIRE, &["lock:a", "fence"]),
    (
        "acquire_after",
        scripts::ACQUIRE_AFTER,
        &["lock:a", "fence", "lock:b"],
    ),
    ("propose", scripts::PROPOSE, &["lock:a", "fence"]),
    ("release", scripts::RELEASE, &["lock:a"]),
    ("renew", scripts::RENEW, &["lock:a"]),
    ("undo", scripts::UNDO, &["lock:a", "lock:b"]),
    ("inspect", scripts::INSPECT, &["lock:a", "large"]),
    ("queue_enter", scripts::LOCKS.enter, &FAIR_KEYS),
    ("queue_release", scripts::LOCKS.release, &FAIR_KEYS),
    ("queue_undo", scripts::LOCKS.undo, &FAIR_KEYS),
];

fn eval(server: &Server, source: &str, keys: &[&str], args: &[&[u8]]) -> Value {
    redis::cmd("EVAL")
        .arg(source)
        .arg(keys.len())
        .arg(keys)
        .arg(args)
        .query(&mut server.connection())
        .unwrap()
}

/// Returns the number of bytes of all strings in a reply.
fn size(reply: &Value) -> usize {
    match reply {
        Value::BulkString(text) => text.len(),
        Value::Array(items) => items.iter().map(size).sum(),
        _ => 0,
    }
}

fn no_script_returns_more_than_the_start_of_a_foreign_value() {
    let server = Server::start();
    let args: [&[u8]; 4] = [b"id", b"1000", b"1", b"1"];
    for (name, source, keys) in SCRIPTS {
        server.run("FLUSHALL", &[]);
        set_large(&server, "lock:a");
        set_large(&server, "large");
        // The name before, for the second name of a set.
        server.run("SET", &["lock:b", "1"]);
        let reply = eval(&server, source, keys, &args);
        let returned: RangeInclusive<usize> = CUT..=SMALL;
        assert!(returned.contains(&size(&reply)), "{name}: {}", size(&reply));
        assert_eq!(server.get("lock:a").unwrap().len(), LARGE, "{name}");
    }
}

fn renewals_report_a_lock_taken_by_a_large_value_and_renew_the_others() {
    let server = Server::start();
    let client = client(&server.url());
    let often = |name: &str| client.mutex(name).ttl(ms(60_000)).renew_every(ms(100));
    let taken = often("a").lock().unwrap();
    let fair = client
        .fair_mutex("fair")
        .ttl(ms(60_000))
        .renew_every(ms(100));
    let fair = fair.lock().unwrap();
    let several = client.mutex_all(["b", "c"]);
    let several = several.ttl(ms(60_000)).renew_every(ms(100)).lock().unwrap();
    let others: Vec<_> = ["x", "y", "z"]
        .map(|name| often(name).lock().unwrap())
        .into();
    for key in ["lock:a", "lock:fair", "lock:c"] {
        set_large(&server, key);
    }
    for lost in [taken.lost(), fair.lost(), several.lost()] {
        assert_eq!(lost.recv_timeout(ms(20_000)), Ok(Lost::Taken));
    }
    let renewals = || client.stats().totals.renewals_ok;
    let before = renewals();
    eventually(ms(20_000), || renewals() > before + 3);
    assert_eq!(client.stats().totals.renewals_failed, 0);
    for other in others {
        other.renew().unwrap();
        other.unlock().unwrap();
    }
}

fn unlock_reports_that_a_large_value_took_the_lock() {
    let server = Server::start();
    let client = client(&server.url());
    let one = client.mutex("a").auto_renew(false).lock().unwrap();
    let fair = client.fair_mutex("fair").auto_renew(false).lock().unwrap();
    let several = client.mutex_all(["b", "c"]).auto_renew(false);
    let several = several.lock().unwrap();
    for key in ["lock:a", "lock:fair", "lock:c"] {
        set_large(&server, key);
    }
    let lost = Some(Lost::Taken);
    assert_eq!(one.unlock().unwrap_err().lost(), lost);
    assert_eq!(fair.unlock().unwrap_err().lost(), lost);
    assert_eq!(several.unlock().unwrap_err().lost(), lost);
}

fn waiting_for_a_large_value_ends_at_the_deadline() {
    let server = Server::start();
    let client = client(&server.url());
    set_large(&server, "lock:a");
    assert!(client.mutex("a").try_lock().unwrap().is_err());
    assert!(client.mutex("a").try_lock_for(ms(700)).unwrap().is_err());
    let fair = client.fair_mutex("a");
    assert!(fair.try_lock_for(ms(700)).unwrap().is_err());
    let several = client.mutex_all(["a", "b"]);
    assert!(several.try_lock_for(ms(700)).unwrap().is_err());
}

/// Inspects lock `a`, lists it together with a lock of this client, and returns its value.
#[track_caller]
fn inspected_value(client: &Client) -> Vec<u8> {
    let ours = client.mutex("b").lock().unwrap();
    let holder = client.mutex("a").inspect().unwrap().unwrap();
    assert_eq!(holder.holder_id(), None);
    let list = client.list("").unwrap();
    let [listed, own] = &list[..] else {
        panic!("{list:?}")
    };
    assert_eq!(listed.holders()[0].value(), holder.value());
    assert_eq!(own.holders()[0].holder_id(), Some(ours.holder_id()));
    holder.value().to_vec()
}

fn inspect_and_list_show_the_start_of_a_large_value() {
    let server = Server::start();
    let client = client(&server.url());
    // The first `CUT` bytes look like a holder id.
    let id = ":123e4567-e89b-12d3-a456-426614174000";
    let mut value = "o".repeat(CUT - id.len());
    value.push_str(id);
    value.push_str(&"x".repeat(LARGE));
    for length in [CUT + 1, CUT + DIGEST, LARGE] {
        set(&server, "lock:a", &value.as_bytes()[..length]);
        assert_eq!(
            inspected_value(&client),
            value.as_bytes()[..CUT],
            "{length}"
        );
    }
    for length in [0, 1, CUT - 1] {
        set(&server, "lock:a", &value.as_bytes()[..length]);
        assert_eq!(
            inspected_value(&client),
            value.as_bytes()[..length],
            "{length}"
        );
    }
}

fn a_large_fence_is_an_error_and_hides_no_holder() {
    let server = Server::start();
    let client = client(&server.url());
    let mutex = client.mutex("a");
    let guard = mutex.lock().unwrap();
    for fence in [LARGE, 17] {
        set(&server, FENCE, &vec![b'1'; fence]);
        let error = mutex.last_fencing_token().unwrap_err();
        assert!(
            matches!(&error, Error::BadFence { key, .. } if key == FENCE),
            "{error}"
        );
        let holder = mutex.inspect().unwrap().unwrap();
        assert_eq!(holder.holder_id(), Some(guard.holder_id()));
        assert_eq!(holder.fencing_token(), None);
        assert_eq!(client.list("").unwrap().len(), 1);
    }
    server.run("DEL", &[FENCE]);
    server.run("LPUSH", &[FENCE, "x"]);
    let error = mutex.last_fencing_token().unwrap_err();
    assert!(matches!(error, Error::BadFence { .. }), "{error}");
}

fn force_unlock_deletes_values_of_all_lengths() {
    let server = Server::start();
    let client = client(&server.url());
    for length in [0, 1, CUT - 1, CUT, CUT + 1, CUT + DIGEST, LARGE] {
        set(&server, "lock:a", &vec![b'v'; length]);
        assert!(client.mutex("a").force_unlock().unwrap(), "{length}");
        assert_eq!(server.get("lock:a"), None, "{length}");
        set(&server, "lock:a", &vec![b'v'; length]);
        assert!(client.fair_mutex("a").force_unlock().unwrap(), "{length}");
        assert_eq!(server.get("lock:a"), None, "{length}");
    }
}

fn a_release_deletes_no_other_value_with_the_same_start() {
    let server = Server::start();
    let value = vec![b'v'; LARGE];
    set(&server, "lock:a", &value);
    let inspected = eval(&server, scripts::INSPECT, &["lock:a", "fence"], &[]);
    let Value::Array(items) = inspected else {
        panic!("{inspected:?}")
    };
    let Value::BulkString(shown) = &items[0] else {
        panic!("{items:?}")
    };
    let mut same_length = value.clone();
    same_length[LARGE - 1] = b'w';
    // The last one is the shortened form that `inspect` returned for the value.
    for other in [&value[..CUT], &value[1..], &same_length, shown] {
        set(&server, "lock:a", other);
        let args: [&[u8]; 2] = [shown, b"lock_release:a"];
        eval(&server, scripts::RELEASE, &["lock:a"], &args);
        assert_eq!(server.get("lock:a").as_deref(), Some(other));
        let fair = scripts::LOCKS.release;
        eval(&server, fair, &FAIR_KEYS, &args);
        assert_eq!(server.get("lock:a").as_deref(), Some(other));
        // A release whose id is the start of the value.
        let args: [&[u8]; 2] = [&value[..CUT], b"lock_release:a"];
        eval(&server, scripts::RELEASE, &["lock:a"], &args);
        assert_eq!(server.get("lock:a").is_some(), other.len() != CUT);
    }
    set(&server, "lock:a", &value);
    eval(&server, scripts::RELEASE, &["lock:a"], &[shown, b"c"]);
    assert_eq!(server.get("lock:a"), None);
}

fn long_names_are_listed_in_pages_of_any_weight() {
    // Together many times longer than the longest reply that the client accepts.
    const LONG: usize = 100;
    let server = Server::start();
    let mut pipe = redis::pipe();
    for n in 0..LONG {
        let key = format!("lock:{n:0>60000}");
        pipe.cmd("SET").arg(key).arg("v").ignore();
        pipe.cmd("SET").arg(format!("lock:{n}")).arg("v").ignore();
    }
    pipe.exec(&mut server.connection()).unwrap();
    let held = client(&server.url()).list("").unwrap();
    let long = held
        .iter()
        .filter(|held| held.name().as_bytes().len() == 60_000);
    assert_eq!((held.len(), long.count()), (2 * LONG, LONG));
}

/// Adds leases to the sorted set `key`, in the order in which they end. Each member is a holder id
/// whose owner has `owner` bytes, behind `prefix`.
fn add_holders(server: &Server, key: &str, prefix: &str, count: usize, owner: usize) {
    let end = server.micros() / 1_000 + 3_600_000;
    let mut pipe = redis::pipe();
    for n in 0..count {
        let owner = "o".repeat(owner);
        let member = format!("{prefix}{owner}:123e4567-e89b-42d3-a456-{n:012}");
        pipe.cmd("ZADD")
            .arg(key)
            .arg(end + n as u64)
            .arg(member)
            .ignore();
    }
    pipe.exec(&mut server.connection()).unwrap();
}

/// Lets `count` holders have one permit each of the semaphore `a`.
fn add_permits(server: &Server, count: usize, owner: usize) {
    server.run("DEL", &[PERMITS]);
    server.run("ZADD", &[PERMITS, &format!("-{count}"), "out"]);
    add_holders(server, PERMITS, "1 ", count, owner);
}

fn many_holders_of_permits_are_returned_up_to_the_limit() {
    let server = Server::start();
    let client = client(&server.url());
    let semaphore = client.semaphore("a", 20_000);
    for (count, owner) in [(500, 20), (MOST_HOLDERS, 20), (MOST_HOLDERS + 100, 20)] {
        add_permits(&server, count, owner);
        let held = semaphore.inspect().unwrap().unwrap();
        let holders = held.holders();
        assert_eq!(holders.len(), count.min(MOST_HOLDERS));
        // Those whose leases end first.
        for (n, holder) in holders.iter().enumerate() {
            let id = holder.holder_id().unwrap().as_str();
            assert!(id.ends_with(&format!("{n:012}")), "{n}: {id}");
        }
        let listed = client.list_permits("").unwrap();
        assert_eq!(listed[0].permits(), count as u64);
        assert_eq!(listed[0].holders().len(), holders.len());
        assert_eq!(semaphore.available().unwrap(), 20_000 - count as u32);
    }
    add_permits(&server, MOST_HOLDERS, 1024);
    let held = semaphore.inspect().unwrap().unwrap();
    let holders = held.holders();
    assert!(
        (MOST_LONG..MOST_HOLDERS).contains(&holders.len()),
        "{}",
        holders.len()
    );
    let listed = client.list_permits("").unwrap();
    assert_eq!(listed[0].permits(), MOST_HOLDERS as u64);
    assert_eq!(listed[0].holders().len(), holders.len());
}

fn many_readers_are_returned_up_to_the_limit() {
    const READERS: &str = "leasehold:readers:{lock:a}";
    let server = Server::start();
    let client = client(&server.url());
    set(&server, "lock:a", b"leasehold:readers");
    let readers = || -> Vec<Holder> {
        let held = client.rw_lock("a").inspect().unwrap().unwrap();
        assert!(held.is_shared());
        held.holders().to_vec()
    };
    for count in [500, MOST_HOLDERS, MOST_HOLDERS + 100] {
        server.run("DEL", &[READERS]);
        add_holders(&server, READERS, "", count, 20);
        let readers = readers();
        assert_eq!(readers.len(), count.min(MOST_HOLDERS));
        for (n, reader) in readers.iter().enumerate() {
            let id = reader.holder_id().unwrap().as_str();
            assert!(id.ends_with(&format!("{n:012}")), "{n}: {id}");
        }
    }
    server.run("DEL", &[READERS]);
    add_holders(&server, READERS, "", MOST_HOLDERS, 1024);
    let count = readers().len();
    assert!((MOST_LONG..MOST_HOLDERS).contains(&count), "{count}");
}

fn reads_of_many_holders_fail_no_call_of_other_threads() {
    let server = Server::start();
    add_permits(&server, MOST_HOLDERS, 20);
    let patience = ms(20_000);
    let builder = Client::builder().url(server.url());
    let builder = builder.connect_timeout(patience).command_timeout(patience);
    // Calls that find the connection in use are sent together.
    let client = builder.max_connections(1).build().unwrap();
    thread::scope(|scope| {
        for n in 0..12 {
            let client = &client;
            scope.spawn(move || {
                for _ in 0..20 {
                    let guard = client.mutex(format!("own:{n}")).lock().unwrap();
                    guard.unlock().unwrap();
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..5 {
                    let held = client.semaphore("a", 1).inspect().unwrap().unwrap();
                    assert_eq!(held.holders().len(), MOST_HOLDERS);
                }
            });
        }
    });
    // No call needed a second attempt.
    assert_eq!(client.health().servers[0].last_error, None);
}
