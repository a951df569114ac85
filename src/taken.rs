//! Why an attempt to acquire a lock was refused: the holder, and for how long it has the lock.

use std::fmt;
use std::time::Duration;

use crate::cause::Rounded;
use crate::escape::Escaped;
use crate::name::Name;

/// Why an attempt did not get its lock: the holder, since when, and for how long at most.
///
/// The calls that try (`try_lock`, `try_read`, `try_acquire` and their `_for` forms) return
/// it if the lock is taken. Their `Err` has another meaning: the attempt failed, and nobody
/// knows whether the lock is taken.
///
/// So `try_lock().is_ok()` is true for a lock that is taken, too. The attempt has acquired the lock
/// only if `try_lock()?.is_ok()`.
///
/// All of it comes from the reply that refused the attempt, without a second request. By now the
/// lock may have another holder, or none. [`owner`](Self::owner) names the holder's client; the
/// holder id is left out, because anyone who knows it can release the lock.
///
/// ```
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
/// # let other = server.client();
/// # let _nightly = other.mutex("nightly").lock()?;
/// match client.mutex("nightly").try_lock()? {
///     Ok(_guard) => println!("nobody else runs it"),
///     // nightly is held by cron-1/4711, for 2.1 s; at most 9.8 s more without a renewal
///     Err(taken) => println!("{taken}"),
/// }
/// # assert!(client.mutex("nightly").try_lock()?.is_err());
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// It implements [`Error`](std::error::Error). So in a function that returns `Box<dyn Error>` or a
/// similar type, `try_lock()??` returns both kinds of failure:
///
/// ```
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
/// let guard = client.mutex("nightly").try_lock()??;
/// # drop(guard);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken(Box<Refusal>);

/// The known facts about a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) name: Name,
    pub(crate) by: TakenBy,
    pub(crate) is_this_client: bool,
    pub(crate) held_for: Option<Duration>,
    pub(crate) end: HoldEnd,
}

/// The kind of holder, and its name if it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TakenBy {
    /// A client with this owner.
    Owner(Box<str>),
    /// Another program, which set the key to a value that begins with these bytes. There are none
    /// if the value is short: it may be a secret with which anyone could release the lock.
    Foreign(Box<[u8]>),
    Readers,
    /// The holders of a semaphore's permits.
    Permits {
        /// How many are out; `None` if that is not known.
        out: Option<u64>,
        all: u32,
        wanted: u32,
    },
    /// The lock is free, but other calls are ahead in its queue.
    Queue,
    Unknown,
}

/// When a hold ends unless it is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldEnd {
    In(Duration),
    /// The key does not expire.
    Never,
    Unknown,
}

impl Taken {
    pub(crate) fn new(refusal: Refusal) -> Self {
        Self(Box::new(refusal))
    }

    /// Returns the name that was refused.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let _guard = client.mutex("b").lock()?;
    /// let taken = client.mutex_all(["a", "b", "c"]).try_lock()?.unwrap_err();
    /// assert_eq!(*taken.name(), *"b");
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn name(&self) -> &Name {
        &self.0.name
    }

