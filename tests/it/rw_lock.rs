//! Promise: one writer or several readers hold a read-write lock, in the order in which their calls
//! entered the queue.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use leasehold::{
    Client, Error, FencingToken, Lost, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
use support::fair::{
    PATIENCE, PLACES, QUEUE, fair_mutex, holder, lock_in_turn, spawn_in_queue,
    wait_for_queue_length, wait_for_refresh, wait_until_only_fences_remain,
};
use support::{
    Child, Cluster, ClusterSetup, Counters, Proxy, Sentinels, Server, Setup, assert_gives_up,
    assert_message_wakes, assert_released, counter_with, eventually, let_pass, ms, parameter,
    result_of, spawn_call, while_others_repeat,
};

support::roles![write_counter, mixed_counter, reader_and_writer];

support::tests![
    read_write_lock_is_granted_in_a_cluster,
    readers_share_the_lock_and_exclude_a_writer,
    readers_of_one_client_and_of_others_hold_together,
    own_guard_saves_a_command_only_if_redis_would_refuse,
    waiting_calls_are_granted_in_order_and_neighbouring_readers_together,
    stream_of_readers_does_not_starve_a_writer,
    stream_of_writers_does_not_starve_a_reader,
    plain_lock_gets_in_between_overlapping_readers_of_its_client,
    looping_plain_locks_do_not_starve_a_reader,
    looping_set_does_not_starve_a_reader,
    writers_of_many_processes_count_exactly,
    read_write_fair_and_plain_locks_count_exactly_together,
    readers_and_writers_of_many_processes_never_overlap,
    readers_and_other_locks_of_the_name_exclude_each_other,
    foreign_lock_and_readers_exclude_each_other,
    reader_behind_a_fair_lock_is_granted_by_its_release,
    reader_behind_a_plain_lock_is_granted_by_its_release,
    attempt_behind_a_silent_place_is_refused_although_the_lock_is_free,
    fair_lock_behind_readers_is_granted_by_the_last_of_them,
    fair_and_shared_waiters_of_one_client_keep_to_their_own_scripts,
    reader_has_the_token_of_the_last_writer,
    reader_without_a_fence_draws_a_token_and_stores_it,
    downgrade_lets_readers_in_and_keeps_writers_out,
    call_of_the_same_client_is_in_the_queue_beside_a_writer,
    downgraded_lease_is_renewed_and_released_as_a_readers,
    inspection_shows_the_writer_or_every_reader,
    forced_release_ends_the_leases_of_all_readers,
    forced_release_from_a_holder_spares_the_others,
    longest_wait_is_that_of_the_first_in_the_queue,
    read_write_lock_over_a_quorum_is_an_error,
    read_write_lock_is_granted_with_sentinel
];

const READERS: &str = "leasehold:readers:{lock:a}";

const FENCE: &str = "leasehold:fence:{lock:a}";

fn rw(server: &Server) -> RwLock {
    server.client().rw_lock("a")
}

fn read_in_turn(lock: &RwLock) -> RwLockReadGuard {
    let guard = lock.try_read_for(PATIENCE).unwrap();
    guard.expect("the reader gets its turn")
}

fn write_in_turn(lock: &RwLock) -> RwLockWriteGuard {
    let guard = lock.try_write_for(PATIENCE).unwrap();
    guard.expect("the writer gets its turn")
}

fn write_counter() {
    counter_with(|client| Box::new(client.rw_lock("a")));
}

fn mixed_counter() {
    counter_with(|client| match std::process::id() % 3 {
        0 => Box::new(client.fair_mutex("a")),
        1 => Box::new(client.mutex("a")),
        _ => Box::new(client.rw_lock("a")),
    });
}

const COUNTERS: Counters = Counters {
    processes: 6,
    threads: 3,
    rounds: 30,
};

fn writers_of_many_processes_count_exactly() {
    let server = Server::start();
    COUNTERS.count_exactly_as("rw_lock::write_counter", &[server.url()], &server);
}

fn read_write_fair_and_plain_locks_count_exactly_together() {
    let server = Server::start();
    COUNTERS.count_exactly_as("rw_lock::mixed_counter", &[server.url()], &server);
}

