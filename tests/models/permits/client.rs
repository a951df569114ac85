//! The commands that a client sends by itself.

use super::state::{Call, Client, Command, Flaw, Id, OLD, Rules, State};
use super::steps::Step;

/// How many connections carry commands at a time.
const CONNECTIONS: usize = 2;

/// One client, and its possible next steps.
pub(super) struct Steps<'a, F> {
    pub(super) state: &'a State,
    pub(super) rules: &'a Rules,
    pub(super) n: usize,
    pub(super) act: F,
}

impl<F: FnMut(Step, State)> Steps<'_, F> {
    fn client(&self) -> &Client {
        &self.state.clients[self.n]
    }

    pub(super) fn each_next(&mut self) {
        let (rules, client) = (self.rules, self.client().clone());
        if self.state.deaths > 0 && !matches!(client.call, Call::Dead | Call::Out) {
            let mut next = self.changed(Call::Dead);
            next.deaths -= 1;
            (self.act)(Step::Dies(self.n), next);
        }
        match client.call {
            Call::Out if client.entries < rules.entries => {
                let entry = if rules.has(Flaw::IdUsedTwice) {
                    0
                } else {
                    client.entries
                };
                let id = Id {
                    client: self.n,
                    entry,
                };
                self.send(Command::Enter(id), Call::Entering(id, 0));
            }
            Call::Entering(id, _) if !rules.is_prompt || self.is_lost(Command::Enter(id)) => {
                self.give_up_enter(id);
            }
            Call::Waiting(id, age, open) => self.wait(id, age, open),
            Call::Confirming(id, age) => self.confirm(id, age),
            Call::Holding(id, valid, open) => self.hold(id, valid, open),
            Call::Leaving(id) if !self.state.is_open(Command::Leave(id)) => {
                self.send(Command::Leave(id), Call::Leaving(id));
            }
            _ => {}
        }
    }

    fn changed(&self, call: Call) -> State {
        let mut next = self.state.clone();
        next.clients[self.n].call = call;
        next
    }

    /// The client sends a command on a connection of its own, and its call becomes `call`.
    fn send(&mut self, command: Command, call: Call) {
        self.send_as(Step::Sends(command), command, call);
    }

    fn send_as(&mut self, step: Step, command: Command, call: Call) {
        if self.state.connections.len() >= CONNECTIONS {
            return;
        }
        let mut next = self.changed(call);
        next.connections.push(vec![command]);
        let client = &mut next.clients[self.n];
        match (command, call) {
            (Command::Enter(_), _) => client.entries += 1,
            (Command::Refresh(_), _) | (Command::Renew(_), Call::Holding(..)) => {
                client.calls += u8::from(!self.rules.is_prompt);
            }
            _ => {}
        }
        (self.act)(step, next);
    }

    /// Whether a command will get no reply. Only the clients of prompt runs know that.
    fn is_lost(&self, command: Command) -> bool {
        self.rules.is_prompt && !self.state.is_open(command)
    }

    /// Whether the client may refresh or renew now.
    fn may_call(&self) -> bool {
        if self.rules.is_prompt {
            !self.client().is_fresh
        } else {
            self.client().calls < self.rules.calls
        }
    }

    /// The undo is sent behind the enter if that is still on its way.
    fn give_up_enter(&mut self, id: Id) {
        let mut next = self.changed(Call::Leaving(id));
        let connections = next.connections.iter_mut();
        let mut behind = connections.filter(|it| it.contains(&Command::Enter(id)));
        match behind.next() {
            Some(connection) => connection.push(Command::Leave(id)),
            None => next.connections.push(vec![Command::Leave(id)]),
        }
        (self.act)(Step::GivesUp(id), next);
    }

    /// The client gives up a place or a grant.
    fn leave(&mut self, id: Id) {
        if !self.rules.is_prompt {
            self.send_as(Step::GivesUp(id), Command::Leave(id), Call::Leaving(id));
        }
    }

    /// The client waits no longer for the reply to a refresh or a renewal.
    fn time_out(&mut self, id: Id, call: Call) {
        let mut next = self.changed(call);
        next.clients[self.n].is_fresh = true;
        (self.act)(Step::GivesUp(id), next);
    }

    fn wait(&mut self, id: Id, age: i8, open: Option<i8>) {
        let refresh = Command::Refresh(id);
        if open.is_none() && self.may_call() {
            self.send(refresh, Call::Waiting(id, age, Some(0)));
        }
        let never_comes = !self.rules.is_prompt && !self.state.is_sent(refresh);
        if open.is_some() && (self.is_lost(refresh) || never_comes) {
            self.time_out(id, Call::Waiting(id, age, None));
        }
        self.leave(id);
    }

    fn confirm(&mut self, id: Id, age: i8) {
        let renew = Command::Renew(id);
        let is_due = age == OLD || self.rules.is_prompt;
        if is_due && !self.state.is_open(renew) {
            self.send(renew, Call::Confirming(id, 0));
        } else {
            self.leave(id);
        }
    }

    fn hold(&mut self, id: Id, valid: i8, open: Option<i8>) {
        let renew = Command::Renew(id);
        if open.is_none() && self.may_call() {
            self.send(renew, Call::Holding(id, valid, Some(0)));
        }
        if open.is_some() && self.is_lost(renew) {
            self.time_out(id, Call::Holding(id, valid, None));
        }
        self.send(Command::Leave(id), Call::Leaving(id));
    }
}
