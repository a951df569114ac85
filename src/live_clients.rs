//! The clients of this process, for tests that make time pass or take locks away.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// A client that can be made to check its leases.
pub(crate) trait LiveClient: Send + Sync {
    /// The clock has jumped: leases may have ended, and deadlines may have passed.
    fn clock_jumped(&self);

    /// The clock of the server at `address` has jumped: locks there may have become free. Redis
    /// announces no expiry.
    fn wake_waiters_of(&self, address: &str);

    /// The lease with this holder id may be lost: asks the server.
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
