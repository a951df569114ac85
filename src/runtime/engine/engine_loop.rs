//! The engine's loop: it drives the kernel's engine, and sends what that wants; it also sends
//! counters, and probes subscribers.
//!
//! ```text
//!            woken, something is due, or a socket is ready
//!   +--------+ ------------------------------------------> +---------+
//!   | asleep |                                             | working |
//!   +--------+ <------------------------------------------ +---------+
//!                nothing more is possible without waiting       | stop, and everything has ended
//!                                                               v
//!                                                           +-------+
//!                                                           | ended |
//!                                                           +-------+
//! ```

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::clock::{Instant, LONGEST_SLEEP, nap, suspended_for, wall_at_start};
use crate::error::Cause;
use crate::kernel::Kernel;
use crate::kernel::command::{Command, What};
use crate::kernel::effects::Effects;
use crate::kernel::engine::Route;
use crate::logging::{self, contain};
use crate::majority::Member;
use crate::protocol::answer::Answer;
use crate::protocol::primitive::Primitive;
use crate::quorum::Quorum;
use crate::quorum::round::{Link, Members, Undecided};
use crate::redis::{Deployment, Fault, LineState, Server};
use crate::runtime::commands::{Commands, End, ForServer};
use crate::runtime::engine::pipes::{Outcome, Pipes};
use crate::runtime::engine::work::{Sending, Work};
use crate::runtime::state::Runtime;

/// How often the subscribers are probed, while any caller waits.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// How long the end of the client waits for replies to the commands of calls, which have ended.
const ASKS_FOR: Duration = Duration::from_secs(1);

/// A suspend that is shorter may delay a call beyond its deadline by as much.
const SHORTEST_SUSPEND: Duration = Duration::from_millis(10);

struct EngineLoop<'a> {
    runtime: &'a Runtime,
    kernel: &'a Kernel,
    commands: Commands,
    pipes: Pipes,
    probe_at: Option<Instant>,
    /// When counters are sent next.
    stats_at: Option<Instant>,
    is_stopping: bool,
    /// For how long the machine had been suspended when the parked calls last read the clock.
    suspended_for: Duration,
    /// When a thread that is to end waits for no reply any more.
    stops_by: Instant,
    /// When the commands of calls end, which nobody waits for: what they take is released.
    asks_until: Option<Instant>,
}

/// What the kernel must know about the servers.
struct Servers<'a> {
    deployment: &'a Deployment,
    pipes: &'a Pipes,
}

impl Route for Servers<'_> {
    fn has_slots(&self) -> bool {
        self.deployment.slot_map().is_some()
    }

    fn joins_renewals(&self) -> bool {
        !self.deployment.is_quorum()
    }
}

impl Members for Servers<'_> {
    fn link(&self, server: Member, wanted_by: Instant) -> Link {
        if !self.deployment.is_quorum() {
            // The parts of a set in several slots are queued as all other commands.
            return Link::Up;
        }
        match self.pipes.want_line(server, wanted_by) {
            LineState::Up => Link::Up,
            LineState::Connecting => Link::Connecting,
            LineState::Down => Link::Down,
        }
    }

    fn not_connected(&self, server: Member) -> Fault {
        if self.deployment.is_quorum() {
            self.pipes.why_down(server)
        } else {
            Fault::NotRun(Cause::text("not connected"))
        }
    }

    fn admit(&self, lock: &Arc<dyn Primitive>) -> Result<(), Fault> {
        let quorum = self.deployment.quorum();
        quorum.map_or(Ok(()), |quorum| quorum.admit(lock))
    }

    fn ran_twice(&self, lock: &Arc<dyn Primitive>) {
        if let Some(quorum) = self.deployment.quorum() {
            quorum.check_names(lock);
        }
    }

    fn undecided(&self, round: &Undecided<'_>) -> Fault {
        match self.deployment.quorum() {
            Some(quorum) => quorum.undecided(round),
            None => round.first_fault(),
        }
    }

    fn round_ended(&self, round: &Undecided<'_>, end: &Result<Answer, Fault>, is_cut_short: bool) {
        if let Some(quorum) = self.deployment.quorum() {
            quorum.round_ended(round, end, is_cut_short);
        }
    }
}

