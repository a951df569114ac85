//! Decides whether a lease passes to the next waiter of the same client without Redis. No I/O.
//!
//! ```text
//!                      a holder releases
//!                             |
//!                             v   suspected, short, or without automatic renewal
//!            +------------- step ----------> RenewFirst
//!            |                |  ^               |
//!            | otherwise      |  +---------------+
//!            v                |    once, then no second renewal
//!  Hand-off to the next       | tokens, hand-offs or time used up, other terms,
//!  token; its holder          | lost, or still suspected or short after a renewal
//!  releases later             v
//!                          Release
//! ```
//!
//! A lease is suspected if a release of its key was announced and Redis has not confirmed it since.
//! It is short if more than a third of its ttl has passed since its last renewal, or if less of its
//! validity is left than that leaves: by default, if its renewal is overdue.

use std::time::Duration;

use crate::clock::Instant;
use crate::config::LeaseTerms;
use crate::lease::state::LeaseState;
use crate::token::FencingToken;

/// How long after its grant a lease can still be handed off. One run delays other clients for at
/// most this long plus one critical section.
const LONGEST: Duration = Duration::from_secs(1);

/// The divisor of a run's number of hand-offs if the queue in Redis granted the lease. Other
/// clients probably wait there: the last of n clients waits for n - 1 runs.
const QUEUED_SHARE: u32 = 4;

/// A run of hand-offs: the successive holders of one lease, from its grant to its release.
#[derive(Debug)]
pub(crate) struct HandoffRun {
    first: FencingToken,
    /// The last token reserved in Redis: higher tokens may belong to other holders.
    last: FencingToken,
    granted: Instant,
    /// The lease was granted to a place in the queue in Redis.
    granted_in_queue: bool,
}

/// The next step of the holder of a lease that cannot be handed off now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoHandoff {
    /// Renew the lease first: it may be gone, or may expire soon.
    RenewFirst,
    /// Release the lock in Redis, where any client can acquire it.
    Release,
}

impl HandoffRun {
    /// Returns the run of a lease that was granted with `block` tokens, the first of them `first`.
    pub(crate) fn new(first: FencingToken, block: u64, granted: Instant) -> Self {
        Self {
            first,
            last: FencingToken::new(first.value().saturating_add(block.saturating_sub(1))),
            granted,
            granted_in_queue: false,
        }
    }

    /// Returns the same run, for a lease that was granted to a place in the queue in Redis.
    pub(crate) fn granted_in_queue(self) -> Self {
        Self {
            granted_in_queue: true,
            ..self
        }
    }

    /// Returns the token of the first holder.
    pub(crate) fn first(&self) -> FencingToken {
        self.first
    }

    /// Returns whether the lease was granted to a place in the queue in Redis.
    pub(crate) fn is_granted_in_queue(&self) -> bool {
        self.granted_in_queue
    }

    /// Returns whether a token is left for a holder after the one that has `token`.
    pub(crate) fn goes_on(&self, token: FencingToken) -> bool {
        token < self.last
    }

    /// Returns whether the holder of `token` received the lease by a hand-off.
    pub(crate) fn was_handed(&self, token: FencingToken) -> bool {
        token > self.first
    }

    /// Returns the token of the next holder if a call that wants the lock on `terms` can take the
    /// lease of the holder of `token`, which has ended its holding. The two allow `handoffs` in a
    /// row.
    ///
    /// The rules are those of [`step`](Self::step), but a lease that was just granted by the queue
    /// can be taken before its first renewal: its holder had no more time, either.
    pub(crate) fn relock(
        &self,
        lease: &LeaseState,
        token: FencingToken,
        terms: &LeaseTerms,
        handoffs: u32,
        now: Instant,
    ) -> Option<FencingToken> {
        let is_renewed = lease.renew_every.is_some() && !lease.suspected;
        let may = is_renewed && lease.is_fresh(now) && lease.covers(now);
        (may && self.fits(lease, token, terms, handoffs, now))
            .then(|| FencingToken::new(token.value() + 1))
    }

