//! The state of one lease: how long it is certainly held, when it is renewed, how it ended. No I/O.
//!
//! ```text
//!  acquired, granted
//!         |
//!         v   release                released
//!       Held ---------> Releasing ------------> Released
//!         |                 |
//!         | expired,        | was_lost: the release
//!         | max_hold, lose  | found the lease lost
//!         |                 v
//!         +--------------> Lost
//! ```
//!
//! While the lease is held, at most one renewal or change of ttl is in flight (`renewing`).
//!
//! The clock does not count the time for which a hypervisor pauses the machine. The wall clock
//! shows that (`kernel/wall.rs`), and the lease is then asked for. It is not lost: the wall clock
//! may just have been set.

use std::time::Duration;

use crate::clock::Instant;
use crate::config::{LeaseTerms, longest_interval};
use crate::lease::status::{Due, FIRST_RENEWAL_AFTER, LeaseStatus, RENEWAL_WINDOW, RenewalRequest};
use crate::lost::Lost;
use crate::validity::validity;
use crate::wait_policy::RECONNECT;

/// The shortest pause that the end of a lease leaves between two tries to renew it.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(crate) struct LeaseState {
    /// The ttl that renewals set.
    pub(crate) ttl: Duration,
    /// The renewal interval; `None` if the client does not renew the lease.
    pub(super) renew_every: Option<Duration>,
    /// The shortest ttl that was set without a reply from each server. Its command may run after a
    /// later renewal or change of ttl, so none of them counts for longer. This limit never ends,
    /// not even at `settled_at`.
    at_most: Duration,
    /// The longest ttl that the key may have. A command without a reply may have set it, or may set
    /// it later.
    pub(super) longest: Duration,
    /// From this instant on, no command without a reply can run any more.
    ///
    /// This is an assumption: such a command runs within `longest` after the client stopped waiting
    /// for its reply, or never. Undos rely on the same limit.
    settled_at: Instant,
    /// From when on Redis may have confirmed the lease: no later than its last command was sent.
    confirmed_at: Instant,
    /// If the wall clock has run ahead since then: when the key is gone, unless that clock was set.
    gone_at: Option<Instant>,
    valid_until: Instant,
    /// The end of `max_hold`.
    ends_at: Instant,
    renew_at: Instant,
    /// When the next renewal was first due, before any of its tries failed.
    planned: Instant,
    /// A renewal or change of ttl is in flight: there is never a second one.
    pub(super) renewing: bool,
    /// The number of renewals that failed in a row.
    failures: u32,
    /// How long Redis keeps the key without the first renewal, which is always sent; `None` after
    /// that.
    provisional: Option<Duration>,
    /// A release of the key was announced while a request was in flight.
    suspected_meanwhile: bool,
    /// A release of the key was announced, and Redis has not confirmed the lease since.
    pub(super) suspected: bool,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Held,
    /// A release was sent: what a renewal finds now does not count.
    Releasing,
    Released,
    Lost(Lost),
}

/// The values that a new ttl replaces before it is sent, to restore them if it does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BeforeSetTtl {
    valid_until: Instant,
    longest: Duration,
}

impl LeaseState {
    /// Returns the lease that a command sent at `sent` acquired; `None` if it has already ended.
    pub(crate) fn acquired(sent: Instant, now: Instant, terms: &LeaseTerms) -> Option<Self> {
        let valid_until = sent.after(validity(terms.ttl));
        let ends_at = sent.after(terms.max_hold);
        if now >= valid_until || now >= ends_at {
            return None;
        }
        let mut lease = Self::new(terms, sent, valid_until, ends_at);
        lease.plan_renewal(sent);
        Some(lease)
    }

