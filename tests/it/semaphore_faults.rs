//! Promise: crashes, losses and lost replies neither lose a permit nor give out one too many.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use leasehold::{Client, Error, Lost, Semaphore, SemaphorePermit};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use support::fair::PATIENCE;
use support::permits::{
    PERMITS, PERMITS_FENCE, PERMITS_PLACES, PERMITS_QUEUE, Set, acquire_in_turn, give_back,
    permits_out, permits_queue_length, spawn_acquiring, wait_for_permits_queue,
    wait_until_only_permit_fences_remain,
};
use support::scripts;
use support::{
    COMMAND_TIMEOUT, Child, Cluster, Proxy, Sentinels, Server, Setup, Traffic, builder, client,
    eventually, ms, nearly_a_token, parameter, tell_parent,
};

support::roles![holder, user];

support::tests![
    random_calls_with_lost_replies_keep_the_count,
    permits_survive_a_failover,
    permits_are_granted_in_a_cluster_and_survive_a_migration,
    permits_of_a_killed_process_come_back,
    permits_of_a_stopped_process_are_lost_and_counted_once,
    silent_waiter_in_front_is_passed_over,
    permits_end_without_renewals,
    deleted_permits_are_lost_and_the_count_starts_from_zero,
    deleted_queue_is_entered_again,
    refused_and_granted_calls_without_a_reply_leave_nothing_behind,
    release_without_a_reply_gives_back_its_permits_once,
    release_grants_to_a_hundred_and_has_the_next_client_refresh,
    message_to_go_on_makes_a_client_refresh_at_once,
    enter_that_the_network_runs_twice_counts_once,
    enter_that_the_network_runs_twice_reports_its_own_permits,
    second_run_of_an_enter_grants_what_has_ended_since,
    unusable_fence_of_permits_stays_as_it_is,
    renewal_restores_no_permit_that_has_ended,
    foreign_members_do_not_break_the_count,
    shutdown_gives_back_permits_and_places,
    processes_never_exceed_the_number_of_permits,
    a_thousand_names_leave_only_their_fences
];

fn semaphore(server: &Server, permits: u32) -> Semaphore {
    client(&server.url()).semaphore("a", permits)
}

fn of_this_child(permits: u32) -> Semaphore {
    let client = Client::open(parameter("URL")).unwrap();
    client.semaphore("a", permits)
}

/// A child's role: holds two permits until it is killed, or learns of their loss.
fn holder() {
    let semaphore = of_this_child(2).many(2).ttl(ms(1_500));
    let permit = semaphore.acquire().unwrap();
    tell_parent("holding");
    let _ = permit.lost().recv();
    assert!(permit.release().unwrap_err().lost().is_some());
}

fn permits_of_a_killed_process_come_back() {
    let server = Server::start();
    let mut child = Child::spawn("semaphore_faults::holder", &[("URL", &server.url())]);
    assert_eq!(child.next_line(), "holding");
    thread::scope(|scope| {
        let waiting = spawn_acquiring(scope, &server, semaphore(&server, 2));
        assert_eq!(permits_out(&server), 2);
        child.kill();
        let permit = waiting.join().unwrap();
        assert_eq!(permits_out(&server), 1);
        give_back(permit);
    });
    wait_until_only_permit_fences_remain(&server);
}

fn permits_of_a_stopped_process_are_lost_and_counted_once() {
    let server = Server::start();
    let child = Child::spawn("semaphore_faults::holder", &[("URL", &server.url())]);
    assert_eq!(child.next_line(), "holding");
    child.pause();
    let permit = acquire_in_turn(&semaphore(&server, 2));
    child.resume();
    child.wait().succeeded();
    assert_eq!(permits_out(&server), 1, "the late release counts nothing");
    assert!(permit.is_held());
    give_back(permit);
    wait_until_only_permit_fences_remain(&server);
}

