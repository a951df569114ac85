//! The engine of a simulated client: its turns, and its pipelines to the servers.

use super::show::{shown_command, shown_end, unknown};
use super::{
    Actor, Again, Answer, Arc, COMMAND_TIMEOUT, Cause, Checked, Command, Duration, Effects, Family,
    ForServer, Link, Links, MS, Mail, Member, NEVER, Peer, Pipe, Time, Todo, Up, World, fault,
};
use crate::holder_id::HolderId;
use crate::kernel::command::What;
use crate::runtime::commands;
use std::sync::atomic::AtomicU32;

/// The end of a command of the engine.
struct End {
    no: u64,
    sent: Time,
    /// Unless it was not written.
    command: Option<Command>,
    server: Member,
    end: Result<Answer, fault::Fault>,
    /// The number of the pipeline's last connection.
    link: u64,
}

/// A command of the engine that was sent.
type Sent = (u64, Time, Command);

impl World {
    pub(super) fn engine(&mut self, client: usize) -> Checked {
        if let Some(todo) = self.clients[client].engine_todo.pop_front() {
            match todo {
                Todo::Effects(fx) => self.effects(client, Some(Actor::Engine), fx)?,
                Todo::GiveUp(it) => self.give_up(client, Some(Actor::Engine), it)?,
                Todo::Write(out, decided) => self.write_engine(client, out, decided),
                Todo::Sleep => {
                    self.engine_sleeps(client);
                    return Ok(());
                }
                Todo::Step(_) | Todo::SetStep(_) | Todo::Undo(_) | Todo::Close => {
                    unreachable!("of a caller")
                }
            }
            self.go_on(client, Actor::Engine);
            return Ok(());
        }
        let kernel = Arc::clone(&self.clients[client].kernel);
        kernel.engine_awake();
        let mut fx = Effects::default();
        let it = &mut self.clients[client];
        for (member, id) in it.messages.take_deleted() {
            it.engine.deleted(member, &id);
        }
        self.engine_replies(client, &mut fx);
        if self.plan.is_quorum() {
            for server in 0..self.plan.servers {
                self.dial(client, server);
            }
        }
        let route = self.links(client);
        let now = self.clocks[client].at(self.now);
        if std::mem::take(&mut self.clients[client].was_suspended) {
            kernel.wake_parked(now, &mut fx);
        }
        if std::mem::take(&mut self.clients[client].has_moved) {
            kernel.moved(&|_| true, now, &mut fx);
        }
        let wall = self.clocks[client].wall_at_start(self.now);
        kernel.look_at_wall_clock(wall, now, &mut fx);
        let out = self.clients[client]
            .engine
            .due(&kernel, now, &route, &mut fx);
        let next = kernel.shared.schedule.lock().next();
        if next <= now {
            return Err(self.violation("P11", format!("c{client}: due but not done: {next:?}")));
        }
        self.after_kernel(client, &mut fx)?;
        let todo = &mut self.clients[client].engine_todo;
        // The commands that follow from a vote are sent with the rest.
        let sends = !out.is_empty() || self.plan.is_quorum() && !todo.is_empty();
        todo.push_back(Todo::Effects(fx));
        let decided = self.now;
        todo.extend(out.into_iter().map(|out| Todo::Write(out, decided)));
        todo.push_back(Todo::Sleep);
        if sends {
            self.stop_if_due(client, Actor::Engine);
        }
        self.go_on(client, Actor::Engine);
        Ok(())
    }

    /// Returns what the engine of a client knows of its servers.
    fn links(&self, client: usize) -> Links {
        let is_quorum = self.plan.is_quorum();
        let pipes = self.clients[client].pipes.iter().filter(|_| is_quorum);
        Links {
            links: pipes.map(|pipe| pipe.link).collect(),
            ran_twice: AtomicU32::new(0),
        }
    }

    /// Applies what has arrived from the servers, and the ends of connections.
    fn engine_replies(&mut self, client: usize, fx: &mut Effects) {
        let now = self.now;
        let mut ends: Vec<End> = Vec::new();
        let mut again = Vec::new();
        let paused = &mut self.clients[client].paused;
        for (_, command, to) in paused.extract_if(.., |(at, ..)| *at <= now) {
            again.push((command, Again { pause: 0, ..to }));
        }
        let peers = self.clients[client].pipes.len();
        for peer in 0..peers {
            let server = self.server_of(peer);
            let pipe = &mut self.clients[client].pipes[peer];
            while let Some(mail) = pipe.mail.pop_front() {
                match mail {
                    Mail::Hello => {
                        (pipe.link, pipe.connect_by, pipe.pause) = (Link::Up, NEVER, 100 * MS);
                    }
                    Mail::End(end) => {
                        let (no, sent, command) = pipe.answered();
                        ends.push(End {
                            no,
                            sent,
                            command: Some(command),
                            server,
                            end,
                            link: pipe.links,
                        });
                    }
                    Mail::Again(to) => again.push((pipe.answered(), to)),
                }
            }
        }
        for (command, to) in again {
            self.send_again(client, command, to, &mut ends);
        }
        for peer in 0..peers {
            self.end_of_pipe(client, peer, &mut ends);
        }
        let route = self.links(client);
        for end in ends {
            self.end(client, end, &route, fx);
        }
    }