    /// Returns the token of the next holder if the holder of `token` can hand the lease off at
    /// `now`.
    ///
    /// The first waiter wants the lock on `terms`. The holder and this waiter allow `handoffs` in a
    /// row, or a quarter of them, rounded up, if the queue in Redis granted the lease. Pass
    /// `has_renewed` if the holder has just renewed the lease for this hand-off.
    ///
    /// The caller must have checked that `max_hold` has not passed. A lease that has otherwise
    /// ended is never handed off.
    pub(crate) fn step(
        &self,
        lease: &LeaseState,
        token: FencingToken,
        terms: &LeaseTerms,
        handoffs: u32,
        has_renewed: bool,
        now: Instant,
    ) -> Result<FencingToken, NoHandoff> {
        if !self.fits(lease, token, terms, handoffs, now) {
            return Err(NoHandoff::Release);
        }
        let is_short = !lease.has_most_of(lease.ttl, now);
        if lease.suspected || is_short {
            // One renewal did not help, and a second would not either.
            return Err(if has_renewed {
                NoHandoff::Release
            } else {
                NoHandoff::RenewFirst
            });
        }
        // Without automatic renewal, no recent reply shows that the key exists.
        if lease.renew_every.is_none() && !has_renewed {
            return Err(NoHandoff::RenewFirst);
        }
        Ok(FencingToken::new(token.value() + 1))
    }

