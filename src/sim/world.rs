//! The simulated world: virtual time, connections, and the actors of the clients.
//!
//! A kernel call, its effects and its I/O are separate events, and any actor can be stopped between
//! them.

mod caller;
mod effects;
mod faults;
mod holder;
mod network;
pub(in crate::sim) mod show;
mod start;
mod threads;
mod views;
pub(super) mod wants;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::check::Registered;
use super::check::outcomes::Refusal;
use super::plan::{Actor, Family, Fault, Kind, Plan, Rng, Why};
use super::server::{Copy, MS, Message, Server, Time, key_of};
use crate::clock::Instant;
use crate::error::Cause;
use crate::kernel::Kernel;
use crate::kernel::acquiring::Acquiring;
use crate::kernel::call::{Call, CallTerms, Step};
use crate::kernel::command::Command;
use crate::kernel::effects::Effects;
use crate::kernel::engine::{Engine, Outgoing, Route, Ticket};
use crate::kernel::fault;
use crate::kernel::held::HeldLease;
use crate::kernel::lease::{OperationCell, Wanted};
use crate::kernel::release_tries::ReleaseTries;
use crate::kernel::steps::begin_event;
use crate::kernel::unlock::{Unlock, Unlocked};
use crate::kernel::waiter::{Failure, Outcome};
use crate::name::Name;
use crate::protocol::answer::Answer;
use crate::protocol::primitive::{Primitive, Reached};
use crate::token::FencingToken;

pub(super) const COMMAND_TIMEOUT: Time = 1_000 * MS;
/// Within this time the threads of a process that stood still go on, in any order.
pub(super) const GOES_ON: Time = 60;
pub(super) const UNREACHABLE_FOR: Time = 4_000 * MS;
pub(super) const NEVER: Time = Time::MAX;

/// A violated property.
#[derive(Clone, Debug)]
pub(super) struct Violation {
    pub(super) property: &'static str,
    pub(super) text: String,
}

pub(super) type Checked = Result<(), Violation>;

/// The clock of a client.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    /// By how much it is too fast, in millionths.
    drift: i64,
    /// When it stood still, from and until. The wall clock went on.
    pauses: Vec<[Time; 2]>,
}

impl Clock {
    pub(super) fn new(drift: i64) -> Self {
        Self {
            drift,
            pauses: Vec::new(),
        }
    }

    pub(super) fn pause(&mut self, from: Time, until: Time) {
        self.pauses.push([from, until]);
    }

    /// Returns what the clock shows at `time`.
    pub(super) fn at(&self, time: Time) -> Instant {
        if time == NEVER {
            return Instant::NEVER;
        }
        Instant::from_nanos(self.nanos(time - self.stood_still(time)))
    }

    /// Returns what the wall clock showed at the start, by what it shows at `time`.
    pub(super) fn wall_at_start(&self, time: Time) -> Duration {
        Duration::from_nanos(self.nanos(self.stood_still(time)))
    }

    fn stood_still(&self, time: Time) -> Time {
        let pauses = self.pauses.iter();
        let stood = pauses.map(|[from, until]| time.clamp(*from, *until) - from);
        stood.sum()
    }

    fn nanos(&self, time: Time) -> u64 {
        (time as i64 * (1_000_000 + self.drift) / 1000) as u64
    }

