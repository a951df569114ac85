//! The acquire loop: look, wait to be woken, look again.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::RecvTimeoutError;

use crate::clock::{Instant, nap};
use crate::config::{Settings, Terms};
use crate::error::{Cause, Error};
use crate::hold::Hold;
use crate::holder::HolderId;
use crate::kind::{Acquired, Keys};
use crate::lease::Lease;
use crate::server::{Fault, Lane};
use crate::threads::Shared;
use crate::threads::subscriber::Subscription;
use crate::wait::{Backoff, RECONNECT, WaitPolicy, jittered};
use crate::waiters::{Ticket, Turn};

/// How long a caller waits for a lock that somebody else holds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// Not at all.
    None,
    Until(Instant),
    /// For ever.
    Endless,
}

/// Pauses of waiters who cannot hear releases.
const DEAF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));

/// A waiter with a short deadline behind others may come to its end before anybody has asked Redis
/// on its behalf: then it asks once itself, this long before the end at the most.
const LAST_LOOK: Duration = Duration::from_millis(250);

/// What an attempt came to.
enum Look {
    Granted(Arc<Hold>),
    Refused(Option<Duration>),
}

/// Takes the lock, waiting as long as `patience` says. `None` is said only after somebody else was
/// seen to hold it during this very call.
pub(crate) fn acquire(
    shared: &Arc<Shared>,
    keys: &Arc<Keys>,
    settings: &Settings,
    patience: Patience,
) -> Result<Option<Arc<Hold>>, Error> {
    let start = Instant::now();
    keys.check()?;
    let terms = settings.terms(&shared.config)?;
    shared.check_open()?;
    shared.start()?;
    if settings.on_lost.is_some() || settings.on_renew.is_some() {
        shared.callbacks.start()?;
    }
    let call = Acquire {
        shared,
        keys,
        settings,
        terms,
        start,
    };
    match patience {
        Patience::None => call.at_once(),
        Patience::Until(deadline) => call.waiting(deadline, true),
        Patience::Endless => call.waiting(Instant::NEVER, false),
    }
}

/// One call that takes a lock.
struct Acquire<'a> {
    shared: &'a Arc<Shared>,
    keys: &'a Arc<Keys>,
    settings: &'a Settings,
    terms: Terms,
    start: Instant,
}

