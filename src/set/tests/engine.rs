//! Sets whose commands the engine sends, over a quorum, and in several slots.

use std::time::Duration;

use super::bed::{Bed, MS, NAMES, held_by, is_needed, names_of};
use crate::clock::Instant;
use crate::kernel::effects::Effects;
use crate::kernel::failure::Failure;
use crate::kernel::unlock::Unlocked;
use crate::kernel::waiter::Wait;
use crate::mutant::Mutant;
use crate::protocol::keys::Layout;
use crate::set::acquire::{SetAcquire, SetOutcome, SetStep};
use crate::set::holder::SetUnlock;
use crate::wait_policy::WaitPolicy;

impl Bed {
    /// Begins a set, whose thread sends nothing.
    fn parked(&mut self) -> SetAcquire {
        let (set, step) = self.first_step();
        assert!(matches!(step, SetStep::Park(_)), "{step:?}");
        set
    }

    /// Takes a name at each server of a quorum.
    fn take(&self, name: &str, holders: [&str; 3]) {
        for (server, holder) in holders.into_iter().enumerate() {
            if !holder.is_empty() {
                self.server_at(server, &["SET", &format!("lock:{name}"), holder]);
            }
        }
    }

    /// Returns how many servers of a quorum have each name.
    fn counts(&self) -> [usize; 3] {
        NAMES.map(|name| {
            let key = format!("lock:{name}");
            let has = |server: &usize| self.server_at(*server, &["GET", &key]).is_some();
            (0..3).filter(has).count()
        })
    }
}

#[test]
fn the_engine_asks_name_by_name() {
    let mut bed = Bed::new();
    bed.by_engine = true;
    let set = bed.parked();
    bed.turn(1);
    assert_eq!(bed.taken(), ["a"]);
    let (_, step) = bed.turns(set, 10, 1);
    let lease = held_by(step);
    assert_eq!(bed.taken(), NAMES);
    assert_eq!(bed.unlock(&lease), Unlocked::Released);
    assert!(bed.taken().is_empty());
    assert_eq!(bed.kernel.counts(), [0; 3]);
}

#[test]
fn what_the_engine_got_for_a_refused_set_it_gives_back() {
    let mut bed = Bed::new();
    bed.by_engine = true;
    bed.server(&["SET", "lock:b", "somebody"]);
    let set = bed.parked();
    let (_, step) = bed.turns(set, 10, 1);
    match step {
        SetStep::Done(SetOutcome::Refused(Some(by))) => assert_eq!(by.by.name, 1),
        step => panic!("{step:?}"),
    }
    bed.turn(1);
    assert_eq!(bed.taken(), ["b"]);
    assert_eq!(bed.kernel.counts(), [0; 3]);
}

/// The client has a later name itself: Redis is not asked for the earlier ones.
#[test]
fn an_own_name_refuses_a_set_of_the_engine_without_a_command() {
    let mut bed = Bed::new();
    bed.names = names_of(&["c"], Layout::OneServer, true);
    let own = bed.held();
    bed.names = names_of(&NAMES, Layout::OneServer, true);
    bed.by_engine = true;
    let (_, step) = bed.first_step();
    assert!(
        matches!(step, SetStep::Done(SetOutcome::Refused(None))),
        "{step:?}"
    );
    assert_eq!(bed.kernel.counts(), [1, 0, 0]);
    assert_eq!(bed.unlock(&own), Unlocked::Released);
}

#[test]
fn a_set_that_is_cancelled_while_the_engine_asks_leaves_nothing() {
    for ms in [0, 1] {
        let mut bed = Bed::new();
        bed.by_engine = true;
        let mut set = bed.parked();
        bed.turn(ms);
        let mut fx = Effects::default();
        let outcome = set.leave(Failure::Cancelled, &bed.kernel, bed.at(), &mut fx);
        assert!(matches!(outcome, SetOutcome::Failed(Failure::Cancelled)));
        bed.carry_out(fx);
        bed.turn(1);
        assert!(bed.taken().is_empty());
        assert_eq!(bed.kernel.counts(), [0; 3]);
    }
}

