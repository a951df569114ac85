//! The possible next steps of a state.

use super::client::Steps;
use super::state::{Call, Command, Flaw, Found, Id, Member, OLD, Reply, Rules, State};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Tick,
    Runs(Command),
    /// The server runs a command, which will arrive a second time.
    RunsAgain(Command),
    ReplyIsLost(Command),
    ConnectionIsCut(Command),
    Replies(Reply),
    Message(Id),
    MessageIsLost(Id),
    Dies(usize),
    Sends(Command),
    GivesUp(Id),
}

/// Calls `act` with each possible next step.
pub(super) fn each_next(state: &State, rules: &Rules, mut act: impl FnMut(Step, State)) {
    if !is_something_due(state, rules) {
        act(Step::Tick, tick(state, rules));
    }
    for n in 0..state.connections.len() {
        let is_same = n > 0 && state.connections[n] == state.connections[n - 1];
        if !is_same {
            run_first(state, n, rules, &mut act);
        }
    }
    for n in 0..state.replies.len() {
        let mut next = state.clone();
        let reply = next.replies.remove(n);
        if reply.1 == Found::RanBefore {
            // Unless its permits may be those of a grant, it undoes the enter.
            let mut undone = next.clone();
            undone.clients[reply.0.id().client].call = Call::Leaving(reply.0.id());
            act(Step::GivesUp(reply.0.id()), undone);
        }
        receive(&mut next, reply, rules);
        act(Step::Replies(reply), next);
    }
    for n in 0..state.messages.len() {
        let mut next = state.clone();
        let id = next.messages.remove(n);
        if state.losses > 0 {
            let losses = state.losses - 1;
            let lost = State {
                losses,
                ..next.clone()
            };
            act(Step::MessageIsLost(id), lost);
        }
        if let Call::Waiting(_, age, _) = next.clients[id.client].call {
            let age = if rules.has(Flaw::ValidFromTheMessage) {
                0
            } else {
                age
            };
            take_grant(&mut next, id, rules.grant - age);
            act(Step::Message(id), next);
        }
    }
    for client in 0..state.clients.len() {
        let mut steps = Steps {
            state,
            rules,
            n: client,
            act: &mut act,
        };
        steps.each_next();
    }
}

/// In a prompt run: returns whether something must happen before the next tick.
fn is_something_due(state: &State, rules: &Rules) -> bool {
    if !rules.is_prompt {
        return false;
    }
    let lives = |command: &Command| state.clients[command.id().client].call != Call::Dead;
    let is_due = |call: Call, is_fresh: bool| match call {
        Call::Waiting(_, _, open) | Call::Holding(_, _, open) => !is_fresh || open.is_some(),
        Call::Entering(..) | Call::Confirming(..) | Call::Leaving(_) => true,
        Call::Out | Call::Dead => false,
    };
    let mut clients = state.clients.iter();
    state.connections.iter().flatten().any(lives)
        || !state.replies.is_empty()
        || !state.messages.is_empty()
        || clients.any(|client| is_due(client.call, client.is_fresh))
}

fn tick(state: &State, rules: &Rules) -> State {
    let mut next = state.clone();
    for member in &mut next.members {
        member.left = (member.left - 1).max(0);
    }
    for place in &mut next.queue {
        place.1 = (place.1 + 1).min(rules.grant);
    }
    let older = |age: i8| (age + 1).min(OLD);
    for client in &mut next.clients {
        client.is_fresh = false;
        client.call = match client.call {
            Call::Entering(id, age) => Call::Entering(id, older(age)),
            Call::Waiting(id, age, open) => Call::Waiting(id, older(age), open.map(older)),
            Call::Confirming(id, age) => Call::Confirming(id, older(age)),
            Call::Holding(_, ..=1, _) => Call::Out,
            Call::Holding(id, valid, open) => Call::Holding(id, valid - 1, open.map(older)),
            call => call,
        };
    }
    next.stall = if rules.is_prompt && is_stalled(&next, rules) {
        (next.stall + 1).min(50)
    } else {
        0
    };
    next
}

