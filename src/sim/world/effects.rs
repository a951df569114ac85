//! The effects of a kernel call, carried out by the actors when its locks are dropped.

use std::sync::Arc;

use super::{Caller, Down, State, World};
use crate::kernel::effects::Effects;
use crate::sim::plan::Actor;

impl World {
    /// Carries out the effects of a kernel call. `thread`: the caller that has them.
    pub(super) fn effects(&mut self, client: usize, thread: Option<usize>, fx: Effects) {
        if let (Some(undo), Some(thread)) = (fx.undo, thread)
            && let Some(n) = self.clients[client].callers[thread].conn
        {
            let up = self.up(n, undo, false);
            self.send(n, up);
        }
        for cell in fx.wake.iter() {
            let callers = self.clients[client].callers.iter();
            let mut parked = callers.map(|caller| match &caller.state {
                State::Parked(call) => call.cell().map(Arc::as_ptr),
                _ => None,
            });
            if let Some(thread) = parked.position(|no| no == Some(Arc::as_ptr(cell))) {
                self.soon(client, Actor::Caller(thread));
            }
        }
        for cell in fx.operations {
            let mut callers = self.clients[client].callers.iter();
            let waits = |caller: &Caller| match &caller.state {
                State::Operating { cell: it, .. } => Arc::ptr_eq(it, &cell),
                _ => false,
            };
            if let Some(thread) = callers.position(waits) {
                self.soon(client, Actor::Caller(thread));
            }
        }
        if fx.engine_by.is_some() {
            self.soon(client, Actor::Engine);
        }
        let wakes_sub = !fx.listen.is_empty();
        let it = &mut self.clients[client];
        for (lock, change) in fx.listen {
            let key = lock.keys().key(0);
            let newest = (it.wanted.get(key.channel)).map_or(0, |it| it.1);
            let wanted = (key.name.clone(), newest.max(change));
            it.wanted.insert(key.channel.to_vec(), wanted);
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
        }
        if wakes_sub {
            self.soon(client, Actor::Sub);
        }
    }
}
