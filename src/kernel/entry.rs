//! A name that this client holds or waits for, and its four events: `program`, `ended`, `heard` and
//! `due`.
//!
//! ```text
//! program: a call begins, goes on, leaves ─────────────┐ the leases (own_leases.rs) or the line
//! ended:   the end of a command ───────────────────────┤ (line.rs) change, and say what has
//! heard:   a grant, a release, a subscription, a move ─┤ happened; then the entry is re-armed
//! due:     what the time makes due ────────────────────┘
//!
//! ending.rs: a holder unlocks, a lease is lost
//! ```
//!
//! All methods run under the lock of the entry's shard.

use std::sync::Arc;

use crate::clock::Instant;
use crate::config::LeaseTerms;
use crate::error::Cause;
use crate::holder_id::HolderId;
use crate::kernel::answers::{AcquireEnd, Applied, ForCaller, Win, undo_of};
use crate::kernel::call::{Call, CallState, Step};
use crate::kernel::command::Command;
use crate::kernel::context::Context;
use crate::kernel::event::{IdFate, KnownHolder, LineEvent};
use crate::kernel::failure::{Failure, Refused};
use crate::kernel::fault::Fault;
use crate::kernel::few::Few;
use crate::kernel::held::HeldLease;
use crate::kernel::holder::Taker;
use crate::kernel::line::Line;
use crate::kernel::own_leases::OwnLeases;
use crate::kernel::purpose::Purpose;
use crate::kernel::request::{Asked, RequestNo};
use crate::kernel::request_index::Requests;
use crate::kernel::requests::Receiver;
use crate::kernel::schedule::Item;
use crate::kernel::undo::Counts;
use crate::kernel::waiter::{Outcome, Wait};
use crate::kernel::waiters::Waiters;
use crate::kernel::watch::Watch;
use crate::lease::status::LeaseStatus;
use crate::lost::Lost;
use crate::mutant::{Mutant, is_on};
use crate::name::Name;
use crate::protocol::answer::Answer;
use crate::protocol::place::{TokenBlock, read_next};
use crate::protocol::primitive::Primitive;
use crate::random;

#[derive(Debug)]
pub(crate) struct LockEntry {
    pub(crate) name: Name,
    pub(crate) leases: OwnLeases,
    pub(crate) line: Line,
    /// The subscriber was told to listen to the messages of this name.
    pub(super) listens: bool,
    /// Made when it is first needed.
    extras: Option<Box<EntryExtras>>,
    /// Its bounds in the schedule, if it is there.
    armed: Option<[Instant; 2]>,
}

/// The parts that few entries have.
#[derive(Debug, Default)]
pub(super) struct EntryExtras {
    /// Calls elsewhere, which nobody asks for here: they try again when the name may be free.
    pub(super) watches: Vec<Watch>,
}

impl LockEntry {
    pub(super) fn new(name: Name, lock: &dyn Primitive) -> Self {
        Self {
            name,
            leases: OwnLeases::new(lock.capacity()),
            line: Line::default(),
            listens: false,
            extras: None,
            armed: None,
        }
    }

    pub(super) fn extras(&mut self) -> &mut EntryExtras {
        self.extras.get_or_insert_default()
    }

    pub(super) fn watches(&self) -> &[Watch] {
        self.extras.as_ref().map_or(&[], |extras| &extras.watches)
    }

