//! Plans of simulated runs: what the clients do, and which faults happen when.

use super::server::{MS, Time};
use crate::kernel::bounds::Bound;

/// A generator of random numbers: SplitMix64.
#[derive(Clone, Debug)]
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        match n {
            0 => 0,
            n => self.next() % n,
        }
    }

    pub(super) fn range(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from)
    }

    /// Returns true in this share of the cases, in thousandths.
    pub(super) fn chance(&mut self, thousandths: u64) -> bool {
        self.below(1000) < thousandths
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Calm,
    Faults,
    ShortTtl,
    Failover,
    Shared,
    Ending,
    Backoff,
    /// Clients are suspended, and the server's clock steps.
    Clocks,
    /// Sets of names that climb, beside mutexes and fair locks.
    Sets,
    /// Error replies, and commands of which only a part was written.
    Rejections,
    /// The slot of all keys moves between two nodes of a cluster.
    Moves,
    /// Leases linger.
    Linger,
    /// Several servers: see `quorum`.
    Quorum,
    /// Hundreds of threads wait for one name.
    Crowd,
}

impl Family {
    pub(super) const ALL: [Self; 14] = [
        Self::Calm,
        Self::Faults,
        Self::ShortTtl,
        Self::Failover,
        Self::Shared,
        Self::Ending,
        Self::Backoff,
        Self::Clocks,
        Self::Sets,
        Self::Rejections,
        Self::Moves,
        Self::Linger,
        Self::Quorum,
        Self::Crowd,
    ];

    /// Returns how many seeds of the family are in its fixed list.
    pub(super) fn seeds(self) -> u64 {
        match self {
            // Each takes as long as a hundred others.
            Self::Crowd => 4,
            _ => 70,
        }
    }
}

/// The kinds of lock that a plan uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Mutex,
    NoQueue,
    Fair,
    Reader,
    Writer,
    Permits(u32),
    /// All names, or all but one.
    Set,
    /// The same without queues.
    PlainSet,
    /// The same, each name in a slot of its own, with queues or without.
    SlotSet(bool),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Actor {
    Caller(usize),
    Engine,
    Sub,
}

#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// Cuts a connection; if it is silent, its client notices by a timeout only.
    Cut(usize, Actor, bool),
    Slow(usize, Actor, Time),
    /// Stops an actor, or all of a client.
    Stop(usize, Option<Actor>, Time),
    /// Suspends the machine of a client: its clock goes on, but its sleeps do not.
    Suspend(usize, Time),
    /// Pauses the virtual machine of a client: only its wall clock goes on.
    Pause(usize, Time),
    /// Moves the server's clock ahead, or back.
    Ahead(Time),
    Back(Time),
    Kill(usize),
    Cancel(usize, usize),
    /// The thread panics while it waits for a reply or sleeps.
    Panic(usize, usize),
    Shutdown(usize),
    /// The server runs nothing for a time.
    Stall(Time),
    /// Stops an actor right after its next kernel call: before its effects and its I/O.
    StopNext(usize, Actor, Time),
    /// Loses all messages to a subscriber for a time.
    LoseMessages(usize, Time),
    /// A proxy runs the next command of a connection twice, and loses the first reply.
    Twice(usize, Actor),
    /// The server replies with an error that may pass, and runs nothing.
    Errors(Time),
    /// The server replies with an error that lasts, for a time.
    Reject(Why, Time),
    /// The keys move to the other node, which takes this long.
    Move(Time),
    /// A program without leasehold takes a free lock.
    Foreign(u64, Time),
    /// Somebody deletes the key of a lock.
    Delete(u64),
    /// The server becomes the replica that was copied at `Snapshot`.
    Snapshot,
    Failover,
    RestartEmpty,
    /// Of a client's connections to one server of a quorum.
    Link(usize, usize, LinkFault),
    /// Of one server of a quorum.
    Server(usize, ServerFault),
}

/// Why a server replies with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// Its memory is full: scripts that take something fail before their first write.
    Full,
    /// The user lacks a right: nothing runs.
    NoRight,
    /// A grant to another waiter fails: the script has made its place, or has granted others.
    Half,
    /// It has lost its scripts: the engine's commands must be sent again with their text.
    NoScript,
}