/// The waiter in front wants more than is free, and its client is gone.
fn silent_waiter_in_front_is_passed_over() {
    let server = Server::start();
    let held = semaphore(&server, 2).acquire().unwrap();
    let now = server.micros() / 1_000;
    // The place outlasts the call, but its queue ends 6 s after the last call that waits in it.
    let place = format!("{now} 300000 2/2 {now} l nobody");
    server.run("RPUSH", &[PERMITS_QUEUE, "2 o:silent"]);
    server.run("HSET", &[PERMITS_PLACES, "2 o:silent", &place]);
    for key in [PERMITS_QUEUE, PERMITS_PLACES] {
        server.run("PEXPIRE", &[key, "300000"]);
    }
    let began = Instant::now();
    let permit = acquire_in_turn(&semaphore(&server, 2));
    let mut get = redis::cmd("HGET");
    let get = get.arg(&[PERMITS_PLACES, "2 o:silent"]);
    let passed_over: Option<String> = get.query(&mut server.connection()).unwrap();
    let queue_ends_after = ms(6_000);
    assert!(passed_over.is_some() || began.elapsed() > queue_ends_after);
    give_back(permit);
    give_back(held);
}

fn permits_end_without_renewals() {
    let server = Server::start();
    let semaphore = semaphore(&server, 3);
    let lasting = semaphore.acquire().unwrap();
    let short = semaphore.clone().many(2).ttl(ms(300)).auto_renew(false);
    let short = short.acquire().unwrap();
    let lost = short.lost();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| acquire_in_turn(&semaphore.clone().many(2)));
        assert_eq!(lost.recv_timeout(PATIENCE), Ok(Lost::Expired));
        assert!(!short.is_held());
        let permit = waiting.join().unwrap();
        assert_eq!(permits_out(&server), 3);
        let late = short.release().unwrap_err();
        assert_eq!(late.lost(), Some(Lost::Expired));
        assert!(permit.is_held() && lasting.is_held());
        assert_eq!(permits_out(&server), 3, "the late release counts nothing");
        give_back(permit);
    });
    give_back(lasting);
    wait_until_only_permit_fences_remain(&server);
}

fn deleted_permits_are_lost_and_the_count_starts_from_zero() {
    let server = Server::start();
    let semaphore = semaphore(&server, 2);
    let held = [semaphore.acquire().unwrap(), semaphore.acquire().unwrap()];
    server.run("DEL", &[PERMITS]);
    assert_eq!(semaphore.available().unwrap(), 2);
    let new = semaphore.acquire().unwrap();
    for permit in held {
        assert!(matches!(permit.renew(), Err(Error::Lost(Lost::Deleted))));
        assert_eq!(permit.release().unwrap_err().lost(), Some(Lost::Deleted));
    }
    assert_eq!(permits_out(&server), 1);
    give_back(new);
    wait_until_only_permit_fences_remain(&server);
}

fn deleted_queue_is_entered_again() {
    let server = Server::start();
    let semaphore = semaphore(&server, 1);
    for keys in [
        &[PERMITS_QUEUE][..],
        &[PERMITS_PLACES],
        &[PERMITS_QUEUE, PERMITS_PLACES],
    ] {
        let held = semaphore.acquire().unwrap();
        thread::scope(|scope| {
            let waiting = spawn_acquiring(scope, &server, semaphore.clone());
            server.run("DEL", keys);
            let has_place = || {
                let places: usize = redis::cmd("HLEN")
                    .arg(PERMITS_PLACES)
                    .query(&mut server.connection())
                    .unwrap();
                permits_queue_length(&server) > 0 && places == 1
            };
            eventually(PATIENCE, has_place);
            give_back(held);
            give_back(waiting.join().unwrap());
        });
        wait_until_only_permit_fences_remain(&server);
    }
}