    /// Runs `act` on the line, and does what has become of ids.
    pub(super) fn at_line<T>(
        &mut self,
        cx: &mut Context<'_>,
        act: impl FnOnce(&mut Line, &mut LineEvent<'_>) -> T,
    ) -> T {
        let mut ev = LineEvent {
            now: cx.now,
            limits: &cx.shared.limits,
            numbers: &cx.shared.numbers,
            is_closed: cx.shared.is_closed(),
            own: self.leases.own(),
            fx: cx.fx,
            ids: Few::default(),
        };
        let result = act(&mut self.line, &mut ev);
        for fate in ev.ids.into_items() {
            if let IdFate::ToUndo { id, .. } = &fate {
                assert!(!self.leases.holds(id), "a lease is never undone");
            }
            cx.settle(&self.name, fate);
        }
        result
    }

    /// Returns whether a call waits, asks, or watches the name from elsewhere.
    pub(crate) fn is_wanted(&self) -> bool {
        self.line.is_asked_for() || !self.watches().is_empty()
    }

    /// Returns the refusal of a call that does not wait, if Redis need not be asked for it: this
    /// client has the lock, or a call of it waits for that.
    pub(super) fn refuses_once(
        &self,
        lock: &dyn Primitive,
        now: Instant,
    ) -> Option<Option<Refused>> {
        if self.leases.is_excluded(lock.is_shared(), now) {
            return Some(None);
        }
        let line = &self.line;
        line.is_waited_for(now).then(|| line.last_holder(now))
    }

    /// Re-arms the entry after an event: ends a lease that lingers if somebody wants the name,
    /// begins to listen to its messages if a call needs them, and schedules when the engine looks.
    /// Returns true if nothing is left in it.
    pub(super) fn rearm(&mut self, cx: &mut Context<'_>) -> bool {
        // Only a call that has not begun to ask takes a lease that lingers.
        if self.is_wanted() {
            self.end_linger(cx);
        }
        let is_idle = self.leases.held.is_empty() && !self.is_wanted();
        // Most entries only have a lease: the room for others would be most of their size.
        if self.line.requests.is_empty() {
            self.line.requests = Requests::default();
        }
        if self.line.waiters.is_empty() {
            self.line.waiters = Waiters::default();
        }
        if !self.listens
            && let Some(lock) = self.listener()
        {
            self.listens = true;
            let change = cx.shared.numbers.next();
            cx.fx.listen.push((lock, change));
        }
        if is_idle && cx.now >= self.line.contended_until() {
            if self.armed.is_some() {
                cx.unschedule(&Item::Entry(self.name.clone()));
            }
            if self.listens {
                let change = cx.shared.numbers.next();
                cx.fx.unlisten.push((self.name.clone(), change));
            }
            return true;
        }
        let own = self.leases.own();
        let line = &mut self.line;
        if is_idle {
            (line.next, line.latest) = (line.contended_until(), Instant::NEVER);
        }
        if let Some(at) = line.refuses_itself_at(own) {
            line.touch(at, at);
        }
        let bounds = [line.next, line.latest];
        if self.armed != Some(bounds) && !(self.armed.is_none() && line.next == Instant::NEVER) {
            self.armed = Some(bounds);
            cx.put(Item::Entry(self.name.clone()), bounds);
        } else if line.latest < Instant::NEVER && !is_on(Mutant::WakeUpIsPromisedOnce) {
            // An earlier promise to wake the engine may be that of a thread which stands still.
            cx.wake_engine_by(line.latest);
        }
        false
    }

    /// Returns the lock of a call that needs messages. One that nobody has refused needs none,
    /// unless it has a place nevertheless.
    fn listener(&self) -> Option<Arc<dyn Primitive>> {
        let line = &self.line;
        let woken = line.waiters.listener(line.requests.has_place());
        let watch = self.watches().iter().find(|watch| watch.wakes);
        let watch = watch.map(|watch| &watch.lock);
        woken.map(|waiter| &waiter.lock).or(watch).cloned()
    }

    /// The name may be free, or the client is closed: the calls that watch it go on.
    pub(super) fn end_watches(&self, failure: &Failure, cx: &mut Context<'_>) {
        let is_closed = matches!(failure, Failure::Closed);
        let ended = self.watches().iter().filter(|it| it.wakes || is_closed);
        for watch in ended {
            *watch.cell.outcome.lock() = Some(Outcome::Failed(failure.clone()));
            let cell = Arc::clone(&watch.cell);
            cx.fx.wake.push(cell);
        }
    }
}

/// `program`: a call begins, goes on, leaves.
impl LockEntry {
    /// A call begins.
    pub(super) fn begin(&mut self, call: &mut Call, cx: &mut Context<'_>) -> Step {
        if cx.shared.is_closed() {
            return call.over(Outcome::Failed(Failure::Closed));
        }
        // A part is a lease of its own.
        if !call.is_part()
            && let Some((lease, token)) = self.relock(&call.wants, cx)
        {
            return call.holds(lease, token, cx.now);
        }
        if let Some(refused) = self.refuses(call, cx.now) {
            return call.over(Outcome::Refused(refused));
        }
        self.at_line(cx, |line, ev| call.ask(line, ev))
    }

