//! Promise: what a read-write lock promises holds although replies are lost, keys are deleted, and
//! processes and servers fail.

use std::thread;

use leasehold::{Client, ClientBuilder, Error, Lost, RwLock, RwLockReadGuard};
use support::fair::{
    PATIENCE, PLACES, QUEUE, holder, queue_length, wait_for_queue_length,
    wait_until_only_fences_remain,
};
use support::scripts;
use support::{
    Child, Cluster, ClusterSetup, Proxy, Sentinels, Server, Setup, Traffic, assert_released,
    builder, client, eventually, ms, parameter, tell_parent,
};

support::roles![reader];

support::tests![
    deletion_of_the_flag_alone_ends_every_reader,
    downgrade_without_a_reply_takes_effect,
    downgrade_that_did_not_run_is_repeated_by_a_renewal,
    downgrade_on_a_closed_connection_is_repeated_at_once,
    downgrade_without_renewal_keeps_others_out_until_its_release,
    deletion_of_the_readers_alone_ends_every_reader,
    displaced_reader_does_not_hold_again_under_a_new_flag,
    enter_that_the_network_runs_twice_reports_its_own_lease,
    enter_of_a_reader_that_the_network_runs_twice_grants_one_lease,
    killed_reader_ends_alone_while_others_renew,
    lock_ends_with_the_reader_that_ends_last,
    release_is_published_if_only_dead_readers_are_left,
    release_beside_other_readers_costs_the_server_few_commands,
    full_server_refuses_a_reader_and_keeps_those_it_has,
    reader_has_the_token_of_an_earlier_writer_after_a_loss_of_data,
    expired_reader_and_expired_writer_let_the_next_in,
    reader_that_is_stopped_for_long_finds_its_lease_lost,
    attempts_with_dropped_replies_leave_nothing_behind,
    readers_survive_a_failover,
    readers_are_renewed_while_their_slot_is_moved
];

const FENCE: &str = "leasehold:fence:{lock:a}";
const READERS: &str = "leasehold:readers:{lock:a}";

/// A child's role: acquires as a reader, and sends its holder id to the parent.
fn reader() {
    let ttl = ms(parameter("TTL_MS").parse().unwrap());
    let lock = Client::open(parameter("URL")).unwrap().rw_lock("a");
    let guard = lock.ttl(ttl).read().unwrap();
    tell_parent(guard.holder_id().as_str());
    // Until the parent kills it, or it learns of a loss.
    let _ = guard.lost().recv();
}

fn rw(server: &Server) -> RwLock {
    client(&server.url()).rw_lock("a")
}

fn readers(server: &Server) -> usize {
    // Not ZCARD, which the test kit lacks.
    let mut range = redis::cmd("ZRANGEBYSCORE");
    let range = range.arg(&[READERS, "-inf", "+inf"]);
    let ids: Vec<String> = range.query(&mut server.connection()).unwrap();
    ids.len()
}

/// Waits until a writer gets the lock.
#[track_caller]
fn write_next(lock: &RwLock) {
    let guard = lock.try_write_for(PATIENCE).unwrap();
    let guard = guard.expect("the writer gets its turn");
    guard.unlock().unwrap();
}

/// Returns the lock of a client of a proxy, renewed every 300 ms. The server knows its scripts: it
/// would report an unknown script in a reply, which the proxy may drop.
fn renewing(url: &str) -> RwLock {
    let lock = client(url).rw_lock("a").ttl(ms(20_000));
    let lock = lock.renew_every(ms(300));
    let reading = lock.write().unwrap().downgrade();
    reading.renew().unwrap();
    assert_released(reading.unlock());
    lock
}

fn downgrade_without_a_reply_takes_effect() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let writing = renewing(&proxy.url()).write().unwrap();
    proxy.set_all(Traffic::DropReplies);
    let reading = writing.downgrade();
    assert!(reading.is_held());
    assert_released(rw(&server).read().unwrap().unlock());
    proxy.cut();
    proxy.set_all(Traffic::Pass);
    reading.renew().unwrap();
    assert_eq!(readers(&server), 1);
    assert_released(reading.unlock());
    wait_until_only_fences_remain(&server);
}

