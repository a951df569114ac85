//! Lock and unlock on one thread, on every kind of deployment. Alternates with the same scripts
//! called by hand on one server and, except for quorums, on the deployment's own servers. On Linux,
//! all servers share one processor, and the client runs on the others. Then: for how long one name
//! is out over a quorum of 3 while one of the servers hangs, is slow, or hangs again and again.

use std::thread;
use std::time::{Duration, Instant};

use common::floor::pair::Hand;
use common::picture::{Panel, Picture, Row};
use common::{Report, Runner, Samples, affinity};
use leasehold::{Client, Mutex};
use support::{Cluster, ClusterSetup, Proxy, Replicas, Sentinels, Server, Setup, ms};

const ROUNDS: usize = 300;
const PAIRS: usize = 25;

/// The number of servers in each quorum.
const SERVERS: usize = 5;

fn main() {
    let report = Report::begin(
        "deployments",
        ROUNDS,
        &format!("lock + unlock on one thread, {ROUNDS} rounds of {PAIRS}"),
    );
    let servers = Deployments::start();
    let locks = servers.locks();
    for (_, lock) in &locks {
        pair(lock);
    }
    servers.with_one_hung[0].pause();
    // The client waits for the hung server once, and then skips it. That wait is not measured.
    for _ in 0..20 {
        pair(&locks[locks.len() - 1].1);
    }
    let results = measure(&servers, &locks);
    results.print();
    servers.with_one_hung[0].resume();
    let mut figures = results.figures().to_vec();
    figures.extend(disturbed());
    report.end(&figures, &results.picture());
}

struct Deployments {
    one: Server,
    sentinels: Sentinels,
    cluster: Cluster,
    replicas: Replicas,
    quorum: Vec<Server>,
    with_one_hung: Vec<Server>,
}

impl Deployments {
    fn start() -> Self {
        let servers = || (0..SERVERS).map(|_| Server::start().long_lived()).collect();
        let this = Self {
            one: affinity::apart(|| Server::start().long_lived()),
            sentinels: affinity::apart(|| Sentinels::start(Setup::steady()).long_lived()),
            cluster: affinity::apart(|| Cluster::with(ClusterSetup::steady(3, 0)).long_lived()),
            replicas: affinity::apart(|| Replicas::start(1).long_lived()),
            quorum: affinity::apart(servers),
            with_one_hung: affinity::apart(servers),
        };
        // No call waits for these replicas: they must not take processor time from the master.
        this.sentinels.data()[1..]
            .iter()
            .for_each(affinity::run_in_idle_time);
        this
    }

    /// Returns a lock on each deployment, with its label.
    fn locks(&self) -> Vec<(&'static str, Mutex)> {
        let open = |url: String| Client::open(&url).unwrap().mutex("ours");
        let quorum = |servers: &[Server]| {
            let urls: Vec<_> = servers.iter().map(Server::url).collect();
            Client::quorum(urls).unwrap().mutex("ours")
        };
        let acknowledged = open(self.replicas.master().url()).min_replicas(1, ms(100));
        vec![
            ("one server", open(self.one.url())),
            ("sentinel", open(self.sentinels.url())),
            ("cluster", open(self.cluster.url())),
            ("min_replicas(1)", acknowledged),
            ("quorum of 5", quorum(&self.quorum)),
            ("quorum of 5, one hung", quorum(&self.with_one_hung)),
        ]
    }
}

struct Results {
    /// The label of each lock.
    locks: Vec<&'static str>,
    /// First by hand on one server, then each lock, then by hand on the servers of the second,
    /// third and fourth lock.
    samples: Vec<Samples>,
}

