//! The lock of one name: its settings, and the calls that acquire it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::api::calls::{ENDLESS, acquire, wait_limit};
use crate::api::guards::MutexGuard;
use crate::api::lease::Lease;
use crate::api::sections::section_calls;
use crate::api::settings::lock_settings;
use crate::client::acquire::WaitLimit;
use crate::client::query::query;
use crate::client::shutdown::Core;
use crate::clock::Instant;
use crate::config::Settings;
use crate::error::Error;
use crate::holder::Holder;
use crate::logging;
use crate::name::Name;
use crate::protocol::answer::Answer;
use crate::protocol::primitive::{AtRelease, Primitive, RedisQueue};
use crate::protocol::script::Call;
use crate::redis::{Cap, Deployment, Fault};
use crate::taken::Taken;
use crate::token::FencingToken;

/// A lock that has at most one holder at a time, across processes and machines.
///
/// [`Client::mutex`](crate::Client::mutex) makes it. Making, cloning and configuring a lock is
/// cheap and does no I/O. Setters consume and return the lock and never fail: the first call that
/// locks reports an invalid value.
///
/// # Leases and loss
///
/// A holder has a lease, which ends after the [`ttl`](Self::ttl) unless it is renewed, so a crashed
/// holder does not keep the lock for ever. A background thread renews it every third of the ttl. A
/// lease can be lost: [`Lease`](crate::Lease#loss) describes how the holder finds out, and
/// [`FencingToken`] how to reject the writes of a holder that was paused.
///
/// A lock that a release granted to a waiting client has a lease of at most 3 s at first. A renewal
/// a few milliseconds after the grant extends it to the ttl, even without
/// [`auto_renew`](Self::auto_renew). If the process of that client is killed while the grant is on
/// its way, the lock is free again when this lease ends.
///
/// # Fairness
///
/// Within a client, waiters are served first come, first served. Only the first one asks Redis; the
/// others get the lock from the holder before them, by a [local hand-off](Self::local_handoffs).
///
/// Clients that wait are also served first come, first served. Each client has one place in a queue
/// in Redis for all its calls, and a release grants the lock to the first place. While the queue is
/// not empty, a call overtakes it only if its first attempt finds the lock free, for example:
///
/// - after a holder's lease has expired,
/// - after another program has deleted the key,
/// - after a release, while the next in the queue is a reader of an [`RwLock`](crate::RwLock),
/// - after the plain releases mentioned below.
///
/// A lock that passes from client to client would never be free for other programs, so some of its
/// releases are plain ones, which leave it free for 2 ms: see
/// [sharing a lock](crate::guide::wire_format#sharing-a-lock-with-other-programs).
///
/// Over a quorum there is no queue: the first to ask after a release gets the lock. The same is
/// true in a client that is built with [`queues(false)`](crate::ClientBuilder::queues).
///
/// # Differences from `std::sync::Mutex`
///
/// - It protects a name, not a value.
/// - Every call that locks can fail, because Redis may be unreachable.
/// - A panic does not poison it: unwinding drops the guard, which releases the lock.
/// - Guards can be sent to other threads.
///
/// Like the standard mutex it is not reentrant: a thread that locks a name it already holds waits
/// for itself. A debug build logs a warning.
///
/// ```
/// use std::time::Duration;
///
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
/// let table = client.mutex("table:7").ttl(Duration::from_secs(30));
/// match table.try_lock_for(Duration::from_millis(200))? {
///     Ok(guard) => println!("booked under token {}", guard.fencing_token()),
///     Err(taken) => println!("not booked: {taken}"),
/// }
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
pub struct Mutex {
    pub(super) core: Arc<Core>,
    pub(super) keys: Arc<dyn Primitive>,
    pub(super) settings: Settings,
}

/// Settings.
impl Mutex {
    pub(super) fn new(core: Arc<Core>, keys: Arc<dyn Primitive>) -> Self {
        Self {
            core,
            keys,
            settings: Settings::default(),
        }
    }