fn downgrade_that_did_not_run_is_repeated_by_a_renewal() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let writing = renewing(&proxy.url()).write().unwrap();
    let id = writing.holder_id().clone();
    proxy.set_all(Traffic::DropBoth);
    let reading = writing.downgrade();
    assert!(reading.is_held());
    assert_eq!(holder(&server).unwrap(), id.as_str());
    assert!(rw(&server).try_read().unwrap().is_err());
    proxy.cut();
    proxy.set_all(Traffic::Pass);
    // A renewal in the background.
    eventually(PATIENCE, || readers(&server) == 1);
    assert_released(rw(&server).read().unwrap().unlock());
    assert!(reading.is_held());
    assert_released(reading.unlock());
    wait_until_only_fences_remain(&server);
}

fn downgrade_on_a_closed_connection_is_repeated_at_once() {
    let server = Server::start();
    for traffic in [Traffic::Cut, Traffic::CutOnReply] {
        let proxy = Proxy::new(&server);
        let lock = renewing(&proxy.url());
        let writing = lock.auto_renew(false).write().unwrap();
        // Connections that are opened later work.
        proxy.set_open(traffic);
        let reading = writing.downgrade();
        assert_eq!(readers(&server), 1, "{traffic:?}");
        assert_released(rw(&server).read().unwrap().unlock());
        assert_released(reading.unlock());
    }
    wait_until_only_fences_remain(&server);
}

/// The holder does not renew, so nothing repeats the downgrade but its release.
fn downgrade_without_renewal_keeps_others_out_until_its_release() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let writing = renewing(&proxy.url()).auto_renew(false).write().unwrap();
    proxy.set_all(Traffic::DropBoth);
    let reading = writing.downgrade();
    proxy.cut();
    proxy.set_all(Traffic::Pass);
    thread::scope(|scope| {
        let lock = rw(&server);
        let next = scope.spawn(move || lock.try_read_for(PATIENCE).unwrap().unwrap());
        wait_for_queue_length(&server, 1);
        assert!(reading.is_held());
        assert_released(reading.unlock());
        assert_released(next.join().unwrap().unlock());
    });
    wait_until_only_fences_remain(&server);
}

/// Returns two readers, after it has deleted `key`.
fn two_readers_without(server: &Server, key: &str) -> [RwLockReadGuard; 2] {
    let readers = [(); 2].map(|()| rw(server).read().unwrap());
    server.run("DEL", &[key]);
    readers
}

fn deletion_of_the_flag_alone_ends_every_reader() {
    let server = Server::start();
    let [first, second] = two_readers_without(&server, "lock:a");
    assert_eq!(readers(&server), 2, "without the flag they do not count");
    assert!(matches!(first.renew(), Err(Error::Lost(Lost::Deleted))));
    assert_eq!(second.unlock().unwrap_err().lost(), Some(Lost::Deleted));
    write_next(&rw(&server));
    wait_until_only_fences_remain(&server);
}

fn deletion_of_the_readers_alone_ends_every_reader() {
    let server = Server::start();
    let [first, second] = two_readers_without(&server, READERS);
    assert_eq!(holder(&server).unwrap(), "leasehold:readers");
    assert!(rw(&server).inspect().unwrap().is_none());
    write_next(&rw(&server));
    assert!(matches!(first.renew(), Err(Error::Lost(Lost::Deleted))));
    assert_eq!(second.unlock().unwrap_err().lost(), Some(Lost::Deleted));
    wait_until_only_fences_remain(&server);
}

