//! The connections of the simulated world, what arrives on them, and the faults.

use super::acquiring::Acquiring;
use super::show::{not_replicated, rejected, shown_answer, shown_command, unknown};
use super::{
    Actor, Again, Answer, Arc, Call, Cause, Checked, Command, Conn, Copy, Down, Effects, Event,
    Family, Fault, HeldLease, MS, Mail, NEVER, Outcome, State, Step, Time, Todo, Up, VecDeque, Why,
    World, fault,
};
use crate::kernel::command::What;
use crate::protocol::primitive::{Primitive, Reached};

impl World {
    pub(super) fn connect(&mut self, client: usize, actor: Actor) -> usize {
        self.conns.push(Conn {
            client,
            node: self.clients[client].node,
            actor,
            up: VecDeque::new(),
            down: VecDeque::new(),
            last_up: 0,
            last_down: 0,
            at_server: true,
            at_client: true,
            is_cut: false,
            unwritten: 0,
            runs_twice: false,
            slow: 0,
        });
        self.conns.len() - 1
    }

    pub(super) fn delay(&mut self) -> Time {
        if self.plan.has_faults() && self.net.chance(10) {
            return self.net.range(MS, 20 * MS);
        }
        if self.plan.has_faults() && self.net.chance(2) {
            return self.net.range(100 * MS, 1_500 * MS);
        }
        self.net.range(40, 200)
    }

    pub(super) fn up(&self, client: usize, command: Command, replies: bool) -> Up {
        Up::Command {
            command,
            mark: self.mark(client),
            replies,
            has_source: false,
            is_asking: false,
        }
    }

