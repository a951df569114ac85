//! Releases a lease or hands it off; repeats the release if no reply arrives.

use std::sync::Arc;
use std::time::Duration;

use crate::cause::Rounded;
use crate::clock::{Instant, sleep};
use crate::config::SHORTEST_TTL;
use crate::error::{Cause, Error};
use crate::lease::handoff::NoHandoff;
use crate::lease::held::HeldLease;
use crate::lease::state::LeaseState;
use crate::lease::status::LeaseStatus;
use crate::lock::renew::{renew, set_ttl};
use crate::logging;
use crate::lost::Lost;
use crate::protocol::answer::{Answer, KeyState};
use crate::protocol::primitive::{AtRelease, Primitive};
use crate::queue::local_queue::HandedOff;
use crate::redis::{Cap, Fault, IgnoredRelease, Undoable};
use crate::runtime::Runtime;
use crate::token::FencingToken;
use crate::wait_policy::RECONNECT;

/// Ends the holding with `token` at `now`: hands the lease off, or releases it by `deadline`.
///
/// The first waiter of this client gets a hand-off. If no reply arrives in time, the release is
/// repeated in the background. Fails with [`Error::Lost`] if the lease was over.
pub(crate) fn release(
    runtime: &Runtime,
    hold: &Arc<HeldLease>,
    token: FencingToken,
    mut now: Instant,
    deadline: Instant,
) -> Result<(), Error> {
    if hold.run.goes_on(token) && hand_off(runtime, hold, token, &mut now, deadline) {
        return Ok(());
    }
    let since = hold.since();
    if let Some(ended) = end_holding(runtime, hold, token, now) {
        return ended.map_err(Error::Lost);
    }
    let may_fail_over = runtime.deployment.may_fail_over();
    let taken = may_fail_over.then(|| runtime.released.lock().taken());
    // Other clients have waited for the whole run of hand-offs: they go first now.
    let mut yields_to_fleet = !hold.keys.calls_share_a_place() && hold.run.was_handed(token);
    let ignored = runtime.deployment.ignored_release(&hold.keys);
    let tries_once = ignored.is_some();
    let was_sent = (ignored.as_ref()).is_none_or(|ignored| ignored.was_refused);
    let outcome = match ignored {
        Some(ignored) if !was_sent => Err(sent_in_background(runtime, &ignored.cause)),
        _ => send_until_answered(runtime, hold, &mut yields_to_fleet, deadline, tries_once),
    };
    let is_lost = matches!(outcome, Err(Error::Lost(_) | Error::WrongType { .. }));
    count(runtime, !is_lost, since, now);
    note_outcome(runtime, hold, &outcome, yields_to_fleet, was_sent, taken);
    outcome
}

/// Ends the holding with `token` at `now`; returns the outcome if nothing is left to release.
fn end_holding(
    runtime: &Runtime,
    hold: &Arc<HeldLease>,
    token: FencingToken,
    now: Instant,
) -> Option<Result<(), Lost>> {
    let since = hold.since();
    match hold.release(token, now) {
        Some(LeaseStatus::Held(_)) => {
            runtime.timer.forget(hold);
            None
        }
        Some(LeaseStatus::Lost(lost)) => {
            count(runtime, false, since, now);
            release_after_loss(runtime, hold, lost);
            Some(Err(lost))
        }
        Some(LeaseStatus::Released) => Some(Ok(())),
        // This holder has ended it before.
        None => Some(match hold.status_for(token, now) {
            LeaseStatus::Lost(lost) => Err(lost),
            _ => Ok(()),
        }),
    }
}

/// Ends the holding with `token`, and leaves the key to expire without renewals, at `end` or later.
///
/// The holding goes on if `end` is too far away for a ttl, or the lease was found lost.
pub(crate) fn keep_until(
    runtime: &Runtime,
    hold: &Arc<HeldLease>,
    token: FencingToken,
    end: Instant,
) -> Result<(), Error> {
    // Redis counts whole milliseconds: rounded up, the key does not expire before `end`.
    let left = (Instant::now().until(end)).saturating_add(Duration::from_millis(1));
    // The lease must not end before the reply arrives, which would look like a loss.
    let reply = runtime.deployment.command_timeout().saturating_mul(2);
    let left = left.max(reply).max(SHORTEST_TTL);
    let mut outcome = set_ttl(runtime, hold, token, left);
    if let Err(Error::Config(_) | Error::Lost(_)) = outcome {
        return outcome;
    }
    if outcome.is_ok() && hold.lease(|lease| lease.may_be_shortened(left)) {
        outcome = Err(runtime.deployment.unreachable(Cause::text(
            "an earlier change of this ttl is still without a reply, and may run later",
        )));
    }
    let since = hold.since();
    let now = Instant::now();
    if let Some(ended) = end_holding(runtime, hold, token, now) {
        ended?;
        return outcome;
    }
    count(runtime, true, since, now);
    // No release will be announced: woken waiters learn from Redis when the key expires.
    runtime.waiters.ended(hold, None);
    hold.lease(LeaseState::released);
    log(hold, "kept until it expires", outcome.as_ref().err());
    outcome
}

