//! Promises about a whole process: its memory and threads, and a logger, a recorder or a crypto
//! provider that a program installs for all of it.

#[cfg(feature = "tls")]
mod crypto_provider;
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
            #[cfg(feature = "tls")]
            crypto_provider::OWN_PROCESS,
            #[cfg(feature = "metrics")]
            metrics::OWN_PROCESS,
            panicking_logger::OWN_PROCESS,
            slow_logger::OWN_PROCESS,
        ],
        roles: &[memory::ROLES],
    })
}
