//! Tests of the calls that wait in queues in Redis.

use std::time::Duration;

use super::*;
use crate::protocol::cohort::CohortKeys;
use crate::protocol::fair::FairMutexKeys;
use crate::protocol::keys::Keys;
use crate::protocol::place::Refreshed;
use crate::queue::answers::Span;
use crate::queue::name_places::{RefreshPace, WaitingReply};
use crate::queue::place_ticket::PlaceTicket;
use crate::queue::position::{Grant, Position, Queue};
use crate::token::FencingToken;
use crate::wait_policy::Backoff;

pub(in crate::queue) const PACE: RefreshPace = RefreshPace {
    every: Duration::from_millis(900),
    backoff: None,
};

const WAITING: Refreshed = Refreshed::Waiting(None);

pub(in crate::queue) fn at(n: u64) -> Instant {
    Instant::START.after(Duration::from_millis(n))
}

fn keys() -> Arc<dyn Primitive> {
    FairMutexKeys::of(Keys::new("a".into(), "lock:", "r:"))
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn token(n: u64) -> FencingToken {
    FencingToken::new(n)
}

fn tokens(n: u64) -> TokenBlock {
    TokenBlock::one(token(n))
}

pub(in crate::queue) fn sent_at(sent: u64) -> WaitingReply {
    WaitingReply {
        sent: at(sent),
        arrived: at(sent + 1),
        is_listening: true,
    }
}

fn is_woken(ticket: &PlaceTicket<'_>) -> bool {
    ticket.parker().is_unparked()
}

/// Enters with a command sent at `sent`, and gets a place.
fn enter(ticket: &PlaceTicket<'_>, sent: u64) -> HolderId {
    let id = HolderId::fresh("o");
    ticket.begin_entering(&id);
    ticket.note_entered(sent_at(sent), None);
    id
}

fn grant(id: &HolderId, n: u64, seen_waiting: u64) -> Position {
    Position::Granted(Grant {
        id: id.clone(),
        tokens: tokens(n),
        seen_waiting: at(seen_waiting),
        refresh_every: PACE.every,
    })
}

#[test]
fn a_waiter_enters_refreshes_and_takes_its_grant() {
    let (places, keys) = (Places::default(), keys());
    let ticket = places.join(Admission::Exclusive, &keys, PACE, Parker::new());
    assert_eq!(ticket.position(at(0), false), Position::Contend);
    let id = enter(&ticket, 10);
    assert_eq!((places.count(), ticket.refusals()), (1, 1));
    assert_eq!(ticket.position(at(11), false), Position::Placed(at(910)));
    assert_eq!(
        ticket.position(at(910), false),
        Position::Refresh(vec![id.clone()])
    );
    ticket.note_refreshed(std::slice::from_ref(&id), &[WAITING], sent_at(911));
    assert_eq!(ticket.position(at(912), false), Position::Placed(at(1811)));
    places.granted(&id, tokens(7));
    assert!(is_woken(&ticket));
    assert_eq!(
        ticket.position(at(913), false),
        grant(&id, 7, 911),
        "it may be as old as the last reply"
    );
    assert_eq!(ticket.forget_id(), None, "the call has taken the grant");
    drop(ticket);
    let state = places.state.lock();
    assert!(state.names.iter().all(HashMap::is_empty) && state.owners.is_empty());
}

#[test]
fn a_grant_can_arrive_before_the_reply_to_entering() {
    let (places, keys) = (Places::default(), keys());
    let ticket = places.join(Admission::Exclusive, &keys, PACE, Parker::new());
    let id = HolderId::fresh("o");
    ticket.begin_entering(&id);
    places.granted(&id, tokens(7));
    assert_eq!(
        ticket.position(at(20), false),
        Position::Contend,
        "nothing is known of its place yet"
    );
    ticket.note_entered(sent_at(10), None);
    assert_eq!(ticket.position(at(20), false), grant(&id, 7, 10));
}

#[test]
fn a_grant_to_any_other_id_is_ignored() {
    let (places, keys) = (Places::default(), keys());
    let ticket = places.join(Admission::Exclusive, &keys, PACE, Parker::new());
    let before = enter(&ticket, 10);
    assert_eq!(ticket.forget_id(), Some(before.clone()));
    let id = enter(&ticket, 20);
    places.granted(&before, tokens(7));
    places.granted(&HolderId::fresh("o"), tokens(8));
    assert!(!is_woken(&ticket));
    assert_eq!(ticket.position(at(21), false), Position::Placed(at(920)));
    places.granted(&id, tokens(9));
    places.granted(&id, tokens(10));
    assert_eq!(
        ticket.position(at(22), false),
        grant(&id, 9, 20),
        "the first grant counts"
    );
    places.granted(&id, tokens(11));
    assert_eq!(
        ticket.position(at(23), false),
        Position::Contend,
        "the id is used up"
    );
}

#[test]
fn one_waiter_refreshes_for_all_and_a_reply_counts_for_its_id_only() {
    let (places, keys) = (Places::default(), keys());
    let tickets: Vec<_> = (0..4)
        .map(|_| places.join(Admission::Exclusive, &keys, PACE, Parker::new()))
        .collect();
    let ids: Vec<_> = tickets.iter().map(|ticket| enter(ticket, 0)).collect();
    let Position::Refresh(asked) = tickets[2].position(at(900), false) else {
        panic!()
    };
    assert_eq!(asked, ids);
    assert_eq!(
        tickets[0].position(at(901), false),
        Position::Placed(at(1801)),
        "one at a time"
    );
    places.granted(&ids[1], tokens(7));
    let late = enter(&tickets[3], 902);
    use Refreshed::{Gone, Granted};
    tickets[2].note_refreshed(
        &asked,
        &[Gone, Gone, WAITING, Granted(token(8))],
        sent_at(900),
    );
    assert_eq!(tickets[0].position(at(903), false), Position::Contend);
    assert_eq!(
        tickets[1].position(at(903), false),
        grant(&ids[1], 7, 0),
        "the message came first"
    );
    assert_eq!(
        tickets[2].position(at(903), false),
        Position::Placed(at(1800))
    );
    assert_eq!(
        tickets[3].position(at(903), false),
        Position::Placed(at(1802)),
        "it waits under another id by now"
    );
    places.granted(&late, tokens(9));
    assert_eq!(tickets[3].position(at(904), false), grant(&late, 9, 902));
}

#[test]
fn a_refresh_is_due_when_the_lock_expires_and_sooner_without_a_subscription() {
    let (places, keys) = (Places::default(), keys());
    let ticket = places.join(Admission::Exclusive, &keys, PACE, Parker::new());
    let id = HolderId::fresh("o");
    let next = |is_listening, remaining: Option<u64>| {
        ticket.begin_entering(&id);
        let reply = WaitingReply {
            is_listening,
            ..sent_at(100)
        };
        ticket.note_entered(reply, remaining.map(Duration::from_millis));
        ticket.position(at(101), false)
    };
    for (is_listening, remaining, due) in [
        (true, None, 1_000),
        (true, Some(5_000), 1_000),
        (true, Some(300), 402),
        (true, Some(0), 110),
        (false, None, 325),
        (false, Some(5_000), 325),
        (false, Some(100), 202),
    ] {
        let position = next(is_listening, remaining);
        assert_eq!(position, Position::Placed(at(due)), "{remaining:?}");
    }
}

#[test]
fn a_due_refresh_is_run_by_another_waiter_if_one_leaves() {
    let (places, keys) = (Places::default(), keys());
    let (first, second) = (
        places.join(Admission::Exclusive, &keys, PACE, Parker::new()),
        places.join(Admission::Exclusive, &keys, PACE, Parker::new()),
    );
    let name = keys.key(0).name;
    let id = enter(&first, 0);
    places.refresh_now(name);
    assert!(is_woken(&first));
    assert_eq!(
        first.position(at(1), false),
        Position::Refresh(vec![id.clone()])
    );
    enter(&second, 2);
    places.refresh_now(name);
    assert!(!is_woken(&second), "a refresh is in flight");
    first.note_refreshed(&[id], &[Refreshed::Granted(token(7))], sent_at(1));
    assert!(is_woken(&second), "that refresh may have been too early");
    first.position(at(3), false);
    drop(first);
    assert!(is_woken(&second), "no waiter has run it yet");
    assert!(matches!(
        second.position(at(4), false),
        Position::Refresh(_)
    ));
    second.note_not_refreshed(at(50));
    assert_eq!(second.position(at(5), false), Position::Placed(at(50)));
    assert!(matches!(
        second.position(at(50), false),
        Position::Refresh(_)
    ));
}

/// The waiter fell asleep before the last reply, which said that the lock expires soon.
#[test]
fn waiter_that_would_oversleep_a_refresh_is_woken_if_another_leaves() {
    let (places, keys) = (Places::default(), keys());
    let [first, second] =
        [(); 2].map(|()| places.join(Admission::Exclusive, &keys, PACE, Parker::new()));
    let ids = [enter(&first, 0), enter(&second, 0)].to_vec();
    assert!(matches!(
        first.position(at(900), false),
        Position::Refresh(..)
    ));
    assert_eq!(second.position(at(901), false), Position::Placed(at(1_801)));
    let expires_soon = Refreshed::Waiting(Some(Duration::from_millis(50)));
    first.note_refreshed(&ids, &[expires_soon; 2], sent_at(901));
    assert_eq!(first.position(at(903), false), Position::Placed(at(953)));
    assert!(!is_woken(&second));
    drop(first);
    assert!(is_woken(&second));
    assert_eq!(second.position(at(904), false), Position::Placed(at(953)));
    assert!(matches!(
        second.position(at(953), false),
        Position::Refresh(..)
    ));
}

#[test]
fn waiter_without_time_for_a_reply_passes_a_due_refresh_on_at_once() {
    let (places, keys) = (Places::default(), keys());
    let [first, second, third] =
        [(); 3].map(|()| places.join(Admission::Exclusive, &keys, PACE, Parker::new()));
    let ids = [&first, &second, &third]
        .map(|ticket| enter(ticket, 0))
        .to_vec();
    let refresh = || Position::Refresh(ids.clone());
    assert_eq!(first.position(at(900), false), refresh());
    first.pass_refresh_on();
    assert!(is_woken(&second) && !is_woken(&first));
    assert_eq!(second.position(at(901), false), refresh());
    second.pass_refresh_on();
    assert!(is_woken(&third) && !is_woken(&first) && !is_woken(&second));
    let endless = Position::Placed(Instant::NEVER);
    assert_eq!(first.position(at(902), false), endless);
    assert_eq!(third.position(at(902), false), refresh());
    third.note_refreshed(&ids, &[WAITING; 3], sent_at(902));
    places.refresh_now(keys.key(0).name);
    assert!(is_woken(&third) && !is_woken(&first));
    places.granted(&ids[0], tokens(7));
    assert!(is_woken(&first));
    assert_eq!(first.position(at(903), false), grant(&ids[0], 7, 902));
}

#[test]
fn call_behind_a_shared_place_is_woken_when_nobody_has_it() {
    let places = Places::default();
    let keys = Keys::new("a".into(), "lock:", "r:");
    let keys = CohortKeys::of(keys);
    let [first, behind] =
        [(); 2].map(|()| places.join(Admission::Exclusive, &keys, PACE, Parker::new()));
    first.begin_entering(&HolderId::fresh("o"));
    assert_eq!(behind.position(at(0), false), Position::Behind);
    first.note_not_entered();
    assert!(is_woken(&behind) && !is_woken(&first));
    assert_eq!(behind.position(at(1), false), Position::Contend);

    let ids = [enter(&first, 10)];
    assert_eq!(behind.position(at(11), false), Position::Behind);
    first.note_refreshed(&ids, &[Refreshed::Gone], sent_at(900));
    assert!(is_woken(&behind) && is_woken(&first));
}

/// Returns the two calls that share a place: one under `WaitPolicy::Backoff` that has it, and one
/// that receives grant messages.
fn backoff_and_wake<'a>(places: &'a Places, keys: &'a Arc<dyn Primitive>) -> [PlaceTicket<'a>; 2] {
    let backoff = Some(Backoff::new(ms(10), ms(10)).jitter(0.0));
    let under_backoff = RefreshPace { backoff, ..PACE };
    [under_backoff, PACE].map(|pace| places.join(Admission::Exclusive, keys, pace, Parker::new()))
}

