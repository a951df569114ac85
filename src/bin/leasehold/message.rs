//! The messages of the program on standard error.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU8, Ordering};

use log::{LevelFilter, Log, Metadata, Record};

use crate::escape::Escaped;

/// The messages that are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Verbosity {
    /// Errors.
    Quiet,
    /// Also outcomes that are not errors.
    Normal,
    /// Also what happens to the lock.
    Verbose,
    /// Also every attempt.
    Everything,
}

static VERBOSITY: AtomicU8 = AtomicU8::new(Verbosity::Normal as u8);

/// Sets which messages are printed from now on.
pub(crate) fn set_verbosity(verbosity: Verbosity) {
    VERBOSITY.store(verbosity as u8, Ordering::Relaxed);
    let level = match verbosity {
        Verbosity::Quiet | Verbosity::Normal => return,
        Verbosity::Verbose => LevelFilter::Debug,
        Verbosity::Everything => LevelFilter::Trace,
    };
    // Fails only if it was called before.
    if log::set_logger(&Records).is_ok() {
        log::set_max_level(level);
    }
}

fn prints(verbosity: Verbosity) -> bool {
    VERBOSITY.load(Ordering::Relaxed) >= verbosity as u8
}

/// Prints an error, in one line.
pub(crate) fn say(text: &str) {
    // If standard error is closed, the exit code still reports the failure.
    let text = Escaped::whole(text.as_bytes());
    let _ = writeln!(io::stderr(), "leasehold: {text}");
}

/// Prints an outcome that is not an error, in one line, unless --quiet was given.
pub(crate) fn note(text: &str) {
    if prints(Verbosity::Normal) {
        say(text);
    }
}

/// Prints the log records of the library.
struct Records;

impl Log for Records {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().split("::").next() == Some("leasehold")
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            say(&record.args().to_string());
        }
    }

    fn flush(&self) {}
}