    /// Returns the first time at which the clock shows at least `instant`.
    pub(super) fn time_of(&self, instant: Instant) -> Time {
        if instant == Instant::NEVER {
            return NEVER;
        }
        let rate = (1_000_000 + self.drift) as u128;
        let mut time = (u128::from(instant.as_nanos()) * 1000).div_ceil(rate) as Time;
        for [from, until] in &self.pauses {
            if time > *from {
                time += until - from;
            }
        }
        time
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
    /// A command; whether its reply is awaited, and whether it has the text of its script.
    Command {
        command: Command,
        mark: Reached,
        replies: bool,
        has_source: bool,
        /// It follows a redirect to the node that the keys are moving to.
        is_asking: bool,
    },
    Subscribe(Option<Vec<u8>>),
}

/// A command has not run: it may be sent again, with its script's text, to this node.
#[derive(Clone, Copy, Debug)]
struct Again {
    node: usize,
    is_asking: bool,
    /// Otherwise the node does not know its script.
    is_redirect: bool,
    pause: Time,
}

/// The reply to a command: its end, or the node to which it must be sent again.
enum Mail {
    End(Result<Answer, fault::Fault>),
    Again(Again),
}

impl Up {
    /// Returns the command as it is sent again.
    fn again(mut self, again: Again) -> Self {
        if let Self::Command {
            has_source,
            is_asking,
            ..
        } = &mut self
        {
            (*has_source, *is_asking) = (true, again.is_asking);
        }
        self
    }
}

#[derive(Debug)]
enum Down {
    Reply(Answer),
    Error,
    Rejected,
    Again(Again),
    /// It has run, but too few replicas have acknowledged it.
    NotReplicated,
    Message(Message),
    Subscribed(Option<Vec<u8>>),
}

pub(super) struct Conn {
    client: usize,
    /// The node of a cluster that it leads to.
    node: usize,
    actor: Actor,
    up: VecDeque<(Time, Up)>,
    down: VecDeque<(Time, Down)>,
    last_up: Time,
    last_down: Time,
    at_server: bool,
    at_client: bool,
    is_cut: bool,
    /// How many of the last commands were not written in full: the client may know that.
    unwritten: usize,
    runs_twice: bool,
    slow: Time,
}

/// A step of an actor that was decided, and is still to be done.
enum Todo {
    Effects(Effects),
    Step(Step),
    /// Closes the connection of a caller.
    Close,
    /// Writes a command that was decided then.
    Write(Outgoing, Time),
    Sleep,
}

enum State {
    Idle(Time),
    Waiting {
        call: Acquiring,
        sent: Time,
        by: Time,
    },
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
    tries: ReleaseTries,
}

pub(super) struct Caller {
    state: State,
    todo: VecDeque<Todo>,
    ops: u32,
    conn: Option<usize>,
    mail: Option<Result<Answer, fault::Fault>>,
    /// Its last command, and when it sends that again.
    last: Option<Command>,
    again: Option<(Time, Again)>,
    rng: Rng,
    is_cancelled: bool,
    panics: bool,
}

#[derive(Default)]
struct Pipe {
    conn: Option<usize>,
    connect_at: Time,
    sent: VecDeque<(Ticket, Time, Command)>,
    mail: VecDeque<Mail>,
    /// Commands that could not be written.
    unsent: Vec<(Ticket, Time)>,
    is_closed: bool,
}

#[derive(Default)]
struct Sub {
    conn: Option<usize>,
    connect_at: Time,
    /// The channels that somebody waits for, with their names.
    wanted: BTreeMap<Vec<u8>, (Name, u64)>,
    /// The channels that it has subscribed to, and since when their messages arrive.
    asked: BTreeMap<Vec<u8>, Option<Instant>>,
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
    /// The engine's pipelines to the nodes, and the commands that wait until they are sent again.
    pipes: [Pipe; 2],
    paused: Vec<(Time, (Ticket, Time, Command), Again)>,
    /// The node that has the keys, as far as the client knows; it has learnt that just now.
    node: usize,
    has_moved: bool,
    /// The machine was suspended, and the engine has not run since.
    was_suspended: bool,
    pub(super) callers: Vec<Caller>,
    sub: Sub,
    pub(super) is_alive: bool,
    pub(super) stopped: BTreeMap<Option<Actor>, Time>,
    locks: BTreeMap<(u64, u8), Arc<dyn Primitive>>,
    pub(super) refusals: Vec<Refusal>,
    /// The names that it held, or was releasing, after its last kernel call.
    pub(super) held: BTreeSet<Name>,
    stop_next: BTreeMap<Actor, Time>,
    /// The end of the last suspension.
    pub(super) resumed: Time,
    loses_until: Time,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Report {
    pub(super) acquired: u64,
    pub(super) handed_off: u64,
    pub(super) lingered: u64,
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
    snapshot: Option<Copy>,
    pub(super) stalled_until: Time,
    pub(super) errors_until: Time,
    /// Until when it replies with errors of this kind.
    pub(super) rejects: Vec<(Why, Time)>,
    /// The node that has the keys, and until when they move to the other one; 0 if they do not.
    owner: usize,
    pub(super) moves_until: Time,
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
    /// The names that the clients have used.
    pub(super) names: BTreeSet<Name>,
    /// The ids whose acquiring command a proxy has run twice, and no reply has arrived. If the undo
    /// ran in between, nobody knows what the second run took: for one ttl, the lock is taken.
    pub(super) ran_twice: BTreeSet<String>,
    /// The ids that the server had when its clock was set back.
    pub(super) outlasts: BTreeSet<String>,
    /// The serial number and the end of the sleep of each actor.
    timers: BTreeMap<(usize, Actor), (u64, Time)>,
    pub(super) clocks: Vec<Clock>,
    /// By how much the server's clock is ahead, in µs.
    server_ahead: i64,
    /// What may have ended on the server without its client: what keys contained when the server's
    /// clock stepped ahead, or when somebody deleted them.
    pub(super) over: BTreeSet<String>,
}

struct OneServer {
    may_fail_over: bool,
}

impl Route for OneServer {
    fn is_final(&self) -> bool {
        !self.may_fail_over
    }
}

impl World {
    /// Runs the plan to its end.
    pub(super) fn run(&mut self) -> Checked {
        let mut begin = self.now;
        let mut end = NEVER;
        while let Some(Reverse((time, _, event))) = self.heap.pop() {
            self.now = self.now.max(time);
            self.report.events += 1;
            begin_event();
            if let Err(violation) = self.handle(event).and_then(|()| self.check()) {
                self.dump();
                return Err(violation);
            }
            if end == NEVER && self.clients.iter().all(Client::is_done) {
                end = self.now + 20_000 * MS + self.plan.paused();
            }
            if self.now > end {
                break;
            }
            if self.now > begin + 600_000 * MS {
                // Calls without a deadline may wait for ever, until the links are fast: what they
                // get too late refuses the others. A call alone gives up.
                if self.calls() < 2 || !self.mend_links() {
                    return Err(self.violation("P10", "a call hangs".into()));
                }
                begin = self.now;
            }
            if self.report.events > 2_000_000 {
                return Err(self.violation("P10", "too many events".into()));
            }
        }
        self.report.commands = self.server.ran;
        self.report.plain = self.server.plain;
        // An entry that only remembers a refusal wakes no engine: it goes when that runs again.
        for client in 0..self.clients.len() {
            self.handle(Event::Run(client, Actor::Engine))?;
        }
        self.check_end()
    }

