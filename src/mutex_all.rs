//! Several locks taken as one: settings, and the calls that take them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::kind::Keys;
use crate::lost::Lost;
use crate::mutex::{Mutex, run};
use crate::mutex_all_guard::MutexAllGuard;
use crate::name::Name;
use crate::renewed::Renewed;
use crate::shutdown::Core;
use crate::wait::WaitPolicy;

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

/// Settings.
impl MutexAll {
    pub(crate) fn new(core: Arc<Core>, keys: Arc<Keys>) -> Self {
        // Even a set of one name: what is said of sets holds for all of them.
        Self(Mutex::new(core, keys).local_handoffs(0))
    }

    /// As [`Mutex::ttl`].
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Self(self.0.ttl(ttl))
    }

    /// As [`Mutex::renew_every`].
    #[must_use]
    pub fn renew_every(self, interval: Duration) -> Self {
        Self(self.0.renew_every(interval))
    }

    /// As [`Mutex::auto_renew`].
    #[must_use]
    pub fn auto_renew(self, renewed: bool) -> Self {
        Self(self.0.auto_renew(renewed))
    }

    /// As [`Mutex::max_hold`].
    #[must_use]
    pub fn max_hold(self, longest: Duration) -> Self {
        Self(self.0.max_hold(longest))
    }

    /// As [`Mutex::trace_id`].
    #[must_use]
    pub fn trace_id(self, id: impl Into<Arc<str>>) -> Self {
        Self(self.0.trace_id(id))
    }

    /// As [`Mutex::on_lost`]: called once for all names.
    #[must_use]
    pub fn on_lost(self, callback: impl Fn(&Lost) + Send + Sync + 'static) -> Self {
        Self(self.0.on_lost(callback))
    }

    /// As [`Mutex::on_renew`]: called once for all names, with the first of them.
    #[must_use]
    pub fn on_renew(self, callback: impl Fn(&Renewed) + Send + Sync + 'static) -> Self {
        Self(self.0.on_renew(callback))
    }

    /// As [`Mutex::wait`].
    #[must_use]
    pub fn wait(self, policy: WaitPolicy) -> Self {
        Self(self.0.wait(policy))
    }

    /// As [`Mutex::min_replicas`]; in a cluster, for the master of each slot.
    #[must_use]
    pub fn min_replicas(self, count: usize, within: Duration) -> Self {
        Self(self.0.min_replicas(count, within))
    }
}

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

    /// Takes all of them, waiting up to `limit`. `None`: somebody else still holds one then.
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