    /// Returns a lease that a queue in Redis granted for `lasting`, at some time after `proof`.
    ///
    /// Its first renewal is due soon. `None` if less than half of the validity is left.
    pub(crate) fn granted(
        proof: Instant,
        now: Instant,
        lasting: Duration,
        terms: &LeaseTerms,
    ) -> Option<Self> {
        let valid_until = proof.after(validity(lasting));
        if now.until(valid_until) < validity(lasting) / 2 {
            return None;
        }
        let renew_at = now.after(FIRST_RENEWAL_AFTER);
        Some(Self {
            renew_at,
            planned: renew_at,
            provisional: Some(lasting),
            ..Self::new(terms, proof, valid_until, now.after(terms.max_hold))
        })
    }

    /// Returns a held lease without a planned renewal.
    fn new(terms: &LeaseTerms, sent: Instant, valid_until: Instant, ends_at: Instant) -> Self {
        Self {
            ttl: terms.ttl,
            renew_every: terms.renew_every,
            at_most: Duration::MAX,
            longest: terms.ttl,
            settled_at: Instant::START,
            confirmed_at: sent,
            gone_at: None,
            valid_until,
            ends_at,
            renew_at: Instant::NEVER,
            planned: Instant::NEVER,
            renewing: false,
            failures: 0,
            provisional: None,
            suspected_meanwhile: false,
            suspected: false,
            phase: Phase::Held,
        }
    }

    /// The key was asked for with this ttl, for a call that has left.
    pub(crate) fn may_last(&mut self, ttl: Duration) {
        self.longest = self.longest.max(ttl);
    }

    /// Returns how long the key may still exist in Redis if no release arrives.
    pub(crate) fn key_may_last(&self) -> Duration {
        // A delayed command may run just before the key expires, and set its longest ttl once more
        // (tests/checks/lease_model.rs).
        self.longest.saturating_mul(2)
    }

    /// Like [`key_may_last`](Self::key_may_last) at `now`, but shorter if no renewal or change of
    /// ttl may still run.
    pub(crate) fn key_may_last_at(&self, now: Instant) -> Duration {
        if self.renewing || now < self.settled_at {
            self.key_may_last()
        } else {
            self.longest
        }
    }

    /// Returns whether the client renews the lease.
    pub(crate) fn is_renewed(&self) -> bool {
        self.renew_every.is_some()
    }

    /// Returns how long the lease is valid at `now`, without regard to `max_hold`.
    pub(crate) fn validity(&self, now: Instant) -> Duration {
        now.until(self.valid_until)
    }

    /// Returns when the last command was sent that Redis has confirmed, or earlier.
    pub(crate) fn confirmed_at(&self) -> Instant {
        self.confirmed_at
    }

    /// Returns terms that the lease fits.
    pub(crate) fn own_terms(&self) -> LeaseTerms {
        LeaseTerms {
            ttl: self.ttl,
            renew_every: self.renew_every,
            max_hold: Duration::MAX,
            replicas: None,
            handoffs: 0,
            linger: Duration::ZERO,
        }
    }

    /// Returns whether so much of the validity is left at `now` as when the first renewal is due by
    /// default, which is after a third of `ttl`.
    pub(super) fn has_most_of(&self, ttl: Duration, now: Instant) -> bool {
        self.validity(now) >= validity(ttl).saturating_sub(ttl / 3)
    }

    /// Returns whether most of the validity is left at `now`; before the first renewal, of the
    /// provisional time.
    pub(crate) fn is_fresh(&self, now: Instant) -> bool {
        self.has_most_of(self.provisional.unwrap_or(self.ttl), now)
    }

    /// The wall clock has run ahead by this much since the last confirmation: plans to ask Redis,
    /// at once, or without automatic renewal when the reply decides. Returns whether that is
    /// earlier than was planned.
    pub(crate) fn distrust(&mut self, ahead: Duration, now: Instant) -> bool {
        if self.phase != Phase::Held {
            return false;
        }
        let lasts = if now < self.settled_at {
            self.key_may_last()
        } else {
            self.longest
        };
        // Twice the margin: Redis's clock may be slow, too.
        let margin = self.ttl.saturating_sub(validity(self.ttl)) * 2;
        let gone_at = (self.valid_until).after(margin + lasts.saturating_sub(self.ttl));
        let gone_at = gone_at.before(ahead).max(now);
        let is_new = self.gone_at.is_none_or(|before| gone_at < before);
        if is_new {
            self.gone_at = Some(gone_at);
            if self.renews() {
                self.suspect(now)
            } else {
                self.renew_at = self.renew_at.min(gone_at)
            }
        }
        is_new
    }