/// Another program locks the name in between. The flag of the next reader must not make the
/// displaced reader a holder again.
fn displaced_reader_does_not_hold_again_under_a_new_flag() {
    let server = Server::start();
    let displaced = rw(&server).auto_renew(false).read().unwrap();
    server.run("SET", &["lock:a", "another program", "PX", "60000"]);
    server.run("DEL", &["lock:a"]);
    let reading = rw(&server).read().unwrap();
    assert_eq!(readers(&server), 1);
    assert!(matches!(displaced.renew(), Err(Error::Lost(Lost::Taken))));
    assert!(displaced.unlock().unwrap_err().lost().is_some());
    assert!(reading.is_held() && readers(&server) == 1);
    assert_released(reading.unlock());
    wait_until_only_fences_remain(&server);
}

/// Enters the queue of `a` as a client does.
fn enter(server: &Server, id: &str, want: &str) -> redis::Value {
    const ENTER: &str = scripts::LOCKS.enter;
    let mut eval = redis::cmd("EVAL");
    eval.arg(ENTER).arg(5);
    eval.arg(&["lock:a", FENCE, QUEUE, PLACES, READERS]);
    eval.arg(&[id, "60000", want, "l inbox"]);
    eval.query(&mut server.connection()).unwrap()
}

/// Enters the queue of `a`, and returns the token if the lock was granted.
fn token(server: &Server, id: &str, want: &str) -> Option<u64> {
    scripts::granted(&enter(server, id, want))
}

fn enter_that_the_network_runs_twice_reports_its_own_lease() {
    for (want, waits) in [("r", 1), ("1", 0), ("1", 1)] {
        let server = Server::start();
        assert!(token(&server, "o:1", want).is_some());
        for _ in 0..waits {
            assert_eq!(token(&server, "o:2", "1"), None, "a writer waits");
        }
        let again: (u8, String, i64, i64) =
            redis::from_redis_value(enter(&server, "o:1", want)).unwrap();
        assert_eq!((again.0, &*again.1), (0, "o:1"));
        assert_eq!(queue_length(&server), waits);
    }
}

fn enter_of_a_reader_that_the_network_runs_twice_grants_one_lease() {
    let server = Server::start();
    let first = token(&server, "o:1", "r");
    assert!(first.is_some());
    assert_eq!(token(&server, "o:1", "r"), first);
    assert_eq!((readers(&server), queue_length(&server)), (1, 0));
}

fn killed_reader_ends_alone_while_others_renew() {
    let server = Server::start();
    let ttl = ms(1_500);
    let parameters = [("URL", &*server.url()), ("TTL_MS", "1500")];
    let mut child = Child::spawn("rw_lock_faults::reader", &parameters);
    let dead = child.next_line();
    let others = [(); 2].map(|()| rw(&server).ttl(ttl).read().unwrap());
    child.kill();
    let is_dead = || {
        let held = rw(&server).inspect().unwrap().expect("the others read");
        held.holders()
            .iter()
            .all(|reader| reader.holder_id().unwrap().as_str() != dead)
    };
    eventually(PATIENCE, is_dead);
    assert!(others.iter().all(|guard| guard.is_held()));
    let lock = rw(&server);
    assert!(lock.try_write().unwrap().is_err());
    others
        .into_iter()
        .for_each(|reader| assert_released(reader.unlock()));
    write_next(&lock);
    wait_until_only_fences_remain(&server);
}

/// A reader has crashed, and another with a longer lease releases before that one ends.
fn lock_ends_with_the_reader_that_ends_last() {
    let server = Server::start();
    let lock = rw(&server);
    // Ends before the others, and outlives the test.
    let _crashed = lock
        .clone()
        .ttl(ms(30_000))
        .auto_renew(false)
        .read()
        .unwrap();
    let long = [60_000, 70_000].map(|ttl| lock.clone().ttl(ms(ttl)).read().unwrap());
    let mut redis = server.connection();
    let mut inbox = redis.as_pubsub();
    inbox.subscribe("inbox").unwrap();
    assert_eq!(token(&server, "o:writer", "1"), None);
    let [first, second] = long;
    assert_released(second.unlock());
    assert!(server.pttl("lock:a") > 30_000);
    assert_released(first.unlock());
    let left = server.pttl("lock:a");
    assert!(
        (1..=30_000).contains(&left),
        "the end that counts: {left} ms"
    );
    let mut told = || -> String { inbox.get_message().unwrap().get_payload().unwrap() };
    assert_eq!([told(), told()], ["refresh o:writer"; 2]);
}