    /// Returns the refusal of a call that does not wait, if Redis need not be asked for it. A call
    /// that competes with others asks although they wait.
    fn refuses(&self, call: &Call, now: Instant) -> Option<Option<Refused>> {
        let lock = &*call.wants.lock;
        if call.wants.wait != Wait::Once {
            None
        } else if call.competes() {
            let is_excluded = self.leases.is_excluded(lock.is_shared(), now);
            is_excluded.then_some(None)
        } else {
            self.refuses_once(lock, now)
        }
    }

    /// Returns whether a lease of this client makes Redis refuse the lock of a call.
    fn is_excluded(&self, call: &Call, cx: &Context<'_>) -> bool {
        self.leases.is_excluded(call.wants.lock.is_shared(), cx.now)
    }

    /// The command that the thread of a call has sent has ended.
    pub(super) fn replied(
        &mut self,
        call: &mut Call,
        asked: &Asked,
        (end, sent): (Result<Answer, Fault>, Instant),
        cx: &mut Context<'_>,
    ) -> Step {
        let answer = self.ended(asked, end, sent, Some(call.wants.taker()), cx);
        let was_refused = matches!(answer, ForCaller::Refused(_));
        if was_refused {
            call.note_refused(cx.now);
        }
        match answer {
            ForCaller::Holds(lease, token) => return call.holds(lease, token, cx.now),
            ForCaller::Over(outcome) | ForCaller::Refused(Some(outcome)) => {
                return self.take(call, outcome, cx);
            }
            ForCaller::IsUndoneLate => cx.fx.undo = Some(undo_of(&asked.lock, &asked.id)),
            ForCaller::GoesOn | ForCaller::Refused(None) => {}
        }
        let facts = (was_refused, self.is_excluded(call, cx));
        self.at_line(cx, |line, ev| call.go_on(asked, facts, line, ev))
    }

    /// A call takes what it was given. If the lease was lost before its thread ran, it waits again.
    fn take(&mut self, call: &mut Call, outcome: Outcome, cx: &mut Context<'_>) -> Step {
        let Outcome::Lease(lease, token) = outcome else {
            return call.over(outcome);
        };
        if cx.change(&lease, |it, now| it.take(token, call.wants.taker(), now)) {
            return call.holds(lease, token, cx.now);
        }
        self.give_up(&lease, token, cx);
        let is_excluded = self.is_excluded(call, cx);
        self.at_line(cx, |line, ev| call.wait_again(is_excluded, line, ev))
    }

    /// The thread of a call has not sent its command, and does not send it any more.
    pub(super) fn not_sent(&mut self, asked: &Asked, cx: &mut Context<'_>) {
        cx.settle(&self.name, IdFate::Nothing(asked.id.clone()));
        self.line.not_sent(asked);
    }

