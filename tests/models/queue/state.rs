//! The state of the server and of the clients.

use super::phase::Phase;
use super::rules::{Broken, CLIENTS, IDS, Rules};
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
    /// The last fencing token that was drawn.
    pub fence: u8,
    /// The tokens that holders have used, as bits; only the highest if no key is deleted.
    pub used: u32,
    pub queue: [Option<Place>; CLIENTS * IDS],
    pub on_their_way: [OnItsWay; CLIENTS * IDS],
    pub clients: [Client; CLIENTS],
    /// How often the network may lose something or run a command twice, and how often each fault
    /// may happen to a client.
    pub losses: u8,
    pub repeats: u8,
    pub kills: u8,
    pub stops: u8,
    pub disconnections: u8,
    /// How often a program without a queue may take the lock.
    pub plain_holds: u8,
    /// How often somebody may delete the key of a holder.
    pub deletions: u8,
    /// How many releases may be plain: they leave the lock free although clients are queued.
    pub plain_releases: u8,
    pub has_lost: bool,
    pub was_deleted: bool,
    /// The client whose release did not pass the lock on, while it is free since then.
    pub freed_by: Option<usize>,
    /// For how many ticks the lock has been free while a client waited.
    pub stall: u8,
    pub broken: Option<Broken>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    pub id: Id,
    /// Ticks since the last refresh.
    pub age: u8,
    /// How many tokens its client wants.
    pub block: u8,
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Of a mutex.
    Lock,
    /// Of a fair lock or a read-write lock: enters the queue without a first attempt.
    Fair,
    /// A user without the permissions that queues need: waits for the message of a release, and
    /// releases without a grant.
    Broadcast,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    pub phase: Phase,
    pub listens: Listens,
    pub kind: Kind,
    /// Its last release did not pass the lock on: it enters without a first attempt.
    pub goes_behind: bool,
    /// How many other threads of the client may still want the lock, and how many wait for it.
    pub arriving: u8,
    pub waiting: u8,
    /// It has refreshed or renewed in this tick.
    pub is_fresh: bool,
    /// It has been told that the lock is free, or has just begun to listen.
    pub is_announced: bool,
    pub entries: u8,
    pub calls: u8,
    /// In how many intervals between refreshes its place was passed over.
    pub passed: u8,
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

impl Client {
    fn new(phase: Phase, listens: Listens) -> Self {
        Self {
            phase,
            listens,
            kind: Kind::Lock,
            goes_behind: false,
            arriving: 0,
            waiting: 0,
            is_fresh: false,
            is_announced: false,
            entries: 0,
            calls: 0,
            passed: 0,
        }
    }
}

impl State {
    pub fn new(rules: &Rules) -> Self {
        let client = |n| {
            if n < rules.clients {
                Client::new(Phase::Out, Listens::Here)
            } else {
                Client::new(Phase::Dead, Listens::Here)
            }
        };
        Self {
            holder: None,
            left: 0,
            is_provisional: false,
            fence: 0,
            used: 0,
            queue: [None; CLIENTS * IDS],
            on_their_way: [OnItsWay::default(); CLIENTS * IDS],
            clients: std::array::from_fn(client),
            losses: 0,
            repeats: 0,
            kills: 0,
            stops: 0,
            disconnections: 0,
            plain_holds: 0,
            deletions: 0,
            plain_releases: 0,
            has_lost: false,
            was_deleted: false,
            freed_by: None,
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
        // After a deletion, others can hold until the lease is found lost.
        if !self.was_deleted && self.clients.iter().any(is_false) {
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
                client.is_announced &= matches!(
                    client.phase,
                    Phase::Trying { .. } | Phase::Sleeping { .. } | Phase::Entering { .. }
                );
                client.passed = 0;
            }
            if client.phase == Phase::Dead {
                *client = Client {
                    kind: client.kind,
                    ..Client::new(Phase::Dead, client.listens)
                };
            }
        }
        if self.clients.iter().any(|client| client.phase.is_held()) {
            self.stall = 0;
        }
        if self.holder.is_some() {
            self.freed_by = None;
        }
    }
}
