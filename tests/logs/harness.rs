//! Tests of the test helpers.

use std::fs;
use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::path::Path;
use std::process;
use std::thread;

use support::fair::PATIENCE;
use support::{
    BlackHole, Child, Cluster, ClusterSetup, Control, Fenced, Proxy, Replicas, Server, Stale,
    Traffic, eventually, in_repository, log_records, log_records_about, ms, parameter,
    refusing_url, tell_parent,
};

support::roles![echo, exit_with_3, server_owner];

support::tests![
    a_proxy_delays_every_chunk_equally,
    a_cluster_fails_over_and_moves_slots,
    a_cluster_with_a_password_moves_slots,
    a_cluster_with_tls_moves_slots,
    basic_server_answers_on_its_socket_and_logs,
    servers_die_with_a_killed_process,
    a_child_receives_parameters_and_replies_in_lines,
    the_exit_code_of_a_child_is_reported,
    a_restarted_server_is_empty,
    a_paused_server_does_not_reply,
    a_killed_server_refuses_connections,
    a_replica_follows_its_master,
    calls_and_clients_of_a_server_are_counted,
    a_proxy_drops_replies,
    a_proxy_drops_requests,
    a_stalled_request_runs_once_it_may_pass,
    a_cut_connection_is_closed,
    a_black_hole_never_replies_and_a_refusing_url_refuses,
    a_fenced_resource_refuses_a_stale_token,
    log_records_are_captured_with_their_key_values,
    started_replicas_acknowledge_writes,
    no_test_has_the_test_attribute
];

/// Replies with its parameter.
fn echo() {
    tell_parent(&parameter("WORD"));
    tell_parent("done");
}

fn exit_with_3() {
    process::exit(3);
}

/// Starts a server and a paused one, and waits to be killed.
fn server_owner() {
    let running = Server::start();
    let stopped = Server::start();
    stopped.pause();
    for server in [&running, &stopped] {
        tell_parent(&server.process_id().to_string());
        tell_parent(&server.port().to_string());
    }
    loop {
        thread::park();
    }
}

fn get(connection: &mut redis::Connection, key: &str) -> Option<String> {
    redis::cmd("GET").arg(key).query(connection).unwrap()
}

fn set(connection: &mut redis::Connection, key: &str, value: &str) {
    redis::cmd("SET")
        .arg(key)
        .arg(value)
        .exec(connection)
        .unwrap();
}

fn basic_server_answers_on_its_socket_and_logs() {
    let server = Server::start();
    set(&mut server.connection(), "a", "1");
    let mut unix = redis::Client::open(server.unix_url())
        .unwrap()
        .get_connection()
        .unwrap();
    assert_eq!(get(&mut unix, "a").as_deref(), Some("1"));
    assert!(server.log().contains("Ready to accept connections"));
}

fn servers_die_with_a_killed_process() {
    let mut server_owner = Child::spawn("harness::server_owner", &[]);
    let servers: Vec<(String, u16)> = (0..2)
        .map(|_| {
            (
                server_owner.next_line(),
                server_owner.next_line().parse().unwrap(),
            )
        })
        .collect();
    for (_, port) in &servers {
        TcpStream::connect(("127.0.0.1", *port))
            .expect("the kernel accepts connections of a paused server too");
    }
    server_owner.kill();
    for (id, port) in &servers {
        eventually(ms(5_000), || {
            TcpStream::connect(("127.0.0.1", *port)).is_err()
        });
        eventually(ms(5_000), || !process_exists(id));
    }
}

/// Returns whether a process runs. Without `/proc` this is false, and only the port is checked.
fn process_exists(id: &str) -> bool {
    fs::read_to_string(Path::new("/proc").join(id).join("stat")).is_ok_and(|stat| {
        !stat
            .rsplit(") ")
            .next()
            .is_some_and(|rest| rest.starts_with('Z'))
    })
}

fn a_child_receives_parameters_and_replies_in_lines() {
    let child = Child::spawn("harness::echo", &[("WORD", "leasehold")]);
    assert_eq!(child.next_line(), "leasehold");
    let finished = child.wait().succeeded();
    assert_eq!(finished.lines, ["done"]);
}