    /// Applies the end of a command; what follows from it is sent later.
    fn end(&mut self, client: usize, end: End, route: &Links, fx: &mut Effects) {
        let End {
            no,
            sent,
            command,
            server,
            end,
            link,
        } = end;
        if let Some(command) = command {
            let names = &command.lock.keys().names;
            let id = command.acquires().map(HolderId::as_str);
            if matches!(command.what, What::Acquire { .. } | What::Refresh { .. }) {
                self.note_reply(client, server, (names, id), &end, sent);
            }
            if let Some(id) = id.filter(|id| end.is_ok() && !self.is_releasing(client, id)) {
                self.ran_twice.remove(id);
            }
        }
        self.say(|| format!("c{client} engine: command {no} {}", shown_end(&end)));
        let now = self.now;
        let clock = &self.clocks[client];
        let (sent, at) = (clock.at(sent), clock.at(now));
        let it = &mut self.clients[client];
        let kernel = Arc::clone(&it.kernel);
        let ended = commands::End {
            no,
            end,
            sent,
            link,
        };
        let more = it.engine.ended(&kernel, ended, at, route, fx);
        it.engine_todo
            .extend(more.into_iter().map(|out| Todo::Write(out, now)));
    }

    /// A command has not run: it is sent again, at once or after a pause, if somebody wants it.
    fn send_again(
        &mut self,
        client: usize,
        (no, sent, command): Sent,
        to: Again,
        ends: &mut Vec<End>,
    ) {
        let now = self.now;
        let it = &self.clients[client];
        // As the nodes of a cluster redirect one lease and not the other.
        let follows = !(to.is_redirect && matches!(command.what, What::RenewMany { .. }));
        let conn = it.pipes[to.peer].conn;
        let may_resend = follows
            && (conn.is_some() || !self.plan.is_quorum())
            && (it.engine).may_resend(&it.kernel, no, self.clocks[client].at(now));
        if !may_resend || sent + COMMAND_TIMEOUT <= now {
            let cause = Cause::text("not sent again");
            ends.push(End {
                no,
                sent,
                command: None,
                server: self.server_of(to.peer),
                end: Err(fault::Fault::NotRun(cause)),
                link: 0,
            });
            return;
        }
        if to.pause > 0 {
            let at = now + to.pause;
            let paused = &mut self.clients[client].paused;
            paused.push((at, (no, sent, command), to));
            return;
        }
        self.say(|| format!("c{client} engine sends {no} again: {to:?}"));
        let n = conn.unwrap_or_else(|| self.connect(client, Actor::Engine, to.peer));
        let up = self.up(n, command.clone(), true).again(to);
        let pipe = &mut self.clients[client].pipes[to.peer];
        (pipe.conn, pipe.link) = (Some(n), Link::Up);
        pipe.sent.push_back((no, sent, command));
        self.send(n, up);
    }

    /// Ends the commands of a pipeline whose connection is lost or silent, and those that were not
    /// written.
    fn end_of_pipe(&mut self, client: usize, peer: Peer, ends: &mut Vec<End>) {
        let (now, server) = (self.now, self.server_of(peer));
        // The engine connects to a quorum before it has something to send.
        let pause = if self.plan.is_quorum() { 0 } else { 2 * MS };
        let pipe = &mut self.clients[client].pipes[peer];
        let oldest = pipe.sent.iter().map(|(_, sent, _)| *sent).min();
        let is_late = oldest.is_some_and(|sent| sent + COMMAND_TIMEOUT <= now);
        if is_late || std::mem::take(&mut pipe.is_closed) || now >= pipe.connect_by {
            let unwritten = pipe.conn.map_or(0, |n| self.conns[n].unwritten);
            let written = pipe.sent.len().saturating_sub(unwritten);
            for (at, (no, sent, command)) in pipe.sent.drain(..).enumerate() {
                let fault = if at < written {
                    unknown()
                } else {
                    fault::Fault::NotRun(Cause::text("half of it was written"))
                };
                ends.push(End {
                    no,
                    sent,
                    command: Some(command),
                    server,
                    end: Err(fault),
                    link: 0,
                });
            }
            pipe.lose(is_late, now, pause);
            let link = pipe.link;
            if let Some(n) = pipe.conn.take() {
                self.close(n);
            }
            self.say(|| format!("c{client} s{server} is {link:?}"));
        }
        let pipe = &mut self.clients[client].pipes[peer];
        for (no, sent) in pipe.unsent.drain(..) {
            let fault = fault::Fault::NotRun(Cause::text("connecting"));
            ends.push(End {
                no,
                sent,
                command: None,
                server,
                end: Err(fault),
                link: 0,
            });
        }
    }

