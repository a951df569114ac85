//! The engine and the subscriber of a simulated client of a quorum.

use std::sync::Arc;
use std::time::Duration;

use super::world::{Down, Todo, Up, World, time_at, time_of};
use crate::error::Cause;
use crate::kernel::effects::Effects;
use crate::kernel::engine::{Link, Outgoing, ServerNo, Ticket};
use crate::kernel::fault::Fault;
use crate::protocol::answer::Answer;
use crate::sim::plan::Actor;
use crate::sim::server::{MS, Message, Time};
use crate::sim::world::show::{shown_command, shown_end, unknown};
use crate::sim::world::{COMMAND_TIMEOUT, Checked, NEVER};

type End = Result<Answer, Fault>;

impl World {
    pub(super) fn engine(&mut self, client: usize) -> Checked {
        if let Some(todo) = self.clients[client].engine_todo.pop_front() {
            match todo {
                Todo::Effects(fx) => self.effects(client, fx),
                Todo::Write(out, decided) => self.write_engine(client, out, decided),
                Todo::Sleep => {
                    self.engine_sleeps(client);
                    return Ok(());
                }
                Todo::Step(_) => unreachable!("of a caller"),
            }
            self.go_on(client, Actor::Engine);
            return Ok(());
        }
        let kernel = Arc::clone(&self.clients[client].kernel);
        kernel.engine_awake();
        let mut fx = Effects::default();
        let mut out = Vec::new();
        for server in 0..self.plan.servers {
            self.engine_replies(client, server, &mut out, &mut fx);
            self.dial(client, server);
        }
        let route = self.clients[client].links();
        let now = time_at(self.now);
        let engine = &mut self.clients[client].engine;
        out.extend(engine.due(&kernel, now, &route, &mut fx));
        let next = kernel.schedule.lock().next();
        if next <= now {
            return Err(self.violation("P11", format!("c{client}: due but not done: {next:?}")));
        }
        self.after_kernel(client, &mut fx)?;
        let todo = &mut self.clients[client].engine_todo;
        todo.push_back(Todo::Effects(fx));
        let sends = !out.is_empty();
        let decided = self.now;
        todo.extend(out.into_iter().map(|out| Todo::Write(out, decided)));
        todo.push_back(Todo::Sleep);
        if sends {
            self.stop_if_due(client, Actor::Engine);
        }
        self.go_on(client, Actor::Engine);
        Ok(())
    }

    /// Applies what has arrived from a server, and the end of its connection.
    fn engine_replies(
        &mut self,
        client: usize,
        server: ServerNo,
        out: &mut Vec<Outgoing>,
        fx: &mut Effects,
    ) {
        let now = self.now;
        while let Some(down) = self.clients[client].pipes[server].mail.pop_front() {
            let end = match down {
                Down::Hello => {
                    let pipe = &mut self.clients[client].pipes[server];
                    (pipe.link, pipe.dial_by, pipe.pause) = (Link::Up, NEVER, 100 * MS);
                    self.say(|| format!("c{client} s{server} is up"));
                    continue;
                }
                Down::NoScript => {
                    self.resend(client, server, out, fx);
                    continue;
                }
                Down::Reply(answer) => Ok(answer),
                Down::Error => Err(unknown()),
                Down::Message(_) | Down::Subscribed(_) => unreachable!("not on this connection"),
            };
            let pipe = &mut self.clients[client].pipes[server];
            let (ticket, sent, command) = pipe.sent.pop_front().expect("a reply to a command");
            self.note_reply(client, server, &command, &end, sent);
            self.end(client, (ticket, sent), end, out, fx);
        }
        let pipe = &mut self.clients[client].pipes[server];
        let oldest = pipe.sent.front().map(|(_, sent, _)| *sent);
        let is_late = oldest.is_some_and(|sent| sent + COMMAND_TIMEOUT <= now);
        let is_closed = std::mem::take(&mut pipe.is_closed);
        if is_late || is_closed || now >= pipe.dial_by {
            let was_up = pipe.link == Link::Up;
            pipe.link = if was_up && !is_late {
                Link::Connecting
            } else {
                Link::Down
            };
            (pipe.dial_at, pipe.dial_by) = (now, NEVER);
            if !was_up {
                pipe.dial_at = now + pipe.pause;
                pipe.pause = (pipe.pause * 2).min(4_000 * MS);
            }
            let link = pipe.link;
            let ended: Vec<_> = pipe.sent.drain(..).collect();
            if let Some(n) = pipe.conn.take() {
                self.close(n);
            }
            self.say(|| format!("c{client} s{server} is {link:?}"));
            for (ticket, sent, _) in ended {
                self.end(client, (ticket, sent), Err(unknown()), out, fx);
            }
        }
        let unsent: Vec<_> = self.clients[client].pipes[server]
            .unsent
            .drain(..)
            .collect();
        for ticket in unsent {
            let end = Err(Fault::NotRun(Cause::text("connecting")));
            self.end(client, ticket, end, out, fx);
        }
    }

