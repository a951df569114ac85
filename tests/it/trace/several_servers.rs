//! The traffic between clients and a quorum, a cluster, or a master behind Sentinel.

use leasehold::Unlocked;
use redis::Value;
use support::{Cluster, ClusterSetup, FakeServer, Recorder, Server, eventually, ms, refusing_url};

use super::recording::{Trace, compare};
use super::{LONGER, builder};

pub(super) fn quorum_calls_are_as_recorded() {
    compare("quorum.txt", &[votes(), questions()]);
}

/// The third server is unreachable: otherwise calls would return before its reply is read, and
/// later calls would differ. No call waits: the number of a waiter's attempts depends on which
/// server confirms its subscription first.
fn votes() -> String {
    let servers = [(); 2].map(|()| Server::start());
    let mut trace = Trace::of(recorders(&servers));
    let mut urls = trace.urls();
    urls.push(refusing_url());
    let client = || builder().quorum(urls.clone()).build().unwrap();
    let (one, two) = (client(), client());
    let [mutex, other] = [&one, &two].map(|client| client.mutex("a"));
    let guard = trace.step("try_lock", |_| mutex.try_lock().unwrap().unwrap());
    trace.step("try_lock, held", |_| {
        assert!(other.try_lock().unwrap().is_none())
    });
    trace.step("inspect", |_| other.inspect().unwrap());
    trace.step("renew", |_| guard.renew().unwrap());
    trace.step("extend", |_| guard.extend(LONGER).unwrap());
    trace.step("unlock", |_| released(guard.unlock()));
    let all = one.mutex_all(["b", "c"]);
    let guard = trace.step("MutexAll: lock", |_| all.lock().unwrap());
    trace.step("MutexAll: renew", |_| guard.renew().unwrap());
    trace.step("MutexAll: unlock", |_| released(guard.unlock()));
    for server in &servers {
        server.run("SET", &["leasehold:fence:{lock:d}", "4000000000000000"]);
    }
    trace.set_apart(&["release"]);
    trace.step("lock, the fences are ahead", |_| {
        drop(one.mutex("d").lock().unwrap())
    });
    trace.end("A quorum of three servers, one of which is away")
}

fn questions() -> String {
    let servers = [(); 3].map(|()| Server::start());
    let mut trace = Trace::of(recorders(&servers));
    let client = builder().quorum(trace.urls()).build().unwrap();
    let mutex = client.mutex("a");
    trace.step("last_fencing_token", |_| {
        mutex.last_fencing_token().unwrap()
    });
    trace.step("waiting", |_| mutex.waiting().unwrap());
    trace.step("list", |_| client.list("").unwrap());
    trace.end("A quorum of three servers: what it asks each of them")
}

fn recorders(servers: &[Server]) -> Vec<(&'static str, Recorder)> {
    let labels = ["server 1", "server 2", "server 3"].into_iter();
    let recorders = servers.iter().map(|server| Recorder::to(server.port()));
    labels.zip(recorders).collect()
}

pub(super) fn cluster_calls_are_as_recorded() {
    let cluster = Cluster::with(ClusterSetup::steady(2, 0));
    let labels = ["node 1", "node 2"].into_iter();
    let nodes = labels.enumerate().map(|(n, label)| {
        let recorder = Recorder::to(cluster.client_port(n));
        let port = recorder.port().to_string();
        let announced = ["CONFIG", "SET", "cluster-announce-port", &port];
        let () = cluster.ask(n, &announced).unwrap();
        (label, recorder)
    });
    let mut trace = Trace::of(nodes.collect());
    trace.set_apart(&["CLUSTER", "PING", "undo"]);
    let ports = trace.ports();
    for (n, port) in ports.iter().enumerate() {
        trace = trace.naming(port, &format!("<port {}>", n + 1));
    }
    eventually(ms(30_000), || {
        let knows_all = |n| {
            let slots = format!("{:?}", cluster.ask::<Value>(n, &["CLUSTER", "SLOTS"]));
            ports.iter().all(|port| slots.contains(port))
        };
        (0..2).all(knows_all)
    });
    let client = builder().cluster(trace.urls()).build().unwrap();
    client.ping().unwrap();
    let names = [cluster.name_owned_by("a", 0), cluster.name_owned_by("b", 1)];
    let mutex = client.mutex(&*names[1]);
    let guard = trace.step("lock", |_| mutex.lock().unwrap());
    trace.step("inspect", |_| mutex.inspect().unwrap());
    trace.step("list", |_| client.list("").unwrap());
    trace.step("renew", |_| guard.renew().unwrap());
    trace.step("unlock", |_| released(guard.unlock()));
    let fair = client.fair_mutex(&*names[0]);
    let guard = trace.step("FairMutex: lock", |_| fair.lock().unwrap());
    trace.step("FairMutex: unlock", |_| released(guard.unlock()));
    let all = client.mutex_all(["{s}a", "{s}b"]);
    let guard = trace.step("MutexAll in one slot: lock", |_| all.lock().unwrap());
    trace.step("MutexAll in one slot: unlock", |_| released(guard.unlock()));
    let key = format!("lock:{}", names[1]);
    let (slot, guard) = (cluster.slot(&key), mutex.lock().unwrap());
    cluster.begin_migration(slot, 1, 0);
    cluster.move_key(&key, 1, 0);
    trace.skip();
    trace.step("renew, while the slot moves and the key has moved", |_| {
        guard.renew().unwrap()
    });
    trace.step("unlock, the same", |_| released(guard.unlock()));
    let owner: String = cluster.ask(0, &["CLUSTER", "MYID"]).unwrap();
    for n in 0..2 {
        let () = cluster.ask(n, &["FLUSHALL"]).unwrap();
        let () = cluster
            .ask(
                n,
                &["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &owner],
            )
            .unwrap();
    }
    trace.step("lock, the slot has moved", |_| drop(mutex.lock().unwrap()));
    trace.meanwhile(&["CLUSTER"]);
    compare("cluster.txt", &[trace.end("A cluster of two masters")]);
}

pub(super) fn sentinel_calls_are_as_recorded() {
    let server = Server::start();
    let master = Recorder::to(server.port());
    let address = ["127.0.0.1".to_owned(), master.port().to_string()];
    let port = address[1].clone();
    let sentinel = FakeServer::start(move |request| {
        let [host, port] = &address;
        let lengths = [host.len(), port.len()];
        let reply = format!(
            "*2\r\n${}\r\n{host}\r\n${}\r\n{port}\r\n",
            lengths[0], lengths[1]
        );
        (request.name() == "SENTINEL").then(|| reply.into_bytes())
    });
    let servers = vec![
        ("sentinel", Recorder::to(sentinel.port())),
        ("master", master),
    ];
    let mut trace = Trace::of(servers).naming(&port, "<port>");
    trace.set_apart(&["SENTINEL"]);
    let asked = trace.urls().swap_remove(0);
    let client = builder().sentinel([asked], "mymaster").build().unwrap();
    let guard = trace.step("lock", |passed| {
        let guard = client.mutex("a").lock().unwrap();
        passed.wait_for("message", 1);
        guard
    });
    trace.step("unlock", |_| released(guard.unlock()));
    compare(
        "sentinel.txt",
        &[trace.end("A master that a sentinel names")],
    );
}

#[track_caller]
fn released(outcome: Result<Unlocked, leasehold::Error>) {
    assert_eq!(outcome.unwrap(), Unlocked::Released);
}
