//! The guard of a held lock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};

use crate::clock::Instant;
use crate::error::Error;
use crate::holder_id::HolderId;
use crate::lease::held::HeldLease;
use crate::lease::status::LeaseStatus;
use crate::lock::downgrade::downgrade;
use crate::lock::release::{keep_until, release};
use crate::lock::renew::{ensure_held, renew, set_ttl};
use crate::lock::shutdown::{Core, end_calls, stop};
use crate::lost::Lost;
use crate::name::Name;
use crate::protocol::primitive::Primitive;
use crate::runtime::Runtime;
use crate::token::FencingToken;

/// The guard of a held lock. Dropping it releases the lock.
///
/// Dropping blocks for one round trip to Redis, and never longer than the command timeout. It never
/// panics, and only logs failures; [`unlock`](Self::unlock) returns them.
///
/// # Leases and loss
///
/// A lease can end before it is released: the process was paused, the network was down for longer
/// than the ttl, or the key was deleted. [`is_held`](Self::is_held) reads a local clock. Whatever
/// the network does, it returns false from the moment at which another client could get the lock,
/// unless the key is deleted or replaced by force. The holder notices that at its next renewal.
///
/// Call `is_held` or [`ensure_held`](Self::ensure_held) before each step that must not be done
/// twice, or wait on the [`lost`](Self::lost) channel during the work. No lock can detect a pause
/// between the check and the step; only the [`fencing_token`](Self::fencing_token) protects against
/// it.
///
/// ```
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
/// let guard = client.mutex("nightly-report").lock()?;
/// for page in 0..100 {
///     guard.ensure_held()?;
///     println!("page {page}, token {}", guard.fencing_token());
/// }
/// guard.unlock()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "if unused the lock is released at once"]
#[clippy::has_significant_drop]
pub struct MutexGuard {
    /// `None` only at the end of `drop`.
    core: Option<Arc<Core>>,
    hold: Arc<HeldLease>,
    /// Identifies this holder: local hand-offs give a lease several holders, one after another.
    token: FencingToken,
    /// The deadline of the release, and of ending the client if this guard is its last handle.
    /// `None` until the lock is released, or its key is left to expire: after that, dropping the
    /// guard releases nothing.
    release_by: Option<Instant>,
}

impl MutexGuard {
    pub(super) fn new(core: Arc<Core>, hold: Arc<HeldLease>) -> Self {
        Self {
            core: Some(core),
            token: hold.token(),
            hold,
            release_by: None,
        }
    }

    /// Returns the lock's name.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let guard = client.mutex("account:123").lock()?;
    /// println!("{} is ours", guard.name());
    /// # assert_eq!(guard.name(), "account:123");
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn name(&self) -> &Name {
        self.hold.keys.key(0).name
    }

    pub(super) fn names(&self) -> &[Name] {
        &self.hold.keys.names
    }

    pub(super) fn fencing_token_of(&self, name: &Name) -> Option<FencingToken> {
        self.hold.token_of(name, self.token)
    }

