//! The plan of each seed of a family.

use super::{Actor, FREE_RUNNING, Family, Fault, Kind, Plan, Rng, ServerFault, Why, quorum};
use crate::kernel::bounds::Bound;
use crate::sim::server::{MS, Time};

/// Returns the bound that the plan of a seed lowers: three plans of ten have one.
pub(in crate::sim) fn low_bound(seed: u64) -> Option<Bound> {
    let mut rng = Rng(seed ^ 0x006c_6f77_6572);
    let bound = Bound::ALL[rng.below(Bound::ALL.len() as u64) as usize];
    rng.chance(300).then_some(bound)
}

/// Returns the plan of a seed.
pub(in crate::sim) fn plan(family: Family, seed: u64) -> Plan {
    match family {
        Family::Quorum => return quorum::plan(seed),
        Family::Restarts => return quorum::restarts(seed),
        Family::Force => return quorum::force(seed),
        _ => {}
    }
    let mut rng = Rng(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ (family as u64 * 77 + 5));
    let clients = if rng.chance(150) {
        1
    } else {
        rng.range(2, 5) as usize
    };
    let threads = rng.range(1, 4) as usize;
    let mut kinds = match rng.below(5) {
        0 => vec![Kind::NoQueue],
        1 => vec![Kind::Mutex],
        2 => vec![Kind::Mutex, Kind::Fair],
        3 => vec![Kind::Fair],
        _ => vec![Kind::Mutex, Kind::Mutex, Kind::Fair],
    };
    if family == Family::Sets {
        kinds = match rng.below(6) {
            3 => vec![Kind::PlainSet, Kind::NoQueue],
            4 => vec![Kind::SlotSet(true), Kind::Mutex],
            5 => vec![Kind::SlotSet(false), Kind::NoQueue],
            0 => vec![Kind::Set],
            1 => vec![Kind::Set, Kind::Set, Kind::Fair, Kind::Mutex],
            _ => vec![Kind::Set, Kind::Mutex],
        };
    }
    if family == Family::Linger {
        kinds = match rng.below(3) {
            0 => vec![Kind::NoQueue],
            1 => vec![Kind::Mutex],
            _ => vec![Kind::Mutex, Kind::Mutex, Kind::Fair],
        };
    }
    if family == Family::Shared {
        kinds = match rng.below(3) {
            0 => vec![Kind::Reader, Kind::Reader, Kind::Writer],
            1 => vec![Kind::Permits(1), Kind::Permits(2)],
            _ => vec![Kind::Reader, Kind::Writer, Kind::Mutex, Kind::Fair],
        };
    }
    if [Family::Rejections, Family::Moves].contains(&family) {
        kinds = match rng.below(6) {
            0 => vec![Kind::Reader, Kind::Writer, Kind::Mutex],
            1 => vec![Kind::Permits(1), Kind::Permits(2)],
            2 if family == Family::Moves => vec![Kind::SlotSet(true), Kind::Mutex],
            2 => vec![Kind::Set, Kind::Mutex],
            _ => kinds,
        };
    }
    let ttl = match family {
        Family::Calm if rng.chance(500) => rng.range(60, 200) * MS,
        Family::ShortTtl => rng.range(40, 600) * MS,
        Family::Linger if rng.chance(500) => rng.range(100, 1_000) * MS,
        Family::Sets if rng.chance(200) => rng.range(100, 1_000) * MS,
        Family::Clocks => rng.range(1_000, 6_000) * MS,
        _ if rng.chance(500) => 4_000 * MS,
        _ => rng.range(1_000, 3_000) * MS,
    };
    let mut plan = Plan {
        seed,
        family,
        servers: 1,
        clients,
        threads,
        ops: rng.range(5, 30) as u32,
        names: match family {
            Family::Sets => rng.range(2, 4),
            Family::Rejections | Family::Moves => rng.range(1, 4),
            _ => rng.range(1, 3),
        },
        kinds,
        ttl,
        handoffs: rng.below(5) as u32,
        backoff: match family {
            Family::Backoff => 400,
            Family::Sets if rng.chance(150) => 300,
            _ => 0,
        },
        linger: 0,
        drifts: drifts(seed, clients, &mut rng),
        faults: Vec::new(),
        low: low_bound(seed),
        by_engine: seed % 8 == 5,
    };
    if family == Family::Linger {
        plan.linger = rng.range(MS, plan.ttl / 3);
        plan.handoffs = rng.range(1, 8) as u32;
        if rng.chance(300) {
            plan.kinds.push(Kind::Set);
            plan.names = 2;
        }
    }
    if family == Family::Crowd {
        // All of them in one client, or half of them in each of two.
        (plan.clients, plan.threads) = if rng.chance(500) { (1, 400) } else { (2, 200) };
        plan.kinds = match rng.below(5) {
            0 => vec![Kind::Fair],
            1 => vec![Kind::Permits(1), Kind::Permits(2)],
            2 => vec![Kind::Reader, Kind::Reader, Kind::Writer],
            3 => vec![Kind::Mutex],
            _ => vec![Kind::Mutex, Kind::Fair],
        };
        (plan.names, plan.ops, plan.ttl) = (1, rng.range(1, 3) as u32, 4_000 * MS);
        plan.drifts.truncate(plan.clients);
        plan.drifts.resize(plan.clients, 0);
        // Hundreds of ids that are undone three at a time outlast the run.
        plan.low = plan.low.filter(|low| *low != Bound::Ids);
    }
    plan.faults = faults(&plan, &mut rng);
    plan
}

