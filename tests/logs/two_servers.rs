//! Promise: if an address leads to two servers that take writes, one error is logged and no call
//! gets a lock there. A restart, lost data, a failover or a balancer before one server is no such
//! case.

use std::thread;
use std::time::Instant;

use leasehold::{Client, Error, Mutex};
use log::Level;
use names::{Answer, Name};
use support::{
    FakeSentinel, FakeServer, Proxy, Recorder, Server, default_reply, eventually,
    log_records_about, ms, sentinel_url,
};

support::tests![
    two_writable_servers_behind_a_balancer_are_an_error,
    new_connections_that_lead_to_another_server_are_an_error,
    two_servers_are_forgotten_once_the_old_connection_ends,
    two_listeners_of_one_server_are_no_error,
    restarted_server_is_no_error,
    lost_data_between_the_writes_is_no_error,
    old_server_that_has_become_a_replica_is_no_error,
    move_that_sentinels_name_is_no_error,
    failover_by_dns_is_no_error,
    comparison_writes_with_the_permissions_of_each_user
];

const PROBES: &str = "leasehold:fence:probe:*";

/// The limit for events that must happen, generous for a slow machine.
const PATIENCE: std::time::Duration = ms(20_000);

/// Has the client make another connection, for its subscription.
fn connect_again(mutex: &Mutex) {
    // A second call waits behind this one, at least until it is refused.
    let _ = mutex.try_lock_for(ms(100));
}

/// Returns how many keys of comparisons a server has.
fn probes(server: &Server) -> usize {
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg(PROBES)
        .query(&mut server.connection())
        .unwrap();
    keys.len()
}

/// Returns the errors that were logged about the proxy.
fn errors(port: u16) -> Vec<String> {
    let records = log_records_about(&format!("127.0.0.1:{port}")).into_iter();
    let errors = records.filter(|record| record.level == Level::Error);
    errors.map(|record| record.message).collect()
}

#[track_caller]
fn assert_is_refused(client: &Client, port: u16) {
    eventually(PATIENCE, || {
        matches!(client.mutex("other").try_lock(), Err(Error::Config(_)))
    });
    let error = client.mutex("other").try_lock_for(ms(100)).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Config(_)), "{error:?}");
    assert!(text.contains("two servers"), "{text}");
    assert!(
        text.matches(&format!("127.0.0.1:{port} (from")).count() == 2,
        "{text}"
    );
    let health = client.health();
    assert!(!health.is_healthy(), "{health:?}");
    assert_eq!(health.servers[0].last_error.as_deref(), Some(&*text));
    assert_eq!(errors(port), [text]);
}

/// The balancer takes turns between the servers. The threads use all connections all the time.
fn two_writable_servers_behind_a_balancer_are_an_error() {
    let (a, b) = (Server::start(), Server::start());
    let proxy = Proxy::new(&a);
    let port = proxy.port();
    assert!(errors(port).is_empty());
    let client = Client::open(proxy.url()).unwrap();
    drop(client.mutex("a").lock().unwrap());
    proxy.forward_to(b.port());
    let start = Instant::now();
    let is_over = || start.elapsed() > PATIENCE || !errors(port).is_empty();
    thread::scope(|scope| {
        for n in 0..6 {
            let (client, is_over) = (&client, &is_over);
            scope.spawn(move || {
                while !is_over() {
                    let _ = client.mutex(n.to_string()).try_lock();
                }
            });
        }
    });
    assert_is_refused(&client, port);
}

fn new_connections_that_lead_to_another_server_are_an_error() {
    let (a, b) = (Server::start(), Server::start());
    let proxy = Proxy::new(&a);
    assert!(errors(proxy.port()).is_empty());
    let client = Client::open(proxy.url()).unwrap();
    let other = a.client();
    let _held = other.mutex("a").lock().unwrap();
    drop(client.mutex("own").lock().unwrap());
    proxy.forward_to(b.port());
    // A call that waits ends, too.
    let waiting = client.mutex("a").try_lock_for(PATIENCE);
    assert!(matches!(waiting, Err(Error::Config(_))), "{waiting:?}");
    assert_is_refused(&client, proxy.port());
    assert!(probes(&a) >= 2 && probes(&b) >= 2);
}

