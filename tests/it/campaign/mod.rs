//! Promise: whatever fails, no lock has two holders, no semaphore gives out more permits than it
//! has, and no later holder has an older token.
//!
//! Processes use locks of every kind under the same names while processes are killed and paused,
//! connections are closed, and servers restart, lose their data or fail over, all at random. The
//! judge reads when each user held what. It excuses one ttl after each loss of data.
//!
//! For a minute instead of seconds, or for the events of an earlier run:
//! `CHAOS=60 LEASEHOLD_SEED=7 cargo test --all-features --test it -- campaign::`.

pub(crate) mod judge;
mod servers;
mod users;

use std::collections::BTreeMap;
use std::env;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rustix::time::{ClockId, clock_gettime};
use support::{Child, Sentinels, Server, Setup, let_pass, ms};

use self::judge::{Excused, HeldPeriod, violations};
use self::servers::Servers;
use self::users::user;

support::roles![user];

support::tests![
    failovers_lose_nothing_that_all_replicas_have,
    failovers_break_no_promise,
    failures_of_processes_and_of_a_server_break_no_promise
];

const MUTEX: &str = "mutex";
const FAIR: &str = "fair";
const SET: &str = "set";
const WRITE: &str = "write";
const READ: &str = "read";
const PERMITS: &str = "permits";

/// The permits of the semaphore.
const LIMIT: u32 = 3;

/// The longest ttl.
const TTL: Duration = ms(900);

const PROCESSES: usize = 4;

/// No sentinel replaces a master unasked, however slow the machine is, because the judge must
/// know of each failover.
const GROUP: Setup = Setup {
    down_after: ms(50_000),
    ..Setup::fast_failover()
};

/// How long a campaign lasts, unless `CHAOS` sets another number of seconds.
const LASTS: Duration = ms(7_000);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Kill,
    Pause,
    CloseConnections,
    /// From a file that has every write.
    Restart,
    RestartWithoutData,
    FlushAll,
    Failover,
}

/// Returns ns of a clock that all processes share.
fn clock() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn number(variable: &str) -> Option<u64> {
    let value = env::var(variable).ok()?;
    Some(value.parse().expect("a number"))
}

struct Campaign {
    servers: Servers,
    /// How many replicas acknowledge each lease.
    replicas: usize,
    rng: SmallRng,
    ends: u64,
    children: Vec<Child>,
    /// With the time at which each resumes.
    paused: Vec<(u64, Child)>,
    events: BTreeMap<Event, u32>,
    excused: Vec<Excused>,
    holds: Vec<HeldPeriod>,
}

impl Campaign {
    fn start(&self, seed: u32) -> Child {
        let parameters = [
            ("URL", self.servers.url()),
            ("REPLICAS", self.replicas.to_string()),
            ("SEED", seed.to_string()),
            ("ENDS", self.ends.to_string()),
        ];
        let parameters = parameters.each_ref().map(|(key, value)| (*key, &**value));
        Child::spawn("campaign::user", &parameters)
    }

    /// Lets events happen in a random order, the one that may lose data last.
    fn run_round(&mut self, worst: Event) {
        let mut events = [Event::Kill, Event::Pause, Event::CloseConnections].repeat(3);
        if matches!(self.servers, Servers::One(_)) {
            events.push(Event::Restart);
        }
        events.shuffle(&mut self.rng);
        events.push(worst);
        for event in events {
            // How many random numbers an event draws depends on the processes that run at the time.
            // With a generator of its own, it does not change the later events.
            let mut rng = SmallRng::seed_from_u64(self.rng.random());
            let_pass(ms(rng.random_range(50..400)));
            self.resume(clock());
            if self.is_over() {
                return;
            }
            *self.events.entry(event).or_default() += 1;
            self.let_happen(event, &mut rng);
        }
    }

