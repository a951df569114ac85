//! Checks that the members of a quorum are different servers.
//!
//! Every proposal has a fresh holder id, so a server whose lock key contains it has run this very
//! call before: under the name of another member, or because a proxy sent the call twice. Then each
//! member is asked to keep a value of its own, under one key that nobody else uses.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::error::Error;
use crate::kernel::fault::Fault;
use crate::logging;
use crate::protocol::answer::Answer;
use crate::protocol::primitive::Primitive;
use crate::protocol::reply::Reply;
use crate::quorum::round::Undecided;
use crate::random;
use crate::redis::conn::callers::Cap;
use crate::redis::quorum::Quorum;
use crate::redis::quorum::fault::shortage;
use crate::redis::server::Server;

/// How often the members are compared.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// How long the key of a check may stay.
const TTL_MS: &[u8] = b"5000";

/// What is known of the names of the members.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Two names of one server.
    same: Option<[usize; 2]>,
    is_checking: bool,
    checked: Option<Instant>,
}

impl Quorum {
    /// Returns a fault if no proposal may be sent: the breaker is open, or two members are one
    /// server.
    pub(crate) fn admit(&self, lock: &Arc<dyn Primitive>) -> Result<(), Fault> {
        let same = self.names.lock().same;
        if let Some([one, other]) = same {
            // The name of one may have been given to another server by now.
            self.check_names(lock);
            return Err(Fault::Rejected(Error::Config(format!(
                "the quorum names one server twice, as {} and as {}: name independent servers",
                self.servers[one].label(),
                self.servers[other].label()
            ))));
        }
        self.health.admit(&self.label).map(drop)
    }

    /// Records the end of a round for the breaker; `is_cut_short` if the servers may have had too
    /// little time. Failures of renewals and releases do not count.
    pub(crate) fn round_ended(
        &self,
        round: &Undecided<'_>,
        end: &Result<Answer, Fault>,
        is_cut_short: bool,
    ) {
        let has_answers = round.answers >= round.size.needed;
        match end {
            Err(Fault::NotRun(cause) | Fault::Unknown(cause))
                if !has_answers
                    && shortage(round).is_none()
                    && self
                        .health
                        .failed(Some(cause), round.is_proposal && !is_cut_short) =>
            {
                logging::warn!(
                    "circuit breaker open for the {} ({cause}): calls that do not wait fail at \
                     once until a majority answers a write",
                    self.label
                );
            }
            Err(Fault::NotRun(_) | Fault::Unknown(_)) if !has_answers => {}
            // A majority refuses writes.
            Err(fault) if fault.refuses_writes() => {}
            // A majority has answered.
            _ if round.was_sent && self.health.answered(Instant::now()) => logging::info!(
                "a majority of the {} answers again: its circuit breaker is closed",
                self.label
            ),
            _ => {}
        }
    }

    /// Compares the members, on a thread of its own, unless that was done a moment ago.
    pub(crate) fn check_names(&self, lock: &Arc<dyn Primitive>) {
        let now = Instant::now();
        {
            let mut names = self.names.lock();
            let is_recent = names.checked.is_some_and(|at| at.until(now) < CHECK_EVERY);
            if names.is_checking || is_recent {
                return;
            }
            names.is_checking = true;
        }
        let (servers, names) = (self.servers.clone(), Arc::clone(&self.names));
        let lock_key = lock.keys().inspect().keys[0].first().cloned();
        let key = [
            lock_key.unwrap_or_default(),
            random::uuid().to_string().into_bytes(),
        ]
        .join(&b':');
        let timeout = self.command_timeout;
        let check = move || {
            let same = find_same(&servers, &key, Instant::now().after(timeout));
            let mut names = names.lock();
            names.is_checking = false;
            names.checked = Some(Instant::now());
            if let Some(same) = same {
                names.same = same;
            }
        };
        if self.dialers.spawn(check).is_err() {
            self.names.lock().is_checking = false;
        }
    }
}

/// Returns two members that are one server, if there are such; `None` if not all have answered.
fn find_same(servers: &[Arc<Server>], key: &[u8], until: Instant) -> Option<Option<[usize; 2]>> {
    let values: Vec<Vec<u8>> = (0..servers.len())
        .map(|_| random::uuid().to_string().into_bytes())
        .collect();
    let steps = servers.len() * 2;
    let by = |step: usize| {
        let now = Instant::now();
        // A server that hangs must leave time for the others.
        now.after(now.until(until) / (steps - step) as u32)
    };
    for (n, server) in servers.iter().enumerate() {
        let args: [&[u8]; 5] = [key, &values[n], b"NX", b"PX", TTL_MS];
        // If it fails, the next step finds no value.
        let _ = server.command("SET", &args, by(n), Cap::Exempt, |_| Some(()));
    }
    let mut is_complete = true;
    for (n, server) in servers.iter().enumerate() {
        let read = Reply::into_text_or_nil;
        let value = server.command("GET", &[key], by(servers.len() + n), Cap::Exempt, read);
        let value = value.ok().flatten();
        match value.and_then(|value| values.iter().position(|known| *known == value)) {
            Some(m) if m != n => return Some(Some([m.min(n), m.max(n)])),
            Some(_) => {}
            None => is_complete = false,
        }
    }
    is_complete.then_some(None)
}
