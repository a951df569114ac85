//! The state of the server, of what is on its way, and of the clients; the scripts.

use super::rules::{Broken, CLIENTS, Flaw, IDS, NAMES, Rules, Wants};

/// A holder id: the client, times [`IDS`], plus a number.
pub type Id = usize;

pub(super) fn owner(id: Id) -> usize {
    id / IDS
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub holders: [Option<Id>; NAMES],
    pub queues: [[Option<Id>; CLIENTS]; NAMES],
    pub phases: [Phase; CLIENTS],
    pub on_their_way: [OnItsWay; CLIENTS * IDS],
    /// How often each fault may happen.
    pub losses: u8,
    pub kills: u8,
    pub expiries: u8,
    pub was_taken_in_use: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OnItsWay {
    pub ask: Option<Ask>,
    pub reply: Option<Reply>,
    /// The ask got no reply. The undo is repeated until it finds something, or the ask is lost.
    pub is_undone: bool,
}

/// A set's only script, for the next step and for a refresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ask {
    pub has: Has,
    /// Whether to keep the lower names if another is refused.
    pub keeps: bool,
}

/// The names that a set counts as its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Has {
    /// The name that it waits for, or was granted.
    pub at: Option<usize>,
    /// Whether it also keeps the names below.
    pub lower: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    Granted,
    Queued(Has),
    /// The names that the set counts as its own are not.
    Gone,
    /// Only with [`Flaw::AsksInThreeScripts`].
    Refused(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Out,
    /// A set's ask is on its way.
    Asking(Id, Ask),
    Waiting(Id, Has),
    Held(Id),
    /// A nested call holds a name under the first id and waits for another under the second.
    HeldAndWaiting(Id, Id),
    HeldTwice(Id, Id),
    /// Only with [`Flaw::AsksInThreeScripts`]: about to queue at a name.
    Passing(Id, usize),
    Dead,
    /// It has been granted what it wanted and wants nothing more.
    Done,
}

impl Phase {
    pub(super) fn ids(self) -> [Option<Id>; 2] {
        match self {
            Self::Out | Self::Dead | Self::Done => [None; 2],
            Self::Asking(id, _) | Self::Waiting(id, _) | Self::Held(id) | Self::Passing(id, _) => {
                [Some(id), None]
            }
            Self::HeldAndWaiting(id, other) | Self::HeldTwice(id, other) => [Some(id), Some(other)],
        }
    }
}

impl State {
    pub fn new(rules: &Rules) -> Self {
        Self {
            holders: [None; NAMES],
            queues: [[None; CLIENTS]; NAMES],
            phases: rules.wants.map(|wants| match wants {
                Wants::Nothing => Phase::Done,
                _ => Phase::Out,
            }),
            on_their_way: [OnItsWay::default(); CLIENTS * IDS],
            losses: 0,
            kills: 0,
            expiries: 0,
            was_taken_in_use: false,
        }
    }

    pub(super) fn is_queued(&self, id: Id, name: usize) -> bool {
        self.queues[name].contains(&Some(id))
    }

    fn join(&mut self, id: Id, name: usize) {
        if !self.is_queued(id, name) {
            let end = self.queues[name].iter().position(Option::is_none);
            self.queues[name][end.expect("room for every client")] = Some(id);
        }
    }

    pub(super) fn leave(&mut self, id: Id, name: usize) -> bool {
        let there = self.is_queued(id, name);
        if there {
            let mut kept = [None; CLIENTS];
            let others = self.queues[name].iter().filter(|it| **it != Some(id));
            for (to, other) in kept.iter_mut().zip(others) {
                *to = *other;
            }
            self.queues[name] = kept;
        }
        there
    }

    /// Passes a name on to the first in its queue, or frees it.
    pub(super) fn pass_on(&mut self, name: usize) {
        self.holders[name] = None;
        if let Some(next) = self.queues[name][0] {
            self.leave(next, name);
            self.holders[name] = Some(next);
        }
    }

    /// A plain call takes a name, or a place in its queue. Returns true if it was granted.
    pub(super) fn run_enter(&mut self, id: Id, name: usize) -> bool {
        let is_free = self.holders[name].is_none();
        match is_free {
            true => self.holders[name] = Some(id),
            false => self.join(id, name),
        }
        is_free
    }

    /// Releases all names of an id, and removes its places. Returns true if there were any.
    pub(super) fn run_release(&mut self, id: Id, rules: &Rules, is_undo: bool) -> bool {
        let is_in_use = matches!(self.phases[owner(id)], Phase::Held(by) if by == id);
        self.was_taken_in_use |= is_in_use && is_undo;
        let mut found = false;
        for name in 0..NAMES {
            if is_undo && found && rules.has(Flaw::UndoesOneName) {
                break;
            }
            found |= self.leave(id, name);
            if self.holders[name] == Some(id) {
                self.pass_on(name);
                found = true;
            }
        }
        found
    }

