//! Promise: the documented ACL user can do everything.
//!
//! Without one of its permissions, a call works as documented or fails with an error that names the
//! permission.

use std::collections::HashMap;
use std::fmt::Debug;
use std::thread::{self, JoinHandle};

use leasehold::{Client, ClientBuilder, Error, MutexGuard, RwLock, Taken};
use support::fair::{
    PATIENCE, PLACES, QUEUE, fair_mutex, places_in, spawn_subscribed_waiter, spawn_waiter,
};
use support::{
    Cluster, ClusterSetup, Replicas, Sentinels, Server, Setup, assert_released, connect_to_all,
    eventually, exercise_every_call, ms,
};

support::tests![
    documented_user_can_do_everything_in_a_cluster,
    error_names_the_missing_permission_unless_it_is_optional,
    documented_users_can_do_everything_with_sentinel,
    shared_statistics_need_the_additional_rule,
    documented_user_can_do_everything,
    error_names_the_missing_permission_of_a_semaphore,
    error_names_the_missing_permission_of_a_read_write_lock,
    operator_can_inspect_locks_but_not_acquire_them,
    operator_needs_more_permissions_to_force_a_lock_from_its_readers,
    set_needs_the_same_permissions_as_one_name,
    refused_call_keeps_no_permit_and_no_read_lock,
    grant_by_a_user_without_hdel_strands_no_waiter,
    queue_of_a_refused_waiter_expires,
    only_the_first_database_works_without_select,
    min_replicas_fails_without_wait,
    documented_user_can_do_everything_over_a_quorum
];

/// Returns the words of a user's documented command, from `SETUSER` on.
fn documented(user: &str) -> Vec<String> {
    let page = include_str!("../../docs/operations.md");
    let start = format!("ACL SETUSER {user} reset ");
    let lines: Vec<&str> = page
        .lines()
        .filter(|line| line.starts_with(&start))
        .collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    lines[0].split(' ').skip(1).map(str::to_owned).collect()
}

/// Returns the documented words without one permission.
fn without(user: &str, right: &str) -> Vec<String> {
    let mut rules = documented(user);
    let all = rules.len();
    rules.retain(|rule| rule != right);
    assert_eq!(rules.len(), all - 1, "{right}");
    rules
}

fn set_user(server: &Server, rules: &[String]) {
    let mut connection = server.connection();
    let mut command = redis::cmd("ACL");
    command.arg(rules).exec(&mut connection).unwrap();
}

fn url(server: &Server) -> String {
    format!("redis://leasehold:password@127.0.0.1:{}", server.port())
}

/// Returns a client that waits long for each reply: many servers run at the same time.
fn client(url: &str) -> Client {
    let builder = Client::builder().url(url).connect_timeout(PATIENCE);
    builder.command_timeout(PATIENCE).build().unwrap()
}

fn acl_log(server: &Server) -> Vec<Entry> {
    let mut log = redis::cmd("ACL");
    log.arg("LOG").query(&mut server.connection()).unwrap()
}

type Entry = HashMap<String, redis::Value>;

/// Returns the refused commands, except CLIENT SETINFO, which is documented as optional.
///
/// Redis 6.2 logs it as `client`.
fn refused(entries: Vec<Entry>) -> Vec<String> {
    let objects = entries
        .into_iter()
        .map(|mut entry| redis::from_redis_value(entry.remove("object").unwrap()).unwrap());
    objects
        .filter(|object: &String| !["client", "client|setinfo"].contains(&object.as_str()))
        .collect()
}

/// Asserts that every call works and that all connections set their names.
#[track_caller]
fn assert_everything_works(builder: impl Fn() -> ClientBuilder, name: &str, servers: &[&Server]) {
    let _connected = exercise_every_call(builder, name, servers);
    for server in servers {
        // A new connection has no name at first.
        eventually(ms(5_000), || {
            let clients = server.client_list();
            let mut ours = clients.iter().filter(|c| c["user"] == "leasehold");
            ours.all(|client| client["name"].starts_with("leasehold:"))
        });
    }
}

