//! A simulation of one client's choice of a master: sentinels with an old configuration answer
//! first, last or never, or name a replica, and an old master still takes writes.

use std::cell::Cell;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use crate::clock::Instant;
use crate::mutant::{Mutant, switch_on};
use crate::redis::sentinel::beliefs::{Beliefs, Report};
use crate::url::HostPort;

/// The server that is the master, an old master that still takes writes, a replica, and the master
/// after the failover.
const MASTER: u16 = 1;
const OLD: u16 = 2;
const REPLICA: u16 = 3;
const NEXT: u16 = 4;

/// The epoch of the master; that of the next one is higher by one.
const EPOCH: u64 = 5;

/// How long a question takes at most, and how long the slower sentinels are waited for.
const TIMEOUT: u64 = 1_000;
const GRACE: u64 = 300;
const LATE_AFTER: u64 = 500;

fn address(port: u16) -> HostPort {
    ("10.0.0.1".to_owned(), port)
}

struct Random {
    seed: u64,
    drawn: Cell<u64>,
}

impl Random {
    fn below(&self, n: u64) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.seed, self.drawn.replace(self.drawn.get() + 1)).hash(&mut hasher);
        hasher.finish() % n
    }

    /// Returns true in this share of the cases, in thousandths.
    fn chance(&self, thousandths: u64) -> bool {
        self.below(1_000) < thousandths
    }
}

/// A simulated sentinel.
struct Sentinel {
    names: u16,
    epoch: u64,
    is_wrong: bool,
    /// The client may not ask it for the epoch.
    hides_epoch: bool,
    /// ms; it answers nothing if that is longer than a question takes.
    delay: [u64; 2],
}