fn refused_and_granted_calls_without_a_reply_leave_nothing_behind() {
    for traffic in [Traffic::DropReplies, Traffic::StallReplies] {
        for held in [0, 2] {
            let server = Server::start();
            let proxy = Proxy::new(&server);
            let held: Vec<_> = (0..held)
                .map(|_| semaphore(&server, 2).acquire().unwrap())
                .collect();
            let client = client(&proxy.url());
            give_back(client.semaphore("warm", 1).acquire().unwrap());
            let before = server.calls(&["zrange"]);
            proxy.set_all(traffic);
            thread::scope(|scope| {
                for many in [1, 1, 2] {
                    let semaphore = client.semaphore("a", 2).many(many);
                    scope.spawn(move || {
                        let answer = semaphore.try_acquire_for(COMMAND_TIMEOUT);
                        assert!(
                            matches!(answer, Err(Error::Unreachable { .. })),
                            "{answer:?}"
                        );
                    });
                }
            });
            assert!(server.calls(&["zrange"]) > before, "some have run");
            proxy.set_all(Traffic::Pass);
            eventually(PATIENCE, || {
                permits_queue_length(&server) == 0 && permits_out(&server) == held.len() as u64
            });
            held.into_iter().for_each(give_back);
            wait_until_only_permit_fences_remain(&server);
        }
    }
}

fn release_without_a_reply_gives_back_its_permits_once() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let through_proxy = client(&proxy.url()).semaphore("a", 3);
    let direct = semaphore(&server, 3);
    for traffic in [Traffic::CutOnReply, Traffic::DropReplies] {
        let permit = through_proxy.acquire().unwrap();
        let others = [direct.acquire().unwrap(), direct.acquire().unwrap()];
        proxy.set_open(traffic);
        // The client repeats the release. The reply to that may be too late for this call.
        let released = permit.release();
        assert!(
            matches!(released, Ok(()) | Err(Error::Unreachable { .. })),
            "{released:?}"
        );
        eventually(PATIENCE, || permits_out(&server) == 2);
        let third = direct.try_acquire().unwrap().expect("it came back");
        assert!(direct.try_acquire().unwrap().is_err(), "once");
        proxy.set_all(Traffic::Pass);
        give_back(third);
        others.into_iter().for_each(give_back);
    }
    wait_until_only_permit_fences_remain(&server);
}

/// Runs a script of the semaphore `a` as a client does.
fn run_script(server: &Server, source: &str, args: &[&str]) -> redis::Value {
    let mut eval = redis::cmd("EVAL");
    eval.arg(source).arg(4);
    eval.arg(&[PERMITS, PERMITS_FENCE, PERMITS_QUEUE, PERMITS_PLACES]);
    eval.arg(args).query(&mut server.connection()).unwrap()
}

const ENTER: &str = scripts::PERMITS.enter;

fn release_grants_to_a_hundred_and_has_the_next_client_refresh() {
    const RELEASE: &str = scripts::PERMITS.release;
    let server = Server::start();
    let mut listener = server.connection();
    let subscribe = redis::cmd("SUBSCRIBE").arg("inbox").get_packed_command();
    listener.send_packed_command(&subscribe).unwrap();
    listener.recv_response().unwrap();
    run_script(
        &server,
        ENTER,
        &["102 o:all", "10000", "102/102", "l inbox"],
    );
    for n in 1..=102 {
        run_script(
            &server,
            ENTER,
            &[&format!("1 o:{n}"), "10000", "1/102", "l inbox"],
        );
    }
    run_script(&server, RELEASE, &["102 o:all", "wake"]);
    assert_eq!(permits_out(&server), 100);
    let message = |reply: redis::Value| match fields(reply).pop() {
        Some(redis::Value::BulkString(message)) => String::from_utf8(message).unwrap(),
        other => panic!("{other:?}"),
    };
    for n in 1..=100 {
        let message = message(listener.recv_response().unwrap());
        assert!(message.ends_with(&format!(" 1/102 1 o:{n}")), "{message}");
    }
    let last = message(listener.recv_response().unwrap());
    assert_eq!(last, "refresh 1 o:101");
}