#[track_caller]
fn assert_nothing_refused<'a, I: IntoIterator<Item = &'a Server>>(servers: I) {
    for server in servers {
        assert_eq!(refused(acl_log(server)), [""; 0]);
    }
}

#[track_caller]
fn assert_refused<T: Debug>(answer: Result<T, Error>, words: &[&str]) {
    let error = answer.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
}

fn documented_user_can_do_everything() {
    let server = Server::start();
    set_user(&server, &documented("leasehold"));
    let url = url(&server);
    for suffix in ["", "/3", "?protocol=resp3"] {
        let url = format!("{url}{suffix}");
        assert_everything_works(|| Client::builder().url(&url), "a", &[&server]);
        assert!(client(&url).health().is_healthy());
    }
    assert_nothing_refused([&server]);
}

/// Makes every call once and returns the failures. Some of them are `expected`.
fn failures(server: &Server, url: &str, expected: &[&str]) -> Vec<(&'static str, Error)> {
    let mut failures = Vec::new();
    let mut note = |step: &'static str, error: Option<Error>| {
        failures.extend(error.map(|error| (step, error)));
    };
    let (ours, other) = (client(url), client(&server.url()));
    note("ping", ours.ping().err());
    match ours.mutex("free").lock() {
        Err(error) => note("lock", Some(error)),
        Ok(guard) => {
            // `set_ttl`, since a renewal within the first millisecond sets no expiry.
            note("renew", guard.set_ttl(ms(5_000)).err());
            note("unlock", guard.unlock().err());
        }
    }
    let guard = other.mutex("held").lock().unwrap();
    match ours.mutex("held").try_lock() {
        Err(error) => note("try_lock", Some(error)),
        Ok(got) => {
            assert!(got.is_err());
            let is_refused = expected.contains(&"wait") && !expected.contains(&"unlock");
            let waiting = wait_in_queue(server, &ours, is_refused);
            guard.unlock().unwrap();
            note("wait", waiting.join().unwrap().err());
        }
    }
    let _held = other.mutex("forced").lock().unwrap();
    let forced = ours.mutex("forced");
    match forced.inspect() {
        Err(error) => note("inspect", Some(error)),
        Ok(holder) => assert!(holder.is_some()),
    }
    match forced.force_unlock() {
        Err(error) => note("force_unlock", Some(error)),
        Ok(was_held) => assert!(was_held),
    }
    match ours.fair_mutex("fair").lock() {
        Err(error) => note("fair lock", Some(error)),
        Ok(guard) => {
            let next = client(url).fair_mutex("fair");
            let waiting = thread::spawn(move || next.try_lock_for(PATIENCE));
            let queued = || other.fair_mutex("fair").waiting().unwrap();
            eventually(ms(10_000), || queued() == 1 || waiting.is_finished());
            note("fair unlock", guard.unlock().err());
            let waited = waiting.join().unwrap();
            let has_waited = waited.is_ok();
            note("fair wait", waited.map(drop_granted).err());
            if has_waited {
                let next = ours.fair_mutex("fair").try_lock();
                note("next fair lock", next.map(drop_granted).err());
            }
        }
    }
    failures
}

/// Starts a thread that waits for "held", and returns when its place was refreshed, or the call has
/// ended. A call that `is_refused` must not be granted the lock before it has the reply.
///
/// Without DEL, only a call that has the lock fails.
fn wait_in_queue(
    server: &Server,
    ours: &Client,
    is_refused: bool,
) -> JoinHandle<Result<(), Error>> {
    let mutex = ours.mutex("held");
    let waiting = thread::spawn(move || mutex.try_lock_for(PATIENCE).map(drop_granted));
    let has_place = || places_in(server, "leasehold:queue:{lock:held}") == 1;
    eventually(ms(10_000), || has_place() || waiting.is_finished());
    // The script of its first refresh extends the queue.
    let extended = || server.calls(&["pexpire"]);
    let before = extended();
    eventually(ms(10_000), || {
        waiting.is_finished() || !is_refused && extended() > before
    });
    waiting
}

fn drop_granted(got: Result<MutexGuard, Taken>) {
    drop(got.expect("the lock was released"));
}

