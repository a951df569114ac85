//! Promise: a lease that lingers costs no round trip when it is locked again, and keeps nobody out
//! for longer than the run of hand-offs and its own time.

use std::thread;
use std::time::Duration;

use leasehold::{Client, ClientBuilder, Error, Mutex};
use support::{
    Child, Counters, Proxy, Server, Traffic, assert_released, counter_with, eventually, let_pass,
    ms, parameter,
};

support::roles![lingering_counter, mixed_counter, lingers_and_ends];

support::tests![
    locking_again_sends_nothing_and_draws_the_next_token,
    a_lease_that_nobody_takes_is_released_after_its_time,
    the_run_ends_at_its_length,
    another_thread_takes_the_lease,
    another_client_gets_the_lock_after_the_linger,
    other_calls_release_it_first,
    a_call_with_other_terms_releases_it_first,
    release_lingering_releases_all,
    shutdown_and_drop_release_it,
    inspect_and_stats_tell_of_it,
    a_loss_while_it_lingers_is_counted_and_told_to_nobody,
    a_release_without_a_reply_is_repeated,
    max_hold_counts_from_each_lock,
    a_lease_that_is_not_renewed_does_not_linger,
    impossible_settings_are_errors,
    processes_and_threads_count_exactly,
    processes_with_other_kinds_count_exactly,
    tokens_of_clients_and_lingers_rise,
    process_that_ends_leaves_no_key
];

/// The limit for events that must happen: generous for a slow machine, short for a failing test.
const WAIT_LIMIT: Duration = ms(20_000);

/// So long that no lease is renewed during a test.
const LONG: Duration = ms(300_000);

/// Longer than any test.
const FOR_EVER: Duration = ms(90_000);

fn builder(server: &Server) -> ClientBuilder {
    Client::builder().url(server.url()).ttl(LONG)
}

fn client(server: &Server) -> Client {
    builder(server).build().unwrap()
}

/// Locks and unlocks; returns the token.
fn pair(mutex: &Mutex) -> u64 {
    let guard = mutex.lock().unwrap();
    let token = guard.fencing_token().value();
    assert_released(guard.unlock());
    token
}

fn locking_again_sends_nothing_and_draws_the_next_token() {
    let server = Server::start();
    let client = client(&server);
    let mutex = client.mutex("a").linger(FOR_EVER);
    let first = pair(&mutex);
    let before = (server.script_calls(), client.stats().totals.attempts);
    assert_eq!(pair(&mutex), first + 1);
    let guard = mutex.try_lock().unwrap().expect("this client keeps it");
    assert_eq!(guard.fencing_token().value(), first + 2);
    assert!(guard.is_held() && client.stats().held == 1);
    assert!(client.mutex("a").try_lock().unwrap().is_err());
    assert_released(guard.unlock());
    let after = (server.script_calls(), client.stats().totals.attempts);
    assert_eq!(before, after, "nothing was sent");
    let totals = client.stats().totals;
    assert_eq!((totals.acquired_at_once, totals.released), (3, 3));
}

fn a_lease_that_nobody_takes_is_released_after_its_time() {
    let server = Server::start();
    let client = client(&server);
    pair(&client.mutex("a").linger(ms(30)));
    eventually(WAIT_LIMIT, || server.get("lock:a").is_none());
    assert_eq!(client.stats().lingering, 0);
}

fn the_run_ends_at_its_length() {
    let server = Server::start();
    let client = client(&server);
    let mutex = client.mutex("a").linger(FOR_EVER).local_handoffs(3);
    let first = pair(&mutex);
    let tokens: Vec<u64> = (0..3).map(|_| pair(&mutex)).collect();
    assert_eq!(tokens, [first + 1, first + 2, first + 3]);
    assert_eq!(server.get("lock:a"), None, "the last of the run released");
    assert!(pair(&mutex) > first + 3);
}

fn another_thread_takes_the_lease() {
    let server = Server::start();
    let client = client(&server);
    let first = pair(&client.mutex("a").linger(FOR_EVER));
    let other = || pair(&client.mutex("a"));
    let token = thread::scope(|scope| scope.spawn(other).join().unwrap());
    assert_eq!(token, first + 1);
    assert_eq!(server.get("lock:a"), None, "its own lease does not linger");
}

fn another_client_gets_the_lock_after_the_linger() {
    let server = Server::start();
    let [one, two] = [client(&server), client(&server)];
    let first = pair(&one.mutex("a").linger(ms(100)));
    let guard = two.mutex("a").try_lock_for(WAIT_LIMIT).unwrap();
    assert!(guard.unwrap().fencing_token().value() > first);
}

