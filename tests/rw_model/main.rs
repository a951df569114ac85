//! The two keys of a read-write lock: an exhaustive search for a writer beside others, for a guard
//! that says it holds what it does not, and for a token that is too low.
//!
//! The model has one lock on one server: the lock key, which contains a writer's id, the mark of the
//! readers, or another program's value, and the set of readers. Two or three clients read or write,
//! renew, downgrade, give up and release. In every state the search tries every possible next step.
//!
//! * Commands, replies and releases are delayed, or lost (a given number of them). An undo is behind
//!   its acquire on the same connection.
//! * Another program acquires the key with `SET NX PX` and deletes its own lock; or it deletes the
//!   key of one of our locks.
//! * Time: ticks of one clock. Validity starts when a command is sent, a ttl when it runs; both end
//!   with the same tick.
//!
//! Not in the model: the queue, which `tests/queue_model` searches, and a server that loses data.
//! Change the protocol here before changing the scripts.

mod client;
mod server;
mod state;

use std::collections::HashSet;

use state::{Broken, Flaw, Rules, State, Wants};

use Wants::{Read, Write};

/// Two readers and a writer, which acquire once and renew once.
const RULES: Rules = Rules {
    wants: &[Read, Read, Write],
    tries: 1,
    calls: 1,
    downgrades: false,
    flaw: None,
};

/// The most states to search. Of a larger space, the search covers the first steps, breadth first.
const MOST_STATES: usize = 80_000;

/// Returns the first broken promise, and how many states were searched.
fn search(rules: &Rules, start: State) -> Result<usize, Broken> {
    let mut seen = HashSet::from([start.clone()]);
    let mut level = vec![start];
    while !level.is_empty() {
        let mut next = Vec::new();
        for state in &level {
            state.check()?;
            if seen.len() < MOST_STATES {
                let new = client::steps(state, rules).into_iter();
                next.extend(new.filter(|state| seen.insert(state.clone())));
            }
        }
        level = next;
    }
    Ok(seen.len())
}

#[track_caller]
fn assert_holds(rules: &Rules, start: State) {
    let states = search(rules, start).unwrap();
    assert!(states > 1_000, "only {states} states");
}

#[track_caller]
fn assert_found(flaw: Flaw, broken: Broken, rules: Rules, start: State) {
    let rules = Rules {
        flaw: Some(flaw),
        ..rules
    };
    assert_eq!(search(&rules, start), Err(broken));
}

fn start(rules: &Rules) -> State {
    State::new(rules)
}

#[test]
fn readers_exclude_a_writer_and_a_writer_all_others() {
    assert_holds(&RULES, start(&RULES));
}

const DOWNGRADING: Rules = Rules {
    wants: &[Read, Write],
    tries: 2,
    calls: 2,
    downgrades: true,
    ..RULES
};

fn with_a_loss(rules: &Rules) -> State {
    State {
        losses: 1,
        ..start(rules)
    }
}

#[test]
fn downgrade_holds_its_promises_although_something_is_lost() {
    assert_holds(&DOWNGRADING, with_a_loss(&DOWNGRADING));
}

#[test]
fn downgrade_beside_another_writer_holds_its_promises() {
    let rules = Rules {
        wants: &[Read, Write, Write],
        downgrades: true,
        ..RULES
    };
    assert_holds(&rules, start(&rules));
}

const TWICE: Rules = Rules {
    wants: &[Read, Write],
    tries: 2,
    ..RULES
};

#[test]
fn foreign_lock_and_ours_exclude_each_other() {
    let state = State {
        foreign_locks: 2,
        ..with_a_loss(&TWICE)
    };
    assert_holds(&TWICE, state);
}

const READERS: Rules = Rules {
    wants: &[Read, Read],
    ..TWICE
};

/// Somebody deletes the lock key, and another program may lock it then.
fn deleted() -> State {
    State {
        foreign_locks: 1,
        deletions: 1,
        ..start(&READERS)
    }
}

#[test]
fn reader_whose_mark_was_deleted_never_holds_again() {
    assert_holds(&READERS, deleted());
}

/// Other programs would see a free key.
#[test]
fn readers_without_a_mark_are_seen_by_nobody() {
    assert_found(Flaw::NoMark, Broken::NotOnServer, TWICE, start(&TWICE));
}

#[test]
fn mark_must_not_end_with_the_first_reader() {
    assert_found(
        Flaw::MarkEndsEarly,
        Broken::NotOnServer,
        RULES,
        start(&RULES),
    );
}

#[test]
fn new_mark_must_begin_without_readers() {
    assert_found(Flaw::KeepsOldReaders, Broken::Revived, READERS, deleted());
}

#[test]
fn last_reader_must_take_the_mark_with_it() {
    let rules = Rules {
        wants: &[Read, Read],
        ..RULES
    };
    assert_found(Flaw::MarkStays, Broken::EmptyMark, rules, start(&rules));
}

#[test]
fn release_must_know_both_forms() {
    let state = with_a_loss(&DOWNGRADING);
    assert_found(
        Flaw::ReleasesOneForm,
        Broken::LeftBehind,
        DOWNGRADING,
        state,
    );
}

#[test]
fn guard_must_count_as_a_reader_from_before_its_downgrade_is_sent() {
    let state = with_a_loss(&DOWNGRADING);
    assert_found(Flaw::LateReader, Broken::WriterBeside, DOWNGRADING, state);
}

#[test]
fn reader_must_keep_the_token_that_it_draws() {
    assert_found(Flaw::TokenNotKept, Broken::Token, TWICE, start(&TWICE));
}
