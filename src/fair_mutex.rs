//! The fair lock as its user sees it: first come, first served, in all processes together.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::config::Settings;
use crate::error::Error;
use crate::guard::MutexGuard;
use crate::holder::Holder;
use crate::kind::Keys;
use crate::mutex::Mutex;
use crate::settings::lock_settings;
use crate::shutdown::Core;
use crate::token::FencingToken;

/// A lock that is passed on to whoever has waited longest, in all processes together.
///
/// Made by [`Client::fair_mutex`](crate::Client::fair_mutex). It has the settings and the calls of [`Mutex`], whose
/// documentation holds here too, but for what is said below. For one server, Sentinel and Cluster; over a quorum of
/// independent servers the first call that locks is an [`Error::Config`].
///
/// # Fairness
///
/// Every waiting call has a place of its own in a queue in Redis. The release makes the first of them the holder and
/// tells its client, which wakes up with the lock: no trip to Redis lies between. A newcomer goes behind those who wait,
/// and a free name that nobody waits for takes one trip, as with [`Mutex`]. The order is that in which Redis was asked;
/// `try_lock` never overtakes.
///
/// Plain and fair locks of one name keep each other out, but plain ones know nothing of the queue: where somebody
/// calls [`Mutex::lock`], it may get the lock before those who wait here, and waits for long where they are many.
///
/// # The dead, the slow and the unheard
///
/// Who waits says so again every second, or every quarter of the ttl if that is less, in one command for all threads
/// of a client. A place of which nothing was heard for 3 s, or for the ttl if that is less, is passed over; a call that
/// wakes up after such a pause begins again at the end. The lock is passed on for that time only, until the new
/// holder's first renewal, which is sent some milliseconds later (without [`auto_renew`](Self::auto_renew) too) and
/// makes it the ttl. So a process that dies while it waits costs the others 3 s and what it takes to notice, up to a
/// second; a message that gets lost, a lock that ran out, and one that somebody deleted cost a second.
///
/// Where Redis does not let us subscribe or publish, and under [`WaitPolicy::Backoff`](crate::WaitPolicy::Backoff), a call hears of its turn by
/// the next such command.
///
/// # Settings
///
/// Some settings of [`Mutex`] mean a little more here:
///
/// - `renew_every`, `auto_renew`: the first renewal of a lock that was waited for is sent some milliseconds after
///   the grant, even without `auto_renew`, and makes the lease last the ttl. A lock that is released before needs none.
/// - `wait`: under [`WaitPolicy::Backoff`](crate::WaitPolicy::Backoff) a call keeps its place in the queue, so it asks
///   Redis every second, or every quarter of the ttl if that is less, however long its pauses are. Each answer that it
///   still waits counts as one attempt.
/// - `min_replicas`: a call whose turn has come renews before it returns, because only renewals and acquires of a
///   free lock are acknowledged.
///
/// ```no_run
/// use std::time::Duration;
///
/// # let client = leasehold::Client::open("redis://127.0.0.1")?;
/// let printer = client.fair_mutex("printer:2");
/// if let Some(guard) = printer.try_lock_for(Duration::from_secs(60))? {
///     println!("printing under token {}", guard.fencing_token());
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
pub struct FairMutex(Mutex);

impl FairMutex {
    pub(crate) fn new(core: Arc<Core>, keys: Arc<Keys>) -> Self {
        // It goes to the first in its queue, which is in Redis.
        Self(Mutex::new(core, keys).local_handoffs(0))
    }

    fn settings_mut(&mut self) -> &mut Settings {
        self.0.settings_mut()
    }
}

lock_settings!(FairMutex);

/// Taking the lock.
impl FairMutex {
    /// Takes the lock, waiting behind those who came before.
    ///
    /// # Errors
    ///
    /// As [`Mutex::lock`]. [`Error::Config`] also over a quorum.
    pub fn lock(&self) -> Result<MutexGuard, Error> {
        self.0.lock()
    }

    /// Takes the lock if nobody holds it and nobody waits for it. `None`: somebody does.
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock`] and [`lock`](Self::lock).
    pub fn try_lock(&self) -> Result<Option<MutexGuard>, Error> {
        self.0.try_lock()
    }

    /// Takes the lock, waiting up to `limit` behind those who came before. `None`: it was not this call's turn by then,
    /// by the rule of [`Mutex::try_lock_for`].
    ///
    /// A call that gives up leaves the queue; where its turn comes at that moment, the lock is passed on to the next.
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock_for`] and [`lock`](Self::lock).
    pub fn try_lock_for(&self, limit: Duration) -> Result<Option<MutexGuard>, Error> {
        self.0.try_lock_for(limit)
    }

    /// As [`try_lock_for`](Self::try_lock_for), until an instant. One that is past asks once.
    ///
    /// # Errors
    ///
    /// As [`try_lock_for`](Self::try_lock_for).
    pub fn try_lock_until(&self, at: std::time::Instant) -> Result<Option<MutexGuard>, Error> {
        self.0.try_lock_until(at)
    }

    /// Runs `section` under the lock: takes it as [`lock`](Self::lock) does, and releases it afterwards, also on a panic.
    ///
    /// # Errors
    ///
    /// As [`Mutex::with`] and [`lock`](Self::lock).
    pub fn with<T>(&self, section: impl FnOnce(&MutexGuard) -> T) -> Result<T, Error> {
        self.0.with(section)
    }

    /// As [`with`](Self::with) if nobody holds the lock and nobody waits for it. `None`: somebody does, and the section
    /// has not run.
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_with`] and [`lock`](Self::lock).
    pub fn try_with<T>(&self, section: impl FnOnce(&MutexGuard) -> T) -> Result<Option<T>, Error> {
        self.0.try_with(section)
    }
}

/// An operator's tools.
impl FairMutex {
    /// As [`Mutex::inspect`].
    ///
    /// # Errors
    ///
    /// As [`Mutex::inspect`].
    pub fn inspect(&self) -> Result<Option<Holder>, Error> {
        self.0.inspect()
    }

    /// How many calls wait in the queue at this moment, in all processes together; those that have died of late are
    /// among them. Returns within the command timeout.
    ///
    /// # Errors
    ///
    /// As [`Mutex::inspect`]. It needs the right `+llen`.
    pub fn waiting(&self) -> Result<u64, Error> {
        self.0.queued()
    }

    /// As [`Mutex::last_fencing_token`].
    ///
    /// # Errors
    ///
    /// As [`Mutex::last_fencing_token`].
    pub fn last_fencing_token(&self) -> Result<Option<FencingToken>, Error> {
        self.0.last_fencing_token()
    }

    /// As [`Mutex::force_unlock`]. The lock goes to the first of those who wait.
    ///
    /// # Errors
    ///
    /// As [`Mutex::force_unlock`].
    pub fn force_unlock(&self) -> Result<bool, Error> {
        self.0.force_unlock()
    }
}

impl fmt::Debug for FairMutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FairMutex").field(&self.0).finish()
    }
}