/// Returns by how much each client's clock is too fast. In every fourth plan the clocks are slewed:
/// by 10 % at most, which the validity of a lease allows for.
fn drifts(seed: u64, clients: usize, rng: &mut Rng) -> Vec<i64> {
    let times = if seed.is_multiple_of(4) { 20 } else { 1 };
    let mut drift = || rng.below(2 * FREE_RUNNING as u64 + 1) as i64 - FREE_RUNNING;
    (0..clients).map(|_| times * drift()).collect()
}

fn faults(plan: &Plan, rng: &mut Rng) -> Vec<(Time, Fault)> {
    let mut faults = Vec::new();
    let number = match plan.family {
        Family::Calm => 0,
        Family::Backoff | Family::Shared | Family::Linger | Family::Sets if rng.chance(300) => 0,
        Family::Crowd => rng.below(4),
        Family::ShortTtl => rng.range(4, 24),
        _ => rng.range(1, 10),
    };
    for _ in 0..number {
        let at = rng.range(MS, 4_000 * MS);
        faults.push((at, fault(plan, rng)));
    }
    if plan.family == Family::Failover {
        let at = rng.range(10 * MS, 3_000 * MS);
        let copied_at = at - rng.below(at.min(300 * MS));
        faults.push((copied_at, of_server(ServerFault::Snapshot)));
        let fault = if rng.chance(200) {
            ServerFault::Forget
        } else {
            ServerFault::Failover
        };
        faults.push((at, of_server(fault)));
    }
    if plan.family == Family::ShortTtl && rng.chance(300) {
        // Two fast cuts in a row: commands that run late, and their undos.
        let at = rng.range(MS, 2_000 * MS);
        let client = rng.below(plan.clients as u64) as usize;
        let slow = ServerFault::Slow(client, Actor::Engine, rng.range(20 * MS, 400 * MS));
        faults.push((at, of_server(slow)));
        let at = at + rng.below(300 * MS);
        faults.push((at, Fault::LoseMessages(client, 900 * MS)));
    }
    if plan.family == Family::Linger && rng.chance(400) {
        // A whole process stands still until a lease that lingers is over.
        for _ in 0..rng.range(1, 6) {
            let client = rng.below(plan.clients as u64) as usize;
            let longer = rng.range(plan.ttl / 2, plan.ttl * 2);
            faults.push((rng.range(MS, 2_000 * MS), Fault::Stop(client, None, longer)));
        }
    }
    if plan.family == Family::Ending {
        let client = rng.below(plan.clients as u64) as usize;
        let at = rng.range(MS, 2_000 * MS);
        faults.push((at, Fault::Shutdown(client)));
        if rng.chance(500) {
            // Commands of its calls are under way then.
            for thread in 0..plan.threads {
                let by = rng.range(MS, 100 * MS);
                let slow = ServerFault::Slow(client, Actor::Caller(thread), by);
                faults.push((at - at.min(rng.below(200 * MS)), of_server(slow)));
            }
        }
        for _ in 0..rng.below(12) {
            let client = rng.below(plan.clients as u64) as usize;
            let thread = rng.below(plan.threads as u64) as usize;
            let at = rng.range(MS, 1_000 * MS);
            let fault = if rng.chance(300) {
                Fault::Panic(client, thread)
            } else {
                Fault::Cancel(client, thread)
            };
            faults.push((at, fault));
        }
    }
    if plan.family == Family::Sets && number > 0 && rng.chance(400) {
        of_sets(plan, rng, &mut faults);
    }
    if plan.family == Family::Moves {
        for _ in 0..rng.range(1, 8) {
            let lasts = rng.range(MS, 500 * MS);
            let at = rng.range(MS, 4_000 * MS);
            faults.push((at, of_server(ServerFault::Move(lasts))));
        }
    }
    if plan.family == Family::Rejections {
        for _ in 0..rng.range(1, 8) {
            let why = [Why::Full, Why::NoRight, Why::Half, Why::Half, Why::NoScript];
            let why = why[rng.below(5) as usize];
            let lasts = rng.range(MS, 800 * MS);
            let at = rng.range(MS, 4_000 * MS);
            faults.push((at, of_server(ServerFault::Reject(why, lasts))));
        }
    }
    faults.sort_by_key(|fault| fault.0);
    faults
}

