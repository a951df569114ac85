//! The answer to a renewal: what it changes, and who is told.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::lease::held::Hold;
use crate::lease::state::{Ask, Standing};
use crate::logging;
use crate::lost::Lost;
use crate::protocol::kind::Found;
use crate::protocol::script::Reply;
use crate::redis::Fault;
use crate::renewed::Renewed;
use crate::runtime::Shared;

/// Sees to the answer of a renewal, and returns what it found. A failed call is no loss; a definite
/// "not yours" is.
pub(crate) fn renewed(
    shared: &Shared,
    hold: &Arc<Hold>,
    ask: Ask,
    sent: Instant,
    answer: &Result<Reply, Fault>,
) -> Option<Found> {
    let now = Instant::now();
    let found = answer.as_ref().ok().and_then(Found::read);
    // A lease that ran out before the answer came is lost for that.
    hold.stand(now);
    let lag = hold.answered(|lease| {
        let lag = lease.lag(now);
        match found {
            Some(Found::Ours) => lease.confirmed(sent, now, ask),
            _ => lease.unconfirmed(now),
        }
        lag
    });
    if ask.renews {
        count(shared, found, lag);
    }
    match found {
        Some(Found::Nobody) => hold.lose(Lost::Deleted),
        Some(Found::Another) => hold.lose(Lost::Taken),
        Some(Found::Ours) | None => {}
    }
    shared.look_after(hold);
    match (found, answer) {
        (Some(Found::Ours), _) if ask.renews => {
            if let Standing::Held(remaining) = hold.stand(now) {
                tell_renewal(shared, hold, remaining, sent.until(now));
            }
        }
        (None, Err(fault)) => logging::debug!(
            name:% = hold.keys, holder:% = hold.id.short(), outcome = "not renewed",
            ttl_ms = hold.ttl_ms(), trace_id = hold.trace_id().as_deref();
            "not renewed {}, to be tried again: {fault}", hold.keys
        ),
        _ => {}
    }
    found
}

/// Counts a renewal that came back so long after it was due. What it found gone is a loss instead.
pub(crate) fn count(shared: &Shared, found: Option<Found>, lag: Duration) {
    match found {
        Some(Found::Ours) => shared.meters.renewed(Some(lag)),
        Some(Found::Nobody | Found::Another) => {}
        None => shared.meters.renewed(None),
    }
}

fn tell_renewal(shared: &Shared, hold: &Arc<Hold>, remaining: Duration, took: Duration) {
    if let Some(on_renew) = hold.on_renew() {
        let renewed = Renewed {
            name: hold.keys.key(0).name.clone(),
            holder_id: hold.id.clone(),
            fencing_token: hold.token(),
            remaining,
            took,
        };
        shared.callbacks.run(Box::new(move || on_renew(&renewed)));
    }
    logging::debug!(
        name:% = hold.keys, holder:% = hold.id.short(), outcome = "renewed", ttl_ms = hold.ttl_ms(),
        remaining_ms = remaining.as_millis() as u64, trace_id = hold.trace_id().as_deref();
        "renewed {} for {remaining:?}", hold.keys
    );
}
