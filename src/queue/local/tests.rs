//! Tests of the local queues and the messages to them.

use super::*;
use crate::config::LeaseTerms;
use crate::lease::held::Holding;
use crate::lease::held::tests::held_for_an_hour;
use crate::parker::Parker;
use crate::protocol::fair::FairMutexKeys;
use crate::protocol::keys::Keys;
use crate::protocol::place::Next;
use crate::protocol::primitive::Admission;
use crate::protocol::semaphore::SemaphoreKeys;
use crate::queue::answers::Span;
use crate::queue::held_leases::HeldLeases;
use crate::queue::local_queue::MAX_PARTIAL_ANNOUNCEMENTS;
use crate::queue::local_ticket::QueueTicket;
use crate::queue::name_places::WaitingReply;
use crate::queue::place_ticket::PlaceTicket;
use crate::queue::position::{Position, Queue};

mod places;

const NOW: Instant = Instant::START;

const ALONE: Announcer = Announcer {
    server: 0,
    needed: 1,
};

fn is_woken(ticket: &QueueTicket<'_>) -> bool {
    ticket.parker().is_unparked()
}

impl Waiters {
    /// Records a lease of a name that one lease can hold at a time.
    fn granted_one(
        &self,
        name: &Name,
        id: &HolderId,
        hold: Weak<HeldLease>,
        is_shared: bool,
    ) -> Vec<Weak<HeldLease>> {
        let mut names = self.names.lock();
        let queue = names.entry(name.clone()).or_default();
        queue.granted(id.clone(), hold, is_shared)
    }
}

#[test]
fn two_leases_of_a_name_with_room_for_two_make_the_third_call_wait() {
    let (waiters, name) = (Waiters::default(), Name::from("a"));
    let ids = [(); 3].map(|()| HolderId::fresh("o"));
    let third = waiters.join(&name, None, true);
    waiters.names.lock().get_mut(&name).unwrap().held = HeldLeases::with_capacity(2);
    for id in &ids[..2] {
        assert_eq!(third.position(NOW, false), Position::Contend);
        assert!(
            waiters
                .granted_one(&name, id, Weak::new(), false)
                .is_empty()
        );
    }
    assert_eq!(third.position(NOW, false), Position::HeldLocally);
    assert_eq!(waiters.count(), (2, 0), "two leases of one name");
    waiters.ended_one(&name, &ids[0], Some(NOW));
    assert!(is_woken(&third));
    assert_eq!(third.position(NOW, false), Position::Contend);
    assert!(
        waiters
            .granted_one(&name, &ids[2], Weak::new(), false)
            .is_empty()
    );
    drop(third);
    let is_held = |id: &HolderId| waiters.announced(&name, id.as_str().as_bytes(), ALONE);
    assert_eq!(
        [0, 1, 2].map(|n| is_held(&ids[n]).is_some()),
        [false, true, true]
    );
    ids.iter().for_each(|id| waiters.ended_one(&name, id, None));
    assert!(waiters.is_idle());
}

#[test]
fn permits_of_this_client_keep_none_of_its_calls_from_trying() {
    let (waiters, lock) = (Waiters::default(), Name::from("a"));
    let keys = SemaphoreKeys::of(Keys::new(lock.clone(), "lock:", "r:"), 3, 1);
    let semaphore = &keys.keys().names[0];
    let queue = LocalQueue::with_capacity(keys.capacity());
    waiters.names.lock().insert(semaphore.clone(), queue);
    let ids = [(); 4].map(|()| HolderId::fresh("o"));
    for id in &ids[..3] {
        let evicted = waiters.granted_one(semaphore, id, Weak::new(), false);
        assert!(evicted.is_empty());
    }
    assert!(
        !waiters.is_held_by_us(semaphore),
        "no call waits for itself"
    );
    let evicted = waiters.granted_one(&lock, &ids[3], Weak::new(), false);
    assert!(evicted.is_empty(), "the lock of that name is another");
    assert_eq!(waiters.is_held_by_us(&lock), cfg!(debug_assertions));
    assert_eq!(waiters.count(), (4, 0));
    for (n, id) in ids.iter().enumerate() {
        let name = if n < 3 { semaphore } else { &lock };
        waiters.ended_one(name, id, None);
    }
    assert!(waiters.is_idle());
}