/// The calls that fail without a permission. All others work, including waiting.
const CLIENT_FAILURES: [(&str, &[&str]); 39] = [
    (
        "~lock:*",
        &["lock", "try_lock", "inspect", "force_unlock", "fair lock"],
    ),
    (
        "~leasehold:*",
        &["lock", "try_lock", "inspect", "force_unlock", "fair lock"],
    ),
    ("&lock_release:*", &[]),
    ("&leasehold:*", &[]),
    (
        "+evalsha",
        &["lock", "try_lock", "inspect", "force_unlock", "fair lock"],
    ),
    // `try_lock` works: another client has already loaded the acquire script.
    (
        "+eval",
        &["lock", "wait", "inspect", "force_unlock", "fair lock"],
    ),
    // A free lock is acquired without it.
    (
        "+get",
        &[
            "renew",
            "unlock",
            "try_lock",
            "inspect",
            "force_unlock",
            "fair unlock",
            "fair wait",
        ],
    ),
    ("+set", &["lock", "try_lock", "fair lock"]),
    ("+time", &["lock", "try_lock", "fair lock"]),
    (
        "+pttl",
        &["renew", "try_lock", "inspect", "force_unlock", "fair wait"],
    ),
    (
        "+del",
        &["unlock", "wait", "force_unlock", "fair unlock", "fair wait"],
    ),
    ("+pexpire", &["renew", "wait", "fair wait"]),
    ("+lindex", &["fair wait"]),
    ("+rpush", &["wait", "fair wait"]),
    ("+hset", &["wait", "fair wait"]),
    ("+hget", &["wait", "fair wait"]),
    // The waiter is granted the lock before its place is removed.
    ("+lpop", &["next fair lock"]),
    ("+hdel", &["fair wait"]),
    // The place of a waiter that gave up is skipped like that of a dead one.
    ("+lrem", &[]),
    // Needed by semaphores and read-write locks only.
    ("+zadd", &[]),
    ("+zrem", &[]),
    ("+zscore", &[]),
    ("+zincrby", &[]),
    ("+zrange", &[]),
    ("+zrangebyscore", &[]),
    ("+zremrangebyscore", &[]),
    ("+exists", &[]),
    ("+pexpireat", &[]),
    ("+ping", &["ping"]),
    ("+publish", &[]),
    // A grant goes to the first in the queue, whether or not its client is subscribed.
    ("+pubsub|numsub", &[]),
    ("+subscribe", &[]),
    ("+unsubscribe", &[]),
    ("+client|setname", &[]),
    ("+select", &[]),
    ("+role", &[]),
    ("+wait", &[]),
    // Needed in a cluster only.
    ("+cluster|slots", &[]),
    ("+asking", &[]),
];

fn error_names_the_missing_permission_unless_it_is_optional() {
    let no_permission = ["leasehold", "reset", "on", ">password", "resetchannels"];
    for rule in documented("leasehold").iter().skip(1) {
        let is_known = CLIENT_FAILURES.iter().any(|(right, _)| right == rule);
        assert!(is_known || no_permission.contains(&rule.as_str()), "{rule}");
    }
    thread::scope(|scope| {
        // In parallel, because some checks wait for a second.
        for rights in CLIENT_FAILURES.chunks(6) {
            scope.spawn(move || {
                rights
                    .iter()
                    .for_each(|(right, fails)| assert_failures_without(right, fails))
            });
        }
    });
}