/// A fault of a client's connections to one server.
#[derive(Clone, Debug)]
pub(super) enum LinkFault {
    /// Cuts the engine's connection; if it is silent, only a timeout shows that.
    Cut(bool),
    CutSub,
    Slow(Time),
    Twice,
}

/// A fault of one server of a quorum.
#[derive(Clone, Debug)]
pub(super) enum ServerFault {
    Stall(Time),
    /// It answers nothing, and then loses its connections.
    Hang(Time),
    Errors(Time),
    FlushScripts,
    /// It restarts without data, after all leases have ended.
    RestartEmpty,
    /// It loses its data while leases last.
    Forget,
    Foreign(u64, Time),
}

#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) family: Family,
    /// The servers of a quorum; 1 elsewhere.
    pub(super) servers: usize,
    pub(super) clients: usize,
    pub(super) threads: usize,
    pub(super) ops: u32,
    pub(super) names: u64,
    pub(super) kinds: Vec<Kind>,
    pub(super) ttl: Time,
    pub(super) handoffs: u32,
    /// Thousandths of the calls that wait by `Backoff`.
    pub(super) backoff: u64,
    /// For how long leases linger.
    pub(super) linger: Time,
    /// By how much the clock of each client is too fast, in millionths; too slow if negative.
    pub(super) drifts: Vec<i64>,
    pub(super) faults: Vec<(Time, Fault)>,
    /// The bound of the kernel that is lowered.
    pub(super) low: Option<Bound>,
}

impl Plan {
    pub(super) fn has_faults(&self) -> bool {
        !self.faults.is_empty()
    }

    /// Returns by how much a slow connection delays what it carries, in one direction.
    fn slowest(&self) -> Time {
        let slow = self.faults.iter().map(|(_, fault)| match fault {
            Fault::Slow(.., by) => *by,
            _ => 0,
        });
        slow.max().unwrap_or(0)
    }

    /// Returns how often the server's clock is set back after the first time: each delays waiting
    /// calls by up to three seconds.
    fn further_steps_back(&self) -> u64 {
        let steps = self.faults.iter();
        let steps = steps.filter(|(_, fault)| matches!(fault, Fault::Back(_)));
        steps.count().saturating_sub(1) as u64
    }

    /// Returns how much later than others a client with a slow clock asks for a lock that expires.
    fn latest_by_clock(&self) -> Time {
        let slowest = self.drifts.iter().map(|drift| -drift).max().unwrap_or(0);
        let slewed = (slowest - FREE_RUNNING).max(0) as u64;
        // A holder may have made the ttl longer.
        2 * self.ttl * slewed / 1_000_000
    }

    /// Returns the longest time for which a free lock may be idle although a call waits.
    pub(super) fn longest_idle(&self) -> Time {
        self.longest_idle_by_true_clocks() + self.latest_by_clock() + self.kept_by_forgotten()
    }

    /// Returns how long a key may stay whose release was forgotten because of the lowered bound.
    fn kept_by_forgotten(&self) -> Time {
        match self.low {
            Some(Bound::Recent | Bound::KeySeen) => self.ttl,
            _ => 0,
        }
    }

    /// Returns for how long the clocks of clients stand still, one after the other.
    pub(super) fn paused(&self) -> Time {
        let pauses = self.faults.iter().map(|(_, fault)| match fault {
            Fault::Pause(_, time) => *time,
            _ => 0,
        });
        pauses.sum()
    }

