//! The faults of a plan: what they do to the servers, their connections and the clients.

use super::{Actor, Arc, Checked, Effects, Event, GOES_ON, Member, NEVER, Time, World};
use crate::sim::plan::{Fault, ServerFault};
use std::collections::BTreeSet;

use crate::sim::server::{Copy, Server, base, client_of};

impl World {
    pub(super) fn fault(&mut self, n: usize) -> Checked {
        let fault = self.plan.faults[n].1.clone();
        self.say(|| format!("FAULT {fault:?}"));
        match fault {
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
                    self.effects(client, None, fx)?;
                }
            }
            Fault::StopNext(client, actor, time) => {
                self.clients[client].stop_next.insert(actor, time);
            }
            Fault::LoseMessages(client, time) => {
                self.clients[client].loses_until = self.now + time;
            }
            Fault::Server(server, fault) => self.server_fault(server, fault)?,
        }
        Ok(())
    }

    fn server_fault(&mut self, server: Member, fault: ServerFault) -> Checked {
        let now = self.now;
        match fault {
            ServerFault::Cut(client, actor, is_silent) => {
                if let Some(n) = self.conn_of(client, actor, server) {
                    self.cut(n, is_silent);
                }
            }
            ServerFault::Slow(client, actor, by) => {
                if let Some(n) = self.conn_of(client, actor, server) {
                    self.conns[n].slow = by;
                }
            }
            ServerFault::Twice(client, actor) => {
                if let Some(n) = self.conn_of(client, actor, server) {
                    self.conns[n].runs_twice = true;
                }
            }
            ServerFault::Foreign(name, time) => self.take_foreign(server, name, time),
            ServerFault::Delete(name) => {
                let ids = self.servers[server].delete(&format!("n{name}"), now);
                self.over.extend(ids);
            }
            ServerFault::Ahead(time) => {
                self.over.extend(self.servers[server].ids());
                let leases = self.leases.iter();
                let held = leases.map(|it| it.lease.id.as_str().to_owned());
                self.over.extend(held);
                self.servers[server].ahead += time as i64;
            }
            ServerFault::Back(time) => {
                // By the clients' clocks, these keys last longer.
                self.outlasts.extend(self.servers[server].ids());
                self.servers[server].ahead -= time as i64;
            }
            ServerFault::Hang(time) => self.takes_down(server, time),
            ServerFault::RestartEmpty => {
                self.servers[server].restore(Copy::default(), now);
                self.servers[server].is_emptied = true;
                self.lost_tokens = true;
                self.takes_down(server, self.plan.ttl * 4);
            }
            ServerFault::Restart(time) => {
                self.note_missing(server);
                self.servers[server].restore(Copy::default(), now);
                self.lost_tokens = true;
                self.takes_down(server, time);
            }
            ServerFault::Force(name) => self.force(server, name),
            ServerFault::Forget => self.fail_over(server, None)?,
            ServerFault::Failover => {
                let copy = self.servers[server].snapshot.take();
                self.fail_over(server, copy)?;
            }
            of_server => self.servers[server].fails(of_server, now),
        }
        Ok(())
    }

    /// A server loses its data. Leases that have keys at so few others that none may be lost are
    /// not whole, and may end.
    fn note_missing(&mut self, server: Member) {
        let ids: BTreeSet<String> = self.servers[server]
            .ids()
            .iter()
            .map(|id| base(id))
            .collect();
        for id in ids {
            let now = self.now;
            let others = self.servers.iter().enumerate();
            let quorum = client_of(&id).and_then(|client| self.clients[client].quorum());
            let has_it = |(n, it): &(usize, &Server)| {
                let counts_on = quorum.is_some_and(|quorum| quorum.counts_on(*n, &id));
                let mut data = it.data.values();
                *n != server && counts_on && data.any(|data| data.is_held_by(&id, it.now(now)))
            };
            if others.filter(has_it).count() < self.plan.needed() {
                self.over.insert(id);
            }
        }
    }

    /// An operator releases a lock at a server.
    fn force(&mut self, server: Member, name: u64) {
        let ids = self.servers[server].force(&format!("n{name}"), self.now);
        for id in ids.iter().map(|id| base(id)) {
            self.over.insert(id.clone());
            let (servers, last) = self.forced.entry(id).or_default();
            servers.insert(server);
            *last = self.now;
        }
        self.deliver_messages(server);
    }

    /// A server answers nothing for a time, and then loses its connections.
    fn takes_down(&mut self, server: Member, time: Time) {
        let it = &mut self.servers[server];
        it.down_until = it.down_until.max(self.now + time);
        let back = it.down_until;
        self.event(back, Event::Back(server));
    }

    /// A server serves again; its connections are gone, and nothing that was under way runs.
    pub(super) fn back(&mut self, server: Member) {
        if self.now < self.servers[server].down_until {
            return;
        }
        for n in 0..self.conns.len() {
            let is_its = self.server_of(self.conns[n].peer) == server;
            let conn = &mut self.conns[n];
            if is_its && conn.at_server {
                conn.up.clear();
                conn.at_server = false;
                conn.is_cut = true;
                self.event(self.now + 100, Event::Closed(n));
            }
        }
        let it = &mut self.servers[server];
        for client in 0..self.clients.len() {
            it.unsubscribe(client);
        }
        it.forget_scripts();
        (it.down_until, it.is_emptied) = (0, false);
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

    fn take_foreign(&mut self, server: Member, name: u64, time: Time) {
        self.foreign += 1;
        let (name, holder) = (format!("n{name}"), format!("foreign{}", self.foreign));
        self.servers[server].take_foreign(&name, &holder, time, self.now);
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

    /// Another server takes the place of this one, with a copy of its data, or none.
    fn fail_over(&mut self, server: Member, copy: Option<Copy>) -> Checked {
        self.has_old_data |= copy.is_some();
        let it = &mut self.servers[server];
        it.restore(copy.unwrap_or_default(), self.now);
        (self.lost_leases, self.lost_tokens) = (true, true);
        if self.plan.is_quorum() {
            it.forget_scripts();
        }
        for n in 0..self.conns.len() {
            let is_its = self.server_of(self.conns[n].peer) == server;
            if is_its && self.conns[n].at_client && self.conns[n].at_server {
                self.cut(n, false);
            }
        }
        // A quorum's server has no other one, to which its clients could move.
        for client in 0..self.clients.len() {
            if self.clients[client].is_alive && !self.plan.is_quorum() {
                let mut fx = Effects::default();
                let kernel = Arc::clone(&self.clients[client].kernel);
                kernel.moved(&|_| true, self.clocks[client].at(self.now), &mut fx);
                self.after_kernel(client, &mut fx)?;
                self.effects(client, None, fx)?;
            }
        }
        Ok(())
    }
}
