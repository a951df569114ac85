//! The requests of a line: the receiver of each grant, how they are sent, when they end.

use std::sync::Arc;

use crate::clock::Instant;
use crate::config::LeaseTerms;
use crate::kernel::command::{Attempt, Command, Listens, What};
use crate::kernel::event::{IdFate, LineEvent};
use crate::kernel::lease::GRACE;
use crate::kernel::line::Line;
use crate::kernel::request::{Asked, Flight, Request, RequestNo, RequestState, Sender, Serves};
use crate::kernel::undo::Proof;
use crate::kernel::waiter::{Outcome, Wait, Waiter, WaiterNo};
use crate::mutant::{Mutant, is_on};
use crate::protocol::primitive::Primitive;

/// The receiver of a lease that a request was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receiver {
    /// The call whose thread reads the reply.
    Caller,
    Waiter(WaiterNo),
    Nobody,
}

impl Line {
    pub(crate) fn line_request(&self) -> Option<&Request> {
        let of_line = self.requests.serving(&[Serves::Line]);
        let mut of_line = of_line.into_iter().map(|no| &self.requests[no]);
        of_line.find(|request| !matches!(request.state, RequestState::Won(_)))
    }

    pub(super) fn receiver(&self, request: &Request) -> Receiver {
        match request.serves {
            Serves::Nobody => Receiver::Nobody,
            _ if request.caller().is_some() => Receiver::Caller,
            Serves::Line => {
                // A call that waits by `Backoff` sleeps: one that is woken goes first.
                let woken = self.waiters.first_woken();
                let first = woken.or_else(|| self.waiters.front());
                first.map_or(Receiver::Nobody, |waiter| Receiver::Waiter(waiter.no))
            }
            Serves::One(no) => match self.waiters.get(no) {
                Some(_) => Receiver::Waiter(no),
                None => Receiver::Nobody,
            },
        }
    }

    /// Returns the terms of the call that would get the lease of a request.
    pub(super) fn receiver_terms(&self, request: &Request) -> LeaseTerms {
        match self.receiver(request) {
            Receiver::Waiter(no) => {
                let waiter = self.waiters.get(no);
                waiter.map_or(request.terms, |waiter| waiter.terms)
            }
            Receiver::Caller | Receiver::Nobody => request.terms,
        }
    }

    /// Adds a request, and returns its number. The thread of its call sends it at once, or
    /// [`set_due`](Self::set_due) says when the engine sends it.
    pub(super) fn request(
        &mut self,
        serves: Serves,
        lock: &Arc<dyn Primitive>,
        terms: LeaseTerms,
        ev: &LineEvent<'_>,
    ) -> RequestNo {
        let no = ev.numbers.next();
        let request = Request::new(no, serves, lock, terms, ev.now);
        self.requests.push(request)
    }

    /// Begins the next acquiring command of a request, under a fresh id. `wait` is that of the
    /// call whose thread sends it.
    pub(super) fn send(
        &mut self,
        n: RequestNo,
        sender: Sender,
        wait: Option<&Wait>,
        ev: &mut LineEvent<'_>,
    ) -> (Command, Asked) {
        let flight = self.next_flight(n, sender, wait, ev);
        let request = &self.requests[n];
        let (id, ttl, tokens) = (flight.id.clone(), request.terms.ttl, flight.tokens);
        let attempt = flight.attempt;
        let what = What::Acquire {
            id,
            ttl,
            tokens,
            attempt,
        };
        let mut command = Command::new(&request.lock, what).acknowledged_by(request.terms.replicas);
        if let Some(part) = &mut self.requests.change(n).part {
            part.is_sent = true;
            command.after = part.terms.after.clone();
        }
        let request = &self.requests[n];
        ev.fx.attempts += 1;
        if attempt.enters() {
            // A grant message can name it.
            ev.ids.push(IdFate::InUse(flight.id.clone(), request.no));
        }
        let mut request = self.requests.change(n);
        let asked = Asked {
            lock: Arc::clone(&request.lock),
            no: request.no,
            id: flight.id.clone(),
            attempt,
            ttl,
        };
        request.state = RequestState::Sent;
        request.again = Instant::NEVER;
        request.flight = Some(flight);
        drop(request);
        self.touch_silence(ev);
        if let Sender::Caller(_) = sender {
            let at = caller_overdue_at(ev.now, ev);
            self.touch(at, Instant::NEVER);
        }
        (command, asked)
    }