fn message_to_go_on_makes_a_client_refresh_at_once() {
    let server = Server::start();
    let permit = semaphore(&server, 1).acquire().unwrap();
    let waiting = client(&server.url());
    thread::scope(|scope| {
        let second = spawn_acquiring(scope, &server, waiting.semaphore("a", 1));
        let mut places = redis::cmd("HGETALL");
        let places = places.arg(PERMITS_PLACES);
        let places: Vec<(String, String)> = places.query(&mut server.connection()).unwrap();
        let (id, place) = &places[0];
        let inbox = place.rsplit(' ').next().unwrap();
        server.wait_until_waiter_sleeps(inbox);
        // A refresh that is due anyway does not count as a wake-up.
        let wakes = || waiting.stats().totals.spurious_wakes;
        let before = wakes();
        server.run("PUBLISH", &[inbox, &format!("refresh {id}")]);
        eventually(PATIENCE, || wakes() > before);
        give_back(permit);
        give_back(second.join().unwrap());
    });
}

#[track_caller]
fn fields(reply: redis::Value) -> Vec<redis::Value> {
    match reply {
        redis::Value::Array(fields) => fields,
        other => panic!("{other:?}"),
    }
}

fn enter_that_the_network_runs_twice_counts_once() {
    let server = Server::start();
    let other = semaphore(&server, 5).acquire().unwrap();
    for out in [3, 3] {
        run_script(&server, ENTER, &["2 o:1", "10000", "2/5", "0"]);
        assert_eq!(permits_out(&server), out);
    }
    give_back(other);
    for _ in 0..2 {
        run_script(&server, ENTER, &["2 o:1", "10000", "2/5", "0"]);
        assert_eq!(permits_out(&server), 2);
    }
}

/// The second run finds too few permits, or another call that waits.
fn enter_that_the_network_runs_twice_reports_its_own_permits() {
    for (want, place, waits) in [
        ("2/3", "0", 0),
        ("2/3", "l inbox", 0),
        ("2/5", "l inbox", 1),
    ] {
        let server = Server::start();
        let enter = || run_script(&server, ENTER, &["2 o:1", "10000", want, place]);
        assert!(scripts::granted(&enter()).is_some());
        for _ in 0..waits {
            run_script(&server, ENTER, &["5 o:2", "10000", "5/5", "l inbox"]);
        }
        let id = redis::Value::BulkString(b"2 o:1".into());
        assert_eq!(fields(enter())[..2], [redis::Value::Int(0), id]);
        assert_eq!(permits_out(&server), 2);
        assert_eq!(permits_queue_length(&server), waits);
    }
}

fn unusable_fence_of_permits_stays_as_it_is() {
    let server = Server::start();
    let semaphore = semaphore(&server, 2);
    for fence in [
        "",
        "-5",
        "1e15",
        "0x10",
        " 7",
        "9007199254740991",
        "words",
        &nearly_a_token(),
    ] {
        server.run("SET", &[PERMITS_FENCE, fence, "EX", "100"]);
        let outcome = semaphore.acquire().map(drop);
        assert!(matches!(outcome, Err(Error::BadFence { .. })), "{fence}");
        let stored = server.get(PERMITS_FENCE);
        assert_eq!(stored.as_deref(), Some(fence.as_bytes()));
        let left = server.pttl(PERMITS_FENCE);
        assert!((1..=100_000).contains(&left), "{left} ms");
        assert_eq!(permits_out(&server), 0);
    }
}

