//! Sets on the kernel and the real scripts, step by step; each mistake fails its test.

mod bed;
mod engine;
mod holder;
mod line;
mod waiting;
mod watching;

use std::time::Duration;

use crate::cause::Cause;
use crate::kernel::call::Step;
use crate::kernel::effects::Effects;
use crate::kernel::fault::Fault;
use crate::kernel::holder::Holder;
use crate::kernel::operation::Wanted;
use crate::kernel::unlock::Unlocked;
use crate::lease::status::LeaseStatus;
use crate::lost::Lost;
use crate::mutant::Mutant;
use crate::protocol::answer::Answer;
use crate::set::acquire::{SetOutcome, SetStep};
use crate::set::holder::SetUnlock;
use bed::{Bed, MS, NAMES, TTL, is_needed};

#[test]
fn a_free_set_is_held_after_one_write() {
    let mut bed = Bed::new();
    let lease = bed.held();
    assert_eq!(bed.taken(), NAMES);
    assert!(matches!(bed.status(&lease), LeaseStatus::Held(_)));
    assert_eq!(lease.tokens().len(), 3);
    assert_eq!(bed.unlock(&lease), Unlocked::Released);
    assert!(bed.taken().is_empty());
    let again = lease.begin_unlock(&bed.kernel, bed.at(), &mut Effects::default());
    assert!(matches!(again, SetUnlock::Over));
    assert_eq!(bed.kernel.counts(), [0; 3]);
    assert!(bed.told.is_empty());
}

#[test]
fn a_held_set_names_what_it_has() {
    let mut bed = Bed::new();
    let begun = bed.at();
    let lease = bed.held();
    let ids = lease.holder_ids();
    for (name, id) in NAMES.iter().zip(&ids) {
        let value = bed.server(&["GET", &format!("lock:{name}")]);
        assert_eq!(value.as_deref(), Some(id.as_str()));
    }
    assert_eq!(ids.len(), 3);
    assert_eq!(lease.since(), Some(begun));
    assert_eq!(lease.facts().ttl_ms, TTL.as_millis() as u64);
    assert!(lease.remaining(bed.at()).is_some_and(|left| left <= TTL));
    assert!(lease.is_renewed());
    assert_eq!(lease.names().to_string(), "a, b and 1 more");
    assert_eq!(bed.unlock(&lease), Unlocked::Released);
    assert_eq!(lease.remaining(bed.at()), None);
    assert_eq!(lease.since(), Some(begun));
}

/// The machine has stood still: a part may be over that Redis has not confirmed since.
#[test]
fn a_set_is_in_doubt_with_one_of_its_parts() {
    is_needed(Mutant::WallClockIsIgnored, || {
        let mut bed = Bed::new();
        let lease = bed.held();
        let (part, token) = lease.parts()[2].clone();
        let shorter = Wanted::SetTtl(Duration::from_secs(3));
        let mut fx = Effects::default();
        bed.kernel.operate(&part, token, shorter, bed.at(), &mut fx);
        bed.turn(0);
        let ahead = Duration::from_secs(4);
        let status = |ahead| lease.status(ahead, &bed.kernel, bed.at(), &mut Effects::default());
        assert!(matches!(status(Duration::ZERO), LeaseStatus::Held(_)));
        status(ahead) == LeaseStatus::InDoubt
    });
}

#[test]
fn a_set_is_renewed_as_its_parts() {
    let mut bed = Bed::new();
    let lease = bed.held();
    for _ in 0..10 {
        bed.turn(4_000);
        assert!(matches!(bed.status(&lease), LeaseStatus::Held(_)));
    }
    assert_eq!(bed.unlock(&lease), Unlocked::Released);
    assert!(bed.told.is_empty());
}

/// It has the names below the one that refuses it, until it gives them back, and no others.
#[test]
fn a_refused_set_gives_back_what_it_has() {
    is_needed(Mutant::NextWithoutTheOneBefore, || {
        let mut bed = Bed::new();
        bed.server(&["SET", "lock:b", "somebody"]);
        let (mut set, step) = bed.first_step();
        let SetStep::GiveBack(commands, _) = step else {
            panic!("{step:?}");
        };
        let had = bed.taken();
        let ends = bed.run_all(&commands);
        let mut fx = Effects::default();
        match set.gave_back(ends, &bed.kernel, bed.at(), &mut fx) {
            SetStep::Done(SetOutcome::Refused(Some(by))) => assert_eq!(by.by.name, 1),
            step => panic!("{step:?}"),
        }
        bed.carry_out(fx);
        assert_eq!(bed.taken(), ["b"]);
        assert_eq!(bed.kernel.counts(), [0; 3]);
        assert!(bed.told.is_empty());
        had == ["a", "b"]
    });
}