    /// Returns the fencing token, which is higher than that of every earlier holder.
    ///
    /// Pass it to the resource that the lock protects.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let account = client.mutex("account:123");
    /// let first = account.lock()?;
    /// let first_token = first.fencing_token();
    /// drop(first);
    /// assert!(account.lock()?.fencing_token() > first_token);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn fencing_token(&self) -> FencingToken {
        self.token
    }

    /// Returns the id of the lease, which is the value of the lock's key in Redis.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let account = client.mutex("account:123");
    /// let guard = account.lock()?;
    /// let holder = account.inspect()?.expect("the guard holds it");
    /// assert_eq!(holder.holder_id(), Some(guard.holder_id()));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn holder_id(&self) -> &HolderId {
        &self.hold.id
    }

    /// Returns true only if the lock is certainly held at this moment.
    ///
    /// Reads a local clock and does no I/O. If the key was deleted or the lock was released by
    /// force, the lock counts as held until the next renewal.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// # let pages = ["title", "chapter 1"];
    /// let guard = client.mutex("report").lock()?;
    /// for page in pages {
    ///     if !guard.is_held() {
    ///         break; // another process may be writing the report
    ///     }
    ///     println!("writing {page}");
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn is_held(&self) -> bool {
        self.remaining().is_some()
    }

    /// Returns how long the lock is certainly held without a renewal; `None` if it is lost.
    ///
    /// Reads a local clock and does no I/O. If the key was deleted or the lock was released by
    /// force, the lock counts as held until the next renewal.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let guard = client.mutex("report").lock()?;
    /// // Is there time for a step of 2 s, even if no renewal succeeds?
    /// if guard.remaining() > Some(Duration::from_secs(2)) {
    ///     println!("writing the next page");
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn remaining(&self) -> Option<Duration> {
        match self.status() {
            Ok(LeaseStatus::Held(remaining)) => Some(remaining),
            _ => None,
        }
    }

    /// Returns [`Error::Forked`] in a child of the process that holds the lock, before it takes
    /// any lock.
    fn status(&self) -> Result<LeaseStatus, Error> {
        self.check_process()?;
        Ok(self.hold.status_for(self.token, Instant::now()))
    }

    fn check_process(&self) -> Result<(), Error> {
        self.runtime().process.check()
    }

    /// Returns an error unless the lock is certainly held.
    ///
    /// Reads a local clock and does no I/O. If the key was deleted or the lock was released by
    /// force, the lock counts as held until the next renewal.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// # fn charge(card: &str) {}
    /// let guard = client.mutex("order:7").lock()?;
    /// guard.ensure_held()?; // immediately before the step that must not be done twice
    /// charge("…4242");
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lock is not certainly held at this moment, and [`Error::Forked`] in
    /// a fork of the process that holds it.
    pub fn ensure_held(&self) -> Result<(), Error> {
        self.check_process()?;
        ensure_held(&self.hold, self.token)
    }

    /// Returns a channel that receives one message when the lock is lost, for use with `select!`.
    ///
    /// The channel is disconnected after that message, or when the lock is released. Each call
    /// creates another channel, which the lease keeps until then: call this once, before a loop.
    ///
    /// After a fork, a channel from before it receives nothing in the child. One that is created
    /// in the child receives [`Lost::Forked`] at once.
    ///
    /// ```
    /// use leasehold::crossbeam_channel::select;
    /// # let (sender, done) = leasehold::crossbeam_channel::bounded(1);
    /// # sender.send(()).unwrap();
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let guard = client.mutex("job").lock()?;
    /// let lost = guard.lost();
    /// select! {
    ///     recv(lost) -> why => println!("stop: {why:?}"),
    ///     recv(done) -> _ => println!("done"),
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn lost(&self) -> Receiver<Lost> {
        if self.check_process().is_err() {
            let (sender, receiver) = bounded(1);
            // The channel has room for one message.
            let _ = sender.try_send(Lost::Forked);
            return receiver;
        }
        self.hold.listen(self.token, Instant::now())
    }

    /// Renews the lease for the full ttl, now. Returns within the command timeout.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let guard = client.mutex("report").auto_renew(false).lock()?;
    /// // … one chapter …
    /// guard.renew()?; // the full ttl for the next one
    /// # assert!(guard.is_held());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`] if the lock is lost.
    /// - Any other error, such as [`Error::Unreachable`], if the lease was not renewed. The lock is
    ///   still held for [`remaining`](Self::remaining).
    pub fn renew(&self) -> Result<(), Error> {
        self.check_process()?;
        let runtime = self.runtime();
        let until = Instant::now().after(runtime.deployment.command_timeout());
        renew(runtime, &self.hold, self.token, until)
    }

    /// Sets the lease's ttl, for now and for later renewals.
    ///
    /// The lease lasts `ttl` from now on, whether that is longer or shorter than before. Returns
    /// within the command timeout. To leave the lock taken for a time after the guard has ended,
    /// call [`keep_for`](Self::keep_for).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let guard = client.mutex("report").lock()?;
    /// // Keep the lock if Redis restarts during the upload.
    /// guard.set_ttl(Duration::from_secs(60))?;
    /// # assert!(guard.remaining() > Some(Duration::from_secs(30)));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::Config`] if `ttl` is invalid.
    /// - [`Error::Lost`] if the lock is lost.
    /// - Any other error, such as [`Error::Unreachable`], if Redis did not confirm the change. The
    ///   lock is still held for [`remaining`](Self::remaining).
    ///
    /// If Redis did not answer, the command may still run:
    ///
    /// - After shortening, `remaining` is never more than the shorter ttl.
    /// - After lengthening, the key may last for up to twice the longer ttl: the command may run
    ///   just before the key expires. If this process dies, the lock stays held for that time. The
    ///   release is repeated for that long, and the lease is not handed to another thread of this
    ///   client.
    pub fn set_ttl(&self, ttl: Duration) -> Result<(), Error> {
        self.check_process()?;
        set_ttl(self.runtime(), &self.hold, self.token, ttl)
    }

    /// Releases the lock; fails if it was not held any more.
    ///
    /// Returns within the command timeout.
    ///
    /// ```
    /// use leasehold::Error;
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    ///
    /// let guard = client.mutex("report").lock()?;
    /// if let Err(Error::Lost(lost)) = guard.unlock() {
    ///     eprintln!("check the report, another process may have written it: {lost}");
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`] if the lease had ended before: what was done under it may have overlapped
    ///   with another holder. A new holder keeps the lock.
    /// - [`Error::Unreachable`], [`Error::Refused`] or [`Error::Thread`] if Redis did not confirm
    ///   the release. If an earlier release got no answer and the server has answered nothing
    ///   since, the call returns this at once. The lease was valid by this client's clock until
    ///   now, so what was done under it stands: do not repeat it.
    ///   [`Mutex::with`](crate::Mutex::with) does not report this error. The release is repeated in
    ///   the background. Until it succeeds, the lock stays held, for at most the longest of these
    ///   times that applies:
    ///   - its ttl;
    ///   - a longer ttl, if a [`set_ttl`](Self::set_ttl) that requested it got no reply;
    ///   - twice the longer of these, if a renewal or `set_ttl` got no reply: that command may run
    ///     just before the key expires.
    /// - [`Error::WrongType`] if another program replaced the key by one of another type. The lock
    ///   was lost.
    pub fn unlock(mut self) -> Result<(), Error> {
        self.release()
    }

    /// Ends the guard, but leaves the lock taken until `at_least` after it was acquired.
    ///
    /// For a job that one of several hosts must run once, even if a host's clock lags. The lock is
    /// not renewed any more. Its key expires at that time, or two command timeouts from now if that
    /// is later, whether this process lives on or not. If the time is over already, this releases
    /// the lock. Waiting calls get no message when a key expires. They ask again at the expiry or
    /// within a second of it. Returns within the command timeout.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let nightly = client.mutex("nightly");
    /// if let Ok(guard) = nightly.try_lock()? {
    ///     println!("writing the report"); // takes a second
    ///     guard.keep_for(Duration::from_secs(60))?;
    /// }
    /// assert!(nightly.try_lock()?.is_err());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::Config`] if no ttl can be that long. The lock is released.
    /// - [`Error::Lost`] if the lock was lost before.
    /// - Any other error, such as [`Error::Unreachable`], if Redis did not confirm the change. The
    ///   lock is not renewed any more. It becomes free at the end of its old ttl. If the command
    ///   runs after all, the lock becomes free at the requested time, or later by the delay of the
    ///   command. If the time was over, the error is that of [`unlock`](Self::unlock).
    pub fn keep_for(mut self, at_least: Duration) -> Result<(), Error> {
        self.check_process()?;
        let now = Instant::now();
        let end = self.hold.since().unwrap_or(now).after(at_least);
        if end <= now {
            return self.release();
        }
        let kept = keep_until(self.runtime(), &self.hold, self.token, end);
        if let Ok(LeaseStatus::Released) = self.status() {
            self.release_by = Some(now.after(self.runtime().deployment.command_timeout()));
        }
        kept
    }

    fn runtime(&self) -> &Runtime {
        let core = self.core.as_ref();
        &core.expect("only `drop` takes it").runtime
    }

    /// Makes the holder a reader. Does nothing in a child of the process that holds the lock.
    pub(super) fn downgrade(&self, reader: Arc<dyn Primitive>) {
        if self.check_process().is_ok() {
            downgrade(self.runtime(), &self.hold, self.token, reader);
        }
    }

    /// Formats the guard under the name of the type that contains it.
    pub(super) fn fmt_as(&self, guard: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = match self.status() {
            Ok(status) => format!("{status:?}"),
            Err(error) => format!("{error:?}"),
        };
        f.debug_struct(guard)
            .field("name", &self.hold.keys.names)
            .field("holder_id", &self.hold.id)
            .field("fencing_token", &self.token)
            .field("status", &format_args!("{status}"))
            .finish()
    }

    fn release(&mut self) -> Result<(), Error> {
        self.check_process()?;
        let now = Instant::now();
        let timeout = self.runtime().deployment.command_timeout();
        let deadline = now.after(timeout);
        self.release_by = Some(deadline);
        release(self.runtime(), &self.hold, self.token, now, deadline)
    }
}

impl Drop for MutexGuard {
    fn drop(&mut self) {
        if self.check_process().is_err() {
            // The child never drops the lease either: see the drop of `Core`.
            std::mem::forget(Arc::clone(&self.hold));
            return;
        }
        if self.release_by.is_none() {
            // A failure is logged where it happens.
            let _ = self.release();
        }
        // `into_inner` gives the core to exactly one of several guards that are dropped at the same
        // time. With `strong_count`, each of them could count the others and leave the end of the
        // client to the drop of `Core`, which waits for longer.
        if let Some(until) = self.release_by
            && let Some(core) = self.core.take().and_then(Arc::into_inner)
            && !core.runtime.is_closed()
        {
            // One deadline covers the release and joining the threads: dropping a guard blocks for
            // at most one command timeout.
            end_calls(&core.runtime, until);
            stop(&core.runtime, until);
        }
    }
}

impl fmt::Debug for MutexGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_as("MutexGuard", f)
    }
}