    /// Returns the owner of the lease that has the lock.
    ///
    /// `None` if the holder is not a leasehold client, if readers or the holders of permits share
    /// the lock, or if the holder is not known.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let guard = client.mutex("nightly").lock()?;
    /// let taken = client.mutex("nightly").try_lock()?.unwrap_err();
    /// assert_eq!(taken.owner(), Some(guard.holder_id().owner()));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn owner(&self) -> Option<&str> {
        match &self.0.by {
            TakenBy::Owner(owner) => Some(owner),
            _ => None,
        }
    }

    /// Returns true if this client itself has the lock, in another thread or in the calling one.
    ///
    /// For a lock that readers share: if this client is one of them. Always false for a semaphore.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let _guard = client.mutex("nightly").lock()?;
    /// let taken = client.mutex("nightly").try_lock()?.unwrap_err();
    /// assert!(taken.is_this_client());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn is_this_client(&self) -> bool {
        self.0.is_this_client
    }

    /// Returns true if the readers of an [`RwLock`](crate::RwLock) have the lock.
    ///
    /// They have no common owner: [`RwLock::inspect`](crate::RwLock::inspect) returns each of them.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let _reading = client.rw_lock("catalogue").read()?;
    /// let taken = client.rw_lock("catalogue").try_write()?.unwrap_err();
    /// assert!(taken.is_shared());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn is_shared(&self) -> bool {
        self.0.by == TakenBy::Readers
    }

    /// Returns how many permits of the [`Semaphore`](crate::Semaphore) are out; `None` if that is
    /// not known, and for other locks.
    ///
    /// If there are enough permits left, other calls are ahead in the queue.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let downloads = client.semaphore("downloads", 2);
    /// let (_first, _second) = (downloads.acquire()?, downloads.acquire()?);
    /// assert_eq!(downloads.try_acquire()?.unwrap_err().permits_out(), Some(2));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn permits_out(&self) -> Option<u64> {
        match self.0.by {
            TakenBy::Permits { out, .. } => out,
            _ => None,
        }
    }

    /// Returns for how long the holder has had the lock, by the server's clock.
    ///
    /// Counts from the grant to the holder's client, which may have passed the lock from one of its
    /// threads to the next since. `None` if it is not known: for readers, permits and other
    /// programs, over a quorum, after a day, and while the server's clock is behind the last
    /// fencing token.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let _guard = client.mutex("nightly").lock()?;
    /// let taken = client.mutex("nightly").try_lock()?.unwrap_err();
    /// println!("it has been running for {:?}", taken.held_for());
    /// # assert!(taken.held_for().is_some());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn held_for(&self) -> Option<Duration> {
        self.0.held_for
    }

    /// Returns the time, from the end of the call, after which the lock is free without a renewal.
    ///
    /// A client renews its leases by default, so it may well hold the lock for longer. For a
    /// semaphore: the time until the first permits end. `None` if the key does not expire, or if
    /// the time is not known.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let _guard = client.mutex("nightly").lock()?;
    /// let taken = client.mutex("nightly").try_lock()?.unwrap_err();
    /// if let Some(remaining) = taken.remaining() {
    ///     println!("Retry-After: {}", remaining.as_secs() + 1);
    /// }
    /// # assert!(taken.remaining().is_some());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn remaining(&self) -> Option<Duration> {
        match self.0.end {
            HoldEnd::In(remaining) => Some(remaining),
            HoldEnd::Never | HoldEnd::Unknown => None,
        }
    }
}

/// The name, its holder, for how long, and for how much longer at most. Unprintable characters are
/// escaped, and a long owner is truncated.
impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let refusal = &*self.0;
        write!(f, "{} ", refusal.name)?;
        match &refusal.by {
            TakenBy::Owner(owner) => {
                let owner = Escaped::name(owner.as_bytes());
                if refusal.is_this_client {
                    write!(f, "is held by this client, {owner}")?
                } else {
                    write!(f, "is held by {owner}")?
                }
            }
            TakenBy::Foreign(start) if start.is_empty() => {
                f.write_str("is held by another program")?;
            }
            TakenBy::Foreign(start) => {
                let start = Escaped::whole(start);
                write!(f, "is held by another program ({start}…)")?;
            }
            TakenBy::Readers if refusal.is_this_client => {
                f.write_str("is held by readers, one of them in this client")?;
            }
            TakenBy::Readers => f.write_str("is held by readers")?,
            TakenBy::Permits { out, all, wanted } => {
                return self.fmt_permits(f, *out, *all, *wanted);
            }
            TakenBy::Queue => {
                return f.write_str("is free, but other calls are ahead in its queue");
            }
            TakenBy::Unknown => return f.write_str("is taken; it is not known by whom"),
        }
        if let Some(held_for) = refusal.held_for {
            write!(f, ", for {}", Rounded(held_for))?;
        }
        match refusal.end {
            HoldEnd::In(left) if left.is_zero() => {
                f.write_str("; that has ended unless it was renewed")
            }
            HoldEnd::In(left) => write!(f, "; at most {} more without a renewal", Rounded(left)),
            HoldEnd::Never => f.write_str("; without an end"),
            HoldEnd::Unknown => Ok(()),
        }
    }
}

