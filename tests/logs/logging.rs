//! Promise: the log records the outcome of every lock, as text and as key-values, with no record at
//! INFO and no secret.

use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::unbounded;
use leasehold::{
    Backoff, CancelToken, Client, ClientBuilder, Error, Lost, Mutex, MutexGuard, RwLockReadGuard,
    WaitPolicy,
};
use log::Level;
use support::{
    FakeSentinel, LogRecord, Proxy, Server, Traffic, at_next_record_about, eventually, free_port,
    let_pass, log_records, log_records_about, ms, sentinel_url,
};

support::tests![
    acquire_renewal_and_release_are_logged,
    many_names_are_logged_in_short_form,
    refusals_and_waits_are_logged,
    a_lost_lock_is_logged_as_a_warning,
    a_release_after_the_expiry_is_logged_as_a_warning,
    a_loss_while_nobody_holds_the_lock_is_logged_as_a_warning,
    reading_again_under_an_own_guard_logs_a_warning,
    call_that_can_be_cancelled_warns_of_a_lock_of_its_caller,
    unanswered_renewals_and_releases_are_logged,
    a_failed_release_says_that_the_key_stays_for_the_ttl,
    a_forced_release_is_logged_with_its_holder_in_short_form,
    a_sentinel_that_disagrees_is_named_in_one_warning,
    an_outage_of_the_subscriber_is_logged_once,
    unused_subscription_that_the_peer_closes_ends_without_a_warning,
    outage_of_writes_opens_the_breaker_with_one_warning,
    server_that_refuses_writes_is_no_outage_of_the_subscriber,
    nothing_is_logged_at_info_and_no_whole_id_above_trace,
    no_password_appears_in_logs_or_errors
];

support::timed![sleep_after_a_slow_record_ends_no_later];

const WAIT_LIMIT: Duration = ms(5_000);

const TTL_MS: &str = "20000";

/// Returns a builder, and makes this process keep every log record.
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

/// Returns the records about a name with this outcome. Only one test uses each name.
fn lines(name: &str, outcome: &str) -> Vec<LogRecord> {
    let mut lines = log_records_about(name);
    lines.retain(|line| line.value("name") == Some(name) && line.value("outcome") == Some(outcome));
    lines
}

/// Returns the only record about a name with this outcome.
#[track_caller]
fn line(name: &str, outcome: &str) -> LogRecord {
    // Another thread logs the records of the engine.
    eventually(WAIT_LIMIT, || !lines(name, outcome).is_empty());
    let mut found = lines(name, outcome);
    assert_eq!(found.len(), 1, "{outcome}: {:#?}", log_records_about(name));
    found.remove(0)
}

/// Checks the key-values that every record about a lease has.
#[track_caller]
fn assert_about(line: &LogRecord, guard_id: &str, trace_id: &str, ttl_ms: &str) {
    let short = short(guard_id);
    assert_eq!(line.value("holder"), Some(short.as_str()), "{line:?}");
    assert_eq!(line.value("ttl_ms"), Some(ttl_ms), "{line:?}");
    assert_eq!(line.value("trace_id"), Some(trace_id), "{line:?}");
    assert!(
        line.message.contains(line.value("name").unwrap()),
        "{line:?}"
    );
}

/// Returns the owner and the first eight digits of the UUID.
fn short(id: &str) -> String {
    let (owner, uuid) = id.rsplit_once(':').unwrap();
    format!("{owner}:{}", &uuid[..8])
}

fn id(guard: &MutexGuard) -> String {
    guard.holder_id().as_str().to_owned()
}

