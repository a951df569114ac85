//! The state of one lease: how long it is certainly held, when it is renewed, how it ended. No I/O.
//!
//! ```text
//!  granted, passed
//!         |
//!         v   release                released
//!       Held ---------> Releasing ------------> Released
//!         |                 |
//!         | expired,        | was_lost: the release
//!         | max_hold, lose  | found the key gone
//!         |                 v
//!         +--------------> Lost
//! ```
//!
//! While the lease is held, at most one renewal or extend is in flight (`renewing`).

use std::time::Duration;

use crate::clock::Instant;
use crate::config::{LeaseTerms, validity};
use crate::lease::status::{Due, FIRST_RENEWAL_AFTER, LeaseStatus, RENEWAL_WINDOW, RenewalRequest};
use crate::lost::Lost;
use crate::wait_policy::RECONNECT;

#[derive(Debug)]
pub(crate) struct LeaseState {
    /// The ttl that renewals set.
    pub(super) ttl: Duration,
    /// The renewal interval; `None` if the client does not renew the lease.
    pub(super) renew_every: Option<Duration>,
    /// The ttl of the shortest extend without a reply. Such an extend may still run after any later
    /// renewal or extend, so none of them counts for longer.
    at_most: Duration,
    /// The longest ttl that any command has requested that may still count. The key may last that
    /// long: a command without a reply may have run, or may run later.
    pub(super) longest: Duration,
    /// When no command without a reply can run any more.
    ///
    /// A command that runs at all runs within the longest ttl that any command had requested by
    /// then. Undos rely on the same limit.
    doubt_until: Instant,
    valid_until: Instant,
    /// The end of `max_hold`.
    ends_at: Instant,
    renew_at: Instant,
    /// When the next renewal was first due, before any of its tries failed.
    planned: Instant,
    /// A renewal or extend is in flight: there is never a second one.
    pub(super) renewing: bool,
    /// The number of renewals that failed in a row.
    failures: u32,
    /// Redis keeps the key for less than the ttl until the first renewal, which is always sent.
    provisional: bool,
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

/// The values that an extend changes before it is sent, to restore them if it does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BeforeExtend {
    valid_until: Instant,
    longest: Duration,
}

impl LeaseState {
    /// Returns the lease that a command sent at `sent` was granted; `None` if it has already ended.
    pub(crate) fn granted(sent: Instant, now: Instant, terms: &LeaseTerms) -> Option<Self> {
        let valid_until = sent.after(validity(terms.ttl));
        let ends_at = sent.after(terms.max_hold);
        if now >= valid_until || now >= ends_at {
            return None;
        }
        let mut lease = Self::new(terms, valid_until, ends_at);
        lease.plan_renewal(sent);
        Some(lease)
    }

    /// Returns a lease that a fair queue granted for `lasting`, at some time after `proof`.
    ///
    /// Its first renewal is due soon. `None` if less than half of the time is left.
    pub(crate) fn passed(
        proof: Instant,
        now: Instant,
        lasting: Duration,
        terms: &LeaseTerms,
    ) -> Option<Self> {
        let valid_until = proof.after(validity(lasting));
        if now.until(valid_until) < lasting / 2 {
            return None;
        }
        let renew_at = now.after(FIRST_RENEWAL_AFTER);
        Some(Self {
            renew_at,
            planned: renew_at,
            provisional: true,
            ..Self::new(terms, valid_until, now.after(terms.max_hold))
        })
    }

    /// Returns a held lease without a planned renewal.
    fn new(terms: &LeaseTerms, valid_until: Instant, ends_at: Instant) -> Self {
        Self {
            ttl: terms.ttl,
            renew_every: terms.renew_every,
            at_most: Duration::MAX,
            longest: terms.ttl,
            doubt_until: Instant::START,
            valid_until,
            ends_at,
            renew_at: Instant::NEVER,
            planned: Instant::NEVER,
            renewing: false,
            failures: 0,
            provisional: false,
            suspected_meanwhile: false,
            suspected: false,
            phase: Phase::Held,
        }
    }

