//! Every possible next step of a state.

use crate::rules::{CLIENTS, Flaw, GRANT, IDS, OLD, Rules};
use crate::state::{Command, Id, Listens, PLAIN, Phase, Refreshed, State, owner};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Tick,
    Runs(Command, Id),
    LosesReply(Command, Id),
    LosesCommand(Command, Id),
    ReadsEntered(Id, bool),
    ReadsRefreshed(Id, Refreshed),
    ReadsRenewed(Id, bool),
    ReadsReleased(Id, bool),
    ReadsGrant(Id),
    LosesGrant(Id),
    IsKilled(usize),
    IsStopped(usize),
    LosesSubscription(usize),
    Listens(usize),
    PlainTakes,
    PlainReleases,
    /// Without a message.
    PlainIsDeleted,
    Sends(Command, Id),
    /// An enter got no reply.
    GivesUp(Id),
    /// A refresh or renewal got no reply.
    TimesOut(Id),
}

/// How many commands may be on their way before another is sent.
const ROOM: u32 = 2;

pub(crate) struct Steps<'a, F> {
    pub(crate) state: &'a State,
    pub(crate) rules: &'a Rules,
    take: F,
}

/// Calls `take` with every step from `state`, and the state after it.
pub(crate) fn each_next(state: &State, rules: &Rules, take: impl FnMut(Step, State)) {
    let mut steps = Steps { state, rules, take };
    if !rules.is_prompt || !steps.is_anything_due() {
        steps.tick();
    }
    for id in 0..rules.clients * IDS {
        steps.network(id);
        steps.replies(id);
        steps.undo(id);
    }
    steps.plain();
    for client in 0..rules.clients {
        steps.faults(client);
        steps.client(client);
    }
}

fn older(age: u8) -> u8 {
    (age + 1).min(OLD)
}

