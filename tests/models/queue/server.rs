//! The scripts, as the server runs them.

use super::rules::{Broken, Flaw, GRANT, Rules};
use super::state::{Id, Listens, Mark, Phase, Place, State, owner};
use super::wire::{Command, Refreshed};

impl State {
    /// The server runs a command, and replies.
    pub(super) fn run(&mut self, command: Command, id: Id, rules: &Rules) {
        match command {
            Command::Enter => self.run_enter(id, rules),
            Command::Refresh => self.run_refresh(id, rules),
            Command::Renew => {
                let is_ours = self.holder == Some(id);
                if is_ours {
                    self.left = self.left.max(rules.ttl);
                    self.is_provisional = false;
                }
                self.on_their_way[id].renewed = Some(is_ours);
            }
            Command::Release | Command::ReleaseBehind => self.run_release(id, rules),
        }
    }

    fn run_enter(&mut self, id: Id, rules: &Rules) {
        self.keep_places(|place| place.age < GRANT);
        let is_granted = self.holder.is_none() && self.queue[0].is_none();
        if is_granted {
            (self.holder, self.left, self.is_provisional) = (Some(id), rules.ttl, false);
        } else {
            let listens = self.clients[owner(id)].listens;
            let is_new = listens == Listens::Soon;
            let mark = match is_new && !rules.has(Flaw::NewPlaceIsPassedOver) {
                _ if self.clients[owner(id)].is_earlier => Mark::Earlier,
                true => Mark::New,
                false => Mark::Listed,
            };
            let end = self.queue.iter().flatten().count();
            self.queue[end] = Some(Place {
                id,
                age: 0,
                mark,
                has_listener: listens == Listens::Here,
            });
            self.grant(id, None, rules);
        }
        self.on_their_way[id].entered = Some(is_granted);
    }

    fn run_refresh(&mut self, id: Id, rules: &Rules) {
        let is_listening = self.clients[owner(id)].listens == Listens::Here;
        let mut was_passed = false;
        if let Some(place) = self.place_mut(id) {
            place.age = 0;
            place.has_listener = is_listening;
            was_passed = place.mark == Mark::Passed;
            place.mark = match place.mark {
                Mark::Earlier => Mark::Earlier,
                Mark::Returned if rules.has(Flaw::TurnIsKept) => Mark::Returned,
                _ if is_listening => Mark::Listed,
                Mark::Passed if rules.has(Flaw::NoTurnAfterARefresh) => Mark::Listed,
                Mark::Passed => Mark::Returned,
                mark => mark,
            };
        }
        self.grant(id, Some(id), rules);
        let waits = matches!(self.phase(id), Phase::Waiting { id: by, .. } if by == id);
        let client = &mut self.clients[owner(id)];
        if is_listening {
            client.passed = 0;
        } else if was_passed && rules.is_prompt && waits {
            client.passed += 1;
            if client.passed > 1 {
                self.break_promise(Broken::PassedOver);
            }
        }
        let found = match (self.holder == Some(id), self.is_queued(id)) {
            (true, _) => Refreshed::Granted,
            (false, true) => Refreshed::Waiting,
            (false, false) => Refreshed::Gone,
        };
        if found == Refreshed::Gone && rules.is_prompt && waits && !self.has_lost {
            self.break_promise(Broken::PlaceLost);
        }
        self.on_their_way[id].refreshed = Some(found);
    }

    fn run_release(&mut self, id: Id, rules: &Rules) {
        let was_ours = self.holder == Some(id);
        let was_queued = self.remove_place(id);
        let is_in_use = match self.phase(id) {
            Phase::Held { id: by, .. } => was_ours && by == id,
            Phase::Waiting { id: by, .. } | Phase::Entering { id: by, .. } => {
                was_queued && by == id
            }
            _ => false,
        };
        if is_in_use {
            self.break_promise(Broken::TakenInUse);
        }
        if was_ours {
            self.holder = None;
        }
        self.grant(id, None, rules);
        if was_ours && self.holder.is_none() {
            self.announce(rules);
        }
        self.on_their_way[id].released = Some(was_ours || was_queued);
    }

    /// Deletes the key, and announces that to the clients. Only prompt clients react.
    pub(super) fn announce(&mut self, rules: &Rules) {
        self.left = 0;
        for client in &mut self.clients {
            let is_told = matches!(client.listens, Listens::Here | Listens::AtReplica);
            client.is_announced |= is_told && rules.is_prompt;
        }
    }
}
