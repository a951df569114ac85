//! Letting go: the release, its repetition where no answer came, and the loss it may find.

use std::sync::Arc;

use crate::clock::Instant;
use crate::error::{Cause, Error};
use crate::lease::held::HeldLease;
use crate::lease::state::{LeaseState, LeaseStatus};
use crate::lease::undo::Undo;
use crate::lock::renew::renew;
use crate::logging;
use crate::lost::Lost;
use crate::protocol::kind::{KeyState, Keys};
use crate::queue::local::{HandOffOutcome, HandedOff};
use crate::redis::{Cap, Fault, Undoable};
use crate::runtime::Runtime;
use crate::token::FencingToken;
use crate::wait_policy::RECONNECT;

/// How an [`unlock`](crate::MutexGuard::unlock) went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a lock that was lost may have had two holders"]
pub enum Unlocked {
    /// The lock was held until now, and is free.
    Released,
    /// The lease had ended before: what was done under it may have met another holder. Whoever holds
    /// the lock now still does.
    AlreadyLost(Lost),
}

/// Lets go of a lease at `now`, by `deadline`, for the holder that has `token`: hands it on to the next waiter of this
/// client, or releases it. Where no answer comes in that time the release is repeated in the background.
pub(crate) fn release(
    runtime: &Runtime,
    hold: &Arc<HeldLease>,
    token: FencingToken,
    mut now: Instant,
    deadline: Instant,
) -> Result<Unlocked, Error> {
    if hold.run.goes_on(token) && hand_off(runtime, hold, token, &mut now, deadline) {
        return Ok(Unlocked::Released);
    }
    let since = hold.since();
    match hold.release(token, now) {
        Some(LeaseStatus::Held(_)) => {}
        Some(LeaseStatus::Lost(lost)) => {
            count(runtime, false, since, now);
            release_after_loss(runtime, hold, lost);
            return Ok(Unlocked::AlreadyLost(lost));
        }
        Some(LeaseStatus::Released) | None => return Ok(Unlocked::Released),
    }
    runtime.timer.forget(hold);
    // Others have waited for the whole run: they come first now.
    let mut yields_to_fleet = hold.run.was_handed(token);
    let outcome = send_until_answered(runtime, hold, &mut yields_to_fleet, deadline);
    let in_time = !matches!(outcome, Ok(Unlocked::AlreadyLost(_)));
    count(runtime, in_time, since, now);
    match &outcome {
        Ok(Unlocked::AlreadyLost(lost)) => {
            hold.lease(|lease| lease.was_lost(*lost));
            if hold.keys.parts().len() > 1 {
                // Of another part no answer may have come.
                repeat_in_background(runtime, hold);
            }
            runtime.announce_loss(hold);
        }
        Ok(Unlocked::Released) => {
            hold.lease(LeaseState::released);
            if yields_to_fleet {
                runtime.waiters.yield_to_fleet(hold);
            }
            runtime.waiters.ended(hold, true);
            if runtime.deployment.may_fail_over() {
                runtime.released.lock().note(as_undo(hold));
            }
            log(hold, "released", None);
        }
        Err(error) => {
            hold.lease(LeaseState::released);
            repeat_in_background(runtime, hold);
            // The release that is repeated announces the end that this call did not see.
            runtime.waiters.ended(hold, false);
            log(hold, "release to be repeated", Some(error));
        }
    }
    outcome
}

