//! Rules of the kernel that one sequence of calls shows.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::config::LeaseTerms;
use crate::error::Cause;
use crate::holder_id::HolderId;
use crate::kernel::call::{Call, CallTerms, Step};
use crate::kernel::effects::Effects;
use crate::kernel::engine::{Engine, Route};
use crate::kernel::fault::{Fault, OpenCircuit};
use crate::kernel::held::{HeldLease, Holder};
use crate::kernel::lease::Wanted;
use crate::kernel::pending::{PendingRelease, PendingReleases, Proof};
use crate::kernel::unlock::{Unlock, Unlocked};
use crate::kernel::waiter::{Failure, Outcome, Wait};
use crate::kernel::{Kernel, Limits};
use crate::lost::Lost;
use crate::protocol::answer::{Answer, Undone};
use crate::protocol::cohort::CohortKeys;
use crate::protocol::keys::Keys;
use crate::protocol::place::TokenBlock;
use crate::protocol::primitive::Primitive;
use crate::protocol::refusal::RefusedName;
use crate::token::FencingToken;
use crate::wait_policy::WaitPolicy;

const SECOND: Duration = Duration::from_secs(1);

struct OneServer;

impl Route for OneServer {
    fn room(&self) -> usize {
        100
    }

    fn is_final(&self) -> bool {
        true
    }
}

fn kernel() -> Kernel {
    let limits = Limits {
        command_timeout: SECOND,
        unreachable_for: 10 * SECOND,
        backstop: SECOND,
        may_fail_over: false,
        size: crate::kernel::votes::Majority::of(1),
        is_quorum: false,
        wall: 0,
    };
    Kernel::new(limits, "o")
}

fn at(ms: u64) -> Instant {
    Instant::START.after(Duration::from_millis(100_000 + ms))
}

fn call(kernel: &Kernel, lock: &Arc<dyn Primitive>, by_engine: bool, now: Instant) -> Call {
    let wants = CallTerms {
        lock: Arc::clone(lock),
        terms: LeaseTerms {
            ttl: 4 * SECOND,
            renew_every: Some(SECOND),
            max_hold: Duration::MAX,
            replicas: None,
            handoffs: 0,
        },
        wait: Wait::Queue(WaitPolicy::Wake),
        deadline: Instant::NEVER,
        holder: Holder::default(),
        by_engine,
    };
    Call::new(kernel, wants, now)
}

/// Returns the lease of a call that its caller's first command was granted.
fn lease_at_1(
    kernel: &Kernel,
    lock: &Arc<dyn Primitive>,
    fx: &mut Effects,
) -> (Arc<HeldLease>, FencingToken) {
    let mut first = call(kernel, lock, false, at(0));
    assert!(matches!(first.begin(kernel, at(0), fx), Step::Send(..)));
    let granted = Answer::Granted([FencingToken::new(7)].into_iter().collect());
    let step = first.replied(kernel, Ok(granted), at(0), at(1), fx);
    let Step::Done(Outcome::Lease(lease, token)) = step else {
        panic!("{step:?}");
    };
    (lease, token)
}

fn mutex() -> Arc<dyn Primitive> {
    let keys = Keys::new("a".into(), "lock:", "lock_release:");
    CohortKeys::of(keys)
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

/// The reply to the engine's command comes after the grant message, and after the release.
#[test]
fn late_refusal_of_a_granted_command_undoes_nothing() {
    let (kernel, lock) = (kernel(), mutex());
    let mut engine = Engine::default();
    let mut fx = Effects::default();
    let mut waiting = call(&kernel, &lock, true, at(0));
    waiting.begin(&kernel, at(0), &mut fx);
    let sent = engine.due(&kernel, at(0), &OneServer, &mut fx);
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
            &OneServer,
            fx,
        );
    };
    end(&mut engine, &mut fx);
    assert!(kernel.pending.lock().is_empty());
    let unlock = kernel.begin_unlock(&lease, token, false, at(4), &mut fx);
    assert!(matches!(unlock, Unlock::Send(_)));
    let released = kernel.unlocked(&lease, Ok(Answer::Ours), false, at(5), &mut fx);
    assert_eq!(released, Unlocked::Released);
    assert!(kernel.pending.lock().is_empty());
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
            .due(&kernel, at(1_000), &OneServer, &mut fx)
            .is_empty()
    );
    let sent = engine.due(&kernel, at(1_100), &OneServer, &mut fx);
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
    let sent = engine.due(&kernel, at(10_000), &OneServer, &mut fx);
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
    engine.due(&kernel, later, &OneServer, &mut fx);
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
        server: 0,
        lock: mutex(),
        id: HolderId::fresh("o"),
        until: at(10_000),
        ends_by: Proof::KeySeen,
        counts: None,
        is_place: false,
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

fn fault_of(step: Step) -> Failure {
    match step {
        Step::Done(Outcome::Failed(failure)) => failure,
        step => panic!("{step:?}"),
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
    Engine::default().due(&kernel, at(2), &OneServer, &mut fx);
    let failure = fault_of(waits.woken(&kernel, at(2), &mut fx));
    assert!(matches!(failure, Failure::Unreachable { since: None, .. }));
    let mut later = call(&kernel, &lock, false, at(10));
    let step = later.begin(&kernel, at(10), &mut fx);
    assert!(
        matches!(step, Step::Send(_, until) if until > at(10)),
        "{step:?}"
    );
}

/// Nobody sends what the engine would: guards are told, and what is released then is sent once.
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
    for outgoing in engine.due(&kernel, at(2), &OneServer, &mut fx) {
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
            &OneServer,
            &mut fx,
        );
    }
    assert!(kernel.pending.lock().is_empty());
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
