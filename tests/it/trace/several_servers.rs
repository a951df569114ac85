//! The traffic between clients and a quorum, a cluster, or a master behind Sentinel.

use std::thread;

use leasehold::Client;
use redis::Value;
use support::{
    Cluster, ClusterSetup, FakeServer, Recorder, Server, assert_released, eventually, ms,
    refusing_url,
};

use super::recording::{Trace, compare};
use super::{LONGER, builder};

pub(super) fn quorum_calls_are_as_recorded() {
    compare("quorum.txt", &[votes(), waiting(), questions()]);
}

/// Records two servers, and returns two clients of a quorum of these and a third.
///
/// The third server is unreachable, so each call needs the replies of both others. Otherwise a call
/// could return before the third reply, and later calls would differ from run to run.
fn quorum_with_one_away(servers: &[Server; 2]) -> (Trace, Client, Client) {
    let trace = Trace::of(recorders(servers));
    let mut urls = trace.urls();
    urls.push(refusing_url());
    let client = || builder().quorum(urls.clone()).build().unwrap();
    let (one, two) = (client(), client());
    (trace, one, two)
}

fn votes() -> String {
    let servers = [(); 2].map(|()| Server::start());
    let (mut trace, one, two) = quorum_with_one_away(&servers);
    let [mutex, other] = [&one, &two].map(|client| client.mutex("a"));
    let guard = trace.step("try_lock", |_| mutex.try_lock().unwrap().unwrap());
    trace.step("try_lock, held", |_| {
        assert!(other.try_lock().unwrap().is_err())
    });
    trace.step("inspect", |_| other.inspect().unwrap());
    trace.step("renew", |_| guard.renew().unwrap());
    trace.step("set_ttl", |_| guard.set_ttl(LONGER).unwrap());
    trace.step("unlock", |_| assert_released(guard.unlock()));
    let all = one.mutex_all(["b", "c"]);
    let guard = trace.step("MutexAll: lock", |_| all.lock().unwrap());
    trace.step("MutexAll: renew", |_| guard.renew().unwrap());
    trace.step("MutexAll: unlock", |_| assert_released(guard.unlock()));
    for server in &servers {
        server.run("SET", &["leasehold:fence:{lock:d}", "4000000000000000"]);
    }
    trace.leave_out(&["release"]);
    trace.step("lock, the fences are ahead", |_| {
        drop(one.mutex("d").lock().unwrap())
    });
    trace.end("A quorum of three servers, one of which is away")
}

/// The waiter's attempts are left out: [`votes`] records the same command, and their number depends
/// on which server confirms the subscription first.
fn waiting() -> String {
    let servers = [(); 2].map(|()| Server::start());
    let (mut trace, one, two) = quorum_with_one_away(&servers);
    let [mutex, other] = [&one, &two].map(|client| client.mutex("a"));
    let guard = mutex.lock().unwrap();
    trace.skip();
    trace.leave_out(&["propose"]);
    let waiter = trace.step("another client waits", |passed| {
        let waiter = thread::spawn(move || other.lock().unwrap());
        passed.wait_for_retry("propose");
        for server in &servers {
            server.wait_until_waiter_sleeps("lock_release:a");
        }
        waiter
    });
    let guard = trace.step("unlock wakes it", |passed| {
        assert_released(guard.unlock());
        passed.wait_for("message", 2);
        waiter.join().unwrap()
    });
    trace.step("its unlock", |passed| {
        assert_released(guard.unlock());
        passed.wait_for("message", 2);
    });
    trace.end("A quorum of three servers, one of which is away: waiting")
}

fn questions() -> String {
    let servers = [(); 3].map(|()| Server::start());
    let mut trace = Trace::of(recorders(&servers));
    let client = builder().quorum(trace.urls()).build().unwrap();
    let mutex = client.mutex("a");
    trace.step("last_fencing_token", |_| {
        mutex.last_fencing_token().unwrap()
    });
    trace.step("list", |_| client.list("").unwrap());
    trace.end("A quorum of three servers: what it asks each of them")
}

fn recorders(servers: &[Server]) -> Vec<(&'static str, Recorder)> {
    let labels = ["server 1", "server 2", "server 3"].into_iter();
    let recorders = servers.iter().map(|server| Recorder::to(server.port()));
    labels.zip(recorders).collect()
}

/// A cluster behind recorders, and a client of it.
struct RecordedCluster {
    cluster: Cluster,
    trace: Trace,
    client: Client,
    /// For each node, a name whose slot it owns.
    names: [String; 2],
}

impl RecordedCluster {
    fn start() -> Self {
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
        trace.leave_out(&["CLUSTER", "PING", "undo"]);
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
        Self {
            cluster,
            trace,
            client,
            names,
        }
    }

