//! Promise: in a cluster a lock keeps what it promises on one server, while slots move and masters are replaced.

mod support;

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::unbounded;
use leasehold::{Client, ClientBuilder, Error, Lost, MutexGuard, Unlocked};
use support::{
    BlackHole, Child, Cluster, ClusterSetup, Control, Server, eventually, free_port, given, ms, say,
};

/// What a call may be later than a plain wait of the same length.
const SLACK: Duration = ms(250);

const COMMAND_TIMEOUT: Duration = ms(500);

/// How soon after the new master takes writes somebody holds the lock there.
const GO_ON_WITHIN: Duration = ms(2_000);

const PROCESSES: usize = 3;
const THREADS: usize = 2;

#[test]
fn child() {
    support::role(&[("contender", contender)]);
}

fn builder(url: &str) -> ClientBuilder {
    Client::builder()
        .url(url)
        .connect_timeout(COMMAND_TIMEOUT)
        .command_timeout(COMMAND_TIMEOUT)
}

fn client(url: &str) -> Client {
    builder(url).build().unwrap()
}

fn steady() -> Cluster {
    Cluster::with(ClusterSetup::steady(3, 0))
}

/// One for the tests that leave all nodes alone, each with names of its own.
fn shared() -> &'static Cluster {
    static SHARED: OnceLock<Cluster> = OnceLock::new();
    SHARED.get_or_init(|| steady().untimed())
}

/// A name that begins like this, on this node as the slots are at the start.
fn name_on(cluster: &Cluster, what: &str, node: usize) -> String {
    (0..)
        .map(|n| format!("{what}{n}"))
        .find(|name| usize::from(cluster.slot(&lock(name))) * 3 / 16_384 == node)
        .expect("there are names for every node")
}

fn lock(name: &str) -> String {
    format!("lock:{name}")
}

#[track_caller]
fn released(guard: MutexGuard) {
    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
}

/// Waits for the lock, but not for ever if the test has failed.
fn in_time(client: &Client, name: &str) -> MutexGuard {
    let guard = client.mutex(name).try_lock_for(ms(30_000)).unwrap();
    guard.expect("it is released")
}

/// The scripts that a node was sent.
fn scripts(cluster: &Cluster, node: usize) -> u64 {
    cluster.node(node).calls(&["evalsha", "eval"])
}

/// All that one server promises, on each master, and with one connection that hears on each.
#[test]
fn smoke() {
    let cluster = shared();
    let one = client(&cluster.url());
    let two = builder(&cluster.url()).backstop(ms(60_000));
    let two = two.connection_name("two").build().unwrap();
    assert!(one.ping().is_ok());
    for node in 0..3 {
        let name = name_on(cluster, "smoke", node);
        let guard = one.mutex(&*name).ttl(ms(60_000)).lock().unwrap();
        assert!(cluster.node(node).get(lock(&name)).is_some());
        assert!(two.mutex(&*name).try_lock().unwrap().is_none());
        let holder = two.mutex(&*name).inspect().unwrap().expect("it is held");
        assert_eq!(holder.fencing_token(), Some(guard.fencing_token()));
        guard.renew().unwrap();
        guard.extend(ms(50_000)).unwrap();
        let before = guard.fencing_token();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let guard = two.mutex(&*name).lock().unwrap();
                (guard, Instant::now())
            });
            let channel = format!("lock_release:{name}");
            cluster.node(node).wait_for_a_waiter(&channel);
            let at = Instant::now();
            released(guard);
            let (guard, got) = waiting.join().unwrap();
            // Longer than any look around: it is the release that wakes.
            assert!(got - at < ms(5_000), "{:?}", got - at);
            assert!(guard.fencing_token() > before);
            assert!(two.mutex(&*name).force_unlock().unwrap());
            eventually(ms(10_000), || !guard.is_held());
        });
        let hearing = cluster.node(node).client_list();
        let hearing = hearing.iter();
        let hearing = hearing.filter(|client| client["name"] == "two" && client["sub"] != "0");
        assert_eq!(hearing.count(), 1, "one connection that hears");
    }
    assert!(one.shutdown(ms(5_000)).unwrap().is_clean());
    assert!(two.shutdown(ms(5_000)).unwrap().is_clean());
}

