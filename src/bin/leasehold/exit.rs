//! How the program ends: its exit codes, and what it says when it fails.

use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use leasehold::Error;

use crate::escape::Escaped;

// 64 to 78 are those of sysexits.h.
pub(crate) const NOT_HELD: u8 = 1;
pub(crate) const USAGE: u8 = 64;
const UNREACHABLE: u8 = 69;
const SYSTEM: u8 = 71;
const OUTPUT: u8 = 74;
pub(crate) const NOT_ACQUIRED: u8 = 75;
const REFUSED: u8 = 77;
pub(crate) const LOST: u8 = 79;
/// As `timeout` says it.
pub(crate) const TOO_LONG: u8 = 124;
// As shells say it.
pub(crate) const CANNOT_RUN: u8 = 126;
pub(crate) const NOT_FOUND: u8 = 127;
const SIGNALLED: u8 = 128;
/// As if SIGPIPE, which this program does not get, had ended it.
const READER_GONE: u8 = SIGNALLED + 13;

/// For help and manual.
pub(crate) const TABLE: &str = "\
Exit codes:
  0 to 255  those of the command
  1    unlock: nobody held the lock
  64   the command line or a setting cannot work
  69   Redis cannot be reached or does not answer
  71   the system has no process, thread or pipe for us
  74   standard output cannot be written
  75   somebody else holds the lock (--not-acquired-exit)
  77   Redis answered and refused: a right, a password or memory is missing, or the key is no lock's
  79   the lock was lost before the command had ended
  124  the command was ended by --max-hold
  126  the command cannot be run
  127  the command was not found
  128 + n  the command, or the wait for the lock, was ended by signal n";

/// Why the program ends without having done what it was told.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    text: String,
}

impl Failure {
    pub(crate) fn new(code: u8, text: impl Into<String>) -> Self {
        Self {
            code,
            text: text.into(),
        }
    }

    /// The system did not give us what we need ourselves.
    pub(crate) fn system(what: &str, error: &io::Error) -> Self {
        Self::new(SYSTEM, format!("{what}: {error}"))
    }

    /// Says why, and returns the exit code.
    pub(crate) fn tell(self) -> u8 {
        if !self.text.is_empty() {
            say(&self.text);
        }
        self.code
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Config(_) => USAGE,
            error if error.is_unreachable() => UNREACHABLE,
            Error::Thread { .. } => SYSTEM,
            _ => REFUSED,
        };
        Self::new(code, error.to_string())
    }
}

/// Of writing to standard output.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::new(READER_GONE, "");
        }
        Self::new(
            OUTPUT,
            format!("standard output cannot be written: {error}"),
        )
    }
}

/// A message for people, of one line.
pub(crate) fn say(text: &str) {
    // Where nobody can be told, the exit code still says it.
    let text = Escaped::whole(text.as_bytes());
    let _ = writeln!(io::stderr(), "leasehold: {text}");
}

/// A command's end as its exit code.
pub(crate) fn code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        // A status has eight bits.
        (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
        (None, signal) => by_signal(signal.unwrap_or(0)),
    }
}

pub(crate) fn by_signal(signal: i32) -> u8 {
    SIGNALLED.saturating_add(u8::try_from(signal).unwrap_or(0))
}

/// The text without what stands before the `@` of a URL.
pub(crate) fn without_logons(text: &str) -> String {
    let mut parts = text.split("://");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        shown.push_str("://");
        let end = part.find(char::is_whitespace).unwrap_or(part.len());
        let (url, rest) = part.split_at(end);
        match url.rsplit_once('@') {
            Some((_, place)) => shown.push_str(&format!("…@{place}{rest}")),
            None => shown.push_str(part),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smoke() {
        assert_eq!(code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(code(ExitStatus::from_raw(15)), 143);
    }

    #[test]
    fn no_password_is_repeated() {
        let text = "unexpected argument 'redis://:p@ss@h:1/2' found at http://x and redis://u:pw@h";
        let shown = without_logons(text);
        assert_eq!(
            shown,
            "unexpected argument 'redis://…@h:1/2' found at http://x and redis://…@h"
        );
    }
}