fn second_run_of_an_enter_grants_what_has_ended_since() {
    let server = Server::start();
    let enter = |id, ttl| run_script(&server, ENTER, &[id, ttl, "1/2", "a inbox"]);
    for id in ["1 o:1", "1 o:2", "1 o:3"] {
        enter(id, "60000");
    }
    assert_eq!(permits_queue_length(&server), 1);
    // The permit has ended, but no script has removed it yet.
    server.run("ZADD", &[PERMITS, "1000", "1 o:2"]);
    let itself = redis::Value::BulkString(b"1 o:1".into());
    let again = fields(enter("1 o:1", "60000"));
    assert_eq!(again[..2], [redis::Value::Int(0), itself]);
    assert_eq!(permits_queue_length(&server), 0);
    assert_eq!(permits_out(&server), 2);
}

fn renewal_restores_no_permit_that_has_ended() {
    let server = Server::start();
    let semaphore = semaphore(&server, 1);
    let permit = semaphore.acquire().unwrap();
    // The permit has ended, but no script has removed it yet.
    server.run("ZADD", &[PERMITS, "1000", permit.holder_id().as_str()]);
    assert!(permit.renew().is_err());
    assert_eq!(semaphore.available().unwrap(), 1);
    let next = semaphore
        .try_acquire()
        .unwrap()
        .expect("the permit is free");
    assert_eq!(
        Set::read(&mut server.connection(), PERMITS).holders.len(),
        1
    );
    give_back(next);
    drop(permit);
    wait_until_only_permit_fences_remain(&server);
}

fn foreign_members_do_not_break_the_count() {
    let server = Server::start();
    let semaphore = semaphore(&server, 2);
    let permit = semaphore.acquire().unwrap();
    server.run("ZADD", &[PERMITS, "1e15", "foreign"]);
    assert_eq!(
        (
            semaphore.available().unwrap(),
            semaphore
                .inspect()
                .unwrap()
                .map_or(0, |held| held.holders().len())
        ),
        (1, 1)
    );
    let second = semaphore.try_acquire().unwrap().expect("the second of two");
    assert!(semaphore.try_acquire().unwrap().is_err());
    give_back(permit);
    give_back(second);
    wait_until_only_permit_fences_remain(&server);
    server.run("SET", &[PERMITS, "no set"]);
    for error in [semaphore.try_acquire().err(), semaphore.inspect().err()] {
        let error = error.expect("the key is no sorted set");
        assert!(
            matches!(&error, Error::WrongType { key, .. } if key == PERMITS),
            "{error:?}"
        );
        let text = error.to_string();
        assert!(!text.contains("string"), "{text}");
    }
}

fn shutdown_gives_back_permits_and_places() {
    let server = Server::start();
    let client = client(&server.url());
    let semaphore = client.semaphore("a", 2);
    let permit = semaphore.acquire().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| semaphore.clone().many(2).acquire());
        wait_for_permits_queue(&server, 1);
        // The place is in the queue before the call has read that, and sleeps.
        eventually(PATIENCE, || client.stats().waiting == 1);
        let report = client.shutdown(PATIENCE);
        assert_eq!((report.released, report.woken), (1, 1), "{report:?}");
        assert!(matches!(waiting.join().unwrap(), Err(Error::Closed)));
    });
    assert!(!permit.is_held());
    wait_until_only_permit_fences_remain(&server);
}

/// How many calls of [`random_calls_with_lost_replies_keep_the_count`] there are.
///
/// `LEASEHOLD_STEPS` overrides the number, and `LEASEHOLD_SEED` repeats the calls of a run, though
/// not their order among the threads.
const CALLS: u64 = 1_000;

/// The number of permits in [`random_calls_with_lost_replies_keep_the_count`].
const PERMITS_OF_ALL: u64 = 5;

