//! Promise: every call returns by its deadline and every loss is reported in time, whatever fails.

use std::env;
use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process;
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::unbounded;
use leasehold::{Client, ClientBuilder, Error, Lost, MutexGuard};
use support::{
    BlackHole, Cluster, ClusterSetup, Control, Proxy, Sentinels, Server, Setup, Timed, Traffic,
    WAKE_UPS, eventually, expect_unreachable, let_pass, ms, refusing_url,
};

support::tests![
    lock_gives_up_on_a_hung_cluster_before_its_command_times_out,
    attempts_on_a_black_holed_server_return_in_time,
    lock_gives_up_on_a_quorum_before_its_commands_time_out,
    lock_gives_up_before_its_command_times_out,
    attempts_on_a_paused_server_return_in_time,
    attempts_on_a_killed_server_return_in_time,
    attempts_on_a_busy_server_return_in_time,
    attempts_on_a_slow_server_return_in_time,
    attempts_on_a_refusing_port_return_in_time,
    attempts_on_a_port_that_never_replies_return_in_time,
    attempts_on_a_full_unix_socket_return_in_time,
    deadline_holds_at_every_step_of_a_slow_call,
    queued_calls_on_a_paused_server_return_in_time,
    waiting_calls_return_in_time_after_the_server_pauses,
    leases_on_a_paused_server_end_in_time,
    leases_on_a_killed_server_end_in_time,
    leases_on_a_black_holed_server_end_in_time,
    leases_on_a_busy_server_end_in_time,
    leases_on_a_slow_server_end_in_time,
    lease_is_held_exactly_until_it_expires,
    lock_gives_up_while_connecting,
    lock_gives_up_on_a_hung_master_before_its_command_times_out,
    waiters_for_the_same_name_give_up_together,
    call_that_takes_a_place_over_learns_that_the_lock_is_held,
    waiters_outlast_a_short_outage,
    waiting_for_another_holder_is_not_taken_for_an_outage
];

/// How much later a call may return than its limit and the lateness of plain waits explain.
/// Generous, since other programs run on this machine: the benchmark `bounds` measures how late
/// calls really are.
const SLACK: Duration = ms(250);

const REPEATS: usize = 20;

/// How many repeats run in parallel. They spend nearly all their time waiting.
const LANES: usize = 10;

/// A call that ignored its deadline of 200 ms would exceed it by more than [`SLACK`].
const COMMAND_TIMEOUT: Duration = ms(600);

/// The silence after which `lock` gives up on a server.
const UNREACHABLE_FOR: Duration = ms(900);

/// How late a call may be on a busy machine, for tests that need no exact bound.
const GENEROUS: Duration = ms(750);

/// A way in which a server fails.
#[derive(Clone, Copy, Debug)]
enum ServerFailure {
    Paused,
    Killed,
    /// Connections stay open, but no byte passes.
    BlackHoled,
    /// A script runs endlessly.
    Busy,
    /// Replies take longer than every timeout.
    Slow,
}

struct Redis {
    server: Server,
    proxy: Proxy,
}

impl Redis {
    fn start() -> Self {
        // The older name of `busy-reply-threshold`, which all versions accept.
        let server = Server::with(&["--lua-time-limit", "100"]);
        let proxy = Proxy::new(&server);
        Self { server, proxy }
    }

    fn url(&self, failure: ServerFailure) -> String {
        match failure {
            ServerFailure::BlackHoled | ServerFailure::Slow => self.proxy.url(),
            ServerFailure::Paused | ServerFailure::Killed | ServerFailure::Busy => {
                self.server.url()
            }
        }
    }

    fn client(&self, failure: ServerFailure) -> Client {
        builder().url(self.url(failure)).build().unwrap()
    }

