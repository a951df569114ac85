//! A call that acquires a set of names, all or none.
//!
//! ```text
//! All: all names at once ──granted──▶ lease of the set
//!   │ refused
//!   ▼            each name in order, a call of its fair lock under the set's id; the engine renews
//! One(0) ─granted▶ One(1) ─▶ … ─▶ One(n−1) ─▶ Join: all names are renewed together, "ours"
//!   ▲                │                           │             └──▶ lease of the set
//!   └────────────────┴── a kept name is lost, a command has no reply, a place is gone, not ours:
//!                        every name is released, and the set begins again under another id
//! ```
//!
//! Sets take their names in one order: they cannot block each other for ever.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::config::LeaseTerms;
use crate::holder_id::HolderId;
use crate::kernel::answers::untaken;
use crate::kernel::call::{Call, CallTerms, Step};
use crate::kernel::entry::LockEntry;
use crate::kernel::held::{HeldLease, Holder};
use crate::kernel::holdings::Grant;
use crate::kernel::lease::{LeaseState, LeaseStatus};
use crate::kernel::mutant::{Mutant, is_on};
use crate::kernel::request::{IdOfSet, RequestNo, RequestState, Serves};
use crate::kernel::waiter::{Failure, Outcome, Refused, Wait, WaiterNo};
use crate::kernel::{Context, Discard, Effects, Kernel};
use crate::protocol::answer::Answer;
use crate::protocol::place::TokenBlock;
use crate::protocol::primitive::Primitive;
use crate::protocol::refusal::RefusedName;
use crate::redis::Fault;
use crate::token::FencingToken;

/// The longest ttl of a name that a set keeps while it waits for the next ones.
const KEPT_FOR: Duration = Duration::from_secs(3);

pub(crate) struct SetAcquire {
    /// What the caller wants; its lock is that of the set.
    wants: CallTerms,
    /// The fair lock of each name, in the order in which all sets take them.
    names: Vec<Arc<dyn Primitive>>,
    id: HolderId,
    kept: Vec<Arc<HeldLease>>,
    /// It has parked, and does not send any more.
    has_parked: bool,
    stage: Stage,
    call: Call,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    All,
    /// The name with this index.
    One(usize),
    Join,
}

impl SetAcquire {
    pub(crate) fn new(
        kernel: &Kernel,
        wants: CallTerms,
        names: Vec<Arc<dyn Primitive>>,
        now: Instant,
    ) -> Self {
        let all = CallTerms {
            wait: Wait::Once,
            ..wants.clone()
        };
        Self {
            id: kernel.fresh.id(&*wants.lock),
            has_parked: wants.by_engine,
            call: Call::new(kernel, all, now),
            wants,
            names,
            kept: Vec::new(),
            stage: Stage::All,
        }
    }

    /// Returns whether it keeps a name under this id, held or lost.
    #[cfg(test)]
    pub(super) fn keeps(&self, id: &str) -> bool {
        self.kept.iter().any(|lease| lease.id.as_str() == id)
    }

    /// Returns whether it has waited for another holder.
    pub(crate) fn has_waited(&self) -> bool {
        self.stage != Stage::All
    }

    /// The call that it waits for now.
    pub(crate) fn call(&self) -> &Call {
        &self.call
    }

    pub(crate) fn begin(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) -> Step {
        let step = self.call.begin(kernel, now, fx);
        self.go_on(step, kernel, now, fx)
    }

    /// The end of the command that this thread sent at `sent`.
    pub(crate) fn replied(
        &mut self,
        kernel: &Kernel,
        end: Result<Answer, Fault>,
        sent: Instant,
        now: Instant,
        fx: &mut Effects,
    ) -> Step {
        let step = self.call.replied(kernel, end, sent, now, fx);
        self.go_on(step, kernel, now, fx)
    }

    /// The thread was unparked, or a nap is over, or the deadline has come.
    pub(crate) fn woken(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) -> Step {
        let is_lost = |lease: &Arc<HeldLease>, fx: &mut Effects| {
            !matches!(lease.status(now, fx), LeaseStatus::Held(_))
        };
        let has_lost = self.kept.iter().any(|lease| is_lost(lease, fx));
        let mut step = self.call.woken(kernel, now, fx);
        if has_lost && matches!(step, Step::Park(_)) {
            let outcome = self.call.leave(kernel, Failure::Restart, now, fx);
            step = Step::Done(outcome);
        }
        self.go_on(step, kernel, now, fx)
    }