fn acquire_renewal_and_release_are_logged() {
    let server = Server::start();
    let (name, trace) = ("log-plain", "req-plain");
    let mutex = client(&server)
        .mutex(name)
        .renew_every(ms(50))
        .trace_id(trace);
    let guard = mutex.lock().unwrap();
    let id = id(&guard);
    let token = guard.fencing_token().to_string();
    eventually(WAIT_LIMIT, || !lines(name, "renewed").is_empty());
    guard.unlock().unwrap();

    let acquired = line(name, "acquired");
    assert_eq!(acquired.value("token"), Some(token.as_str()));
    let released = line(name, "released");
    let renewed = lines(name, "renewed").remove(0);
    for line in [&acquired, &renewed, &released] {
        assert_about(line, &id, trace, TTL_MS);
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

/// A record about many names stays short.
fn many_names_are_logged_in_short_form() {
    let server = Server::start();
    let names = (0..100).map(|n| format!("log-set-{n:02}"));
    let guard = client(&server).mutex_all(names).lock().unwrap();
    guard.unlock().unwrap();
    let all = "log-set-00, log-set-01 and 98 more";
    for outcome in ["acquired", "released"] {
        assert!(line(all, outcome).message.contains(all));
    }
}

fn refusals_and_waits_are_logged() {
    let server = Server::start();
    let (name, trace) = ("log-contended", "req-contended");
    let (one, two) = (client(&server), client(&server));
    let guard = one.mutex(name).lock().unwrap();
    let mutex = two.mutex(name).trace_id(trace);

    assert!(mutex.try_lock().unwrap().is_err());
    let refused = line(name, "refused");
    assert_eq!(refused.level, Level::Debug);
    assert_eq!(refused.value("trace_id"), Some(trace));
    assert!(refused.message.contains(name));

    let waiting = thread::spawn(move || mutex.lock().unwrap());
    eventually(WAIT_LIMIT, || !lines(name, "waiting").is_empty());
    let waiting_record = lines(name, "waiting").remove(0);
    assert_eq!(waiting_record.level, Level::Debug);
    assert_eq!(waiting_record.value("trace_id"), Some(trace));
    assert_eq!(waiting_record.value("ttl_ms"), Some(TTL_MS));

    server.wait_until_waiter_sleeps(format!("lock_release:{name}"));
    guard.unlock().unwrap();
    drop(waiting.join().unwrap());
    assert_eq!(lines(name, "acquired").len(), 2);
    // A waiter logs that it waits, but not at every attempt.
    assert!(
        lines(name, "waiting").len() <= 5,
        "{:#?}",
        lines(name, "waiting")
    );
}

/// Acquires a lock, overwrites its key, and lets a renewal find the loss.
fn lock_and_lose(server: &Server, mutex: &Mutex) -> (MutexGuard, String) {
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

/// A call behind another waiter sleeps until its last attempt, shortly before its deadline. Here
/// the logger takes longer than that, so the call must not sleep any more.
fn sleep_after_a_slow_record_ends_no_later() {
    let server = Server::start();
    let (name, trace) = ("log-slow", "req-slow");
    let held = client(&server).mutex(name).lock().unwrap();
    let waiting = client(&server);
    let pauses = WaitPolicy::Backoff(Backoff::new(WAIT_LIMIT, WAIT_LIMIT));
    let first = waiting.mutex(name).wait_policy(pauses);
    let first = thread::spawn(move || first.lock().map(drop));
    eventually(WAIT_LIMIT, || waiting.stats().waiting == 1);
    let (logged, end_of_record) = unbounded();
    at_next_record_about(trace, move || {
        let_pass(ms(1_000));
        logged.send(Instant::now()).unwrap();
    });
    let outcome = waiting
        .mutex(name)
        .trace_id(trace)
        .wait_policy(pauses)
        .try_lock_for(ms(1_000));
    let late = end_of_record.try_recv().unwrap().elapsed();
    // A sleep whose length was computed before the record would take about 750 ms.
    assert!(late < ms(650), "{late:?}: {outcome:?}");
    held.unlock().unwrap();
    waiting.shutdown(WAIT_LIMIT);
    let _ = first.join().unwrap();
}

fn a_lost_lock_is_logged_as_a_warning() {
    let server = Server::start();
    let (name, trace) = ("log-taken", "req-taken");
    let mutex = client(&server).mutex(name).trace_id(trace);
    let (guard, id) = lock_and_lose(&server, &mutex);

    let lost = line(name, &Lost::Taken.to_string());
    assert_about(&lost, &id, trace, TTL_MS);
    assert_eq!(lost.level, Level::Warn);
    assert!(lost.message.contains("lost"), "{lost:?}");
    drop(guard);
    assert!(lines(name, "released").is_empty());
}

fn a_loss_while_nobody_holds_the_lock_is_logged_as_a_warning() {
    let server = Server::start();
    let client = client(&server);
    let mutex = client.mutex("lingers").linger(ms(6_000));
    let guard = mutex.renew_every(ms(50)).lock().unwrap();
    let id = short(&id(&guard));
    guard.unlock().unwrap();
    assert_eq!(line("lingers", "lingering").level, Level::Debug);
    server.run("DEL", &["lock:lingers"]);
    let line = line("lingers", &Lost::Deleted.to_string());
    assert_eq!(
        (line.level, line.value("holder")),
        (Level::Warn, Some(&*id))
    );
    assert!(line.message.contains("nobody held it"), "{line:?}");
}

fn a_release_after_the_expiry_is_logged_as_a_warning() {
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
    let late = || {
        let mut late = log_records_about(name);
        let why = "the lease expired (it was not renewed: auto_renew is off)";
        late.retain(|line| line.message.contains(why));
        late
    };
    eventually(WAIT_LIMIT, || !late().is_empty());
    let late = late();
    assert_eq!(late.len(), 1, "{:#?}", log_records_about(name));
    assert_about(&late[0], &id, trace, "60");
    assert_eq!(late[0].level, Level::Warn);
    assert_eq!(
        late[0].value("outcome"),
        Some(Lost::Expired.to_string().as_str())
    );
    assert!(lines(name, "released").is_empty());
}

fn reading_again_under_an_own_guard_logs_a_warning() {
    let server = Server::start();
    let lock = client(&server).rw_lock("read again");
    let end = |reading: RwLockReadGuard| {
        reading.unlock().unwrap();
    };
    let other = thread::scope(|scope| scope.spawn(|| lock.read().unwrap()).join().unwrap());
    let reading = lock.read().unwrap();
    end(other);
    assert_eq!(log_records_about("reads read again again").len(), 0);
    end(lock.try_read().unwrap().unwrap());
    assert_eq!(log_records_about("reads read again again").len(), 0);
    end(lock.read().unwrap());
    let warned = usize::from(cfg!(debug_assertions));
    assert_eq!(log_records_about("reads read again again").len(), warned);
    assert!(lock.try_write_for(ms(50)).unwrap().is_err());
    let waits = log_records_about("waits for read again, which it locked itself");
    assert_eq!(waits.len(), warned);
    end(reading);
}

/// A call that can be cancelled runs on its own thread, but counts as one of its caller's thread.
fn call_that_can_be_cancelled_warns_of_a_lock_of_its_caller() {
    let server = Server::start();
    let token = CancelToken::new();
    let lock = client(&server).rw_lock("read twice").cancel_on(&token);
    let warned = usize::from(cfg!(debug_assertions));
    let reading = lock.read().unwrap();
    lock.read().unwrap().unlock().unwrap();
    let again = log_records_about("this thread reads read twice again");
    assert_eq!(again.len(), warned);
    assert!(lock.try_write_for(ms(50)).unwrap().is_err());
    let waits = log_records_about("waits for read twice, which it locked itself");
    assert_eq!(waits.len(), warned);
    reading.unlock().unwrap();
}

fn unanswered_renewals_and_releases_are_logged() {
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
    eventually(WAIT_LIMIT, || !lines(name, "not renewed").is_empty());
    assert_about(&lines(name, "not renewed")[0], &id, trace, TTL_MS);
    assert!(matches!(guard.unlock(), Err(Error::Unreachable { .. })));
    let record = line(name, "release to be repeated");
    assert_about(&record, &id, trace, TTL_MS);
    assert_eq!(record.level, Level::Warn);
    assert_key_may_stay(&record, "40.0 s");
    server.resume();
}

/// No renewal is due before the server is paused, so only the ttl of the acquire counts.
fn a_failed_release_says_that_the_key_stays_for_the_ttl() {
    let server = Server::start();
    let name = "log-unreleased";
    let client = builder(&server.url())
        .command_timeout(ms(100))
        .build()
        .unwrap();
    let guard = client.mutex(name).renew_every(ms(17_000)).lock().unwrap();
    server.pause();
    assert!(matches!(guard.unlock(), Err(Error::Unreachable { .. })));
    assert_key_may_stay(&line(name, "release to be repeated"), "20.0 s");
    server.resume();
}

#[track_caller]
fn assert_key_may_stay(line: &LogRecord, time: &str) {
    let end = format!("; without a release the key may stay for {time}");
    assert!(line.message.ends_with(&end), "{line:?}");
}

fn a_forced_release_is_logged_with_its_holder_in_short_form() {
    let server = Server::start();
    let one = client(&server);
    let mutex = one.mutex("log-forced-lock");
    let guard = mutex.lock().unwrap();
    let permit = one.semaphore("log-forced-permit", 2).acquire().unwrap();
    assert!(mutex.force_unlock().unwrap());
    let semaphore = one.semaphore("log-forced-permit", 2);
    assert!(semaphore.force_release(permit.holder_id()).unwrap());
    let rw_lock = one.rw_lock("log-forced-reader");
    let reading = rw_lock.read().unwrap();
    let held = rw_lock.inspect().unwrap().expect("a reader holds it");
    assert!(rw_lock.force_unlock_from(&held.holders()[0]).unwrap());
    for (name, id) in [
        ("log-forced-lock", guard.holder_id()),
        ("log-forced-permit", permit.holder_id()),
        ("log-forced-reader", reading.holder_id()),
    ] {
        let mut records = log_records_about(name);
        records.retain(|line| line.message.starts_with("forced the release of "));
        assert_eq!(records.len(), 1, "{records:#?}");
        let held_by = format!("{name}, held by {}", id.short());
        assert!(records[0].message.contains(&held_by), "{records:#?}");
    }
}

/// Starts a call that waits for a held lock, and returns once it sleeps.
fn start_waiter(server: &Server, client: &Client, name: &str) -> thread::JoinHandle<MutexGuard> {
    let mutex = client.mutex(name);
    let waiting = thread::spawn(move || mutex.lock().unwrap());
    server.wait_until_waiter_sleeps(format!("lock_release:{name}"));
    waiting
}

/// Returns the records about the server at this port whose message contains the text.
fn lines_about_server(port: u16, text: &str) -> Vec<LogRecord> {
    let label = format!("127.0.0.1:{port}");
    let mut lines = log_records();
    lines.retain(|line| line.value("server") == Some(&label) && line.message.contains(text));
    lines
}

fn a_sentinel_that_disagrees_is_named_in_one_warning() {
    let server = Server::start();
    let good = [(); 2].map(|()| FakeSentinel::naming(server.port(), Some(5)));
    let wrong = FakeSentinel::naming(free_port(), Some(5));
    let ports = [wrong.port(), good[0].port(), good[1].port()];
    let client = builder(&sentinel_url(ports)).build().unwrap();
    let _held = client.mutex("a").lock().unwrap();
    let name = format!("sentinel 127.0.0.1:{}", wrong.port());
    let warnings = || {
        let mut warnings = log_records_about(&name);
        warnings.retain(|record| record.level == Level::Warn);
        warnings
    };
    eventually(ms(20_000), || !warnings().is_empty());
    let asked = wrong.times_asked();
    eventually(ms(20_000), || wrong.times_asked() > asked + 1);
    let warnings = warnings();
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    let master = format!("the client uses 127.0.0.1:{}", server.port());
    assert!(warnings[0].mentions(&master), "{warnings:?}");
    let label = format!("127.0.0.1:{}", good[0].port());
    let moved = log_records_about(&label);
    assert!(
        moved.iter().all(|record| !record.mentions("has moved")),
        "{moved:#?}"
    );
}

fn an_outage_of_the_subscriber_is_logged_once() {
    let mut server = Server::start();
    let name = "log-reconnect";
    let (one, two) = (client(&server), client(&server));
    let guard = one.mutex(name).lock().unwrap();
    let waiting = start_waiter(&server, &two, name);
    let port = server.port();
    let about = |text| lines_about_server(port, text);
    let subscribed = about("subscribed to releases").len();
    assert!(subscribed >= 1);

    server.kill();
    eventually(WAIT_LIMIT, || !about("reconnecting").is_empty());
    eventually(WAIT_LIMIT, || !about("no connection to").is_empty());
    // One warning for an outage, however many attempts fail.
    eventually(WAIT_LIMIT, || about("reconnecting").len() >= 3);
    let warnings = about("reconnecting");
    let warnings = warnings.iter().filter(|line| line.level == Level::Warn);
    assert_eq!(warnings.count(), 1);

    server.restart();
    drop(waiting.join().unwrap());
    drop(guard);
    // That call may have ended before the client had a subscription again.
    let guard = one.mutex(name).lock().unwrap();
    let waiting = start_waiter(&server, &two, name);
    eventually(WAIT_LIMIT, || {
        about("subscribed to releases").len() > subscribed
    });
    drop(guard);
    drop(waiting.join().unwrap());
}

/// Proxies close connections on which the client has sent nothing for some time.
fn unused_subscription_that_the_peer_closes_ends_without_a_warning() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let name = "log-unused";
    let (one, two) = (client(&server), builder(&proxy.url()).build().unwrap());
    let subscriptions = || proxy.connections_that_sent("SUBSCRIBE");
    let about = |text| lines_about_server(proxy.port(), text);
    for _ in 0..2 {
        let guard = one.mutex(name).lock().unwrap();
        // On a busy machine, the first call may have too little time.
        let waits = || matches!(two.mutex(name).try_lock_for(ms(300)), Ok(Err(_)));
        eventually(WAIT_LIMIT, waits);
        eventually(WAIT_LIMIT, || subscriptions().len() == 1);
        // A name is subscribed to for a second after its last call. No event tells the end of that.
        let_pass(ms(1_300));
        let connections = proxy.connections();
        proxy.set_nth(subscriptions()[0], Traffic::Cut);
        eventually(WAIT_LIMIT, || subscriptions().is_empty());
        let_pass(ms(700));
        assert_eq!(
            proxy.connections(),
            connections,
            "the client connects again"
        );
        // The next call that waits is woken by the release.
        let waiting = start_waiter(&server, &two, name);
        assert_eq!(subscriptions().len(), 1);
        guard.unlock().unwrap();
        waiting.join().unwrap().unlock().unwrap();
    }
    assert_eq!(about("no call waits").len(), 2);
    let warnings = about("")
        .into_iter()
        .filter(|line| line.level == Level::Warn);
    assert_eq!(warnings.count(), 0, "{:#?}", about(""));
    // While a call waits, the same is an outage.
    let guard = one.mutex(name).lock().unwrap();
    let waiting = start_waiter(&server, &two, name);
    proxy.set_nth(subscriptions()[0], Traffic::Cut);
    eventually(WAIT_LIMIT, || about("reconnecting").len() == 1);
    assert_eq!(about("reconnecting")[0].level, Level::Warn);
    guard.unlock().unwrap();
    drop(waiting.join().unwrap());
}

/// The subscriber connects again after each such refusal, because another server may have become
/// the master.
/// Reads are answered all the time.
fn outage_of_writes_opens_the_breaker_with_one_warning() {
    let server = Server::start();
    let builder = builder(&server.url()).breaker(2);
    let client = builder.command_timeout(ms(250)).build().unwrap();
    drop(client.mutex("writes").lock().unwrap());
    server.run("CLIENT", &["PAUSE", "60000", "WRITE"]);
    let (start, mut reads) = (Instant::now(), 0);
    while start.elapsed() < ms(4_000) {
        assert!(client.mutex("writes").try_lock().is_err());
        assert!(!client.health().is_healthy());
        // On a busy machine, a new connection may take longer than the command timeout.
        reads += u32::from(client.ping().is_ok());
    }
    assert!(reads > 0, "reads are answered");
    server.run("CLIENT", &["UNPAUSE"]);
    eventually(WAIT_LIMIT, || client.health().is_healthy());
    let about = format!("127.0.0.1:{}", server.port());
    let logged = |level: Level, words: &str| {
        let mut records = log_records_about(&about);
        records.retain(|record| record.level == level && record.mentions(words));
        records.len()
    };
    assert_eq!(logged(Level::Warn, "circuit breaker open for "), 1);
    assert_eq!(logged(Level::Info, "its circuit breaker is closed"), 1);
}

fn server_that_refuses_writes_is_no_outage_of_the_subscriber() {
    let server = Server::start();
    let name = "log-no-replicas";
    let (one, two) = (client(&server), client(&server));
    let guard = one.mutex(name).lock().unwrap();
    let waiting = start_waiter(&server, &two, name);
    let reconnects = || lines_about_server(server.port(), "replaced");
    server.run("CONFIG", &["SET", "min-replicas-to-write", "1"]);
    eventually(ms(30_000), || {
        assert!(two.mutex("log-no-replicas-2").try_lock().is_err());
        reconnects().len() >= 3
    });
    let levels: Vec<Level> = reconnects().iter().map(|line| line.level).collect();
    assert!(
        levels.iter().all(|level| *level == Level::Debug),
        "{levels:?}"
    );
    server.run("CONFIG", &["SET", "min-replicas-to-write", "0"]);
    drop(guard);
    drop(waiting.join().unwrap());
}

fn nothing_is_logged_at_info_and_no_whole_id_above_trace() {
    let server = Server::start();
    let name = "log-secret";
    let client = client(&server);
    let guard = client.mutex(name).renew_every(ms(50)).lock().unwrap();
    let first = id(&guard);
    eventually(WAIT_LIMIT, || !lines(name, "renewed").is_empty());
    assert!(client.mutex(name).try_lock().unwrap().is_err());
    assert!(client.mutex(name).try_lock_for(ms(20)).unwrap().is_err());
    assert!(client.mutex(name).force_unlock().unwrap());
    drop(guard);
    let (guard, second) = lock_and_lose(&server, &client.mutex("log-secret-2"));
    drop(guard);
    let short = client.mutex("log-secret-3").ttl(ms(50)).auto_renew(false);
    let guard = short.lock().unwrap();
    let third = id(&guard);
    assert_eq!(guard.lost().recv(), Ok(Lost::Expired));
    drop(guard);
    let guard = client.mutex("log-secret-4").lock().unwrap();
    let fourth = id(&guard);
    assert!(client.shutdown(WAIT_LIMIT).is_clean());
    drop(guard);

    for id in [first, second, third, fourth] {
        let (_, uuid) = id.rsplit_once(':').unwrap();
        let whole = log_records_about(uuid);
        assert!(whole.iter().any(|line| line.level == Level::Trace), "{id}");
        let above_trace: Vec<_> = whole
            .iter()
            .filter(|line| line.level < Level::Trace)
            .collect();
        assert!(above_trace.is_empty(), "{above_trace:?}");
        assert!(!log_records_about(&uuid[..8]).is_empty());
    }
    let mut info = log_records();
    info.retain(|line| line.level == Level::Info && line.target.starts_with("leasehold"));
    // Meanwhile, other tests open circuit breakers, whose closing is logged, and have two servers
    // behind an address.
    info.retain(|line| !line.message.contains("circuit breaker"));
    info.retain(|line| !line.message.contains("two servers"));
    assert!(info.is_empty(), "{info:?}");
}

/// Sets the password of the user `log-user`. `rule` is `>` and the password.
fn set_password(server: &Server, rule: &str) {
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
}

fn assert_hidden(secret: &str, texts: &[String]) {
    assert!(
        texts.iter().all(|text| !text.contains(secret)),
        "{texts:#?}"
    );
    let lines = log_records_about(secret);
    assert!(lines.is_empty(), "{lines:#?}");
}

fn no_password_appears_in_logs_or_errors() {
    const SECRETS: [&str; 3] = ["log-hush-right", "log-hush-wrong", "log-hush-new"];
    let mut server = Server::start();
    let url = |user: &str, password: &str, port: u16| {
        format!("redis://{user}:{password}@127.0.0.1:{port}/0")
    };
    set_password(&server, ">log-hush-right");
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

    let (texts, received_texts) = unbounded();
    texts.send(format!("{right:?} {wrong:?}")).unwrap();
    let record_error = |error: Error| texts.send(format!("{error} {error:?}")).unwrap();
    let guard = right.mutex("log-hush").lock().unwrap();
    record_error(wrong.mutex("log-hush").try_lock().unwrap_err());
    record_error(wrong.ping().unwrap_err());
    record_error(nobody.mutex("log-hush").try_lock().unwrap_err());
    set_password(&server, ">log-hush-new");
    server.kill_clients();
    record_error(
        right
            .mutex("log-hush")
            .try_lock_for(ms(500))
            .map_or_else(|error| error, |_| Error::Closed),
    );
    record_error(right.mutex("log-hush-2").try_lock().unwrap_err());
    server.kill();
    record_error(right.mutex("log-hush-2").try_lock().unwrap_err());
    let lost = guard.lost();
    drop((guard, lost));
    for url in [
        "redis://log-user:log-hush-right@127.0.0.1:notaport",
        "redis//log-user:log-hush-right@127.0.0.1",
        "http://log-user:log-hush-right@127.0.0.1",
        "redis://log-user:log-hush-right@127.0.0.1/notadb",
    ] {
        record_error(Client::open(url).unwrap_err());
        let builder = Client::builder().url(url);
        texts.send(format!("{builder:?}")).unwrap();
    }

    let texts: Vec<String> = received_texts.try_iter().collect();
    for secret in SECRETS {
        assert_hidden(secret, &texts);
    }
    assert!(
        !log_records_about("no connection to").is_empty(),
        "something was logged"
    );
}
