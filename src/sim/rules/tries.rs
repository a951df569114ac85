//! Rules of calls that do not wait, beside one of their client that does.

use std::sync::Arc;

use crate::error::Cause;
use crate::kernel::Kernel;
use crate::kernel::call::{Call, Step};
use crate::kernel::effects::Effects;
use crate::kernel::engine::Engine;
use crate::kernel::failure::Failure;
use crate::kernel::fault::Fault;
use crate::kernel::unlock::Unlock;
use crate::kernel::waiter::{Outcome, Wait};
use crate::mutant::{Mutant, switch_on};
use crate::protocol::answer::Answer;
use crate::protocol::fair::FairMutexKeys;
use crate::protocol::keys::{Keys, Layout};
use crate::protocol::mutex::MutexKeys;
use crate::protocol::primitive::Primitive;
use crate::protocol::refusal::RefusedName;
use crate::protocol::rw_lock::RwLockKeys;
use crate::protocol::semaphore::SemaphoreKeys;
use crate::set::acquire::{SetAcquire, SetOutcome, SetStep, SetTerms};
use crate::set::names::SetNames;
use crate::sim::rules::{ONE_SERVER, SECOND, at, call, kernel, mutex};
use crate::token::FencingToken;
use crate::wait_policy::{Backoff, WaitPolicy};

fn keys() -> Keys {
    Keys::new("a".into(), "lock:", "lock_release:")
}

/// A lock of each kind that has calls of its own.
fn all_kinds() -> [Arc<dyn Primitive>; 6] {
    [
        mutex(),
        MutexKeys::of(keys()),
        FairMutexKeys::of(keys()),
        Arc::new(RwLockKeys::of(keys(), false)),
        Arc::new(RwLockKeys::of(keys(), true)),
        Arc::new(SemaphoreKeys::of(keys(), 2, 1)),
    ]
}

/// A call whose own command another client's lease refuses at once: it parks.
fn waiting(kernel: &Kernel, lock: &Arc<dyn Primitive>, policy: WaitPolicy) -> Call {
    let mut fx = Effects::default();
    let Call { mut wants, .. } = call(kernel, lock, false, at(0));
    wants.wait = Wait::Queue(policy);
    let mut call = Call::new(kernel, wants, at(0));
    let mut step = call.begin(kernel, at(0), &mut fx);
    // A plain lock then enters the queue.
    while let Step::Send(..) = step {
        let refused = Answer::Refused(RefusedName {
            name: 0,
            holder: b"x:0".to_vec(),
            remaining: Some(60 * SECOND),
            detail: None,
        });
        step = call.replied(kernel, Ok(refused), at(0), at(1), &mut fx);
    }
    assert!(matches!(step, Step::Park(_)), "{step:?}");
    call
}

/// The first step of a call that does not wait.
fn tries(kernel: &Kernel, lock: &Arc<dyn Primitive>, ms: u64) -> Step {
    let Call { mut wants, .. } = call(kernel, lock, false, at(ms));
    wants.wait = Wait::Once;
    Call::new(kernel, wants, at(ms)).begin(kernel, at(ms), &mut Effects::default())
}

fn asks(step: &Step) -> bool {
    matches!(step, Step::Send(..))
}

#[test]
fn call_that_does_not_wait_goes_behind_one_that_waits() {
    for lock in all_kinds() {
        let kernel = kernel();
        let _waits = waiting(&kernel, &lock, WaitPolicy::Wake);
        match tries(&kernel, &lock, 5) {
            Step::Done(Outcome::Refused(Some(refused))) => assert_eq!(refused.by.holder, b"x:0"),
            step => panic!("{step:?} for {lock:?}"),
        }
        // The lease that refused the other one has ended since: nobody knows the holder.
        let step = tries(&kernel, &lock, 60_001);
        assert!(
            matches!(step, Step::Done(Outcome::Refused(None))),
            "{step:?} for {lock:?}"
        );
    }
}

#[test]
fn call_that_does_not_wait_asks_once_the_other_has_left() {
    for lock in all_kinds() {
        let kernel = kernel();
        let mut waits = waiting(&kernel, &lock, WaitPolicy::Wake);
        waits.leave(&kernel, Failure::Cancelled, at(2), &mut Effects::default());
        assert!(asks(&tries(&kernel, &lock, 5)), "{lock:?}");
    }
}

/// Nobody knows whether the lock is taken, so Redis is asked, and may be found unreachable.
#[test]
fn call_that_does_not_wait_asks_after_a_failure() {
    for lock in all_kinds() {
        let kernel = kernel();
        let _waits = waiting(&kernel, &lock, WaitPolicy::Wake);
        let mut fx = Effects::default();
        kernel.with_entry(&lock, at(2), &mut fx, |entry, _| {
            let reset = Fault::Unknown(Cause::text("reset"));
            entry.line.last.failed(at(2), at(3), reset);
        });
        assert!(asks(&tries(&kernel, &lock, 5)), "{lock:?}");
    }
}