/// Waiters without a place in the queue learn only by this message that the lock is free.
fn release_is_published_if_only_dead_readers_are_left() {
    let server = Server::start();
    let parameters = [("URL", &*server.url()), ("TTL_MS", "300")];
    let mut child = Child::spawn("rw_lock_faults::reader", &parameters);
    child.next_line();
    let living = rw(&server).ttl(ms(60_000)).read().unwrap();
    child.kill();
    let count = || {
        rw(&server)
            .inspect()
            .unwrap()
            .map(|held| held.holders().len())
    };
    eventually(PATIENCE, || count() == Some(1));
    assert_eq!(readers(&server), 2, "no script has removed the dead one");
    let mut redis = server.connection();
    let mut channel = redis.as_pubsub();
    channel.subscribe("lock_release:a").unwrap();
    let id = living.holder_id().clone();
    assert_released(living.unlock());
    let told: String = channel.get_message().unwrap().get_payload().unwrap();
    assert_eq!(told, id.as_str());
    wait_until_only_fences_remain(&server);
}

fn release_beside_other_readers_costs_the_server_few_commands() {
    let server = Server::start();
    assert_released(rw(&server).write().unwrap().unlock());
    let [earlier, middle, later] =
        [30_000, 60_000, 90_000].map(|ttl| rw(&server).ttl(ms(ttl)).read().unwrap());
    for (reader, most) in [(later, 6), (earlier, 4), (middle, 5)] {
        let before = server.command_stats();
        assert_released(reader.unlock());
        let commands = server.command_stats().since(&before).in_scripts();
        assert!(commands <= most, "{commands} commands, not {most}");
    }
}

fn full_server_refuses_a_reader_and_keeps_those_it_has() {
    let server = Server::start();
    let lock = rw(&server);
    let full = || server.run("CONFIG", &["SET", "maxmemory", "1"]);
    assert_released(lock.write().unwrap().unlock());
    full();
    let error = lock.try_read().unwrap_err().to_string();
    assert!(error.contains("OOM"), "{error}");
    assert_eq!((server.get("lock:a"), readers(&server)), (None, 0));
    server.run("CONFIG", &["SET", "maxmemory", "0"]);
    let reading = lock.read().unwrap();
    full();
    reading.renew().unwrap();
    assert!(lock.try_read().is_err());
    assert_eq!(readers(&server), 1);
    assert_released(reading.unlock());
    server.run("CONFIG", &["SET", "maxmemory", "0"]);
    wait_until_only_fences_remain(&server);
}

/// A limit that the documentation names: the token of a reader is no version of the data.
fn reader_has_the_token_of_an_earlier_writer_after_a_loss_of_data() {
    let server = Server::start();
    let lock = rw(&server);
    let write = || {
        let writing = lock.write().unwrap();
        let token = writing.fencing_token();
        assert_released(writing.unlock());
        token
    };
    let [first, second] = [write(), write()];
    // As after a restart from a snapshot.
    server.run("SET", &[FENCE, &first.to_string()]);
    let reading = lock.read().unwrap();
    assert_eq!(reading.fencing_token(), first);
    assert_released(reading.unlock());
    assert!(write() > second);
    wait_until_only_fences_remain(&server);
}

fn expired_reader_and_expired_writer_let_the_next_in() {
    let server = Server::start();
    let lock = rw(&server);
    let short = || rw(&server).ttl(ms(300)).auto_renew(false);
    let readers = [(); 2].map(|()| short().read().unwrap());
    write_next(&lock);
    for reader in readers {
        assert_eq!(reader.unlock().unwrap_err().lost(), Some(Lost::Expired));
    }
    let writing = short().write().unwrap();
    assert_released(lock.try_read_for(PATIENCE).unwrap().unwrap().unlock());
    assert_eq!(writing.unlock().unwrap_err().lost(), Some(Lost::Expired));
    // A downgraded lease ends as a reader's.
    let reading = short().write().unwrap().downgrade();
    write_next(&lock);
    assert_eq!(reading.unlock().unwrap_err().lost(), Some(Lost::Expired));
    wait_until_only_fences_remain(&server);
}