    /// The call is cancelled or given up.
    pub(crate) fn leave(
        &mut self,
        kernel: &Kernel,
        failure: Failure,
        now: Instant,
        fx: &mut Effects,
    ) -> Outcome {
        let outcome = self.call.leave(kernel, failure.clone(), now, fx);
        match (&outcome, self.stage) {
            (Outcome::Lease(..), Stage::All | Stage::Join) => {
                self.absorb(kernel, now, fx);
                outcome
            }
            (Outcome::Lease(lease, _), Stage::One(_)) => {
                self.kept.push(Arc::clone(lease));
                self.give_up(kernel, now, fx);
                Outcome::Failed(failure)
            }
            _ => {
                self.give_up(kernel, now, fx);
                outcome
            }
        }
    }

    /// The call's thread panics.
    pub(crate) fn abandon(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) {
        self.call.abandon(kernel, now, fx);
        self.give_up(kernel, now, fx);
    }

    /// Applies the end of a part of the call.
    fn go_on(&mut self, step: Step, kernel: &Kernel, now: Instant, fx: &mut Effects) -> Step {
        let mut step = step;
        loop {
            let outcome = match step {
                Step::Send(..) => return step,
                Step::Park(_) => {
                    self.has_parked = true;
                    return step;
                }
                Step::Done(outcome) => outcome,
            };
            step = match (self.stage, outcome) {
                (Stage::All | Stage::Join, Outcome::Lease(lease, token)) => {
                    self.absorb(kernel, now, fx);
                    return Step::Done(Outcome::Lease(lease, token));
                }
                (Stage::One(n), Outcome::Lease(lease, _)) => {
                    self.kept.push(lease);
                    match n + 1 < self.names.len() {
                        true => self.ask_for(n + 1, kernel, now, fx),
                        false => self.join(kernel, now, fx),
                    }
                }
                (Stage::All, Outcome::Refused(by)) => {
                    let is_over = self.wants.wait == Wait::Once || now >= self.wants.deadline;
                    if is_over {
                        return Step::Done(Outcome::Refused(by));
                    }
                    self.ask_for(0, kernel, now, fx)
                }
                (_, Outcome::Failed(Failure::Restart)) => {
                    self.give_up(kernel, now, fx);
                    self.id = kernel.fresh.id(&*self.wants.lock);
                    self.ask_for(0, kernel, now, fx)
                }
                (stage, outcome) => {
                    self.give_up(kernel, now, fx);
                    return Step::Done(of_name(stage, outcome));
                }
            };
        }
    }

    /// Begins to ask for a name.
    fn ask_for(&mut self, n: usize, kernel: &Kernel, now: Instant, fx: &mut Effects) -> Step {
        self.stage = Stage::One(n);
        let ttl = self.wants.terms.ttl.min(KEPT_FOR);
        let wants = CallTerms {
            lock: Arc::clone(&self.names[n]),
            terms: LeaseTerms {
                ttl,
                renew_every: Some(ttl / 3),
                max_hold: Duration::MAX,
                handoffs: 0,
                ..self.wants.terms
            },
            holder: Holder {
                is_silent: true,
                ..Holder::default()
            },
            by_engine: self.has_parked,
            ..self.wants.clone()
        };
        self.call = Call::new(kernel, wants, now).of_set(self.id.clone());
        self.call.begin(kernel, now, fx)
    }

    /// The set has all names: they are renewed together.
    fn join(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) -> Step {
        self.stage = Stage::Join;
        let tokens = self.kept.iter().map(|lease| lease.token()).collect();
        self.call = Call::new(kernel, self.wants.clone(), now).of_set(self.id.clone());
        self.call.join(kernel, tokens, now, fx)
    }

    /// Releases every name that the set has kept.
    fn give_up(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) {
        for lease in self.kept.drain(..) {
            if is_on(Mutant::KeptNamesAreForgotten) {
                continue;
            }
            let lock = Arc::clone(&lease.lock);
            kernel.with_entry(&lock, now, fx, |entry, cx| {
                entry.give_up(&lease, lease.token(), cx);
            });
        }
    }