fn readers_share_the_lock_and_exclude_a_writer() {
    let server = Server::start();
    let (one, two) = (rw(&server), rw(&server));
    let first = one.read().unwrap();
    let second = two.try_read().unwrap().expect("readers share");
    assert!(two.try_write().unwrap().is_err());
    assert_gives_up(|limit| two.try_write_for(limit));
    assert_eq!(holder(&server).unwrap(), "leasehold:readers");
    // The calls that gave up leave the queue in the background.
    wait_for_queue_length(&server, 0);
    assert_released(first.unlock());
    assert!(two.try_write().unwrap().is_err());
    assert_released(second.unlock());
    let writing = one.try_write().unwrap().expect("the lock is free");
    assert_eq!(holder(&server).unwrap(), writing.holder_id().as_str());
    assert!(two.try_read().unwrap().is_err() && two.try_write().unwrap().is_err());
    assert_gives_up(|limit| two.try_read_for(limit));
    assert_released(writing.unlock());
    wait_until_only_fences_remain(&server);
}

fn readers_of_one_client_and_of_others_hold_together() {
    let server = Server::start();
    let (client, other) = (server.client(), rw(&server));
    let lock = client.rw_lock("a").ttl(ms(3_000)).renew_every(ms(200));
    let mut guards: Vec<_> = (0..5).map(|_| lock.read().unwrap()).collect();
    guards.push(other.read().unwrap());
    // Each lease is renewed several times.
    let_pass(ms(1_000));
    assert!(guards.iter().all(|guard| guard.is_held()));
    assert!(client.stats().totals.renewals_ok > 5);
    assert_eq!(client.stats().totals.lost(), 0);
    for (left, guard) in guards.into_iter().enumerate().rev() {
        assert!(guard.is_held());
        assert_released(guard.unlock());
        assert_eq!(lock.try_write().unwrap().is_ok(), left == 0);
    }
    wait_until_only_fences_remain(&server);
}

/// While the client has a guard, it refuses a write without a command; while it has a write guard,
/// a read, too.
fn own_guard_saves_a_command_only_if_redis_would_refuse() {
    let server = Server::start();
    let lock = rw(&server);
    let calls = || server.script_calls();
    let reading = lock.read().unwrap();
    let before = calls();
    assert!(lock.try_write().unwrap().is_err());
    assert_eq!(calls(), before);
    let again = lock.try_read().unwrap().expect("readers share");
    assert!(calls() > before);
    assert_released(again.unlock());
    assert_released(reading.unlock());
    let writing = lock.write().unwrap();
    let before = calls();
    assert!(lock.try_read().unwrap().is_err() && lock.try_write().unwrap().is_err());
    assert_eq!(calls(), before);
    let reading = writing.downgrade();
    assert_released(lock.try_read().unwrap().expect("readers share").unlock());
    assert!(reading.is_held());
    assert_released(reading.unlock());
}

/// A reader, a writer, two readers and a writer enter the queue in this order. Neighbouring readers
/// are granted the lock together.
fn waiting_calls_are_granted_in_order_and_neighbouring_readers_together() {
    let server = Server::start();
    let writing = rw(&server).write().unwrap();
    let read = || read_in_turn(&rw(&server));
    let write = || write_in_turn(&rw(&server));
    thread::scope(|scope| {
        let first = spawn_in_queue(scope, &server, QUEUE, read);
        let second = spawn_in_queue(scope, &server, QUEUE, write);
        let third = [(); 2].map(|()| spawn_in_queue(scope, &server, QUEUE, read));
        let fourth = spawn_in_queue(scope, &server, QUEUE, write);
        assert_released(writing.unlock());
        let first = first.join().unwrap();
        wait_for_queue_length(&server, 4);
        assert!(
            rw(&server).try_read().unwrap().is_err(),
            "a waiting writer is ahead"
        );
        assert_released(first.unlock());
        let second = second.join().unwrap();
        wait_for_queue_length(&server, 3);
        assert_released(second.unlock());
        let third = third.map(|reader| reader.join().unwrap());
        assert!(third.iter().all(|guard| guard.is_held()));
        wait_for_queue_length(&server, 1);
        third
            .into_iter()
            .for_each(|reader| assert_released(reader.unlock()));
        assert_released(fourth.join().unwrap().unlock());
    });
    wait_until_only_fences_remain(&server);
}

