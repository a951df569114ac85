//! The due work of an entry: the commands that the engine sends for its requests.

use std::sync::Arc;

use crate::clock::Instant;
use crate::kernel::command::{Command, Listens, What};
use crate::kernel::context::Context;
use crate::kernel::engine::Purpose;
use crate::kernel::entry::LockEntry;
use crate::kernel::mutant::{Mutant, is_on};
use crate::kernel::request::{Request, RequestState, Sender, Serves};
use crate::kernel::requests::{Receiver, caller_overdue_at};
use crate::kernel::waiter::{Outcome, Wait, WaiterNo};
use crate::wait_policy::WaitPolicy;

impl LockEntry {
    /// Returns the commands that are due. Afterwards the next ones are due later than now.
    pub(super) fn due(&mut self, cx: &mut Context<'_>) -> Vec<(Command, Purpose)> {
        let mut out = Vec::new();
        self.armed = None;
        if self.linger_ends().is_some_and(|at| at <= cx.now) {
            self.end_linger(cx);
        }
        self.end_silent_calls(cx);
        self.refuse_ourselves(cx);
        self.end_overdue(cx);
        self.ask_for_deadlines(cx);
        self.ask(&mut out, cx);
        self.refresh(&mut out, cx);
        self.confirm(&mut out, cx);
        self.recompute(cx);
        out
    }

    /// Calls give up if Redis has been silent for too long.
    fn end_silent_calls(&mut self, cx: &mut Context<'_>) {
        let limit = cx.kernel.limits.unreachable_for;
        let waiters = self.line.iter().chain(&self.own);
        let silent = waiters.filter(|waiter| self.gives_up_at(waiter.start, limit) <= cx.now);
        let silent: Vec<(WaiterNo, Instant)> =
            silent.map(|waiter| (waiter.no, waiter.start)).collect();
        for (no, start) in silent {
            let outcome = Outcome::Failed(self.failure(start).after_long());
            self.end_waiter(no, outcome, cx);
            self.retire_of(no, cx);
        }
    }

    /// This client itself holds the name: that refuses the call at the front, if that counts
    /// refusals.
    fn refuse_ourselves(&mut self, cx: &mut Context<'_>) {
        while let Some(at) = self.refuses_itself_at()
            && at <= cx.now
        {
            if let Some(no) = self.count_refusal(Serves::Line, cx.now, cx.now) {
                self.end_waiter(no, Outcome::Refused(None), cx);
                self.retire_of(no, cx);
            }
        }
    }

    /// Returns when the lease of this client counts as a refusal for the call at the front.
    pub(super) fn refuses_itself_at(&self) -> Option<Instant> {
        let front = self.line.front()?;
        let Wait::Queue(WaitPolicy::Backoff(backoff)) = &front.wait else {
            return None;
        };
        (backoff.limit().is_some() && self.holds_alone()).then_some(front.retry_at)
    }

    /// The client asks once more, shortly before the deadline of a call, unless it knows enough.
    fn ask_for_deadlines(&mut self, cx: &mut Context<'_>) {
        if is_on(Mutant::NobodyAsksForDeadlines) {
            self.line
                .iter_mut()
                .chain(&mut self.own)
                .for_each(|it| it.ask_at = Instant::NEVER);
        }
        let mut asks: Vec<WaiterNo> = Vec::new();
        let holds = self.holds_alone();
        for waiter in self.line.iter_mut().chain(&mut self.own) {
            if waiter.ask_at > cx.now {
                continue;
            }
            waiter.ask_at = Instant::NEVER;
            if !holds && !self.last.says_taken(waiter.start, waiter.deadline) {
                asks.push(waiter.no);
            }
        }
        for no in asks {
            self.ask_for_deadline(no, cx);
        }
    }

    /// Plans the last attempts of the calls again, after a refusal had named a later time, or this
    /// client held the name. One whose time has come is made at once.
    pub(super) fn plan_last_attempts(&mut self) {
        let mut first = Instant::NEVER;
        for waiter in self.line.iter_mut().chain(&mut self.own) {
            waiter.ask_at = self.last.ask_at(waiter.start, waiter.deadline);
            first = first.min(waiter.ask_at);
        }
        self.touch(first, first);
    }

    fn ask_for_deadline(&mut self, no: WaiterNo, cx: &mut Context<'_>) {
        let is_its = |request: &Request| [Serves::Line, Serves::One(no)].contains(&request.serves);
        let is_in_line = self.line.iter().any(|waiter| waiter.no == no);
        let mut needs_own = false;
        for request in self.requests.iter_mut().filter(|request| is_its(request)) {
            if request.serves == Serves::Line && !is_in_line {
                continue;
            }
            let is_caller_s = request.caller().is_some();
            match &mut request.state {
                RequestState::Due(at) => *at = (*at).min(cx.now),
                RequestState::Queued(place) if !place.refreshing => {
                    place.refresh_at = place.refresh_at.min(cx.now);
                }
                // A caller's connection may be dead: ask on another one.
                RequestState::Sent if is_caller_s && is_in_line => needs_own = true,
                _ => {}
            }
        }
        if needs_own && let Some(waiter) = self.waiter(no) {
            let (lock, terms) = (Arc::clone(&waiter.lock), waiter.terms);
            let n = self.request(Serves::One(no), &lock, terms, cx);
            self.requests[n].once = true;
            self.set_due(n, cx.now);
        }
    }