    fn fail(&mut self, failure: ServerFailure) {
        match failure {
            ServerFailure::Paused => self.server.pause(),
            ServerFailure::Killed => self.server.kill(),
            ServerFailure::BlackHoled => self.proxy.set_all(Traffic::DropBoth),
            ServerFailure::Busy => {
                let mut script = TcpStream::connect(("127.0.0.1", self.server.port())).unwrap();
                script
                    .write_all(b"*3\r\n$4\r\nEVAL\r\n$17\r\nwhile true do end\r\n$1\r\n0\r\n")
                    .unwrap();
                let mut other = self.server.connection();
                eventually(ms(10_000), || {
                    redis::cmd("PING")
                        .exec(&mut other)
                        .is_err_and(|error| error.code() == Some("BUSY"))
                });
            }
            ServerFailure::Slow => self.proxy.delay(COMMAND_TIMEOUT, COMMAND_TIMEOUT),
        }
    }
}

fn builder() -> ClientBuilder {
    Client::builder()
        .connect_timeout(COMMAND_TIMEOUT)
        .command_timeout(COMMAND_TIMEOUT)
        .unreachable_for(UNREACHABLE_FOR)
}

/// Returns the client with an idle connection and running threads.
///
/// The first calls may take longer than the short limits that a test is about: on a busy machine,
/// `lock` may find the server unreachable.
fn warmed_up(client: Client) -> Client {
    let lock = || client.mutex("warm").lock().and_then(MutexGuard::unlock);
    eventually(ms(20_000), || lock().is_ok());
    client
}

