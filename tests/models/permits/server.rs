//! The scripts.

use super::state::{Broken, Call, Command, Flaw, Found, Id, Member, Rules, State};

impl State {
    /// Drops the permits that have ended.
    fn settle(&mut self, rules: &Rules) {
        for member in self.members.extract_if(.., |member| member.left <= 0) {
            self.out -= rules.want(member.id);
        }
    }

    fn fits(&self, id: Id, rules: &Rules) -> bool {
        self.out + rules.want(id) <= rules.permits[id.client]
    }

    /// Removes dead places in front, and returns the first living waiter.
    fn first(&mut self, rules: &Rules) -> Option<Id> {
        while let Some(&(id, age)) = self.queue.first() {
            if age < rules.grant {
                return Some(id);
            }
            self.queue.remove(0);
        }
        None
    }

    fn hold(&mut self, id: Id, left: i8, is_provisional: bool, rules: &Rules) {
        let before = self.members.iter().position(|member| member.id == id);
        match before {
            // The network has run the call twice: its first run has counted these permits.
            Some(at) => drop(self.members.remove(at)),
            None => self.out += rules.want(id),
        }
        self.members.push(Member {
            id,
            left,
            is_provisional,
        });
    }

    fn grant(&mut self, rules: &Rules) {
        while let Some(first) = self.first(rules) {
            let mut at = 0;
            if !self.fits(first, rules) {
                let fits = |(id, age): &(Id, i8)| *age < rules.grant && self.fits(*id, rules);
                match self.queue.iter().position(fits) {
                    Some(n) if rules.has(Flaw::WhoeverFitsGoesFirst) => at = n,
                    _ => return,
                }
                self.broken = Some(Broken::Overtaken);
            }
            let (id, age) = self.queue.remove(at);
            // A grant lasts as long as the place would have.
            self.hold(id, rules.grant - age, true, rules);
            self.messages.push(id);
            if rules.has(Flaw::GrantsOnce) {
                return;
            }
        }
    }

    /// Runs a command, and returns what it found.
    pub(super) fn run(&mut self, command: Command, rules: &Rules) -> Found {
        self.settle(rules);
        let found = match command {
            Command::Enter(id) => self.enter(id, rules),
            Command::Refresh(id) => self.refresh(id, rules),
            Command::Renew(id) => self.renew(id, rules),
            Command::Leave(id) => self.leave(id, rules),
        };
        // A renewal only finds what has ended: the waiters refresh when it does.
        let grants = !matches!(command, Command::Renew(_));
        if grants
            && let Some(first) = self.clone().first(rules)
            && self.fits(first, rules)
        {
            self.broken.get_or_insert(Broken::FittingWaiterLeft);
        }
        found
    }

    fn refresh(&mut self, id: Id, rules: &Rules) -> Found {
        if let Some(place) = self.queue.iter_mut().find(|place| place.0 == id) {
            place.1 = 0;
        }
        self.grant(rules);
        let is_queued = self.queue.iter().any(|place| place.0 == id);
        // The server looks for a place first.
        if is_queued {
            Found::Waits
        } else if self.is_member(id) {
            Found::Granted
        } else {
            Found::Gone
        }
    }

    /// Only one key: a renewal grants to nobody.
    fn renew(&mut self, id: Id, rules: &Rules) -> Found {
        if let Some(member) = self.members.iter_mut().find(|member| member.id == id) {
            member.left = member.left.max(rules.ttl);
            member.is_provisional = false;
            Found::Granted
        } else if rules.has(Flaw::RenewalRestores) {
            self.hold(id, rules.ttl, false, rules);
            Found::Granted
        } else {
            Found::Gone
        }
    }

    fn enter(&mut self, id: Id, rules: &Rules) -> Found {
        let is_first = self.first(rules).is_none();
        if self.fits(id, rules) && (is_first || rules.has(Flaw::NewcomerOvertakes)) {
            if !is_first {
                self.broken = Some(Broken::Overtaken);
            }
            self.hold(id, rules.ttl, false, rules);
            return Found::Granted;
        }
        let had_permits = self.is_member(id);
        match self.queue.iter_mut().find(|place| place.0 == id) {
            Some(place) => place.1 = 0,
            None if had_permits && !rules.has(Flaw::SecondRunIsQueued) => {}
            None => self.queue.push((id, 0)),
        }
        if !had_permits || !rules.has(Flaw::SecondRunGrantsNothing) {
            self.grant(rules);
        }
        if had_permits && !rules.has(Flaw::SecondRunIsQueued) {
            Found::RanBefore
        } else {
            Found::Waits
        }
    }

    fn leave(&mut self, id: Id, rules: &Rules) -> Found {
        self.queue.retain(|place| place.0 != id);
        let was_member = self.is_member(id);
        let call = self.clients[id.client].call;
        if was_member && matches!(call, Call::Holding(own, 1.., _) if own == id) {
            self.broken = Some(Broken::TakenInUse);
        }
        if was_member || rules.has(Flaw::ReleaseCountsBlindly) {
            self.members.retain(|member| member.id != id);
            self.out -= rules.want(id);
        }
        if was_member || !rules.has(Flaw::LeavesSilently) {
            self.grant(rules);
        }
        Found::Gone
    }
}