    fn end(
        &mut self,
        client: usize,
        (ticket, sent): (Ticket, Time),
        end: End,
        out: &mut Vec<Outgoing>,
        fx: &mut Effects,
    ) {
        self.say(|| format!("c{client} engine: ticket {ticket} {}", shown_end(&end)));
        let now = time_at(self.now);
        let it = &mut self.clients[client];
        let kernel = Arc::clone(&it.kernel);
        let route = it.links();
        let times = [time_at(sent), now];
        out.extend(it.engine.ended(&kernel, ticket, end, times, &route, fx));
    }

    /// The server does not know the script: the command is sent again with its text, or has not
    /// run.
    fn resend(
        &mut self,
        client: usize,
        server: ServerNo,
        out: &mut Vec<Outgoing>,
        fx: &mut Effects,
    ) {
        let now = self.now;
        let it = &mut self.clients[client];
        let kernel = Arc::clone(&it.kernel);
        let front = it.pipes[server].sent.pop_front();
        let (ticket, sent, command) = front.expect("a reply to a command");
        if !it.engine.may_resend(&kernel, ticket, time_at(now)) {
            let end = Err(Fault::NotRun(Cause::text("no script")));
            return self.end(client, (ticket, sent), end, out, fx);
        }
        self.say(|| format!("c{client} engine sends {ticket} again"));
        let pipe = &mut self.clients[client].pipes[server];
        pipe.sent
            .push_back((ticket, sent.max(now), command.clone()));
        if let Some(n) = pipe.conn {
            let has_source = true;
            self.send(
                n,
                Up::Command {
                    command,
                    has_source,
                },
            );
        }
    }

    fn dial(&mut self, client: usize, server: ServerNo) {
        let pipe = &self.clients[client].pipes[server];
        if pipe.conn.is_some() || self.now < pipe.dial_at {
            return;
        }
        let n = self.connect(client, server, false);
        let pipe = &mut self.clients[client].pipes[server];
        pipe.conn = Some(n);
        pipe.dial_by = self.now + COMMAND_TIMEOUT;
        self.send(n, Up::Hello);
    }

    fn write_engine(&mut self, client: usize, out: Outgoing, decided: Time) {
        let now = self.now;
        let server = out.server;
        self.say(|| {
            let command = shown_command(&out.command);
            format!(
                "c{client} engine sends {} to s{server}: {command}",
                out.ticket
            )
        });
        let pipe = &mut self.clients[client].pipes[server];
        // The thread stood still: a command whose time is over is not sent.
        let is_over = now >= decided + COMMAND_TIMEOUT;
        match pipe.conn.filter(|_| !is_over && pipe.link == Link::Up) {
            Some(n) => {
                pipe.sent.push_back((out.ticket, now, out.command.clone()));
                let up = Up::Command {
                    command: out.command,
                    has_source: false,
                };
                self.send(n, up);
            }
            None => pipe.unsent.push((out.ticket, now)),
        }
    }