fn reader_that_is_stopped_for_long_finds_its_lease_lost() {
    let server = Server::start();
    let parameters = [("URL", &*server.url()), ("TTL_MS", "500")];
    let child = Child::spawn("rw_lock_faults::reader", &parameters);
    child.next_line();
    child.pause();
    write_next(&rw(&server));
    child.resume();
    child.wait().succeeded();
    wait_until_only_fences_remain(&server);
}

fn attempts_with_dropped_replies_leave_nothing_behind() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let patient: fn(ClientBuilder) -> ClientBuilder = |builder| builder.unreachable_for(ms(600));
    let client = patient(builder(&proxy.url())).build().unwrap();
    let lock = client.rw_lock("a").ttl(ms(60_000));
    assert_released(lock.read().unwrap().unlock());
    proxy.set_all(Traffic::DropReplies);
    assert!(matches!(lock.try_read(), Err(Error::Unreachable { .. })));
    assert!(matches!(lock.try_write(), Err(Error::Unreachable { .. })));
    assert!(matches!(lock.read().err(), Some(Error::Unreachable { .. })));
    proxy.cut();
    proxy.set_all(Traffic::Pass);
    wait_until_only_fences_remain(&server);
    assert_eq!(queue_length(&server), 0);
    write_next(&lock);
}

fn readers_survive_a_failover() {
    let sentinels = Sentinels::start(Setup::fast_failover());
    let lock = client(&sentinels.url()).rw_lock("a");
    let lock = lock.ttl(ms(40_000)).renew_every(ms(500));
    let readers = [(); 2].map(|()| lock.read().unwrap());
    for replica in &sentinels.data()[1..] {
        let count = || {
            let count: usize = sentinels.ask_data(replica, &["ZCARD", READERS]).unwrap();
            count
        };
        eventually(PATIENCE, || count() == 2 && replica.get("lock:a").is_some());
    }
    sentinels.failover();
    let successor = sentinels.successor();
    for reader in &readers {
        eventually(PATIENCE, || reader.renew().is_ok());
    }
    // The client may still use the old master; this one does not.
    let there = client(&successor.url()).rw_lock("a");
    assert!(there.try_write().unwrap().is_err());
    assert_released(there.try_read().unwrap().expect("readers share").unlock());
    readers
        .into_iter()
        .for_each(|reader| assert_released(reader.unlock()));
    write_next(&there);
    write_next(&lock);
    eventually(PATIENCE, || successor.get("lock:a").is_none());
}

/// While the slot moves, a command that names all keys fails, because the queue does not exist.
fn readers_are_renewed_while_their_slot_is_moved() {
    let cluster = Cluster::with(ClusterSetup::steady(2, 0));
    let name = cluster.name_owned_by("moving", 0);
    let lock = client(&cluster.url()).rw_lock(&*name).ttl(ms(60_000));
    let slot = cluster.slot(&format!("lock:{name}"));
    let readers = [(); 2].map(|()| lock.read().unwrap());
    let writer = cluster.name_owned_by("written", 0);
    let writing = client(&cluster.url()).rw_lock(&*writer).write().unwrap();
    cluster.begin_migration(slot, 0, 1);
    cluster.begin_migration(cluster.slot(&format!("lock:{writer}")), 0, 1);
    for reader in &readers {
        reader.renew().unwrap();
    }
    writing.renew().unwrap();
    cluster.move_keys(slot, 0, 1);
    for reader in &readers {
        reader.renew().unwrap();
    }
    cluster.end_migration(slot, 0, 1);
    readers
        .into_iter()
        .for_each(|reader| assert_released(reader.unlock()));
    drop(writing);
}