#[track_caller]
fn assert_failures_without(right: &str, fails: &[&str]) {
    let server = Server::start();
    set_user(&server, &without("leasehold", right));
    let failures = failures(&server, &url(&server), fails);
    let steps: Vec<&str> = failures.iter().map(|(step, _)| *step).collect();
    assert_eq!(steps, fails, "{right}: {failures:?}");
    for (step, error) in failures {
        let text = error.to_string();
        assert!(matches!(error, Error::Refused { .. }), "{right}: {text}");
        let script = match step {
            "lock" | "try_lock" => "the acquire script needs",
            "renew" => "the renew script needs",
            "unlock" => "the release script needs",
            "wait" => "the queue_",
            "inspect" => "the inspect script needs",
            "force_unlock" => "script needs",
            "fair lock" => "the queue_enter script needs",
            "fair unlock" => "the queue_release script needs",
            "fair wait" | "next fair lock" => "the queue_",
            _ => "PING needs",
        };
        assert!(text.contains(script), "{right}: {text}");
        let named = match right {
            "~lock:*" => "on the keys lock:",
            "~leasehold:*" => " and leasehold:",
            command => command,
        };
        assert!(text.contains(named), "{right}: {text}");
        if text.contains("can't run this command") {
            let missing = right.trim_start_matches('+').to_ascii_uppercase();
            let named = text.split_once("the user may not run ").unwrap().1;
            let named = named.split(';').next().unwrap();
            assert!(named.contains(&missing), "{right}: {text}");
        }
    }
}

fn error_names_the_missing_permission_of_a_semaphore() {
    let server = Server::start();
    for (right, script) in [
        ("~leasehold:*", "queue_enter"),
        ("+zadd", "queue_enter"),
        ("+zrange", "queue_enter"),
        ("+zrangebyscore", "queue_enter"),
        ("+exists", "queue_enter"),
        ("+pexpireat", "queue_enter"),
        ("+zscore", "permits_renew"),
        ("+zrem", "queue_release"),
        ("+zincrby", "queue_release"),
    ] {
        set_user(&server, &without("leasehold", right));
        let semaphore = client(&url(&server)).semaphore(right, 2).ttl(ms(1_000));
        match right {
            // A member without the number of permits that are out.
            "+zrangebyscore" | "+exists" => {
                let key = format!("leasehold:permits:{{lock:{right}}}");
                server.run("ZADD", &[&key, "inf", "foreign"]);
            }
            // The release of the last permits deletes the key.
            "+zrem" | "+zincrby" => {
                let other = server.client().semaphore(right, 2);
                std::mem::forget(other.acquire().unwrap());
            }
            _ => {}
        }
        let failed = match semaphore.acquire() {
            Err(error) => error,
            Ok(permit) if script == "permits_renew" => permit.set_ttl(ms(500)).unwrap_err(),
            Ok(permit) => permit.release().unwrap_err(),
        };
        let named = match right {
            "~leasehold:*" => "on the keys leasehold:permits:{lock:",
            command => command,
        };
        let script = format!("the {script} script needs");
        assert_refused(Err::<(), _>(failed), &[&script, named]);
    }
}

/// Makes an operator's calls and returns the failures.
fn operator_failures(server: &Server, user: &str) -> Vec<(&'static str, Error)> {
    let operator = client(&url(server).replace("leasehold", user));
    let holder = server.client();
    let _held = holder.mutex("a").lock().unwrap();
    let _permit = holder.semaphore("a", 2).acquire().unwrap();
    let mutex = operator.mutex("a");
    let steps = [
        ("list", operator.list("").err()),
        ("inspect", mutex.inspect().err()),
        ("waiting", mutex.waiting().err()),
        ("queued", operator.fair_mutex("a").waiting().err()),
        ("longest", operator.fair_mutex("a").longest_wait().err()),
        ("token", mutex.last_fencing_token().err()),
        ("permits", operator.list_permits("").err()),
        ("holders", operator.semaphore("a", 2).inspect().err()),
        ("force_unlock", mutex.force_unlock().err()),
        ("lock", operator.mutex("b").try_lock().err()),
    ];
    let steps = steps.into_iter();
    steps
        .filter_map(|(step, error)| Some((step, error?)))
        .collect()
}