/// Repeats a call that must return within `limit`, each time in parallel with plain waits. Returns
/// the results.
///
/// Asserts that the calls exceed their limit by little more than the plain waits exceed theirs.
#[track_caller]
fn run_in_time<T: Send>(limit: Duration, call: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let timed = thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES)
            .map(|lane| {
                let call = &call;
                scope.spawn(move || {
                    (lane..REPEATS)
                        .step_by(LANES)
                        .map(|n| Control::run(limit, || call(n)))
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        lanes
            .into_iter()
            .flat_map(|lane| lane.join().unwrap())
            .collect::<Vec<Timed<T>>>()
    });
    assert_in_time(&timed);
    timed.into_iter().map(|timed| timed.value).collect()
}

/// Asserts that the calls exceed their limit by little more than the plain waits exceed theirs.
///
/// A call is woken a few times, and each wake-up may be as late as the end of a plain wait. One
/// call in ten may be later still, since other programs run on this machine.
#[track_caller]
fn assert_in_time<T>(timed: &[Timed<T>]) {
    let mut late: Vec<_> = timed
        .iter()
        .map(|timed| timed.took.saturating_sub(timed.limit))
        .collect();
    late.sort();
    let overshoot = WAKE_UPS * timed.iter().map(|timed| timed.overshoot).max().unwrap();
    assert_eq!(late.len(), REPEATS);
    let [.., most, _, worst] = late[..] else {
        unreachable!("there are {REPEATS} calls")
    };
    assert!(
        most <= overshoot + SLACK && worst <= overshoot + 4 * SLACK,
        "{most:?} late, and once {worst:?}; {WAKE_UPS} plain waits overshoot by up to {overshoot:?}"
    );
}

/// The kinds of lock of the attempts, which take turns.
const KINDS: usize = 3;

/// Waits for a lock of the `n`-th kind.
fn try_kind_for(client: &Client, n: usize, limit: Duration) -> Result<(), Error> {
    match n % KINDS {
        0 => client.mutex("a").try_lock_for(limit).map(drop),
        1 => client.semaphore("a", 1).try_acquire_for(limit).map(drop),
        _ => client.rw_lock("a").try_read_for(limit).map(drop),
    }
}

/// Tries to acquire a lock of the `n`-th kind.
fn try_kind(client: &Client, n: usize) -> Result<(), Error> {
    match n % KINDS {
        0 => client.mutex("a").try_lock().map(drop),
        1 => client.semaphore("a", 1).try_acquire().map(drop),
        _ => client.rw_lock("a").try_read().map(drop),
    }
}

/// Acquires a lock of the `n`-th kind.
fn acquire_kind(client: &Client, n: usize) -> Result<(), Error> {
    match n % KINDS {
        0 => client.mutex("a").lock().map(drop),
        1 => client.semaphore("a", 1).acquire().map(drop),
        _ => client.rw_lock("a").read().map(drop),
    }
}

/// Makes calls with clients that were connected before the failure, and with new clients.
fn assert_attempts_return_in_time(failure: ServerFailure) {
    let mut redis = Redis::start();
    let used = || -> Vec<_> {
        (0..REPEATS)
            .map(|_| warmed_up(redis.client(failure)))
            .collect()
    };
    // One client for each attempt, because an attempt closes the connection from before the
    // failure.
    let (waiting, at_once, patient) = (used(), used(), warmed_up(redis.client(failure)));
    redis.fail(failure);
    thread::scope(|scope| {
        scope.spawn(|| {
            let limit = ms(200);
            for answer in run_in_time(limit, |n| try_kind_for(&waiting[n], n, limit)) {
                expect_unreachable(answer);
            }
            for answer in run_in_time(COMMAND_TIMEOUT, |n| try_kind(&at_once[n], n)) {
                expect_unreachable(answer);
            }
        });
        scope.spawn(|| assert_fresh_clients_return_in_time(&redis.url(failure)));
        for n in 0..KINDS {
            let patient = &patient;
            scope.spawn(move || assert_lock_gives_up_in_time(patient, n));
        }
    });
    drop_together(waiting.into_iter().chain(at_once));
}

/// Drops clients in parallel, outside of the measured calls: each drop takes time.
fn drop_together(clients: impl IntoIterator<Item = Client>) {
    thread::scope(|scope| {
        for client in clients {
            scope.spawn(|| drop(client));
        }
    });
}

fn assert_lock_gives_up_in_time(client: &Client, kind: usize) {
    let began = Instant::now();
    expect_unreachable(acquire_kind(client, kind));
    let took = began.elapsed();
    assert!(took >= UNREACHABLE_FOR, "too early, after {took:?}");
    assert!(
        took <= UNREACHABLE_FOR + GENEROUS,
        "too late, after {took:?}"
    );
}

fn assert_fresh_clients_return_in_time(url: &str) {
    for answer in run_fresh_in_time(url, ms(200), |client| {
        client.mutex("a").try_lock_for(ms(200)).map(drop)
    }) {
        expect_unreachable(answer);
    }
    for answer in run_fresh_in_time(url, COMMAND_TIMEOUT, |client| {
        client.mutex("a").try_lock().map(drop)
    }) {
        expect_unreachable(answer);
    }
}

/// Repeats a call as [`run_in_time`] does, with a new client for each.
#[track_caller]
fn run_fresh_in_time<T: Send>(
    url: &str,
    limit: Duration,
    call: impl Fn(&Client) -> T + Sync,
) -> Vec<T> {
    let used = Mutex::new(Vec::new());
    let values = run_in_time(limit, |_| {
        let client = builder().url(url).build().unwrap();
        let value = call(&client);
        used.lock().unwrap().push(client);
        value
    });
    drop_together(used.into_inner().unwrap());
    values
}

fn attempts_on_a_paused_server_return_in_time() {
    assert_attempts_return_in_time(ServerFailure::Paused);
}

fn attempts_on_a_killed_server_return_in_time() {
    assert_attempts_return_in_time(ServerFailure::Killed);
}

fn attempts_on_a_black_holed_server_return_in_time() {
    assert_attempts_return_in_time(ServerFailure::BlackHoled);
}

fn attempts_on_a_busy_server_return_in_time() {
    assert_attempts_return_in_time(ServerFailure::Busy);
}

fn attempts_on_a_slow_server_return_in_time() {
    assert_attempts_return_in_time(ServerFailure::Slow);
}

fn attempts_on_a_refusing_port_return_in_time() {
    assert_fresh_clients_return_in_time(&refusing_url());
}

fn attempts_on_a_port_that_never_replies_return_in_time() {
    let hole = BlackHole::start();
    assert_fresh_clients_return_in_time(&hole.url());
    assert!(hole.connections() > 0);
}

/// The socket's listener accepts no connection and its backlog is full: `connect` hangs.
fn attempts_on_a_full_unix_socket_return_in_time() {
    let path = env::temp_dir().join(format!("leasehold-backlog-{}", process::id()));
    let _ = fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    let (connected, connections) = unbounded();
    let filling = thread::spawn({
        let path = path.clone();
        move || {
            // Closed connections stay in the backlog.
            while UnixStream::connect(&path).is_ok() {
                let _ = connected.send(());
            }
        }
    });
    while connections.recv_timeout(ms(500)).is_ok() {}
    assert_fresh_clients_return_in_time(&format!("redis+unix://{}", path.display()));
    drop(listener);
    filling.join().unwrap();
    let _ = fs::remove_file(&path);
}

/// The deadline may pass while the call connects, makes its first attempt, subscribes or waits.
fn deadline_holds_at_every_step_of_a_slow_call() {
    let server = Server::start();
    let holder = server.client();
    let _held = holder.mutex("a").lock().unwrap();
    for one_way in [10, 35, 60] {
        let proxy = Proxy::new(&server);
        proxy.delay(ms(one_way), ms(one_way));
        for answer in run_fresh_in_time(&proxy.url(), ms(200), |client| {
            let answer = client.mutex("a").try_lock_for(ms(200));
            answer.map(|guard| guard.is_ok())
        }) {
            match answer {
                Ok(granted) => assert!(!granted, "the lock is held"),
                Err(error) => assert!(error.is_unreachable(), "{error:?}"),
            }
        }
    }
}

fn queued_calls_on_a_paused_server_return_in_time() {
    let mut redis = Redis::start();
    let client = warmed_up(redis.client(ServerFailure::Paused));
    redis.fail(ServerFailure::Paused);
    let mutex = client.mutex("a");
    let barrier = Barrier::new(REPEATS);
    let timed: Vec<_> = thread::scope(|scope| {
        let calls: Vec<_> = (0..REPEATS)
            .map(|_| {
                scope.spawn(|| {
                    barrier.wait();
                    Control::run(ms(400), || mutex.try_lock_for(ms(400)).map(drop))
                })
            })
            .collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    assert_in_time(&timed);
    for timed in timed {
        // No call has seen another holder, so none may be refused.
        expect_unreachable(timed.value);
    }
}

fn waiting_calls_return_in_time_after_the_server_pauses() {
    let mut redis = Redis::start();
    let holder = Client::open(redis.server.url()).unwrap();
    let _held = holder.mutex("a").ttl(ms(60_000)).lock().unwrap();
    let client = warmed_up(redis.client(ServerFailure::Paused));
    let mutex = client.mutex("a");
    let limit = ms(3_000);
    let timed: Vec<_> = thread::scope(|scope| {
        let calls: Vec<_> = (0..REPEATS)
            .map(|_| scope.spawn(|| Control::run(limit, || mutex.try_lock_for(limit))))
            .collect();
        eventually(limit, || redis.server.subscribers("lock_release:a") == 1);
        redis.fail(ServerFailure::Paused);
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    redis.server.resume();
    assert_in_time(&timed);
    for timed in timed {
        match timed.value {
            Ok(granted) => assert!(granted.is_err(), "the lock is held"),
            Err(error) => assert!(error.is_unreachable(), "{error:?}"),
        }
    }
}

fn assert_leases_end_in_time(failure: ServerFailure) {
    let mut redis = Redis::start();
    let client = redis.client(failure);
    let guards: Vec<Mutex<Option<MutexGuard>>> = (0..2 * REPEATS)
        .map(|n| Mutex::new(Some(client.mutex(format!("{n}")).lock().unwrap())))
        .collect();
    let take = |n: usize| guards[n].lock().unwrap().take().unwrap();
    let short: Vec<_> = (0..REPEATS)
        .map(|n| {
            let mutex = client.mutex(format!("short {n}"));
            mutex.ttl(ms(2_000 + 10 * n as u64)).lock().unwrap()
        })
        .collect();
    redis.fail(failure);
    thread::scope(|scope| {
        scope.spawn(|| assert_losses_reported_in_time(&short));
        for answer in run_in_time(COMMAND_TIMEOUT, |n| take(n).unlock()) {
            expect_unreachable(answer);
        }
        run_in_time(COMMAND_TIMEOUT, |n| drop(take(REPEATS + n)));
    });
    thread::scope(|scope| {
        for guard in short {
            // A guard whose lease has expired sends no command.
            scope.spawn(|| Control::run(ms(0), || drop(guard)).no_later_than(SLACK));
        }
    });
}

/// Asserts that each loss is reported when the lease expires by the local clock, not earlier.
fn assert_losses_reported_in_time(guards: &[MutexGuard]) {
    let timed: Vec<_> = thread::scope(|scope| {
        let waits: Vec<_> = guards
            .iter()
            .map(|guard| {
                scope.spawn(|| {
                    let lost = guard.lost();
                    let left = guard.remaining().expect("the lease has not expired yet");
                    let end = Instant::now() + left;
                    let timed = Control::run(left, || lost.recv());
                    let now = Instant::now();
                    assert!(!guard.is_held());
                    assert!(now + ms(2) >= end, "{:?} early", end - now);
                    timed
                })
            })
            .collect();
        waits.into_iter().map(|wait| wait.join().unwrap()).collect()
    });
    assert_in_time(&timed);
    assert!(timed.iter().all(|timed| timed.value == Ok(Lost::Expired)));
}

fn leases_on_a_paused_server_end_in_time() {
    assert_leases_end_in_time(ServerFailure::Paused);
}

fn leases_on_a_killed_server_end_in_time() {
    assert_leases_end_in_time(ServerFailure::Killed);
}

fn leases_on_a_black_holed_server_end_in_time() {
    assert_leases_end_in_time(ServerFailure::BlackHoled);
}

fn leases_on_a_busy_server_end_in_time() {
    assert_leases_end_in_time(ServerFailure::Busy);
}

fn leases_on_a_slow_server_end_in_time() {
    assert_leases_end_in_time(ServerFailure::Slow);
}

fn lease_is_held_exactly_until_it_expires() {
    let mut redis = Redis::start();
    let client = redis.client(ServerFailure::Paused);
    let guards: Vec<_> = (0..REPEATS)
        .map(|n| {
            let mutex = client.mutex(format!("{n}"));
            mutex
                .ttl(ms(300 + 10 * n as u64))
                .auto_renew(false)
                .lock()
                .unwrap()
        })
        .collect();
    redis.fail(ServerFailure::Paused);
    for guard in guards {
        while let Some(left) = guard.remaining() {
            let seen = Instant::now();
            let_pass(left);
            if seen.elapsed() >= left {
                assert!(!guard.is_held());
                assert_eq!(guard.remaining(), None);
            }
        }
    }
}

/// Returns a builder whose commands and connections may take far longer than `unreachable_for`.
fn builder_with_slow_commands() -> ClientBuilder {
    Client::builder()
        .connect_timeout(ms(4_000))
        .command_timeout(ms(4_000))
        .unreachable_for(ms(300))
}

/// Asserts that `lock` gives up long before a command times out.
fn assert_gives_up_before_a_command(lock: impl FnOnce() -> Result<(), leasehold::Error>) {
    let began = Instant::now();
    expect_unreachable(lock());
    let took = began.elapsed();
    assert!(took >= ms(300), "too early, after {took:?}");
    assert!(took <= ms(2_500), "too late, after {took:?}");
}

fn lock_gives_up_before_its_command_times_out() {
    let mut redis = Redis::start();
    let client = || {
        warmed_up(
            builder_with_slow_commands()
                .url(redis.server.url())
                .build()
                .unwrap(),
        )
    };
    let (plain, fair, all) = (client(), client(), client());
    let waiting = client();
    eventually(ms(20_000), || fair.fair_mutex("b").lock().is_ok());
    redis.fail(ServerFailure::Paused);
    thread::scope(|scope| {
        scope.spawn(|| assert_gives_up_before_a_command(|| plain.mutex("a").lock().map(drop)));
        scope.spawn(|| assert_gives_up_before_a_command(|| fair.fair_mutex("b").lock().map(drop)));
        let names = || all.mutex_all(["a", "b"]);
        scope.spawn(move || assert_gives_up_before_a_command(|| names().lock().map(drop)));
        for n in 0..8 {
            let waiting = &waiting;
            scope.spawn(move || {
                assert_gives_up_before_a_command(|| match n {
                    0..4 => waiting.mutex("a").lock().map(drop),
                    _ => waiting.fair_mutex("b").lock().map(drop),
                });
            });
        }
    });
    drop_together([plain, fair, all, waiting]);
}

fn lock_gives_up_while_connecting() {
    let holes: Vec<_> = (0..3).map(|_| BlackHole::start()).collect();
    let port = holes[0].port();
    let one = [
        format!("redis://127.0.0.1:{port}"),
        format!("redis+sentinel://127.0.0.1:{port}/master"),
        format!("redis+cluster://127.0.0.1:{port}"),
    ];
    let builders = one.map(|url| builder_with_slow_commands().url(url));
    let quorum = builder_with_slow_commands().quorum(holes.iter().map(BlackHole::url));
    let clients: Vec<_> = builders
        .into_iter()
        .chain([quorum])
        .map(|builder| builder.build().unwrap())
        .collect();
    thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| assert_gives_up_before_a_command(|| client.mutex("a").lock().map(drop)));
        }
    });
    drop_together(clients);
}

fn lock_gives_up_on_a_quorum_before_its_commands_time_out() {
    let redises: Vec<_> = (0..3).map(|_| Redis::start()).collect();
    let urls = redises.iter().map(|redis| redis.proxy.url());
    let client = warmed_up(builder_with_slow_commands().quorum(urls).build().unwrap());
    for redis in &redises {
        redis.proxy.set_all(Traffic::DropBoth);
    }
    assert_gives_up_before_a_command(|| client.mutex("a").lock().map(drop));
}

fn lock_gives_up_on_a_hung_master_before_its_command_times_out() {
    let sentinels = Sentinels::start(Setup::steady());
    let client = warmed_up(
        builder_with_slow_commands()
            .url(sentinels.url())
            .build()
            .unwrap(),
    );
    sentinels.first_master().pause();
    assert_gives_up_before_a_command(|| client.mutex("a").lock().map(drop));
    sentinels.first_master().resume();
}

fn lock_gives_up_on_a_hung_cluster_before_its_command_times_out() {
    let cluster = Cluster::with(ClusterSetup::steady(3, 0));
    let client = warmed_up(
        builder_with_slow_commands()
            .url(cluster.url())
            .build()
            .unwrap(),
    );
    (0..cluster.count()).for_each(|n| cluster.pause(n));
    assert_gives_up_before_a_command(|| client.mutex("a").lock().map(drop));
    (0..cluster.count()).for_each(|n| cluster.resume(n));
}

fn waiters_for_the_same_name_give_up_together() {
    let mut redis = Redis::start();
    let client = warmed_up(redis.client(ServerFailure::Killed));
    redis.fail(ServerFailure::Killed);
    let mutex = client.mutex("a");
    thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                let began = Instant::now();
                expect_unreachable(mutex.lock().map(drop));
                let took = began.elapsed();
                assert!(took >= UNREACHABLE_FOR, "too early, after {took:?}");
                assert!(
                    took <= UNREACHABLE_FOR + GENEROUS,
                    "too late, after {took:?}"
                );
            });
        }
    });
}

