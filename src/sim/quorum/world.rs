//! The simulated world of a quorum: virtual time, several servers, and the actors of the clients.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::check::Registered;
use super::check::outcomes::Reply;
use crate::clock::Instant;
use crate::kernel::acquiring::Acquiring;
use crate::kernel::call::Step;
use crate::kernel::command::Command;
use crate::kernel::effects::Effects;
use crate::kernel::engine::{Engine, Link, Outgoing, Route, ServerNo, Ticket};
use crate::kernel::held::HeldLease;
use crate::kernel::lease::OperationCell;
use crate::kernel::votes::Majority;
use crate::kernel::{Kernel, Limits};
use crate::name::Name;
use crate::protocol::answer::Answer;
use crate::protocol::primitive::Primitive;
use crate::sim::plan::{Actor, Plan, Rng};
use crate::sim::server::{MS, Message, Server, Time};
use crate::sim::world::{COMMAND_TIMEOUT, Checked, NEVER, Report, UNREACHABLE_FOR, Violation};
use crate::token::FencingToken;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    Run(usize, Actor),
    Timer(usize, Actor, u64),
    Up(usize),
    Down(usize),
    Closed(usize),
    ServerClosed(usize),
    Fault(usize),
    /// A server that was down or hung serves again.
    Back(ServerNo),
}

#[derive(Debug)]
pub(super) enum Up {
    /// The handshake: the pipeline is up once it is answered.
    Hello,
    /// A command; with the text of its script if `has_source`.
    Command {
        command: Command,
        has_source: bool,
    },
    Subscribe(Vec<u8>),
}

#[derive(Debug)]
pub(super) enum Down {
    Hello,
    Reply(Answer),
    NoScript,
    Error,
    Message(Message),
    Subscribed(Vec<u8>),
}

pub(super) struct Conn {
    pub(super) client: usize,
    pub(super) server: ServerNo,
    pub(super) is_sub: bool,
    pub(super) up: VecDeque<(Time, Up)>,
    pub(super) down: VecDeque<(Time, Down)>,
    pub(super) last_up: Time,
    pub(super) last_down: Time,
    pub(super) at_server: bool,
    pub(super) at_client: bool,
    pub(super) is_cut: bool,
    pub(super) runs_twice: bool,
    pub(super) slow: Time,
}

/// One server of the quorum.
pub(super) struct Member {
    pub(super) server: Server,
    pub(super) stalled_until: Time,
    pub(super) errors_until: Time,
    /// It is down, or will lose its connections when it serves again.
    pub(super) down_until: Time,
    /// How much faster its clock runs, in millionths.
    rate: i64,
    pub(super) scripts: BTreeSet<&'static str>,
}

pub(super) enum Todo {
    Effects(Effects),
    Step(Step),
    Write(Outgoing, Time),
    Sleep,
}

pub(super) enum State {
    Idle(Time),
    Parked(Acquiring),
    Holding {
        lease: Arc<HeldLease>,
        token: FencingToken,
        until: Time,
    },
    Operating {
        lease: Arc<HeldLease>,
        token: FencingToken,
        cell: Arc<OperationCell>,
        by: Time,
        unlocks: bool,
    },
    Releasing {
        lease: Arc<HeldLease>,
        cell: Arc<OperationCell>,
        by: Time,
    },
    Done,
}

pub(super) struct Caller {
    pub(super) state: State,
    pub(super) todo: VecDeque<Todo>,
    pub(super) ops: u32,
    pub(super) rng: Rng,
    pub(super) is_cancelled: bool,
}

/// The engine's pipeline to a server.
pub(super) struct Pipe {
    pub(super) conn: Option<usize>,
    pub(super) link: Link,
    pub(super) dial_at: Time,
    pub(super) dial_by: Time,
    pub(super) pause: Time,
    pub(super) sent: VecDeque<(Ticket, Time, Command)>,
    pub(super) mail: VecDeque<Down>,
    pub(super) unsent: Vec<(Ticket, Time)>,
    pub(super) is_closed: bool,
}

