//! Rules of the kernel that one sequence of calls shows.

mod calls;
mod crowds;
mod engine_sends;
mod healing;
mod members;
mod names;
mod releases;
mod rounds;
mod tries;

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::clock::Instant;
use crate::kernel::call::{Call, Step};
use crate::kernel::effects::Effects;
use crate::kernel::failure::Failure;
use crate::kernel::held::HeldLease;
use crate::kernel::waiter::CallTerms;
use crate::kernel::waiter::Outcome;
use crate::kernel::{Kernel, Limits};
use crate::protocol::answer::Answer;
use crate::protocol::cohort::CohortKeys;
use crate::protocol::keys::Keys;
use crate::protocol::primitive::Primitive;
use crate::sim::world::Links;
use crate::token::FencingToken;

const SECOND: Duration = Duration::from_secs(1);

/// The links of a client to one server.
static ONE_SERVER: Links = Links {
    links: Vec::new(),
    ran_twice: AtomicU32::new(0),
};

fn kernel() -> Kernel {
    let limits = Limits {
        command_timeout: SECOND,
        unreachable_for: 10 * SECOND,
        backstop: SECOND,
        may_fail_over: false,
        replies_are_final: true,
        engine_sends: false,
        wall: 0,
    };
    Kernel::new(limits, "o")
}

fn at(ms: u64) -> Instant {
    Instant::START.after(Duration::from_millis(100_000 + ms))
}

fn call(kernel: &Kernel, lock: &Arc<dyn Primitive>, by_engine: bool, now: Instant) -> Call {
    let mut wants = CallTerms::endless(lock, 4 * SECOND);
    wants.terms.renew_every = Some(SECOND);
    wants.by_engine = by_engine;
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
    let granted = Answer::Granted(FencingToken::new(7));
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

fn fault_of(step: Step) -> Failure {
    match step {
        Step::Done(Outcome::Failed(failure)) => failure,
        step => panic!("{step:?}"),
    }
}