fn the_exit_code_of_a_child_is_reported() {
    let finished = Child::spawn("harness::exit_with_3", &[]).wait();
    assert_eq!(finished.status.code(), Some(3));
}

fn a_restarted_server_is_empty() {
    let mut server = Server::start();
    set(&mut server.connection(), "a", "1");
    let snapshot = server.snapshot();
    set(&mut server.connection(), "a", "2");
    server.restart_from(&snapshot);
    assert_eq!(get(&mut server.connection(), "a").as_deref(), Some("1"));
    server.restart();
    assert_eq!(get(&mut server.connection(), "a"), None);
}

fn a_paused_server_does_not_reply() {
    let server = Server::start();
    let mut connection = server.connection();
    connection.set_read_timeout(Some(ms(50))).unwrap();
    server.pause();
    assert!(
        redis::cmd("PING")
            .exec(&mut connection)
            .unwrap_err()
            .is_timeout()
    );
    server.resume();
    redis::cmd("PING").exec(&mut server.connection()).unwrap();
}

fn a_killed_server_refuses_connections() {
    let mut server = Server::start();
    server.kill();
    assert_eq!(
        TcpStream::connect(("127.0.0.1", server.port()))
            .unwrap_err()
            .kind(),
        ErrorKind::ConnectionRefused
    );
    server.restart();
    redis::cmd("PING").exec(&mut server.connection()).unwrap();
}

fn a_replica_follows_its_master() {
    let master = Server::start();
    let replica = master.replica();
    let mut connection = master.connection();
    set(&mut connection, "a", "1");
    let followed: u64 = redis::cmd("WAIT")
        .arg(1)
        .arg(5_000)
        .query(&mut connection)
        .unwrap();
    assert_eq!(followed, 1);
    assert_eq!(get(&mut replica.connection(), "a").as_deref(), Some("1"));
}

fn calls_and_clients_of_a_server_are_counted() {
    let server = Server::start();
    let mut connection = server.connection();
    redis::cmd("CLIENT")
        .arg("SETNAME")
        .arg("me")
        .exec(&mut connection)
        .unwrap();
    let before = server.calls(&["get", "set"]);
    set(&mut connection, "a", "1");
    get(&mut connection, "a");
    assert_eq!(server.calls(&["get", "set"]) - before, 2);
    eventually(PATIENCE, || server.client_list().len() == 1);
    assert_eq!(server.client_list()[0]["name"], "me");
    server.kill_clients();
    assert!(redis::cmd("PING").exec(&mut connection).is_err());
}

fn connect_through(proxy: &Proxy) -> redis::Connection {
    let connection = redis::Client::open(proxy.url())
        .unwrap()
        .get_connection()
        .unwrap();
    connection.set_read_timeout(Some(ms(1_000))).unwrap();
    connection
}

/// Returns the error of a SET that cannot succeed.
#[track_caller]
fn failure_of_set(connection: &mut redis::Connection) -> redis::RedisError {
    let mut set = redis::cmd("SET");
    set.arg("a").arg("1").exec(connection).unwrap_err()
}

fn a_proxy_drops_replies() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let mut connection = connect_through(&proxy);
    proxy.set_all(Traffic::DropReplies);
    assert!(failure_of_set(&mut connection).is_timeout());
    assert_eq!(get(&mut server.connection(), "a").as_deref(), Some("1"));

    proxy.set_all(Traffic::Pass);
    let mut connection = connect_through(&proxy);
    assert_eq!(get(&mut connection, "a").as_deref(), Some("1"));
    assert_eq!(proxy.connections(), 2);
    assert_eq!(proxy.connections_that_sent("GET"), [1]);
    assert!(proxy.connections_that_sent("get").is_empty());
}

fn a_proxy_drops_requests() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let mut connection = connect_through(&proxy);
    proxy.set_nth(0, Traffic::DropBoth);
    assert!(failure_of_set(&mut connection).is_timeout());
    assert_eq!(get(&mut server.connection(), "a"), None);
    redis::cmd("PING")
        .exec(&mut connect_through(&proxy))
        .expect("other connections pass");
}