    /// A parked call has an outcome, or its deadline has come.
    pub(super) fn woken(
        &mut self,
        call: &mut Call,
        outcome: Option<Outcome>,
        cx: &mut Context<'_>,
    ) -> Step {
        if let Some(outcome) = outcome {
            return self.take(call, outcome, cx);
        }
        let is_excluded = self.is_excluded(call, cx);
        self.at_line(cx, |line, ev| {
            line.leave(call.no, ev);
            let span = [call.start, call.wants.deadline];
            call.over(line.at_deadline(is_excluded, span))
        })
    }

    /// A call is cancelled or given up. An outcome that is already stored wins; `early` is one that
    /// was read before.
    pub(super) fn leave(
        &mut self,
        call: &mut Call,
        state: CallState,
        (early, failure): (Option<Outcome>, Failure),
        cx: &mut Context<'_>,
    ) -> Outcome {
        match state {
            CallState::Parked(cell) => {
                let outcome = if is_on(Mutant::CancelLooksFirst) {
                    early
                } else {
                    cell.outcome.lock().take()
                };
                let Some(outcome) = outcome else {
                    self.at_line(cx, |line, ev| line.leave(call.no, ev));
                    return Outcome::Failed(failure);
                };
                if let Outcome::Lease(lease, token) = &outcome {
                    if !cx.change(lease, |it, now| it.take(*token, call.wants.taker(), now)) {
                        self.give_up(lease, *token, cx);
                        return Outcome::Failed(failure);
                    }
                    call.began_at(cx.now);
                }
                outcome
            }
            CallState::Asking(asked) => {
                // Its thread has left in the middle of its command, by a panic.
                let end = Err(Fault::Unknown(Cause::text("the call has ended")));
                let answer = self.ended(&asked, end, cx.now, None, cx);
                self.at_line(cx, |line, ev| line.retire_of(call.no, ev));
                match answer {
                    // The grant message was faster.
                    ForCaller::Over(outcome @ Outcome::Lease(..))
                        if !is_on(Mutant::PanicForgetsTheLease) =>
                    {
                        outcome
                    }
                    _ => Outcome::Failed(failure),
                }
            }
            CallState::New | CallState::Over => Outcome::Failed(failure),
        }
    }

    /// The client is closed: ends all calls and leases.
    pub(super) fn close(&mut self, cx: &mut Context<'_>) {
        self.at_line(cx, Line::close_calls);
        self.end_watches(&Failure::Closed, cx);
        if !is_on(Mutant::ClosedKeepsPlaces) {
            self.at_line(cx, Line::close_requests);
        }
        for lease in self.leases.take_all() {
            cx.change(&lease, |it, now| it.lease.lose(Lost::ShutDown, now));
            if lease.status(cx.now, cx.fx) == LeaseStatus::Lost(Lost::ShutDown) {
                self.release_later(&lease, Counts::AtShutdown, cx);
            }
            cx.fx.discard(lease);
        }
    }
}

/// `ended`: the end of a command.
impl LockEntry {
    /// The end of an acquiring command, whoever sent it. `taker` is the call whose thread reads it:
    /// the outcome is for that.
    pub(super) fn ended(
        &mut self,
        asked: &Asked,
        end: Result<Answer, Fault>,
        sent: Instant,
        taker: Option<Taker<'_>>,
        cx: &mut Context<'_>,
    ) -> ForCaller {
        let known = match &end {
            Ok(Answer::Refused(by)) => cx.known(by, asked.lock.key(by.name).name, sent),
            _ => KnownHolder::default(),
        };
        let it = AcquireEnd {
            end,
            sent,
            taker,
            known,
            is_held: self.leases.holds(&asked.id),
        };
        match self.at_line(cx, |line, ev| line.answered(asked, it, ev)) {
            Applied::ForCaller(for_caller) => for_caller,
            Applied::Won(win) => self.won(win, cx),
        }
    }