#[derive(Default)]
pub(super) struct Sub {
    pub(super) conn: Option<usize>,
    pub(super) connect_at: Time,
    /// The channels that it has subscribed to, and whether their messages arrive.
    pub(super) asked: BTreeMap<Vec<u8>, bool>,
    pub(super) is_closed: bool,
}

pub(super) struct Client {
    pub(super) kernel: Arc<Kernel>,
    pub(super) engine: Engine,
    pub(super) engine_todo: VecDeque<Todo>,
    pub(super) pipes: Vec<Pipe>,
    pub(super) callers: Vec<Caller>,
    pub(super) subs: Vec<Sub>,
    pub(super) sub_mail: VecDeque<(ServerNo, Down)>,
    pub(super) sub_todo: VecDeque<Todo>,
    pub(super) wanted: BTreeMap<Vec<u8>, (Name, u64)>,
    pub(super) is_alive: bool,
    pub(super) stopped: BTreeMap<Option<Actor>, Time>,
    pub(super) stop_next: BTreeMap<Actor, Time>,
    pub(super) loses_until: Time,
    pub(super) locks: BTreeMap<u64, Arc<dyn Primitive>>,
    pub(super) replies: Vec<Reply>,
    /// The names that it held, or was releasing, after its last kernel call.
    pub(super) held: BTreeSet<Name>,
    /// The leases whose holders did not wait for the end of the release.
    pub(super) given_up: Vec<Arc<HeldLease>>,
}

pub(in crate::sim) struct World {
    pub(super) plan: Plan,
    pub(super) now: Time,
    heap: BinaryHeap<Reverse<(Time, u64, Event)>>,
    serial: u64,
    pub(super) conns: Vec<Conn>,
    pub(super) clients: Vec<Client>,
    pub(super) members: Vec<Member>,
    /// The names of the clients' entries.
    pub(super) names: BTreeSet<Name>,
    pub(super) net: Rng,
    pub(super) sched: Rng,
    pub(in crate::sim) log: VecDeque<String>,
    is_traced: bool,
    pub(super) leases: Vec<Registered>,
    pub(super) newest: BTreeMap<Vec<u8>, u64>,
    pub(super) idle_since: BTreeMap<Vec<u8>, Time>,
    /// A server lost data while leases lasted: exclusion is not checked from then on.
    pub(super) lost_leases: bool,
    /// A server lost its counters: the order of tokens is not checked from then on.
    pub(super) lost_tokens: bool,
    pub(in crate::sim) report: Report,
    pub(super) foreign: u64,
    pub(super) timers: BTreeMap<(usize, Actor), u64>,
}

/// The links of a client.
pub(super) struct Links(pub(super) Vec<Link>);

impl Route for Links {
    fn is_final(&self) -> bool {
        false
    }

    fn link(&self, server: ServerNo, _: Instant) -> Link {
        self.0[server]
    }
}

pub(super) const START: Time = 100_000 * MS;