impl Acquire<'_> {
    /// One answer, within the command timeout.
    fn at_once(&self) -> Result<Option<Arc<Hold>>, Error> {
        if self.shared.waiters.is_held_here(&self.keys.name) {
            return Ok(None);
        }
        let deadline = self.start.after(self.shared.server.command_timeout());
        let mut failures = 0;
        loop {
            match self.look(deadline) {
                Ok(Look::Granted(hold)) => return Ok(Some(hold)),
                Ok(Look::Refused(_)) => return Ok(None),
                Err(fault) => {
                    let now = Instant::now();
                    let pause = self.pause_after(fault, failures, now, deadline)?;
                    failures += 1;
                    std::thread::sleep(pause);
                }
            }
        }
    }

    /// How long to wait after a fault before the next look, or the error to give up with.
    fn pause_after(
        &self,
        fault: Fault,
        failures: u32,
        now: Instant,
        deadline: Instant,
    ) -> Result<Duration, Error> {
        self.shared.check_open()?;
        let cause = match fault {
            Fault::Never(error) => return Err(error),
            Fault::NotNow(cause) | Fault::NoAnswer(cause) => cause,
        };
        if now >= deadline || self.is_unreachable(now) {
            return Err(self.shared.server.unreachable(cause));
        }
        // A connection that had died unnoticed costs one attempt and no pause.
        let pause = match failures {
            0 => Duration::ZERO,
            _ => RECONNECT.pause(failures - 1),
        };
        Ok(pause.min(now.until(deadline)))
    }

    fn is_unreachable(&self, now: Instant) -> bool {
        self.shared.server.silent_for(now, self.start) >= self.shared.config.unreachable_for
    }

    /// Asks Redis once, under a fresh holder id. Where no answer comes, the undo is on its way when
    /// this returns.
    fn look(&self, deadline: Instant) -> Result<Look, Fault> {
        let (shared, keys) = (self.shared, self.keys);
        let id = HolderId::fresh(&shared.config.owner);
        let until = Instant::now()
            .after(shared.server.command_timeout())
            .min(deadline);
        log::trace!(name:% = keys.name, holder:% = id.as_str(); "acquire {} as {}", keys.name, id.as_str());
        let acquire = keys.acquire(&id, self.terms.ttl);
        let undo = keys.release(id.as_str().as_bytes());
        let (acquired, sent) =
            match shared
                .server
                .call_or_undo(acquire, until, Lane::Capped, Some(undo))
            {
                Ok((reply, sent)) => (Acquired::read(&reply), sent),
                Err(fault) => {
                    if let Fault::NoAnswer(_) = fault {
                        self.undo(id);
                    }
                    return Err(fault);
                }
            };
        match acquired {
            Some(Acquired::Granted(token)) => {
                let Some(lease) = Lease::granted(sent, Instant::now(), &self.terms) else {
                    self.undo(id);
                    return Err(Fault::NoAnswer(Cause::text(
                        "the answer took as long as the lease: ttl too short",
                    )));
                };
                let hold = Arc::new(Hold::new(
                    Arc::clone(keys),
                    id,
                    token,
                    shared.next_serial(),
                    lease,
                    self.settings.trace_id.clone(),
                    self.settings.on_lost.clone(),
                    self.settings.on_renew.clone(),
                ));
                shared
                    .waiters
                    .held(&keys.name, &hold.id, Arc::downgrade(&hold));
                shared.look_after(&hold);
                if shared.is_closed() {
                    // The shutdown that runs beside us may have seen this lease, or not.
                    crate::release::abandon(shared, &hold);
                    return Err(Fault::Never(Error::Closed));
                }
                self.log_granted(&hold);
                Ok(Look::Granted(hold))
            }
            Some(Acquired::Refused(remaining)) => Ok(Look::Refused(remaining)),
            None => {
                self.undo(id);
                Err(Fault::NoAnswer(Cause::text(
                    "the acquire script gave an answer that is not its own",
                )))
            }
        }
    }

    fn undo(&self, id: HolderId) {
        let until = Instant::now().after(self.terms.ttl);
        self.shared.io.undo(Arc::clone(self.keys), id, until, true);
    }

    fn log_granted(&self, hold: &Hold) {
        // Its time is not free, and it is seldom wanted.
        if !log::log_enabled!(log::Level::Debug) {
            return;
        }
        let waited = self.start.until(Instant::now());
        log::debug!(
            name:% = hold.keys.name, holder:% = hold.id.short(), token = hold.token.value(),
            ttl_ms = self.terms.ttl.as_millis() as u64, waited_us = waited.as_micros() as u64,
            outcome = "acquired", trace_id = hold.trace_id.as_deref();
            "acquired {} (holder {}, token {}, ttl {:?}, waited {waited:?})",
            hold.keys.name, hold.id.short(), hold.token, self.terms.ttl
        );
    }

    /// Waits in the queue of the name, and as its first one for the release.
    fn waiting(&self, deadline: Instant, may_give_up: bool) -> Result<Option<Arc<Hold>>, Error> {
        let ticket = self.shared.waiters.join(&self.keys.name);
        let mut wait = Wait {
            call: self,
            ticket,
            deadline,
            subscription: None,
            refusals: 0,
            failures: 0,
        };
        let hold = wait.run()?;
        if hold.is_none() && !may_give_up {
            // Only the policy's attempts end a wait that has no deadline.
            return Err(Error::AttemptsUsedUp {
                attempts: wait.refusals,
            });
        }
        Ok(hold)
    }
}

/// A call in the queue of its name.
struct Wait<'a> {
    call: &'a Acquire<'a>,
    ticket: Ticket<'a>,
    deadline: Instant,
    subscription: Option<Subscription<'a>>,
    /// How often Redis said that somebody else holds the name.
    refusals: u32,
    /// Attempts without an answer in a row.
    failures: u32,
}