fn stream_of_readers_does_not_starve_a_writer() {
    let read = |lock: &RwLock| {
        let guard = lock.read().unwrap();
        // Long enough for the readers to overlap: some reader holds the lock at any time.
        let_pass(ms(5));
        assert_released(guard.unlock());
    };
    assert_granted_despite(read, |lock| assert_released(write_in_turn(lock).unlock()));
}

fn stream_of_writers_does_not_starve_a_reader() {
    let write = |lock: &RwLock| assert_released(lock.write().unwrap().unlock());
    assert_granted_despite(write, |lock| assert_released(read_in_turn(lock).unlock()));
}

fn looping_plain_locks_do_not_starve_a_reader() {
    let server = Server::start();
    let (waiting, trying) = (server.client(), server.client());
    let (waiting, trying) = (waiting.mutex("a"), trying.mutex("a"));
    let others: [Box<dyn FnMut() + Send>; 2] = [
        Box::new(|| assert_released(waiting.lock().unwrap().unlock())),
        Box::new(|| {
            trying
                .try_lock()
                .unwrap()
                .map_or((), |guard| assert_released(guard.unlock()))
        }),
    ];
    while_others_repeat(others, || {
        let lock = rw(&server);
        (0..10).for_each(|_| assert_released(read_in_turn(&lock).unlock()));
    });
    wait_until_only_fences_remain(&server);
}

/// The proxy delays the reader's connections, so the set asks again before the reader learns of the
/// release.
fn looping_set_does_not_starve_a_reader() {
    const READS: u64 = 5;
    let server = Server::start();
    let proxy = Proxy::new(&server);
    proxy.delay(ms(2), ms(2));
    let set = server.client().mutex_all(["a", "b"]);
    let turns = AtomicU64::new(0);
    let others = [|| {
        let guard = set.try_lock_for(PATIENCE).unwrap();
        let guard = guard.expect("the set gets its turn");
        turns.fetch_add(1, Ordering::SeqCst);
        let_pass(ms(10));
        guard.unlock().unwrap();
    }];
    while_others_repeat(others, || {
        let lock = Client::open(proxy.url()).unwrap().rw_lock("a");
        assert_released(read_in_turn(&lock).unlock());
        let before = turns.load(Ordering::SeqCst);
        (0..READS).for_each(|_| assert_released(read_in_turn(&lock).unlock()));
        let turns = turns.load(Ordering::SeqCst) - before;
        assert!(turns <= 20 * READS, "{turns} turns in {READS} reads");
    });
    wait_until_only_fences_remain(&server);
}

/// The client keeps one record of the leases of a name, for its readers and its plain locks. If a
/// plain lock waited until this record is empty, it would starve.
fn plain_lock_gets_in_between_overlapping_readers_of_its_client() {
    let server = Server::start();
    let client = server.client();
    let (rw, mutex) = (client.rw_lock("a"), client.mutex("a"));
    let mut reader = rw.try_read().unwrap();
    let locked = spawn_call(move || mutex.try_lock_for(PATIENCE).unwrap().is_ok());
    while locked.is_empty() && reader.is_ok() {
        // The next reader acquires before the last one releases, unless a call is ahead of it.
        reader = rw.try_read().unwrap();
        let_pass(ms(1));
    }
    assert!(result_of(&locked), "the plain lock gets its turn");
    wait_until_only_fences_remain(&server);
}

/// Asserts that `call` is granted the lock ten times while three other clients call `repeated` in
/// loops.
#[track_caller]
fn assert_granted_despite(repeated: fn(&RwLock), call: fn(&RwLock)) {
    let server = Server::start();
    let others = [(); 3].map(|()| {
        let lock = rw(&server);
        move || repeated(&lock)
    });
    while_others_repeat(others, || {
        let lock = rw(&server);
        (0..10).for_each(|_| call(&lock));
    });
    wait_until_only_fences_remain(&server);
}

/// Enters the protected resource as a reader or as a writer, and counts overlaps and stale tokens.
const ENTER: &str = "
local token, kind = tonumber(ARGV[1]), ARGV[2]
local function number(key) return tonumber(redis.call('GET', key) or 0) end
local alone = kind == 'writers' or number('writers') > 0
if alone and number('readers') + number('writers') > 0 then redis.call('INCR', 'overlaps') end
local stale = token < number('token of writers')
if kind == 'writers' then
  stale = stale or token <= math.max(number('token of writers'), number('token of readers'))
