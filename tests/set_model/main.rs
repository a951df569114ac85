//! Sets of names on the queues of locks: an exhaustive search for broken exclusion, for deadlocks,
//! for sets that pass names to each other for ever, and for a set that starves.
//!
//! The model has up to three names on one server, each with a holder and a queue. A release passes
//! a name on to the first in its queue. Sets ask for all of their names by one script. A set that
//! is refused queues at the name that refused it. Once it has been granted a name, it goes through
//! its names in ascending order, and keeps the lower ones while it queues for the next. In every
//! state the search tries every possible next step.
//!
//! * Asks and their replies are delayed. An undo overtakes its ask. A given number of asks and
//!   replies is lost.
//! * Clients are killed: what they hold and their places expire.
//! * A name that a set keeps expires, because the set's client was stopped.
//! * Plain calls hold one name at a time; nested ones hold a name and then wait for another.
//!
//! Not in the model: time, fencing tokens, places that are passed over (those are in
//! `queue_model`), a server that loses data. Change the protocol here before changing the scripts.

use models::assert_found;
use models::set::{
    Broken, CLIENTS, Flaw, Rules, State, Wants, first_never_starves, holds, never_goes_round,
};

const BOTH: Wants = Wants::Set([true, true, false]);

fn rules<const N: usize>(wants: [Wants; N]) -> Rules {
    let mut all = [Wants::Nothing; CLIENTS];
    all[..N].copy_from_slice(&wants);
    Rules {
        wants: all,
        refreshes: false,
        has_cap: false,
        once: false,
        flaw: None,
    }
}

/// Two sets, and a plain call for each name.
fn two_sets() -> Rules {
    rules([BOTH, BOTH, Wants::Name(0), Wants::Name(1)])
}

/// A set whose names are never free: two plain calls for each.
fn busy_names() -> Rules {
    let [a, b] = [0, 1].map(Wants::Name);
    rules([BOTH, a, b, a, b])
}

#[test]
fn two_sets_and_plain_calls_do_not_go_round() {
    let rules = two_sets();
    assert_eq!(never_goes_round(&rules, State::new(&rules)), Ok(()));
}

#[test]
fn sets_that_ask_in_three_scripts_go_round_for_ever() {
    let rules = two_sets().with(Flaw::AsksInThreeScripts);
    let found = never_goes_round(&rules, State::new(&rules));
    assert_found(found, Broken::GoesRound);
}

#[test]
fn sets_in_different_orders_do_not_deadlock() {
    let pairs = [[0, 1], [1, 2], [0, 2]].map(|pair| {
        let wanted = [0, 1, 2].map(|name| pair.contains(&name));
        Wants::Set(wanted)
    });
    let rules = rules(pairs);
    assert_eq!(never_goes_round(&rules, State::new(&rules)), Ok(()));
}

#[test]
fn sets_that_keep_any_name_deadlock() {
    let rules = two_sets().with(Flaw::KeepsAnyName);
    assert_found(holds(&rules, State::new(&rules)), Broken::Deadlock);
}

#[test]
fn a_set_beside_busy_names_gets_in() {
    let rules = busy_names();
    assert_eq!(first_never_starves(&rules, State::new(&rules)), Ok(()));
}

#[test]
fn a_set_that_keeps_nothing_starves() {
    let rules = busy_names().with(Flaw::KeepsNothing);
    let found = first_never_starves(&rules, State::new(&rules));
    assert_found(found, Broken::Starves);
}

/// The set waits for the upper name, which the nested call holds while it waits for the lower one.
#[test]
fn the_cap_ends_a_deadlock_with_a_nested_call() {
    let nested = rules([BOTH, Wants::Nested(1, 0), Wants::Name(0)]);
    let (found, _) = holds(&nested, State::new(&nested)).expect_err("they wait for each other");
    assert_eq!(found, Broken::Deadlock);
    let capped = Rules {
        has_cap: true,
        ..nested
    };
    assert_eq!(holds(&capped, State::new(&capped)), Ok(()));
}

/// Returns rules by which sets ask, refresh and reach the cap in any order. The tests add faults.
fn faulty() -> (Rules, State) {
    let rules = Rules {
        refreshes: true,
        has_cap: true,
        once: true,
        ..rules([BOTH, BOTH, Wants::Name(0)])
    };
    let state = State::new(&rules);
    (rules, state)
}

#[test]
fn sets_exclude_each_other_and_leave_nothing_behind_although_replies_are_lost() {
    let (rules, mut state) = faulty();
    state.losses = 2;
    assert_eq!(holds(&rules, state), Ok(()));
}

#[test]
fn a_set_that_loses_a_kept_name_starts_afresh() {
    let (rules, mut state) = faulty();
    (state.losses, state.expiries) = (1, 1);
    assert_eq!(holds(&rules, state), Ok(()));
}

#[test]
fn what_a_killed_set_keeps_expires() {
    let (rules, mut state) = faulty();
    (state.losses, state.kills) = (1, 1);
    assert_eq!(holds(&rules, state), Ok(()));
}

#[test]
fn the_script_must_check_what_the_set_counts_as_its_own() {
    let (rules, mut state) = faulty();
    state.losses = 1;
    let rules = rules.with(Flaw::TrustsTheSet);
    assert_found(holds(&rules, state), Broken::LeftOver);
}

#[test]
fn an_undo_must_cover_all_names() {
    let (rules, mut state) = faulty();
    state.losses = 1;
    let rules = rules.with(Flaw::UndoesOneName);
    assert_found(holds(&rules, state), Broken::LeftOver);
}