fn servers<'a>(runtime: &'a Runtime, pipes: &'a Pipes) -> Servers<'a> {
    Servers {
        deployment: &runtime.deployment,
        pipes,
    }
}

pub(in crate::runtime) fn run(runtime: &Runtime) {
    run_or_close(runtime, || EngineLoop::new(runtime).run());
}

/// Runs the engine. If it panics, closes the client, and each lease counts as lost: nobody would
/// renew it.
fn run_or_close(runtime: &Runtime, engine: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(engine)).is_err() {
        runtime.close_by(|now, fx| runtime.kernel.engine_died(now, fx));
        logging::error!("the engine of a client has panicked: the client is closed");
    }
    runtime.engine.note_released();
}

/// Also after a panic.
impl Drop for EngineLoop<'_> {
    fn drop(&mut self) {
        let mut fx = Effects::default();
        self.commands.end(&mut fx);
        self.runtime.carry_out_here(fx);
    }
}

impl<'a> EngineLoop<'a> {
    fn new(runtime: &'a Runtime) -> Self {
        let waker = Waker::from(Arc::clone(&runtime.engine.wake));
        let mut pipes = Pipes::new(waker);
        pipes.add_quorum(runtime.deployment.fixed());
        let quorum = runtime.deployment.is_quorum().then(|| {
            let wall = wall_at_start().as_micros() as u64;
            let deployment = &runtime.deployment;
            Quorum::new(deployment.size(), deployment.command_timeout(), wall)
        });
        Self {
            runtime,
            kernel: &runtime.kernel,
            commands: Commands::new(quorum),
            pipes,
            probe_at: None,
            stats_at: runtime.shared_stats.first(),
            is_stopping: false,
            suspended_for: runtime.engine.suspended_for,
            stops_by: Instant::NEVER,
            asks_until: None,
        }
    }

    fn run(mut self) {
        loop {
            self.kernel.engine_awake();
            let now = Instant::now();
            self.note_end(now);
            self.wake_after_suspend(now);
            self.send_due(now);
            self.send_stats(now);
            contain(|| self.probe_subscribers(now));
            self.exchange(now);
            self.note_released();
            if self.is_stopping && self.is_done() && self.may_end(Instant::now()) {
                return self.note_may_exist();
            }
            if now >= self.stops_by {
                self.note_may_exist();
                return self.kernel.end_engine_now();
            }
            self.sleep();
        }
    }

    /// Notes that the client is closed, or that the thread is to end.
    fn note_end(&mut self, now: Instant) {
        if self.runtime.is_closed() {
            self.pipes.end_probing();
        }
        if self.runtime.engine.is_stopping() && !self.is_stopping {
            self.is_stopping = true;
            self.note_may_exist();
            let timeout = self.runtime.deployment.command_timeout();
            self.stops_by = now.after(timeout.saturating_mul(2));
            self.asks_until = Some(now.after(ASKS_FOR));
            self.stats_at = self.stats_at.map(|_| now);
        }
    }

    fn note_may_exist(&self) {
        (self.runtime.engine).note_may_exist(self.commands.may_exist());
    }

    /// The deadlines of parked calls may have passed while their sleeps stood still.
    fn wake_after_suspend(&mut self, now: Instant) {
        let suspended_for = suspended_for();
        if suspended_for > self.suspended_for + SHORTEST_SUSPEND {
            self.suspended_for = suspended_for;
            (self.runtime).decide_here(|kernel, fx| kernel.wake_parked(now, fx));
        }
    }

    fn note_released(&self) {
        let is_closed = self.runtime.engine.is_closed();
        if !is_closed {
            return;
        }
        let has_released = self.kernel.has_released() && self.commands.has_released();
        if has_released && !self.commands.may_acquire() {
            self.runtime.engine.note_released();
        }
    }

    /// Tells losses, and queues the commands that are due.
    fn send_due(&mut self, now: Instant) {
        let mut fx = Effects::default();
        (self.kernel).look_at_wall_clock(wall_at_start(), now, &mut fx);
        let servers = servers(self.runtime, &self.pipes);
        let due = self.commands.due(self.kernel, now, &servers, &mut fx);
        self.runtime.carry_out_here(fx);
        self.send_all(due, now);
    }

