//! A hang becomes a failure that says where.

use std::env;
use std::io::{self, Write};
use std::process;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};

/// Ends the process if it is not dropped in time.
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
                // Past the test runner's capture, which would be lost. And no panic: the test hangs in another
                // thread, which no unwinding here would end.
                let _ = writeln!(
                    io::stderr(),
                    "watchdog: `{test}` is not done after {limit:?}"
                );
                process::abort();
            }
        })
        .expect("a thread can be started");
    Watchdog { _held: held }
}

/// What a test gets that starts a server: two minutes, or `LEASEHOLD_TEST_LIMIT` seconds.
pub(crate) fn usual_limit() -> Duration {
    let seconds = env::var("LEASEHOLD_TEST_LIMIT")
        .ok()
        .and_then(|limit| limit.parse().ok());
    Duration::from_secs(seconds.unwrap_or(120))
}
