//! The fencing token, a number that rises with every holder of a name.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;
use crate::name::shown;

/// All tokens are below this. From 2^53 on, Lua numbers skip integers: two holders could get the
/// same token.
const LIMIT: u64 = 1 << 53;

/// A number that is higher for every later holder of a name.
///
/// Pass it to the resource that the lock protects, and let that resource reject every read and
/// write with a token lower than the highest it has seen. A process may be paused between
/// [`ensure_held`](crate::Lease::ensure_held) and its write, until its lease has ended. Then
/// its late write cannot replace the write of a later holder. The token must come with the first
/// read: otherwise the resource accepts a late write of an earlier holder between the later
/// holder's read and its write. With several names, the resource must compare the token of each
/// name. [Fencing](crate::guide::fencing) has the statements for a database. See also Martin
/// Kleppmann, [How to do distributed locking][kleppmann].
///
/// The script that acquires the lock, or grants it to a waiter, draws the token:
/// `max(last + 1, the server's clock in µs)`. So tokens keep rising after a release or an expiry.
/// They also keep rising after `FLUSHALL`, and after a restart without data or from an old
/// snapshot, unless the server's clock was set back in the meantime. After a failover to a lagging
/// replica they keep rising if the servers' clocks differ by less than the failover takes.
///
/// If other threads of the client wait, the script reserves up to 64 tokens for
/// [local hand-offs](crate::Mutex::local_handoffs). Over a [quorum](crate::guide::quorum) the
/// client proposes the token.
///
/// ```
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
/// let guard = client.mutex("account:123").lock()?;
/// let token = guard.fencing_token();
/// // The first statement of the transaction, which must change one row.
/// println!("UPDATE account SET fence = {token} WHERE id = 123 AND fence <= {token}");
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// A token converts to `i64` for a database, and back with `TryFrom`:
///
/// ```
/// use leasehold::FencingToken;
///
/// let token = FencingToken::try_from(1_700_000_000_000_000_i64)?;
/// assert_eq!(i64::from(token), 1_700_000_000_000_000);
/// assert_eq!("1700000000000000".parse::<FencingToken>()?, token);
/// assert!(FencingToken::try_from(0_i64).is_err());
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

    /// Converts a script's reply to a token; returns `None` for a number that no script draws.
    pub(crate) fn read(number: i64) -> Option<Self> {
        let number = u64::try_from(number).ok()?;
        (1..LIMIT).contains(&number).then_some(Self(number))
    }

    /// Parses a token from decimal digits.
    pub(crate) fn parse(digits: &[u8]) -> Option<Self> {
        // `str::parse` accepts a sign; the scripts do not.
        let are_digits = digits.iter().all(u8::is_ascii_digit);
        let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
        Self::read(number).filter(|_| are_digits)
    }

    /// Returns the token as a number, which is always below 2^53.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// let guard = client.mutex("account:123").lock()?;
    /// let header = format!("X-Fencing-Token: {}", guard.fencing_token().value());
    /// # assert!(header.len() > "X-Fencing-Token: ".len());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub const fn value(self) -> u64 {
        self.0
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.0
    }
}

/// The integer type of most databases; the value is never negative.
impl From<FencingToken> for i64 {
    fn from(token: FencingToken) -> Self {
        token.0.cast_signed()
    }
}

/// # Errors
///
/// [`Error::Config`] if no lock can have such a token.
impl TryFrom<u64> for FencingToken {
    type Error = Error;

    fn try_from(number: u64) -> Result<Self, Error> {
        let token = i64::try_from(number).ok().and_then(Self::read);
        token.ok_or_else(|| no_token(number))
    }
}

/// # Errors
///
/// [`Error::Config`] if no lock can have such a token.
impl TryFrom<i64> for FencingToken {
    type Error = Error;

    fn try_from(number: i64) -> Result<Self, Error> {
        Self::read(number).ok_or_else(|| no_token(number))
    }
}

/// # Errors
///
/// [`Error::Config`] if the text is anything but the decimal digits of a token.
impl FromStr for FencingToken {
    type Err = Error;

    fn from_str(digits: &str) -> Result<Self, Error> {
        Self::parse(digits.as_bytes()).ok_or_else(|| no_token(shown(digits.as_bytes())))
    }
}

fn no_token(what: impl fmt::Display) -> Error {
    Error::Config(format!(
        "{what} is no fencing token: tokens are integers from 1 to {}",
        LIMIT - 1
    ))
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
    fn only_tokens_convert_from_numbers_and_text() {
        let token = FencingToken::new(7);
        assert_eq!(FencingToken::try_from(7_u64).unwrap(), token);
        assert_eq!(FencingToken::try_from(7_i64).unwrap(), token);
        assert_eq!("7".parse::<FencingToken>().unwrap(), token);
        assert_eq!((i64::from(token), u64::from(token)), (7, 7));
        for number in [0, 1 << 53, u64::MAX] {
            let error = FencingToken::try_from(number).unwrap_err();
            assert!(error.to_string().contains(&number.to_string()), "{error}");
        }
        assert!(FencingToken::try_from(-1_i64).is_err());
        let error = "7\n".parse::<FencingToken>().unwrap_err();
        assert!(
            error.to_string().contains(r"7\n is no fencing token"),
            "{error}"
        );
    }

    #[test]
    fn only_numbers_that_a_script_can_draw_are_tokens() {
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
