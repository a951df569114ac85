//! Promise: the log tells what became of every lock, for people and as key-values, nothing at INFO, and no secret.

use std::thread;
use std::time::Duration;

use crossbeam_channel::unbounded;
use leasehold::{Client, ClientBuilder, Error, Lost, Mutex, MutexGuard, Unlocked};
use log::Level;
use support::{LogRecord, Server, eventually, free_port, log_records, log_records_about, ms};

support::tests![
    a_lock_taken_renewed_and_released,
    several_names,
    a_lock_that_somebody_else_holds,
    a_lock_that_is_lost,
    a_lease_that_had_ended_before_its_release,
    a_renewal_and_a_release_that_redis_does_not_answer,
    a_connection_that_is_made_again,
    nothing_is_said_at_info_and_no_whole_id_above_trace,
    no_password_is_said_anywhere
];

const SOON: Duration = ms(5_000);

const TTL_MS: &str = "20000";

/// A client in whose process every line is kept.
fn builder(url: &str) -> ClientBuilder {
    log_records();
    Client::builder()
        .url(url)
        .ttl(ms(20_000))
        .owner("booking-api-7")
}

fn client(server: &Server) -> Client {
    builder(&server.url()).build().unwrap()
}

/// The lines about a name, which only one test uses, with this outcome.
fn lines(name: &str, outcome: &str) -> Vec<LogRecord> {
    let mut lines = log_records_about(name);
    lines.retain(|line| line.value("name") == Some(name) && line.value("outcome") == Some(outcome));
    lines
}

/// The one line about the name with this outcome.
#[track_caller]
fn line(name: &str, outcome: &str) -> LogRecord {
    let mut found = lines(name, outcome);
    assert_eq!(found.len(), 1, "{outcome}: {:#?}", log_records_about(name));
    found.remove(0)
}

/// What stands in every line about a lease.
#[track_caller]
fn is_about(line: &LogRecord, guard_id: &str, trace_id: &str, ttl_ms: &str) {
    let short = short(guard_id);
    assert_eq!(line.value("holder"), Some(short.as_str()), "{line:?}");
    assert_eq!(line.value("ttl_ms"), Some(ttl_ms), "{line:?}");
    assert_eq!(line.value("trace_id"), Some(trace_id), "{line:?}");
    assert!(
        line.message.contains(line.value("name").unwrap()),
        "{line:?}"
    );
}

/// The owner and the first eight digits.
fn short(id: &str) -> String {
    let (owner, uuid) = id.rsplit_once(':').unwrap();
    format!("{owner}:{}", &uuid[..8])
}

fn id(guard: &MutexGuard) -> String {
    guard.holder_id().as_str().to_owned()
}

fn a_lock_taken_renewed_and_released() {
    let server = Server::start();
    let (name, trace) = ("log-plain", "req-plain");
    let mutex = client(&server)
        .mutex(name)
        .renew_every(ms(50))
        .trace_id(trace);
    let guard = mutex.lock().unwrap();
    let id = id(&guard);
    let token = guard.fencing_token().to_string();
    eventually(SOON, || !lines(name, "renewed").is_empty());
    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);

    let acquired = line(name, "acquired");
    assert_eq!(acquired.value("token"), Some(token.as_str()));
    let released = line(name, "released");
    let renewed = lines(name, "renewed").remove(0);
    for line in [&acquired, &renewed, &released] {
        is_about(line, &id, trace, TTL_MS);
        assert_eq!(line.level, Level::Debug, "{line:?}");
        assert!(line.target.starts_with("leasehold"), "{line:?}");
    }
    let order: Vec<_> = log_records_about(name)
        .iter()
        .filter_map(|line| line.value("outcome").map(str::to_owned))
        .collect();
    assert_eq!(order.first().map(String::as_str), Some("acquired"));
    assert_eq!(order.last().map(String::as_str), Some("released"));
}

/// A line is about all of them, and stays readable.
fn several_names() {
    let server = Server::start();
    let names = (0..100).map(|n| format!("log-set-{n:02}"));
    let guard = client(&server).mutex_all(names).lock().unwrap();
    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
    let all = "log-set-00, log-set-01 and 98 more";
    for outcome in ["acquired", "released"] {
        assert!(line(all, outcome).message.contains(all));
    }
}

