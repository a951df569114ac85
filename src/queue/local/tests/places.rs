//! Tests of calls of a local queue that have, share or miss a place in Redis.

use super::*;
use crate::queue::places::tests::PACE;

#[test]
fn restored_subscription_refreshes_the_places_of_all_semaphores() {
    let waiters = Waiters::default();
    let semaphore = |name: &str| -> Arc<dyn Primitive> {
        let lock = Keys::new(name.into(), "lock:", "r:");
        Arc::new(SemaphoreKeys::of(lock, 2, 1))
    };
    let keys = [
        semaphore("a"),
        semaphore("b"),
        FairMutexKeys::of(Keys::new("c".into(), "lock:", "r:")),
    ];
    let reply = WaitingReply {
        sent: NOW,
        arrived: NOW,
        is_listening: true,
    };
    let tickets = keys.each_ref().map(|keys| {
        let ticket = waiters
            .own_places
            .join(Admission::Exclusive, keys, PACE, Parker::new());
        ticket.begin_entering(&HolderId::fresh("o"));
        ticket.note_entered(reply, None);
        ticket
    });
    waiters.own_places.refresh_channel(keys[0].key(0).channel);
    let is_due =
        |ticket: &PlaceTicket<'_>| matches!(ticket.position(NOW, false), Position::Refresh(..));
    assert_eq!(tickets.each_ref().map(is_due), [true, true, false]);
}

#[test]
fn grant_wakes_a_call_that_also_waits_in_the_local_queue() {
    let (waiters, keys) = (Waiters::default(), Keys::new("a".into(), "lock:", "r:"));
    let fair = FairMutexKeys::of(keys);
    let local = waiters.join(fair.key(0).name, None, true);
    let place = waiters
        .own_places
        .join(Admission::Exclusive, &fair, PACE, local.parker().clone());
    let id = HolderId::fresh("o");
    place.begin_entering(&id);
    let tokens = TokenBlock::one(FencingToken::new(7));
    waiters.own_places.granted(&id, tokens);
    assert!(is_woken(&local));
}

#[test]
fn call_that_took_a_hand_off_sees_the_others_that_wait() {
    const TERMS: LeaseTerms = LeaseTerms {
        ttl: Duration::from_secs(3_600),
        renew_every: Some(Duration::from_secs(60)),
        max_hold: Duration::MAX,
        replicas: None,
        handoffs: 32,
    };
    let (waiters, name, now) = (Waiters::default(), Name::from("a"), NOW.after(TERMS.ttl));
    let hold = held_for_an_hour(now);
    waiters.granted(&hold);
    let [first, second] = [(); 2].map(|()| waiters.join(&name, Some(TERMS), true));
    for call in [&first, &second] {
        call.share_place();
    }
    assert!(first.others_share_place() && second.others_share_place());
    let handed = waiters.hand_off(&hold, hold.token(), false, now);
    assert!(handed.is_ok());
    let holding = |token| Holding {
        token,
        since: Some(now),
        handoffs: TERMS.handoffs,
        trace_id: None,
        on_lost: None,
        on_renew: None,
    };
    assert!(matches!(
        first.take(now, TERMS.max_hold, holding),
        Some(Ok(_))
    ));
    assert!(first.others_share_place(), "it has left the queue itself");
    drop(second);
    assert!(!first.others_share_place());
}

/// A call for a set in several slots of a cluster shares none.
#[test]
fn call_that_shares_no_place_takes_none_over() {
    let (waiters, name) = (Waiters::default(), Name::from("a"));
    let plain = waiters.join(&name, None, true);
    plain.share_place();
    let set = waiters.join(&name, None, true);
    assert!(!plain.others_share_place());
    assert!(set.others_share_place() && waiters.anybody_shares_place(&name));
    drop(plain);
    assert!(!waiters.anybody_shares_place(&name) && waiters.anybody_for(&name));
}

#[test]
fn calls_that_share_a_place_do_not_wait_behind_one_that_does_not() {
    let (waiters, name) = (Waiters::default(), Name::from("a"));
    let set = waiters.join(&name, None, true);
    let plain = [(); 3].map(|()| waiters.join(&name, None, true));
    for call in &plain {
        call.share_place();
    }
    let [first, second, third] = plain;
    for active in [&set, &first] {
        assert_eq!(active.position(NOW, false), Position::Contend);
    }
    for behind in [&second, &third] {
        assert_eq!(behind.position(NOW, false), Position::Behind);
        behind.parker();
    }
    drop(first);
    assert!(is_woken(&second) && !is_woken(&third));
    assert_eq!(second.position(NOW, false), Position::Contend);
    assert_eq!(third.position(NOW, false), Position::Behind);
}

