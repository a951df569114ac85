//! Messages of the test kit to the clients of this process.

use crate::clock::Instant;
use crate::runtime::Runtime;

impl Runtime {
    /// Checks all leases and deadlines, because the clock of this process has jumped: some leases
    /// may have ended, and some deadlines may have passed.
    pub(super) fn clock_jumped(&self) {
        self.engine.wake();
        self.decide_here(|kernel, fx| kernel.wake_all(Instant::now(), fx));
    }

    /// Makes the calls that wait for a lock on the server at `address` try again, because the clock
    /// of that server has jumped: locks may have expired, and Redis announces no expiry.
    pub(super) fn wake_waiters_of(&self, address: &str) {
        let servers = self.deployment.fixed();
        if servers.iter().any(|server| server.label() == address) {
            self.decide_here(|kernel, fx| kernel.wake_all(Instant::now(), fx));
        }
    }

    /// Asks the server whether the lease with this holder id still exists, if this client holds it.
    pub(super) fn suspect_lease(&self, holder: &[u8]) {
        self.decide_here(|kernel, fx| kernel.suspect(holder, Instant::now(), fx));
    }
}