    /// The end of a refresh of these places.
    pub(super) fn refreshed(
        &mut self,
        of: &[(RequestNo, HolderId)],
        end: Result<Answer, Fault>,
        sent: Instant,
        cx: &mut Context<'_>,
    ) {
        let known = match &end {
            Ok(Answer::Places(_, by)) => cx.known(by, &self.name, sent),
            _ => KnownHolder::default(),
        };
        let refreshed =
            |line: &mut Line, ev: &mut LineEvent<'_>| line.refreshed(of, end, (sent, known), ev);
        let Some((found, by)) = self.at_line(cx, refreshed) else {
            return;
        };
        for (place, found) in of.iter().zip(found) {
            let win = self.at_line(cx, |line, ev| {
                line.place_found(place, found, (sent, &by), ev)
            });
            if let Some(win) = win {
                self.won(win, cx);
            }
        }
    }

    /// The end of a renewal that confirms a grant under `terms`.
    pub(super) fn confirmed(
        &mut self,
        of: (RequestNo, &HolderId),
        terms: &LeaseTerms,
        (end, sent): (Result<Answer, Fault>, Instant),
        cx: &mut Context<'_>,
    ) {
        let confirmed =
            |line: &mut Line, ev: &mut LineEvent<'_>| line.confirmed(of, terms, end, sent, ev);
        if let Some(win) = self.at_line(cx, confirmed) {
            self.won(win, cx);
        }
    }

    /// An undo has removed something: the lock may be free.
    pub(super) fn undone(&mut self, cx: &mut Context<'_>) {
        self.at_line(cx, Line::undone);
    }

    /// A lease begins. This client's other leases that exclude it are lost.
    fn won(&mut self, win: Win<'_>, cx: &mut Context<'_>) -> ForCaller {
        let mut grant = win.grant;
        // The machine may have stood still since the command was sent.
        let ahead = cx.shared.wall_clock.noticed(grant.lease.confirmed_at());
        if !ahead.is_zero() {
            grant.lease.distrust(ahead, cx.now);
        }
        let serial = cx.shared.numbers.next();
        let lease = Arc::new(HeldLease::new(&win.lock, grant, serial, cx.now));
        while let Some(n) = self.leases.evicted_by(win.lock.is_shared()) {
            let lease = self.leases.remove(n);
            cx.change(&lease, |it, now| it.evict(now));
            cx.fx.discard(lease);
        }
        self.leases.add(Arc::clone(&lease));
        self.line.last.silent_since = None;
        let token = lease.run.first();
        #[cfg(sim)]
        cx.fx.began.push((lease.clone(), token));
        cx.rearm(&lease);
        self.at_line(cx, |line, ev| {
            if !is_on(Mutant::EvictionMakesNobodyAsk) {
                // The line may have waited for the end of an evicted lease.
                line.serve(ev.now, ev);
            }
            line.won(win.request, win.receiver, &lease, ev);
        });
        match win.receiver {
            Receiver::Waiter(_) => ForCaller::GoesOn,
            Receiver::Caller | Receiver::Nobody => ForCaller::Holds(lease, token),
        }
    }
}

/// `heard`: a grant, a release, a subscription, a move.
impl LockEntry {
    /// A grant message for a request.
    pub(super) fn granted(
        &mut self,
        no: RequestNo,
        id: &HolderId,
        tokens: TokenBlock,
        cx: &mut Context<'_>,
    ) {
        let granted =
            |line: &mut Line, ev: &mut LineEvent<'_>| line.granted_by_message(no, id, tokens, ev);
        if let Some(win) = self.at_line(cx, granted) {
            self.won(win, cx);
        }
    }

