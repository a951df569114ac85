//! The connections of the simulated world, and what arrives on them.

use super::show::{not_replicated, rejected, shown_answer, shown_command, unknown};
use super::{
    Actor, Again, Cause, Checked, Command, Conn, Down, Event, Family, GOES_ON, MS, Mail, Member,
    Peer, Time, Up, VecDeque, World, fault,
};
use crate::kernel::command::{Attempt, What};
use crate::protocol::answer::Answer;
use crate::protocol::primitive::Reached;
use crate::sim::plan::Why;

/// The latest that what was sent on a connection arrives after its cut: a command without a reply
/// runs within five seconds, or never.
const ARRIVES_WITHIN: Time = 3_000 * MS;

impl World {
    pub(super) fn connect(&mut self, client: usize, actor: Actor, peer: Peer) -> usize {
        self.conns.push(Conn {
            client,
            peer,
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
        // A server that hangs beside one that restarts makes two that are away.
        let may_hang = self.plan.family != Family::Restarts;
        if self.plan.has_faults() && may_hang && self.net.chance(2) {
            return self.net.range(100 * MS, 1_500 * MS);
        }
        self.net.range(40, 200)
    }

    /// Returns a command as it is sent on this connection.
    pub(super) fn up(&self, n: usize, command: Command, replies: bool) -> Up {
        Up::Command {
            command,
            mark: self.mark(n),
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
        let share = if self.plan.is_quorum() { 400 } else { 300 };
        let late = if self.net.chance(share) {
            self.net.below(3_000 * MS)
        } else {
            500
        };
        let mut closes_at = last_up.max(self.now) + late;
        if self.plan.is_quorum() {
            // Commands that are under way arrive that much later.
            let latest = self.now + ARRIVES_WITHIN;
            for (at, _) in &mut self.conns[n].up {
                *at = (*at).max(latest.min(*at + late));
                closes_at = closes_at.max(*at + 500);
            }
        }
        self.event(closes_at, Event::ServerClosed(n));
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

    fn mark(&self, n: usize) -> Reached {
        let server = self.server_of(self.conns[n].peer);
        if self.clients[self.conns[n].client].subs[server].was_live {
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
            Event::Back(server) => {
                self.back(server);
                Ok(())
            }
        }
    }

    pub(super) fn arrived_at_server(&mut self, n: usize) {
        let server = self.server_of(self.conns[n].peer);
        let stands_until = self.servers[server].stands_until(self.now);
        if self.now < stands_until {
            self.event(stands_until, Event::Up(n));
            return;
        }
        // A command that was under way when its connection was cut arrives later.
        if let Some((at, _)) = self.conns[n].up.front()
            && *at > self.now
        {
            let at = *at;
            self.event(at, Event::Up(n));
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
        let up = match self.runs_twice(n, server, up) {
            Some(up) => up,
            None => return,
        };
        match up {
            Up::Hello => self.send_down(n, Down::Hello),
            Up::Subscribe(channel) => {
                self.servers[server].subscribe(client, channel.as_deref());
                self.send_down(n, Down::Subscribed(channel));
            }
            up => self.runs(n, server, up),
        }
        self.deliver_messages(server);
    }

    /// A proxy runs a command twice: returns it unless the second time is later.
    fn runs_twice(&mut self, n: usize, server: Member, up: Up) -> Option<Up> {
        let Up::Command {
            command,
            mark,
            has_source,
            ..
        } = &up
        else {
            return Some(up);
        };
        // A copy that runs after the answer NOSCRIPT would be a second fault.
        let may_run = *has_source || self.servers[server].knows_script(command);
        if !may_run || !std::mem::take(&mut self.conns[n].runs_twice) {
            return Some(up);
        }
        let client = self.conns[n].client;
        self.servers[server].run(client, command, *mark, self.now);
        self.say(|| format!("  s{server}: runs it twice: {}", shown_command(command)));
        let again = if self.plan.is_quorum() {
            // At once: no undo runs in between.
            self.now
        } else {
            if let Some(id) = command.acquires() {
                self.ran_twice.insert(id.as_str().to_owned());
            }
            self.now + self.net.range(100, 100 * MS)
        };
        self.conns[n].up.push_front((self.now, up));
        self.event(again, Event::Up(n));
        self.deliver_messages(server);
        None
    }

    /// A server runs a command, or refuses it.
    fn runs(&mut self, n: usize, server: Member, up: Up) {
        let client = self.conns[n].client;
        let Up::Command {
            command,
            mark,
            replies,
            has_source,
            is_asking,
        } = up
        else {
            unreachable!("called for a command");
        };
        let rejected = (self.redirects(n, is_asking))
            .or_else(|| self.rejects_unrun(n, server, &command, has_source));
        let has_errors = self.now < self.servers[server].errors_until;
        if let Some(down) = Some(Down::Error).filter(|_| has_errors).or(rejected) {
            self.say(|| format!("  s{server}: {} -> {down:?}", shown_command(&command)));
            if replies {
                self.send_down(n, down);
            }
            return;
        }
        let it = &mut self.servers[server];
        it.learn_script(&command);
        let answer = it.run(client, &command, mark, self.now);
        self.say(|| {
            let (command, answer) = (shown_command(&command), shown_answer(&answer));
            format!("  s{server}: {command} -> {answer}")
        });
        let has_replicas = command.replicas.is_some();
        if replies && self.rejects_half(server, &command, &answer) {
            self.send_down(n, Down::Rejected);
        } else if replies && has_replicas && self.plan.has_faults() && self.net.chance(100) {
            self.send_down(n, Down::NotReplicated);
        } else if replies {
            self.send_down(n, Down::Reply(answer));
        }
    }

    /// Returns the redirect of a command by a node that does not have the keys, or not for long.
    fn redirects(&mut self, n: usize, is_asking: bool) -> Option<Down> {
        if self.plan.is_quorum() {
            return None;
        }
        let (node, cluster) = (self.conns[n].peer, &mut self.servers[0]);
        if (1..=self.now).contains(&cluster.moves_until) {
            (cluster.owner, cluster.moves_until) = (1 - cluster.owner, 0);
        }
        let (owner, is_moving) = (cluster.owner, cluster.moves_until > 0);
        let again = |peer, is_asking, pause| {
            Some(Down::Again(Again {
                peer,
                is_asking,
                is_redirect: true,
                pause,
            }))
        };
        match node == owner {
            true if is_moving && self.net.chance(300) => again(1 - node, true, 0),
            // Half of the keys are at the other node.
            true if is_moving && self.net.chance(400) => again(node, false, 10 * MS),
            true => None,
            false if is_moving && is_asking => None,
            false => again(owner, false, 0),
        }
    }

    /// Returns the error reply to a command that does not run, if there is one.
    fn rejects_unrun(
        &self,
        n: usize,
        server: Member,
        command: &Command,
        has_source: bool,
    ) -> Option<Down> {
        let it = &self.servers[server];
        let is_full = it.rejects(Why::Full, self.now) && command.acquires().is_some();
        if is_full || it.rejects(Why::NoRight, self.now) {
            return Some(Down::Rejected);
        }
        // A thread of the program sends its command again by itself.
        let is_awaited = match self.conns[n].actor {
            Actor::Engine => true,
            Actor::Caller(thread) => {
                (self.clients[self.conns[n].client].callers[thread].batch).is_some()
            }
            Actor::Sub => false,
        };
        let is_engine = is_awaited && !has_source;
        let again = Again {
            peer: self.conns[n].peer,
            is_asking: false,
            is_redirect: false,
            pause: 0,
        };
        let is_unknown = it.rejects(Why::NoScript, self.now) || !it.knows_script(command);
        (is_engine && is_unknown).then_some(Down::Again(again))
    }

    /// Returns whether a script fails after it has made a place, or granted others.
    fn rejects_half(&self, server: Member, command: &Command, answer: &Answer) -> bool {
        let has_place = match &command.what {
            What::Acquire { attempt, .. } => {
                matches!((attempt, answer), (Attempt::Enter(_), Answer::Refused(_)))
            }
            What::Refresh { .. } => true,
            _ => false,
        };
        has_place && self.servers[server].rejects(Why::Half, self.now)
    }

    pub(super) fn deliver_messages(&mut self, server: Member) {
        for (client, message) in self.servers[server].take_messages() {
            let is_lost = self.plan.family == Family::ShortTtl && self.net.chance(30);
            if is_lost || self.now < self.clients[client].loses_until {
                continue;
            }
            let mut conns = (0..self.conns.len()).rev();
            let of_sub = |n: &usize| {
                let conn = &self.conns[*n];
                let is_live = conn.actor == Actor::Sub && conn.at_server;
                is_live && conn.client == client && self.server_of(conn.peer) == server
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
        if let Down::Again(again) = down {
            self.note_redirect(client, n, again);
        }
        let (now, server) = (self.now, self.server_of(self.conns[n].peer));
        let it = &mut self.clients[client];
        match actor {
            Actor::Caller(thread) if it.callers[thread].batch.is_some() => {
                let batch = it.callers[thread].batch.as_mut();
                batch.expect("it has one").replied(Mail::of(down), now);
            }
            Actor::Caller(thread) => match Mail::of(down) {
                Mail::End(end) => it.callers[thread].mail = Some(end),
                Mail::Again(again) => it.callers[thread].again = Some((now + again.pause, again)),
                Mail::Hello => unreachable!("a caller's connection has no handshake"),
            },
            Actor::Engine => {
                let mail = Mail::of(down);
                let mut pipes = it.pipes.iter_mut();
                if let Some(pipe) = pipes.find(|pipe| pipe.conn == Some(n)) {
                    pipe.mail.push_back(mail);
                }
            }
            Actor::Sub => it.sub_mail.push_back((server, down)),
        }
        self.soon(client, actor);
    }

    /// The client learns which node has the keys.
    fn note_redirect(&mut self, client: usize, n: usize, again: Again) {
        let it = &mut self.clients[client];
        let is_other = again.is_redirect && again.peer != self.conns[n].peer;
        if !again.is_asking && is_other && it.node != again.peer {
            (it.node, it.has_moved) = (again.peer, true);
            self.soon(client, Actor::Engine);
        }
    }

    pub(super) fn closed(&mut self, n: usize) {
        let (client, actor) = (self.conns[n].client, self.conns[n].actor);
        let server = self.server_of(self.conns[n].peer);
        if !std::mem::take(&mut self.conns[n].at_client) {
            return;
        }
        let it = &mut self.clients[client];
        match actor {
            Actor::Caller(thread) if it.callers[thread].conn == Some(n) => {
                it.callers[thread].conn = None;
                if let Some(batch) = &mut it.callers[thread].batch {
                    batch.cut(self.conns[n].unwritten);
                    self.soon(client, actor);
                    return;
                }
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
            Actor::Sub if it.subs[server].conn == Some(n) => it.subs[server].is_closed = true,
            _ => return,
        }
        self.soon(client, actor);
    }

    pub(super) fn server_closed(&mut self, n: usize) {
        let server = self.server_of(self.conns[n].peer);
        let stands_until = self.servers[server].stands_until(self.now);
        if self.now < stands_until {
            self.event(stands_until + 1, Event::ServerClosed(n));
            return;
        }
        self.conns[n].at_server = false;
        self.conns[n].up.clear();
        let client = self.conns[n].client;
        if self.conns[n].actor != Actor::Sub {
            return;
        }
        let is_its = |it: &&Conn| it.client == client && self.server_of(it.peer) == server;
        let mut conns = self.conns.iter().filter(is_its);
        if !conns.any(|it| it.actor == Actor::Sub && it.at_server) {
            self.servers[server].unsubscribe(client);
        }
        // At the latest, the client notices by its probe.
        self.event(self.now + 2_000 * MS, Event::Closed(n));
    }

    /// Returns the connection of an actor to a server.
    pub(super) fn conn_of(&self, client: usize, actor: Actor, server: Member) -> Option<usize> {
        let peer = self.peer_of(client, server);
        let client = &self.clients[client];
        match actor {
            Actor::Caller(thread) => client.callers[thread].conn,
            Actor::Engine => client.pipes[peer].conn,
            Actor::Sub => client.subs[server].conn,
        }
    }
}

impl Mail {
    fn of(down: Down) -> Self {
        match down {
            Down::NotReplicated => Self::End(Err(not_replicated())),
            Down::Rejected => Self::End(Err(rejected())),
            Down::Error => Self::End(Err(unknown())),
            Down::Reply(answer) => Self::End(Ok(answer)),
            Down::Again(again) => Self::Again(again),
            Down::Hello => Self::Hello,
            Down::Message(_) | Down::Subscribed(_) => unreachable!("{down:?} is for a subscriber"),
        }
    }
}
