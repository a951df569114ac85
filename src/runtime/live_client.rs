//! Lets tests make a client check its leases at once, or wake its waiters.

use std::sync::{Arc, Weak};

use crate::live_clients::{self, LiveClient};
use crate::runtime::state::Runtime;
use crate::stats::Wake;

/// Lets tests find the client, for as long as it lives.
pub(super) fn follow(runtime: &Arc<Runtime>) {
    let client: Weak<Runtime> = Arc::downgrade(runtime);
    live_clients::add(client);
}

impl LiveClient for Runtime {
    fn clock_jumped(&self) {
        self.timer.wake();
        self.waiters.wake_all();
    }

    fn wake_waiters_of(&self, address: &str) {
        let servers = self.deployment.fixed();
        if servers.iter().any(|server| server.label() == address) {
            for name in self.waiters.waiting() {
                self.waiters.wake_to_retry(&name, Wake::Turn);
            }
        }
    }

    fn suspect_lease(&self, holder: &[u8]) {
        for hold in self.timer.all() {
            if hold.id.as_str().as_bytes() == holder {
                self.suspect(&hold);
            }
        }
    }
}
