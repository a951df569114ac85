//! The memory, the processor time and the threads of this process.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
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
    let threads = client_threads().map(|(name, _)| name);
    let mut names: Vec<String> = threads.filter(|name| name != "leasehold-dial").collect();
    names.sort();
    names
}

/// Returns the name of each thread of the clients, by its id, and how often it has waited: its
/// voluntary context switches.
pub fn own_thread_waits() -> BTreeMap<OsString, (String, u64)> {
    let threads = client_threads().filter_map(|(name, folder)| {
        let status = fs::read_to_string(folder.join("status")).ok()?;
        let mut lines = status.lines();
        let waits = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        let waits = waits.trim().parse().expect("a number of switches");
        Some((folder.file_name()?.to_owned(), (name, waits)))
    });
    threads.collect()
}

/// Returns the name of each thread of the clients, and its folder in `/proc`.
fn client_threads() -> impl Iterator<Item = (String, PathBuf)> {
    let tasks = fs::read_dir("/proc/self/task").expect("Linux lists the threads of a process");
    let threads = tasks.filter_map(|task| {
        let folder = task.ok()?.path();
        let name = fs::read_to_string(folder.join("comm")).ok()?;
        Some((name.trim_end().to_owned(), folder))
    });
    threads.filter(|(name, _)| name.starts_with("leasehold-"))
}
