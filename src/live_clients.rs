//! The clients of this process, for tests that move a clock ahead or take locks away.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// A client that tests can make check its leases and wake its waiters.
pub(crate) trait LiveClient: Send + Sync {
    /// Checks all leases and deadlines, because the clock of this process has jumped: some leases
    /// may have ended, and some deadlines may have passed.
    fn clock_jumped(&self);

    /// Makes the calls that wait for a lock on the server at `address` try again, because the clock
    /// of that server has jumped: locks may have expired, and Redis announces no expiry.
    fn wake_waiters_of(&self, address: &str);

    /// Asks the server whether the lease with this holder id still exists, if this client holds it.
    fn suspect_lease(&self, holder: &[u8]);
}

static CLIENTS: Mutex<Vec<Weak<dyn LiveClient>>> = Mutex::new(Vec::new());

pub(crate) fn add(client: Weak<dyn LiveClient>) {
    let mut clients = CLIENTS.lock();
    clients.retain(|client| client.strong_count() > 0);
    clients.push(client);
}

pub(crate) fn all() -> Vec<Arc<dyn LiveClient>> {
    CLIENTS.lock().iter().filter_map(Weak::upgrade).collect()
}
