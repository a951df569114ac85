//! Makes a writer a reader, so that other readers can share the lock.

use std::sync::Arc;

use crate::clock::{Instant, sleep};
use crate::lease::held::HeldLease;
use crate::protocol::primitive::Primitive;
use crate::redis::{Cap, Fault};
use crate::runtime::Runtime;
use crate::runtime::engine::renewal::renewed;
use crate::token::FencingToken;
use crate::wait_policy::RECONNECT;

/// Makes the lease of a writer that of a reader. Returns within the command timeout.
///
/// `reader` has the keys and calls of the readers of the same lock.
///
/// The holder counts as a reader from before the command is sent: if no reply arrives, the command
/// may have run, or may run later. Every later renewal repeats it. Until one has run, other readers
/// stay locked out. So this cannot fail; a loss is reported as usual.
pub(crate) fn downgrade(
    runtime: &Runtime,
    hold: &Arc<HeldLease>,
    token: FencingToken,
    reader: Arc<dyn Primitive>,
) {
    let reader = hold.downgraded.get_or_init(|| reader);
    runtime.waiters.share(hold);
    let until = Instant::now().after(runtime.deployment.command_timeout());
    // `begin` waits for a renewal in flight: it may be that of a writer, which must not find a
    // reader.
    let Some(request) = hold.begin(token, until, |lease, now| lease.begin_full_renewal(now)) else {
        return;
    };
    let mut failures = 0;
    let (sent, answer) = loop {
        let sent = Instant::now();
        let call = reader.downgrade(&hold.id, request.ttl);
        let call = call.acknowledged_by(hold.replicas);
        let answer = runtime.deployment.call(call, until, Cap::Exempt);
        let has_failed = matches!(answer, Err(Fault::NotRun(_) | Fault::Unknown(_)));
        if !has_failed || Instant::now() >= until || runtime.is_closed() {
            break (sent, answer);
        }
        // A pooled connection that had died unnoticed costs one attempt and no pause.
        if failures > 0 {
            let left = Instant::now().until(until);
            sleep(RECONNECT.pause(failures - 1).min(left));
        }
        failures += 1;
    };
    renewed(runtime, hold, request, sent, &answer);
}
