//! The exit codes of the program, and the failures that end it.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use leasehold::Error;

use crate::message::{note, say};
use crate::server_variables::SERVER_VARIABLES;

/// The code of `status --exit-code` if a lock is held or permits are out.
pub(crate) const HELD: u8 = 1;
/// The code of `unlock` if the lock was not held.
pub(crate) const NOT_HELD: u8 = 1;
// 64 to 78 follow sysexits.h.
pub(crate) const USAGE: u8 = 64;
const UNREACHABLE: u8 = 69;
pub(crate) const SYSTEM: u8 = 71;
const OUTPUT: u8 = 74;
pub(crate) const NOT_ACQUIRED: u8 = 75;
pub(crate) const REFUSED: u8 = 77;
pub(crate) const LOST: u8 = 79;
/// The code that `timeout` uses.
pub(crate) const TOO_LONG: u8 = 124;
// The codes that shells use.
pub(crate) const CANNOT_RUN: u8 = 126;
pub(crate) const NOT_FOUND: u8 = 127;
const SIGNALLED: u8 = 128;
/// The code of a program ended by SIGPIPE. Rust programs ignore that signal and get `EPIPE`
/// instead.
const READER_GONE: u8 = SIGNALLED + 13;

/// The exit codes, for the help and the manual page.
pub(crate) const TABLE: &str = "\
Exit codes:
  0 to 255  the exit code of the command
  1    unlock: the lock was not held; status --exit-code: a lock or permits are held
  64   a command-line argument or setting is invalid, the command needs --foreground, or the lock
       is held by a run under which this one was started
  69   Redis is unreachable, does not answer, or refuses for a reason that may pass
  71   out of processes, threads or pipes, the supervisor process was killed, or the end of
       the command is unknown
  74   cannot write to standard output
  75   the lock is held, other calls wait for it, or no permit is free (--not-acquired-exit)
  77   Redis refused: permission denied, bad password, missing command, out of memory, or the
       key is not a lock
  79   the lock was lost before the command ended, or before it started, or the command was
       ended by --end-before
  124  the command was ended by --max-hold
  126  the command cannot be run
  127  the command was not found
  128 + n  the command, the wait for the lock, or `top` was ended by signal n
  141  the reader of standard output has ended";

/// The end of the program: its exit code and message.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    text: String,
    is_outcome: bool,
}

impl Failure {
    pub(crate) fn new(code: u8, text: impl Into<String>) -> Self {
        Self {
            code,
            text: text.into(),
            is_outcome: false,
        }
    }

    /// Returns an outcome that is not an error: with --quiet it is not printed.
    pub(crate) fn outcome(code: u8, text: impl Into<String>) -> Self {
        Self {
            is_outcome: true,
            ..Self::new(code, text)
        }
    }

    /// Returns the failure of a system call that this program needs, such as starting a thread.
    pub(crate) fn system(what: &str, error: &io::Error) -> Self {
        Self::new(SYSTEM, format!("{what}: {error}"))
    }

    /// If Redis is unreachable, adds to the message that the server is the default one.
    ///
    /// The usual reason is a forgotten variable: cron does not pass on the environment of a shell.
    pub(crate) fn of_default_server(mut self) -> Self {
        if self.code == UNREACHABLE {
            let variables = SERVER_VARIABLES.join(", ");
            self.text += &format!(" (the default: none of {variables} is set)");
        }
        self
    }

    /// Adds to the message for how long this program has tried again.
    pub(crate) fn of_attempts_for(mut self, time: Duration) -> Self {
        self.text += &format!("; attempts went on for {:.1} s", time.as_secs_f64());
        self
    }

    /// Prefixes the message with `what`, the step that has failed.
    pub(crate) fn of(mut self, what: &str) -> Self {
        self.text = format!("{what}: {}", self.text);
        self
    }

    /// Prints the message, and returns the exit code.
    pub(crate) fn print(self) -> u8 {
        match self.text.as_str() {
            "" => {}
            text if self.is_outcome => note(text),
            text => say(text),
        }
        self.code
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Config(_) => USAGE,
            error if error.is_unreachable() => UNREACHABLE,
            Error::Shortage { .. } | Error::Thread { .. } => SYSTEM,
            _ => REFUSED,
        };
        Self::new(code, error.to_string())
    }
}

/// An error of writing to standard output.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::new(READER_GONE, "");
        }
        Self::new(OUTPUT, format!("cannot write to standard output: {error}"))
    }
}

/// Returns the exit code for a command's exit status.
pub(crate) fn code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        // An exit code has eight bits.
        (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
        (None, signal) => by_signal(signal.unwrap_or(0)),
    }
}

pub(crate) fn by_signal(signal: i32) -> u8 {
    SIGNALLED.saturating_add(u8::try_from(signal).unwrap_or(0))
}

/// Returns the text without the credentials of the URLs in it.
///
/// A password may contain spaces and further URLs, so all that is between the first `://` of a line
/// and its last `@` is left out.
pub(crate) fn without_credentials(text: &str) -> String {
    let hidden = |line: &str| {
        let (start, url) = line.split_once("://")?;
        let (_, place) = url.rsplit_once('@')?;
        Some(format!("{start}://…@{place}"))
    };
    let shown = text.split('\n');
    let shown = shown.map(|line| hidden(line).unwrap_or_else(|| line.to_owned()));
    shown.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_adds_128_to_its_number() {
        assert_eq!(code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(code(ExitStatus::from_raw(15)), 143);
    }

    #[test]
    fn credentials_in_urls_are_hidden() {
        for (text, shown) in [
            ("no 'redis://:p@ss@h:1/2' here", "no 'redis://…@h:1/2' here"),
            ("redis://:my secret@h", "redis://…@h"),
            ("redis://:a://b@h", "redis://…@h"),
            (
                "redis://u:p@h\nsee http://x\n",
                "redis://…@h\nsee http://x\n",
            ),
        ] {
            assert_eq!(without_credentials(text), shown);
        }
    }
}
