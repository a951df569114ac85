//! Promise: every later holder's fencing token is higher, whatever becomes of the server in between, and below 2^53.

use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use leasehold::{Client, Error, Lost};
use support::fair::{lock_in_turn, wait_for_queue_length};
use support::{Proxy, Server, Traffic, eventually, ms};

support::tests![
    tokens_rise_and_start_at_the_servers_time,
    rises_from_client_to_client,
    rises_over_an_expiry,
    rises_over_flushall,
    rises_over_a_restart_from_nothing,
    rises_over_a_restart_from_an_old_snapshot,
    rises_over_the_promotion_of_a_replica_that_lagged,
    rises_by_one_while_the_stored_token_is_ahead_of_the_clock,
    stays_below_two_to_the_53,
    outlives_the_lock_by_a_day,
    plain_and_fair_ones_rise_together,
    a_fair_one_rises_over_an_expiry_and_stays_below_two_to_the_53
];

const FENCE: &str = "leasehold:fence:{lock:a}";
const LIMIT: u64 = 1 << 53;

fn client(server: &Server) -> Client {
    Client::open(&server.url()).unwrap()
}

/// The token of a lock that is taken and released.
fn draw(client: &Client) -> u64 {
    client
        .mutex("a")
        .with(|guard| guard.fencing_token().value())
        .unwrap()
}

/// Two tokens of a fair lock: of one who finds it free, and of one to whom that one passes it on.
fn draw_fairly(server: &Server, client: &Client) -> [u64; 2] {
    let mutex = client.fair_mutex("a");
    let guard = mutex.lock().unwrap();
    thread::scope(|scope| {
        let next = scope.spawn(|| lock_in_turn(&mutex).fencing_token().value());
        wait_for_queue_length(server, 1);
        let found_free = guard.fencing_token().value();
        drop(guard);
        [found_free, next.join().unwrap()]
    })
}

fn set_fence(server: &Server, value: u64) {
    server.run("SET", &[FENCE, &value.to_string()]);
}

fn stored(server: &Server) -> u64 {
    let fence = server.get(FENCE).expect("a token was drawn");
    String::from_utf8(fence).unwrap().parse().unwrap()
}

fn micros_since_1970() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    since.as_micros().try_into().unwrap()
}

fn tokens_rise_and_start_at_the_servers_time() {
    let server = Server::start();
    let client = client(&server);
    let before = micros_since_1970();
    let tokens: Vec<u64> = (0..100).map(|_| draw(&client)).collect();
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later));
    assert!(tokens[0] >= before && tokens[99] < LIMIT);
    assert_eq!(stored(&server), tokens[99]);
}

fn rises_from_client_to_client() {
    let server = Server::start();
    let (one, two) = (client(&server), client(&server));
    let first = draw(&one);
    let second = draw(&two);
    assert!(first < second && second < draw(&one));
}

fn rises_over_an_expiry() {
    let server = Server::start();
    let (one, two) = (client(&server), client(&server));
    let expired = one
        .mutex("a")
        .ttl(ms(100))
        .auto_renew(false)
        .lock()
        .unwrap();
    assert_eq!(expired.lost().recv_timeout(ms(10_000)), Ok(Lost::Expired));
    assert!(draw(&two) > expired.fencing_token().value());
}

fn rises_over_flushall() {
    let server = Server::start();
    let (one, two) = (client(&server), client(&server));
    let flush = || {
        server.run("FLUSHALL", &[]);
    };
    let first = draw(&one);
    flush();
    let held = one.mutex("a").lock().unwrap();
    assert!(held.fencing_token().value() > first);
    flush();
    assert!(draw(&two) > held.fencing_token().value());
}

fn rises_over_a_restart_from_nothing() {
    let mut server = Server::start();
    let client = client(&server);
    let before = draw(&client);
    server.restart();
    assert_eq!(server.keys(), [] as [Vec<u8>; 0]);
    assert!(draw(&client) > before);
}

