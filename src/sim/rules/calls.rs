//! Rules of calls: when they ask, what they are granted, how they fail.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::error::Cause;
use crate::holder_id::HolderId;
use crate::kernel::Kernel;
use crate::kernel::call::{Call, Step};
use crate::kernel::command::What;
use crate::kernel::effects::Effects;
use crate::kernel::engine::{Engine, Outgoing};
use crate::kernel::failure::Failure;
use crate::kernel::fault::{Fault, OpenCircuit};
use crate::kernel::undo::{PendingRelease, Proof};
use crate::kernel::unlock::Unlock;
use crate::kernel::waiter::{Outcome, Wait};
use crate::mutant::{Mutant, switch_on};
use crate::protocol::answer::Answer;
use crate::protocol::fair::FairMutexKeys;
use crate::protocol::keys::{Keys, Layout};
use crate::protocol::mutex::MutexKeys;
use crate::protocol::primitive::Primitive;
use crate::protocol::refusal::RefusedName;
use crate::sim::rules::{ONE_SERVER, SECOND, at, call, fault_of, kernel, lease_at_1, mutex};
use crate::token::FencingToken;
use crate::wait_policy::{Backoff, WaitPolicy};

/// Like `call`, for the engine, with another ttl and a deadline.
fn call_for(
    kernel: &Kernel,
    lock: &Arc<dyn Primitive>,
    [ttl, wait]: [Duration; 2],
    now: Instant,
) -> Call {
    let Call { mut wants, .. } = call(kernel, lock, true, now);
    wants.terms.ttl = ttl;
    wants.deadline = now.after(wait);
    Call::new(kernel, wants, now)
}

/// A call that waits by pauses of this length, and its first command if it sends one itself.
fn pausing(kernel: &Kernel, lock: &Arc<dyn Primitive>, pause: Duration, now: Instant) -> Call {
    let Call { mut wants, .. } = call(kernel, lock, false, now);
    let backoff = Backoff::new(pause, pause).jitter(0.0).attempts(100);
    wants.wait = Wait::Queue(WaitPolicy::Backoff(backoff));
    Call::new(kernel, wants, now)
}

/// Begins a call whose own command another client's lease refuses, at `ms`: it parks.
fn park_refused(kernel: &Kernel, call: &mut Call, ms: u64, fx: &mut Effects) {
    assert!(matches!(call.begin(kernel, at(ms), fx), Step::Send(..)));
    let refused = Answer::Refused(RefusedName {
        name: 0,
        holder: b"x:0".to_vec(),
        remaining: Some(600 * SECOND),
        detail: None,
    });
    let step = call.replied(kernel, Ok(refused), at(ms), at(ms), fx);
    assert!(matches!(step, Step::Park(_)), "{step:?}");
}

/// Returns how many acquiring commands the engine sends at `ms`.
fn asks_at(kernel: &Kernel, engine: &mut Engine, ms: u64, fx: &mut Effects) -> usize {
    let sent = engine.due(kernel, at(ms), &ONE_SERVER, fx);
    let asks = sent.iter().filter(|it| it.command.acquires().is_some());
    asks.count()
}

fn mutex_without_queue() -> Arc<dyn Primitive> {
    MutexKeys::of(Keys::new("a".into(), "lock:", "lock_release:"))
}

/// The first thread stands still between its kernel call and its effects.
#[test]
fn second_call_wakes_the_engine_too() {
    let (kernel, lock) = (kernel(), mutex());
    kernel.engine_sleeps(at(0), SECOND);
    assert_eq!(kernel.engine_sleeps(at(0), SECOND), Instant::NEVER);
    let mut never_carried_out = Effects::default();
    call(&kernel, &lock, true, at(0)).begin(&kernel, at(0), &mut never_carried_out);
    assert!(never_carried_out.engine_by.is_some());
    let mut fx = Effects::default();
    call(&kernel, &lock, true, at(1)).begin(&kernel, at(1), &mut fx);
    assert!(fx.engine_by.is_some());
}

/// The engine has ended the command of a thread that stands still, when that learns why there was
/// no reply.
#[test]
fn call_that_is_late_still_says_why_it_failed() {
    let (kernel, lock) = (kernel(), mutex());
    let mut fx = Effects::default();
    let Call { mut wants, .. } = call(&kernel, &lock, false, at(0));
    (wants.wait, wants.deadline) = (Wait::Once, at(1_000));
    let mut late = Call::new(&kernel, wants, at(0));
    assert!(matches!(
        late.begin(&kernel, at(0), &mut fx),
        Step::Send(..)
    ));
    Engine::default().due(&kernel, at(1_100), &ONE_SERVER, &mut fx);
    let fault = Fault::NotRun(Cause::text("refused"));
    let step = late.replied(&kernel, Err(fault), at(0), at(1_101), &mut fx);
    match fault_of(step) {
        Failure::Unreachable {
            cause: Some(cause), ..
        } => assert_eq!(cause.to_string(), "refused"),
        failure => panic!("{failure:?}"),
    }
}

