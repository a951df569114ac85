//! The two keys of a read-write lock: a search for a writer that holds it together with others, for
//! a guard that says it holds what it does not, and for a token that is too low.
//!
//! The model has one lock on one server: the lock key, which contains a writer's id, the flag of
//! the readers, or another program's value, and the set of readers. Two or three clients read or
//! write, renew, downgrade, give up and release. In every state the search tries every possible
//! next step.
//!
//! * Commands, replies and releases are delayed, lost, or run twice (each a given number of times).
//!   An undo is behind its acquire on the same connection.
//! * Another program acquires the key with `SET NX PX` and deletes its own lock; or it deletes the
//!   key of one of our locks.
//! * Time: ticks of one clock. Validity starts when a command is sent, a ttl when it runs; both end
//!   with the same tick.
//!
//! Not in the model: the queue, which `queue_model` searches, and a server that loses data.
//! Change the protocol here before changing the scripts.
//!
//! Some searches take minutes and gigabytes of memory. They cover only the first states, unless
//! `LEASEHOLD_LONG_MODELS` is set:
//! `LEASEHOLD_LONG_MODELS=1 cargo test --test checks long_search -- --test-threads 1`.

use models::assert_found;
use models::rw::Wants::{Read, Write};
use models::rw::{Broken, Flaw, Rules, State, holds, long_holds};

/// Two readers and a writer, which acquire once and renew once.
const RULES: Rules = Rules {
    wants: &[Read, Read, Write],
    tries: 1,
    calls: 1,
    downgrades: false,
    flaw: None,
};

fn start(rules: &Rules) -> State {
    State::new(rules)
}

#[test]
fn readers_exclude_a_writer_and_a_writer_all_others() {
    assert_eq!(holds(&RULES, start(&RULES)), Ok(()));
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
fn downgrade_holds_its_promises_although_something_is_lost_in_a_long_search() {
    assert_eq!(long_holds(&DOWNGRADING, with_a_loss(&DOWNGRADING)), Ok(()));
}

/// The first of two renewals is slow and given up. It can run after the second, whose reply is
/// lost.
#[test]
fn downgrade_holds_its_promises_although_a_renewal_is_late_and_a_reply_is_lost() {
    let rules = Rules {
        tries: 1,
        ..DOWNGRADING
    };
    let state = State {
        foreign_locks: 1,
        ..with_a_loss(&rules)
    };
    assert_eq!(holds(&rules, state), Ok(()));
}

#[test]
fn downgrade_beside_another_writer_holds_its_promises_in_a_long_search() {
    let rules = Rules {
        wants: &[Read, Write, Write],
        downgrades: true,
        ..RULES
    };
    assert_eq!(long_holds(&rules, start(&rules)), Ok(()));
}

const TWICE: Rules = Rules {
    wants: &[Read, Write],
    tries: 2,
    ..RULES
};

#[test]
fn downgrade_holds_its_promises_although_a_command_runs_twice_in_a_long_search() {
    let state = State {
        repeats: 1,
        ..start(&DOWNGRADING)
    };
    assert_eq!(long_holds(&DOWNGRADING, state), Ok(()));
}

#[test]
fn readers_exclude_a_writer_although_a_command_runs_twice_in_a_long_search() {
    let state = State {
        repeats: 1,
        ..start(&RULES)
    };
    assert_eq!(long_holds(&RULES, state), Ok(()));
}

#[test]
fn foreign_lock_and_ours_exclude_each_other_in_a_long_search() {
    let state = State {
        foreign_locks: 2,
        ..with_a_loss(&TWICE)
    };
    assert_eq!(long_holds(&TWICE, state), Ok(()));
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
fn reader_whose_flag_was_deleted_never_holds_again_in_a_long_search() {
    assert_eq!(long_holds(&READERS, deleted()), Ok(()));
}

/// Other programs would see a free key.
#[test]
fn readers_without_a_flag_are_seen_by_nobody() {
    let rules = TWICE.with(Flaw::NoFlag);
    assert_found(holds(&rules, start(&TWICE)), Broken::NotOnServer);
}

#[test]
fn flag_must_not_end_with_the_first_reader() {
    let rules = RULES.with(Flaw::FlagEndsEarly);
    assert_found(holds(&rules, start(&RULES)), Broken::NotOnServer);
}

#[test]
fn new_flag_must_begin_without_readers() {
    let rules = READERS.with(Flaw::KeepsOldReaders);
    assert_found(holds(&rules, deleted()), Broken::Revived);
}

#[test]
fn last_reader_must_take_the_flag_with_it() {
    let rules = Rules {
        wants: &[Read, Read],
        ..RULES
    };
    let rules = rules.with(Flaw::FlagStays);
    assert_found(holds(&rules, start(&rules)), Broken::EmptyFlag);
}

#[test]
fn release_must_know_both_forms() {
    let state = with_a_loss(&DOWNGRADING);
    let rules = DOWNGRADING.with(Flaw::ReleasesOneForm);
    assert_found(holds(&rules, state), Broken::LeftBehind);
}

#[test]
fn guard_must_count_as_a_reader_from_before_its_downgrade_is_sent() {
    let state = with_a_loss(&DOWNGRADING);
    let rules = DOWNGRADING.with(Flaw::LateReader);
    assert_found(holds(&rules, state), Broken::WriterBeside);
}

#[test]
fn reader_must_keep_the_token_that_it_draws() {
    let rules = TWICE.with(Flaw::TokenNotKept);
    assert_found(holds(&rules, start(&TWICE)), Broken::Token);
}
