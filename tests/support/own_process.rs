//! The memory, the processor time and the threads of this process.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns the resident memory in KiB.
pub fn resident_kib() -> f64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux reports a process's memory");
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
    let kib = kib.and_then(|kib| kib.parse().ok());
    kib.expect("a number of KiB")
}

/// Returns the time for which processors have run the threads of this process.
pub fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.try_into().expect("the time is not negative")
}

/// Returns the names of the clients' threads, sorted. The kernel keeps 15 bytes of each.
///
/// The list has no dialers: they end after each connection, and `shutdown` does not join them.
pub fn own_threads() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").expect("Linux lists the threads of a process");
    let mut names: Vec<String> = tasks
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .map(|name| name.trim_end().to_owned())
        .filter(|name| name.starts_with("leasehold-") && name != "leasehold-dial")
        .collect();
    names.sort();
    names
}
