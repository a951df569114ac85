//! The clients of this process, for tests that move a clock ahead or take locks away.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::runtime::state::Runtime;
use crate::stats::Wake;

static CLIENTS: Mutex<Vec<Weak<Runtime>>> = Mutex::new(Vec::new());

/// Lets tests find the client, for as long as it lives.
pub(super) fn add(client: &Arc<Runtime>) {
    let mut clients = CLIENTS.lock();
    clients.retain(|client| client.strong_count() > 0);
    clients.push(Arc::downgrade(client));
}

pub(crate) fn all() -> Vec<Arc<Runtime>> {
    CLIENTS.lock().iter().filter_map(Weak::upgrade).collect()
}

impl Runtime {
    /// Checks all leases and deadlines, because the clock of this process has jumped: some leases
    /// may have ended, and some deadlines may have passed.
    pub(crate) fn clock_jumped(&self) {
        self.timer.wake();
        self.waiters.wake_all();
    }

    /// Makes the calls that wait for a lock on the server at `address` try again, because the clock
    /// of that server has jumped: locks may have expired, and Redis announces no expiry.
    pub(crate) fn wake_waiters_of(&self, address: &str) {
        let servers = self.deployment.fixed();
        if servers.iter().any(|server| server.label() == address) {
            for name in self.waiters.waiting() {
                self.waiters.wake_to_retry(&name, Wake::Turn);
            }
        }
    }

    /// Asks the server whether the lease with this holder id still exists, if this client holds it.
    pub(crate) fn suspect_lease(&self, holder: &[u8]) {
        for hold in self.timer.all() {
            if hold.id.as_str().as_bytes() == holder {
                self.suspect(&hold);
            }
        }
    }
}
