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

use crate::clock::Instant;
use crate::config::LeaseTerms;
use crate::holder_id::HolderId;
use crate::kernel::Kernel;
use crate::kernel::answers::untaken;
use crate::kernel::call::{Call, CallTerms, Step};
use crate::kernel::context::Context;
use crate::kernel::effects::{Discard, Effects};
use crate::kernel::entry::LockEntry;
use crate::kernel::fault::Fault;
use crate::kernel::held::{HeldLease, Holder};
use crate::kernel::holdings::Grant;
use crate::kernel::last_reply::last_attempt;
use crate::kernel::lease::{LeaseState, LeaseStatus};
use crate::kernel::mutant::{Mutant, is_on};
use crate::kernel::places::{UNSUBSCRIBED, next_attempt};
use crate::kernel::request::{IdOfSet, RequestNo, RequestState, Serves};
use crate::kernel::table::entry_name;
use crate::kernel::waiter::{Failure, Outcome, Refused, Wait, WaiterCell, WaiterNo};
use crate::kernel::watch::Watching;
#[cfg(sim)]
use crate::name::Name;
use crate::protocol::answer::Answer;
use crate::protocol::place::TokenBlock;
use crate::protocol::primitive::Primitive;
use crate::protocol::refusal::RefusedName;
use crate::token::FencingToken;
use crate::wait_policy::{RECONNECT, WaitPolicy, jittered};

/// The longest ttl of a name that a set keeps while it waits for the next ones.
const KEPT_FOR: Duration = Duration::from_secs(3);

pub(crate) struct SetAcquire {
    /// What the caller wants; its lock is that of the set.
    wants: CallTerms,
    start: Instant,
    /// The lock of each name, fair with queues, in the order in which all sets take them.
    names: Vec<Arc<dyn Primitive>>,
    id: HolderId,
    kept: Vec<Arc<HeldLease>>,
    /// It has parked, and does not send any more.
    has_parked: bool,
    /// It was refused.
    has_waited: bool,
    stage: Stage,
    call: Call,
    /// The name that last refused it, without queues.
    watch: Option<Watching>,
    /// How often in a row it began again because of a command without a reply.
    restarts: u32,
    /// How often it was refused, and the last time, without queues.
    refusals: u32,
    last: Option<Refused>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
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
    fn has_queues(&self) -> bool {
        self.names[0].queue().is_some()
    }

    /// Returns whether it keeps a name under this id, held or lost.
    #[cfg(sim)]
    pub(super) fn keeps(&self, id: &str) -> bool {
        self.kept.iter().any(|lease| lease.id.as_str() == id)
    }

    #[cfg(sim)]
    pub(super) fn names_of_set(&self) -> &[Name] {
        &self.wants.lock.keys().names
    }

    /// Returns the name that it waits for outside of a queue.
    #[cfg(sim)]
    pub(super) fn watched_lock(&self) -> Option<&Arc<dyn Primitive>> {
        let watch = self.watch.as_ref().filter(|_| self.stage == Stage::Watch)?;
        (watch.wakes && !watch.has_news()).then_some(&watch.lock)
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
        let step = self.attempt(cx);
        self.go_on(step, cx)
    }

