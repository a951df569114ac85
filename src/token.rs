//! The fencing token: a number that rises with every holder of a name.

use std::fmt;

/// Tokens are below this: from there on a Lua number skips integers, and two holders could share one.
const LIMIT: u64 = 1 << 53;

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

    /// Reads a token as the scripts reply it; `None` for a number that no script draws.
    pub(crate) fn read(number: i64) -> Option<Self> {
        let number = u64::try_from(number).ok()?;
        (1..LIMIT).contains(&number).then_some(Self(number))
    }

    /// Reads a token in decimal digits.
    pub(crate) fn parse(digits: &[u8]) -> Option<Self> {
        // `parse` takes a sign, and the scripts take none.
        let is_number = digits.iter().all(u8::is_ascii_digit);
        let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
        Self::read(number).filter(|_| is_number)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_script_can_draw_is_a_token() {
        let token = |number| Some(FencingToken::new(number));
        assert_eq!(FencingToken::read(1), token(1));
        assert_eq!(FencingToken::read((1 << 53) - 1), token((1 << 53) - 1));
        for number in [i64::MIN, -1, 0, 1 << 53, i64::MAX] {
            assert_eq!(FencingToken::read(number), None, "{number}");
        }
        assert_eq!(
            FencingToken::parse(b"9007199254740991"),
            token((1 << 53) - 1)
        );
        assert_eq!(FencingToken::parse(b"007"), token(7));
        for digits in ["", "0", "+7", "-7", "7 ", "7.0", "0x7", "9007199254740992"] {
            assert_eq!(FencingToken::parse(digits.as_bytes()), None, "{digits}");
        }
    }
}