    /// Returns the id and the terms of a request's next command.
    fn next_flight(
        &mut self,
        n: RequestNo,
        sender: Sender,
        wait: Option<&Wait>,
        ev: &mut LineEvent<'_>,
    ) -> Flight {
        let served_wake = wait.is_some_and(Wait::is_woken) || self.wakes(self.requests[n].serves);
        let is_contended = ev.now < self.contended_until() && served_wake;
        let others = match sender {
            Sender::Caller(_) => self.waiters.in_line() > 0,
            Sender::Engine => self.waiters.in_line() > 1,
        };
        let terms = self.receiver_terms(&self.requests[n]);
        let mut request = self.requests.change(n);
        if sender == Sender::Engine {
            request.terms = terms;
        }
        let id = ev.numbers.fresh_id(&*request.lock);
        let attempt = if !request.enters(is_contended) {
            Attempt::Once
        } else if served_wake {
            Attempt::Enter(Listens::Inbox)
        } else {
            Attempt::Enter(Listens::No)
        };
        Flight {
            id,
            attempt,
            tokens: if request.lock.has_local_queue() {
                request.terms.tokens(others)
            } else {
                1
            },
            sent: ev.now,
            sender,
        }
    }

    /// Calls give up if the command that is sent now gets no reply for too long.
    pub(super) fn touch_silence(&mut self, ev: &LineEvent<'_>) {
        if is_on(Mutant::EachCallIsAsked) {
            self.waiters.walk().for_each(drop);
        }
        // Those that began first give up first.
        if let Some(start) = self.waiters.first_start() {
            let at = self.gives_up_at(start, ev.own, ev.limits.unreachable_for);
            self.touch(at, at);
        }
    }

    /// Returns when a wake-up that came while a command was under way makes the next one due.
    pub(super) fn take_again(&mut self, n: RequestNo) -> Instant {
        let again = std::mem::replace(&mut self.requests.change(n).again, Instant::NEVER);
        if is_on(Mutant::WakeUpIsForgotten) {
            Instant::NEVER
        } else {
            again
        }
    }

    /// The next command of a request is due at `at`.
    pub(super) fn set_due(&mut self, n: RequestNo, at: Instant) {
        self.requests.change(n).state = RequestState::Due(at);
        self.touch(at, at);
    }

    /// Makes somebody ask for the line at `at`, if its calls wait for nothing else.
    pub(super) fn serve(&mut self, at: Instant, ev: &LineEvent<'_>) {
        if ev.own.line_waits || self.line_request().is_some() {
            return;
        }
        let Some(front) = self.waiters.front() else {
            return;
        };
        let (lock, terms) = (Arc::clone(&front.lock), front.terms);
        let n = self.request(Serves::Line, &lock, terms, ev);
        self.set_due(n, at.max(self.asks_from()));
    }

    /// Parks a call: adds it to the list that its kind waits in, and makes somebody ask.
    pub(super) fn park(&mut self, waiter: Waiter, at_front: bool, ev: &LineEvent<'_>) {
        if ev.own.excludes(waiter.lock.is_shared()) {
            waiter.note_waited();
        }
        self.touch(waiter.ask_at, waiter.ask_at);
        let give_up = self.gives_up_at(waiter.start, ev.own, ev.limits.unreachable_for);
        self.touch(give_up, give_up);
        let (no, lock, terms) = (waiter.no, Arc::clone(&waiter.lock), waiter.terms);
        if waiter.wait != Wait::Once && lock.has_local_queue() {
            if at_front {
                self.waiters.push_front(waiter)
            } else {
                if self.is_busy(ev.own) {
                    waiter.note_waited();
                }
                self.waiters.push_back(waiter);
            }
            self.serve(ev.now, ev);
            return;
        }
        let is_once = waiter.wait == Wait::Once;
        self.waiters.push_own(waiter);
        let serves = Serves::One(no);
        if self.requests.serving(&[serves]).is_empty() {
            let n = self.request(serves, &lock, terms, ev);
            self.requests.change(n).once = is_once;
            self.set_due(n, ev.now);
        }
    }