#[test]
fn a_set_that_waits_by_the_engine_is_in_the_queues_from_the_beginning() {
    let mut bed = Bed::new();
    bed.by_engine = true;
    bed.wait = Wait::Queue(WaitPolicy::Wake);
    bed.server(&["SET", "lock:b", "somebody", "PX", "100000"]);
    let set = bed.parked();
    let (set, step) = bed.turns(set, 10, 1);
    assert!(matches!(step, SetStep::Park(_)), "{step:?}");
    assert_eq!([bed.queue("a"), bed.queue("b")], [0, 1]);
    bed.server(&["DEL", "lock:b"]);
    let (_, step) = bed.turns(set, 20, 500);
    assert_eq!(bed.unlock(&held_by(step)), Unlocked::Released);
}

// ------------------------------------------------------------------ a quorum

#[test]
fn over_a_quorum_all_names_are_asked_for_side_by_side() {
    let mut bed = Bed::quorum();
    let set = bed.parked();
    bed.turn(1);
    assert_eq!(bed.counts(), [3; 3]);
    let (_, step) = bed.wake(set);
    let lease = held_by(step);
    let mut fx = Effects::default();
    let unlock = lease.begin_unlock(&bed.kernel, bed.at(), &mut fx);
    bed.carry_out(fx);
    let SetUnlock::Wait(operation) = unlock else {
        panic!("{unlock:?}");
    };
    assert!(operation.result().is_none());
    bed.turn(1);
    assert!(matches!(operation.result(), Some(Ok(()))));
    assert_eq!(lease.released_late(), Unlocked::Released);
    assert_eq!(bed.counts(), [0; 3]);
    assert_eq!(bed.kernel.counts(), [0; 3]);
}

#[test]
fn over_a_quorum_a_refused_set_gives_all_back() {
    let mut bed = Bed::quorum();
    bed.take("b", ["x", "x", "x"]);
    let set = bed.parked();
    bed.turn(1);
    assert_eq!(bed.counts(), [3; 3]);
    let (_, step) = bed.wake(set);
    match step {
        SetStep::Done(SetOutcome::Refused(Some(by))) => assert_eq!(by.by.name, 1),
        step => panic!("{step:?}"),
    }
    bed.turn(1);
    assert_eq!(bed.counts(), [0, 3, 0]);
    assert_eq!(bed.kernel.counts(), [0; 3]);
}

/// Two others have a server each: nobody has the name, and none of the three calls can get it.
#[test]
fn split_votes_refuse_no_set() {
    is_needed(Mutant::SplitRefusesTheSet, || {
        let mut bed = Bed::quorum();
        bed.deadline = bed.at().after(Duration::from_secs(1));
        bed.take("b", ["x", "y", ""]);
        let set = bed.parked();
        bed.turn(1);
        let (set, step) = bed.wake(set);
        if !matches!(step, SetStep::Park(_)) {
            return false;
        }
        // It has nothing while it pauses.
        bed.turn(1);
        assert_eq!(bed.counts(), [0, 2, 0]);
        for server in [0, 1] {
            bed.server_at(server, &["DEL", "lock:b"]);
        }
        let (_, step) = bed.turns(set, 20, 10);
        let lease = held_by(step);
        assert_eq!(bed.counts(), [3; 3]);
        drop(lease);
        true
    });
}

#[test]
fn split_votes_on_two_names_refuse_no_set() {
    let mut bed = Bed::quorum();
    bed.take("a", ["x", "y", ""]);
    bed.take("c", ["x", "y", ""]);
    let set = bed.parked();
    let (set, step) = bed.turns(set, 20, 10);
    assert!(matches!(step, SetStep::Park(_)), "{step:?}");
    for key in ["lock:a", "lock:c"] {
        bed.server_at(0, &["DEL", key]);
        bed.server_at(1, &["DEL", key]);
    }
    let (_, step) = bed.turns(set, 20, 100);
    let lease = held_by(step);
    assert_eq!(bed.counts(), [3; 3]);
    drop(lease);
}

