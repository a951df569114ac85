//! Which processors servers and clients run on, where what is compared are different servers.

#[cfg(target_os = "linux")]
use std::sync::OnceLock;

use rustix::process::{Pid, setpriority_process};
#[cfg(target_os = "linux")]
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use support::Server;

/// Has the servers that `start` starts run on the last processor, and this process, from then on, on the others: as if
/// they were different machines. Left to itself the scheduler puts one server beside its client and the next one elsewhere,
/// and a trip takes 30 or 80 µs with that, whatever the server does.
pub(crate) fn apart<T>(start: impl FnOnce() -> T) -> T {
    run_on(Side::Servers);
    let started = start();
    run_on(Side::Clients);
    started
}

/// Has a server run only when its processor has nothing else to do: one that nobody waits for, and that would be on a
/// machine of its own.
pub(crate) fn aside(server: &Server) {
    let id = i32::try_from(server.id()).ok().and_then(Pid::from_raw);
    setpriority_process(id, 19).expect("a priority can be lowered");
}

enum Side {
    Servers,
    Clients,
}

/// This thread, and what it starts from now on.
#[cfg(target_os = "linux")]
fn run_on(side: Side) {
    static ALL: OnceLock<CpuSet> = OnceLock::new();
    let mut set = *ALL.get_or_init(|| sched_getaffinity(None).expect("it can be asked"));
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
        sched_setaffinity(None, &set).expect("a part of what it had");
    }
}

/// Elsewhere a process cannot choose.
#[cfg(not(target_os = "linux"))]
fn run_on(_: Side) {}