/// Ends the lease here after its release in Redis. `was_sent` is whether that release was tried,
/// and `taken` how often the recent releases had been taken when it began.
fn note_outcome(
    runtime: &Runtime,
    hold: &Arc<HeldLease>,
    outcome: &Result<(), Error>,
    yields_to_fleet: bool,
    was_sent: bool,
    taken: Option<u64>,
) {
    match outcome {
        Err(Error::Lost(lost)) => {
            hold.lease(|lease| lease.was_lost(*lost));
            if hold.keys.is_split() {
                // Another part may have had no reply.
                runtime.release(hold.to_repeated_release(Instant::now()));
            }
            runtime.announce_loss(hold);
        }
        Ok(()) => {
            if yields_to_fleet {
                runtime.waiters.yield_to_fleet(hold);
            }
            // Records the end as a refusal, before the lease ends: a waiter at its deadline finds
            // the lease or this refusal.
            runtime.waiters.ended(hold, Some(Instant::now()));
            hold.lease(LeaseState::released);
            if let Some(taken) = taken {
                let repeated = hold.to_repeated_release(Instant::now());
                let missed = runtime.released.lock().note(repeated, taken);
                missed
                    .into_iter()
                    .for_each(|missed| runtime.release(missed));
            }
            log(hold, "released", None);
        }
        Err(error) => {
            let mut repeated = hold.to_repeated_release(Instant::now());
            repeated.was_sent = was_sent;
            // Before the lease ends. A refusal because of permits or readers does not name the
            // holder: an attempt that gets one must find this lease or the mark.
            runtime.endpoints.note_unanswered(&mut repeated);
            // `None`: the message that the repeated release publishes must wake a waiter.
            runtime.waiters.ended(hold, None);
            hold.lease(LeaseState::released);
            runtime.release(repeated);
            log(hold, "release to be repeated", Some(error));
        }
    }
}

/// Hands the lease off to the first waiter of this client; returns false if that is not possible.
///
/// Renews the lease first if it must be renewed for that.
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
            Ok(holding) => {
                count(runtime, true, holding.since, *now);
                logging::debug!(
                    name:% = hold.keys, holder:% = hold.id.short(), token = token.value(),
                    outcome = "handed off", trace_id = holding.trace_id.as_deref();
                    "handed off {} (holder {}, token {token})", hold.keys, hold.id.short()
                );
                return true;
            }
            Err(NoHandoff::RenewFirst) => {
                if runtime.deployment.ignored_release(&hold.keys).is_some() {
                    break;
                }
                // The other half of the time is for the release.
                let until = now.after(now.until(deadline) / 2);
                has_renewed = renew(runtime, hold, token, until).is_ok();
                *now = Instant::now();
                if !has_renewed {
                    break;
                }
            }
            Err(NoHandoff::Release) => break,
        }
    }
    false
}

/// Passes on a lease that was handed to a waiter that did not take it.
pub(crate) fn pass_on_unclaimed(runtime: &Runtime, handed: &HandedOff) {
    let now = Instant::now();
    let deadline = now.after(runtime.deployment.command_timeout());
    // `release` logs a failure itself, and there is no holder to report it to.
    let _ = release(runtime, &handed.hold, handed.token, now, deadline);
}

/// Counts the end of a holding, if there was a holder.
fn count(runtime: &Runtime, in_time: bool, since: Option<Instant>, now: Instant) {
    if let Some(since) = since {
        runtime.meters.released(in_time, since.until(now));
    }
}