    fn engine_sleeps(&mut self, client: usize) {
        let it = &self.clients[client];
        let now = time_at(self.now);
        let until = time_of(it.kernel.engine_sleeps(now, Duration::from_secs(1)));
        let mut until = until;
        for pipe in &it.pipes {
            let oldest = pipe.sent.front();
            let oldest = oldest.map_or(NEVER, |(_, sent, _)| sent + COMMAND_TIMEOUT);
            let dial = match pipe.conn {
                Some(_) => pipe.dial_by,
                None => pipe.dial_at,
            };
            until = until.min(oldest).min(dial);
            if !pipe.mail.is_empty() || pipe.is_closed || !pipe.unsent.is_empty() {
                until = self.now;
            }
        }
        if until < NEVER {
            self.timer(client, Actor::Engine, until + 1);
        }
    }

    pub(super) fn subscriber(&mut self, client: usize) -> Checked {
        if let Some(Todo::Effects(fx)) = self.clients[client].sub_todo.pop_front() {
            self.effects(client, fx);
            self.go_on(client, Actor::Sub);
            return Ok(());
        }
        let kernel = Arc::clone(&self.clients[client].kernel);
        let now = time_at(self.now);
        let mut fx = Effects::default();
        let closed = self.clients[client].subs.iter().position(|it| it.is_closed);
        if let Some(server) = closed {
            let pause = self.net.range(MS, 50 * MS);
            let it = &mut self.clients[client];
            it.sub_mail.retain(|(of, _)| *of != server);
            let sub = &mut it.subs[server];
            sub.is_closed = false;
            sub.asked.clear();
            sub.connect_at = self.now + pause;
            if let Some(n) = sub.conn.take() {
                self.close(n);
            }
            kernel.deaf_at(server, now, &mut fx);
        } else if let Some((server, down)) = self.clients[client].sub_mail.pop_front() {
            let it = &mut self.clients[client];
            match &down {
                Down::Subscribed(channel) => {
                    if let Some(arrives) = it.subs[server].asked.get_mut(channel) {
                        *arrives = true;
                    }
                    if let Some((name, _)) = it.wanted.get(channel) {
                        kernel.listening_at(server, name, now, &mut fx);
                    }
                }
                Down::Message(Message::Released(channel, payload)) => {
                    if let Some((name, _)) = it.wanted.get(channel) {
                        kernel.announced_at(server, name, payload, now, &mut fx);
                    }
                }
                _ => unreachable!("not on this connection"),
            }
            let text = match &down {
                Down::Message(Message::Released(_, id)) => String::from_utf8_lossy(id).into_owned(),
                _ => "subscribed".into(),
            };
            self.say(|| format!("c{client} sub s{server}: {text}"));
        } else {
            self.subscribe(client);
            return Ok(());
        }
        self.after_kernel(client, &mut fx)?;
        self.clients[client].sub_todo.push_back(Todo::Effects(fx));
        self.stop_if_due(client, Actor::Sub);
        self.go_on(client, Actor::Sub);
        Ok(())
    }

    /// Connects to each server if somebody waits, and subscribes to what is wanted.
    fn subscribe(&mut self, client: usize) {
        if self.clients[client].wanted.is_empty() {
            return;
        }
        for server in 0..self.plan.servers {
            let sub = &self.clients[client].subs[server];
            let n = match sub.conn {
                Some(n) => n,
                None if self.now < sub.connect_at => {
                    let at = sub.connect_at;
                    self.event(at, super::world::Event::Run(client, Actor::Sub));
                    continue;
                }
                None => {
                    let n = self.connect(client, server, true);
                    self.clients[client].subs[server].conn = Some(n);
                    n
                }
            };
            let it = &mut self.clients[client];
            let sub = &mut it.subs[server];
            sub.asked
                .retain(|channel, _| it.wanted.contains_key(channel));
            let new = it.wanted.keys().filter(|it| !sub.asked.contains_key(*it));
            let new: Vec<Vec<u8>> = new.cloned().collect();
            for channel in new {
                self.clients[client].subs[server]
                    .asked
                    .insert(channel.clone(), false);
                self.send(n, Up::Subscribe(channel));
            }
        }
    }
}