end
if stale then redis.call('INCR', 'stale') end
redis.call('SET', 'token of ' .. kind, string.format('%.0f', token))
redis.call('INCR', kind)
redis.call('INCR', 'entered by ' .. kind)
";

/// A child's role: reads, writes and downgrades in turns, and enters the protected resource each
/// time. The resource is on another server, `WITNESS`.
fn reader_and_writer() {
    let witness = redis::Client::open(parameter("WITNESS")).unwrap();
    let lock = Client::open(parameter("URL")).unwrap().rw_lock("a");
    let enter = |kind: &str, token: FencingToken, redis: &mut redis::Connection| {
        let mut eval = redis::cmd("EVAL");
        eval.arg(ENTER).arg(0).arg(token.value()).arg(kind);
        eval.exec(redis).unwrap();
    };
    let leave = |kind: &str, redis: &mut redis::Connection| {
        let mut eval = redis::cmd("EVAL");
        eval.arg("return redis.call('SET', ARGV[1], redis.call('GET', ARGV[1]) - 1)");
        eval.arg(0).arg(kind).exec(redis).unwrap();
    };
    thread::scope(|scope| {
        for thread in 0..3 {
            let (lock, witness) = (lock.clone(), witness.clone());
            scope.spawn(move || {
                let mut redis = witness.get_connection().unwrap();
                for n in 0..40 {
                    if (n + thread) % 4 > 0 {
                        let guard = lock.read().unwrap();
                        enter("readers", guard.fencing_token(), &mut redis);
                        leave("readers", &mut redis);
                        assert_released(guard.unlock());
                        continue;
                    }
                    let guard = lock.write().unwrap();
                    enter("writers", guard.fencing_token(), &mut redis);
                    leave("writers", &mut redis);
                    if n % 8 > 0 {
                        assert_released(guard.unlock());
                        continue;
                    }
                    let guard = guard.downgrade();
                    enter("readers", guard.fencing_token(), &mut redis);
                    leave("readers", &mut redis);
                    assert_released(guard.unlock());
                }
            });
        }
    });
}

/// Writers downgrade, too. No writer overlaps another holder. A writer's token is above those of
/// all holders before it, and a reader's is not below that of the last writer.
fn readers_and_writers_of_many_processes_never_overlap() {
    let (server, witness) = (Server::start(), Server::start());
    let parameters = [("URL", &*server.url()), ("WITNESS", &*witness.url())];
    let children: Vec<_> = (0..4)
        .map(|_| Child::spawn("rw_lock::reader_and_writer", &parameters))
        .collect();
    for child in children {
        child.wait().succeeded();
    }
    let number = |key: &str| {
        witness
            .get(key)
            .map(|text| String::from_utf8(text).unwrap())
    };
    assert_eq!(number("overlaps"), None);
    assert_eq!(number("stale"), None);
    assert_eq!(number("entered by writers"), Some("120".to_owned()));
    wait_until_only_fences_remain(&server);
}

fn readers_and_other_locks_of_the_name_exclude_each_other() {
    let server = Server::start();
    let client = server.client();
    let (lock, plain, fair) = (rw(&server), client.mutex("a"), client.fair_mutex("a"));
    let all = client.mutex_all(["a", "b"]);
    let reading = lock.read().unwrap();
    assert!(plain.try_lock().unwrap().is_err() && fair.try_lock().unwrap().is_err());
    assert!(all.try_lock().unwrap().is_err());
    let seen = plain.inspect().unwrap().expect("it is held");
    assert!(seen.is_shared() && seen.owner().is_none());
    assert!(seen.remaining().is_some_and(|left| left > ms(1)));
    assert!(client.list("").unwrap()[0].holders()[0].is_shared());
    assert_released(reading.unlock());
    let assert_excluded_by = |guard: MutexGuard| {
        assert!(lock.try_read().unwrap().is_err() && lock.try_write().unwrap().is_err());
        assert!(!plain.inspect().unwrap().unwrap().is_shared());
        assert_released(guard.unlock());
    };
    assert_excluded_by(plain.lock().unwrap());
    assert_excluded_by(fair.lock().unwrap());
    let both = all.lock().unwrap();
    assert!(lock.try_read().unwrap().is_err());
    both.unlock().unwrap();
    wait_until_only_fences_remain(&server);
}

