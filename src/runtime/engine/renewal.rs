//! The result of a renewal: the change of the lease, the counters, and the user's callback.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::lease::held::HeldLease;
use crate::lease::state::LeaseState;
use crate::lease::status::{LeaseStatus, RenewalRequest};
use crate::logging::{self, contain};
use crate::lost::Lost;
use crate::protocol::answer::{Answer, KeyState};
use crate::redis::Fault;
use crate::renewed::Renewed;
use crate::runtime::endpoint::Endpoint;
use crate::runtime::engine::renewal_round::RenewalPart;
use crate::runtime::state::Runtime;

/// Applies the reply to a renewal, and returns the state of the key, if known.
pub(crate) fn renewed(
    runtime: &Runtime,
    hold: &Arc<HeldLease>,
    request: RenewalRequest,
    sent: Instant,
    answer: &Result<Answer, Fault>,
) -> Option<KeyState> {
    let now = Instant::now();
    let change = |lease: &mut LeaseState, found| match found {
        Some(KeyState::Ours) => lease.confirmed(sent, now, request),
        _ => lease.unconfirmed(now),
    };
    let found = settle(runtime, hold, answer, now, request.renews, change);
    match (found, answer) {
        (Some(KeyState::Ours), _) if request.renews => {
            if let LeaseStatus::Held(remaining) = hold.status(now) {
                report_renewal(runtime, hold, remaining, sent.until(now));
            }
        }
        (None, Err(fault)) => logging::debug!(
            name:% = hold.keys, holder:% = hold.id.short(), outcome = "not renewed",
            ttl_ms = hold.ttl_ms(), trace_id = hold.trace_id().as_deref();
            "not renewed {}, will retry: {fault}", hold.keys
        ),
        _ => {}
    }
    found
}

/// Changes the lease by the reply to a renewal or change of ttl, and returns the state of the key,
/// if known.
///
/// A failed call is not a loss. The lease is lost if the reply says that the key is gone or has
/// another holder. If `counts`, the meters count a renewal that was confirmed, or one that failed.
pub(crate) fn settle(
    runtime: &Runtime,
    hold: &Arc<HeldLease>,
    answer: &Result<Answer, Fault>,
    now: Instant,
    counts: bool,
    change: impl FnOnce(&mut LeaseState, Option<KeyState>),
) -> Option<KeyState> {
    let found = answer.as_ref().ok().and_then(Answer::key_state);
    // First records the loss of a lease that expired before the reply arrived.
    hold.status(now);
    let lag = hold.answered(|lease| {
        let lag = lease.lag(now);
        change(lease, found);
        lag
    });
    match found {
        Some(KeyState::Gone) => hold.lose(Lost::Deleted, now),
        Some(KeyState::Foreign) => hold.lose(Lost::Taken, now),
        // A lease whose key is gone or has another holder is counted as a loss instead.
        Some(KeyState::Ours) if counts => runtime.meters.renewed(Some(lag)),
        None if counts => runtime.meters.renewed(None),
        Some(KeyState::Ours) | None => {}
    }
    runtime.reschedule(hold);
    found
}

fn report_renewal(runtime: &Runtime, hold: &Arc<HeldLease>, remaining: Duration, took: Duration) {
    if let Some(on_renew) = hold.on_renew() {
        let renewed = Renewed {
            name: hold.keys.key(0).name.as_given(),
            holder_id: hold.id.clone(),
            fencing_token: hold.token(),
            remaining,
            took,
        };
        runtime.callbacks.run(Box::new(move || on_renew(&renewed)));
    }
    logging::debug!(
        name:% = hold.keys, holder:% = hold.id.short(), outcome = "renewed", ttl_ms = hold.ttl_ms(),
        remaining_ms = remaining.as_millis() as u64, trace_id = hold.trace_id().as_deref();
        "renewed {} for {remaining:?}", hold.keys
    );
}

/// Records a server's reply to its part of a renewal. If that decides the round, applies the result
/// to the lease.
pub(in crate::runtime) fn settle_renewal(
    runtime: &Runtime,
    endpoint: &Endpoint,
    part: RenewalPart,
    sent: Instant,
    answer: Result<Answer, Fault>,
) {
    contain(|| {
        let health = &endpoint.renewals;
        match &answer {
            Err(Fault::NotRun(cause) | Fault::Unknown(cause)) => {
                health.failed(Some(cause), false);
            }
            _ => {
                health.answered(Instant::now());
            }
        }
        let round = &part.round;
        if let Some((sent, answer)) = round.cast(sent, answer) {
            renewed(runtime, &round.hold, round.request, sent, &answer);
        }
        // Inside `contain`: the part may own the last reference to a user's closure, whose
        // destructor may panic.
        drop(part);
    });
}
