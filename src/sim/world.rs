//! The simulated world: virtual time, 1 to 5 servers, connections, and the actors of the clients.
//!
//! A kernel call, its effects and its I/O are separate events, and any actor can be stopped between
//! them. Several servers are a quorum: then the engine sends all commands, in rounds.

mod batch;
mod caller;
mod clock;
mod effects;
mod engine;
mod faults;
mod holder;
mod network;
mod set;
mod show;
mod start;
mod subscriber;
mod views;
mod wants;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use batch::Batch;
use clock::Clock;
use set::{SetRelease, SetThread};

use super::check::Registered;
use super::check::outcomes::Learnt;
use super::check::sets::RegisteredSet;
use super::plan::{Actor, Family, Kind, Plan, Rng};
use super::server::{MS, Message, START, Server, Time, key_of};
use crate::clock::Instant;
use crate::error::Cause;
use crate::kernel::Kernel;
use crate::kernel::call::{Call, Step};
use crate::kernel::command::Command;
use crate::kernel::effects::{AnyLease, Effects};
use crate::kernel::engine::Route;
use crate::kernel::failure::Failure;
use crate::kernel::fault;
use crate::kernel::held::HeldLease;
use crate::kernel::operation::{OperationCell, Wanted};
use crate::kernel::release_tries::ReleaseTries;
use crate::kernel::steps::begin_event;
use crate::kernel::unlock::{Unlock, Unlocked};
use crate::kernel::waiter::CallTerms;
use crate::kernel::waiter::Outcome;
use crate::majority::Member;
use crate::name::Name;
use crate::protocol::answer::Answer;
use crate::protocol::primitive::{Primitive, Reached};
use crate::quorum::Quorum;
use crate::quorum::messages::Messages;
use crate::quorum::round::{Link, Members};
use crate::runtime::commands::{Commands, ForServer};
use crate::set::acquire::{SetAcquire, SetOutcome, SetStep};
use crate::set::lease::SetLease;
use crate::set::operation::SetOperation;
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
    /// A server that was down or hung serves again.
    Back(Member),
}

/// The server that a connection leads to, or the node of the cluster, which is one server.
type Peer = usize;

#[derive(Debug)]
enum Up {
    /// The handshake: the pipeline is up once it is answered.
    Hello,
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

/// A command has not run: it may be sent again, with its script's text, to this peer.
#[derive(Clone, Copy, Debug)]
struct Again {
    peer: Peer,
    is_asking: bool,
    /// Otherwise the server does not know its script.
    is_redirect: bool,
    pause: Time,
}

/// The reply to the handshake, or to a command: its end, or where it must be sent again.
enum Mail {
    Hello,
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
    Hello,
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
    peer: Peer,
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
    SetStep(SetStep),
    /// Writes the undos of commands without a reply behind these.
    Undo(Vec<Command>),
    /// Gives up the other parts of what has ended with one of them.
    GiveUp(Vec<AnyLease>),
    /// Closes the connection of a caller.
    Close,
    /// Writes a command that was decided then.
    Write(ForServer, Time),
    Sleep,
}

enum State {
    Idle(Time),
    Waiting {
        call: Box<Call>,
        sent: Time,
        by: Time,
    },
    Parked(Box<Call>),
    Set(Box<SetThread>),
    HoldingSet {
        lease: Arc<SetLease>,
        until: Time,
    },
    OperatingSet {
        lease: Arc<SetLease>,
        operation: SetOperation,
        by: Time,
        then: Then,
    },
    ReleasingSet(Box<SetRelease>),
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
        then: Then,
    },
    Releasing(Release),
    Done,
}

/// The next step of a holder, when the engine has ended the operation that it asked for.
#[derive(Clone, Copy, Debug)]
enum Then {
    Holds,
    Unlocks,
    /// It was the release.
    Leaves,
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
    /// The commands of a set that it has sent.
    batch: Option<Batch>,
    /// Its last command, and when it sends that again.
    last: Option<Command>,
    again: Option<(Time, Again)>,
    rng: Rng,
    is_cancelled: bool,
    panics: bool,
}

/// The engine's connection to a peer, with the commands that have no reply yet.
struct Pipe {
    conn: Option<usize>,
    link: Link,
    connect_at: Time,
    /// When it gives up the handshake, and for how long it pauses then.
    connect_by: Time,
    pause: Time,
    /// How many connections it has had.
    links: u64,
    sent: VecDeque<(u64, Time, Command)>,
    mail: VecDeque<Mail>,
    /// Commands that could not be written.
    unsent: Vec<(u64, Time)>,
    is_closed: bool,
}

/// The subscription at a server.
#[derive(Default)]
struct Sub {
    conn: Option<usize>,
    connect_at: Time,
    /// The channels that it has subscribed to, and since when their messages arrive.
    asked: BTreeMap<Vec<u8>, Option<Instant>>,
    was_live: bool,
    is_closed: bool,
}

