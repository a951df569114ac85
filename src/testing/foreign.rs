//! A lock holder that is not a client of the program.

use std::fmt;
use std::sync::Arc;

use crate::holder::READERS;
use crate::holder_id::HolderId;
use crate::protocol::fair::FairMutexKeys;
use crate::protocol::keys::{Keys, sibling_key};
use crate::protocol::mutex::MutexKeys;
use crate::protocol::primitive::{Acquire, AtRelease, Primitive, Queueing};
use crate::protocol::script::{Call, ScriptForm};
use crate::protocol::semaphore::SemaphoreKeys;
use crate::runtime::live_clients;

use super::reply::Reply;
use super::resp::read_request;
use super::shared::Shared;
use super::state::{FOREIGN_TTL, ServerState};

/// The owner in a foreign holder's id.
const OWNER: &str = "somebody-else";

const KEY_PREFIX: &str = "lock:";
const CHANNEL_PREFIX: &str = "lock_release:";

/// Another client, which holds a lock; see [`Server::hold`](super::Server::hold).
///
/// It renews its lease of 10 s until it is dropped or forgotten. While the server is paused or cut
/// off, it can neither renew nor release: if it is dropped then, the lock becomes free when its
/// lease has expired.
///
/// ```
/// # use leasehold::testing::Server;
/// # let server = Server::start();
/// let other = server.hold("seat:12A");
/// assert!(server.is_locked("seat:12A"));
/// drop(other); // releases the lock
/// assert!(!server.is_locked("seat:12A"));
/// ```
#[must_use = "the lock is released when this is dropped"]
pub struct Foreign {
    shared: Arc<Shared>,
    name: String,
    id: HolderId,
    is_forgotten: bool,
}

impl Foreign {
    /// Acquires the lock. If that fails, returns the reason.
    pub(super) fn hold(shared: &Arc<Shared>, name: &str) -> Result<Self, String> {
        let id = HolderId::fresh(OWNER);
        let keys = MutexKeys::of(keys(name));
        let acquire = keys.acquire(Acquire {
            id: &id,
            ttl: FOREIGN_TTL,
            tokens: 1,
            proposed: None,
            joins: false,
            after: None,
            queueing: Queueing::Barge,
        });
        let key = lock_key(name);
        shared.change(|state| match run(state, &acquire) {
            // Its token.
            Reply::Bulk(Some(_)) => {
                state.foreign.push((key, id.as_str().into()));
                Ok(())
            }
            Reply::Array(Some(items)) => Err(match items.get(1) {
                Some(Reply::Bulk(Some(value))) => {
                    format!("{} has it", String::from_utf8_lossy(value))
                }
                _ => "another holder has it".into(),
            }),
            Reply::Error(error) => Err(error),
            other => Err(format!("{other:?}")),
        })?;
        Ok(Self {
            shared: Arc::clone(shared),
            name: name.to_owned(),
            id,
            is_forgotten: false,
        })
    }

    /// Leaves the lock taken, as if the holder had crashed.
    ///
    /// The lock becomes free when its lease of 10 s has expired.
    /// [`Server::advance`](super::Server::advance) makes that time pass.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::testing::Server;
    /// # let server = Server::start();
    /// # let client = server.client();
    /// server.hold("seat:12A").forget(); // its holder has crashed
    /// assert!(client.mutex("seat:12A").try_lock()?.is_err());
    /// server.advance(Duration::from_secs(10)); // its lease has expired
    /// assert!(client.mutex("seat:12A").try_lock()?.is_ok());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn forget(mut self) {
        self.is_forgotten = true;
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let id = self.id.as_str().as_bytes();
        // This release also grants the lock to the first in its queue.
        let keys = FairMutexKeys::of(keys(&self.name));
        let release = keys.release(id, AtRelease::Usual);
        self.shared.change_if_running(|state| {
            state.foreign.retain(|(_, other)| other != id);
            if !self.is_forgotten && !state.faults.is_unreachable() {
                // The result is ignored: the lease may have expired or been lost.
                run(state, &release);
            }
        });
    }
}

impl fmt::Debug for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Foreign")
            .field("name", &self.name)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Returns whether the lock's key exists.
pub(super) fn is_locked(shared: &Shared, name: &str) -> bool {
    let mut state = shared.state.lock();
    state.run_on_data(&[b"EXISTS", &lock_key(name)]) == Reply::Int(1)
}

/// Takes the lock and the permits of this name from all holders, and makes the clients of this
/// process check the lost leases. Returns false if there was no holder.
pub(super) fn lose(shared: &Shared, name: &str) -> bool {
    let ended = shared.change(|state| state.ended_by(|state| release_all(state, name)));
    // The messages do not reach every old holder: a release publishes on the lock's channel only if
    // it grants to nobody, and a client without waiters does not listen to that channel.
    for client in live_clients::all() {
        for holder in &ended {
            client.suspect_lease(holder);
        }
    }
    !ended.is_empty()
}

fn release_all(state: &mut ServerState, name: &str) {
    if let Reply::Bulk(Some(holder)) = state.run_on_data(&[b"GET", &lock_key(name)]) {
        // This release also grants the lock to the first in its queue.
        let lock = FairMutexKeys::of(keys(name));
        run(state, &lock.release(&holder, AtRelease::Usual));
        if holder == READERS {
            state.run_on_data(&[b"DEL", &sibling_key(&lock_key(name), "readers")]);
        }
    }
    // Only scores from 0: the member `out`, which is no holder, has a negative score.
    let semaphore = SemaphoreKeys::of(keys(name), 1, 1);
    for holder in state.members_from(0, &sibling_key(&lock_key(name), "permits"), b"0") {
        run(state, &semaphore.release(&holder, AtRelease::Usual));
    }
}

fn keys(name: &str) -> Keys {
    Keys::new(name.into(), KEY_PREFIX, CHANNEL_PREFIX)
}

fn lock_key(name: &str) -> Vec<u8> {
    [KEY_PREFIX, name].concat().into_bytes()
}

/// Runs the script of a call, as the client would send it.
fn run(state: &mut ServerState, call: &Call<'_>) -> Reply {
    let mut request = Vec::new();
    call.pack(ScriptForm::Source, &mut request);
    match read_request(&request) {
        Ok(Some((words, _))) => state.eval_without_faults(&words),
        _ => unreachable!("the client packs whole requests"),
    }
}
