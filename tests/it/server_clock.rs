//! Promises: a server's clock that steps back delays no call for more than 3 s, and ends no lease.
//! One that is slewed, by up to 8.3 %, gives no lock to two holders.

use std::ops::Deref;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Error, Lease};
use support::fair::places_in;
use support::{
    Child, SLACK, Server, assert_released, client, eventually, let_pass, ms, parameter,
    tell_parent, while_others_repeat,
};

support::roles![waiter];

support::tests![
    waiter_that_died_before_the_clock_stepped_back_delays_nobody_for_long,
    waiters_of_every_kind_go_on_after_the_clock_stepped_back,
    lease_ends_no_earlier_after_the_clock_stepped_back,
    lease_ends_before_a_server_whose_clock_is_slewed_has_another_holder
];

/// How far the clock steps, in seconds.
const STEP: i64 = -3600;

/// The longest delay by dead waiters: the time that their places last, and some tries.
const DELAY: Duration = ms(4_000);

/// The names of the locks, one for each kind, and whether others come and go beside the dead
/// waiters.
const NAMES: [&str; 2] = ["quiet", "busy"];

/// The kinds of lock, and of access to one, that each name has.
const KINDS: [&str; 5] = ["fair", "write", "read", "permit", "set"];

/// Tries one of the [`KINDS`] without waiting.
fn is_refused(client: &Client, name: &str, kind: &str) -> Result<bool, Error> {
    let [fair, shared, permits, first, second] = names(name);
    Ok(match kind {
        "fair" => client.fair_mutex(fair).try_lock()?.is_err(),
        "write" => client.rw_lock(shared).try_write()?.is_err(),
        "read" => client.rw_lock(shared).try_read()?.is_err(),
        "permit" => client.semaphore(permits, 1).try_acquire()?.is_err(),
        _ => client.mutex_all([first, second]).try_lock()?.is_err(),
    })
}

/// The names of a fair lock, a read-write lock, a semaphore, and two of a set.
fn names(name: &str) -> [String; 5] {
    ["fair", "shared", "permits", "first", "second"].map(|kind| format!("{name} {kind}"))
}

/// The keys of the queues in which [`waiter`] waits, with the number of its places.
fn queues(name: &str) -> [(String, usize); 4] {
    let [fair, shared, permits, first, _] = names(name);
    let of_lock = |name| format!("leasehold:queue:{{lock:{name}}}");
    [
        (of_lock(fair), 2),
        (of_lock(shared), 2),
        (format!("leasehold:permits-queue:{{lock:{permits}}}"), 2),
        (of_lock(first), 1),
    ]
}

/// A child's role: waits for the locks of every kind until it is killed.
fn waiter() {
    let url = parameter("URL");
    let client = client(&url);
    thread::scope(|scope| {
        for name in NAMES {
            let [fair, shared, permits, first, second] = names(name);
            for _ in 0..2 {
                let (fair, shared) = (client.fair_mutex(&*fair), client.rw_lock(&*shared));
                let permits = client.semaphore(&*permits, 1);
                scope.spawn(move || fair.lock().map(drop));
                scope.spawn(move || shared.write().map(drop));
                scope.spawn(move || permits.acquire().map(drop));
            }
            let set = client.mutex_all([first, second]);
            scope.spawn(move || set.lock().map(drop));
        }
        tell_parent("waiting");
    });
}

/// Starts a process that waits for all locks while they are held, kills it, and releases the locks
/// after the clock has stepped back.
fn step_back_with_dead_waiters(server: &mut Server) {
    let client = client(&server.url());
    let held = NAMES.map(|name| {
        let [fair, shared, permits, first, _] = names(name);
        (
            client.fair_mutex(fair).lock().unwrap(),
            client.rw_lock(shared).write().unwrap(),
            client.semaphore(permits, 1).acquire().unwrap(),
            client.fair_mutex(first).lock().unwrap(),
        )
    });
    let mut child = Child::spawn("server_clock::waiter", &[("URL", &server.url())]);
    child.wait_for_line("waiting");
    for name in NAMES {
        for (queue, count) in queues(name) {
            eventually(ms(10_000), || places_in(server, &queue) == count);
        }
    }
    child.kill();
    server.step_clock(STEP);
    for (fair, shared, permit, first) in held {
        assert_released(fair.unlock());
        assert_released(shared.unlock());
        assert_released(permit.release());
        assert_released(first.unlock());
    }
}