fn a_lock_that_somebody_else_holds() {
    let server = Server::start();
    let (name, trace) = ("log-contended", "req-contended");
    let (one, two) = (client(&server), client(&server));
    let guard = one.mutex(name).lock().unwrap();
    let mutex = two.mutex(name).trace_id(trace);

    assert!(mutex.try_lock().unwrap().is_none());
    let refused = line(name, "refused");
    assert_eq!(refused.level, Level::Debug);
    assert_eq!(refused.value("trace_id"), Some(trace));
    assert!(refused.message.contains(name));

    let waiting = thread::spawn(move || mutex.lock().unwrap());
    eventually(SOON, || !lines(name, "waiting").is_empty());
    let waits = lines(name, "waiting").remove(0);
    assert_eq!(waits.level, Level::Debug);
    assert_eq!(waits.value("trace_id"), Some(trace));
    assert_eq!(waits.value("ttl_ms"), Some(TTL_MS));

    server.wait_until_waiter_sleeps(format!("lock_release:{name}"));
    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
    drop(waiting.join().unwrap());
    assert_eq!(lines(name, "acquired").len(), 2);
    // Who waits says so, but not all the time.
    assert!(
        lines(name, "waiting").len() <= 5,
        "{:#?}",
        lines(name, "waiting")
    );
}

/// Takes the lock away, and waits until that is known.
fn taken_away(server: &Server, mutex: &Mutex) -> (MutexGuard, String) {
    let guard = mutex.lock().unwrap();
    let id = id(&guard);
    let () = redis::cmd("SET")
        .arg(format!("lock:{}", guard.name()))
        .arg("somebody")
        .query(&mut server.connection())
        .unwrap();
    assert!(matches!(guard.renew(), Err(Error::Lost(Lost::Taken))));
    (guard, id)
}

fn a_lock_that_is_lost() {
    let server = Server::start();
    let (name, trace) = ("log-taken", "req-taken");
    let mutex = client(&server).mutex(name).trace_id(trace);
    let (guard, id) = taken_away(&server, &mutex);

    let lost = lines(name, &Lost::Taken.to_string());
    assert_eq!(lost.len(), 1, "{lost:?}");
    is_about(&lost[0], &id, trace, TTL_MS);
    assert_eq!(lost[0].level, Level::Warn);
    assert!(lost[0].message.contains("lost"), "{lost:?}");
    drop(guard);
    assert!(lines(name, "released").is_empty());
}

fn a_lease_that_had_ended_before_its_release() {
    let server = Server::start();
    let (name, trace) = ("log-late", "req-late");
    let mutex = client(&server)
        .mutex(name)
        .ttl(ms(60))
        .auto_renew(false)
        .trace_id(trace);
    let guard = mutex.lock().unwrap();
    let id = id(&guard);
    assert_eq!(guard.lost().recv(), Ok(Lost::Expired));
    drop(guard);
    let late: Vec<_> = log_records_about(name)
        .into_iter()
        .filter(|line| {
            line.message
                .contains("had ended before the release: ttl too short")
        })
        .collect();
    assert_eq!(late.len(), 1, "{:#?}", log_records_about(name));
    is_about(&late[0], &id, trace, "60");
    assert_eq!(late[0].level, Level::Warn);
    assert_eq!(
        late[0].value("outcome"),
        Some(Lost::Expired.to_string().as_str())
    );
    assert!(lines(name, "released").is_empty());
}

fn a_renewal_and_a_release_that_redis_does_not_answer() {
    let server = Server::start();
    let (name, trace) = ("log-away", "req-away");
    let client = builder(&server.url())
        .command_timeout(ms(100))
        .build()
        .unwrap();
    let guard = client
        .mutex(name)
        .renew_every(ms(50))
        .trace_id(trace)
        .lock()
        .unwrap();
    let id = id(&guard);
    server.pause();
    eventually(SOON, || !lines(name, "not renewed").is_empty());
    is_about(&lines(name, "not renewed")[0], &id, trace, TTL_MS);
    assert!(matches!(guard.unlock(), Err(Error::Unreachable { .. })));
    let unsure = line(name, "release to be repeated");
    is_about(&unsure, &id, trace, TTL_MS);
    assert_eq!(unsure.level, Level::Warn);
    server.resume();
}

fn a_connection_that_is_made_again() {
    let mut server = Server::start();
    let name = "log-reconnect";
    let (one, two) = (client(&server), client(&server));
    let guard = one.mutex(name).lock().unwrap();
    let mutex = two.mutex(name);
    let waiting = thread::spawn(move || mutex.lock().unwrap());
    server.wait_until_waiter_sleeps(format!("lock_release:{name}"));
    let label = format!("127.0.0.1:{}", server.port());
    let about = |text: &str| {
        let mut lines = log_records();
        lines.retain(|line| line.value("server") == Some(&label) && line.message.contains(text));
        lines
    };
    let heard = about("subscribed to releases").len();
    assert!(heard >= 1);

    server.kill();
    eventually(SOON, || !about("reconnecting").is_empty());
    eventually(SOON, || !about("no connection to").is_empty());
    // Once for an outage, however often it is tried.
    eventually(SOON, || about("reconnecting").len() >= 3);
    let warnings = about("reconnecting");
    let warnings = warnings.iter().filter(|line| line.level == Level::Warn);
    assert_eq!(warnings.count(), 1);

    server.restart();
    drop(waiting.join().unwrap());
    eventually(SOON, || about("subscribed to releases").len() > heard);
    drop(guard);
}