fn waiters_outlast_a_short_outage() {
    let mut redis = Redis::start();
    let holder = Client::open(redis.server.url()).unwrap();
    let client = builder()
        .url(redis.server.url())
        .unreachable_for(ms(20_000))
        .build()
        .unwrap();
    let held = holder.mutex("held").ttl(ms(60_000)).lock().unwrap();
    // The outage lasts until this lease expires.
    let witness = client.mutex("witness").ttl(ms(900)).lock().unwrap();
    let lost = witness.lost();
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| client.mutex("held").lock().map(drop)))
            .collect();
        eventually(ms(10_000), || {
            redis.server.subscribers("lock_release:held") == 1
        });
        redis.fail(ServerFailure::Paused);
        let calling: Vec<_> = (0..4)
            .map(|n| client.mutex(format!("free {n}")))
            .map(|mutex| scope.spawn(move || mutex.lock().map(drop)))
            .collect();
        assert_eq!(lost.recv(), Ok(Lost::Expired));
        redis.server.resume();
        let _ = held.unlock();
        for call in waiting.into_iter().chain(calling) {
            call.join().unwrap().unwrap();
        }
    });

    // A killed server that restarts empty is an outage too.
    redis.fail(ServerFailure::Killed);
    thread::scope(|scope| {
        let calls: Vec<_> = (0..4)
            .map(|n| client.mutex(format!("free {n}")))
            .map(|mutex| scope.spawn(move || mutex.lock().map(drop)))
            .collect();
        let_pass(ms(700));
        redis.server.restart();
        for call in calls {
            call.join().unwrap().unwrap();
        }
    });
}

