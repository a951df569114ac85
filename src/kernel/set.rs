//! A call that acquires a set of names, all or none.
//!
//! ```text
//! one slot: All: all names at once ──granted──▶ lease of the set
//!             │ refused
//!             ▼      with queues: each name in order, under the set's id; the engine renews
//! several ─▶ One(0) ─granted▶ One(1) ─▶ … ─▶ One(n−1) ─▶ Join: all names are renewed together
//!   ▲          │                                           └─"ours"▶ lease of the set
//!   └──────────┴── a kept name is lost, a command has no reply, a place is gone, not ours:
//!                  every name is released, and the set begins again under another id
//!
//! without queues: All, or each name once ──refused──▶ Watch ──that name may be free──▶ again
//! ```
//!
//! Sets take their names in one order: they cannot block each other for ever.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Instant, LONGEST_SLEEP};
use crate::config::LeaseTerms;
use crate::holder_id::HolderId;
use crate::kernel::Kernel;
use crate::kernel::call::{Call, CallTerms, Step};
use crate::kernel::context::Context;
use crate::kernel::effects::Effects;
use crate::kernel::fault::Fault;
use crate::kernel::held::{HeldLease, Holder};
use crate::kernel::lease::LeaseStatus;
use crate::kernel::steps::count_step;
use crate::kernel::table::entry_name;
use crate::kernel::waiter::{Failure, Outcome, Refused, Wait, WaiterCell};
use crate::kernel::watch::Watching;
use crate::mutant::{Mutant, is_on};
use crate::protocol::answer::Answer;
use crate::protocol::primitive::Primitive;
use crate::wait_policy::RECONNECT;

/// The longest ttl of a name that a set keeps while it waits for the next ones.
const KEPT_FOR: Duration = Duration::from_secs(3);

