//! The state of the server and of the clients.

use super::rules::{Broken, CLIENTS, IDS, OLD, Rules};
use super::wire::OnItsWay;

/// A holder id: the client, times [`IDS`], plus a number.
pub type Id = usize;

/// The holder id of a program that takes the lock whenever it is free.
pub(super) const PLAIN: Id = CLIENTS * IDS;

pub(super) fn owner(id: Id) -> usize {
    id / IDS
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The holder by the key.
    pub holder: Option<Id>,
    /// The ticks until the key expires.
    pub left: u8,
    /// The holder was granted the lock and has not renewed it.
    pub is_provisional: bool,
    pub queue: [Option<Place>; CLIENTS * IDS],
    pub on_their_way: [OnItsWay; CLIENTS * IDS],
    pub clients: [Client; CLIENTS],
    /// How often the network may lose something, and how often each fault may happen to a client.
    pub losses: u8,
    pub kills: u8,
    pub stops: u8,
    pub disconnections: u8,
    /// How often a program without a queue may take the lock.
    pub plain_holds: u8,
    pub has_lost: bool,
    /// For how many ticks the lock has been free while a client waited.
    pub stall: u8,
    pub broken: Option<Broken>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    pub id: Id,
    /// Ticks since the last refresh.
    pub age: u8,
    pub mark: Mark,
    /// Its client listened at the last enter or refresh.
    pub has_listener: bool,
}

/// When a grant reaches a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mark {
    /// While its client listens.
    Listed,
    /// Always: its client is about to listen.
    New,
    /// While its client listens; it was passed over.
    Passed,
    /// Always: it was refreshed after it was passed over.
    Returned,
    /// Always: it is of an earlier version.
    Earlier,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    pub phase: Phase,
    pub listens: Listens,
    /// It runs the scripts of an earlier version, which pass nobody over, and whose messages reach
    /// that version only.
    pub is_earlier: bool,
    /// It has refreshed or renewed in this tick.
    pub is_fresh: bool,
    /// It has been told that the lock is free, or has just begun to listen.
    pub is_announced: bool,
    pub entries: u8,
    pub calls: u8,
    /// In how many intervals between refreshes its place was passed over.
    pub passed: u8,
}

/// The phase of a client. Ages are ticks since a command was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Out,
    Entering {
        id: Id,
        age: u8,
    },
    Waiting {
        id: Id,
        /// The age of the last command whose reply said that it waits.
        proof: u8,
        refresh: Option<u8>,
    },
    /// Renews a grant that may have ended before it counts it as held.
    Confirming {
        id: Id,
        age: u8,
    },
    Held {
        id: Id,
        validity: u8,
        renewal: Option<u8>,
    },
    Leaving {
        id: Id,
    },
    /// Killed or stopped.
    Dead,
}

impl Phase {
    pub(super) fn id(self) -> Option<Id> {
        match self {
            Self::Out | Self::Dead => None,
            Self::Entering { id, .. }
            | Self::Waiting { id, .. }
            | Self::Confirming { id, .. }
            | Self::Held { id, .. }
            | Self::Leaving { id } => Some(id),
        }
    }

    /// Whether the client wants the lock and does not have it.
    pub(super) fn wants(self) -> bool {
        matches!(
            self,
            Self::Entering { .. } | Self::Waiting { .. } | Self::Confirming { .. }
        )
    }

    pub(super) fn is_held(self) -> bool {
        matches!(self, Self::Held { .. })
    }

    /// The phase a tick later. What is not valid any more is not held.
    pub(super) fn older(self) -> Self {
        let older = |age: u8| (age + 1).min(OLD);
        match self {
            Self::Entering { id, age } => Self::Entering {
                id,
                age: older(age),
            },
            Self::Confirming { id, age } => Self::Confirming {
                id,
                age: older(age),
            },
            Self::Waiting { id, proof, refresh } => Self::Waiting {
                id,
                proof: older(proof),
                refresh: refresh.map(older),
            },
            Self::Held { validity: 1, .. } => Self::Out,
            Self::Held {
                id,
                validity,
                renewal,
            } => Self::Held {
                id,
                validity: validity - 1,
                renewal: renewal.map(older),
            },
            Self::Out | Self::Leaving { .. } | Self::Dead => self,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Listens {
    /// At the server.
    Here,
    /// At a replica, which passes on what is published at the server.
    AtReplica,
    /// For the first time in a moment.
    Soon,
    /// Not now: it reconnects.
    NotNow,
    Never,
}

impl State {
    pub fn new(rules: &Rules) -> Self {
        let client = |n| Client {
            phase: if n < rules.clients {
                Phase::Out
            } else {
                Phase::Dead
            },
            listens: Listens::Here,
            is_earlier: false,
            is_fresh: false,
            is_announced: false,
            entries: 0,
            calls: 0,
            passed: 0,
        };
        Self {
            holder: None,
            left: 0,
            is_provisional: false,
            queue: [None; CLIENTS * IDS],
            on_their_way: [OnItsWay::default(); CLIENTS * IDS],
            clients: std::array::from_fn(client),
            losses: 0,
            kills: 0,
            stops: 0,
            disconnections: 0,
            plain_holds: 0,
            has_lost: false,
            stall: 0,
            broken: None,
        }
    }

    pub(super) fn phase(&self, id: Id) -> Phase {
        self.clients[owner(id)].phase
    }

    pub(super) fn is_queued(&self, id: Id) -> bool {
        self.queue.iter().flatten().any(|place| place.id == id)
    }

    /// Returns the first promise that is broken in this state.
    pub(super) fn broken(&self, rules: &Rules) -> Option<Broken> {
        let is_false = |client: &Client| match client.phase {
            Phase::Held { id, .. } => self.holder != Some(id),
            _ => false,
        };
        if self.clients.iter().any(is_false) {
            return Some(Broken::Exclusion);
        }
        if self.holder.is_some_and(|id| self.is_queued(id)) {
            return Some(Broken::GrantedTwice);
        }
        if rules.is_prompt && self.stall > rules.max_stall {
            return Some(Broken::Stalled);
        }
        self.broken
    }

    pub(super) fn lose_something(&mut self) {
        self.losses -= 1;
        self.has_lost = true;
    }

    /// Forgets what makes no difference any more.
    pub(super) fn tidy(&mut self) {
        for id in 0..CLIENTS * IDS {
            let phase = self.phase(id);
            self.on_their_way[id].tidy(id, phase);
        }
        for client in &mut self.clients {
            if !matches!(client.phase, Phase::Waiting { .. }) {
                client.is_announced &= matches!(client.phase, Phase::Entering { .. });
                client.passed = 0;
            }
            if client.phase == Phase::Dead {
                *client = Client {
                    phase: Phase::Dead,
                    listens: client.listens,
                    is_earlier: client.is_earlier,
                    is_fresh: false,
                    is_announced: false,
                    entries: 0,
                    calls: 0,
                    passed: 0,
                };
            }
        }
        if self.clients.iter().any(|client| client.phase.is_held()) {
            self.stall = 0;
        }
    }
}
