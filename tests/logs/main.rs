//! Promises whose tests read the log: this process has a logger that keeps every record.

mod drop;
mod foreign_text;
mod harness;
mod input;
mod logging;
mod quorum;
mod short_lived;
mod two_servers;

use std::process::ExitCode;

use support::{Listed, Tests};

const TESTS: &[Listed] = &[
    drop::TESTS,
    foreign_text::TESTS,
    harness::TESTS,
    input::TESTS,
    logging::TESTS,
    quorum::TESTS,
    short_lived::TESTS,
    two_servers::TESTS,
];

const TIMED: &[Listed] = &[logging::TIMED, quorum::TIMED];

const ROLES: &[Listed] = &[drop::ROLES, harness::ROLES, input::ROLES];

fn main() -> ExitCode {
    support::run(&Tests {
        at_once: TESTS,
        timed: TIMED,
        in_own_process: &[],
        roles: ROLES,
    })
}
