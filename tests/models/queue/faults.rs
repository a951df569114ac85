//! Faults of clients and connections, and the steps of programs that do not use the queue.

use super::phase::Phase;
use super::rules::IDS;
use super::state::{Listens, PLAIN, State, owner};
use super::steps::{Step, Steps};

impl<F: FnMut(Step, State)> Steps<'_, F> {
    /// A client is killed or stopped.
    pub(super) fn deaths(&mut self, n: usize) {
        let (state, is_prompt) = (self.state, self.rules.is_prompt);
        let holds = state.holder.is_some_and(|id| owner(id) == n);
        let is_there = !matches!(state.clients[n].phase, Phase::Out | Phase::Dead);
        // The death of a holder costs its lease.
        if !is_there || is_prompt && holds {
            return;
        }
        if state.kills > 0 {
            self.step(Step::IsKilled(n), |next| {
                next.kills -= 1;
                next.clients[n].phase = Phase::Dead;
                next.clients[n].listens = Listens::Never;
                for it in &mut next.on_their_way[n * IDS..(n + 1) * IDS] {
                    it.undone = 0;
                    if is_prompt {
                        it.commands = 0;
                    }
                }
            });
        }
        if state.stops > 0 {
            self.step(Step::IsStopped(n), |next| {
                next.stops -= 1;
                next.clients[n].phase = Phase::Dead;
                for it in &mut next.on_their_way[n * IDS..(n + 1) * IDS] {
                    it.undone = 0;
                }
            });
        }
    }

    /// A client that waits loses its subscription, or gets it back.
    pub(super) fn subscription(&mut self, n: usize) {
        let client = self.state.clients[n];
        if !matches!(
            client.phase,
            Phase::Sleeping { .. } | Phase::Entering { .. } | Phase::Waiting { .. }
        ) {
            return;
        }
        if self.state.disconnections > 0 && client.listens == Listens::Here {
            self.step(Step::LosesSubscription(n), |next| {
                next.disconnections -= 1;
                next.clients[n].listens = Listens::NotNow;
                next.clients[n].is_announced = false;
                for it in &mut next.on_their_way[n * IDS..(n + 1) * IDS] {
                    it.message = None;
                }
            });
        }
        if matches!(client.listens, Listens::Soon | Listens::NotNow) {
            self.step(Step::Listens(n), |next| {
                next.clients[n].listens = Listens::Here;
                next.clients[n].is_announced = true;
            });
        }
    }

    /// The steps of a program that knows no queue, and of one that deletes keys.
    pub(super) fn plain(&mut self) {
        if self.state.holder.is_none() && self.state.plain_holds > 0 {
            self.step(Step::PlainTakes, |next| {
                next.plain_holds -= 1;
                (next.holder, next.left, next.is_provisional) = (Some(PLAIN), 1, false);
            });
        }
        if self.state.deletions > 0 && self.state.holder.is_some_and(|id| id != PLAIN) {
            self.step(Step::KeyIsDeleted, |next| {
                next.deletions -= 1;
                next.was_deleted = true;
                (next.holder, next.left, next.is_provisional) = (None, 0, false);
            });
        }
        if self.state.holder == Some(PLAIN) {
            let rules = self.rules;
            self.step(Step::PlainReleases, |next| {
                next.holder = None;
                next.announce(rules);
            });
            self.step(Step::PlainIsDeleted, |next| {
                (next.holder, next.left) = (None, 0);
            });
        }
    }
}