fn waiter_that_died_before_the_clock_stepped_back_delays_nobody_for_long() {
    let mut server = Server::with_clock();
    step_back_with_dead_waiters(&mut server);
    let (tries, others) = (client(&server.url()), client(&server.url()));
    let at = Instant::now();
    for name in NAMES {
        assert!(is_refused(&tries, name, "fair").unwrap(), "{name}");
    }
    let [fair, shared, permits, ..] = names("busy");
    // Calls that wait, and come and go.
    let come_and_go = || {
        let _ = others.fair_mutex(&*fair).try_lock_for(ms(50));
        let _ = others.rw_lock(&*shared).try_write_for(ms(50));
        let _ = others.semaphore(&*permits, 1).try_acquire_for(ms(50));
    };
    // All kinds at once: a dead waiter's time begins when somebody looks at its queue.
    let all = NAMES.iter().flat_map(|name| KINDS.map(|kind| (name, kind)));
    let mut left: Vec<_> = all.collect();
    while_others_repeat([come_and_go], || {
        while !left.is_empty() && at.elapsed() <= DELAY + SLACK {
            left.retain(|(name, kind)| is_refused(&tries, name, kind).unwrap());
            let_pass(ms(20));
        }
    });
    assert!(
        left.is_empty(),
        "refused after {:?}: {left:?}",
        at.elapsed()
    );
}

fn waiters_of_every_kind_go_on_after_the_clock_stepped_back() {
    let mut server = Server::with_clock();
    let url = server.url();
    let holder = client(&url);
    let [fair, shared, permits, first, second] = names("quiet");
    let held = (
        holder.fair_mutex(&*fair).lock().unwrap(),
        holder.rw_lock(&*shared).write().unwrap(),
        holder.semaphore(&*permits, 1).acquire().unwrap(),
        holder.fair_mutex(&*first).lock().unwrap(),
    );
    thread::scope(|scope| {
        let waiting = client(&url);
        let (a, b) = (waiting.fair_mutex(&*fair), waiting.rw_lock(&*shared));
        let c = waiting.semaphore(&*permits, 1);
        let d = waiting.mutex_all([&*first, &*second]);
        let limit = ms(10_000);
        let a = scope.spawn(move || a.try_lock_for(limit).unwrap().is_ok());
        let b = scope.spawn(move || b.try_read_for(limit).unwrap().is_ok());
        let c = scope.spawn(move || c.try_acquire_for(limit).unwrap().is_ok());
        let d = scope.spawn(move || d.try_lock_for(limit).unwrap().is_ok());
        for (queue, _) in queues("quiet") {
            eventually(ms(10_000), || places_in(&server, &queue) == 1);
        }
        server.step_clock(STEP);
        // A refresh has set the places to the new clock.
        eventually(ms(5_000), || {
            newest_place(&server) <= server.micros() / 1_000
        });
        assert_released(held.0.unlock());
        assert_released(held.1.unlock());
        assert_released(held.2.release());
        assert_released(held.3.unlock());
        for waiting in [a, b, c, d] {
            assert!(waiting.join().unwrap());
        }
    });
}

/// When the place that was refreshed last was refreshed, in ms of the server's clock.
fn newest_place(server: &Server) -> u64 {
    let keys = server.keys();
    let places = keys.iter().filter(|key| {
        key.starts_with(b"leasehold:places:") || key.starts_with(b"leasehold:permits-places:")
    });
    let seen = places.flat_map(|key| {
        let places = redis::cmd("HVALS").arg(key).query(&mut server.connection());
        let places: Vec<String> = places.unwrap();
        let seen = |place: String| place.split(' ').next().unwrap().parse::<u64>().unwrap();
        places.into_iter().map(seen).collect::<Vec<_>>()
    });
    seen.max().unwrap_or_default()
}

