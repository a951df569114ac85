//! A client and its servers, which answer at once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::cause::Cause;
use crate::clock::Instant;
use crate::config::LeaseTerms;
use crate::kernel::call::{Call, Step};
use crate::kernel::command::{Command, Inbox};
use crate::kernel::effects::{Effects, Told, WholeRenewed};
use crate::kernel::engine::Route;
use crate::kernel::fault::Fault;
use crate::kernel::holder::Holder;
use crate::kernel::operation::Wanted;
use crate::kernel::part::PartTerms;
use crate::kernel::unlock::Unlocked;
use crate::kernel::waiter::CallTerms;
use crate::kernel::waiter::{Outcome, Wait};
use crate::kernel::{Kernel, Limits};
use crate::lease::status::LeaseStatus;
use crate::lost::Lost;
use crate::majority::Majority;
pub(super) use crate::mutant::is_needed;
use crate::name::Name;
use crate::protocol::answer::Answer;
use crate::protocol::keys::Layout;
use crate::protocol::primitive::Reached;
use crate::quorum::Quorum;
use crate::quorum::round::Members;
use crate::runtime::commands::{Commands, End};
use crate::set::acquire::{SetAcquire, SetOutcome, SetStep, SetTerms};
use crate::set::holder::SetUnlock;
use crate::set::lease::SetLease;
use crate::set::names::SetNames;
use crate::set::tries::SetEnd;
use crate::testing::scripted::Scripted;

pub(super) const NAMES: [&str; 3] = ["a", "b", "c"];
pub(super) const TTL: Duration = Duration::from_secs(12);
pub(super) const MS: u64 = 1_000;

pub(super) struct Direct {
    is_quorum: bool,
}

impl Route for Direct {
    fn joins_renewals(&self) -> bool {
        !self.is_quorum
    }
}

impl Members for Direct {}

/// A client, and servers that answer at once.
pub(super) struct Bed {
    pub(super) kernel: Kernel,
    engine: Commands,
    servers: Vec<Scripted>,
    route: Direct,
    /// In µs.
    pub(super) now: u64,
    pub(super) told: Vec<Told>,
    pub(super) renewed: Vec<WholeRenewed>,
    pub(super) max_hold: Duration,
    /// How sets wait, and until when.
    pub(super) wait: Wait,
    pub(super) deadline: Instant,
    pub(super) by_engine: bool,
    pub(super) holder: Holder,
    pub(super) names: Arc<SetNames>,
}

pub(super) fn names_of(names: &[&str], layout: Layout, has_queues: bool) -> Arc<SetNames> {
    let names = names.iter().map(|name| Name::from(*name)).collect();
    SetNames::of(names, "lock:", "r:", layout, has_queues)
}

impl Bed {
    pub(super) fn new() -> Self {
        Self::over(1, names_of(&NAMES, Layout::OneServer, true))
    }

    /// Returns a client of a quorum of three servers.
    pub(super) fn quorum() -> Self {
        Self::over(3, names_of(&NAMES, Layout::OneServer, false))
    }

    /// Returns a client without queues.
    pub(super) fn without_queues() -> Self {
        Self::over(1, names_of(&NAMES, Layout::OneServer, false))
    }

    pub(super) fn over(servers: usize, names: Arc<SetNames>) -> Self {
        let is_quorum = servers > 1;
        let limits = Limits {
            command_timeout: Duration::from_secs(1),
            unreachable_for: Duration::from_secs(10),
            backstop: Duration::from_secs(1),
            may_fail_over: false,
            replies_are_final: !is_quorum,
            engine_sends: is_quorum,
            wall: 0,
        };
        let size = Majority::of(servers);
        let quorum = is_quorum.then(|| Quorum::new(size, limits.command_timeout, 0));
        Self {
            kernel: Kernel::new(limits, "o"),
            engine: Commands::new(quorum),
            servers: (0..servers).map(|_| Scripted::new()).collect(),
            route: Direct { is_quorum },
            now: 100_000 * MS,
            told: Vec::new(),
            renewed: Vec::new(),
            max_hold: Duration::MAX,
            wait: Wait::Once,
            deadline: Instant::NEVER,
            by_engine: false,
            holder: Holder::default(),
            names,
        }
    }

    pub(super) fn at(&self) -> Instant {
        Instant::from_nanos(self.now * 1_000)
    }

    pub(super) fn terms(&self) -> LeaseTerms {
        LeaseTerms {
            ttl: TTL,
            renew_every: Some(TTL / 3),
            max_hold: self.max_hold,
            replicas: None,
            handoffs: 0,
            linger: Duration::ZERO,
        }
    }

