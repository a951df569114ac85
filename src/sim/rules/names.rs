//! Rules of the entry of a name: what it keeps, and what is left of a call that has ended.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::kernel::call::{Call, Step};
use crate::kernel::command::What;
use crate::kernel::effects::Effects;
use crate::kernel::engine::Engine;
use crate::kernel::fault::Fault;
use crate::kernel::unlock::Unlock;
use crate::kernel::waiter::{Outcome, Wait};
use crate::protocol::answer::Answer;
use crate::protocol::fair::FairMutexKeys;
use crate::protocol::keys::Keys;
use crate::protocol::primitive::Primitive;
use crate::protocol::refusal::RefusedName;
use crate::sim::rules::{ONE_SERVER, SECOND, at, call, fault_of, kernel, mutex};
use crate::token::FencingToken;

/// Others have wanted the name, so its entry stays for a second. The client closes while a lease
/// lingers there, and then a call elsewhere begins to watch the name.
#[test]
fn a_closed_client_looks_for_no_lease_that_lingered() {
    let (kernel, lock) = (kernel(), mutex());
    let mut fx = Effects::default();
    let Call { mut wants, .. } = call(&kernel, &lock, false, at(0));
    wants.wait = Wait::Once;
    let mut refused = Call::new(&kernel, wants.clone(), at(0));
    assert!(matches!(
        refused.begin(&kernel, at(0), &mut fx),
        Step::Send(..)
    ));
    let by = RefusedName {
        name: 0,
        holder: b"x:0".to_vec(),
        remaining: Some(SECOND),
        detail: None,
    };
    let step = refused.replied(&kernel, Ok(Answer::Refused(by)), at(0), at(1), &mut fx);
    assert!(matches!(step, Step::Done(Outcome::Refused(_))), "{step:?}");

    let linger = Duration::from_millis(200);
    (wants.holder.linger, wants.terms.linger) = (linger, linger);
    (wants.holder.handoffs, wants.terms.handoffs) = (5, 5);
    let mut holder = Call::new(&kernel, wants, at(2));
    assert!(matches!(
        holder.begin(&kernel, at(2), &mut fx),
        Step::Send(..)
    ));
    let granted = Answer::Granted(FencingToken::new(7));
    let step = holder.replied(&kernel, Ok(granted), at(2), at(3), &mut fx);
    let Step::Done(Outcome::Lease(lease, token)) = step else {
        panic!("{step:?}");
    };
    let unlock = kernel.begin_unlock(&lease, token, false, at(3), &mut fx);
    assert!(matches!(unlock, Unlock::Lingers));

    kernel.close(at(4), &mut fx);
    let watching = kernel.watch(&lock, true, at(5), &mut fx);
    Engine::default().due(&kernel, at(1_500), &ONE_SERVER, &mut fx);
    kernel.end_watch(watching, at(1_501), &mut fx);
}

#[test]
fn a_call_whose_command_was_rejected_leaves_no_request() {
    let (kernel, lock) = (kernel(), mutex());
    let mut fx = Effects::default();
    let mut first = call(&kernel, &lock, false, at(0));
    assert!(matches!(
        first.begin(&kernel, at(0), &mut fx),
        Step::Send(..)
    ));
    let rejected = Err(Fault::Rejected(Error::Cancelled));
    fault_of(first.replied(&kernel, rejected, at(0), at(1), &mut fx));
    let step = call(&kernel, &lock, false, at(2)).begin(&kernel, at(2), &mut fx);
    assert!(matches!(step, Step::Send(..)), "{step:?}");
}

/// Each of these calls takes a place of its own.
#[test]
fn calls_that_are_due_together_ask_in_their_order() {
    let keys = Keys::new("a".into(), "lock:", "lock_release:");
    let lock: Arc<dyn Primitive> = FairMutexKeys::of(keys);
    let kernel = kernel();
    let mut fx = Effects::default();
    for ttl in [4, 5, 6] {
        let Call { mut wants, .. } = call(&kernel, &lock, true, at(0));
        wants.terms.ttl = ttl * SECOND;
        Call::new(&kernel, wants, at(0)).begin(&kernel, at(0), &mut fx);
    }
    let sent = Engine::default().due(&kernel, at(0), &ONE_SERVER, &mut fx);
    let ttls = sent.iter().filter_map(|it| match it.command.what {
        What::Acquire { ttl, .. } => Some(ttl.as_secs()),
        _ => None,
    });
    assert!(
        ttls.eq([4, 5, 6]),
        "the first place is that of the first call"
    );
}
