//! The simulated world: virtual time, connections, and the actors of the clients.
//!
//! A kernel call, its effects and its I/O are separate events, and any actor can be stopped between
//! them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::check::{Refusal, Registered};
use super::plan::{Actor, Fault, Family, Kind, Plan, Rng};
use super::server::{MS, Mark, Message, Server, Time};
use crate::clock::Instant;
use crate::config::LeaseTerms;
use crate::error::Cause;
use crate::kernel::call::{Call, CallTerms, Step};
use crate::kernel::command::Command;
use crate::kernel::engine::{Engine, Outgoing, Route, Ticket};
use crate::kernel::held::{HeldLease, Holder};
use crate::kernel::lease::{OperationCell, Wanted};
use crate::kernel::unlock::{Unlock, Unlocked};
use crate::kernel::waiter::{Failure, Outcome, Wait};
use crate::kernel::{Effects, Kernel, Limits};
use crate::name::Name;
use crate::protocol::answer::Answer;
use crate::protocol::cohort::CohortKeys;
use crate::protocol::fair::FairMutexKeys;
use crate::protocol::keys::Keys;
use crate::protocol::mutex::MutexKeys;
use crate::protocol::primitive::Primitive;
use crate::protocol::rw_lock::RwLockKeys;
use crate::protocol::semaphore::SemaphoreKeys;
use crate::redis;
use crate::token::FencingToken;
use crate::wait_policy::{Backoff, WaitPolicy};

pub(super) const COMMAND_TIMEOUT: Time = 1_000 * MS;
pub(super) const UNREACHABLE_FOR: Time = 4_000 * MS;
const NEVER: Time = Time::MAX;

/// A violated property.
#[derive(Clone, Debug)]
pub(super) struct Violation {
    pub(super) property: &'static str,
    pub(super) text: String,
}

pub(super) type Checked = Result<(), Violation>;

pub(super) fn at(time: Time) -> Instant {
    match time {
        NEVER => Instant::NEVER,
        time => Instant::from_nanos(time * 1000),
    }
}

fn time_of(instant: Instant) -> Time {
    match instant {
        Instant::NEVER => NEVER,
        instant => instant.as_nanos() / 1000,
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Run(usize, Actor),
    /// A sleep ends, unless the actor has begun another one since.
    Timer(usize, Actor, u64),
    /// The first item of a connection has arrived at the server, or at the client.
    Up(usize),
    Down(usize),
    /// The client, or the server, notices the end of a connection.
    Closed(usize),
    ServerClosed(usize),
    Fault(usize),
}

#[derive(Debug)]
enum Up {
    Command(Command, Mark, bool),
    Subscribe(Option<Vec<u8>>),
}

#[derive(Debug)]
enum Down {
    Reply(Answer),
    Message(Message),
    Subscribed(Option<Vec<u8>>),
}

pub(super) struct Conn {
    client: usize,
    actor: Actor,
    up: VecDeque<(Time, Up)>,
    down: VecDeque<(Time, Down)>,
    last_up: Time,
    last_down: Time,
    at_server: bool,
    at_client: bool,
    is_cut: bool,
    slow: Time,
}

/// A step of an actor that was decided, and is still to be done.
enum Todo {
    Effects(Effects),
    Step(Step),
    /// Closes the connection of a caller.
    Close,
    Write(Outgoing),
    Sleep,
}

enum State {
    Idle(Time),
    Waiting { call: Box<Call>, sent: Time, by: Time },
    Parked(Box<Call>),
    Holding { lease: Arc<HeldLease>, token: FencingToken, until: Time },
    Operating { lease: Arc<HeldLease>, token: FencingToken, cell: Arc<OperationCell>, by: Time, unlocks: bool },
    Releasing(Release),
    Done,
}

struct Release {
    lease: Arc<HeldLease>,
    command: Command,
    /// When the current try ends; zero before it is sent.
    by: Time,
    retry_at: Time,
    deadline: Time,
    tries: u32,
    may_have_run: bool,
}

pub(super) struct Caller {
    state: State,
    todo: VecDeque<Todo>,
    ops: u32,
    conn: Option<usize>,
    mail: Option<Result<Answer, redis::Fault>>,
    rng: Rng,
    is_cancelled: bool,
}

#[derive(Default)]
struct Pipe {
    conn: Option<usize>,
    connect_at: Time,
    sent: VecDeque<(Ticket, Time)>,
    mail: VecDeque<Answer>,
    /// Commands that could not be written.
    unsent: Vec<(Ticket, Time)>,
    is_closed: bool,
}

#[derive(Default)]
struct Sub {
    conn: Option<usize>,
    connect_at: Time,
    /// The channels that somebody waits for, with their names.
    wanted: BTreeMap<Vec<u8>, Name>,
    asked: BTreeSet<Vec<u8>>,
    hears_inbox: bool,
    was_live: bool,
    mail: VecDeque<Down>,
    is_closed: bool,
    todo: VecDeque<Todo>,
}

pub(super) struct Client {
    pub(super) kernel: Arc<Kernel>,
    engine: Engine,
    engine_todo: VecDeque<Todo>,
    pipe: Pipe,
    pub(super) callers: Vec<Caller>,
    sub: Sub,
    pub(super) is_alive: bool,
    pub(super) stopped: BTreeMap<Option<Actor>, Time>,
    locks: BTreeMap<(u64, u8), Arc<dyn Primitive>>,
    pub(super) refusals: Vec<Refusal>,
    stop_next: BTreeMap<Actor, Time>,
    loses_until: Time,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Report {
    pub(super) acquired: u64,
    pub(super) handed_off: u64,
    pub(super) refused: u64,
    pub(super) failed: u64,
    pub(super) lost: u64,
    pub(super) commands: u64,
    pub(super) events: u64,
    pub(super) plain: u64,
    pub(super) longest_idle: Time,
}

pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) now: Time,
    heap: BinaryHeap<Reverse<(Time, u64, Event)>>,
    serial: u64,
    conns: Vec<Conn>,
    pub(super) clients: Vec<Client>,
    pub(super) server: Server,
    snapshot: Option<BTreeMap<Vec<u8>, super::server::Data>>,
    pub(super) stalled_until: Time,
    net: Rng,
    sched: Rng,
    pub(super) log: VecDeque<String>,
    is_traced: bool,
    pub(super) leases: Vec<Registered>,
    pub(super) newest: BTreeMap<Vec<u8>, u64>,
    pub(super) idle_since: BTreeMap<Vec<u8>, Time>,
    /// A server has lost data: what the guide excludes is not checked from then on.
    pub(super) lost_data: bool,
    pub(super) report: Report,
    foreign: u64,
    timers: BTreeMap<(usize, Actor), u64>,
}