/// Between two refreshes of its place, the client may get no reply for longer than
/// `unreachable_for`. This silence is no sign of an outage.
fn waiting_for_another_holder_is_not_taken_for_an_outage() {
    let redis = Redis::start();
    let holder = Client::open(redis.server.url()).unwrap();
    let held = holder.mutex("a").lock().unwrap();
    let client = builder()
        .url(redis.server.url())
        .unreachable_for(ms(300))
        .build()
        .unwrap();
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| client.mutex("a").lock().map(drop)))
            .collect();
        eventually(ms(10_000), || {
            redis.server.subscribers("lock_release:a") == 1
        });
        // The next refresh is sent 0.9 s after the subscription.
        let_pass(ms(900));
        let _ = held.unlock();
        for call in waiting {
            call.join().unwrap().unwrap();
        }
    });
}

fn call_that_takes_a_place_over_learns_that_the_lock_is_held() {
    // A round in which a reply arrived too late for one of the calls proves nothing.
    assert!((0..5).any(|_| call_takes_a_place_over()));
}

/// Returns whether both calls got a reply in time.
fn call_takes_a_place_over() -> bool {
    let server = Server::start();
    server.run("SET", &["lock:a", "foreign"]);
    let client = server.client();
    drop(client.mutex("warm").lock().unwrap());
    let mutex = client.mutex("a");
    thread::scope(|scope| {
        let first = scope.spawn(|| mutex.try_lock_for(ms(450)));
        // The second call gets the place between two refreshes, and ends before the next one.
        let_pass(ms(200));
        let second = mutex.try_lock_for(ms(600));
        [first.join().unwrap(), second].into_iter().all(|answer| {
            let is_late = answer.as_ref().is_err_and(Error::is_unreachable);
            assert!(is_late || answer.unwrap().is_err());
            !is_late
        })
    })
}
