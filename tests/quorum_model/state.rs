//! A state of three servers and of those that contend for one lock on them.

pub(crate) const SERVERS: usize = 3;
pub(crate) const ATTEMPTS: usize = 3;

/// What became of a request to one server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Not sent, or refused for good.
    #[default]
    No,
    /// Under way. It may never come.
    Sent,
    /// Done, and the answer under way or read.
    Yes,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Server {
    /// Whose id is in the key.
    pub(crate) holder: Option<usize>,
    /// Ticks until the key expires.
    pub(crate) left: u8,
    pub(crate) counter: u8,
    pub(crate) acquire: [Asked; ATTEMPTS],
    pub(crate) renew: [Asked; ATTEMPTS],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    #[default]
    Idle,
    Asking,
    Holding,
    /// Given up, released or run out. Its undo may come to any server at any time from now on, or never.
    Over,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Attempt {
    pub(crate) phase: Phase,
    /// As proposed.
    pub(crate) token: u8,
    /// Ticks of validity, from when it was asked for.
    pub(crate) left: u8,
    /// Ticks of validity that the renewal under way would give.
    pub(crate) renewed_left: u8,
    pub(crate) has_renewed: bool,
    pub(crate) is_handed_on: bool,
    /// The highest token that anybody had held when this attempt began. Nobody in the protocol knows it.
    pub(crate) floor: u8,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct State {
    pub(crate) servers: [Server; SERVERS],
    pub(crate) attempts: [Attempt; ATTEMPTS],
    /// The tokens of all holders so far, a bit for each. Nobody in the protocol knows them.
    pub(crate) held: u8,
    pub(crate) early: u8,
    pub(crate) restarts: u8,
}

impl State {
    pub(crate) fn highest_held(&self) -> u8 {
        self.held.checked_ilog2().unwrap_or(0) as u8
    }

    /// All of it in one number, the same for states that differ only in which server is which.
    pub(crate) fn pack(&self) -> u128 {
        let mut servers = self.servers.each_ref().map(Server::pack);
        servers.sort_unstable();
        let mut bits = 0;
        for server in servers {
            bits = bits << SERVER_BITS | u128::from(server);
        }
        for attempt in &self.attempts {
            bits = bits << ATTEMPT_BITS | u128::from(attempt.pack());
        }
        bits << 12
            | u128::from(self.held) << 4
            | u128::from(self.early) << 2
            | u128::from(self.restarts)
    }
}

const SERVER_BITS: u32 = 7 + 4 * ATTEMPTS as u32;
const ATTEMPT_BITS: u32 = 14;

impl Server {
    fn pack(&self) -> u32 {
        let mut bits = self.holder.map_or(0, |id| id as u32 + 1) << 5
            | u32::from(self.left) << 3
            | u32::from(self.counter);
        for id in 0..ATTEMPTS {
            bits = bits << 4 | (self.acquire[id] as u32) << 2 | self.renew[id] as u32;
        }
        bits
    }
}

impl Attempt {
    fn pack(&self) -> u32 {
        (self.phase as u32) << 12
            | u32::from(self.token) << 9
            | u32::from(self.left) << 7
            | u32::from(self.renewed_left) << 5
            | u32::from(self.has_renewed) << 4
            | u32::from(self.is_handed_on) << 3
            | u32::from(self.floor)
    }
}
