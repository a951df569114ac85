//! The lock as its user sees it: settings, and the calls that take it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::{Patience, acquire};
use crate::clock::Instant;
use crate::config::Settings;
use crate::error::{Cause, Error};
use crate::guard::MutexGuard;
use crate::holder::Holder;
use crate::kind::{Found, Keys, read_holder};
use crate::name::Name;
use crate::release::Unlocked;
use crate::server::{Beside, Fault, Lane};
use crate::settings::lock_settings;
use crate::shutdown::Core;
use crate::token::FencingToken;

/// A lock that at most one holder in the whole fleet has at a time.
///
/// Made by [`Client::mutex`](crate::Client::mutex); making, cloning and setting it up are cheap and
/// without I/O. Setters consume and return it and never fail: a bad value is reported by the first
/// call that locks.
///
/// # Leases and loss
///
/// What is held is a lease: it ends after the [`ttl`](Self::ttl) unless renewed, so that a crashed
/// holder does not keep the lock for ever. It is renewed in the background every third of the ttl.
/// A lease can be lost: see [`MutexGuard`] for how that is known at once, and
/// [`FencingToken`] for what makes even a paused holder harmless.
///
/// # Fairness
///
/// Within a client waiters are served first come, first served, and one of them at a time talks to
/// Redis; the others are [handed](Self::local_handoffs) the lock by those before them. Between clients whoever asks first
/// after a release gets the lock, and those come first that waited for a run of hand-offs to end. `try_lock` may overtake
/// waiters.
///
/// # Differences from `std::sync::Mutex`
///
/// It protects a name, not a value. Every call that takes it can fail, since Redis may be away. It
/// is not poisoned by a panic: the guard is dropped, which releases. Guards may be sent to other
/// threads. Like the standard one it is not reentrant: a thread that locks a name it holds waits for
/// itself (a debug build warns).
///
/// ```no_run
/// use std::time::Duration;
///
/// # let client = leasehold::Client::open("redis://127.0.0.1")?;
/// let table = client.mutex("table:7").ttl(Duration::from_secs(30));
/// match table.try_lock_for(Duration::from_millis(200))? {
///     Some(guard) => println!("booked under token {}", guard.fencing_token()),
///     None => println!("somebody else is booking this table"),
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
pub struct Mutex {
    core: Arc<Core>,
    keys: Arc<Keys>,
    settings: Settings,
}

/// Settings.
impl Mutex {
    pub(crate) fn new(core: Arc<Core>, keys: Arc<Keys>) -> Self {
        Self {
            core,
            keys,
            settings: Settings::default(),
        }
    }

    pub(crate) fn settings_mut(&mut self) -> &mut Settings {
        &mut self.settings
    }

    pub(crate) fn names(&self) -> &[Name] {
        &self.keys.names
    }

    /// How often in a row the lock may go from one thread of this client to the next without a trip to Redis.
    /// Defaults to 32; 0 turns it off. More than 63 counts as 63, since an acquire reserves 64 fencing tokens at the
    /// most.
    ///
    /// A guard that is released hands its lease to the call that has waited longest in this client, if that wants
    /// the lock with the lease's ttl of now and the same `renew_every`, `auto_renew` and `min_replicas`. The new
    /// holder has a guard, a [`lost`](MutexGuard::lost) and a higher fencing token of its own, and its own
    /// [`max_hold`](Self::max_hold) begins; the [`holder_id`](MutexGuard::holder_id) is the lease's and stays. It is
    /// sure of two thirds of the ttl at least: where less is left, or the lease is not renewed in the background,
    /// the one who lets go renews it first.
    ///
    /// So that other processes have their turn, the lock is really released after so many hand-offs, or once the
    /// lease is a second old, or as old as its ttl if that is shorter; those that hear it are then given a moment to come
    /// first. Until then they are not told that it went from hand to hand. A lease that was granted while nobody else waited in this client is always released.
    ///
    /// A key that a stranger deletes while the lease is handed on is missed at the next renewal, a third of the ttl
    /// after the last at the latest, or when the deletion is announced as a release: until then the holders here and
    /// one elsewhere may believe that they have the lock. So it is with a single holder too; the tokens of the one
    /// elsewhere are higher than any that is handed on here.
    #[must_use]
    pub fn local_handoffs(mut self, most: u32) -> Self {
        self.settings.handoffs = Some(most);
        self
    }
}

lock_settings!(Mutex);

