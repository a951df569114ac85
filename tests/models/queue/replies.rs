//! The steps in which a client reads a reply and decides what to do next.

use super::phase::Phase;
use super::rules::{Broken, Flaw, GRANT, OLD, Rules};
use super::state::{Id, Kind, State, owner};
use super::steps::{Step, Steps};
use super::wire::{Command, Entered, Refreshed, Released, Tokens};

impl<F: FnMut(Step, State)> Steps<'_, F> {
    /// The steps in which the client reads one of the replies to commands of this id.
    pub(super) fn replies(&mut self, id: Id) {
        let it = self.state.on_their_way[id];
        if let Some(answer) = it.entered {
            self.reads_entered(id, answer);
        }
        if let Some(found) = it.refreshed {
            self.reads_refreshed(id, found);
        }
        if let Some(is_ours) = it.renewed {
            self.reads_renewed(id, is_ours);
        }
        if let Some(found) = it.released {
            self.reads_released(id, found);
        }
    }

    /// The phase of a client that acquired or renewed the lock by a command of this age.
    fn held(&self, id: Id, age: u8, tokens: Tokens) -> Phase {
        match self.rules.ttl.checked_sub(age).filter(|left| *left > 0) {
            Some(validity) => Phase::Held {
                id,
                validity,
                renewal: None,
                tokens,
            },
            None => Phase::Leaving { id },
        }
    }

    /// The reply to an acquire or an enter.
    fn reads_entered(&mut self, id: Id, answer: Entered) {
        let (Phase::Trying { age, .. } | Phase::Entering { age, .. }) = self.state.phase(id) else {
            return;
        };
        let (rules, was_trying) = (
            self.rules,
            self.state.phase(id) == Phase::Trying { id, age },
        );
        let phase = match answer {
            Entered::Granted(tokens) => self.held(id, age, tokens),
            Entered::Refused if !was_trying => Phase::Waiting {
                id,
                proof: age,
                refresh: None,
            },
            Entered::Refused => match self.state.clients[owner(id)].kind {
                Kind::Broadcast => Phase::Sleeping { id },
                _ => Phase::Entering { id, age: 0 },
            },
            Entered::RanBefore => Phase::Out,
        };
        self.step(Step::ReadsEntered(id, answer), |next| {
            let client = &mut next.clients[owner(id)];
            client.is_fresh = true;
            client.phase = phase;
            let block = client.block(rules);
            let it = &mut next.on_their_way[id];
            it.entered = None;
            if phase == (Phase::Entering { id, age: 0 }) {
                it.send(Command::Enter);
                it.asked = block;
            }
            if answer == Entered::RanBefore {
                it.undone = 1;
            }
            next.use_token_of(phase, rules);
        });
    }

    fn reads_refreshed(&mut self, id: Id, found: Refreshed) {
        let Phase::Waiting { proof, refresh, .. } = self.state.phase(id) else {
            return;
        };
        let rules = self.rules;
        self.step(Step::ReadsRefreshed(id, found), |next| {
            next.on_their_way[id].refreshed = None;
            let client = &mut next.clients[owner(id)];
            client.is_fresh = true;
            match found {
                Refreshed::Granted(first) => {
                    let count = if rules.has(Flaw::RefreshGivesABlock) {
                        client.block(rules)
                    } else {
                        u8::from(rules.has_tokens)
                    };
                    next.learn_grant(id, proof, Tokens { first, count }, rules);
                }
                Refreshed::Waiting => {
                    client.phase = Phase::Waiting {
                        id,
                        proof: refresh.unwrap_or(proof),
                        refresh: None,
                    };
                }
                Refreshed::Gone => client.phase = Phase::Out,
            }
        });
    }

    fn reads_renewed(&mut self, id: Id, is_ours: bool) {
        let rules = self.rules;
        let before = self.state.phase(id);
        let phase = match before {
            Phase::Confirming { age, tokens, .. } if is_ours => self.held(id, age, tokens),
            Phase::Held {
                validity,
                renewal: Some(age),
                tokens,
                ..
            } if is_ours => Phase::Held {
                id,
                validity: validity.max(rules.ttl.saturating_sub(age)),
                renewal: None,
                tokens,
            },
            _ => Phase::Out,
        };
        self.step(Step::ReadsRenewed(id, is_ours), |next| {
            next.on_their_way[id].renewed = None;
            let client = &mut next.clients[owner(id)];
            client.is_fresh = true;
            client.phase = phase;
            if !before.is_held() {
                next.use_token_of(phase, rules);
            }
        });
    }

    fn reads_released(&mut self, id: Id, found: Released) {
        self.step(Step::ReadsReleased(id, found), |next| {
            let it = &mut next.on_their_way[id];
            it.released = None;
            match found {
                Released::Done | Released::Plain => it.undone = 0,
                Released::NotOurs => {}
            }
            let client = &mut next.clients[owner(id)];
            client.goes_behind |= found == Released::Plain;
            if client.phase == (Phase::Leaving { id }) {
                client.phase = Phase::Out;
            }
        });
    }
}

impl State {
    /// The client learns of a grant. It may be as old as the last command whose reply said that the
    /// client waits: `proof` is that command's age.
    pub(super) fn learn_grant(&mut self, id: Id, proof: u8, tokens: Tokens, rules: &Rules) {
        let client = &mut self.clients[owner(id)];
        client.is_fresh = false;
        client.phase = match GRANT.checked_sub(proof).filter(|left| *left > 0) {
            Some(validity) => Phase::Held {
                id,
                validity,
                renewal: None,
                tokens,
            },
            None => Phase::Confirming {
                id,
                age: OLD,
                tokens,
            },
        };
        let phase = client.phase;
        self.use_token_of(phase, rules);
    }

    fn use_token_of(&mut self, phase: Phase, rules: &Rules) {
        if let Phase::Held { tokens, .. } = phase {
            self.use_token(tokens.first, rules);
        }
    }

    /// Records that a thread holds the lock under this token, and checks that it may.
    pub(super) fn use_token(&mut self, token: u8, rules: &Rules) {
        if !rules.has_tokens {
            return;
        }
        let is_used = self.used & 1 << token != 0;
        let is_low = self.used >> token != 0;
        if is_used || is_low && !self.was_deleted {
            self.break_promise(Broken::Token);
        }
        // If no key was or can be deleted, tokens must rise: only the highest matters.
        if !self.was_deleted && self.deletions == 0 {
            self.used = 0;
        }
        self.used |= 1 << token;
    }
}