/// No script shortens the lease of a reader or of a permit, nor the ttl of a key.
fn lease_ends_no_earlier_after_the_clock_stepped_back() {
    let mut server = Server::with_clock();
    let client = client(&server.url());
    let ttl = ms(20_000);
    let [fair, shared, permits, ..] = names("quiet");
    let _lock = client.fair_mutex(&*fair).ttl(ttl).lock().unwrap();
    let _reader = client.rw_lock(&*shared).ttl(ttl).read().unwrap();
    let permit = client.semaphore(&*permits, 2).ttl(ttl).acquire().unwrap();
    let ends = |server: &Server| -> [f64; 3] {
        let score = |key: String| -> f64 {
            let range = redis::cmd("ZREVRANGE")
                .arg((key, 0, 0, "WITHSCORES"))
                .query(&mut server.connection());
            let (_, score): (String, f64) = range.unwrap();
            score
        };
        let left: u64 = redis::cmd("PTTL")
            .arg(format!("lock:{fair}"))
            .query(&mut server.connection())
            .unwrap();
        [
            (server.micros() / 1_000 + left) as f64,
            score(format!("leasehold:readers:{{lock:{shared}}}")),
            score(format!("leasehold:permits:{{lock:{permits}}}")),
        ]
    };
    let before = ends(&server);
    server.step_clock(STEP);
    permit.renew().unwrap();
    assert!(
        client
            .fair_mutex(&*fair)
            .try_lock_for(ms(50))
            .unwrap()
            .is_err()
    );
    assert!(
        client
            .rw_lock(&*shared)
            .try_write_for(ms(50))
            .unwrap()
            .is_err()
    );
    drop(client.rw_lock(&*shared).try_read().unwrap());
    drop(client.semaphore(&*permits, 2).try_acquire().unwrap());
    let after = ends(&server);
    for (before, after) in before.iter().zip(after) {
        // The end of a key is computed from two replies.
        assert!(after + 100.0 > *before, "{before} {after}");
    }
}

/// Acquires a lock of one kind, for 2 s without a renewal.
fn acquire(client: &Client, kind: &str, access: &str) -> Box<dyn Deref<Target = Lease>> {
    let ttl = ms(2_000);
    match (kind, access) {
        ("mutex" | "quorum", _) => {
            let mutex = client.mutex(kind).ttl(ttl).auto_renew(false);
            Box::new(mutex.lock().unwrap())
        }
        ("fair", _) => {
            let fair = client.fair_mutex(kind).ttl(ttl).auto_renew(false);
            Box::new(fair.lock().unwrap())
        }
        ("shared", "first") => {
            let lock = client.rw_lock(kind).ttl(ttl).auto_renew(false);
            Box::new(lock.read().unwrap())
        }
        ("shared" | "written", _) => {
            let lock = client.rw_lock(kind).ttl(ttl).auto_renew(false);
            Box::new(lock.write().unwrap())
        }
        ("permit", _) => {
            let semaphore = client.semaphore(kind, 1).ttl(ttl).auto_renew(false);
            Box::new(semaphore.acquire().unwrap())
        }
        _ => {
            let set = client
                .mutex_all(["set 1", "set 2"])
                .ttl(ttl)
                .auto_renew(false);
            Box::new(set.lock().unwrap())
        }
    }
}

/// The default limit of chrony: 83 333 millionths.
fn lease_ends_before_a_server_whose_clock_is_slewed_has_another_holder() {
    let servers: [Server; 3] = Server::several_with_fast_clocks(83_333);
    let urls = servers.each_ref().map(Server::url);
    let clients = |kind| {
        [(); 2].map(|()| match kind {
            "quorum" => Client::builder().quorum(&urls).build().unwrap(),
            _ => client(&urls[0]),
        })
    };
    thread::scope(|scope| {
        for kind in [
            "mutex", "quorum", "fair", "shared", "written", "permit", "set",
        ] {
            scope.spawn(move || {
                let [one, two] = clients(kind);
                let first = acquire(&one, kind, "first");
                assert!(first.is_held(), "{kind}");
                let second = acquire(&two, kind, "second");
                assert!(!first.is_held(), "{kind}: {:?}", first.remaining());
                assert!(second.is_held(), "{kind}");
            });
        }
    });
}
