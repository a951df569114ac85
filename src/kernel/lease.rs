//! The commands of a lease: renewals, and what its holder wants and waits for.
//!
//! While the lease is held, at most one of them is in flight. The engine sends all of them. The
//! arithmetic is that of `lease/state.rs`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::kernel::command::{Command, What};
use crate::kernel::effects::{Confirmed, Effects, Renewal};
use crate::kernel::failure::Failure;
use crate::kernel::fault::{Fault, unexpected};
use crate::kernel::held::{HeldLease, LeaseInner};
use crate::kernel::operation::{Operation, OperationCell, Wanted};
use crate::lease::state::BeforeSetTtl;
use crate::lease::status::{Due, LeaseStatus, RenewalRequest};
use crate::lost::Lost;
use crate::mutant::{Mutant, is_on};
use crate::protocol::answer::{Answer, KeyState};
use crate::protocol::refusal::RefusedName;
use crate::token::FencingToken;

/// How much later than its caller the engine ends a caller's command: the caller's own timeout
/// usually comes first.
pub(super) const GRACE: Duration = Duration::from_millis(50);

/// The command of a lease that is in flight: there is at most one.
#[derive(Debug)]
pub(crate) struct LeaseWork {
    pub(crate) lease: Arc<HeldLease>,
    pub(crate) kind: WorkKind,
    /// The cell of the operation, if the holder waits for it.
    pub(crate) cell: Option<Arc<OperationCell>>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum WorkKind {
    Renewal(RenewalRequest),
    SetTtl(Duration, BeforeSetTtl),
}

/// The next step of a holder's thread at the end of its holding.
#[derive(Debug)]
pub(crate) enum Unlock {
    HandedOff,
    /// The client keeps the lease for a moment.
    Lingers,
    /// The caller sends it, and reports its end with `unlocked`.
    Send(Command),
    /// The engine sends it. The caller waits for the result in the cell; a loss is the lease's
    /// status then.
    Wait(Arc<OperationCell>),
    /// The engine renews the lease. Then `begin_unlock` is called again.
    RenewFirst(Arc<OperationCell>),
    AlreadyLost(Lost),
    /// This holder has released the lease before.
    Over,
}

/// The result of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unlocked {
    Released,
    Lost(Lost),
    /// No reply: the engine repeats the release.
    Unconfirmed,
}

impl LeaseWork {
    /// Returns whether it is a renewal that nobody waits for.
    pub(super) fn is_planned(&self) -> bool {
        matches!(self.kind, WorkKind::Renewal(_)) && self.cell.is_none()
    }

    /// Returns the command of a renewal.
    pub(super) fn renewal(&self) -> Option<Command> {
        let WorkKind::Renewal(request) = self.kind else {
            return None;
        };
        let what = What::Renew {
            id: self.lease.id.clone(),
            ttl: request.ttl,
            may_shorten: false,
        };
        let command = Command::new(&self.lease.renewed_as(), what);
        Some(command.acknowledged_by(self.lease.replicas()))
    }
}

impl HeldLease {
    /// Returns the command that releases the lease.
    pub(super) fn release_command(&self) -> Command {
        let what = What::Leave {
            id: self.id.clone(),
            may_be_plain: self.run.is_granted_in_queue(),
        };
        Command::new(&self.lock, what)
    }

    /// Returns what a reply would have said about the lease.
    pub(super) fn named(&self) -> RefusedName {
        RefusedName {
            name: 0,
            holder: self.id.as_str().into(),
            remaining: Some(Duration::ZERO),
            detail: None,
        }
    }

    /// Returns what the end of a release says of the lease. `may_have_run`: an earlier try got no
    /// reply.
    pub(super) fn unlocked(
        &self,
        end: &Result<Answer, Fault>,
        may_have_run: bool,
        now: Instant,
    ) -> Unlocked {
        let Some(found) = end.as_ref().ok().and_then(Answer::key_state) else {
            return Unlocked::Unconfirmed;
        };
        match found {
            KeyState::Ours => Unlocked::Released,
            _ if may_have_run => Unlocked::Released,
            _ if !self.covers(now) => Unlocked::Lost(Lost::Expired),
            KeyState::Gone => Unlocked::Lost(Lost::Deleted),
            KeyState::Foreign => Unlocked::Lost(Lost::Taken),
        }
    }

    /// Takes back an operation whose holder waits no longer, unless its command was sent.
    pub(crate) fn cancel(&self, cell: &Arc<OperationCell>) {
        if let Some(extras) = &mut self.inner.lock().extras {
            (extras.operations).retain(|operation| !Arc::ptr_eq(&operation.cell, cell));
        }
    }

