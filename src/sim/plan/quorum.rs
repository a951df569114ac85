//! Plans of runs over a quorum: several servers, each with its own faults.

use super::families::low_bound;
use super::{Actor, Family, Fault, Kind, Plan, Rng, ServerFault};
use crate::sim::server::{MS, Time};

/// Returns the plan of a seed.
pub(super) fn plan(seed: u64) -> Plan {
    let mut rng = Rng(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x51);
    let ttl = match rng.below(10) {
        0..=3 => 4_000 * MS,
        4..=6 => rng.range(800, 3_000) * MS,
        _ => rng.range(60, 600) * MS,
    };
    let mut plan = Plan {
        seed,
        family: Family::Quorum,
        servers: if rng.chance(650) { 3 } else { 5 },
        clients: rng.range(2, 5) as usize,
        threads: rng.range(1, 4) as usize,
        ops: rng.range(4, 20) as u32,
        names: rng.range(1, 3),
        kinds: vec![Kind::NoQueue],
        ttl,
        handoffs: rng.below(5) as u32,
        backoff: if rng.chance(200) { 300 } else { 0 },
        linger: 0,
        drifts: Vec::new(),
        faults: Vec::new(),
        low: low_bound(seed),
        by_engine: false,
    };
    let number = if rng.chance(150) { 0 } else { rng.range(1, 14) };
    for _ in 0..number {
        let at = rng.range(MS, 4_000 * MS);
        let fault = fault(&plan, &mut rng);
        plan.faults.push((at, fault));
    }
    if rng.chance(200) {
        let server = rng.below(plan.servers as u64) as usize;
        let hang = ServerFault::Hang(rng.range(2_000, 20_000) * MS);
        let at = rng.below(500 * MS);
        plan.faults.push((at, Fault::Server(server, hang)));
    }
    if number > 0 && rng.chance(300) {
        aimed(&mut plan, &mut rng);
    }
    plan.faults.sort_by_key(|fault| fault.0);
    if rng.chance(250) {
        plan.kinds.push(Kind::PlainSet);
        plan.names = plan.names.max(2);
    }
    plan
}

/// Returns a plan of long leases over healthy servers.
fn long_leases(family: Family, seed: u64, rng: &mut Rng) -> Plan {
    Plan {
        seed,
        family,
        servers: if rng.chance(650) { 3 } else { 5 },
        clients: rng.range(2, 5) as usize,
        threads: rng.range(1, 3) as usize,
        ops: rng.range(3, 8) as u32,
        names: rng.range(1, 3),
        kinds: vec![Kind::NoQueue],
        ttl: rng.range(900, 4_000) * MS,
        handoffs: rng.below(5) as u32,
        backoff: 0,
        linger: 0,
        drifts: Vec::new(),
        faults: Vec::new(),
        low: None,
        by_engine: false,
    }
}

/// Servers lose their data one after the other, so far apart that each lease is whole again in
/// between.
pub(super) fn restarts(seed: u64) -> Plan {
    let mut rng = Rng(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x52);
    let mut plan = long_leases(Family::Restarts, seed, &mut rng);
    let mut at = rng.range(MS, plan.ttl);
    for _ in 0..rng.range(2, 9) {
        let server = rng.below(plan.servers as u64) as usize;
        let down = rng.range(MS, 300 * MS);
        let restart = ServerFault::Restart(down);
        plan.faults.push((at, Fault::Server(server, restart)));
        if rng.chance(300) {
            // The reply to a join, or the end of a connection, is late.
            let client = rng.below(plan.clients as u64) as usize;
            let slow = ServerFault::Slow(client, Actor::Engine, rng.range(MS, 30 * MS));
            let at = at + down + rng.below(plan.ttl / 3);
            plan.faults.push((at, Fault::Server(server, slow)));
        }
        at += plan.ttl / 2 + down + rng.range(400 * MS, 1_500 * MS);
    }
    plan.faults.sort_by_key(|fault| fault.0);
    plan
}