fn a_stalled_request_runs_once_it_may_pass() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let mut connection = connect_through(&proxy);
    proxy.set_open(Traffic::Stall);
    assert!(failure_of_set(&mut connection).is_timeout());
    drop(connection);
    assert_eq!(get(&mut server.connection(), "a"), None);
    proxy.set_open(Traffic::Pass);
    eventually(PATIENCE, || get(&mut server.connection(), "a").is_some());
    eventually(PATIENCE, || proxy.open_connections() == 0);
}

fn a_cut_connection_is_closed() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let mut connection = connect_through(&proxy);
    proxy.cut();
    assert!(
        !redis::cmd("PING")
            .exec(&mut connection)
            .unwrap_err()
            .is_timeout()
    );

    let mut connection = connect_through(&proxy);
    proxy.set_open(Traffic::CutOnReply);
    assert!(!failure_of_set(&mut connection).is_timeout());
    assert_eq!(get(&mut server.connection(), "a").as_deref(), Some("1"));
}

fn a_proxy_delays_every_chunk_equally() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let mut connection = connect_through(&proxy);
    connection.set_read_timeout(Some(ms(5_000))).unwrap();
    proxy.delay(ms(30), ms(20));
    let ping = redis::cmd("PING").get_packed_command();
    let round_trips = Control::run(ms(50), || {
        for _ in 0..10 {
            connection.send_packed_command(&ping).unwrap();
        }
        for _ in 0..10 {
            connection.recv_response().unwrap();
        }
    });
    assert!(round_trips.took >= ms(50));
    round_trips.no_later_than(ms(250));
}

fn a_black_hole_never_replies_and_a_refusing_url_refuses() {
    let hole = BlackHole::start();
    let mut stream = TcpStream::connect(("127.0.0.1", hole.port())).unwrap();
    stream.set_read_timeout(Some(ms(30))).unwrap();
    assert_eq!(
        stream.read(&mut [0]).unwrap_err().kind(),
        ErrorKind::WouldBlock
    );
    eventually(PATIENCE, || hole.connections() == 1);

    let refused = redis::Client::open(refusing_url())
        .unwrap()
        .get_connection()
        .err()
        .unwrap();
    assert!(refused.is_connection_refusal());
}

fn a_fenced_resource_refuses_a_stale_token() {
    let resource = Fenced::new("");
    assert_eq!(resource.write(3, "new"), Ok(()));
    assert_eq!(
        resource.write(2, "old"),
        Err(Stale {
            token: 2,
            newest: 3
        })
    );
    assert_eq!(resource.write(3, "newer"), Ok(()));
    assert_eq!(resource.read(), "newer");
}

#[expect(clippy::disallowed_macros, reason = "any program may log")]
fn log_records_are_captured_with_their_key_values() {
    log_records();
    log::debug!(target: "harness", lock = "captured-lock"; "acquired");
    let lines = log_records_about("captured-lock");
    assert_eq!(lines.len(), 1);
    assert_eq!(lines[0].value("lock"), Some("captured-lock"));
    assert_eq!(lines[0].message, "acquired");
}

fn started_replicas_acknowledge_writes() {
    let replicas = Replicas::start(2);
    let mut connection = replicas.master().connection();
    let mut acknowledged = |within: u32| -> u32 {
        set(&mut connection, "a", "1");
        let mut wait = redis::cmd("WAIT");
        wait.arg(2).arg(within).query(&mut connection).unwrap()
    };
    assert_eq!(acknowledged(5_000), 2);
    assert!(replicas.replica(1).get("a").is_some());
    replicas.pause(1);
    assert_eq!(acknowledged(200), 1);
    replicas.resume(1);
    assert_eq!(acknowledged(5_000), 2);
    replicas.wait_until_linked();
}

/// Moves the slot of `a` from `old`, its master, to another one and back, with the key.
fn assert_slot_moves_and_returns(cluster: &Cluster, old: usize) {
    let slot = cluster.slot("a");
    let new = (old + 1) % 3;
    let get_a = |i: usize| cluster.ask::<Option<String>>(i, &["GET", "a"]);
    let asks = |kind| Err(redis::ErrorKind::Server(kind));
    cluster.begin_migration(slot, old, new);
    assert_eq!(get_a(old).unwrap().as_deref(), Some("1"));
    assert_eq!(cluster.move_keys(slot, old, new), 1);
    let kind_of = |i| get_a(i).map_err(|error| error.kind());
    assert_eq!(kind_of(old), asks(redis::ServerErrorKind::Ask));
    assert_eq!(kind_of(new), asks(redis::ServerErrorKind::Moved));
    cluster.end_migration(slot, old, new);
    assert_eq!(kind_of(old), asks(redis::ServerErrorKind::Moved));
    assert_eq!(get_a(new).unwrap().as_deref(), Some("1"));
    cluster.move_slot(slot, new, old);
    assert_eq!(get_a(old).unwrap().as_deref(), Some("1"));
}