#[test]
fn the_next_waiter_contends_after_the_first_leaves_and_the_lease_ends() {
    let (waiters, name, id) = (Waiters::default(), Name::from("a"), HolderId::fresh("o"));
    let first = waiters.join(&name, None, true);
    let second = waiters.join(&name, None, true);
    assert_eq!(first.position(NOW, false), Position::Contend);
    assert_eq!(second.position(NOW, true), Position::Behind);
    waiters.granted_one(&name, &id, Weak::new(), false);
    drop(first);
    assert!(is_woken(&second));
    assert_eq!(second.position(NOW, false), Position::HeldLocally);
    assert_eq!(second.position(NOW, true), Position::Contend);
    waiters.ended_one(&name, &id, Some(NOW));
    assert!(is_woken(&second));
    assert_eq!(second.position(NOW, false), Position::Contend);
    drop(second);
    assert!(waiters.names.lock().is_empty());
}

/// Returns a queue with one waiter for each item, under `Wake` if true and `Backoff` if false.
fn queue<'a, const N: usize>(
    waiters: &'a Waiters,
    name: &'a Name,
    wakes_on_release: [bool; N],
) -> [QueueTicket<'a>; N] {
    wakes_on_release.map(|wakes| waiters.join(name, None, wakes))
}

#[test]
fn the_first_waiter_under_wake_contends_behind_waiters_under_backoff() {
    let (waiters, name, id) = (Waiters::default(), Name::from("a"), HolderId::fresh("o"));
    let [first, backs_off, contender, next] = queue(&waiters, &name, [false, false, true, true]);
    let turns =
        || [&first, &backs_off, &contender, &next].map(|ticket| ticket.position(NOW, false));
    let woken_now = || [&first, &backs_off, &contender, &next].map(is_woken);
    use Position::{Behind, Contend, HeldLocally};
    assert_eq!(turns(), [Contend, Behind, Contend, Behind]);
    waiters.announced(&name, b"foreign", ALONE);
    assert_eq!(woken_now(), [false, false, true, false]);
    waiters.wake_to_retry(&name);
    assert_eq!(woken_now(), [false, false, true, false]);
    waiters.granted_one(&name, &id, Weak::new(), false);
    turns();
    assert_eq!(turns(), [HeldLocally, Behind, HeldLocally, Behind]);
    waiters.ended_one(&name, &id, Some(NOW));
    assert_eq!(woken_now(), [true, false, true, false]);
}

#[test]
fn a_waiter_that_becomes_first_or_contender_is_woken() {
    let (waiters, name) = (Waiters::default(), Name::from("a"));
    let [first, second, contender, next] = queue(&waiters, &name, [false, false, true, true]);
    drop(contender);
    assert_eq!([&first, &second, &next].map(is_woken), [false, false, true]);
    drop(first);
    assert_eq!([&second, &next].map(is_woken), [true, false]);
    assert_eq!(next.position(NOW, false), Position::Contend);
    drop(next);
    assert!(!is_woken(&second), "it was active before");
    let joins = waiters.join(&name, None, true);
    assert_eq!(joins.position(NOW, false), Position::Contend);
    drop(second);
    assert!(!is_woken(&joins), "it was active before");
}

#[test]
fn a_release_wakes_one_waiter() {
    let (waiters, name, id) = (Waiters::default(), Name::from("a"), HolderId::fresh("o"));
    waiters.granted_one(&name, &id, Weak::new(), false);
    let tickets: Vec<_> = (0..3).map(|_| waiters.join(&name, None, true)).collect();
    waiters.ended_one(&name, &id, Some(NOW));
    assert_eq!(tickets.iter().filter(|ticket| is_woken(ticket)).count(), 1);
}