/// The operator's calls that fail without a permission, and the text that the error must contain.
const OPERATOR_FAILURES: [(&str, &str, &[&str]); 6] = [
    ("+scan", "SCAN needs +scan", &["list", "permits"]),
    (
        "+zrangebyscore",
        "the permits_inspect script needs +evalsha +eval +get +time +zrangebyscore",
        &["permits", "holders"],
    ),
    (
        "+llen",
        "LLEN needs +llen on the key leasehold:queue:{lock:a}",
        &["waiting", "queued"],
    ),
    (
        "+lindex",
        "LINDEX needs +lindex on the key leasehold:queue:{lock:a}",
        &["longest"],
    ),
    (
        "~leasehold:*",
        "leasehold:",
        &[
            "list",
            "inspect",
            "waiting",
            "queued",
            "longest",
            "token",
            "permits",
            "holders",
            "force_unlock",
        ],
    ),
    (
        "+get",
        "needs +",
        &["list", "inspect", "token", "force_unlock"],
    ),
];

/// Makes every call of a read-write lock once; returns the first error.
fn read_and_write(lock: &RwLock) -> Result<(), Error> {
    let reading = lock.read()?;
    drop(lock.inspect()?);
    reading.renew()?;
    drop(lock.try_read()?);
    reading.unlock()?;
    let reading = lock.write()?.downgrade();
    reading.renew()?;
    reading.unlock()
}

fn error_names_the_missing_permission_of_a_read_write_lock() {
    let server = Server::start();
    let lock = || client(&url(&server)).rw_lock("a").ttl(ms(1_000));
    for right in [
        "~lock:*",
        "~leasehold:*",
        "+zadd",
        "+zrem",
        "+zscore",
        "+zrange",
        "+zrangebyscore",
        "+zremrangebyscore",
        "+exists",
        "+pexpireat",
    ] {
        set_user(&server, &without("leasehold", right));
        // The lease of a reader has ended.
        server.run("SET", &["lock:a", "leasehold:readers"]);
        server.run("ZADD", &["leasehold:readers:{lock:a}", "1", "crashed"]);
        let named = if right.starts_with('~') {
            "on the keys"
        } else {
            right
        };
        assert_refused(read_and_write(&lock()), &[named]);
        server.run("FLUSHALL", &[]);
    }
    set_user(&server, &documented("leasehold"));
    read_and_write(&lock()).unwrap();
}

fn operator_can_inspect_locks_but_not_acquire_them() {
    let server = Server::start();
    set_user(&server, &documented("operator"));
    let failed = operator_failures(&server, "operator");
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(failed[0].0, "lock");
    for (right, named, fails) in OPERATOR_FAILURES {
        set_user(&server, &without("operator", right));
        let mut failed = operator_failures(&server, "operator");
        assert!(matches!(failed.pop(), Some(("lock", _))), "{right}");
        let steps: Vec<&str> = failed.iter().map(|(step, _)| *step).collect();
        assert_eq!(steps, fails, "{right}: {failed:?}");
        for (_, error) in failed {
            assert!(matches!(error, Error::Refused { .. }), "{right}: {error}");
            assert!(error.to_string().contains(named), "{right}: {error}");
        }
    }
    // The user for locking cannot list locks or read the length of a queue, and needs neither.
    set_user(&server, &documented("leasehold"));
    let failed = operator_failures(&server, "leasehold");
    let steps: Vec<&str> = failed.iter().map(|(step, _)| *step).collect();
    assert_eq!(
        steps,
        ["list", "waiting", "queued", "permits"],
        "{failed:?}"
    );
}

fn operator_needs_more_permissions_to_force_a_lock_from_its_readers() {
    let page = include_str!("../../docs/operations.md");
    let sentence =
        "`RwLock::force_unlock_from` a reader also needs `+zrange`, `+zrem` and `+pexpireat`";
    assert!(page.contains(sentence));
    let server = Server::start();
    let lock = server.client().rw_lock("a");
    let operator = || client(&url(&server).replace("leasehold", "operator")).rw_lock("a");
    let mut rules = documented("operator");
    set_user(&server, &rules);
    let _reading = lock.read().unwrap();
    assert!(operator().force_unlock().unwrap());
    assert!(lock.inspect().unwrap().is_none());

    let _readings = [(); 2].map(|()| lock.read().unwrap());
    let held = operator().inspect().unwrap().expect("readers have it");
    let readers = held.holders();
    // Without `+pexpireat`, the reader that ends last is released nevertheless.
    for right in ["+zrange", "+zrem", "+pexpireat"] {
        assert_refused(operator().force_unlock_from(&readers[1]), &[right]);
        rules.push(right.into());
        set_user(&server, &rules);
    }
    assert!(operator().force_unlock_from(&readers[0]).unwrap());
    assert!(lock.inspect().unwrap().is_none());
}