fn two_servers_are_forgotten_once_the_old_connection_ends() {
    let (a, b) = (Server::start(), Server::start());
    let proxy = Proxy::new(&a);
    assert!(errors(proxy.port()).is_empty());
    let client = Client::open(proxy.url()).unwrap();
    drop(client.mutex("a").lock().unwrap());
    proxy.forward_to(b.port());
    let blocker = b.client();
    let _held = blocker.mutex("b").lock().unwrap();
    let _ = client.mutex("b").try_lock_for(ms(100));
    let holder = a.client();
    let _held = holder.mutex("b").lock().unwrap();
    connect_again(&client.mutex("b"));
    assert_is_refused(&client, proxy.port());
    // As with `on-marked-down shutdown-sessions`.
    proxy.cut();
    eventually(PATIENCE, || {
        matches!(client.mutex("other").try_lock(), Ok(Ok(_)))
    });
    assert_eq!(errors(proxy.port()).len(), 1);
}

/// Has a client compare a connection to a proxy with one that it makes after `change`, and asserts
/// that it finds one server. The newer one leads to `compared_at`.
fn assert_is_one(server: &Server, compared_at: &Server, change: impl FnOnce(&Proxy)) {
    let proxy = Proxy::new(server);
    assert!(errors(proxy.port()).is_empty());
    let client = Client::open(proxy.url()).unwrap();
    let other = server.client();
    drop(client.mutex("a").lock().unwrap());
    let _held = other.mutex("a").lock().unwrap();
    change(&proxy);
    // If the older connection is in use, the newer one is not compared: others are made.
    eventually(PATIENCE, || {
        connect_again(&client.mutex("a"));
        thread::scope(|scope| {
            for n in 0..4 {
                let mutex = client.mutex(n.to_string());
                scope.spawn(move || drop(mutex.try_lock()));
            }
        });
        probes(compared_at) > 0
    });
    eventually(PATIENCE, || client.mutex("b").try_lock().is_ok());
    assert!(errors(proxy.port()).is_empty());
}

fn two_listeners_of_one_server_are_no_error() {
    let server = Server::start();
    let second = Proxy::new(&server);
    assert_is_one(&server, &server, |proxy| proxy.forward_to(second.port()));
}

fn restarted_server_is_no_error() {
    let mut server = Server::start();
    let proxy = Proxy::new(&server);
    assert!(errors(proxy.port()).is_empty());
    let client = Client::open(proxy.url()).unwrap();
    drop(client.mutex("a").lock().unwrap());
    server.restart();
    eventually(PATIENCE, || client.mutex("a").try_lock().is_ok());
    let _held = client.mutex("a").lock().unwrap();
    eventually(PATIENCE, || {
        // A connection that nobody uses is there when the next one is made.
        proxy.cut();
        let _ = client.mutex("b").try_lock();
        connect_again(&client.mutex("a"));
        probes(&server) > 0
    });
    eventually(PATIENCE, || client.mutex("b").try_lock().is_ok());
    assert!(errors(proxy.port()).is_empty());
}

/// The server loses each key before the next write, as by an eviction or a flood of FLUSHALL.
fn lost_data_between_the_writes_is_no_error() {
    let server = FakeServer::with_writer({
        let last = parking_lot::Mutex::new(Vec::new());
        move |request, client| {
            let reply = match request.name().as_str() {
                "SET" => {
                    last.lock().clone_from(&request.words[2]);
                    b"+OK\r\n".to_vec()
                }
                "GET" => {
                    let value = last.lock();
                    let length = format!("${}\r\n", value.len()).into_bytes();
                    [&length[..], &value[..], &b"\r\n"[..]].concat()
                }
                "acquire" | "queue_enter" => {
                    b"*4\r\n:0\r\n$5\r\nother\r\n:60000\r\n:-1\r\n".to_vec()
                }
                "queue_refresh" => b"*3\r\n:0\r\n:60000\r\n:-1\r\n".to_vec(),
                "undo" | "queue_undo" => b"*1\r\n:0\r\n".to_vec(),
                _ => default_reply(request).unwrap_or_default(),
            };
            std::io::Write::write_all(client, &reply)
        }
    });
    assert!(errors(server.port()).is_empty());
    let client = Client::open(server.url()).unwrap();
    let taken = client.mutex("a").try_lock_for(ms(300));
    assert!(matches!(taken, Ok(Err(_))), "{taken:?}");
    assert!(server.requests("SET").len() >= 2);
    assert!(errors(server.port()).is_empty());
}

/// The name leads to the promoted replica, and the old connection to the old master.
fn old_server_that_has_become_a_replica_is_no_error() {
    let (a, b) = (Server::start(), Server::start());
    assert_is_one(&a, &b, |proxy| {
        a.run("REPLICAOF", &["127.0.0.1", &b.port().to_string()]);
        proxy.forward_to(b.port());
    });
}

