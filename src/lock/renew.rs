//! Renewing and extending at the holder's request.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::config::check_ttl;
use crate::error::{Cause, Error};
use crate::lease::held::Hold;
use crate::lease::state::Standing;
use crate::lost::Lost;
use crate::protocol::kind::Found;
use crate::protocol::script::Reply;
use crate::redis::{Fault, Lane};
use crate::runtime::Shared;
use crate::runtime::io::renewal::{count, renewed};
use crate::token::FencingToken;

/// Asks Redis for the ttl anew, until `until`.
pub(crate) fn renew(
    shared: &Shared,
    hold: &Arc<Hold>,
    token: FencingToken,
    until: Instant,
) -> Result<(), Error> {
    let Some(ask) = hold.begin(token, until, |lease, now| lease.ask_now(now)) else {
        return ensure_held(hold, token).and_then(|()| Err(busy(shared)));
    };
    let sent = Instant::now();
    let answer = ask_all(shared, hold, ask.ttl, false, until);
    let found = renewed(shared, hold, ask, sent, &answer);
    outcome(shared, hold, token, found, answer)
}

/// Sets another ttl, which may be a shorter one.
pub(crate) fn extend(
    shared: &Shared,
    hold: &Arc<Hold>,
    token: FencingToken,
    ttl: Duration,
) -> Result<(), Error> {
    check_ttl(ttl)?;
    let until = Instant::now().after(shared.servers.command_timeout());
    let Some(before) = hold.begin(token, until, |lease, now| lease.extend(now, ttl)) else {
        return ensure_held(hold, token).and_then(|()| Err(busy(shared)));
    };
    // An extend that shortens has brought the deadline nearer.
    shared.look_after(hold);
    let sent = Instant::now();
    let answer = ask_all(shared, hold, ttl, true, until);
    let found = answer.as_ref().ok().and_then(Found::read);
    let now = Instant::now();
    // A lease that ran out before the answer came is lost for that.
    hold.stand(now);
    let lag = hold.answered(|lease| {
        let lag = lease.lag(now);
        match (found, &answer) {
            (Some(Found::Ours), _) => lease.extended(sent, now, ttl),
            (
                _,
                Err(Fault::NotNow(_) | Fault::Open(_) | Fault::Elsewhere(..) | Fault::Never(_)),
            ) => lease.not_extended(now, before),
            _ => lease.unanswered(now, ttl),
        }
        lag
    });
    count(shared, found, lag);
    match found {
        Some(Found::Nobody) => hold.lose(Lost::Deleted),
        Some(Found::Another) => hold.lose(Lost::Taken),
        _ => {}
    }
    shared.look_after(hold);
    outcome(shared, hold, token, found, answer)
}

/// Renews one part after the other, until one is not renewed.
fn ask_all(
    shared: &Shared,
    hold: &Hold,
    ttl: Duration,
    may_shorten: bool,
    until: Instant,
) -> Result<Reply, Fault> {
    let mut has_run = false;
    for part in hold.keys.parts() {
        let call = part
            .renew(&hold.id, ttl, may_shorten)
            .acknowledged_by(hold.replicas);
        match shared.servers.call(call, until, Lane::Free) {
            Ok(reply) if reply.is_done() => has_run = true,
            Err(fault) if has_run => return Err(fault.after_others()),
            answer => return answer,
        }
    }
    Ok(Reply::Int(1))
}

/// Errors unless the lease is surely held at this moment, by the holder that has `token`.
pub(crate) fn ensure_held(hold: &Hold, token: FencingToken) -> Result<(), Error> {
    match hold.stand_for(token, Instant::now()) {
        Standing::Held(_) => Ok(()),
        Standing::Lost(lost) => Err(Error::Lost(lost)),
        // Only `unlock` releases, and it takes the guard.
        Standing::Released => Err(Error::Closed),
    }
}

fn outcome(
    shared: &Shared,
    hold: &Hold,
    token: FencingToken,
    found: Option<Found>,
    answer: Result<Reply, Fault>,
) -> Result<(), Error> {
    ensure_held(hold, token)?;
    match (found, answer) {
        (Some(_), _) => Ok(()),
        (None, Ok(_)) => Err(shared.servers.unreachable(Cause::text(
            "the renew script gave an answer that is not its own",
        ))),
        (None, Err(Fault::Unsafe(error) | Fault::Never(error))) => Err(error),
        (None, Err(fault @ Fault::Open(_))) => Err(shared.servers.error(fault)),
        (None, Err(Fault::NotNow(cause) | Fault::NoAnswer(cause) | Fault::Elsewhere(_, cause))) => {
            Err(shared.servers.unreachable(cause))
        }
    }
}

fn busy(shared: &Shared) -> Error {
    shared.servers.unreachable(Cause::text(
        "another renewal of this lease got no answer in that time",
    ))
}
