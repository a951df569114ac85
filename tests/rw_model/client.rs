//! The steps of clients, of other programs, of the network and of time.

use crate::server;
use crate::state::{Broken, Command, Flaw, Id, Key, Phase, Reply, Rules, State, TTL, Wants};

/// How many connections are in use at a time, at most.
const CONNECTIONS: usize = 2;

/// Returns all states that can follow.
pub(crate) fn steps(state: &State, rules: &Rules) -> Vec<State> {
    let mut next = Vec::new();
    if state.broken.is_some() {
        return next;
    }
    next.push(tick(state));
    for n in 0..state.connections.len() {
        if n == 0 || state.connections[n] != state.connections[n - 1] {
            deliver(state, rules, n, &mut next);
        }
    }
    for n in 0..state.replies.len() {
        let mut state = state.clone();
        let reply = state.replies.remove(n);
        receive(&mut state, rules, reply);
        next.push(state);
    }
    for client in 0..state.clients.len() {
        act(state, rules, client, &mut next);
    }
    interfere(state, &mut next);
    next.into_iter().map(State::normalized).collect()
}

fn tick(state: &State) -> State {
    let mut state = state.clone();
    state.key = match state.key {
        Key::Free | Key::Writer(_, 1) | Key::Mark(1) | Key::Foreign(1) => Key::Free,
        Key::Writer(id, left) => Key::Writer(id, left - 1),
        Key::Mark(left) => Key::Mark(left - 1),
        Key::Foreign(left) => Key::Foreign(left - 1),
    };
    for reader in &mut state.readers {
        reader.1 = (reader.1 - 1).max(0);
    }
    for client in &mut state.clients {
        match &mut client.phase {
            Phase::Asking(_, age) => *age = (*age + 1).min(TTL),
            Phase::Held { left: 1, .. } => client.phase = Phase::Idle,
            Phase::Held { left, pending, .. } => {
                *left -= 1;
                if let Some((_, age, _)) = pending {
                    *age = (*age + 1).min(TTL);
                }
            }
            Phase::Idle | Phase::Leaving(_) => {}
        }
    }
    state
}

/// The server runs the first command of a connection; its reply may be lost, or the connection cut
/// before.
fn deliver(state: &State, rules: &Rules, n: usize, next: &mut Vec<State>) {
    let mut ran = state.clone();
    let command = ran.connections[n].remove(0);
    if let Command::Release(id) = command
        && matches!(ran.clients[id.0 as usize].phase, Phase::Held { id: own, .. } if own == id)
    {
        ran.broken = Some(Broken::TookLease);
    }
    let reply = server::run(&mut ran, rules, command);
    if let Command::Release(id) = command {
        let is_writer = matches!(ran.key, Key::Writer(own, _) if own == id);
        if is_writer || matches!(ran.key, Key::Mark(_)) && ran.is_reader(id) {
            ran.broken = Some(Broken::LeftBehind);
        }
    }
    if state.losses > 0 {
        let mut lost = ran.clone();
        lost.losses -= 1;
        next.push(lost);
        let mut cut = state.clone();
        cut.losses -= 1;
        cut.connections.remove(n);
        next.push(cut);
    }
    ran.replies.push(reply);
    next.push(ran);
}

fn receive(state: &mut State, rules: &Rules, reply: Reply) {
    let (Reply::Acquired(id, _) | Reply::Renewed(id, ..) | Reply::Released(id)) = reply;
    let n = id.0 as usize;
    let phase = state.clients[n].phase;
    state.clients[n].phase = match (reply, phase) {
        (Reply::Acquired(_, None), _) => Phase::Idle,
        (Reply::Acquired(_, Some(_)), Phase::Asking(_, TTL)) => Phase::Leaving(id),
        (Reply::Acquired(_, Some(token)), Phase::Asking(_, age)) => {
            let as_what = rules.wants[n];
            note_token(state, as_what, token);
            Phase::Held {
                id,
                left: TTL - age,
                as_what,
                pending: None,
            }
        }
        (
            Reply::Renewed(_, _, true),
            Phase::Held {
                left,
                as_what,
                pending,
                ..
            },
        ) => {
            let (_, age, reads) = pending.expect("a reply counts while its call waits for it");
            Phase::Held {
                id,
                left: left.max(TTL - age),
                as_what: if reads { Wants::Read } else { as_what },
                pending: None,
            }
        }
        (Reply::Renewed(_, _, false), _) => {
            if !state.was_deleted && !state.was_foreign {
                state.broken = Some(Broken::NotYours);
            }
            Phase::Idle
        }
        _ => Phase::Idle,
    };
}

