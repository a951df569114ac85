//! The steps of the network: commands run or are lost, and grant messages are read or lost.

use super::phase::Phase;
use super::rules::Flaw;
use super::state::{Id, State, owner};
use super::steps::{Step, Steps};
use super::wire::Command;

impl<F: FnMut(Step, State)> Steps<'_, F> {
    /// The steps of all commands with this holder id that are on their way.
    pub(super) fn network(&mut self, id: Id) {
        let it = self.state.on_their_way[id];
        for command in Command::ALL {
            // This undo follows its acquire or enter on the same connection, so it runs later.
            let must_wait = command == Command::ReleaseBehind && it.asks();
            if it.has(command) && !must_wait {
                self.run(command, id);
            }
        }
    }

    /// The server runs a command once or twice, or the network loses the command or its reply.
    fn run(&mut self, command: Command, id: Id) {
        let rules = self.rules;
        self.step(Step::Runs(command, id), |next| {
            next.on_their_way[id].take(command);
            next.run(command, id, rules);
        });
        if self.state.repeats > 0 {
            self.step(Step::RunsAgain(command, id), |next| {
                next.repeats -= 1;
                next.run(command, id, rules);
                // The client reads only the reply to the second run.
                next.on_their_way[id].lose_reply(command);
            });
        }
        if self.state.losses == 0 {
            return;
        }
        let cut_connection = |next: &mut State| {
            next.lose_something();
            next.on_their_way[id].take(command);
            // The connection breaks: the undo behind the command is lost, too.
            if command.asks() {
                next.on_their_way[id].take(Command::ReleaseBehind);
            }
        };
        self.step(Step::LosesCommand(command, id), cut_connection);
        self.step(Step::LosesReply(command, id), |next| {
            cut_connection(next);
            next.run(command, id, rules);
            next.on_their_way[id].lose_reply(command);
        });
    }

    /// The client reads the message that grants the lock to a holder id, or the message is lost.
    pub(super) fn grant_message(&mut self, id: Id) {
        let Some(mut tokens) = self.state.on_their_way[id].message else {
            return;
        };
        let rules = self.rules;
        self.step(Step::ReadsGrant(id), |next| {
            next.on_their_way[id].message = None;
            match next.phase(id) {
                Phase::Waiting {
                    id: own,
                    proof: age,
                    ..
                }
                | Phase::Entering { id: own, age }
                    if own == id =>
                {
                    let age = if rules.has(Flaw::ValidFromTheMessage) {
                        0
                    } else {
                        age
                    };
                    if rules.has(Flaw::TakesWhatItWantsNow) {
                        tokens.count = next.clients[owner(id)].block(rules);
                    }
                    next.learn_grant(id, age, tokens, rules);
                }
                // No call waits under this id any more: the client releases the lock.
                _ => next.on_their_way[id].send(Command::Release),
            }
        });
        if self.state.losses > 0 {
            self.step(Step::LosesGrant(id), |next| {
                next.lose_something();
                next.on_their_way[id].message = None;
            });
        }
    }

    /// Sends the undo of an abandoned acquire or enter, on another connection than that command.
    pub(super) fn undo(&mut self, id: Id) {
        let it = self.state.on_their_way[id];
        let is_under_way = it.has(Command::Release) || it.released.is_some();
        let was_just_sent = self.rules.is_prompt && it.is_undo_sent;
        if it.undone == 0 || is_under_way || was_just_sent || !self.has_room() {
            return;
        }
        let is_prompt = self.rules.is_prompt;
        self.step(Step::Sends(Command::Release, id), |next| {
            next.on_their_way[id].is_undo_sent = is_prompt;
            next.on_their_way[id].send(Command::Release);
        });
    }
}