#[test]
fn leases_are_renewed_on_every_master() {
    let cluster = shared();
    let client = client(&cluster.url());
    let (renewed, renewals) = unbounded();
    let hold = |node| {
        let renewed = renewed.clone();
        let mutex = client.mutex(name_on(cluster, "renewed", node));
        let mutex = mutex.ttl(ms(3_000));
        let mutex = mutex.renew_every(ms(200)).on_renew(move |_| {
            let _ = renewed.send(node);
        });
        mutex.lock().unwrap()
    };
    let guards: Vec<_> = (0..3).map(hold).collect();
    let mut counts = [0; 3];
    while counts.iter().any(|count| *count < 20) {
        counts[renewals.recv_timeout(ms(10_000)).expect("all are renewed")] += 1;
    }
    guards.into_iter().for_each(released);
}

/// Names on which a cluster must not disagree with itself.
#[test]
fn names_with_braces() {
    let cluster = shared();
    let client = client(&cluster.url());
    for name in ["{u1}:a", "a{b", "{", "{{a}", "{a}}", "é{ü}", "a{b}c{d}"] {
        let guard = client.mutex(name).lock().unwrap();
        assert!(client.mutex(name).inspect().unwrap().is_some());
        released(guard);
    }
    for name in ["a}b", "{}x", "}", "a{}{b}"] {
        for error in [
            client.mutex(name).try_lock().map(drop).unwrap_err(),
            client.mutex(name).inspect().map(drop).unwrap_err(),
        ] {
            assert!(matches!(error, Error::Config(_)), "{error:?}");
            assert!(error.to_string().contains("slots"), "{error}");
        }
    }
    // One server keeps them all.
    let server = Server::start();
    let plain = Client::open(&server.url()).unwrap();
    released(plain.mutex("a}b").lock().unwrap());
}

/// What was known of a slot is wrong: one trip more, and then it is known.
#[test]
fn a_slot_that_has_moved_is_followed() {
    let cluster = steady();
    let client = client(&cluster.url());
    let name = name_on(&cluster, "a", 0);
    let slot = cluster.slot(&lock(&name));
    let mutex = client.mutex(&*name);
    released(mutex.lock().unwrap());
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        cluster.move_slot(slot, from, to);
        let before = scripts(&cluster, from);
        released(mutex.lock().unwrap());
        released(mutex.lock().unwrap());
        // What is turned away is not counted as called.
        assert_eq!(scripts(&cluster, from), before);
        let refused = cluster.node(from).info("errorstats", "errorstat_MOVED");
        assert_eq!(refused.as_deref(), Some("count=1"), "asked there once");
    }
}

/// The slot of a held name moves under it. All along it is held, renewed and waited for.
#[test]
fn a_slot_that_moves_while_held() {
    let cluster = shared();
    let (one, two) = (client(&cluster.url()), client(&cluster.url()));
    for is_released_on_the_way in [true, false] {
        let name = name_on(cluster, "moves", 0);
        let slot = cluster.slot(&lock(&name));
        let (renewed, renewals) = unbounded();
        let mutex = one.mutex(&*name).ttl(ms(4_000)).renew_every(ms(100));
        let mutex = mutex.on_renew(move |_| {
            let _ = renewed.send(());
        });
        let is_renewed = || {
            while renewals.try_recv().is_ok() {}
            for _ in 0..3 {
                renewals.recv_timeout(ms(10_000)).expect("it is renewed");
            }
        };
        let guard = mutex.lock().unwrap();
        let token = guard.fencing_token();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| in_time(&two, &name));
            let channel = format!("lock_release:{name}");
            cluster.node(0).wait_for_a_waiter(&channel);
            cluster.begin_migration(slot, 0, 1);
            is_renewed();
            assert!(two.mutex(&*name).inspect().unwrap().is_some());
            cluster.move_keys(slot, 0, 1);
            let count = ["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()];
            assert_eq!(cluster.ask::<u32>(1, &count).unwrap(), 2);
            is_renewed();
            guard.renew().unwrap();
            let holder = two.mutex(&*name).inspect().unwrap().expect("it is held");
            assert_eq!(holder.fencing_token(), Some(token));
            assert!(two.mutex("other").try_lock().unwrap().is_some());
            assert!(!waiting.is_finished());
            if is_released_on_the_way {
                released(guard);
                cluster.end_migration(slot, 0, 1);
            } else {
                cluster.end_migration(slot, 0, 1);
                is_renewed();
                released(guard);
            }
            let at = Instant::now();
            let guard = waiting.join().unwrap();
            assert!(at.elapsed() < GO_ON_WITHIN, "{:?}", at.elapsed());
            assert!(guard.fencing_token() > token);
            released(guard);
        });
        cluster.move_slot(slot, 1, 0);
    }
}

