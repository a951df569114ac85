//! Fencing over a quorum: an exhaustive search for two holders at once, and for a later holder with
//! a lower token.
//!
//! The model has three servers and up to three attempts to take one lock. Each attempt has its own
//! id and is independent of the others, which covers one client that retries as well as three that
//! contend. In every state the search tries every possible next step: an attempt begins with any
//! token, a server grants, a majority is found, an attempt is given up, a lease is renewed, handed
//! off or released, an undo arrives at a server, or time passes. States that differ only in the
//! order of the servers count as one.
//!
//! * Messages that are delayed, overtaken or lost, and clients that crash or pause: no step is ever
//!   certain to happen, so a message may arrive at any time or never, and a client may act at any
//!   time or never. A refusal has the same effect as a lost message.
//! * Undo and release: once an attempt is over, a server that has its key may delete it at any
//!   time. Real connections allow less: an undo behind its acquire cannot overtake it.
//! * Connections: in the searches of releases, one server has two connections. The acquire uses one
//!   of them. A release or an undo is sent behind the acquire, or overtakes it on the other
//!   connection. It is lost or answered, and is repeated until the client accepts an answer as
//!   final. If a connection ends, its answers are lost, and a command that was written to it may
//!   still run. The servers keep or delete keys independently, so one server with connections is
//!   enough.
//! * Time: ticks of one clock, without drift. A key lasts `ttl` ticks from when the server sets it,
//!   and validity lasts as many from when the client asks. Both end with the same tick: the
//!   tightest case.
//!
//! Not in the model:
//!
//! * more than three servers, or more attempts or tokens than given;
//! * more than two renewals of a lease, and an extend that shortens;
//! * the numbers of the ids of a lease: the simulation has them;
//! * whether any client ever gets the lock;
//! * an undo that stops at the ttl and a client that ends: an acquire that runs after either leaves
//!   its key for a ttl.
//!
//! The number in each test is the number of all states within its bounds: no search is cut off. Any
//! change of the model changes these numbers.

use std::env;

use models::quorum::{Bounds, Flaw, Promise, Protocol, SERVERS, Step, search};

/// The promises that hold if no key expires early and no server loses data.
const ALWAYS: [Promise; 2] = [Promise::Exclusion, Promise::RisingByHolding];
/// The same, and the promise about releases.
const RELEASED: [Promise; 3] = [
    Promise::Exclusion,
    Promise::RisingByHolding,
    Promise::NoKeyStays,
];
/// The promises that still hold if keys expire early.
const FENCED: [Promise; 2] = [Promise::RisingByAsking, Promise::Distinct];

const THREE: Bounds = Bounds {
    attempts: 3,
    tokens: 3,
    ttl: 2,
    renewing: false,
    block: 1,
    early: 0,
    restarts: 0,
    joins: false,
    connections: false,
};
const TWO: Bounds = Bounds {
    attempts: 2,
    ..THREE
};

#[track_caller]
fn assert_holds(bounds: Bounds, promises: &[Promise], states: usize) {
    let protocol = Protocol { bounds, flaw: None };
    match search(&protocol, promises) {
        Ok(seen) => assert_eq!(seen, states),
        Err((promise, steps)) => panic!("{promise:?} is broken by {steps:#?}"),
    }
}

/// Returns the shortest sequence of steps that breaks `promise`.
#[track_caller]
fn steps_that_break(promise: Promise, bounds: Bounds, flaw: Option<Flaw>) -> Vec<Step> {
    match search(&Protocol { bounds, flaw }, &[promise]) {
        Ok(states) => panic!("{promise:?} holds in all {states} states"),
        Err((_, steps)) => {
            println!("{promise:?} is broken by {steps:#?}");
            steps
        }
    }
}

/// Two attempts whose releases are messages on connections.
const RELEASING: Bounds = Bounds {
    connections: true,
    ..TWO
};

const ONE_RELEASING: Bounds = Bounds {
    attempts: 1,
    tokens: 1,
    ..RELEASING
};

#[test]
fn three_attempts_exclude_each_other_under_rising_tokens() {
    assert_holds(Bounds { ttl: 3, ..THREE }, &ALWAYS, 316_773);
}

#[test]
fn three_attempts_that_renew_exclude_each_other() {
    let bounds = Bounds {
        renewing: true,
        ..THREE
    };
    assert_holds(bounds, &ALWAYS, 232_874);
}

#[test]
fn three_attempts_that_hand_off_exclude_each_other() {
    let bounds = Bounds {
        tokens: 4,
        block: 2,
        ..THREE
    };
    assert_holds(bounds, &ALWAYS, 273_391);
}