pub(crate) struct SetAcquire {
    /// What the caller wants; its lock is that of the set.
    pub(crate) wants: CallTerms,
    pub(super) start: Instant,
    /// The lock of each name, fair with queues, in the order in which all sets take them.
    pub(super) names: Vec<Arc<dyn Primitive>>,
    pub(super) id: HolderId,
    kept: Vec<Arc<HeldLease>>,
    /// It has parked, and does not send any more.
    has_parked: bool,
    /// It was refused.
    pub(super) has_waited: bool,
    pub(crate) stage: Stage,
    call: Call,
    /// The name that last refused it, without queues.
    pub(crate) watch: Option<Watching>,
    /// How often in a row it began again because of a command without a reply.
    restarts: u32,
    /// How often it was refused, without queues; and the last refusal.
    pub(super) refusals: u32,
    pub(super) last: Option<Refused>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    All,
    /// The name with this index.
    One(usize),
    Join,
    Watch,
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
            start: now,
            id: kernel.fresh_id(&*wants.lock),
            has_parked: wants.by_engine,
            call: Call::new(kernel, all, now),
            wants,
            names,
            kept: Vec::new(),
            has_waited: false,
            stage: Stage::All,
            watch: None,
            restarts: 0,
            refusals: 0,
            last: None,
        }
    }

    /// Returns whether it waits in the queues of its names.
    pub(super) fn has_queues(&self) -> bool {
        self.names[0].queue().is_some()
    }

    /// Returns whether it keeps a name under this id, held or lost.
    #[cfg(sim)]
    pub(crate) fn keeps(&self, id: &str) -> bool {
        self.kept.iter().any(|lease| lease.id.as_str() == id)
    }

    /// Returns whether it has waited for another holder.
    pub(crate) fn has_waited(&self) -> bool {
        self.has_waited
    }

    /// The call that it waits for now.
    #[cfg(sim)]
    pub(crate) fn call(&self) -> &Call {
        &self.call
    }

    /// The cell that its thread sleeps on.
    pub(crate) fn cell(&self) -> Option<&Arc<WaiterCell>> {
        match (self.stage, &self.watch) {
            (Stage::Watch, Some(watch)) => Some(&watch.cell),
            _ => self.call.cell(),
        }
    }

    pub(crate) fn begin(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) -> Step {
        // Redis would refuse a name that this client has.
        let is_once = self.wants.wait == Wait::Once && !kernel.is_closed();
        if is_once && kernel.holder_of(&*self.wants.lock, now, fx).is_some() {
            return Step::Done(Outcome::Refused(None));
        }
        let cx = &mut kernel.at(now, fx);
        if is_once && let Some(refused) = self.goes_ahead(cx) {
            return Step::Done(Outcome::Refused(refused));
        }
        let step = self.attempt(cx);
        self.go_on(step, cx)
    }

    /// Returns the refusal of a set that does not wait, if a call of this client waits for one of
    /// its names.
    fn goes_ahead(&self, cx: &mut Context<'_>) -> Option<Option<Refused>> {
        self.names.iter().enumerate().find_map(|(n, lock)| {
            cx.with_existing(&entry_name(&**lock), |entry, cx| {
                let refused = entry
                    .is_waited_for(cx.now)
                    .then(|| entry.last_holder(cx.now));
                refused.map(|it| it.map(|it| it.of_name(n)))
            })
            .flatten()
        })
    }

    /// Asks for all names, or for one after the other if they are in several slots.
    pub(super) fn attempt(&mut self, cx: &mut Context<'_>) -> Step {
        if let Some(watch) = &self.watch {
            watch.cell.outcome.lock().take();
        }
        if !self.wants.lock.slots().is_empty() {
            return self.ask_for(0, cx);
        }
        let all = CallTerms {
            wait: Wait::Once,
            by_engine: self.has_parked,
            ..self.wants.clone()
        };
        self.stage = Stage::All;
        self.call = Call::new(cx.kernel, all, self.start);
        self.call.begin(cx.kernel, cx.now, cx.fx)
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
        self.go_on(step, &mut kernel.at(now, fx))
    }

    /// The thread was unparked, or a nap is over, or the deadline has come.
    pub(crate) fn woken(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) -> Step {
        if self.stage == Stage::Watch {
            let cx = &mut kernel.at(now, fx);
            let step = self.watched(cx);
            return self.go_on(step, cx);
        }
        let mut kept = self.kept.iter();
        let has_lost = kept.any(|lease| !matches!(lease.status(now, fx), LeaseStatus::Held(_)));
        let mut step = self.call.woken(kernel, now, fx);
        if has_lost && matches!(step, Step::Park(_)) {
            let outcome = self.call.leave(kernel, Failure::Restart, now, fx);
            step = Step::Done(outcome);
        }
        self.go_on(step, &mut kernel.at(now, fx))
    }

    /// The call is cancelled or given up.
    pub(crate) fn leave(
        &mut self,
        kernel: &Kernel,
        failure: Failure,
        now: Instant,
        fx: &mut Effects,
    ) -> Outcome {
        let outcome = match self.stage {
            Stage::Watch => Outcome::Failed(failure.clone()),
            Stage::All | Stage::One(_) | Stage::Join => {
                (self.call).leave(kernel, failure.clone(), now, fx)
            }
        };
        let cx = &mut kernel.at(now, fx);
        self.end_watch(cx);
        match (&outcome, self.stage) {
            (Outcome::Lease(..), Stage::All | Stage::Join) => {
                self.absorb(cx);
                outcome
            }
            (Outcome::Lease(lease, _), Stage::One(_)) => {
                self.kept.push(Arc::clone(lease));
                self.give_up(cx);
                Outcome::Failed(failure)
            }
            _ => {
                self.give_up(cx);
                outcome
            }
        }
    }

    /// The call's thread panics.
    pub(crate) fn abandon(&mut self, kernel: &Kernel, now: Instant, fx: &mut Effects) {
        if self.stage != Stage::Watch {
            self.call.abandon(kernel, now, fx);
        }
        let cx = &mut kernel.at(now, fx);
        self.end_watch(cx);
        self.give_up(cx);
    }

    /// Applies the end of a part of the call.
    fn go_on(&mut self, step: Step, cx: &mut Context<'_>) -> Step {
        let mut step = step;
        loop {
            count_step();
            let outcome = match step {
                Step::Send(..) => return step,
                Step::Park(until) => {
                    self.has_parked = true;
                    // Nothing wakes the call when it loses a name that it keeps, and the engine may
                    // sleep while it watches one.
                    let naps = !self.kept.is_empty() || self.stage == Stage::Watch;
                    let longest = if naps { LONGEST_SLEEP } else { Duration::MAX };
                    return Step::Park(until.min(cx.now.after(longest)));
                }
                Step::Done(outcome) => outcome,
            };
            step = match (self.stage, outcome) {
                (Stage::All | Stage::Join, outcome @ Outcome::Lease(..)) => {
                    self.end_watch(cx);
                    self.absorb(cx);
                    return Step::Done(outcome);
                }
                (Stage::One(n), Outcome::Lease(lease, _)) => {
                    cx.kernel.table.note_set(&lease);
                    // An earlier holder proves at the deadline that the set was taken.
                    let name = entry_name(&*self.names[n]);
                    let refused = cx.with_existing(&name, |it, _| it.last.refusal());
                    let says_taken = |by: &Refused| by.says_taken(self.start, self.wants.deadline);
                    let refused = refused.flatten().filter(says_taken);
                    let refused = refused.map(|by| of_name(self.stage, by));
                    self.last = refused.or_else(|| self.last.take());
                    self.kept.push(lease);
                    self.restarts = 0;
                    if n + 1 < self.names.len() {
                        self.ask_for(n + 1, cx)
                    } else {
                        self.join(cx)
                    }
                }
                (stage, Outcome::Refused(by)) => {
                    let by = by.map(|by| of_name(stage, by));
                    self.give_up(cx);
                    self.refusals += 1;
                    if !self.goes_on(cx.now) {
                        self.end_watch(cx);
                        return Step::Done(Outcome::Refused(by));
                    }
                    self.restarts = 0;
                    self.refused(by, cx)
                }
                (_, Outcome::Failed(Failure::Restart)) => {
                    self.give_up(cx);
                    self.id = cx.kernel.fresh_id(&*self.wants.lock);
                    self.restart(cx)
                }
                (_, outcome) => {
                    self.end_watch(cx);
                    self.give_up(cx);
                    return Step::Done(self.at_end(outcome, cx));
                }
            };
        }
    }

    /// Begins again: at once, or after a pause if that was no help.
    fn restart(&mut self, cx: &mut Context<'_>) -> Step {
        self.restarts += 1;
        match self.restarts {
            1 if self.has_queues() => self.ask_for(0, cx),
            1 => self.attempt(cx),
            restarts => {
                let until = cx.now.after(RECONNECT.pause(restarts - 2));
                let name = self.watch.as_ref().map_or(0, |watch| watch.name);
                self.watch((name, false), until, cx)
            }
        }
    }

    /// Returns whether a refused call waits. In a queue, it is refused at its deadline only;
    /// elsewhere, also when its attempts are used up.
    fn goes_on(&self, now: Instant) -> bool {
        let in_queue = self.has_queues() && self.stage != Stage::All;
        let is_used_up = !self.has_queues() && self.wants.wait.is_used_up(self.refusals);
        self.wants.wait != Wait::Once && now < self.wants.deadline && !in_queue && !is_used_up
    }

    /// At the deadline, an earlier refusal is a better outcome than silence, if it still counts. So
    /// is a lease of this client.
    fn at_end(&mut self, outcome: Outcome, cx: &mut Context<'_>) -> Outcome {
        let (start, deadline) = (self.start, self.wants.deadline);
        let is_silent = matches!(outcome, Outcome::Failed(Failure::Unreachable { .. }));
        if !is_silent || cx.now < deadline {
            return outcome;
        }
        let last = self.last.take();
        if let Some(last) = last.filter(|last| last.says_taken(start, deadline)) {
            return Outcome::Refused(Some(last));
        }
        match self.refused_by_own(cx) {
            Some(_) => Outcome::Refused(None),
            None => outcome,
        }
    }

    /// Begins to ask for a name.
    pub(super) fn ask_for(&mut self, n: usize, cx: &mut Context<'_>) -> Step {
        self.stage = Stage::One(n);
        // From here on, the name's entry knows what refuses it.
        if let Some(refused) = self.last.take_if(|last| last.by.name == n) {
            let of_name = refused.of_name(0);
            cx.with_entry(&self.names[n], |entry, _| entry.last.note(of_name));
        }
        let ttl = self.wants.terms.ttl.min(KEPT_FOR);
        let wait = if self.has_queues() {
            self.wants.wait.clone()
        } else {
            Wait::Once
        };
        let wants = CallTerms {
            lock: Arc::clone(&self.names[n]),
            wait,
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
        self.call = Call::new(cx.kernel, wants, self.start).of_set(self.id.clone());
        self.call.begin(cx.kernel, cx.now, cx.fx)
    }

    /// The set has all names: they are renewed together.
    fn join(&mut self, cx: &mut Context<'_>) -> Step {
        self.stage = Stage::Join;
        // If that gets no reply, each name is released by itself.
        let ttl = self.wants.terms.ttl;
        self.kept.iter().for_each(|lease| lease.may_last(ttl));
        let tokens = self.kept.iter().map(|lease| lease.token()).collect();
        self.call = Call::new(cx.kernel, self.wants.clone(), self.start).of_set(self.id.clone());
        self.call.join(cx.kernel, tokens, cx.now, cx.fx)
    }

    /// Releases every name that the set has kept.
    fn give_up(&mut self, cx: &mut Context<'_>) {
        for lease in self.kept.drain(..) {
            if is_on(Mutant::KeptNamesAreForgotten) {
                continue;
            }
            let lock = Arc::clone(&lease.lock);
            cx.with_entry(&lock, |entry, cx| {
                entry.give_up(&lease, lease.token(), cx);
            });
        }
    }

    /// The lease of the set covers the names that it has kept: their leases end without a release.
    fn absorb(&mut self, cx: &mut Context<'_>) {
        if is_on(Mutant::KeptNamesAreReleased) {
            return self.give_up(cx);
        }
        for lease in self.kept.drain(..) {
            let lock = Arc::clone(&lease.lock);
            cx.with_entry(&lock, |entry, cx| entry.absorbed(&lease, cx));
        }
    }
}

/// Returns the refusal of a call for one name as that of its set.
fn of_name(stage: Stage, refused: Refused) -> Refused {
    let Stage::One(name) = stage else {
        return refused;
    };
    refused.of_name(name)
}
