//! The scripts of the read-write lock, as steps of the model.

use super::state::{Broken, Command, Flaw, Id, Key, Phase, Reply, Rules, State, TTL, Wants};

/// The first step of every script: the readers count only under the flag.
fn settle(state: &mut State, rules: &Rules) {
    let is_flag = matches!(state.key, Key::Flag(_));
    if is_flag || rules.has(Flaw::NoFlag) {
        state.readers.retain(|reader| reader.1 > 0);
    }
    if is_flag && state.readers.is_empty() && !rules.has(Flaw::FlagStays) {
        state.key = Key::Free;
    }
}

/// Makes a client a reader for this many ticks.
fn join(state: &mut State, rules: &Rules, id: Id, ticks: i8) {
    let before = match state.key {
        Key::Flag(left) => left,
        _ => 0,
    };
    if before == 0 && !rules.has(Flaw::KeepsOldReaders) && !rules.has(Flaw::NoFlag) {
        state.readers.clear();
    }
    state.readers.retain(|reader| reader.0 != id);
    state.readers.push((id, ticks));
    if rules.has(Flaw::NoFlag) {
        return;
    }
    state.key = Key::Flag(if rules.has(Flaw::FlagEndsEarly) {
        state.readers[0].1
    } else {
        before.max(ticks)
    });
}

/// Runs a command, and returns its reply.
pub(super) fn run(state: &mut State, rules: &Rules, command: Command) -> Reply {
    settle(state, rules);
    match command {
        Command::Acquire(id, wants) => Reply::Acquired(id, acquire(state, rules, id, wants)),
        Command::Renew(id, call, reads) => Reply::Renewed(id, call, renew(state, rules, id, reads)),
        Command::Release(id) => {
            let phase = state.clients[id.0 as usize].phase;
            if matches!(phase, Phase::Held { id: own, .. } if own == id) {
                state.broken = Some(Broken::TookLease);
            }
            release(state, rules, id);
            let is_writer = matches!(state.key, Key::Writer(own, _) if own == id);
            if is_writer || matches!(state.key, Key::Flag(_)) && state.is_reader(id) {
                state.broken = Some(Broken::LeftBehind);
            }
            Reply::Released(id)
        }
    }
}

fn acquire(state: &mut State, rules: &Rules, id: Id, wants: Wants) -> Option<u8> {
    let reads = wants == Wants::Read;
    let fits = match state.key {
        Key::Free => reads || !rules.has(Flaw::NoFlag) || state.readers.is_empty(),
        Key::Flag(_) => reads,
        Key::Writer(..) | Key::Foreign(_) => false,
    };
    if !fits {
        return None;
    }
    if !reads {
        state.fence = if rules.has(Flaw::TokenNotKept) && state.fence == 0 {
            1
        } else {
            state.fence + 1
        };
        state.displace_readers();
        state.key = Key::Writer(id, TTL);
        return Some(state.fence);
    }
    join(state, rules, id, TTL);
    if state.fence == 0 && rules.has(Flaw::TokenNotKept) {
        return Some(1);
    }
    state.fence = state.fence.max(1);
    Some(state.fence)
}

fn renew(state: &mut State, rules: &Rules, id: Id, reads: bool) -> bool {
    match state.key {
        Key::Writer(own, left) if own == id => {
            if reads {
                join(state, rules, id, TTL.max(left))
            } else {
                state.key = Key::Writer(id, TTL)
            }
            true
        }
        Key::Flag(_) if state.is_reader(id) => {
            join(state, rules, id, TTL);
            if state.displaced.contains(&id) {
                state.broken = Some(Broken::Revived);
            }
            true
        }
        Key::Free if rules.has(Flaw::NoFlag) && state.is_reader(id) => {
            join(state, rules, id, TTL);
            true
        }
        _ => false,
    }
}

fn release(state: &mut State, rules: &Rules, id: Id) {
    match state.key {
        Key::Writer(own, _) if own == id => state.key = Key::Free,
        Key::Flag(_) if !rules.has(Flaw::ReleasesOneForm) => {
            state.readers.retain(|reader| reader.0 != id);
            settle(state, rules);
        }
        Key::Free if rules.has(Flaw::NoFlag) => state.readers.retain(|reader| reader.0 != id),
        _ => {}
    }
}