#[test]
fn a_contender_that_leaves_passes_its_wake_up_on() {
    let (waiters, name) = (Waiters::default(), Name::from("a"));
    let first = waiters.join(&name, None, true);
    let second = waiters.join(&name, None, true);
    assert!(waiters.announced(&name, b"foreign", ALONE).is_none());
    drop(first);
    assert!(is_woken(&second));
    waiters.granted_one(&name, &HolderId::fresh("o"), Weak::new(), false);
    assert_eq!(
        second.position(NOW, false),
        Position::Contend,
        "even though the name is held"
    );
    assert_eq!(second.position(NOW, false), Position::HeldLocally, "once");
}

#[test]
fn a_release_message_wakes_the_contender_once_and_unless_the_name_is_held() {
    let (waiters, name) = (Waiters::default(), Name::from("a"));
    let (ours, next) = (HolderId::fresh("o"), HolderId::fresh("o"));
    let first = waiters.join(&name, None, true);
    waiters.granted_one(&name, &ours, Weak::new(), false);
    assert!(
        waiters
            .announced(&name, ours.as_str().as_bytes(), ALONE)
            .is_some()
    );
    assert!(waiters.announced(&name, b"older", ALONE).is_none());
    assert!(!is_woken(&first), "an older lease, ended before ours began");
    waiters.ended_one(&name, &ours, Some(NOW));
    assert!(is_woken(&first));
    assert!(
        waiters
            .announced(&name, ours.as_str().as_bytes(), ALONE)
            .is_none()
    );
    assert!(
        !is_woken(&first),
        "it was woken when the release was confirmed"
    );
    assert!(
        waiters
            .announced(&name, next.as_str().as_bytes(), ALONE)
            .is_none()
    );
    assert!(is_woken(&first));
    assert!(waiters.announced(&Name::from("b"), b"x", ALONE).is_none());
}

#[test]
fn a_release_counts_once_a_majority_has_announced_it() {
    let (waiters, name) = (Waiters::default(), Name::from("a"));
    let first = waiters.join(&name, None, true);
    let by = |server, payload: &[u8]| {
        waiters.announced(&name, payload, Announcer { server, needed: 2 });
        is_woken(&first)
    };
    assert!(!by(0, b"x"));
    assert!(!by(0, b"x"), "the same server again");
    assert!(!by(1, b"y"), "another lease");
    assert!(by(2, b"x"));
    assert!(!by(1, b"x"), "it has counted already");
    for n in 0..MAX_PARTIAL_ANNOUNCEMENTS {
        by(0, &n.to_le_bytes());
    }
    let queue = &waiters.names.lock()[&name];
    assert_eq!(queue.announcements.len(), MAX_PARTIAL_ANNOUNCEMENTS);
}

#[test]
fn after_a_run_of_hand_offs_the_first_waiter_yields_until_the_release_message() {
    let (waiters, name, id) = (Waiters::default(), Name::from("a"), HolderId::fresh("o"));
    let announce = || waiters.announced(&name, id.as_str().as_bytes(), ALONE);
    let ends = || {
        waiters.granted_one(&name, &id, Weak::new(), false);
        waiters.names.lock().get_mut(&name).unwrap().fleet_yield = FleetYield::Due;
        waiters.ended_one(&name, &id, Some(NOW));
    };
    let first = waiters.join(&name, None, true);
    ends();
    assert!(is_woken(&first));
    assert_eq!(first.position(NOW, false), Position::Yield);
    assert!(!is_woken(&first));
    announce();
    assert!(is_woken(&first));
    assert_eq!(first.position(NOW, false), Position::Contend);

    ends();
    announce();
    assert!(is_woken(&first));
    assert_eq!(
        first.position(NOW, false),
        Position::Contend,
        "the message came before the yield"
    );

    ends();
    assert_eq!(first.position(NOW, false), Position::Yield);
    assert_eq!(first.position(NOW, false), Position::Contend, "once");
}

