//! Views for the checks: commands under way, guards and parked threads.

use super::{
    Actor, Arc, Call, Command, HeldLease, Link, MS, Outcome, Pipe, SetAcquire, SetLease, SetStep,
    State, Step, Todo, Up, World,
};
use crate::protocol::primitive::Primitive;

impl World {
    /// Returns whether an id is in a command that is under way, or about to be written.
    pub(in crate::sim) fn is_under_way(&self, client: usize, id: &str) -> bool {
        let names = |command: &Command| match &command.what {
            crate::kernel::command::What::Undo { ids } => ids.iter().any(|it| it.as_str() == id),
            crate::kernel::command::What::Leave { id: it, .. } => it.as_str() == id,
            _ => command.acquires().is_some_and(|it| it.as_str() == id),
        };
        let mut conns = self.conns.iter().filter(|conn| conn.client == client);
        let sent = conns.any(|conn| {
            conn.up.iter().any(|(_, up)| match up {
                Up::Command { command, .. } => names(command),
                Up::Hello | Up::Subscribe(_) => false,
            })
        });
        let mut callers = self.clients[client].callers.iter();
        sent || callers.any(|caller| {
            matches!(&caller.state, State::Releasing(it) if it.lease.id.as_str() == id)
                || matches!(&caller.state, State::ReleasingSet(it) if it.is_of(id))
                || (caller.batch.iter()).any(|batch| batch.commands.iter().any(names))
                || caller.todo.iter().any(|todo| match todo {
                    Todo::Step(Step::Send(command, _)) => names(command),
                    Todo::SetStep(SetStep::Send(commands, _))
                    | Todo::SetStep(SetStep::GiveBack(commands, _))
                    | Todo::Undo(commands) => commands.iter().any(names),
                    Todo::Effects(fx) => fx.undo.as_ref().is_some_and(names),
                    _ => false,
                })
        })
    }

    /// Returns whether a thread has a guard, or is about to get one, of the lease with this id.
    pub(in crate::sim) fn has_guard(&self, client: usize, id: &str) -> bool {
        self.clients[client].callers.iter().any(|caller| {
            let lease = match &caller.state {
                State::Holding { lease, .. } | State::Operating { lease, .. } => Some(lease),
                State::Releasing(release) => Some(&release.lease),
                _ => None,
            };
            let asks = match &caller.state {
                State::Waiting { call, .. } => call.asks_as() == Some(id),
                State::Set(set) => set.call.calls().iter().any(|it| it.asks_as() == Some(id)),
                _ => false,
            };
            let set = match &caller.state {
                State::Set(set) => Some(set.call.lease()),
                State::HoldingSet { lease, .. } | State::OperatingSet { lease, .. } => Some(lease),
                State::ReleasingSet(release) => Some(&release.lease),
                _ => None,
            };
            let has_part = |set: &Arc<SetLease>| {
                let mut ids = set.leases().into_iter().flatten();
                ids.any(|it| it.id.as_str() == id)
            };
            if asks || set.is_some_and(has_part) {
                return true;
            }
            let mut given = caller.todo.iter().filter_map(|todo| match todo {
                Todo::Step(Step::Done(Outcome::Lease(lease, _))) => Some(lease),
                _ => None,
            });
            lease
                .into_iter()
                .chain(&mut given)
                .any(|it| it.id.as_str() == id)
        })
    }

    /// Returns whether a thread releases the lease with this id.
    pub(super) fn is_releasing(&self, client: usize, id: &str) -> bool {
        let mut callers = self.clients[client].callers.iter();
        callers.any(|it| match &it.state {
            State::Releasing(of) => of.lease.id.as_str() == id,
            State::ReleasingSet(of) => of.is_of(id),
            _ => false,
        })
    }

    /// Returns the call of each parked thread.
    pub(in crate::sim) fn parked(&self, client: usize) -> impl Iterator<Item = &Call> {
        self.parked_threads(client).map(|(_, call)| call)
    }

    /// Returns the threads that wait outside of a queue, and for which name.
    pub(in crate::sim) fn watched(&self, client: usize) -> Vec<(usize, Arc<dyn Primitive>)> {
        let callers = self.clients[client].callers.iter().enumerate();
        let watched = callers.filter_map(|(thread, caller)| match &caller.state {
            State::Set(set) => Some((thread, Arc::clone(set.call.watched()?))),
            _ => None,
        });
        watched.collect()
    }

    /// Returns the calls for sets that go on.
    pub(in crate::sim) fn set_calls(&self, client: usize) -> impl Iterator<Item = &SetAcquire> {
        let callers = self.clients[client].callers.iter();
        callers.filter_map(|caller| match &caller.state {
            State::Set(set) => Some(&set.call),
            _ => None,
        })
    }

    /// Returns the leases of threads that have not read that the release has ended.
    pub(in crate::sim) fn ended_unread(
        &self,
        client: usize,
    ) -> impl Iterator<Item = &Arc<HeldLease>> {
        let callers = self.clients[client].callers.iter();
        callers.filter_map(|caller| match &caller.state {
            State::Operating { lease, .. } if !lease.is_open() => Some(lease),
            _ => None,
        })
    }

    /// Returns the parked threads, with their calls.
    pub(in crate::sim) fn parked_threads(
        &self,
        client: usize,
    ) -> impl Iterator<Item = (usize, &Call)> {
        let callers = self.clients[client].callers.iter().enumerate();
        callers.flat_map(|(thread, caller)| {
            let calls = match &caller.state {
                State::Parked(call) => vec![&**call],
                State::Set(set) => set.call.calls(),
                _ => Vec::new(),
            };
            let of_sets = matches!(caller.state, State::Set(_));
            let parked = calls.into_iter();
            let parked = parked.filter(move |call| !of_sets || call.cell().is_some());
            parked.map(move |call| (thread, call))
        })
    }

    /// Returns how many servers a client can use at once: the links to them are fast enough.
    pub(in crate::sim) fn usable(&self, client: usize) -> usize {
        let pipes = &self.clients[client].pipes;
        let is_slower = |n: usize, time| self.conns[n].slow > time;
        if !self.plan.is_quorum() {
            let mut conns = pipes.iter().filter_map(|pipe| pipe.conn);
            return usize::from(!conns.any(|n| is_slower(n, self.plan.ttl / 4)));
        }
        let slowest = (self.plan.ttl / 8).min(50 * MS);
        let is_fast = |n: usize| !is_slower(n, slowest) && !self.conns[n].is_cut;
        let is_usable = |pipe: &&Pipe| pipe.link == Link::Up && pipe.conn.is_some_and(is_fast);
        pipes.iter().filter(is_usable).count()
    }

    /// Returns whether a link of an engine to a quorum's server is slow, or cut: through it a
    /// client holds that server's key for as long, at each attempt.
    pub(in crate::sim) fn is_disturbed(&self) -> bool {
        let mut conns = self.conns.iter();
        self.plan.is_quorum()
            && conns.any(|it| {
                let is_slow = it.slow > 20 * MS || it.is_cut;
                is_slow && it.at_server && it.actor != Actor::Sub
            })
    }
}