impl<F: FnMut(Step, State)> Steps<'_, F> {
    pub(crate) fn step(&mut self, step: Step, act: impl FnOnce(&mut State)) {
        let mut next = *self.state;
        act(&mut next);
        next.tidy();
        (self.take)(step, next);
    }

    pub(crate) fn has_room(&self) -> bool {
        let sent = self.state.on_their_way.iter();
        sent.map(|it| it.commands.count_ones()).sum::<u32>() < ROOM
    }

    /// Whether something is on its way that arrives before the next tick in a prompt run.
    fn is_anything_due(&self) -> bool {
        let on_their_way = self.state.on_their_way.iter().enumerate();
        let mut arrives = on_their_way.map(|(id, it)| {
            let is_alive = self.state.phase(id) != Phase::Dead;
            let replies = it.entered.is_some()
                || it.refreshed.is_some()
                || it.renewed.is_some()
                || it.released.is_some();
            is_alive && it.commands != 0
                || replies
                || it.message
                || it.undone > 0 && !it.is_undo_sent
        });
        let mut acts = self.state.clients.iter().map(|client| {
            let is_moving = match client.phase {
                Phase::Waiting { refresh: call, .. } | Phase::Held { renewal: call, .. } => {
                    !client.is_fresh || call.is_some()
                }
                Phase::Out | Phase::Dead => false,
                _ => true,
            };
            let connects = matches!(client.listens, Listens::Soon | Listens::NotNow);
            is_moving || client.phase.wants() && connects || client.is_announced
        });
        arrives.any(|due| due) || acts.any(|due| due)
    }

    fn tick(&mut self) {
        let rules = self.rules;
        self.step(Step::Tick, |next| {
            next.left = next.left.saturating_sub(1);
            if next.left == 0 {
                next.holder = None;
                next.is_provisional = false;
            }
            for place in next.queue.iter_mut().flatten() {
                place.age = (place.age + 1).min(GRANT);
            }
            for client in &mut next.clients {
                client.is_fresh = false;
                match &mut client.phase {
                    Phase::Entering { age, .. } | Phase::Confirming { age, .. } => {
                        *age = older(*age)
                    }
                    Phase::Waiting { proof, refresh, .. } => {
                        *proof = older(*proof);
                        *refresh = refresh.map(older);
                    }
                    Phase::Held {
                        validity, renewal, ..
                    } => {
                        *validity -= 1;
                        *renewal = renewal.map(older);
                    }
                    _ => {}
                }
                if matches!(client.phase, Phase::Held { validity: 0, .. }) {
                    client.phase = Phase::Out;
                }
            }
            for it in &mut next.on_their_way {
                it.is_undo_sent = false;
                if it.undone > 0 {
                    it.undone += 1;
                }
                if it.undone > rules.ttl + 1 {
                    it.undone = 0;
                }
            }
            let waits = next.clients.iter().any(|client| client.phase.wants());
            let is_leased = next.holder.is_some() && !next.is_provisional;
            let is_held = is_leased || next.clients.iter().any(|client| client.phase.is_held());
            next.stall = match rules.is_prompt && waits && !is_held {
                true => next.stall + 1,
                false => 0,
            };
        });
    }

    fn network(&mut self, id: Id) {
        let rules = self.rules;
        for command in Command::ALL {
            let it = self.state.on_their_way[id];
            // A connection carries its commands in order.
            let is_behind = command == Command::ReleaseBehind && it.has(Command::Enter);
            if !it.has(command) || is_behind {
                continue;
            }
            self.step(Step::Runs(command, id), |next| {
                next.on_their_way[id].take(command);
                next.run(command, id, rules);
            });
            if self.state.losses == 0 {
                continue;
            }
            let lose = |next: &mut State| {
                next.losses -= 1;
                next.has_lost = true;
                next.on_their_way[id].take(command);
                if command == Command::Enter {
                    next.on_their_way[id].take(Command::ReleaseBehind);
                }
            };
            self.step(Step::LosesCommand(command, id), lose);
            self.step(Step::LosesReply(command, id), |next| {
                lose(next);
                next.run(command, id, rules);
                let it = &mut next.on_their_way[id];
                match command {
                    Command::Enter => it.entered = None,
                    Command::Refresh => it.refreshed = None,
                    Command::Renew => it.renewed = None,
                    Command::Release | Command::ReleaseBehind => it.released = None,
                }
            });
        }
        if self.state.on_their_way[id].message {
            self.step(Step::ReadsGrant(id), |next| {
                next.on_their_way[id].message = false;
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
                        granted(next, id, age);
                    }
                    // Nobody waits for it any more.
                    _ => next.on_their_way[id].send(Command::Release),
                }
            });
            if self.state.losses > 0 {
                self.step(Step::LosesGrant(id), |next| {
                    next.losses -= 1;
                    next.has_lost = true;
                    next.on_their_way[id].message = false;
                });
            }
        }
    }

    fn replies(&mut self, id: Id) {
        let ttl = self.rules.ttl;
        let held = |age: u8| match ttl.checked_sub(age).filter(|left| *left > 0) {
            Some(validity) => Phase::Held {
                id,
                validity,
                renewal: None,
            },
            None => Phase::Leaving { id },
        };
        let (it, phase) = (self.state.on_their_way[id], self.state.phase(id));
        if let (Some(is_granted), Phase::Entering { age, .. }) = (it.entered, phase) {
            self.step(Step::ReadsEntered(id, is_granted), |next| {
                next.on_their_way[id].entered = None;
                let client = &mut next.clients[owner(id)];
                client.is_fresh = true;
                client.phase = match is_granted {
                    true => held(age),
                    false => Phase::Waiting {
                        id,
                        proof: age,
                        refresh: None,
                    },
                };
            });
        }
        if let (Some(found), Phase::Waiting { proof, refresh, .. }) = (it.refreshed, phase) {
            self.step(Step::ReadsRefreshed(id, found), |next| {
                next.on_their_way[id].refreshed = None;
                let client = &mut next.clients[owner(id)];
                client.is_fresh = true;
                match found {
                    Refreshed::Granted => granted(next, id, proof),
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
        if let Some(is_ours) = it.renewed {
            self.step(Step::ReadsRenewed(id, is_ours), |next| {
                next.on_their_way[id].renewed = None;
                let client = &mut next.clients[owner(id)];
                client.is_fresh = true;
                client.phase = match client.phase {
                    Phase::Confirming { age, .. } if is_ours => held(age),
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
            });
        }
        if let Some(is_done) = it.released {
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

    /// The steps of a program that knows no queue.
    fn plain(&mut self) {
        if self.state.holder.is_none() && self.state.plain_holds > 0 {
            self.step(Step::PlainTakes, |next| {
                next.plain_holds -= 1;
                (next.holder, next.left, next.is_provisional) = (Some(PLAIN), 1, false);
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

    /// Sends the undo of an enter without a reply on another connection.
    fn undo(&mut self, id: Id) {
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

/// The client learns of a grant that may be as old as its last proof of waiting.
fn granted(next: &mut State, id: Id, proof: u8) {
    let client = &mut next.clients[owner(id)];
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

// The arrays of a state have room for this many clients.
const _: () = assert!(CLIENTS == 3);