#[test]
fn place_taken_over_during_a_refresh_is_refreshed_again_at_once_for_an_inbox() {
    let places = Places::default();
    let keys = CohortKeys::of(Keys::new("a".into(), "lock:", "r:"));
    let [backoff, wake] = backoff_and_wake(&places, &keys);
    let ids = [enter(&backoff, 0)].to_vec();
    assert!(is_woken(&wake));
    let refresh = Position::Refresh(ids.clone());
    assert_eq!(backoff.position(at(10), false), refresh);
    assert!(matches!(wake.position(at(11), false), Position::Placed(_)));
    assert!(wake.has_place() && !backoff.has_place() && !is_woken(&wake));
    backoff.note_refreshed(&ids, &[WAITING], sent_at(10));
    assert!(is_woken(&wake));
    assert_eq!(wake.position(at(12), false), refresh);
    wake.note_refreshed(&ids, &[WAITING], sent_at(12));
    assert_eq!(wake.position(at(13), false), Position::Placed(at(912)));
}

#[test]
fn refresh_of_a_place_taken_over_is_due_when_it_was_before() {
    let places = Places::default();
    let keys = CohortKeys::of(Keys::new("a".into(), "lock:", "r:"));
    let [first, second] =
        [(); 2].map(|()| places.join(Admission::Exclusive, &keys, PACE, Parker::new()));
    let id = HolderId::fresh("o");
    first.begin_entering(&id);
    first.note_entered(sent_at(0), Some(ms(50)));
    assert_eq!(first.hand_over(true), None);
    assert_eq!(second.position(at(2), false), Position::Placed(at(52)));
    let refresh = Position::Refresh(vec![id]);
    assert_eq!(second.position(at(52), false), refresh);
}

