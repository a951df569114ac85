//! One caller that never waits: lock and unlock on one server and over a quorum, the server's time
//! for it, and the first lock of a new client.

use std::time::{Duration, Instant};

use common::fleet::Section;
use common::{Runner, Samples, Spread, micros, server_processor_time, take_turns, timed, turns};
use support::Server;

use crate::contention::{Candidate, is_quick};
use crate::kinds;
use crate::record::Record;

const PAIRS: usize = 50;
const SERVERS: usize = 5;

/// The candidates that can lock on several servers.
const OVER_A_QUORUM: [&str; 8] = [
    "mutex",
    "poller",
    "rslock-tuned",
    "redlock-tuned",
    "redis-lock-tuned",
    "distributed-lock-tuned",
    "rslock",
    "redlock",
];

pub(crate) fn run(server: &Server, candidates: &[Candidate], record: &mut Record) {
    server.run("FLUSHALL", &[]);
    pairs(server, candidates, record);
    first_locks(server, candidates, record);
    over_a_quorum(candidates, record);
}

fn rounds(full: usize) -> usize {
    if is_quick() { full / 10 } else { full }
}

/// Measures the pairs of each candidate, and the processor time that the server needs for them.
fn pairs(server: &Server, candidates: &[Candidate], record: &mut Record) {
    let section = Section::alone(Duration::ZERO);
    let open = |(_, kind): &Candidate| kinds::open(kind, &server.url())();
    let mut lockers: Vec<_> = candidates.iter().map(open).collect();
    let mut times: Vec<Samples> = lockers.iter().map(|_| Samples::default()).collect();
    let mut used: Vec<Samples> = lockers.iter().map(|_| Samples::default()).collect();
    for (round, n) in turns(rounds(100) + 1, lockers.len()) {
        let before = server_processor_time(server);
        let took = timed(PAIRS, || lockers[n](&section).expect("the name is free"));
        let of_server = server_processor_time(server) - before;
        // The first round loads scripts.
        if round > 0 {
            times[n].push(took);
            used[n].push(vec![of_server / PAIRS as u32]);
        }
    }
    for (n, (label, _)) in candidates.iter().enumerate() {
        record.add("lock_unlock_us", label, times[n].percentile(50.0));
        record.add("server_us", label, used[n].median().median);
    }
}

fn first_locks(server: &Server, candidates: &[Candidate], record: &mut Record) {
    let section = Section::alone(Duration::ZERO);
    let mut times: Vec<Vec<f64>> = candidates.iter().map(|_| Vec::new()).collect();
    for (_, n) in turns(rounds(100), candidates.len()) {
        let began = Instant::now();
        let mut locker = kinds::open(candidates[n].1, &server.url())();
        locker(&section).expect("the name is free");
        times[n].push(micros(began.elapsed()));
    }
    for ((label, _), times) in candidates.iter().zip(times) {
        let p50 = Spread::of(times.into_iter()).median;
        record.add("first_lock_us", label, p50);
    }
}

fn over_a_quorum(candidates: &[Candidate], record: &mut Record) {
    let servers: Vec<Server> = (0..SERVERS).map(|_| Server::start().long_lived()).collect();
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let section = Section::alone(Duration::ZERO);
    let can = |(_, kind): &&Candidate| OVER_A_QUORUM.contains(kind);
    let candidates: Vec<_> = candidates.iter().filter(can).collect();
    let mut runners: Vec<Runner<'_>> = Vec::new();
    for (_, kind) in &candidates {
        let mut locker = kinds::open(kind, &urls.join(","))();
        let section = &section;
        runners.push(Box::new(move || {
            timed(PAIRS / 2, || locker(section).expect("the name is free"))
        }));
    }
    let samples = take_turns(rounds(100), &mut runners);
    for ((label, _), samples) in candidates.iter().zip(samples) {
        record.add("quorum_us", label, samples.percentile(50.0));
    }
}
