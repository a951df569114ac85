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
mod tests;