impl Taken {
    fn fmt_permits(
        &self,
        f: &mut fmt::Formatter<'_>,
        out: Option<u64>,
        all: u32,
        wanted: u32,
    ) -> fmt::Result {
        match out {
            Some(out) if out + u64::from(wanted) <= u64::from(all) => {
                return f.write_str("has permits left, but other calls are ahead in its queue");
            }
            Some(out) if out >= u64::from(all) => write!(f, "has all {all} permits out")?,
            Some(out) => write!(
                f,
                "has {out} of {all} permits out, too many for {wanted} more"
            )?,
            None => f.write_str("has too few permits left")?,
        }
        match self.0.end {
            HoldEnd::In(left) if !left.is_zero() => {
                write!(f, "; the first end in {} without a renewal", Rounded(left))
            }
            _ => Ok(()),
        }
    }
}

impl std::error::Error for Taken {}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(by: TakenBy, held_for: Option<u64>, end: HoldEnd) -> Taken {
        Taken::new(Refusal {
            name: "a".into(),
            by,
            is_this_client: false,
            held_for: held_for.map(Duration::from_millis),
            end,
        })
    }

    fn of_owner(owner: &str) -> TakenBy {
        TakenBy::Owner(owner.into())
    }

    fn permits(out: impl Into<Option<u64>>, wanted: u32) -> TakenBy {
        let out = out.into();
        TakenBy::Permits {
            out,
            all: 4,
            wanted,
        }
    }

    const LEFT: HoldEnd = HoldEnd::In(Duration::from_millis(9_800));

    #[test]
    fn display_says_what_is_known_about_a_holder() {
        for (by, held_for, end, expected) in [
            (
                of_owner("w/4711"),
                Some(2_100),
                LEFT,
                "a is held by w/4711, for 2.1 s; at most 9.8 s more without a renewal",
            ),
            (
                of_owner("w\x1b[1m"),
                None,
                HoldEnd::Never,
                r"a is held by w\x1b[1m; without an end",
            ),
            (
                of_owner("w"),
                None,
                HoldEnd::In(Duration::ZERO),
                "a is held by w; that has ended unless it was renewed",
            ),
            (
                TakenBy::Foreign(b"\x1b secret"[..].into()),
                None,
                LEFT,
                r"a is held by another program (\x1b secret…); at most 9.8 s more without a renewal",
            ),
            (
                TakenBy::Readers,
                None,
                LEFT,
                "a is held by readers; at most 9.8 s more without a renewal",
            ),
            (
                TakenBy::Queue,
                None,
                HoldEnd::Unknown,
                "a is free, but other calls are ahead in its queue",
            ),
            (
                TakenBy::Unknown,
                None,
                HoldEnd::Unknown,
                "a is taken; it is not known by whom",
            ),
        ] {
            assert_eq!(taken(by, held_for, end).to_string(), expected);
        }
    }

    #[test]
    fn display_names_this_client() {
        let of_this_client = |by| Refusal {
            is_this_client: true,
            ..*taken(by, Some(7), HoldEnd::Unknown).0
        };
        let text = Taken::new(of_this_client(of_owner("w"))).to_string();
        assert_eq!(text, "a is held by this client, w, for 7 ms");
        let text = Taken::new(of_this_client(TakenBy::Readers)).to_string();
        assert_eq!(
            text,
            "a is held by readers, one of them in this client, for 7 ms"
        );
    }

    #[test]
    fn display_says_what_is_known_about_permits() {
        for (by, end, expected) in [
            (
                permits(4, 1),
                LEFT,
                "a has all 4 permits out; the first end in 9.8 s without a renewal",
            ),
            (
                permits(3, 2),
                HoldEnd::Unknown,
                "a has 3 of 4 permits out, too many for 2 more",
            ),
            (
                permits(1, 1),
                LEFT,
                "a has permits left, but other calls are ahead in its queue",
            ),
            (
                permits(None, 1),
                HoldEnd::Unknown,
                "a has too few permits left",
            ),
        ] {
            assert_eq!(taken(by, None, end).to_string(), expected);
        }
    }
}