/// Nothing of the call was sent: the error says so. A call for one reply fails at once.
#[test]
fn open_breaker_ends_a_call_for_one_reply() {
    let (kernel, lock) = (kernel(), mutex());
    let mut fx = Effects::default();
    let open = || Fault::Open(Box::new(OpenCircuit::of_test(SECOND)));
    let mut once = call(&kernel, &lock, false, at(0));
    once.wants.wait = Wait::Once;
    once.begin(&kernel, at(0), &mut fx);
    let failure = fault_of(once.replied(&kernel, Err(open()), at(0), at(1), &mut fx));
    assert!(matches!(
        failure,
        Failure::Open {
            has_sent: false,
            ..
        }
    ));

    let mut waits = call(&kernel, &lock, false, at(2));
    waits.wants.deadline = at(500);
    waits.begin(&kernel, at(2), &mut fx);
    let unknown = Err(Fault::Unknown(Cause::text("reset")));
    waits.replied(&kernel, unknown, at(2), at(3), &mut fx);
    let step = waits.replied(&kernel, Err(open()), at(3), at(4), &mut fx);
    assert!(matches!(step, Step::Park(_)));
    let failure = fault_of(waits.woken(&kernel, at(500), &mut fx));
    assert!(matches!(
        failure,
        Failure::Unreachable { cause: Some(_), .. }
    ));
}

/// The breaker has admitted a command of an earlier call for the name, which got no reply. It stops
/// those of two later calls.
#[test]
fn open_breaker_is_the_reason_of_each_call_that_it_stops() {
    let (kernel, lock) = (kernel(), mutex());
    let mut fx = Effects::default();
    let open = || Fault::Open(Box::new(OpenCircuit::of_test(SECOND)));
    let is_open = |step| {
        let failure = fault_of(step);
        let has_sent = matches!(failure, Failure::Open { has_sent, .. } if !has_sent);
        assert!(has_sent, "{failure:?}");
    };
    let mut first = call(&kernel, &lock, false, at(0));
    first.begin(&kernel, at(0), &mut fx);
    assert!(matches!(
        first.replied(&kernel, Err(open()), at(0), at(1), &mut fx),
        Step::Park(_)
    ));
    let mut admitted = call(&kernel, &lock, false, at(2));
    admitted.wants.wait = Wait::Once;
    admitted.begin(&kernel, at(2), &mut fx);
    let mut short = call(&kernel, &lock, false, at(5));
    short.wants.deadline = at(20);
    short.begin(&kernel, at(5), &mut fx);
    let unknown = Err(Fault::Unknown(Cause::text("no reply")));
    admitted.replied(&kernel, unknown, at(2), at(10), &mut fx);
    let failure = fault_of(admitted.replied(&kernel, Err(open()), at(10), at(10), &mut fx));
    assert!(
        matches!(failure, Failure::Unreachable { .. }),
        "{failure:?}"
    );
    let mut once = call(&kernel, &lock, false, at(11));
    once.wants.wait = Wait::Once;
    once.begin(&kernel, at(11), &mut fx);
    is_open(once.replied(&kernel, Err(open()), at(11), at(12), &mut fx));
    is_open(short.woken(&kernel, at(20), &mut fx));
    first.abandon(&kernel, at(21), &mut fx);
}

#[test]
fn peer_that_is_not_redis_ends_its_calls_and_no_later_ones() {
    let (kernel, lock) = (kernel(), mutex());
    let mut fx = Effects::default();
    let not_redis = || Err(Fault::Unknown(Cause::text("HTTP").last_malformed(3)));
    let mut first = call(&kernel, &lock, false, at(0));
    first.begin(&kernel, at(0), &mut fx);
    let mut waits = call(&kernel, &lock, false, at(1));
    waits.begin(&kernel, at(1), &mut fx);
    let failure = fault_of(first.replied(&kernel, not_redis(), at(0), at(2), &mut fx));
    assert!(matches!(failure, Failure::Unreachable { since: None, .. }));
    Engine::default().due(&kernel, at(2), &ONE_SERVER, &mut fx);
    let failure = fault_of(waits.woken(&kernel, at(2), &mut fx));
    assert!(matches!(failure, Failure::Unreachable { since: None, .. }));
    let mut later = call(&kernel, &lock, false, at(10));
    let step = later.begin(&kernel, at(10), &mut fx);
    assert!(
        matches!(step, Step::Send(_, until) if until > at(10)),
        "{step:?}"
    );
}