    fn longest_idle_by_true_clocks(&self) -> Time {
        if self.family == Family::Quorum {
            // Votes split, and each of the calls pauses; three rounds in a row can wait for a slow
            // command each, as long as one server hangs.
            let is_hang = |(_, fault): &(Time, Fault)| {
                matches!(fault, Fault::Server(_, ServerFault::Hang(_)))
            };
            let has_sets = self.kinds.contains(&Kind::PlainSet);
            let is_calm = self.backoff == 0 && !has_sets && self.faults.iter().all(is_hang);
            return if is_calm { 5_000 * MS } else { 8_000 * MS };
        }
        let is_set = |kind: &Kind| matches!(kind, Kind::Set | Kind::SlotSet(_));
        if self.kinds.iter().any(is_set) || self.family == Family::Sets {
            match (self.has_faults(), self.backoff) {
                // A grant to a set takes three round trips, each as long as a slow connection's.
                (true, _) => return 7_000 * MS,
                // The pause after a refusal by another call of the same client.
                (false, 0) => return 65 * MS,
                (false, _) => {}
            }
        }
        match (self.has_faults(), self.backoff) {
            // A caller that is stopped delays nobody for longer than a command timeout; a place of
            // a client that was killed, for three seconds, and then for a command of another one.
            (true, ..) => 3_300 * MS + 2 * self.slowest() + 3_000 * MS * self.further_steps_back(),
            // A lock that expires is asked for again 10 ms after the last refresh.
            (false, 0) => 12 * MS,
            (false, _) => 1_300 * MS,
        }
    }
}

/// Returns the bound that the plan of a seed lowers: three plans of ten have one.
pub(super) fn low_bound(seed: u64) -> Option<Bound> {
    let mut rng = Rng(seed ^ 0x006c_6f77_6572);
    let bound = Bound::ALL[rng.below(Bound::ALL.len() as u64) as usize];
    rng.chance(300).then_some(bound)
}

/// Returns the plan of a seed.
pub(super) fn plan(family: Family, seed: u64) -> Plan {
    if family == Family::Quorum {
        return super::quorum::plan::plan(seed);
    }
    let mut rng = Rng(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ (family as u64 * 77 + 5));
    let clients = if rng.chance(150) {
        1
    } else {
        rng.range(2, 5) as usize
    };
    let threads = rng.range(1, 4) as usize;
    let mut kinds = match rng.below(5) {
        0 => vec![Kind::NoQueue],
        1 => vec![Kind::Mutex],
        2 => vec![Kind::Mutex, Kind::Fair],
        3 => vec![Kind::Fair],
        _ => vec![Kind::Mutex, Kind::Mutex, Kind::Fair],
    };
    if family == Family::Sets {
        kinds = match rng.below(6) {
            3 => vec![Kind::PlainSet, Kind::NoQueue],
            4 => vec![Kind::SlotSet(true), Kind::Mutex],
            5 => vec![Kind::SlotSet(false), Kind::NoQueue],
            0 => vec![Kind::Set],
            1 => vec![Kind::Set, Kind::Set, Kind::Fair, Kind::Mutex],
            _ => vec![Kind::Set, Kind::Mutex],
        };
    }
    if family == Family::Linger {
        kinds = match rng.below(3) {
            0 => vec![Kind::NoQueue],
            1 => vec![Kind::Mutex],
            _ => vec![Kind::Mutex, Kind::Mutex, Kind::Fair],
        };
    }
    if family == Family::Shared {
        kinds = match rng.below(3) {
            0 => vec![Kind::Reader, Kind::Reader, Kind::Writer],
            1 => vec![Kind::Permits(1), Kind::Permits(2)],
            _ => vec![Kind::Reader, Kind::Writer, Kind::Mutex, Kind::Fair],
        };
    }
    if [Family::Rejections, Family::Moves].contains(&family) {
        kinds = match rng.below(6) {
            0 => vec![Kind::Reader, Kind::Writer, Kind::Mutex],
            1 => vec![Kind::Permits(1), Kind::Permits(2)],
            2 if family == Family::Moves => vec![Kind::SlotSet(true), Kind::Mutex],
            2 => vec![Kind::Set, Kind::Mutex],
            _ => kinds,
        };
    }
    let ttl = match family {
        Family::Calm if rng.chance(500) => rng.range(60, 200) * MS,
        Family::ShortTtl => rng.range(40, 600) * MS,
        Family::Linger if rng.chance(500) => rng.range(100, 1_000) * MS,
        Family::Clocks => rng.range(1_000, 6_000) * MS,
        _ if rng.chance(500) => 4_000 * MS,
        _ => rng.range(1_000, 3_000) * MS,
    };
    let mut plan = Plan {
        seed,
        family,
        servers: 1,
        clients,
        threads,
        ops: rng.range(5, 30) as u32,
        names: match family {
            Family::Sets => rng.range(2, 4),
            Family::Rejections | Family::Moves => rng.range(1, 4),
            _ => rng.range(1, 3),
        },
        kinds,
        ttl,
        handoffs: rng.below(5) as u32,
        backoff: match family {
            Family::Backoff => 400,
            Family::Sets if rng.chance(150) => 300,
            _ => 0,
        },
        linger: 0,
        drifts: drifts(seed, clients, &mut rng),
        faults: Vec::new(),
        low: low_bound(seed),
    };
    if family == Family::Linger {
        plan.linger = rng.range(MS, plan.ttl / 3);
        plan.handoffs = rng.range(1, 8) as u32;
        if rng.chance(300) {
            plan.kinds.push(Kind::Set);
            plan.names = 2;
        }
    }
    if family == Family::Crowd {
        // All of them in one client, or half of them in each of two.
        (plan.clients, plan.threads) = if rng.chance(500) { (1, 400) } else { (2, 200) };
        plan.kinds = match rng.below(5) {
            0 => vec![Kind::Fair],
            1 => vec![Kind::Permits(1), Kind::Permits(2)],
            2 => vec![Kind::Reader, Kind::Reader, Kind::Writer],
            3 => vec![Kind::Mutex],
            _ => vec![Kind::Mutex, Kind::Fair],
        };
        (plan.names, plan.ops, plan.ttl) = (1, rng.range(1, 3) as u32, 4_000 * MS);
        plan.drifts.truncate(plan.clients);
        plan.drifts.resize(plan.clients, 0);
        // Hundreds of ids that are undone three at a time outlast the run.
        plan.low = plan.low.filter(|low| *low != Bound::Ids);
    }
    plan.faults = faults(&plan, &mut rng);
    plan
}