    /// Sets how many times in a row the lock is handed between threads of this client.
    ///
    /// A local hand-off needs no round trip to Redis. Defaults to 32; 0 disables hand-offs. More
    /// than 63 counts as 63, because an acquire reserves at most 64 fencing tokens.
    ///
    /// A release hands the lease to the call that has waited longest in this client, if that call
    /// asks for the lease's current ttl and for the same `renew_every`, `auto_renew` and
    /// `min_replicas`. The new holder gets its own guard, its own [`lost`](crate::Lease::lost)
    /// channel and a higher fencing token, and its own [`max_hold`](Self::max_hold) starts. The
    /// [`holder_id`](crate::Lease::holder_id) belongs to the lease and does not change. If the
    /// last renewal is more than a third of the ttl ago, or if the lease is not renewed in the
    /// background, the releasing call renews the lease first. So the new holder has at least half
    /// of the ttl left.
    ///
    /// The lock is released in Redis, where the client that waits first gets its turn:
    ///
    /// - after this many hand-offs in a row, or a quarter of that if the client got the lock by way
    ///   of the queue, where more clients may wait,
    /// - once the lease is a second old, or as old as its ttl if that is shorter,
    /// - always, if no other call of this client waited when the lease was granted.
    ///
    /// Over a quorum, other clients get a short head start after a run of hand-offs instead.
    ///
    /// If another program deletes the key during a run of hand-offs, the client notices at the next
    /// renewal, by default at most a third of the ttl later, or when a message announces it.
    /// Until then a holder here and one in another client may both believe that they have the lock,
    /// as they may without hand-offs. The other holder's fencing token is higher than all of those
    /// handed off here.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// // Every release is visible to other processes: no thread of this client is preferred.
    /// let printer = client.mutex("printer").local_handoffs(0);
    /// # drop(printer.lock()?);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use]
    pub fn local_handoffs(mut self, most: u32) -> Self {
        self.settings.handoffs = Some(most);
        self
    }

    /// Sets for how long this client keeps the lease after `unlock`. Defaults to zero.
    ///
    /// Any thread of this client that locks the name in that time has the lock at once, without a
    /// round trip to Redis. At most a third of the ttl.
    ///
    /// It is a [local hand-off](Self::local_handoffs) to a call that comes a little later, under
    /// the same conditions: the call asks for the same terms, gets the next fencing token, and the
    /// run is limited in hand-offs and to a second. When the run ends, `unlock` releases the lock
    /// in Redis. A lease that is not renewed in the background does not linger. One that the queue
    /// has just granted does, before the renewal that extends it to the ttl.
    ///
    /// Consider the costs before you set it:
    ///
    /// - Another client that waits gets the lock up to a second, a critical section and this time
    ///   later: nobody here knows that it waits.
    /// - If the process dies while a lease lingers, or exits without dropping its client, the key
    ///   stays for its ttl.
    /// - Each acquire draws 33 fencing tokens, one for each hand-off.
    ///
    /// Any other call of this client for the name releases the lease first: one with other terms, a
    /// set, a [`FairMutex`](crate::FairMutex), an [`RwLock`](crate::RwLock). So do
    /// [`Client::release_lingering`](crate::Client::release_lingering),
    /// [`shutdown`](crate::Client::shutdown) and the end of the client. `on_lost` and `lost` report
    /// losses until `unlock`. A later loss is logged at level `WARN`, and counted as
    /// [`lingering_lost`](crate::Totals::lingering_lost).
    ///
    /// Not available over a quorum, and not with `local_handoffs(0)`: the first call that locks
    /// fails with [`Error::Config`].
    ///
    /// The idea is that of the locks that Chubby's clients cache (Burrows, "The Chubby lock service
    /// for loosely-coupled distributed systems", OSDI 2006).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let counter = client.mutex("counter").linger(Duration::from_millis(5));
    /// for _ in 0..10 {
    ///     let guard = counter.lock()?; // asks Redis once
    ///     // … a write under `guard.fencing_token()` …
    ///     guard.unlock()?;
    /// }
    /// assert!(client.stats().totals.attempts < 10);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use]
    pub fn linger(mut self, longest: Duration) -> Self {
        self.settings.linger = Some(longest);
        self
    }
}

lock_settings!(
    Mutex,
    r#"let report = client.mutex("report")"#,
    "let guard = report.lock()?;",
    settings
);

