//! Lock and unlock on one thread, on every kind of deployment. Alternates with the same scripts
//! called by hand on one server, and on the deployment's own servers. All servers share one
//! processor; the client has another.

mod common;

use common::floor::pair::Hand;
use common::picture::{Panel, Picture, Row};
use common::{Contender, Report, affinity};
use leasehold::{Client, Mutex, Unlocked};
use support::{Cluster, ClusterSetup, Replicas, Sentinels, Server, Setup, ms};

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
    let one = affinity::apart(|| Server::start().long_lived());
    let sentinels = affinity::apart(|| Sentinels::start(Setup::steady()).long_lived());
    // No call waits for the replicas of the master.
    sentinels.data()[1..].iter().for_each(affinity::aside);
    let cluster = affinity::apart(|| Cluster::with(ClusterSetup::steady(3, 0)).long_lived());
    let replicas = affinity::apart(|| Replicas::start(1).long_lived());
    let servers = || (0..SERVERS).map(|_| Server::start().long_lived()).collect();
    let [quorum, with_one_hung] = [(); 2].map(|()| -> Vec<Server> { affinity::apart(servers) });
    let urls = |servers: &[Server]| servers.iter().map(Server::url).collect::<Vec<_>>();

    let mut hand = Hand::new(&one.url(), "hand");
    let name = "ours";
    let locks: Vec<(&str, Mutex)> = vec![
        ("one server", Client::open(&one.url()).unwrap().mutex(name)),
        (
            "sentinel",
            Client::open(&sentinels.url()).unwrap().mutex(name),
        ),
        ("cluster", Client::open(&cluster.url()).unwrap().mutex(name)),
        (
            "min_replicas(1)",
            Client::open(&replicas.master().url())
                .unwrap()
                .mutex(name)
                .min_replicas(1, ms(100)),
        ),
        (
            "quorum of 5",
            Client::quorum(urls(&quorum)).unwrap().mutex(name),
        ),
        (
            "quorum of 5, one hung",
            Client::quorum(urls(&with_one_hung)).unwrap().mutex(name),
        ),
    ];
    for (_, lock) in &locks {
        pair(lock);
    }
    with_one_hung[0].pause();
    // The client waits for the hung server once, and then skips it. That wait is not measured.
    for _ in 0..20 {
        pair(&locks[locks.len() - 1].1);
    }

    let mut there = Hand::new(&sentinels.first_master().url(), "hand");
    let owner = cluster.master_of("lock:hand");
    let mut in_slot = Hand::new(&cluster.node(owner).url(), "hand");
    let mut acknowledged = Hand::new(&replicas.master().url(), "hand");
    // Loads the scripts and warms up all contenders.
    acknowledged.pair();

    let mut contenders: Vec<Contender<'_>> =
        vec![Box::new(|| common::timed(PAIRS, || hand.pair()))];
    for (_, lock) in &locks {
        contenders.push(Box::new(|| common::timed(PAIRS, || pair(lock))));
    }
    contenders.push(Box::new(|| common::timed(PAIRS, || there.pair())));
    contenders.push(Box::new(|| common::timed(PAIRS, || in_slot.pair())));
    contenders.push(Box::new(|| {
        common::timed(PAIRS, || acknowledged.acknowledged_pair())
    }));
    let samples = common::take_turns(ROUNDS, &mut contenders);
    drop(contenders);
    let by_hand = &samples[0];
    // First by hand on one server, then each lock, then by hand on the servers of the second, third
    // and fourth lock.
    let there = |n: usize| (2..5).contains(&n).then(|| &samples[locks.len() + n - 1]);
    let rows: Vec<_> = ["the scripts by hand"]
        .into_iter()
        .chain(locks.iter().map(|(name, _)| *name))
        .enumerate()
        .map(|(n, name)| {
            let samples = &samples[n];
            vec![
                name.to_owned(),
                format!("{:.1}", samples.percentile(50.0)),
                format!("{:.1}", samples.percentile(99.0)),
                samples.ratio(by_hand).show(3),
                there(n).map_or_else(String::new, |there| there.ratio(by_hand).show(3)),
                there(n).map_or_else(String::new, |there| samples.ratio(there).show(3)),
            ]
        })
        .collect();
    common::print_table(
        &[
            "pair",
            "p50 µs",
            "p99 µs",
            "vs by hand, one server (quartiles)",
            "by hand, same servers, vs one server",
            "vs by hand, same servers",
        ],
        &rows,
    );
    let [_, _, sentinel, cluster, wait, quorum, hung, ..] = &samples[..] else {
        unreachable!("one result per contender");
    };
    let vs_hand = |samples: &common::Samples| format!("{:.3}", samples.ratio(by_hand).median);
    let vs_there = |n: usize| format!("{:.3}", samples[n].ratio(there(n).unwrap()).median);
    let figures = [
        ("sentinel", vs_hand(sentinel)),
        ("cluster", vs_hand(cluster)),
        ("wait1", vs_hand(wait)),
        ("quorum5", vs_hand(quorum)),
        (
            "quorum5_hung_vs_quorum5",
            format!("{:.3}", hung.ratio(quorum).median),
        ),
        ("sentinel_vs_hand_there", vs_there(2)),
        ("cluster_vs_hand_there", vs_there(3)),
        ("wait1_vs_hand_there", vs_there(4)),
    ];
    let of_locks = locks.iter().zip(&samples[1..]);
    let mut bars: Vec<Row> = of_locks
        .map(|((name, _), samples)| Row::bar(*name, samples.ratio(by_hand)).ours())
        .collect();
    for (n, name) in [(2, "sentinel"), (3, "cluster"), (4, "min_replicas(1)")] {
        bars.extend(there(n).map(|there| {
            Row::bar(
                format!("{name}, by hand on the same servers"),
                there.ratio(by_hand),
            )
        }));
    }
    let picture = Picture {
        title: "Lock + unlock on one thread, on every kind of deployment".to_owned(),
        panels: vec![Panel::new(
            "time relative to the same scripts by hand on one server",
            bars,
        )],
    };
    report.end(&figures, &picture);
    with_one_hung[0].resume();
}

fn pair(lock: &Mutex) {
    assert_eq!(lock.lock().unwrap().unlock().unwrap(), Unlocked::Released);
}