fn a_cluster_fails_over_and_moves_slots() {
    let mut cluster = Cluster::start(3, 1);
    let ids: Vec<String> = (0..cluster.count())
        .map(|i| cluster.node(i).process_id().to_string())
        .collect();
    let write = |cluster: &Cluster, key: &str, value: &str| {
        let master = cluster.master_of(key);
        set(&mut cluster.connection(master), key, value);
        master
    };
    let mut masters: Vec<usize> = ["a", "b", "c"]
        .map(|key| write(&cluster, key, "1"))
        .to_vec();
    masters.sort_unstable();
    assert_eq!(masters, [0, 1, 2]);

    let old = cluster.master_of("a");
    assert_slot_moves_and_returns(&cluster, old);

    let master = cluster.master_of("b");
    let replica = cluster.replicas_of(master).next().unwrap();
    cluster.failover(replica);
    assert_eq!(cluster.wait_for_new_master(master), replica);
    assert_eq!(write(&cluster, "b", "2"), replica);
    cluster.wait_until_settled();
    cluster.pause(replica);
    assert_eq!(cluster.wait_for_new_master(replica), master);
    assert_eq!(write(&cluster, "b", "3"), master);
    cluster.resume(replica);
    cluster.wait_until_settled();

    cluster.kill(old);
    let successor = cluster.wait_for_new_master(old);
    assert_eq!(Some(successor), cluster.replicas_of(old).next());
    assert_eq!(write(&cluster, "a", "2"), successor);
    cluster.restart(old);
    cluster.wait_until_settled();
    assert_eq!(cluster.master_of("a"), successor);

    let ports: Vec<u16> = (0..cluster.count())
        .map(|i| cluster.node(i).port())
        .collect();
    drop(cluster);
    for port in ports {
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    }
    for id in ids {
        assert!(!process_exists(&id));
    }
}

fn a_cluster_with_a_password_moves_slots() {
    let cluster = Cluster::with(ClusterSetup {
        password: Some("p@ss"),
        ..ClusterSetup::steady(2, 1)
    });
    assert!(
        cluster
            .url()
            .starts_with("redis+cluster://:p%40ss@127.0.0.1:")
    );
    let master = cluster.master_of("a");
    set(&mut cluster.connection(master), "a", "1");
    cluster.move_slot(cluster.slot("a"), master, 1 - master);
    let mut connection = cluster.connection(1 - master);
    assert_eq!(get(&mut connection, "a").as_deref(), Some("1"));
}

fn a_cluster_with_tls_moves_slots() {
    if Server::lacks_tls() {
        return;
    }
    let cluster = Cluster::with(ClusterSetup {
        has_tls: true,
        ..ClusterSetup::steady(2, 1)
    });
    let first = cluster.client_port(0);
    let start = format!("rediss+cluster://127.0.0.1:{first},");
    assert!(cluster.url().starts_with(&start));
    let master = cluster.master_of("a");
    set(&mut cluster.connection(master), "a", "1");
    cluster.move_slot(cluster.slot("a"), master, 1 - master);
    let mut connection = cluster.connection(1 - master);
    assert_eq!(get(&mut connection, "a").as_deref(), Some("1"));
}

/// In a binary with its own `main`, the compiler silently drops a function with the attribute.
fn no_test_has_the_test_attribute() {
    let tests = in_repository("tests");
    let mut paths = ["it", "logs", "process"]
        .map(|name| tests.join(name))
        .to_vec();
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            paths.extend(fs::read_dir(path).unwrap().map(|file| file.unwrap().path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            assert!(!text.contains(concat!("#[", "test]")), "{path:?}");
        }
    }
}