    pub(super) fn run_ask(&mut self, id: Id, ask: Ask, rules: &Rules) -> Reply {
        let Wants::Set(wanted) = rules.wants[owner(id)] else {
            unreachable!("only sets ask")
        };
        let names = || (0..NAMES).filter(|name| wanted[*name]);
        let Ask { has, keeps } = ask;
        if let Some(at) = has.at
            && let Some(reply) = self.check_kept(id, ask, at, rules)
        {
            return reply;
        }
        let is_available = |name: usize| self.holders[name].is_none_or(|holder| holder == id);
        let Some(refused) = names().find(|name| !is_available(*name)) else {
            for name in names() {
                self.holders[name] = Some(id);
            }
            return Reply::Granted;
        };
        if rules.has(Flaw::AsksInThreeScripts) {
            return Reply::Refused(refused);
        }
        let keeps = keeps && !rules.has(Flaw::KeepsNothing);
        if rules.has(Flaw::KeepsAnyName) {
            // Whatever it was granted first stays, in any order.
            self.join(id, refused);
            let has = Has {
                at: Some(refused),
                lower: false,
            };
            return Reply::Queued(has);
        }
        self.pass_on_all(id, |name| name > refused || !keeps);
        if keeps {
            for name in names().take_while(|name| *name < refused) {
                self.holders[name] = Some(id);
            }
        }
        self.join(id, refused);
        Reply::Queued(Has {
            at: Some(refused),
            lower: keeps,
        })
    }

    /// Checks what a set has that is queued at `at`; returns the reply unless it asks for more.
    fn check_kept(&mut self, id: Id, ask: Ask, at: usize, rules: &Rules) -> Option<Reply> {
        let Wants::Set(wanted) = rules.wants[owner(id)] else {
            unreachable!("only sets ask")
        };
        let is_lost = |name: usize| self.holders[name] != Some(id);
        let lower_is_lost = ask.has.lower && (0..at).any(|name| wanted[name] && is_lost(name));
        let waits = self.is_queued(id, at);
        let is_gone = lower_is_lost || is_lost(at) && !waits;
        if is_gone && !rules.has(Flaw::TrustsTheSet) {
            self.run_release(id, rules, false);
            return Some(Reply::Gone);
        }
        if !waits {
            return None;
        }
        if !ask.keeps {
            self.pass_on_all(id, |name| name < at);
        }
        Some(Reply::Queued(Has {
            at: Some(at),
            lower: ask.has.lower && ask.keeps,
        }))
    }

    fn pass_on_all(&mut self, id: Id, which: impl Fn(usize) -> bool) {
        for name in (0..NAMES).filter(|name| which(*name)) {
            if self.holders[name] == Some(id) {
                self.pass_on(name);
            }
        }
    }

    /// Returns a promise that this state breaks.
    pub(super) fn broken(&self, rules: &Rules) -> Option<Broken> {
        let holds = |id: Id, name: usize| self.holders[name] == Some(id);
        for (client, phase) in self.phases.iter().enumerate() {
            let holds_all = match (*phase, rules.wants[client]) {
                (Phase::Held(id), Wants::Set(wanted)) => {
                    (0..NAMES).all(|name| !wanted[name] || holds(id, name))
                }
                (Phase::Held(id) | Phase::HeldAndWaiting(id, _), Wants::Nested(name, _))
                | (Phase::Held(id), Wants::Name(name)) => holds(id, name),
                (Phase::HeldTwice(id, other), Wants::Nested(name, inner)) => {
                    holds(id, name) && holds(other, inner)
                }
                _ => true,
            };
            if !holds_all {
                return Some(Broken::Exclusion);
            }
        }
        if self.was_taken_in_use {
            return Some(Broken::TakenInUse);
        }
        let is_quiet = self.on_their_way == [OnItsWay::default(); CLIENTS * IDS];
        let there = self.holders.iter().chain(self.queues.iter().flatten());
        let is_left_over = |id: Id| {
            let phase = self.phases[owner(id)];
            phase != Phase::Dead && !phase.ids().contains(&Some(id))
        };
        if is_quiet && there.flatten().any(|id| is_left_over(*id)) {
            return Some(Broken::LeftOver);
        }
        None
    }

    pub(super) fn anybody_waits(&self) -> bool {
        self.phases
            .iter()
            .any(|phase| matches!(phase, Phase::Waiting(..) | Phase::HeldAndWaiting(..)))
    }
}
