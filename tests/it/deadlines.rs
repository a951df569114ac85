//! Promise: every call is back by its deadline, and a loss is told in time, whatever state Redis is in.

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
use leasehold::{Client, ClientBuilder, Lost, MutexGuard};
use support::{
    BlackHole, Cluster, ClusterSetup, Control, Proxy, Sentinels, Server, Setup, Timed, Traffic,
    eventually, expect_unreachable, let_pass, ms, refusing_url,
};

support::tests![
    those_who_wait_outlast_a_shorter_outage,
    waiting_for_another_holder_is_no_outage
];

support::timed![
    attempts_at_a_stopped_server,
    attempts_at_a_killed_server,
    attempts_at_a_server_that_has_become_a_black_hole,
    attempts_at_a_busy_server,
    attempts_at_a_slow_server,
    attempts_where_nobody_listens,
    attempts_at_what_was_never_a_redis,
    attempts_at_a_unix_socket_that_takes_nobody,
    a_slow_server_makes_nobody_late_at_any_step,
    calls_that_wait_behind_each_other_are_back_in_time,
    calls_that_wait_when_the_server_stops_are_back_in_time,
    leases_on_a_stopped_server,
    leases_on_a_killed_server,
    leases_on_a_black_hole,
    leases_on_a_busy_server,
    leases_on_a_slow_server,
    a_lease_is_over_at_its_instant_and_not_before,
    lock_gives_up_without_waiting_for_a_command_to_time_out,
    lock_gives_up_while_a_connection_is_being_made,
    lock_gives_up_without_waiting_for_the_commands_to_a_quorum_to_time_out,
    lock_gives_up_on_a_hung_master_without_waiting_for_a_command_to_time_out,
    lock_gives_up_on_a_hung_cluster_without_waiting_for_a_command_to_time_out,
    those_who_wait_for_the_same_name_give_up_together
];

/// What a call may be later than a plain wait of the same length.
const SLACK: Duration = ms(50);

const REPEATS: usize = 20;

/// So many at a time, since nearly all of a repeat is waiting.
const LANES: usize = 10;

const COMMAND_TIMEOUT: Duration = ms(300);

/// For how long `lock` puts up with a server that says nothing.
const UNREACHABLE_FOR: Duration = ms(900);

/// How late a call may be where exactness is not the point, on a machine that runs other tests too.
const GENEROUS: Duration = ms(750);

/// What may become of a Redis.
#[derive(Clone, Copy, Debug)]
enum MasterFailure {
    Stopped,
    Killed,
    /// Connections are accepted, and nothing is said on them.
    BlackHoled,
    /// A script runs and does not end.
    Busy,
    /// Answers come after every timeout here.
    Slow,
}

struct Redis {
    server: Server,
    proxy: Proxy,
}

impl Redis {
    fn start() -> Self {
        // The older name of busy-reply-threshold, which every version knows.
        let server = Server::with(&["--lua-time-limit", "100"]);
        let proxy = Proxy::new(&server);
        Self { server, proxy }
    }

    fn url(&self, trouble: MasterFailure) -> String {
        match trouble {
            MasterFailure::BlackHoled | MasterFailure::Slow => self.proxy.url(),
            MasterFailure::Stopped | MasterFailure::Killed | MasterFailure::Busy => {
                self.server.url()
            }
        }
    }

    fn client(&self, trouble: MasterFailure) -> Client {
        builder().url(self.url(trouble)).build().unwrap()
    }

