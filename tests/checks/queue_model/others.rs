//! Promise: clients of the queue share the lock with first attempts, plain releases, clients
//! without the permissions that queues need, and commands that run twice.

use models::assert_found;
use models::queue::{Broken, Flaw, Kind, Rules, State, holds, long_holds, longest_stall};

use super::{PROMPT, SAFETY, start};

const TRYING: Rules = Rules {
    tries_first: true,
    ..SAFETY
};

const PROMPT_TRYING: Rules = Rules {
    tries_first: true,
    ..PROMPT
};

/// Returns the state at the start, with a first client of this kind.
fn started_with(kind: Kind, rules: &Rules) -> State {
    let mut state = start(rules);
    state.clients[0].kind = kind;
    state
}

#[test]
fn first_attempts_exclude_each_other_although_something_is_lost() {
    let state = State {
        losses: 1,
        ..start(&TRYING)
    };
    assert_eq!(holds(&TRYING, state), Ok(()));
}

#[test]
fn a_lock_has_one_holder_after_a_plain_release() {
    let rules = Rules {
        has_tokens: true,
        calls: 0,
        ..TRYING
    };
    let state = State {
        plain_releases: 1,
        plain_holds: 1,
        ..start(&rules)
    };
    assert_eq!(holds(&rules, state), Ok(()));
}

#[test]
fn a_client_without_a_queue_and_a_queue_exclude_each_other() {
    let rules = Rules {
        has_tokens: true,
        ..TRYING
    };
    let state = started_with(Kind::Broadcast, &rules);
    assert_eq!(holds(&rules, state), Ok(()));
}

#[test]
fn clients_with_and_without_a_queue_have_rising_tokens() {
    let rules = Rules {
        has_tokens: true,
        ..PROMPT_TRYING
    };
    let mut state = started_with(Kind::Broadcast, &rules);
    state.clients[2].arriving = 1;
    state.plain_releases = 1;
    assert_eq!(holds(&rules, state), Ok(()));
}

#[test]
fn a_command_that_runs_twice_makes_no_second_holder() {
    let rules = Rules {
        has_tokens: true,
        calls: 0,
        ..TRYING
    };
    let state = State {
        repeats: 1,
        ..start(&rules)
    };
    assert_eq!(holds(&rules, state), Ok(()));
}

/// Otherwise it waits behind its own lease.
#[test]
fn an_id_that_holds_must_not_be_queued_by_the_second_run_of_its_enter() {
    let rules = SAFETY.with(Flaw::SecondRunIsQueued);
    let state = State {
        repeats: 1,
        ..start(&rules)
    };
    assert_found(holds(&rules, state), Broken::GrantedTwice);
}

/// All threads of a client wait behind its place.
#[test]
fn a_client_with_a_place_must_not_try_to_acquire() {
    let rules = PROMPT.with(Flaw::PlacedClientTries);
    let state = State {
        plain_releases: 1,
        ..start(&rules)
    };
    assert_found(holds(&rules, state), Broken::TwoTurns);
}

/// Two clients that enter twice each. The tests make the first one a fair lock.
const WITH_A_FAIR_LOCK: Rules = Rules {
    clients: 2,
    entries: 2,
    ..PROMPT_TRYING
};

#[test]
fn a_fair_lock_among_first_attempts_costs_nothing() {
    let state = started_with(Kind::Fair, &WITH_A_FAIR_LOCK);
    assert_eq!(longest_stall(&WITH_A_FAIR_LOCK, state), 0);
}

#[test]
fn a_client_goes_behind_the_queue_after_a_plain_release() {
    let rules = Rules {
        clients: 2,
        entries: 2,
        ..PROMPT_TRYING
    };
    let state = State {
        plain_releases: 1,
        ..start(&rules)
    };
    assert_eq!(holds(&rules, state), Ok(()));
    let rules = rules.with(Flaw::TriesBeforeOthers);
    assert_found(holds(&rules, state), Broken::TwoTurns);
}

#[test]
fn something_lost_beside_a_fair_lock_costs_a_refresh() {
    let mut state = started_with(Kind::Fair, &WITH_A_FAIR_LOCK);
    state.losses = 1;
    assert_eq!(longest_stall(&WITH_A_FAIR_LOCK, state), 1);
}

#[test]
fn mutexes_and_a_fair_lock_exclude_each_other_although_something_is_lost() {
    let state = State {
        losses: 1,
        ..started_with(Kind::Fair, &TRYING)
    };
    assert_eq!(holds(&TRYING, state), Ok(()));
}

#[test]
fn first_attempts_and_plain_releases_cost_nothing() {
    for plain_releases in [0, 1] {
        let state = State {
            plain_releases,
            ..start(&PROMPT_TRYING)
        };
        assert_eq!(
            longest_stall(&PROMPT_TRYING, state),
            0,
            "{plain_releases} plain releases"
        );
    }
}

#[test]
fn a_client_without_a_queue_beside_a_queue_costs_nothing() {
    let mut state = started_with(Kind::Broadcast, &PROMPT_TRYING);
    state.plain_releases = 1;
    assert_eq!(longest_stall(&PROMPT_TRYING, state), 0);
}

#[test]
fn something_lost_beside_a_plain_release_costs_a_refresh() {
    let rules = Rules {
        clients: 2,
        ..PROMPT_TRYING
    };
    for kind in [Kind::Lock, Kind::Broadcast] {
        let mut state = started_with(kind, &rules);
        (state.losses, state.plain_releases) = (1, 1);
        assert_eq!(longest_stall(&rules, state), 1, "{kind:?}");
    }
}

#[test]
fn a_killed_waiter_beside_a_plain_release_costs_nothing() {
    let state = State {
        kills: 1,
        plain_releases: 1,
        ..start(&PROMPT_TRYING)
    };
    assert_eq!(longest_stall(&PROMPT_TRYING, state), 0);
}

#[test]
fn a_program_without_a_queue_beside_a_plain_release_costs_a_refresh() {
    let state = State {
        plain_holds: 1,
        plain_releases: 1,
        ..start(&PROMPT_TRYING)
    };
    assert_eq!(longest_stall(&PROMPT_TRYING, state), 1);
}

#[test]
fn a_lock_has_one_holder_after_a_plain_release_and_a_lost_subscription_in_a_long_search() {
    let state = State {
        plain_releases: 1,
        disconnections: 1,
        ..start(&TRYING)
    };
    assert_eq!(long_holds(&TRYING, state), Ok(()));
}

#[test]
fn clients_with_and_without_a_queue_have_rising_tokens_although_something_is_lost_in_a_long_search()
{
    let rules = Rules {
        clients: 2,
        entries: 2,
        has_tokens: true,
        ..PROMPT_TRYING
    };
    let mut state = started_with(Kind::Broadcast, &rules);
    (state.losses, state.plain_releases) = (1, 1);
    state.clients[1].arriving = 1;
    assert_eq!(long_holds(&rules, state), Ok(()));
}

#[test]
fn a_command_that_runs_twice_makes_no_second_holder_in_a_long_search() {
    let rules = Rules {
        has_tokens: true,
        calls: 0,
        ..TRYING
    };
    // A lease that is no longer than a grant, and one that is.
    for ttl in [SAFETY.ttl, 5] {
        let rules = Rules { ttl, ..rules };
        let mut state = start(&rules);
        (state.repeats, state.losses) = (1, 1);
        state.clients[0].arriving = 1;
        assert_eq!(long_holds(&rules, state), Ok(()), "ttl {ttl}");
    }
}
