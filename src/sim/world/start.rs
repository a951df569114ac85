//! The start of a run: the servers and the clients of a plan.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::{
    COMMAND_TIMEOUT, Caller, Client, Clock, Event, NEVER, Pipe, Report, State, Sub,
    UNREACHABLE_FOR, World,
};
use crate::kernel::{Kernel, Limits};
use crate::majority::Majority;
use crate::quorum::Quorum;
use crate::quorum::messages::{Messages, released};
use crate::quorum::round::Link;
use crate::runtime::commands::Commands;
use crate::sim::plan::{Actor, Family, Plan, Rng};
use crate::sim::server::{MS, START, Server};

impl World {
    pub(in crate::sim) fn new(plan: Plan, is_traced: bool) -> Self {
        let seed = plan.seed;
        let mut clocks = Rng(seed ^ 0x3333);
        let servers = (0..plan.servers).map(|_| server(&plan, &mut clocks));
        let servers = servers.collect();
        let mut world = Self {
            now: START,
            heap: BinaryHeap::new(),
            serial: 0,
            conns: Vec::new(),
            clients: Vec::new(),
            servers,
            net: Rng(seed ^ 0x1111),
            sched: Rng(seed ^ 0x2222),
            log: VecDeque::new(),
            is_traced,
            leases: Vec::new(),
            sets: Vec::new(),
            newest: BTreeMap::new(),
            idle_since: BTreeMap::new(),
            keys: Vec::new(),
            lost_leases: false,
            lost_tokens: false,
            has_old_data: false,
            report: Report::default(),
            foreign: 0,
            names: BTreeSet::new(),
            ran_twice: BTreeSet::new(),
            outlasts: BTreeSet::new(),
            timers: BTreeMap::new(),
            clocks: Vec::new(),
            over: BTreeSet::new(),
            forced: BTreeMap::new(),
            plan,
        };
        for client in 0..world.plan.clients {
            let drift = world.plan.drifts.get(client).copied().unwrap_or(0);
            // The tokens of a quorum are proposed by the wall clock.
            let wall = if world.plan.is_quorum() {
                clocks.below(20_000 * MS)
            } else {
                0
            };
            world.clocks.push(Clock::new(drift, wall));
            let new = world.client(client, wall);
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

    fn client(&self, n: usize, wall: u64) -> Client {
        let is_quorum = self.plan.is_quorum();
        let limits = Limits {
            command_timeout: Duration::from_micros(COMMAND_TIMEOUT),
            unreachable_for: Duration::from_micros(UNREACHABLE_FOR),
            // Over a quorum longer than the bounds of the checks: messages wake the calls.
            backstop: Duration::from_secs(if is_quorum { 12 } else { 1 }),
            may_fail_over: self.plan.family == Family::Failover,
            replies_are_final: !is_quorum && self.plan.family != Family::Failover,
            engine_sends: self.plan.engine_sends(),
            wall,
        };
        let size = Majority::of(self.plan.servers);
        let quorum = is_quorum.then(|| Quorum::new(size, limits.command_timeout, wall));
        let caller = |thread: usize| Caller {
            state: State::Idle(0),
            todo: VecDeque::new(),
            ops: self.plan.ops,
            conn: None,
            mail: None,
            batch: None,
            last: None,
            again: None,
            rng: Rng(self.plan.seed ^ (n as u64 * 100 + thread as u64 + 10)),
            is_cancelled: false,
            panics: false,
        };
        let pipe = |_| Pipe {
            conn: None,
            link: Link::Connecting,
            connect_at: 0,
            connect_by: NEVER,
            pause: 100 * MS,
            links: 0,
            sent: VecDeque::new(),
            mail: VecDeque::new(),
            unsent: Vec::new(),
            is_closed: false,
        };
        // One server may be two nodes of a cluster.
        let peers = self.plan.servers.max(2);
        Client {
            messages: Messages::new(size),
            kernel: Arc::new(Kernel::new(limits, &format!("c{n}"))),
            engine: Commands::new(quorum),
            engine_todo: VecDeque::new(),
            pipes: (0..peers).map(pipe).collect(),
            paused: Vec::new(),
            node: 0,
            has_moved: false,
            was_suspended: false,
            callers: (0..self.plan.threads).map(caller).collect(),
            subs: (0..self.plan.servers).map(|_| Sub::default()).collect(),
            sub_mail: VecDeque::new(),
            sub_todo: VecDeque::new(),
            wanted: BTreeMap::new(),
            is_alive: true,
            stopped: BTreeMap::new(),
            locks: BTreeMap::new(),
            learnt: Vec::new(),
            held: BTreeSet::new(),
            stop_next: BTreeMap::new(),
            resumed: 0,
            loses_until: 0,
        }
    }
}

/// One server of a plan. Those of a quorum have clocks that run at most half a percent too fast or
/// too slow, of which leases allow for one; and they know no script.
fn server(plan: &Plan, clocks: &mut Rng) -> Server {
    let mut server = Server::default();
    if plan.is_quorum() {
        server.rate = clocks.range(0, 10_000) as i64 - 5_000;
        server.forget_scripts();
    }
    server
}