pub(super) struct Client {
    pub(super) kernel: Arc<Kernel>,
    messages: Messages,
    engine: Commands,
    engine_todo: VecDeque<Todo>,
    /// The engine's pipelines to the peers, and the commands that wait until they are sent again.
    pipes: Vec<Pipe>,
    paused: Vec<(Time, (u64, Time, Command), Again)>,
    /// The node of the cluster that has the keys, as far as the client knows; it has learnt that
    /// just now.
    node: Peer,
    has_moved: bool,
    /// The machine was suspended, and the engine has not run since.
    was_suspended: bool,
    pub(super) callers: Vec<Caller>,
    subs: Vec<Sub>,
    sub_mail: VecDeque<(Member, Down)>,
    sub_todo: VecDeque<Todo>,
    /// The channels that somebody waits for, with their names.
    wanted: BTreeMap<Vec<u8>, (Name, u64)>,
    pub(super) is_alive: bool,
    pub(super) stopped: BTreeMap<Option<Actor>, Time>,
    locks: BTreeMap<(u64, u8), Arc<dyn Primitive>>,
    pub(super) learnt: Vec<Learnt>,
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
    /// A digest of all steps, if they are traced.
    pub(super) steps: u64,
}

pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) now: Time,
    heap: BinaryHeap<Reverse<(Time, u64, Event)>>,
    serial: u64,
    conns: Vec<Conn>,
    pub(super) clients: Vec<Client>,
    pub(super) servers: Vec<Server>,
    net: Rng,
    sched: Rng,
    pub(super) log: VecDeque<String>,
    pub(super) is_traced: bool,
    pub(super) leases: Vec<Registered>,
    pub(super) sets: Vec<RegisteredSet>,
    pub(super) newest: BTreeMap<Vec<u8>, u64>,
    pub(super) idle_since: BTreeMap<Vec<u8>, Time>,
    /// The keys of which a server has had data.
    pub(super) keys: Vec<Vec<u8>>,
    /// A server has lost data while leases lasted: what the guide excludes is not checked from
    /// then on.
    pub(super) lost_leases: bool,
    /// A server has lost its counters: the order of tokens is not checked from then on.
    pub(super) lost_tokens: bool,
    /// A server has old data again: its keys may belong to nobody.
    pub(super) has_old_data: bool,
    pub(super) report: Report,
    foreign: u64,
    /// The names that the clients have used.
    pub(super) names: BTreeSet<Name>,
    /// The ids whose acquiring command a proxy has run twice, and no reply has arrived. If the undo
    /// ran in between, nobody knows what the second run took: for one ttl, the lock is taken.
    pub(super) ran_twice: BTreeSet<String>,
    /// The ids that a server had when its clock was set back.
    pub(super) outlasts: BTreeSet<String>,
    /// The serial number and the end of the sleep of each actor.
    timers: BTreeMap<(usize, Actor), (u64, Time)>,
    pub(super) clocks: Vec<Clock>,
    /// The ids of leases that may have ended on a server without their clients: those in its keys
    /// when its clock stepped ahead, or when somebody deleted the key.
    pub(super) over: BTreeSet<String>,
    /// The leases that were released by force: at which servers, and when last.
    pub(super) forced: BTreeMap<String, (BTreeSet<Member>, Time)>,
}

/// The state of a client's pipelines: of one server, none.
pub(super) struct Links {
    pub(super) links: Vec<Link>,
    /// How often the names of the members had to be compared.
    pub(super) ran_twice: AtomicU32,
}

impl Route for Links {
    fn joins_renewals(&self) -> bool {
        self.links.is_empty()
    }
}

impl Members for Links {
    fn link(&self, server: Member, _: Instant) -> Link {
        self.links.get(server).copied().unwrap_or(Link::Up)
    }

    fn ran_twice(&self, _: &Arc<dyn Primitive>) {
        self.ran_twice.fetch_add(1, Ordering::Relaxed);
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
                // get too late refuses the others. A call alone gives up. Over a quorum
                // no single link keeps a call from its end.
                if self.plan.is_quorum() || self.calls() < 2 || !self.mend_links() {
                    self.dump();
                    return Err(self.violation("P10", "a call hangs".into()));
                }
                begin = self.now;
            }
            if self.report.events > 1_000_000 * (1 + self.plan.servers as u64) {
                self.dump();
                return Err(self.violation("P10", "too many events".into()));
            }
        }
        self.report.commands = self.servers.iter().map(|it| it.ran).sum();
        self.report.plain = self.servers.iter().map(|it| it.plain).sum();
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
        let goes_on = |it: &&Caller| {
            matches!(
                it.state,
                State::Waiting { .. } | State::Parked(_) | State::Set(_)
            )
        };
        callers.filter(goes_on).count()
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
            let line = format!("{:>12.3} {}", (self.now - START) as f64 / 1000.0, text());
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

    /// Returns the peer to which a client sends what is for a server.
    fn peer_of(&self, client: usize, server: Member) -> Peer {
        if self.plan.is_quorum() {
            server
        } else {
            self.clients[client].node
        }
    }

    /// Returns the server that a peer is, or belongs to.
    fn server_of(&self, peer: Peer) -> Member {
        if self.plan.is_quorum() { peer } else { 0 }
    }

    pub(super) fn stopped_until(&self, client: usize, actor: Actor) -> Time {
        let stopped = &self.clients[client].stopped;
        let of = |key| stopped.get(&key).copied().unwrap_or(0);
        of(None).max(of(Some(actor)))
    }
}

impl Client {
    fn is_done(&self) -> bool {
        let mut callers = self.callers.iter();
        !self.is_alive || callers.all(|it| matches!(it.state, State::Done) && it.todo.is_empty())
    }

    /// Returns the virtual server of its engine.
    pub(super) fn quorum(&self) -> Option<&Quorum> {
        self.engine.quorum()
    }

    pub(super) fn shown_engine(&self) -> String {
        format!("{:?}", self.engine)
    }

    /// Returns how many commands, rounds and releases are left in the engine.
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
        self.steps = self.steps.rotate_left(1) ^ other.steps;
    }
}
