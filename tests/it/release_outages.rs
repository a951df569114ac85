//! Promise: while a server does not answer, all releases together take about one command timeout.
//! They are repeated in the background until it answers.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Error, MutexGuard};
use support::{Server, eventually, ms};

support::tests![
    many_drops_while_redis_hangs_take_one_timeout,
    many_drops_while_redis_is_down_take_one_timeout,
    many_unlocks_while_redis_hangs_take_one_timeout,
    many_threads_release_within_one_timeout,
    every_kind_of_guard_leaves_its_release_to_the_background,
    many_drops_over_a_hung_quorum_take_one_timeout
];

const GUARDS: usize = 60;

const TIMEOUT: Duration = ms(700);

/// A second timeout would be over, too.
const TOLERANCE: Duration = ms(600);

const WAIT_LIMIT: Duration = ms(30_000);

fn client(url: &str) -> Client {
    let builder = support::builder_within(url, TIMEOUT).ttl(ms(60_000));
    builder.build().unwrap()
}

fn lock_many(client: &Client) -> Vec<MutexGuard> {
    let lock = |n| client.mutex(format!("{n}")).lock().unwrap();
    (0..GUARDS).map(lock).collect()
}

fn is_released(server: &Server) -> bool {
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg("lock:*")
        .query(&mut server.connection())
        .unwrap();
    keys.is_empty()
}

/// Runs `release`, which must take about one command timeout.
#[track_caller]
fn assert_takes_one_timeout(release: impl FnOnce()) {
    let began = Instant::now();
    release();
    let took = began.elapsed();
    assert!(took >= TIMEOUT / 2, "the first release waits: {took:?}");
    assert!(took < TIMEOUT + TOLERANCE, "the releases took {took:?}");
}

fn many_drops_while_redis_hangs_take_one_timeout() {
    let server = Server::start();
    let client = client(&server.url());
    let guards = lock_many(&client);
    server.pause();
    assert_takes_one_timeout(|| drop(guards));
    server.resume();
    eventually(WAIT_LIMIT, || is_released(&server));
    // The server has answered: releases wait for it again.
    let guard = client.mutex("later").lock().unwrap();
    guard.unlock().unwrap();
}

fn many_drops_while_redis_is_down_take_one_timeout() {
    let mut server = Server::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let client = client(&server.url());
    let guards = lock_many(&client);
    server.kill();
    assert_takes_one_timeout(|| drop(guards));
    server.restart_with_data();
    eventually(WAIT_LIMIT, || is_released(&server));
}

fn many_unlocks_while_redis_hangs_take_one_timeout() {
    let server = Server::start();
    let client = client(&server.url());
    let guards = lock_many(&client);
    server.pause();
    assert_takes_one_timeout(|| {
        for (n, guard) in guards.into_iter().enumerate() {
            let error = guard.unlock().unwrap_err();
            assert!(matches!(error, Error::Unreachable { .. }), "{error}");
            let text = error.to_string();
            let says_so = text.contains("repeated in the background");
            assert!(n == 0 || says_so, "{text}");
            assert!(text.contains(&server.port().to_string()), "{text}");
        }
    });
    server.resume();
    eventually(WAIT_LIMIT, || is_released(&server));
}

fn many_threads_release_within_one_timeout() {
    let server = Server::start();
    let client = client(&server.url());
    let guards = lock_many(&client);
    server.pause();
    assert_takes_one_timeout(|| {
        thread::scope(|scope| {
            for guard in guards {
                scope.spawn(move || drop(guard));
            }
        });
    });
    server.resume();
    eventually(WAIT_LIMIT, || is_released(&server));
}

fn every_kind_of_guard_leaves_its_release_to_the_background() {
    let server = Server::start();
    let client = client(&server.url());
    let first = client.mutex("first").lock().unwrap();
    let fair = client.fair_mutex("fair").lock().unwrap();
    let reading = client.rw_lock("read").read().unwrap();
    let writing = client.rw_lock("write").write().unwrap();
    let set = client.mutex_all(["one", "two"]).lock().unwrap();
    let permit = client.semaphore("permits", 2).acquire().unwrap();
    server.pause();
    assert_takes_one_timeout(|| {
        drop(first);
        let unlocked = [
            fair.unlock(),
            reading.unlock(),
            writing.unlock(),
            set.unlock(),
            permit.release(),
        ];
        for outcome in unlocked {
            assert!(matches!(outcome, Err(Error::Unreachable { .. })));
        }
    });
    server.resume();
    let semaphore = client.semaphore("permits", 2);
    eventually(WAIT_LIMIT, || {
        is_released(&server) && semaphore.available().unwrap() == 2
    });
}

fn many_drops_over_a_hung_quorum_take_one_timeout() {
    let servers = [(); 3].map(|()| Server::start());
    let hosts = servers
        .each_ref()
        .map(|server| format!("127.0.0.1:{}", server.port()));
    let client = client(&format!("redis+quorum://{}", hosts.join(",")));
    let guards = lock_many(&client);
    servers[1].pause();
    servers[2].pause();
    assert_takes_one_timeout(|| drop(guards));
    servers[1].resume();
    servers[2].resume();
    eventually(WAIT_LIMIT, || servers.iter().all(is_released));
}