    /// Returns how long the key may still exist in Redis if no release arrives.
    pub(crate) fn key_may_last(&self) -> Duration {
        // A delayed command may run just before the key expires, and set its longest ttl once more
        // (tests/lease_model.rs).
        self.longest.saturating_mul(2)
    }

    /// Returns how long the lease is valid at `now`, without regard to `max_hold`.
    pub(crate) fn validity(&self, now: Instant) -> Duration {
        now.until(self.valid_until)
    }

    /// Passes the lease to another holder at `now`, for at most `max_hold`.
    pub(crate) fn hand_off(&mut self, now: Instant, max_hold: Duration) {
        self.ends_at = now.after(max_hold);
    }

    fn end(&self) -> Instant {
        self.valid_until.min(self.ends_at)
    }

    fn plan_renewal(&mut self, from: Instant) {
        let third = self.ttl.min(self.at_most) / 3;
        self.renew_at = match self.renew_every {
            // An extend may have made the ttl shorter than an interval set for a longer one.
            Some(every) if every < self.ttl.min(self.at_most) / 10 * 9 => from.after(every),
            Some(_) => from.after(third),
            None => Instant::NEVER,
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
        let latest = match self.provisional && self.failures == 0 && !self.renewing {
            // The thread that received the grant wakes the timer.
            true => now.after(now.until(end) / 2),
            false => best,
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
        let renews = self.renew_every.is_some() || self.provisional;
        // A renewal never shortens a ttl, so requesting 1 ms changes nothing.
        let ttl = if renews {
            self.ttl
        } else {
            Duration::from_millis(1)
        };
        Some(RenewalRequest { ttl, renews })
    }

    /// Begins a renewal if one is due now, or soon enough to be sent with those that are.
    pub(crate) fn begin_due_renewal(&mut self, now: Instant) -> Option<RenewalRequest> {
        let soon = match self.provisional {
            // Most are released before this renewal is due.
            true => now,
            false => now.after(RENEWAL_WINDOW.min(self.ttl / 20)),
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

    /// Begins an extend; `None` if a request is in flight or the lease has ended.
    ///
    /// A shorter ttl counts from now on, before it is sent. Returns the values that the extend
    /// changes, in case it does not run.
    pub(crate) fn extend(&mut self, now: Instant, ttl: Duration) -> Option<BeforeExtend> {
        self.begin_renewal(now)?;
        let before = BeforeExtend {
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
        self.provisional &= !request.renews;
        // The reply says nothing about a release announced after the request was sent.
        self.suspected = self.suspected_meanwhile;
        if request.renews && matches!(self.status(now), LeaseStatus::Held(_)) {
            self.valid_until = self
                .valid_until
                .max(sent.after(validity(request.ttl.min(self.at_most))));
        }
        self.plan_renewal(sent);
        self.finish_request(now);
    }

    /// Ends the request in flight. A release announced meanwhile is checked at once: the reply may
    /// be older than the announcement.
    fn finish_request(&mut self, now: Instant) {
        self.renewing = false;
        if std::mem::take(&mut self.suspected_meanwhile) {
            self.renew_at = now;
        }
    }

    /// Records that Redis confirmed the extend sent at `sent`: later renewals set its ttl.
    ///
    /// Pass `is_final` if the server that confirmed it has the only copy of the key.
    pub(crate) fn extended(&mut self, sent: Instant, now: Instant, ttl: Duration, is_final: bool) {
        self.ttl = ttl;
        if is_final && sent >= self.doubt_until {
            // An extend replaces the key's ttl, and nothing sent before can run after it.
            self.longest = ttl;
        }
        self.confirmed(sent, now, RenewalRequest { ttl, renews: true });
    }

    /// Records that the extend did not run, as its reply says: restores what it changed.
    pub(crate) fn not_extended(&mut self, now: Instant, before: BeforeExtend) {
        self.longest = before.longest;
        if matches!(self.status(now), LeaseStatus::Held(_)) {
            self.valid_until = self.valid_until.max(before.valid_until);
        }
        self.failed(now);
    }

    /// Records that the extend got no reply: it may run at any time from now on.
    pub(crate) fn unanswered(&mut self, now: Instant, ttl: Duration) {
        self.at_most = self.at_most.min(ttl);
        self.unconfirmed(now);
    }

    /// Records that a request got no reply. This is no loss: renewals are retried while the lease
    /// lasts.
    pub(crate) fn unconfirmed(&mut self, now: Instant) {
        self.doubt_until = self.doubt_until.max(now.after(self.longest));
        self.failed(now);
    }

    /// Plans the next try after a request that failed.
    fn failed(&mut self, now: Instant) {
        // Without automatic renewal, the holder repeats its own request.
        if self.renew_at != Instant::NEVER {
            // At least four more tries fit into the remaining time.
            let left = now.until(self.end());
            self.renew_at = now.after(RECONNECT.pause(self.failures).min(left / 4));
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

    /// Returns whether the key certainly belongs to this lease at `now`: held, or being released.
    pub(crate) fn covers(&self, now: Instant) -> bool {
        matches!(self.phase, Phase::Held | Phase::Releasing) && now < self.end()
    }

    /// Returns whether the lease was neither released nor lost.
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

    /// Ends the release: it was answered, or an undo repeats it.
    pub(crate) fn released(&mut self) {
        self.phase = Phase::Released;
    }

    /// Records that the release found the lease lost.
    pub(crate) fn was_lost(&mut self, lost: Lost) {
        self.phase = Phase::Lost(lost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn at(n: u64) -> Instant {
        Instant::START.after(ms(n))
    }

    const fn due_at(at: Instant) -> Due {
        Due::At {
            best: at,
            latest: at,
        }
    }

    fn terms() -> LeaseTerms {
        LeaseTerms {
            ttl: TTL,
            renew_every: Some(TTL / 3),
            max_hold: Duration::MAX,
            replicas: None,
            handoffs: 32,
        }
    }

    fn lease() -> LeaseState {
        LeaseState::granted(at(1000), at(1001), &terms()).unwrap()
    }

    #[test]
    fn lease_is_held_for_its_validity_and_then_lost_for_good() {
        let mut lease = lease();
        assert_eq!(lease.status(at(1001)), LeaseStatus::Held(ms(9897)));
        assert_eq!(lease.status(at(10_898)), LeaseStatus::Lost(Lost::Expired));
        assert_eq!(
            lease.status(at(1001)),
            LeaseStatus::Lost(Lost::Expired),
            "a loss is final"
        );
    }

    #[test]
    fn reply_later_than_the_validity_grants_nothing() {
        assert!(LeaseState::granted(at(0), at(9897), &terms()).is_some());
        assert!(LeaseState::granted(at(0), at(9898), &terms()).is_none());
    }

    #[test]
    fn validity_counts_from_before_the_send() {
        let mut lease = lease();
        let request = lease.begin_renewal(at(4000)).unwrap();
        assert_eq!(
            lease.begin_renewal(at(4000)),
            None,
            "renewals never overlap"
        );
        lease.confirmed(at(4000), at(4000), request);
        assert_eq!(lease.status(at(5000)), LeaseStatus::Held(ms(8898)));
    }

    #[test]
    fn late_renewal_revives_no_expired_lease() {
        let mut lease = lease();
        let request = lease.begin_renewal(at(10_800)).unwrap();
        lease.confirmed(at(10_800), at(10_898), request);
        assert_eq!(lease.status(at(10_898)), LeaseStatus::Lost(Lost::Expired));
    }

    #[test]
    fn short_lease_is_not_renewed_with_every_round() {
        let terms = LeaseTerms {
            ttl: ms(100),
            renew_every: Some(ms(33)),
            max_hold: Duration::MAX,
            replicas: None,
            handoffs: 32,
        };
        let mut lease = LeaseState::granted(at(0), at(1), &terms).unwrap();
        assert_eq!(lease.due(at(1)), due_at(at(33)));
        assert_eq!(lease.begin_due_renewal(at(1)), None);
        assert!(
            lease.begin_due_renewal(at(30)).is_some(),
            "in one round with due renewals"
        );
    }

    #[test]
    fn clock_jump_past_the_validity_is_a_loss() {
        let mut lease = lease();
        assert_eq!(lease.due(at(2000)), due_at(at(1000).after(TTL / 3)));
        assert_eq!(
            lease.status(at(3_600_000)),
            LeaseStatus::Lost(Lost::Expired)
        );
        assert_eq!(lease.due(at(3_600_000)), Due::Nothing);
        assert_eq!(lease.begin_renewal(at(3_600_000)), None);
    }

    #[test]
    fn failed_renewal_is_retried_until_the_lease_expires() {
        let mut lease = lease();
        let mut now = at(4334);
        let mut tries = 0;
        while lease.begin_renewal(now).is_some() {
            tries += 1;
            lease.unconfirmed(now);
            match lease.due(now) {
                Due::At { best: next, .. } => now = next.max(now.after(ms(1))),
                Due::Renewal => now = now.after(ms(1)),
                Due::Nothing => break,
            }
        }
        assert!(tries > 10, "{tries}");
        assert_eq!(lease.status(at(10_897)), LeaseStatus::Held(ms(1)));
        assert_eq!(lease.status(at(10_898)), LeaseStatus::Lost(Lost::Expired));
    }

    #[test]
    fn granted_lease_is_renewed_soon_whatever_renew_every_says() {
        for renew_every in [Some(TTL / 3), None] {
            let terms = LeaseTerms {
                renew_every,
                max_hold: ms(5000),
                ..terms()
            };
            let lasting = ms(3000);
            assert!(
                LeaseState::passed(at(0), at(1469), lasting, &terms).is_none(),
                "less than half of the provisional lease is left"
            );
            let mut lease = LeaseState::passed(at(0), at(1468), lasting, &terms).unwrap();
            assert_eq!(lease.status(at(1468)), LeaseStatus::Held(ms(1500)));
            assert_eq!(
                lease.due(at(1468)),
                Due::At {
                    best: at(1471),
                    latest: at(2218)
                }
            );
            let request = lease.begin_due_renewal(at(1471)).unwrap();
            assert_eq!(
                request,
                RenewalRequest {
                    ttl: TTL,
                    renews: true
                }
            );
            lease.unconfirmed(at(1500));
            assert!(matches!(lease.due(at(1500)), Due::At { best: next, .. } if next < at(1600)));
            let request = lease.begin_renewal(at(1600)).unwrap();
            assert!(request.renews, "the failed renewal is repeated");
            lease.confirmed(at(1600), at(1601), request);
            assert_eq!(
                lease.status(at(1601)),
                LeaseStatus::Held(ms(4867)),
                "max_hold limits the renewal"
            );
            assert_eq!(
                lease.begin_renewal(at(1601)).unwrap().renews,
                renew_every.is_some()
            );
        }
    }

    #[test]
    fn lease_is_lost_at_max_hold() {
        let mut lease = LeaseState::granted(
            at(0),
            at(1),
            &LeaseTerms {
                max_hold: ms(2000),
                ..terms()
            },
        )
        .unwrap();
        assert_eq!(lease.due(at(1)), due_at(at(2000)));
        assert_eq!(lease.status(at(2000)), LeaseStatus::Lost(Lost::MaxHold));
    }

    #[test]
    fn suspected_loss_is_checked_without_renewing() {
        let mut lease = LeaseState::granted(
            at(0),
            at(1),
            &LeaseTerms {
                renew_every: None,
                ..terms()
            },
        )
        .unwrap();
        assert_eq!(lease.due(at(1)), due_at(at(9898)));
        lease.suspect(at(2));
        assert_eq!(lease.due(at(2)), Due::Renewal);
        let request = lease.begin_renewal(at(5000)).unwrap();
        assert_eq!(
            request,
            RenewalRequest {
                ttl: ms(1),
                renews: false
            }
        );
        lease.confirmed(at(5000), at(5000), request);
        assert_eq!(lease.status(at(5000)), LeaseStatus::Held(ms(4898)));
    }

    #[test]
    fn suspected_loss_is_checked_until_a_later_reply() {
        let mut lease = LeaseState::granted(
            at(0),
            at(1),
            &LeaseTerms {
                renew_every: None,
                ..terms()
            },
        )
        .unwrap();
        lease.suspect(at(10));
        lease.begin_renewal(at(10)).unwrap();
        lease.unconfirmed(at(20));
        assert!(
            matches!(lease.due(at(20)), Due::At { best: next, .. } if next <= at(20).after(ms(50)))
        );
        let request = lease.begin_renewal(at(80)).unwrap();
        lease.suspect(at(81));
        lease.confirmed(at(80), at(82), request);
        assert_eq!(
            lease.due(at(82)),
            Due::Renewal,
            "the renewal may have run before the second suspicion"
        );
    }

    #[test]
    fn unanswered_extend_limits_a_later_longer_one() {
        let mut lease = LeaseState::granted(
            at(0),
            at(1),
            &LeaseTerms {
                ttl: ms(1000),
                ..terms()
            },
        )
        .unwrap();
        lease.extend(at(100), ms(2000)).unwrap();
        lease.unanswered(at(200), ms(2000));
        lease.extend(at(300), ms(20_000)).unwrap();
        lease.extended(at(300), at(301), ms(20_000), true);
        assert_eq!(
            lease.status(at(300)),
            LeaseStatus::Held(ms(1978)),
            "the first extend may run after the second"
        );
    }

    #[test]
    fn shortening_extend_counts_before_it_is_sent() {
        let mut lease = lease();
        lease.extend(at(2000), ms(1000)).unwrap();
        assert_eq!(lease.status(at(2000)), LeaseStatus::Held(ms(988)));
        lease.extended(at(2000), at(2000), ms(1000), true);
        assert_eq!(lease.status(at(2000)), LeaseStatus::Held(ms(988)));
        assert_eq!(lease.due(at(2000)), due_at(at(2000).after(ms(1000) / 3)));
    }

    #[test]
    fn unanswered_shortening_extend_limits_later_renewals() {
        let mut lease = lease();
        lease.extend(at(2000), ms(1000)).unwrap();
        lease.unanswered(at(2100), ms(1000));
        let request = lease.begin_renewal(at(2200)).unwrap();
        assert_eq!(request.ttl, TTL);
        lease.confirmed(at(2200), at(2200), request);
        assert_eq!(lease.status(at(2200)), LeaseStatus::Held(ms(988)));
        lease.extend(at(2300), TTL).unwrap();
        lease.extended(at(2300), at(2300), TTL, true);
        assert_eq!(
            lease.status(at(2300)),
            LeaseStatus::Held(ms(988)),
            "the first extend may still run"
        );
    }

    #[test]
    fn unanswered_lengthening_extend_prolongs_the_key_but_not_the_lease() {
        let mut lease = lease();
        assert_eq!(lease.longest, TTL);
        lease.extend(at(2000), 360 * TTL).unwrap();
        assert_eq!(lease.longest, 360 * TTL, "counts before it is sent");
        lease.unanswered(at(2100), 360 * TTL);
        assert_eq!(lease.ttl, TTL);
        assert_eq!(lease.status(at(2100)), LeaseStatus::Held(ms(8798)));
        lease.extend(at(2200), TTL).unwrap();
        lease.extended(at(2200), at(2201), TTL, true);
        assert_eq!(
            lease.longest,
            360 * TTL,
            "the first extend may run after the second"
        );
        assert_eq!(lease.key_may_last(), 720 * TTL);
    }

    #[test]
    fn answered_extend_replaces_the_longest_expiry() {
        let mut lease = lease();
        lease.extend(at(2000), 360 * TTL).unwrap();
        lease.extended(at(2000), at(2001), 360 * TTL, true);
        lease.extend(at(3000), TTL).unwrap();
        assert_eq!(lease.longest, 360 * TTL, "until it is answered");
        lease.extended(at(3000), at(3001), TTL, true);
        assert_eq!(lease.longest, TTL);
        assert_eq!(lease.key_may_last(), 2 * TTL);
        // Some other copy of the key may not have it.
        lease.extend(at(4000), ms(1000)).unwrap();
        lease.extended(at(4000), at(4001), ms(1000), false);
        assert_eq!(lease.longest, TTL);
    }

    #[test]
    fn longest_expiry_falls_once_no_unanswered_command_can_run() {
        let renewal = |lease: &mut LeaseState| {
            lease.begin_renewal(at(2000)).unwrap();
            lease.unconfirmed(at(2100));
        };
        let extend = |lease: &mut LeaseState| {
            lease.extend(at(2000), TTL).unwrap();
            lease.unanswered(at(2100), TTL);
        };
        let silences: [&dyn Fn(&mut LeaseState); 2] = [&renewal, &extend];
        for silence in silences {
            // Either may run until 12.1 s: the longest ttl after the client gave up on it.
            for (sent, falls) in [(12_099, false), (12_100, true)] {
                let mut lease = LeaseState::granted(at(1000), at(1001), &terms()).unwrap();
                silence(&mut lease);
                let request = lease.begin_renewal(at(7000)).unwrap();
                lease.confirmed(at(7000), at(7001), request);
                lease.extend(at(sent), ms(5000)).unwrap();
                lease.extended(at(sent), at(sent), ms(5000), true);
                assert_eq!(lease.longest < TTL, falls, "{sent} ms");
            }
        }
    }

    #[test]
    fn extend_that_did_not_run_changes_nothing() {
        let mut lease = lease();
        let before = lease.extend(at(2000), ms(1000)).unwrap();
        lease.not_extended(at(2010), before);
        assert_eq!(lease.status(at(2010)), LeaseStatus::Held(ms(8888)));
        let before = lease.extend(at(2020), 2 * TTL).unwrap();
        lease.not_extended(at(2030), before);
        assert_eq!(lease.longest, TTL);
    }

    #[test]
    fn lengthening_extend_counts_when_confirmed() {
        let mut lease = lease();
        lease.extend(at(2000), ms(60_000)).unwrap();
        assert_eq!(lease.status(at(2000)), LeaseStatus::Held(ms(8898)));
        lease.extended(at(2000), at(2000), ms(60_000), true);
        assert_eq!(lease.status(at(2000)), LeaseStatus::Held(ms(59_398)));
    }

    #[test]
    fn released_lease_cannot_be_lost() {
        let mut lease = lease();
        assert_eq!(lease.release(at(2000)), LeaseStatus::Held(ms(8898)));
        lease.lose(Lost::Deleted, at(2000));
        assert_eq!(lease.status(at(60_000)), LeaseStatus::Released);
        assert_eq!(lease.release(at(2001)), LeaseStatus::Released);
    }

    #[test]
    fn lease_that_has_run_out_expired_whoever_holds_the_key() {
        let mut lease = lease();
        lease.lose(Lost::Taken, at(60_000));
        assert_eq!(lease.lost(), Some(Lost::Expired));
    }
}