/// The call that the engine has asked for leaves, and the next one in line wants a shorter ttl.
#[test]
fn key_may_last_for_the_ttl_that_it_was_asked_for() {
    let (kernel, lock) = (kernel(), mutex());
    let mut engine = Engine::default();
    let mut fx = Effects::default();
    let mut leaves = call_for(&kernel, &lock, [60 * SECOND, SECOND / 10], at(0));
    let mut stays = call_for(&kernel, &lock, [4 * SECOND, 60 * SECOND], at(1));
    leaves.begin(&kernel, at(0), &mut fx);
    stays.begin(&kernel, at(1), &mut fx);
    let sent = engine.due(&kernel, at(1), &ONE_SERVER, &mut fx);
    let [outgoing] = &*sent else {
        panic!("{sent:?}")
    };
    let end = leaves.woken(&kernel, at(150), &mut fx);
    assert!(matches!(end, Step::Done(Outcome::Failed(_))), "{end:?}");
    let granted = Answer::Granted(FencingToken::new(7));
    let times = [at(1), at(200)];
    engine.ended(
        &kernel,
        outgoing.ticket,
        Ok(granted),
        times,
        &ONE_SERVER,
        &mut fx,
    );
    let Step::Done(Outcome::Lease(lease, _)) = stays.woken(&kernel, at(201), &mut fx) else {
        panic!("the lease lasts long enough for it")
    };
    assert_eq!(
        lease.remaining(at(201)),
        lease.remaining(at(201)).min(Some(4 * SECOND))
    );
    assert!(
        lease.key_may_last() >= 120 * SECOND,
        "{:?}",
        lease.key_may_last()
    );
}

/// A release within the client wakes a call that waits by pauses, though another has parked since.
#[test]
fn pause_of_another_call_does_not_delay_the_end_of_a_lease() {
    let (kernel, lock) = (kernel(), mutex_without_queue());
    let mut engine = Engine::default();
    let mut fx = Effects::default();
    let (lease, token) = lease_at_1(&kernel, &lock, &mut fx);
    let mut first = pausing(&kernel, &lock, 5 * SECOND, at(2));
    first.begin(&kernel, at(2), &mut fx);
    // The lease of its own client is its first refusal.
    assert_eq!(asks_at(&kernel, &mut engine, 3, &mut fx), 0);
    let unlock = kernel.begin_unlock(&lease, token, false, at(10), &mut fx);
    assert!(matches!(unlock, Unlock::Send(_)));
    kernel.unlocked(&lease, Ok(Answer::Ours), false, at(11), &mut fx);
    let mut second = pausing(&kernel, &lock, SECOND, at(12));
    second.begin(&kernel, at(12), &mut fx);
    assert_eq!(asks_at(&kernel, &mut engine, 12, &mut fx), 1);
}

/// It asks at once, and does not wait for the pause of the call before it.
#[test]
fn call_that_is_woken_does_not_wait_for_the_pause_before_it() {
    let (kernel, lock) = (kernel(), mutex_without_queue());
    let mut engine = Engine::default();
    let mut fx = Effects::default();
    let mut front = pausing(&kernel, &lock, 60 * SECOND, at(0));
    park_refused(&kernel, &mut front, 0, &mut fx);
    assert_eq!(asks_at(&kernel, &mut engine, 1, &mut fx), 0);
    let mut woken = call(&kernel, &lock, false, at(2));
    assert!(matches!(
        woken.begin(&kernel, at(2), &mut fx),
        Step::Park(_)
    ));
    assert_eq!(asks_at(&kernel, &mut engine, 2, &mut fx), 1);
}

#[test]
fn pause_of_a_call_ends_when_it_leaves() {
    let (kernel, lock) = (kernel(), mutex_without_queue());
    let mut engine = Engine::default();
    let mut fx = Effects::default();
    let mut front = pausing(&kernel, &lock, 60 * SECOND, at(0));
    park_refused(&kernel, &mut front, 0, &mut fx);
    let mut next = pausing(&kernel, &lock, SECOND / 20, at(1));
    assert!(matches!(next.begin(&kernel, at(1), &mut fx), Step::Park(_)));
    assert_eq!(asks_at(&kernel, &mut engine, 200, &mut fx), 0);
    front.leave(&kernel, Failure::Cancelled, at(300), &mut fx);
    assert_eq!(asks_at(&kernel, &mut engine, 300, &mut fx), 1);
}

