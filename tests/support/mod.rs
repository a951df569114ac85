//! What the tests and benches share: real servers, a proxy that misbehaves on demand, child processes, clocks.

// Every test file compiles its own copy of this module and uses a part of it.
#![allow(dead_code, unused_imports)]

mod blackhole;
mod capture;
mod certificates;
mod chaos;
mod child;
mod client;
mod cluster;
mod commands;
mod contention;
mod counter;
pub(crate) mod fair;
mod fake_server;
mod features;
mod fenced;
mod leash;
mod link;
mod port;
mod proxy;
mod replicas;
mod seen;
mod sentinels;
mod server;
mod snapshot;
mod tempdir;
mod time;
mod unreachable;
mod watchdog;

pub(crate) use blackhole::{BlackHole, nobody};
pub(crate) use capture::{Line, captured, lines_about};
pub(crate) use certificates::{certificate, pem, tls_server};
pub(crate) use chaos::{Aftermath, Chaos, survivor};
pub(crate) use child::{Child, Finished, given, role, say, threads};
pub(crate) use client::{COMMAND_TIMEOUT, builder, client};
pub(crate) use cluster::{Cluster, ClusterSetup};
pub(crate) use contention::{
    Contention, GO_ON_WITHIN, Outcome, PROCESSES, SLACK, Trouble, contend_and_then, contender,
    until_taken,
};
pub(crate) use counter::{Counters, counter, counter_with};
pub(crate) use fake_server::{FakeServer, Request, usual};
pub(crate) use features::everything_works;
pub(crate) use fenced::{Fenced, Stale};
pub(crate) use port::free as free_port;
pub(crate) use proxy::{Proxy, Traffic};
pub(crate) use replicas::Replicas;
pub(crate) use sentinels::{Sentinels, Setup};
pub(crate) use server::Server;
pub(crate) use snapshot::Snapshot;
pub(crate) use tempdir::TempDir;
pub(crate) use time::{Control, Timed, eventually, let_pass, ms};
pub(crate) use unreachable::is_unreachable;
pub(crate) use watchdog::{Watchdog, watchdog};
