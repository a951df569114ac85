//! Plans of simulated runs: what the clients do, and which faults happen when.

pub(super) mod families;
mod quorum;

use super::server::{MS, Time};
use crate::kernel::bounds::Bound;
use crate::majority::Majority;
use crate::majority::Member;

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
    /// 3 or 5 servers.
    Quorum,
    /// Servers of a quorum restart without their data, one at a time.
    Restarts,
    /// Locks of a quorum are released by force.
    Force,
    /// Hundreds of threads wait for one name.
    Crowd,
}

impl Family {
    pub(super) const ALL: [Self; 16] = [
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
        Self::Restarts,
        Self::Force,
        Self::Crowd,
    ];

    /// Returns how many seeds of the family are in its fixed list.
    pub(super) fn seeds(self) -> u64 {
        match self {
            // Each takes as long as a hundred others.
            Self::Crowd => 4,
            // It has many known plans.
            Self::Sets => 50,
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

impl Kind {
    pub(super) fn is_set(self) -> bool {
        matches!(self, Self::Set | Self::PlainSet | Self::SlotSet(_))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Actor {
    Caller(usize),
    Engine,
    Sub,
}

/// A fault in a run, of a client or of a server.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// Stops an actor, or all of a client.
    Stop(usize, Option<Actor>, Time),
    /// Stops an actor right after its next kernel call: before its effects and its I/O.
    StopNext(usize, Actor, Time),
    /// Suspends the machine of a client: its clock goes on, but its sleeps do not.
    Suspend(usize, Time),
    /// Pauses the virtual machine of a client: only its wall clock goes on.
    Pause(usize, Time),
    Kill(usize),
    Cancel(usize, usize),
    /// The thread panics while it waits for a reply or sleeps.
    Panic(usize, usize),
    Shutdown(usize),
    /// Loses all messages to a subscriber for a time.
    LoseMessages(usize, Time),
    Server(Member, ServerFault),
}

/// A fault of one server, or of its connections.
#[derive(Clone, Debug)]
pub(super) enum ServerFault {
    /// Cuts an actor's connection; if it is silent, its client notices by a timeout only.
    Cut(usize, Actor, bool),
    Slow(usize, Actor, Time),
    /// A proxy runs the next command of a connection twice, and loses the first reply.
    Twice(usize, Actor),
    /// It runs nothing for a time.
    Stall(Time),
    /// It answers nothing, and then loses its connections.
    Hang(Time),
    /// It replies with an error that may pass, and runs nothing.
    Errors(Time),
    /// It replies with an error that lasts, for a time.
    Reject(Why, Time),
    /// It has lost its scripts: the engine's commands must be sent again with their text.
    FlushScripts,
    /// Moves its clock ahead, or back.
    Ahead(Time),
    Back(Time),
    /// The keys move to the other node of the cluster, which takes this long.
    Move(Time),
    /// A program without leasehold takes a free lock.
    Foreign(u64, Time),
    /// Somebody deletes the key of a lock.
    Delete(u64),
    /// It becomes the replica that was copied at `Snapshot`.
    Snapshot,
    Failover,
    /// It restarts without data, after all leases have ended.
    RestartEmpty,
    /// The same while leases last, within this time.
    Restart(Time),
    /// An operator releases a lock: its key is deleted, and that is announced.
    Force(u64),
    /// It loses its data while leases last.
    Forget,
}

impl Fault {
    /// Returns the client and the thread that it is about, or 0.
    pub(super) fn of(&self) -> [usize; 2] {
        use ServerFault::{Cut, Slow, Twice};
        match self {
            Self::Stop(client, Some(Actor::Caller(thread)), _)
            | Self::StopNext(client, Actor::Caller(thread), _)
            | Self::Cancel(client, thread)
            | Self::Panic(client, thread)
            | Self::Server(
                _,
                Cut(client, Actor::Caller(thread), _)
                | Slow(client, Actor::Caller(thread), _)
                | Twice(client, Actor::Caller(thread)),
            ) => [*client, *thread],
            Self::Stop(client, ..)
            | Self::StopNext(client, ..)
            | Self::Suspend(client, _)
            | Self::Pause(client, _)
            | Self::Kill(client)
            | Self::Shutdown(client)
            | Self::LoseMessages(client, _)
            | Self::Server(_, Cut(client, ..) | Slow(client, ..) | Twice(client, _)) => {
                [*client, 0]
            }
            Self::Server(..) => [0, 0],
        }
    }

    /// Returns the server that it is about, or 0.
    pub(super) fn server(&self) -> Member {
        match self {
            Self::Server(server, _) => *server,
            _ => 0,
        }
    }

    fn of_server(&self) -> Option<&ServerFault> {
        match self {
            Self::Server(_, fault) => Some(fault),
            _ => None,
        }
    }
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

#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) family: Family,
    /// 1 to 5. Several are a quorum.
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
    /// The engine sends to the only server, as it does to a quorum.
    pub(super) by_engine: bool,
}

impl Plan {
    /// Returns whether a majority of several servers decides.
    pub(super) fn is_quorum(&self) -> bool {
        self.servers > 1
    }

    /// Returns whether the engine sends the commands of calls and the releases.
    pub(super) fn engine_sends(&self) -> bool {
        self.by_engine || self.is_quorum()
    }

    /// Returns how many servers must have a lock for its holder.
    pub(super) fn needed(&self) -> usize {
        Majority::of(self.servers).needed
    }

    /// Returns whether its programs acquire sets, which have a lease for each name.
    pub(super) fn has_parts(&self) -> bool {
        self.kinds.iter().any(|kind| kind.is_set())
    }

    pub(super) fn has_faults(&self) -> bool {
        !self.faults.is_empty()
    }

    /// Returns by how much a slow connection delays what it carries, in one direction.
    fn slowest(&self) -> Time {
        let slow = self.faults.iter().map(|(_, fault)| match fault {
            Fault::Server(_, ServerFault::Slow(.., by)) => *by,
            _ => 0,
        });
        slow.max().unwrap_or(0)
    }

    /// Returns how often a server's clock is set back after the first time: each delays waiting
    /// calls by up to three seconds.
    fn further_steps_back(&self) -> u64 {
        let steps = self.faults.iter().filter_map(|(_, it)| it.of_server());
        let steps = steps.filter(|fault| matches!(fault, ServerFault::Back(_)));
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
        if self.is_quorum() {
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

/// The most by which a clock that nobody sets right is too fast or too slow, in millionths.
const FREE_RUNNING: i64 = 5_000;