/// Others would wait for less time.
#[test]
fn call_takes_its_place_before_its_pause_is_over() {
    let (kernel, lock) = (kernel(), mutex());
    let mut engine = Engine::default();
    let mut fx = Effects::default();
    let mut pausing = pausing(&kernel, &lock, 60 * SECOND, at(0));
    park_refused(&kernel, &mut pausing, 0, &mut fx);
    assert_eq!(asks_at(&kernel, &mut engine, 500, &mut fx), 0);
    assert_eq!(asks_at(&kernel, &mut engine, 1_000, &mut fx), 1);
}

/// A command of its own client refuses it, when its last attempt before the deadline is over.
#[test]
fn call_that_nobody_refuses_before_its_deadline_asks_again() {
    let (kernel, mut fx) = (kernel(), Effects::default());
    let mut engine = Engine::default();
    let lock = FairMutexKeys::of(Keys::new("a".into(), "lock:", "lock_release:"));
    let id = lock.fresh_id("o");
    let release = PendingRelease::new(&lock, &id, at(5_000), Proof::KeySeen);
    kernel.shared.pending.lock().push(release, at(0));
    let mut waits = call_for(&kernel, &lock, [4 * SECOND, SECOND / 10], at(0));
    waits.begin(&kernel, at(0), &mut fx);
    let sent = engine.due(&kernel, at(0), &ONE_SERVER, &mut fx);
    let asked = sent.iter().find(|it| it.command.acquires().is_some());
    let ticket = asked.expect("the call asks").ticket;
    assert_eq!(asks_at(&kernel, &mut engine, 60, &mut fx), 0);
    let refused = Answer::Refused(RefusedName {
        name: 0,
        holder: id.as_str().into(),
        remaining: Some(SECOND),
        detail: None,
    });
    let times = [at(0), at(61)];
    engine.ended(&kernel, ticket, Ok(refused), times, &ONE_SERVER, &mut fx);
    let sent = engine.due(&kernel, at(62), &ONE_SERVER, &mut fx);
    let refreshes = |it: &Outgoing| matches!(it.command.what, What::Refresh { .. });
    assert!(sent.iter().any(refreshes), "{sent:?}");
}

/// The last refusal is older than a second at the deadline. A message that somebody else has
/// released the lock since makes it newer; one about an undo of this client does not.
#[test]
fn release_by_another_proves_that_the_lock_was_taken_and_an_own_undo_does_not() {
    const OWN_UNDO: &[u8] = b"o:0f0e0d0c-0b0a-4908-8706-050403020100";
    let outcome = |released: &[u8]| {
        let (kernel, lock) = (kernel(), mutex());
        let mut fx = Effects::default();
        let mut call = call(&kernel, &lock, false, at(0));
        call.wants.deadline = at(1_400);
        let mut step = call.begin(&kernel, at(0), &mut fx);
        // The second command has a place in the queue.
        while let Step::Send(..) = step {
            let refused = Answer::Refused(RefusedName {
                name: 0,
                holder: b"x".as_slice().into(),
                remaining: Some(SECOND / 3),
                detail: None,
            });
            step = call.replied(&kernel, Ok(refused), at(0), at(10), &mut fx);
        }
        let id = HolderId::parse(OWN_UNDO).expect("an id");
        let undo = PendingRelease::new(&lock, &id, at(60_000), Proof::KeySeen);
        kernel.shared.pending.lock().push(undo, at(20));
        kernel.announced(lock.key(0).name, released, at(500), &mut fx);
        call.woken(&kernel, at(1_400), &mut fx)
    };
    let by_another = outcome(b"x");
    switch_on(Some(Mutant::ReleaseMessageProvesNothing));
    let without = outcome(b"x");
    switch_on(None);
    assert!(
        matches!(without, Step::Done(Outcome::Failed(_))),
        "{without:?}"
    );
    assert!(
        matches!(by_another, Step::Done(Outcome::Refused(_))),
        "{by_another:?}"
    );
    let by_own_undo = outcome(OWN_UNDO);
    assert!(
        matches!(by_own_undo, Step::Done(Outcome::Failed(_))),
        "{by_own_undo:?}"
    );
    let same_owner = mutex().fresh_id("o");
    let by_another_client = outcome(same_owner.as_str().as_bytes());
    assert!(
        matches!(by_another_client, Step::Done(Outcome::Refused(_))),
        "{by_another_client:?}"
    );
}
