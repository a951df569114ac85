//! Whether the lists, the requests and the index of a client agree.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::each_entry;
use crate::kernel::Kernel;
use crate::kernel::call::Call;
use crate::kernel::entry::LockEntry;
use crate::kernel::request::{Flight, RequestState, Serves};
use crate::name::Name;
use crate::sim::world::{Checked, World};

fn check_entry(entry: &LockEntry, kernel: &Kernel, problems: &mut Vec<String>) {
    let pending = kernel.shared.pending.lock();
    for held in entry.leases.held.iter() {
        if pending.has_for(&held.lease.lock, &held.lease.id) {
            problems.push(format!(
                "the lease {:?} has a pending release",
                held.lease.id
            ));
        }
    }
    for request in entry.line.requests.walk() {
        let id = request.id();
        let is_won = matches!(request.state, RequestState::Won(_));
        if !is_won && id.is_some_and(|id| pending.has_for(&request.lock, id)) {
            let text = format!(
                "{:?} {:?} {:?}",
                request.serves, request.state, request.flight
            );
            problems.push(format!("a request has a pending release: {text}"));
        }
        let is_placed = matches!(
            request.state,
            RequestState::Queued(_) | RequestState::Confirming(_)
        );
        let serves = match request.serves {
            Serves::Line => entry.line.waiters.in_line() > 0,
            Serves::One(no) => entry.line.waiters.get(no).is_some(),
            Serves::Nobody => false,
        };
        if is_placed && !serves && request.caller().is_none() {
            problems.push(format!("a place that serves nobody: {:?}", request.state));
        }
    }
    if entry.leases.lingering().is_some() && entry.is_wanted() {
        problems.push("a lease lingers although somebody asks".into());
    }
    let asks = entry.line_is_busy_without_line();
    if entry.line.waiters.in_line() > 0 && !asks {
        problems.push("calls are in the line, and nobody asks".into());
    }
}

impl World {
    /// Adds the tables of the clients, and what the servers have, to the trace.
    pub(in crate::sim) fn dump(&mut self) {
        if !self.is_traced {
            return;
        }
        for client in 0..self.clients.len() {
            let kernel = Arc::clone(&self.clients[client].kernel);
            let mut entries = Vec::new();
            each_entry(&kernel, &self.names, |entry| {
                entries.push(format!("{entry:?}"));
            });
            entries.push(self.clients[client].shown_engine());
            for entry in entries {
                self.say(|| format!("c{client}: {entry}"));
            }
        }
        for n in 0..self.servers.len() {
            let data = format!("{:?}", self.servers[n].data);
            self.say(|| format!("s{n}: {data}"));
        }
    }

    /// P6: the lists, the requests and the index of a client's table agree.
    pub(super) fn check_table(&self, client: usize) -> Checked {
        let kernel = &self.clients[client].kernel;
        let mut problems = table_problems(kernel, &self.names, self.parked(client));
        let leases = self.leases.iter().filter(|it| it.client == client);
        for it in leases.filter(|it| it.lease.is_open()) {
            let name = it.lease.lock.key(0).name;
            let shard = kernel.shard(name).lock();
            let entry = shard.get(name);
            if !entry.is_some_and(|entry| entry.leases.holds(&it.lease.id)) {
                problems.push(format!("{:?} is in no list of leases", it.lease.id));
            }
        }
        if problems.is_empty() {
            Ok(())
        } else {
            Err(self.violation("P6", format!("c{client}: {problems:?}")))
        }
    }
}

/// Returns where the lists, the requests and the index of a client's table disagree. These calls
/// are `parked`.
fn table_problems<'a>(
    kernel: &Kernel,
    names: &BTreeSet<Name>,
    parked: impl Iterator<Item = &'a Call>,
) -> Vec<String> {
    let mut problems = Vec::new();
    let (mut ids, mut in_queue) = (BTreeSet::new(), BTreeSet::new());
    let mut listed = BTreeSet::new();
    each_entry(kernel, names, |entry| {
        check_entry(entry, kernel, &mut problems);
        for request in entry.line.requests.walk() {
            if !matches!(request.state, RequestState::Won(_))
                && let Some(id) = request.id()
            {
                ids.insert(id.as_str().to_owned());
                let enters = |flight: &Flight| flight.attempt.enters();
                if !matches!(request.state, RequestState::Sent)
                    || request.flight.as_ref().is_some_and(enters)
                {
                    in_queue.insert(id.as_str().to_owned());
                }
            }
        }
        for waiter in entry.line.waiters.walk() {
            listed.insert(waiter.no);
            if waiter.cell.outcome.lock().is_some() {
                problems.push(format!("{} is in a list and has an outcome", waiter.no));
            }
        }
    });
    for call in parked {
        if let Some(cell) = call.cell()
            && !listed.contains(&call.no)
            && cell.outcome.lock().is_none()
        {
            problems.push(format!("call {} is in no list and has no outcome", call.no));
        }
    }
    let index = kernel.shared.ids.lock();
    let indexed: BTreeSet<String> = index.keys().map(|id| id.as_str().to_owned()).collect();
    if !indexed.is_subset(&ids) || !in_queue.is_subset(&indexed) {
        problems.push(format!("the index has {indexed:?}, the requests {ids:?}"));
    }
    problems
}