/// The most by which a clock that nobody sets right is too fast or too slow, in millionths.
const FREE_RUNNING: i64 = 5_000;

/// Returns by how much each client's clock is too fast. In every fourth plan the clocks are slewed:
/// by 10 % at most, which the validity of a lease allows for.
fn drifts(seed: u64, clients: usize, rng: &mut Rng) -> Vec<i64> {
    let times = if seed.is_multiple_of(4) { 20 } else { 1 };
    let mut drift = || rng.below(2 * FREE_RUNNING as u64 + 1) as i64 - FREE_RUNNING;
    (0..clients).map(|_| times * drift()).collect()
}

fn faults(plan: &Plan, rng: &mut Rng) -> Vec<(Time, Fault)> {
    let mut faults = Vec::new();
    let number = match plan.family {
        Family::Calm => 0,
        Family::Backoff | Family::Shared | Family::Linger | Family::Sets if rng.chance(300) => 0,
        Family::Crowd => rng.below(4),
        Family::ShortTtl => rng.range(4, 24),
        _ => rng.range(1, 10),
    };
    for _ in 0..number {
        let at = rng.range(MS, 4_000 * MS);
        faults.push((at, fault(plan, rng)));
    }
    if plan.family == Family::Failover {
        let at = rng.range(10 * MS, 3_000 * MS);
        faults.push((at - rng.below(at.min(300 * MS)), Fault::Snapshot));
        let restarts = rng.chance(200);
        faults.push((
            at,
            if restarts {
                Fault::RestartEmpty
            } else {
                Fault::Failover
            },
        ));
    }
    if plan.family == Family::ShortTtl && rng.chance(300) {
        // Two fast cuts in a row: commands that run late, and their undos.
        let at = rng.range(MS, 2_000 * MS);
        let client = rng.below(plan.clients as u64) as usize;
        faults.push((
            at,
            Fault::Slow(client, Actor::Engine, rng.range(20 * MS, 400 * MS)),
        ));
        faults.push((
            at + rng.below(300 * MS),
            Fault::LoseMessages(client, 900 * MS),
        ));
    }
    if plan.family == Family::Linger && rng.chance(400) {
        // A whole process stands still until a lease that lingers is over.
        for _ in 0..rng.range(1, 6) {
            let client = rng.below(plan.clients as u64) as usize;
            let longer = rng.range(plan.ttl / 2, plan.ttl * 2);
            faults.push((rng.range(MS, 2_000 * MS), Fault::Stop(client, None, longer)));
        }
    }
    if plan.family == Family::Ending {
        let client = rng.below(plan.clients as u64) as usize;
        let at = rng.range(MS, 2_000 * MS);
        faults.push((at, Fault::Shutdown(client)));
        if rng.chance(500) {
            // Commands of its calls are under way then.
            for thread in 0..plan.threads {
                let slow = Fault::Slow(client, Actor::Caller(thread), rng.range(MS, 100 * MS));
                faults.push((at - at.min(rng.below(200 * MS)), slow));
            }
        }
        for _ in 0..rng.below(12) {
            let client = rng.below(plan.clients as u64) as usize;
            let thread = rng.below(plan.threads as u64) as usize;
            let at = rng.range(MS, 1_000 * MS);
            let fault = if rng.chance(300) {
                Fault::Panic(client, thread)
            } else {
                Fault::Cancel(client, thread)
            };
            faults.push((at, fault));
        }
    }
    if plan.family == Family::Moves {
        for _ in 0..rng.range(1, 8) {
            let lasts = rng.range(MS, 500 * MS);
            faults.push((rng.range(MS, 4_000 * MS), Fault::Move(lasts)));
        }
    }
    if plan.family == Family::Rejections {
        for _ in 0..rng.range(1, 8) {
            let why = [Why::Full, Why::NoRight, Why::Half, Why::Half, Why::NoScript];
            let why = why[rng.below(5) as usize];
            let lasts = rng.range(MS, 800 * MS);
            faults.push((rng.range(MS, 4_000 * MS), Fault::Reject(why, lasts)));
        }
    }
    faults.sort_by_key(|fault| fault.0);
    faults
}