    /// Returns whether the next request of the client sets the ttl.
    fn renews(&self) -> bool {
        self.renew_every.is_some() || self.provisional.is_some()
    }

    /// The client renews the lease each `every` from the next confirmation on.
    pub(crate) fn renew_every(&mut self, every: Option<Duration>) {
        self.renew_every = every;
    }

    /// The client renews the lease no more.
    pub(crate) fn end_renewals(&mut self) {
        (self.renew_every, self.provisional) = (None, None);
        (self.renew_at, self.planned) = (Instant::NEVER, Instant::NEVER);
    }

    /// Returns whether a renewal or change of ttl is in flight.
    pub(crate) fn is_busy(&self) -> bool {
        self.renewing
    }

    /// Returns for how long the lease has been over at `now`.
    #[cfg(sim)]
    pub(crate) fn overdue(&self, now: Instant) -> Duration {
        self.end().until(now)
    }

    /// Passes the lease to another holder at `now`, for at most `max_hold`.
    pub(crate) fn hand_off(&mut self, now: Instant, max_hold: Duration) {
        self.ends_at = now.after(max_hold);
    }

    pub(crate) fn end(&self) -> Instant {
        self.valid_until.min(self.ends_at)
    }

    fn plan_renewal(&mut self, from: Instant) {
        let ttl = self.ttl.min(self.at_most);
        self.renew_at = match self.renew_every {
            // A change of ttl may have made the ttl shorter than an interval set for a longer one.
            Some(every) if every <= longest_interval(ttl) => from.after(every),
            Some(_) => from.after(ttl / 3),
            None => self.gone_at.unwrap_or(Instant::NEVER),
        };
        self.planned = self.renew_at;
    }

    /// Returns how overdue the next renewal is at `now`; zero before it is due.
    pub(crate) fn lag(&self, now: Instant) -> Duration {
        self.planned.until(now)
    }

    /// Returns the status at `now`. A lease that has run out becomes lost.
    pub(crate) fn status(&mut self, now: Instant) -> LeaseStatus {
        match self.phase {
            Phase::Held if now < self.end() => LeaseStatus::Held(now.until(self.end())),
            Phase::Held => {
                let lost = if self.ends_at <= self.valid_until {
                    Lost::MaxHold
                } else {
                    Lost::Expired
                };
                self.phase = Phase::Lost(lost);
                LeaseStatus::Lost(lost)
            }
            Phase::Releasing | Phase::Released => LeaseStatus::Released,
            Phase::Lost(lost) => LeaseStatus::Lost(lost),
        }
    }

    /// Ends the lease as lost, unless it has ended or is being released.
    ///
    /// A lease that had run out at `now` counts as expired, even if its key was deleted or taken
    /// since.
    pub(crate) fn lose(&mut self, lost: Lost, now: Instant) {
        if let LeaseStatus::Held(_) = self.status(now) {
            self.phase = Phase::Lost(lost);
        }
    }

    /// Returns why the lease was lost; `None` if it was not.
    pub(crate) fn lost(&self) -> Option<Lost> {
        match self.phase {
            Phase::Lost(lost) => Some(lost),
            _ => None,
        }
    }

    /// Returns what must be done at `now`.
    pub(crate) fn due(&self, now: Instant) -> Due {
        if self.phase != Phase::Held {
            return Due::Nothing;
        }
        if self.is_due_by(now) {
            return Due::Renewal;
        }
        let end = self.end();
        let best = if self.renewing {
            end
        } else {
            end.min(self.renew_at)
        };
        let latest = if self.provisional.is_some() && self.failures == 0 && !self.renewing {
            // Most grants end sooner: a later wake-up keeps the engine from competing with the new
            // holder for a core.
            now.after(now.until(end) / 2)
        } else {
            best
        };
        Due::At { best, latest }
    }

