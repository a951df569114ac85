//! The network: commands and grant messages run, arrive, or are lost.

use super::phase::Phase;
use super::rules::Flaw;
use super::state::{Id, State, owner};
use super::steps::{Step, Steps};
use super::wire::Command;

impl<F: FnMut(Step, State)> Steps<'_, F> {
    /// The commands of a holder id that are on their way.
    pub(super) fn network(&mut self, id: Id) {
        let it = self.state.on_their_way[id];
        for command in Command::ALL {
            // A connection carries its commands in order.
            let is_behind = command == Command::ReleaseBehind && it.asks();
            if it.has(command) && !is_behind {
                self.run(command, id);
            }
        }
    }

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
                next.on_their_way[id].lose_reply(command);
            });
        }
        if self.state.losses == 0 {
            return;
        }
        let lose = |next: &mut State| {
            next.lose_something();
            next.on_their_way[id].take(command);
            if command.asks() {
                next.on_their_way[id].take(Command::ReleaseBehind);
            }
        };
        self.step(Step::LosesCommand(command, id), lose);
        self.step(Step::LosesReply(command, id), |next| {
            lose(next);
            next.run(command, id, rules);
            next.on_their_way[id].lose_reply(command);
        });
    }

    /// A message that the lock was granted to a holder id.
    pub(super) fn grant_message(&mut self, id: Id) {
        let Some(mut tokens) = self.state.on_their_way[id].message else {
            return;
        };
        let rules = self.rules;
        self.step(Step::ReadsGrant(id), |next| {
            next.on_their_way[id].message = None;
            match next.phase(id) {
                Phase::Waiting {
                    id: by, proof: age, ..
                }
                | Phase::Entering { id: by, age }
                    if by == id =>
                {
                    let age = match rules.has(Flaw::ValidFromTheMessage) {
                        true => 0,
                        false => age,
                    };
                    if rules.has(Flaw::TakesWhatItWantsNow) {
                        tokens.count = next.clients[owner(id)].block(rules);
                    }
                    next.learn_grant(id, age, tokens, rules);
                }
                // Nobody waits for it any more.
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

    /// Sends the undo of an enter without a reply on another connection.
    pub(super) fn undo(&mut self, id: Id) {
        let it = self.state.on_their_way[id];
        let is_over = it.undone == 0 || it.has(Command::Release) || it.released.is_some();
        if is_over || !self.has_room() || self.rules.is_prompt && it.is_undo_sent {
            return;
        }
        let is_prompt = self.rules.is_prompt;
        self.step(Step::Sends(Command::Release, id), |next| {
            next.on_their_way[id].is_undo_sent = is_prompt;
            next.on_their_way[id].send(Command::Release);
        });
    }
}