/// Threads that stand still until their set is over, or some of its names; and the replies about
/// some of the names of one command each are lost.
fn of_sets(plan: &Plan, rng: &mut Rng, faults: &mut Vec<(Time, Fault)>) {
    let client = rng.below(plan.clients as u64) as usize;
    for _ in 0..rng.range(1, 4) {
        let thread = rng.below(plan.threads as u64) as usize;
        let time = rng.range(MS, 12_000 * MS);
        let stop = if rng.chance(500) {
            Fault::StopNext(client, Actor::Caller(thread), time)
        } else {
            Fault::Stop(client, Some(Actor::Caller(thread)), time)
        };
        faults.push((rng.range(MS, 2_000 * MS), stop));
    }
    for _ in 0..rng.below(6) {
        let at = rng.range(MS, 3_000 * MS);
        let by = rng.range(MS, plan.ttl / 8);
        let slow = ServerFault::Slow(client, Actor::Engine, by);
        faults.push((at, of_server(slow)));
        let at = at + rng.below(400 * MS);
        let cut = ServerFault::Cut(client, Actor::Engine, rng.chance(700));
        faults.push((at, of_server(cut)));
        // Before the engine has sent again what is lost.
        let longer = rng.range(plan.ttl / 2, plan.ttl * 2);
        let stop = Fault::Stop(client, Some(Actor::Engine), longer);
        faults.push((at + 2 * by + rng.below(plan.ttl / 4), stop));
    }
}

fn fault(plan: &Plan, rng: &mut Rng) -> Fault {
    let client = rng.below(plan.clients as u64) as usize;
    let thread = rng.below(plan.threads as u64) as usize;
    let actor = match rng.below(3) {
        0 => Actor::Caller(thread),
        1 => Actor::Engine,
        _ => Actor::Sub,
    };
    let longest = match plan.family {
        Family::ShortTtl => 800 * MS,
        _ => 5_000 * MS,
    };
    if plan.family == Family::Clocks && rng.chance(600) {
        return match rng.below(4) {
            0 => Fault::Suspend(client, rng.range(MS, 15_000 * MS)),
            1 => Fault::Pause(client, rng.range(MS, 15_000 * MS)),
            2 => of_server(ServerFault::Ahead(rng.range(MS, 8_000 * MS))),
            _ => of_server(ServerFault::Back(rng.range(MS, 8_000 * MS))),
        };
    }
    of_server(match rng.below(20) {
        0..=3 => ServerFault::Cut(client, actor, rng.chance(500)),
        4 => return Fault::Stop(client, Some(actor), rng.range(MS, longest)),
        5 | 6 => return Fault::Stop(client, None, rng.range(MS, longest)),
        7 => return Fault::Kill(client),
        8 => ServerFault::Stall(rng.range(MS, longest.min(3_000 * MS))),
        9 if rng.chance(500) => return Fault::Panic(client, thread),
        9 => return Fault::Cancel(client, thread),
        10 | 11 => ServerFault::Slow(client, actor, rng.range(10 * MS, longest.min(1_500 * MS))),
        12 if rng.chance(400) => ServerFault::Delete(rng.below(plan.names)),
        12 => ServerFault::Foreign(rng.below(plan.names), rng.range(MS, 1_000 * MS)),
        13 | 14 => return Fault::LoseMessages(client, rng.range(MS, 600 * MS)),
        18 => ServerFault::Errors(rng.range(MS, 2_000 * MS)),
        19 => ServerFault::Twice(client, actor),
        _ => return Fault::StopNext(client, actor, rng.range(MS, longest * 8 / 5)),
    })
}

/// A fault of the only server.
const fn of_server(fault: ServerFault) -> Fault {
    Fault::Server(0, fault)
}