#[test]
fn a_set_whose_first_name_refuses_it_has_nothing_to_give_back() {
    let mut bed = Bed::new();
    bed.server(&["SET", "lock:a", "somebody"]);
    match bed.first_step().1 {
        SetStep::Done(SetOutcome::Refused(Some(by))) => assert_eq!(by.by.name, 0),
        step => panic!("{step:?}"),
    }
    assert_eq!(bed.taken(), ["a"]);
}

/// The reply to the second command is lost, and its undo runs before the third command.
#[test]
fn what_got_no_reply_is_undone_and_the_next_does_not_run() {
    let mut bed = Bed::new();
    let (mut set, mut fx) = (bed.set(), Effects::default());
    let now = bed.at();
    let step = set.begin(&bed.kernel, now, &mut fx);
    let SetStep::Send(commands, _) = step else {
        panic!("{step:?}");
    };
    let first = bed.run(&commands[0]);
    assert!(matches!(bed.run(&commands[1]), Ok(Answer::Granted(_))));
    let lost = || Err(Fault::Unknown(Cause::text("no reply")));
    let step = set.replied(vec![first, lost(), lost()], [now; 2], &bed.kernel, &mut fx);
    let undos = set.take_undos();
    assert_eq!(undos.len(), 2);
    for undo in &undos {
        assert!(bed.run(undo).is_ok());
    }
    assert!(matches!(bed.run(&commands[2]), Ok(Answer::Skipped)));
    let SetStep::GiveBack(commands, _) = step else {
        panic!("{step:?}");
    };
    let ends = bed.run_all(&commands);
    let step = set.gave_back(ends, &bed.kernel, bed.at(), &mut fx);
    assert!(bed.taken().is_empty());
    // The connection may have been dead: the set tries again at once.
    let SetStep::Send(commands, _) = step else {
        panic!("{step:?}");
    };
    let ends = bed.run_all(&commands);
    let step = set.replied(ends, [now; 2], &bed.kernel, &mut fx);
    assert!(
        matches!(step, SetStep::Done(SetOutcome::Held(_))),
        "{step:?}"
    );
}

#[test]
fn a_name_that_this_client_has_refuses_a_set_without_a_command() {
    let mut bed = Bed::new();
    let first = bed.held();
    let (_, step) = bed.first_step();
    assert!(
        matches!(step, SetStep::Done(SetOutcome::Refused(None))),
        "{step:?}"
    );
    assert_eq!(bed.unlock(&first), Unlocked::Released);
}

#[test]
fn a_loss_is_told_once_and_the_other_parts_are_given_up() {
    is_needed(Mutant::EachPartIsTold, || {
        let mut bed = Bed::new();
        let lease = bed.held();
        let told = lease.listen(bed.at(), &mut Effects::default());
        bed.server(&["DEL", "lock:b"]);
        bed.server(&["DEL", "lock:c"]);
        bed.turn(4_000);
        assert_eq!(told.try_recv(), Ok(Lost::Deleted));
        assert_eq!(bed.status(&lease), LeaseStatus::Lost(Lost::Deleted));
        assert!(bed.taken().is_empty(), "{:?}", bed.taken());
        let unlock = lease.begin_unlock(&bed.kernel, bed.at(), &mut Effects::default());
        assert!(matches!(unlock, SetUnlock::AlreadyLost(Lost::Deleted)));
        bed.told.len() == 1
    });
}

#[test]
fn a_set_ends_with_the_part_that_ends_first() {
    is_needed(Mutant::EndIsOfTheFirstPart, || {
        let mut bed = Bed::new();
        let lease = bed.held();
        let (part, token) = lease.parts()[1].clone();
        let shorter = Wanted::SetTtl(Duration::from_secs(1));
        let mut fx = Effects::default();
        bed.kernel.operate(&part, token, shorter, bed.at(), &mut fx);
        bed.turn(0);
        assert!(matches!(bed.status(&lease), LeaseStatus::Held(_)));
        // The engine stands still.
        bed.now += 2_000 * MS;
        bed.status(&lease) == LeaseStatus::Lost(Lost::Expired)
    });
}

