//! What the io thread does for one server of a quorum: reads what its callers left unread, and asks again one that is left aside.

use std::time::Duration;

use crate::clock::Instant;
use crate::lease::undo::Undo;
use crate::logging;
use crate::redis::{Cap, Member, MemberTask, PendingRelease};
use crate::runtime::endpoint::Endpoint;
use crate::runtime::state::Runtime;
use crate::wait_policy::Backoff;

/// How long answers that nobody waited for may lie: all that matters in them is what to undo, and
/// how fast the server is.
const TIDY_AFTER: Duration = Duration::from_millis(100);

/// Between probes of a server that is left aside.
const ASIDE: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(4)).jitter(0.5);

#[derive(Default)]
pub(in crate::runtime) struct Recovery {
    /// When it is tried whether the server answers again, and how often it did not.
    ask_at: Option<(Instant, u32)>,
    /// When what callers have left unread is read.
    tidy_at: Option<Instant>,
}

impl Recovery {
    /// For a thread that begins: what one before it knew is gone with it, after a panic.
    pub(in crate::runtime) fn begin(member: Option<&Member>) -> Self {
        member.map_or_else(Self::default, |member| Self {
            ask_at: member.is_aside().then_some((Instant::START, 0)),
            tidy_at: Some(Instant::START),
        })
    }

    /// When there is something to do.
    pub(in crate::runtime) fn due(&self) -> impl Iterator<Item = Instant> {
        let ask_at = self.ask_at.map(|(at, _)| at);
        ask_at.into_iter().chain(self.tidy_at)
    }

    /// Has what lies unread read by the next [`see_to`](Self::see_to).
    pub(in crate::runtime) fn tidy_now(&mut self) {
        self.tidy_at = Some(Instant::START);
    }

    /// What a caller leaves to the thread. Returns what it is to undo.
    pub(in crate::runtime) fn take(
        &mut self,
        runtime: &Runtime,
        endpoint: &Endpoint,
        member: &Member,
        errand: MemberTask,
    ) -> Option<Undo> {
        match errand {
            MemberTask::Undo(promise) => {
                runtime.endpoints.note_undo(&promise.id);
                let may_yet_run = promise.may_yet_run(member.index);
                let PendingRelease {
                    keys, id, until, ..
                } = promise;
                return Some(if may_yet_run {
                    Undo::of_acquire(keys, id, until)
                } else {
                    Undo::of_release(keys, id, until)
                });
            }
            MemberTask::Drain(line) => {
                if !member.drain(*line, endpoint.server.command_timeout()) {
                    member.mark_down();
                }
            }
            MemberTask::Tidy => self.tidy_at = Some(Instant::now().after(TIDY_AFTER)),
            MemberTask::Probe => {
                self.ask_at = Some((Instant::now().after(ASIDE.pause(0)), 0));
            }
        }
        None
    }

    /// Reads what lies unread, and tries whether a server that was left aside answers again.
    pub(in crate::runtime) fn see_to(&mut self, runtime: &Runtime, endpoint: &Endpoint) {
        let Some(member) = &endpoint.server.member else {
            return;
        };
        let now = Instant::now();
        if self.tidy_at.is_some_and(|at| at <= now) {
            self.tidy_at = None;
            if !member.tidy(endpoint.server.command_timeout()) {
                member.mark_down();
            }
        }
        let Some((_, failures)) = self
            .ask_at
            .filter(|(at, _)| *at <= now && !runtime.is_closed())
        else {
            return;
        };
        let until = now.after(endpoint.server.command_timeout());
        match endpoint.server.ping(until, Cap::Exempt) {
            Ok(_) => {
                self.ask_at = None;
                member.is_back(now.until(Instant::now()));
                runtime.deployment.peer_is_back();
                runtime.waiters.wake_all();
                logging::debug!(server = endpoint.server.label(); "{} answers again", endpoint.server.label());
            }
            Err(fault) => {
                let pause = ASIDE.pause(failures + 1);
                self.ask_at = Some((Instant::now().after(pause), failures.saturating_add(1)));
                logging::debug!(server = endpoint.server.label(); "{} is left aside: {fault}", endpoint.server.label());
            }
        }
    }
}