/// No permission beyond those for locks. No lock of that name is listed.
fn comparison_writes_with_the_permissions_of_each_user() {
    let server = Server::start();
    let recorder = Recorder::to(server.port());
    let url = server.url_without_queues();
    let url = url.replace(&server.port().to_string(), &recorder.port().to_string());
    let client = Client::builder().url(url).queues(false).build().unwrap();
    let _held = client.mutex("a").lock().unwrap();
    connect_again(&client.mutex("a"));
    let sets = || {
        let mut all = recorder.exchanges();
        all.retain(|one| one.request.words.first().is_some_and(|word| word == b"SET"));
        all
    };
    eventually(PATIENCE, || {
        sets().iter().filter(|one| one.reply.is_some()).count() >= 2
    });
    let shown: Vec<String> = sets()[..2]
        .iter()
        .map(|one| {
            let words = one
                .request
                .words
                .iter()
                .map(|word| String::from_utf8_lossy(word));
            let words: Vec<_> = words.collect();
            let key = words[1].strip_prefix("leasehold:fence:probe:").unwrap();
            assert_eq!(key.len(), 36, "{key}");
            format!(
                "{} {} {:?}",
                words[0],
                words[2..].join(" "),
                one.reply.as_deref().unwrap()
            )
        })
        .collect();
    assert_ne!(sets()[0].request.connection, sets()[1].request.connection);
    assert!(
        shown[0].starts_with("SET 1 NX PX 5000") && shown[0].contains("OK"),
        "{shown:?}"
    );
    assert!(
        shown[1].starts_with("SET 2 NX PX 5000") && !shown[1].contains("OK"),
        "{shown:?}"
    );
    assert_eq!(server.client().list("").unwrap().len(), 1);
}

/// The old master goes on taking writes: what is compared belongs to one master.
fn move_that_sentinels_name_is_no_error() {
    let (old, new) = (Server::start(), Server::start());
    let sentinels = [(); 3].map(|()| FakeSentinel::naming(old.port(), Some(5)));
    let url = sentinel_url(sentinels.each_ref().map(FakeSentinel::port));
    let client = Client::open(url).unwrap();
    drop(client.mutex("a").lock().unwrap());
    eventually(PATIENCE, || !sentinels[0].subscriptions().is_empty());
    let [at_old, at_new] = [old.client(), new.client()];
    let _held = [&at_old, &at_new].map(|client| client.mutex("a").lock().unwrap());
    connect_again(&client.mutex("a"));
    sentinels[0].set(|says| (says.master, says.epoch) = (new.port(), Some(6)));
    sentinels[0].announce();
    eventually(PATIENCE, || {
        connect_again(&client.mutex("a"));
        let guard = client.mutex("b").try_lock();
        matches!(guard, Ok(Ok(_))) && new.get("lock:b").is_some()
    });
    connect_again(&client.mutex("a"));
    assert!(matches!(client.mutex("b").try_lock(), Ok(Ok(_))));
    for server in [&old, &new] {
        assert!(errors(server.port()).is_empty());
    }
}

/// The name leads to the promoted replica, while connections to the old master are open.
fn failover_by_dns_is_no_error() {
    let old = Server::start();
    let port = old.port().to_string();
    let _new = Server::with(&["--bind", "127.0.0.2", "--port", &port]);
    let run = |server: &Server, command: &[&str]| {
        let socket = redis::Client::open(server.unix_url()).unwrap();
        let mut connection = socket.get_connection().unwrap();
        let mut sent = redis::cmd(command[0]);
        sent.arg(&command[1..]).exec(&mut connection).unwrap();
    };
    let name = Name::new("two.test", Answer::Addresses(vec![[127, 0, 0, 1].into()]));
    let client = Client::open(format!("redis://two.test:{port}")).unwrap();
    let _held = client.mutex("held").lock().unwrap();
    name.set(Answer::Addresses(vec![[127, 0, 0, 2].into()]));
    run(&old, &["REPLICAOF", "127.0.0.2", &port]);
    let at_new = Client::open(format!("redis://127.0.0.2:{port}")).unwrap();
    let _taken = at_new.mutex("a").lock().unwrap();
    eventually(PATIENCE, || {
        connect_again(&client.mutex("a"));
        matches!(client.mutex("b").try_lock(), Ok(Ok(_)))
    });
    assert!(errors(old.port()).is_empty());
}