/// Acquiring.
impl Mutex {
    /// Acquires the lock, waiting until it is granted.
    ///
    /// The call waits through other holders and outages of Redis. It gives up only if Redis has not
    /// answered for [`unreachable_for`](crate::ClientBuilder::unreachable_for).
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let guard = client.mutex("account:123").lock()?;
    /// // … no other client holds `account:123` here …
    /// guard.unlock()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::Config`]: the name or a setting is invalid.
    /// - [`Error::Unreachable`]: Redis has not answered for too long.
    /// - [`Error::Refused`]: Redis refused for a reason that lasts, or too long for one that may
    ///   pass (`retried_for`).
    /// - [`Error::WrongType`], [`Error::BadFence`]: a key is not one of a lock.
    /// - [`Error::NotReplicated`]: too few replicas acknowledged the lease; see
    ///   [`min_replicas`](Self::min_replicas).
    /// - [`Error::AttemptsUsedUp`]: the attempts of a
    ///   [`WaitPolicy::Backoff`](crate::WaitPolicy::Backoff) with a limit are used up. The `try_`
    ///   calls return [`Taken`] instead.
    /// - [`Error::Closed`]: the client was shut down, before or during the wait.
    /// - [`Error::Cancelled`]: the token of [`cancel_on`](Self::cancel_on) was cancelled.
    /// - [`Error::Thread`]: a background thread could not be started.
    pub fn lock(&self) -> Result<MutexGuard, Error> {
        let lease = self.acquire(WaitLimit::Endless)?;
        Ok(MutexGuard::new(lease.expect(ENDLESS)))
    }

    /// Acquires the lock if it is free; returns [`Taken`] if it is held.
    ///
    /// `try_lock().is_ok()` is true for a lock that is taken, too: only `try_lock()?.is_ok()` means
    /// that it was acquired.
    ///
    /// Returns within the command timeout, 1 s unless set. In two cases the call returns
    /// [`Taken`] without asking Redis:
    ///
    /// - This client itself holds the name.
    /// - Another call of this client waits for the name after a refusal, and no command of this
    ///   client for the name has failed since the last answer. A call with
    ///   [`WaitPolicy::Backoff`](crate::WaitPolicy::Backoff) counts only if it has a place in the
    ///   queue in Redis.
    ///
    /// Otherwise it may overtake waiting clients.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// match client.mutex("nightly-report").try_lock()? {
    ///     Ok(guard) => println!("writing the report under token {}", guard.fencing_token()),
    ///     Err(taken) => println!("another machine writes the report: {taken}"),
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`lock`](Self::lock), but [`Error::Unreachable`] after the command timeout.
    /// While the circuit breaker is open, the call fails at once with [`Error::CircuitOpen`].
    pub fn try_lock(&self) -> Result<Result<MutexGuard, Taken>, Error> {
        Ok(self.acquire(WaitLimit::None)?.map(MutexGuard::new))
    }

    /// Acquires the lock, waiting for at most `limit`; returns [`Taken`] if it is held then.
    ///
    /// Returns in that time whatever state Redis is in. A `limit` too long for the clock means no
    /// deadline. A zero `limit` asks once, like [`try_lock`](Self::try_lock).
    ///
    /// # `Taken` or an error
    ///
    /// At the deadline the call returns [`Taken`] if one of these is true:
    ///
    /// - This client itself holds the lock.
    /// - The last reply during this call said that another holder has the lock, and came at most a
    ///   second before the deadline. The reply may be one to another call of this client that waits
    ///   for the same lock. A release by this client counts as such a reply.
    /// - The last reply during this call said that another holder has the lock until the deadline
    ///   or longer.
    ///
    /// Unless one of these is true already, the client asks once more before the deadline. If none
    /// of the three conditions holds, the call returns [`Error::Unreachable`] or
    /// [`Error::CircuitOpen`]: the lock may be free, but Redis could not be asked. An open circuit
    /// breaker does not end the wait before the deadline, since it may close.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let limit = Duration::from_millis(200);
    /// match client.mutex("seat:12A").try_lock_for(limit) {
    ///     Ok(Ok(_guard)) => println!("booked"),
    ///     Ok(Err(taken)) => println!("another customer is booking the seat: {taken}"),
    ///     Err(error) => println!("try again later: {error}"),
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`lock`](Self::lock), but [`Error::Unreachable`] or [`Error::CircuitOpen`] if
    /// Redis did not answer within `limit`.
    pub fn try_lock_for(&self, limit: Duration) -> Result<Result<MutexGuard, Taken>, Error> {
        Ok(self.acquire(wait_limit(limit))?.map(MutexGuard::new))
    }

    pub(super) fn acquire(&self, limit: WaitLimit) -> Result<Result<Lease, Taken>, Error> {
        acquire(&self.core, &self.keys, &self.settings, limit)
    }
}

section_calls!(
    Mutex, MutexGuard, unlock, "client.mutex(\"report\")",
    lock: with, try_lock: try_with,
);