impl Wait<'_> {
    fn run(&mut self) -> Result<Option<Arc<Hold>>, Error> {
        let shared = self.call.shared;
        // Looks at Redis even where this client holds the name.
        let mut look = false;
        loop {
            shared.check_open()?;
            let woken = match self.ticket.turn(look) {
                Turn::Queue => match self.queue()? {
                    Some(woken) => woken,
                    None => return self.last_look(),
                },
                Turn::HeldHere => {
                    self.warn_of_self();
                    self.hear()?;
                    // The release here wakes us; the look after this is for what is not heard.
                    self.park(self.pause(true, None))
                }
                Turn::Look => {
                    // A subscription that is live before the look hears every release after it.
                    let heard = self
                        .subscription
                        .as_ref()
                        .is_some_and(Subscription::is_live);
                    match self.call.look(self.deadline) {
                        Ok(Look::Granted(hold)) => return Ok(Some(hold)),
                        Ok(Look::Refused(remaining)) => {
                            if self.refused(remaining) {
                                return Ok(None);
                            }
                            self.hear()?;
                            self.park(self.pause(heard, remaining))
                        }
                        Err(fault) => {
                            let now = Instant::now();
                            let pause = match self.call.pause_after(
                                fault,
                                self.failures,
                                now,
                                self.deadline,
                            ) {
                                Ok(pause) => pause,
                                // A refusal in this very call is the better answer than a last failure.
                                Err(Error::Unreachable { .. })
                                    if now >= self.deadline
                                        && self.ticket.was_taken(self.call.start) =>
                                {
                                    return Ok(None);
                                }
                                Err(error) => return Err(error),
                            };
                            self.failures = self.failures.saturating_add(1);
                            self.park(pause);
                            // Nothing is known of the name.
                            false
                        }
                    }
                }
            };
            look = !woken;
            if Instant::now() >= self.deadline && self.ticket.was_taken(self.call.start) {
                return Ok(None);
            }
        }
    }

    /// Sleeps behind others until woken (true), or looks around after a while (false). `None`
    /// shortly before the deadline, if nobody has asked Redis meanwhile.
    fn queue(&self) -> Result<Option<bool>, Error> {
        let now = Instant::now();
        if self.call.is_unreachable(now) {
            let cause = Cause::text("no answer to those who wait before this call");
            return Err(self.call.shared.server.unreachable(cause));
        }
        let whole = self.call.start.until(self.deadline);
        let last_look = self.deadline.before(LAST_LOOK.min(whole / 2));
        if now >= last_look && !self.ticket.was_taken(self.call.start) {
            return Ok(None);
        }
        let until = if now < last_look {
            last_look
        } else {
            self.deadline
        };
        Ok(Some(self.sleep(now, until)))
    }

    /// Asks Redis out of turn, once.
    fn last_look(&mut self) -> Result<Option<Arc<Hold>>, Error> {
        match self.call.look(self.deadline) {
            Ok(Look::Granted(hold)) => Ok(Some(hold)),
            Ok(Look::Refused(remaining)) => {
                if self.refused(remaining) {
                    return Ok(None);
                }
                // What is left of the deadline is waited for like before.
                self.run()
            }
            Err(Fault::Never(error)) => Err(error),
            Err(Fault::NotNow(cause) | Fault::NoAnswer(cause)) => {
                Err(self.call.shared.server.unreachable(cause))
            }
        }
    }

    /// Notes a refusal; true when the policy allows no more.
    fn refused(&mut self, remaining: Option<Duration>) -> bool {
        let call = self.call;
        self.ticket.refused(Instant::now());
        self.failures = 0;
        self.refusals = self.refusals.saturating_add(1);
        log::debug!(
            name:% = call.keys.name, outcome = "refused", remaining_ms = remaining.map(|d| d.as_millis() as u64),
            trace_id = call.settings.trace_id.as_deref();
            "waiting for {}: somebody holds it, for {remaining:?}", call.keys.name
        );
        match &call.settings.wait {
            WaitPolicy::Backoff(backoff) => {
                backoff.limit().is_some_and(|limit| self.refusals >= limit)
            }
            WaitPolicy::Wake => false,
        }
    }

    /// Wants to hear of releases, where the policy says so.
    fn hear(&mut self) -> Result<(), Error> {
        let call = self.call;
        if self.subscription.is_none() && call.settings.wait == WaitPolicy::Wake {
            let until = Instant::now()
                .after(call.shared.server.command_timeout())
                .min(self.deadline);
            self.subscription = Some(call.shared.subscriber.subscribe(
                call.shared,
                call.keys,
                until,
            )?);
        }
        Ok(())
    }

    /// How long to sleep after a refusal, if nothing wakes us.
    fn pause(&self, heard: bool, remaining: Option<Duration>) -> Duration {
        let pause = match &self.call.settings.wait {
            WaitPolicy::Backoff(backoff) => return backoff.pause(self.refusals.saturating_sub(1)),
            WaitPolicy::Wake if heard => jittered(self.call.shared.config.backstop),
            WaitPolicy::Wake => DEAF
                .pause(self.refusals.saturating_sub(1))
                .min(self.call.shared.config.backstop),
        };
        // Nobody tells of a key that runs out. Redis counts whole milliseconds, rounded down.
        let remaining = remaining.map_or(Duration::MAX, |left| {
            left.saturating_add(Duration::from_millis(1))
        });
        pause.min(remaining)
    }

    /// Sleeps for `pause`, or until woken: true.
    fn park(&self, pause: Duration) -> bool {
        let end = Instant::now().after(pause).min(self.deadline);
        loop {
            let now = Instant::now();
            if self.sleep(now, end) {
                return true;
            }
            if now >= end || self.call.shared.is_closed() {
                return false;
            }
        }
    }

    /// Sleeps until `until`, but no longer than the clock allows, or until woken: true.
    fn sleep(&self, now: Instant, until: Instant) -> bool {
        match self.ticket.bell().recv_timeout(nap(now, until)) {
            Ok(()) => true,
            Err(RecvTimeoutError::Timeout) => false,
            // The ticket keeps the bell's other end.
            Err(RecvTimeoutError::Disconnected) => unreachable!("a bell without a place"),
        }
    }

    #[cfg(debug_assertions)]
    fn warn_of_self(&self) {
        if self.ticket.waits_for_itself() {
            log::warn!(
                name:% = self.call.keys.name;
                "this thread waits for {}, which it took itself: locks are not reentrant", self.call.keys.name
            );
        }
    }

    #[cfg(not(debug_assertions))]
    fn warn_of_self(&self) {}
}
