//! The commands, replies and messages that are on their way between a client and the server.

use super::phase::Phase;
use super::state::Id;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// The first attempt: acquires a free lock, even if others are queued.
    Acquire,
    /// Acquires a free lock if nobody is queued; otherwise joins the queue.
    Enter,
    Refresh,
    Renew,
    Release,
    /// A release that may be a plain one: it leaves the lock free although clients are queued.
    ReleasePlain,
    /// The undo of an acquire or an enter, sent behind it on the same connection.
    ReleaseBehind,
}

impl Command {
    pub const ALL: [Self; 7] = [
        Self::Acquire,
        Self::Enter,
        Self::Refresh,
        Self::Renew,
        Self::Release,
        Self::ReleasePlain,
        Self::ReleaseBehind,
    ];

    /// Whether the command asks for the lock. If its reply is lost, it may still have acquired it.
    pub(super) fn asks(self) -> bool {
        matches!(self, Self::Acquire | Self::Enter)
    }

    /// Whether the command says how many tokens its client wants.
    pub(super) fn wants(self) -> bool {
        self.asks() || self == Self::Refresh
    }
}

/// A block of fencing tokens. Both fields are zero in searches without tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tokens {
    pub first: u8,
    pub count: u8,
}

/// The commands, replies and messages of one holder id that are on their way. A state has at most
/// one of each kind at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OnItsWay {
    /// A set of [`Command`]s: bit `n` stands for `Command::ALL[n]`.
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
    /// The ticks since the client began to undo its acquire or enter, plus one; zero if there is
    /// nothing to undo.
    pub undone: u8,
    /// The undo was sent in this tick. Recorded only in prompt runs.
    pub is_undo_sent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Entered {
    Granted(Tokens),
    /// Refused. After an enter the id is queued, or a grant has already made it the holder.
    Refused,
    /// The id held the lock before: the network ran the command twice.
    RanBefore,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refreshed {
    /// The id holds the lock. The token is the first of the block that this refresh granted. If the
    /// id was granted the lock before, it is the last token that was drawn.
    Granted(u8),
    Waiting,
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Released {
    /// The id held the lock or had a place; it has neither now.
    Done,
    /// The id held the lock, which is free now although clients are queued.
    Plain,
    /// The id neither held the lock nor had a place.
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
            Command::Release | Command::ReleasePlain | Command::ReleaseBehind => {
                self.released.is_some()
            }
        }
    }

    pub(super) fn lose_reply(&mut self, command: Command) {
        match command {
            Command::Acquire | Command::Enter => self.entered = None,
            Command::Refresh => self.refreshed = None,
            Command::Renew => self.renewed = None,
            Command::Release | Command::ReleasePlain | Command::ReleaseBehind => {
                self.released = None;
            }
        }
    }

    /// Forgets the replies and messages that the id's client does not read in this phase.
    pub(super) fn tidy(&mut self, id: Id, phase: Phase) {
        let is_current = phase.id() == Some(id);
        let is_undone = self.undone > 0;
        let (mut reads_entered, mut reads_refreshed, mut reads_renewed) = (false, false, false);
        let (mut reads_released, mut ignores_message) = (is_undone, false);
        if is_current {
            match phase {
                Phase::Trying { .. } | Phase::Entering { .. } => reads_entered = true,
                Phase::Waiting { refresh, .. } => reads_refreshed = refresh.is_some(),
                Phase::Confirming { .. } => (reads_renewed, ignores_message) = (true, true),
                Phase::Held { renewal, .. } => {
                    (reads_renewed, ignores_message) = (renewal.is_some(), true);
                }
                Phase::Leaving { .. } => (reads_released, ignores_message) = (true, true),
                Phase::Out | Phase::Sleeping { .. } | Phase::Dead => {}
            }
        }
        self.entered = self.entered.filter(|_| reads_entered);
        self.refreshed = self.refreshed.filter(|_| reads_refreshed);
        self.renewed = self.renewed.filter(|_| reads_renewed);
        self.released = self.released.filter(|_| reads_released);
        if phase == Phase::Dead || ignores_message || is_undone {
            self.message = None;
        }
        if !self.asks() && !self.has(Command::Refresh) {
            self.asked = 0;
        }
    }
}
