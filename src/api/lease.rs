//! The lease of a guard: what the guards of all kinds of lock have in common.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};

use crate::client::hold::{AnyHolding, Hold};
use crate::client::shutdown::{Core, stop};
use crate::clock::Instant;
use crate::error::Error;
use crate::holder_id::HolderId;
use crate::lease::status::LeaseStatus;
use crate::lost::Lost;
use crate::name::Name;
use crate::protocol::primitive::Primitive;
use crate::runtime::Runtime;
use crate::token::FencingToken;

/// The lease of a guard: the time-limited hold on a lock, on several names, or on permits.
///
/// Every guard dereferences to its lease: [`MutexGuard`](crate::MutexGuard),
/// [`MutexAllGuard`](crate::MutexAllGuard), [`RwLockReadGuard`](crate::RwLockReadGuard),
/// [`RwLockWriteGuard`](crate::RwLockWriteGuard) and [`SemaphorePermit`](crate::SemaphorePermit).
/// So these calls work on all guards, and a function that takes a `&Lease` accepts each of them:
///
/// ```
/// use leasehold::{Error, Lease};
///
/// fn print(lease: &Lease) -> Result<(), Error> {
///     for page in 0..100 {
///         lease.ensure_held()?;
///         println!("page {page}, token {}", lease.fencing_token());
///     }
///     Ok(())
/// }
///
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
/// let (report, printers) = (client.mutex("report"), client.semaphore("printers", 2));
/// let (guard, permit) = (report.lock()?, printers.acquire()?);
/// print(&guard)?;
/// print(&permit)?;
/// guard.unlock()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// For a set of names, the rules of this page apply to all of them together. For a semaphore, they
/// apply to all permits of one call.
///
/// # Loss
///
/// A lease can end before it is released: the process was paused, the network was down for longer
/// than the ttl, or the key was deleted. [`is_held`](Self::is_held), [`remaining`](Self::remaining)
/// and [`ensure_held`](Self::ensure_held) read a local clock and do no I/O. Whatever the network
/// does, `is_held` returns false from the moment at which another client could get the lock, unless
/// the key is deleted or replaced, or the lock is released by force. The holder notices that at its
/// next renewal.
///
/// The local clock does not count the time for which a hypervisor has paused the machine. If the
/// wall clock shows that the lease may be over, these calls say that it is not held until a renewal
/// is confirmed. `ensure_held` then fails with [`Lost::Expired`], and may succeed later: the wall
/// clock can be wrong, so this is not yet a loss. See the
/// [limitations](crate::guide::guarantees#limitations).
///
/// Call `is_held` or `ensure_held` before each step that must not be done twice, or wait on the
/// [`lost`](Self::lost) channel during the work. No lock can detect a pause between the check and
/// the step; only the [`fencing_token`](Self::fencing_token) protects against it.
///
/// # Release
///
/// Dropping a guard releases. It blocks for one round trip to Redis, and never longer than the
/// command timeout. It never panics, and only logs failures, as it logs a lease that was over. The
/// calls `unlock` and `release` of the guards release, too, within the command timeout. They fail
/// with
///
/// - [`Error::Lost`] if the lease had ended before: what was done under it may have overlapped with
///   another holder. A new holder keeps the lock. Of a set, the other names are released.
/// - [`Error::Unreachable`], [`Error::Refused`] or [`Error::Thread`] if Redis did not confirm the
///   release. If an earlier release got no answer and the server has answered nothing since, the
///   call returns this at once. The lease was valid by this client's clock until now, so what was
///   done under it stands: do not repeat it. [`Mutex::with`](crate::Mutex::with) does not report
///   this error. The release is repeated in the background. Until it succeeds, the lock stays held,
///   for at most the longest of these times that applies:
///   - its ttl;
///   - a longer ttl, if a [`set_ttl`](Self::set_ttl) that requested it got no reply;
///   - twice the longer of these, if a renewal or `set_ttl` got no reply: that command may run just
///     before the key expires.
/// - [`Error::WrongType`] if another program replaced the key by one of another type, and no
///   renewal has found that before. The lock was lost.
/// - [`Error::Forked`] in a fork of the process that holds the lock.
#[clippy::has_significant_drop]
pub struct Lease {
    /// `None` only at the end of `drop`.
    core: Option<Arc<Core>>,
    hold: Hold,
    /// The first of the names, as the caller gave it.
    name: Name,
    /// The deadline of the release, and of ending the client if this guard is its last handle.
    /// `None` until the guard releases.
    release_by: Option<Instant>,
}