/// Otherwise no call would remove the second place from the queue.
#[test]
fn of_two_calls_that_enter_at_once_one_takes_the_shared_place() {
    let places = Places::default();
    let keys = CohortKeys::of(Keys::new("a".into(), "lock:", "r:"));
    let [first, second] =
        [(); 2].map(|()| places.join(Admission::Exclusive, &keys, PACE, Parker::new()));
    for ticket in [&first, &second] {
        assert_eq!(ticket.position(at(0), false), Position::Contend);
    }
    let (id, late) = (HolderId::fresh("o"), HolderId::fresh("o"));
    assert!(first.begin_entering(&id));
    assert!(!second.begin_entering(&late));
    first.note_entered(sent_at(1), None);
    assert_eq!(second.position(at(2), false), Position::Behind);
    assert_eq!(first.hand_over(true), None);
    assert!(is_woken(&second) && !second.begin_entering(&late));
    assert_eq!(second.hand_over(false), Some(id), "its last call leaves");
    assert!(places.state.lock().owners.is_empty());
}

#[test]
fn refusal_counts_for_every_waiter_that_had_joined_before_it() {
    let (places, keys) = (Places::default(), keys());
    let [asks, waits] =
        [(); 2].map(|()| places.join(Admission::Exclusive, &keys, PACE, Parker::new()));
    let since = |start| Span {
        start: at(start),
        deadline: at(5_000),
        last_reply_took: Duration::ZERO,
    };
    asks.update_answers(&mut |answers| answers.refused(at(10), at(10), None));
    assert!(waits.answers().is_taken(since(10)) && !waits.answers().is_taken(since(11)));
}

#[test]
fn at_shutdown_every_waiter_leaves_once() {
    let (places, keys) = (Places::default(), keys());
    let (waits, enters) = (
        places.join(Admission::Exclusive, &keys, PACE, Parker::new()),
        places.join(Admission::Exclusive, &keys, PACE, Parker::new()),
    );
    let id = enter(&waits, 0);
    let asking = HolderId::fresh("o");
    enters.begin_entering(&asking);
    places.granted(&id, tokens(7));
    let left: Vec<_> = places.leave_all().into_iter().map(|(_, id)| id).collect();
    assert_eq!(left, [id], "a grant that no call has taken is passed on");
    assert_eq!(waits.forget_id(), None);
    assert_eq!(
        enters.forget_id(),
        Some(asking),
        "by itself, after its reply"
    );
}
