//! What a client reads, and learns from it.

use super::rules::{GRANT, OLD};
use super::state::{Id, Phase, State, owner};
use super::steps::{Step, Steps};
use super::wire::Refreshed;

impl<F: FnMut(Step, State)> Steps<'_, F> {
    /// The client reads a reply to a command of this id.
    pub(super) fn replies(&mut self, id: Id) {
        let it = self.state.on_their_way[id];
        if let Some(is_granted) = it.entered {
            self.reads_entered(id, is_granted);
        }
        if let Some(found) = it.refreshed {
            self.reads_refreshed(id, found);
        }
        if let Some(is_ours) = it.renewed {
            self.reads_renewed(id, is_ours);
        }
        if let Some(is_done) = it.released {
            self.reads_released(id, is_done);
        }
    }

    /// The phase of a client that acquired or renewed the lock by a command of this age.
    fn held(&self, id: Id, age: u8) -> Phase {
        match self.rules.ttl.checked_sub(age).filter(|left| *left > 0) {
            Some(validity) => Phase::Held {
                id,
                validity,
                renewal: None,
            },
            None => Phase::Leaving { id },
        }
    }

    fn reads_entered(&mut self, id: Id, is_granted: bool) {
        let Phase::Entering { age, .. } = self.state.phase(id) else {
            return;
        };
        let phase = match is_granted {
            true => self.held(id, age),
            false => Phase::Waiting {
                id,
                proof: age,
                refresh: None,
            },
        };
        self.step(Step::ReadsEntered(id, is_granted), |next| {
            next.on_their_way[id].entered = None;
            let client = &mut next.clients[owner(id)];
            client.is_fresh = true;
            client.phase = phase;
        });
    }

    fn reads_refreshed(&mut self, id: Id, found: Refreshed) {
        let Phase::Waiting { proof, refresh, .. } = self.state.phase(id) else {
            return;
        };
        self.step(Step::ReadsRefreshed(id, found), |next| {
            next.on_their_way[id].refreshed = None;
            let client = &mut next.clients[owner(id)];
            client.is_fresh = true;
            match found {
                Refreshed::Granted => next.learn_grant(id, proof),
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
        let ttl = self.rules.ttl;
        let phase = match self.state.phase(id) {
            Phase::Confirming { age, .. } if is_ours => self.held(id, age),
            Phase::Held {
                validity,
                renewal: Some(age),
                ..
            } if is_ours => Phase::Held {
                id,
                validity: validity.max(ttl.saturating_sub(age)),
                renewal: None,
            },
            _ => Phase::Out,
        };
        self.step(Step::ReadsRenewed(id, is_ours), |next| {
            next.on_their_way[id].renewed = None;
            let client = &mut next.clients[owner(id)];
            client.is_fresh = true;
            client.phase = phase;
        });
    }

    fn reads_released(&mut self, id: Id, is_done: bool) {
        self.step(Step::ReadsReleased(id, is_done), |next| {
            next.on_their_way[id].released = None;
            if is_done {
                next.on_their_way[id].undone = 0;
            }
            let client = &mut next.clients[owner(id)];
            if client.phase == (Phase::Leaving { id }) {
                client.phase = Phase::Out;
            }
        });
    }
}

impl State {
    /// The client learns of a grant that may be as old as its last proof of waiting.
    pub(super) fn learn_grant(&mut self, id: Id, proof: u8) {
        let client = &mut self.clients[owner(id)];
        client.is_fresh = false;
        client.phase = match GRANT.checked_sub(proof).filter(|left| *left > 0) {
            Some(validity) => Phase::Held {
                id,
                validity,
                renewal: None,
            },
            None => Phase::Confirming { id, age: OLD },
        };
    }
}