#[test]
fn the_end_of_an_older_lease_changes_nothing() {
    let (waiters, name) = (Waiters::default(), Name::from("a"));
    let (older, newer) = (HolderId::fresh("o"), HolderId::fresh("o"));
    assert!(
        waiters
            .granted_one(&name, &older, Weak::new(), false)
            .is_empty()
    );
    assert!(
        !waiters
            .granted_one(&name, &newer, Weak::new(), false)
            .is_empty(),
        "lost"
    );
    waiters.ended_one(&name, &older, Some(NOW));
    assert!(
        waiters
            .announced(&name, newer.as_str().as_bytes(), ALONE)
            .is_some(),
        "held"
    );
}

/// Returns a call that waits for a writer of this client, and would share a place.
fn behind_a_writer<'a>(waiters: &'a Waiters, name: &'a Name, writer: &HolderId) -> QueueTicket<'a> {
    waiters.granted_one(name, writer, Weak::new(), false);
    let ticket = waiters.join(name, None, true);
    ticket.share_place();
    assert_eq!(ticket.position(NOW, false), Position::HeldLocally);
    assert!(!is_woken(&ticket));
    ticket
}

/// The grant that a release gives to a reader can arrive before the reply to that release.
#[test]
fn call_behind_a_writer_is_woken_when_a_reader_of_this_client_follows_it() {
    let (waiters, name) = (Waiters::default(), Name::from("a"));
    let [writer, reader] = [(); 2].map(|()| HolderId::fresh("o"));
    let mutex = behind_a_writer(&waiters, &name, &writer);
    let evicted = waiters.granted_one(&name, &reader, Weak::new(), true);
    assert_eq!(evicted.len(), 1);
    waiters.ended_one(&name, &writer, Some(NOW));
    assert!(is_woken(&mutex));
    assert_eq!(mutex.position(NOW, false), Position::Contend);
    // A second reader changes nothing for it.
    waiters.granted_one(&name, &HolderId::fresh("o"), Weak::new(), true);
    assert!(!is_woken(&mutex));
}

#[test]
fn call_behind_a_writer_is_woken_when_the_writer_becomes_a_reader() {
    let (waiters, name) = (Waiters::default(), Name::from("a"));
    let hold = held_for_an_hour(NOW);
    let mutex = behind_a_writer(&waiters, &name, &hold.id);
    waiters.share(&hold);
    assert!(is_woken(&mutex));
    assert_eq!(mutex.position(NOW, false), Position::Contend);
}

#[test]
fn refusal_counts_for_every_waiter_that_had_joined_before_it() {
    let (waiters, name, id) = (Waiters::default(), Name::from("a"), HolderId::fresh("o"));
    let first = waiters.join(&name, None, true);
    assert!(!first.about_to_try(NOW));
    let second = waiters.join(&name, None, true);
    assert!(first.about_to_try(NOW));
    let since = |start: Instant| Span {
        start,
        deadline: start.after(Duration::from_secs(60)),
        last_reply_took: Duration::ZERO,
    };
    let at = Instant::now();
    first.update_answers(&mut |answers| answers.refused(at, at, Some(Duration::ZERO)));
    assert!(second.answers().is_taken(since(at)));
    assert!(
        !second
            .answers()
            .is_taken(since(at.after(Duration::from_nanos(1))))
    );
    waiters.granted_one(&name, &id, Weak::new(), false);
    assert!(!second.answers().is_taken(since(at)));
    waiters.ended_one(&name, &id, None);
    assert!(
        !second.answers().is_taken(since(at)),
        "its end is not certain"
    );
    waiters.granted_one(&name, &id, Weak::new(), false);
    waiters.ended_one(&name, &id, Some(at));
    assert!(second.answers().is_taken(since(at)));
}