/// Returns whether the permits suffice for the first living waiter, for those that really hold
/// some, and for the leases of the dead.
fn is_stalled(state: &State, rules: &Rules) -> bool {
    let call = |id: Id| state.clients[id.client].call;
    let holds = |id: Id| matches!(call(id), Call::Holding(own, ..) if own == id);
    let waits = |id: Id| matches!(call(id), Call::Waiting(own, ..) if own == id);
    let real = state.members.iter();
    // A client that does not know of its permits does not use them.
    let is_used = |it: &Member| holds(it.id) || !it.is_provisional && !waits(it.id);
    let real = real.filter(|it| it.left > 0 && is_used(it));
    let taken: i8 = real.map(|member| rules.want(member.id)).sum();
    let mut queue = state.queue.iter().map(|place| place.0);
    let any = || {
        state.clients.iter().find_map(|client| match client.call {
            Call::Entering(id, _) | Call::Confirming(id, _) | Call::Waiting(id, ..) => Some(id),
            _ => None,
        })
    };
    let first = queue.find(|id| waits(*id)).or_else(any);
    first.is_some_and(|id| taken + rules.want(id) <= rules.permits[id.client])
}

/// Runs the first command of a connection, whose reply may be lost, or cuts it.
fn run_first(state: &State, n: usize, rules: &Rules, act: &mut impl FnMut(Step, State)) {
    let mut next = state.clone();
    let command = next.connections[n].remove(0);
    let found = next.run(command, rules);
    if state.repeats > 0 {
        let mut again = next.clone();
        again.repeats -= 1;
        again.connections[n].insert(0, command);
        act(Step::RunsAgain(command), again);
    }
    if state.losses > 0 {
        let losses = state.losses - 1;
        let lost = State {
            losses,
            ..next.clone()
        };
        act(Step::ReplyIsLost(command), lost);
        let mut cut = State {
            losses,
            ..state.clone()
        };
        cut.connections.remove(n);
        act(Step::ConnectionIsCut(command), cut);
    }
    next.replies.push((command, found));
    act(Step::Runs(command), next);
}

/// Takes a grant that is valid for so long; one that may have lapsed must be renewed first.
fn take_grant(state: &mut State, id: Id, valid: i8) {
    let client = &mut state.clients[id.client];
    client.is_fresh = false;
    client.call = match valid {
        1.. => Call::Holding(id, valid, None),
        _ => Call::Confirming(id, OLD),
    };
}

fn receive(state: &mut State, (command, found): Reply, rules: &Rules) {
    let id = command.id();
    let client = &mut state.clients[id.client];
    client.is_fresh = true;
    client.call = match (command, client.call, found) {
        (Command::Enter(_), Call::Entering(_, age), Found::Granted) if age < rules.ttl => {
            Call::Holding(id, rules.ttl - age, None)
        }
        (Command::Enter(_), Call::Entering(..), Found::Granted) => Call::Leaving(id),
        (Command::Enter(_), Call::Entering(_, age), _) => Call::Waiting(id, age, None),
        (Command::Refresh(_), Call::Waiting(_, _, Some(age)), Found::Waits) => {
            Call::Waiting(id, age, None)
        }
        (Command::Refresh(_), Call::Waiting(_, age, _), Found::Granted) => {
            return take_grant(state, id, rules.grant - age);
        }
        (Command::Renew(_), Call::Confirming(_, age), Found::Granted) if age < rules.ttl => {
            Call::Holding(id, rules.ttl - age, None)
        }
        (Command::Renew(_), Call::Confirming(..), Found::Granted) => Call::Leaving(id),
        (Command::Renew(_), Call::Holding(_, valid, Some(age)), Found::Granted) => {
            Call::Holding(id, valid.max(rules.ttl - age), None)
        }
        _ => Call::Out,
    };
}
