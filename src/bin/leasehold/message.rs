//! The messages of the program on standard error.

use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

use leasehold::crossbeam_channel::{Sender, bounded, unbounded};
use log::{LevelFilter, Log, Metadata, Record};

use crate::escape::Escaped;
use crate::settings::in_options;

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

/// The most lines that wait for the printing thread. Further lines are lost.
const MOST_LINES: usize = 10_000;

/// How long [`flush`] waits.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);

/// How long [`flush`] waits after a signal.
const FLUSH_AFTER_SIGNAL: Duration = Duration::from_millis(50);

/// A request to the printing thread.
enum Request {
    Print(String),
    /// Drop this, which closes its channel.
    Flush(Sender<()>),
}

/// Sends to the printing thread, once it is started.
static PRINTER: OnceLock<Sender<Request>> = OnceLock::new();

/// A signal asks this process to end.
static IS_SIGNALLED: AtomicBool = AtomicBool::new(false);

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

/// Starts a thread that prints all messages from now on.
///
/// A write to standard error blocks while a pager reads no further or Ctrl-S was pressed. It must
/// not block the threads that renew the lock or end the command.
pub(crate) fn print_in_background() -> io::Result<()> {
    let (printer, requests) = unbounded();
    let print_all = move || {
        for request in requests {
            match request {
                Request::Print(text) => print(&text),
                Request::Flush(done) => drop(done),
            }
        }
    };
    thread::Builder::new()
        .name("leasehold-print".into())
        .spawn(print_all)?;
    // Fails only if it was called before.
    let _ = PRINTER.set(printer);
    Ok(())
}

/// Makes [`flush`] wait for a short time only, because a signal asks this process to end.
pub(crate) fn shorten_flush() {
    IS_SIGNALLED.store(true, Ordering::Relaxed);
}

/// Waits until all messages are printed, for a limited time.
pub(crate) fn flush() {
    let limit = if IS_SIGNALLED.load(Ordering::Relaxed) {
        FLUSH_AFTER_SIGNAL
    } else {
        FLUSH_LIMIT
    };
    if let Some(printer) = PRINTER.get() {
        let (done, is_done) = bounded(0);
        let _ = printer.send(Request::Flush(done));
        let _ = is_done.recv_timeout(limit);
    }
}

/// Prints an error, in one line. It may be one of the library: options replace its settings.
pub(crate) fn say(text: &str) {
    let text = in_options(text);
    match PRINTER.get() {
        Some(printer) if printer.len() >= MOST_LINES => {}
        Some(printer) => {
            // The thread never ends.
            let _ = printer.send(Request::Print(text));
        }
        None => print(&text),
    }
}

fn print(text: &str) {
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
