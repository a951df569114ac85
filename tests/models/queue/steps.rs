//! Every possible next step of a state.

use super::phase::Phase;
use super::rules::{CLIENTS, GRANT, IDS, Rules};
use super::state::{Id, Listens, State};
use super::wire::{Command, Entered, Refreshed, Released};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Tick,
    Runs(Command, Id),
    LosesReply(Command, Id),
    LosesCommand(Command, Id),
    /// The server runs a command, which will arrive a second time.
    RunsAgain(Command, Id),
    ReadsEntered(Id, Entered),
    ReadsRefreshed(Id, Refreshed),
    ReadsRenewed(Id, bool),
    ReadsReleased(Id, Released),
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
    KeyIsDeleted,
    AnotherWants(usize),
    /// The next thread of the client holds.
    HandsOff(Id),
    Sends(Command, Id),
    /// An enter got no reply.
    GivesUp(Id),
    /// A refresh or renewal got no reply.
    TimesOut(Id),
}

/// How many commands may be on their way before another is sent.
const ROOM: u32 = 2;

pub(super) struct Steps<'a, F> {
    pub(super) state: &'a State,
    pub(super) rules: &'a Rules,
    take: F,
}

/// Calls `take` with every step from `state`, and the state after it.
pub(super) fn each_next(state: &State, rules: &Rules, take: impl FnMut(Step, State)) {
    let mut steps = Steps { state, rules, take };
    if !rules.is_prompt || !steps.is_anything_due() {
        steps.tick();
    }
    for id in 0..rules.clients * IDS {
        steps.network(id);
        steps.grant_message(id);
        steps.replies(id);
        steps.undo(id);
    }
    steps.plain();
    for client in 0..rules.clients {
        steps.deaths(client);
        steps.subscription(client);
        steps.client(client);
        steps.arrival(client);
    }
}

impl<F: FnMut(Step, State)> Steps<'_, F> {
    pub(super) fn step(&mut self, step: Step, act: impl FnOnce(&mut State)) {
        let mut next = *self.state;
        act(&mut next);
        next.tidy();
        (self.take)(step, next);
    }

    pub(super) fn has_room(&self) -> bool {
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
                || it.message.is_some()
                || it.undone > 0 && !it.is_undo_sent
        });
        let mut acts = self.state.clients.iter().map(|client| {
            let is_moving = match client.phase {
                Phase::Waiting { refresh: call, .. } | Phase::Held { renewal: call, .. } => {
                    !client.is_fresh || call.is_some()
                }
                Phase::Sleeping { .. } => !client.is_fresh,
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
                client.phase = client.phase.older();
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
            next.stall = if rules.is_prompt && waits && !is_held {
                next.stall + 1
            } else {
                0
            };
        });
    }
}

// The arrays of a state have room for this many clients.
const _: () = assert!(CLIENTS == 3);
