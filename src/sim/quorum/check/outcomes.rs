//! Whether calls return in time, and say "taken" only with a proof by a majority.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::kernel::acquiring::Acquiring;
use crate::kernel::command::{Command, What};
use crate::kernel::engine::ServerNo;
use crate::kernel::fault::Fault;
use crate::kernel::waiter::{Failure, Outcome, Wait, Waiter};
use crate::name::Name;
use crate::protocol::answer::Answer;
use crate::sim::check::each_entry;
use crate::sim::plan::Actor;
use crate::sim::quorum::world::{State, World, time_at};
use crate::sim::server::{MS, Time};
use crate::sim::world::Checked;
use crate::wait_policy::WaitPolicy;

/// A server's reply to a proposal, or the end of an own lease.
#[derive(Clone, Debug)]
pub(in crate::sim::quorum) struct Reply {
    /// `None` for the end of an own lease.
    server: Option<ServerNo>,
    name: Name,
    sent: Time,
    arrived: Time,
    refused: Option<Time>,
}

impl World {
    pub(in crate::sim::quorum) fn note_reply(
        &mut self,
        client: usize,
        server: ServerNo,
        command: &Command,
        end: &Result<Answer, Fault>,
        sent: Time,
    ) {
        let (What::Acquire { .. }, Ok(answer)) = (&command.what, end) else {
            return;
        };
        let refused = match answer {
            Answer::Refused(by) => {
                let kernel = &self.clients[client].kernel;
                if kernel.pending.lock().has_at(server, &by.holder) {
                    return;
                }
                let left = by
                    .remaining
                    .map_or(Time::MAX / 2, |it| it.as_micros() as Time);
                Some(sent + left)
            }
            _ => None,
        };
        let reply = Reply {
            server: Some(server),
            name: command.lock.key(0).name.clone(),
            sent,
            arrived: self.now,
            refused,
        };
        let replies = &mut self.clients[client].replies;
        replies.push(reply);
        if replies.len() > 1_000 {
            replies.drain(..500);
        }
    }

    /// A lease of the client has ended by its release: until now the lock was taken.
    pub(in crate::sim::quorum) fn note_own_end(&mut self, client: usize, name: &Name) {
        let reply = Reply {
            server: None,
            name: name.clone(),
            sent: self.now,
            arrived: self.now,
            refused: Some(self.now),
        };
        self.clients[client].replies.push(reply);
    }

    /// P8: a call ends in time, and says "taken" only with a proof by a majority.
    pub(in crate::sim::quorum) fn check_outcome(
        &mut self,
        client: usize,
        thread: usize,
        acquiring: &Acquiring,
        outcome: &Outcome,
    ) -> Checked {
        let call = acquiring.call();
        let deadline = call.wants.deadline;
        let stopped = time_at(self.stopped_until(client, Actor::Caller(thread)));
        let now = time_at(self.now);
        let latest = deadline.max(stopped).after(Duration::from_millis(40));
        if now > latest {
            let text = format!("c{client}.{thread} ended {:?} late", deadline.until(now));
            return Err(self.violation("P8", text));
        }
        if let Outcome::Failed(Failure::Unreachable { .. }) = outcome
            && !self.plan.has_faults()
        {
            let text = format!("c{client}.{thread} fails although the servers answer");
            return Err(self.violation("P8", text));
        }
        let Outcome::Refused(_) = outcome else {
            return Ok(());
        };
        let is_limited = match &call.wants.wait {
            Wait::Queue(WaitPolicy::Backoff(backoff)) => backoff.limit().is_some(),
            _ => false,
        };
        let name = call.wants.lock.key(0).name;
        let names = acquiring.names_of_set();
        let is_its = |it: &Name| it == name || names.contains(it);
        let mut holds = false;
        each_entry(&self.clients[client].kernel, &self.names, |entry| {
            let mut held = entry
                .held
                .iter()
                .flat_map(|held| held.lease.lock.names.iter());
            holds |= held.any(is_its);
        });
        let is_once = call.wants.wait == Wait::Once;
        each_entry(&self.clients[client].kernel, &self.names, |entry| {
            let mut waiting = entry.waiters.walk();
            let waits = |it: &Waiter| it.wait != Wait::Once && it.cell.has_waited();
            holds |= is_once && is_its(&entry.name) && waiting.any(waits);
        });
        if holds || is_limited {
            return Ok(());
        }
        let is_fresh = |it: &Reply| {
            it.refused.is_some_and(|until| time_at(until) >= deadline)
                // A server that does not answer can delay the verdict by the command timeout.
                || time_at(it.arrived + 2_000 * MS) >= deadline
        };
        // The votes of one round arrive within the command timeout.
        let counts = |it: &&Reply| {
            let is_recent = is_fresh(it) || time_at(it.arrived + 3_000 * MS) >= deadline;
            is_its(&it.name) && time_at(it.sent) >= call.start && (is_recent || is_once)
        };
        let replies: Vec<&Reply> = self.clients[client].replies.iter().filter(counts).collect();
        let servers: BTreeSet<ServerNo> = replies.iter().filter_map(|it| it.server).collect();
        // Its thread may not have read that its lease has ended.
        let mut callers = self.clients[client].callers.iter();
        let ends = callers.any(|caller| match &caller.state {
            State::Releasing { lease, cell, .. } => {
                lease.lock.names.iter().any(is_its) && cell.result.lock().is_some()
            }
            _ => false,
        });
        let mut given_up = self.clients[client].given_up.iter();
        let ends =
            ends || given_up.any(|lease| !lease.is_open() && lease.lock.names.iter().any(is_its));
        let has_own = ends || replies.iter().any(|it| it.server.is_none());
        let has_refusal = replies.iter().any(|it| it.refused.is_some());
        let has_refusal = has_refusal && (is_once || replies.iter().any(|it| is_fresh(it)));
        // The votes are split as well if the servers that answered name different holders, and the
        // others failed.
        let needed = if self.plan.servers == 5 && self.plan.has_faults() {
            2
        } else {
            self.plan.servers / 2 + 1
        };
        let is_proven = has_own || has_refusal && servers.len() >= needed;
        if !is_proven {
            let text = format!("c{client}.{thread} says that {name} is taken without a proof");
            return Err(self.violation("P8", text));
        }
        Ok(())
    }
}
