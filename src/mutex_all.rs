//! Several locks taken as one: settings, and the calls that take them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::config::Settings;
use crate::error::Error;
use crate::kind::Keys;
use crate::mutex::{Mutex, run};
use crate::mutex_all_guard::MutexAllGuard;
use crate::name::Name;
use crate::settings::lock_settings;
use crate::shutdown::Core;

/// Several locks that are taken together, all of them or none.
///
/// Made by [`Client::mutex_all`](crate::Client::mutex_all). It has the settings and the calls of
/// [`Mutex`], whose documentation holds here too, but for `inspect` and `force_unlock`: ask those of
/// [`Client::mutex`](crate::Client::mutex) for each name. A name is the same lock either way: whoever
/// holds it alone keeps out those who want it with others, and is waited for by them.
///
/// # All or none
///
/// On one server, with Sentinel, and on each server of a quorum, one script takes all of them, so that
/// nobody ever sees half a set, and no order in which callers name them can deadlock. In a cluster that
/// is so for the names of one slot (give them the same hash tag: `{order:7}:stock`, `{order:7}:bill`).
/// Those of several slots are taken slot by slot, in the order of the slots, and given back if a later
/// one is refused: still without deadlocks, but for a moment others may find a name taken by somebody
/// who then does not get it, and it takes a trip for each slot: with hundreds of them more than
/// [`try_lock`](Self::try_lock) has time for.
///
/// # Waiting
///
/// A call that waits does so for the name that it was refused for, and asks for all of them again when
/// that one is released. It holds none of them meanwhile. So nobody waits for a name that nobody works
/// with, but a set of names that are each wanted all the time may have to wait long.
///
/// # Losing
///
/// It is one lease: it is renewed as a whole, and losing one name is losing all. The others are then
/// released in the background, except after [`max_hold`](Self::max_hold), which leaves them to their ttl.
///
/// # Settings
///
/// Callbacks are called once for all names; `on_renew` is told the first of them. In a cluster `min_replicas` holds for
/// the master of each slot.
///
/// ```no_run
/// # let client = leasehold::Client::open("redis://127.0.0.1")?;
/// let guard = client.mutex_all(["account:1", "account:2"]).lock()?;
/// for name in guard.names() {
///     println!("{name} under token {}", guard.fencing_token_of(name).unwrap());
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
pub struct MutexAll(Mutex);

impl MutexAll {
    pub(crate) fn new(core: Arc<Core>, keys: Arc<Keys>) -> Self {
        // Even a set of one name: what is said of sets holds for all of them.
        Self(Mutex::new(core, keys).local_handoffs(0))
    }

    fn settings_mut(&mut self) -> &mut Settings {
        self.0.settings_mut()
    }
}

lock_settings!(MutexAll);

/// Taking the locks.
impl MutexAll {
    /// The names, each once, in the order in which they are taken: sorted, in a cluster by their slots
    /// first.
    pub fn names(&self) -> &[Name] {
        self.0.names()
    }

    /// Takes all of them, waiting as long as somebody else holds one.
    ///
    /// # Errors
    ///
    /// As [`Mutex::lock`]. [`Error::Config`] also if there is no name.
    pub fn lock(&self) -> Result<MutexAllGuard, Error> {
        self.0.lock().map(MutexAllGuard::new)
    }

    /// Takes all of them if nobody holds one. `None`: somebody does.
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock`] and [`lock`](Self::lock).
    pub fn try_lock(&self) -> Result<Option<MutexAllGuard>, Error> {
        Ok(self.0.try_lock()?.map(MutexAllGuard::new))
    }

    /// Takes all of them, waiting up to `limit`. `None`: somebody else still holds one then, by the rule of
    /// [`Mutex::try_lock_for`](crate::Mutex::try_lock_for), applied to the name that this call waits for.
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock_for`] and [`lock`](Self::lock).
    pub fn try_lock_for(&self, limit: Duration) -> Result<Option<MutexAllGuard>, Error> {
        Ok(self.0.try_lock_for(limit)?.map(MutexAllGuard::new))
    }

    /// As [`try_lock_for`](Self::try_lock_for), until an instant. One that is past asks once.
    ///
    /// # Errors
    ///
    /// As [`try_lock_for`](Self::try_lock_for).
    pub fn try_lock_until(&self, at: std::time::Instant) -> Result<Option<MutexAllGuard>, Error> {
        Ok(self.0.try_lock_until(at)?.map(MutexAllGuard::new))
    }

    /// Runs `section` under all of them: takes them as [`lock`](Self::lock) does, and releases them
    /// afterwards, also on a panic.
    ///
    /// # Errors
    ///
    /// As [`Mutex::with`].
    pub fn with<T>(&self, section: impl FnOnce(&MutexAllGuard) -> T) -> Result<T, Error> {
        run(self.lock()?, section, MutexAllGuard::unlock)
    }

    /// As [`with`](Self::with) if nobody holds one of them. `None`: somebody does, and the section has
    /// not run.
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_with`].
    pub fn try_with<T>(
        &self,
        section: impl FnOnce(&MutexAllGuard) -> T,
    ) -> Result<Option<T>, Error> {
        match self.try_lock()? {
            Some(guard) => run(guard, section, MutexAllGuard::unlock).map(Some),
            None => Ok(None),
        }
    }
}

impl fmt::Debug for MutexAll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MutexAll").field(&self.0).finish()
    }
}