/// Returns the error of a release that is only sent in the background: each of many releases
/// would wait for a whole command timeout. An earlier one got no answer for this `cause`.
fn sent_in_background(runtime: &Runtime, cause: &Cause) -> Error {
    runtime.deployment.unreachable(Cause::silence(format!(
        "no answer since an earlier release failed ({cause}); this release is repeated in the \
         background"
    )))
}

/// Returns the error of a release that began at `start` and failed. Releases that follow at once
/// do not wait as long.
fn not_released(
    runtime: &Runtime,
    hold: &HeldLease,
    start: Instant,
    ignored: IgnoredRelease,
) -> Error {
    let deployment = &runtime.deployment;
    deployment.note_ignored_release(&hold.keys, start, &ignored);
    deployment.unreachable(ignored.cause.unserved_for(start.until(Instant::now())))
}

/// Releases a lease of several parts: all go out in one write to each server. Returns `None` if a
/// part got no reply.
fn release_parts(
    runtime: &Runtime,
    hold: &Arc<HeldLease>,
    deadline: Instant,
) -> Option<Result<(), Lost>> {
    let found = runtime.release_all(std::slice::from_ref(hold), deadline);
    let found = found.recv_timeout(Instant::now().until(deadline)).ok()?;
    Some(unlocked(hold, found))
}

/// Sends the release until a reply shows what it found, or until the deadline.
///
/// Sets `yields_to_fleet` to false if no other client received the release message. With
/// `tries_once`, the first failure ends it.
fn send_until_answered(
    runtime: &Runtime,
    hold: &Arc<HeldLease>,
    yields_to_fleet: &mut bool,
    deadline: Instant,
    tries_once: bool,
) -> Result<(), Error> {
    let start = Instant::now();
    let mut ignored = IgnoredRelease {
        cause: Cause::silence("no reply to a part of the release in time"),
        was_refused: false,
    };
    if hold.keys.is_split() {
        return match release_parts(runtime, hold, deadline) {
            Some(outcome) => outcome.map_err(Error::Lost),
            None => Err(not_released(runtime, hold, start, ignored)),
        };
    }
    // How many of the receivers of the message are subscribers of this client.
    let ours = match *yields_to_fleet {
        true => runtime.endpoints.subscribed(hold.keys.key(0).channel) as u64,
        // The release counts no receivers.
        false => 0,
    };
    let mut failures = 0;
    let mut last_cause = None;
    // A release without a reply may be what removed the key.
    let mut may_have_run = false;
    loop {
        let at_release = match *yields_to_fleet {
            true => AtRelease::CountListeners,
            false if hold.run.is_granted_in_queue() => AtRelease::MayBePlain,
            false => AtRelease::Usual,
        };
        let call = (hold.keys).release(hold.id.as_str().as_bytes(), at_release);
        let undoable = undoable(hold, &hold.keys);
        let answer = runtime
            .deployment
            .call_or_undo(call, deadline, Cap::Exempt, Some(&undoable));
        let cause = match answer {
            Ok((answer, _)) => {
                if let Answer::Ours(receivers) = &answer {
                    *yields_to_fleet &= receivers.is_none_or(|receivers| receivers > ours);
                }
                return answered(runtime, hold, &answer, may_have_run).map_err(Error::Lost);
            }
            Err(Fault::NotReplicated(error) | Fault::Rejected(error)) => return Err(error),
            Err(Fault::NotRun(cause)) if Instant::now() >= deadline => {
                cause.or_refusal_before(last_cause.as_ref())
            }
            Err(Fault::NotRun(cause)) => cause,
            // The breaker never stops a release.
            Err(Fault::Open(open)) => open.last_at(runtime.deployment.label()),
            Err(Fault::Unknown(cause)) => {
                may_have_run = true;
                cause
            }
        };
        // Over a quorum, the cause does not tell: some of the servers may hang.
        ignored.was_refused |= cause.is_of_server() && runtime.deployment.size().all == 1;
        let cause = cause.or_said_before(&mut last_cause);
        let now = Instant::now();
        if now >= deadline || runtime.is_closed() || tries_once {
            ignored.cause = cause;
            return Err(not_released(runtime, hold, start, ignored));
        }
        // A pooled connection that had died unnoticed costs one attempt and no pause.
        if failures > 0 {
            sleep(RECONNECT.pause(failures - 1).min(now.until(deadline)));
        }
        failures += 1;
    }
}