#[test]
fn a_part_that_is_lost_before_the_set_has_all_counts() {
    is_needed(Mutant::BuildingForgetsALoss, || {
        let mut bed = Bed::new();
        let lease = bed.built_by(100_000, 1);
        bed.first_part(&lease);
        bed.server(&["DEL", "lock:a"]);
        bed.turn(4_000);
        assert!(bed.told.is_empty());
        let mut fx = Effects::default();
        let holder = Holder::default();
        !lease.hold(&holder, Duration::MAX, &bed.kernel, bed.at(), &mut fx)
    });
}

#[test]
fn a_loss_that_the_release_finds_is_its_outcome() {
    is_needed(Mutant::EndingIsTold, || {
        let mut bed = Bed::new();
        let lease = bed.held();
        let told = lease.listen(bed.at(), &mut Effects::default());
        bed.server(&["SET", "lock:b", "somebody"]);
        assert_eq!(bed.unlock(&lease), Unlocked::Lost(Lost::Taken));
        assert_eq!(bed.taken(), ["b"]);
        assert_eq!(bed.kernel.counts(), [0; 3]);
        bed.told.is_empty() && told.try_recv().is_err()
    });
}

/// A part whose call has parked is granted, and the thread of the call stands still.
#[test]
fn a_part_that_nobody_takes_is_given_up() {
    is_needed(Mutant::UntakenIsRenewed, || {
        let mut bed = Bed::new();
        let lease = bed.built_by(100_000, 1);
        let mut call = bed.part_call(&lease, true);
        let step = call.begin(&bed.kernel, bed.at(), &mut Effects::default());
        assert!(matches!(step, Step::Park(_)));
        bed.turn(1);
        assert_eq!(bed.taken(), ["a"]);
        bed.turn(47);
        assert_eq!(bed.taken(), ["a"]);
        bed.turn(10);
        let is_free = bed.taken().is_empty();
        let step = call.woken(&bed.kernel, bed.at(), &mut Effects::default());
        assert!(matches!(step, Step::Done(_)), "{step:?}");
        is_free
    });
}

/// The thread of a set stands still between its write and its next step.
#[test]
fn a_set_that_is_not_held_in_time_is_given_up() {
    is_needed(Mutant::OverIsRenewed, || {
        let mut bed = Bed::new();
        let lease = bed.built_by(3_000, 2);
        bed.first_part(&lease);
        bed.turn(4_000);
        let is_free = bed.taken().is_empty();
        let mut fx = Effects::default();
        let holder = Holder::default();
        assert!(!lease.hold(&holder, Duration::MAX, &bed.kernel, bed.at(), &mut fx));
        is_free
    });
}

/// A guard that is gone leaves nothing behind.
#[test]
fn a_set_that_nobody_has_is_given_up() {
    let mut bed = Bed::new();
    drop(bed.held());
    bed.turn(4_000);
    assert!(bed.taken().is_empty());
}

#[test]
fn the_end_of_max_hold_is_told_in_time_and_releases_nothing() {
    for mutant in [Mutant::MaxHoldReleasesParts, Mutant::PartHasMaxHold] {
        is_needed(mutant, || {
            let mut bed = Bed::new();
            bed.max_hold = Duration::from_millis(500);
            let lease = bed.held();
            let told = lease.listen(bed.at(), &mut Effects::default());
            bed.turn(497);
            assert!(bed.told.is_empty());
            bed.turn(3);
            assert_eq!(told.try_recv(), Ok(Lost::MaxHold));
            assert_eq!(bed.told.len(), 1);
            bed.turn(5_000);
            let are_taken = bed.taken() == NAMES;
            let unlock = lease.begin_unlock(&bed.kernel, bed.at(), &mut Effects::default());
            assert!(matches!(unlock, SetUnlock::AlreadyLost(Lost::MaxHold)));
            bed.turn(1);
            assert!(bed.taken().is_empty(), "its guard was dropped");
            are_taken
        });
    }
}

#[test]
fn the_parts_of_a_set_after_max_hold_expire() {
    // The engine stands still until its parts are over, too.
    let mut bed = Bed::new();
    bed.max_hold = Duration::from_millis(500);
    let lease = bed.held();
    bed.turn(11_000);
    assert_eq!(bed.taken(), NAMES);
    bed.turn(1_001);
    assert!(bed.taken().is_empty());
    assert_eq!(bed.status(&lease), LeaseStatus::Lost(Lost::MaxHold));
    assert_eq!(bed.told.len(), 1);
}
