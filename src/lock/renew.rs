//! Renews a lease and changes its ttl at the request of its holder.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::config::check_ttl;
use crate::error::{Cause, Error};
use crate::lease::held::HeldLease;
use crate::lease::status::LeaseStatus;
use crate::lost::Lost;
use crate::protocol::answer::{Answer, KeyState};
use crate::redis::{Cap, Fault, ServerVotes, Undoable};
use crate::runtime::Runtime;
use crate::runtime::engine::renewal::{renewed, settle};
use crate::token::FencingToken;

/// Renews the lease for its full ttl; waits for the reply until `until`.
pub(crate) fn renew(
    runtime: &Runtime,
    hold: &Arc<HeldLease>,
    token: FencingToken,
    until: Instant,
) -> Result<(), Error> {
    let Some(request) = hold.begin(token, until, |lease, now| lease.begin_full_renewal(now)) else {
        return ensure_held(hold, token).and_then(|()| Err(busy(runtime)));
    };
    let sent = Instant::now();
    let answer = renew_parts(runtime, hold, request.ttl, false, None, until);
    let found = renewed(runtime, hold, request, sent, &answer);
    outcome(runtime, hold, token, found, answer)
}

/// Sets another ttl, which can be shorter.
pub(crate) fn set_ttl(
    runtime: &Runtime,
    hold: &Arc<HeldLease>,
    token: FencingToken,
    ttl: Duration,
) -> Result<(), Error> {
    check_ttl(ttl)?;
    let until = Instant::now().after(runtime.deployment.command_timeout());
    let Some(before) = hold.begin(token, until, |lease, now| lease.set_ttl(now, ttl)) else {
        return ensure_held(hold, token).and_then(|()| Err(busy(runtime)));
    };
    // A shorter ttl brings the deadline nearer.
    runtime.reschedule(hold);
    let sent = Instant::now();
    let votes = hold.votes.as_ref().map(|votes| votes.for_change());
    let answer = renew_parts(runtime, hold, ttl, true, votes.as_ref(), until);
    // Final if no other copy of the key can count later: a minority of a quorum, or a replica that
    // becomes the master, may not have run the change.
    let is_final = hold.votes.is_none() && !runtime.deployment.may_fail_over();
    let now = Instant::now();
    let found = settle(runtime, hold, &answer, now, true, |lease, found| {
        match (found, &answer) {
            (Some(KeyState::Ours), _) => {
                // A minority of a quorum may run it after a later change to a longer ttl.
                if votes.is_some_and(|votes| votes.may_yet_run()) {
                    lease.limit(ttl);
                }
                lease.ttl_set(sent, now, ttl, is_final);
            }
            // The majority of a quorum rejected it. The other servers may have run it.
            (_, Err(Fault::Rejected(_))) if hold.votes.is_some() => lease.unanswered(now, ttl),
            (_, Err(Fault::NotRun(_) | Fault::Open(_) | Fault::Rejected(_))) => {
                lease.ttl_not_set(now, before);
            }
            _ => lease.unanswered(now, ttl),
        }
    });
    outcome(runtime, hold, token, found, answer)
}

/// Renews one part after the other, until one fails. The servers of a quorum note in `votes`
/// whether they have run it.
fn renew_parts(
    runtime: &Runtime,
    hold: &HeldLease,
    ttl: Duration,
    may_shorten: bool,
    votes: Option<&Arc<ServerVotes>>,
    until: Instant,
) -> Result<Answer, Fault> {
    let mut has_run = false;
    for part in hold.renewed_keys().parts() {
        let call = part
            .renew(&hold.id, ttl, may_shorten)
            .acknowledged_by(hold.replicas);
        let undoable = votes.map(|votes| Undoable {
            keys: part,
            id: &hold.id,
            ttl,
            votes: Some(votes),
        });
        let (deployment, undoable) = (&runtime.deployment, undoable.as_ref());
        let answer = deployment.call_or_undo(call, until, Cap::Exempt, undoable);
        match answer.map(|(answer, _)| answer) {
            Ok(answer) if answer.is_done() => has_run = true,
            Err(fault) if has_run => return Err(fault.after_others()),
            answer => return answer,
        }
    }
    Ok(Answer::Ours(None))
}

/// Returns an error unless the lease is certainly held now by the holder with `token`.
pub(crate) fn ensure_held(hold: &HeldLease, token: FencingToken) -> Result<(), Error> {
    match hold.status_for(token, Instant::now()) {
        LeaseStatus::Held(_) => Ok(()),
        LeaseStatus::Lost(lost) => Err(Error::Lost(lost)),
        // Of the calls that end a holding, only `keep_for` leaves its guard.
        LeaseStatus::Released => Err(Error::Lost(Lost::Kept)),
    }
}

fn outcome(
    runtime: &Runtime,
    hold: &HeldLease,
    token: FencingToken,
    found: Option<KeyState>,
    answer: Result<Answer, Fault>,
) -> Result<(), Error> {
    ensure_held(hold, token)?;
    match (found, answer) {
        (Some(_), _) => Ok(()),
        (None, Ok(_)) => Err(runtime
            .deployment
            .unreachable(Cause::text("unexpected reply to the renew script"))),
        (None, Err(fault)) => Err(runtime.deployment.error(fault)),
    }
}

fn busy(runtime: &Runtime) -> Error {
    runtime.deployment.unreachable(Cause::text(
        "another renewal of this lease is still without a reply",
    ))
}
