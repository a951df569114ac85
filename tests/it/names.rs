//! Promise: a host name works if one of its addresses does, and for a while without DNS.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use leasehold::{CancelToken, Client};
use names::{Answer, Name};
use support::{Server, Swallowing, eventually, expect_unreachable, ms};

support::tests![
    address_that_takes_writes_is_found_and_then_first,
    address_of_a_replica_without_its_master_is_not_the_only_one_tried,
    address_that_last_answered_is_used_while_dns_does_not_answer
];

support::timed![
    address_that_swallows_packets_delays_no_call,
    address_that_swallows_packets_delays_no_call_that_the_engine_serves
];

const WAIT_LIMIT: Duration = ms(10_000);

const ONE: Ipv4Addr = Ipv4Addr::LOCALHOST;
const TWO: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

fn client(host: &str, port: u16) -> Client {
    Client::open(format!("redis://{host}:{port}")).unwrap()
}

/// Closes all connections of clients, seen from the server's socket.
fn close_connections(server: &Server) {
    run(server, &["CLIENT", "KILL", "TYPE", "normal"]);
    run(server, &["CLIENT", "KILL", "TYPE", "pubsub"]);
}

fn run(server: &Server, command: &[&str]) {
    let mut connection = socket(server);
    redis::cmd(command[0])
        .arg(&command[1..])
        .exec(&mut connection)
        .unwrap();
}

fn socket(server: &Server) -> redis::Connection {
    let client = redis::Client::open(server.unix_url()).unwrap();
    client.get_connection().unwrap()
}

fn info(server: &Server, field: &str) -> Option<String> {
    let info: String = redis::cmd("INFO").query(&mut socket(server)).unwrap();
    let mut lines = info.lines();
    lines.find_map(|line| Some(line.strip_prefix(field)?.strip_prefix(':')?.to_owned()))
}

fn address_that_swallows_packets_delays_no_call() {
    let server = Server::start();
    let _swallowing = Swallowing::at(SocketAddr::from((TWO, server.port())));
    let _name = Name::new("swallows.test", Answer::Addresses(vec![TWO, ONE]));
    let url = format!("redis://swallows.test:{}", server.port());
    for n in 0..4 {
        let client = match n % 2 {
            0 => Client::open(&url).unwrap(),
            _ => Client::quorum([&url]).unwrap(),
        };
        let guard = client.mutex("a").try_lock_for(ms(300)).unwrap();
        guard.expect("it is free").unlock().unwrap();
        // The address that works is first now.
        close_connections(&server);
        let guard = client.mutex("a").try_lock_for(ms(300)).unwrap();
        drop(guard.expect("it is free"));
    }
}

/// The thread of a call that can be cancelled, and of one over a quorum, sends nothing.
fn address_that_swallows_packets_delays_no_call_that_the_engine_serves() {
    let server = Server::start();
    let _swallowing = Swallowing::at(SocketAddr::from((TWO, server.port())));
    let _name = Name::new("silent.test", Answer::Addresses(vec![TWO, ONE]));
    let url = format!("redis://silent.test:{}", server.port());
    for client in [Client::open(&url), Client::quorum([&url])] {
        let client = client.unwrap();
        let cancel = CancelToken::new();
        let mutex = client.mutex("a").cancel_on(&cancel);
        let guard = mutex.try_lock_for(ms(200)).unwrap();
        guard.expect("it is free").unlock().unwrap();
    }
}

fn address_that_takes_writes_is_found_and_then_first() {
    let master = Server::start();
    let port = master.port().to_string();
    let replica = Server::with(&[
        "--bind",
        "127.0.0.2",
        "--port",
        &port,
        "--replicaof",
        "127.0.0.1",
        &port,
    ]);
    eventually(WAIT_LIMIT, || {
        info(&replica, "master_link_status").as_deref() == Some("up")
    });
    let _name = Name::new("mixed.test", Answer::Addresses(vec![TWO, ONE]));
    let client = client("mixed.test", master.port());
    let guard = client.mutex("held").lock().unwrap();
    let accepted = || -> u64 {
        let count = info(&replica, "total_connections_received");
        count.unwrap().parse().unwrap()
    };
    let before = accepted();
    for _ in 0..3 {
        close_connections(&master);
        drop(client.mutex("a").lock().unwrap());
        guard.renew().unwrap();
    }
    // Each look counts itself.
    assert_eq!(accepted(), before + 1);

    // A failover: the address that answered writes is not used any more. Without the key, the
    // promoted replica would end the lease.
    eventually(WAIT_LIMIT, || {
        let mut exists = redis::cmd("EXISTS");
        exists
            .arg("lock:held")
            .query::<bool>(&mut socket(&replica))
            .unwrap()
    });
    run(&replica, &["REPLICAOF", "NO", "ONE"]);
    run(&master, &["REPLICAOF", "127.0.0.2", &port]);
    drop(client.mutex("b").lock().unwrap());
    guard.renew().unwrap();
    guard.unlock().unwrap();
}

/// Such a replica replies MASTERDOWN, or LOADING while it copies its master.
fn address_of_a_replica_without_its_master_is_not_the_only_one_tried() {
    let master = Server::start();
    let port = master.port().to_string();
    let replica = Server::with(&["--bind", "127.0.0.2", "--port", &port]);
    run(
        &replica,
        &["CONFIG", "SET", "replica-serve-stale-data", "no"],
    );
    let closed = support::free_port().to_string();
    run(&replica, &["REPLICAOF", "127.0.0.1", &closed]);
    let _name = Name::new("stale.test", Answer::Addresses(vec![TWO, ONE]));
    let client = client("stale.test", master.port());
    let guard = client.mutex("a").lock().unwrap();
    guard.unlock().unwrap();
}

fn address_that_last_answered_is_used_while_dns_does_not_answer() {
    let server = Server::start();
    let port = server.port().to_string();
    let next = Server::with(&["--bind", "127.0.0.2", "--port", &port]);
    let name = Name::new("silent.test", Answer::Addresses(vec![ONE]));
    let client = client("silent.test", server.port());
    let guard = client.mutex("held").lock().unwrap();
    for answer in [Answer::Silence, Answer::Failure] {
        name.set(answer);
        close_connections(&server);
        // The first attempt may find its connection closed.
        let attempt = || client.mutex("a").try_lock();
        drop(
            attempt()
                .or_else(|_| attempt())
                .unwrap()
                .expect("it is free"),
        );
        guard.renew().unwrap();
    }
    let waiter = client.mutex("wanted");
    let held = waiter.lock().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| waiter.lock().map(drop));
        server.wait_until_waiter_sleeps("lock_release:wanted");
        close_connections(&server);
        drop(held);
        waiting.join().unwrap().unwrap();
    });
    guard.unlock().unwrap();
    // A client that knows no address cannot connect.
    let unknown = self::client("silent.test", server.port());
    expect_unreachable(unknown.mutex("a").try_lock());

    // The name is followed as soon as it resolves.
    name.set(Answer::Addresses(vec![TWO]));
    close_connections(&server);
    let moved = client.mutex("moved").lock().unwrap();
    let value: Option<String> = redis::cmd("GET")
        .arg("lock:moved")
        .query(&mut socket(&next))
        .unwrap();
    assert_eq!(value.as_deref(), Some(moved.holder_id().as_str()));
}
