//! Turns a test that hangs into a failure that names the test.

use std::env;
use std::io::{self, Write};
use std::process;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};

/// Aborts the process unless it is dropped in time.
pub struct Watchdog {
    _held: Sender<()>,
}

pub fn watchdog(limit: Duration) -> Watchdog {
    let (held, dropped) = bounded::<()>(0);
    let test = thread::current()
        .name()
        .unwrap_or("a thread without a name")
        .to_owned();
    thread::Builder::new()
        .name("watchdog".to_owned())
        .spawn(move || {
            if dropped.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                // Written directly, because output that the test runner captures would be lost.
                // Aborts, because a panic in this thread would not end the hanging one.
                let _ = writeln!(
                    io::stderr(),
                    "watchdog: `{test}` is still running after {limit:?}"
                );
                process::abort();
            }
        })
        .expect("a thread can be started");
    Watchdog { _held: held }
}

/// Returns the limit for tests that start a server: `LEASEHOLD_TEST_LIMIT` seconds, else 300 s. A
/// campaign of `CHAOS` seconds has as much time more.
pub(crate) fn default_limit() -> Duration {
    let number = |key| env::var(key).ok().and_then(|it| it.parse::<u64>().ok());
    let limit = number("LEASEHOLD_TEST_LIMIT").unwrap_or(300);
    Duration::from_secs(limit.saturating_add(number("CHAOS").unwrap_or(0)))
}