fn shared_statistics_need_the_additional_rule() {
    let server = Server::start();
    set_user(&server, &documented("leasehold"));
    let url = url(&server);
    let sharing = Client::builder().url(&url).shared_stats(true);
    let client = sharing.build().unwrap();
    drop(client.mutex("a").lock().unwrap());
    let error = client.shared_stats().unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("+hgetall on the key lock_stats"), "{text}");

    let more = "ACL SETUSER leasehold ~lock_stats +hincrby +hgetall";
    assert!(
        include_str!("../../docs/operations.md")
            .lines()
            .any(|line| line == more)
    );
    let rules: Vec<_> = more.split(' ').skip(1).map(str::to_owned).collect();
    set_user(&server, &rules);
    // A refused addition is not sent again.
    drop(client.mutex("a").lock().unwrap());
    eventually(ms(10_000), || {
        client.shared_stats().is_ok_and(|stats| stats.released >= 1)
    });
    // Locking still works.
    let before = client.shared_stats().unwrap().released;
    drop(client.mutex("a").lock().unwrap());
    let mut connection = server.connection();
    let () = redis::cmd("ACL")
        .arg(&["LOG", "RESET"])
        .query(&mut connection)
        .unwrap();
    eventually(ms(10_000), || {
        client
            .shared_stats()
            .is_ok_and(|stats| stats.released == before + 1)
    });
    assert_eq!(refused(acl_log(&server)), [""; 0]);
}

/// Without one of the permissions, no set is partly held. Without +get, what is granted can only
/// expire.
fn set_needs_the_same_permissions_as_one_name() {
    let server = Server::start();
    for (right, fails) in [
        ("~lock:*", "acquire"),
        ("+get", "acquire_after"),
        ("+set", "acquire"),
        ("+time", "acquire"),
        ("+pttl", "renew"),
        ("+pexpire", "renew"),
        ("+del", "release"),
    ] {
        set_user(&server, &without("leasehold", right));
        let client = client(&url(&server));
        let names = ["a", "b"].map(|name| format!("{right}{name}"));
        let everything = || {
            let guard = client.mutex_all(&names).lock()?;
            guard.set_ttl(ms(5_000))?;
            guard.unlock()
        };
        let error = everything().expect_err(right);
        assert!(matches!(error, Error::Refused { .. }), "{right}: {error}");
        let text = error.to_string();
        assert!(
            text.contains(&format!("the {fails} script needs")),
            "{text}"
        );
        let named = if right == "~lock:*" {
            "on the keys lock:"
        } else {
            right
        };
        assert!(text.contains(named), "{right}: {text}");
        let there = names.map(|name| server.get(format!("lock:{name}")).is_some());
        let stays = [right == "+get" || there[1], there[1]];
        assert_eq!(there, stays, "{right}");
    }
}

fn refused_call_keeps_no_permit_and_no_read_lock() {
    let server = Server::start();
    set_user(&server, &without("leasehold", "+pexpireat"));
    let (refused, other) = (client(&url(&server)), server.client());
    let take_a_permit = || refused.semaphore("a", 2).try_acquire();
    let permit = other.semaphore("a", 2).acquire().unwrap();
    assert_refused(take_a_permit(), &["+pexpireat"]);
    assert_eq!(other.semaphore("a", 2).available().unwrap(), 1);
    assert_released(permit.release());
    assert_refused(take_a_permit(), &["+pexpireat"]);
    assert_eq!(other.semaphore("a", 2).available().unwrap(), 2);

    let lock = other.rw_lock("a");
    let reading = lock.read().unwrap();
    assert_refused(refused.rw_lock("a").try_read(), &["+pexpireat"]);
    assert_released(reading.unlock());
    assert!(lock.inspect().unwrap().is_none());
    assert_refused(refused.rw_lock("a").try_read(), &["+pexpireat"]);
    assert!(lock.inspect().unwrap().is_none());
    assert!(lock.try_write().unwrap().is_ok());
}

