//! Promise: over a quorum of independent servers a lock keeps the promises of a single server while
//! any minority fails.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{bounded, unbounded};
use leasehold::{Client, ClientBuilder, Error, Lost, Mutex, MutexGuard, WaitPolicy};
use support::fair::granted;
use support::{
    Control, Counters, FakeServer, Fenced, Proxy, SLACK, Server, SetOnDrop, Traffic,
    assert_message_wakes, connect_to_all, default_reply, eventually, log_records,
    log_records_about, ms,
};

support::tests![
    a_server_that_pushes_without_pause_delays_no_call,
    set_ttl_that_only_a_minority_ran_limits_the_lease,
    basic_calls_work_on_a_quorum,
    an_impossible_quorum_is_refused,
    contending_processes_and_threads_count_exactly,
    there_are_never_two_holders_while_servers_hang_in_turn,
    a_token_below_the_counter_is_proposed_again_above_it,
    a_split_vote_is_retried,
    a_lease_lives_and_ends_with_its_majority,
    a_key_lost_on_a_minority_is_not_a_loss,
    a_release_that_a_server_missed_is_repeated,
    flushed_scripts_are_loaded_again,
    opening_and_closing_of_the_breaker_is_logged,
    waiters_with_backoff_need_no_wake_up
];

support::timed![
    a_hanging_minority_costs_one_timeout_and_keeps_no_key,
    without_a_majority_calls_fail_in_time_and_leave_no_key,
    a_waiter_is_woken_by_the_release,
    a_waiter_tries_once_a_majority_has_published_the_release,
    a_broken_counter_counts_as_a_failed_server,
    a_minority_can_die_and_return_empty,
    late_commands_of_a_resumed_server_leave_no_key,
    a_late_acquire_of_a_lost_lease_leaves_no_key,
    a_slow_server_delays_only_the_first_lock,
    a_server_that_replies_byte_by_byte_delays_no_call,
    a_majority_after_the_deadline_is_undone,
    a_client_that_ends_leaves_no_key
];

const KEY: &str = "lock:a";
const FENCE: &str = "leasehold:fence:{lock:a}";
const CHANNEL: &str = "lock_release:a";

/// Less than any delay of a server in these tests, and far more than a call to the others takes.
const UNDELAYED: Duration = ms(250);

/// The limit for events that must happen, such as undos and recoveries: generous for a slow
/// machine, and shorter than `LONG`.
const WAIT_LIMIT: Duration = ms(30_000);

/// Longer than any test: a key that is gone earlier was released or undone.
const LONG: Duration = ms(60_000);

const COUNTERS: Counters = Counters {
    processes: 3,
    threads: 2,
    rounds: 40,
};

struct Servers(Vec<Server>);

impl Servers {
    fn start(count: usize) -> Self {
        Self((0..count).map(|_| Server::start()).collect())
    }

    fn urls(&self) -> Vec<String> {
        self.0.iter().map(Server::url).collect()
    }

    fn builder(&self) -> ClientBuilder {
        Client::builder().quorum(self.urls()).ttl(LONG)
    }

    fn client(&self) -> Client {
        self.builder().build().unwrap()
    }

    /// Returns the number of servers that have the key.
    fn count(&self, key: &str) -> usize {
        let has = |server: &&Server| server.get(key).is_some();
        self.0.iter().filter(has).count()
    }

    /// Acquires until every server has the key; a first lock may leave out a server that connects
    /// late.
    fn lock_on_all(&self, mutex: &Mutex) -> MutexGuard {
        loop {
            let guard = mutex.lock().unwrap();
            if self.count(&format!("lock:{}", guard.name())) == self.0.len() {
                return guard;
            }
        }
    }

    /// Waits until a waiter sleeps, subscribed to every server.
    fn wait_until_waiter_sleeps(&self) {
        for server in &self.0 {
            server.wait_until_waiter_sleeps(CHANNEL);
        }
    }
}

fn lock_and_unlock(client: &Client) -> Duration {
    let start = Instant::now();
    let guard = client.mutex("a").ttl(LONG).lock().unwrap();
    let took = start.elapsed();
    guard.unlock().unwrap();
    took
}

/// Returns the median time of 20 locks.
fn median(client: &Client) -> Duration {
    let mut times: Vec<_> = (0..20).map(|_| lock_and_unlock(client)).collect();
    times.sort_unstable();
    times[10]
}

fn now_us() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap().as_micros() as u64
}