/// Returns the outcome of a release with this reply.
fn answered(
    runtime: &Runtime,
    hold: &HeldLease,
    answer: &Answer,
    may_have_run: bool,
) -> Result<(), Lost> {
    match answer {
        Answer::PlainRelease => {
            let name = hold.keys.key(0).name;
            runtime.waiters.note_plain_release(name, Instant::now());
        }
        Answer::Ours(_) => {}
        _ if may_have_run => {}
        Answer::Foreign(_) => return unlocked(hold, KeyState::Foreign),
        _ => return unlocked(hold, KeyState::Gone),
    }
    Ok(())
}

/// Returns the outcome for what the release found.
fn unlocked(hold: &HeldLease, found: KeyState) -> Result<(), Lost> {
    match found {
        KeyState::Ours => Ok(()),
        _ if !hold.lease(|lease| lease.covers(Instant::now())) => Err(Lost::Expired),
        KeyState::Gone => Err(Lost::Deleted),
        KeyState::Foreign => Err(Lost::Taken),
    }
}

/// Handles the release of a lease that was already lost.
///
/// Except after a shutdown, the key is released, because it can still exist:
///
/// * after an expiry, which this client counts earlier than the server,
/// * after `max_hold`,
/// * on a minority of the servers of a quorum,
/// * if this client counted it as taken by another lease of its own, whose acquire had in fact
///   reached Redis first.
fn release_after_loss(runtime: &Runtime, hold: &Arc<HeldLease>, lost: Lost) {
    runtime.announce_loss(hold);
    if lost != Lost::ShutDown {
        // A shutdown releases the leases it ends, and counts the outcomes.
        runtime.release(hold.to_lasting_release(Instant::now()));
    }
    logging::warn!(
        name:% = hold.keys, holder:% = hold.id.short(), outcome:% = lost,
        ttl_ms = hold.ttl_ms(), trace_id = hold.trace_id().as_deref();
        "the lease on {} had ended before the release: {lost}{}", hold.keys, why_expired(hold, lost)
    );
}

/// Returns what is known about why the lease expired, with a leading separator.
fn why_expired(hold: &HeldLease, lost: Lost) -> &'static str {
    match lost {
        Lost::Expired if hold.lease(|lease| lease.is_renewed()) => {
            " (no renewal reached Redis in time, or this process stood still)"
        }
        Lost::Expired => " (it was not renewed: auto_renew is off)",
        _ => "",
    }
}

/// Releases a lease that was granted during a shutdown.
///
/// No caller has received it, so this announces no loss.
pub(crate) fn give_back_unseen(runtime: &Runtime, hold: &Arc<HeldLease>, until: Instant) {
    let status = hold.release(hold.token(), Instant::now());
    runtime.timer.forget(hold);
    runtime.waiters.ended(hold, Some(Instant::now()));
    if let Some(LeaseStatus::Lost(Lost::ShutDown)) = status {
        // The shutdown has this lease and releases it.
        return;
    }
    for part in hold.keys.parts() {
        let answer = runtime.deployment.call_or_undo(
            part.release(hold.id.as_str().as_bytes(), AtRelease::Usual),
            until,
            Cap::Exempt,
            Some(&undoable(hold, part)),
        );
        if answer.is_err() {
            // The key expires.
            runtime.note_unconfirmed(hold.id.clone(), runtime.deployment.size().all);
        }
    }
}

/// Returns what a quorum needs for a release: the servers that it can skip, and the release to
/// repeat at servers that do not reply. Other deployments ignore it.
fn undoable<'a>(hold: &'a HeldLease, part: &'a Arc<dyn Primitive>) -> Undoable<'a> {
    Undoable {
        keys: part,
        id: &hold.id,
        ttl: hold.lease(|lease| lease.key_may_last()),
        votes: hold.votes.as_ref(),
    }
}

fn log(hold: &HeldLease, outcome: &str, error: Option<&Error>) {
    let why = error.map_or_else(String::new, |error| {
        let may_last = hold.lease(|lease| lease.key_may_last_at(Instant::now()));
        format!(
            ": {error}; without a release the key may stay for {}",
            Rounded(may_last)
        )
    });
    logging::record!(
        if error.is_some() { log::Level::Warn } else { log::Level::Debug },
        name:% = hold.keys, holder:% = hold.id.short(), token = hold.token().value(),
        outcome = outcome, ttl_ms = hold.ttl_ms(), trace_id = hold.trace_id().as_deref();
        "{outcome} {} (holder {}){why}", hold.keys, hold.id.short()
    );
}
