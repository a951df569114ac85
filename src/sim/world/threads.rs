//! The engine and the subscriber of a simulated client.

use super::show::{shown_command, shown_down, shown_end, unknown};
use super::{
    Actor, Again, Answer, Arc, COMMAND_TIMEOUT, Cause, Checked, Command, Down, Duration, Effects,
    Family, MS, Mail, Message, NEVER, OneServer, Outgoing, Pipe, Ticket, Time, Todo, Up, World,
    fault,
};
use crate::holder_id::HolderId;
use crate::kernel::command::What;

/// The end of a command of the engine.
type End = (Ticket, Time, Result<Answer, fault::Fault>);

impl World {
    pub(super) fn engine(&mut self, client: usize) -> Checked {
        if let Some(todo) = self.clients[client].engine_todo.pop_front() {
            match todo {
                Todo::Effects(fx) => self.effects(client, None, fx),
                Todo::Write(out, decided) => self.write_engine(client, out, decided),
                Todo::Sleep => {
                    self.engine_sleeps(client);
                    return Ok(());
                }
                Todo::Step(_) | Todo::Close => unreachable!("of a caller"),
            }
            self.go_on(client, Actor::Engine);
            return Ok(());
        }
        let kernel = Arc::clone(&self.clients[client].kernel);
        kernel.engine_awake();
        let mut fx = Effects::default();
        self.engine_replies(client, &mut fx);
        let route = self.route();
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

    pub(super) fn route(&self) -> OneServer {
        OneServer {
            may_fail_over: self.plan.family == Family::Failover,
        }
    }

    pub(super) fn engine_replies(&mut self, client: usize, fx: &mut Effects) {
        let now = self.now;
        let mut ends: Vec<End> = Vec::new();
        let mut again = Vec::new();
        let paused = &mut self.clients[client].paused;
        for (_, command, to) in paused.extract_if(.., |(at, ..)| *at <= now) {
            again.push((command, Again { pause: 0, ..to }));
        }
        for pipe in &mut self.clients[client].pipes {
            while let Some(mail) = pipe.mail.pop_front() {
                let command = pipe.sent.pop_front().expect("a reply to a command");
                match mail {
                    Mail::End(end) => ends.push((command.0, command.1, end)),
                    Mail::Again(to) => again.push((command, to)),
                }
            }
        }
        for (command, to) in again {
            self.send_again(client, command, to, &mut ends);
        }
        for node in 0..2 {
            self.end_of_pipe(client, node, &mut ends);
        }
        let route = self.route();
        for (ticket, sent, end) in ends {
            let it = &mut self.clients[client];
            let asked = it.engine.asks_for(ticket);
            let kernel = Arc::clone(&it.kernel);
            if let Some((names, id)) = asked {
                let id_text = id.as_ref().map(HolderId::as_str);
                self.note_refusal(client, (&names, id_text), &end, sent);
                let is_released = |id: &HolderId| self.is_releasing(client, id.as_str());
                if let Some(id) = id.filter(|id| end.is_ok() && !is_released(id)) {
                    self.ran_twice.remove(id.as_str());
                }
            }
            self.say(|| format!("c{client} engine: ticket {ticket} {}", shown_end(&end)));
            let engine = &mut self.clients[client].engine;
            let more = engine.ended(
                &kernel,
                ticket,
                end,
                [self.clocks[client].at(sent), self.clocks[client].at(now)],
                &route,
                fx,
            );
            let writes = more.into_iter().map(|out| Todo::Write(out, now));
            self.clients[client].engine_todo.extend(writes);
        }
    }

    /// A command has not run: it is sent again, at once or after a pause, if somebody wants it.
    fn send_again(
        &mut self,
        client: usize,
        (ticket, sent, command): (Ticket, Time, Command),
        to: Again,
        ends: &mut Vec<End>,
    ) {
        let now = self.now;
        let it = &self.clients[client];
        // As the nodes of a cluster redirect one lease and not the other.
        let follows = !(to.is_redirect && matches!(command.what, What::RenewMany { .. }));
        let may_resend =
            follows && (it.engine).may_resend(&it.kernel, ticket, self.clocks[client].at(now));
        if !may_resend || sent + COMMAND_TIMEOUT <= now {
            let cause = Cause::text("not sent again");
            ends.push((ticket, sent, Err(fault::Fault::NotRun(cause))));
            return;
        }
        if to.pause > 0 {
            let at = now + to.pause;
            let paused = &mut self.clients[client].paused;
            paused.push((at, (ticket, sent, command), to));
            return;
        }
        self.say(|| format!("c{client} engine sends {ticket} again: {to:?}"));
        let n = match self.clients[client].pipes[to.node].conn {
            Some(n) => n,
            None => self.connect(client, Actor::Engine),
        };
        self.conns[n].node = to.node;
        let up = self.up(client, command.clone(), true).again(to);
        let pipe = &mut self.clients[client].pipes[to.node];
        pipe.conn = Some(n);
        pipe.sent.push_back((ticket, sent, command));
        self.send(n, up);
    }

    /// Ends the commands of a pipeline whose connection is lost or silent, and those that were not
    /// written.
    fn end_of_pipe(&mut self, client: usize, node: usize, ends: &mut Vec<End>) {
        let now = self.now;
        let pipe = &mut self.clients[client].pipes[node];
        let oldest = pipe.sent.iter().map(|(_, sent, _)| *sent).min();
        let is_late = oldest.is_some_and(|sent| sent + COMMAND_TIMEOUT <= now);
        if is_late || std::mem::take(&mut pipe.is_closed) {
            let unwritten = pipe.conn.map_or(0, |n| self.conns[n].unwritten);
            let written = pipe.sent.len().saturating_sub(unwritten);
            for (at, (ticket, sent, _)) in pipe.sent.drain(..).enumerate() {
                let fault = if at < written {
                    unknown()
                } else {
                    fault::Fault::NotRun(Cause::text("half of it was written"))
                };
                ends.push((ticket, sent, Err(fault)));
            }
            pipe.connect_at = now + 2 * MS;
            if let Some(n) = pipe.conn.take() {
                self.close(n);
            }
        }
        let pipe = &mut self.clients[client].pipes[node];
        for (ticket, sent) in pipe.unsent.drain(..) {
            let fault = fault::Fault::NotRun(Cause::text("connecting"));
            ends.push((ticket, sent, Err(fault)));
        }
    }

    pub(super) fn write_engine(&mut self, client: usize, out: Outgoing, decided: Time) {
        let now = self.now;
        let node = self.clients[client].node;
        let pipe = &mut self.clients[client].pipes[node];
        // The thread stood still: a command whose time is over is not sent.
        let is_over = now >= decided + COMMAND_TIMEOUT;
        let conn = match pipe.conn {
            _ if is_over => None,
            Some(n) => Some(n),
            None if now >= pipe.connect_at => Some(self.connect(client, Actor::Engine)),
            None => None,
        };
        self.say(|| {
            format!(
                "c{client} engine sends {}: {}",
                out.ticket,
                shown_command(&out.command)
            )
        });
        let up = self.up(client, out.command.clone(), true);
        let pipe = &mut self.clients[client].pipes[node];
        match conn {
            Some(n) => {
                pipe.conn = Some(n);
                pipe.sent.push_back((out.ticket, now, out.command));
                self.send(n, up);
            }
            None => pipe.unsent.push((out.ticket, now)),
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
        let oldest = oldest.min(paused.unwrap_or(NEVER));
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

    pub(super) fn subscriber(&mut self, client: usize) -> Checked {
        if let Some(Todo::Effects(fx)) = self.clients[client].sub.todo.pop_front() {
            self.effects(client, None, fx);
            self.go_on(client, Actor::Sub);
            return Ok(());
        }
        let kernel = Arc::clone(&self.clients[client].kernel);
        let now = self.clocks[client].at(self.now);
        let mut fx = Effects::default();
        if std::mem::take(&mut self.clients[client].sub.is_closed) {
            if let Some(n) = self.clients[client].sub.conn.take() {
                self.close(n);
            }
            let pause = self.net.range(MS, 50 * MS);
            let sub = &mut self.clients[client].sub;
            sub.mail.clear();
            sub.asked.clear();
            sub.hears_inbox = false;
            sub.connect_at = self.now + pause;
            let names: Vec<_> = sub.wanted.values().map(|it| it.0.clone()).collect();
            kernel.deaf_for(names.iter(), now, &mut fx);
        } else if let Some(down) = self.clients[client].sub.mail.pop_front() {
            self.say(|| format!("c{client} sub: {}", shown_down(&down)));
            let sub = &mut self.clients[client].sub;
            match down {
                Down::Subscribed(None) => {
                    sub.hears_inbox = true;
                    sub.was_live = true;
                }
                Down::Subscribed(Some(channel)) => {
                    let live = sub.asked.get_mut(&channel);
                    let since = live.map_or(now, |since| *since.get_or_insert(now));
                    if let Some((name, _)) = sub.wanted.get(&channel) {
                        kernel.listening_since(name, since, now, &mut fx);
                    }
                }
                Down::Message(Message::Inbox(payload)) => kernel.inbox(&payload, now, &mut fx),
                Down::Message(Message::Released(channel, payload)) => {
                    if let Some((name, _)) = sub.wanted.get(&channel) {
                        kernel.announced(name, &payload, now, &mut fx);
                    }
                }
                Down::Reply(_)
                | Down::Error
                | Down::Rejected
                | Down::Again(_)
                | Down::NotReplicated => unreachable!("not on this connection"),
            }
        } else {
            self.subscribe(client);
            return Ok(());
        }
        self.after_kernel(client, &mut fx)?;
        self.clients[client].sub.todo.push_back(Todo::Effects(fx));
        self.stop_if_due(client, Actor::Sub);
        self.go_on(client, Actor::Sub);
        Ok(())
    }

    /// Connects if somebody waits, and subscribes to what is wanted.
    pub(super) fn subscribe(&mut self, client: usize) {
        let sub = &self.clients[client].sub;
        if sub.wanted.is_empty() {
            return;
        }
        let n = match sub.conn {
            Some(n) => n,
            None if self.now < sub.connect_at => {
                let at = sub.connect_at;
                self.timer(client, Actor::Sub, at);
                return;
            }
            None => {
                let n = self.connect(client, Actor::Sub);
                self.clients[client].sub.conn = Some(n);
                self.send(n, Up::Subscribe(None));
                n
            }
        };
        let sub = &mut self.clients[client].sub;
        sub.asked
            .retain(|channel, _| sub.wanted.contains_key(channel));
        let new: Vec<Vec<u8>> = sub
            .wanted
            .keys()
            .filter(|channel| !sub.asked.contains_key(*channel))
            .cloned()
            .collect();
        for channel in new {
            self.clients[client].sub.asked.insert(channel.clone(), None);
            self.send(n, Up::Subscribe(Some(channel)));
        }
    }
}
