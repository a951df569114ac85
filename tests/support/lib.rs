//! Helpers of the tests and benches: real servers, a proxy with faults on demand, child processes,
//! clocks.

mod blackhole;
mod capture;
mod certificates;
mod chaos;
mod child;
mod client;
mod cluster;
mod commands;
mod contention;
mod contents;
mod counter;
pub mod fair;
mod fake_server;
mod features;
mod fenced;
mod leash;
mod link;
mod permit;
mod port;
mod proxy;
mod replicas;
mod runner;
mod sentinels;
mod server;
mod snapshot;
mod tempdir;
mod time;
mod unreachable;
mod watchdog;

pub use blackhole::{BlackHole, nobody};
pub use capture::{Line, captured, lines_about};
pub use certificates::{certificate, pem, tls_server};
pub use chaos::{Aftermath, Chaos, survivor};
pub use child::{Child, Finished, given, play, say, threads};
pub use client::{COMMAND_TIMEOUT, builder, client};
pub use cluster::{Cluster, ClusterSetup};
pub use contention::{
    Contention, GO_ON_WITHIN, Outcome, PROCESSES, SLACK, Trouble, contend_and_then, contender,
    until_taken,
};
pub use counter::{Counters, counter, counter_with};
pub use fake_server::{FakeServer, Request, usual};
pub use features::everything_works;
pub use fenced::{Fenced, Stale};
pub use permit::start_shared;
pub use port::free as free_port;
pub use proxy::{Proxy, Traffic};
pub use replicas::Replicas;
pub use runner::{Listed, run};
pub use sentinels::{Sentinels, Setup};
pub use server::Server;
pub use snapshot::Snapshot;
pub use tempdir::TempDir;
pub use time::{Control, Timed, eventually, let_pass, ms};
pub use unreachable::expect_unreachable;
pub use watchdog::{Watchdog, watchdog};