    /// Makes the connection of a pipeline: over a quorum, before it is used, and with a handshake.
    fn dial(&mut self, client: usize, peer: Peer) {
        let pipe = &self.clients[client].pipes[peer];
        if pipe.conn.is_some() || self.now < pipe.connect_at {
            return;
        }
        let n = self.connect(client, Actor::Engine, peer);
        let pipe = &mut self.clients[client].pipes[peer];
        pipe.conn = Some(n);
        pipe.links += 1;
        if self.plan.is_quorum() {
            pipe.connect_by = self.now + COMMAND_TIMEOUT;
            self.send(n, Up::Hello);
        } else {
            pipe.link = Link::Up;
        }
    }

    pub(super) fn write_engine(&mut self, client: usize, out: ForServer, decided: Time) {
        let now = self.now;
        // The thread stood still: a command whose time is over is not sent.
        let is_over = now >= decided + COMMAND_TIMEOUT;
        let peer = self.peer_of(client, out.server);
        if !self.plan.is_quorum() && !is_over {
            self.dial(client, peer);
        }
        self.say(|| {
            let (no, command) = (out.no, shown_command(&out.command));
            format!("c{client} engine sends {no} to s{peer}: {command}")
        });
        let pipe = &mut self.clients[client].pipes[peer];
        match pipe.conn.filter(|_| !is_over && pipe.link == Link::Up) {
            Some(n) => {
                pipe.sent.push_back((out.no, now, out.command.clone()));
                let up = self.up(n, out.command, true);
                self.send(n, up);
            }
            None => pipe.unsent.push((out.no, now)),
        }
    }

    pub(super) fn engine_sleeps(&mut self, client: usize) {
        let it = &self.clients[client];
        let until = it
            .kernel
            .engine_sleeps(self.clocks[client].at(self.now), Duration::from_secs(1));
        let sent = it.pipes.iter().flat_map(|pipe| &pipe.sent);
        let oldest = sent.map(|(_, sent, _)| *sent).min();
        let oldest = oldest.map_or(NEVER, |sent| sent + COMMAND_TIMEOUT);
        let paused = it.paused.iter().map(|(at, ..)| *at).min();
        let dials = it.pipes.iter().filter(|_| self.plan.is_quorum());
        let dials = dials.take(self.plan.servers).map(Pipe::next).min();
        let next = [paused, dials].into_iter().flatten().min();
        let oldest = oldest.min(next.unwrap_or(NEVER));
        let has_news =
            |pipe: &Pipe| !pipe.mail.is_empty() || pipe.is_closed || !pipe.unsent.is_empty();
        let has_work = it.has_moved || it.pipes.iter().any(has_news);
        let until = if has_work {
            self.now
        } else {
            self.clocks[client].time_of(until).min(oldest)
        };
        if until < NEVER {
            // As ppoll: never earlier.
            self.timer(client, Actor::Engine, until + 1);
        }
    }
}

impl Pipe {
    /// Takes the command to which a reply has come.
    fn answered(&mut self) -> Sent {
        let first = self.sent.pop_front();
        first.expect("each reply is that of a command, in their order")
    }

    /// Its connection has ended; `is_late` if a command got no reply in time. The next one is made
    /// after a pause, a longer one if the handshake failed.
    fn lose(&mut self, is_late: bool, now: Time, pause: Time) {
        let was_up = self.link == Link::Up;
        self.link = if was_up && !is_late {
            Link::Connecting
        } else {
            Link::Down
        };
        self.connect_at = now + pause;
        if self.connect_by < NEVER {
            self.connect_at = now + self.pause;
            self.pause = (self.pause * 2).min(4_000 * MS);
        }
        self.connect_by = NEVER;
    }

    /// Returns when its connection is made, or its handshake is given up.
    fn next(&self) -> Time {
        match self.conn {
            Some(_) => self.connect_by,
            None => self.connect_at,
        }
    }
}