#[test]
fn two_attempts_that_renew_and_hand_off_exclude_each_other() {
    let bounds = Bounds {
        tokens: 4,
        ttl: 3,
        renewing: true,
        block: 2,
        ..TWO
    };
    assert_holds(bounds, &ALWAYS, 137_248);
}

/// All three keys may expire early; the counters remain.
#[test]
fn tokens_rise_although_keys_expire_early() {
    let bounds = Bounds {
        ttl: 1,
        early: 3,
        ..THREE
    };
    assert_holds(bounds, &FENCED, 202_245);
}

#[test]
fn tokens_rise_although_a_key_expires_early_in_a_longer_lease() {
    assert_holds(Bounds { early: 1, ..THREE }, &FENCED, 379_276);
}

#[test]
fn tokens_rise_although_keys_of_renewed_and_handed_off_leases_expire_early() {
    let bounds = Bounds {
        renewing: true,
        block: 2,
        early: 2,
        ..TWO
    };
    assert_holds(bounds, &FENCED, 139_074);
}

/// A limit: it is enough that the server whose key expired early grants to another attempt.
#[test]
fn a_key_that_expires_early_makes_two_holders() {
    let bounds = Bounds { early: 1, ..TWO };
    let steps = steps_that_break(Promise::Exclusion, bounds, None);
    let at = steps.iter().find_map(|step| match *step {
        Step::ExpiresEarly { server } => Some(server),
        _ => None,
    });
    assert_granted_both(&steps, at.expect("a key that expired early"));
}

/// A limit: of two holders at once, the superseded one may be the last to find its majority. It has
/// the lower token, as it should.
#[test]
fn after_an_early_expiry_the_last_holder_can_have_the_lower_token() {
    let bounds = Bounds { early: 1, ..TWO };
    let steps = steps_that_break(Promise::RisingByHolding, bounds, None);
    let [first, last] = holders(&steps);
    assert!(last.1 < first.1);
    let grants = |id| move |step: &Step| matches!(step, Step::Grants { id: to, .. } if *to == id);
    let [first, last] = [first, last].map(|(id, _)| steps.iter().position(grants(id)));
    assert!(last < first, "the superseded holder was granted first");
}

/// A limit: the server that lost its data is in both majorities, and no other server is.
#[test]
fn a_server_that_restarts_empty_makes_two_holders() {
    let bounds = Bounds { restarts: 1, ..TWO };
    let steps = steps_that_break(Promise::Exclusion, bounds, None);
    assert_granted_both(&steps, restarted_server(&steps));
}

/// The same limit: the server grants to a later attempt a token that is not above the earlier one.
#[test]
fn a_server_that_restarts_empty_grants_a_token_again() {
    let bounds = Bounds { restarts: 1, ..TWO };
    let steps = steps_that_break(Promise::RisingByAsking, bounds, None);
    assert_granted_both(&steps, restarted_server(&steps));
    let [first, last] = holders(&steps);
    assert!(last.1 <= first.1);
    let place = |step| steps.iter().position(|other| *other == step);
    let (id, token) = first;
    let held = place(Step::Holds { id, token });
    let (id, token) = last;
    assert!(
        held < place(Step::Asks { id, token }),
        "the second attempt asked later"
    );
}

/// Each lease that is held gets its key back, and with it the counter its tokens.
const HEALING: Bounds = Bounds {
    joins: true,
    restarts: 2,
    ..TWO
};

#[test]
fn servers_that_restart_one_after_another_make_no_two_holders() {
    assert_holds(HEALING, &ALWAYS, 969_655);
}

#[test]
fn servers_that_restart_while_leases_are_handed_off_make_no_two_holders() {
    let bounds = Bounds {
        block: 2,
        ..HEALING
    };
    assert_holds(bounds, &ALWAYS, 1_415_202);
}

#[test]
fn a_server_that_joins_must_keep_a_higher_counter() {
    let bounds = Bounds {
        attempts: 3,
        tokens: 2,
        restarts: 0,
        ..HEALING
    };
    assert_flaw_is_found(Flaw::JoinLowersTheCounter, Promise::RisingByHolding, bounds);
}

#[test]
fn a_server_that_joins_must_raise_its_counter_to_the_last_token() {
    let bounds = Bounds {
        block: 2,
        ..HEALING
    };
    assert_flaw_is_found(
        Flaw::JoinBringsTheFirstToken,
        Promise::RisingByHolding,
        bounds,
    );
}

fn restarted_server(steps: &[Step]) -> usize {
    let server = steps.iter().find_map(|step| match *step {
        Step::RestartsEmpty { server } => Some(server),
        _ => None,
    });
    server.expect("a server restarted")
}