/// Taking the lock.
impl Mutex {
    /// Takes the lock, waiting as long as somebody else holds it.
    ///
    /// Outlasts other holders and outages of Redis; gives up only when Redis has not answered for
    /// [`unreachable_for`](crate::ClientBuilder::unreachable_for).
    ///
    /// # Errors
    ///
    /// - [`Error::Config`]: the name or a setting cannot work.
    /// - [`Error::Unreachable`]: Redis has not answered for too long.
    /// - [`Error::Refused`], [`Error::WrongType`], [`Error::BadFence`]: Redis answered, and trying
    ///   again would not help.
    /// - [`Error::AttemptsUsedUp`]: only under [`WaitPolicy::Backoff`](crate::WaitPolicy::Backoff) with a limit.
    /// - [`Error::Closed`]: the client was shut down, before or while waiting.
    /// - [`Error::Thread`]: a thread of ours could not be started.
    pub fn lock(&self) -> Result<MutexGuard, Error> {
        // Without a deadline only an error ends the wait without the lock.
        Ok(self
            .acquire(Patience::Endless)?
            .expect("a lock or an error"))
    }

    /// Takes the lock if nobody holds it. `None`: somebody does.
    ///
    /// Returns within the command timeout, 1 s unless set. Where this client itself holds the name
    /// it says so without asking Redis. May overtake calls that wait.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock); [`Error::Unreachable`] already after the command timeout.
    pub fn try_lock(&self) -> Result<Option<MutexGuard>, Error> {
        self.acquire(Patience::None)
    }

    /// Takes the lock, waiting up to `limit` for it. `None`: somebody else still holds it then.
    ///
    /// Returns by then whatever state Redis is in. A limit too long for the clock is none; a zero
    /// one asks once, as [`try_lock`](Self::try_lock) does.
    ///
    /// # `None` or an error
    ///
    /// At the deadline the call returns `None` if one of these is true:
    ///
    /// - This client itself holds the lock.
    /// - The last answer during this call was that somebody else holds the lock, and every command sent since then was
    ///   answered. The answer may be one to another call of this client that waits for the same lock. A release by this
    ///   client counts as such an answer.
    /// - The last answer during this call was that somebody else holds the lock until the deadline or longer. Commands
    ///   sent since then may be unanswered.
    ///
    /// If that answer is older than a second, the call asks once more before the deadline. If none of the three is true,
    /// the call returns [`Error::Unreachable`] or [`Error::CircuitOpen`]: the lock may be free, and Redis could not be
    /// asked.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock); [`Error::Unreachable`] already if Redis could not be asked within
    /// `limit`.
    pub fn try_lock_for(&self, limit: Duration) -> Result<Option<MutexGuard>, Error> {
        if limit.is_zero() {
            return self.try_lock();
        }
        self.acquire(Patience::Until(Instant::now().after(limit)))
    }

    /// As [`try_lock_for`](Self::try_lock_for), until an instant. One that is past asks once.
    ///
    /// # Errors
    ///
    /// As [`try_lock_for`](Self::try_lock_for).
    pub fn try_lock_until(&self, at: std::time::Instant) -> Result<Option<MutexGuard>, Error> {
        self.try_lock_for(at.saturating_duration_since(std::time::Instant::now()))
    }

    /// Runs `section` under the lock: takes it as [`lock`](Self::lock) does, and releases it
    /// afterwards, also on a panic.
    ///
    /// ```no_run
    /// # let client = leasehold::Client::open("redis://127.0.0.1")?;
    /// let total = client.mutex("report").with(|guard| {
    ///     format!("written under token {}", guard.fencing_token())
    /// })?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), before the section has run; [`Error::Lost`] after it, if the lock
    /// was not held to its end: what the section did may have met another holder. A release without
    /// an answer is no error here, since the lock was held to the end; it is repeated in the
    /// background.
    pub fn with<T>(&self, section: impl FnOnce(&MutexGuard) -> T) -> Result<T, Error> {
        run(self.lock()?, section, MutexGuard::unlock)
    }

    /// As [`with`](Self::with) if nobody holds the lock. `None`: somebody does, and the section has
    /// not run.
    ///
    /// # Errors
    ///
    /// As [`try_lock`](Self::try_lock) and [`with`](Self::with).
    pub fn try_with<T>(&self, section: impl FnOnce(&MutexGuard) -> T) -> Result<Option<T>, Error> {
        match self.try_lock()? {
            Some(guard) => run(guard, section, MutexGuard::unlock).map(Some),
            None => Ok(None),
        }
    }

    fn acquire(&self, patience: Patience) -> Result<Option<MutexGuard>, Error> {
        let hold = acquire(&self.core.shared, &self.keys, &self.settings, patience)?;
        Ok(hold.map(|hold| MutexGuard::new(Arc::clone(&self.core), hold)))
    }
}