    pub(super) fn send(&mut self, n: usize, up: Up) {
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

    pub(super) fn send_down(&mut self, n: usize, down: Down) {
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
    pub(super) fn cut(&mut self, n: usize, is_silent: bool) {
        let up = self.net.below(self.conns[n].up.len() as u64 + 1) as usize;
        let down = self.net.below(self.conns[n].down.len() as u64 + 1) as usize;
        let is_noticed = self.plan.family == Family::Rejections && self.net.chance(500);
        let conn = &mut self.conns[n];
        let cut_off = conn.up.drain(up..);
        let commands = cut_off.filter(|(_, up)| matches!(up, Up::Command { replies: true, .. }));
        let commands = commands.count();
        conn.unwritten = if is_noticed { commands } else { 0 };
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
    pub(super) fn close(&mut self, n: usize) {
        self.conns[n].at_client = false;
        self.conns[n].down.clear();
        let at = self.conns[n].last_up.max(self.now) + 200;
        self.event(at, Event::ServerClosed(n));
    }

    pub(super) fn mark(&self, client: usize) -> Reached {
        match self.clients[client].sub.was_live {
            true => Reached::WhileListening,
            false => Reached::Soon,
        }
    }

    /// Returns whether an id is in a command that is under way, or about to be written.
    pub(in crate::kernel::sim) fn is_under_way(&self, client: usize, id: &str) -> bool {
        let names = |command: &Command| match &command.what {
            crate::kernel::command::What::Undo { ids } => ids.iter().any(|it| it.as_str() == id),
            crate::kernel::command::What::Leave { id: it, .. } => it.as_str() == id,
            _ => command.acquires().is_some_and(|it| it.as_str() == id),
        };
        let mut conns = self.conns.iter().filter(|conn| conn.client == client);
        let sent = conns.any(|conn| {
            conn.up.iter().any(|(_, up)| match up {
                Up::Command { command, .. } => names(command),
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
    pub(in crate::kernel::sim) fn has_guard(&self, client: usize, id: &str) -> bool {
        self.clients[client].callers.iter().any(|caller| {
            let lease = match &caller.state {
                State::Holding { lease, .. } | State::Operating { lease, .. } => Some(lease),
                State::Releasing(release) => Some(&release.lease),
                _ => None,
            };
            let asks = match &caller.state {
                State::Waiting { call, .. } => call.call().asks_as() == Some(id) || call.keeps(id),
                State::Parked(call) => call.keeps(id),
                _ => false,
            };
            if asks {
                return true;
            }
            let mut given = caller.todo.iter().filter_map(|todo| match todo {
                Todo::Step(Step::Done(Outcome::Lease(lease, _))) => Some(lease),
                _ => None,
            });
            lease
                .into_iter()
                .chain(&mut given)
                .any(|it| it.id.as_str() == id)
        })
    }

    /// Returns the call of each parked thread.
    pub(in crate::kernel::sim) fn parked(&self, client: usize) -> impl Iterator<Item = &Call> {
        self.parked_threads(client).map(|(_, call)| call)
    }

    /// Returns the threads that wait outside of a queue, and for which name.
    pub(in crate::kernel::sim) fn watched(
        &self,
        client: usize,
    ) -> Vec<(usize, Arc<dyn Primitive>)> {
        let callers = self.clients[client].callers.iter().enumerate();
        let watched = callers.filter_map(|(thread, caller)| match &caller.state {
            State::Parked(call) => match &**call {
                Acquiring::Set(set) => Some((thread, Arc::clone(set.watched_lock()?))),
                Acquiring::One(_) => None,
            },
            _ => None,
        });
        watched.collect()
    }

    /// Returns the leases of threads that have not read that the release has ended.
    pub(in crate::kernel::sim) fn ended_unread(
        &self,
        client: usize,
    ) -> impl Iterator<Item = &Arc<HeldLease>> {
        let callers = self.clients[client].callers.iter();
        callers.filter_map(|caller| match &caller.state {
            State::Operating { lease, .. } if !lease.is_open() => Some(lease),
            _ => None,
        })
    }

    /// Returns the parked threads, with their calls.
    pub(in crate::kernel::sim) fn parked_threads(
        &self,
        client: usize,
    ) -> impl Iterator<Item = (usize, &Call)> {
        let callers = self.clients[client].callers.iter().enumerate();
        callers.filter_map(|(thread, caller)| match &caller.state {
            State::Parked(call) => Some((thread, call.call())),
            _ => None,
        })
    }

    pub(in crate::kernel::sim) fn engine_is_slower_than(&self, client: usize, time: Time) -> bool {
        let pipes = self.clients[client].pipes.iter();
        let mut conns = pipes.filter_map(|pipe| pipe.conn);
        conns.any(|n| self.conns[n].slow > time)
    }

    pub(super) fn handle(&mut self, event: Event) -> Checked {
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
                match self
                    .timers
                    .get(&(client, actor))
                    .is_some_and(|it| it.0 == no)
                {
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

    pub(super) fn arrived_at_server(&mut self, n: usize) {
        if self.now < self.stalled_until {
            self.event(self.stalled_until, Event::Up(n));
            return;
        }
        let Some((_, up)) = self.conns[n]
            .up
            .pop_front()
            .filter(|_| self.conns[n].at_server)
        else {
            return;
        };
        let client = self.conns[n].client;
        if let Up::Command { command, mark, .. } = &up
            && std::mem::take(&mut self.conns[n].runs_twice)
        {
            let now = self.server_now();
            self.server.run(client, command, *mark, now);
            if let Some(id) = command.acquires() {
                self.ran_twice.insert(id.as_str().to_owned());
            }
            self.say(|| format!("  server: runs it twice: {}", shown_command(command)));
            let again = self.now + self.net.range(100, 100 * MS);
            self.conns[n].up.push_front((again, up));
            self.event(again, Event::Up(n));
            self.deliver_messages();
            return;
        }
        let rejected = match &up {
            Up::Command {
                command,
                has_source,
                is_asking,
                ..
            } => (self.redirects(n, *is_asking))
                .or_else(|| self.rejects_unrun(n, command, *has_source)),
            Up::Subscribe(_) => None,
        };
        match up {
            Up::Command { replies, .. } if self.now < self.errors_until => {
                if replies {
                    self.send_down(n, Down::Error);
                }
            }
            Up::Command {
                command, replies, ..
            } if rejected.is_some() => {
                self.say(|| format!("  server: {} -> {rejected:?}", shown_command(&command)));
                if let Some(down) = rejected.filter(|_| replies) {
                    self.send_down(n, down);
                }
            }
            Up::Command {
                command,
                mark,
                replies,
                ..
            } => {
                let now = self.server_now();
                let answer = self.server.run(client, &command, mark, now);
                self.say(|| {
                    format!(
                        "  server: {} -> {}",
                        shown_command(&command),
                        shown_answer(&answer)
                    )
                });
                let has_replicas = command.replicas.is_some();
                if replies && self.rejects_half(&command, &answer) {
                    self.send_down(n, Down::Rejected);
                } else if replies && has_replicas && self.plan.has_faults() && self.net.chance(100)
                {
                    self.send_down(n, Down::NotReplicated);
                } else if replies {
                    self.send_down(n, Down::Reply(answer));
                }
            }
            Up::Subscribe(channel) => {
                self.server.subscribe(client, channel.as_deref());
                self.send_down(n, Down::Subscribed(channel));
            }
        }
        self.deliver_messages();
    }

    /// Returns the redirect of a command by a node that does not have the keys, or not for long.
    fn redirects(&mut self, n: usize, is_asking: bool) -> Option<Down> {
        if (1..=self.now).contains(&self.moves_until) {
            (self.owner, self.moves_until) = (1 - self.owner, 0);
        }
        let node = self.conns[n].node;
        let is_moving = self.moves_until > 0;
        let again = |node, is_asking, pause| {
            Some(Down::Again(Again {
                node,
                is_asking,
                pause,
            }))
        };
        match node == self.owner {
            true if is_moving && self.net.chance(300) => again(1 - node, true, 0),
            // Half of the keys are at the other node.
            true if is_moving && self.net.chance(400) => again(node, false, 10 * MS),
            true => None,
            false if is_moving && is_asking => None,
            false => again(self.owner, false, 0),
        }
    }

    fn rejects(&self, why: Why) -> bool {
        let mut rejects = self.rejects.iter();
        rejects.any(|(it, until)| *it == why && self.now < *until)
    }

    /// Returns the error reply to a command that does not run, if there is one.
    fn rejects_unrun(&self, n: usize, command: &Command, has_source: bool) -> Option<Down> {
        let is_full = self.rejects(Why::Full) && command.acquires().is_some();
        if is_full || self.rejects(Why::NoRight) {
            return Some(Down::Rejected);
        }
        // A thread of the program sends its command again by itself.
        let is_engine = self.conns[n].actor == Actor::Engine && !has_source;
        let again = Again {
            node: self.conns[n].node,
            is_asking: false,
            pause: 0,
        };
        (is_engine && self.rejects(Why::NoScript)).then_some(Down::Again(again))
    }

    /// Returns whether a script fails after it has made a place, or granted others.
    fn rejects_half(&self, command: &Command, answer: &Answer) -> bool {
        let has_place = matches!(
            (&command.what, answer),
            (What::Enter { place: Some(_), .. }, Answer::Refused(_)) | (What::Refresh { .. }, _)
        );
        has_place && self.rejects(Why::Half)
    }

    pub(super) fn deliver_messages(&mut self) {
        for (client, message) in self.server.take_messages() {
            let is_lost = self.plan.family == Family::ShortTtl && self.net.chance(30);
            if is_lost || self.now < self.clients[client].loses_until {
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

    pub(super) fn arrived_at_client(&mut self, n: usize) {
        let (client, actor) = (self.conns[n].client, self.conns[n].actor);
        let Some((_, down)) = self.conns[n].down.pop_front() else {
            return;
        };
        if !self.conns[n].at_client || !self.clients[client].is_alive {
            return;
        }
        match (actor, down) {
            (Actor::Caller(thread), Down::NotReplicated) => {
                self.clients[client].callers[thread].mail = Some(Err(not_replicated()));
            }
            (Actor::Caller(thread), Down::Rejected) => {
                self.clients[client].callers[thread].mail = Some(Err(rejected()));
            }
            (Actor::Caller(thread), Down::Again(again)) => {
                self.note_redirect(client, n, again);
                let at = self.now + again.pause;
                self.clients[client].callers[thread].again = Some((at, again));
            }
            (Actor::Engine, down) => {
                let end = match down {
                    Down::NotReplicated => Mail::End(Err(not_replicated())),
                    Down::Rejected => Mail::End(Err(rejected())),
                    Down::Error => Mail::End(Err(unknown())),
                    Down::Reply(answer) => Mail::End(Ok(answer)),
                    Down::Again(again) => {
                        self.note_redirect(client, n, again);
                        Mail::Again(again)
                    }
                    Down::Message(_) | Down::Subscribed(_) => unreachable!("{down:?}"),
                };
                let mut pipes = self.clients[client].pipes.iter_mut();
                if let Some(pipe) = pipes.find(|pipe| pipe.conn == Some(n)) {
                    pipe.mail.push_back(end);
                }
            }
            (Actor::Caller(thread), Down::Error) => {
                self.clients[client].callers[thread].mail = Some(Err(unknown()));
            }
            (Actor::Caller(thread), Down::Reply(answer)) => {
                self.clients[client].callers[thread].mail = Some(Ok(answer));
            }
            (Actor::Sub, down) => self.clients[client].sub.mail.push_back(down),
            (_, down) => unreachable!("{down:?}"),
        }
        self.soon(client, actor);
    }

    /// The client learns which node has the keys.
    fn note_redirect(&mut self, client: usize, n: usize, again: Again) {
        let it = &mut self.clients[client];
        if !again.is_asking && again.node != self.conns[n].node && it.node != again.node {
            (it.node, it.has_moved) = (again.node, true);
            self.soon(client, Actor::Engine);
        }
    }

    pub(super) fn closed(&mut self, n: usize) {
        let (client, actor) = (self.conns[n].client, self.conns[n].actor);
        if !std::mem::take(&mut self.conns[n].at_client) {
            return;
        }
        let it = &mut self.clients[client];
        match actor {
            Actor::Caller(thread) if it.callers[thread].conn == Some(n) => {
                it.callers[thread].conn = None;
                let fault = match self.conns[n].unwritten {
                    0 => unknown(),
                    _ => fault::Fault::NotRun(Cause::text("half of it was written")),
                };
                it.callers[thread].mail.get_or_insert(Err(fault));
            }
            Actor::Engine => {
                let mut pipes = it.pipes.iter_mut();
                match pipes.find(|pipe| pipe.conn == Some(n)) {
                    Some(pipe) => pipe.is_closed = true,
                    None => return,
                }
            }
            Actor::Sub if it.sub.conn == Some(n) => it.sub.is_closed = true,
            _ => return,
        }
        self.soon(client, actor);
    }

    pub(super) fn server_closed(&mut self, n: usize) {
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
            self.server.unsubscribe(client);
        }
        // At the latest, the client notices by its probe.
        self.event(self.now + 2_000 * MS, Event::Closed(n));
    }

    pub(super) fn fault(&mut self, n: usize) -> Checked {
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
            Fault::Twice(client, actor) => {
                if let Some(n) = self.conn_of(client, actor) {
                    self.conns[n].runs_twice = true;
                }
            }
            Fault::Stop(client, actor, time) => {
                let until = self.now + time;
                let stopped = self.clients[client].stopped.entry(actor).or_default();
                *stopped = (*stopped).max(until);
            }
            Fault::Suspend(client, time) => self.suspend(client, time),
            Fault::Ahead(time) => {
                self.over.extend(self.server.ids());
                let leases = self.leases.iter();
                let held = leases.map(|it| it.lease.id.as_str().to_owned());
                self.over.extend(held);
                self.server_ahead += time as i64;
            }
            Fault::Back(time) => self.server_ahead -= time as i64,
            Fault::Kill(client) => self.kill(client),
            Fault::Cancel(client, thread) => {
                self.clients[client].callers[thread].is_cancelled = true;
                self.soon(client, Actor::Caller(thread));
            }
            Fault::Panic(client, thread) => {
                self.clients[client].callers[thread].panics = true;
                self.soon(client, Actor::Caller(thread));
            }
            Fault::Shutdown(client) => {
                if self.clients[client].is_alive {
                    let mut fx = Effects::default();
                    let kernel = Arc::clone(&self.clients[client].kernel);
                    kernel.close(self.clocks[client].at(self.now), &mut fx);
                    self.after_kernel(client, &mut fx)?;
                    self.effects(client, None, fx);
                }
            }
            Fault::Errors(time) => self.errors_until = self.errors_until.max(self.now + time),
            Fault::Stall(time) => self.stalled_until = self.stalled_until.max(self.now + time),
            Fault::StopNext(client, actor, time) => {
                self.clients[client].stop_next.insert(actor, time);
            }
            Fault::LoseMessages(client, time) => {
                self.clients[client].loses_until = self.now + time;
            }
            Fault::Move(time) => {
                self.moves_until = self.moves_until.max(self.now + time);
            }
            Fault::Reject(why, time) => self.rejects.push((why, self.now + time)),
            Fault::Foreign(name, time) => self.take_foreign(name, time),
            Fault::Delete(name) => {
                let now = self.server_now();
                let ids = self.server.delete(&format!("n{name}"), now);
                self.over.extend(ids);
            }
            Fault::Link(..) | Fault::Server(..) => unreachable!("of a quorum"),
            Fault::Snapshot => self.snapshot = Some(self.server.copy()),
            Fault::Failover | Fault::RestartEmpty => {
                let copy = self
                    .snapshot
                    .take()
                    .filter(|_| matches!(fault, Fault::Failover));
                self.fail_over(copy.unwrap_or_default())?;
            }
        }
        Ok(())
    }

    pub(super) fn conn_of(&self, client: usize, actor: Actor) -> Option<usize> {
        let client = &self.clients[client];
        match actor {
            Actor::Caller(thread) => client.callers[thread].conn,
            Actor::Engine => client.pipes[client.node].conn,
            Actor::Sub => client.sub.conn,
        }
    }

    /// The machine stands still, and its sleeps last longer by that.
    fn suspend(&mut self, client: usize, time: Time) {
        let until = self.now + time;
        if self.clients[client].resumed > self.now {
            return;
        }
        let sleeps = self
            .timers
            .range((client, Actor::Caller(0))..=(client, Actor::Sub));
        let sleeps = sleeps.map(|((_, actor), (_, at))| (*actor, *at));
        let sleeps: Vec<_> = sleeps
            .filter(|(_, at)| (self.now..NEVER).contains(at))
            .collect();
        for (actor, at) in sleeps {
            // The timer of a thread that stands still is not a sleep.
            if at > self.stopped_until(client, actor) {
                self.timer(client, actor, at + time);
            }
        }
        let it = &mut self.clients[client];
        let stopped = it.stopped.entry(None).or_default();
        *stopped = (*stopped).max(until);
        it.resumed = until;
    }

    fn take_foreign(&mut self, name: u64, time: Time) {
        self.foreign += 1;
        let (name, holder) = (format!("n{name}"), format!("foreign{}", self.foreign));
        let now = self.server_now();
        self.server.take_foreign(&name, &holder, time, now);
    }

    pub(super) fn kill(&mut self, client: usize) {
        self.clients[client].is_alive = false;
        for n in 0..self.conns.len() {
            if self.conns[n].client == client && self.conns[n].at_server {
                self.cut(n, true);
                self.conns[n].at_client = false;
            }
        }
    }

    pub(super) fn fail_over(&mut self, copy: Copy) -> Checked {
        let now = self.server_now();
        self.server.restore(copy, now);
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
                kernel.moved(&|_| true, self.clocks[client].at(self.now), &mut fx);
                self.after_kernel(client, &mut fx)?;
                self.effects(client, None, fx);
            }
        }
        Ok(())
    }
}
