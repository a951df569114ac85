//! Lets tests make a client look at its leases at once.

use std::sync::{Arc, Weak};

use crate::running::{self, Running};
use crate::runtime::state::Runtime;

/// Lets tests find the client, for as long as it lives.
pub(super) fn follow(runtime: &Arc<Runtime>) {
    let client: Weak<Runtime> = Arc::downgrade(runtime);
    running::add(client);
}

impl Running for Runtime {
    fn clock_jumped(&self) {
        self.timer.wake();
    }

    fn doubt(&self, holder: &[u8]) {
        for hold in self.timer.all() {
            if hold.id.as_str().as_bytes() == holder {
                self.suspect(&hold);
            }
        }
    }
}
