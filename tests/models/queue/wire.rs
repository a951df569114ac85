//! Commands, replies and messages on their way.

use super::phase::Phase;
use super::state::Id;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// The first attempt: acquires a free lock, even if others are queued.
    Acquire,
    Enter,
    Refresh,
    Renew,
    Release,
    /// A release that may leave the lock free although clients are queued.
    ReleaseOpen,
    /// The undo that was written behind the acquire or the enter on the same connection.
    ReleaseBehind,
}

impl Command {
    pub const ALL: [Self; 7] = [
        Self::Acquire,
        Self::Enter,
        Self::Refresh,
        Self::Renew,
        Self::Release,
        Self::ReleaseOpen,
        Self::ReleaseBehind,
    ];

    /// Whether the command asks for the lock: without a reply, it may have acquired it.
    pub(super) fn asks(self) -> bool {
        matches!(self, Self::Acquire | Self::Enter)
    }

    /// Whether the command says how many tokens its client wants.
    pub(super) fn wants(self) -> bool {
        self.asks() || self == Self::Refresh
    }
}

/// A block of fencing tokens. Zeroes in searches without tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tokens {
    pub first: u8,
    pub count: u8,
}

/// The commands, replies and messages of one holder id that are on their way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OnItsWay {
    pub commands: u8,
    /// How many tokens the acquire, enter or refresh asks for.
    pub asked: u8,
    /// The reply to the acquire or the enter.
    pub entered: Option<Entered>,
    pub refreshed: Option<Refreshed>,
    pub renewed: Option<bool>,
    pub released: Option<Released>,
    /// A grant message.
    pub message: Option<Tokens>,
    /// Ticks for which the enter is undone, plus one; zero if it is not.
    pub undone: u8,
    /// The undo was sent in this tick.
    pub is_undo_sent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Entered {
    Granted(Tokens),
    /// Refused. An enter is queued.
    Refused,
    /// The network ran the command twice: the id held the lock before.
    RanBefore,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refreshed {
    /// With one token: the first of a block that this refresh granted, or the last that was drawn.
    Granted(u8),
    Waiting,
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Released {
    Done,
    LeftOpen,
    /// The lock is free because a reader is next: the scripts of a mutex admit none.
    NotPassedOn,
    NotOurs,
}

impl OnItsWay {
    pub(super) fn has(self, command: Command) -> bool {
        self.commands & (1 << command as u8) != 0
    }

    /// Whether a command that asks for the lock is on its way.
    pub(super) fn asks(self) -> bool {
        self.has(Command::Acquire) || self.has(Command::Enter)
    }

    pub(super) fn send(&mut self, command: Command) {
        self.commands |= 1 << command as u8;
    }

    pub(super) fn take(&mut self, command: Command) {
        self.commands &= !(1 << command as u8);
    }

    pub(super) fn has_reply(self, command: Command) -> bool {
        match command {
            Command::Acquire | Command::Enter => self.entered.is_some(),
            Command::Refresh => self.refreshed.is_some(),
            Command::Renew => self.renewed.is_some(),
            Command::Release | Command::ReleaseOpen | Command::ReleaseBehind => {
                self.released.is_some()
            }
        }
    }

    pub(super) fn lose_reply(&mut self, command: Command) {
        match command {
            Command::Acquire | Command::Enter => self.entered = None,
            Command::Refresh => self.refreshed = None,
            Command::Renew => self.renewed = None,
            Command::Release | Command::ReleaseOpen | Command::ReleaseBehind => {
                self.released = None;
            }
        }
    }

    /// Forgets the replies and messages that nobody reads. The phase is that of the id's client.
    pub(super) fn tidy(&mut self, id: Id, phase: Phase) {
        let is_current = phase.id() == Some(id);
        let is_undone = self.undone > 0;
        let (mut enters, mut refreshes, mut renews, mut leaves) = (false, false, false, is_undone);
        let mut is_known = false;
        if is_current {
            match phase {
                Phase::Trying { .. } | Phase::Entering { .. } => enters = true,
                Phase::Waiting { refresh, .. } => refreshes = refresh.is_some(),
                Phase::Confirming { .. } => (renews, is_known) = (true, true),
                Phase::Held { renewal, .. } => (renews, is_known) = (renewal.is_some(), true),
                Phase::Leaving { .. } => (leaves, is_known) = (true, true),
                Phase::Out | Phase::Sleeping { .. } | Phase::Dead => {}
            }
        }
        self.entered = self.entered.filter(|_| enters);
        self.refreshed = self.refreshed.filter(|_| refreshes);
        self.renewed = self.renewed.filter(|_| renews);
        self.released = self.released.filter(|_| leaves);
        if phase == Phase::Dead || is_known || is_undone {
            self.message = None;
        }
        if !self.asks() && !self.has(Command::Refresh) {
            self.asked = 0;
        }
    }
}