/// The foreign lock is that of a program that acquires with `SET NX PX`.
fn foreign_lock_and_readers_exclude_each_other() {
    let server = Server::start();
    let lock = rw(&server);
    let set_nx = || {
        let mut set = redis::cmd("SET");
        set.arg(&["lock:a", "another program", "NX", "PX", "60000"]);
        set.query::<Option<String>>(&mut server.connection())
            .unwrap()
    };
    let reading = lock.read().unwrap();
    let second = lock.read().unwrap();
    assert_eq!(set_nx(), None);
    assert_released(reading.unlock());
    assert_eq!(set_nx(), None, "one reader is left");
    assert_released(second.unlock());
    assert!(set_nx().is_some());
    assert!(lock.try_read().unwrap().is_err() && lock.try_write().unwrap().is_err());
    let seen = lock.inspect().unwrap().expect("it is held");
    assert!(!seen.is_shared());
    assert_eq!(seen.holders()[0].value(), b"another program");
    server.run("DEL", &["lock:a"]);
    let writing = lock.write().unwrap();
    assert_eq!(set_nx(), None);
    let reading = writing.downgrade();
    assert_eq!(set_nx(), None);
    assert_released(reading.unlock());
    assert!(set_nx().is_some());
}

/// The release script of a plain or fair lock cannot grant to a reader. It frees the lock and
/// publishes that, and the message makes the reader's client refresh at once.
fn assert_reader_is_granted_by_the_release_of(lock: fn(&Server) -> MutexGuard) {
    let server = Server::start();
    let guard = lock(&server);
    let waiter = server.client();
    let lock = waiter.rw_lock("a");
    thread::scope(|scope| {
        let reading = spawn_in_queue(scope, &server, QUEUE, || read_in_turn(&lock));
        server.wait_until_waiter_sleeps("lock_release:a");
        let next = spawn_in_queue(scope, &server, QUEUE, || lock_in_turn(&fair_mutex(&server)));
        wait_for_refresh(&waiter);
        let token = guard.fencing_token();
        let reading = assert_message_wakes(&waiter, || {
            assert_released(guard.unlock());
            reading.join().unwrap()
        });
        assert_eq!(reading.fencing_token(), token);
        assert_released(reading.unlock());
        assert_released(next.join().unwrap().unlock());
    });
    wait_until_only_fences_remain(&server);
}

fn reader_behind_a_fair_lock_is_granted_by_its_release() {
    assert_reader_is_granted_by_the_release_of(|server| fair_mutex(server).lock().unwrap());
}

fn reader_behind_a_plain_lock_is_granted_by_its_release() {
    assert_reader_is_granted_by_the_release_of(|server| server.client().mutex("a").lock().unwrap());
}

fn attempt_behind_a_silent_place_is_refused_although_the_lock_is_free() {
    let server = Server::start();
    // The leases of the readers have ended, and nobody listens to the inbox of the waiting writer.
    server.run("SET", &["lock:a", "leasehold:readers"]);
    server.run("RPUSH", &[QUEUE, "silent"]);
    let now = server.micros() / 1_000;
    let place = format!("{now} 300000 1 {now} l nobody");
    server.run("HSET", &[PLACES, "silent", &place]);
    let client = server.client();
    assert!(client.rw_lock("a").try_write().unwrap().is_err());
    assert_eq!(client.stats().totals.attempts, 1, "a single attempt");
    assert_eq!(server.get("lock:a"), None);
}

fn fair_lock_behind_readers_is_granted_by_the_last_of_them() {
    let server = Server::start();
    let readers = [(); 2].map(|()| rw(&server).read().unwrap());
    let waiter = server.client();
    let mutex = waiter.fair_mutex("a");
    thread::scope(|scope| {
        let waiting = spawn_in_queue(scope, &server, QUEUE, || lock_in_turn(&mutex));
        server.wait_until_waiter_sleeps("lock_release:a");
        let token = readers[0].fencing_token();
        wait_for_refresh(&waiter);
        let guard = assert_message_wakes(&waiter, || {
            for reader in readers {
                assert_released(reader.unlock());
            }
            waiting.join().unwrap()
        });
        assert!(guard.fencing_token() > token);
        assert_released(guard.unlock());
    });
    wait_until_only_fences_remain(&server);
}