    pub(super) fn set(&self) -> SetAcquire {
        let wants = SetTerms {
            names: Arc::clone(&self.names),
            terms: self.terms(),
            wait: self.wait.clone(),
            deadline: self.deadline,
            holder: self.holder.clone(),
            by_engine: self.by_engine,
            side_by_side: self.servers.len() > 1,
        };
        SetAcquire::new(wants, self.at())
    }

    pub(super) fn run(&mut self, command: &Command) -> Result<Answer, Fault> {
        self.run_at(0, command)
    }

    fn run_at(&mut self, server: usize, command: &Command) -> Result<Answer, Fault> {
        let inbox = Inbox {
            channel: Vec::new(),
            reached: Reached::WhileListening,
        };
        let (server, now) = (&mut self.servers[server], self.now);
        Ok(command.with_call(&inbox, |call| {
            let reply = server.run(&call, now).expect("no error");
            call.verb.read(reply).expect("a reply of the script")
        }))
    }

    pub(super) fn run_all(&mut self, commands: &[Command]) -> Vec<Result<Answer, Fault>> {
        commands.iter().map(|command| self.run(command)).collect()
    }

    pub(super) fn server(&self, words: &[&str]) -> Option<String> {
        self.server_at(0, words)
    }

    pub(super) fn server_at(&self, server: usize, words: &[&str]) -> Option<String> {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        match self.servers[server]
            .command(&words, self.now)
            .expect("no error")
        {
            crate::protocol::reply::Reply::Text(text) => String::from_utf8(text).ok(),
            _ => None,
        }
    }

