//! The connections of the simulated world, and what arrives on them.

use super::show::{not_replicated, rejected, shown_answer, shown_command, unknown};
use super::{
    Actor, Again, Answer, Cause, Checked, Command, Conn, Down, Event, Family, GOES_ON, MS, Mail,
    Time, Up, VecDeque, Why, World, fault,
};
use crate::kernel::command::{Attempt, What};
use crate::protocol::primitive::Reached;

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
        let late = if self.net.chance(300) {
            self.net.below(3_000 * MS)
        } else {
            500
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

    /// Makes the links fast on which no lease can be had: it ends before its reply arrives. Returns
    /// whether there was one.
    pub(super) fn mend_links(&mut self) -> bool {
        let (conns, ttl) = (self.conns.iter_mut(), self.plan.ttl);
        let slow = conns.filter(|it| it.at_client && it.slow > ttl / 2);
        slow.map(|it| it.slow = 0).count() > 0
    }

    pub(super) fn mark(&self, client: usize) -> Reached {
        if self.clients[client].sub.was_live {
            Reached::WhileListening
        } else {
            Reached::Soon
        }
    }

    pub(super) fn handle(&mut self, event: Event) -> Checked {
        match event {
            Event::Run(client, actor) => {
                if !self.clients[client].is_alive {
                    return Ok(());
                }
                let until = self.stopped_until(client, actor);
                if until > self.now {
                    let hop = self.sched.below(GOES_ON);
                    self.timer(client, actor, until + hop);
                    return Ok(());
                }
                match actor {
                    Actor::Caller(thread) => self.caller(client, thread),
                    Actor::Engine => self.engine(client),
                    Actor::Sub => self.subscriber(client),
                }
            }
            Event::Timer(client, actor, no) => {
                if self
                    .timers
                    .get(&(client, actor))
                    .is_some_and(|it| it.0 == no)
                {
                    self.handle(Event::Run(client, actor))
                } else {
                    Ok(())
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
                is_redirect: true,
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
            is_redirect: false,
            pause: 0,
        };
        (is_engine && self.rejects(Why::NoScript)).then_some(Down::Again(again))
    }

    /// Returns whether a script fails after it has made a place, or granted others.
    fn rejects_half(&self, command: &Command, answer: &Answer) -> bool {
        let has_place = match &command.what {
            What::Acquire { attempt, .. } => {
                matches!((attempt, answer), (Attempt::Enter(_), Answer::Refused(_)))
            }
            What::Refresh { .. } => true,
            _ => false,
        };
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

    pub(super) fn conn_of(&self, client: usize, actor: Actor) -> Option<usize> {
        let client = &self.clients[client];
        match actor {
            Actor::Caller(thread) => client.callers[thread].conn,
            Actor::Engine => client.pipes[client.node].conn,
            Actor::Sub => client.sub.conn,
        }
    }
}