impl Lease {
    pub(super) fn new(core: Arc<Core>, hold: Hold) -> Self {
        Self {
            core: Some(core),
            // A call for a set without names fails.
            name: hold.names()[0].as_given(),
            hold,
            release_by: None,
        }
    }

    /// Returns the name of the lock or semaphore; of a set, the first of its names.
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
        &self.name
    }

    pub(super) fn names(&self) -> &[Name] {
        self.hold.names()
    }

    /// Returns the fencing token, which is higher than that of every earlier holder.
    ///
    /// Pass it to the [resource that the lock protects](crate::guide::fencing). Some guards have
    /// another token:
    ///
    /// - **A reader** has the last token drawn for the name, that of the last writer. Readers share
    ///   it with each other. The next writer's token is higher.
    /// - **A set** has a token for each name: see
    ///   [`MutexAllGuard::fencing_token_of`](crate::MutexAllGuard::fencing_token_of). This call
    ///   returns the one of the first [`name`](Self::name), which says nothing about the others.
    /// - **Permits** have a number that is unique among all grants of the semaphore, for logs and
    ///   idempotency keys. Numbers usually rise in the order of the grants. A call that missed the
    ///   message of its grant has a number that was drawn when it learned of the grant: it is
    ///   higher than those of the grants in between. The number is no fence for a semaphore with
    ///   more than one permit: a resource that takes only the highest number would refuse holders
    ///   that are alive.
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
        self.hold.token()
    }

    pub(super) fn fencing_token_of(&self, name: &Name) -> Option<FencingToken> {
        self.hold.token_of(name)
    }

    pub(super) fn holder_id_of(&self, name: &Name) -> Option<&HolderId> {
        self.hold.id_of(name)
    }

    /// Returns the id of the lease, which is the value of the lock's key in Redis.
    ///
    /// That of a reader is a member of the sorted set of readers. That of permits is a member of
    /// the sorted set of permits, and begins with their number and a space.
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
        self.hold.id()
    }

    /// Returns true only if the lock is certainly held at this moment.
    ///
    /// See [Loss](Self#loss).
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

    /// Returns how long the lock is certainly held without a renewal; `None` if it is not held.
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
        Ok(self.holding().status())
    }

    fn check_process(&self) -> Result<(), Error> {
        self.runtime().process.check()
    }

    /// Returns an error unless the lock is certainly held.
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
        self.holding().ensure_held()
    }

    /// Returns a channel that receives one message when the lock is lost, for use with `select!`.
    ///
    /// The channel is disconnected after that message, or when the lock is released or
    /// [kept](Self::keep_for). Each call creates another channel, which the lease keeps until then:
    /// call this once, before a loop.
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
        self.holding().listen()
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
    /// - [`Error::Lost`] if the lock is not held any more.
    /// - [`Error::Forked`] in a fork of the process that holds it.
    /// - Any other error, such as [`Error::Unreachable`], if the lease was not renewed. The lock is
    ///   still held for [`remaining`](Self::remaining).
    pub fn renew(&self) -> Result<(), Error> {
        self.check_process()?;
        let deadline = self.deadline(Instant::now());
        self.holding().renew(deadline)
    }

    /// Sets the lease's ttl, for now and for later renewals.
    ///
    /// The lease lasts `ttl` from now on, whether that is longer or shorter than before. Returns
    /// within the command timeout. To leave the lock taken after the guard has ended, call
    /// [`keep_for`](Self::keep_for).
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
    /// - The errors of [`renew`](Self::renew). If Redis did not answer, the command may still run:
    ///   - After shortening, `remaining` is never more than the shorter ttl.
    ///   - After lengthening, the key may last for up to twice the longer ttl: the command may run
    ///     just before the key expires. If this process dies, the lock stays held for that time.
    ///     The release is repeated for that long, and the lease is not handed to another thread of
    ///     this client.
    pub fn set_ttl(&self, ttl: Duration) -> Result<(), Error> {
        self.check_process()?;
        self.holding().set_ttl(ttl)
    }

    /// Ends the lease of this guard, but leaves the lock taken until `at_least` after the grant.
    ///
    /// A shorter time is extended: the lock stays taken for at least two command timeouts from this
    /// call, 2 s by default, because the command that sets the time may still run late.
    ///
    /// For a job that one of several hosts must run once, even if a host's clock lags. From now on
    /// this guard holds nothing: [`is_held`](Self::is_held) is false, the other calls fail with
    /// [`Lost::Kept`], and its release and drop do nothing. Nobody can end the time earlier, except
    /// by force.
    ///
    /// The lock is not renewed any more. Its key expires at the end of that time, whether this
    /// process lives on or not. If the time is over already, this releases the lock. Waiting calls
    /// get no message when a key expires. They ask again at the expiry or within a second of it.
    /// Returns within the command timeout.
    ///
    /// A reader keeps writers out until that time, and permits are free at that time, but the key
    /// in Redis can last longer: it serves all readers, or all holders of permits. Locks of other
    /// kinds with a reader's name, such as a [`Mutex`](crate::Mutex), wait until the key expires:
    /// until the leases of other readers end, or until this one would have ended without this call.
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
    /// - [`Error::Config`] if no ttl can be that long, and [`Error::Forked`] in a fork of the
    ///   process that holds the lock. Nothing has changed.
    /// - [`Error::Lost`] if the lock was not held any more.
    /// - Any other error, such as [`Error::Unreachable`], if Redis did not confirm the change. The
    ///   lock is not renewed any more. It becomes free at the end of its old ttl. If the command
    ///   runs after all, the lock becomes free at the requested time, or later by the delay of the
    ///   command. If the time was over, the error is that of a [release](Self#release).
    pub fn keep_for(&self, at_least: Duration) -> Result<(), Error> {
        self.ensure_held()?;
        let now = Instant::now();
        let end = self.hold.since().unwrap_or(now).after(at_least);
        if end <= now {
            self.holding().release(now, self.deadline(now))
        } else {
            self.holding().keep_until(end)
        }
    }

    fn runtime(&self) -> &Runtime {
        let core = self.core.as_ref();
        &core.expect("only `drop` takes it").runtime
    }

    fn holding(&self) -> AnyHolding<'_> {
        self.hold.with(self.runtime())
    }

    fn deadline(&self, now: Instant) -> Instant {
        now.after(self.runtime().deployment.command_timeout())
    }

    /// Makes the holder a reader. Does nothing in a child of the process that holds the lock.
    pub(super) fn downgrade(&self, reader: &Arc<dyn Primitive>) {
        if self.check_process().is_ok()
            && let AnyHolding::One(holding) = self.holding()
        {
            holding.downgrade(reader);
        }
    }

    /// Releases the lock. Does nothing after [`keep_for`](Self::keep_for).
    pub(super) fn release(mut self) -> Result<(), Error> {
        self.release_now()
    }

    fn release_now(&mut self) -> Result<(), Error> {
        self.check_process()?;
        self.release_here()
    }

    /// Releases the lock, in the process that holds it.
    fn release_here(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        let deadline = self.deadline(now);
        self.release_by = Some(deadline);
        self.holding().release(now, deadline)
    }

    /// Formats the lease under the name of the type that contains it.
    pub(super) fn fmt_as(&self, guard: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = match self.status() {
            Ok(status) => format!("{status:?}"),
            Err(error) => format!("{error:?}"),
        };
        f.debug_struct(guard)
            .field("name", &self.hold.names())
            .field("holder_id", self.hold.id())
            .field("fencing_token", &self.hold.token())
            .field("status", &format_args!("{status}"))
            .finish()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // `release` has checked the process before it set the time.
        if self.release_by.is_none() {
            if self.check_process().is_err() {
                // The child never drops the lease either: see the drop of `Core`.
                std::mem::forget(self.hold.clone());
                return;
            }
            // A failure is logged where it happens.
            let _ = self.release_here();
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
            stop(&core.runtime, until);
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_as("Lease", f)
    }
}