fn other_calls_release_it_first() {
    let server = Server::start();
    let client = client(&server);
    let linger = || pair(&client.mutex("a").linger(FOR_EVER));
    linger();
    assert_released(client.fair_mutex("a").try_lock().unwrap().unwrap().unlock());
    linger();
    let readers = client.rw_lock("a");
    assert_released(readers.try_read().unwrap().unwrap().unlock());
    linger();
    assert_released(readers.try_write().unwrap().unwrap().unlock());
    linger();
    pair(&client.mutex("b").linger(FOR_EVER));
    let set = client.mutex_all(["a", "b"]);
    assert_released(set.try_lock().unwrap().unwrap().unlock());
    linger();
    assert_released(set.lock().unwrap().unlock());
}

fn a_call_with_other_terms_releases_it_first() {
    let server = Server::start();
    let client = client(&server);
    let shorter = client.mutex("a").ttl(LONG / 2);
    let never = client.mutex("a").local_handoffs(0);
    for other in [&shorter, &never] {
        pair(&client.mutex("a").linger(FOR_EVER));
        let guard = other.try_lock().unwrap().expect("nobody holds it");
        let left = server.pttl("lock:a");
        assert!(guard.remaining().unwrap() <= ms(left as u64));
        assert_released(guard.unlock());
    }
}

fn release_lingering_releases_all() {
    let server = Server::start();
    let client = client(&server);
    for name in ["a", "b", "c"] {
        pair(&client.mutex(name).linger(FOR_EVER));
    }
    let held = client.mutex("d").linger(FOR_EVER).lock().unwrap();
    assert_eq!((client.stats().lingering, client.stats().held), (3, 1));
    client.release_lingering().unwrap();
    assert!(
        ["a", "b", "c"]
            .iter()
            .all(|name| server.get(format!("lock:{name}")).is_none())
    );
    assert!(held.is_held() && server.get("lock:d").is_some());
    client.release_lingering().unwrap();
}

fn shutdown_and_drop_release_it() {
    let server = Server::start();
    let one = client(&server);
    pair(&one.mutex("a").linger(FOR_EVER));
    let report = one.shutdown(WAIT_LIMIT);
    assert_eq!((report.released, report.unreleased), (1, 0), "{report:?}");
    assert_eq!(server.get("lock:a"), None);

    let two = client(&server);
    let mutex = two.mutex("a").linger(FOR_EVER);
    pair(&mutex);
    drop((two, mutex));
    eventually(WAIT_LIMIT, || server.get("lock:a").is_none());
}

fn inspect_and_stats_tell_of_it() {
    let server = Server::start();
    let [one, two] = [client(&server), client(&server)];
    let mutex = one.mutex("a").linger(FOR_EVER);
    let guard = mutex.lock().unwrap();
    let holder = || mutex.inspect().unwrap().expect("the key is there");
    assert!(!holder().is_lingering());
    assert_released(guard.unlock());
    assert!(holder().is_lingering() && holder().to_string().ends_with(", lingering"));
    assert!(!two.mutex("a").inspect().unwrap().unwrap().is_lingering());
    let stats = one.stats();
    assert_eq!((stats.held, stats.lingering), (0, 1));
    assert!(
        stats.to_string().starts_with("held 0, lingering 1,"),
        "{stats}"
    );
    // It never counts as held by this client.
    assert!(
        !two.mutex("a")
            .try_lock()
            .unwrap()
            .unwrap_err()
            .is_this_client()
    );
}

fn a_loss_while_it_lingers_is_counted_and_told_to_nobody() {
    let server = Server::start();
    let client = Client::builder().url(server.url()).ttl(ms(30_000));
    let client = client.build().unwrap();
    let mutex = client
        .mutex("lost")
        .on_lost(|lost| panic!("told of {lost}"))
        .renew_every(ms(50))
        .linger(ms(10_000));
    let guard = mutex.lock().unwrap();
    let told = guard.lost();
    assert_released(guard.unlock());
    server.run("DEL", &["lock:lost"]);
    // The next renewal finds that.
    eventually(WAIT_LIMIT, || client.stats().totals.lingering_lost == 1);
    assert_eq!(client.stats().lingering, 0);
    assert!(told.try_recv().is_err());
    let totals = client.stats().totals;
    assert_eq!(
        (totals.lost(), totals.released, totals.lingering_lost),
        (0, 1, 1)
    );
    assert!(pair(&mutex) > 0);
}

