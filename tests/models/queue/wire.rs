//! Commands, replies and messages on their way.

use super::state::{Id, Phase};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    Enter,
    Refresh,
    Renew,
    Release,
    /// The undo that was written behind the enter on the same connection.
    ReleaseBehind,
}

impl Command {
    pub const ALL: [Self; 5] = [
        Self::Enter,
        Self::Refresh,
        Self::Renew,
        Self::Release,
        Self::ReleaseBehind,
    ];
}

/// The commands, replies and messages of one holder id that are on their way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OnItsWay {
    pub commands: u8,
    pub entered: Option<bool>,
    pub refreshed: Option<Refreshed>,
    pub renewed: Option<bool>,
    pub released: Option<bool>,
    /// A grant message.
    pub message: bool,
    /// Ticks for which the enter is undone, plus one; zero if it is not.
    pub undone: u8,
    /// The undo was sent in this tick.
    pub is_undo_sent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refreshed {
    Granted,
    Waiting,
    Gone,
}

impl OnItsWay {
    pub(super) fn has(self, command: Command) -> bool {
        self.commands & (1 << command as u8) != 0
    }

    pub(super) fn send(&mut self, command: Command) {
        self.commands |= 1 << command as u8;
    }

    pub(super) fn take(&mut self, command: Command) {
        self.commands &= !(1 << command as u8);
    }

    pub(super) fn has_reply(self, command: Command) -> bool {
        match command {
            Command::Enter => self.entered.is_some(),
            Command::Refresh => self.refreshed.is_some(),
            Command::Renew => self.renewed.is_some(),
            Command::Release | Command::ReleaseBehind => self.released.is_some(),
        }
    }

    pub(super) fn lose_reply(&mut self, command: Command) {
        match command {
            Command::Enter => self.entered = None,
            Command::Refresh => self.refreshed = None,
            Command::Renew => self.renewed = None,
            Command::Release | Command::ReleaseBehind => self.released = None,
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
                Phase::Entering { .. } => enters = true,
                Phase::Waiting { refresh, .. } => refreshes = refresh.is_some(),
                Phase::Confirming { .. } => (renews, is_known) = (true, true),
                Phase::Held { renewal, .. } => (renews, is_known) = (renewal.is_some(), true),
                Phase::Leaving { .. } => (leaves, is_known) = (true, true),
                Phase::Out | Phase::Dead => {}
            }
        }
        self.entered = self.entered.filter(|_| enters);
        self.refreshed = self.refreshed.filter(|_| refreshes);
        self.renewed = self.renewed.filter(|_| renews);
        self.released = self.released.filter(|_| leaves);
        self.message &= phase != Phase::Dead && !is_known && !is_undone;
    }
}
