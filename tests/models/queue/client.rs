//! The commands that a client sends.

use super::phase::Phase;
use super::rules::{Flaw, IDS, OLD, Rules};
use super::state::{Client, Id, Kind, Listens, State, owner};
use super::steps::{Step, Steps};
use super::wire::{Command, Tokens};

impl Client {
    /// How many tokens the client wants: a block if other threads wait.
    pub(super) fn block(self, rules: &Rules) -> u8 {
        if rules.has_tokens {
            1 + self.waiting.min(1)
        } else {
            0
        }
    }
}

impl<F: FnMut(Step, State)> Steps<'_, F> {
    fn send(&mut self, command: Command, id: Id, phase: Phase) {
        let rules = self.rules;
        if !self.has_room() || self.state.on_their_way[id].has(command) {
            return;
        }
        self.step(Step::Sends(command, id), |next| {
            let client = &mut next.clients[owner(id)];
            let before = client.phase;
            client.phase = phase;
            if command == Command::Enter {
                client.goes_behind = false;
            }
            if before == Phase::Out {
                client.entries += u8::from(rules.entries < u8::MAX);
                client.waiting = client.waiting.saturating_sub(1);
            } else if !rules.is_prompt && (command.wants() || command == Command::Renew) {
                client.calls += 1;
            }
            if command.asks() {
                client.is_fresh = true;
            }
            if command == Command::Refresh || matches!(before, Phase::Sleeping { .. }) {
                client.is_announced = false;
            }
            let block = client.block(rules);
            let it = &mut next.on_their_way[id];
            it.send(command);
            if command.wants() {
                it.asked = block;
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
        let next = if self.rules.has(Flaw::IdUsedTwice) {
            0
        } else {
            usize::from(entries)
        };
        ids.nth(next).filter(|_| entries < self.rules.entries)
    }

    fn begin(&mut self, id: Id) {
        let client = self.state.clients[owner(id)];
        let tries = self.rules.tries_first
            && client.kind != Kind::Fair
            && (!client.goes_behind || self.rules.has(Flaw::TriesBeforeOthers));
        if tries || client.kind == Kind::Broadcast {
            self.send(Command::Acquire, id, Phase::Trying { id, age: 0 })
        } else {
            self.send(Command::Enter, id, Phase::Entering { id, age: 0 })
        }
    }

    /// The steps that a client takes without a reply or a message.
    pub(super) fn client(&mut self, n: usize) {
        match self.state.clients[n].phase {
            Phase::Out => {
                if let Some(id) = self.fresh_id(n) {
                    self.begin(id);
                }
            }
            Phase::Trying { id, .. } | Phase::Entering { id, .. } => {
                let is_lost = || {
                    Command::ALL
                        .iter()
                        .all(|it| !it.asks() || self.is_lost(*it, id))
                };
                if !self.rules.is_prompt || is_lost() {
                    self.give_up(id);
                }
            }
            Phase::Sleeping { id } => {
                let client = self.state.clients[n];
                if self.may_call(client) || client.is_announced {
                    self.send(Command::Acquire, id, Phase::Trying { id, age: 0 });
                }
            }
            Phase::Waiting { id, proof, refresh } => self.wait(id, proof, refresh),
            Phase::Confirming { id, age, tokens } => {
                let is_due = age == OLD || self.rules.is_prompt;
                if is_due && self.is_lost(Command::Renew, id) {
                    let phase = Phase::Confirming { id, age: 0, tokens };
                    self.send(Command::Renew, id, phase);
                } else if !self.rules.is_prompt {
                    self.send(Command::Release, id, Phase::Leaving { id });
                }
            }
            Phase::Held {
                id,
                validity,
                renewal,
                tokens,
            } => {
                self.renew(id, validity, renewal, tokens);
                self.leave(id, tokens);
            }
            Phase::Leaving { id } => {
                let releases = [Command::Release, Command::ReleasePlain];
                if releases.iter().all(|release| self.is_lost(*release, id)) {
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
        let other = id ^ 1;
        if self.rules.has(Flaw::PlacedClientTries) && !self.state.is_queued(other) {
            self.send(Command::Acquire, other, Phase::Trying { id: other, age: 0 });
        }
    }

    fn renew(&mut self, id: Id, validity: u8, renewal: Option<u8>, tokens: Tokens) {
        let client = self.state.clients[owner(id)];
        if renewal.is_some() && self.rules.is_prompt && self.is_lost(Command::Renew, id) {
            self.time_out(id);
        }
        if renewal.is_none() && self.may_call(client) {
            let held = Phase::Held {
                id,
                validity,
                renewal: Some(0),
                tokens,
            };
            self.send(Command::Renew, id, held);
        }
    }

    /// A holder hands the lock to the next thread of its client, or releases it.
    fn leave(&mut self, id: Id, tokens: Tokens) {
        let (rules, client) = (self.rules, self.state.clients[owner(id)]);
        if client.waiting > 0 && tokens.count > 1 {
            self.step(Step::HandsOff(id), |next| {
                let client = &mut next.clients[owner(id)];
                client.waiting -= 1;
                if let Phase::Held { tokens, .. } = &mut client.phase {
                    tokens.first += 1;
                    tokens.count -= 1;
                }
                next.use_token(tokens.first + 1, rules);
            });
        }
        self.send(Command::Release, id, Phase::Leaving { id });
        if self.state.plain_releases > 0 && client.kind == Kind::Lock {
            self.send(Command::ReleasePlain, id, Phase::Leaving { id });
        }
    }

    /// Another thread of the client wants the lock.
    pub(super) fn arrival(&mut self, n: usize) {
        let client = self.state.clients[n];
        if client.arriving == 0 || matches!(client.phase, Phase::Out | Phase::Dead) {
            return;
        }
        self.step(Step::AnotherWants(n), |next| {
            let client = &mut next.clients[n];
            client.arriving -= 1;
            client.waiting += 1;
        });
    }

    /// Whether a client may refresh or renew now.
    fn may_call(&self, client: Client) -> bool {
        if self.rules.is_prompt {
            !client.is_fresh
        } else {
            client.calls < self.rules.calls
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
            if it.asks() {
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
