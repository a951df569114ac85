//! Every possible next step of a state.

use super::rules::{CLIENTS, Flaw, IDS, NAMES, Rules, Wants};
use super::state::{Ask, Has, Id, OnItsWay, Phase, Reply, State, owner};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Asks(Id, Ask),
    /// A set has kept the lower names for as long as it may, and asks to pass them on.
    ReachesCap(Id),
    Runs(Id),
    LosesAsk(Id),
    LosesReply(Id),
    /// The client stops waiting for the reply while the ask is still on its way.
    GivesUp(Id),
    Reads(Id, Reply),
    Undoes(Id),
    /// A plain call enters, and is granted the name if this is true.
    Enters(Id, bool),
    ReadsGrant(Id),
    Releases(Id),
    IsKilled(usize),
    /// A name that a dead client or a waiting set has in Redis expires.
    Expires(usize),
    /// The place of a dead client expires.
    PlaceEnds(Id),
    /// Only with [`Flaw::AsksInThreeScripts`]: a refused set passes one of its names on.
    PassesOn(Id),
    /// Only with [`Flaw::AsksInThreeScripts`]: a refused set without names queues.
    Joins(Id),
}

const NOTHING: Has = Has {
    at: None,
    lower: false,
};

/// Calls `take` with every step from `state`, and the state after it.
pub(super) fn each_next(state: &State, rules: &Rules, mut take: impl FnMut(Step, State)) {
    for client in 0..CLIENTS {
        match rules.wants[client] {
            Wants::Set(_) => set_steps(state, rules, client, &mut take),
            _ => plain_call_steps(state, rules, client, &mut take),
        }
        fault_steps(state, rules, client, &mut take);
    }
    for id in 0..CLIENTS * IDS {
        message_steps(state, rules, id, &mut take);
    }
}

/// Returns the client to which a step belongs; `None` for the expiry of a name.
pub(super) fn client_of(step: Step) -> Option<usize> {
    match step {
        Step::Asks(id, _)
        | Step::ReachesCap(id)
        | Step::Runs(id)
        | Step::LosesAsk(id)
        | Step::LosesReply(id)
        | Step::GivesUp(id)
        | Step::Reads(id, _)
        | Step::Undoes(id)
        | Step::Enters(id, _)
        | Step::ReadsGrant(id)
        | Step::Releases(id)
        | Step::PlaceEnds(id)
        | Step::PassesOn(id)
        | Step::Joins(id) => Some(owner(id)),
        Step::IsKilled(client) => Some(client),
        Step::Expires(_) => None,
    }
}

fn step(
    state: &State,
    step: Step,
    take: &mut impl FnMut(Step, State),
    act: impl FnOnce(&mut State),
) {
    let mut next = *state;
    act(&mut next);
    take(step, next);
}

/// Returns an id of the client that holds no name, is in no queue and has nothing on its way.
fn fresh_id(state: &State, client: usize) -> Option<Id> {
    (client * IDS..(client + 1) * IDS).find(|id| {
        let is_queued = (0..NAMES).any(|name| state.is_queued(*id, name));
        let is_there = is_queued || state.holders.contains(&Some(*id));
        !is_there && state.on_their_way[*id] == OnItsWay::default()
    })
}

fn ask(next: &mut State, id: Id, ask: Ask) {
    next.phases[owner(id)] = Phase::Asking(id, ask);
    next.on_their_way[id].ask = Some(ask);
}

/// The phase of a client that has released what it held.
fn after_release(rules: &Rules) -> Phase {
    match rules.once {
        true => Phase::Done,
        false => Phase::Out,
    }
}

fn set_steps(state: &State, rules: &Rules, client: usize, take: &mut impl FnMut(Step, State)) {
    match state.phases[client] {
        Phase::Out => {
            if let Some(id) = fresh_id(state, client) {
                let first = Ask {
                    has: NOTHING,
                    keeps: false,
                };
                step(state, Step::Asks(id, first), take, |next| {
                    ask(next, id, first);
                });
            }
        }
        Phase::Waiting(id, has) => {
            let is_granted = has.at.is_some_and(|at| state.holders[at] == Some(id));
            let again = Ask { has, keeps: true };
            if is_granted || rules.refreshes {
                step(state, Step::Asks(id, again), take, |next| {
                    ask(next, id, again);
                });
            }
            if has.lower && rules.has_cap {
                let place_only = Ask { has, keeps: false };
                step(state, Step::ReachesCap(id), take, |next| {
                    ask(next, id, place_only);
                });
            }
        }
        Phase::Held(id) => step(state, Step::Releases(id), take, |next| {
            next.phases[client] = after_release(rules);
            next.run_release(id, rules, false);
        }),
        Phase::Passing(id, refused) => {
            let held = (0..NAMES).find(|name| state.holders[*name] == Some(id));
            match held {
                Some(name) => step(state, Step::PassesOn(id), take, |next| next.pass_on(name)),
                None => step(state, Step::Joins(id), take, |next| {
                    next.run_enter(id, refused);
                    next.phases[client] = Phase::Waiting(id, place_at(refused));
                }),
            }
        }
        _ => {}
    }
}

fn place_at(name: usize) -> Has {
    Has {
        at: Some(name),
        lower: false,
    }
}