/// The two keys of a name are on two nodes for a while: nothing can be taken then, nor is refused.
#[test]
fn keys_that_are_apart_are_waited_for() {
    let cluster = shared();
    let client = client(&cluster.url());
    let name = name_on(cluster, "apart", 0);
    let slot = cluster.slot(&lock(&name));
    let mutex = client.mutex(&*name);
    let guard = mutex.ttl(ms(60_000)).lock().unwrap();
    let token = guard.fencing_token();
    cluster.begin_migration(slot, 0, 1);
    let fence = format!("leasehold:fence:{{lock:{name}}}");
    cluster.move_key(&fence, 0, 1);
    guard.renew().unwrap();
    released(guard);
    let mutex = client.mutex(&*name);
    let count = || cluster.node(1).info("errorstats", "errorstat_TRYAGAIN");
    let timed = Control::run(COMMAND_TIMEOUT, || mutex.try_lock());
    match timed.no_later_than(SLACK) {
        Err(error @ Error::Unreachable { .. }) => {
            let text = error.to_string();
            assert!(text.contains("TRYAGAIN"), "{text}");
            assert!(text.contains("cluster 127.0.0.1"), "{text}");
        }
        other => panic!("{other:?}"),
    }
    thread::scope(|scope| {
        let waiting = scope.spawn(|| in_time(&client, &name));
        let before = count();
        eventually(ms(10_000), || count() != before);
        cluster.end_migration(slot, 0, 1);
        let guard = waiting.join().unwrap();
        assert!(guard.fencing_token() > token);
        released(guard);
    });
}