    fn get_into(&mut self, trouble: MasterFailure) {
        match trouble {
            MasterFailure::Stopped => self.server.pause(),
            MasterFailure::Killed => self.server.kill(),
            MasterFailure::BlackHoled => self.proxy.set_all(Traffic::DropBoth),
            MasterFailure::Busy => {
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
            MasterFailure::Slow => self.proxy.delay(COMMAND_TIMEOUT, COMMAND_TIMEOUT),
        }
    }
}

fn builder() -> ClientBuilder {
    Client::builder()
        .connect_timeout(COMMAND_TIMEOUT)
        .command_timeout(COMMAND_TIMEOUT)
        .unreachable_for(UNREACHABLE_FOR)
}

/// Has an idle connection, and its threads at work.
fn warm(client: Client) -> Client {
    let _ = client.mutex("warm").lock().unwrap().unlock().unwrap();
    client
}

/// Runs a call with this limit over and over, each beside a plain wait of that length: the latest call is hardly later
/// than the latest plain wait. Returns what the calls did.
#[track_caller]
fn in_time<T: Send>(limit: Duration, call: impl Fn(usize) -> T + Sync) -> Vec<T> {
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
    are_in_time(&timed);
    timed.into_iter().map(|timed| timed.value).collect()
}

/// Hardly later than a plain wait, which this machine makes late too; a call is woken a few times on its way, and each
/// time may be as late. One in ten may have met worse than the plain waits did: other programs run here.
#[track_caller]
fn are_in_time<T>(timed: &[Timed<T>]) {
    let mut late: Vec<_> = timed
        .iter()
        .map(|timed| timed.took.saturating_sub(timed.limit))
        .collect();
    late.sort();
    let overshoot = 3 * timed.iter().map(|timed| timed.overshoot).max().unwrap();
    assert_eq!(late.len(), REPEATS);
    let [.., most, _, worst] = late[..] else {
        unreachable!("just counted")
    };
    assert!(
        most <= overshoot + SLACK && worst <= overshoot + 4 * SLACK,
        "{most:?} late, and once {worst:?}, where three plain waits overshoot by up to {overshoot:?}"
    );
}

/// Calls of clients that knew better days, and of clients made just now.
fn attempts_are_back_in_time(trouble: MasterFailure) {
    let mut redis = Redis::start();
    let used = || -> Vec<_> { (0..REPEATS).map(|_| warm(redis.client(trouble))).collect() };
    // Each has one connection that has seen better days, so each is good for one attempt.
    let (waiting, at_once, patient) = (used(), used(), warm(redis.client(trouble)));
    redis.get_into(trouble);
    thread::scope(|scope| {
        scope.spawn(|| {
            for answer in in_time(ms(200), |n| {
                let mutex = waiting[n].mutex("a");
                mutex.try_lock_for(ms(200)).map(drop)
            }) {
                expect_unreachable(answer);
            }
            for answer in in_time(COMMAND_TIMEOUT, |n| {
                at_once[n].mutex("a").try_lock().map(drop)
            }) {
                expect_unreachable(answer);
            }
        });
        scope.spawn(|| fresh_clients_are_back_in_time(&redis.url(trouble)));
        scope.spawn(|| lock_gives_up_in_time(&patient));
    });
    drop_together(waiting.into_iter().chain(at_once));
}

/// The end of a client takes its own time, and is no part of a call.
fn drop_together(clients: impl IntoIterator<Item = Client>) {
    thread::scope(|scope| {
        for client in clients {
            scope.spawn(|| drop(client));
        }
    });
}

fn lock_gives_up_in_time(client: &Client) {
    let began = Instant::now();
    expect_unreachable(client.mutex("a").lock().map(drop));
    let took = began.elapsed();
    assert!(took >= UNREACHABLE_FOR, "already after {took:?}");
    assert!(took <= UNREACHABLE_FOR + GENEROUS, "only after {took:?}");
}

fn fresh_clients_are_back_in_time(url: &str) {
    for answer in fresh_in_time(url, ms(200), |client| {
        client.mutex("a").try_lock_for(ms(200)).map(drop)
    }) {
        expect_unreachable(answer);
    }
    for answer in fresh_in_time(url, COMMAND_TIMEOUT, |client| {
        client.mutex("a").try_lock().map(drop)
    }) {
        expect_unreachable(answer);
    }
}

/// As [`in_time`], with a new client for each call.
#[track_caller]
fn fresh_in_time<T: Send>(
    url: &str,
    limit: Duration,
    call: impl Fn(&Client) -> T + Sync,
) -> Vec<T> {
    let used = Mutex::new(Vec::new());
    let values = in_time(limit, |_| {
        let client = builder().url(url).build().unwrap();
        let value = call(&client);
        used.lock().unwrap().push(client);
        value
    });
    drop_together(used.into_inner().unwrap());
    values
}

fn attempts_at_a_stopped_server() {
    attempts_are_back_in_time(MasterFailure::Stopped);
}

fn attempts_at_a_killed_server() {
    attempts_are_back_in_time(MasterFailure::Killed);
}

fn attempts_at_a_server_that_has_become_a_black_hole() {
    attempts_are_back_in_time(MasterFailure::BlackHoled);
}

fn attempts_at_a_busy_server() {
    attempts_are_back_in_time(MasterFailure::Busy);
}

fn attempts_at_a_slow_server() {
    attempts_are_back_in_time(MasterFailure::Slow);
}

fn attempts_where_nobody_listens() {
    fresh_clients_are_back_in_time(&refusing_url());
}

fn attempts_at_what_was_never_a_redis() {
    let hole = BlackHole::start();
    fresh_clients_are_back_in_time(&hole.url());
    assert!(hole.connections() > 0);
}

/// A listener that accepts nobody, with a queue that has no room: connecting hangs, and knows no timeout.
fn attempts_at_a_unix_socket_that_takes_nobody() {
    let path = env::temp_dir().join(format!("leasehold-backlog-{}", process::id()));
    let _ = fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    let (connected, connections) = unbounded();
    let filling = thread::spawn({
        let path = path.clone();
        move || {
            // Those that were closed stay in the queue.
            while UnixStream::connect(&path).is_ok() {
                let _ = connected.send(());
            }
        }
    });
    while connections.recv_timeout(ms(500)).is_ok() {}
    fresh_clients_are_back_in_time(&format!("redis+unix://{}", path.display()));
    drop(listener);
    filling.join().unwrap();
    let _ = fs::remove_file(&path);
}

/// The deadline may fall into connecting, the first attempt, the subscription, or the wait.
fn a_slow_server_makes_nobody_late_at_any_step() {
    let server = Server::start();
    let holder = Client::open(&server.url()).unwrap();
    let _held = holder.mutex("a").lock().unwrap();
    for one_way in [10, 35, 60] {
        let proxy = Proxy::new(&server);
        proxy.delay(ms(one_way), ms(one_way));
        for answer in fresh_in_time(&proxy.url(), ms(200), |client| {
            let answer = client.mutex("a").try_lock_for(ms(200));
            answer.map(|guard| guard.is_some())
        }) {
            match answer {
                Ok(got) => assert!(!got, "it is held"),
                Err(error) => assert!(error.is_unreachable(), "{error:?}"),
            }
        }
    }
}

fn calls_that_wait_behind_each_other_are_back_in_time() {
    let mut redis = Redis::start();
    let client = warm(redis.client(MasterFailure::Stopped));
    redis.get_into(MasterFailure::Stopped);
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
    are_in_time(&timed);
    for timed in timed {
        // Nobody has seen another holder, so nobody may say that there is one.
        expect_unreachable(timed.value);
    }
}

fn calls_that_wait_when_the_server_stops_are_back_in_time() {
    let mut redis = Redis::start();
    let holder = Client::open(&redis.server.url()).unwrap();
    let _held = holder.mutex("a").ttl(ms(60_000)).lock().unwrap();
    let client = warm(redis.client(MasterFailure::Stopped));
    let mutex = client.mutex("a");
    let limit = ms(1_000);
    let timed: Vec<_> = thread::scope(|scope| {
        let calls: Vec<_> = (0..REPEATS)
            .map(|_| scope.spawn(|| Control::run(limit, || mutex.try_lock_for(limit))))
            .collect();
        eventually(ms(900), || redis.server.subscribers("lock_release:a") == 1);
        redis.get_into(MasterFailure::Stopped);
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    redis.server.resume();
    are_in_time(&timed);
    for timed in timed {
        match timed.value {
            Ok(got) => assert!(got.is_none(), "it is held"),
            Err(error) => assert!(error.is_unreachable(), "{error:?}"),
        }
    }
}

fn held_leases_end_in_time(trouble: MasterFailure) {
    let mut redis = Redis::start();
    let client = redis.client(trouble);
    let guards: Vec<Mutex<Option<MutexGuard>>> = (0..2 * REPEATS)
        .map(|n| Mutex::new(Some(client.mutex(format!("{n}")).lock().unwrap())))
        .collect();
    let take = |n: usize| guards[n].lock().unwrap().take().unwrap();
    let short: Vec<_> = (0..REPEATS)
        .map(|n| {
            let mutex = client.mutex(format!("short {n}"));
            mutex.ttl(ms(600 + 10 * n as u64)).lock().unwrap()
        })
        .collect();
    redis.get_into(trouble);
    thread::scope(|scope| {
        scope.spawn(|| losses_are_told_in_time(&short));
        for answer in in_time(COMMAND_TIMEOUT, |n| take(n).unlock()) {
            expect_unreachable(answer);
        }
        in_time(COMMAND_TIMEOUT, |n| drop(take(REPEATS + n)));
    });
    thread::scope(|scope| {
        for guard in short {
            // It has nothing to ask Redis any more.
            scope.spawn(|| Control::run(ms(0), || drop(guard)).no_later_than(SLACK));
        }
    });
}

/// A loss is told when the lease has run out by our own clock: not before, and hardly after.
fn losses_are_told_in_time(guards: &[MutexGuard]) {
    let timed: Vec<_> = thread::scope(|scope| {
        let waits: Vec<_> = guards
            .iter()
            .map(|guard| {
                scope.spawn(|| {
                    let lost = guard.lost();
                    let left = guard.remaining().expect("the lease outlasts the start");
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
    are_in_time(&timed);
    assert!(timed.iter().all(|timed| timed.value == Ok(Lost::Expired)));
}

fn leases_on_a_stopped_server() {
    held_leases_end_in_time(MasterFailure::Stopped);
}

fn leases_on_a_killed_server() {
    held_leases_end_in_time(MasterFailure::Killed);
}

fn leases_on_a_black_hole() {
    held_leases_end_in_time(MasterFailure::BlackHoled);
}

fn leases_on_a_busy_server() {
    held_leases_end_in_time(MasterFailure::Busy);
}

fn leases_on_a_slow_server() {
    held_leases_end_in_time(MasterFailure::Slow);
}

fn a_lease_is_over_at_its_instant_and_not_before() {
    let mut redis = Redis::start();
    let client = redis.client(MasterFailure::Stopped);
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
    redis.get_into(MasterFailure::Stopped);
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

/// One command or one connection may take far longer than `unreachable_for`.
fn impatient() -> ClientBuilder {
    Client::builder()
        .connect_timeout(ms(4_000))
        .command_timeout(ms(4_000))
        .unreachable_for(ms(300))
}

/// `lock` gives up, well before a command may time out.
fn gives_up_before_a_command(lock: impl FnOnce() -> Result<(), leasehold::Error>) {
    let began = Instant::now();
    expect_unreachable(lock());
    let took = began.elapsed();
    assert!(took >= ms(300), "already after {took:?}");
    assert!(took <= ms(2_500), "only after {took:?}");
}

fn lock_gives_up_without_waiting_for_a_command_to_time_out() {
    let mut redis = Redis::start();
    let client = || warm(impatient().url(redis.server.url()).build().unwrap());
    let (plain, fair, all) = (client(), client(), client());
    let waiting = client();
    let _ = fair.fair_mutex("b").lock().unwrap().unlock().unwrap();
    redis.get_into(MasterFailure::Stopped);
    thread::scope(|scope| {
        scope.spawn(|| gives_up_before_a_command(|| plain.mutex("a").lock().map(drop)));
        scope.spawn(|| gives_up_before_a_command(|| fair.fair_mutex("b").lock().map(drop)));
        let names = || all.mutex_all(["a", "b"]);
        scope.spawn(move || gives_up_before_a_command(|| names().lock().map(drop)));
        for n in 0..8 {
            let waiting = &waiting;
            scope.spawn(move || {
                gives_up_before_a_command(|| match n {
                    0..4 => waiting.mutex("a").lock().map(drop),
                    _ => waiting.fair_mutex("b").lock().map(drop),
                });
            });
        }
    });
    drop_together([plain, fair, all, waiting]);
}

fn lock_gives_up_while_a_connection_is_being_made() {
    let holes: Vec<_> = (0..3).map(|_| BlackHole::start()).collect();
    let port = holes[0].port();
    let one = [
        format!("redis://127.0.0.1:{port}"),
        format!("redis+sentinel://127.0.0.1:{port}/master"),
        format!("redis+cluster://127.0.0.1:{port}"),
    ];
    let builders = one.map(|url| impatient().url(url));
    let quorum = impatient().quorum(holes.iter().map(BlackHole::url));
    let clients: Vec<_> = builders
        .into_iter()
        .chain([quorum])
        .map(|builder| builder.build().unwrap())
        .collect();
    thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| gives_up_before_a_command(|| client.mutex("a").lock().map(drop)));
        }
    });
    drop_together(clients);
}

fn lock_gives_up_without_waiting_for_the_commands_to_a_quorum_to_time_out() {
    let redises: Vec<_> = (0..3).map(|_| Redis::start()).collect();
    let urls = redises.iter().map(|redis| redis.proxy.url());
    let client = warm(impatient().quorum(urls).build().unwrap());
    for redis in &redises {
        redis.proxy.set_all(Traffic::DropBoth);
    }
    gives_up_before_a_command(|| client.mutex("a").lock().map(drop));
}

fn lock_gives_up_on_a_hung_master_without_waiting_for_a_command_to_time_out() {
    let sentinels = Sentinels::start(Setup::steady());
    let client = warm(impatient().url(sentinels.url()).build().unwrap());
    sentinels.first_master().pause();
    gives_up_before_a_command(|| client.mutex("a").lock().map(drop));
    sentinels.first_master().resume();
}

fn lock_gives_up_on_a_hung_cluster_without_waiting_for_a_command_to_time_out() {
    let cluster = Cluster::with(ClusterSetup::steady(3, 0));
    let client = warm(impatient().url(cluster.url()).build().unwrap());
    (0..cluster.count()).for_each(|n| cluster.pause(n));
    gives_up_before_a_command(|| client.mutex("a").lock().map(drop));
    (0..cluster.count()).for_each(|n| cluster.resume(n));
}

fn those_who_wait_for_the_same_name_give_up_together() {
    let mut redis = Redis::start();
    let client = warm(redis.client(MasterFailure::Killed));
    redis.get_into(MasterFailure::Killed);
    let mutex = client.mutex("a");
    thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                let began = Instant::now();
                expect_unreachable(mutex.lock().map(drop));
                let took = began.elapsed();
                assert!(took >= UNREACHABLE_FOR, "already after {took:?}");
                assert!(took <= UNREACHABLE_FOR + GENEROUS, "only after {took:?}");
            });
        }
    });
}

fn those_who_wait_outlast_a_shorter_outage() {
    let mut redis = Redis::start();
    let holder = Client::open(&redis.server.url()).unwrap();
    let client = builder()
        .url(redis.server.url())
        .unreachable_for(ms(20_000))
        .build()
        .unwrap();
    let held = holder.mutex("held").ttl(ms(60_000)).lock().unwrap();
    // As long as the outage is to be at the least.
    let witness = client.mutex("witness").ttl(ms(900)).lock().unwrap();
    let lost = witness.lost();
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| client.mutex("held").lock().map(drop)))
            .collect();
        eventually(ms(10_000), || {
            redis.server.subscribers("lock_release:held") == 1
        });
        redis.get_into(MasterFailure::Stopped);
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

    // From a server that is killed and comes back empty, too.
    redis.get_into(MasterFailure::Killed);
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

/// Redis is asked nothing while a waiter sleeps; that is no silence of Redis.
fn waiting_for_another_holder_is_no_outage() {
    let redis = Redis::start();
    let holder = Client::open(&redis.server.url()).unwrap();
    let held = holder.mutex("a").lock().unwrap();
    let client = builder()
        .url(redis.server.url())
        .unreachable_for(ms(300))
        .backstop(ms(20_000))
        .build()
        .unwrap();
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| client.mutex("a").lock().map(drop)))
            .collect();
        eventually(ms(10_000), || {
            redis.server.subscribers("lock_release:a") == 1
        });
        let_pass(ms(1_200));
        let _ = held.unlock();
        for call in waiting {
            call.join().unwrap().unwrap();
        }
    });
}