    /// Whether a renewal is due at or before `by`.
    fn is_due_by(&self, by: Instant) -> bool {
        !self.renewing && self.renew_at <= by && self.renew_at < self.end()
    }

    /// Begins a renewal; `None` if a request is in flight or the lease has ended.
    pub(crate) fn begin_renewal(&mut self, now: Instant) -> Option<RenewalRequest> {
        if self.renewing || self.phase != Phase::Held || now >= self.end() {
            return None;
        }
        self.renewing = true;
        let renews = self.renews();
        let ttl = if renews {
            self.ttl
        } else {
            self.ttl_of_check(now)
        };
        Some(RenewalRequest { ttl, renews })
    }

    /// Returns a ttl that the key still has, so that asking for it changes nothing.
    fn ttl_of_check(&self, now: Instant) -> Duration {
        match self.gone_at {
            // If the key is there although the machine has stood still, Redis's clock was set back:
            // the key must not end before the lease, whose clock was late.
            Some(_) => self.validity(now) + self.ttl.saturating_sub(validity(self.ttl)),
            None => Duration::from_millis(1),
        }
    }

    /// Begins a renewal if one is due now, or soon enough to be sent with those of other leases.
    pub(crate) fn begin_due_renewal(&mut self, now: Instant) -> Option<RenewalRequest> {
        let soon = match self.provisional {
            // Most such leases are released before this renewal is due.
            Some(_) => now,
            None => now.after(RENEWAL_WINDOW.min(self.ttl / 20)),
        };
        self.is_due_by(soon).then(|| self.begin_renewal(now))?
    }

    /// Begins a renewal that sets the ttl, even if the client does not renew the lease.
    pub(crate) fn begin_full_renewal(&mut self, now: Instant) -> Option<RenewalRequest> {
        self.begin_renewal(now)?;
        Some(RenewalRequest {
            ttl: self.ttl,
            renews: true,
        })
    }

    /// Begins a change of ttl; `None` if a request is in flight or the lease has ended.
    ///
    /// A shorter ttl counts from now on, before it is sent. Returns the values that it
    /// replaces, in case it does not run.
    pub(crate) fn set_ttl(&mut self, now: Instant, ttl: Duration) -> Option<BeforeSetTtl> {
        self.begin_renewal(now)?;
        let before = BeforeSetTtl {
            valid_until: self.valid_until,
            longest: self.longest,
        };
        self.valid_until = self.valid_until.min(now.after(validity(ttl)));
        self.longest = self.longest.max(ttl);
        Some(before)
    }

    /// Records that Redis confirmed, by `now`, the request sent at `sent`.
    ///
    /// A lease that ran out before is not revived: its holder may already know of the loss.
    pub(crate) fn confirmed(&mut self, sent: Instant, now: Instant, request: RenewalRequest) {
        self.failures = 0;
        self.provisional.take_if(|_| request.renews);
        // The reply says nothing about a release announced after the request was sent.
        self.suspected = self.suspected_meanwhile;
        if matches!(self.status(now), LeaseStatus::Held(_)) {
            self.extend(sent, now, request);
        }
        self.plan_renewal(sent);
        self.finish_request(now);
    }

    /// Sets the end of the lease after a request that was sent at `sent` and confirmed.
    fn extend(&mut self, sent: Instant, now: Instant, request: RenewalRequest) {
        if !request.renews {
            if self.gone_at.take_if(|at| *at <= sent).is_some() {
                self.confirmed_at = sent;
            }
            return;
        }
        let until = sent.after(validity(request.ttl.min(self.at_most)));
        self.valid_until = match self.gone_at.take() {
            // What counted before may be more.
            Some(_) if now < until => until,
            _ => self.valid_until.max(until),
        };
        self.confirmed_at = sent;
    }