    /// A reply has refused the lock to the calls that a request serves: they have waited, and a
    /// message has woken them in vain.
    pub(super) fn note_waited(&mut self, n: RequestNo, ev: &mut LineEvent<'_>) {
        if std::mem::take(&mut self.requests.change(n).woken) {
            ev.fx.wakes += 1;
            ev.fx.spurious_wakes += 1;
        }
        let waiter = match self.requests[n].serves {
            // The others have waited behind that one from their beginning.
            Serves::Line => self.waiters.front().map(|front| front.no),
            Serves::One(no) => Some(no),
            Serves::Nobody => None,
        };
        if let Some(no) = waiter {
            self.waiters.change(no, |waiter| waiter.note_waited());
        }
    }

    /// A call leaves without an outcome: what asks on its behalf ends if it serves nobody else.
    pub(super) fn leave(&mut self, no: WaiterNo, ev: &mut LineEvent<'_>) {
        self.remove_waiter(no, ev);
        if !is_on(Mutant::LeavingKeepsThePlace) {
            self.retire_of(no, ev);
        }
    }

    /// Ends the requests that served a call which has left, unless they serve others.
    pub(super) fn retire_of(&mut self, no: WaiterNo, ev: &mut LineEvent<'_>) {
        self.retire_each(&[Serves::Line, Serves::One(no)], ev);
    }

    /// Ends the requests that served only a call which has left.
    pub(super) fn retire_own(&mut self, no: WaiterNo, ev: &mut LineEvent<'_>) {
        self.retire_each(&[Serves::One(no)], ev);
    }

    fn retire_each(&mut self, of: &[Serves], ev: &mut LineEvent<'_>) {
        for n in self.requests.serving(of).into_iter().rev() {
            self.retire(n, ev);
        }
    }

    /// Ends a request if it serves nobody: at once, unless its command is under way.
    pub(super) fn retire(&mut self, n: RequestNo, ev: &mut LineEvent<'_>) {
        let request = &self.requests[n];
        let has_caller = request.caller().is_some();
        if is_on(Mutant::CallerIsNotServed) && has_caller && self.waiters.in_line() == 0 {
            self.requests.change(n).serves = Serves::Nobody;
            return;
        }
        if has_caller || self.receiver(request) != Receiver::Nobody {
            return;
        }
        match request.state {
            RequestState::Sent | RequestState::Won(_) => {
                if request.serves != Serves::Nobody
                    && let Some(flight) = request.flight.as_ref().filter(|_| ev.limits.engine_sends)
                {
                    ev.ids.push(IdFate::Abandoned(flight.id.clone()));
                }
                self.requests.change(n).serves = Serves::Nobody;
            }
            RequestState::Due(_) => {
                self.requests.remove(n);
            }
            RequestState::Queued(_) | RequestState::Confirming(_) => {
                // Its acquiring command has run: the reply or a grant message said so.
                let request = self.requests.remove(n);
                if let Some(id) = request.id() {
                    ev.undo(&request, id, Proof::AnyAnswer);
                }
            }
        }
    }

    // ------------------------------------------------------------------ the requests of parts

    /// The command of a request for a part has ended otherwise than its call wants: the call ends,
    /// if it does not wait.
    pub(super) fn end_part(&mut self, n: RequestNo, ev: &mut LineEvent<'_>) {
        let request = &self.requests[n];
        if !request.is_part_over() || !matches!(request.state, RequestState::Due(_)) {
            return;
        }
        let (serves, since) = (request.serves, request.since);
        self.requests.remove(n);
        if let Serves::One(no) = serves {
            let failure = self.failure_of_part(since);
            self.end_waiter(no, Outcome::Failed(failure), ev);
        }
    }
}

/// Returns when the engine first looks at a command that a caller sent at `sent`, to end it.
pub(super) fn caller_overdue_at(sent: Instant, ev: &LineEvent<'_>) -> Instant {
    sent.after(ev.limits.command_timeout).after(GRACE)
}
