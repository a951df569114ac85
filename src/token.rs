//! The fencing token: a number that rises with every holder of a name.

use std::fmt;

/// A number that is higher for every later holder of a name.
///
/// Hand it to the resource that the lock protects, and have that resource refuse a write whose
/// token is lower than the highest it has seen: then even a holder that was paused past its lease,
/// between [`ensure_held`](crate::MutexGuard::ensure_held) and its write, can do no harm. See
/// Martin Kleppmann, [How to do distributed locking][kleppmann].
///
/// It is `max(last + 1, the server's clock in µs)`, drawn in the script that takes the lock. So it
/// rises over a release, an expiry, `FLUSHALL`, a server that restarts from nothing or from an old
/// snapshot, and a failover to a replica that lagged, as long as the servers' clocks agree better
/// than the failover takes. Where threads wait it reserves up to 64 tokens, which [hand-offs](crate::Mutex::local_handoffs)
/// in that client use up. Over a [quorum](crate#a-quorum-of-servers) it is the client that proposes it.
///
/// ```no_run
/// # let client = leasehold::Client::open("redis://127.0.0.1")?;
/// let guard = client.mutex("account:123").lock()?;
/// let token = guard.fencing_token();
/// println!("UPDATE account SET balance = …, token = {token} WHERE id = 123 AND token <= {token}");
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// [kleppmann]: https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    pub(crate) const fn new(value: u64) -> Self {
        Self(value)
    }

    /// The number itself, always below 2^53.
    pub const fn value(self) -> u64 {
        self.0
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