fn measure(servers: &Deployments, locks: &[(&'static str, Mutex)]) -> Results {
    let cluster = &servers.cluster;
    let owner = cluster.master_of("lock:hand");
    let mut hand = Hand::new(&servers.one.url(), "hand");
    let mut there = Hand::new(&servers.sentinels.first_master().url(), "hand");
    let mut in_slot = Hand::new(&cluster.node(owner).url(), "hand");
    let mut acknowledged = Hand::new(&servers.replicas.master().url(), "hand");
    // Loads the acquire script, which `acknowledged_pair` sends in a pipeline: a pipeline does not
    // load a missing script.
    acknowledged.pair();

    let mut runners: Vec<Runner<'_>> = vec![Box::new(|| common::timed(PAIRS, || hand.pair()))];
    for (_, lock) in locks {
        runners.push(Box::new(|| common::timed(PAIRS, || pair(lock))));
    }
    runners.push(Box::new(|| common::timed(PAIRS, || there.pair())));
    runners.push(Box::new(|| common::timed(PAIRS, || in_slot.pair())));
    runners.push(Box::new(|| {
        common::timed(PAIRS, || acknowledged.acknowledged_pair())
    }));
    Results {
        locks: locks.iter().map(|(label, _)| *label).collect(),
        samples: common::take_turns(ROUNDS, &mut runners),
    }
}

impl Results {
    fn by_hand(&self) -> &Samples {
        &self.samples[0]
    }

    /// Returns the samples by hand on the servers of the `n`th lock, if they were taken.
    fn there(&self, n: usize) -> Option<&Samples> {
        (2..5)
            .contains(&n)
            .then(|| &self.samples[self.locks.len() + n - 1])
    }

    fn print(&self) {
        let rows: Vec<_> = ["the scripts by hand"]
            .iter()
            .chain(&self.locks)
            .enumerate()
            .map(|(n, label)| {
                let (samples, there) = (&self.samples[n], self.there(n));
                let there_vs_hand = there.map(|there| there.ratio(self.by_hand()).show(3));
                let vs_there = there.map(|there| samples.ratio(there).show(3));
                vec![
                    (*label).to_owned(),
                    format!("{:.1}", samples.percentile(50.0)),
                    format!("{:.1}", samples.percentile(99.0)),
                    samples.ratio(self.by_hand()).show(3),
                    there_vs_hand.unwrap_or_default(),
                    vs_there.unwrap_or_default(),
                ]
            })
            .collect();
        let heads = [
            "pair",
            "p50 µs",
            "p99 µs",
            "vs by hand, one server (quartiles)",
            "by hand, same servers, vs one server",
            "vs by hand, same servers",
        ];
        common::print_table(&heads, &rows);
    }

    fn figures(&self) -> [(&'static str, String); 8] {
        let [_, _, sentinel, cluster, wait, quorum, hung, ..] = &self.samples[..] else {
            unreachable!("one result per runner");
        };
        let ratio = |of: &Samples, to: &Samples| format!("{:.3}", of.ratio(to).median);
        let vs_hand = |samples: &Samples| ratio(samples, self.by_hand());
        let vs_there = |n: usize| ratio(&self.samples[n], self.there(n).unwrap());
        [
            ("sentinel", vs_hand(sentinel)),
            ("cluster", vs_hand(cluster)),
            ("wait1", vs_hand(wait)),
            ("quorum5", vs_hand(quorum)),
            ("quorum5_hung_vs_quorum5", ratio(hung, quorum)),
            ("sentinel_vs_hand_there", vs_there(2)),
            ("cluster_vs_hand_there", vs_there(3)),
            ("wait1_vs_hand_there", vs_there(4)),
        ]
    }

    fn picture(&self) -> Picture {
        let of_locks = self.locks.iter().zip(&self.samples[1..]);
        let mut bars: Vec<Row> = of_locks
            .map(|(label, samples)| Row::bar(*label, samples.ratio(self.by_hand())).ours())
            .collect();
        for (n, label) in [(2, "sentinel"), (3, "cluster"), (4, "min_replicas(1)")] {
            bars.extend(self.there(n).map(|there| {
                Row::bar(
                    format!("{label}, by hand on the same servers"),
                    there.ratio(self.by_hand()),
                )
            }));
        }
        Picture {
            title: "Lock + unlock on one thread, on every kind of deployment".to_owned(),
            panels: vec![Panel::new(
                "time relative to the same scripts by hand on one server",
                bars,
            )],
        }
    }
}

fn pair(lock: &Mutex) {
    lock.lock().unwrap().unlock().unwrap();
}

/// The behaviour of one of the three servers of a quorum.
struct Disturbance {
    label: &'static str,
    /// The key of the longest gap meanwhile.
    key: &'static str,
    run: fn(&Server, &Proxy),
}

const DISTURBANCES: [Disturbance; 3] = [
    Disturbance {
        label: "hangs for 3 s",
        key: "quorum3_hung_gap_ms",
        run: |server, _| hang(server, ms(3_000)),
    },
    Disturbance {
        label: "is slow by 2 s",
        key: "quorum3_slow_gap_ms",
        run: |_, proxy| {
            proxy.delay(ms(0), ms(2_000));
            thread::sleep(ms(6_000));
            proxy.delay(ms(0), ms(0));
        },
    },
    Disturbance {
        label: "hangs for 1.5 s, every 5 s",
        key: "quorum3_flapping_gap_ms",
        run: |server, _| {
            for _ in 0..3 {
                hang(server, ms(1_500));
                thread::sleep(ms(3_500));
            }
        },
    },
];

fn hang(server: &Server, time: Duration) {
    server.pause();
    thread::sleep(time);
    server.resume();
}

/// Measures the longest gap for each disturbance, and how many calls have failed.
fn disturbed() -> Vec<(&'static str, String)> {
    let mut figures = Vec::new();
    let mut rows = Vec::new();
    let mut failed_in_all = 0;
    for Disturbance { label, key, run } in DISTURBANCES {
        let (gap, pairs, failed) = longest_gap(run);
        let gap = format!("{:.0}", gap.as_secs_f64() * 1000.0);
        figures.push((key, gap.clone()));
        failed_in_all += failed;
        rows.push(vec![
            label.to_owned(),
            gap,
            pairs.to_string(),
            failed.to_string(),
        ]);
    }
    figures.push(("quorum3_failed", failed_in_all.to_string()));
    let heads = [
        "one of three servers",
        "longest gap, ms",
        "pairs",
        "failed calls",
    ];
    common::print_table(&heads, &rows);
    figures
}

/// One thread locks and unlocks a name without a pause. Returns the longest time from one lock to
/// the next, the number of locks, and that of the calls that failed.
fn longest_gap(disturb: fn(&Server, &Proxy)) -> (Duration, usize, usize) {
    let servers: Vec<Server> =
        affinity::apart(|| (0..3).map(|_| Server::start().long_lived()).collect());
    let proxy = Proxy::new(&servers[2]);
    let urls = [servers[0].url(), servers[1].url(), proxy.url()];
    let lock = Client::quorum(urls).unwrap().mutex("hot");
    for _ in 0..100 {
        pair(&lock);
    }
    thread::scope(|scope| {
        let disturbance = scope.spawn(|| {
            disturb(&servers[2], &proxy);
            // What it has left behind must not count later, either.
            thread::sleep(ms(3_000));
        });
        let (mut longest, mut pairs, mut failed) = (Duration::ZERO, 0, 0);
        let mut last = Instant::now();
        while !disturbance.is_finished() {
            match lock.try_lock_for(ms(5_000)) {
                Ok(Ok(guard)) => {
                    longest = longest.max(last.elapsed());
                    last = Instant::now();
                    pairs += 1;
                    failed += usize::from(guard.unlock().is_err());
                }
                Ok(Err(_)) | Err(_) => failed += 1,
            }
        }
        (longest.max(last.elapsed()), pairs, failed)
    })
}