/// Hands the lease to the first waiter of this client, if there is one that wants it and nothing speaks against it.
/// Where it must be renewed for that, this asks Redis first.
fn hand_off(
    runtime: &Runtime,
    hold: &Arc<HeldLease>,
    token: FencingToken,
    now: &mut Instant,
    deadline: Instant,
) -> bool {
    let mut has_renewed = false;
    while !runtime.is_closed() {
        match runtime.waiters.hand_off(hold, token, has_renewed, *now) {
            HandOffOutcome::Done(holding) => {
                count(runtime, true, holding.since, *now);
                logging::debug!(
                    name:% = hold.keys, holder:% = hold.id.short(), token = token.value(),
                    outcome = "handed on", trace_id = holding.trace_id.as_deref();
                    "handed on {} (holder {}, token {token})", hold.keys, hold.id.short()
                );
                return true;
            }
            HandOffOutcome::Renew => {
                // The other half is for the release.
                let until = now.after(now.until(deadline) / 2);
                has_renewed = renew(runtime, hold, token, until).is_ok();
                *now = Instant::now();
                if !has_renewed {
                    break;
                }
            }
            HandOffOutcome::Not => break,
        }
    }
    false
}

/// Passes on what was handed to a waiter that does not take it.
pub(crate) fn pass_on_unclaimed(runtime: &Runtime, handed: &HandedOff) {
    let now = Instant::now();
    let deadline = now.after(runtime.deployment.command_timeout());
    // It logs what goes wrong by itself, and nobody has held it.
    let _ = release(runtime, &handed.hold, handed.token, now, deadline);
}

/// Counts that a holder has let go, if it ever held the lease.
fn count(runtime: &Runtime, in_time: bool, since: Option<Instant>, now: Instant) {
    if let Some(since) = since {
        runtime.meters.let_go(in_time, since.until(now));
    }
}

/// Sends the release until an answer says what it found, or the deadline has come. Whether it `gives_way` to other
/// clients is unset where none of them hears of it.
fn send_until_answered(
    runtime: &Runtime,
    hold: &Arc<HeldLease>,
    yields_to_fleet: &mut bool,
    deadline: Instant,
) -> Result<Unlocked, Error> {
    if let [_, _, ..] = hold.keys.parts() {
        // In one write to each server.
        let found = runtime.release(vec![Arc::clone(hold)], deadline);
        let found = found.recv_timeout(Instant::now().until(deadline));
        return match found {
            Ok(found) => Ok(unlocked(hold, found)),
            Err(_) => Err(runtime
                .deployment
                .unreachable(Cause::silence("no answer to a part of the release in time"))),
        };
    }
    // Whether this client is among those who hear it.
    let ours = runtime.endpoints.hearing(hold.keys.key(0).channel) as i64;
    let start = Instant::now();
    let mut failures = 0;
    let mut last_cause = None;
    // A release whose answer is missing may be what removed the key.
    let mut may_have_run = false;
    loop {
        let call = match *yields_to_fleet {
            true => hold.keys.release_and_ask(&hold.id),
            false => hold.keys.release(hold.id.as_str().as_bytes()),
        };
        let undoable = undoable(hold, &hold.keys);
        let answer = runtime
            .deployment
            .call_or_undo(call, deadline, Cap::Exempt, Some(&undoable));
        let cause = match answer {
            Ok((reply, _)) => match KeyState::read(&reply) {
                Some(KeyState::Ours) if reply.second().is_some_and(|heard| heard <= ours) => {
                    *yields_to_fleet = false;
                    return Ok(unlocked(hold, KeyState::Ours));
                }
                Some(_) if may_have_run => return Ok(Unlocked::Released),
                Some(found) => return Ok(unlocked(hold, found)),
                None => Cause::text("the release script gave an answer that is not its own"),
            },
            Err(Fault::NotReplicated(error) | Fault::Rejected(error)) => return Err(error),
            Err(Fault::NotRun(cause) | Fault::Redirected(_, cause)) => cause,
            // No breaker stops a release.
            Err(Fault::Open(open)) => open.last_at(runtime.deployment.label()),
            Err(Fault::Unknown(cause)) => {
                may_have_run = true;
                cause
            }
        };
        let cause = cause.or_said_before(&mut last_cause);
        let now = Instant::now();
        if now >= deadline || runtime.is_closed() {
            let cause = cause.unserved_for(start.until(now));
            return Err(runtime.deployment.unreachable(cause));
        }
        // A connection that had died unnoticed costs one attempt and no pause.
        if failures > 0 {
            std::thread::sleep(RECONNECT.pause(failures - 1).min(now.until(deadline)));
        }
        failures += 1;
    }
}