/// An operator's tools.
impl Mutex {
    /// Who holds the lock at this moment, as Redis says. `None`: nobody. Returns within the command
    /// timeout.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`], [`Error::Refused`], [`Error::WrongType`], [`Error::Config`],
    /// [`Error::Closed`].
    pub fn inspect(&self) -> Result<Option<Holder>, Error> {
        let shared = &self.core.shared;
        self.keys.check()?;
        shared.servers.check(&self.keys)?;
        shared.check_open()?;
        let until = Instant::now().after(shared.servers.command_timeout());
        let call = || {
            shared
                .servers
                .call(self.keys.inspect(), until, Lane::Capped)
        };
        let reply = match call() {
            // It changes nothing, so a connection that had died unnoticed need not fail it.
            Err(Fault::NotNow(_) | Fault::NoAnswer(_)) if Instant::now() < until => call(),
            reply => reply,
        };
        let reply = reply.map_err(|fault| shared.servers.error(fault))?;
        read_holder(&reply).ok_or_else(|| self.unreadable())
    }

    /// How many clients wait for the lock at this moment, as far as Redis knows: those that listen for
    /// its release. A client counts once however many of its threads wait, and goes on listening for
    /// some ten seconds after the last of them; one that waits under
    /// [`WaitPolicy::Backoff`](crate::WaitPolicy::Backoff) does not listen. Returns within the command timeout.
    ///
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect), but for `WrongType`. It needs the right `+pubsub|numsub`.
    pub fn waiting(&self) -> Result<u64, Error> {
        Ok(self.number(Beside::Listeners)?.unwrap_or(0))
    }

    /// The last fencing token that was drawn for the name, or reserved for [hand-offs](Self::local_handoffs), be it
    /// held or free now. `None` if none was within the last day. Returns within the command timeout.
    ///
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect); [`Error::BadFence`] if something else stands in its place.
    pub fn last_fencing_token(&self) -> Result<Option<FencingToken>, Error> {
        Ok(self.number(Beside::Token)?.map(FencingToken::new))
    }

    /// How many calls wait in the queue of a fair lock.
    pub(crate) fn queued(&self) -> Result<u64, Error> {
        self.core.shared.servers.check(&self.keys)?;
        Ok(self.number(Beside::Places)?.unwrap_or(0))
    }

    fn number(&self, what: Beside) -> Result<Option<u64>, Error> {
        let shared = &self.core.shared;
        self.keys.check()?;
        shared.check_open()?;
        let until = Instant::now().after(shared.servers.command_timeout());
        let ask = || shared.servers.number(&self.keys, what, until);
        let number = match ask() {
            // As for `inspect`.
            Err(Fault::NotNow(_) | Fault::NoAnswer(_)) if Instant::now() < until => ask(),
            number => number,
        };
        number.map_err(|fault| shared.servers.error(fault))
    }

    /// Takes the lock away from whoever holds it: looks, then deletes what it saw, if that is still
    /// there. True if it was. Waiters are woken. Returns within twice the command timeout.
    ///
    /// The holder learns of it at its next renewal, and at once if it hears releases; it may be in
    /// the middle of its work. For an operator who knows that the holder is dead.
    ///
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect). After [`Error::Unreachable`] the lock may have been taken away.
    pub fn force_unlock(&self) -> Result<bool, Error> {
        let Some(holder) = self.inspect()? else {
            return Ok(false);
        };
        let shared = &self.core.shared;
        let until = Instant::now().after(shared.servers.command_timeout());
        let call = self.keys.release(holder.value());
        let reply = shared
            .servers
            .call(call, until, Lane::Capped)
            .map_err(|fault| shared.servers.error(fault))?;
        let found = Found::read(&reply).ok_or_else(|| self.unreadable())?;
        if found == Found::Ours {
            log::warn!(name:% = self.keys; "forced {} from {holder:?}", self.keys);
        }
        Ok(found == Found::Ours)
    }

    fn unreadable(&self) -> Error {
        self.core
            .shared
            .servers
            .unreachable(Cause::text("a script gave an answer that is not its own"))
    }
}

/// Runs `section` under `guard`, and lets go of it afterwards.
pub(crate) fn run<G, T>(
    guard: G,
    section: impl FnOnce(&G) -> T,
    unlock: impl FnOnce(G) -> Result<Unlocked, Error>,
) -> Result<T, Error> {
    let result = section(&guard);
    match unlock(guard) {
        Ok(Unlocked::AlreadyLost(lost)) => Err(Error::Lost(lost)),
        // The release itself logs what went wrong with it.
        Ok(Unlocked::Released) | Err(_) => Ok(result),
    }
}

impl fmt::Debug for Mutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex")
            .field("name", &self.keys.names)
            .field("settings", &self.settings)
            .finish()
    }
}
