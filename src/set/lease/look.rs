//! Questions about the lease of a set, for the checks of the simulation.

use std::sync::Arc;

use super::{Phase, SetLease};
use crate::kernel::held::HeldLease;

impl SetLease {
    pub(crate) fn phase(&self) -> Phase {
        self.inner.lock().phase
    }

    /// The lease of each name; `None` if the set does not have that.
    pub(crate) fn leases(&self) -> Vec<Option<Arc<HeldLease>>> {
        let inner = self.inner.lock();
        let slots = inner.parts.iter();
        let leases = slots.map(|slot| slot.lease.as_ref().map(|(lease, _)| Arc::clone(lease)));
        leases.collect()
    }
}