/// Asserts that `server`, and no other, granted to both attempts.
fn assert_granted_both(steps: &[Step], server: usize) {
    let both: Vec<_> = (0..SERVERS)
        .filter(|&server| (0..2).all(|id| steps.contains(&Step::Grants { server, id })))
        .collect();
    assert_eq!(both, [server]);
}

/// Returns the ids and tokens of the two holders, in the order in which they held the lock.
fn holders(steps: &[Step]) -> [(usize, u8); 2] {
    let holders: Vec<_> = steps
        .iter()
        .filter_map(|step| match *step {
            Step::Holds { id, token } => Some((id, token)),
            _ => None,
        })
        .collect();
    holders.try_into().expect("two holders")
}

/// Asserts that the search finds `promise` broken with `flaw`, and not without it.
#[track_caller]
fn assert_flaw_is_found(flaw: Flaw, promise: Promise, bounds: Bounds) {
    let protocol = Protocol { bounds, flaw: None };
    let promises = if bounds.connections {
        &RELEASED[..]
    } else {
        &ALWAYS
    };
    assert!(search(&protocol, promises).is_ok());
    steps_that_break(promise, bounds, Some(flaw));
}

#[test]
fn votes_for_two_ids_must_not_be_added_up() {
    let bounds = Bounds { tokens: 2, ..THREE };
    assert_flaw_is_found(Flaw::VotesOverTwoIds, Promise::Exclusion, bounds);
}

#[test]
fn votes_for_two_tokens_must_not_be_added_up() {
    assert_flaw_is_found(Flaw::VotesOverTwoTokens, Promise::RisingByHolding, TWO);
}

#[test]
fn a_server_must_keep_the_counter_that_it_granted() {
    assert_flaw_is_found(Flaw::CounterNotKept, Promise::RisingByHolding, TWO);
}

#[test]
fn a_server_must_keep_the_whole_block() {
    let bounds = Bounds { block: 2, ..TWO };
    assert_flaw_is_found(Flaw::BlockNotKept, Promise::RisingByHolding, bounds);
}

#[test]
fn a_server_must_not_grant_its_counter_again() {
    assert_flaw_is_found(Flaw::EqualTokenGranted, Promise::RisingByHolding, TWO);
}

#[test]
fn a_renewal_needs_a_majority_of_all_servers() {
    let bounds = Bounds {
        renewing: true,
        ..TWO
    };
    assert_flaw_is_found(Flaw::RenewedByTheAnswering, Promise::Exclusion, bounds);
}

#[test]
fn validity_must_not_be_counted_from_the_answer() {
    assert_flaw_is_found(Flaw::ValidFromTheAnswer, Promise::Exclusion, TWO);
}

#[test]
fn renewed_validity_must_not_be_counted_from_the_answer() {
    let bounds = Bounds {
        renewing: true,
        ..TWO
    };
    assert_flaw_is_found(Flaw::RenewedFromTheAnswer, Promise::Exclusion, bounds);
}

#[test]
fn no_key_outlives_its_release() {
    assert_holds(RELEASING, &RELEASED, 187_015);
}

#[test]
fn no_key_of_a_renewed_and_handed_off_lease_outlives_its_release() {
    let bounds = Bounds {
        tokens: 2,
        renewing: true,
        block: 2,
        ..RELEASING
    };
    assert_holds(bounds, &RELEASED, 199_427);
}

/// This search takes minutes, so it runs only if `LEASEHOLD_LONG_MODELS` is set:
/// `LEASEHOLD_LONG_MODELS=1 cargo test --release --test checks long_search`.
#[test]
fn no_key_of_three_attempts_outlives_its_release_in_a_long_search() {
    if env::var_os("LEASEHOLD_LONG_MODELS").is_some() {
        let bounds = Bounds {
            attempts: 3,
            ..RELEASING
        };
        assert_holds(bounds, &RELEASED, 10_164_532);
    }
}

/// The release overtakes the acquire on another connection and finds no key. The acquire runs after
/// it, and its answer is read before the answer to the release.
#[test]
fn a_release_must_be_judged_by_what_was_known_when_it_was_sent() {
    let flaw = Flaw::ReleaseJudgedWhenAnswered;
    assert_flaw_is_found(flaw, Promise::NoKeyStays, ONE_RELEASING);
}

#[test]
fn a_release_that_found_nothing_must_be_repeated_while_the_acquire_may_run() {
    assert_flaw_is_found(
        Flaw::AnyAnswerEndsRelease,
        Promise::NoKeyStays,
        ONE_RELEASING,
    );
}
