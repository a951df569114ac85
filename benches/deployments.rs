//! Lock and unlock on one thread, on every kind of deployment, in turns with the same scripts called by hand on one
//! server.

mod common;
#[path = "../tests/support/mod.rs"]
mod support;

use common::hand::Hand;
use common::picture::{Panel, Picture, Row};
use common::{Contender, Report};
use leasehold::{Client, Mutex, Unlocked};
use support::{Cluster, ClusterSetup, Replicas, Sentinels, Server, Setup, ms};

const ROUNDS: usize = 300;
const PAIRS: usize = 25;

/// Of the quorums.
const SERVERS: usize = 5;

fn main() {
    let report = Report::begin(
        "deployments",
        ROUNDS,
        &format!("lock + unlock on one thread, {ROUNDS} rounds of {PAIRS}"),
    );
    let one = Server::start().untimed();
    let sentinels = Sentinels::start(Setup::steady()).untimed();
    let cluster = Cluster::with(ClusterSetup::steady(3, 0)).untimed();
    let replicas = Replicas::start(1).untimed();
    let [quorum, with_one_hung] = [(); 2]
        .map(|()| -> Vec<Server> { (0..SERVERS).map(|_| Server::start().untimed()).collect() });
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
    // Its first timeout is not what is measured.
    for _ in 0..20 {
        pair(&locks[locks.len() - 1].1);
    }

    let mut contenders: Vec<Contender<'_>> =
        vec![Box::new(|| common::timed(PAIRS, || hand.pair()))];
    for (_, lock) in &locks {
        contenders.push(Box::new(|| common::timed(PAIRS, || pair(lock))));
    }
    let samples = common::take_turns(ROUNDS, &mut contenders);
    drop(contenders);
    let by_hand = &samples[0];
    let rows: Vec<_> = ["the scripts by hand"]
        .into_iter()
        .chain(locks.iter().map(|(name, _)| *name))
        .zip(&samples)
        .map(|(name, samples)| {
            vec![
                name.to_owned(),
                format!("{:.1}", samples.percentile(50.0)),
                format!("{:.1}", samples.percentile(99.0)),
                samples.ratio(by_hand).show(3),
            ]
        })
        .collect();
    common::print_table(
        &[
            "pair",
            "p50 µs",
            "p99 µs",
            "vs by hand on one server (quartiles)",
        ],
        &rows,
    );
    let [_, _, sentinel, cluster, wait, quorum, hung] = &samples[..] else {
        unreachable!("as many as contended");
    };
    let vs_hand = |samples: &common::Samples| format!("{:.3}", samples.ratio(by_hand).median);
    let figures = [
        ("sentinel", vs_hand(sentinel)),
        ("cluster", vs_hand(cluster)),
        ("wait1", vs_hand(wait)),
        ("quorum5", vs_hand(quorum)),
        (
            "quorum5_hung_vs_quorum5",
            format!("{:.3}", hung.ratio(quorum).median),
        ),
    ];
    let rows = locks.iter().zip(&samples[1..]);
    let picture = Picture {
        title: "Lock + unlock on one thread, on every kind of deployment".to_owned(),
        panels: vec![Panel {
            title: "times as long as the same scripts by hand on one server".to_owned(),
            rows: rows
                .map(|((name, _), samples)| Row::bar(*name, samples.ratio(by_hand)).ours())
                .collect(),
        }],
    };
    report.end(&figures, &picture);
    with_one_hung[0].resume();
}

fn pair(lock: &Mutex) {
    assert_eq!(lock.lock().unwrap().unlock().unwrap(), Unlocked::Released);
}
