//! Takes what a waiting call was given: a grant from Redis, or a lease handed off by this client.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::lease::handoff::HandoffRun;
use crate::lease::held::HeldLease;
use crate::lease::release::Release;
use crate::lease::state::LeaseState;
use crate::lock::attempt::Attempt;
use crate::lock::place::Place;
use crate::lock::release::pass_on_unclaimed;
use crate::lock::replies::Over;
use crate::lock::waiting_call::WaitingCall;
use crate::protocol::one_or_many::OneOrMany;
use crate::protocol::place::TokenBlock;
use crate::queue::position::Grant;

impl WaitingCall<'_> {
    /// Takes a grant; returns `None` if it has lapsed. If it may have lapsed, asks Redis.
    pub(crate) fn take_grant(&self, grant: Grant) -> Result<Option<Arc<HeldLease>>, Over> {
        let Some(place) = &self.place else {
            return Ok(None);
        };
        let runtime = self.attempt.runtime;
        let lease = match place.lease(&grant, Instant::now()) {
            Some(lease) => Ok(Some(lease)),
            None => self.confirm(place, &grant.id),
        };
        match lease {
            Ok(Some(lease)) => {
                let TokenBlock { first, count } = grant.tokens;
                let run = HandoffRun::new(first, count, Instant::now()).granted_in_queue();
                let tokens = OneOrMany::One(first);
                let hold = self.attempt.hold(grant.id, tokens, lease, None, run);
                Ok(Some(hold.map_err(|fault| runtime.deployment.error(fault))?))
            }
            Ok(None) => Ok(None),
            Err(over) => {
                // Not `Release::of_place`: a place lasts for 3 s at most, but the renewal may have
                // run, and then the lease lasts for its ttl.
                let until = Instant::now().after(self.attempt.terms.ttl);
                let keys = Arc::clone(self.attempt.keys);
                runtime.release(Release::new(keys, grant.id, until));
                Err(over)
            }
        }
    }

    /// Renews a grant until Redis replies; returns `None` if it has lapsed.
    fn confirm(&self, place: &Place<'_>, id: &HolderId) -> Result<Option<LeaseState>, Over> {
        loop {
            self.attempt.check_not_ended()?;
            match place.confirm(id) {
                Ok(lease) => return Ok(lease),
                Err(fault) => self.park(self.pause_after(fault)?),
            };
        }
    }

    /// Takes the lease that was handed to this call, unless it has been lost since.
    pub(crate) fn take_hand_off(&mut self) -> Option<Arc<HeldLease>> {
        let Attempt { runtime, terms, .. } = self.attempt;
        let now = Instant::now();
        let holding = |token| self.attempt.holding(token, now);
        let hold = match self.local.as_ref()?.take(now, terms.max_hold, holding)? {
            Ok(hold) => hold,
            Err(handed) => {
                pass_on_unclaimed(runtime, &handed);
                return None;
            }
        };
        if terms.max_hold < Duration::MAX {
            runtime.reschedule(&hold);
        }
        self.has_waited = true;
        self.attempt.log_granted(&hold);
        Some(hold)
    }
}