    /// Returns how many calls have not ended.
    fn calls(&self) -> usize {
        let alive = self.clients.iter().filter(|it| it.is_alive);
        let callers = alive.flat_map(|it| &it.callers);
        callers
            .filter(|it| matches!(it.state, State::Waiting { .. } | State::Parked(_)))
            .count()
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
            let line = format!(
                "{:>12.3} {}",
                (self.now - 100_000 * MS) as f64 / 1000.0,
                text()
            );
            self.log.push_back(line);
            if self.log.len() > 200_000 {
                self.log.pop_front();
            }
        }
    }

    /// The actor sleeps until then, unless it is woken.
    fn timer(&mut self, client: usize, actor: Actor, at: Time) {
        let no = self.serial;
        self.timers.insert((client, actor), (no, at));
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
        let hop = if self.plan.has_faults() && self.sched.chance(10) {
            self.sched.range(MS, 10 * MS)
        } else {
            self.sched.range(2, 60)
        };
        self.event(self.now + hop, Event::Run(client, actor));
    }

    /// The actor goes on with its next step, unless it is stopped in between.
    fn go_on(&mut self, client: usize, actor: Actor) {
        self.event(self.now + 1, Event::Run(client, actor));
    }

    /// Returns what the server's clock shows.
    pub(super) fn server_now(&self) -> Time {
        self.now.saturating_add_signed(self.server_ahead)
    }

    pub(super) fn stopped_until(&self, client: usize, actor: Actor) -> Time {
        let stopped = &self.clients[client].stopped;
        let of = |key| stopped.get(&key).copied().unwrap_or(0);
        of(None).max(of(Some(actor)))
    }

    // ------------------------------------------------------------------ effects
}

impl Client {
    fn is_done(&self) -> bool {
        let mut callers = self.callers.iter();
        !self.is_alive || callers.all(|it| matches!(it.state, State::Done) && it.todo.is_empty())
    }

    /// Returns whether a round of the engine may still change something under this id.
    pub(super) fn knows(&self, id: &str) -> bool {
        self.engine.knows(id)
    }

    /// Returns what is left in the engine.
    pub(super) fn in_flight(&self) -> usize {
        self.engine.in_flight()
    }
}

impl Report {
    pub(super) fn add(&mut self, other: &Self) {
        self.acquired += other.acquired;
        self.handed_off += other.handed_off;
        self.lingered += other.lingered;
        self.refused += other.refused;
        self.failed += other.failed;
        self.lost += other.lost;
        self.commands += other.commands;
        self.events += other.events;
        self.plain += other.plain;
        self.longest_idle = self.longest_idle.max(other.longest_idle);
    }
}
