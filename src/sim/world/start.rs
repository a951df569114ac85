//! The start of a run: the server and the clients of a plan.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::{
    COMMAND_TIMEOUT, Caller, Client, Clock, Event, Report, State, Sub, UNREACHABLE_FOR, World,
};
use crate::kernel::engine::Engine;
use crate::kernel::{Kernel, Limits};
use crate::sim::plan::{Actor, Family, Plan, Rng};
use crate::sim::server::{MS, Server};

impl World {
    pub(in crate::sim) fn new(plan: Plan, is_traced: bool) -> Self {
        let seed = plan.seed;
        let mut world = Self {
            now: 100_000 * MS,
            heap: BinaryHeap::new(),
            serial: 0,
            conns: Vec::new(),
            clients: Vec::new(),
            server: Server::default(),
            snapshot: None,
            stalled_until: 0,
            errors_until: 0,
            rejects: Vec::new(),
            owner: 0,
            moves_until: 0,
            net: Rng(seed ^ 0x1111),
            sched: Rng(seed ^ 0x2222),
            log: VecDeque::new(),
            is_traced,
            leases: Vec::new(),
            newest: BTreeMap::new(),
            idle_since: BTreeMap::new(),
            lost_data: false,
            report: Report::default(),
            foreign: 0,
            names: BTreeSet::new(),
            ran_twice: BTreeSet::new(),
            outlasts: BTreeSet::new(),
            timers: BTreeMap::new(),
            clocks: plan.drifts.iter().map(|drift| Clock::new(*drift)).collect(),
            server_ahead: 0,
            over: BTreeSet::new(),
            plan,
        };
        for client in 0..world.plan.clients {
            let new = world.client(client);
            world.clients.push(new);
            for thread in 0..world.plan.threads {
                let start = world.now + world.sched.below(3 * MS);
                world.event(start, Event::Run(client, Actor::Caller(thread)));
            }
            world.event(world.now, Event::Run(client, Actor::Engine));
        }
        for n in 0..world.plan.faults.len() {
            let at = world.now + world.plan.faults[n].0;
            world.event(at, Event::Fault(n));
        }
        world
    }

    fn client(&self, n: usize) -> Client {
        let limits = Limits {
            command_timeout: Duration::from_micros(COMMAND_TIMEOUT),
            unreachable_for: Duration::from_micros(UNREACHABLE_FOR),
            backstop: Duration::from_secs(1),
            may_fail_over: self.plan.family == Family::Failover,
            size: crate::kernel::votes::Majority::of(1),
            is_quorum: false,
            wall: 0,
        };
        let caller = |thread: usize| Caller {
            state: State::Idle(0),
            todo: VecDeque::new(),
            ops: self.plan.ops,
            conn: None,
            mail: None,
            last: None,
            again: None,
            rng: Rng(self.plan.seed ^ (n as u64 * 100 + thread as u64 + 10)),
            is_cancelled: false,
            panics: false,
        };
        Client {
            kernel: Arc::new(Kernel::new(limits, &format!("c{n}"))),
            engine: Engine::default(),
            engine_todo: VecDeque::new(),
            pipes: Default::default(),
            paused: Vec::new(),
            node: 0,
            has_moved: false,
            was_suspended: false,
            callers: (0..self.plan.threads).map(caller).collect(),
            sub: Sub::default(),
            is_alive: true,
            stopped: BTreeMap::new(),
            locks: BTreeMap::new(),
            refusals: Vec::new(),
            held: BTreeSet::new(),
            stop_next: BTreeMap::new(),
            resumed: 0,
            loses_until: 0,
        }
    }
}
