//! Rules of the end of a lease: its release, its loss, the undo of a command.

use std::sync::Arc;

use crate::error::Cause;
use crate::holder::READERS;
use crate::holder_id::HolderId;
use crate::kernel::Kernel;
use crate::kernel::bounds::{Bound, lower};
use crate::kernel::call::Step;
use crate::kernel::effects::Effects;
use crate::kernel::engine::Engine;
use crate::kernel::failure::Failure;
use crate::kernel::fault::Fault;
use crate::kernel::operation::Wanted;
use crate::kernel::pending::PendingReleases;
use crate::kernel::undo::{Counts, PendingRelease, Proof};
use crate::kernel::unlock::{Unlock, Unlocked};
use crate::kernel::waiter::{Outcome, Wait};
use crate::lost::Lost;
use crate::protocol::answer::{Answer, Undone};
use crate::protocol::cohort::CohortKeys;
use crate::protocol::fair::FairMutexKeys;
use crate::protocol::keys::{Keys, Layout};
use crate::protocol::place::TokenBlock;
use crate::protocol::primitive::Primitive;
use crate::protocol::refusal::RefusedName;
use crate::protocol::rw_lock::RwLockKeys;
use crate::sim::rules::{ONE_SERVER, SECOND, at, call, fault_of, kernel, lease_at_1, mutex};
use crate::token::FencingToken;

/// Each time the engine runs, the lease that it was woken for is released already.
#[test]
fn locking_and_unlocking_in_a_loop_wakes_the_engine_once() {
    let (kernel, lock) = (kernel(), mutex());
    kernel.engine_sleeps(at(0), SECOND);
    let mut wakes = 0;
    for ms in 0..300 {
        let mut fx = Effects::default();
        let mut call = call(&kernel, &lock, false, at(ms));
        call.wants.terms.renew_every = Some(SECOND * 6 / 10);
        call.begin(&kernel, at(ms), &mut fx);
        let granted = Answer::Granted(FencingToken::new(7 + ms));
        let step = call.replied(&kernel, Ok(granted), at(ms), at(ms), &mut fx);
        let Step::Done(Outcome::Lease(lease, token)) = step else {
            panic!("{step:?}");
        };
        kernel.begin_unlock(&lease, token, false, at(ms), &mut fx);
        kernel.unlocked(&lease, Ok(Answer::Ours), false, at(ms), &mut fx);
        if fx.engine_by.is_some() {
            wakes += 1;
            kernel.engine_awake();
            kernel.engine_sleeps(at(ms), SECOND);
        }
    }
    assert_eq!(wakes, 1);
}

/// The reply to the engine's command comes after the grant message, and after the release.
#[test]
fn late_refusal_of_a_granted_command_undoes_nothing() {
    let keys = Keys::new("a".into(), "lock:", "lock_release:");
    let (kernel, lock): (_, Arc<dyn Primitive>) = (kernel(), FairMutexKeys::of(keys));
    let mut engine = Engine::default();
    let mut fx = Effects::default();
    let mut waiting = call(&kernel, &lock, true, at(0));
    waiting.begin(&kernel, at(0), &mut fx);
    let sent = engine.due(&kernel, at(0), &ONE_SERVER, &mut fx);
    let [outgoing] = &*sent else {
        panic!("{sent:?}")
    };
    let id = outgoing.command.acquires().unwrap().clone();
    let tokens = TokenBlock::one(FencingToken::new(7));
    kernel.granted(&id, tokens, at(1), &mut fx);
    let Step::Done(Outcome::Lease(lease, token)) = waiting.woken(&kernel, at(2), &mut fx) else {
        panic!("not granted");
    };
    let refused = Answer::Refused(RefusedName {
        name: 0,
        holder: b"x:0".to_vec(),
        remaining: Some(SECOND),
        detail: None,
    });
    let end = |engine: &mut Engine, fx: &mut Effects| {
        let times = [at(0), at(3)];
        engine.ended(
            &kernel,
            outgoing.ticket,
            Ok(refused.clone()),
            times,
            &ONE_SERVER,
            fx,
        );
    };
    end(&mut engine, &mut fx);
    assert!(kernel.shared.pending.lock().is_empty());
    let unlock = kernel.begin_unlock(&lease, token, false, at(4), &mut fx);
    assert!(matches!(unlock, Unlock::Send(_)));
    let released = kernel.unlocked(&lease, Ok(Answer::Ours), false, at(5), &mut fx);
    assert_eq!(released, Unlocked::Released);
    assert!(kernel.shared.pending.lock().is_empty());
}

