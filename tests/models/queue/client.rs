//! The commands that a client sends.

use super::rules::{Flaw, IDS, OLD};
use super::state::{Client, Id, Listens, Phase, State, owner};
use super::steps::{Step, Steps};
use super::wire::Command;

impl<F: FnMut(Step, State)> Steps<'_, F> {
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
    pub(super) fn client(&mut self, n: usize) {
        match self.state.clients[n].phase {
            Phase::Out => {
                if let Some(id) = self.fresh_id(n) {
                    self.send(Command::Enter, id, Phase::Entering { id, age: 0 });
                }
            }
            Phase::Entering { id, .. } => {
                if !self.rules.is_prompt || self.is_lost(Command::Enter, id) {
                    self.give_up(id);
                }
            }
            Phase::Waiting { id, proof, refresh } => self.wait(id, proof, refresh),
            Phase::Confirming { id, age } => {
                let is_due = age == OLD || self.rules.is_prompt;
                if is_due && self.is_lost(Command::Renew, id) {
                    self.send(Command::Renew, id, Phase::Confirming { id, age: 0 });
                } else if !self.rules.is_prompt {
                    self.send(Command::Release, id, Phase::Leaving { id });
                }
            }
            Phase::Held {
                id,
                validity,
                renewal,
            } => self.hold(id, validity, renewal),
            Phase::Leaving { id } => {
                if self.is_lost(Command::Release, id) {
                    self.send(Command::Release, id, Phase::Leaving { id });
                }
            }
            Phase::Dead => {}
        }
    }

    fn wait(&mut self, id: Id, proof: u8, refresh: Option<u8>) {
        let client = self.state.clients[owner(id)];
        let is_prompt = self.rules.is_prompt;
        if refresh.is_some() && self.is_lost(Command::Refresh, id) {
            self.time_out(id);
        }
        let is_due = self.may_call(client) || is_prompt && client.is_announced;
        let is_soon = is_prompt && client.listens == Listens::Soon;
        if refresh.is_none() && is_due && !is_soon {
            let refresh = Some(0);
            self.send(Command::Refresh, id, Phase::Waiting { id, proof, refresh });
        }
        if !is_prompt {
            self.send(Command::Release, id, Phase::Leaving { id });
        }
    }

    fn hold(&mut self, id: Id, validity: u8, renewal: Option<u8>) {
        let client = self.state.clients[owner(id)];
        if renewal.is_some() && self.rules.is_prompt && self.is_lost(Command::Renew, id) {
            self.time_out(id);
        }
        if renewal.is_none() && self.may_call(client) {
            let held = Phase::Held {
                id,
                validity,
                renewal: Some(0),
            };
            self.send(Command::Renew, id, held);
        }
        self.send(Command::Release, id, Phase::Leaving { id });
    }

    /// Whether a client may refresh or renew now.
    fn may_call(&self, client: Client) -> bool {
        match self.rules.is_prompt {
            true => !client.is_fresh,
            false => client.calls < self.rules.calls,
        }
    }

    /// Whether a command is not on its way, nor its reply.
    fn is_lost(&self, command: Command, id: Id) -> bool {
        let it = self.state.on_their_way[id];
        !it.has(command) && !it.has_reply(command)
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
