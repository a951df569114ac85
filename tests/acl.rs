//! Promise: the user that the README tells operators to make can do everything, and without one of its rights there is
//! an error that names what is needed, or the way round it that is written there.

mod support;

use std::collections::HashMap;
use std::thread;

use crossbeam_channel::unbounded;
use leasehold::{Client, ClientBuilder, Error, Unlocked};
use support::{Replicas, Sentinels, Server, Setup, eventually, ms};

/// The line of a user as printed in the README, from `SETUSER` on.
fn documented(user: &str) -> Vec<String> {
    let readme = include_str!("../README.md");
    let start = format!("ACL SETUSER {user} ");
    let lines: Vec<&str> = readme
        .lines()
        .filter(|line| line.starts_with(&start))
        .collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    lines[0].split(' ').skip(1).map(str::to_owned).collect()
}

/// The same without one of them.
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

fn client(url: &str) -> Client {
    Client::builder().url(url).build().unwrap()
}

fn acl_log(server: &Server) -> Vec<Entry> {
    let mut log = redis::cmd("ACL");
    log.arg("LOG").query(&mut server.connection()).unwrap()
}

type Entry = HashMap<String, redis::Value>;

/// What was refused, but for CLIENT SETINFO, which the README says is not needed; 6.2 says `client`.
fn refused(entries: Vec<Entry>) -> Vec<String> {
    let objects = entries
        .into_iter()
        .map(|mut entry| redis::from_redis_value(entry.remove("object").unwrap()).unwrap());
    objects
        .filter(|object: &String| !["client", "client|setinfo"].contains(&object.as_str()))
        .collect()
}

#[track_caller]
fn everything_works(builder: impl Fn() -> ClientBuilder, server: &Server) {
    let one = builder().build().unwrap();
    one.ping().unwrap();
    let (renewed, renewals) = unbounded();
    let mutex = one.mutex("a").ttl(ms(60_000)).renew_every(ms(400));
    let mutex = mutex.on_renew(move |_| {
        let _ = renewed.send(());
    });
    let guard = mutex.lock().unwrap();
    renewals.recv_timeout(ms(10_000)).expect("it is renewed");
    guard.renew().unwrap();
    guard.extend(ms(30_000)).unwrap();

    let all = one.mutex_all(["b", "c"]).lock().unwrap();
    all.renew().unwrap();
    all.extend(ms(30_000)).unwrap();
    assert!(one.mutex_all(["c", "d"]).try_lock().unwrap().is_none());

    // Longer than any look around: it is the release that wakes.
    let two = builder().backstop(ms(60_000)).build().unwrap();
    assert!(two.mutex("a").try_lock().unwrap().is_none());
    let held = two.mutex("a").inspect().unwrap().expect("it is held");
    assert_eq!(held.fencing_token(), Some(guard.fencing_token()));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| two.mutex("a").try_lock_for(ms(10_000)));
        server.wait_for_a_waiter("lock_release:a");
        assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
        let guard = waiting.join().unwrap().unwrap().expect("it is woken");
        let waiting = scope.spawn(|| two.mutex_all(["d", "c"]).try_lock_for(ms(10_000)));
        server.wait_for_a_waiter("lock_release:c");
        assert_eq!(all.unlock().unwrap(), Unlocked::Released);
        assert!(waiting.join().unwrap().unwrap().is_some(), "it is woken");
        assert!(one.mutex("a").force_unlock().unwrap());
        assert!(matches!(guard.unlock().unwrap(), Unlocked::AlreadyLost(_)));
    });
    // One that is being made has no name yet.
    eventually(ms(5_000), || {
        let clients = server.client_list();
        let mut ours = clients.iter().filter(|c| c["user"] == "leasehold");
        ours.all(|client| client["name"].starts_with("leasehold:"))
    });
}

#[test]
fn the_documented_user_can_do_everything() {
    let server = Server::start();
    set_user(&server, &documented("leasehold"));
    let url = url(&server);
    for suffix in ["", "/3", "?protocol=resp3"] {
        let url = format!("{url}{suffix}");
        everything_works(|| Client::builder().url(&url), &server);
    }
    assert_eq!(refused(acl_log(&server)), [""; 0]);
}

