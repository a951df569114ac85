//! Tests of the decision, with members that lie, are late or do not answer.

use super::*;

/// Returns the claim of each member, as `(address, epoch)`.
fn claims(said: &[(&'static str, Option<u64>)]) -> Vec<Claim<&'static str>> {
    let claim = |(member, (address, epoch)): (usize, &(&'static str, Option<u64>))| Claim {
        member,
        address: *address,
        epoch: *epoch,
    };
    said.iter().enumerate().map(claim).collect()
}

fn known(address: &'static str, epoch: Option<u64>, serves: bool) -> Option<Known<&'static str>> {
    Some(Known {
        address,
        epoch,
        serves,
    })
}

/// Returns the choice among the claims of three members, of which those to `failed` were refuted.
fn choice(
    said: &[(&'static str, Option<u64>)],
    known: &Option<Known<&'static str>>,
    failed: &[&str],
) -> (Vec<&'static str>, bool) {
    let has_failed = |claim: &Claim<&str>| failed.contains(&claim.address);
    let choice = choose(&claims(said), 3, known.as_ref(), None, has_failed);
    (choice.candidates, choice.is_by_majority)
}

#[test]
fn the_highest_epoch_wins_even_if_one_member_names_it() {
    for known in [
        None,
        known("old", Some(5), true),
        known("old", Some(5), false),
    ] {
        let said = [("old", Some(5)), ("new", Some(6)), ("old", Some(5))];
        assert_eq!(choice(&said, &known, &[]).0[0], "new", "{known:?}");
    }
}

#[test]
fn a_member_that_is_out_of_date_moves_nobody() {
    let good = known("good", Some(5), true);
    for said in [
        &[("old", Some(1)), ("good", Some(5)), ("good", Some(5))][..],
        // The others are late, or gone.
        &[("old", Some(1))],
        // The others are out of date as well.
        &[("old", Some(1)), ("old", Some(1)), ("old", Some(1))],
    ] {
        assert_eq!(choice(said, &good, &[]), (vec![], false), "{said:?}");
    }
}

#[test]
fn without_epochs_only_a_majority_of_all_members_replaces_a_master_that_serves() {
    for epoch in [None, Some(5)] {
        let good = known("good", epoch, true);
        for said in [
            &[("bad", epoch), ("good", epoch), ("good", epoch)][..],
            &[("bad", epoch)],
            &[("bad", epoch), ("worse", epoch), ("good", epoch)],
        ] {
            assert_eq!(choice(said, &good, &[]), (vec![], false), "{said:?}");
        }
        let said = [("good", epoch), ("new", epoch), ("new", epoch)];
        assert_eq!(choice(&said, &good, &[]), (vec!["new"], true));
        // It need not have answered: the old master must not be used any more.
        assert_eq!(choice(&said, &good, &["new"]), (vec!["new"], true));
    }
}

#[test]
fn a_master_that_does_not_serve_is_left_for_any_named_address() {
    let down = known("down", None, false);
    let said = [("other", None)];
    assert_eq!(choice(&said, &down, &["down"]).0, ["other"]);
    let said = [("down", None), ("down", None), ("other", None)];
    assert_eq!(choice(&said, &down, &["down"]).0, ["other", "down"]);
}

/// The new master restarts, and another member names the old one, which is still writable.
#[test]
fn a_lower_epoch_needs_a_majority_if_the_highest_one_does_not_serve() {
    let said = [("new", Some(6)), ("old", Some(5))];
    for known in [
        None,
        known("new", Some(6), false),
        known("old", Some(5), false),
    ] {
        assert_eq!(choice(&said, &known, &["new"]).0, ["new"]);
    }
    let said = [("wrong", Some(6)), ("good", Some(5)), ("good", Some(5))];
    assert_eq!(choice(&said, &None, &["wrong"]).0, ["good", "wrong"]);
}

/// The connections to the known master are cut, and meanwhile only a member that is out of date
/// answers.
#[test]
fn an_epoch_below_that_of_the_known_address_needs_a_majority() {
    let good = known("good", Some(5), false);
    let said = [("old", Some(1))];
    assert_eq!(choice(&said, &good, &["good"]), (vec![], false));
    let said = [("old", Some(1)), ("old", Some(1))];
    assert_eq!(choice(&said, &good, &["good"]).0, ["old"]);
}

#[test]
fn if_all_else_is_equal_the_known_address_goes_first() {
    let said = [("other", None), ("known", None)];
    assert_eq!(choice(&said, &None, &[]).0, ["other", "known"]);
    let known = known("known", None, false);
    assert_eq!(choice(&said, &known, &[]).0, ["known", "other"]);
}

#[test]
fn an_address_that_has_just_failed_is_tried_last() {
    let said = [("closed", Some(9)), ("good", Some(5)), ("good", Some(5))];
    assert_eq!(choice(&said, &None, &[]).0, ["closed", "good"]);
    assert_eq!(choice(&said, &None, &["closed"]).0, ["good", "closed"]);
    let good = known("good", Some(5), true);
    assert_eq!(choice(&said, &good, &[]), (vec!["closed"], false));
    assert_eq!(choice(&said, &good, &["closed"]), (vec![], false));
}

#[test]
fn an_epoch_below_that_of_most_members_never_counts() {
    let said = claims(&[("stale", Some(1)), ("down", Some(5)), ("down", Some(5))]);
    assert_eq!(majority_epoch(&said, 3), Some(5));
    assert_eq!(majority_epoch(&said[..1], 3), None);
    assert_eq!(majority_epoch(&said[..1], 1), Some(1));
    let down = known("down", Some(5), false);
    let choice = choose(&said, 3, down.as_ref(), Some(5), |claim| {
        claim.address == "down"
    });
    assert_eq!(choice.candidates, ["down"]);
}

#[test]
fn a_majority_without_epochs_goes_before_one_member_with_an_epoch() {
    let said = [("new", None), ("old", Some(5)), ("new", None)];
    assert_eq!(choice(&said, &None, &[]).0, ["new", "old"]);
}

#[test]
fn without_claims_nothing_changes() {
    for known in [None, known("good", None, true), known("good", None, false)] {
        assert_eq!(choice(&[], &known, &[]), (vec![], false));
    }
}