    fn lock_single_names(&mut self) {
        let (trace, client) = (&mut self.trace, &self.client);
        let mutex = client.mutex(&*self.names[1]);
        let guard = trace.step("lock", |_| mutex.lock().unwrap());
        trace.step("inspect", |_| mutex.inspect().unwrap());
        trace.step("list", |_| client.list("").unwrap());
        trace.step("renew", |_| guard.renew().unwrap());
        trace.step("unlock", |_| assert_released(guard.unlock()));
        let fair = client.fair_mutex(&*self.names[0]);
        let guard = trace.step("FairMutex: lock", |_| fair.lock().unwrap());
        trace.step("FairMutex: unlock", |_| assert_released(guard.unlock()));
    }

    fn lock_several_names(&mut self) {
        let (trace, client) = (&mut self.trace, &self.client);
        // Tokens are times in µs. The recording shows one that is at most 63 µs after another as
        // `<token n + µs>`, so the tokens of two names must not be that close by chance.
        let tag = self.cluster.name_owned_by("s", 0);
        let fence = format!("leasehold:fence:lock:{{{tag}}}b");
        let ahead = ["SET", &fence, "4000000000000000"];
        let () = self.cluster.ask(0, &ahead).unwrap();
        let all = client.mutex_all(["a", "b"].map(|name| format!("{{{tag}}}{name}")));
        let guard = trace.step("MutexAll in one slot: lock", |_| all.lock().unwrap());
        trace.step("MutexAll in one slot: unlock", |_| {
            assert_released(guard.unlock())
        });
        let fence = format!("leasehold:fence:{{lock:{}}}", self.names[1]);
        let ahead = ["SET", &fence, "4000000000000000"];
        let () = self.cluster.ask(1, &ahead).unwrap();
        let all = client.mutex_all(&self.names);
        let guard = trace.step("MutexAll in two slots: lock", |_| all.lock().unwrap());
        trace.step("MutexAll in two slots: renew", |_| guard.renew().unwrap());
        trace.step("MutexAll in two slots: set_ttl", |_| {
            guard.set_ttl(LONGER).unwrap();
        });
        trace.step("MutexAll in two slots: unlock", |_| {
            assert_released(guard.unlock());
        });
        // For a second after a refusal, calls for the name join its queue: not those that follow.
        let second = self.cluster.name_owned_by("c", 1);
        let all = client.mutex_all([&self.names[0], &second]);
        let other = builder().cluster(trace.urls()).build().unwrap();
        let held = other.mutex(&*second).lock().unwrap();
        trace.skip();
        trace.step(
            "MutexAll in two slots: try_lock, the second held",
            |passed| {
                assert!(all.try_lock().unwrap().is_err());
                passed.wait_for("release", 1);
            },
        );
        assert_released(held.unlock());
        trace.skip();
    }

    fn call_while_a_slot_moves(&mut self) {
        let (cluster, trace) = (&self.cluster, &mut self.trace);
        let mutex = self.client.mutex(&*self.names[1]);
        let key = format!("lock:{}", self.names[1]);
        let (slot, guard) = (cluster.slot(&key), mutex.lock().unwrap());
        cluster.begin_migration(slot, 1, 0);
        cluster.move_key(&key, 1, 0);
        trace.skip();
        trace.step("renew, while the slot moves and the key has moved", |_| {
            guard.renew().unwrap()
        });
        trace.step("unlock, the same", |_| assert_released(guard.unlock()));
        let owner: String = cluster.ask(0, &["CLUSTER", "MYID"]).unwrap();
        let assign = ["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &owner];
        for n in 0..2 {
            let () = cluster.ask(n, &["FLUSHALL"]).unwrap();
            let () = cluster.ask(n, &assign).unwrap();
        }
        // The client repeats its recent releases on the slot's new owner.
        trace.leave_out(&["release", "queue_release", "queue_undo"]);
        trace.step("lock, the slot has moved", |_| drop(mutex.lock().unwrap()));
    }
}

pub(super) fn cluster_calls_are_as_recorded() {
    let mut recorded = RecordedCluster::start();
    recorded.lock_single_names();
    recorded.lock_several_names();
    recorded.call_while_a_slot_moves();
    let trace = &mut recorded.trace;
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
    trace.leave_out(&["SENTINEL", "PING"]);
    let sentinel_url = trace.urls().swap_remove(0);
    let client = builder().sentinel([sentinel_url], "mymaster");
    let client = client.build().unwrap();
    let guard = trace.step("lock", |passed| {
        let guard = client.mutex("a").lock().unwrap();
        // The sentinel's confirmation of the subscription.
        passed.wait_for("message", 1);
        guard
    });
    trace.step("unlock", |_| assert_released(guard.unlock()));
    compare(
        "sentinel.txt",
        &[trace.end("A master that a sentinel names")],
    );
}