/// Does everything once, and returns what failed.
fn failures(server: &Server, url: &str) -> Vec<(&'static str, Error)> {
    let mut failures = Vec::new();
    let mut note = |step: &'static str, error: Option<Error>| {
        failures.extend(error.map(|error| (step, error)));
    };
    let (ours, other) = (client(url), client(&server.url()));
    note("ping", ours.ping().err());
    match ours.mutex("free").lock() {
        Err(error) => note("lock", Some(error)),
        Ok(guard) => {
            // A renewal within the first millisecond has nothing to set.
            note("renew", guard.extend(ms(5_000)).err());
            note("unlock", guard.unlock().err());
        }
    }
    let guard = other.mutex("held").lock().unwrap();
    match ours.mutex("held").try_lock() {
        Err(error) => note("try_lock", Some(error)),
        Ok(got) => {
            assert!(got.is_none());
            let waiting = thread::spawn({
                let mutex = ours.mutex("held");
                move || {
                    drop(
                        mutex
                            .try_lock_for(ms(10_000))
                            .unwrap()
                            .expect("it was freed"),
                    )
                }
            });
            let calls = || server.calls(&["evalsha", "eval"]);
            let before = calls();
            eventually(ms(10_000), || calls() > before);
            assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
            waiting.join().unwrap();
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
    failures
}

/// What fails without a right. All else works, waiting included.
const FAILS: [(&str, &[&str]); 22] = [
    ("~lock:*", &["lock", "try_lock", "inspect", "force_unlock"]),
    (
        "~leasehold:*",
        &["lock", "try_lock", "inspect", "force_unlock"],
    ),
    ("&lock_release:*", &[]),
    ("&leasehold:*", &[]),
    ("+evalsha", &["lock", "try_lock", "inspect", "force_unlock"]),
    // The server knows the acquire script by then, from somebody else.
    ("+eval", &["lock", "inspect", "force_unlock"]),
    ("+get", &["lock", "try_lock", "inspect", "force_unlock"]),
    ("+set", &["lock", "try_lock"]),
    ("+time", &["lock", "try_lock"]),
    ("+pttl", &["renew", "try_lock", "inspect", "force_unlock"]),
    ("+del", &["unlock", "force_unlock"]),
    ("+pexpire", &["renew"]),
    ("+ping", &["ping"]),
    ("+publish", &[]),
    ("+subscribe", &[]),
    ("+unsubscribe", &[]),
    ("+client|setname", &[]),
    ("+select", &[]),
    ("+role", &[]),
    ("+wait", &[]),
    ("+cluster|slots", &[]),
    ("+asking", &[]),
];

#[test]
fn without_one_of_them_the_error_says_which_are_needed_or_all_works() {
    let of_no_right = ["leasehold", "reset", "on", ">password", "resetchannels"];
    for rule in documented("leasehold").iter().skip(1) {
        let is_known = FAILS.iter().any(|(right, _)| right == rule);
        assert!(is_known || of_no_right.contains(&rule.as_str()), "{rule}");
    }
    thread::scope(|scope| {
        // Those that wait for a second at a time go together.
        for rights in FAILS.chunks(6) {
            scope.spawn(move || rights.iter().for_each(|(right, fails)| check(right, fails)));
        }
    });
}

#[track_caller]
fn check(right: &str, fails: &[&str]) {
    let server = Server::start();
    set_user(&server, &without("leasehold", right));
    let failures = failures(&server, &url(&server));
    let steps: Vec<&str> = failures.iter().map(|(step, _)| *step).collect();
    assert_eq!(steps, fails, "{right}: {failures:?}");
    for (step, error) in failures {
        let text = error.to_string();
        assert!(matches!(error, Error::Refused { .. }), "{right}: {text}");
        let script = match step {
            "lock" | "try_lock" => "the acquire script needs",
            "renew" => "the renew script needs",
            "unlock" => "the release script needs",
            "inspect" => "the inspect script needs",
            "force_unlock" => "script needs",
            _ => "PING needs",
        };
        assert!(text.contains(script), "{right}: {text}");
        let named = match right {
            "~lock:*" => "on the keys lock:",
            "~leasehold:*" => " and leasehold:",
            command => command,
        };
        assert!(text.contains(named), "{right}: {text}");
    }
}

/// Several names need no right more than one, and without one of them none of the names stays behind half-taken.
#[test]
fn without_a_right_several_names_are_refused_as_one_is() {
    let server = Server::start();
    for (right, fails) in [
        ("~lock:*", "acquire_all"),
        ("+get", "acquire_all"),
        ("+set", "acquire_all"),
        ("+time", "acquire_all"),
        ("+pttl", "renew_all"),
        ("+pexpire", "renew_all"),
        ("+del", "release_all"),
    ] {
        set_user(&server, &without("leasehold", right));
        let client = client(&url(&server));
        let names = ["a", "b"].map(|name| format!("{right}{name}"));
        let everything = || {
            let guard = client.mutex_all(&names).lock()?;
            guard.extend(ms(5_000))?;
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
        assert_eq!(there[0], there[1], "{right}");
    }
}

#[test]
fn without_select_only_the_first_database() {
    let server = Server::start();
    set_user(&server, &without("leasehold", "+select"));
    let url = url(&server);
    assert!(client(&url).mutex("a").try_lock().unwrap().is_some());
    let error = client(&(url + "/3")).mutex("a").lock().unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(error.to_string().contains("+select"), "{error}");
}

#[test]
fn without_wait_no_replica_can_be_waited_for() {
    let replicas = Replicas::start(1);
    let (server, url) = (replicas.master(), url(replicas.master()));
    set_user(server, &documented("leasehold"));
    let acknowledged = Client::builder().url(&url).min_replicas(1, ms(500));
    everything_works(|| acknowledged.clone(), server);
    assert_eq!(refused(acl_log(server)), [""; 0]);
    set_user(server, &without("leasehold", "+wait"));
    let client = acknowledged.build().unwrap();
    let error = client.mutex("b").try_lock().unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    let text = error.to_string();
    assert!(
        text.contains("WAIT") && text.contains("needs +wait"),
        "{text}"
    );
}

#[test]
fn with_sentinel_too_and_a_user_of_the_sentinels() {
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
    let master = sentinels.first();
    set_user(master, &documented("leasehold"));
    set_watcher(&documented("watcher"));
    everything_works(|| Client::builder().url(&url), master);
    assert_eq!(refused(acl_log(master)), [""; 0]);
    for n in 0..sentinels.count() {
        let log = sentinels.ask_sentinel(n, &["ACL", "LOG"]).unwrap();
        assert_eq!(refused(log), [""; 0]);
    }

    set_user(master, &without("leasehold", "+role"));
    everything_works(|| Client::builder().url(&url), master);
    for right in ["+subscribe", "&+switch-master"] {
        set_watcher(&without("watcher", right));
        everything_works(|| Client::builder().url(&url), master);
    }
    set_watcher(&without("watcher", "+sentinel|get-master-addr-by-name"));
    let error = client(&url).mutex("a").lock().unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("+sentinel|get-master-addr-by-name"), "{text}");

    let wrong = url.replace("sentinel_pass=password", "sentinel_pass=wr0ng");
    let error = client(&wrong).mutex("a").lock().unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(!error.to_string().contains("wr0ng"), "{error}");
}