    fn let_happen(&mut self, event: Event, rng: &mut SmallRng) {
        let began = clock();
        match event {
            Event::Kill => {
                let n = rng.random_range(0..self.children.len());
                let mut child = self.children.swap_remove(n);
                child.kill();
                self.read(child.wait().lines);
                self.children.push(self.start(rng.random()));
            }
            // One process always runs.
            Event::Pause if self.children.len() == 1 => {}
            Event::Pause => {
                let n = rng.random_range(0..self.children.len());
                let child = self.children.swap_remove(n);
                child.pause();
                let lasts = TTL.mul_f64(rng.random_range(0.05..1.5));
                self.paused.push((began + lasts.as_nanos() as u64, child));
            }
            Event::CloseConnections => self.servers.close_connections(rng),
            Event::Restart => self.servers.restart(true),
            Event::RestartWithoutData => self.servers.restart(false),
            Event::FlushAll => self.servers.run(&["FLUSHALL"]),
            Event::Failover => self.servers.fail_over(),
        }
        let has_lost_data = match event {
            Event::RestartWithoutData | Event::FlushAll => true,
            Event::Failover => self.replicas < GROUP.replicas,
            _ => false,
        };
        if has_lost_data {
            let ends = clock() + TTL.as_nanos() as u64;
            self.excused.push((began, ends));
        }
    }

    /// Returns whether less than a ttl is left, in which nothing happens any more.
    fn is_over(&self) -> bool {
        clock() + TTL.as_nanos() as u64 > self.ends
    }

    /// Resumes the processes that have been paused for long enough at this time.
    fn resume(&mut self, now: u64) {
        for (_, child) in self.paused.extract_if(.., |(at, _)| *at <= now) {
            child.resume();
            self.children.push(child);
        }
    }

    fn read(&mut self, lines: Vec<String>) {
        // The last line of a killed process may be incomplete.
        let holds = lines.iter().filter_map(|line| HeldPeriod::parse(line));
        self.holds.extend(holds);
    }

    fn finish(&mut self) {
        self.resume(u64::MAX);
        for child in std::mem::take(&mut self.children) {
            self.read(child.wait().succeeded().lines);
        }
    }
}

fn run(servers: Servers, replicas: usize, worst: &[Event]) {
    let seed = number("LEASEHOLD_SEED").unwrap_or_else(rand::random);
    let lasts = number("CHAOS").map_or(LASTS, Duration::from_secs);
    println!("LEASEHOLD_SEED={seed} repeats these events");
    let mut campaign = Campaign {
        servers,
        replicas,
        rng: SmallRng::seed_from_u64(seed),
        ends: clock() + lasts.as_nanos() as u64,
        children: Vec::new(),
        paused: Vec::new(),
        events: BTreeMap::new(),
        excused: Vec::new(),
        holds: Vec::new(),
    };
    for _ in 0..PROCESSES {
        let seed = campaign.rng.random();
        campaign.children.push(campaign.start(seed));
    }
    let mut worst = worst.iter().cycle();
    while !campaign.is_over() {
        campaign.run_round(*worst.next().expect("a cycle"));
    }
    campaign.finish();

    let found = violations(&campaign.holds, &campaign.excused);
    let mut counts = BTreeMap::new();
    for hold in &campaign.holds {
        *counts.entry(&*hold.kind).or_insert(0) += 1;
    }
    println!("events: {:?}; holds: {counts:?}", campaign.events);
    for what in found.iter().take(10) {
        println!("{what}");
    }
    assert!(
        found.is_empty(),
        "{} violations; LEASEHOLD_SEED={seed}",
        found.len()
    );
    for kind in [MUTEX, FAIR, SET, WRITE, READ, PERMITS] {
        assert!(counts.contains_key(kind), "{counts:?}");
    }
}

fn failures_of_processes_and_of_a_server_break_no_promise() {
    // A write is in the file before its reply is sent.
    let server = Server::with(&["--appendonly", "yes", "--appendfsync", "no"]);
    run(
        Servers::One(server),
        0,
        &[Event::FlushAll, Event::RestartWithoutData],
    );
}

fn failovers_break_no_promise() {
    let group = Sentinels::start(GROUP);
    run(
        Servers::Group(group),
        0,
        &[Event::Failover, Event::FlushAll],
    );
}

fn failovers_lose_nothing_that_all_replicas_have() {
    let group = Sentinels::start(GROUP);
    run(Servers::Group(group), GROUP.replicas, &[Event::Failover]);
}