    /// Begins the holder's next operation, or a renewal that is due; at most one command is in
    /// flight.
    pub(crate) fn begin_work(
        self: &Arc<Self>,
        now: Instant,
        fx: &mut Effects,
    ) -> Option<(Command, LeaseWork)> {
        let (wanted, kind, cell) = self.with(fx, |inner| {
            let front = inner.extras.as_ref().and_then(|it| it.operations.front());
            let wanted = front.map(|it| it.what.clone());
            let kind = match wanted {
                None => WorkKind::Renewal(inner.lease.begin_due_renewal(now)?),
                Some(Wanted::Renew | Wanted::Downgrade(_)) => {
                    WorkKind::Renewal(inner.lease.begin_full_renewal(now)?)
                }
                Some(Wanted::SetTtl(ttl)) => WorkKind::SetTtl(ttl, inner.lease.set_ttl(now, ttl)?),
            };
            let operations = inner.extras.as_mut().map(|it| &mut it.operations);
            let front = operations.and_then(VecDeque::pop_front);
            let cell = front.map(|it| it.cell);
            Some((wanted, kind, cell))
        })?;
        let (id, may_shorten) = (self.id.clone(), matches!(kind, WorkKind::SetTtl(..)));
        let ttl = match kind {
            WorkKind::Renewal(request) => request.ttl,
            WorkKind::SetTtl(ttl, _) => ttl,
        };
        let what = match wanted {
            Some(Wanted::Downgrade(_)) => What::Downgrade { id, ttl },
            _ => What::Renew {
                id,
                ttl,
                may_shorten,
            },
        };
        let command = Command::new(&self.renewed_as(), what).acknowledged_by(self.replicas());
        let work = LeaseWork {
            lease: Arc::clone(self),
            kind,
            cell,
        };
        Some((command, work))
    }

    /// Applies the end of a command that `begin_work` returned. `is_final`: the server that
    /// confirmed it has the only copy of the key. `in_part`: it may have run at
    /// some servers although it has failed.
    pub(crate) fn answered(
        self: &Arc<Self>,
        work: &LeaseWork,
        end: Result<Answer, Fault>,
        [sent, now]: [Instant; 2],
        (is_final, in_part): (bool, bool),
        fx: &mut Effects,
    ) {
        let found = end.as_ref().ok().and_then(Answer::key_state);
        let counts = match work.kind {
            WorkKind::Renewal(request) => request.renews,
            WorkKind::SetTtl(..) => true,
        };
        let report = self.with(fx, |inner| {
            let lag = inner.lease.lag(now);
            inner.apply(work.kind, (found, &end), [sent, now], (is_final, in_part));
            let remaining = match (work.kind, inner.lease.status(now)) {
                (WorkKind::Renewal(_), LeaseStatus::Held(remaining)) => Some(remaining),
                _ => None,
            };
            let end = match (found, &end) {
                (Some(KeyState::Ours), _) => Some(Ok(Confirmed {
                    lag,
                    remaining,
                    took: sent.until(now),
                })),
                (Some(KeyState::Gone | KeyState::Foreign), _) => None,
                (None, Err(fault)) => Some(Err(fault.clone())),
                (None, Ok(_)) => Some(Err(Fault::Unknown(unexpected()))),
            };
            let end = end.filter(|_| counts);
            end.map(|end| self.renewal(inner, end))
        });
        fx.renewed.extend(report);
        if let Some(cell) = &work.cell {
            fx.operation_ended(cell, result(found, end));
        }
    }

    /// A change to this ttl may run later.
    pub(super) fn limit(&self, ttl: Duration) {
        self.inner.lock().lease.limit(ttl);
    }

    /// Returns whether the thread that releases the lease stands still.
    pub(super) fn is_release_overdue(&self, now: Instant, command_timeout: Duration) -> bool {
        let since = self.inner.lock().releasing_since;
        let since = since.filter(|_| !is_on(Mutant::StoppedReleaseBlocks));
        since.is_some_and(|since| now >= since.after(command_timeout).after(GRACE))
    }

    /// Returns the end of a renewal, to be reported.
    fn renewal(&self, inner: &LeaseInner, end: Result<Confirmed, Fault>) -> Renewal {
        Renewal {
            lock: Arc::clone(&self.lock),
            id: self.id.clone(),
            token: inner.token,
            ttl_ms: inner.lease.ttl.as_millis() as u64,
            trace_id: inner.holder.trace_id().cloned(),
            on_renew: inner.holder.on_renew().cloned(),
            end,
        }
    }
}

