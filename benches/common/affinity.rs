//! Sets the processors of servers and clients, for comparisons of different servers.

#[cfg(target_os = "linux")]
use std::sync::OnceLock;

use rustix::process::{Pid, setpriority_process};
#[cfg(target_os = "linux")]
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use support::Server;

/// Runs the servers that `start` starts on the last processor, as if on another machine. From then
/// on, this thread and the threads that it starts run on the other processors. Without this, the
/// scheduler puts one server on its client's processor and the next one elsewhere, and a round trip
/// takes 30 or 80 µs for that reason alone.
pub fn apart<T>(start: impl FnOnce() -> T) -> T {
    run_on(Side::Servers);
    let started = start();
    run_on(Side::Clients);
    started
}

/// Gives a server the lowest priority: no call waits for it, and in production it would be on
/// another machine.
pub fn run_in_idle_time(server: &Server) {
    let id = i32::try_from(server.process_id())
        .ok()
        .and_then(Pid::from_raw);
    setpriority_process(id, 19).expect("lowering a priority is permitted");
}

enum Side {
    Servers,
    Clients,
}

/// Restricts this thread, and the threads and processes that it starts from now on, to the
/// processors of a side.
#[cfg(target_os = "linux")]
fn run_on(side: Side) {
    static ALL: OnceLock<CpuSet> = OnceLock::new();
    let mut set = *ALL.get_or_init(|| sched_getaffinity(None).expect("the affinity can be read"));
    let Some(last) = (0..CpuSet::MAX_CPU).rev().find(|n| set.is_set(*n)) else {
        return;
    };
    match side {
        Side::Servers => {
            set.clear();
            set.set(last);
        }
        Side::Clients => set.unset(last),
    }
    if set.count() > 0 {
        sched_setaffinity(None, &set).expect("a subset of the former affinity");
    }
}

/// Other systems offer no such call.
#[cfg(not(target_os = "linux"))]
fn run_on(_: Side) {}
