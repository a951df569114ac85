//! The permits of a semaphore: an exhaustive search for a permit that is lost or given out twice,
//! for a waiter that is overtaken, and for the longest time that a permit stays unused while a
//! client waits for it.
//!
//! The model has one semaphore on one server, and two or three clients that each want some permits.
//! They enter its queue, refresh their places, are granted permits, renew them, release them and
//! give up. In every state the search tries every possible next step.
//!
//! * Commands, replies and grant messages are delayed, overtaken, or lost, and commands are run
//!   twice (each a given number of times).
//! * Clients die. The server does not know: their places and permits end by themselves.
//! * Time: ticks of one clock. Permits that have ended are dropped by the next script only. A place
//!   and a grant to it end with the same tick, counted from the last refresh. Validity starts when
//!   a command is sent.
//! * In prompt runs, a tick passes only once everything that is on its way has arrived and every
//!   client has refreshed or renewed: a tick is an interval between refreshes. These runs measure
//!   how long a permit is unused.
//!
//! Grants that pass over places are searched in `queue_model`. Not in the model: tokens, the
//! deletion of keys, a server that loses data. Change the protocol here before changing the
//! scripts.

use models::assert_found;
use models::permits::{Broken, Client, Flaw, Rules, State, holds, long_holds};

/// Clients that enter once. Nothing is certain to arrive.
const SAFETY: Rules = Rules {
    wants: [1, 1, 2],
    permits: [2; 3],
    ttl: 3,
    grant: 2,
    entries: 1,
    calls: 1,
    is_prompt: false,
    max_stall: 0,
    flaw: None,
};

/// The first client wants one of two permits, the second both.
const PAIR: Rules = Rules {
    wants: [1, 2, 0],
    ..SAFETY
};

/// Clients that refresh in every tick. Every message arrives before the next tick.
const PROMPT: Rules = Rules {
    ttl: 6,
    grant: 3,
    is_prompt: true,
    ..SAFETY
};

fn clients(count: usize) -> State {
    State {
        clients: vec![Client::default(); count],
        ..State::default()
    }
}

#[test]
fn permits_are_counted_although_something_is_lost() {
    let rules = Rules { calls: 0, ..PAIR };
    let start = State {
        losses: 1,
        ..clients(2)
    };
    assert_eq!(holds(&rules, start), Ok(()));
}

#[test]
fn permits_are_counted_although_a_client_dies() {
    let start = State {
        deaths: 1,
        ..clients(2)
    };
    assert_eq!(holds(&PAIR, start), Ok(()));
}

#[test]
fn clients_with_different_numbers_of_permits_exceed_neither() {
    let rules = Rules {
        permits: [1, 2, 0],
        calls: 0,
        ..PAIR
    };
    let start = State {
        losses: 1,
        ..clients(2)
    };
    assert_eq!(holds(&rules, start), Ok(()));
}

#[test]
fn a_release_must_look_before_it_counts() {
    let rules = SAFETY.with(Flaw::ReleaseCountsBlindly);
    assert_found(holds(&rules, clients(3)), Broken::Counter);
}

#[test]
fn a_renewal_must_restore_nothing() {
    let rules = PAIR.with(Flaw::RenewalRestores);
    assert_found(holds(&rules, clients(2)), Broken::TooManyInUse);
}

#[test]
fn a_newcomer_must_not_take_what_is_free() {
    let rules = SAFETY.with(Flaw::NewcomerOvertakes);
    assert_found(holds(&rules, clients(3)), Broken::Overtaken);
}

#[test]
fn whoever_fits_must_not_go_first() {
    let rules = SAFETY.with(Flaw::WhoeverFitsGoesFirst);
    assert_found(holds(&rules, clients(3)), Broken::Overtaken);
}

#[test]
fn a_release_must_grant_to_all_who_fit() {
    let rules = SAFETY.with(Flaw::GrantsOnce);
    assert_found(holds(&rules, clients(3)), Broken::FittingWaiterLeft);
}

#[test]
fn leaving_the_queue_must_grant() {
    let rules = SAFETY.with(Flaw::LeavesSilently);
    assert_found(holds(&rules, clients(3)), Broken::FittingWaiterLeft);
}

