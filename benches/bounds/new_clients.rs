//! How late `try_lock_for` returns in new clients that all call at the same time, on each kind of
//! deployment. As many threads only sleep meanwhile.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use common::picture::{Panel, Row};
use common::{Samples, Spread};
use leasehold::{Client, ClientBuilder};
use support::{Cluster, ClusterSetup, Sentinels, Server, Setup, ms};

use super::HOUR;

/// How many clients call at the same time, each for its own name.
const CLIENTS: usize = 54;

const BOUNDS: [Duration; 3] = [ms(100), ms(200), ms(1_500)];

/// The number of servers in the quorum.
const MEMBERS: usize = 5;

/// How much later than the latest sleep the latest call may return, in ms.
const ALLOWED: f64 = 20.0;

struct Deployment<'a> {
    name: &'static str,
    /// The first part of the keys of its figures.
    key: &'static str,
    builder: &'a dyn Fn() -> ClientBuilder,
    /// The servers that store the locks, if they are also measured while they hang.
    servers: Vec<&'a Server>,
}

/// How late the calls were, and the sleeps next to them, by round.
#[derive(Default)]
struct Lates {
    calls: Samples,
    sleeps: Samples,
}

/// The rows of the table, the figures, and the panels of the picture.
#[derive(Default)]
pub(crate) struct Results {
    pub(crate) rows: Vec<Vec<String>>,
    pub(crate) figures: Vec<(String, String)>,
    pub(crate) panels: Vec<Panel>,
}

pub(crate) fn measure(rounds: usize) -> Results {
    let mut results = Results::default();
    let one = Server::start().long_lived();
    results.add(
        rounds,
        &Deployment {
            name: "one server",
            key: "one",
            builder: &|| Client::builder().url(one.url()),
            servers: vec![&one],
        },
    );
    let sentinels = Sentinels::start(Setup::steady()).long_lived();
    results.add(
        rounds,
        &Deployment {
            name: "Sentinel",
            key: "sentinel",
            builder: &|| Client::builder().url(sentinels.url()),
            servers: vec![sentinels.first_master()],
        },
    );
    drop(sentinels);
    let cluster = Cluster::with(ClusterSetup::steady(3, 0)).long_lived();
    results.add(
        rounds,
        &Deployment {
            name: "Cluster",
            key: "cluster",
            builder: &|| Client::builder().url(cluster.url()),
            servers: (0..cluster.count()).map(|n| cluster.node(n)).collect(),
        },
    );
    drop(cluster);
    let members: Vec<_> = (0..MEMBERS).map(|_| Server::start().long_lived()).collect();
    members[0].pause();
    results.add(
        rounds,
        &Deployment {
            name: "quorum of 5, one hung",
            key: "quorum_one_hung",
            builder: &|| Client::builder().quorum(members.iter().map(Server::url)),
            servers: Vec::new(),
        },
    );
    members[0].resume();
    results
}

impl Results {
    pub(crate) const HEADS: [&'static str; 6] = [
        "54 new clients, try_lock_for",
        "bound",
        "ms late: p50, p99, most",
        "threads that sleep as long",
        "latest call − latest sleep",
        "20 ms",
    ];

    fn add(&mut self, rounds: usize, deployment: &Deployment<'_>) {
        let mut bars = Vec::new();
        let builder = || (deployment.builder)().breaker(0).unreachable_for(HOUR);
        let holder = builder().build().expect("the settings are valid");
        let held = (0..CLIENTS).map(|n| holder.mutex(name(n)).ttl(HOUR).lock());
        let held: Result<Vec<_>, _> = held.collect();
        let held = held.expect("the locks are free");
        for bound in BOUNDS {
            let lates = lates(rounds, &builder, bound, &[]);
            bars.push(self.add_row(deployment, "taken", bound, &lates));
        }
        drop(held);
        for bound in BOUNDS {
            if !deployment.servers.is_empty() {
                let lates = lates(rounds, &builder, bound, &deployment.servers);
                bars.push(self.add_row(deployment, "hung", bound, &lates));
            }
        }
        let title = format!("{}: latest call − latest sleep, ms", deployment.name);
        self.panels.push(Panel::new(title, bars));
    }

    /// Adds a row of the table and its figures; returns its bar.
    fn add_row(
        &mut self,
        deployment: &Deployment<'_>,
        case: &str,
        bound: Duration,
        lates: &Lates,
    ) -> Row {
        let millis = |samples: &Samples| samples.range().map(|micros| micros / 1e3);
        let (calls, sleeps) = (millis(&lates.calls), millis(&lates.sleeps));
        let show = |range: [f64; 3]| range.map(|late| format!("{late:.1}")).join("  ");
        let [_, p99, most] = [0, 1, 2].map(|n| calls[n] - sleeps[n]);
        let bound = bound.as_millis();
        self.rows.push(vec![
            format!("{}, {case}", deployment.name),
            format!("{bound} ms"),
            show(calls),
            show(sleeps),
            format!("{most:.1}"),
            if most <= ALLOWED { "kept" } else { "LATE" }.into(),
        ]);
        let key = format!("{}_{case}_{bound}ms", deployment.key);
        self.figures
            .push((format!("{key}_p99_more_ms"), format!("{p99:.1}")));
        self.figures
            .push((format!("{key}_more_ms"), format!("{most:.1}")));
        let most = lates.calls.most().zip(lates.sleeps.most());
        let more = most.map(|(call, sleep)| (call - sleep) / 1e3);
        let bar = Row::bar(format!("{case}, {bound} ms"), Spread::of(more));
        bar.ours().mark("≤", ALLOWED)
    }
}

fn name(n: usize) -> String {
    format!("taken-{n}")
}

/// Runs the rounds, during which the `hung` servers do not reply.
fn lates(
    rounds: usize,
    builder: &dyn Fn() -> ClientBuilder,
    bound: Duration,
    hung: &[&Server],
) -> Lates {
    let mut lates = Lates::default();
    for _ in 0..rounds {
        let clients = (0..CLIENTS).map(|_| builder().build().expect("the settings are valid"));
        let clients: Vec<_> = clients.collect();
        hung.iter().for_each(|server| server.pause());
        let (calls, sleeps) = round(&clients, bound);
        // A client undoes its unanswered calls before it ends: the servers must reply.
        hung.iter().for_each(|server| server.resume());
        thread::scope(|scope| {
            for client in clients {
                scope.spawn(|| drop(client));
            }
        });
        lates.calls.push(calls);
        lates.sleeps.push(sleeps);
    }
    lates
}

fn round(clients: &[Client], bound: Duration) -> (Vec<Duration>, Vec<Duration>) {
    let start = Barrier::new(2 * clients.len());
    let lateness = |wait: &dyn Fn()| {
        start.wait();
        let began = Instant::now();
        wait();
        began.elapsed().saturating_sub(bound)
    };
    thread::scope(|scope| {
        let mut calls = Vec::new();
        let mut sleeps = Vec::new();
        for (n, client) in clients.iter().enumerate() {
            let mutex = client.mutex(name(n));
            let call = move || {
                let answer = mutex.try_lock_for(bound);
                assert!(!matches!(answer, Ok(Ok(_))), "the lock was free");
            };
            calls.push(scope.spawn(move || lateness(&call)));
            sleeps.push(scope.spawn(move || lateness(&|| thread::sleep(bound))));
        }
        let join = |thread: thread::ScopedJoinHandle<'_, Duration>| {
            thread.join().expect("the call fails as expected")
        };
        let calls = calls.into_iter().map(join).collect();
        (calls, sleeps.into_iter().map(join).collect())
    })
}
