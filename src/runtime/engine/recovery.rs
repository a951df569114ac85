//! Work for one server of a quorum: reading replies that callers left unread, and probing a server
//! that is marked down.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::lease::release::Release;
use crate::logging;
use crate::redis::{Drained, Draining, Fault, Member, MemberTask, PipelinedConnection, Server};
use crate::runtime::state::Runtime;
use crate::wait_policy::Backoff;

/// How long replies that no caller waited for may stay unread. They tell only what to undo, and how
/// fast the server is.
const READ_AFTER: Duration = Duration::from_millis(100);

/// The pause between probes of a server that is marked down.
const PROBE_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(100), Duration::from_secs(4)).jitter(0.5);

/// The reads and probes that the engine must still make.
pub(in crate::runtime) struct Recovery {
    pub(in crate::runtime) server: Arc<Server>,
    /// When the server is probed next; `NEVER` while a probe is on its way.
    probe_at: Option<Instant>,
    /// How many probes have failed since the server was marked down.
    failures: u32,
    /// When the replies that callers left unread are read.
    read_at: Option<Instant>,
    /// Connections to read, with too many unread replies for a call to use them.
    unread: Vec<PipelinedConnection>,
    /// The connection that is read now.
    draining: Option<Box<Draining>>,
}

impl Recovery {
    pub(in crate::runtime) fn new(server: Arc<Server>) -> Self {
        Self {
            server,
            probe_at: None,
            failures: 0,
            read_at: None,
            unread: Vec::new(),
            draining: None,
        }
    }

    #[cfg(test)]
    pub(super) fn with_probe_due(server: &Arc<Server>) -> Self {
        Self {
            probe_at: Some(Instant::START),
            ..Self::new(Arc::clone(server))
        }
    }

    /// Returns when work is due, if the connection that is read does not become ready before.
    pub(in crate::runtime) fn next(&self) -> Instant {
        let draining = self.draining.as_ref().map(|draining| draining.until);
        // One connection is read at a time.
        let next = draining.or(self.read_at).into_iter().chain(self.probe_at);
        next.min().unwrap_or(Instant::NEVER)
    }

    /// Returns the connection that is read now.
    pub(in crate::runtime) fn draining(&self) -> Option<&Draining> {
        self.draining.as_deref()
    }

    /// Returns whether unread replies are read or will be.
    pub(in crate::runtime) fn is_reading(&self) -> bool {
        self.draining.is_some() || self.read_at.is_some()
    }

    /// Makes the next [`turn`](Self::turn) read all unread replies.
    pub(in crate::runtime) fn read_now(&mut self) {
        self.read_at = Some(Instant::START);
    }

    /// Takes the tasks of the server. Returns the releases to repeat.
    pub(in crate::runtime) fn take_tasks(
        &mut self,
        runtime: &Runtime,
        member: &Member,
        now: Instant,
    ) -> Vec<Release> {
        let mut releases = Vec::new();
        for task in member.tasks.try_iter() {
            match task {
                MemberTask::Undo(release) => {
                    runtime.endpoints.note_release(&release.id);
                    let may_precede_acquire = release.may_yet_run(member.index);
                    let mut repeated = Release::new(release.keys, release.id, release.until);
                    repeated.may_precede_acquire = may_precede_acquire;
                    releases.push(repeated);
                }
                MemberTask::Drain(connection) => self.unread.push(*connection),
                MemberTask::ReadUnread => self.read_at = Some(now.after(READ_AFTER)),
                MemberTask::Probe => {
                    self.failures = 0;
                    self.probe_at = Some(now.after(PROBE_BACKOFF.pause(0)));
                }
            }
        }
        releases
    }

    /// Reads unread replies that have arrived. Returns whether a probe must be sent.
    pub(in crate::runtime) fn turn(&mut self, is_closed: bool, now: Instant) -> bool {
        if is_closed {
            // A closed client needs no probe. If one stayed due, the thread would not sleep.
            self.probe_at = None;
        }
        let Some(member) = &self.server.member else {
            return false;
        };
        let timeout = self.server.command_timeout();
        loop {
            let is_due = self.read_at.is_some_and(|at| at <= now);
            let next = || {
                let next = self.unread.pop();
                let next = next.or_else(|| is_due.then(|| member.take_unread())?)?;
                Some(Draining::new(next, now, timeout))
            };
            let Some(draining) = self.draining.take().or_else(next) else {
                self.read_at = self.read_at.filter(|_| !is_due);
                break;
            };
            match draining.turn(member, now, timeout) {
                Drained::Waits(draining) => {
                    self.draining = Some(draining);
                    break;
                }
                Drained::Kept => {}
                Drained::Failed => {
                    self.read_at = None;
                    self.unread.drain(..).for_each(|it| member.settle_all(it));
                    member.mark_down();
                    break;
                }
            }
        }
        let is_due = self.probe_at.is_some_and(|at| at <= now);
        if is_due {
            self.probe_at = Some(Instant::NEVER);
        }
        is_due
    }

    /// Notes what became of a probe that was sent at `sent`.
    pub(in crate::runtime) fn probed(
        &mut self,
        runtime: &Runtime,
        sent: Instant,
        end: Result<(), Fault>,
    ) {
        let Some(member) = &self.server.member else {
            return;
        };
        let server = self.server.label();
        match end {
            Ok(()) => {
                self.probe_at = None;
                member.mark_up(sent.until(Instant::now()));
                runtime.deployment.member_is_up();
                runtime.waiters.wake_all();
                logging::debug!(server = server; "{server} answers again");
            }
            Err(fault) => {
                self.failures = self.failures.saturating_add(1);
                let pause = PROBE_BACKOFF.pause(self.failures);
                self.probe_at = Some(Instant::now().after(pause));
                logging::debug!(server = server; "{server} is marked down: {fault}");
            }
        }
    }
}
