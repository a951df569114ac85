//! A Redis in this process, for tests of programs that lock.

mod commands;
mod connection;
mod database;
mod faults;
mod foreign;
mod guards;
mod keyspace;
mod port;
mod reply;
mod resp;
mod script;
mod serve;
mod server;
mod shared;
mod state;

use std::time::Duration;

use crate::clock;
use crate::running;

pub use foreign::Foreign;
pub use guards::{Cut, Pause, Refusal};
pub use server::Server;

/// Moves the clock of this process ahead, as if the machine had been suspended for `time`.
///
/// Leases whose validity has ended are lost at once, and deadlines have passed. The clock is that of
/// all clients of the process, and never goes back. So tests that call this must run alone: in a
/// binary of their own, with `cargo nextest`, or with `--test-threads 1`.
///
/// The clocks of servers do not move: see [`Server::advance`].
pub fn suspend(time: Duration) {
    clock::suspend(time);
    for client in running::all() {
        client.clock_jumped();
    }
}
