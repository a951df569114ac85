//! The name of a lock.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};
use std::sync::{Arc, LazyLock};

use crate::error::Error;
use crate::escape::Escaped;

/// The longest name, in bytes.
const LONGEST_NAME: usize = 64 * 1024;

/// The name of a lock: 1 byte to 64 KiB of any bytes, not necessarily text.
///
/// Converts from text (`&str`, `String`, `Box<str>`, `Arc<str>`, `Cow<str>`), from bytes (`&[u8]`,
/// `&[u8; N]`, `Vec<u8>`), and from a number (`u64`, `i64`, `u32`, `i32`), which becomes its
/// decimal digits. Cloning is cheap. The first call on the lock reports a name of invalid length.
///
/// A number alone names the same lock in every part of the program. `format!("order:{id}")` keeps
/// the names of different tables apart.
///
/// `Display` and `Debug` escape unprintable characters and truncate long names;
/// [`as_bytes`](Self::as_bytes) returns the exact bytes.
///
/// ```
/// use leasehold::Name;
///
/// assert_eq!(Name::from("account:123").as_bytes(), b"account:123");
/// assert_eq!(Name::from(123), *"123");
/// assert_eq!(Name::from(b"\x00\xff").to_string(), r"\x00\xff");
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    bytes: Arc<[u8]>,
    /// The hash of the bytes, computed once: a lock and its release look the name up five times.
    /// Two of its bits are the kind: each lock that is held has four copies of its name.
    hash: u64,
}

/// Displays names: at most two of them, then the number of the others, because there can be a
/// thousand.
pub(crate) struct Listed<'a>(pub(crate) &'a [Name]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("nothing"),
            [name] => name.fmt(f),
            [first, second] => write!(f, "{first} and {second}"),
            [first, second, more @ ..] => write!(f, "{first}, {second} and {} more", more.len()),
        }
    }
}

/// The bit of the hash that is the kind of the name. A hash table looks at the lowest and the
/// highest ones.
const KIND: u64 = 1 << 32;

/// The kind of a name: `Lock` for names that callers see. Two names of the same bytes and different
/// kinds are unrelated.
#[derive(Clone, Copy)]
enum Of {
    Lock,
    Semaphore,
}

/// A map keyed by lock name.
pub(crate) type NameTable<T> = HashMap<Name, T, BuildHasherDefault<Hashed>>;

/// A hasher that returns the hash stored in the [`Name`].
///
/// That hash is keyed at random, so nobody can choose names that collide.
#[derive(Default)]
pub(crate) struct Hashed(u64);

impl Hasher for Hashed {
    fn write(&mut self, _: &[u8]) {
        unreachable!("`Name` hashes by `write_u64` alone");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl Name {
    fn new(bytes: Arc<[u8]>) -> Self {
        static KEYED: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        let hash = KEYED.hash_one(&*bytes);
        Self { bytes, hash }.of(Of::Lock)
    }

    fn of(self, kind: Of) -> Self {
        let hash = self.hash & !KIND | (kind as u64) << KIND.trailing_zeros();
        Self { hash, ..self }
    }

    /// Returns the name of a semaphore as the tables of the client contain it.
    pub(crate) fn of_semaphore(self) -> Self {
        self.of(Of::Semaphore)
    }

    /// Returns the name as the caller gave it.
    pub(crate) fn as_given(&self) -> Self {
        self.clone().of(Of::Lock)
    }

    /// Returns the bytes of the name.
    ///
    /// ```
    /// use leasehold::Name;
    ///
    /// assert_eq!(Name::from("account:123").as_bytes(), b"account:123");
    /// ```
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the name as text; `None` if it is not UTF-8.
    ///
    /// ```
    /// # use leasehold::Name;
    /// assert_eq!(Name::from("account:123").as_str(), Some("account:123"));
    /// assert_eq!(Name::from(b"\xff").as_str(), None);
    /// ```
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.bytes).ok()
    }

    /// Returns an error if the length is invalid.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.bytes.len() {
            0 => Err(Error::Config("a lock's name must not be empty".into())),
            1..=LONGEST_NAME => Ok(()),
            long => Err(Error::Config(format!(
                "a lock's name must have at most {LONGEST_NAME} bytes, not {long}: \
                 use a shorter name or a hash of it"
            ))),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Escaped::name(&self.bytes).fmt(f)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// Returns arbitrary bytes as escaped text for a log record or an error.
pub(crate) fn shown(bytes: &[u8]) -> String {
    Escaped::name(bytes).to_string()
}

macro_rules! from_text {
    ($($text:ty)+) => {$(
        impl From<$text> for Name {
            fn from(name: $text) -> Self {
                Self::new(name.as_bytes().into())
            }
        }
    )+};
}
from_text!(&str &&str String &String Box<str> Arc<str> Cow<'_, str>);

impl From<&[u8]> for Name {
    fn from(name: &[u8]) -> Self {
        Self::new(name.into())
    }
}

impl From<Vec<u8>> for Name {
    fn from(name: Vec<u8>) -> Self {
        Self::new(name.into())
    }
}

macro_rules! from_number {
    ($($number:ty)+) => {$(
        /// The name is the decimal digits of the number, after a `-` if it is negative.
        impl From<$number> for Name {
            fn from(number: $number) -> Self {
                number.to_string().into()
            }
        }
    )+};
}
from_number!(i32 u32 i64 u64);

impl AsRef<[u8]> for Name {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl PartialEq<str> for Name {
    fn eq(&self, text: &str) -> bool {
        self.as_bytes() == text.as_bytes()
    }
}

impl PartialEq<&str> for Name {
    fn eq(&self, text: &&str) -> bool {
        self == *text
    }
}

impl<const N: usize> From<&[u8; N]> for Name {
    fn from(name: &[u8; N]) -> Self {
        Self::new(name.as_slice().into())
    }
}

impl From<&Self> for Name {
    fn from(name: &Self) -> Self {
        name.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_1_byte_to_64_kib() {
        assert!(Name::from("a b\n{c}").check().is_ok());
        assert!(Name::from("").check().is_err());
        assert!(Name::from(vec![7; LONGEST_NAME]).check().is_ok());
        assert!(Name::from(vec![7; LONGEST_NAME + 1]).check().is_err());
    }

    #[test]
    fn all_kinds_of_text_and_numbers_are_names() {
        let text = "order:7";
        let names: [Name; 6] = [
            text.into(),
            (&text).into(),
            String::from(text).into(),
            Box::<str>::from(text).into(),
            Arc::<str>::from(text).into(),
            Cow::Borrowed(text).into(),
        ];
        for name in names {
            assert_eq!(name, text);
            assert_eq!(name.as_str(), Some(text));
            assert_eq!(AsRef::<[u8]>::as_ref(&name), text.as_bytes());
        }
        assert_eq!(Name::from(u64::MAX), "18446744073709551615");
        assert_eq!(Name::from(i64::MIN), "-9223372036854775808");
        assert_eq!(Name::from(u32::MAX), "4294967295");
        assert_eq!(Name::from(-7_i32), "-7");
        assert_ne!(Name::from("7"), "07");
    }

    #[test]
    fn display_escapes_and_truncates() {
        assert_eq!(Name::from("a\nb").to_string(), r"a\nb");
        assert_eq!(Name::from("tisch-ü").to_string(), "tisch-ü");
        assert_eq!(format!("{:?}", Name::from(b"\xff")), r#""\xff""#);
        let long = Name::from("x".repeat(70_000)).to_string();
        assert!(long.len() < 200 && long.contains("70000 bytes"), "{long}");
    }
}