/// The release of a caller that stands still is ended by the engine; its late end changes nothing.
#[test]
fn engine_ends_the_release_of_a_stopped_thread() {
    let (kernel, lock) = (kernel(), mutex());
    let mut engine = Engine::default();
    let mut fx = Effects::default();
    let (lease, token) = lease_at_1(&kernel, &lock, &mut fx);
    let unlock = kernel.begin_unlock(&lease, token, false, at(2), &mut fx);
    assert!(matches!(unlock, Unlock::Send(_)));
    call(&kernel, &lock, true, at(3)).begin(&kernel, at(3), &mut fx);
    assert!(
        engine
            .due(&kernel, at(1_000), &ONE_SERVER, &mut fx)
            .is_empty()
    );
    let sent = engine.due(&kernel, at(1_100), &ONE_SERVER, &mut fx);
    assert_eq!(
        sent.len(),
        2,
        "the release, and the next call's command: {sent:?}"
    );
    let late = kernel.unlocked(&lease, Ok(Answer::Gone), true, at(5_000), &mut fx);
    assert_eq!(late, Unlocked::Released);
}

/// The holder renews after the end of its lease, before the engine has looked at it.
#[test]
fn loss_that_its_holder_notices_first_ends_the_wait_for_it() {
    let (kernel, lock) = (kernel(), mutex());
    let mut engine = Engine::default();
    let mut fx = Effects::default();
    let (lease, token) = lease_at_1(&kernel, &lock, &mut fx);
    call(&kernel, &lock, true, at(2)).begin(&kernel, at(2), &mut fx);
    let operation = kernel.operate(&lease, token, Wanted::Renew, at(10_000), &mut fx);
    assert!(operation.is_none(), "the lease has ended");
    let sent = engine.due(&kernel, at(10_000), &ONE_SERVER, &mut fx);
    let acquires = sent.iter().filter(|it| it.command.acquires().is_some());
    assert_eq!(acquires.count(), 1, "{sent:?}");
}

/// A busy machine: the engine ends the command of a caller shortly before its thread does.
#[test]
fn command_that_the_engine_has_ended_is_undone_behind_it_too() {
    let (kernel, lock) = (kernel(), mutex());
    let mut engine = Engine::default();
    let mut fx = Effects::default();
    let mut first = call(&kernel, &lock, false, at(0));
    first.begin(&kernel, at(0), &mut fx);
    let later = at(1_100);
    engine.due(&kernel, later, &ONE_SERVER, &mut fx);
    assert!(fx.undo.is_none());
    let unanswered = Err(Fault::Unknown(Cause::text("no reply")));
    first.replied(&kernel, unanswered, at(0), later, &mut fx);
    assert!(fx.undo.is_some());
}

/// The try that is in flight may have run before the acquiring command, which has ended since.
#[test]
fn news_do_not_end_the_release_in_flight() {
    let mut pending = PendingReleases::default();
    let release = PendingRelease {
        lock: mutex(),
        id: HolderId::fresh("o"),
        until: at(10_000),
        ends_by: Proof::KeySeen,
        counts: Counts::Lease,
    };
    pending.push(release.clone(), at(0));
    let nothing = || {
        Ok(Answer::Undone(Undone {
            removed: Vec::new(),
            other: None,
        }))
    };
    let (_, batch) = pending.take_due(at(0)).pop().unwrap();
    pending.push(
        PendingRelease {
            ends_by: Proof::AnyAnswer,
            ..release
        },
        at(1),
    );
    assert!(pending.take_due(at(1)).is_empty());
    pending.settle(&batch, nothing(), at(2));
    let (_, batch) = pending
        .take_due(at(2))
        .pop()
        .expect("it is sent again at once");
    pending.settle(&batch, nothing(), at(3));
    assert!(pending.is_empty());
}

/// Its guard knows of the loss. A later release is sent once, by the thread that releases it.
#[test]
fn death_of_the_engine_ends_leases_and_calls() {
    let (kernel, lock) = (kernel(), mutex());
    let mut fx = Effects::default();
    let (lease, token) = lease_at_1(&kernel, &lock, &mut fx);
    let told = lease.listen(token, at(2), &mut fx);
    let mut waits = call(&kernel, &lock, false, at(2));
    waits.begin(&kernel, at(2), &mut fx);
    kernel.engine_died(at(3), &mut fx);
    assert_eq!(told.try_recv(), Ok(Lost::ShutDown));
    assert_eq!(fx.orphans.len(), 1);
    let failure = fault_of(waits.woken(&kernel, at(4), &mut fx));
    assert!(matches!(failure, Failure::Closed));
    assert_eq!(kernel.shutdown_tally().1.unreleased, 1);
}

