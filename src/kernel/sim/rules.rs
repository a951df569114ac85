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
use crate::kernel::pending::PendingReleases;
use crate::kernel::set::SetAcquire;
use crate::kernel::undo::{PendingRelease, Proof};
use crate::kernel::unlock::{Unlock, Unlocked};
use crate::kernel::waiter::{Failure, Outcome, Wait};
use crate::kernel::{Kernel, Limits};
use crate::lost::Lost;
use crate::protocol::all::MutexAllKeys;
use crate::protocol::answer::{Answer, Undone};
use crate::protocol::cohort::CohortKeys;
use crate::protocol::keys::{Keys, Layout};
use crate::protocol::mutex::MutexKeys;
use crate::protocol::place::TokenBlock;
use crate::protocol::primitive::Primitive;
use crate::protocol::refusal::RefusedName;
use crate::token::FencingToken;
use crate::wait_policy::{Backoff, WaitPolicy};

const SECOND: Duration = Duration::from_secs(1);

struct OneServer;

impl Route for OneServer {
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
    let sent = engine.due(kernel, at(ms), &OneServer, fx);
    let asks = sent.iter().filter(|it| it.command.acquires().is_some());
    asks.count()
}

fn mutex_without_queue() -> Arc<dyn Primitive> {
    MutexKeys::of(Keys::new("a".into(), "lock:", "lock_release:"))
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
        let granted = Answer::Granted([FencingToken::new(7 + ms)].into_iter().collect());
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
    let sent = engine.due(&kernel, at(1), &OneServer, &mut fx);
    let [outgoing] = &*sent else {
        panic!("{sent:?}")
    };
    let end = leaves.woken(&kernel, at(150), &mut fx);
    assert!(matches!(end, Step::Done(Outcome::Failed(_))), "{end:?}");
    let granted = Answer::Granted([FencingToken::new(7)].into_iter().collect());
    let times = [at(1), at(200)];
    engine.ended(
        &kernel,
        outgoing.ticket,
        Ok(granted),
        times,
        &OneServer,
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

/// A release that waits for its next try is sent at once, and a shutdown waits for its reply.
#[test]
fn shutdown_repeats_a_release_without_a_reply() {
    let (kernel, lock) = (kernel(), mutex());
    let mut engine = Engine::default();
    let mut fx = Effects::default();
    let (lease, token) = lease_at_1(&kernel, &lock, &mut fx);
    kernel.begin_unlock(&lease, token, false, at(2), &mut fx);
    let lost = || Fault::Unknown(Cause::text("lost"));
    kernel.unlocked(&lease, Err(lost()), true, at(3), &mut fx);
    let sent = engine.due(&kernel, at(3), &OneServer, &mut fx);
    let [outgoing] = &*sent else {
        panic!("{sent:?}")
    };
    let times = [at(3), at(4)];
    engine.ended(
        &kernel,
        outgoing.ticket,
        Err(lost()),
        times,
        &OneServer,
        &mut fx,
    );
    kernel.close(at(5), &mut fx);
    kernel.await_releases(at(5), &mut fx);
    assert!(!kernel.end_engine(at(5)));
    let sent = engine.due(&kernel, at(5), &OneServer, &mut fx);
    let [outgoing] = &*sent else {
        panic!("{sent:?}")
    };
    let removed = Answer::Undone(Undone {
        removed: vec![0],
        other: None,
    });
    let times = [at(5), at(6)];
    engine.ended(
        &kernel,
        outgoing.ticket,
        Ok(removed),
        times,
        &OneServer,
        &mut fx,
    );
    assert!(kernel.end_engine(at(6)));
}

/// The command of a caller that stands still is granted after the engine has begun to undo it.
#[test]
fn second_release_of_an_id_lasts_for_its_own_time() {
    let mut pending = PendingReleases::new(false);
    let id = mutex().fresh_id("o");
    for (began, until) in [(0, 5_000), (4_900, 9_900)] {
        let release = PendingRelease::new((0, &mutex()), &id, at(until), Proof::KeySeen);
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

/// The names that a set keeps get its ttl when it has all of them.
#[test]
fn kept_names_may_last_for_the_ttl_of_their_set() {
    let kernel = kernel();
    let mut fx = Effects::default();
    let names = vec!["a".into(), "b".into()];
    let lock = MutexAllKeys::of(names, "lock:", "lock_release:", Layout::OneServer, true);
    let Call { mut wants, .. } = call(&kernel, &lock, false, at(0));
    wants.terms.ttl = 600 * SECOND;
    let names = lock.names_of_set().to_vec();
    let mut set = SetAcquire::new(&kernel, wants, names, at(0));
    let mut step = set.begin(&kernel, at(0), &mut fx);
    let mut token = 0;
    while let Step::Send(command, _) = &step {
        token += 1;
        let answer = match command.lock.names.len() {
            1 => Answer::Granted([FencingToken::new(token)].into_iter().collect()),
            _ => Answer::Refused(RefusedName {
                name: 0,
                holder: b"x:0".to_vec(),
                remaining: Some(SECOND),
                detail: None,
            }),
        };
        step = set.replied(&kernel, Ok(answer), at(1), at(1), &mut fx);
    }
    assert!(matches!(step, Step::Park(_)) && token == 3, "{step:?}");
    set.leave(&kernel, Failure::Cancelled, at(2), &mut fx);
    let mut pending = kernel.pending.lock();
    for ms in (3..100_000).step_by(500) {
        for (_, batch) in pending.take_due(at(ms)) {
            pending.settle(&batch, Err(Fault::Unknown(Cause::text("lost"))), at(ms + 1));
        }
    }
    assert!(!pending.is_empty());
}