impl LeaseInner {
    /// Applies the end of a command, which has `found` the key in this state.
    fn apply(
        &mut self,
        kind: WorkKind,
        (found, end): (Option<KeyState>, &Result<Answer, Fault>),
        [sent, now]: [Instant; 2],
        (is_final, in_part): (bool, bool),
    ) {
        let lease = &mut self.lease;
        // A lease that expired before the reply arrived is lost as expired.
        lease.status(now);
        match (kind, found) {
            (WorkKind::Renewal(request), Some(KeyState::Ours)) => {
                let from_reply = is_on(Mutant::RenewalCountsFromReply);
                let sent = if from_reply { now } else { sent };
                lease.confirmed(sent, now, request);
                if let Some(part) = &mut self.part {
                    part.renewed(request, sent.until(now));
                }
            }
            (WorkKind::Renewal(_), _) => lease.unconfirmed(now),
            (WorkKind::SetTtl(ttl, _), Some(KeyState::Ours)) => {
                lease.ttl_set(sent, now, ttl, is_final);
            }
            (WorkKind::SetTtl(ttl, before), _) => match end {
                Err(fault) if !fault.may_have_run() && !in_part => lease.ttl_not_set(now, before),
                _ if is_on(Mutant::SetTtlIsCertain) => lease.ttl_set(sent, now, ttl, is_final),
                _ => lease.unanswered(now, ttl),
            },
        }
        match found {
            Some(KeyState::Gone) if is_on(Mutant::ReleasedIsLost) => lease.was_lost(Lost::Deleted),
            Some(KeyState::Gone) => lease.lose(Lost::Deleted, now),
            Some(KeyState::Foreign) => lease.lose(Lost::Taken, now),
            Some(KeyState::Ours) | None => {}
        }
    }

    /// Adds an operation of the holder of `token`. Returns false if it holds the lease no more.
    pub(super) fn want(&mut self, token: FencingToken, operation: Operation, now: Instant) -> bool {
        let is_held = matches!(self.lease.status(now), LeaseStatus::Held(_));
        if self.token != token || self.released_by_holder || !is_held {
            return false;
        }
        if let Wanted::Downgrade(reader) = &operation.what {
            // From before the command is sent: if no reply arrives, it may run later.
            self.extras().reader = Some(Arc::clone(reader));
        }
        self.extras().operations.push_back(operation);
        true
    }

    /// Returns when the engine must look at the lease, and until when it may sleep if it sleeps.
    /// `None` if never again.
    pub(super) fn due(&self, now: Instant, command_timeout: Duration) -> Option<[Instant; 2]> {
        let extras = self.extras.as_ref();
        if extras.is_some_and(|it| it.release.is_some()) {
            return Some([Instant::START, Instant::START]);
        }
        if let Some(since) = self.releasing_since {
            if is_on(Mutant::StoppedReleaseBlocks) {
                return None;
            }
            let at = since.after(command_timeout).after(GRACE);
            return Some([at, at]);
        }
        if is_on(Mutant::LossesAreLate) && self.lease.is_busy() {
            return None;
        }
        let part = self
            .part
            .as_ref()
            .map_or(Instant::NEVER, |part| part.due(self.since.is_some()));
        match self.lease.due(now) {
            // An operation may have found the loss: the calls that wait for it still sleep.
            Due::Nothing if self.lease.lost().is_some() && !self.has_left => Some([now, now]),
            Due::Nothing => None,
            Due::Renewal => Some([now, now]),
            // In flight, no operation can begin: the end of the command looks again.
            Due::At { best, latest } => {
                if extras.is_none_or(|it| it.operations.is_empty()) || self.lease.is_busy() {
                    Some([best.min(part), latest.min(part)])
                } else {
                    Some([now, now])
                }
            }
        }
    }
}

fn result(found: Option<KeyState>, end: Result<Answer, Fault>) -> Result<(), Failure> {
    match (found, end) {
        // A loss is reported by the status.
        (Some(_), _) => Ok(()),
        (None, Ok(_)) => Err(Failure::unreachable(None)),
        (None, Err(Fault::NotRun(cause) | Fault::Unknown(cause))) => {
            Err(Failure::unreachable(Some(cause)))
        }
        (None, Err(Fault::NotReplicated(error) | Fault::Rejected(error))) => {
            Err(Failure::Rejected(error))
        }
        (None, Err(Fault::Open(open))) => Err(Failure::Rejected((*open).into())),
    }
}