fn grant_by_a_user_without_hdel_strands_no_waiter() {
    let server = Server::start();
    set_user(&server, &without("leasehold", "+hdel"));
    let held = client(&url(&server)).fair_mutex("a").lock().unwrap();
    thread::scope(|scope| {
        let first = spawn_subscribed_waiter(scope, &server, fair_mutex(&server));
        let second = spawn_waiter(scope, &server, fair_mutex(&server));
        assert_released(held.unlock());
        let guard = first.join().unwrap();
        assert!(!second.is_finished());
        assert_released(guard.unlock());
        assert_released(second.join().unwrap().unlock());
    });
}

fn queue_of_a_refused_waiter_expires() {
    let server = Server::start();
    set_user(&server, &without("leasehold", "+hset"));
    let _held = fair_mutex(&server).lock().unwrap();
    let waiting = client(&url(&server)).fair_mutex("a");
    let refused = waiting.try_lock_for(ms(5_000));
    assert_refused(refused, &["+hset", "lock:a", QUEUE, PLACES]);
    assert_ne!(server.pttl(QUEUE), -1, "no expiry");
}

fn only_the_first_database_works_without_select() {
    let server = Server::start();
    set_user(&server, &without("leasehold", "+select"));
    let url = url(&server);
    assert!(client(&url).mutex("a").try_lock().unwrap().is_ok());
    assert_refused(client(&(url + "/3")).mutex("a").lock(), &["+select"]);
}

fn min_replicas_fails_without_wait() {
    let replicas = Replicas::start(1);
    let (server, url) = (replicas.master(), url(replicas.master()));
    set_user(server, &documented("leasehold"));
    let acknowledged = Client::builder().url(&url).min_replicas(1, ms(500));
    assert_everything_works(|| acknowledged.clone(), "a", &[server]);
    assert_nothing_refused([server]);
    set_user(server, &without("leasehold", "+wait"));
    let client = acknowledged.build().unwrap();
    let missing = ["WAIT", "needs +wait"];
    assert_refused(client.mutex("b").try_lock(), &missing);
    // Other names each time: the refused calls are undone in the background.
    assert_refused(client.mutex("c").lock(), &missing);
    assert_refused(client.mutex_all(["d", "e"]).try_lock(), &missing);
    assert_refused(client.mutex_all(["f", "g"]).lock(), &missing);

    // A refused WAIT is no reason to stop using queues: the client still has a place in one.
    set_user(server, &documented("leasehold"));
    let name = "h";
    let held = self::client(&url).mutex(name).lock().unwrap();
    thread::scope(|scope| {
        let lock = scope.spawn(|| client.mutex(name).lock().map(drop));
        let queued = || self::client(&server.url()).fair_mutex(name).waiting();
        eventually(ms(10_000), || queued().unwrap() > 0);
        drop(held);
        lock.join().unwrap().unwrap();
    });
}

/// Locks a name and returns the result of a renewal while the name's slot migrates.
#[track_caller]
fn renew_during_migration(cluster: &Cluster, client: &Client) -> Result<(), Error> {
    let name = cluster.name_owned_by("moves", 0);
    let slot = cluster.slot(&format!("lock:{name}"));
    let guard = client.mutex(name).ttl(ms(60_000)).lock().unwrap();
    cluster.begin_migration(slot, 0, 1);
    cluster.move_keys(slot, 0, 1);
    let renewed = guard.renew();
    cluster.end_migration(slot, 0, 1);
    // A refused renewal is no loss.
    guard.unlock().unwrap();
    cluster.move_slot(slot, 1, 0);
    renewed
}