fn basic_calls_work_on_a_quorum() {
    for count in [1, 3, 5] {
        let servers = Servers::start(count);
        let (one, two) = (servers.client(), servers.client());
        assert!(one.ping().is_ok());
        let guard = one.mutex("a").lock().unwrap();
        assert!(servers.count(KEY) > count / 2);
        assert!(two.mutex("a").try_lock().unwrap().is_err());
        let holder = two.mutex("a").inspect().unwrap().expect("the lock is held");
        assert_eq!(holder.holder_id(), Some(guard.holder_id()));
        assert_eq!(holder.fencing_token(), Some(guard.fencing_token()));
        assert!(holder.remaining().unwrap() > ms(5_000));
        guard.renew().unwrap();
        guard.set_ttl(ms(20_000)).unwrap();
        assert!(guard.remaining().unwrap() > ms(15_000));
        let token = guard.fencing_token();
        guard.unlock().unwrap();
        eventually(WAIT_LIMIT, || servers.count(KEY) == 0);
        assert!(two.mutex("a").inspect().unwrap().is_none());
        assert!(!two.mutex("a").force_unlock().unwrap());
        let again = two
            .mutex("a")
            .try_lock()
            .unwrap()
            .expect("the lock is free");
        assert!(again.fencing_token() > token);
        assert!(two.mutex("a").force_unlock().unwrap());
        assert_eq!(again.unlock().unwrap_err().lost(), Some(Lost::Deleted));
        let _held = two.mutex("b").lock().unwrap();
        let report = two.shutdown(ms(5_000));
        assert_eq!((report.released, report.is_clean()), (1, true));
        eventually(WAIT_LIMIT, || servers.count("lock:b") == 0);
    }
}

fn an_impossible_quorum_is_refused() {
    let wrong = |urls: &[&str]| match Client::quorum(urls.iter().copied()) {
        Err(Error::Config(why)) => why,
        other => panic!("{other:?}"),
    };
    let none = wrong(&[]);
    assert!(none.contains("0 servers"), "{none}");
    let twice = wrong(&["redis://h:1", "redis://h:2", "redis://:s3cret@h:1/3"]);
    assert!(twice.contains("h:1 is named twice"), "{twice}");
    assert!(!twice.contains("s3cret"), "{twice}");
    let sentinels = wrong(&["redis://h:1", "redis+sentinel://h:2/m", "redis://h:3"]);
    assert!(sentinels.contains("sentinels"), "{sentinels}");
    let both = Client::builder().url("redis://h").quorum(["redis://h"]);
    assert!(matches!(both.build(), Err(Error::Config(_))));
    log_records();
    let client = Client::quorum(["redis://u:s3cret@h:1", "redis://h:2"]).unwrap();
    let warned = log_records_about("a quorum of 2 servers");
    assert!(warned.iter().any(|line| line.level == log::Level::Warn));
    let debug = format!("{client:?}");
    assert!(debug.contains("quorum of h:1, h:2"), "{debug}");
}

fn a_waiter_is_woken_by_the_release() {
    for count in [3, 5] {
        let servers = Servers::start(count);
        let one = servers.client();
        let two = servers.builder().build().unwrap();
        let guard = one.mutex("a").ttl(LONG).lock().unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| two.mutex("a").try_lock_for(WAIT_LIMIT));
            servers.wait_until_waiter_sleeps();
            assert_message_wakes(&two, || {
                guard.unlock().unwrap();
                drop(granted(waiting.join().unwrap()));
            });
        });
    }
}

fn a_waiter_tries_once_a_majority_has_published_the_release() {
    let servers = Servers::start(3);
    let (one, two) = (servers.client(), servers.builder().build().unwrap());
    let _guard = one.mutex("a").ttl(LONG).lock().unwrap();
    let attempts = || servers.0[0].script_calls();
    let publish_on = |n: usize, who: &str| servers.0[n].run("PUBLISH", &[CHANNEL, who]);
    thread::scope(|scope| {
        scope.spawn(|| {
            let end = two.mutex("a").lock();
            assert!(matches!(end, Err(Error::Closed)), "{end:?}");
        });
        servers.wait_until_waiter_sleeps();
        let round = || {
            let asked = attempts();
            eventually(WAIT_LIMIT, || attempts() > asked);
            // Asks by itself again 0.75 s later at the earliest.
            let begin = Instant::now();
            servers.wait_until_waiter_sleeps();
            let before = attempts();
            publish_on(0, "x");
            publish_on(0, "x");
            publish_on(1, "y");
            servers.wait_until_waiter_sleeps();
            let unmoved = attempts();
            publish_on(2, "x");
            while attempts() == unmoved && begin.elapsed() < ms(700) {
                thread::sleep(ms(2));
            }
            let moved = attempts();
            // A slow round proves nothing.
            (begin.elapsed() < ms(700)).then_some([unmoved - before, moved - unmoved])
        };
        let asked = (0..10).find_map(|_| round());
        // Shuts down before the assertions, so that the waiter ends if one fails.
        two.shutdown(ms(1_000));
        let [for_one_server, for_a_majority] = asked.expect("a message wakes the waiter");
        assert_eq!(for_one_server, 0);
        assert!(for_a_majority > 0);
    });
}