/// Fair locks and readers wait in one client. The client refreshes each kind with its own script.
fn fair_and_shared_waiters_of_one_client_keep_to_their_own_scripts() {
    let server = Server::start();
    let writing = rw(&server).write().unwrap();
    let client = server.client();
    let (lock, mutex) = (client.rw_lock("a"), client.fair_mutex("a"));
    thread::scope(|scope| {
        let reading = spawn_in_queue(scope, &server, QUEUE, || read_in_turn(&lock));
        let fair = spawn_in_queue(scope, &server, QUEUE, || lock_in_turn(&mutex));
        let again = spawn_in_queue(scope, &server, QUEUE, || read_in_turn(&lock));
        wait_for_refresh(&client);
        wait_for_refresh(&client);
        wait_for_queue_length(&server, 3);
        assert_released(writing.unlock());
        assert_released(reading.join().unwrap().unlock());
        assert_released(fair.join().unwrap().unlock());
        assert_released(again.join().unwrap().unlock());
    });
    wait_until_only_fences_remain(&server);
}

fn reader_has_the_token_of_the_last_writer() {
    let server = Server::start();
    let lock = rw(&server);
    let mut last = None;
    for _ in 0..3 {
        let writing = lock.write().unwrap();
        let written = writing.fencing_token();
        assert!(Some(written) > last);
        assert_released(writing.unlock());
        let readers = [(); 2].map(|()| lock.read().unwrap());
        assert!(
            readers
                .iter()
                .all(|reader| reader.fencing_token() == written)
        );
        readers
            .into_iter()
            .for_each(|reader| assert_released(reader.unlock()));
        last = Some(written);
    }
    let writing = lock.write().unwrap();
    let written = writing.fencing_token();
    let reading = writing.downgrade();
    assert_eq!(reading.fencing_token(), written);
    assert_released(reading.unlock());
    assert_eq!(lock.last_fencing_token().unwrap(), Some(written));
}

fn reader_without_a_fence_draws_a_token_and_stores_it() {
    let server = Server::start();
    let lock = rw(&server);
    for fence in [None, Some("0")] {
        server.run("DEL", &[FENCE]);
        if let Some(value) = fence {
            server.run("SET", &[FENCE, value]);
        }
        let readers = [(); 2].map(|()| lock.read().unwrap());
        let read = readers[0].fencing_token();
        assert_eq!(readers[1].fencing_token(), read);
        assert_eq!(lock.last_fencing_token().unwrap(), Some(read));
        readers
            .into_iter()
            .for_each(|reader| assert_released(reader.unlock()));
        let writing = lock.write().unwrap();
        assert!(writing.fencing_token() > read);
        assert_released(writing.unlock());
    }
    server.run("SET", &[FENCE, "x"]);
    assert!(matches!(lock.try_read(), Err(Error::BadFence { .. })));
    assert!(server.get("lock:a").is_none() && !server.keys().contains(&READERS.into()));
}

fn downgrade_lets_readers_in_and_keeps_writers_out() {
    let server = Server::start();
    let writing = rw(&server).write().unwrap();
    thread::scope(|scope| {
        let reading = spawn_in_queue(scope, &server, QUEUE, || read_in_turn(&rw(&server)));
        let next = spawn_in_queue(scope, &server, QUEUE, || write_in_turn(&rw(&server)));
        let id = writing.holder_id().clone();
        let downgraded = writing.downgrade();
        assert_eq!(*downgraded.holder_id(), id);
        let reading = reading.join().unwrap();
        assert!(downgraded.is_held() && reading.is_held());
        wait_for_queue_length(&server, 1);
        assert_released(downgraded.unlock());
        assert!(reading.is_held());
        assert_released(reading.unlock());
        assert_released(next.join().unwrap().unlock());
    });
    wait_until_only_fences_remain(&server);
}

/// The lease of a writer cannot be handed to the call: it has a place in the queue, although its
/// own client is the writer. Without one, readers could join after a downgrade without end.
fn call_of_the_same_client_is_in_the_queue_beside_a_writer() {
    let server = Server::start();
    // Only the downgrade can wake the call: no other wake-up is due during the test.
    let long = ms(300_000);
    let client = Client::builder().url(server.url()).ttl(long);
    let client = client.build().unwrap();
    let writing = client.rw_lock("a").write().unwrap();
    thread::scope(|scope| {
        let plain = scope.spawn(|| client.mutex("a").lock().unwrap());
        wait_for_queue_length(&server, 1);
        let reading = writing.downgrade();
        wait_for_queue_length(&server, 1);
        assert!(client.rw_lock("a").try_read().unwrap().is_err());
        assert_released(reading.unlock());
        assert_released(plain.join().unwrap().unlock());
    });
    wait_until_only_fences_remain(&server);
}

