//! The guard of several locks that are held together.

use std::fmt;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::error::Error;
use crate::guard::MutexGuard;
use crate::holder::HolderId;
use crate::lost::Lost;
use crate::name::Name;
use crate::release::Unlocked;
use crate::token::FencingToken;

/// Several locks that are held; when this is dropped (falls out of scope), all of them are released.
///
/// One lease under one holder id: what [`MutexGuard`] says of leases, loss and dropping holds for all
/// of the names together. See [`MutexAll`](crate::MutexAll).
///
/// ```no_run
/// # let client = leasehold::Client::open("redis://127.0.0.1")?;
/// let guard = client.mutex_all(["stock:apples", "stock:pears"]).lock()?;
/// guard.ensure_held()?;
/// guard.unlock()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "if unused the locks are released at once"]
#[clippy::has_significant_drop]
pub struct MutexAllGuard(MutexGuard);

impl MutexAllGuard {
    pub(crate) fn new(guard: MutexGuard) -> Self {
        Self(guard)
    }

    /// The names that are held, each once, in the order in which they were taken: sorted, in a cluster
    /// by their slots first.
    pub fn names(&self) -> &[Name] {
        self.0.names()
    }

    /// A number higher than that of every earlier holder of this name, for the resource that it stands
    /// for. `None`: this guard does not hold such a name.
    ///
    /// Those of two names have nothing to do with each other, and may be the same.
    pub fn fencing_token_of(&self, name: impl Into<Name>) -> Option<FencingToken> {
        self.0.fencing_token_of(&name.into())
    }

    /// The lease's own name, which is the value of each lock's key in Redis.
    pub fn holder_id(&self) -> &HolderId {
        self.0.holder_id()
    }

    /// Whether all of them are surely held at this moment. Local, no I/O.
    pub fn is_held(&self) -> bool {
        self.0.is_held()
    }

    /// How long all of them are surely held from now on, unless renewed. `None`: they are lost. Local,
    /// no I/O.
    pub fn remaining(&self) -> Option<Duration> {
        self.0.remaining()
    }

    /// For `?` inside the critical section. Local, no I/O.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if not all of them are surely held at this moment.
    pub fn ensure_held(&self) -> Result<(), Error> {
        self.0.ensure_held()
    }

    /// As [`MutexGuard::lost`]: one message when one of them is lost.
    pub fn lost(&self) -> Receiver<Lost> {
        self.0.lost()
    }

    /// Asks Redis for the whole ttl of all of them anew, now. Returns within the command timeout.
    ///
    /// # Errors
    ///
    /// As [`MutexGuard::renew`].
    pub fn renew(&self) -> Result<(), Error> {
        self.0.renew()
    }

    /// Sets another ttl for all of them, as [`MutexGuard::extend`] does.
    ///
    /// # Errors
    ///
    /// As [`MutexGuard::extend`].
    pub fn extend(&self, ttl: Duration) -> Result<(), Error> {
        self.0.extend(ttl)
    }

    /// Releases all of them, and says whether all were held until now. Those that were are released
    /// even if another was lost. Returns within the command timeout.
    ///
    /// # Errors
    ///
    /// As [`MutexGuard::unlock`].
    pub fn unlock(self) -> Result<Unlocked, Error> {
        self.0.unlock()
    }
}

impl fmt::Debug for MutexAllGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MutexAllGuard").field(&self.0).finish()
    }
}