    /// Asks for all names, or for one after the other if they are in several slots.
    fn attempt(&mut self, cx: &mut Context<'_>) -> Step {
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
            #[cfg(sim)]
            crate::kernel::sim::count_step();
            let outcome = match step {
                Step::Send(..) => return step,
                Step::Park(_) => {
                    self.has_parked = true;
                    return step;
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
                    self.kept.push(lease);
                    self.restarts = 0;
                    match n + 1 < self.names.len() {
                        true => self.ask_for(n + 1, cx),
                        false => self.join(cx),
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
                    return Step::Done(self.at_end(outcome, cx.now));
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

    /// At the deadline, an earlier refusal is a better outcome than silence, if it still counts.
    fn at_end(&mut self, outcome: Outcome, now: Instant) -> Outcome {
        let deadline = self.wants.deadline;
        let start = self.start;
        let is_silent = matches!(outcome, Outcome::Failed(Failure::Unreachable { .. }));
        let last = self.last.take().filter(|_| is_silent && now >= deadline);
        match last.filter(|last| last.says_taken(start, deadline)) {
            Some(last) => Outcome::Refused(Some(last)),
            None => outcome,
        }
    }

    /// A name is taken: with queues the call waits there, otherwise until the name may be free.
    fn refused(&mut self, by: Option<Refused>, cx: &mut Context<'_>) -> Step {
        self.has_waited = true;
        if self.has_queues() {
            return self.ask_for(0, cx);
        }
        self.id = cx.kernel.fresh_id(&*self.wants.lock);
        if let Wait::Queue(WaitPolicy::Backoff(backoff)) = &self.wants.wait {
            let until = cx.now.after(backoff.pause(self.refusals - 1));
            self.last = by;
            return self.watch((0, false), until, cx);
        }
        let name = match &by {
            Some(by) => by.by.name,
            // This client has it.
            None => (cx.kernel.holder_of(&*self.wants.lock, cx.now, cx.fx)).map_or(0, |it| it.0),
        };
        let hears = |watch: &Watching| watch.name == name && watch.wakes;
        let is_new = !self.watch.as_ref().is_some_and(hears);
        if is_new {
            self.end_watch(cx);
        }
        if self.watch.as_ref().is_some_and(Watching::has_news) {
            return self.attempt(cx);
        }
        let name_of = entry_name(&*self.names[name]);
        let is_live = cx.with_existing(&name_of, |entry, _| entry.is_listening) == Some(true);
        let until = self.asks_again_at(by.as_ref(), is_live, cx);
        self.last = by;
        let step = self.watch((name, true), until, cx);
        // A message may have come before the call could hear it.
        match is_new && is_live && !is_on(Mutant::WatchBeginsAfterTheRefusal) {
            true => self.attempt(cx),
            false => step,
        }
    }

    /// Returns when a refused call asks again if no message comes.
    fn asks_again_at(&self, by: Option<&Refused>, is_live: bool, cx: &Context<'_>) -> Instant {
        let (now, backstop) = (cx.now, cx.kernel.limits.backstop);
        let pause = match is_live {
            true => jittered(backstop),
            false => UNSUBSCRIBED.pause(self.refusals - 1).min(backstop),
        };
        let (remaining, took) = by.map_or((None, Duration::ZERO), |by| {
            (by.by.remaining, by.sent.until(by.arrived))
        });
        let at = next_attempt(now.after(pause), now, remaining, now);
        let last = last_attempt(self.start, self.wants.deadline, took);
        if now < last { at.min(last) } else { at }
    }

    /// Begins to wait until a name may be free, and until `until` at most.
    fn watch(
        &mut self,
        (name, wakes): (usize, bool),
        until: Instant,
        cx: &mut Context<'_>,
    ) -> Step {
        self.stage = Stage::Watch;
        let lock = &self.names[name];
        let watch = self
            .watch
            .get_or_insert_with(|| Watching::begin(name, lock, wakes, cx));
        watch.until = until;
        Step::Park(until.min(self.wants.deadline))
    }

    /// The thread was unparked, or a nap is over.
    fn watched(&mut self, cx: &mut Context<'_>) -> Step {
        let watch = self.watch.as_ref().expect("it waits for a name");
        let until = watch.until;
        let outcome = watch.cell.outcome.lock().take();
        match outcome {
            Some(Outcome::Failed(Failure::Closed)) => Step::Done(Outcome::Failed(Failure::Closed)),
            _ if cx.now >= self.wants.deadline => {
                Step::Done(Outcome::Failed(Failure::unreachable(None)))
            }
            None if cx.now < until => Step::Park(until.min(self.wants.deadline)),
            _ => self.attempt(cx),
        }
    }

    fn end_watch(&mut self, cx: &mut Context<'_>) {
        if let Some(watch) = self.watch.take() {
            watch.end(cx);
        }
    }

    /// Begins to ask for a name.
    fn ask_for(&mut self, n: usize, cx: &mut Context<'_>) -> Step {
        self.stage = Stage::One(n);
        let ttl = self.wants.terms.ttl.min(KEPT_FOR);
        let wait = match self.has_queues() {
            true => self.wants.wait.clone(),
            false => Wait::Once,
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
    let by = RefusedName {
        name,
        ..RefusedName::clone(&refused.by)
    };
    Refused {
        by: Arc::new(by),
        ..refused
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
        held.lease.leave(cx);
        cx.fx.discard.push(Discard::Lease(held.lease));
        // The line waited for the end of that lease. Now it waits for the set, in Redis.
        if !is_on(Mutant::KeptNamesEndInSilence) {
            self.serve(cx.now, cx);
        }
    }
}