    /// A message on the release channel of the name.
    pub(super) fn announced(&mut self, payload: &[u8], cx: &mut Context<'_>) {
        if is_on(Mutant::ReleaseMessagesAreIgnored) {
            return;
        }
        // The lock is left free for a moment, and one place must ask for it before the others.
        if let Some(next) = read_next(payload) {
            let first = next.first.as_ref().and_then(|id| cx.shared.request_of(id));
            let first = first.map(|(_, no)| no);
            let chance = random::chance();
            self.at_line(cx, |line, ev| {
                line.announced_plain(&next, first, chance, ev)
            });
            if !is_on(Mutant::WatchesAreNotEnded) {
                self.end_watches(&Failure::Restart, cx);
            }
            return;
        }
        // Somebody else has released a lease of this client.
        if self.doubt(payload, cx) {
            return;
        }
        // The end of a lease of this client makes its line ask: the message is for others.
        let is_own = self.leases.find(payload).is_some() || self.leases.was_released(payload);
        // The end of an attempt of this client says nothing of other holders.
        let attempt = cx.own_attempt(payload).filter(|_| !is_own);
        let is_attempt = attempt.is_some_and(|(id, is_known)| is_known || self.line.asks_as(&id));
        let is_of_lease = !is_own && !is_attempt;
        self.at_line(cx, |line, ev| line.released(is_of_lease, ev));
        if is_own {
            self.at_line(cx, Line::look_beside);
        } else {
            self.look(cx);
        }
    }

    /// Checks the open lease of this client with this id, if there is one: somebody else has
    /// released it. Returns whether there is one.
    pub(super) fn doubt(&self, id: &[u8], cx: &mut Context<'_>) -> bool {
        let lease = self.leases.find(id);
        let Some(lease) = lease.filter(|lease| lease.is_open()) else {
            return false;
        };
        cx.change(lease, |it, now| it.lease.suspect(now));
        true
    }

    /// The lock may be free, or a message may have been missed: all requests look, and so do the
    /// calls that watch the name.
    pub(super) fn look(&mut self, cx: &mut Context<'_>) {
        if !is_on(Mutant::WatchesAreNotEnded) {
            self.end_watches(&Failure::Restart, cx);
        }
        self.at_line(cx, Line::look);
    }

    /// Messages of the name have arrived since then: earlier ones may have been missed.
    pub(super) fn listening_since(&mut self, since: Instant, cx: &mut Context<'_>) {
        self.line.is_listening = true;
        let has_missed = self.line.requests.has_missed(since);
        if has_missed && !is_on(Mutant::ListeningRefreshesNothing) {
            self.look(cx);
        }
        // A call may have begun to watch before messages came.
        if !is_on(Mutant::WatchBeginsAfterTheRefusal) {
            self.end_watches(&Failure::Restart, cx);
        }
    }

    /// Another server may be the master of some locks: leases are checked, and requests look.
    pub(super) fn moved(
        &mut self,
        is_moved: &dyn Fn(&dyn Primitive) -> bool,
        cx: &mut Context<'_>,
    ) {
        for held in self.leases.held.iter() {
            if is_moved(&*held.lease.lock) {
                cx.change(&held.lease, |it, now| it.lease.suspect(now));
            }
        }
        if self.line.requests.walk().any(|it| is_moved(&*it.lock)) {
            self.look(cx);
        }
        if is_on(Mutant::MovedPlacesAreForgotten) {
            self.line.forget_place(cx.now);
        }
    }
}

/// `due`: what the time makes due.
impl LockEntry {
    /// Returns the commands that are due. Afterwards the next ones are due later than now.
    pub(super) fn due(&mut self, cx: &mut Context<'_>) -> Vec<(Command, Purpose)> {
        self.armed = None;
        if self.leases.linger_ends().is_some_and(|at| at <= cx.now) {
            self.end_linger(cx);
        }
        let (name, linger_ends) = (self.name.clone(), self.leases.linger_ends());
        self.at_line(cx, |line, ev| line.due(&name, linger_ends, ev))
    }

    /// Nobody takes the lease that lingers: the engine releases it.
    fn end_linger(&mut self, cx: &mut Context<'_>) {
        if let Some(lease) = self.leases.lingering().cloned() {
            self.leases.lingers_until = None;
            self.give_up(&lease, lease.token(), cx);
        }
    }
}
