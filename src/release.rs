//! Letting go: the release, its repetition where no answer came, and the loss it may find.

use std::sync::Arc;

use crate::clock::Instant;
use crate::error::{Cause, Error};
use crate::hold::Hold;
use crate::kind::{Found, Keys};
use crate::lease::{Lease, Standing};
use crate::lost::Lost;
use crate::server::{Fault, Lane, Stake};
use crate::threads::Shared;
use crate::token::FencingToken;
use crate::undo::Undo;
use crate::wait::RECONNECT;

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

/// Releases a lease at `now`, by `deadline`, for the holder that has `token`. Where no answer comes in that time the release is
/// repeated in the background.
pub(crate) fn release(
    shared: &Shared,
    hold: &Arc<Hold>,
    token: FencingToken,
    now: Instant,
    deadline: Instant,
) -> Result<Unlocked, Error> {
    match hold.release(token, now) {
        Some(Standing::Held(_)) => {}
        Some(Standing::Lost(lost)) => {
            shared.meters.let_go(false, hold.since().until(now));
            late(shared, hold, lost);
            return Ok(Unlocked::AlreadyLost(lost));
        }
        Some(Standing::Released) | None => return Ok(Unlocked::Released),
    }
    shared.timer.forget(hold);
    let outcome = ask_until_answered(shared, hold, deadline);
    let in_time = !matches!(outcome, Ok(Unlocked::AlreadyLost(_)));
    shared.meters.let_go(in_time, hold.since().until(now));
    match &outcome {
        Ok(Unlocked::AlreadyLost(lost)) => {
            hold.lease(|lease| lease.was_lost(*lost));
            if hold.keys.parts().len() > 1 {
                // Of another part no answer may have come.
                repeat(shared, hold);
            }
            shared.tell_loss(hold);
        }
        Ok(Unlocked::Released) => {
            hold.lease(Lease::released);
            shared.waiters.ended(hold, true);
            if shared.servers.may_fail_over() {
                shared.released.lock().note(again(hold));
            }
            log(hold, "released", None);
        }
        Err(error) => {
            hold.lease(Lease::released);
            repeat(shared, hold);
            // The release that is repeated announces the end that this call did not see.
            shared.waiters.ended(hold, false);
            log(hold, "release to be repeated", Some(error));
        }
    }
    outcome
}

/// Sends the release until an answer says what it found, or the deadline has come.
fn ask_until_answered(
    shared: &Shared,
    hold: &Arc<Hold>,
    deadline: Instant,
) -> Result<Unlocked, Error> {
    if let [_, _, ..] = hold.keys.parts() {
        // In one write to each server.
        let found = shared.release(vec![Arc::clone(hold)], deadline);
        let found = found.recv_timeout(Instant::now().until(deadline));
        return match found {
            Ok(found) => Ok(unlocked(hold, found)),
            Err(_) => Err(shared
                .servers
                .unreachable(Cause::silence("no answer to a part of the release in time"))),
        };
    }
    let mut failures = 0;
    let mut said = None;
    // A release whose answer is missing may be what removed the key.
    let mut may_have_run = false;
    loop {
        let call = hold.keys.release(hold.id.as_str().as_bytes());
        let stake = stake(hold, &hold.keys);
        let answer = shared
            .servers
            .call_or_undo(call, deadline, Lane::Free, Some(&stake));
        let cause = match answer {
            Ok((reply, _)) => match Found::read(&reply) {
                Some(_) if may_have_run => return Ok(Unlocked::Released),
                Some(found) => return Ok(unlocked(hold, found)),
                None => Cause::text("the release script gave an answer that is not its own"),
            },
            Err(Fault::Unsafe(error) | Fault::Never(error)) => return Err(error),
            Err(Fault::NotNow(cause) | Fault::Elsewhere(_, cause)) => cause,
            // A release is let through regardless.
            Err(Fault::Open(_)) => Cause::text("it is not asked for now"),
            Err(Fault::NoAnswer(cause)) => {
                may_have_run = true;
                cause
            }
        };
        let cause = cause.or_said_before(&mut said);
        let now = Instant::now();
        if now >= deadline || shared.is_closed() {
            return Err(shared.servers.unreachable(cause));
        }
        // A connection that had died unnoticed costs one attempt and no pause.
        if failures > 0 {
            std::thread::sleep(RECONNECT.pause(failures - 1).min(now.until(deadline)));
        }
        failures += 1;
    }
}

/// What it means that the release found this.
fn unlocked(hold: &Hold, found: Found) -> Unlocked {
    match found {
        Found::Ours => Unlocked::Released,
        _ if !hold.lease(|lease| lease.covers(Instant::now())) => {
            Unlocked::AlreadyLost(Lost::Expired)
        }
        Found::Nobody => Unlocked::AlreadyLost(Lost::Deleted),
        Found::Another => Unlocked::AlreadyLost(Lost::Taken),
    }
}

/// Repeats the release in the background, until it is sure or the key has run out by itself.
fn repeat(shared: &Shared, hold: &Hold) {
    shared.undo(again(hold));
}

fn again(hold: &Hold) -> Undo {
    let until = Instant::now().after(hold.lease(|lease| lease.ttl()));
    Undo::of_release(Arc::clone(&hold.keys), hold.id.clone(), until)
}

/// The holder lets go of what it had lost. Its key may still be there, for the time that two clocks
/// may differ by, after `max_hold`, or on a minority of servers: nobody needs it any more.
fn late(shared: &Shared, hold: &Arc<Hold>, lost: Lost) {
    shared.tell_loss(hold);
    if matches!(lost, Lost::Expired | Lost::MaxHold) || hold.receipt.is_some() {
        repeat(shared, hold);
    }
    log::warn!(
        name:% = hold.keys, holder:% = hold.id.short(), outcome:% = lost,
        ttl_ms = hold.ttl_ms(), trace_id = hold.trace_id().as_deref();
        "the lease on {} had ended before the release{}: {lost}",
        hold.keys, if lost == Lost::Expired { ": ttl too short" } else { "" }
    );
}

/// Gives back at once what was granted to a client that is being shut down: nobody has seen it yet,
/// so nobody is told.
pub(crate) fn abandon(shared: &Shared, hold: &Arc<Hold>, until: Instant) {
    hold.release(hold.token(), Instant::now());
    shared.timer.forget(hold);
    shared.waiters.ended(hold, true);
    for part in hold.keys.parts() {
        // Where this fails the ttl ends it.
        let _ = shared.servers.call_or_undo(
            part.release(hold.id.as_str().as_bytes()),
            until,
            Lane::Free,
            Some(&stake(hold, part)),
        );
    }
}

fn stake<'a>(hold: &'a Hold, part: &'a Arc<Keys>) -> Stake<'a> {
    Stake {
        keys: part,
        id: &hold.id,
        ttl: hold.lease(|lease| lease.ttl()),
        receipt: hold.receipt.as_ref(),
    }
}

fn log(hold: &Hold, outcome: &str, error: Option<&Error>) {
    let why = error.map_or_else(String::new, |error| format!(": {error}"));
    log::log!(
        if error.is_some() { log::Level::Warn } else { log::Level::Debug },
        name:% = hold.keys, holder:% = hold.id.short(), token = hold.token().value(), outcome = outcome,
        ttl_ms = hold.ttl_ms(), trace_id = hold.trace_id().as_deref();
        "{outcome} {} (holder {}){why}", hold.keys, hold.id.short()
    );
}
