//! Work of the io thread for one server of a quorum: reading replies that callers left unread, and
//! probing a server that is marked down.

use std::time::Duration;

use crate::clock::Instant;
use crate::lease::release::Release;
use crate::logging;
use crate::protocol::probe::Probe;
use crate::redis::{Member, MemberTask};
use crate::runtime::endpoint::Endpoint;
use crate::runtime::state::Runtime;
use crate::wait_policy::Backoff;

/// How long replies that no caller waited for may stay unread. They tell only what to undo, and how
/// fast the server is.
const READ_AFTER: Duration = Duration::from_millis(100);

/// The pause between probes of a server that is marked down.
const PROBE_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(100), Duration::from_secs(4)).jitter(0.5);

/// The reads and probes that the io thread must still make; none for a server outside a quorum.
#[derive(Default)]
pub(in crate::runtime) struct Recovery {
    /// When the server is probed next, and how many probes have failed since it was marked down.
    probe_at: Option<(Instant, u32)>,
    /// When the replies that callers left unread are read.
    read_at: Option<Instant>,
}

impl Recovery {
    /// Returns the state of a thread that starts.
    ///
    /// The thread may have restarted after a panic that lost the former state. So it reads unread
    /// replies at once, and probes a server that is marked down.
    pub(in crate::runtime) fn begin(member: Option<&Member>) -> Self {
        member.map_or_else(Self::default, |member| Self {
            probe_at: member.is_down().then_some((Instant::START, 0)),
            read_at: Some(Instant::START),
        })
    }

    #[cfg(test)]
    pub(super) fn with_probe_due() -> Self {
        Self {
            probe_at: Some((Instant::START, 0)),
            read_at: None,
        }
    }

    /// Returns the instants at which work is due.
    pub(in crate::runtime) fn due(&self) -> impl Iterator<Item = Instant> {
        let probe_at = self.probe_at.map(|(at, _)| at);
        probe_at.into_iter().chain(self.read_at)
    }

    /// Makes the next [`run_due`](Self::run_due) read all unread replies.
    pub(in crate::runtime) fn read_now(&mut self) {
        self.read_at = Some(Instant::START);
    }

    /// Runs or schedules a task from the queue of `member`. If the task is an undo, returns the
    /// release to repeat.
    pub(in crate::runtime) fn take(
        &mut self,
        runtime: &Runtime,
        endpoint: &Endpoint,
        member: &Member,
        task: MemberTask,
    ) -> Option<Release> {
        match task {
            MemberTask::Undo(release) => {
                runtime.endpoints.note_release(&release.id);
                let may_precede_acquire = release.may_yet_run(member.index);
                let mut repeated = Release::new(release.keys, release.id, release.until);
                repeated.may_precede_acquire = may_precede_acquire;
                return Some(repeated);
            }
            MemberTask::Drain(connection) => {
                if !member.drain(*connection, endpoint.server.command_timeout()) {
                    member.mark_down();
                }
            }
            MemberTask::ReadUnread => self.read_at = Some(Instant::now().after(READ_AFTER)),
            MemberTask::Probe => {
                self.probe_at = Some((Instant::now().after(PROBE_BACKOFF.pause(0)), 0));
            }
        }
        None
    }

    /// Reads unread replies if that is due, and probes a server that is marked down if that is due.
    pub(in crate::runtime) fn run_due(&mut self, runtime: &Runtime, endpoint: &Endpoint) {
        if runtime.is_closed() {
            // A closed client needs no probe. If one stayed due, the thread would not sleep.
            self.probe_at = None;
        }
        let Some(member) = &endpoint.server.member else {
            return;
        };
        let now = Instant::now();
        if self.read_at.is_some_and(|at| at <= now) {
            self.read_at = None;
            if !member.read_unread(endpoint.server.command_timeout()) {
                member.mark_down();
            }
        }
        let Some((_, failures)) = self.probe_at.filter(|(at, _)| *at <= now) else {
            return;
        };
        let until = now.after(endpoint.server.command_timeout());
        match endpoint.server.probe(&Probe::of_server(), until) {
            Ok(()) => {
                self.probe_at = None;
                member.mark_up(now.until(Instant::now()));
                runtime.deployment.member_is_up();
                runtime.waiters.wake_all();
                let server = endpoint.server.label();
                logging::debug!(server = server; "{server} answers again");
            }
            Err(fault) => {
                let pause = PROBE_BACKOFF.pause(failures + 1);
                self.probe_at = Some((Instant::now().after(pause), failures.saturating_add(1)));
                let server = endpoint.server.label();
                logging::debug!(server = server; "{server} is marked down: {fault}");
            }
        }
    }
}