#[test]
fn waiter_without_a_place_is_woken_by_a_plain_release() {
    let (waiters, name) = (Waiters::default(), Name::from("a"));
    let all = waiters.join(&name, None, true);
    let next = Next {
        first: HolderId::fresh("o"),
        waiting: 1,
    };
    let is_free = || {
        let held = waiters.announced_plain(&name, b"next", &next, ALONE, NOW);
        held.is_none()
    };
    assert!(is_free() && is_woken(&all));
    // The same while another call of this client has a place.
    let keys = FairMutexKeys::of(Keys::new("a".into(), "lock:", "r:"));
    let (shared_places, parker) = (&waiters.shared_places, Parker::new());
    let place = shared_places.join(Admission::Exclusive, &keys, PACE, parker);
    place.begin_entering(&HolderId::fresh("o"));
    assert!(is_free() && is_woken(&all));
    waiters.announced(&name, b"foreign", ALONE);
    assert!(is_woken(&all));
    waiters.wake_to_retry(&name);
    assert!(is_woken(&all));
    all.share_place();
    is_free();
    waiters.announced(&name, b"foreign", ALONE);
    waiters.wake_to_retry(&name);
    assert!(!is_woken(&all), "the call with the place asks");
}

/// The reply to a command that ran before the release does not postpone the refresh.
#[test]
fn the_first_place_is_refreshed_2_ms_after_a_plain_release_and_the_others_from_20_ms_on() {
    let cases = [(true, 1, 2, 2), (true, 100, 2, 2), (false, 5, 20, 40)];
    for (is_first, waiting, earliest, latest) in [&cases[..], &[(false, 100, 20, 420)]].concat() {
        let (waiters, name) = (Waiters::default(), Name::from("a"));
        let keys = FairMutexKeys::of(Keys::new("a".into(), "lock:", "r:"));
        let own = HolderId::fresh("o");
        let place = (waiters.own_places).join(Admission::Exclusive, &keys, PACE, Parker::new());
        place.begin_entering(&own);
        let first = if is_first { own } else { HolderId::fresh("o") };
        let next = Next {
            first: first.clone(),
            waiting,
        };
        waiters.announced_plain(&name, b"next", &next, ALONE, NOW);
        let reply = WaitingReply {
            sent: NOW,
            arrived: NOW,
            is_listening: true,
        };
        place.note_entered(reply, None);
        let Position::Placed(due) = place.position(NOW, false) else {
            panic!("the place waits");
        };
        let pause = NOW.until(due);
        assert!(
            (earliest..=latest).contains(&pause.as_millis()),
            "{pause:?}"
        );
        assert!(matches!(place.position(due, false), Position::Refresh(..)));
        let later = due.after(Duration::from_millis(1));
        place.note_refreshed(&[first], &[], reply);
        assert!(matches!(place.position(later, false), Position::Placed(at) if at > later));
    }
}

/// It proves that the lock was held in between.
#[test]
fn a_second_plain_release_postpones_the_refresh_that_was_due_after_the_first() {
    let (waiters, name) = (Waiters::default(), Name::from("a"));
    let keys = FairMutexKeys::of(Keys::new("a".into(), "lock:", "r:"));
    let place = (waiters.own_places).join(Admission::Exclusive, &keys, PACE, Parker::new());
    place.begin_entering(&HolderId::fresh("o"));
    let reply = WaitingReply {
        sent: NOW,
        arrived: NOW,
        is_listening: true,
    };
    place.note_entered(reply, None);
    let next = Next {
        first: HolderId::fresh("o"),
        waiting: 5,
    };
    waiters.announced_plain(&name, b"next", &next, ALONE, NOW);
    let later = NOW.after(Duration::from_millis(15));
    waiters.announced_plain(&name, b"next", &next, ALONE, later);
    let at = |ms| later.after(Duration::from_millis(ms));
    let position = place.position(at(19), false);
    assert!(matches!(position, Position::Placed(due) if due >= at(20) && due <= at(40)));
    let position = place.position(at(41), false);
    assert!(matches!(position, Position::Refresh(..)));
}
