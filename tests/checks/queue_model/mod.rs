//! The queue of a lock: an exhaustive search for two holders at once, for a waiter that is passed
//! over again and again, and for the longest time that the lock is free while clients wait.
//!
//! The model has one lock on one server, and two or three clients that enter its queue, refresh
//! their places, are granted the lock, renew it, release it and give up. A grant goes to the first
//! living place that it reaches. In every state the search tries every possible next step.
//!
//! * Commands, replies and grant messages are delayed and overtake each other. A given number of
//!   them is lost, and a given number of commands runs twice. The undo of an enter without a reply
//!   follows it on the same connection, and is also sent on another.
//! * Clients are killed: their connections close, and the server knows that nobody listens. Clients
//!   are stopped: the server does not know it. Subscriptions are lost and come back. Others stay at
//!   a server that has become a replica: it passes messages on to the client, but the server that
//!   grants does not count the client as a listener.
//! * First attempts: in some searches, a client without a place first tries to acquire the lock,
//!   and takes it if it is free, even if others are queued.
//! * Plain releases leave the lock free although clients are queued, and announce that. The client
//!   of such a release then enters without a first attempt.
//! * Fencing tokens: in some searches, a grant reserves a block of them for the threads of a
//!   client, which hand the lock to each other.
//! * Every script grants to places of every kind. In this model each reader holds the lock alone.
//!   `tests/checks/rw_model` searches readers that share it.
//! * Clients without the permissions that queues need try again when a release is announced.
//! * A program without a queue takes the lock when it is free, and releases it with or without a
//!   message. The key is deleted while a client holds the lock.
//! * Time: ticks of one clock. A place and a grant to it end three ticks after the last refresh.
//!   Validity starts when a command is sent, and a ttl when it runs. If both start in one tick,
//!   both end in one tick.
//! * In prompt runs, a tick passes only after everything that is on its way has arrived and every
//!   client has refreshed or renewed: a tick is an interval between refreshes. These runs measure
//!   what a fault *costs*: for how many ticks, at most, a client waits and nobody holds the lock. A
//!   grant counts as a hold only after its client has received it.
//!
//! Not in the model: several locks, the expiry of the queue's keys, a server that loses data, and
//! the times at which releases are plain: here, any release can be. Nor is the order in which
//! clients refresh after a plain one. Change the protocol here before changing the scripts.
//!
//! Some searches take minutes and gigabytes of memory. They cover only the first states, unless
//! `LEASEHOLD_LONG_MODELS` is set:
//! `LEASEHOLD_LONG_MODELS=1 cargo test --test checks long_search -- --test-threads 1`.

mod others;
mod tokens;

use models::assert_found;
use models::queue::{Broken, Flaw, Listens, Rules, State, holds, longest_stall};

/// Clients that enter once. Any number of ticks can pass before something arrives.
const SAFETY: Rules = Rules {
    clients: 2,
    entries: 1,
    calls: 1,
    ttl: 3,
    tries_first: false,
    has_tokens: false,
    is_prompt: false,
    max_stall: 0,
    flaw: None,
};

/// Clients that refresh in every tick. What is not lost arrives before the next tick.
const PROMPT: Rules = Rules {
    clients: 3,
    entries: 1,
    calls: 0,
    ttl: 6,
    tries_first: false,
    has_tokens: false,
    is_prompt: true,
    max_stall: u8::MAX,
    flaw: None,
};

fn start(rules: &Rules) -> State {
    State::new(rules)
}

#[test]
fn two_clients_exclude_each_other_although_something_is_lost() {
    let state = State {
        losses: 1,
        ..start(&SAFETY)
    };
    assert_eq!(holds(&SAFETY, state), Ok(()));
}

#[test]
fn clients_whose_subscription_stays_at_a_replica_exclude_each_other() {
    let mut state = start(&SAFETY);
    state.clients[0].listens = Listens::AtReplica;
    assert_eq!(holds(&SAFETY, state), Ok(()));
}

#[test]
fn a_lease_longer_than_a_grant_excludes_others() {
    let rules = Rules { ttl: 5, ..SAFETY };
    assert_eq!(holds(&rules, start(&rules)), Ok(()));
}

#[test]
fn programs_without_a_queue_are_excluded_too() {
    let state = State {
        plain_holds: 1,
        ..start(&SAFETY)
    };
    assert_eq!(holds(&SAFETY, state), Ok(()));
}

#[test]
fn a_message_to_a_place_that_is_passed_over_makes_two_holders() {
    let mut state = start(&SAFETY);
    state.clients[0].listens = Listens::AtReplica;
    let rules = SAFETY.with(Flaw::CountsByPublishing);
    assert_found(holds(&rules, state), Broken::Exclusion);
}