fn contending_processes_and_threads_count_exactly() {
    for count in [3, 5] {
        let servers = Servers::start(count);
        COUNTERS.count_exactly(&servers.urls(), &Server::start());
        eventually(ms(5_000), || servers.count(KEY) == 0);
    }
}

/// Four clients contend while one server after the other is paused.
fn there_are_never_two_holders_while_servers_hang_in_turn() {
    let servers = Servers::start(3);
    let (inside, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let (count, account) = (AtomicU32::new(0), Fenced::new(0));
    thread::scope(|scope| {
        let end = SetOnDrop(&over);
        let working: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let client = servers.builder().command_timeout(ms(300)).build().unwrap();
                    while !over.load(Ordering::Relaxed) {
                        let Ok(guard) = client.mutex("a").lock() else {
                            continue;
                        };
                        assert!(!inside.swap(true, Ordering::SeqCst));
                        let n = count.fetch_add(1, Ordering::SeqCst);
                        account.write(guard.fencing_token().value(), n).unwrap();
                        assert!(guard.is_held());
                        inside.store(false, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        for round in 0..4 {
            let server = &servers.0[round % 3];
            server.pause();
            let before = count.load(Ordering::SeqCst);
            eventually(WAIT_LIMIT, || count.load(Ordering::SeqCst) > before + 50);
            server.resume();
            let before = count.load(Ordering::SeqCst);
            eventually(WAIT_LIMIT, || count.load(Ordering::SeqCst) > before + 50);
        }
        drop(end);
        for one in working {
            one.join().unwrap();
        }
    });
}

fn a_token_below_the_counter_is_proposed_again_above_it() {
    let servers = Servers::start(3);
    let ahead = now_us() + 3_600_000_000;
    for server in &servers.0[1..] {
        server.run("SET", &[FENCE, &ahead.to_string()]);
    }
    let client = servers.client();
    let guard = client.mutex("a").ttl(LONG).lock().unwrap();
    assert!(guard.fencing_token().value() > ahead);
    // No server keeps the key of the refused proposal.
    eventually(WAIT_LIMIT, || servers.count(KEY) >= 2);
    for server in &servers.0 {
        let is_ours = |value: Vec<u8>| value == guard.holder_id().as_str().as_bytes();
        eventually(WAIT_LIMIT, || server.get(KEY).is_none_or(is_ours));
    }
    let token = guard.fencing_token();
    guard.unlock().unwrap();
    // The client uses the higher clock for other names too.
    let other = client.mutex("b").lock().unwrap();
    assert!(other.fencing_token().value() > ahead);
    // A client that has not seen the counter yet.
    let next = servers.client().mutex("a").lock().unwrap();
    assert!(next.fencing_token() > token);
}

fn a_broken_counter_counts_as_a_failed_server() {
    let servers = Servers::start(3);
    let client = servers.client();
    connect_to_all(&client, &servers.0);
    servers.0[0].run("SET", &[FENCE, "9007199254740991"]);
    lock_and_unlock(&client);
    servers.0[1].run("SET", &[FENCE, "x"]);
    let refused = client.mutex("a").ttl(LONG).lock();
    assert!(
        matches!(refused, Err(Error::BadFence { .. })),
        "{refused:?}"
    );
    eventually(WAIT_LIMIT, || servers.count(KEY) == 0);
    // A counter that is far ahead must not raise the tokens of other names.
    let far = now_us() * 2;
    for server in &servers.0 {
        server.run("SET", &[FENCE, &far.to_string()]);
    }
    let guard = client.mutex("a").lock().unwrap();
    assert_eq!(guard.fencing_token().value(), far + 1);
    assert!(client.mutex("b").lock().unwrap().fencing_token().value() < far);
}

fn a_minority_can_die_and_return_empty() {
    for (count, dead) in [(3, 1), (5, 2)] {
        let mut servers = Servers::start(count);
        let client = servers.client();
        lock_and_unlock(&client);
        let held = servers.lock_on_all(&client.mutex("held").ttl(LONG));
        for server in &mut servers.0[..dead] {
            server.kill();
        }
        assert!(median(&client) < UNDELAYED);
        held.renew().unwrap();
        for server in &mut servers.0[..dead] {
            server.restart();
        }
        held.renew().unwrap();
        held.unlock().unwrap();
        // The restarted servers vote again.
        eventually(WAIT_LIMIT, || {
            let guard = client.mutex("a").lock().unwrap();
            let count = servers.0[..dead]
                .iter()
                .filter(|one| one.get(KEY).is_some());
            let all = count.count() == dead;
            drop(guard);
            all
        });
    }
}

fn a_hanging_minority_costs_one_timeout_and_keeps_no_key() {
    log_records();
    thread::scope(|scope| {
        for n in 0..3 {
            let servers = Servers::start(3);
            scope.spawn(move || assert_a_hanging_server_costs_one_timeout(&servers, n));
        }
    });
}

fn assert_a_hanging_server_costs_one_timeout(servers: &Servers, n: usize) {
    let client = servers.client();
    connect_to_all(&client, &servers.0);
    servers.0[n].pause();
    // The hanging server does not use up the deadline.
    let limit = ms(4_000);
    let start = Instant::now();
    let guard = client.mutex("a").ttl(LONG).try_lock_for(limit);
    assert!(start.elapsed() < limit / 2);
    drop(guard.unwrap().expect("the lock is free"));
    assert!(median(&client) < UNDELAYED);
    let label = format!("127.0.0.1:{}", servers.0[n].port());
    let is_logged = |what: &str| {
        let records = log_records_about(&format!("{label} {what}"));
        records.iter().any(|line| line.level == log::Level::Debug)
    };
    eventually(WAIT_LIMIT, || is_logged("has not replied"));
    let guard = client.mutex("a").ttl(LONG).lock().unwrap();
    guard.renew().unwrap();
    guard.unlock().unwrap();
    servers.0[n].resume();
    let before = servers.0[n].calls(&["set"]);
    eventually(WAIT_LIMIT, || {
        lock_and_unlock(&client);
        servers.0[n].calls(&["set"]) > before
    });
    eventually(WAIT_LIMIT, || servers.count(KEY) == 0);
}

fn opening_and_closing_of_the_breaker_is_logged() {
    log_records();
    let mut servers = Servers::start(3);
    let client = servers.builder().breaker(1).build().unwrap();
    lock_and_unlock(&client);
    for server in &mut servers.0[1..] {
        server.kill();
    }
    let label = format!("the quorum of 127.0.0.1:{}", servers.0[0].port());
    let is_logged = |level: log::Level, what: &str| {
        let mut records = log_records_about(&label).into_iter();
        records.any(|record| record.level == level && record.mentions(what))
    };
    eventually(WAIT_LIMIT, || {
        let tried = client.mutex("a").try_lock();
        assert!(tried.is_err(), "{tried:?}");
        is_logged(log::Level::Warn, "circuit breaker open for ")
    });
    for server in &mut servers.0[1..] {
        server.restart();
    }
    lock_and_unlock(&client);
    let closed = "answers again: its circuit breaker is closed";
    eventually(WAIT_LIMIT, || is_logged(log::Level::Info, closed));
}

/// The paused server has unread commands, which run after it resumes and must leave no key.
fn late_commands_of_a_resumed_server_leave_no_key() {
    let servers = Servers::start(3);
    let client = servers.client();
    connect_to_all(&client, &servers.0);
    servers.0[2].pause();
    for _ in 0..200 {
        lock_and_unlock(&client);
    }
    servers.0[2].resume();
    // A new command ran, so the server has run all earlier ones.
    let before = servers.0[2].calls(&["set"]);
    eventually(WAIT_LIMIT, || {
        lock_and_unlock(&client);
        servers.0[2].calls(&["set"]) > before
    });
    eventually(WAIT_LIMIT, || servers.count(KEY) == 0);
}

/// Returns a client with two idle connections to each server, and the servers' proxies. Replies of
/// the third server are slow.
fn client_with_two_connections(servers: &Servers) -> (Client, Vec<Proxy>) {
    let proxies: Vec<_> = servers.0.iter().map(Proxy::new).collect();
    let builder = Client::builder().quorum(proxies.iter().map(Proxy::url));
    // Long enough for a busy machine: a connection that stalls for longer is closed.
    let client = builder.command_timeout(ms(5_000)).build().unwrap();
    connect_to_all(&client, &servers.0);
    for proxy in &proxies {
        proxy.set_open(Traffic::StallReplies);
    }
    thread::scope(|scope| {
        scope.spawn(|| drop(client.mutex("slow").lock().unwrap()));
        for proxy in &proxies {
            eventually(WAIT_LIMIT, || {
                !proxy.connections_that_sent("lock:slow").is_empty()
            });
        }
        lock_and_unlock(&client);
        for proxy in &proxies {
            proxy.set_open(Traffic::Pass);
        }
    });
    proxies[2].delay(ms(0), ms(20));
    (client, proxies)
}

/// A client of three servers, of which the third gets an acquire late.
struct Delayed<'a> {
    servers: &'a Servers,
    client: &'a Client,
    proxy: &'a Proxy,
}

impl Delayed<'_> {
    /// Returns the number of scripts that the third server has run.
    fn scripts(&self) -> u64 {
        self.servers.0[2].script_calls()
    }

    /// Returns the number of keys that the third server has set.
    fn sets(&self) -> u64 {
        self.servers.0[2].calls(&["set"])
    }
}

/// Ends a lease while its acquire is on its way to one server, and lets the acquire run afterwards.
///
/// The client leaves out a server that was slow, so a round may fail; returns whether it succeeded.
fn lost_lease_overtakes_acquire(delayed: &Delayed<'_>, name: &str) -> bool {
    let key = format!("lock:{name}");
    let proxy = delayed.proxy;
    let (has_run, sets) = (delayed.scripts(), delayed.sets());
    proxy.set_open(Traffic::StallRequests);
    let mutex = delayed.client.mutex(name).ttl(LONG).max_hold(ms(20));
    let guard = mutex.lock().unwrap();
    let is_sent = !proxy.connections_that_sent(&key).is_empty();
    assert_eq!(guard.lost().recv(), Ok(Lost::MaxHold));
    assert_eq!(guard.unlock().unwrap_err().lost(), Some(Lost::MaxHold));
    if is_sent {
        // The release uses a new connection, opened by the engine.
        eventually(WAIT_LIMIT, || delayed.scripts() > has_run);
    }
    proxy.set_open(Traffic::Pass);
    if is_sent {
        eventually(WAIT_LIMIT, || delayed.sets() > sets);
    }
    eventually(WAIT_LIMIT, || delayed.servers.count(&key) == 0);
    is_sent
}

fn a_late_acquire_of_a_lost_lease_leaves_no_key() {
    let servers = Servers::start(3);
    let (client, proxies) = client_with_two_connections(&servers);
    let delayed = Delayed {
        servers: &servers,
        client: &client,
        proxy: &proxies[2],
    };
    let mut names = (0..10).map(|n| format!("lost {n}"));
    let overtaken = names.any(|name| lost_lease_overtakes_acquire(&delayed, &name));
    assert!(overtaken);
}

/// Asserts that every call fails in time because only `answers`, the first of three servers, does.
fn assert_calls_fail_in_time(client: &Client, answers: &Server) {
    let mutex = client.mutex("a").ttl(LONG);
    let tried = Control::run(ms(300), || mutex.try_lock_for(ms(300)));
    match tried.no_later_than(SLACK) {
        Err(error @ Error::Unreachable { .. }) => {
            let text = error.to_string();
            let label = format!("quorum of 127.0.0.1:{}", answers.port());
            assert!(text.contains(&label), "{text}");
            assert!(text.contains("of 3 servers answered, 2 needed"), "{text}");
        }
        other => panic!("{other:?}"),
    }
    let tried = Control::run(ms(400), || mutex.try_lock());
    let tried = tried.no_later_than(SLACK);
    assert!(matches!(tried, Err(Error::Unreachable { .. })), "{tried:?}");
    let pinged = Control::run(ms(400), || client.ping());
    assert!(matches!(
        pinged.no_later_than(SLACK),
        Err(Error::Unreachable { .. })
    ));
}

fn without_a_majority_calls_fail_in_time_and_leave_no_key() {
    thread::scope(|scope| {
        for is_killed in [true, false] {
            let servers = Servers::start(3);
            scope.spawn(move || assert_calls_fail_without_a_majority(servers, is_killed));
        }
    });
}

fn assert_calls_fail_without_a_majority(mut servers: Servers, is_killed: bool) {
    let builder = || {
        servers
            .builder()
            .command_timeout(ms(400))
            .connect_timeout(ms(400))
            // Several attempts of one call can fail in its time.
            .breaker(0)
    };
    let (client, fresh) = (builder().build().unwrap(), builder().build().unwrap());
    connect_to_all(&client, &servers.0);
    let held = client.mutex("held").ttl(ms(2_000)).lock().unwrap();
    for server in &mut servers.0[1..] {
        if is_killed {
            server.kill();
        } else {
            server.pause();
        }
    }
    for client in [&client, &fresh, &client] {
        assert_calls_fail_in_time(client, &servers.0[0]);
    }
    eventually(WAIT_LIMIT, || servers.0[0].get(KEY).is_none());
    // The lease cannot be renewed, and its loss is reported in time.
    held.lost()
        .recv_timeout(WAIT_LIMIT)
        .expect("the lease is lost");
    assert!(!held.is_held());
    let unlock = Control::run(ms(400), || held.unlock());
    assert_eq!(
        unlock.no_later_than(SLACK).unwrap_err().lost(),
        Some(Lost::Expired)
    );
    for server in &mut servers.0[1..] {
        if is_killed {
            server.restart();
        } else {
            server.resume();
        }
    }
    lock_and_unlock(&client);
    eventually(WAIT_LIMIT, || servers.count(KEY) == 0);
}

fn a_slow_server_delays_only_the_first_lock() {
    let servers = Servers::start(3);
    for n in 0..3 {
        let proxy = Proxy::new(&servers.0[n]);
        let mut urls = servers.urls();
        urls[n] = proxy.url();
        let client = Client::quorum(urls).unwrap();
        connect_to_all(&client, &servers.0);
        proxy.delay(ms(250), ms(250));
        lock_and_unlock(&client);
        assert!(median(&client) < UNDELAYED);
        // A client whose first call already meets the slow server.
        let slow = Client::quorum({
            let mut urls = servers.urls();
            urls[n] = proxy.url();
            urls
        });
        let slow = slow.unwrap();
        lock_and_unlock(&slow);
        assert!(median(&slow) < UNDELAYED);
    }
}

fn a_server_that_replies_byte_by_byte_delays_no_call() {
    let servers = Servers::start(3);
    for n in 0..3 {
        let proxy = Proxy::new(&servers.0[n]);
        let mut urls = servers.urls();
        urls[n] = proxy.url();
        let client = Client::quorum(urls).unwrap();
        connect_to_all(&client, &servers.0);
        proxy.set_all(Traffic::TrickleReplies);
        let mut times: Vec<_> = (0..9)
            .map(|_| {
                let start = Instant::now();
                let guard = client.mutex("a").ttl(LONG).try_lock_for(ms(5_000));
                let took = start.elapsed();
                drop(guard.unwrap().expect("no other call holds the lock"));
                took
            })
            .collect();
        // At the first call the client does not know which server is slow.
        assert!(times[0] < ms(350), "{times:?}");
        times.sort_unstable();
        assert!(times[4] < UNDELAYED, "{times:?}");
        proxy.set_all(Traffic::Pass);
        eventually(WAIT_LIMIT, || servers.count(KEY) == 0);
    }
}

fn a_server_that_pushes_without_pause_delays_no_call() {
    let servers = Servers::start(3);
    let pushes = Arc::new(AtomicBool::new(false));
    let begins = Arc::clone(&pushes);
    let pushing = FakeServer::with_writer(move |request, client| {
        if !begins.load(Ordering::SeqCst) || !request.words[0].starts_with(b"EVAL") {
            let refusal = || b"-ERR not yet\r\n".to_vec();
            return client.write_all(&default_reply(request).unwrap_or_else(refusal));
        }
        let pushes = b">2\r\n+invalidate\r\n*0\r\n".repeat(1_000);
        loop {
            client.write_all(&pushes)?;
        }
    });
    let mut urls = servers.urls();
    urls[0] = pushing.url();
    // The pushes also take time from the other two servers.
    let patient = Client::builder().quorum(urls).command_timeout(ms(10_000));
    let client = patient.build().unwrap();
    connect_to_all(&client, &servers.0[1..]);
    pushes.store(true, Ordering::SeqCst);
    for _ in 0..5 {
        let (done, outcome) = bounded(1);
        let mutex = client.mutex("a").ttl(LONG);
        thread::spawn(move || done.send(mutex.try_lock()));
        let guard = outcome
            .recv_timeout(WAIT_LIMIT)
            .expect("the call returns in time");
        drop(guard.unwrap().expect("the other two grant it"));
    }
}

fn a_split_vote_is_retried() {
    let servers = Servers::start(3);
    let client = servers.builder().build().unwrap();
    for (server, holder) in servers.0.iter().zip(["x", "y"]) {
        server.run("SET", &[KEY, holder, "PX", "60000"]);
    }
    // Other holders have two of the keys. The last attempt may have too little time for a reply.
    match client.mutex("a").ttl(LONG).try_lock() {
        Ok(granted) => assert!(granted.is_err()),
        Err(error) => assert!(error.is_unreachable(), "{error:?}"),
    }
    eventually(WAIT_LIMIT, || servers.0[2].get(KEY).is_none());
    servers.0[0].run("PEXPIRE", &[KEY, "700"]);
    let guard = client.mutex("a").ttl(LONG).try_lock_for(WAIT_LIMIT);
    let guard = guard.unwrap().expect("one of the keys has run out");
    assert_eq!(servers.0[1].get(KEY), Some(b"y".to_vec()));
    let id = guard.holder_id().as_str().as_bytes().to_vec();
    for n in [0, 2] {
        eventually(WAIT_LIMIT, || servers.0[n].get(KEY).as_ref() == Some(&id));
    }
    guard.unlock().unwrap();
    assert_eq!(servers.0[1].get(KEY), Some(b"y".to_vec()), "not ours");
}

fn a_majority_after_the_deadline_is_undone() {
    let servers = Servers::start(3);
    let proxies: Vec<_> = servers.0.iter().map(Proxy::new).collect();
    let client = Client::builder()
        .quorum(proxies.iter().map(Proxy::url))
        .command_timeout(ms(500))
        .build()
        .unwrap();
    connect_to_all(&client, &servers.0);
    for proxy in &proxies {
        proxy.delay(ms(0), ms(60));
    }
    let mutex = client.mutex("a").ttl(ms(50)).auto_renew(false);
    let tried = mutex.try_lock_for(ms(400));
    assert!(matches!(tried, Err(Error::Unreachable { .. })), "{tried:?}");
    for proxy in &proxies {
        proxy.delay(ms(0), ms(0));
    }
    // Replies that come after the caller's deadline.
    for proxy in &proxies[1..] {
        proxy.delay(ms(0), ms(400));
    }
    let tried = client.mutex("a").ttl(LONG).try_lock_for(ms(200));
    assert!(matches!(tried, Err(Error::Unreachable { .. })), "{tried:?}");
    eventually(WAIT_LIMIT, || servers.count(KEY) == 0);
}

fn a_lease_lives_and_ends_with_its_majority() {
    for count in [3, 5] {
        let mut servers = Servers::start(count);
        let client = servers.client();
        let (renewed, renewals) = unbounded();
        let mutex = client.mutex("a").ttl(ms(3_000)).renew_every(ms(100));
        let mutex = mutex.on_renew(move |_| {
            let _ = renewed.send(());
        });
        let guard = servers.lock_on_all(&mutex);
        let next = |many: usize| {
            for _ in 0..many {
                renewals
                    .recv_timeout(WAIT_LIMIT)
                    .expect("the lease is renewed");
            }
        };
        let spare = count / 2;
        next(3);
        servers.0[0].kill();
        for server in &servers.0[1..spare] {
            server.pause();
        }
        next(10);
        for server in &servers.0[1..spare] {
            server.resume();
        }
        assert!(guard.is_held());
        // Now a majority replies that it does not have the key.
        let lost = guard.lost();
        for server in &servers.0[spare..] {
            server.run("DEL", &[KEY]);
        }
        let why = lost.recv_timeout(WAIT_LIMIT).expect("the loss is reported");
        assert_eq!(why, Lost::Deleted);
        assert!(!guard.is_held());
        assert_eq!(guard.unlock().unwrap_err().lost(), Some(Lost::Deleted));
    }
}

fn a_key_lost_on_a_minority_is_not_a_loss() {
    let servers = Servers::start(5);
    let client = servers.client();
    let guard = servers.lock_on_all(&client.mutex("a").ttl(LONG));
    for server in &servers.0[..2] {
        server.run("DEL", &[KEY]);
    }
    guard.renew().unwrap();
    assert!(guard.is_held());
    servers.0[2].run("SET", &[KEY, "x"]);
    assert!(matches!(guard.renew(), Err(Error::Lost(Lost::Deleted))));
    drop(guard);
    for server in &servers.0[..3] {
        server.run("SET", &[KEY, "x", "PX", "60000"]);
    }
    let holder = client
        .mutex("a")
        .inspect()
        .unwrap()
        .expect("the lock is held");
    assert_eq!(holder.value(), b"x");
    assert!(client.mutex("a").force_unlock().unwrap());
    eventually(WAIT_LIMIT, || servers.count(KEY) == 0);
}

fn a_release_that_a_server_missed_is_repeated() {
    log_records();
    let servers = Servers::start(3);
    for is_down_first in [false, true] {
        let proxy = Proxy::new(&servers.0[0]);
        let mut urls = servers.urls();
        urls[0] = proxy.url();
        let client = Client::quorum(urls).unwrap();
        let guard = servers.lock_on_all(&client.mutex("a").ttl(LONG));
        proxy.set_all(Traffic::Cut);
        if is_down_first {
            let message = format!("no connection to 127.0.0.1:{}", proxy.port());
            eventually(WAIT_LIMIT, || {
                drop(client.mutex("b").lock().unwrap());
                !log_records_about(&message).is_empty()
            });
        }
        guard.unlock().unwrap();
        proxy.set_all(Traffic::Pass);
        eventually(WAIT_LIMIT, || servers.count(KEY) == 0);
    }
}

/// Releases that no call waited for are in flight when the client and its network end.
fn a_client_that_ends_leaves_no_key() {
    let servers = Servers::start(3);
    let proxy = Proxy::new(&servers.0[2]);
    let urls = [servers.0[0].url(), servers.0[1].url(), proxy.url()];
    let client = Client::quorum(urls).unwrap();
    connect_to_all(&client, &servers.0);
    eventually(WAIT_LIMIT, || servers.count(KEY) == 0);
    proxy.delay(ms(100), ms(0));
    for _ in 0..3 {
        lock_and_unlock(&client);
    }
    drop(client);
    drop(proxy);
    eventually(WAIT_LIMIT, || servers.count(KEY) == 0);
}

fn flushed_scripts_are_loaded_again() {
    let servers = Servers::start(5);
    let client = servers.client();
    let flush = || {
        for server in &servers.0 {
            server.run("SCRIPT", &["FLUSH"]);
        }
    };
    for _ in 0..5 {
        let guard = client.mutex("a").ttl(LONG).lock().unwrap();
        guard.renew().unwrap();
        flush();
        guard.renew().unwrap();
        flush();
        guard.unlock().unwrap();
        // Also on the servers whose replies no call waited for.
        eventually(WAIT_LIMIT, || servers.count(KEY) == 0);
    }
}

fn waiters_with_backoff_need_no_wake_up() {
    let servers = Servers::start(3);
    let (one, two) = (servers.client(), servers.client());
    let backoff = leasehold::Backoff::new(ms(5), ms(50));
    let guard = one.mutex("a").lock().unwrap();
    thread::scope(|scope| {
        let mutex = two.mutex("a").wait_policy(WaitPolicy::Backoff(backoff));
        let waiting = scope.spawn(move || mutex.lock().map(drop));
        let before = servers.0[0].calls(&["evalsha"]);
        eventually(WAIT_LIMIT, || servers.0[0].calls(&["evalsha"]) > before + 2);
        drop(guard);
        waiting.join().unwrap().unwrap();
    });
}

/// The servers that refuse a set_ttl outvote the one that runs it, but its key then lasts for the
/// shorter time only. The lease may have depended on that key.
fn set_ttl_that_only_a_minority_ran_limits_the_lease() {
    const SHORT: Duration = ms(5_000);
    let servers = Servers::start(3);
    let client = servers.client();
    let guard = servers.lock_on_all(&client.mutex("a").auto_renew(false));
    for server in &servers.0[1..] {
        server.run("ACL", &["SETUSER", "default", "-pexpire"]);
    }
    let refused = guard.set_ttl(SHORT);
    assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
    assert!(guard.remaining().is_none_or(|left| left <= SHORT));
    for server in &servers.0[1..] {
        server.run("ACL", &["SETUSER", "default", "+pexpire"]);
    }
    // The set_ttl may run late, after any renewal.
    let _ = guard.renew();
    assert!(guard.remaining().is_none_or(|left| left <= SHORT));
}