fn nothing_is_said_at_info_and_no_whole_id_above_trace() {
    let server = Server::start();
    let name = "log-secret";
    let client = builder(&server.url()).renew_every(ms(50)).build().unwrap();
    let guard = client.mutex(name).lock().unwrap();
    let first = id(&guard);
    eventually(SOON, || !lines(name, "renewed").is_empty());
    assert!(client.mutex(name).try_lock().unwrap().is_none());
    assert!(client.mutex(name).try_lock_for(ms(20)).unwrap().is_none());
    assert!(client.mutex(name).force_unlock().unwrap());
    drop(guard);
    let (guard, second) = taken_away(&server, &client.mutex("log-secret-2"));
    drop(guard);
    let short = client.mutex("log-secret-3").ttl(ms(50)).auto_renew(false);
    let guard = short.lock().unwrap();
    let third = id(&guard);
    assert_eq!(guard.lost().recv(), Ok(Lost::Expired));
    drop(guard);
    let guard = client.mutex("log-secret-4").lock().unwrap();
    let fourth = id(&guard);
    assert!(client.shutdown(SOON).unwrap().is_clean());
    drop(guard);

    for id in [first, second, third, fourth] {
        let (_, uuid) = id.rsplit_once(':').unwrap();
        let whole = log_records_about(uuid);
        assert!(whole.iter().any(|line| line.level == Level::Trace), "{id}");
        let aloud: Vec<_> = whole
            .iter()
            .filter(|line| line.level < Level::Trace)
            .collect();
        assert!(aloud.is_empty(), "{aloud:?}");
        assert!(!log_records_about(&uuid[..8]).is_empty());
    }
    let mut info = log_records();
    info.retain(|line| line.level == Level::Info && line.target.starts_with("leasehold"));
    assert!(info.is_empty(), "{info:?}");
}

fn no_password_is_said_anywhere() {
    const SECRETS: [&str; 3] = ["log-hush-right", "log-hush-wrong", "log-hush-new"];
    let mut server = Server::start();
    let url = |user: &str, password: &str, port: u16| {
        format!("redis://{user}:{password}@127.0.0.1:{port}/0")
    };
    let acl = |rule: &str| {
        let () = redis::cmd("ACL")
            .arg(&[
                "SETUSER",
                "log-user",
                "on",
                "resetpass",
                rule,
                "~*",
                "&*",
                "+@all",
            ])
            .query(&mut server.connection())
            .unwrap();
    };
    acl(">log-hush-right");
    let right = builder(&url("log-user", "log-hush-right", server.port()))
        .command_timeout(ms(200))
        .build()
        .unwrap();
    let wrong = builder(&url("log-user", "log-hush-wrong", server.port()))
        .build()
        .unwrap();
    let nobody = builder(&url("log-user", "log-hush-right", free_port()))
        .command_timeout(ms(200))
        .build()
        .unwrap();

    let (texts, said_texts) = unbounded();
    texts.send(format!("{right:?} {wrong:?}")).unwrap();
    let said = |error: Error| texts.send(format!("{error} {error:?}")).unwrap();
    let guard = right.mutex("log-hush").lock().unwrap();
    said(wrong.mutex("log-hush").try_lock().unwrap_err());
    said(wrong.ping().unwrap_err());
    said(nobody.mutex("log-hush").try_lock().unwrap_err());
    acl(">log-hush-new");
    server.kill_clients();
    said(
        right
            .mutex("log-hush")
            .try_lock_for(ms(500))
            .map_or_else(|error| error, |_| Error::Closed),
    );
    said(right.mutex("log-hush-2").try_lock().unwrap_err());
    server.kill();
    said(right.mutex("log-hush-2").try_lock().unwrap_err());
    let lost = guard.lost();
    drop((guard, lost));
    for url in [
        "redis://log-user:log-hush-right@127.0.0.1:notaport",
        "redis//log-user:log-hush-right@127.0.0.1",
        "http://log-user:log-hush-right@127.0.0.1",
        "redis://log-user:log-hush-right@127.0.0.1/notadb",
    ] {
        said(Client::open(url).unwrap_err());
        let builder = Client::builder().url(url);
        texts.send(format!("{builder:?}")).unwrap();
    }

    let texts: Vec<String> = said_texts.try_iter().collect();
    for secret in SECRETS {
        assert!(
            texts.iter().all(|text| !text.contains(secret)),
            "{texts:#?}"
        );
        let lines = log_records_about(secret);
        assert!(lines.is_empty(), "{lines:#?}");
    }
    assert!(
        !log_records_about("no connection to").is_empty(),
        "something was said"
    );
}