fn plain_call_steps(
    state: &State,
    rules: &Rules,
    client: usize,
    take: &mut impl FnMut(Step, State),
) {
    let (Wants::Name(name) | Wants::Nested(name, _)) = rules.wants[client] else {
        return;
    };
    let mut enter = |id: Id, name: usize, granted: Phase, refused: Phase| {
        let mut next = *state;
        let is_granted = next.run_enter(id, name);
        next.phases[client] = if is_granted { granted } else { refused };
        take(Step::Enters(id, is_granted), next);
    };
    match (state.phases[client], rules.wants[client]) {
        (Phase::Out, _) => {
            if let Some(id) = fresh_id(state, client) {
                let waiting = Phase::Waiting(id, place_at(name));
                enter(id, name, Phase::Held(id), waiting);
            }
        }
        (Phase::Waiting(id, _), _) if state.holders[name] == Some(id) => {
            step(state, Step::ReadsGrant(id), take, |next| {
                next.phases[client] = Phase::Held(id);
            });
        }
        (Phase::Held(id), Wants::Nested(_, inner)) => {
            // A client has two ids: this is the other one.
            let other = id ^ 1;
            let waiting = Phase::HeldAndWaiting(id, other);
            enter(other, inner, Phase::HeldTwice(id, other), waiting);
        }
        (Phase::HeldAndWaiting(id, other), Wants::Nested(_, inner))
            if state.holders[inner] == Some(other) =>
        {
            step(state, Step::ReadsGrant(other), take, |next| {
                next.phases[client] = Phase::HeldTwice(id, other);
            });
        }
        (Phase::Held(id) | Phase::HeldTwice(id, _), _) => {
            step(state, Step::Releases(id), take, |next| {
                next.phases[client] = after_release(rules);
                next.run_release(id, rules, false);
                if let Phase::HeldTwice(_, other) = state.phases[client] {
                    next.run_release(other, rules, false);
                }
            });
        }
        _ => {}
    }
}

fn fault_steps(state: &State, rules: &Rules, client: usize, take: &mut impl FnMut(Step, State)) {
    let phase = state.phases[client];
    if state.kills > 0 && !matches!(phase, Phase::Out | Phase::Done | Phase::Dead) {
        step(state, Step::IsKilled(client), take, |next| {
            next.kills -= 1;
            next.phases[client] = Phase::Dead;
            for it in &mut next.on_their_way[client * IDS..(client + 1) * IDS] {
                it.reply = None;
                it.is_undone = false;
            }
        });
    }
    let ids = client * IDS..(client + 1) * IDS;
    for name in 0..NAMES {
        let is_ours = |id: &Id| state.holders[name] == Some(*id);
        let is_kept = match phase {
            Phase::Waiting(id, has) | Phase::Asking(id, Ask { has, .. }) => {
                // Nothing expires between the run of an ask and the reading of its reply: the
                // client would notice that by its clock, which the model does not have.
                is_ours(&id) && has.at.is_some() && state.on_their_way[id].reply.is_none()
            }
            _ => false,
        };
        let is_kept = is_kept && matches!(rules.wants[client], Wants::Set(_));
        let is_dead = phase == Phase::Dead && ids.clone().any(|id| is_ours(&id));
        if is_dead || is_kept && state.expiries > 0 {
            step(state, Step::Expires(name), take, |next| {
                next.expiries -= u8::from(!is_dead);
                next.pass_on(name);
            });
        }
        for id in ids.clone() {
            if phase == Phase::Dead && state.is_queued(id, name) {
                step(state, Step::PlaceEnds(id), take, |next| {
                    next.leave(id, name);
                });
            }
        }
    }
}

fn message_steps(state: &State, rules: &Rules, id: Id, take: &mut impl FnMut(Step, State)) {
    let it = state.on_their_way[id];
    let client = owner(id);
    let is_awaited = matches!(state.phases[client], Phase::Asking(by, _) if by == id);
    if let Some(ask) = it.ask {
        step(state, Step::Runs(id), take, |next| {
            next.on_their_way[id].ask = None;
            let reply = next.run_ask(id, ask, rules);
            next.on_their_way[id].reply = Some(reply).filter(|_| is_awaited);
        });
    }
    if state.losses > 0 && is_awaited {
        let gives_up = |next: &mut State| {
            next.losses -= 1;
            next.phases[client] = Phase::Out;
            next.on_their_way[id].reply = None;
            next.on_their_way[id].is_undone = true;
        };
        if it.ask.is_some() {
            step(state, Step::LosesAsk(id), take, |next| {
                gives_up(next);
                next.on_their_way[id].ask = None;
            });
            step(state, Step::GivesUp(id), take, gives_up);
        }
        if it.reply.is_some() {
            step(state, Step::LosesReply(id), take, gives_up);
        }
    }
    if it.is_undone {
        step(state, Step::Undoes(id), take, |next| {
            let has_found = next.run_release(id, rules, true);
            // A client repeats an undo for the length of the ttl, until it finds something. The
            // model assumes that an ask arrives within that time or never. So here the undo is
            // repeated while the ask is on its way.
            next.on_their_way[id].is_undone = !has_found && it.ask.is_some();
        });
    }
    if let (Some(reply), true) = (it.reply, is_awaited) {
        step(state, Step::Reads(id, reply), take, |next| {
            next.on_their_way[id].reply = None;
            next.phases[client] = match reply {
                Reply::Granted => Phase::Held(id),
                Reply::Queued(has) => Phase::Waiting(id, has),
                Reply::Gone => Phase::Out,
                Reply::Refused(name) => {
                    assert!(rules.has(Flaw::AsksInThreeScripts));
                    Phase::Passing(id, name)
                }
            };
        });
    }
}