    /// Takes note of the keys of this client's leases that others have released: before the replies
    /// that find them gone.
    fn note_deleted(&mut self) {
        if !self.runtime.deployment.is_quorum() {
            return;
        }
        for (member, id) in self.runtime.messages.lock().take_deleted() {
            self.commands.deleted(member, &id);
        }
    }

    fn send_all(&mut self, outgoing: Vec<ForServer>, now: Instant) {
        let mut outgoing = VecDeque::from(outgoing);
        while let Some(ForServer {
            server,
            no,
            command,
        }) = outgoing.pop_front()
        {
            let server = self.runtime.server(server, &command);
            let refused = if is_asking(&command) {
                server.check_one()
            } else {
                Ok(())
            };
            // The open breaker of the server may admit no acquiring command now.
            let refused = refused.and_then(|()| match command.acquires() {
                Some(_) => server
                    .admit()
                    .inspect_err(|_| self.runtime.deployment.suspect()),
                None => Ok(()),
            });
            if let Err(fault) = refused {
                // Its end may give something back, behind the commands that took it.
                let more = self.end(no, &command, Err(fault), now);
                outgoing.extend(more);
                continue;
            }
            let inbox = self.runtime.inbox_at(&server, &command);
            self.push(&server, Work::Lock(no, Box::new(command), inbox), now);
        }
    }

    fn push(&mut self, server: &Arc<Server>, work: Work, now: Instant) {
        let until = now.after(server.command_timeout());
        self.pipes.push(server, Sending::new(work, until));
    }

    /// Writes and reads what is possible, and applies the ends of commands.
    fn exchange(&mut self, now: Instant) {
        let (commands, kernel) = (&self.commands, self.kernel);
        let may_resend = |work: &Work| match work {
            Work::Lock(no, ..) => commands.may_resend(kernel, *no, now),
            _ => true,
        };
        let mut outcomes = self.pipes.turn(self.runtime, now, may_resend);
        if self.asks_until.is_some_and(|until| until <= now) {
            outcomes.extend(self.pipes.end_asking(now));
        }
        if self.runtime.engine.is_closed() {
            // The end waits for no server unless there is something to release.
            outcomes.extend(self.pipes.drop_queued(now, Work::outlives_client));
        }
        if outcomes.is_empty() {
            return;
        }
        count_failures(&outcomes);
        self.note_deleted();
        let now = Instant::now();
        let (mut fx, mut more) = (Effects::default(), Vec::new());
        for outcome in outcomes {
            self.settle(outcome, now, &mut more, &mut fx);
        }
        self.runtime.carry_out_here(fx);
        self.send_all(more, now);
    }

    fn settle(
        &mut self,
        outcome: Outcome,
        now: Instant,
        more: &mut Vec<ForServer>,
        fx: &mut Effects,
    ) {
        let Outcome {
            work,
            server,
            sent,
            end,
            link,
        } = outcome;
        let map = self.runtime.deployment.slot_map();
        let end = end.map_err(|fault| match map {
            Some(map) => fault.at(&map.label_of(&server)),
            None => fault,
        });
        match work {
            Work::Lock(no, command, _) => {
                note_health(self.runtime, &server, &command, &end, now);
                let servers = servers(self.runtime, &self.pipes);
                let ended = End {
                    no,
                    end,
                    sent,
                    link,
                };
                more.extend((self.commands).ended(self.kernel, ended, now, &servers, fx));
            }
            Work::AddStats(delta) => self.runtime.shared_stats.settle(&delta, end),
            Work::ProbeSubscriber(endpoint, begun) => self.runtime.probed(&endpoint, begun, end),
            Work::AskOwner(_) => {}
        }
    }

    /// Ends a command that was not sent. Returns the commands to send then.
    fn end(
        &mut self,
        no: u64,
        command: &Command,
        end: Result<Answer, Fault>,
        now: Instant,
    ) -> Vec<ForServer> {
        debug_assert!(is_asking(command));
        let mut fx = Effects::default();
        let servers = servers(self.runtime, &self.pipes);
        let ended = End {
            no,
            end,
            sent: now,
            link: 0,
        };
        let more = (self.commands).ended(self.kernel, ended, now, &servers, &mut fx);
        self.runtime.carry_out_here(fx);
        more
    }

    fn send_stats(&mut self, now: Instant) {
        if let Some(delta) = (self.runtime).stats_due(&mut self.stats_at, now, self.is_stopping) {
            let server = self.runtime.stats_server();
            self.push(&server, Work::AddStats(delta), now);
        }
    }