fn fault(plan: &Plan, rng: &mut Rng) -> Fault {
    let client = rng.below(plan.clients as u64) as usize;
    let thread = rng.below(plan.threads as u64) as usize;
    let actor = match rng.below(3) {
        0 => Actor::Caller(thread),
        1 => Actor::Engine,
        _ => Actor::Sub,
    };
    let longest = match plan.family {
        Family::ShortTtl => 800 * MS,
        _ => 5_000 * MS,
    };
    if plan.family == Family::Clocks && rng.chance(600) {
        return match rng.below(4) {
            0 => Fault::Suspend(client, rng.range(MS, 15_000 * MS)),
            1 => Fault::Pause(client, rng.range(MS, 15_000 * MS)),
            2 => Fault::Ahead(rng.range(MS, 8_000 * MS)),
            _ => Fault::Back(rng.range(MS, 8_000 * MS)),
        };
    }
    match rng.below(20) {
        0..=3 => Fault::Cut(client, actor, rng.chance(500)),
        4 => Fault::Stop(client, Some(actor), rng.range(MS, longest)),
        5 | 6 => Fault::Stop(client, None, rng.range(MS, longest)),
        7 => Fault::Kill(client),
        8 => Fault::Stall(rng.range(MS, longest.min(3_000 * MS))),
        9 if rng.chance(500) => Fault::Panic(client, thread),
        9 => Fault::Cancel(client, thread),
        10 | 11 => Fault::Slow(client, actor, rng.range(10 * MS, longest.min(1_500 * MS))),
        12 if rng.chance(400) => Fault::Delete(rng.below(plan.names)),
        12 => Fault::Foreign(rng.below(plan.names), rng.range(MS, 1_000 * MS)),
        19 => Fault::Twice(client, actor),
        18 => Fault::Errors(rng.range(MS, 2_000 * MS)),
        13 | 14 => Fault::LoseMessages(client, rng.range(MS, 600 * MS)),
        _ => Fault::StopNext(client, actor, rng.range(MS, longest * 8 / 5)),
    }
}