#[test]
fn a_set_that_is_split_until_its_deadline_is_refused() {
    let mut bed = Bed::quorum();
    bed.deadline = bed.at().after(Duration::from_secs(1));
    bed.take("b", ["x", "y", ""]);
    let set = bed.parked();
    let (_, step) = bed.turns(set, 300, 10);
    assert!(
        matches!(step, SetStep::Done(SetOutcome::Refused(_))),
        "{step:?}"
    );
    bed.turn(1);
    assert_eq!(bed.counts(), [0, 2, 0]);
}

#[test]
fn a_set_that_is_split_for_ever_fails() {
    let mut bed = Bed::quorum();
    bed.wait = Wait::Queue(WaitPolicy::Wake);
    bed.take("b", ["x", "y", ""]);
    let set = bed.parked();
    let (_, step) = bed.turns(set, 300, 100);
    match step {
        SetStep::Done(SetOutcome::Failed(Failure::Unreachable { cause, .. })) => {
            let cause = cause.expect("it is known").to_string();
            assert!(cause.contains("several holders"), "{cause}");
        }
        step => panic!("{step:?}"),
    }
    bed.turn(1);
    assert_eq!(bed.counts(), [0, 2, 0]);
}

/// A name is granted while another one is not answered: its thread takes it at once.
#[test]
fn a_part_that_is_granted_early_is_kept() {
    let mut bed = Bed::quorum();
    let set = bed.parked();
    bed.turn_but(1, &|name| name == "c");
    // The grant has woken the thread.
    let start = Instant::now();
    (set.parker().expect("it is parked")).park(start.after(Duration::from_secs(60)));
    assert!(start.until(Instant::now()) < Duration::from_secs(30));
    let (set, step) = bed.wake(set);
    assert!(matches!(step, SetStep::Park(_)), "{step:?}");
    bed.turn_but(200, &|name| name == "c");
    assert_eq!(bed.counts(), [3, 3, 0]);
    // Without an answer, the attempt ends with its rounds, and the next one is made at once.
    bed.now += 2_000 * MS;
    let (_, step) = bed.turns(set, 20, 10);
    held_by(step);
}

// ------------------------------------------------------------------ a cluster

#[test]
fn in_a_cluster_each_slot_is_asked_for_once_the_one_before_was_granted() {
    is_needed(Mutant::NextSlotIsAsked, || {
        let mut bed = Bed::over(1, names_of(&NAMES, Layout::Slots, true));
        let order: Vec<String> = bed.names.names().iter().map(|it| it.to_string()).collect();
        bed.server(&["SET", &format!("lock:{}", order[1]), "somebody"]);
        let (mut set, mut fx) = (bed.set(), Effects::default());
        let mut step = set.begin(&bed.kernel, bed.at(), &mut fx);
        let mut asked = Vec::new();
        while let SetStep::Send(commands, _) = &step {
            asked.extend(commands.iter().map(|it| it.lock.to_string()));
            let ends = bed.run_all(commands);
            let now = [bed.at(); 2];
            step = set.replied(ends, now, &bed.kernel, &mut fx);
        }
        let (_, step) = bed.go_on(set, step);
        match step {
            SetStep::Done(SetOutcome::Refused(Some(by))) => assert_eq!(by.by.name, 1),
            step => panic!("{step:?}"),
        }
        assert_eq!(bed.taken(), [order[1].as_str()]);
        asked == order[..2]
    });
}

#[test]
fn a_set_of_several_slots_is_held_and_released() {
    let mut bed = Bed::over(1, names_of(&NAMES, Layout::Slots, true));
    let set = bed.set();
    let (mut set, mut fx) = (set, Effects::default());
    let step = set.begin(&bed.kernel, bed.at(), &mut fx);
    let (_, step) = bed.go_on(set, step);
    let lease = held_by(step);
    assert_eq!(bed.taken(), NAMES);
    assert_eq!(bed.unlock(&lease), Unlocked::Released);
    assert!(bed.taken().is_empty());
}