struct OneServer {
    may_fail_over: bool,
}

impl Route for OneServer {
    fn room(&self) -> usize {
        4096
    }

    fn is_final(&self) -> bool {
        !self.may_fail_over
    }
}

/// The key of the server's data for a lock.
pub(super) fn key_of(lock: &dyn Primitive) -> Vec<u8> {
    let name = lock.keys().key(0).name.as_bytes();
    match lock.permits() {
        Some(_) => [b"permits:".as_slice(), name].concat(),
        None => name.to_vec(),
    }
}

impl World {
    pub(super) fn new(plan: Plan, is_traced: bool) -> Self {
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
            timers: BTreeMap::new(),
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
        };
        let caller = |thread: usize| Caller {
            state: State::Idle(0),
            todo: VecDeque::new(),
            ops: self.plan.ops,
            conn: None,
            mail: None,
            rng: Rng(self.plan.seed ^ (n as u64 * 100 + thread as u64 + 10)),
            is_cancelled: false,
        };
        Client {
            kernel: Arc::new(Kernel::new(limits, &format!("c{n}"))),
            engine: Engine::default(),
            engine_todo: VecDeque::new(),
            pipe: Pipe::default(),
            callers: (0..self.plan.threads).map(caller).collect(),
            sub: Sub::default(),
            is_alive: true,
            stopped: BTreeMap::new(),
            locks: BTreeMap::new(),
            refusals: Vec::new(),
            stop_next: BTreeMap::new(),
            loses_until: 0,
        }
    }

    /// Runs the plan to its end.
    pub(super) fn run(&mut self) -> Checked {
        let begin = self.now;
        let mut end = NEVER;
        while let Some(Reverse((time, _, event))) = self.heap.pop() {
            self.now = self.now.max(time);
            self.report.events += 1;
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
                return Err(self.violation("P10", "a call hangs".into()));
            }
            if self.report.events > 2_000_000 {
                return Err(self.violation("P10", "too many events".into()));
            }
        }
        self.report.commands = self.server.ran;
        self.report.plain = self.server.plain;
        self.check_end()
    }

    pub(super) fn violation(&self, property: &'static str, text: String) -> Violation {
        Violation { property, text }
    }

    fn event(&mut self, at: Time, event: Event) {
        self.serial += 1;
        let jitter = self.sched.below(8);
        self.heap
            .push(Reverse((at.max(self.now) + jitter, self.serial, event)));
    }

    pub(super) fn say(&mut self, text: impl FnOnce() -> String) {
        if self.is_traced {
            let line = format!("{:>12.3} {}", (self.now - 100_000 * MS) as f64 / 1000.0, text());
            self.log.push_back(line);
            if self.log.len() > 200_000 {
                self.log.pop_front();
            }
        }
    }

    /// The actor sleeps until then, unless it is woken.
    fn timer(&mut self, client: usize, actor: Actor, at: Time) {
        let no = self.serial;
        self.timers.insert((client, actor), no);
        if at < NEVER {
            self.event(at, Event::Timer(client, actor, no));
        }
    }

    /// A plan may stop an actor between a kernel call and its effects.
    fn stop_if_due(&mut self, client: usize, actor: Actor) {
        if let Some(time) = self.clients[client].stop_next.remove(&actor) {
            self.say(|| format!("c{client} {actor:?} is stopped for {} ms", time / MS));
            let until = self.now + time;
            let stopped = self.clients[client].stopped.entry(Some(actor)).or_default();
            *stopped = (*stopped).max(until);
        }
    }

    fn soon(&mut self, client: usize, actor: Actor) {
        let hop = match self.plan.has_faults() && self.sched.chance(10) {
            true => self.sched.range(MS, 10 * MS),
            false => self.sched.range(2, 60),
        };
        self.event(self.now + hop, Event::Run(client, actor));
    }

    /// The actor goes on with its next step, unless it is stopped in between.
    fn go_on(&mut self, client: usize, actor: Actor) {
        self.event(self.now + 1, Event::Run(client, actor));
    }

    pub(super) fn stopped_until(&self, client: usize, actor: Actor) -> Time {
        let stopped = &self.clients[client].stopped;
        let of = |key| stopped.get(&key).copied().unwrap_or(0);
        of(None).max(of(Some(actor)))
    }

    // ------------------------------------------------------------------ connections

    fn connect(&mut self, client: usize, actor: Actor) -> usize {
        self.conns.push(Conn {
            client,
            actor,
            up: VecDeque::new(),
            down: VecDeque::new(),
            last_up: 0,
            last_down: 0,
            at_server: true,
            at_client: true,
            is_cut: false,
            slow: 0,
        });
        self.conns.len() - 1
    }

    fn delay(&mut self) -> Time {
        if self.plan.has_faults() && self.net.chance(10) {
            return self.net.range(MS, 20 * MS);
        }
        if self.plan.has_faults() && self.net.chance(2) {
            return self.net.range(100 * MS, 1_500 * MS);
        }
        self.net.range(40, 200)
    }

    fn send(&mut self, n: usize, up: Up) {
        let delay = self.delay();
        let conn = &mut self.conns[n];
        if !conn.at_client || conn.is_cut {
            return;
        }
        conn.last_up = conn.last_up.max(self.now + delay + conn.slow);
        let at = conn.last_up;
        conn.up.push_back((at, up));
        self.event(at, Event::Up(n));
    }

    fn send_down(&mut self, n: usize, down: Down) {
        let delay = self.delay();
        let conn = &mut self.conns[n];
        if !conn.at_server || conn.is_cut {
            return;
        }
        conn.last_down = conn.last_down.max(self.now + delay + conn.slow);
        let at = conn.last_down;
        conn.down.push_back((at, down));
        self.event(at, Event::Down(n));
    }

    /// A prefix of what is under way may still arrive, and the server may run it much later.
    fn cut(&mut self, n: usize, is_silent: bool) {
        let up = self.net.below(self.conns[n].up.len() as u64 + 1) as usize;
        let down = self.net.below(self.conns[n].down.len() as u64 + 1) as usize;
        let conn = &mut self.conns[n];
        conn.up.truncate(up);
        conn.down.truncate(down);
        conn.is_cut = true;
        let (last_up, last_down) = (conn.last_up, conn.last_down);
        if !is_silent {
            let noticed = self.now + self.net.range(50, 2_000);
            self.event(noticed.max(last_down), Event::Closed(n));
        }
        let late = match self.net.chance(300) {
            true => self.net.below(3_000 * MS),
            false => 500,
        };
        self.event(last_up.max(self.now) + late, Event::ServerClosed(n));
    }

    /// The client closes a connection: the server still runs what it has sent.
    fn close(&mut self, n: usize) {
        self.conns[n].at_client = false;
        self.conns[n].down.clear();
        let at = self.conns[n].last_up.max(self.now) + 200;
        self.event(at, Event::ServerClosed(n));
    }

    fn mark(&self, client: usize) -> Mark {
        match self.clients[client].sub.was_live {
            true => 'l',
            false => 'n',
        }
    }

    /// Returns whether an id is in a command that is under way, or about to be written.
    pub(super) fn is_under_way(&self, client: usize, id: &str) -> bool {
        let names = |command: &Command| match &command.what {
            crate::kernel::command::What::Undo { ids } => ids.iter().any(|it| it.as_str() == id),
            crate::kernel::command::What::Leave { id: it, .. } => it.as_str() == id,
            _ => command.acquires().is_some_and(|it| it.as_str() == id),
        };
        let mut conns = self.conns.iter().filter(|conn| conn.client == client);
        let sent = conns.any(|conn| {
            conn.up.iter().any(|(_, up)| match up {
                Up::Command(command, ..) => names(command),
                Up::Subscribe(_) => false,
            })
        });
        let mut callers = self.clients[client].callers.iter();
        sent || callers.any(|caller| {
            matches!(&caller.state, State::Releasing(it) if it.lease.id.as_str() == id)
                || caller.todo.iter().any(|todo| match todo {
                    Todo::Step(Step::Send(command, _)) => names(command),
                    Todo::Effects(fx) => fx.undo.as_ref().is_some_and(names),
                    _ => false,
                })
        })
    }

    /// Returns whether a thread has a guard, or is about to get one, of the lease with this id.
    pub(super) fn has_guard(&self, client: usize, id: &str) -> bool {
        self.clients[client].callers.iter().any(|caller| {
            let lease = match &caller.state {
                State::Holding { lease, .. } | State::Operating { lease, .. } => Some(lease),
                State::Releasing(release) => Some(&release.lease),
                _ => None,
            };
            let asks = match &caller.state {
                State::Waiting { call, .. } => call.asks_as() == Some(id),
                _ => false,
            };
            if asks {
                return true;
            }
            let mut given = caller.todo.iter().filter_map(|todo| match todo {
                Todo::Step(Step::Done(Outcome::Lease(lease, _))) => Some(lease),
                _ => None,
            });
            lease.into_iter().chain(&mut given).any(|it| it.id.as_str() == id)
        })
    }

    /// Returns the call of each parked thread.
    pub(super) fn parked(&self, client: usize) -> impl Iterator<Item = &Call> {
        self.parked_threads(client).map(|(_, call)| call)
    }

    /// Returns the parked threads, with their calls.
    pub(super) fn parked_threads(&self, client: usize) -> impl Iterator<Item = (usize, &Call)> {
        let callers = self.clients[client].callers.iter().enumerate();
        callers.filter_map(|(thread, caller)| match &caller.state {
            State::Parked(call) => Some((thread, &**call)),
            _ => None,
        })
    }

    pub(super) fn engine_is_slower_than(&self, client: usize, time: Time) -> bool {
        let conn = self.clients[client].pipe.conn;
        conn.is_some_and(|n| self.conns[n].slow > time)
    }

    // ------------------------------------------------------------------ events

    fn handle(&mut self, event: Event) -> Checked {
        match event {
            Event::Run(client, actor) => {
                if !self.clients[client].is_alive {
                    return Ok(());
                }
                let until = self.stopped_until(client, actor);
                if until > self.now {
                    self.timer(client, actor, until);
                    return Ok(());
                }
                match actor {
                    Actor::Caller(thread) => self.caller(client, thread),
                    Actor::Engine => self.engine(client),
                    Actor::Sub => self.subscriber(client),
                }
            }
            Event::Timer(client, actor, no) => {
                match self.timers.get(&(client, actor)) == Some(&no) {
                    true => self.handle(Event::Run(client, actor)),
                    false => Ok(()),
                }
            }
            Event::Up(n) => {
                self.arrived_at_server(n);
                Ok(())
            }
            Event::Down(n) => {
                self.arrived_at_client(n);
                Ok(())
            }
            Event::Closed(n) => {
                self.closed(n);
                Ok(())
            }
            Event::ServerClosed(n) => {
                self.server_closed(n);
                Ok(())
            }
            Event::Fault(n) => self.fault(n),
        }
    }

    fn arrived_at_server(&mut self, n: usize) {
        if self.now < self.stalled_until {
            self.event(self.stalled_until, Event::Up(n));
            return;
        }
        let Some((_, up)) = self.conns[n].up.pop_front().filter(|_| self.conns[n].at_server) else {
            return;
        };
        let client = self.conns[n].client;
        match up {
            Up::Command(command, mark, replies) => {
                let answer = self.server.run(&command, mark, self.now);
                self.say(|| format!("  server: {} -> {}", shown_command(&command), shown_answer(&answer)));
                if replies {
                    self.send_down(n, Down::Reply(answer));
                }
            }
            Up::Subscribe(channel) => {
                match &channel {
                    None => {
                        self.server.inboxes.insert(client);
                    }
                    Some(channel) => {
                        let listeners = self.server.channels.entry(channel.clone());
                        listeners.or_default().insert(client);
                    }
                }
                self.send_down(n, Down::Subscribed(channel));
            }
        }
        self.deliver_messages();
    }

    fn deliver_messages(&mut self) {
        for (client, message) in std::mem::take(&mut self.server.out) {
            if self.now < self.clients[client].loses_until {
                continue;
            }
            let mut conns = (0..self.conns.len()).rev();
            let of_sub = |n: &usize| {
                let conn = &self.conns[*n];
                conn.client == client && conn.actor == Actor::Sub && conn.at_server
            };
            if let Some(n) = conns.find(of_sub) {
                self.send_down(n, Down::Message(message));
            }
        }
    }

    fn arrived_at_client(&mut self, n: usize) {
        let (client, actor) = (self.conns[n].client, self.conns[n].actor);
        let Some((_, down)) = self.conns[n].down.pop_front() else {
            return;
        };
        if !self.conns[n].at_client || !self.clients[client].is_alive {
            return;
        }
        match (actor, down) {
            (Actor::Caller(thread), Down::Reply(answer)) => {
                self.clients[client].callers[thread].mail = Some(Ok(answer));
            }
            (Actor::Engine, Down::Reply(answer)) => self.clients[client].pipe.mail.push_back(answer),
            (Actor::Sub, down) => self.clients[client].sub.mail.push_back(down),
            (_, down) => unreachable!("{down:?}"),
        }
        self.soon(client, actor);
    }

    fn closed(&mut self, n: usize) {
        let (client, actor) = (self.conns[n].client, self.conns[n].actor);
        if !std::mem::take(&mut self.conns[n].at_client) {
            return;
        }
        let it = &mut self.clients[client];
        match actor {
            Actor::Caller(thread) if it.callers[thread].conn == Some(n) => {
                it.callers[thread].conn = None;
                it.callers[thread].mail.get_or_insert(Err(unknown()));
            }
            Actor::Engine if it.pipe.conn == Some(n) => it.pipe.is_closed = true,
            Actor::Sub if it.sub.conn == Some(n) => it.sub.is_closed = true,
            _ => return,
        }
        self.soon(client, actor);
    }

    fn server_closed(&mut self, n: usize) {
        if self.now < self.stalled_until {
            self.event(self.stalled_until + 1, Event::ServerClosed(n));
            return;
        }
        self.conns[n].at_server = false;
        self.conns[n].up.clear();
        let client = self.conns[n].client;
        if self.conns[n].actor != Actor::Sub {
            return;
        }
        let mut conns = self.conns.iter();
        if !conns.any(|it| it.client == client && it.actor == Actor::Sub && it.at_server) {
            self.server.inboxes.remove(&client);
            for listeners in self.server.channels.values_mut() {
                listeners.remove(&client);
            }
        }
        // At the latest, the client notices by its probe.
        self.event(self.now + 2_000 * MS, Event::Closed(n));
    }

    fn fault(&mut self, n: usize) -> Checked {
        let fault = self.plan.faults[n].1.clone();
        self.say(|| format!("FAULT {fault:?}"));
        match fault {
            Fault::Cut(client, actor, is_silent) => {
                if let Some(n) = self.conn_of(client, actor) {
                    self.cut(n, is_silent);
                }
            }
            Fault::Slow(client, actor, by) => {
                if let Some(n) = self.conn_of(client, actor) {
                    self.conns[n].slow = by;
                }
            }
            Fault::Stop(client, actor, time) => {
                let until = self.now + time;
                let stopped = self.clients[client].stopped.entry(actor).or_default();
                *stopped = (*stopped).max(until);
            }
            Fault::Kill(client) => self.kill(client),
            Fault::Cancel(client, thread) => {
                self.clients[client].callers[thread].is_cancelled = true;
                self.soon(client, Actor::Caller(thread));
            }
            Fault::Shutdown(client) => {
                if self.clients[client].is_alive {
                    let mut fx = Effects::default();
                    let kernel = Arc::clone(&self.clients[client].kernel);
                    kernel.close(at(self.now), &mut fx);
                    self.after_kernel(client, &mut fx)?;
                    self.effects(client, None, fx);
                }
            }
            Fault::Stall(time) => self.stalled_until = self.stalled_until.max(self.now + time),
            Fault::StopNext(client, actor, time) => {
                self.clients[client].stop_next.insert(actor, time);
            }
            Fault::LoseMessages(client, time) => {
                self.clients[client].loses_until = self.now + time;
            }
            Fault::Foreign(name, time) => {
                let key = format!("n{name}").into_bytes();
                let data = self.server.data.entry(key).or_default();
                data.settle(self.now);
                if data.is_free() {
                    self.foreign += 1;
                    data.lock = Some((format!("foreign{}", self.foreign), self.now + time));
                }
            }
            Fault::Snapshot => self.snapshot = Some(self.server.data.clone()),
            Fault::Failover | Fault::RestartEmpty => {
                let copy = self.snapshot.take().filter(|_| matches!(fault, Fault::Failover));
                self.fail_over(copy.unwrap_or_default())?;
            }
        }
        Ok(())
    }

    fn conn_of(&self, client: usize, actor: Actor) -> Option<usize> {
        let client = &self.clients[client];
        match actor {
            Actor::Caller(thread) => client.callers[thread].conn,
            Actor::Engine => client.pipe.conn,
            Actor::Sub => client.sub.conn,
        }
    }

    fn kill(&mut self, client: usize) {
        self.clients[client].is_alive = false;
        for n in 0..self.conns.len() {
            if self.conns[n].client == client && self.conns[n].at_server {
                self.cut(n, true);
                self.conns[n].at_client = false;
            }
        }
    }

    fn fail_over(&mut self, data: BTreeMap<Vec<u8>, super::server::Data>) -> Checked {
        self.server.data = data;
        self.lost_data = true;
        for n in 0..self.conns.len() {
            if self.conns[n].at_client && self.conns[n].at_server {
                self.cut(n, false);
            }
        }
        for client in 0..self.clients.len() {
            if self.clients[client].is_alive {
                let mut fx = Effects::default();
                let kernel = Arc::clone(&self.clients[client].kernel);
                kernel.moved(at(self.now), &mut fx);
                self.after_kernel(client, &mut fx)?;
                self.effects(client, None, fx);
            }
        }
        Ok(())
    }

    // ------------------------------------------------------------------ effects

    /// Carries out the effects of a kernel call. `thread`: the caller that has them.
    fn effects(&mut self, client: usize, thread: Option<usize>, fx: Effects) {
        if let (Some(undo), Some(thread)) = (fx.undo, thread)
            && let Some(n) = self.clients[client].callers[thread].conn
        {
            let mark = self.mark(client);
            self.send(n, Up::Command(undo, mark, false));
        }
        for cell in fx.wake {
            let callers = self.clients[client].callers.iter();
            let mut parked = callers.map(|caller| match &caller.state {
                State::Parked(call) => Some(call.no),
                _ => None,
            });
            if let Some(thread) = parked.position(|no| no == Some(cell.no)) {
                self.soon(client, Actor::Caller(thread));
            }
        }
        for cell in fx.operations {
            let mut callers = self.clients[client].callers.iter();
            let waits = |caller: &Caller| match &caller.state {
                State::Operating { cell: it, .. } => Arc::ptr_eq(it, &cell),
                _ => false,
            };
            if let Some(thread) = callers.position(waits) {
                self.soon(client, Actor::Caller(thread));
            }
        }
        if fx.engine_by.is_some() {
            self.soon(client, Actor::Engine);
        }
        let mut wakes_sub = false;
        for lock in fx.listen {
            let key = lock.keys().key(0);
            let wanted = &mut self.clients[client].sub.wanted;
            wanted.insert(key.channel.to_vec(), key.name.clone());
            wakes_sub = true;
        }
        for name in fx.unlisten {
            self.clients[client].sub.wanted.retain(|_, it| *it != name);
        }
        if wakes_sub {
            self.soon(client, Actor::Sub);
        }
    }

    // ------------------------------------------------------------------ the caller

    fn caller(&mut self, client: usize, thread: usize) -> Checked {
        let actor = Actor::Caller(thread);
        if let Some(todo) = self.clients[client].callers[thread].todo.pop_front() {
            match todo {
                Todo::Effects(fx) => self.effects(client, Some(thread), fx),
                Todo::Step(step) => self.step(client, thread, step)?,
                Todo::Close => {
                    if let Some(n) = self.clients[client].callers[thread].conn.take() {
                        self.close(n);
                    }
                }
                Todo::Write(_) | Todo::Sleep => unreachable!("of the engine"),
            }
            self.go_on(client, actor);
            return Ok(());
        }
        let caller = &mut self.clients[client].callers[thread];
        match std::mem::replace(&mut caller.state, State::Done) {
            State::Done => Ok(()),
            State::Idle(until) if self.now < until => {
                caller.state = State::Idle(until);
                self.timer(client, actor, until);
                Ok(())
            }
            State::Idle(_) if caller.ops == 0 => Ok(()),
            State::Idle(_) => self.begin(client, thread),
            State::Waiting { call, sent, by } => self.waiting(client, thread, call, sent, by),
            State::Parked(call) => self.woken(client, thread, call),
            State::Holding { lease, token, until } => {
                self.holding(client, thread, lease, token, until)
            }
            State::Operating { lease, token, cell, by, unlocks } => {
                if self.now < by && cell.result.lock().is_none() {
                    let caller = &mut self.clients[client].callers[thread];
                    caller.state = State::Operating { lease, token, cell, by, unlocks };
                    self.timer(client, actor, by);
                    return Ok(());
                }
                let renewed = matches!(*cell.result.lock(), Some(Ok(())));
                lease.cancel(&cell);
                match unlocks {
                    true => self.unlock(client, thread, lease, token, renewed),
                    false => {
                        let until = self.now + 100;
                        self.holding(client, thread, lease, token, until)
                    }
                }
            }
            State::Releasing(release) => self.releasing(client, thread, release),
        }
    }

    fn lock_of(&mut self, client: usize, name: u64, kind: Kind) -> Arc<dyn Primitive> {
        let tag = match kind {
            Kind::Mutex => 0,
            Kind::NoQueue => 1,
            Kind::Fair => 2,
            Kind::Reader => 3,
            Kind::Writer => 4,
            Kind::Permits(k) => 4 + k as u8,
        };
        let locks = &mut self.clients[client].locks;
        let make = || -> Arc<dyn Primitive> {
            let keys = Keys::new(Name::from(format!("n{name}")), "lock:", "lock_release:");
            match kind {
                Kind::Mutex => CohortKeys::of(keys, &Arc::default()),
                Kind::NoQueue => MutexKeys::of(keys),
                Kind::Fair => FairMutexKeys::of(keys),
                Kind::Reader => Arc::new(RwLockKeys::of(keys, true)),
                Kind::Writer => Arc::new(RwLockKeys::of(keys, false)),
                Kind::Permits(k) => Arc::new(SemaphoreKeys::of(keys, 3, k)),
            }
        };
        Arc::clone(locks.entry((name, tag)).or_insert_with(make))
    }

    fn begin(&mut self, client: usize, thread: usize) -> Checked {
        let (kinds, names) = (self.plan.kinds.clone(), self.plan.names);
        let (ttl, handoffs, share) = (self.plan.ttl, self.plan.handoffs, self.plan.backoff);
        let caller = &mut self.clients[client].callers[thread];
        caller.ops -= 1;
        caller.is_cancelled = false;
        let rng = &mut caller.rng;
        let kind = kinds[rng.below(kinds.len() as u64) as usize];
        let name = rng.below(names);
        let is_once = rng.chance(150);
        let deadline = match (is_once, rng.chance(300)) {
            (true, _) => self.now + COMMAND_TIMEOUT,
            (false, true) => self.now + rng.range(5 * MS, 3_000 * MS),
            (false, false) => NEVER,
        };
        let policy = match rng.chance(share) {
            true => {
                let base = Duration::from_millis(rng.range(1, 40));
                let backoff = Backoff::new(base, base * 20);
                WaitPolicy::Backoff(match rng.chance(300) {
                    true => backoff.attempts(rng.range(1, 6) as u32),
                    false => backoff,
                })
            }
            false => WaitPolicy::Wake,
        };
        let by_engine = rng.chance(250);
        let renews = !rng.chance(80);
        let odd_ttl = rng.chance(60);
        let ttl = if odd_ttl { ttl * 3 / 2 } else { ttl };
        let ttl = Duration::from_micros(ttl / MS * MS);
        let lock = self.lock_of(client, name, kind);
        let in_line = lock.has_local_queue();
        let wants = CallTerms {
            lock,
            terms: LeaseTerms {
                ttl,
                renew_every: renews.then_some(ttl / 3),
                max_hold: Duration::MAX,
                replicas: None,
                handoffs: if in_line { handoffs } else { 0 },
            },
            wait: match is_once {
                true => Wait::Once,
                false => Wait::Queue(policy),
            },
            deadline: at(deadline),
            holder: Holder {
                handoffs: if in_line { handoffs } else { 0 },
                ..Holder::default()
            },
            by_engine,
        };
        let kernel = Arc::clone(&self.clients[client].kernel);
        let mut call = Box::new(Call::new(&kernel, wants, at(self.now)));
        let mut fx = Effects::default();
        let step = call.begin(&kernel, at(self.now), &mut fx);
        self.say(|| {
            let how = if by_engine { "by the engine" } else { "" };
            format!("c{client}.{thread} {kind:?} n{name} once {is_once} until {deadline} {how}")
        });
        self.decided(client, thread, Some(call), step, fx)
    }

    /// A kernel call of this thread has returned: its effects and its step follow.
    fn decided(
        &mut self,
        client: usize,
        thread: usize,
        call: Option<Box<Call>>,
        step: Step,
        mut fx: Effects,
    ) -> Checked {
        self.say(|| format!("c{client}.{thread} -> {}", shown(&step)));
        self.after_kernel(client, &mut fx)?;
        if let Step::Done(outcome) = &step {
            let call = call.as_ref().expect("only a call is done");
            self.check_outcome(client, thread, call, outcome)?;
        }
        let caller = &mut self.clients[client].callers[thread];
        if let Some(call) = call {
            // From here on, its cell can be filled, and its thread unparked.
            caller.state = State::Parked(call);
        }
        caller.todo.push_back(Todo::Effects(fx));
        caller.todo.push_back(Todo::Step(step));
        self.stop_if_due(client, Actor::Caller(thread));
        self.go_on(client, Actor::Caller(thread));
        Ok(())
    }

    fn step(&mut self, client: usize, thread: usize, step: Step) -> Checked {
        let now = self.now;
        let State::Parked(call) =
            std::mem::replace(&mut self.clients[client].callers[thread].state, State::Done)
        else {
            unreachable!("set by `decided`");
        };
        match step {
            Step::Send(command, until) => {
                let by = time_of(until);
                if now < by {
                    self.write(client, thread, command);
                } else {
                    // The thread stood still: a command whose time is over is not sent.
                    let end = Err(redis::Fault::NotRun(Cause::text("too late")));
                    self.clients[client].callers[thread].mail = Some(end);
                }
                let caller = &mut self.clients[client].callers[thread];
                caller.state = State::Waiting { call, sent: now, by };
                self.timer(client, Actor::Caller(thread), by);
            }
            Step::Park(until) => {
                let nap = time_of(until).min(now + 1_000 * MS);
                self.clients[client].callers[thread].state = State::Parked(call);
                self.timer(client, Actor::Caller(thread), nap);
            }
            Step::Done(outcome) => self.done(client, thread, outcome),
        }
        Ok(())
    }

    fn done(&mut self, client: usize, thread: usize, outcome: Outcome) {
        let Outcome::Lease(lease, token) = outcome else {
            match outcome {
                Outcome::Refused(_) => self.report.refused += 1,
                _ => self.report.failed += 1,
            }
            self.idle(client, thread);
            return;
        };
        self.report.acquired += 1;
        let rng = &mut self.clients[client].callers[thread].rng;
        let long = if self.plan.family == Family::ShortTtl { 3 } else { 0 };
        let time = match rng.below(10 - long) + long {
            0..=5 => rng.range(10, 3 * MS),
            6..=8 => rng.range(MS, 60 * MS),
            _ => rng.range(10 * MS, 2_500 * MS),
        };
        let until = self.now + time;
        self.clients[client].callers[thread].state = State::Holding { lease, token, until };
    }

    fn write(&mut self, client: usize, thread: usize, command: Command) {
        let conn = self.clients[client].callers[thread].conn;
        let n = conn.unwrap_or_else(|| self.connect(client, Actor::Caller(thread)));
        self.clients[client].callers[thread].conn = Some(n);
        self.clients[client].callers[thread].mail = None;
        let mark = self.mark(client);
        self.send(n, Up::Command(command, mark, true));
    }

    fn idle(&mut self, client: usize, thread: usize) {
        let caller = &mut self.clients[client].callers[thread];
        let pause = match caller.rng.chance(500) {
            true => 0,
            false => caller.rng.below(5 * MS),
        };
        caller.state = State::Idle(self.now + pause);
    }

    fn waiting(
        &mut self,
        client: usize,
        thread: usize,
        mut call: Box<Call>,
        sent: Time,
        by: Time,
    ) -> Checked {
        let caller = &mut self.clients[client].callers[thread];
        let end = match caller.mail.take() {
            Some(end) => end,
            None if self.now < by => {
                caller.state = State::Waiting { call, sent, by };
                return Ok(());
            }
            None => Err(unknown()),
        };
        let name = call.wants.lock.key(0).name.clone();
        self.note_refusal(client, &name, &end, sent);
        let is_error = end.is_err();
        self.say(|| format!("c{client}.{thread} reply {}", shown_end(&end)));
        let kernel = Arc::clone(&self.clients[client].kernel);
        let mut fx = Effects::default();
        let step = call.replied(&kernel, end, at(sent), at(self.now), &mut fx);
        self.decided(client, thread, Some(call), step, fx)?;
        if is_error {
            // The undo goes out on the old connection before it is closed.
            let todo = &mut self.clients[client].callers[thread].todo;
            todo.insert(1, Todo::Close);
        }
        Ok(())
    }

    fn woken(&mut self, client: usize, thread: usize, mut call: Box<Call>) -> Checked {
        let kernel = Arc::clone(&self.clients[client].kernel);
        let mut fx = Effects::default();
        let caller = &mut self.clients[client].callers[thread];
        let step = match std::mem::take(&mut caller.is_cancelled) {
            true => Step::Done(call.leave(&kernel, Failure::Cancelled, at(self.now), &mut fx)),
            false => call.woken(&kernel, at(self.now), &mut fx),
        };
        if let Step::Park(until) = step {
            let nap = time_of(until).min(self.now + 1_000 * MS);
            self.after_kernel(client, &mut fx)?;
            let caller = &mut self.clients[client].callers[thread];
            caller.state = State::Parked(call);
            self.effects(client, None, fx);
            self.timer(client, Actor::Caller(thread), nap);
            return Ok(());
        }
        self.decided(client, thread, Some(call), step, fx)
    }

    fn holding(
        &mut self,
        client: usize,
        thread: usize,
        lease: Arc<HeldLease>,
        token: FencingToken,
        until: Time,
    ) -> Checked {
        if self.now < until {
            let caller = &mut self.clients[client].callers[thread];
            caller.state = State::Holding { lease, token, until };
            self.timer(client, Actor::Caller(thread), until);
            return Ok(());
        }
        let (ttl, kinds) = (self.plan.ttl, &self.plan.kinds);
        let is_writer = kinds.contains(&Kind::Writer)
            && !lease.lock.is_shared()
            && lease.lock.queue().is_some()
            && !lease.lock.has_local_queue();
        let rng = &mut self.clients[client].callers[thread].rng;
        let what = match rng.below(30) {
            0 => Wanted::Renew,
            1 => Wanted::SetTtl(Duration::from_millis((ttl / MS * rng.range(5, 15) / 10).max(20))),
            2 if is_writer => Wanted::Renew,
            _ => return self.unlock(client, thread, lease, token, false),
        };
        self.say(|| format!("c{client}.{thread} wants {what:?}"));
        let mut fx = Effects::default();
        let kernel = Arc::clone(&self.clients[client].kernel);
        let cell = kernel.operate(&lease, token, what, at(self.now), &mut fx);
        self.after_kernel(client, &mut fx)?;
        let by = self.now + COMMAND_TIMEOUT;
        let caller = &mut self.clients[client].callers[thread];
        caller.todo.push_back(Todo::Effects(fx));
        caller.state = match cell {
            Some(cell) => State::Operating { lease, token, cell, by, unlocks: false },
            None => State::Holding { lease, token, until: self.now + 1 },
        };
        self.go_on(client, Actor::Caller(thread));
        Ok(())
    }

    fn unlock(
        &mut self,
        client: usize,
        thread: usize,
        lease: Arc<HeldLease>,
        token: FencingToken,
        has_renewed: bool,
    ) -> Checked {
        let mut fx = Effects::default();
        let kernel = Arc::clone(&self.clients[client].kernel);
        let unlock = kernel.begin_unlock(&lease, token, has_renewed, at(self.now), &mut fx);
        self.say(|| {
            let how = format!("{unlock:?}");
            format!("c{client}.{thread} unlocks {:?}: {}", lease.id, how.get(..12).unwrap_or(&how))
        });
        self.after_kernel(client, &mut fx)?;
        let caller = &mut self.clients[client].callers[thread];
        caller.todo.push_back(Todo::Effects(fx));
        match unlock {
            Unlock::HandedOff => {
                self.report.handed_off += 1;
                self.idle(client, thread);
            }
            Unlock::AlreadyLost(_) | Unlock::Over => {
                self.report.lost += 1;
                self.idle(client, thread);
            }
            Unlock::RenewFirst(cell) => {
                let by = self.now + COMMAND_TIMEOUT / 2;
                caller.state = State::Operating { lease, token, cell, by, unlocks: true };
            }
            Unlock::Send(command) => {
                caller.state = State::Releasing(Release {
                    lease,
                    command,
                    by: 0,
                    retry_at: 0,
                    deadline: self.now + COMMAND_TIMEOUT,
                    tries: 0,
                    may_have_run: false,
                });
                self.stop_if_due(client, Actor::Caller(thread));
            }
        }
        self.go_on(client, Actor::Caller(thread));
        Ok(())
    }

    fn releasing(&mut self, client: usize, thread: usize, mut release: Release) -> Checked {
        let actor = Actor::Caller(thread);
        if release.by == 0 {
            if self.now < release.retry_at {
                self.timer(client, actor, release.retry_at);
            } else {
                self.write(client, thread, release.command.clone());
                release.by = release.deadline.max(self.now + 1);
                self.timer(client, actor, release.by);
            }
            self.clients[client].callers[thread].state = State::Releasing(release);
            return Ok(());
        }
        let caller = &mut self.clients[client].callers[thread];
        let end = match caller.mail.take() {
            Some(end) => end,
            None if self.now < release.by => {
                caller.state = State::Releasing(release);
                return Ok(());
            }
            None => Err(unknown()),
        };
        if end.is_err() {
            if let Some(n) = self.clients[client].callers[thread].conn.take() {
                self.close(n);
            }
            if self.now < release.deadline {
                release.by = 0;
                release.may_have_run = true;
                release.retry_at = self.now + 20 * MS * Time::from(release.tries);
                release.tries += 1;
                self.clients[client].callers[thread].state = State::Releasing(release);
                self.go_on(client, actor);
                return Ok(());
            }
        }
        let mut fx = Effects::default();
        let kernel = Arc::clone(&self.clients[client].kernel);
        let (lease, ran) = (&release.lease, release.may_have_run);
        let unlocked = kernel.unlocked(lease, end, ran, at(self.now), &mut fx);
        self.say(|| format!("c{client}.{thread} released {:?}: {unlocked:?}", release.lease.id));
        self.after_kernel(client, &mut fx)?;
        self.report.lost += u64::from(matches!(unlocked, Unlocked::Lost(_)));
        let caller = &mut self.clients[client].callers[thread];
        caller.todo.push_back(Todo::Effects(fx));
        self.idle(client, thread);
        self.go_on(client, actor);
        Ok(())
    }

    // ------------------------------------------------------------------ the engine

    fn engine(&mut self, client: usize) -> Checked {
        if let Some(todo) = self.clients[client].engine_todo.pop_front() {
            match todo {
                Todo::Effects(fx) => self.effects(client, None, fx),
                Todo::Write(out) => self.write_engine(client, out),
                Todo::Sleep => {
                    self.engine_sleeps(client);
                    return Ok(());
                }
                Todo::Step(_) | Todo::Close => unreachable!("of a caller"),
            }
            self.go_on(client, Actor::Engine);
            return Ok(());
        }
        let kernel = Arc::clone(&self.clients[client].kernel);
        kernel.engine_awake();
        let mut fx = Effects::default();
        self.engine_replies(client, &mut fx);
        let route = self.route();
        let now = at(self.now);
        let out = self.clients[client].engine.due(&kernel, now, &route, &mut fx);
        let next = kernel.schedule.lock().next();
        if next <= now {
            return Err(self.violation("P11", format!("c{client}: due but not done: {next:?}")));
        }
        self.after_kernel(client, &mut fx)?;
        let todo = &mut self.clients[client].engine_todo;
        todo.push_back(Todo::Effects(fx));
        let sends = !out.is_empty();
        todo.extend(out.into_iter().map(Todo::Write));
        todo.push_back(Todo::Sleep);
        if sends {
            self.stop_if_due(client, Actor::Engine);
        }
        self.go_on(client, Actor::Engine);
        Ok(())
    }

    fn route(&self) -> OneServer {
        OneServer {
            may_fail_over: self.plan.family == Family::Failover,
        }
    }

    fn engine_replies(&mut self, client: usize, fx: &mut Effects) {
        let now = self.now;
        let mut ends: Vec<(Ticket, Time, Result<Answer, redis::Fault>)> = Vec::new();
        let pipe = &mut self.clients[client].pipe;
        while let Some(answer) = pipe.mail.pop_front() {
            let (ticket, sent) = pipe.sent.pop_front().expect("a reply to a command");
            ends.push((ticket, sent, Ok(answer)));
        }
        let is_late = pipe
            .sent
            .front()
            .is_some_and(|(_, sent)| sent + COMMAND_TIMEOUT <= now);
        if is_late || std::mem::take(&mut pipe.is_closed) {
            for (ticket, sent) in pipe.sent.drain(..) {
                ends.push((ticket, sent, Err(unknown())));
            }
            pipe.connect_at = now + 2 * MS;
            if let Some(n) = pipe.conn.take() {
                self.close(n);
            }
        }
        let pipe = &mut self.clients[client].pipe;
        for (ticket, sent) in pipe.unsent.drain(..) {
            ends.push((ticket, sent, Err(redis::Fault::NotRun(Cause::text("connecting")))));
        }
        let route = self.route();
        for (ticket, sent, end) in ends {
            let it = &mut self.clients[client];
            let name = it.engine.asks_for(ticket);
            let kernel = Arc::clone(&it.kernel);
            if let Some(name) = name {
                self.note_refusal(client, &name, &end, sent);
            }
            self.say(|| format!("c{client} engine: ticket {ticket} {}", shown_end(&end)));
            let engine = &mut self.clients[client].engine;
            engine.ended(&kernel, ticket, end, [at(sent), at(now)], &route, fx);
        }
    }

    fn write_engine(&mut self, client: usize, out: Outgoing) {
        let now = self.now;
        let pipe = &mut self.clients[client].pipe;
        let conn = match pipe.conn {
            Some(n) => Some(n),
            None if now >= pipe.connect_at => Some(self.connect(client, Actor::Engine)),
            None => None,
        };
        self.say(|| format!("c{client} engine sends {}: {}", out.ticket, shown_command(&out.command)));
        let mark = self.mark(client);
        let pipe = &mut self.clients[client].pipe;
        match conn {
            Some(n) => {
                pipe.conn = Some(n);
                pipe.sent.push_back((out.ticket, now));
                self.send(n, Up::Command(out.command, mark, true));
            }
            None => pipe.unsent.push((out.ticket, now)),
        }
    }

    fn engine_sleeps(&mut self, client: usize) {
        let it = &self.clients[client];
        let until = it.kernel.engine_sleeps(at(self.now), Duration::from_secs(1));
        let oldest = it.pipe.sent.front().map_or(NEVER, |(_, sent)| sent + COMMAND_TIMEOUT);
        let has_work = !it.pipe.mail.is_empty() || it.pipe.is_closed || !it.pipe.unsent.is_empty();
        let until = if has_work { self.now } else { time_of(until).min(oldest) };
        if until < NEVER {
            // As ppoll: never earlier.
            self.timer(client, Actor::Engine, until + 1);
        }
    }

    // ------------------------------------------------------------------ the subscriber

    fn subscriber(&mut self, client: usize) -> Checked {
        if let Some(Todo::Effects(fx)) = self.clients[client].sub.todo.pop_front() {
            self.effects(client, None, fx);
            self.go_on(client, Actor::Sub);
            return Ok(());
        }
        let kernel = Arc::clone(&self.clients[client].kernel);
        let now = at(self.now);
        let mut fx = Effects::default();
        if std::mem::take(&mut self.clients[client].sub.is_closed) {
            if let Some(n) = self.clients[client].sub.conn.take() {
                self.close(n);
            }
            let pause = self.net.range(MS, 50 * MS);
            let sub = &mut self.clients[client].sub;
            sub.mail.clear();
            sub.asked.clear();
            sub.hears_inbox = false;
            sub.connect_at = self.now + pause;
            kernel.deaf(now, &mut fx);
        } else if let Some(down) = self.clients[client].sub.mail.pop_front() {
            self.say(|| format!("c{client} sub: {}", shown_down(&down)));
            let sub = &mut self.clients[client].sub;
            match down {
                Down::Subscribed(None) => {
                    sub.hears_inbox = true;
                    sub.was_live = true;
                }
                Down::Subscribed(Some(channel)) => {
                    if let Some(name) = sub.wanted.get(&channel) {
                        kernel.listening(name, now, &mut fx);
                    }
                }
                Down::Message(Message::Inbox(payload)) => kernel.inbox(&payload, now, &mut fx),
                Down::Message(Message::Released(channel, payload)) => {
                    if let Some(name) = sub.wanted.get(&channel) {
                        kernel.announced(name, &payload, now, &mut fx);
                    }
                }
                Down::Reply(_) => unreachable!("not on this connection"),
            }
        } else {
            self.subscribe(client);
            return Ok(());
        }
        self.after_kernel(client, &mut fx)?;
        self.clients[client].sub.todo.push_back(Todo::Effects(fx));
        self.stop_if_due(client, Actor::Sub);
        self.go_on(client, Actor::Sub);
        Ok(())
    }

    /// Connects if somebody waits, and subscribes to what is wanted.
    fn subscribe(&mut self, client: usize) {
        let sub = &self.clients[client].sub;
        if sub.wanted.is_empty() {
            return;
        }
        let n = match sub.conn {
            Some(n) => n,
            None if self.now < sub.connect_at => {
                let at = sub.connect_at;
                self.timer(client, Actor::Sub, at);
                return;
            }
            None => {
                let n = self.connect(client, Actor::Sub);
                self.clients[client].sub.conn = Some(n);
                self.send(n, Up::Subscribe(None));
                n
            }
        };
        let sub = &mut self.clients[client].sub;
        sub.asked.retain(|channel| sub.wanted.contains_key(channel));
        let new: Vec<Vec<u8>> = sub
            .wanted
            .keys()
            .filter(|channel| !sub.asked.contains(*channel))
            .cloned()
            .collect();
        for channel in new {
            self.clients[client].sub.asked.insert(channel.clone());
            self.send(n, Up::Subscribe(Some(channel)));
        }
    }
}