#[test]
fn validity_must_not_be_counted_from_the_message() {
    let rules = SAFETY.with(Flaw::ValidFromTheMessage);
    assert_found(holds(&rules, start(&SAFETY)), Broken::Exclusion);
}

#[test]
fn a_granted_place_must_leave_the_queue() {
    let rules = SAFETY.with(Flaw::GrantedPlaceStays);
    assert_found(holds(&rules, start(&SAFETY)), Broken::GrantedTwice);
}

#[test]
fn an_id_must_not_be_used_for_two_entries() {
    let rules = Rules {
        entries: 2,
        calls: 0,
        ..SAFETY
    };
    let rules = rules.with(Flaw::IdUsedTwice);
    assert_found(holds(&rules, start(&rules)), Broken::TakenInUse);
}

#[test]
fn killed_waiters_cost_nothing() {
    for kills in [1, 2] {
        let state = State {
            kills,
            ..start(&PROMPT)
        };
        assert_eq!(longest_stall(&PROMPT, state), 0, "{kills} kills");
    }
}

/// Scripts that pass nobody over let a killed waiter cost as much as a stopped one.
#[test]
fn a_killed_waiter_that_is_not_passed_over_costs_its_grant() {
    let rules = PROMPT.with(Flaw::PassesNobodyOver);
    let state = State {
        kills: 1,
        ..start(&rules)
    };
    assert_eq!(longest_stall(&rules, state), 3);
}

#[test]
fn stopped_waiters_cost_the_lifetime_of_their_places() {
    for (stops, stall) in [(1, 3), (2, 4)] {
        let state = State {
            stops,
            ..start(&PROMPT)
        };
        assert_eq!(longest_stall(&PROMPT, state), stall);
    }
}

#[test]
fn each_loss_costs_a_refresh() {
    let rules = Rules {
        clients: 2,
        ..PROMPT
    };
    for losses in [0, 1, 2] {
        let state = State {
            losses,
            ..start(&rules)
        };
        assert_eq!(longest_stall(&rules, state), losses);
    }
}

#[test]
fn a_lost_subscription_costs_at_most_a_refresh() {
    for kills in [0, 1] {
        let state = State {
            disconnections: 1,
            kills,
            ..start(&PROMPT)
        };
        assert!(longest_stall(&PROMPT, state) <= 1);
    }
}

#[test]
fn the_deletion_of_a_plain_lock_costs_a_refresh() {
    let state = State {
        plain_holds: 1,
        ..start(&PROMPT)
    };
    assert_eq!(longest_stall(&PROMPT, state), 1);
}

/// Clients that enter again and again.
const CROWDED: Rules = Rules {
    entries: u8::MAX,
    ..PROMPT
};

/// Returns the state at the start of a crowded queue. `listens` is for the first client.
fn crowded(listens: Listens) -> State {
    let mut state = start(&CROWDED);
    state.clients[0].listens = listens;
    state
}

#[test]
fn a_place_is_passed_over_in_one_interval_between_refreshes_at_most() {
    assert_eq!(holds(&CROWDED, crowded(Listens::AtReplica)), Ok(()));
}

#[test]
fn a_client_that_listens_again_must_be_passed_over_after_it_is_killed() {
    let rules = Rules {
        clients: 2,
        ..CROWDED
    };
    let state = State {
        kills: 1,
        disconnections: 1,
        ..start(&rules)
    };
    assert_eq!(holds(&rules, state), Ok(()));
    let rules = rules.with(Flaw::TurnIsKept);
    assert_found(holds(&rules, state), Broken::KilledGranted);
}

#[test]
fn a_place_that_was_passed_over_must_have_the_next_turn() {
    let rules = CROWDED.with(Flaw::NoTurnAfterARefresh);
    assert_found(holds(&rules, crowded(Listens::Never)), Broken::PassedOver);
}

#[test]
fn a_place_that_is_passed_over_must_stay() {
    let rules = CROWDED.with(Flaw::PassedPlaceLeaves);
    assert_found(holds(&rules, crowded(Listens::Never)), Broken::PlaceLost);
}

#[test]
fn a_refresh_must_not_go_before_places_that_are_reached() {
    let mut state = start(&PROMPT);
    state.disconnections = 2;
    let rules = PROMPT.with(Flaw::AskerGoesFirst);
    assert_found(holds(&rules, state), Broken::Overtaken);
}

/// A client that has not listened yet refreshes as soon as it does.
#[test]
fn a_client_that_is_about_to_listen_keeps_its_turn() {
    let mut state = start(&PROMPT);
    state.clients[0].listens = Listens::Soon;
    state.clients[1].listens = Listens::Soon;
    assert_eq!(holds(&PROMPT, state), Ok(()));
    assert_eq!(longest_stall(&PROMPT, state), 0);
    let rules = PROMPT.with(Flaw::NewPlaceIsPassedOver);
    assert_found(holds(&rules, state), Broken::NewPassedOver);
}
