//! The events of a client, and the commands that it sends.

use crate::rules::{Flaw, IDS, OLD};
use crate::state::{Command, Id, Listens, Phase, State, owner};
use crate::steps::{Step, Steps};

impl<F: FnMut(Step, State)> Steps<'_, F> {
    pub(crate) fn faults(&mut self, n: usize) {
        let (state, is_prompt) = (self.state, self.rules.is_prompt);
        let client = state.clients[n];
        let holds = state.holder.is_some_and(|id| owner(id) == n);
        let is_there = !matches!(client.phase, Phase::Out | Phase::Dead);
        // The death of a holder costs its lease.
        let can_die = is_there && (!is_prompt || !holds);
        if can_die && state.kills > 0 {
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
        if can_die && state.stops > 0 {
            self.step(Step::IsStopped(n), |next| {
                next.stops -= 1;
                next.clients[n].phase = Phase::Dead;
                for it in &mut next.on_their_way[n * IDS..(n + 1) * IDS] {
                    it.undone = 0;
                }
            });
        }
        let waits = matches!(client.phase, Phase::Entering { .. } | Phase::Waiting { .. });
        if waits && state.disconnections > 0 && client.listens == Listens::Here {
            self.step(Step::LosesSubscription(n), |next| {
                next.disconnections -= 1;
                next.clients[n].listens = Listens::NotNow;
                next.clients[n].is_announced = false;
                for it in &mut next.on_their_way[n * IDS..(n + 1) * IDS] {
                    it.message = false;
                }
            });
        }
        if waits && matches!(client.listens, Listens::Soon | Listens::NotNow) {
            self.step(Step::Listens(n), |next| {
                next.clients[n].listens = Listens::Here;
                next.clients[n].is_announced = true;
            });
        }
    }

    fn send(&mut self, command: Command, id: Id, phase: Phase) {
        let rules = self.rules;
        if !self.has_room() || self.state.on_their_way[id].has(command) {
            return;
        }
        self.step(Step::Sends(command, id), |next| {
            next.on_their_way[id].send(command);
            let client = &mut next.clients[owner(id)];
            client.phase = phase;
            match command {
                Command::Enter => {
                    client.is_fresh = true;
                    client.entries += u8::from(rules.entries < u8::MAX);
                }
                Command::Refresh | Command::Renew if !rules.is_prompt => client.calls += 1,
                _ => {}
            }
            if command == Command::Refresh {
                client.is_announced = false;
            }
        });
    }

    /// Returns the id under which a client enters, if it may.
    fn fresh_id(&self, n: usize) -> Option<Id> {
        let entries = self.state.clients[n].entries;
        let mut ids = n * IDS..(n + 1) * IDS;
        if self.rules.entries == u8::MAX {
            let is_unused = |id: &Id| {
                let it = self.state.on_their_way[*id];
                let is_held = self.state.holder == Some(*id);
                it == Default::default() && !is_held && !self.state.is_queued(*id)
            };
            return ids.find(is_unused);
        }
        let next = match self.rules.has(Flaw::IdUsedTwice) {
            true => 0,
            false => usize::from(entries),
        };
        ids.nth(next).filter(|_| entries < self.rules.entries)
    }

    /// The steps that a client takes without a reply or a message.
    pub(crate) fn client(&mut self, n: usize) {
        let (client, rules) = (self.state.clients[n], self.rules);
        let may_call = match rules.is_prompt {
            true => !client.is_fresh,
            false => client.calls < rules.calls,
        };
        let is_lost = |command, has_reply: bool| {
            let id = client.phase.id().expect("the id of a command");
            !self.state.on_their_way[id].has(command) && !has_reply
        };
        match client.phase {
            Phase::Out => {
                if let Some(id) = self.fresh_id(n) {
                    self.send(Command::Enter, id, Phase::Entering { id, age: 0 });
                }
            }
            Phase::Entering { id, .. } => {
                let has_reply = self.state.on_their_way[id].entered.is_some();
                if !rules.is_prompt || is_lost(Command::Enter, has_reply) {
                    self.give_up(id);
                }
            }
            Phase::Waiting { id, proof, refresh } => {
                let has_reply = self.state.on_their_way[id].refreshed.is_some();
                if refresh.is_some() && is_lost(Command::Refresh, has_reply) {
                    self.time_out(id);
                }
                let is_due = may_call || rules.is_prompt && client.is_announced;
                let is_soon = rules.is_prompt && client.listens == Listens::Soon;
                if refresh.is_none() && is_due && !is_soon {
                    let refresh = Some(0);
                    self.send(Command::Refresh, id, Phase::Waiting { id, proof, refresh });
                }
                if !rules.is_prompt {
                    self.send(Command::Release, id, Phase::Leaving { id });
                }
            }
            Phase::Confirming { id, age } => {
                let has_reply = self.state.on_their_way[id].renewed.is_some();
                if (age == OLD || rules.is_prompt) && is_lost(Command::Renew, has_reply) {
                    self.send(Command::Renew, id, Phase::Confirming { id, age: 0 });
                } else if !rules.is_prompt {
                    self.send(Command::Release, id, Phase::Leaving { id });
                }
            }
            Phase::Held {
                id,
                validity,
                renewal,
            } => {
                let has_reply = self.state.on_their_way[id].renewed.is_some();
                if renewal.is_some() && rules.is_prompt && is_lost(Command::Renew, has_reply) {
                    self.time_out(id);
                }
                if renewal.is_none() && may_call {
                    let held = Phase::Held {
                        id,
                        validity,
                        renewal: Some(0),
                    };
                    self.send(Command::Renew, id, held);
                }
                self.send(Command::Release, id, Phase::Leaving { id });
            }
            Phase::Leaving { id } => {
                if is_lost(
                    Command::Release,
                    self.state.on_their_way[id].released.is_some(),
                ) {
                    self.send(Command::Release, id, Phase::Leaving { id });
                }
            }
            Phase::Dead => {}
        }
    }

    fn give_up(&mut self, id: Id) {
        self.step(Step::GivesUp(id), |next| {
            next.clients[owner(id)].phase = Phase::Out;
            let it = &mut next.on_their_way[id];
            it.undone = 1;
            if it.has(Command::Enter) {
                it.send(Command::ReleaseBehind);
            }
        });
    }

    fn time_out(&mut self, id: Id) {
        self.step(Step::TimesOut(id), |next| {
            let client = &mut next.clients[owner(id)];
            client.is_fresh = true;
            match &mut client.phase {
                Phase::Waiting { refresh: call, .. } | Phase::Held { renewal: call, .. } => {
                    *call = None;
                }
                _ => {}
            }
        });
    }
}
