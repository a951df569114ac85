//! Promises about a whole process: its memory and threads, and a logger or recorder that a program
//! installs for all of it.

mod memory;
#[cfg(feature = "metrics")]
mod metrics;
mod panicking_logger;
mod slow_logger;

use std::process::ExitCode;

use support::Tests;

fn main() -> ExitCode {
    support::run(&Tests {
        at_once: &[memory::TESTS],
        timed: &[],
        in_own_process: &[
            #[cfg(feature = "metrics")]
            metrics::OWN_PROCESS,
            panicking_logger::OWN_PROCESS,
            slow_logger::OWN_PROCESS,
        ],
        roles: &[memory::ROLES],
    })
}
