//! The effects of a kernel call, carried out by the actors when its locks are dropped.

use std::sync::Arc;

use super::{Caller, Checked, Down, State, Todo, World};
use crate::kernel::effects::{AnyLease, Effects, Sleeper};
use crate::sim::plan::Actor;

impl World {
    /// Carries out the effects of a kernel call. `by`: the actor that has them.
    pub(super) fn effects(&mut self, client: usize, by: Option<Actor>, mut fx: Effects) -> Checked {
        let over = std::mem::take(&mut fx.over);
        self.carry_out(client, by, fx);
        if over.is_empty() {
            return Ok(());
        }
        let it = &mut self.clients[client];
        let todo = match by {
            Some(Actor::Caller(thread)) => &mut it.callers[thread].todo,
            Some(Actor::Engine) => &mut it.engine_todo,
            Some(Actor::Sub) => &mut it.sub_todo,
            None => return self.give_up(client, None, over),
        };
        todo.push_front(Todo::GiveUp(over));
        Ok(())
    }

    /// Gives up the parts of what has ended with one of them.
    pub(super) fn give_up(
        &mut self,
        client: usize,
        by: Option<Actor>,
        parts: Vec<AnyLease>,
    ) -> Checked {
        let kernel = Arc::clone(&self.clients[client].kernel);
        let mut fx = Effects::default();
        for part in parts {
            kernel.give_up(part, self.clocks[client].at(self.now), &mut fx);
        }
        self.after_kernel(client, &mut fx)?;
        self.effects(client, by, fx)
    }

    fn carry_out(&mut self, client: usize, by: Option<Actor>, fx: Effects) {
        if let (Some(undo), Some(Actor::Caller(thread))) = (fx.undo, by)
            && let Some(n) = self.clients[client].callers[thread].conn
        {
            let up = self.up(n, undo, false);
            self.send(n, up);
        }
        for parker in fx.wake.iter() {
            let callers = self.clients[client].callers.iter();
            let mut parked = callers.map(|caller| match &caller.state {
                State::Parked(call) => call
                    .cell()
                    .is_some_and(|it| std::ptr::eq(it.parker(), parker)),
                State::Set(set) => set.sleeps_on(parker),
                _ => false,
            });
            if let Some(thread) = parked.position(|is_its| is_its) {
                self.soon(client, Actor::Caller(thread));
            }
        }
        for cell in fx.operations {
            let mut callers = self.clients[client].callers.iter();
            let waits = |caller: &Caller| match &caller.state {
                State::Operating { cell: it, .. } => Arc::ptr_eq(it, &cell),
                State::Set(set) => set.sleeps_on(&cell.parker),
                State::OperatingSet { operation, .. } => {
                    std::ptr::eq(operation.parker(), &raw const cell.parker)
                }
                _ => false,
            };
            if let Some(thread) = callers.position(waits) {
                self.soon(client, Actor::Caller(thread));
            }
        }
        if fx.engine_by.is_some() {
            self.soon(client, Actor::Engine);
        }
        let (wakes_sub, mut counted_anew) = (!fx.listen.is_empty(), Vec::new());
        let it = &mut self.clients[client];
        for (lock, change) in fx.listen {
            let key = lock.keys().key(0);
            let newest = (it.wanted.get(key.channel)).map_or(0, |it| it.1);
            let wanted = (key.name.clone(), newest.max(change));
            it.wanted.insert(key.channel.to_vec(), wanted);
            it.messages.want(key.name);
            counted_anew.push(key.name.clone());
            for (server, sub) in it.subs.iter().enumerate() {
                if let Some(Some(_)) = sub.asked.get(key.channel) {
                    // Its messages arrive already, for an entry that has ended.
                    let down = Down::Subscribed(Some(key.channel.to_vec()));
                    it.sub_mail.push_back((server, down));
                }
            }
        }
        for (name, change) in fx.unlisten {
            it.wanted.retain(|_, it| it.0 != name || it.1 > change);
            if !it.wanted.values().any(|it| it.0 == name) {
                it.messages.forget(&name);
                counted_anew.push(name);
            }
        }
        if wakes_sub {
            self.soon(client, Actor::Sub);
        }
        if self.plan.is_quorum() && !counted_anew.is_empty() {
            let (mut fx, now) = (Effects::default(), self.clocks[client].at(self.now));
            let kernel = Arc::clone(&self.clients[client].kernel);
            kernel.deaf_for(counted_anew.iter(), now, &mut fx);
            self.carry_out(client, by, fx);
        }
    }
}
