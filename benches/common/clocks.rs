//! A clock that processes share, and the processor time of processes and servers.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use support::Server;

/// A clock shared by all processes.
pub fn clock() -> Duration {
    time_of(ClockId::Monotonic)
}

/// The processor time used by all threads of this process.
pub fn processor_time() -> Duration {
    time_of(ClockId::ProcessCPUTime)
}

/// The processor time used by a server.
pub fn server_processor_time(server: &Server) -> Duration {
    let seconds = |field| {
        let seconds = server.info("cpu", field);
        seconds.and_then(|seconds| seconds.parse::<f64>().ok())
    };
    let used = ["used_cpu_user", "used_cpu_sys"].into_iter();
    Duration::from_secs_f64(used.filter_map(seconds).sum())
}

fn time_of(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap(),
        u32::try_from(time.tv_nsec).unwrap(),
    )
}