#[test]
fn validity_must_not_be_counted_from_the_message() {
    let rules = PAIR.with(Flaw::ValidFromTheMessage);
    assert_found(holds(&rules, clients(2)), Broken::HeldByNobody);
}

/// It receives the grant of the first.
#[test]
fn an_id_must_not_be_used_for_two_entries() {
    let rules = Rules {
        entries: 2,
        calls: 0,
        ..PAIR
    };
    let rules = rules.with(Flaw::IdUsedTwice);
    assert_found(holds(&rules, clients(2)), Broken::HeldByNobody);
}

/// A command that the network runs twice.
fn repeated(count: usize) -> State {
    State {
        repeats: 1,
        ..clients(count)
    }
}

#[test]
fn permits_are_counted_although_a_command_runs_twice() {
    let rules = Rules { calls: 0, ..PAIR };
    assert_eq!(holds(&rules, repeated(2)), Ok(()));
}

/// A writer wants all. The whole search takes a minute: `LEASEHOLD_LONG_MODELS=1 cargo test --test
/// checks long_search`.
#[test]
fn readers_and_a_writer_are_counted_although_a_command_runs_twice_in_a_long_search() {
    let rules = Rules {
        wants: [1, 3, 1],
        permits: [3; 3],
        calls: 0,
        ..SAFETY
    };
    assert_eq!(long_holds(&rules, repeated(3)), Ok(()));
}

/// The second run finds too few permits, or another client that waits.
#[test]
fn the_second_run_of_an_enter_must_not_queue_the_holder() {
    for wants in [[1, 2, 0], [1, 1, 0]] {
        let rules = Rules { wants, ..SAFETY }.with(Flaw::SecondRunIsQueued);
        assert_found(holds(&rules, repeated(2)), Broken::HolderQueued);
    }
}

/// Asserts that the longest time for which a permit is unused is this number of ticks.
#[track_caller]
fn assert_longest_stall(max_stall: i8, prompt: Rules, start: &State) {
    let rules = Rules {
        max_stall,
        ..prompt
    };
    assert_eq!(holds(&rules, start.clone()), Ok(()));
    if max_stall > 0 {
        let less = Rules {
            max_stall: max_stall - 1,
            ..prompt
        };
        let broken = holds(&less, start.clone()).map_err(|(broken, _)| broken);
        assert_eq!(broken, Err(Broken::Stalled));
    }
}

#[test]
fn no_permit_is_unused_while_a_client_waits() {
    assert_longest_stall(0, PROMPT, &clients(3));
}

#[test]
fn something_that_is_lost_costs_a_refresh() {
    let start = State {
        losses: 1,
        ..clients(2)
    };
    let rules = Rules {
        wants: [1, 2, 0],
        ..PROMPT
    };
    assert_longest_stall(1, rules, &start);
}

/// Its place lasts three ticks from a refresh that may have run two ticks late.
#[test]
fn dead_waiters_cost_one_place() {
    let start = State {
        deaths: 1,
        ..clients(3)
    };
    assert_longest_stall(5, PROMPT, &start);
}

/// Permits of others may have ended since the script before.
#[test]
fn the_second_run_of_an_enter_must_grant_to_all_who_fit() {
    let rules = Rules { calls: 0, ..SAFETY };
    let rules = rules.with(Flaw::SecondRunGrantsNothing);
    assert_found(holds(&rules, repeated(3)), Broken::FittingWaiterLeft);
}

/// A semaphore of one permit, and a read-write lock with a reader and a writer. The writer wants
/// all permits.
const SMALL: [Rules; 2] = [
    Rules {
        permits: [1; 3],
        wants: [1, 1, 1],
        ..PROMPT
    },
    Rules {
        permits: [3; 3],
        wants: [1, 3, 1],
        ..PROMPT
    },
];

#[test]
fn an_enter_that_runs_twice_costs_a_refresh() {
    for rules in SMALL {
        assert_longest_stall(1, rules, &repeated(2));
    }
}

/// The client waits behind its own permits until they end.
#[test]
fn an_enter_that_runs_twice_and_is_queued_costs_the_ttl() {
    for rules in SMALL {
        let rules = rules.with(Flaw::SecondRunIsQueued);
        assert_longest_stall(rules.ttl, rules, &repeated(2));
    }
}
