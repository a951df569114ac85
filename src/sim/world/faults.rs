//! The faults of a plan: what they do to the server, its connections and the clients.

use super::{Actor, Arc, Checked, Copy, Effects, Fault, GOES_ON, NEVER, Time, World};

impl World {
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
            Fault::Pause(client, time) if self.clients[client].resumed <= self.now => {
                self.clocks[client].pause(self.now, self.now + time);
                self.suspend(client, time);
            }
            Fault::Pause(..) => {}
            Fault::Ahead(time) => {
                self.over.extend(self.server.ids());
                let leases = self.leases.iter();
                let held = leases.map(|it| it.lease.id.as_str().to_owned());
                self.over.extend(held);
                self.server_ahead += time as i64;
            }
            Fault::Back(time) => {
                // By the clients' clocks, these keys last longer.
                self.outlasts.extend(self.server.ids());
                self.server_ahead -= time as i64;
            }
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
            if at > self.stopped_until(client, actor) + GOES_ON {
                self.timer(client, actor, at + time);
            }
        }
        let it = &mut self.clients[client];
        let stopped = it.stopped.entry(None).or_default();
        *stopped = (*stopped).max(until);
        it.resumed = until;
        it.was_suspended = true;
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