    /// Returns which of the names are taken.
    pub(super) fn taken(&self) -> Vec<&'static str> {
        let is_taken = |name: &&str| self.server(&["GET", &format!("lock:{name}")]).is_some();
        NAMES.into_iter().filter(is_taken).collect()
    }

    pub(super) fn carry_out(&mut self, fx: Effects) {
        self.told.extend(fx.lost);
        self.renewed.extend(fx.wholes_renewed);
        let mut over = VecDeque::from(fx.over);
        while let Some(part) = over.pop_front() {
            let mut fx = Effects::default();
            self.kernel.give_up(part, self.at(), &mut fx);
            self.told.extend(fx.lost);
            over.extend(fx.over);
        }
    }

    /// The engine takes its turn after `ms`. Its commands are answered at once.
    pub(super) fn turn(&mut self, ms: u64) {
        self.turn_but(ms, &|_| false);
    }

    /// The same, but the commands for some names get no answer.
    pub(super) fn turn_but(&mut self, ms: u64, hangs: &dyn Fn(&str) -> bool) {
        self.now += ms * MS;
        self.look(self.at(), hangs);
        // The engine releases a lease that was given up in its next turn, a moment later.
        self.look(self.at().after(Duration::from_millis(1)), hangs);
    }

    fn look(&mut self, now: Instant, hangs: &dyn Fn(&str) -> bool) {
        let mut fx = Effects::default();
        let out = self.engine.due(&self.kernel, now, &self.route, &mut fx);
        let mut out = VecDeque::from(out);
        while let Some(next) = out.pop_front() {
            if hangs(&next.command.lock.to_string()) {
                continue;
            }
            let end = self.run_at(next.server, &next.command);
            let (kernel, engine) = (&self.kernel, &mut self.engine);
            let ended = End {
                no: next.no,
                end,
                sent: now,
                link: 0,
            };
            let more = engine.ended(kernel, ended, now, &self.route, &mut fx);
            out.extend(more);
        }
        self.carry_out(fx);
    }

    /// Begins a set, and runs its commands.
    pub(super) fn first_step(&mut self) -> (SetAcquire, SetStep) {
        let (mut set, mut fx) = (self.set(), Effects::default());
        let now = self.at();
        let step = set.begin(&self.kernel, now, &mut fx);
        let SetStep::Send(commands, _) = step else {
            return (set, step);
        };
        let ends = self.run_all(&commands);
        let step = set.replied(ends, [now, self.at()], &self.kernel, &mut fx);
        assert!(set.take_undos().is_empty());
        self.carry_out(fx);
        (set, step)
    }

    /// Acquires all names, which are free.
    pub(super) fn held(&mut self) -> Arc<SetLease> {
        match self.first_step().1 {
            SetStep::Done(SetOutcome::Held(lease)) => lease,
            step => panic!("{step:?}"),
        }
    }

    pub(super) fn status(&mut self, lease: &SetLease) -> LeaseStatus {
        let mut fx = Effects::default();
        let status = lease.status(Duration::ZERO, &self.kernel, self.at(), &mut fx);
        self.carry_out(fx);
        status
    }

    pub(super) fn begin_unlock(&mut self, lease: &SetLease) -> Vec<Command> {
        let mut fx = Effects::default();
        let unlock = lease.begin_unlock(&self.kernel, self.at(), &mut fx);
        self.carry_out(fx);
        match unlock {
            SetUnlock::Send(commands) => commands,
            unlock => panic!("{unlock:?}"),
        }
    }

    pub(super) fn unlock(&mut self, lease: &SetLease) -> Unlocked {
        let commands = self.begin_unlock(lease);
        let ends = self.run_all(&commands);
        let mut fx = Effects::default();
        let ends = ends.into_iter().map(SetEnd::of);
        let unlocked = lease.unlocked(&commands, ends.collect(), &self.kernel, self.at(), &mut fx);
        self.carry_out(fx);
        unlocked
    }

    /// Begins and returns a call for the first name, as a part of a set that has no other one yet.
    pub(super) fn part_call(&self, lease: &Arc<SetLease>, by_engine: bool) -> Call {
        let wants = CallTerms {
            lock: Arc::clone(&self.names.at_once()[0]),
            terms: self.terms(),
            wait: Wait::Once,
            deadline: self.deadline,
            holder: Holder::default(),
            by_engine,
        };
        let part = lease.part(0);
        Call::new(&self.kernel, wants, self.at()).of_part(PartTerms {
            part,
            after: None,
            signal: None,
            competes: false,
        })
    }

    /// Acquires the first name as a part of a set, by the thread of its call.
    pub(super) fn first_part(&mut self, lease: &Arc<SetLease>) {
        let (mut call, mut fx) = (self.part_call(lease, false), Effects::default());
        let now = self.at();
        let Step::Send(command, _) = call.begin(&self.kernel, now, &mut fx) else {
            panic!("it sends its command");
        };
        let end = self.run(&command);
        match call.replied(&self.kernel, end, now, self.at(), &mut fx) {
            Step::Done(Outcome::Lease(part, token)) => lease.add(0, (part, token)),
            step => panic!("{step:?}"),
        }
        self.carry_out(fx);
    }

    /// Returns the lease of a set of the first `parts` names, which its call must have in `ms`.
    pub(super) fn built_by(&self, ms: u64, parts: usize) -> Arc<SetLease> {
        let names = names_of(&NAMES[..parts], Layout::OneServer, true);
        SetLease::new(&names, self.at().after(Duration::from_millis(ms)))
    }

    /// Does what the thread of a call does, until it sleeps or the call is done.
    pub(super) fn go_on(
        &mut self,
        mut set: SetAcquire,
        mut step: SetStep,
    ) -> (SetAcquire, SetStep) {
        loop {
            let mut fx = Effects::default();
            let now = self.at();
            step = match step {
                SetStep::Send(commands, _) => {
                    let ends = self.run_all(&commands);
                    set.replied(ends, [now; 2], &self.kernel, &mut fx)
                }
                SetStep::GiveBack(commands, _) => {
                    let ends = self.run_all(&commands);
                    set.gave_back(ends, &self.kernel, now, &mut fx)
                }
                step => return (set, step),
            };
            self.carry_out(fx);
        }
    }

    /// The thread of a call wakes.
    pub(super) fn wake(&mut self, mut set: SetAcquire) -> (SetAcquire, SetStep) {
        let mut fx = Effects::default();
        let step = set.woken(&self.kernel, self.at(), &mut fx);
        self.carry_out(fx);
        self.go_on(set, step)
    }

    /// The engine, and then the thread of the call, take turns, a step of `ms` each.
    pub(super) fn turns(
        &mut self,
        mut set: SetAcquire,
        count: u32,
        ms: u64,
    ) -> (SetAcquire, SetStep) {
        let mut step = SetStep::Park(Instant::NEVER);
        for _ in 0..count {
            self.turn(ms);
            (set, step) = self.wake(set);
            if let SetStep::Done(_) = step {
                break;
            }
        }
        (set, step)
    }

    /// Returns the length of the queue of a name.
    pub(super) fn queue(&self, name: &str) -> i64 {
        let key = format!("leasehold:queue:{{lock:{name}}}");
        let words: [&[u8]; 2] = [b"LLEN", key.as_bytes()];
        match self.servers[0].command(&words, self.now).expect("no error") {
            crate::protocol::reply::Reply::Int(length) => length,
            reply => panic!("{reply:?}"),
        }
    }
}

pub(super) fn held_by(step: SetStep) -> Arc<SetLease> {
    match step {
        SetStep::Done(SetOutcome::Held(lease)) => lease,
        step => panic!("{step:?}"),
    }
}
