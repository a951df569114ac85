//! The guard: a lock that is held, and what its holder can ask and do.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::clock::Instant;
use crate::error::Error;
use crate::hold::Hold;
use crate::holder::HolderId;
use crate::lease::Standing;
use crate::lost::Lost;
use crate::name::Name;
use crate::release::{Unlocked, release};
use crate::renew::{ensure_held, extend, renew};
use crate::shutdown::{Core, stop};
use crate::token::FencingToken;

/// A lock that is held; when this is dropped (falls out of scope), the lock is released.
///
/// Dropping blocks for one trip to Redis, and never longer than the command timeout; it never
/// panics, and what goes wrong is only logged. [`unlock`](Self::unlock) says how it went.
///
/// # Leases and loss
///
/// A lease can end before it is released: its process was paused, the network was away for longer
/// than the ttl, the key was deleted. [`is_held`](Self::is_held) is false from the instant on at
/// which somebody else could hold the lock, by our own clock, whatever the network does. Ask it, or
/// [`ensure_held`](Self::ensure_held), before each step that must not be done twice; or listen to
/// [`lost`](Self::lost) beside the work. A pause between the question and the step cannot be seen by
/// any lock: there only the [`fencing_token`](Self::fencing_token) helps.
///
/// ```no_run
/// # let client = leasehold::Client::open("redis://127.0.0.1")?;
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
    core: Arc<Core>,
    hold: Arc<Hold>,
    /// A lease may have several holders, one after the other.
    token: FencingToken,
    /// By when the release, and the end of the client if this is the last of it, are to be over.
    let_go_by: Option<Instant>,
}

impl MutexGuard {
    pub(crate) fn new(core: Arc<Core>, hold: Arc<Hold>) -> Self {
        Self {
            core,
            token: hold.token(),
            hold,
            let_go_by: None,
        }
    }

    /// The lock's name.
    pub fn name(&self) -> &Name {
        self.hold.keys.key(0).name
    }

    pub(crate) fn names(&self) -> &[Name] {
        &self.hold.keys.names
    }

    pub(crate) fn fencing_token_of(&self, name: &Name) -> Option<FencingToken> {
        self.hold.token_of(name, self.token)
    }

    /// A number higher than that of every earlier holder, for the resource that the lock protects.
    pub fn fencing_token(&self) -> FencingToken {
        self.token
    }

    /// The lease's own name, which is the value of the lock's key in Redis.
    pub fn holder_id(&self) -> &HolderId {
        &self.hold.id
    }

    /// Whether the lock is surely held at this moment. Local, no I/O.
    pub fn is_held(&self) -> bool {
        matches!(self.stand(), Standing::Held(_))
    }

    /// How long the lock is surely held from now on, unless renewed. `None`: it is lost. Local, no
    /// I/O.
    pub fn remaining(&self) -> Option<Duration> {
        match self.stand() {
            Standing::Held(remaining) => Some(remaining),
            _ => None,
        }
    }

    fn stand(&self) -> Standing {
        self.hold.stand_for(self.token, Instant::now())
    }

    /// For `?` inside the critical section. Local, no I/O.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lock is not surely held at this moment.
    pub fn ensure_held(&self) -> Result<(), Error> {
        ensure_held(&self.hold, self.token)
    }

    /// A channel that gets one message when the lock is lost, and is then, or when the lock is
    /// released, disconnected. For `select!`. Each call returns one of its own, which is kept until
    /// then: call it once, before a loop.
    ///
    /// ```no_run
    /// use leasehold::crossbeam_channel::{after, select};
    /// # use std::time::Duration;
    /// # let client = leasehold::Client::open("redis://127.0.0.1")?;
    /// let guard = client.mutex("job").lock()?;
    /// let lost = guard.lost();
    /// select! {
    ///     recv(lost) -> why => println!("stop: {why:?}"),
    ///     recv(after(Duration::from_secs(60))) -> _ => println!("done"),
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn lost(&self) -> Receiver<Lost> {
        self.hold.listen(self.token, Instant::now())
    }

    /// Asks Redis for the whole ttl anew, now. Returns within the command timeout.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lock is lost. [`Error::Unreachable`] or [`Error::Refused`] if the lease
    /// was not renewed: it is still held for [`remaining`](Self::remaining).
    pub fn renew(&self) -> Result<(), Error> {
        let shared = &self.core.shared;
        let until = Instant::now().after(shared.servers.command_timeout());
        renew(shared, &self.hold, self.token, until)
    }

    /// Sets another ttl, now and for later renewals; the lease lasts that long from now on, be it
    /// longer or shorter than before. Returns within the command timeout.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a ttl that cannot work. [`Error::Lost`] if the lock is lost.
    /// [`Error::Unreachable`] or [`Error::Refused`] if Redis did not confirm it: the lease is still
    /// held for [`remaining`](Self::remaining), which after an unanswered shortening is never more
    /// than the shorter ttl, since the command may yet run. After an unanswered lengthening the key may last
    /// for the longer ttl: should this process die, nobody gets the lock before then. The release is
    /// repeated for that long, and the lease is not handed on within this client.
    pub fn extend(&self, ttl: Duration) -> Result<(), Error> {
        extend(&self.core.shared, &self.hold, self.token, ttl)
    }

    /// Releases the lock, and says whether it was held until now. Returns within the command
    /// timeout.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] or [`Error::Refused`] if Redis did not confirm it: the lock was held
    /// until now, and may stay taken for up to its ttl, or for a longer one that an unanswered
    /// [`extend`](Self::extend) asked for. The release is repeated in the background.
    pub fn unlock(mut self) -> Result<Unlocked, Error> {
        self.let_go()
    }

    fn let_go(&mut self) -> Result<Unlocked, Error> {
        let now = Instant::now();
        let timeout = self.core.shared.servers.command_timeout();
        let deadline = *self.let_go_by.get_or_insert_with(|| now.after(timeout));
        release(&self.core.shared, &self.hold, self.token, now, deadline)
    }
}

impl Drop for MutexGuard {
    fn drop(&mut self) {
        // After `unlock` there is nothing left to do.
        if self.let_go_by.is_none() {
            // It logs what goes wrong by itself.
            let _ = self.let_go();
        }
        if let Some(until) = self.let_go_by
            && Arc::strong_count(&self.core) == 1
            && !self.core.shared.is_closed()
        {
            // The last to go may wait for the threads only as long as the release has left.
            stop(&self.core.shared, until);
        }
    }
}

impl fmt::Debug for MutexGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MutexGuard")
            .field("name", &self.hold.keys.names)
            .field("holder_id", &self.hold.id)
            .field("fencing_token", &self.token)
            .field("standing", &self.stand())
            .finish()
    }
}
