//! A state of three servers and of the attempts that contend for one lock on them.

pub const SERVERS: usize = 3;
pub(super) const ATTEMPTS: usize = 3;

/// The progress of a request to one server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Progress {
    /// Not sent, or refused for good.
    #[default]
    No,
    /// In flight. It may never arrive.
    Sent,
    /// It ran, and the answer is in flight or read.
    Yes,
}

/// The progress of the releases of one attempt at one server: the first, and its repetitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Release {
    /// None is in flight. One may be sent once the attempt is over.
    #[default]
    NotSent,
    /// In flight on the connection of the acquire, behind it.
    Behind,
    /// In flight on another connection. It is ordered if it was sent after the client had read the
    /// answer to the acquire.
    Apart { is_ordered: bool },
    /// It ran and deleted nothing. Its answer is in flight.
    FoundNothing { is_ordered: bool },
    /// The client sends no more releases.
    Over,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Server {
    /// The attempt whose id is in the key.
    pub(super) holder: Option<usize>,
    /// Ticks until the key expires.
    pub(super) left: u8,
    pub(super) counter: u8,
    pub(super) acquire: [Progress; ATTEMPTS],
    pub(super) renew: [Progress; ATTEMPTS],
    /// A lease that this server has lost is to get its key back.
    pub(super) join: [Progress; ATTEMPTS],
    /// It has granted to the last holder, or joined it, and has kept its data since. No participant
    /// knows it.
    pub(super) has_last: bool,
    /// Whether clients and this server exchange messages on connections.
    pub(super) has_connections: bool,
    pub(super) release: [Release; ATTEMPTS],
    /// The client has read the answer to the acquire.
    pub(super) is_answered: [bool; ATTEMPTS],
    /// The connection of the acquire has ended, so its answer is never read. The acquire may still
    /// run.
    pub(super) is_cut: [bool; ATTEMPTS],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    #[default]
    Idle,
    Asking,
    Holding,
    /// Given up, released or expired. From now on its releases may arrive at any server, or never.
    Over,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attempt {
    pub(super) phase: Phase,
    /// The proposed token.
    pub(super) token: u8,
    /// Ticks of validity, counted from the request.
    pub(super) left: u8,
    /// Ticks of validity that the renewal in flight would give.
    pub(super) renewed_left: u8,
    /// How often it may still renew.
    pub(super) renewals: u8,
    pub(super) is_handed_off: bool,
    /// The highest token of any holder when this attempt began. No participant knows it.
    pub(super) floor: u8,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct State {
    pub(super) servers: [Server; SERVERS],
    pub(super) attempts: [Attempt; ATTEMPTS],
    /// The tokens of all holders so far, a bit for each. No participant knows them.
    pub(super) held: u8,
    pub(super) early: u8,
    pub(super) restarts: u8,
    /// The last attempt that became a holder. No participant knows it.
    pub(super) last: Option<usize>,
}

impl State {
    pub(super) fn highest_held(&self) -> u8 {
        self.held.checked_ilog2().unwrap_or(0) as u8
    }

    /// Packs the state into two numbers, equal for states that differ only in the order of servers.
    pub(super) fn pack(&self) -> (u128, u64) {
        let mut servers = self.servers.each_ref().map(Server::pack);
        servers.sort_unstable();
        let servers = servers
            .iter()
            .fold(0, |bits, server| bits << SERVER_BITS | u128::from(*server));
        let attempts = self.attempts.iter().fold(0, |bits, attempt| {
            bits << ATTEMPT_BITS | u64::from(attempt.pack())
        });
        let rest = attempts << 14
            | self.last.map_or(0, |id| id as u64 + 1) << 12
            | u64::from(self.held) << 4
            | u64::from(self.early) << 2
            | u64::from(self.restarts);
        (servers, rest)
    }
}

const SERVER_BITS: u32 = 9 + 11 * ATTEMPTS as u32;
const ATTEMPT_BITS: u32 = 15;

impl Server {
    fn pack(&self) -> u64 {
        let mut bits = u64::from(self.has_last) << 8
            | u64::from(self.has_connections) << 7
            | self.holder.map_or(0, |id| id as u64 + 1) << 5
            | u64::from(self.left) << 3
            | u64::from(self.counter);
        for id in 0..ATTEMPTS {
            bits = bits << 11
                | (self.join[id] as u64) << 9
                | self.release[id].pack() << 6
                | u64::from(self.is_answered[id]) << 5
                | u64::from(self.is_cut[id]) << 4
                | (self.acquire[id] as u64) << 2
                | self.renew[id] as u64;
        }
        bits
    }
}

impl Release {
    fn pack(self) -> u64 {
        match self {
            Self::NotSent => 0,
            Self::Behind => 1,
            Self::Apart { is_ordered } => 2 + u64::from(is_ordered),
            Self::FoundNothing { is_ordered } => 4 + u64::from(is_ordered),
            Self::Over => 6,
        }
    }
}

impl Attempt {
    fn pack(&self) -> u32 {
        (self.phase as u32) << 13
            | u32::from(self.token) << 10
            | u32::from(self.left) << 8
            | u32::from(self.renewed_left) << 6
            | u32::from(self.renewals) << 4
            | u32::from(self.is_handed_off) << 3
            | u32::from(self.floor)
    }
}