/// Four threads, each with its own client, acquire and release at random while connections break
/// before their next reply. Neither the permits that the calls report nor those in Redis may ever
/// exceed their number, and the counter in Redis must be right after every call.
fn random_calls_with_lost_replies_keep_the_count() {
    let number = |key| Some(std::env::var(key).ok()?.parse::<u64>().expect("a number"));
    let calls = number("LEASEHOLD_STEPS").unwrap_or(CALLS);
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let held = AtomicU64::new(0);
    let made = AtomicU64::new(0);
    let seed = number("LEASEHOLD_SEED").unwrap_or_else(rand::random);
    println!("LEASEHOLD_SEED={seed} repeats the calls of this run");
    let (running, is_over) = bounded::<()>(0);
    let calls_of_one = |n: u64| {
        let mut rng = SmallRng::seed_from_u64(seed + n);
        let client = builder(&proxy.url()).ttl(ms(300_000)).build().unwrap();
        let semaphore = client.semaphore("a", PERMITS_OF_ALL as u32);
        let mut connection = server.connection();
        let mut permits = Vec::new();
        while made.fetch_add(1, Ordering::SeqCst) < calls {
            if permits.is_empty() || rng.random_ratio(2, 5) {
                permits.extend(try_some(&semaphore, &mut rng, &held));
            } else if rng.random_ratio(1, 4) {
                // A renewal without a reply is no loss.
                let _ = permits[0].renew();
            } else {
                let permit = permits.swap_remove(rng.random_range(0..permits.len()));
                release_held(permit, &held);
            }
            let Set { out, .. } = Set::read(&mut connection, PERMITS);
            assert!(out <= PERMITS_OF_ALL, "{out} are out");
        }
        for permit in permits {
            held.fetch_sub(permit.count().into(), Ordering::SeqCst);
            drop(permit);
        }
        // A client that ends sends its pending releases only once more, while connections may still
        // break.
        client
    };
    thread::scope(|scope| {
        let breaking = scope.spawn(|| {
            while is_over
                .recv_timeout(ms(20))
                .is_err_and(|why| why.is_timeout())
            {
                proxy.set_open(Traffic::CutOnReply);
            }
        });
        let threads: Vec<_> = (0..4)
            .map(|n| scope.spawn(move || calls_of_one(n)))
            .collect();
        let outcomes: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        drop(running);
        breaking.join().unwrap();
        proxy.set_open(Traffic::Pass);
        assert!(outcomes.iter().all(Result::is_ok), "seed {seed}");
        assert_eq!(held.load(Ordering::SeqCst), 0);
        eventually(PATIENCE, || permits_out(&server) == 0);
    });
}

/// Acquires one to three permits within at most 5 ms, and counts them as `held`.
fn try_some(
    semaphore: &Semaphore,
    rng: &mut SmallRng,
    held: &AtomicU64,
) -> Option<SemaphorePermit> {
    let semaphore = semaphore.clone().many(rng.random_range(1..=3));
    let limit = ms([0, 0, 2, 5][rng.random_range(0..4)]);
    // A call whose reply was lost holds nothing.
    let permit = semaphore.try_acquire_for(limit).ok()?.ok()?;
    let count = u64::from(permit.count());
    let now = held.fetch_add(count, Ordering::SeqCst) + count;
    assert!(now <= PERMITS_OF_ALL, "{now} are held");
    Some(permit)
}

/// Releases a permit that is held. A release without a reply is repeated in the background.
fn release_held(permit: SemaphorePermit, held: &AtomicU64) {
    assert!(permit.is_held());
    held.fetch_sub(permit.count().into(), Ordering::SeqCst);
    let released = permit.release();
    let lost = matches!(released, Err(Error::Lost(_)));
    assert!(!lost, "{released:?}");
}

const PERMITS_OF_PROCESSES: u32 = 3;

/// A child's role: acquires permits again and again, and counts how many are in use.
fn user() {
    let semaphore = of_this_child(PERMITS_OF_PROCESSES);
    let client = redis::Client::open(parameter("URL")).unwrap();
    let mut connection = client.get_connection().unwrap();
    let mut rng = SmallRng::seed_from_u64(rand::random());
    for _ in 0..40 {
        let many = rng.random_range(1..=2);
        let permit = acquire_in_turn(&semaphore.clone().many(many));
        let mut add = |number: i64| -> i64 {
            let mut add = redis::cmd("HINCRBY");
            add.arg("used").arg("permits").arg(number);
            add.query(&mut connection).unwrap()
        };
        let used = add(many.into());
        assert!(used <= PERMITS_OF_PROCESSES.into(), "{used} are in use");
        add(-i64::from(many));
        give_back(permit);
    }
}