/// Tokens are compared while no key was deleted.
fn note_token(state: &mut State, of: Wants, token: u8) {
    let [written, read] = &mut state.tokens;
    let is_right = match of {
        Wants::Write => token > *written.max(read),
        Wants::Read => token >= *written,
    };
    match of {
        Wants::Write => *written = token.max(*written),
        Wants::Read => *read = token.max(*read),
    }
    if !is_right && !state.was_deleted {
        state.broken = Some(Broken::Token);
    }
}

/// The steps of one client.
fn act(state: &State, rules: &Rules, n: usize, next: &mut Vec<State>) {
    let client = &state.clients[n];
    let has_room = state.connections.len() < CONNECTIONS;
    match client.phase {
        Phase::Idle if client.tries < rules.tries && has_room => {
            let mut state = state.clone();
            let id = (n as u8, client.tries);
            state.clients[n].tries += 1;
            state.clients[n].phase = Phase::Asking(id, 0);
            let acquire = Command::Acquire(id, rules.wants[n]);
            state.connections.push(vec![acquire]);
            next.push(state);
        }
        Phase::Asking(id, _) => next.push(given_up(state, n, id)),
        Phase::Held {
            id,
            left,
            as_what,
            pending,
        } => {
            let call = client.calls;
            let mut send = |reads, becomes| {
                let mut state = state.clone();
                state.clients[n].calls += 1;
                state.clients[n].phase = Phase::Held {
                    id,
                    left,
                    as_what: becomes,
                    pending: Some((call, 0, reads)),
                };
                state
                    .connections
                    .push(vec![Command::Renew(id, call, reads)]);
                next.push(state);
            };
            if pending.is_none() && has_room && call < rules.calls {
                send(as_what == Wants::Read, as_what);
                if rules.downgrades && as_what == Wants::Write {
                    let becomes = match rules.has(Flaw::LateReader) {
                        true => Wants::Write,
                        false => Wants::Read,
                    };
                    send(true, becomes);
                }
            }
            if pending.is_some() && state.losses == 0 {
                let mut state = state.clone();
                state.clients[n].phase = Phase::Held {
                    id,
                    left,
                    as_what,
                    pending: None,
                };
                next.push(state);
            }
            if has_room {
                let mut state = state.clone();
                state.clients[n].phase = Phase::Leaving(id);
                state.connections.push(vec![Command::Release(id)]);
                next.push(state);
            }
        }
        Phase::Leaving(id) if has_room && !is_releasing(state, id) => {
            let mut state = state.clone();
            state.connections.push(vec![Command::Release(id)]);
            next.push(state);
        }
        _ => {}
    }
}

/// The client gives up; the undo is behind the acquire, if that is still under way.
fn given_up(state: &State, n: usize, id: Id) -> State {
    let mut state = state.clone();
    state.clients[n].phase = Phase::Leaving(id);
    let undo = Command::Release(id);
    let is_own = |command: &Command| matches!(command, Command::Acquire(own, _) if *own == id);
    let mut connections = state.connections.iter_mut();
    match connections.find(|commands| commands.iter().any(is_own)) {
        Some(commands) => commands.push(undo),
        None => state.connections.push(vec![undo]),
    }
    state
}

fn is_releasing(state: &State, id: Id) -> bool {
    let release = Command::Release(id);
    state.replies.contains(&Reply::Released(id))
        || state
            .connections
            .iter()
            .any(|commands| commands.contains(&release))
}

/// The steps of other programs.
fn interfere(state: &State, next: &mut Vec<State>) {
    if state.foreign_locks > 0 && state.key == Key::Free {
        let mut state = state.clone();
        state.foreign_locks -= 1;
        state.was_foreign = true;
        state.key = Key::Foreign(2);
        let displaced = state.readers.iter().filter(|reader| reader.1 > 0);
        state.displaced.extend(displaced.map(|reader| reader.0));
        next.push(state);
    }
    if let Key::Foreign(_) = state.key {
        let mut state = state.clone();
        state.key = Key::Free;
        next.push(state);
    }
    if state.deletions > 0 && state.key != Key::Free {
        let mut state = state.clone();
        state.deletions -= 1;
        state.was_deleted = true;
        state.key = Key::Free;
        next.push(state);
    }
}
