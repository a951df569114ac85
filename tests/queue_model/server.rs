//! The scripts, as the server runs them.

use crate::rules::{Broken, CLIENTS, Flaw, GRANT, IDS, Rules};
use crate::state::{Command, Id, Listens, Mark, Phase, Place, Refreshed, State, owner};

impl State {
    fn remove_place(&mut self, id: Id) -> bool {
        let there = self.is_queued(id);
        self.keep_places(|place| place.id != id);
        there
    }

    fn keep_places(&mut self, keep: impl Fn(&Place) -> bool) {
        let mut kept = [None; CLIENTS * IDS];
        let places = self.queue.iter().flatten().filter(|place| keep(place));
        for (to, place) in kept.iter_mut().zip(places) {
            *to = Some(*place);
        }
        self.queue = kept;
    }

    fn break_promise(&mut self, broken: Broken) {
        self.broken.get_or_insert(broken);
    }

    /// The server runs a command, and replies.
    pub(crate) fn run(&mut self, command: Command, id: Id, rules: &Rules) {
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
        for place in self
            .queue
            .iter_mut()
            .flatten()
            .filter(|place| place.id == id)
        {
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
    pub(crate) fn announce(&mut self, rules: &Rules) {
        self.left = 0;
        for client in &mut self.clients {
            let is_told = matches!(client.listens, Listens::Here | Listens::AtReplica);
            client.is_announced |= is_told && rules.is_prompt;
        }
    }

    /// Returns whether a grant reaches a place, as far as the server can tell.
    fn is_reached(&self, place: Place, asking: Option<Id>, rules: &Rules) -> bool {
        matches!(place.mark, Mark::New | Mark::Returned | Mark::Earlier)
            || asking == Some(place.id)
            || self.clients[owner(place.id)].listens == Listens::Here
            || rules.has(Flaw::PassesNobodyOver)
    }

    /// A script for `by` grants a free lock to the first living place that a grant reaches.
    fn grant(&mut self, by: Id, asking: Option<Id>, rules: &Rules) {
        if self.holder.is_some() {
            return;
        }
        self.keep_places(|place| place.age < GRANT);
        let places = self.queue;
        let by_earlier = self.clients[owner(by)].is_earlier;
        let reached = |place: &Place| by_earlier || self.is_reached(*place, asking, rules);
        let mut places = places.iter().flatten();
        let is_asker = |place: &&Place| Some(place.id) == asking;
        let asker = self.queue.iter().flatten().find(is_asker);
        let first = places.clone().find(|place| reached(place));
        let next = match asker.filter(|_| rules.has(Flaw::AskerGoesFirst)) {
            Some(asker) => Some(asker),
            None => first,
        };
        let next = next.copied();
        if first.copied() != next {
            self.break_promise(Broken::Overtaken);
        }
        let passed: [Option<Place>; CLIENTS * IDS] = {
            let before = places.by_ref().take_while(|place| Some(**place) != next);
            let mut passed = [None; CLIENTS * IDS];
            for (to, place) in passed.iter_mut().zip(before) {
                *to = Some(*place);
            }
            passed
        };
        for place in passed.into_iter().flatten() {
            self.pass_over(place, rules);
        }
        let Some(place) = next else { return };
        let client = self.clients[owner(place.id)];
        let is_killed = client.phase == Phase::Dead && client.listens == Listens::Never;
        if is_killed && place.has_listener && !rules.has(Flaw::PassesNobodyOver) && !by_earlier {
            self.break_promise(Broken::KilledGranted);
        }
        if !rules.has(Flaw::GrantedPlaceStays) {
            self.remove_place(place.id);
        }
        self.holder = Some(place.id);
        self.left = GRANT - place.age;
        self.is_provisional = true;
        if !by_earlier || client.is_earlier {
            self.publish(place.id);
        }
    }

    fn pass_over(&mut self, place: Place, rules: &Rules) {
        let client = self.clients[owner(place.id)];
        if client.listens == Listens::Soon && client.phase.id() == Some(place.id) {
            self.break_promise(Broken::NewPassedOver);
        }
        if rules.has(Flaw::CountsByPublishing) {
            self.publish(place.id);
        }
        if rules.has(Flaw::PassedPlaceLeaves) {
            self.remove_place(place.id);
        }
        for place in self
            .queue
            .iter_mut()
            .flatten()
            .filter(|it| it.id == place.id)
        {
            place.mark = Mark::Passed;
        }
    }

    fn publish(&mut self, id: Id) {
        let listens = self.clients[owner(id)].listens;
        self.on_their_way[id].message |= matches!(listens, Listens::Here | Listens::AtReplica);
    }
}
