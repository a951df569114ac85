//! Sets that wait in the queues of their names.

use std::sync::Arc;
use std::time::Duration;

use super::bed::{Bed, NAMES, TTL, held_by, is_needed};
use crate::clock::Instant;
use crate::kernel::effects::Effects;
use crate::kernel::failure::Failure;
use crate::kernel::unlock::Unlocked;
use crate::kernel::waiter::Wait;
use crate::lease::status::LeaseStatus;
use crate::mutant::Mutant;
use crate::protocol::reply::Reply;
use crate::set::acquire::{SetAcquire, SetOutcome, SetStep};
use crate::set::lease::SetLease;
use crate::wait_policy::WaitPolicy;

impl Bed {
    /// Begins a set that waits for a name, which somebody holds.
    fn waiting_for(&mut self, name: &str) -> SetAcquire {
        self.wait = Wait::Queue(WaitPolicy::Wake);
        self.server(&["SET", &format!("lock:{name}"), "somebody", "PX", "100000"]);
        let (set, step) = self.first_step();
        let (set, step) = self.go_on(set, step);
        assert!(matches!(step, SetStep::Park(_)), "{step:?}");
        set
    }
}

#[test]
fn a_set_that_waits_has_the_names_below_and_gets_the_others_in_turn() {
    let mut bed = Bed::new();
    let set = bed.waiting_for("b");
    assert_eq!(bed.taken(), ["a", "b"]);
    assert_eq!([bed.queue("a"), bed.queue("b"), bed.queue("c")], [0, 1, 0]);
    // It keeps the first name for as long as it takes.
    let (set, _) = bed.turns(set, 20, 500);
    assert_eq!(bed.taken(), ["a", "b"]);
    bed.server(&["DEL", "lock:b"]);
    let (_, step) = bed.turns(set, 20, 500);
    let lease = held_by(step);
    assert_eq!(bed.taken(), NAMES);
    assert_eq!(lease.tokens().len(), 3);
    assert_eq!(bed.unlock(&lease), Unlocked::Released);
    assert!(bed.taken().is_empty());
    assert_eq!(bed.kernel.counts(), [0; 3]);
    assert!(bed.told.is_empty());
}

#[test]
fn a_set_that_has_waited_is_held_for_its_whole_ttl() {
    is_needed(Mutant::SetIsHeldShort, || {
        let mut bed = Bed::new();
        let set = bed.waiting_for("c");
        bed.server(&["DEL", "lock:c"]);
        let (_, step) = bed.turns(set, 20, 500);
        let lease = held_by(step);
        let LeaseStatus::Held(left) = bed.status(&lease) else {
            panic!("it was just held");
        };
        assert_eq!(bed.unlock(&lease), Unlocked::Released);
        left > TTL / 2
    });
}

#[test]
fn a_set_that_loses_a_name_waits_for_that_and_has_nothing_above() {
    is_needed(Mutant::CutKeepsTheUpper, || {
        let mut bed = Bed::new();
        let set = bed.waiting_for("c");
        assert_eq!(bed.taken(), NAMES);
        bed.server(&["SET", "lock:a", "another", "PX", "100000"]);
        let (_, step) = bed.turns(set, 6, 500);
        assert!(matches!(step, SetStep::Park(_)), "{step:?}");
        assert_eq!(bed.queue("a"), 1);
        bed.taken() == ["a", "c"]
    });
}

#[test]
fn a_set_that_loses_a_name_leaves_the_queue_that_it_was_in() {
    is_needed(Mutant::CutLeavesItsPlace, || {
        let mut bed = Bed::new();
        let set = bed.waiting_for("b");
        bed.server(&["SET", "lock:a", "another", "PX", "100000"]);
        let (_, step) = bed.turns(set, 6, 500);
        assert!(matches!(step, SetStep::Park(_)), "{step:?}");
        assert_eq!(bed.queue("a"), 1);
        bed.queue("b") == 0
    });
}

/// Its thread stands still for so long that the engine gives up the first name, and wakes before
/// the lease of that would have ended.
#[test]
fn a_name_that_the_engine_has_given_up_counts_no_more() {
    let mut bed = Bed::new();
    let set = bed.waiting_for("b");
    while bed.taken() == ["a", "b"] {
        bed.turn(100);
    }
    bed.server(&["SET", "lock:a", "another", "PX", "100000"]);
    bed.server(&["DEL", "lock:b"]);
    let (_, step) = bed.turns(set, 4, 100);
    assert!(matches!(step, SetStep::Park(_)), "{step:?}");
    assert_eq!(bed.queue("a"), 1);
    assert_eq!(bed.taken(), ["a"]);
}

/// The grant of the third name arrives before its thread sees that the first one is lost.
#[test]
fn a_name_is_lost_while_another_is_granted() {
    let mut bed = Bed::new();
    let set = bed.waiting_for("c");
    bed.server(&["SET", "lock:a", "another", "PX", "100000"]);
    bed.server(&["DEL", "lock:c"]);
    for _ in 0..6 {
        bed.turn(500);
    }
    let (set, step) = bed.wake(set);
    assert!(matches!(step, SetStep::Park(_)), "{step:?}");
    bed.server(&["DEL", "lock:a"]);
    let (_, step) = bed.turns(set, 20, 500);
    assert_eq!(bed.unlock(&held_by(step)), Unlocked::Released);
    assert!(bed.taken().is_empty());
}

#[test]
fn a_set_that_is_refused_at_its_deadline_gives_up_what_it_has() {
    let mut bed = Bed::new();
    bed.deadline = bed.at().after(Duration::from_secs(5));
    let set = bed.waiting_for("b");
    let (_, step) = bed.turns(set, 20, 500);
    match step {
        SetStep::Done(SetOutcome::Refused(Some(by))) => assert_eq!(by.by.name, 1),
        step => panic!("{step:?}"),
    }
    bed.turn(10);
    assert_eq!(bed.taken(), ["b"]);
    assert_eq!([bed.queue("a"), bed.queue("b")], [0, 0]);
    assert_eq!(bed.kernel.counts(), [0; 3]);
}

/// Its thread stands still while it waits: its names are free again.
#[test]
fn a_set_whose_thread_stands_still_gives_up_what_it_has() {
    let mut bed = Bed::new();
    let _set = bed.waiting_for("b");
    for _ in 0..5 {
        bed.turn(1_000);
    }
    assert_eq!(bed.taken(), ["b"]);
}

#[test]
fn a_cancelled_set_leaves_nothing() {
    let mut bed = Bed::new();
    let mut set = bed.waiting_for("c");
    let mut fx = Effects::default();
    set.leave(Failure::Cancelled, &bed.kernel, bed.at(), &mut fx);
    bed.carry_out(fx);
    bed.turn(10);
    assert_eq!(bed.taken(), ["c"]);
    assert_eq!(bed.queue("c"), 0);
    assert_eq!(bed.kernel.counts(), [0; 3]);
}