    /// Returns whether the run goes on, and the lease fits the next holder's terms.
    fn fits(
        &self,
        lease: &LeaseState,
        token: FencingToken,
        terms: &LeaseTerms,
        handoffs: u32,
        now: Instant,
    ) -> bool {
        let handed = token.value().saturating_sub(self.first.value());
        let most = if self.granted_in_queue {
            handoffs.div_ceil(QUEUED_SHARE)
        } else {
            handoffs
        };
        let is_spent = !self.goes_on(token)
            || handed >= most.into()
            || self.granted.until(now) >= LONGEST.min(lease.ttl);
        // The key must not outlast the ttl that the next holder requested.
        let fits = lease.ttl == terms.ttl
            && lease.longest <= terms.ttl
            && lease.renew_every == terms.renew_every;
        !is_spent && fits && lease.is_open()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::status::RenewalRequest;
    use crate::lost::Lost;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn at(n: u64) -> Instant {
        Instant::START.after(ms(n))
    }

    const TERMS: LeaseTerms = LeaseTerms {
        ttl: ms(9_000),
        renew_every: Some(ms(3_000)),
        max_hold: Duration::MAX,
        replicas: None,
        handoffs: 32,
        linger: Duration::ZERO,
    };

    fn lease(terms: &LeaseTerms) -> LeaseState {
        LeaseState::acquired(at(0), at(0), terms).unwrap()
    }

    /// Returns the decision of the holder after `handed` hand-offs.
    fn step(
        lease: &LeaseState,
        terms: &LeaseTerms,
        handed: u64,
        now: u64,
        has_renewed: bool,
    ) -> Result<FencingToken, NoHandoff> {
        let run = HandoffRun::new(FencingToken::new(100), 33, at(0));
        let token = FencingToken::new(100 + handed);
        run.step(lease, token, terms, terms.handoffs, has_renewed, at(now))
    }

    fn on(token: u64) -> Result<FencingToken, NoHandoff> {
        Ok(FencingToken::new(token))
    }

    #[test]
    fn hand_off_draws_the_next_token() {
        let lease = lease(&TERMS);
        assert_eq!(step(&lease, &TERMS, 0, 1, false), on(101));
        assert_eq!(step(&lease, &TERMS, 7, 1, false), on(108));
    }

    #[test]
    fn run_ends_with_its_tokens_its_length_or_its_time() {
        let lease = lease(&TERMS);
        assert_eq!(step(&lease, &TERMS, 31, 1, false), on(132));
        assert_eq!(step(&lease, &TERMS, 32, 1, false), Err(NoHandoff::Release));
        let many = LeaseTerms {
            handoffs: 63,
            ..TERMS
        };
        assert_eq!(
            step(&lease, &many, 32, 1, false),
            Err(NoHandoff::Release),
            "the reserved tokens are used up"
        );
        let few = LeaseTerms {
            handoffs: 2,
            ..TERMS
        };
        assert_eq!(step(&lease, &few, 1, 1, false), on(102));
        assert_eq!(step(&lease, &few, 2, 1, false), Err(NoHandoff::Release));
        assert_eq!(step(&lease, &TERMS, 0, 999, false), on(101));
        assert_eq!(
            step(&lease, &TERMS, 0, 1_000, false),
            Err(NoHandoff::Release)
        );
        let alone = HandoffRun::new(FencingToken::new(100), 1, at(0));
        assert!(!alone.goes_on(FencingToken::new(100)));
    }

    #[test]
    fn run_of_a_lease_from_the_queue_is_a_quarter_as_long() {
        let lease = lease(&TERMS);
        for (most, runs) in [(32, 8), (3, 1), (1, 1), (0, 0)] {
            let run = HandoffRun::new(FencingToken::new(100), 33, at(0)).granted_in_queue();
            let step = |handed: u64| {
                let token = FencingToken::new(100 + handed);
                run.step(&lease, token, &TERMS, most, false, at(1))
            };
            assert!(
                (0..runs).all(|handed| step(handed).is_ok()),
                "{most} hand-offs"
            );
            assert_eq!(step(runs), Err(NoHandoff::Release), "{most} hand-offs");
        }
    }

    #[test]
    fn short_ttl_limits_the_run() {
        let short = LeaseTerms {
            ttl: ms(300),
            renew_every: Some(ms(100)),
            ..TERMS
        };
        let mut lease = lease(&short);
        let request = lease.begin_full_renewal(at(250)).unwrap();
        lease.confirmed(at(250), at(251), request);
        assert_eq!(step(&lease, &short, 0, 299, false), on(101));
        assert_eq!(step(&lease, &short, 0, 300, false), Err(NoHandoff::Release));
    }

    #[test]
    fn lease_is_handed_only_to_a_waiter_with_the_same_terms() {
        let mut lease = lease(&TERMS);
        for other in [
            LeaseTerms {
                ttl: ms(9_001),
                ..TERMS
            },
            LeaseTerms {
                renew_every: Some(ms(2_999)),
                ..TERMS
            },
            LeaseTerms {
                renew_every: None,
                ..TERMS
            },
            LeaseTerms {
                handoffs: 0,
                ..TERMS
            },
        ] {
            assert_eq!(
                step(&lease, &other, 0, 1, false),
                Err(NoHandoff::Release),
                "{other:?}"
            );
        }
        // The lease's current ttl counts, not the one it was granted with.
        lease.set_ttl(at(1), ms(12_000)).unwrap();
        lease.ttl_set(at(1), at(2), ms(12_000), true);
        assert_eq!(step(&lease, &TERMS, 0, 3, false), Err(NoHandoff::Release));
        let longer = LeaseTerms {
            ttl: ms(12_000),
            ..TERMS
        };
        assert_eq!(step(&lease, &longer, 0, 3, false), on(101));
    }

    #[test]
    fn lease_with_little_time_left_is_renewed_first() {
        let slow = LeaseTerms {
            ttl: ms(900),
            renew_every: Some(ms(727)),
            ..TERMS
        };
        let mut lease = lease(&slow);
        // A renewal would be due after 300 ms by default.
        assert_eq!(step(&lease, &slow, 0, 300, false), on(101));
        assert_eq!(
            step(&lease, &slow, 0, 301, false),
            Err(NoHandoff::RenewFirst)
        );
        assert_eq!(
            step(&lease, &slow, 0, 301, true),
            Err(NoHandoff::Release),
            "a renewal has already failed to help"
        );
        let request = lease.begin_full_renewal(at(301)).unwrap();
        lease.confirmed(at(301), at(305), request);
        assert_eq!(step(&lease, &slow, 0, 305, true), on(101));
    }

    #[test]
    fn lease_just_before_its_renewal_is_handed_off_without_one() {
        for ttl in [10, 1_000, 10_000, 3_600_000].map(ms) {
            let terms = LeaseTerms {
                ttl,
                renew_every: Some(ttl / 3),
                ..TERMS
            };
            let lease = lease(&terms);
            let now = at(0).after(ttl / 100 * 32);
            let run = HandoffRun::new(FencingToken::new(100), 33, now);
            let next = FencingToken::new(101);
            assert_eq!(
                run.step(&lease, FencingToken::new(100), &terms, 32, false, now),
                Ok(next),
                "{ttl:?}"
            );
            assert_eq!(
                run.relock(&lease, FencingToken::new(100), &terms, 32, now),
                Some(next),
                "{ttl:?}"
            );
        }
    }

    #[test]
    fn lease_without_auto_renew_is_renewed_before_each_hand_off() {
        let manual = LeaseTerms {
            renew_every: None,
            ..TERMS
        };
        let lease = lease(&manual);
        assert_eq!(
            step(&lease, &manual, 0, 1, false),
            Err(NoHandoff::RenewFirst)
        );
        assert_eq!(step(&lease, &manual, 0, 1, true), on(101));
    }

    #[test]
    fn lease_with_an_unanswered_shortening_set_ttl_is_not_handed_off() {
        let mut lease = lease(&TERMS);
        lease.set_ttl(at(1), ms(500)).unwrap();
        lease.unanswered(at(2), ms(500));
        assert_eq!(
            step(&lease, &TERMS, 0, 3, false),
            Err(NoHandoff::RenewFirst)
        );
        let request = lease.begin_full_renewal(at(3)).unwrap();
        lease.confirmed(at(3), at(4), request);
        assert_eq!(step(&lease, &TERMS, 0, 5, true), Err(NoHandoff::Release));
    }

    #[test]
    fn lease_whose_key_may_outlast_the_ttl_is_not_handed_off() {
        for is_sent in [true, false] {
            let mut lease = lease(&TERMS);
            let before = lease.set_ttl(at(1), ms(3_600_000)).unwrap();
            if is_sent {
                lease.unanswered(at(2), ms(3_600_000))
            } else {
                lease.ttl_not_set(at(2), before)
            }
            let request = lease.begin_full_renewal(at(3)).unwrap();
            lease.confirmed(at(3), at(4), request);
            let next = if is_sent {
                Err(NoHandoff::Release)
            } else {
                on(101)
            };
            assert_eq!(step(&lease, &TERMS, 0, 5, true), next);
        }
    }

    #[test]
    fn suspected_loss_is_checked_before_a_hand_off() {
        let mut lease = lease(&TERMS);
        lease.suspect(at(1));
        assert_eq!(
            step(&lease, &TERMS, 0, 2, false),
            Err(NoHandoff::RenewFirst)
        );
        let request = lease.begin_renewal(at(2)).unwrap();
        lease.suspect(at(3));
        lease.confirmed(at(2), at(4), request);
        assert_eq!(
            step(&lease, &TERMS, 0, 5, false),
            Err(NoHandoff::RenewFirst),
            "the renewal may have run before the second suspicion"
        );
        let request = lease.begin_renewal(at(5)).unwrap();
        lease.confirmed(at(5), at(6), request);
        assert_eq!(step(&lease, &TERMS, 0, 7, false), on(101));
    }

    #[test]
    fn lost_or_released_lease_is_not_handed_off() {
        let mut lost = lease(&TERMS);
        lost.lose(Lost::Deleted, at(1));
        assert_eq!(step(&lost, &TERMS, 0, 1, false), Err(NoHandoff::Release));
        let mut released = lease(&TERMS);
        released.release(at(1));
        assert_eq!(
            step(&released, &TERMS, 0, 1, false),
            Err(NoHandoff::Release)
        );
    }

    #[test]
    fn renewal_counts_for_the_next_holder_of_the_lease() {
        let mut lease = lease(&TERMS);
        let request = lease.begin_renewal(at(500)).unwrap();
        assert_eq!(step(&lease, &TERMS, 0, 600, false), on(101));
        lease.hand_off(at(600), ms(50));
        lease.confirmed(at(500), at(620), request);
        assert_eq!(lease.validity(at(620)), ms(500 + 8_098 - 620));
        assert!(matches!(request, RenewalRequest { renews: true, .. }));
        assert_eq!(
            lease.status(at(650)),
            crate::lease::status::LeaseStatus::Lost(Lost::MaxHold),
            "counted from the hand-off"
        );
    }

    #[test]
    fn lease_in_doubt_is_renewed_before_a_hand_off() {
        let mut lease = lease(&TERMS);
        lease.distrust(ms(1_000), at(1));
        let run = HandoffRun::new(FencingToken::new(100), 33, at(0));
        let token = FencingToken::new(100);
        assert_eq!(
            step(&lease, &TERMS, 0, 1, false),
            Err(NoHandoff::RenewFirst)
        );
        assert_eq!(run.relock(&lease, token, &TERMS, 32, at(1)), None);
        let request = lease.begin_full_renewal(at(1)).unwrap();
        lease.confirmed(at(1), at(2), request);
        assert_eq!(step(&lease, &TERMS, 0, 2, true), on(101));
        assert!(run.relock(&lease, token, &TERMS, 32, at(2)).is_some());
    }
}