/// What it means that the release found this.
fn unlocked(hold: &HeldLease, found: KeyState) -> Unlocked {
    match found {
        KeyState::Ours => Unlocked::Released,
        _ if !hold.lease(|lease| lease.covers(Instant::now())) => {
            Unlocked::AlreadyLost(Lost::Expired)
        }
        KeyState::Gone => Unlocked::AlreadyLost(Lost::Deleted),
        KeyState::Foreign => Unlocked::AlreadyLost(Lost::Taken),
    }
}

/// Repeats the release in the background, until it is sure or the key has run out by itself.
fn repeat_in_background(runtime: &Runtime, hold: &HeldLease) {
    runtime.undo(as_undo(hold));
}

fn as_undo(hold: &HeldLease) -> Undo {
    let until = Instant::now().after(hold.lease(|lease| lease.key_may_last()));
    Undo::of_release(Arc::clone(&hold.keys), hold.id.clone(), until)
        .with_receipt(hold.votes.clone())
}

/// The holder lets go of what it had lost. Its key may still be there, for the time that two clocks
/// may differ by, after `max_hold`, on a minority of servers, or where what took it from us came before us
/// in Redis: nobody needs it any more.
fn release_after_loss(runtime: &Runtime, hold: &Arc<HeldLease>, lost: Lost) {
    runtime.announce_loss(hold);
    if lost != Lost::ShutDown {
        // A shutdown releases what it takes away by itself, and counts what it finds.
        repeat_in_background(runtime, hold);
    }
    logging::warn!(
        name:% = hold.keys, holder:% = hold.id.short(), outcome:% = lost,
        ttl_ms = hold.ttl_ms(), trace_id = hold.trace_id().as_deref();
        "the lease on {} had ended before the release{}: {lost}",
        hold.keys, if lost == Lost::Expired { ": ttl too short" } else { "" }
    );
}

/// Gives back at once what was granted to a client that is being shut down: nobody has seen it yet,
/// so nobody is told.
pub(crate) fn give_back_unseen(runtime: &Runtime, hold: &Arc<HeldLease>, until: Instant) {
    let status = hold.release(hold.token(), Instant::now());
    runtime.timer.forget(hold);
    runtime.waiters.ended(hold, true);
    if let Some(LeaseStatus::Lost(Lost::ShutDown)) = status {
        // The shutdown has seen it, and releases it.
        return;
    }
    for part in hold.keys.parts() {
        // Where this fails the ttl ends it.
        let _ = runtime.deployment.call_or_undo(
            part.release(hold.id.as_str().as_bytes()),
            until,
            Cap::Exempt,
            Some(&undoable(hold, part)),
        );
    }
}

fn undoable<'a>(hold: &'a HeldLease, part: &'a Arc<Keys>) -> Undoable<'a> {
    Undoable {
        keys: part,
        id: &hold.id,
        ttl: hold.lease(|lease| lease.key_may_last()),
        votes: hold.votes.as_ref(),
    }
}

fn log(hold: &HeldLease, outcome: &str, error: Option<&Error>) {
    let why = error.map_or_else(String::new, |error| {
        let may_last = hold.lease(|lease| lease.key_may_last());
        format!(": {error}; without a release the key may stay for {may_last:?}")
    });
    logging::record!(
        if error.is_some() { log::Level::Warn } else { log::Level::Debug },
        name:% = hold.keys, holder:% = hold.id.short(), token = hold.token().value(), outcome = outcome,
        ttl_ms = hold.ttl_ms(), trace_id = hold.trace_id().as_deref();
        "{outcome} {} (holder {}){why}", hold.keys, hold.id.short()
    );
}
