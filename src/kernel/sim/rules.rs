//! Rules of the kernel that one sequence of calls shows.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::config::LeaseTerms;
use crate::holder_id::HolderId;
use crate::kernel::call::{Call, CallTerms, Step};
use crate::kernel::engine::{Engine, Route};
use crate::kernel::held::Holder;
use crate::kernel::pending::{PendingRelease, PendingReleases, Proof};
use crate::kernel::unlock::{Unlock, Unlocked};
use crate::kernel::waiter::{Outcome, Wait};
use crate::kernel::{Effects, Kernel, Limits};
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

fn mutex() -> Arc<dyn Primitive> {
    let keys = Keys::new("a".into(), "lock:", "lock_release:");
    CohortKeys::of(keys)
}

/// The first thread stands still between its kernel call and its effects.
#[test]
fn second_call_wakes_the_engine_too() {
    let (kernel, lock) = (kernel(), mutex());
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
    let released = kernel.unlocked(&lease, Ok(Answer::Ours(None)), false, at(5), &mut fx);
    assert_eq!(released, Unlocked::Released);
    assert!(kernel.pending.lock().is_empty());
}

/// The release of a caller that stands still is ended by the engine; its late end changes nothing.
#[test]
fn engine_ends_the_release_of_a_stopped_thread() {
    let (kernel, lock) = (kernel(), mutex());
    let mut engine = Engine::default();
    let mut fx = Effects::default();
    let mut first = call(&kernel, &lock, false, at(0));
    assert!(matches!(
        first.begin(&kernel, at(0), &mut fx),
        Step::Send(..)
    ));
    let granted = Answer::Granted([FencingToken::new(7)].into_iter().collect());
    let step = first.replied(&kernel, Ok(granted), at(0), at(1), &mut fx);
    let Step::Done(Outcome::Lease(lease, token)) = step else {
        panic!("{step:?}");
    };
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

/// The try that is in flight may have run before the grant that the message tells.
#[test]
fn news_do_not_end_the_release_in_flight() {
    let mut pending = PendingReleases::default();
    let id = HolderId::fresh("o");
    let release = PendingRelease {
        server: 0,
        lock: mutex(),
        id: id.clone(),
        until: at(10_000),
        ends_by: Proof::KeySeen,
        counts: false,
    };
    pending.push(release, at(0));
    let nothing = || {
        Ok(Answer::Undone(Undone {
            removed: Vec::new(),
            other: None,
        }))
    };
    let (_, batch) = pending.take_due(at(0)).pop().unwrap();
    pending.seen(&id, true);
    assert!(pending.take_due(at(1)).is_empty());
    pending.settle(&batch, nothing(), at(2));
    let (_, batch) = pending
        .take_due(at(2))
        .pop()
        .expect("it is sent again at once");
    pending.settle(&batch, nothing(), at(3));
    assert!(pending.is_empty());
}