fn a_release_without_a_reply_is_repeated() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = Client::builder()
        .url(proxy.url())
        .ttl(LONG)
        .command_timeout(ms(300));
    let client = client.build().unwrap();
    pair(&client.mutex("a").linger(FOR_EVER));
    proxy.set_all(Traffic::Stall);
    assert!(matches!(
        client.release_lingering(),
        Err(Error::Unreachable { .. })
    ));
    assert_eq!(client.stats().lingering, 0);
    proxy.set_all(Traffic::Pass);
    eventually(WAIT_LIMIT, || server.get("lock:a").is_none());
}

fn max_hold_counts_from_each_lock() {
    let server = Server::start();
    let client = client(&server);
    let mutex = client.mutex("a").linger(FOR_EVER).max_hold(ms(600));
    pair(&mutex);
    let_pass(ms(700));
    let guard = mutex.lock().unwrap();
    assert!(guard.is_held(), "it counts from this lock");
    assert!(guard.remaining().unwrap() <= ms(600));
    assert_released(guard.unlock());
}

fn a_lease_that_is_not_renewed_does_not_linger() {
    let server = Server::start();
    let client = client(&server);
    pair(&client.mutex("a").linger(FOR_EVER).auto_renew(false));
    assert_eq!(server.get("lock:a"), None);
}

fn impossible_settings_are_errors() {
    let server = Server::start();
    let client = client(&server);
    let fails = |mutex: Mutex, text: &str| match mutex.lock() {
        Err(Error::Config(why)) => assert!(why.contains(text), "{why}"),
        other => panic!("{other:?}"),
    };
    fails(
        client.mutex("a").linger(LONG / 3 + ms(1)),
        "a third of the ttl",
    );
    fails(
        client.mutex("a").linger(ms(1)).local_handoffs(0),
        "local_handoffs",
    );
    let quorum = Client::quorum([server.url()]).unwrap();
    fails(quorum.mutex("a").linger(ms(1)), "quorum");
    // The client's setting is for mutexes.
    let client = builder(&server).linger(ms(1)).build().unwrap();
    assert_released(client.fair_mutex("a").lock().unwrap().unlock());
    assert_released(client.mutex_all(["a", "b"]).lock().unwrap().unlock());
    assert_released(client.rw_lock("a").read().unwrap().unlock());
    pair(&client.mutex("a"));
    assert_eq!(client.stats().lingering, 1);
}

const COUNTERS: Counters = Counters {
    processes: 3,
    threads: 4,
    rounds: 100,
};

fn lingering_counter() {
    counter_with(|client| Box::new(client.mutex("a").linger(ms(3))));
}

fn mixed_counter() {
    counter_with(|client| match std::process::id() % 3 {
        0 => Box::new(client.fair_mutex("a")),
        1 => Box::new(client.mutex("a").linger(ms(1))),
        _ => Box::new(client.mutex("a").linger(ms(20))),
    });
}

fn processes_and_threads_count_exactly() {
    let server = Server::start();
    COUNTERS.count_exactly_as("linger::lingering_counter", &[server.url()], &server);
}

fn processes_with_other_kinds_count_exactly() {
    let server = Server::start();
    let counters = Counters {
        rounds: 40,
        ..COUNTERS
    };
    counters.count_exactly_as("linger::mixed_counter", &[server.url()], &server);
}

fn tokens_of_clients_and_lingers_rise() {
    let server = Server::start();
    let clients = [client(&server), client(&server)];
    let tokens = parking_lot::Mutex::new(Vec::new());
    thread::scope(|scope| {
        for client in &clients {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mutex = client.mutex("a").linger(ms(2));
                    for _ in 0..200 {
                        let guard = mutex.lock().unwrap();
                        tokens.lock().push(guard.fencing_token());
                        assert_released(guard.unlock());
                    }
                });
            }
        }
    });
    let tokens = tokens.into_inner();
    assert!(tokens.len() == 800 && tokens.is_sorted_by(|earlier, later| earlier < later));
}

fn lingers_and_ends() {
    let client = Client::open(parameter("URL")).unwrap();
    pair(&client.mutex("a").linger(ms(3_000)));
}

/// The drop of its client waits for the thread that sends the release.
fn process_that_ends_leaves_no_key() {
    let server = Server::start();
    let child = Child::spawn("linger::lingers_and_ends", &[("URL", &server.url())]);
    child.wait().succeeded();
    assert_eq!(server.get("lock:a"), None);
}