/// For operators.
impl Mutex {
    /// Returns the lock's name.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// assert_eq!(*client.mutex("account:123").name(), *"account:123");
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn name(&self) -> &Name {
        self.keys.key(0).name
    }

    /// Asks Redis for the holder of the lock; returns `None` if it is free.
    ///
    /// Returns within the command timeout.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let nightly = client.mutex("nightly");
    /// match nightly.inspect()? {
    ///     Some(holder) => println!("held by {holder}"), // cron-1/4711:1b9d6bcd, for another 8.2 s
    ///     None => println!("free"),
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`], [`Error::CircuitOpen`], [`Error::Refused`], [`Error::WrongType`],
    /// [`Error::Config`], [`Error::Closed`].
    pub fn inspect(&self) -> Result<Option<Holder>, Error> {
        let deployment = &self.core.runtime.deployment;
        self.check()?;
        let ask = |until| deployment.call(self.keys.inspect(), until, Cap::Counted);
        let holder = query(&self.core.runtime, ask)?.holder();
        let name = self.keys.key(0).name;
        let kernel = &self.core.runtime.kernel;
        Ok(holder.map(|it| {
            let lingers = it.holder_id().is_some_and(|id| kernel.lingers(name, id));
            it.lingering(lingers)
        }))
    }

    /// Returns the length of the queue of this name in Redis, across all processes.
    ///
    /// These calls have a place in it:
    ///
    /// - Each client that waits for this lock has one, however many of its threads wait. If the
    ///   client itself holds the lock, it may have none: it hands the lock to its own threads.
    /// - So has each call that waits for the [`FairMutex`](crate::FairMutex) or the
    ///   [`RwLock`](crate::RwLock) of this name, and each waiting
    ///   [`MutexAll`](crate::MutexAll) call that is queued for this name.
    /// - The place of a dead process counts until the queue moves past it, or for 6 s if no other
    ///   call waits.
    /// - Clients that are built with [`queues(false)`](crate::ClientBuilder::queues) have none.
    ///
    /// Returns within the command timeout.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let waiting = client.mutex("printer").waiting()?;
    /// println!("{waiting} clients wait for the printer");
    /// # assert_eq!(waiting, 0);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`inspect`](Self::inspect). The call needs the permission `+llen`.
    /// [`Error::Config`] if this client uses no queue: over a quorum, and with
    /// [`queues(false)`](crate::ClientBuilder::queues).
    pub fn waiting(&self) -> Result<u64, Error> {
        if self.core.runtime.has_queues() {
            return self.queue_length();
        }
        self.check()?;
        Err(Error::Config(
            "this client uses no queue (over a quorum, or with queues(false)), so the number of \
             waiting clients is unknown"
                .into(),
        ))
    }

    /// Returns the last fencing token that was drawn for the name, whether it is held or free now.
    ///
    /// Tokens that are reserved for [local hand-offs](Self::local_handoffs) count as drawn. Returns
    /// `None` if no token was drawn for 25 hours, and may do so after 24. Returns within the
    /// command timeout.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let account = client.mutex("account:123");
    /// let guard = account.lock()?;
    /// assert_eq!(account.last_fencing_token()?, Some(guard.fencing_token()));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`inspect`](Self::inspect), and [`Error::BadFence`] if the key of the token's
    /// counter holds no valid token.
    pub fn last_fencing_token(&self) -> Result<Option<FencingToken>, Error> {
        let runtime = &self.core.runtime;
        self.check()?;
        let ask = |until| runtime.deployment.last_token(&self.keys, until);
        query(runtime, ask)
    }

    /// Checks that the lock can have these keys in this deployment.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.core.runtime.process.check()?;
        self.core.runtime.check(&self.keys)
    }

    /// Returns how many places are in the lock's queue; 0 if the lock has no queue.
    pub(super) fn queue_length(&self) -> Result<u64, Error> {
        let deployment = &self.core.runtime.deployment;
        let key = self.keys.key(0);
        let length = self.of_queue(|queue, until| deployment.queue_length(key, queue, until));
        Ok(length?.unwrap_or(0))
    }

    /// Returns how long the first place in the queue has waited; `None` if there is none.
    ///
    /// A place is that of a client whose calls wait for the lock, or of a call or a set that waits
    /// in the same queue. Always `None` if this client uses no queue: over a quorum, and with
    /// [`queues(false)`](crate::ClientBuilder::queues). The time is by the server's clock. Returns
    /// within the command timeout.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let account = client.mutex("account:123");
    /// if account.longest_wait()? > Some(Duration::from_secs(30)) {
    ///     eprintln!("a client has waited for the account for more than 30 s");
    /// }
    /// # assert_eq!(account.longest_wait()?, None);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`inspect`](Self::inspect). The call needs the permissions `+lindex`, `+hget`
    /// and `+time`.
    pub fn longest_wait(&self) -> Result<Option<Duration>, Error> {
        let deployment = &self.core.runtime.deployment;
        let key = self.keys.key(0);
        let wait = self.of_queue(|queue, until| deployment.longest_wait(key, queue, until))?;
        Ok(wait.flatten().map(Duration::from_millis))
    }

    /// Asks about the lock's queue; returns `None` if it has none.
    fn of_queue<T>(
        &self,
        ask: impl Fn(&dyn RedisQueue, Instant) -> Result<T, Fault>,
    ) -> Result<Option<T>, Error> {
        let runtime = &self.core.runtime;
        self.check()?;
        match self.keys.queue() {
            Some(queue) => query(runtime, |until| ask(queue, until)).map(Some),
            None => runtime.check_not_closed().map(|()| None),
        }
    }

    /// Releases the lock on behalf of its holder; returns true if it was released.
    ///
    /// The call reads the holder and then deletes the key only if that holder still has it: if the
    /// key has the same value, or, for a foreign value of more than 1088 bytes, the same first 1088
    /// bytes and the same SHA-1. It wakes waiters, and returns within twice the command timeout.
    ///
    /// Use it only if you know that the holder is dead: a live holder may be inside its critical
    /// section. It finds out at its next renewal, or at once if it receives the release.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let nightly = client.mutex("nightly");
    /// # server.hold("nightly").forget();
    /// // The machine that held the lock has burnt down, and its ttl is a day.
    /// if nightly.force_unlock()? {
    ///     println!("free again");
    /// }
    /// # assert!(nightly.inspect()?.is_none());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`inspect`](Self::inspect). After [`Error::Unreachable`] the lock may have
    /// been released.
    pub fn force_unlock(&self) -> Result<bool, Error> {
        match self.inspect()? {
            Some(holder) => self.force_unlock_from(&holder),
            None => Ok(false),
        }
    }

    /// Releases the lock if `holder` still holds it; returns true if it was released.
    ///
    /// Like [`force_unlock`](Self::force_unlock), but never takes the lock from another holder than
    /// the one that [`inspect`](Self::inspect) has shown. Returns within the command timeout.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// # let is_dead = |_: &leasehold::Holder| true;
    /// let nightly = client.mutex("nightly");
    /// if let Some(holder) = nightly.inspect()?
    ///     && is_dead(&holder)
    /// {
    ///     nightly.force_unlock_from(&holder)?;
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`force_unlock`](Self::force_unlock).
    pub fn force_unlock_from(&self, holder: &Holder) -> Result<bool, Error> {
        let value = holder.seen();
        let call = self.keys.release(value, AtRelease::Usual);
        // A release that grants the lock to a client in the queue sends the holder no message. So a
        // plain lock uses the script without a queue. Fair and read-write locks have none.
        let call = call.without_queue().unwrap_or(call);
        let is_released = self.released(|deployment, until| match deployment.quorum() {
            Some(quorum) => quorum.release_holder(&*self.keys, value, until),
            None => deployment.call(call, until, Cap::Exempt),
        })?;
        if is_released {
            logging::warn!(
                name:% = self.keys;
                "forced the release of {}, held by {holder}", self.keys
            );
        }
        Ok(is_released)
    }

    /// Sends `call`, a release on behalf of a holder; returns whether that holder had the lease.
    pub(super) fn release_by(&self, call: Call<'_>) -> Result<bool, Error> {
        self.released(|deployment, until| deployment.call(call, until, Cap::Exempt))
    }

    /// Returns whether a release, which waits for a command timeout at most, found the holder.
    fn released(
        &self,
        release: impl FnOnce(&Deployment, Instant) -> Result<Answer, Fault>,
    ) -> Result<bool, Error> {
        let runtime = &self.core.runtime;
        self.check()?;
        let until = Instant::now().after(runtime.deployment.command_timeout());
        let answer = release(&runtime.deployment, until);
        let answer = answer.map_err(|fault| runtime.deployment.error(fault))?;
        Ok(answer.is_done())
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