impl Client {
    fn is_done(&self) -> bool {
        let mut callers = self.callers.iter();
        !self.is_alive || callers.all(|it| matches!(it.state, State::Done) && it.todo.is_empty())
    }

    /// Returns what is left in the engine.
    pub(super) fn in_flight(&self) -> usize {
        self.engine.in_flight()
    }
}

fn unknown() -> redis::Fault {
    redis::Fault::Unknown(Cause::text("no reply"))
}

fn shown(step: &Step) -> String {
    match step {
        Step::Send(command, _) => format!("send {}", shown_command(command)),
        Step::Park(_) => "park".into(),
        Step::Done(outcome) => format!("done {outcome:?}"),
    }
}

fn shown_command(command: &Command) -> String {
    let name = String::from_utf8_lossy(&key_of(&*command.lock)).into_owned();
    format!("{name} {:?}", command.what)
}

fn shown_end(end: &Result<Answer, redis::Fault>) -> String {
    match end {
        Ok(answer) => shown_answer(answer),
        Err(fault) => format!("no reply: {fault}"),
    }
}

fn shown_answer(answer: &Answer) -> String {
    let by = |by: &crate::protocol::refusal::RefusedName| {
        let holder = String::from_utf8_lossy(&by.holder).into_owned();
        let holder = holder.get(..12).unwrap_or(&holder).to_owned();
        format!("by {holder} for {:?}", by.remaining)
    };
    match answer {
        Answer::Refused(refusal) => format!("Refused {}", by(refusal)),
        Answer::Places(found, refusal) => format!("{found:?} {}", by(refusal)),
        Answer::Foreign(holder) => format!("Foreign {}", String::from_utf8_lossy(holder)),
        answer => format!("{answer:?}"),
    }
}

fn shown_down(down: &Down) -> String {
    match down {
        Down::Reply(answer) => format!("{answer:?}"),
        Down::Message(Message::Inbox(payload)) => String::from_utf8_lossy(payload).into(),
        Down::Message(Message::Released(_, payload)) => {
            format!("released {}", String::from_utf8_lossy(payload))
        }
        Down::Subscribed(channel) => format!("subscribed {}", channel.is_some()),
    }
}

impl Report {
    pub(super) fn add(&mut self, other: &Self) {
        self.acquired += other.acquired;
        self.handed_off += other.handed_off;
        self.refused += other.refused;
        self.failed += other.failed;
        self.lost += other.lost;
        self.commands += other.commands;
        self.events += other.events;
        self.plain += other.plain;
        self.longest_idle = self.longest_idle.max(other.longest_idle);
    }
}
