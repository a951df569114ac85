//! The end of every script: the grant, and the places that it passes over.

use super::phase::Phase;
use super::rules::{Broken, CLIENTS, Flaw, GRANT, IDS, Rules};
use super::state::{Id, Listens, Mark, Place, State, owner};
use super::wire::Tokens;

impl State {
    pub(super) fn place_mut(&mut self, id: Id) -> Option<&mut Place> {
        let mut places = self.queue.iter_mut().flatten();
        places.find(|place| place.id == id)
    }

    pub(super) fn remove_place(&mut self, id: Id) -> bool {
        let there = self.is_queued(id);
        self.keep_places(|place| place.id != id);
        there
    }

    pub(super) fn keep_places(&mut self, keep: impl Fn(&Place) -> bool) {
        let mut kept = [None; CLIENTS * IDS];
        let places = self.queue.iter().flatten().filter(|place| keep(place));
        for (to, place) in kept.iter_mut().zip(places) {
            *to = Some(*place);
        }
        self.queue = kept;
    }

    pub(super) fn break_promise(&mut self, broken: Broken) {
        self.broken.get_or_insert(broken);
    }

    /// Returns whether a grant reaches a place, as far as the server can tell.
    fn is_reached(&self, place: Place, refreshed: Option<Id>, rules: &Rules) -> bool {
        matches!(place.mark, Mark::New | Mark::Returned)
            || refreshed == Some(place.id)
            || self.clients[owner(place.id)].listens == Listens::Here
            || rules.has(Flaw::PassesNobodyOver)
    }

    /// A script grants a free lock to the first living place that a grant reaches.
    ///
    /// Returns the tokens that it has granted.
    pub(super) fn grant(&mut self, refreshed: Option<Id>, rules: &Rules) -> Option<Tokens> {
        if self.holder.is_some() {
            return None;
        }
        self.keep_places(|place| place.age < GRANT);
        let queue = self.queue;
        let places = queue.iter().flatten();
        let is_reached = |place: &&Place| self.is_reached(**place, refreshed, rules);
        let first = places.clone().find(is_reached);
        let asker = places.clone().find(|place| Some(place.id) == refreshed);
        let next = if rules.has(Flaw::AskerGoesFirst) {
            asker.or(first)
        } else {
            first
        };
        if first != next {
            self.break_promise(Broken::Overtaken);
        }
        for place in places.take_while(|place| Some(*place) != next) {
            self.pass_over(*place, rules);
        }
        next.copied().map(|place| self.grant_to(place, rules))
    }

    fn grant_to(&mut self, place: Place, rules: &Rules) -> Tokens {
        let client = self.clients[owner(place.id)];
        let is_killed = client.phase == Phase::Dead && client.listens == Listens::Never;
        if is_killed && place.has_listener && !rules.has(Flaw::PassesNobodyOver) {
            self.break_promise(Broken::KilledGranted);
        }
        if !rules.has(Flaw::GrantedPlaceStays) {
            self.remove_place(place.id);
        }
        self.holder = Some(place.id);
        self.left = GRANT - place.age;
        self.is_provisional = true;
        let tokens = if rules.has(Flaw::GrantDrawsNoToken) {
            Tokens {
                first: self.fence,
                count: place.block,
            }
        } else {
            self.draw(place.block, rules)
        };
        self.publish(place.id, tokens);
        tokens
    }

    fn pass_over(&mut self, place: Place, rules: &Rules) {
        let client = self.clients[owner(place.id)];
        if client.listens == Listens::Soon && client.phase.id() == Some(place.id) {
            self.break_promise(Broken::NewPassedOver);
        }
        if rules.has(Flaw::CountsByPublishing) {
            self.publish(place.id, Tokens::default());
        }
        if rules.has(Flaw::PassedPlaceLeaves) {
            self.remove_place(place.id);
        }
        if let Some(place) = self.place_mut(place.id) {
            place.mark = Mark::Passed;
        }
    }

    fn publish(&mut self, id: Id, tokens: Tokens) {
        let listens = self.clients[owner(id)].listens;
        if matches!(listens, Listens::Here | Listens::AtReplica) {
            self.on_their_way[id].message = Some(tokens);
        }
    }
}