fn processes_never_exceed_the_number_of_permits() {
    let server = Server::start();
    let url = server.url();
    let spawn = |_| Child::spawn("semaphore_faults::user", &[("URL", &url)]);
    let children: Vec<_> = (0..5).map(spawn).collect();
    for child in children {
        child.wait().succeeded();
    }
    let used: i32 = redis::cmd("HGET")
        .arg(&["used", "permits"])
        .query(&mut server.connection())
        .unwrap();
    assert_eq!(used, 0);
    server.run("DEL", &["used"]);
    wait_until_only_permit_fences_remain(&server);
}

fn a_thousand_names_leave_only_their_fences() {
    let server = Server::start();
    let client = client(&server.url());
    for n in 0..1_000 {
        let semaphore = client.semaphore(format!("name {n}"), 2);
        let first = semaphore.acquire().unwrap();
        give_back(semaphore.clone().acquire().unwrap());
        assert!(semaphore.many(2).try_acquire().unwrap().is_err());
        give_back(first);
    }
    wait_until_only_permit_fences_remain(&server);
    assert_eq!(server.keys().len(), 1_000);
    let fence: i64 = redis::cmd("PTTL")
        .arg("leasehold:permits-fence:{lock:name 7}")
        .query(&mut server.connection())
        .unwrap();
    assert!(fence > 0, "a fence expires, too");
}

fn permits_are_granted_in_a_cluster_and_survive_a_migration() {
    let cluster = Cluster::start(2, 0);
    let name = cluster.name_owned_by("semaphore", 0);
    let clients = [(); 2].map(|()| builder(&cluster.url()).build().unwrap());
    let [one, two] = clients.map(|client| client.semaphore(&name, 2));
    let held = [one.acquire().unwrap(), one.acquire().unwrap()];
    thread::scope(|scope| {
        let waiting = scope.spawn(|| acquire_in_turn(&two));
        eventually(PATIENCE, || two.waiting().unwrap() == 1);
        let [first, second] = held;
        give_back(first);
        let third = waiting.join().unwrap();
        assert!(one.try_acquire().unwrap().is_err());
        let slot = cluster.slot(&format!("lock:{name}"));
        cluster.begin_migration(slot, 0, 1);
        second.renew().unwrap();
        cluster.move_keys(slot, 0, 1);
        second.renew().unwrap();
        third.renew().unwrap();
        cluster.end_migration(slot, 0, 1);
        second.renew().unwrap();
        assert_eq!(two.available().unwrap(), 0);
        give_back(second);
        give_back(third);
    });
    assert_eq!(two.available().unwrap(), 2);
}

fn permits_survive_a_failover() {
    let group = Sentinels::start(Setup::fast_failover());
    let patient = builder(&group.url()).command_timeout(ms(5_000));
    let plain = patient.build().unwrap().semaphore("a", 2);
    let semaphore = plain.clone().min_replicas(1, ms(4_000));
    let held = [semaphore.acquire().unwrap(), semaphore.acquire().unwrap()];
    group.failover();
    eventually(PATIENCE, || {
        let master = group.successor();
        master.port() != group.first_master().port()
    });
    assert!(held.iter().all(|permit| permit.is_held()));
    let refused = || matches!(semaphore.try_acquire(), Ok(Err(_)));
    eventually(PATIENCE, refused);
    for permit in held {
        eventually(PATIENCE, || permit.renew().is_ok());
        give_back(permit);
    }
    let again = plain.try_acquire_for(Duration::from_secs(20)).unwrap();
    give_back(again.expect("the permits came back"));
}