/// The undo has ended before the late reply is read that names what it has removed.
#[test]
fn refusal_by_what_was_undone_meanwhile_is_none() {
    let (kernel, lock) = (kernel(), mutex());
    let mut engine = Engine::default();
    let mut fx = Effects::default();
    let mut once = call(&kernel, &lock, false, at(0));
    once.wants.wait = Wait::Once;
    let Step::Send(command, _) = once.begin(&kernel, at(0), &mut fx) else {
        panic!("nobody asks");
    };
    let id = command.acquires().unwrap().clone();
    let unknown = Err(Fault::Unknown(Cause::text("reset")));
    let step = once.replied(&kernel, unknown, at(0), at(1), &mut fx);
    assert!(matches!(step, Step::Send(..)));
    for outgoing in engine.due(&kernel, at(2), &ONE_SERVER, &mut fx) {
        let removed = vec![0];
        let undone = Ok(Answer::Undone(Undone {
            removed,
            other: None,
        }));
        engine.ended(
            &kernel,
            outgoing.ticket,
            undone,
            [at(2), at(3)],
            &ONE_SERVER,
            &mut fx,
        );
    }
    assert!(kernel.shared.pending.lock().is_empty());
    let refused = Answer::Refused(RefusedName {
        name: 0,
        holder: id.as_str().into(),
        remaining: Some(SECOND),
        detail: None,
    });
    let step = once.replied(&kernel, Ok(refused), at(1), at(4), &mut fx);
    // It asks again at once.
    assert!(matches!(step, Step::Send(..)));
}

/// Begins a release at 2 whose first two tries get no reply.
fn release_without_a_reply(kernel: &Kernel, engine: &mut Engine, fx: &mut Effects) {
    let lock = mutex();
    let (lease, token) = lease_at_1(kernel, &lock, fx);
    kernel.begin_unlock(&lease, token, false, at(2), fx);
    let lost = Fault::Unknown(Cause::text("lost"));
    kernel.unlocked(&lease, Err(lost), true, at(3), fx);
    try_without_reply(kernel, engine, 3, fx);
}

/// The engine sends the one release that is due at `ms`, and its reply is lost.
fn try_without_reply(kernel: &Kernel, engine: &mut Engine, ms: u64, fx: &mut Effects) {
    let sent = engine.due(kernel, at(ms), &ONE_SERVER, fx);
    let [outgoing] = &*sent else {
        panic!("{sent:?}")
    };
    let (lost, times) = (Fault::Unknown(Cause::text("lost")), [at(ms), at(ms + 1)]);
    engine.ended(kernel, outgoing.ticket, Err(lost), times, &ONE_SERVER, fx);
}

/// A release that waits for its next try is sent at once, and a shutdown waits for its reply.
#[test]
fn shutdown_repeats_a_release_without_a_reply() {
    let kernel = kernel();
    let (mut engine, mut fx) = (Engine::default(), Effects::default());
    release_without_a_reply(&kernel, &mut engine, &mut fx);
    kernel.await_releases(at(5), &mut fx);
    kernel.close(at(5), &mut fx);
    assert!(!kernel.end_engine(at(5)));
    try_without_reply(&kernel, &mut engine, 5, &mut fx);
    assert!(!kernel.end_engine(at(6)));
    let sent = engine.due(&kernel, at(2_000), &ONE_SERVER, &mut fx);
    let [outgoing] = &*sent else {
        panic!("{sent:?}")
    };
    let removed = Answer::Undone(Undone {
        removed: vec![0],
        other: None,
    });
    let times = [at(2_000), at(2_001)];
    engine.ended(
        &kernel,
        outgoing.ticket,
        Ok(removed),
        times,
        &ONE_SERVER,
        &mut fx,
    );
    assert!(kernel.end_engine(at(2_001)));
}

/// A release that waits for its next try is sent once more by a client that ends, and not a third
/// time.
#[test]
fn client_that_ends_sends_a_release_without_a_reply_once_more() {
    let kernel = kernel();
    let (mut engine, mut fx) = (Engine::default(), Effects::default());
    release_without_a_reply(&kernel, &mut engine, &mut fx);
    kernel.close(at(5), &mut fx);
    assert!(!kernel.end_engine(at(5)));
    try_without_reply(&kernel, &mut engine, 5, &mut fx);
    assert!(kernel.end_engine(at(6)));
}

/// The end of the client cuts off the connection that is being made for its release.
#[test]
fn client_that_ends_sends_a_release_that_was_not_sent_once_more() {
    let kernel = kernel();
    let (mut engine, mut fx) = (Engine::default(), Effects::default());
    let id = mutex().fresh_id("o");
    let release = PendingRelease {
        counts: Counts::Nothing,
        ..PendingRelease::new(&mutex(), &id, at(5_000), Proof::AnyAnswer)
    };
    kernel.close(at(1), &mut fx);
    kernel.with_pending(at(1), &mut fx, |pending| pending.push(release, at(1)));
    for ms in [2, 3] {
        assert!(!kernel.end_engine(at(ms)), "it is due at {ms}");
        let sent = engine.due(&kernel, at(ms), &ONE_SERVER, &mut fx);
        let [outgoing] = &*sent else {
            panic!("{sent:?}")
        };
        let unsent = Err(Fault::NotRun(Cause::text("cut off")));
        let times = [at(ms), at(ms)];
        engine.ended(
            &kernel,
            outgoing.ticket,
            unsent,
            times,
            &ONE_SERVER,
            &mut fx,
        );
    }
    assert!(kernel.end_engine(at(4)), "not a third time");
}