fn rises_over_a_restart_from_an_old_snapshot() {
    let mut server = Server::start();
    let client = client(&server);
    let old = draw(&client);
    let snapshot = server.snapshot();
    let newest = (0..20).map(|_| draw(&client)).max().unwrap();
    server.restart_from(&snapshot);
    assert_eq!(stored(&server), old);
    assert!(draw(&client) > newest);
}

fn rises_over_the_promotion_of_a_replica_that_lagged() {
    let master = Server::start();
    let link = Proxy::new(&master);
    let replica = Server::with(&["--replicaof", "127.0.0.1", &link.port().to_string()]);
    eventually(ms(10_000), || {
        replica.info("replication", "master_link_status").as_deref() == Some("up")
    });
    let known = draw(&client(&master));
    // The token has arrived, and that the lock is free again has, too.
    eventually(ms(10_000), || {
        replica.get(FENCE).is_some() && replica.get("lock:a").is_none()
    });
    link.set_all(Traffic::Stall);
    let newest = (0..20).map(|_| draw(&client(&master))).max().unwrap();
    replica.run("REPLICAOF", &["NO", "ONE"]);
    assert_eq!(stored(&replica), known);
    assert!(draw(&client(&replica)) > newest);
}

fn rises_by_one_while_the_stored_token_is_ahead_of_the_clock() {
    let server = Server::start();
    let ahead = micros_since_1970() + 3_600_000_000;
    set_fence(&server, ahead);
    let client = client(&server);
    assert_eq!(draw(&client), ahead + 1);
    assert_eq!(draw(&client), ahead + 2);
    assert_eq!(stored(&server), ahead + 2);
}

fn stays_below_two_to_the_53() {
    let server = Server::start();
    set_fence(&server, LIMIT - 2);
    let client = client(&server);
    assert_eq!(draw(&client), LIMIT - 1);
    match client.mutex("a").lock() {
        Err(Error::BadFence { key }) => assert_eq!(key, FENCE),
        other => panic!("{other:?}"),
    }
    assert_eq!(server.keys(), [FENCE.as_bytes()]);
    assert_eq!(stored(&server), LIMIT - 1);
}

fn outlives_the_lock_by_a_day() {
    let server = Server::start();
    draw(&client(&server));
    let left = server.pttl(FENCE);
    assert!((86_000_000..=86_400_000).contains(&left), "{left} ms");
}

fn plain_and_fair_ones_rise_together() {
    let mut server = Server::start();
    let client = client(&server);
    let mut last = 0;
    let mut rise = |server: &Server, ahead: Option<u64>| {
        let before = draw(&client);
        let [found_free, passed_on] = draw_fairly(server, &client);
        let after = draw(&client);
        let tokens = [last, before, found_free, passed_on, after];
        assert!(tokens.is_sorted_by(|earlier, later| earlier < later));
        if let Some(ahead) = ahead {
            assert_eq!(after, ahead + 4, "one by one");
        }
        assert_eq!(stored(server), after);
        last = after;
    };
    rise(&server, None);
    let snapshot = server.snapshot();
    rise(&server, None);
    server.run("FLUSHALL", &[]);
    rise(&server, None);
    server.restart();
    rise(&server, None);
    server.restart_from(&snapshot);
    rise(&server, None);
    let ahead = micros_since_1970() + 3_600_000_000;
    set_fence(&server, ahead);
    rise(&server, Some(ahead));
}

fn a_fair_one_rises_over_an_expiry_and_stays_below_two_to_the_53() {
    let server = Server::start();
    let client = client(&server);
    let mutex = client.fair_mutex("a").ttl(ms(100)).auto_renew(false);
    let expired = mutex.lock().unwrap();
    assert_eq!(expired.lost().recv_timeout(ms(10_000)), Ok(Lost::Expired));
    let [later, _] = draw_fairly(&server, &client);
    assert!(later > expired.fencing_token().value());
    set_fence(&server, LIMIT - 3);
    assert_eq!(draw_fairly(&server, &client), [LIMIT - 2, LIMIT - 1]);
    match client.fair_mutex("a").lock() {
        Err(Error::BadFence { key }) => assert_eq!(key, FENCE),
        other => panic!("{other:?}"),
    }
    assert_eq!(server.keys(), [FENCE.as_bytes()]);
}
