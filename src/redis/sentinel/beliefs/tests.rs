//! Tests of what a client believes over time.

use super::*;

fn at(seconds: u64) -> Instant {
    Instant::START.after(Duration::from_secs(seconds))
}

fn address(host: &str) -> HostPort {
    (host.into(), 6379)
}

/// Returns the reports of the names, as `(host, epoch, id)`. A name without a host is silent.
fn reports(said: &[(&str, Option<u64>, &str)]) -> Vec<(usize, Report)> {
    let all = said
        .iter()
        .enumerate()
        .filter(|(_, said)| !said.0.is_empty());
    all.map(|(name, (host, epoch, id))| {
        let report = Report {
            address: address(host),
            epoch: *epoch,
            id: Some(id.as_bytes().to_vec()).filter(|id| !id.is_empty()),
        };
        (name, report)
    })
    .collect()
}

fn candidates(beliefs: &mut Beliefs, said: &[(&str, Option<u64>, &str)], now: u64) -> Vec<String> {
    let choice = beliefs.weigh(&reports(said), at(now));
    choice
        .candidates
        .into_iter()
        .map(|(host, _)| host)
        .collect()
}

fn known(names: usize, host: &str, epoch: Option<u64>) -> Beliefs {
    let mut beliefs = Beliefs::none(names);
    assert!(!beliefs.take(&address(host), epoch, true));
    beliefs
}

#[test]
fn several_names_of_one_sentinel_count_once() {
    let mut beliefs = known(3, "good", None);
    let said = [("bad", None, "a"), ("bad", None, "a"), ("good", None, "b")];
    assert!(candidates(&mut beliefs, &said, 1).is_empty());
    // Without the right to ask for the id, they count as they are configured.
    let said = said.map(|(host, epoch, _)| (host, epoch, ""));
    assert_eq!(candidates(&mut beliefs, &said, 2), ["bad"]);
    // One sentinel is its own majority, however many names it has.
    let mut beliefs = known(2, "good", None);
    let said = [("new", None, "a"), ("new", None, "a")];
    assert_eq!(candidates(&mut beliefs, &said, 1), ["new"]);
    // The other name of the sentinel is not asked in time.
    let mut beliefs = known(2, "good", None);
    candidates(&mut beliefs, &[("good", None, "a"), ("good", None, "a")], 1);
    assert_eq!(candidates(&mut beliefs, &[("new", None, "a")], 2), ["new"]);
}

#[test]
fn an_address_that_failed_is_tried_again_after_a_while() {
    let mut beliefs = known(3, "good", Some(5));
    let said = [
        ("new", Some(6), "a"),
        ("good", Some(5), "b"),
        ("good", Some(5), "c"),
    ];
    assert_eq!(candidates(&mut beliefs, &said, 0), ["new"]);
    beliefs.failed(&address("new"), at(0));
    assert!(candidates(&mut beliefs, &said, 9).is_empty());
    assert_eq!(candidates(&mut beliefs, &said, 10), ["new"]);
}

/// As after `SENTINEL REMOVE` and `SENTINEL MONITOR` at each sentinel.
#[test]
fn lower_epochs_of_most_sentinels_count_once_they_have_lasted() {
    let mut beliefs = known(3, "good", Some(5));
    let [set_up, lagging] = [Some(0), Some(5)];
    let said = [
        ("new", set_up, "a"),
        ("new", set_up, "b"),
        ("new", set_up, "c"),
    ];
    assert!(candidates(&mut beliefs, &said, 1).is_empty());
    let mut one_knows = said;
    one_knows[2] = ("good", lagging, "c");
    assert!(candidates(&mut beliefs, &one_knows, 9).is_empty());
    assert!(candidates(&mut beliefs, &said, 11).is_empty());
    assert!(candidates(&mut beliefs, &said[..1], 21).is_empty());
    assert_eq!(candidates(&mut beliefs, &said, 21), ["new"]);
}

/// One sentinel alone cannot bring back an old master while the new one is down.
#[test]
fn an_epoch_that_most_sentinels_have_left_is_not_followed_when_the_master_is_down() {
    let mut beliefs = known(3, "good", Some(5));
    let said = [
        ("old", Some(1), "a"),
        ("good", Some(5), "b"),
        ("good", Some(5), "c"),
    ];
    assert!(candidates(&mut beliefs, &said, 0).is_empty());
    beliefs.failed(&address("good"), at(1));
    for (now, said) in [(1, &said[..]), (2, &said[..1]), (60, &said[..1])] {
        assert!(!candidates(&mut beliefs, said, now).contains(&"old".into()));
    }
    // That epoch came from one sentinel alone.
    let mut beliefs = known(3, "wrong", Some(9));
    beliefs.failed(&address("wrong"), at(0));
    let said = [
        ("good", Some(5), "a"),
        ("good", Some(5), "b"),
        ("wrong", Some(9), "c"),
    ];
    assert_eq!(candidates(&mut beliefs, &said, 1), ["good", "wrong"]);
}

