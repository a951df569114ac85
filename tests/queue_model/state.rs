//! The state of the server, of what is on its way, and of the clients.

use crate::rules::{Broken, CLIENTS, IDS, Rules};

/// A holder id: the client, times [`IDS`], plus a number.
pub(crate) type Id = usize;

/// The holder id of a program that takes the lock whenever it is free.
pub(crate) const PLAIN: Id = CLIENTS * IDS;

pub(crate) fn owner(id: Id) -> usize {
    id / IDS
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// The holder by the key.
    pub(crate) holder: Option<Id>,
    /// The ticks until the key expires.
    pub(crate) left: u8,
    /// The holder was granted the lock and has not renewed it.
    pub(crate) is_provisional: bool,
    pub(crate) queue: [Option<Place>; CLIENTS * IDS],
    pub(crate) on_their_way: [OnItsWay; CLIENTS * IDS],
    pub(crate) clients: [Client; CLIENTS],
    /// How often the network may lose something, and how often each fault may happen to a client.
    pub(crate) losses: u8,
    pub(crate) kills: u8,
    pub(crate) stops: u8,
    pub(crate) disconnections: u8,
    /// How often a program without a queue may take the lock.
    pub(crate) plain_holds: u8,
    pub(crate) has_lost: bool,
    /// For how many ticks the lock has been free while a client waited.
    pub(crate) stall: u8,
    pub(crate) broken: Option<Broken>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) id: Id,
    /// Ticks since the last refresh.
    pub(crate) age: u8,
    pub(crate) mark: Mark,
    /// Its client listened at the last enter or refresh.
    pub(crate) has_listener: bool,
}

/// When a grant reaches a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mark {
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
pub(crate) enum Command {
    Enter,
    Refresh,
    Renew,
    Release,
    /// The undo that was written behind the enter on the same connection.
    ReleaseBehind,
}

impl Command {
    pub(crate) const ALL: [Self; 5] = [
        Self::Enter,
        Self::Refresh,
        Self::Renew,
        Self::Release,
        Self::ReleaseBehind,
    ];
}

/// The commands, replies and messages of one holder id that are on their way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct OnItsWay {
    pub(crate) commands: u8,
    pub(crate) entered: Option<bool>,
    pub(crate) refreshed: Option<Refreshed>,
    pub(crate) renewed: Option<bool>,
    pub(crate) released: Option<bool>,
    /// A grant message.
    pub(crate) message: bool,
    /// Ticks for which the enter is undone, plus one; zero if it is not.
    pub(crate) undone: u8,
    /// The undo was sent in this tick.
    pub(crate) is_undo_sent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Refreshed {
    Granted,
    Waiting,
    Gone,
}

impl OnItsWay {
    pub(crate) fn has(self, command: Command) -> bool {
        self.commands & (1 << command as u8) != 0
    }

    pub(crate) fn send(&mut self, command: Command) {
        self.commands |= 1 << command as u8;
    }

    pub(crate) fn take(&mut self, command: Command) {
        self.commands &= !(1 << command as u8);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    pub(crate) phase: Phase,
    pub(crate) listens: Listens,
    /// It runs the scripts of an earlier version, which pass nobody over, and whose messages reach
    /// that version only.
    pub(crate) is_earlier: bool,
    /// It has refreshed or renewed in this tick.
    pub(crate) is_fresh: bool,
    /// It has been told that the lock is free, or has just begun to listen.
    pub(crate) is_announced: bool,
    pub(crate) entries: u8,
    pub(crate) calls: u8,
    /// In how many intervals between refreshes its place was passed over.
    pub(crate) passed: u8,
}

/// The phase of a client. Ages are ticks since a command was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
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
    pub(crate) fn id(self) -> Option<Id> {
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
    pub(crate) fn wants(self) -> bool {
        matches!(
            self,
            Self::Entering { .. } | Self::Waiting { .. } | Self::Confirming { .. }
        )
    }

    pub(crate) fn is_held(self) -> bool {
        matches!(self, Self::Held { .. })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Listens {
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
    pub(crate) fn new(rules: &Rules) -> Self {
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

    pub(crate) fn phase(&self, id: Id) -> Phase {
        self.clients[owner(id)].phase
    }

    pub(crate) fn is_queued(&self, id: Id) -> bool {
        self.queue.iter().flatten().any(|place| place.id == id)
    }

    /// Returns the first promise that is broken in this state.
    pub(crate) fn broken(&self, rules: &Rules) -> Option<Broken> {
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

    /// Forgets what makes no difference any more.
    pub(crate) fn tidy(&mut self) {
        for id in 0..CLIENTS * IDS {
            let phase = self.phase(id);
            let is_current = phase.id() == Some(id);
            let it = &mut self.on_their_way[id];
            let is_undone = it.undone > 0;
            it.entered = it
                .entered
                .filter(|_| is_current && matches!(phase, Phase::Entering { .. }));
            let refreshes = matches!(
                phase,
                Phase::Waiting {
                    refresh: Some(_),
                    ..
                }
            );
            it.refreshed = it.refreshed.filter(|_| is_current && refreshes);
            let renews = matches!(
                phase,
                Phase::Confirming { .. }
                    | Phase::Held {
                        renewal: Some(_),
                        ..
                    }
            );
            it.renewed = it.renewed.filter(|_| is_current && renews);
            let leaves = is_current && matches!(phase, Phase::Leaving { .. });
            it.released = it.released.filter(|_| leaves || is_undone);
            let is_known = is_current
                && matches!(
                    phase,
                    Phase::Held { .. } | Phase::Confirming { .. } | Phase::Leaving { .. }
                );
            it.message &= phase != Phase::Dead && !is_known && !is_undone;
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