/// The other one waits behind the first command of a third call. No reply has refused any of them,
/// and the server may be silent.
#[test]
fn call_that_does_not_wait_asks_before_the_first_reply() {
    for lock in all_kinds() {
        let kernel = kernel();
        let mut fx = Effects::default();
        let mut first = call(&kernel, &lock, false, at(0));
        assert!(asks(&first.begin(&kernel, at(0), &mut fx)), "{lock:?}");
        let mut behind = call(&kernel, &lock, false, at(1));
        let is_parked = matches!(behind.begin(&kernel, at(1), &mut fx), Step::Park(_));
        assert_eq!(is_parked, lock.has_local_queue(), "{lock:?}");
        assert!(asks(&tries(&kernel, &lock, 5)), "{lock:?}");
    }
}

/// It sleeps until its pause is over, and has no place in a queue: it has no turn before that.
#[test]
fn call_that_does_not_wait_goes_ahead_of_a_pause_without_a_queue() {
    for lock in all_kinds() {
        let kernel = kernel();
        let backoff = Backoff::new(60 * SECOND, 60 * SECOND);
        let _waits = waiting(&kernel, &lock, WaitPolicy::Backoff(backoff));
        let is_queued = lock.queue().is_some();
        assert_eq!(asks(&tries(&kernel, &lock, 5)), !is_queued, "{lock:?}");
    }
}

/// The lease of a call that went ahead is what the next attempt of the other would wait for.
fn lease_ends_during_a_pause() {
    let (kernel, lock) = (kernel(), MutexKeys::of(keys()));
    let backoff = Backoff::new(60 * SECOND, 60 * SECOND).jitter(0.0);
    let _waits = waiting(&kernel, &lock, WaitPolicy::Backoff(backoff));
    let mut fx = Effects::default();
    let Call { mut wants, .. } = call(&kernel, &lock, false, at(5));
    wants.wait = Wait::Once;
    let mut once = Call::new(&kernel, wants, at(5));
    assert!(asks(&once.begin(&kernel, at(5), &mut fx)));
    let granted = Answer::Granted(FencingToken::new(7));
    let step = once.replied(&kernel, Ok(granted), at(5), at(6), &mut fx);
    let Step::Done(Outcome::Lease(lease, token)) = step else {
        panic!("{step:?}");
    };
    let unlock = kernel.begin_unlock(&lease, token, false, at(10), &mut fx);
    assert!(matches!(unlock, Unlock::Send(_)));
    kernel.unlocked(&lease, Ok(Answer::Ours), false, at(11), &mut fx);
    let sent = Engine::default().due(&kernel, at(11), &ONE_SERVER, &mut fx);
    assert_eq!(sent.len(), 1, "it asks at once");
}

#[test]
fn end_of_a_lease_of_the_client_ends_a_pause() {
    lease_ends_during_a_pause();
}

#[test]
#[should_panic(expected = "it asks at once")]
fn attempt_that_stays_later_is_found() {
    switch_on(Some(Mutant::LaterAttemptStaysLater));
    lease_ends_during_a_pause();
}

#[test]
fn set_that_does_not_wait_goes_behind_a_call_for_one_of_its_names() {
    for has_queues in [true, false] {
        let kernel = kernel();
        let names = vec!["0".into(), "a".into()];
        let names = SetNames::of(
            names,
            "lock:",
            "lock_release:",
            Layout::OneServer,
            has_queues,
        );
        let one = &names.at_once()[1];
        let try_set = |ms| {
            let Call { wants, .. } = call(&kernel, one, false, at(ms));
            let wants = SetTerms {
                names: Arc::clone(&names),
                terms: wants.terms,
                wait: Wait::Once,
                deadline: wants.deadline,
                holder: wants.holder,
                by_engine: false,
                side_by_side: false,
            };
            let mut set = SetAcquire::new(wants, at(ms));
            set.begin(&kernel, at(ms), &mut Effects::default())
        };
        let mut waits = waiting(&kernel, one, WaitPolicy::Wake);
        match try_set(5) {
            SetStep::Done(SetOutcome::Refused(Some(refused))) => assert_eq!(refused.by.name, 1),
            step => panic!("{step:?}"),
        }
        waits.leave(&kernel, Failure::Cancelled, at(6), &mut Effects::default());
        assert!(matches!(try_set(7), SetStep::Send(..)));
    }
}
