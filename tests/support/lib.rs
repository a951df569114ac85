//! Helpers of the tests and benches: real servers, a proxy with faults on demand, child processes,
//! clocks.

mod blackhole;
mod call;
mod capture;
mod certificates;
mod chaos;
mod child;
mod client;
mod clock;
mod cluster;
mod commands;
mod contention;
mod contents;
mod counter;
pub mod fair;
mod fake_node;
mod fake_server;
mod features;
mod fenced;
mod link;
mod outcome;
mod own_process;
mod own_sentinel;
mod permit;
pub mod permits;
mod port;
mod proxy;
pub mod random_calls;
mod recorded_reply;
mod recorder;
mod replicas;
mod repository;
mod runner;
pub mod scripts;
mod sentinels;
mod server;
mod snapshot;
mod supervised_process;
mod tempdir;
mod terminal;
mod time;
mod watchdog;

pub use blackhole::{BlackHole, Swallowing, refusing_url};
pub use call::{
    SetOnDrop, assert_gives_up, assert_message_wakes, connect_to_all, result_of, spawn_call,
    useful_wakes, while_others_repeat,
};
pub use capture::{LogRecord, at_next_record_about, log_records, log_records_about};
pub use certificates::{certificate_path, read_pem, tls_server, tls_server_trusting};
pub use chaos::{Chaos, ChaosReport, survivor};
pub use child::{Child, Finished, parameter, run_role, tell_parent, thread_count};
pub use client::{COMMAND_TIMEOUT, builder, builder_within, client};
pub use clock::Clock;
pub use cluster::{Cluster, ClusterSetup};
pub use commands::CommandStats;
pub use contention::{
    Contention, MasterFailure, Outcome, PROCESSES, RESUME_WITHIN, contend_and_then, contender,
    time_until_acquired,
};
pub use counter::{Counters, counter, counter_with};
pub use fake_node::{encode, fake_node, one_owner};
pub use fake_server::{FakeServer, Request, default_reply};
pub use features::exercise_every_call;
pub use fenced::{Fenced, Stale};
pub use outcome::{assert_released, expect_unreachable};
pub use own_process::{own_thread_waits, own_threads, processor_time, resident_kib};
pub use own_sentinel::{FakeSentinel, OwnSentinel, Says, sentinel_url};
pub use permit::start_shared;
pub use port::free as free_port;
pub use proxy::{Proxy, Traffic};
pub use recorded_reply::recorded_reply;
pub use recorder::{Exchange, Recorder};
pub use replicas::Replicas;
pub use repository::in_repository;
pub use runner::{Listed, Tests, run};
pub use sentinels::{Sentinels, Setup};
pub use server::Server;
pub use snapshot::Snapshot;
pub use tempdir::TempDir;
pub use terminal::Terminal;
pub use time::{
    Control, SLACK, Timed, WAKE_UPS, eventually, let_pass, micros_since_1970, ms, nearly_a_token,
};
pub use watchdog::{Watchdog, watchdog};
