//! The clients of this process, for tests that move a clock ahead or take locks away.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::clock::{Instant, sleep};
use crate::runtime::state::Runtime;
use crate::sync::{Mutex, MutexGuard};

/// No thread holds the lock for longer.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

static CLIENTS: Mutex<Vec<Weak<Runtime>>> = Mutex::new(Vec::new());

/// Lets tests find the client, for as long as it lives.
pub(super) fn add(client: &Arc<Runtime>) {
    let Some(mut clients) = clients() else {
        return;
    };
    clients.retain(|client| client.strong_count() > 0);
    clients.push(Arc::downgrade(client));
}

/// Locks the list. Returns `None` in a fork if a thread of the parent had locked it: tests then
/// find no client there.
fn clients() -> Option<MutexGuard<'static, Vec<Weak<Runtime>>>> {
    let end = Instant::now().after(LONGEST_WAIT);
    loop {
        match CLIENTS.try_lock() {
            Some(clients) => return Some(clients),
            None if Instant::now() < end => sleep(Duration::from_millis(1)),
            None => return None,
        }
    }
}

pub(crate) fn all() -> Vec<Arc<Runtime>> {
    let Some(clients) = clients() else {
        return Vec::new();
    };
    let clients = clients.iter().filter_map(Weak::upgrade);
    clients
        .filter(|client| !client.process.is_forked())
        .collect()
}
