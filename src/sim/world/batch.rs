//! The commands that a thread sends in one write, and their ends.

use std::collections::{BTreeMap, VecDeque};

use super::show::unknown;
use super::{Actor, Again, Answer, Cause, Command, Mail, Time, World, fault};

type End = Result<Answer, fault::Fault>;

pub(super) struct Batch {
    pub(super) commands: Vec<Command>,
    ends: Vec<Option<End>>,
    /// The commands on the connection that have no reply, by their indexes.
    open: VecDeque<usize>,
    /// Those that have not run: when they are sent again, one after the other, and where.
    again: BTreeMap<usize, (Time, Again)>,
    has_sent_again: bool,
    pub(super) sent: Time,
    by: Time,
}

impl Batch {
    fn new(commands: Vec<Command>, sent: Time, by: Time) -> Self {
        Self {
            ends: commands.iter().map(|_| None).collect(),
            open: (0..commands.len()).collect(),
            commands,
            again: BTreeMap::new(),
            has_sent_again: false,
            sent,
            by,
        }
    }

    pub(super) fn replied(&mut self, mail: Mail, now: Time) {
        let Some(n) = self.open.pop_front() else {
            return;
        };
        match mail {
            Mail::End(end) => self.ends[n] = Some(end),
            Mail::Again(again) => _ = self.again.insert(n, (now + again.pause, again)),
            Mail::Hello => unreachable!("a caller's connection has no handshake"),
        }
    }

    /// The connection has ended; the last commands on it were not written in full.
    pub(super) fn cut(&mut self, unwritten: usize) {
        let written = self.open.len().saturating_sub(unwritten);
        for (at, n) in self.open.drain(..).enumerate() {
            let fault = if at < written {
                unknown()
            } else {
                fault::Fault::NotRun(Cause::text("half of it was written"))
            };
            self.ends[n] = Some(Err(fault));
        }
    }

    fn not_sent(&mut self) {
        let ends = self.open.drain(..);
        for n in ends {
            self.ends[n] = Some(Err(fault::Fault::NotRun(Cause::text("too late"))));
        }
    }

    /// Its time is over.
    fn give_up(&mut self) {
        self.cut(0);
        for (n, _) in std::mem::take(&mut self.again) {
            self.ends[n] = Some(Err(fault::Fault::NotRun(Cause::text("too late"))));
        }
    }

    /// The first command is sent again: those behind it that were skipped for that follow.
    fn send_skipped_again(&mut self, to: Again) {
        if std::mem::replace(&mut self.has_sent_again, true) {
            return;
        }
        let first = *self.again.keys().next().expect("it is sent again");
        for n in first + 1..self.ends.len() {
            if let Some(Ok(Answer::Skipped)) = self.ends[n] {
                self.ends[n] = None;
                let to = Again {
                    is_asking: false,
                    is_redirect: false,
                    pause: 0,
                    ..to
                };
                self.again.insert(n, (0, to));
            }
        }
    }

    /// Returns the commands with their ends, which are known.
    pub(super) fn ended(self) -> (Vec<Command>, Vec<End>) {
        let ends = self.ends.into_iter();
        let ends = ends.map(|end| end.expect("each command has ended"));
        (self.commands, ends.collect())
    }
}

impl World {
    /// A thread sends commands in one write, and waits for their replies until `by`.
    pub(super) fn write_all(
        &mut self,
        client: usize,
        thread: usize,
        commands: Vec<Command>,
        by: Time,
    ) {
        let mut batch = Batch::new(commands.clone(), self.now, by);
        let actor = Actor::Caller(thread);
        if by <= self.now {
            // The thread stood still: commands whose time is over are not sent.
            batch.not_sent();
        } else {
            let it = &self.clients[client];
            let (conn, node) = (it.callers[thread].conn, it.node);
            let n = conn.unwrap_or_else(|| self.connect(client, actor, node));
            let caller = &mut self.clients[client].callers[thread];
            (caller.conn, caller.mail, caller.again) = (Some(n), None, None);
            for command in commands {
                let up = self.up(n, command, true);
                self.send(n, up);
            }
        }
        self.clients[client].callers[thread].batch = Some(batch);
        self.timer(client, actor, by);
    }

    /// Returns the commands that a thread has sent, if all have ended. Otherwise it sleeps, or
    /// sends one of them again.
    pub(super) fn take_batch(&mut self, client: usize, thread: usize) -> Option<Batch> {
        let (now, actor) = (self.now, Actor::Caller(thread));
        let caller = &mut self.clients[client].callers[thread];
        let batch = caller.batch.as_mut().expect("the thread has sent commands");
        let by = batch.by;
        if now >= by {
            batch.give_up();
        }
        if !batch.open.is_empty() {
            self.timer(client, actor, by);
            return None;
        }
        let Some((&n, &(at, to))) = batch.again.first_key_value() else {
            return caller.batch.take();
        };
        if now < at {
            self.timer(client, actor, at.min(by));
            return None;
        }
        batch.send_skipped_again(to);
        batch.again.remove(&n);
        batch.open.push_back(n);
        let command = batch.commands[n].clone();
        let old = caller.conn;
        let conn = match old.filter(|conn| self.conns[*conn].peer == to.peer) {
            Some(conn) => conn,
            None => {
                old.into_iter().for_each(|conn| self.close(conn));
                self.connect(client, actor, to.peer)
            }
        };
        self.clients[client].callers[thread].conn = Some(conn);
        let up = self.up(conn, command, true).again(to);
        self.send(conn, up);
        self.timer(client, actor, by);
        None
    }
}
