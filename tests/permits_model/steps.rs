//! The possible next steps of a state.

use crate::state::{Call, Command, Flaw, Found, Id, OLD, Reply, Rules, State};

/// How many connections carry commands at a time.
const CONNECTIONS: usize = 2;

#[derive(Clone, Copy, Debug)]
#[expect(dead_code, reason = "the fields are printed")]
pub(crate) enum Step {
    Tick,
    Runs(Command),
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
pub(crate) fn each_next(state: &State, rules: &Rules, mut act: impl FnMut(Step, State)) {
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
        client_steps(state, client, rules, &mut act);
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
    next.stall = match rules.is_prompt && is_stalled(&next, rules) {
        true => (next.stall + 1).min(50),
        false => 0,
    };
    next
}

/// Returns whether the first living waiter would fit beside those that really hold permits, and
/// beside the leases of the dead.
fn is_stalled(state: &State, rules: &Rules) -> bool {
    let call = |id: Id| state.clients[id.client].call;
    let holds = |id: Id| matches!(call(id), Call::Holding(own, ..) if own == id);
    let waits = |id: Id| matches!(call(id), Call::Waiting(own, ..) if own == id);
    let real = state.members.iter();
    let real = real.filter(|it| it.left > 0 && (!it.is_provisional || holds(it.id)));
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

/// The steps that a client takes by itself.
fn client_steps(state: &State, n: usize, rules: &Rules, act: &mut impl FnMut(Step, State)) {
    let client = &state.clients[n];
    let has_room = state.connections.len() < CONNECTIONS;
    let may_call = match rules.is_prompt {
        true => !client.is_fresh,
        false => client.calls < rules.calls,
    };
    let changed = |call: Call| {
        let mut next = state.clone();
        next.clients[n].call = call;
        next
    };
    let sending = |call: Call, command: Command| {
        let mut next = changed(call);
        next.connections.push(vec![command]);
        next
    };
    let calling = |call: Call, command: Command| {
        let mut next = sending(call, command);
        next.clients[n].calls += u8::from(!rules.is_prompt);
        next
    };
    // No reply comes any more.
    let is_lost = |command: Command| rules.is_prompt && !state.is_open(command);
    if state.deaths > 0 && !matches!(client.call, Call::Dead | Call::Out) {
        let mut next = changed(Call::Dead);
        next.deaths -= 1;
        act(Step::Dies(n), next);
    }
    match client.call {
        Call::Out if client.entries < rules.entries && has_room => {
            let entry = if rules.has(Flaw::IdUsedTwice) {
                0
            } else {
                client.entries
            };
            let id = Id { client: n, entry };
            let mut next = sending(Call::Entering(id, 0), Command::Enter(id));
            next.clients[n].entries += 1;
            act(Step::Sends(Command::Enter(id)), next);
        }
        Call::Entering(id, _) if !rules.is_prompt || is_lost(Command::Enter(id)) => {
            // The undo is sent behind the enter if that is still on its way.
            let mut next = changed(Call::Leaving(id));
            let connections = next.connections.iter_mut();
            let mut behind = connections.filter(|it| it.contains(&Command::Enter(id)));
            match behind.next() {
                Some(connection) => connection.push(Command::Leave(id)),
                None => next.connections.push(vec![Command::Leave(id)]),
            }
            act(Step::GivesUp(id), next);
        }
        Call::Waiting(id, age, open) => {
            let refresh = Command::Refresh(id);
            if open.is_none() && has_room && may_call {
                act(
                    Step::Sends(refresh),
                    calling(Call::Waiting(id, age, Some(0)), refresh),
                );
            }
            let times_out = is_lost(refresh) || !rules.is_prompt && !state.is_sent(refresh);
            if open.is_some() && times_out {
                let mut next = changed(Call::Waiting(id, age, None));
                next.clients[n].is_fresh = true;
                act(Step::GivesUp(id), next);
            }
            if has_room && !rules.is_prompt {
                act(
                    Step::GivesUp(id),
                    sending(Call::Leaving(id), Command::Leave(id)),
                );
            }
        }
        Call::Confirming(id, age) => {
            let renew = Command::Renew(id);
            if has_room && (age == OLD || rules.is_prompt) && !state.is_open(renew) {
                act(Step::Sends(renew), sending(Call::Confirming(id, 0), renew));
            } else if has_room && !rules.is_prompt {
                act(
                    Step::GivesUp(id),
                    sending(Call::Leaving(id), Command::Leave(id)),
                );
            }
        }
        Call::Holding(id, valid, open) => {
            let renew = Command::Renew(id);
            if open.is_none() && has_room && may_call {
                act(
                    Step::Sends(renew),
                    calling(Call::Holding(id, valid, Some(0)), renew),
                );
            }
            if open.is_some() && is_lost(renew) {
                let mut next = changed(Call::Holding(id, valid, None));
                next.clients[n].is_fresh = true;
                act(Step::GivesUp(id), next);
            }
            if has_room {
                act(
                    Step::Sends(Command::Leave(id)),
                    sending(Call::Leaving(id), Command::Leave(id)),
                );
            }
        }
        Call::Leaving(id) if has_room && !state.is_open(Command::Leave(id)) => {
            act(
                Step::Sends(Command::Leave(id)),
                sending(Call::Leaving(id), Command::Leave(id)),
            );
        }
        _ => {}
    }
}