    /// Ends the request in flight. A release announced meanwhile is checked at once: the reply may
    /// be older than the announcement.
    fn finish_request(&mut self, now: Instant) {
        self.renewing = false;
        if std::mem::take(&mut self.suspected_meanwhile) {
            self.renew_at = now;
        }
    }

    /// Records that Redis confirmed the change sent at `sent`: later renewals set its ttl.
    ///
    /// Pass `is_final` if the server that confirmed it has the only copy of the key.
    pub(crate) fn ttl_set(&mut self, sent: Instant, now: Instant, ttl: Duration, is_final: bool) {
        self.ttl = ttl;
        if is_final && sent >= self.settled_at {
            // A change of ttl replaces the key's ttl, and nothing sent before can run after it.
            self.longest = ttl;
        }
        self.confirmed(sent, now, RenewalRequest { ttl, renews: true });
    }

    /// Records that the change did not run, as its reply says: restores what it changed.
    pub(crate) fn ttl_not_set(&mut self, now: Instant, before: BeforeSetTtl) {
        self.longest = before.longest;
        if matches!(self.status(now), LeaseStatus::Held(_)) {
            self.valid_until = self.valid_until.max(before.valid_until);
        }
        self.failed(now);
    }

    /// Records that the change got no reply: it may run at any time from now on.
    pub(crate) fn unanswered(&mut self, now: Instant, ttl: Duration) {
        self.limit(ttl);
        self.unconfirmed(now);
    }

    /// Records that a server may still run a change to this ttl.
    pub(crate) fn limit(&mut self, ttl: Duration) {
        self.at_most = self.at_most.min(ttl);
    }

    /// Returns whether a change without a reply may still end the key before a change to this ttl
    /// does.
    pub(crate) fn may_be_shortened(&self, ttl: Duration) -> bool {
        self.at_most < ttl
    }

    /// Records that a request got no reply. This is no loss: renewals are retried while the lease
    /// lasts.
    pub(crate) fn unconfirmed(&mut self, now: Instant) {
        self.settled_at = self.settled_at.max(now.after(self.longest));
        self.failed(now);
    }

    /// Plans the next try after a request that failed.
    fn failed(&mut self, now: Instant) {
        // Without automatic renewal, the holder repeats its own request.
        if self.renew_at != Instant::NEVER {
            // At most a quarter of the remaining time: a long pause must not end the lease. Without
            // a least one, the tries would follow each other ever faster up to the end.
            let most = (now.until(self.end()) / 4).max(SHORTEST_PAUSE);
            self.renew_at = now.after(RECONNECT.pause(self.failures).min(most));
        }
        self.failures = self.failures.saturating_add(1);
        self.finish_request(now);
    }

    /// Records that a release of the lease was announced: a renewal checks it at once.
    pub(crate) fn suspect(&mut self, now: Instant) {
        self.suspected = true;
        if self.renewing {
            self.suspected_meanwhile = true;
        } else {
            self.renew_at = self.renew_at.min(now);
        }
    }

    /// Returns whether the key belongs to this lease at `now`, as far as is known: the lease is
    /// held, or its release has no reply yet.
    pub(crate) fn covers(&self, now: Instant) -> bool {
        matches!(self.phase, Phase::Held | Phase::Releasing) && now < self.end()
    }

    /// Returns whether no release has begun and no loss was noticed.
    pub(crate) fn is_open(&self) -> bool {
        self.phase == Phase::Held
    }

    /// Begins the release, and returns the status before it.
    pub(crate) fn release(&mut self, now: Instant) -> LeaseStatus {
        let status = self.status(now);
        if let LeaseStatus::Held(_) = status {
            self.phase = Phase::Releasing;
        }
        status
    }

    /// Ends the release: it was answered, it is repeated in the background, or the key is left to
    /// expire.
    pub(crate) fn released(&mut self) {
        self.phase = Phase::Released;
    }

    /// Records that the release found the lease lost.
    pub(crate) fn was_lost(&mut self, lost: Lost) {
        self.phase = Phase::Lost(lost);
    }
}

#[cfg(test)]
mod tests;