    /// The lease of the set covers the names that it has kept: their leases end without a release.
    fn absorb(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) {
        if is_on(Mutant::KeptNamesAreReleased) {
            return self.give_up(kernel, now, fx);
        }
        for lease in self.kept.drain(..) {
            let lock = Arc::clone(&lease.lock);
            kernel.with_entry(&lock, now, fx, |entry, cx| entry.absorbed(&lease, cx));
        }
    }
}

/// Returns the outcome of a set whose call at this stage has ended: a refusal names the name.
fn of_name(stage: Stage, outcome: Outcome) -> Outcome {
    match (stage, outcome) {
        (Stage::One(n), Outcome::Refused(Some(refused))) => {
            let by = RefusedName {
                name: n,
                ..RefusedName::clone(&refused.by)
            };
            let by = Arc::new(by);
            Outcome::Refused(Some(Refused { by, ..refused }))
        }
        (_, outcome) => outcome,
    }
}

impl LockEntry {
    /// A request of a set would have to send its id again: the set begins again.
    pub(super) fn end_of_set(&mut self, n: usize, cx: &mut Context<'_>) {
        let request = self.requests.remove(n);
        if let Serves::One(no) = request.serves {
            self.end_waiter(no, Outcome::Failed(Failure::Restart), cx);
        }
    }

    /// A message may concern a request of a set.
    pub(super) fn look_at(&mut self, n: usize, at: Instant, _: &mut Context<'_>) {
        let request = &mut self.requests[n];
        match &mut request.state {
            RequestState::Queued(place) if !place.refreshing => {
                place.refresh_at = place.refresh_at.min(at);
            }
            RequestState::Queued(_) | RequestState::Sent => request.again = request.again.min(at),
            RequestState::Due(_) | RequestState::Won(_) | RequestState::Confirming(_) => return,
        }
        self.touch(at, at);
    }

    /// The set that the call waits for has all names: a renewal must confirm them together.
    pub(super) fn confirm_set(
        &mut self,
        no: WaiterNo,
        id: HolderId,
        tokens: Vec<FencingToken>,
        cx: &mut Context<'_>,
    ) {
        let serves = Serves::One(no);
        let Some(n) = self.requests.iter().position(|it| it.serves == serves) else {
            return;
        };
        let of_request: RequestNo = self.requests[n].no;
        cx.kernel.table.note_id(&id, &self.name, of_request);
        let block = TokenBlock::one(tokens[0]);
        self.requests[n].of_set = Some(IdOfSet {
            id: id.clone(),
            is_used: true,
            tokens,
        });
        if is_on(Mutant::SetIsNotConfirmed) {
            return self.win_unconfirmed(n, id, block, cx);
        }
        self.confirm_first(n, &id, block, false, cx);
        debug_assert!(matches!(
            self.requests[n].state,
            RequestState::Confirming(_)
        ));
    }

    /// A mistake, for the simulation: the names may have been lost.
    fn win_unconfirmed(
        &mut self,
        n: usize,
        id: HolderId,
        tokens: TokenBlock,
        cx: &mut Context<'_>,
    ) {
        let terms = self.requests[n].terms;
        self.requests[n].state = RequestState::Sent;
        let Some(lease) = LeaseState::acquired(cx.now, cx.now, &untaken(&terms)) else {
            return;
        };
        let grant = Grant {
            id,
            tokens,
            lease,
            terms,
            at: None,
            all: self.requests[n].of_set.as_ref().map(|it| it.tokens.clone()),
            in_queue: false,
        };
        self.win(n, grant, cx);
    }

    /// The lease of a name goes on as a part of a set's lease.
    fn absorbed(&mut self, lease: &Arc<HeldLease>, cx: &mut Context<'_>) {
        if lease.begin_release(lease.token(), cx.now, cx.fx).is_some() {
            lease.end_release(None, cx.fx);
        }
        let Some(n) = self.held.iter().position(|held| held.lease.id == lease.id) else {
            return;
        };
        let held = self.held.remove(n);
        held.lease.rearm(cx.kernel, cx.now, cx.fx);
        cx.fx.discard.push(Discard::Lease(held.lease));
        // The line waited for the end of that lease. Now it waits for the set, in Redis.
        if !is_on(Mutant::KeptNamesEndInSilence) {
            self.serve(cx.now, cx);
        }
    }
}