fn downgraded_lease_is_renewed_and_released_as_a_readers() {
    let server = Server::start();
    let client = server.client();
    let lock = client.rw_lock("a").ttl(ms(3_000)).renew_every(ms(100));
    let guard = lock.write().unwrap().downgrade();
    let renewed = client.stats().totals.renewals_ok;
    eventually(PATIENCE, || client.stats().totals.renewals_ok > renewed + 3);
    assert!(guard.is_held());
    guard.renew().unwrap();
    guard.set_ttl(ms(60_000)).unwrap();
    assert!(server.pttl("lock:a") > 30_000 && guard.remaining().unwrap() > ms(30_000));
    guard.set_ttl(ms(5_000)).unwrap();
    assert!(guard.remaining().unwrap() <= ms(5_000));
    assert!(
        server.pttl("lock:a") <= 5_000,
        "the key ends with the lease"
    );
    let seen = lock.inspect().unwrap().expect("a reader holds it");
    assert!(seen.holders()[0].remaining().unwrap() <= ms(5_000));
    assert_released(guard.unlock());
    wait_until_only_fences_remain(&server);
}

fn inspection_shows_the_writer_or_every_reader() {
    let server = Server::start();
    let lock = rw(&server);
    assert!(lock.inspect().unwrap().is_none());
    let writing = lock.write().unwrap();
    let seen = lock.inspect().unwrap().expect("a writer holds it");
    assert!(!seen.is_shared() && seen.holders().len() == 1);
    assert_eq!(seen.holders()[0].holder_id(), Some(writing.holder_id()));
    let token = writing.fencing_token();
    assert_released(writing.unlock());
    let short = lock.clone().ttl(ms(20_000)).read().unwrap();
    let long = lock.clone().ttl(ms(90_000)).read().unwrap();
    let seen = lock.inspect().unwrap().expect("readers hold it");
    assert!(seen.is_shared());
    let readers = seen.holders();
    let ids: Vec<_> = readers
        .iter()
        .filter_map(|reader| reader.holder_id())
        .collect();
    assert_eq!(ids, [short.holder_id(), long.holder_id()]);
    assert!(readers[0].remaining().unwrap() <= ms(20_000));
    assert!(readers[1].remaining().unwrap() > ms(20_000));
    assert!(
        readers
            .iter()
            .all(|reader| reader.fencing_token() == Some(token))
    );
    assert_eq!(lock.waiting().unwrap(), 0);
    assert_released(short.unlock());
    assert_released(long.unlock());
}

fn forced_release_ends_the_leases_of_all_readers() {
    for plain in [false, true] {
        let server = Server::start();
        let (lock, operator) = (rw(&server), server.client());
        let readers = [(); 2].map(|()| lock.read().unwrap());
        let forced = if plain {
            operator.mutex("a").force_unlock()
        } else {
            operator.rw_lock("a").force_unlock()
        };
        assert!(forced.unwrap());
        assert!(!operator.rw_lock("a").force_unlock().unwrap());
        let writing = operator.rw_lock("a").write().unwrap();
        for reader in readers {
            assert!(matches!(reader.renew(), Err(Error::Lost(Lost::Taken))));
            assert!(reader.unlock().unwrap_err().lost().is_some());
        }
        assert_released(writing.unlock());
        let reading = lock.read().unwrap();
        assert!(operator.mutex("a").inspect().unwrap().unwrap().is_shared());
        assert_released(reading.unlock());
    }
}