/// The command of a caller that stands still is granted after the engine has begun to undo it.
#[test]
fn second_release_of_an_id_lasts_for_its_own_time() {
    let mut pending = PendingReleases::new(None);
    let id = mutex().fresh_id("o");
    for (began, until) in [(0, 5_000), (4_900, 9_900)] {
        let release = PendingRelease::new(&mutex(), &id, at(until), Proof::KeySeen);
        pending.push(release, at(began));
        let sent = pending.take_due(at(began));
        for (_, batch) in &sent {
            pending.settle(
                batch,
                Err(Fault::Unknown(Cause::text("lost"))),
                at(began + 1),
            );
        }
    }
    pending.take_due(at(6_000));
    assert!(pending.has(id.as_str().as_bytes()));
}

#[test]
fn releases_of_the_last_command_timeout_are_repeated_after_a_failover() {
    let repeated = |noted: &[(usize, u64)]| {
        let mut pending = PendingReleases::new(Some(SECOND));
        for (count, noted_at) in noted {
            for _ in 0..*count {
                let id = mutex().fresh_id("o");
                let release = PendingRelease::new(&mutex(), &id, at(60_000), Proof::AnyAnswer);
                pending.note_recent(release, at(*noted_at));
            }
        }
        pending.repeat_recent(&|_| true, at(20_000));
        pending.ids().count()
    };
    assert_eq!(repeated(&[(5_000, 0)]), 5_000);
    // The last ones are repeated, however old they are.
    assert_eq!(repeated(&[(5_000, 0), (10, 1_100)]), 4_096);
    assert_eq!(repeated(&[(5_000, 0), (5_000, 900)]), 10_000);
    assert_eq!(repeated(&[(65_600, 0)]), 65_536);
}

/// They push out no other lock's.
#[test]
fn too_many_releases_of_a_lock_push_out_the_oldest() {
    let mut pending = PendingReleases::new(None);
    let release = |lock: &Arc<dyn Primitive>, ends_by| {
        let id = lock.fresh_id("o");
        let release = PendingRelease::new(lock, &id, at(5_000), ends_by);
        (id.as_str().as_bytes().to_vec(), release)
    };
    lower(Some(Bound::KeySeen));
    let (of_lease, answered) = release(&mutex(), Proof::AnyAnswer);
    pending.push(answered, at(0));
    let mut ids = Vec::new();
    let other = CohortKeys::of(Keys::new("b".into(), "lock:", "lock_release:"));
    for lock in [other, mutex()] {
        for _ in 0..3 {
            let (id, release) = release(&lock, Proof::KeySeen);
            pending.push(release, at(0));
            ids.push(id);
        }
    }
    assert!(ids.iter().all(|id| pending.has(id)));
    let (_, one_more) = release(&mutex(), Proof::KeySeen);
    pending.push(one_more, at(0));
    lower(None);
    let left = ids.iter().filter(|id| pending.has(id));
    assert_eq!(left.count(), ids.len() - 1);
    assert!(!pending.has(&ids[3]) && pending.has(&of_lease));
}

/// Readers have no names in a refusal: one of them may be a reader that this client has left.
#[test]
fn call_is_not_refused_by_a_reader_that_is_being_undone() {
    let (kernel, mut fx) = (kernel(), Effects::default());
    let reader: Arc<dyn Primitive> = Arc::new(RwLockKeys::of(
        Keys::new("a".into(), "lock:", "lock_release:"),
        true,
    ));
    let id = reader.fresh_id("o");
    let release = PendingRelease::new(&reader, &id, at(5_000), Proof::KeySeen);
    kernel.shared.pending.lock().push(release, at(0));
    let mut once = call(&kernel, &mutex(), false, at(1));
    once.wants.wait = Wait::Once;
    assert!(matches!(
        once.begin(&kernel, at(1), &mut fx),
        Step::Send(..)
    ));
    let refused = Answer::Refused(RefusedName {
        name: 0,
        holder: READERS.to_vec(),
        remaining: Some(SECOND),
        detail: None,
    });
    let step = once.replied(&kernel, Ok(refused), at(1), at(2), &mut fx);
    assert!(matches!(step, Step::Park(_)), "it asks again: {step:?}");
}
