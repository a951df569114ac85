//! The connections to the servers of a quorum, what arrives on them, and the faults.

use std::collections::VecDeque;
use std::sync::Arc;

use super::world::{Conn, Down, Event, Up, World, time_at};
use crate::kernel::command::{Command, What};
use crate::kernel::effects::Effects;
use crate::kernel::engine::{Link, ServerNo};
use crate::protocol::primitive::Reached;
use crate::sim::plan::{Actor, Fault, LinkFault, ServerFault};
use crate::sim::server::{Copy, MS, Time};
use crate::sim::world::show::{shown_answer, shown_command};
use crate::sim::world::{Checked, GOES_ON};

/// The script of a command.
fn script(command: &Command) -> &'static str {
    match command.what {
        What::Acquire { .. } => "propose",
        What::Renew { .. } | What::RenewMany { .. } => "renew",
        What::Leave { .. } => "release",
        _ => "undo",
    }
}

impl World {
    pub(super) fn connect(&mut self, client: usize, server: ServerNo, is_sub: bool) -> usize {
        self.conns.push(Conn {
            client,
            server,
            is_sub,
            up: VecDeque::new(),
            down: VecDeque::new(),
            last_up: 0,
            last_down: 0,
            at_server: true,
            at_client: true,
            is_cut: false,
            runs_twice: false,
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
        // What is under way arrives late.
        let late = if self.net.chance(400) {
            self.net.below(2_000 * MS)
        } else {
            0
        };
        if late > 0 {
            let items = self.conns[n].up.len();
            for item in 0..items {
                self.conns[n].up[item].0 += late;
                let at = self.conns[n].up[item].0;
                self.event(at, Event::Up(n));
            }
        }
        self.event(last_up.max(self.now) + late + 500, Event::ServerClosed(n));
    }

    /// The client closes a connection: the server still runs what it has sent.
    pub(super) fn close(&mut self, n: usize) {
        self.conns[n].at_client = false;
        self.conns[n].down.clear();
        let at = self.conns[n].last_up.max(self.now) + 200;
        self.event(at, Event::ServerClosed(n));
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
                if self.timers.get(&(client, actor)) == Some(&no) {
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
            Event::Back(server) => {
                self.back(server);
                Ok(())
            }
        }
    }

    fn arrived_at_server(&mut self, n: usize) {
        let server = self.conns[n].server;
        let member = &self.members[server];
        let stands_until = member.stands_until(self.now);
        if self.now < stands_until {
            self.event(stands_until + 1, Event::Up(n));
            return;
        }
        // Delayed items have an earlier event, too.
        match self.conns[n].up.front() {
            Some((at, _)) if *at <= self.now => {}
            _ => return,
        }
        let Some((_, up)) = self.conns[n]
            .up
            .pop_front()
            .filter(|_| self.conns[n].at_server)
        else {
            return;
        };
        let local = self.local(server);
        if let Up::Command {
            command,
            has_source,
        } = &up
            && std::mem::take(&mut self.conns[n].runs_twice)
            // A copy that runs after the answer NOSCRIPT is a second fault.
            && (*has_source || self.members[server].scripts.contains(script(command)))
        {
            let client = self.conns[n].client;
            self.members[server]
                .server
                .run(client, command, Reached::Soon, local);
            self.say(|| format!("  s{server}: runs it twice: {}", shown_command(command)));
            self.conns[n].up.push_front((self.now, up));
            self.event(self.now, Event::Up(n));
            self.deliver_messages(server);
            return;
        }
        match up {
            Up::Hello => self.send_down(n, Down::Hello),
            Up::Command { .. } if self.now < self.members[server].errors_until => {
                self.send_down(n, Down::Error);
            }
            Up::Command {
                command,
                has_source,
            } => {
                let script = script(&command);
                if !has_source && !self.members[server].scripts.contains(script) {
                    self.send_down(n, Down::NoScript);
                    return;
                }
                self.members[server].scripts.insert(script);
                let client = self.conns[n].client;
                let of = &mut self.members[server].server;
                let answer = of.run(client, &command, Reached::Soon, local);
                self.say(|| {
                    let (command, answer) = (shown_command(&command), shown_answer(&answer));
                    format!("  s{server}: {command} -> {answer}")
                });
                self.send_down(n, Down::Reply(answer));
            }
            Up::Subscribe(channel) => {
                let client = self.conns[n].client;
                (self.members[server].server).subscribe(client, Some(&channel));
                self.send_down(n, Down::Subscribed(channel));
            }
        }
        self.deliver_messages(server);
    }

    fn deliver_messages(&mut self, server: ServerNo) {
        for (client, message) in self.members[server].server.take_messages() {
            if self.now < self.clients[client].loses_until {
                continue;
            }
            let mut conns = (0..self.conns.len()).rev();
            let of_sub = |n: &usize| {
                let conn = &self.conns[*n];
                conn.client == client && conn.server == server && conn.is_sub && conn.at_server
            };
            if let Some(n) = conns.find(of_sub) {
                self.send_down(n, Down::Message(message));
            }
        }
    }

    fn arrived_at_client(&mut self, n: usize) {
        let (client, server, is_sub) = {
            let conn = &self.conns[n];
            (conn.client, conn.server, conn.is_sub)
        };
        let Some((_, down)) = self.conns[n].down.pop_front() else {
            return;
        };
        if !self.conns[n].at_client || !self.clients[client].is_alive {
            return;
        }
        if is_sub {
            self.clients[client].sub_mail.push_back((server, down));
            return self.soon(client, Actor::Sub);
        }
        if self.clients[client].pipes[server].conn == Some(n) {
            self.clients[client].pipes[server].mail.push_back(down);
            self.soon(client, Actor::Engine);
        }
    }

    fn closed(&mut self, n: usize) {
        let (client, server, is_sub) = {
            let conn = &self.conns[n];
            (conn.client, conn.server, conn.is_sub)
        };
        if !std::mem::take(&mut self.conns[n].at_client) {
            return;
        }
        let it = &mut self.clients[client];
        if is_sub && it.subs[server].conn == Some(n) {
            it.subs[server].is_closed = true;
            self.soon(client, Actor::Sub);
        } else if !is_sub && it.pipes[server].conn == Some(n) {
            it.pipes[server].is_closed = true;
            self.soon(client, Actor::Engine);
        }
    }

    fn server_closed(&mut self, n: usize) {
        let server = self.conns[n].server;
        let member = &self.members[server];
        let stands_until = member.stands_until(self.now);
        if self.now < stands_until {
            self.event(stands_until + 2, Event::ServerClosed(n));
            return;
        }
        self.conns[n].at_server = false;
        self.conns[n].up.clear();
        if !self.conns[n].is_sub {
            return;
        }
        let client = self.conns[n].client;
        let mut conns = self.conns.iter();
        let is_live =
            |it: &Conn| it.client == client && it.server == server && it.is_sub && it.at_server;
        if !conns.any(is_live) {
            self.members[server].server.unsubscribe(client);
        }
        // At the latest, the client notices by its probe.
        self.event(self.now + 2_000 * MS, Event::Closed(n));
    }

    /// A server serves again; its connections are gone, and nothing that was under way runs.
    fn back(&mut self, server: ServerNo) {
        if self.now < self.members[server].down_until {
            return;
        }
        for n in 0..self.conns.len() {
            let conn = &mut self.conns[n];
            if conn.server == server && conn.at_server {
                conn.up.clear();
                conn.at_server = false;
                conn.is_cut = true;
                self.event(self.now + 100, Event::Closed(n));
            }
        }
        let member = &mut self.members[server];
        for client in 0..self.clients.len() {
            member.server.unsubscribe(client);
        }
        member.scripts.clear();
        member.down_until = 0;
    }

    fn fault(&mut self, n: usize) -> Checked {
        let fault = self.plan.faults[n].1.clone();
        self.say(|| format!("FAULT {fault:?}"));
        match fault {
            Fault::Link(client, server, fault) => self.link_fault(client, server, fault),
            Fault::Server(server, fault) => self.server_fault(server, fault),
            Fault::Stop(client, actor, time) => {
                let until = self.now + time;
                let stopped = self.clients[client].stopped.entry(actor).or_default();
                *stopped = (*stopped).max(until);
            }
            Fault::StopNext(client, actor, time) => {
                self.clients[client].stop_next.insert(actor, time);
            }
            Fault::Kill(client) => {
                self.clients[client].is_alive = false;
                for n in 0..self.conns.len() {
                    if self.conns[n].client == client && self.conns[n].at_server {
                        self.cut(n, true);
                        self.conns[n].at_client = false;
                    }
                }
            }
            Fault::Cancel(client, thread) => {
                self.clients[client].callers[thread].is_cancelled = true;
                self.soon(client, Actor::Caller(thread));
            }
            Fault::Shutdown(client) => {
                if self.clients[client].is_alive {
                    let mut fx = Effects::default();
                    let kernel = Arc::clone(&self.clients[client].kernel);
                    kernel.close(time_at(self.now), &mut fx);
                    self.after_kernel(client, &mut fx)?;
                    self.effects(client, fx);
                }
            }
            Fault::LoseMessages(client, time) => {
                self.clients[client].loses_until = self.now + time;
            }
            _ => unreachable!("not of a quorum"),
        }
        Ok(())
    }

    fn link_fault(&mut self, client: usize, server: ServerNo, fault: LinkFault) {
        let it = &self.clients[client];
        let (pipe, sub) = (it.pipes[server].conn, it.subs[server].conn);
        match fault {
            LinkFault::Cut(is_silent) => {
                if let Some(n) = pipe {
                    self.cut(n, is_silent);
                }
            }
            LinkFault::CutSub => {
                if let Some(n) = sub {
                    self.cut(n, false);
                }
            }
            LinkFault::Slow(by) => {
                if let Some(n) = pipe {
                    self.conns[n].slow = by;
                }
            }
            LinkFault::Twice => {
                if let Some(n) = pipe {
                    self.conns[n].runs_twice = true;
                }
            }
        }
    }

    fn server_fault(&mut self, server: ServerNo, fault: ServerFault) {
        let (now, local) = (self.now, self.local(server));
        let longest = self.plan.ttl * 4;
        let member = &mut self.members[server];
        match fault {
            ServerFault::Stall(time) => {
                member.stalled_until = member.stalled_until.max(now + time);
            }
            ServerFault::Hang(time) => {
                member.down_until = member.down_until.max(now + time);
                let back = member.down_until;
                self.event(back, Event::Back(server));
            }
            ServerFault::Errors(time) => {
                member.errors_until = member.errors_until.max(now + time);
            }
            ServerFault::FlushScripts => member.scripts.clear(),
            // It stays away until all leases have ended that it has granted.
            ServerFault::RestartEmpty => {
                member.server.restore(Copy::default(), local);
                member.down_until = member.down_until.max(now + longest);
                self.lost_tokens = true;
                let back = self.members[server].down_until;
                self.event(back, Event::Back(server));
            }
            ServerFault::Forget => {
                member.server.restore(Copy::default(), local);
                self.lost_leases = true;
                self.lost_tokens = true;
                self.members[server].down_until = 0;
                self.back(server);
            }
            ServerFault::Foreign(name, time) => {
                self.foreign += 1;
                let holder = format!("foreign{}", self.foreign);
                (member.server).take_foreign(&format!("n{name}"), &holder, time, local);
            }
        }
    }

    /// Returns how many servers a client can use at once.
    pub(super) fn usable(&self, client: usize) -> usize {
        let pipes = self.clients[client].pipes.iter();
        let slowest = (self.plan.ttl / 8).min(50 * MS);
        let is_usable = |pipe: &crate::sim::quorum::world::Pipe| {
            let is_fast = pipe.conn.is_some_and(|n| {
                let conn = &self.conns[n];
                conn.slow <= slowest && !conn.is_cut
            });
            pipe.link == Link::Up && is_fast
        };
        pipes.filter(|pipe| is_usable(pipe)).count()
    }
}