#[track_caller]
fn is_unreachable<T: std::fmt::Debug>(answer: Result<T, Error>) -> String {
    match answer {
        Err(error @ Error::Unreachable { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

/// New clients that are told in time that they are alone.
#[track_caller]
fn nobody_answers(url: &str) {
    thread::scope(|scope| {
        scope.spawn(|| {
            let limit = ms(300);
            let fresh = client(url);
            let timed = Control::run(limit, || fresh.mutex("a").try_lock_for(limit));
            let text = is_unreachable(timed.no_later_than(SLACK));
            assert!(text.contains("cluster 127.0.0.1:"), "{text}");
        });
        scope.spawn(|| {
            let fresh = client(url);
            let timed = Control::run(COMMAND_TIMEOUT, || fresh.mutex("a").try_lock());
            is_unreachable(timed.no_later_than(SLACK));
            let timed = Control::run(COMMAND_TIMEOUT, || fresh.ping());
            is_unreachable(timed.no_later_than(SLACK));
        });
        scope.spawn(|| {
            let fresh = builder(url).unreachable_for(ms(1_000)).build().unwrap();
            // An attempt that is under way is waited for, and so is the pause between two.
            let limit = ms(1_000) + COMMAND_TIMEOUT + ms(500);
            let timed = Control::run(limit, || fresh.mutex("a").lock());
            is_unreachable(timed.no_later_than(SLACK));
        });
    });
}

#[test]
fn seeds_that_are_away() {
    let dead = [free_port(), free_port()].map(|port| format!("127.0.0.1:{port}"));
    nobody_answers(&format!("redis+cluster://{}", dead.join(",")));
    let hole = BlackHole::start();
    nobody_answers(&format!("redis+cluster://127.0.0.1:{}", hole.port()));

    // One of them costs nothing.
    let hole = format!("://127.0.0.1:{},{},", hole.port(), dead[0]);
    let url = shared().url().replace("://", &hole);
    for _ in 0..10 {
        let limit = ms(300);
        let client = client(&url);
        let timed = Control::run(limit, || client.mutex("seeds").try_lock_for(limit));
        released(timed.no_later_than(SLACK).unwrap().expect("it is free"));
    }
}

#[test]
fn a_cluster_that_is_away() {
    let mut cluster = steady();
    let known = client(&cluster.url());
    let names: Vec<_> = (0..3).map(|node| name_on(&cluster, "a", node)).collect();
    for name in &names {
        released(known.mutex(&**name).lock().unwrap());
    }
    for stop in [true, false] {
        for node in 0..3 {
            if stop {
                cluster.stop(node);
            } else {
                cluster.kill(node);
            }
        }
        thread::scope(|scope| {
            for name in &names {
                scope.spawn(|| {
                    let timed = Control::run(COMMAND_TIMEOUT, || known.mutex(&**name).try_lock());
                    is_unreachable(timed.no_later_than(SLACK));
                });
            }
            nobody_answers(&cluster.url());
        });
    }
}

/// One hangs while it is asked: the undo ends what it may have granted.
#[test]
fn an_acquire_without_an_answer_is_undone() {
    let cluster = steady();
    let (one, two) = (client(&cluster.url()), client(&cluster.url()));
    let name = name_on(&cluster, "a", 1);
    released(one.mutex(&*name).lock().unwrap());
    cluster.stop(1);
    let error = one.mutex(&*name).ttl(ms(60_000)).try_lock().unwrap_err();
    let port = cluster.client_port(1);
    let text = is_unreachable::<()>(Err(error));
    assert!(text.contains(&format!("127.0.0.1:{port}: ")), "{text}");
    // The others have nothing to do with it.
    for node in [0, 2] {
        released(one.mutex(name_on(&cluster, "a", node)).lock().unwrap());
    }
    cluster.resume(1);
    let guard = two.mutex(&*name).try_lock_for(ms(10_000)).unwrap();
    released(guard.expect("it was undone"));
}

#[test]
fn what_is_no_cluster_says_so() {
    let server = Server::start();
    let url = server.url().replace("redis://", "redis+cluster://");
    let limit = COMMAND_TIMEOUT;
    let timed = Control::run(limit, || client(&url).mutex("a").lock());
    let error = timed.no_later_than(SLACK).unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(error.to_string().contains("redis://"), "{error}");

    let cluster = shared();
    let port = cluster.client_port(0);
    let client = Client::open(&format!("redis://127.0.0.1:{port}")).unwrap();
    let error = client
        .mutex(name_on(cluster, "plain", 1))
        .lock()
        .unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(error.to_string().contains("redis+cluster://"), "{error}");
}

#[test]
fn passwords() {
    let cluster = Cluster::with(ClusterSetup {
        password: Some("p@ss"),
        ..ClusterSetup::steady(3, 0)
    });
    let right = client(&cluster.url());
    for n in 0..20 {
        released(right.mutex(format!("n{n}")).lock().unwrap());
    }
    let wrong = client(&cluster.url_as(":wr0ng@"));
    match wrong.mutex("a").lock() {
        Err(error @ Error::Refused { .. }) => {
            assert!(error.to_string().contains("password"), "{error}");
            assert!(!error.to_string().contains("wr0ng"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    Killed,
    Stopped,
    SwitchedByCommand,
}

fn get_into(trouble: Trouble, cluster: &mut Cluster, master: usize) {
    match trouble {
        Trouble::Killed => cluster.kill(master),
        Trouble::Stopped => cluster.stop(master),
        Trouble::SwitchedByCommand => {
            let replica = cluster.replicas_of(master).next();
            cluster.failover(replica.expect("it has one"));
        }
    }
}

/// What the lock protects: a server that has nothing to do with the cluster. It turns away whoever was overtaken.
/// Returns whether the write was accepted, and how many others were inside at this moment.
const ENTER: &str = "
local others = redis.call('SCARD', 'inside')
redis.call('SADD', 'inside', ARGV[1])
if others > 0 then redis.call('INCR', 'coincided') end
redis.call('INCR', 'entered')
if tonumber(ARGV[1]) < tonumber(redis.call('GET', 'newest') or 0) then
  redis.call('INCR', 'stale')
  return 0
end
redis.call('SET', 'newest', ARGV[1])
redis.call('RPUSH', 'accepted', ARGV[1])
return 1
";

/// Takes the lock over and over, until told to stop, and says how it went.
fn contender() {
    let client = builder(&given("URL")).ttl(ms(5_000)).build().unwrap();
    let witness = redis::Client::open(given("WITNESS")).unwrap();
    let ready = Barrier::new(THREADS + 1);
    let is_over = AtomicBool::new(false);
    let (late, overshoot) = thread::scope(|scope| {
        let overshoot = scope.spawn(|| overshoot_until(&is_over));
        let threads: Vec<_> = (0..THREADS)
            .map(|_| scope.spawn(|| contend(&client, &witness, &ready)))
            .collect();
        ready.wait();
        say("ready");
        let late = threads.into_iter().map(|thread| thread.join().unwrap());
        let late = late.max().unwrap();
        is_over.store(true, Ordering::SeqCst);
        (late, overshoot.join().unwrap())
    });
    // Nothing is left of what was for the master before.
    for thread in ["leasehold-io", "leasehold-subsc"] {
        eventually(ms(20_000), || threads(thread) == 1);
    }
    say(&format!("{} {}", late.as_millis(), overshoot.as_millis()));
}

/// How many threads of this process have this name, or so much of it as the system keeps.
fn threads(name: &str) -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|comm| comm.trim_end() == name).count()
}

/// The most that a plain wait was late.
fn overshoot_until(is_over: &AtomicBool) -> Duration {
    let mut most = Duration::ZERO;
    while !is_over.load(Ordering::SeqCst) {
        most = most.max(Control::start(ms(100)).overshoot());
    }
    most
}

/// Returns how late the latest call was.
fn contend(client: &Client, witness: &redis::Client, ready: &Barrier) -> Duration {
    let mutex = client.mutex(given("NAME"));
    let mut witness = witness.get_connection().unwrap();
    let limit = ms(700);
    let mut late = Duration::ZERO;
    let mut is_ready = false;
    loop {
        let began = Instant::now();
        let answer = mutex.try_lock_for(limit);
        late = late.max(began.elapsed().saturating_sub(limit));
        match answer {
            Ok(Some(guard)) => {
                let token = guard.fencing_token().value();
                let _: i32 = redis::cmd("EVAL")
                    .arg(ENTER)
                    .arg(0)
                    .arg(token)
                    .query(&mut witness)
                    .unwrap();
                // The work that the lock is for.
                let _ = guard.lost().recv_timeout(ms(5));
                redis::cmd("SREM")
                    .arg("inside")
                    .arg(token)
                    .exec(&mut witness)
                    .unwrap();
                let began = Instant::now();
                match guard.unlock() {
                    Ok(Unlocked::Released) | Err(Error::Unreachable { .. }) => {}
                    Ok(Unlocked::AlreadyLost(_)) => {
                        redis::cmd("INCR").arg("told").exec(&mut witness).unwrap()
                    }
                    Err(error) => panic!("{error:?}"),
                }
                late = late.max(began.elapsed().saturating_sub(COMMAND_TIMEOUT));
                if !std::mem::replace(&mut is_ready, true) {
                    ready.wait();
                }
            }
            Ok(None) => {}
            Err(error) => assert!(error.is_unreachable(), "{error:?}"),
        }
        let stop: bool = redis::cmd("EXISTS")
            .arg("stop")
            .query(&mut witness)
            .unwrap();
        if stop {
            return late;
        }
    }
}

fn number(server: &Server, key: &str) -> u64 {
    let value = server.get(key).unwrap_or_else(|| b"0".to_vec());
    String::from_utf8(value).unwrap().parse().unwrap()
}

/// Several processes contend while the master of the name is replaced. Besides, a client that only waits for another
/// name there, and one that holds two more: of one the new master has never heard.
fn contention_goes_on(trouble: Trouble) {
    let mut cluster = Cluster::start(3, 1);
    let name = name_on(&cluster, "a", 0);
    let witness = Server::start();
    let given = [
        ("URL", cluster.url()),
        ("WITNESS", witness.url()),
        ("NAME", name.clone()),
    ];
    let given = given.each_ref().map(|(key, value)| (*key, value.as_str()));
    let children: Vec<_> = (0..PROCESSES)
        .map(|_| Child::spawn("contender", &given))
        .collect();
    let client = client(&cluster.url());
    // Who looks around so seldom must be told, by whatever thread of ours, that the master is another.
    let parked = builder(&cluster.url()).backstop(ms(60_000)).build();
    let parked = parked.unwrap();
    let mutex = |client: &Client, what: &str| client.mutex(beside(&name, what)).ttl(ms(40_000));
    let hold = |what: &str| mutex(&client, what).renew_every(ms(500)).lock().unwrap();
    let replica = cluster.replicas_of(0).next().expect("it has one");
    let dies = hold("dies");
    // The next renewal is far away.
    let sleeps = mutex(&parked, "sleeps").lock().unwrap();
    forget_all(&cluster, replica, &lock(&beside(&name, "sleeps")));
    let survives = hold("survives");
    let (got, parked_got) = unbounded();
    let parked = thread::spawn({
        let name = beside(&name, "dies");
        move || {
            let guard = parked.mutex(name).lock().unwrap();
            got.send(Instant::now()).unwrap();
            released(guard);
        }
    });
    let channel = format!("lock_release:{}", beside(&name, "dies"));
    eventually(ms(10_000), || cluster.node(0).listeners(&channel) > 0);
    for child in &children {
        child.wait_for("ready");
    }

    let (lost, sleeper_lost) = (dies.lost(), sleeps.lost());
    get_into(trouble, &mut cluster, 0);
    assert_eq!(cluster.until_new_master(0), replica);
    let began = Instant::now();
    let is_over = AtomicBool::new(false);
    let (took, overshoot) = thread::scope(|scope| {
        let overshoot = scope.spawn(|| overshoot_until(&is_over));
        let fence = format!("leasehold:fence:{{lock:{name}}}");
        let fence = || cluster.ask::<Option<u64>>(replica, &["GET", &fence]);
        let before = fence().unwrap();
        eventually(ms(30_000), || fence().unwrap() != before);
        let took = began.elapsed();
        is_over.store(true, Ordering::SeqCst);
        (took, overshoot.join().unwrap())
    });
    assert!(
        took <= GO_ON_WITHIN + SLACK + 3 * overshoot,
        "they went on after {took:?}, where a plain wait overshoots by {overshoot:?}"
    );
    let lost = lost.recv_timeout(ms(5_000)).expect("it is told");
    assert!(matches!(lost, Lost::Deleted | Lost::Taken), "{lost}");
    assert_eq!(sleeper_lost.recv_timeout(ms(5_000)), Ok(Lost::Deleted));
    let told = began.elapsed();
    let at = parked_got.recv_timeout(ms(60_000)).unwrap();
    let got = at.saturating_duration_since(began);
    assert!(got <= GO_ON_WITHIN + SLACK + 3 * overshoot, "{got:?}");
    parked.join().unwrap();

    // All of them are there by then, and the old one has nothing more to say.
    let entered = number(&witness, "entered");
    eventually(ms(60_000), || number(&witness, "entered") > entered + 30);
    if trouble == Trouble::Stopped {
        cluster.resume(0);
    }
    if trouble != Trouble::Killed {
        cluster.until_settled();
        let entered = number(&witness, "entered");
        eventually(ms(60_000), || number(&witness, "entered") > entered + 30);
    }
    redis::cmd("SET")
        .arg(&["stop", "1"])
        .exec(&mut witness.connection())
        .unwrap();
    for child in children {
        let said = child.wait().succeeded().said;
        let numbers = said.last().expect("it says how it went").split(' ');
        let [late, overshoot] = numbers
            .map(|n| ms(n.parse().unwrap()))
            .collect::<Vec<_>>()
            .try_into()
            .unwrap();
        assert!(
            late <= SLACK + 3 * overshoot,
            "a call was {late:?} late, where a plain wait overshoots by {overshoot:?}"
        );
        println!("latest call {late:?}, plain wait {overshoot:?}");
    }

    let accepted: Vec<u64> = redis::cmd("LRANGE")
        .arg(&["accepted", "0", "-1"])
        .query(&mut witness.connection())
        .unwrap();
    assert!(accepted.is_sorted_by(|earlier, later| earlier < later));
    assert_eq!(survives.unlock().unwrap(), Unlocked::Released);
    assert_eq!(dies.unlock().unwrap(), Unlocked::AlreadyLost(lost));
    println!(
        "{trouble:?}: went on after {took:?}, told of the loss after {told:?}, the parked one got it after {got:?}; entered {}, coincided {}, turned away {}, told of a loss {}",
        number(&witness, "entered"),
        number(&witness, "coincided"),
        number(&witness, "stale"),
        number(&witness, "told"),
    );
}

/// Another name in the same slot.
fn beside(name: &str, what: &str) -> String {
    format!("{{lock:{name}}}:{what}")
}

/// Waits until the replica has the key, and then makes as if nothing had come to it so far.
fn forget_all(cluster: &Cluster, replica: usize, key: &str) {
    let has = |known: &Vec<u8>| known == key.as_bytes();
    eventually(ms(10_000), || cluster.node(replica).keys().iter().any(has));
    for command in [
        &["CONFIG", "SET", "replica-read-only", "no"][..],
        &["FLUSHALL"],
        &["CONFIG", "SET", "replica-read-only", "yes"],
    ] {
        cluster.ask::<String>(replica, command).unwrap();
    }
}

#[test]
fn contention_when_the_master_is_killed() {
    contention_goes_on(Trouble::Killed);
}

#[test]
fn contention_when_the_master_is_stopped() {
    contention_goes_on(Trouble::Stopped);
}

#[test]
fn contention_when_the_master_is_switched_by_command() {
    contention_goes_on(Trouble::SwitchedByCommand);
}