fn documented_user_can_do_everything_in_a_cluster() {
    let cluster = Cluster::with(ClusterSetup::steady(3, 0));
    let nodes = [0, 1, 2].map(|i| cluster.node(i));
    let set_user = |rules: &[String]| nodes.iter().for_each(|node| set_user(node, rules));
    set_user(&documented("leasehold"));
    let url = cluster.url_as("leasehold:password@");
    for (i, node) in nodes.iter().enumerate() {
        let name = cluster.name_owned_by("a", i);
        assert_everything_works(|| Client::builder().url(&url), &name, &[node]);
    }
    renew_during_migration(&cluster, &client(&url)).unwrap();
    assert!(client(&url).health().is_healthy());
    assert_nothing_refused(nodes);

    set_user(&without("leasehold", "+asking"));
    for (i, node) in nodes.iter().enumerate() {
        let name = cluster.name_owned_by("b", i);
        assert_everything_works(|| Client::builder().url(&url), &name, &[node]);
    }
    let renewed = renew_during_migration(&cluster, &client(&url));
    assert_refused(renewed, &["the renew script needs +asking +evalsha"]);

    let known = client(&url);
    drop(known.mutex("a").lock().unwrap());
    set_user(&without("leasehold", "+cluster|slots"));
    let answer = client(&url).mutex("a").lock();
    assert_refused(answer, &["CLUSTER SLOTS needs +cluster|slots"]);
    assert_refused(client(&url).ping(), &["CLUSTER SLOTS needs +cluster|slots"]);
    // A client that knows the slots does not ask for them.
    drop(known.mutex("a").lock().unwrap());
}

/// A permission missing on a minority of servers has no effect.
fn documented_user_can_do_everything_over_a_quorum() {
    let servers = [(); 3].map(|()| Server::start());
    let set_user = |servers: &[Server], rules: &[String]| {
        servers.iter().for_each(|server| set_user(server, rules));
    };
    let builder = || Client::builder().quorum(servers.iter().map(url));
    set_user(&servers, &documented("leasehold"));
    assert_everything_works(builder, "a", &servers.each_ref());
    assert_nothing_refused(&servers);

    let client = builder().build().unwrap();
    connect_to_all(&client, &servers);
    set_user(&servers[..1], &without("leasehold", "+set"));
    let guard = client.mutex("b").lock().unwrap();
    guard.unlock().unwrap();
    set_user(&servers[..2], &without("leasehold", "+set"));
    for answer in [
        client.mutex("b").lock(),
        builder().build().unwrap().mutex("b").lock(),
    ] {
        assert_refused(answer, &["the propose script needs", "+set"]);
    }
}

fn documented_users_can_do_everything_with_sentinel() {
    let sentinels = Sentinels::start(Setup::steady());
    let url = sentinels.url().replace("://", "://leasehold:password@");
    let url = format!("{url}?sentinel_user=watcher&sentinel_pass=password");
    let set_watcher = |rules: &[String]| {
        let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
        for n in 0..sentinels.count() {
            let command = [&["ACL"], &rules[..]].concat();
            let () = sentinels.ask_sentinel(n, &command).unwrap();
        }
    };
    let master = sentinels.first_master();
    set_user(master, &documented("leasehold"));
    set_watcher(&documented("watcher"));
    assert_everything_works(|| Client::builder().url(&url), "a", &[master]);
    assert_nothing_refused([master]);
    for n in 0..sentinels.count() {
        let log = sentinels.ask_sentinel(n, &["ACL", "LOG"]).unwrap();
        assert_eq!(refused(log), [""; 0]);
    }

    set_user(master, &without("leasehold", "+role"));
    assert_everything_works(|| Client::builder().url(&url), "a", &[master]);
    for right in [
        "+subscribe",
        "&+switch-master",
        "+sentinel|master",
        "+sentinel|myid",
        "+ping",
    ] {
        set_watcher(&without("watcher", right));
        assert_everything_works(|| Client::builder().url(&url), "a", &[master]);
    }
    set_watcher(&without("watcher", "+sentinel|get-master-addr-by-name"));
    let rights = ["+sentinel|get-master-addr-by-name"];
    assert_refused(client(&url).mutex("a").lock(), &rights);

    let wrong = url.replace("sentinel_pass=password", "sentinel_pass=wr0ng");
    let error = client(&wrong).mutex("a").lock().unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(!error.to_string().contains("wr0ng"), "{error}");
}
