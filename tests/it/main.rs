//! One module for each promise. Tests that measure time are listed separately: fewer of them run in
//! parallel.

mod acl;
mod all;
mod ambiguity;
mod announced;
mod batching;
mod breaker;
mod campaign;
mod cancel;
mod chaos;
#[cfg(all(feature = "cli", unix))]
mod cli;
mod cluster;
mod cohort;
mod conformance;
mod credentials;
mod deadlines;
mod demotion;
mod errors;
mod exclusion;
mod fair;
mod fair_faults;
mod faults;
mod fencing;
mod fork;
mod healing;
mod hostile;
mod large_values;
mod last_connection;
mod late_ttl;
mod lease;
mod linger;
mod list;
mod local_handoff;
mod lock;
mod loss;
mod malformed;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod names;
mod not_redis;
mod outages;
mod proxies;
mod queue;
mod quorum;
mod refusals;
mod release_outages;
mod renewal;
mod renewals_together;
mod replicas;
mod replies;
mod rw_lock;
mod rw_lock_faults;
mod rw_lock_replies;
mod sections;
mod semaphore;
mod semaphore_faults;
mod semaphore_replies;
mod sentinel;
#[cfg(feature = "tls")]
mod sentinel_tls;
#[cfg(target_os = "linux")]
mod server_clock;
mod set_queues;
mod shortages;
mod shutdown;
mod signals;
mod slot_moves;
mod stats;
mod storm;
mod taken;
#[cfg(feature = "tls")]
mod tls;
mod trace;
mod waiting;
mod waking;
#[cfg(target_os = "linux")]
mod wall_clock;
mod wire;
mod without_queues;

use std::process::ExitCode;

use support::{Listed, Tests};

const TESTS: &[Listed] = &[
    // The longest start first.
    rw_lock_replies::TESTS,
    semaphore_replies::TESTS,
    exclusion::TESTS,
    fork::TESTS,
    hostile::TESTS,
    acl::TESTS,
    all::TESTS,
    ambiguity::TESTS,
    announced::TESTS,
    breaker::TESTS,
    cancel::TESTS,
    campaign::TESTS,
    campaign::judge::TESTS,
    chaos::TESTS,
    #[cfg(all(feature = "cli", unix))]
    cli::TESTS,
    #[cfg(all(feature = "cli", unix))]
    cli::credentials::TESTS,
    #[cfg(all(feature = "cli", unix))]
    cli::cron::TESTS,
    #[cfg(all(feature = "cli", unix))]
    cli::ends::TESTS,
    #[cfg(all(feature = "cli", unix))]
    cli::exits::TESTS,
    #[cfg(all(feature = "cli", unix))]
    cli::handover::TESTS,
    #[cfg(all(feature = "cli", unix))]
    cli::min_hold::TESTS,
    #[cfg(all(feature = "cli", unix))]
    cli::nested::TESTS,
    #[cfg(all(feature = "cli", unix))]
    cli::options::TESTS,
    #[cfg(all(feature = "cli", unix))]
    cli::shown::TESTS,
    #[cfg(all(feature = "cli", unix))]
    cli::signals::TESTS,
    #[cfg(all(feature = "cli", target_os = "linux"))]
    cli::starts::TESTS,
    #[cfg(all(feature = "cli", target_os = "linux"))]
    cli::supervision::TESTS,
    #[cfg(all(feature = "cli", unix))]
    cli::terminal::TESTS,
    #[cfg(all(feature = "cli", unix))]
    cli::top::TESTS,
    #[cfg(all(feature = "cli", unix))]
    cli::writes::TESTS,
    cluster::TESTS,
    cohort::TESTS,
    credentials::TESTS,
    conformance::cluster::TESTS,
    conformance::one::TESTS,
    conformance::quorum_of_3::TESTS,
    conformance::quorum_of_5::TESTS,
    conformance::sentinel::TESTS,
    #[cfg(feature = "tls")]
    conformance::tls::TESTS,
    conformance::unix_socket::TESTS,
    deadlines::TESTS,
    demotion::TESTS,
    errors::TESTS,
    fair::TESTS,
    fair_faults::TESTS,
    faults::TESTS,
    fencing::TESTS,
    large_values::TESTS,
    last_connection::TESTS,
    healing::TESTS,
    late_ttl::TESTS,
    lease::TESTS,
    list::TESTS,
    linger::TESTS,
    local_handoff::TESTS,
    lock::TESTS,
    loss::TESTS,
    malformed::TESTS,
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    names::TESTS,
    not_redis::TESTS,
    outages::TESTS,
    quorum::TESTS,
    proxies::TESTS,
    queue::TESTS,
    refusals::TESTS,
    renewal::TESTS,
    renewals_together::TESTS,
    replicas::TESTS,
    replies::TESTS,
    sections::TESTS,
    semaphore::TESTS,
    semaphore_faults::TESTS,
    rw_lock::TESTS,
    rw_lock_faults::TESTS,
    sentinel::TESTS,
    #[cfg(target_os = "linux")]
    wall_clock::TESTS,
    slot_moves::TESTS,
    set_queues::TESTS,
    shortages::TESTS,
    shutdown::TESTS,
    stats::TESTS,
    storm::TESTS,
    taken::TESTS,
    #[cfg(feature = "tls")]
    tls::TESTS,
    #[cfg(feature = "tls")]
    sentinel_tls::TESTS,
    trace::TESTS,
    waiting::TESTS,
    waking::TESTS,
    wire::TESTS,
    without_queues::TESTS,
    #[cfg(target_os = "linux")]
    server_clock::TESTS,
    release_outages::TESTS,
];

const TIMED: &[Listed] = &[
    batching::TIMED,
    cancel::TIMED,
    #[cfg(all(feature = "cli", unix))]
    cli::handover::TIMED,
    #[cfg(all(feature = "cli", unix))]
    cli::signals::TIMED,
    local_handoff::TIMED,
    lock::TIMED,
    loss::TIMED,
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    names::TIMED,
    renewal::TIMED,
    replicas::TIMED,
    signals::TIMED,
    stats::TIMED,
    wire::TIMED,
];

const ROLES: &[Listed] = &[
    all::ROLES,
    breaker::ROLES,
    campaign::ROLES,
    cluster::ROLES,
    fair::ROLES,
    fair_faults::ROLES,
    fork::ROLES,
    hostile::ROLES,
    linger::ROLES,
    loss::ROLES,
    semaphore_faults::ROLES,
    rw_lock::ROLES,
    rw_lock_faults::ROLES,
    sentinel::ROLES,
    #[cfg(target_os = "linux")]
    server_clock::ROLES,
    #[cfg(target_os = "linux")]
    wall_clock::ROLES,
    set_queues::ROLES,
    shortages::ROLES,
    shutdown::ROLES,
    signals::ROLES,
    taken::ROLES,
    #[cfg(feature = "tls")]
    tls::ROLES,
    waking::ROLES,
];

fn main() -> ExitCode {
    support::run(&Tests {
        at_once: TESTS,
        timed: TIMED,
        in_own_process: &[],
        roles: ROLES,
    })
}