#[test]
fn sentinels_are_asked_more_often_while_they_disagree() {
    let mut beliefs = known(3, "good", Some(5));
    assert!(beliefs.is_ask_due(at(0)) && !beliefs.is_ask_due(at(9)));
    let agreed = [
        ("good", Some(5), "a"),
        ("good", Some(5), "b"),
        ("good", Some(5), "c"),
    ];
    let mut disagreed = agreed;
    disagreed[0] = ("old", Some(1), "a");
    for (said, after) in [(&agreed[..], 10), (&disagreed, 2), (&agreed[..1], 2)] {
        candidates(&mut beliefs, said, 100);
        assert!(!beliefs.is_ask_due(at(100 + after - 1)), "{said:?}");
        assert!(beliefs.is_ask_due(at(100 + after)), "{said:?}");
    }
    // An announcement that arrives while the sentinels are asked is not forgotten.
    beliefs.ask_again();
    candidates(&mut beliefs, &agreed, 100);
    assert!(beliefs.is_ask_due(at(100)) && !beliefs.is_ask_due(at(100)));
}

#[test]
fn a_sentinel_that_disagrees_for_a_while_is_reported_once() {
    let mut beliefs = known(2, "good", None);
    let good = address("good");
    let disagree = reports(&[("old", None, "a"), ("good", None, "b")]);
    let mut dissenters = |reports: &[(usize, Report)], now| {
        let dissenters = beliefs.dissenters(reports, &good, at(now));
        dissenters
            .into_iter()
            .map(|(name, _)| name)
            .collect::<Vec<_>>()
    };
    assert!(dissenters(&disagree, 0).is_empty());
    assert_eq!(dissenters(&disagree, 4), [0]);
    assert!(dissenters(&disagree, 8).is_empty());
    assert!(dissenters(&reports(&[("good", None, "a")]), 9).is_empty());
    assert!(dissenters(&disagree, 10).is_empty());
    assert_eq!(dissenters(&disagree, 14), [0]);
}

#[test]
fn an_address_counts_as_moved_once() {
    let mut beliefs = known(1, "a", None);
    assert!(beliefs.take(&address("b"), None, true));
    assert!(!beliefs.take(&address("b"), Some(2), true));
    assert!(beliefs.take(&address("a"), None, false));
    assert_eq!(beliefs.serving(), None);
}

/// A thread that asked before may have chosen another address, because this one did not serve.
#[test]
fn an_address_that_serves_again_is_a_change() {
    let mut beliefs = known(1, "a", None);
    let before = beliefs.changes;
    beliefs.take(&address("a"), None, true);
    assert_eq!(beliefs.changes, before);
    beliefs.failed(&address("a"), at(1));
    beliefs.take(&address("a"), None, true);
    assert_eq!(beliefs.changes, before + 1);
}

#[test]
fn an_address_that_most_sentinels_have_left_is_no_last_resort() {
    let mut beliefs = known(3, "old", Some(5));
    beliefs.failed(&address("old"), at(0));
    candidates(&mut beliefs, &[("old", Some(5), "a")], 1);
    assert_eq!(beliefs.not_replaced(), Some(&address("old")));
    let said = [("new", Some(6), "a"), ("new", Some(6), "b")];
    assert_eq!(candidates(&mut beliefs, &said, 2), ["new"]);
    assert_eq!(beliefs.not_replaced(), None);
}

#[test]
fn an_answer_that_came_too_late_counts_at_the_next_question() {
    let mut beliefs = known(3, "old", Some(5));
    let said = [("old", Some(5), "a"), ("new", Some(6), "b")];
    let reports = reports(&said);
    beliefs.heard(1, &reports[1].1, at(1));
    let with_late = |seconds| beliefs.with_late(reports[..1].to_vec(), at(seconds));
    assert_eq!(with_late(11), reports);
    assert_eq!(with_late(13), reports[..1]);
    beliefs.weigh(&reports, at(1));
    assert!(beliefs.is_ask_due(at(1)), "it was not heard before");
    beliefs.heard(1, &reports[1].1, at(2));
    assert!(!beliefs.is_ask_due(at(2)));
}