impl World {
    pub(in crate::sim) fn new(plan: Plan, is_traced: bool) -> Self {
        let seed = plan.seed;
        let mut rates = Rng(seed ^ 0x3333);
        let member = |_| Member {
            server: Server::default(),
            stalled_until: 0,
            errors_until: 0,
            down_until: 0,
            // At most half a percent: leases allow for one.
            rate: rates.range(0, 10_000) as i64 - 5_000,
            scripts: BTreeSet::new(),
        };
        let mut world = Self {
            now: START,
            heap: BinaryHeap::new(),
            serial: 0,
            conns: Vec::new(),
            clients: Vec::new(),
            members: (0..plan.servers).map(member).collect(),
            names: (0..plan.names)
                .map(|n| Name::from(format!("n{n}")))
                .collect(),
            net: Rng(seed ^ 0x1111),
            sched: Rng(seed ^ 0x2222),
            log: VecDeque::new(),
            is_traced,
            leases: Vec::new(),
            newest: BTreeMap::new(),
            idle_since: BTreeMap::new(),
            lost_leases: false,
            lost_tokens: false,
            report: Report::default(),
            foreign: 0,
            timers: BTreeMap::new(),
            plan,
        };
        for client in 0..world.plan.clients {
            let new = world.client(client, rates.below(20_000 * MS));
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
        let limits = Limits {
            command_timeout: Duration::from_micros(COMMAND_TIMEOUT),
            unreachable_for: Duration::from_micros(UNREACHABLE_FOR),
            // Longer than the bounds of the checks: messages wake the calls.
            backstop: Duration::from_secs(12),
            may_fail_over: false,
            size: Majority::of(self.plan.servers),
            is_quorum: true,
            wall,
        };
        let caller = |thread: usize| Caller {
            state: State::Idle(0),
            todo: VecDeque::new(),
            ops: self.plan.ops,
            rng: Rng(self.plan.seed ^ (n as u64 * 100 + thread as u64 + 10)),
            is_cancelled: false,
        };
        let pipe = |_| Pipe {
            conn: None,
            link: Link::Connecting,
            dial_at: 0,
            dial_by: NEVER,
            pause: 100 * MS,
            sent: VecDeque::new(),
            mail: VecDeque::new(),
            unsent: Vec::new(),
            is_closed: false,
        };
        Client {
            kernel: Arc::new(Kernel::new(limits, &format!("c{n}"))),
            engine: Engine::default(),
            engine_todo: VecDeque::new(),
            pipes: (0..self.plan.servers).map(pipe).collect(),
            callers: (0..self.plan.threads).map(caller).collect(),
            subs: (0..self.plan.servers).map(|_| Sub::default()).collect(),
            sub_mail: VecDeque::new(),
            sub_todo: VecDeque::new(),
            wanted: BTreeMap::new(),
            is_alive: true,
            stopped: BTreeMap::new(),
            stop_next: BTreeMap::new(),
            loses_until: 0,
            locks: BTreeMap::new(),
            replies: Vec::new(),
            held: BTreeSet::new(),
            given_up: Vec::new(),
        }
    }

    /// Runs the plan to its end.
    pub(in crate::sim) fn run(&mut self) -> Checked {
        let begin = self.now;
        let mut end = NEVER;
        while let Some(Reverse((time, _, event))) = self.heap.pop() {
            self.now = self.now.max(time);
            self.report.events += 1;
            crate::kernel::steps::begin_event();
            if let Err(violation) = self.handle(event).and_then(|()| self.check()) {
                self.dump();
                return Err(violation);
            }
            if end == NEVER && self.clients.iter().all(Client::is_done) {
                end = self.now + 20_000 * MS;
            }
            if self.now > end {
                break;
            }
            if self.now > begin + 600_000 * MS {
                self.dump();
                return Err(self.violation("P10", "a call hangs".into()));
            }
            if self.report.events > 3_000_000 {
                self.dump();
                return Err(self.violation("P10", "too many events".into()));
            }
        }
        self.report.commands = self.members.iter().map(|it| it.server.ran).sum();
        self.check_end()
    }

    pub(super) fn violation(&self, property: &'static str, text: String) -> Violation {
        Violation { property, text }
    }

    pub(super) fn event(&mut self, at: Time, event: Event) {
        self.serial += 1;
        let jitter = self.sched.below(8);
        self.heap
            .push(Reverse((at.max(self.now) + jitter, self.serial, event)));
    }

    pub(super) fn say(&mut self, text: impl FnOnce() -> String) {
        if self.is_traced {
            let time = (self.now - START) as f64 / 1000.0;
            self.log.push_back(format!("{time:>12.3} {}", text()));
            if self.log.len() > 200_000 {
                self.log.pop_front();
            }
        }
    }

    /// Returns the time of a server's clock.
    pub(super) fn local(&self, server: ServerNo) -> Time {
        let since = (self.now - START) as i64;
        (START as i64 + since + since * self.members[server].rate / 1_000_000) as Time
    }

    pub(super) fn timer(&mut self, client: usize, actor: Actor, at: Time) {
        let no = self.serial;
        self.timers.insert((client, actor), no);
        if at < NEVER {
            self.event(at, Event::Timer(client, actor, no));
        }
    }

    pub(super) fn stop_if_due(&mut self, client: usize, actor: Actor) {
        if let Some(time) = self.clients[client].stop_next.remove(&actor) {
            self.say(|| format!("c{client} {actor:?} is stopped for {} ms", time / MS));
            let until = self.now + time;
            let stopped = self.clients[client].stopped.entry(Some(actor)).or_default();
            *stopped = (*stopped).max(until);
        }
    }

    pub(super) fn soon(&mut self, client: usize, actor: Actor) {
        let hop = if self.plan.has_faults() && self.sched.chance(10) {
            self.sched.range(MS, 10 * MS)
        } else {
            self.sched.range(2, 60)
        };
        self.event(self.now + hop, Event::Run(client, actor));
    }

    pub(super) fn go_on(&mut self, client: usize, actor: Actor) {
        self.event(self.now + 1, Event::Run(client, actor));
    }

    pub(super) fn stopped_until(&self, client: usize, actor: Actor) -> Time {
        let stopped = &self.clients[client].stopped;
        let of = |key| stopped.get(&key).copied().unwrap_or(0);
        of(None).max(of(Some(actor)))
    }

    /// Carries out the effects of a kernel call.
    pub(super) fn effects(&mut self, client: usize, fx: Effects) {
        for cell in fx.wake.iter() {
            let mut callers = self.clients[client].callers.iter();
            let waits = |it: &Caller| match &it.state {
                State::Parked(call) => call.cell().is_some_and(|it| Arc::ptr_eq(it, cell)),
                _ => false,
            };
            if let Some(thread) = callers.position(waits) {
                self.soon(client, Actor::Caller(thread));
            }
        }
        for cell in fx.operations {
            let mut callers = self.clients[client].callers.iter();
            let waits = |it: &Caller| match &it.state {
                State::Operating { cell: it, .. } | State::Releasing { cell: it, .. } => {
                    Arc::ptr_eq(it, &cell)
                }
                _ => false,
            };
            if let Some(thread) = callers.position(waits) {
                self.soon(client, Actor::Caller(thread));
            }
        }
        if fx.engine_by.is_some() {
            self.soon(client, Actor::Engine);
        }
        let wakes_sub = !fx.listen.is_empty();
        for (lock, change) in fx.listen {
            let key = lock.keys().key(0);
            let it = &mut self.clients[client];
            let newest = (it.wanted.get(key.channel)).map_or(0, |it| it.1);
            let wanted = (key.name.clone(), newest.max(change));
            it.wanted.insert(key.channel.to_vec(), wanted);
            for (server, sub) in it.subs.iter().enumerate() {
                if sub.asked.get(key.channel) == Some(&true) {
                    // Its messages arrive already, for an entry that has ended.
                    let mail = (server, Down::Subscribed(key.channel.to_vec()));
                    it.sub_mail.push_back(mail);
                }
            }
        }
        for (name, change) in fx.unlisten {
            let wanted = &mut self.clients[client].wanted;
            wanted.retain(|_, (of, listened)| *of != name || *listened > change);
        }
        if wakes_sub {
            self.soon(client, Actor::Sub);
        }
    }
}

impl Member {
    /// Returns until when nothing arrives.
    pub(super) fn stands_until(&self, now: Time) -> Time {
        let down_until = match self.down_until {
            0 => 0,
            // `Event::Back` ends it.
            until => until.max(now + 10),
        };
        self.stalled_until.max(down_until)
    }
}

impl Client {
    fn is_done(&self) -> bool {
        let mut callers = self.callers.iter();
        !self.is_alive || callers.all(|it| matches!(it.state, State::Done) && it.todo.is_empty())
    }

    pub(super) fn links(&self) -> Links {
        Links(self.pipes.iter().map(|pipe| pipe.link).collect())
    }
}

pub(super) fn time_at(time: Time) -> Instant {
    match time {
        NEVER => Instant::NEVER,
        time => Instant::from_nanos(time * 1000),
    }
}

pub(super) fn time_of(instant: Instant) -> Time {
    match instant {
        Instant::NEVER => NEVER,
        instant => instant.as_nanos() / 1000,
    }
}