fn forced_release_from_a_holder_spares_the_others() {
    let server = Server::start();
    let (lock, operator) = (rw(&server), rw(&server));
    let readers = [(); 2].map(|()| lock.read().unwrap());
    let held = operator.inspect().unwrap().expect("readers hold it");
    let [forced, spared] = &readers;
    let mut seen = held.holders().iter();
    let found = seen.find(|reader| reader.holder_id() == Some(forced.holder_id()));
    let found = found.expect("the inspection shows each reader");
    assert!(operator.force_unlock_from(found).unwrap());
    assert!(!operator.force_unlock_from(found).unwrap());
    assert!(matches!(forced.renew(), Err(Error::Lost(_))));
    spared.renew().unwrap();
    assert!(operator.try_write().unwrap().is_err());
    drop(readers);

    let writing = lock.write().unwrap();
    let is_forced = operator.force_unlock_from(found).unwrap();
    assert!(!is_forced, "another holds the lock now");
    writing.ensure_held().unwrap();
    let held = operator.inspect().unwrap().expect("a writer holds it");
    let seen = &held.holders()[0];
    assert!(operator.force_unlock_from(seen).unwrap());
    assert!(operator.inspect().unwrap().is_none());
    let fair = fair_mutex(&server);
    let guard = fair.lock().unwrap();
    assert!(!fair.force_unlock_from(seen).unwrap());
    let seen = fair.inspect().unwrap().expect("it is held");
    assert_eq!(seen.holder_id(), Some(guard.holder_id()));
    assert!(fair.force_unlock_from(&seen).unwrap());
    assert!(fair.inspect().unwrap().is_none());
}

fn longest_wait_is_that_of_the_first_in_the_queue() {
    let server = Server::start();
    let (lock, plain) = (rw(&server), server.client().mutex("a"));
    assert_eq!(lock.longest_wait().unwrap(), None);
    assert_eq!(plain.longest_wait().unwrap(), None);
    let writing = lock.write().unwrap();
    thread::scope(|scope| {
        let reading = spawn_in_queue(scope, &server, QUEUE, || read_in_turn(&rw(&server)));
        let_pass(ms(20));
        assert!(lock.longest_wait().unwrap() >= Some(ms(10)));
        assert!(plain.longest_wait().unwrap() >= Some(ms(10)));
        assert_released(writing.unlock());
        assert_released(reading.join().unwrap().unlock());
    });
    assert_eq!(lock.longest_wait().unwrap(), None);
}

fn read_write_lock_over_a_quorum_is_an_error() {
    let server = Server::start();
    let lock = Client::quorum([server.url()]).unwrap().rw_lock("a");
    let answers = [
        lock.read().map(drop),
        lock.try_read().map(drop),
        lock.write().map(drop),
        lock.try_write().map(drop),
        lock.inspect().map(drop),
    ];
    for answer in answers {
        let error = answer.unwrap_err();
        assert!(
            matches!(&error, Error::Config(why) if why.contains("quorum")),
            "{error:?}"
        );
    }
    assert!(server.keys().is_empty());
}

fn read_write_lock_is_granted_with_sentinel() {
    let sentinels = Sentinels::start(Setup::steady());
    let server = sentinels.first_master();
    let lock = || Client::open(sentinels.url()).unwrap().rw_lock("a");
    let writing = lock().write().unwrap();
    thread::scope(|scope| {
        let reading = spawn_in_queue(scope, server, QUEUE, || read_in_turn(&lock()));
        assert_released(writing.unlock());
        assert_released(reading.join().unwrap().unlock());
    });
    wait_until_only_fences_remain(server);
}

fn read_write_lock_is_granted_in_a_cluster() {
    let cluster = Cluster::with(ClusterSetup::steady(3, 0));
    let (one, two) = (
        Client::open(cluster.url()).unwrap(),
        Client::open(cluster.url()).unwrap(),
    );
    for node in 0..3 {
        let name = cluster.name_owned_by("shared", node);
        let (one, two) = (one.rw_lock(&*name), two.rw_lock(&*name));
        let writing = one.write().unwrap();
        assert!(two.try_read().unwrap().is_err());
        thread::scope(|scope| {
            let readers = [(); 2].map(|()| scope.spawn(|| read_in_turn(&two)));
            eventually(PATIENCE, || one.waiting().unwrap() == 2);
            let writing = writing.downgrade();
            let readers = readers.map(|reader| reader.join().unwrap());
            assert!(
                (one.inspect().unwrap())
                    .is_some_and(|held| held.is_shared() && held.holders().len() == 3)
            );
            assert_released(writing.unlock());
            readers
                .into_iter()
                .for_each(|reader| assert_released(reader.unlock()));
        });
        assert_released(two.write().unwrap().unlock());
        wait_until_only_fences_remain(cluster.node(node));
    }
    let error = one.rw_lock("a}b").read().unwrap_err();
    assert!(matches!(error, Error::Config(_)));
}