    /// Sends the acquiring commands that are due.
    fn ask(&mut self, out: &mut Vec<(Command, Purpose)>, cx: &mut Context<'_>) {
        for n in (0..self.requests.len()).rev() {
            let request = &self.requests[n];
            match request.state {
                RequestState::Due(at) if at <= cx.now => {}
                _ => continue,
            }
            // The end of the lease makes somebody ask again.
            let waits_for_end = request.serves == Serves::Line && self.holds_alone();
            if waits_for_end || self.receiver(request) == Receiver::Nobody {
                self.requests.remove(n);
                continue;
            }
            if self.requests[n].is_used_up() {
                self.end_of_set(n, cx);
                continue;
            }
            let (command, asked) = self.send(n, Sender::Engine, None, cx);
            out.push((command, Purpose::Ask(asked)));
        }
    }

    /// Refreshes all places of a group if one of them is due.
    fn refresh(&mut self, out: &mut Vec<(Command, Purpose)>, cx: &mut Context<'_>) {
        let is_due = |request: &Request| match &request.state {
            RequestState::Queued(place) => !place.refreshing && place.refresh_at <= cx.now,
            _ => false,
        };
        while let Some(first) = self.requests.iter().position(is_due) {
            let group = self.requests[first].group();
            let lock = Arc::clone(&self.requests[first].lock);
            let mut listens = Listens::No;
            for request in &self.requests {
                if request.group() == group && self.wakes(request.serves) {
                    listens = Listens::Inbox;
                }
            }
            let mut of = Vec::new();
            for request in self.requests.iter_mut().filter(|it| it.group() == group) {
                if let RequestState::Queued(place) = &mut request.state
                    && !place.refreshing
                {
                    place.refreshing = true;
                    place.listens = listens;
                    request.again = Instant::NEVER;
                    of.push((request.no, place.id.clone()));
                }
            }
            let ids = of.iter().map(|(_, id)| id.clone()).collect();
            let tokens = self.requests[first].terms.tokens(self.line.len() > 1);
            let what = What::Refresh {
                tokens,
                ids,
                listens,
            };
            out.push((
                Command::new(&lock, what),
                Purpose::Refresh(self.name.clone(), of),
            ));
        }
    }

    fn confirm(&mut self, out: &mut Vec<(Command, Purpose)>, cx: &mut Context<'_>) {
        for n in 0..self.requests.len() {
            let terms = self.receiver_terms(&self.requests[n]);
            let request = &mut self.requests[n];
            let RequestState::Confirming(grant) = &mut request.state else {
                continue;
            };
            if grant.renewing || grant.retry_at > cx.now {
                continue;
            }
            grant.renewing = true;
            grant.longest = grant.longest.max(terms.ttl);
            let what = What::Renew {
                id: grant.id.clone(),
                ttl: terms.ttl,
                may_shorten: false,
            };
            let work = Purpose::Confirm(self.name.clone(), request.no, grant.id.clone(), terms);
            let command = Command::new(&request.lock, what).acknowledged_by(terms.replicas);
            out.push((command, work));
        }
    }

    /// Computes when the engine must look again.
    fn recompute(&mut self, cx: &Context<'_>) {
        (self.next, self.latest) = (Instant::NEVER, Instant::NEVER);
        if let Some(at) = self.linger_ends() {
            self.touch(at, at);
        }
        for n in 0..self.requests.len() {
            let overdue = match (&self.requests[n].state, &self.requests[n].flight) {
                (RequestState::Won(_), _) | (_, None) => Instant::NEVER,
                _ if is_on(Mutant::StoppedCallerBlocks) => Instant::NEVER,
                (_, Some(flight)) => match flight.sender {
                    Sender::Caller(_) => caller_overdue_at(flight.sent, cx),
                    Sender::Engine => Instant::NEVER,
                },
            };
            self.touch(overdue, Instant::NEVER);
            match &self.requests[n].state {
                RequestState::Due(at) => self.touch(*at, *at),
                RequestState::Queued(place) if !place.refreshing => {
                    let at = place.refresh_at;
                    self.touch_refresh(n, at);
                }
                RequestState::Confirming(grant) if !grant.renewing => {
                    self.touch(grant.retry_at, grant.retry_at);
                }
                _ => {}
            }
        }
        let limit = cx.kernel.limits.unreachable_for;
        let waiters = self.line.iter().chain(&self.own);
        let wishes = waiters.map(|waiter| waiter.ask_at.min(self.gives_up_at(waiter.start, limit)));
        if let Some(at) = wishes.min() {
            self.touch(at, at);
        }
    }
}