    /// Publishes, if that is due, messages that the subscribers must receive within a second.
    fn probe_subscribers(&mut self, now: Instant) {
        if self.runtime.engine.is_probing() {
            self.probe_at.get_or_insert(now);
        }
        if self.runtime.is_closed() {
            // A closed client needs no probe. If one stayed due, the thread would not sleep.
            self.probe_at = None;
        }
        if self.probe_at.is_none_or(|at| at > now) {
            return;
        }
        let engine = &self.runtime.engine;
        let used = || -> Vec<_> {
            let all = self.runtime.endpoints.all().into_iter();
            all.filter_map(|it| it.subscriber.used_by().map(|lock| (it, lock)))
                .collect()
        };
        let mut endpoints = used();
        if endpoints.is_empty() {
            engine.set_probing(false);
            // A caller that found the flag still set is registered as a user by now: check again.
            endpoints = used();
            if endpoints.is_empty() {
                self.probe_at = None;
                return;
            }
            engine.set_probing(true);
        }
        self.probe_at = Some(now.after(PROBE_EVERY));
        // An earlier call may have found no thread left.
        if let Err(error) = self.runtime.start_subscriber() {
            logging::debug!("cannot listen to releases: {error}");
        }
        for (endpoint, lock) in endpoints {
            let server = Arc::clone(&endpoint.server);
            if endpoint.subscriber.begin_probe(&server, now) {
                self.push(&server, Work::ProbeSubscriber(endpoint, now), now);
            }
            if self.runtime.deployment.slot_map().is_some() {
                self.push(&server, Work::AskOwner(lock), now);
            }
        }
    }

    /// Returns whether nothing is under way or due.
    fn is_done(&self) -> bool {
        !self.pipes.is_busy() && self.commands.is_idle()
    }

    /// Returns whether nobody needs the thread any more: no release is due, or waits for its reply.
    fn may_end(&self, now: Instant) -> bool {
        self.commands.has_no_release(now) && self.kernel.end_engine(now)
    }

    /// Sleeps until something is due, a socket is ready, or another thread wakes this one.
    fn sleep(&mut self) {
        let now = Instant::now();
        let until = self.kernel.engine_sleeps(now, LONGEST_SLEEP);
        let other = self.probe_at.into_iter().chain(self.stats_at);
        let other = other.chain(self.asks_until.filter(|until| *until > now));
        let until = other
            .chain([self.pipes.next(), self.stops_by])
            .fold(until, Instant::min);
        let left = (until < Instant::NEVER).then(|| nap(now, until));
        let wake = &self.runtime.engine.wake;
        let (_, ready) = wake.wait(self.pipes.sockets(), left, "engine");
        wake.drain();
        self.pipes.note_ready(ready);
    }
}

/// Returns whether a command asks for a lock, or keeps a place.
fn is_asking(command: &Command) -> bool {
    command.acquires().is_some() || matches!(command.what, What::Refresh { .. })
}

/// Counts the failures of acquiring commands and refreshes towards the breakers, one for each
/// server: one connection that ends fails all of its commands.
fn count_failures(outcomes: &[Outcome]) {
    let mut counted: Vec<&Arc<Server>> = Vec::new();
    for Outcome {
        work, server, end, ..
    } in outcomes
    {
        let (Work::Lock(_, command, _), Err(Fault::Unknown(cause))) = (work, end) else {
            continue;
        };
        if is_asking(command) && !counted.iter().any(|known| Arc::ptr_eq(known, server)) {
            server.failed_by(Some(cause), true);
            counted.push(server);
        }
    }
}

/// Records what a renewal has found of the health of its server.
fn note_health(
    runtime: &Runtime,
    server: &Arc<Server>,
    command: &Command,
    end: &Result<Answer, Fault>,
    now: Instant,
) {
    if !matches!(command.what, What::Renew { .. } | What::RenewMany { .. }) {
        return;
    }
    let endpoint = runtime.endpoints.of(server);
    match end {
        Err(Fault::NotRun(cause) | Fault::Unknown(cause)) => {
            endpoint.renewals.failed(Some(cause), false);
        }
        _ => {
            endpoint.renewals.answered(now);
        }
    }
}