/// An operator releases a name at each server, one after the other within a cycle of renewals,
/// while connections break.
pub(super) fn force(seed: u64) -> Plan {
    let mut rng = Rng(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x53);
    let mut plan = long_leases(Family::Force, seed, &mut rng);
    for _ in 0..rng.range(1, 6) {
        let name = rng.below(plan.names);
        let mut at = rng.range(MS, 6_000 * MS);
        let apart = plan.ttl / (4 * plan.servers as u64);
        let first = rng.below(plan.servers as u64) as usize;
        let cuts = if rng.chance(300) { 950 } else { 300 };
        for n in 0..plan.servers {
            let server = (first + n) % plan.servers;
            plan.faults
                .push((at, Fault::Server(server, ServerFault::Force(name))));
            if rng.chance(cuts) {
                let at = (at + rng.below(20 * MS)).saturating_sub(10 * MS);
                for client in 0..plan.clients {
                    let cut = ServerFault::Cut(client, Actor::Engine, false);
                    plan.faults.push((at, Fault::Server(server, cut)));
                }
            }
            at += rng.below(apart);
        }
    }
    if rng.chance(300) {
        let client = rng.below(plan.clients as u64) as usize;
        let lost = Fault::LoseMessages(client, rng.range(MS, 2_000 * MS));
        plan.faults.push((rng.below(4_000 * MS), lost));
    }
    plan.faults.sort_by_key(|fault| fault.0);
    plan
}

/// Several faults at one server within a short time: commands that run late, and their undos.
fn aimed(plan: &mut Plan, rng: &mut Rng) {
    let client = rng.below(plan.clients as u64) as usize;
    let server = rng.below(plan.servers as u64) as usize;
    for _ in 0..rng.range(1, 5) {
        let at = rng.range(MS, 2_000 * MS);
        let slow = ServerFault::Slow(client, Actor::Engine, rng.range(5 * MS, 400 * MS));
        plan.faults.push((at, Fault::Server(server, slow)));
        let cut = ServerFault::Cut(client, Actor::Engine, rng.chance(500));
        let at = at + rng.below(300 * MS);
        plan.faults.push((at, Fault::Server(server, cut)));
    }
}

fn fault(plan: &Plan, rng: &mut Rng) -> Fault {
    let client = rng.below(plan.clients as u64) as usize;
    let thread = rng.below(plan.threads as u64) as usize;
    let server = rng.below(plan.servers as u64) as usize;
    let actor = match rng.below(4) {
        0 => Actor::Caller(thread),
        1 | 2 => Actor::Engine,
        _ => Actor::Sub,
    };
    let longest: Time = (plan.ttl * 3).clamp(500 * MS, 4_000 * MS);
    let fault = match rng.below(24) {
        0..=4 => ServerFault::Cut(client, Actor::Engine, rng.chance(500)),
        5 | 6 => {
            let by = rng.range(MS, longest.min(1_500 * MS));
            ServerFault::Slow(client, Actor::Engine, by)
        }
        7 => ServerFault::Cut(client, Actor::Sub, false),
        8 => ServerFault::Twice(client, Actor::Engine),
        9 | 10 => return Fault::Stop(client, Some(actor), rng.range(MS, longest)),
        11 => return Fault::Stop(client, None, rng.range(MS, longest)),
        12 => return Fault::Kill(client),
        13 => return Fault::Cancel(client, thread),
        14 => return Fault::LoseMessages(client, rng.range(MS, 600 * MS)),
        15 => return Fault::StopNext(client, actor, rng.range(MS, longest)),
        16 | 17 => ServerFault::Stall(rng.range(MS, longest.min(2_500 * MS))),
        18 => ServerFault::RestartEmpty,
        19 if rng.chance(300) => ServerFault::Forget,
        20 => ServerFault::Foreign(rng.below(plan.names), rng.range(MS, 1_000 * MS)),
        21 => ServerFault::Errors(rng.range(MS, 1_500 * MS)),
        22 if rng.chance(150) => return Fault::Shutdown(client),
        _ => ServerFault::FlushScripts,
    };
    Fault::Server(server, fault)
}