struct World {
    random: Random,
    now: u64,
    sentinels: Vec<Sentinel>,
    has_epochs: bool,
    beliefs: Beliefs,
    /// Answers that come too late for their question.
    late: Vec<(u64, usize, Report)>,
    master: u16,
    fails_over_at: u64,
    /// The last question that a majority answered in time began before the failover.
    is_window: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let random = Random {
            seed,
            drawn: Cell::new(0),
        };
        let number = [3, 5][random.below(2) as usize];
        let wrong = random.below(number / 2 + 1);
        let sentinel = |n| {
            let is_wrong = n < wrong;
            let (names, epoch) = if !is_wrong {
                (MASTER, EPOCH)
            } else if random.chance(300) {
                (REPLICA, EPOCH - random.below(2))
            } else {
                (OLD, EPOCH - 1 - random.below(3))
            };
            let delay = match random.below(4) {
                0 if is_wrong => [0, 1],
                1 if is_wrong => [TIMEOUT, TIMEOUT * 2],
                _ => [1, [20, 200, TIMEOUT - 1][random.below(3) as usize]],
            };
            Sentinel {
                names,
                epoch,
                is_wrong,
                hides_epoch: !is_wrong && random.chance(300),
                delay,
            }
        };
        let sentinels: Vec<Sentinel> = (0..number).map(sentinel).collect();
        Self {
            now: 0,
            has_epochs: random.chance(700),
            beliefs: Beliefs::none(sentinels.len()),
            late: Vec::new(),
            master: MASTER,
            fails_over_at: if random.chance(500) {
                5_000 + random.below(60_000)
            } else {
                u64::MAX
            },
            is_window: false,
            sentinels,
            random,
        }
    }

    fn at(ms: u64) -> Instant {
        Instant::START.after(Duration::from_millis(100_000 + ms))
    }

    fn report(&self, n: usize) -> Report {
        let is_told = self.has_epochs && !self.sentinels[n].hides_epoch;
        Report {
            address: address(self.sentinels[n].names),
            epoch: is_told.then_some(self.sentinels[n].epoch),
            id: Some(vec![n as u8]),
        }
    }

    /// Returns whether most sentinels name the master.
    fn is_known_to_most(&self) -> bool {
        let right = self.sentinels.iter().filter(|it| it.names == self.master);
        right.count() * 2 > self.sentinels.len()
    }

    /// Runs 100 steps. Returns what the client uses that it must not use.
    fn run(&mut self) -> Result<(), String> {
        for _ in 0..100 {
            self.now += self.random.below(3_000);
            self.fail_over();
            self.hear_late();
            if self.random.chance(150) {
                self.beliefs.suspect();
            }
            // Its master can be away for a while. Where epochs are not told, an old one is as good.
            let hides = self.sentinels.iter().any(|it| it.hides_epoch);
            let epoch = self.beliefs.known().and_then(|known| known.epoch);
            let tells = epoch >= Some(EPOCH) && !(hides && self.master == NEXT);
            let is_away = tells && self.random.chance(200);
            let must_ask = self.beliefs.is_ask_due(Self::at(self.now));
            if must_ask || self.beliefs.serving().is_none() {
                self.ask(is_away);
            }
            let used = self.beliefs.serving().map(|(_, port)| *port);
            let is_right = used.is_none_or(|port| {
                // In a failover, nothing but the epochs shows which of two servers is older.
                let is_newest = !self.has_epochs || hides || [MASTER, NEXT].contains(&port);
                port == self.master || self.is_window && is_newest
            });
            if !is_right {
                return Err(format!("at {} ms the client uses {used:?}", self.now));
            }
        }
        Ok(())
    }

    fn fail_over(&mut self) {
        if self.now >= self.fails_over_at && self.master == MASTER {
            (self.master, self.is_window) = (NEXT, true);
        }
        if self.master == NEXT {
            for sentinel in self.sentinels.iter_mut().filter(|it| !it.is_wrong) {
                if sentinel.names == MASTER && self.random.chance(500) {
                    (sentinel.names, sentinel.epoch) = (NEXT, EPOCH + 1);
                }
            }
        }
    }

    fn hear_late(&mut self) {
        let now = self.now;
        for (at, n, report) in self.late.extract_if(.., |(at, ..)| *at <= now) {
            self.beliefs.heard(n, &report, Self::at(at));
        }
    }

    /// Asks all sentinels, as `redis::gather` does, and follows what they say together.
    fn ask(&mut self, is_away: bool) {
        let has_master = self.beliefs.serving().is_some();
        let is_known = self.is_known_to_most();
        let delay = |it: &Sentinel| it.delay[0] + self.random.below(it.delay[1] - it.delay[0]);
        let mut answers: Vec<(u64, usize)> = (0..self.sentinels.len())
            .map(|n| (delay(&self.sentinels[n]), n))
            .filter(|(after, _)| *after < TIMEOUT * 3 / 2)
            .collect();
        answers.sort_unstable();
        let mut until = TIMEOUT;
        let mut good: Vec<(usize, Report)> = Vec::new();
        for (after, n) in &answers {
            let report = self.report(*n);
            if *after > until {
                self.late.push((self.now + after, *n, report));
                continue;
            }
            good.push((*n, report.clone()));
            self.beliefs.heard(*n, &report, Self::at(self.now + after));
            let votes = good.iter().filter(|it| it.1.address == report.address);
            let has_majority = votes.count() * 2 > self.sentinels.len();
            if has_master || has_majority || *after >= LATE_AFTER {
                until = until.min(after + GRACE);
            }
        }
        let names = |it: &(usize, Report)| self.sentinels[it.0].names == self.master;
        let right = good.iter().filter(|it| names(it)).count();
        let is_right = right * 2 > self.sentinels.len();
        if self.beliefs.known().is_none() && !is_right {
            // It cannot reach a majority: nothing is promised.
            return;
        }
        good.sort_by_key(|(n, _)| *n);
        self.now += until;
        let now = Self::at(self.now);
        let reports = self.beliefs.with_late(good, now);
        let choice = self.beliefs.weigh(&reports, now);
        self.follow(&choice.candidates, choice.is_by_majority, &reports, is_away);
        self.is_window &= !(is_known && is_right);
    }

    fn follow(
        &mut self,
        candidates: &[HostPort],
        is_by_majority: bool,
        reports: &[(usize, Report)],
        is_away: bool,
    ) {
        let epoch_of = |address: &HostPort| {
            let named = reports.iter().filter(|(_, it)| it.address == *address);
            named.filter_map(|(_, report)| report.epoch).max()
        };
        let own = self.beliefs.not_replaced().cloned();
        let own = own.filter(|_| candidates.is_empty() && self.beliefs.serving().is_none());
        for address in candidates.iter().chain(&own) {
            let answers = address.1 != REPLICA && !(is_away && address.1 == self.master);
            if answers {
                self.beliefs.take(address, epoch_of(address), true);
                return;
            }
            self.beliefs.failed(address, Self::at(self.now));
        }
        if let Some(first) = candidates.first().filter(|_| is_by_majority) {
            self.beliefs.take(first, epoch_of(first), false);
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// P1, as far as the choice of the server decides it: while no failover happens, a client that can
/// reach most sentinels uses their master, whatever a minority says. After a failover, it uses the
/// new one from its first question on that most of them answer with it.
#[test]
fn a_minority_of_sentinels_moves_no_client() {
    let first = number("SIM_FIRST").unwrap_or(0);
    for seed in first..first + number("SIM_SEEDS").unwrap_or(3_000) {
        if let Err(text) = World::new(seed).run() {
            panic!("SIM_FIRST={seed} SIM_SEEDS=1: {text}");
        }
    }
}

#[test]
fn each_mistake_about_sentinels_is_found() {
    for mutant in [Mutant::MinorityMovesClients, Mutant::OldEpochIsBelieved] {
        switch_on(Some(mutant));
        let is_found = (0..3_000).any(|seed| World::new(seed).run().is_err());
        switch_on(None);
        assert!(is_found, "{mutant:?}");
    }
}
