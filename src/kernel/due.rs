//! The due work of a line: the commands that the engine sends for its requests.

use std::sync::Arc;

use crate::clock::Instant;
use crate::kernel::command::{Command, Listens, What};
use crate::kernel::event::{LineEvent, Own};
use crate::kernel::lease::GRACE;
use crate::kernel::line::Line;
use crate::kernel::purpose::Purpose;
use crate::kernel::request::{RequestNo, RequestState, Sender, Serves};
use crate::kernel::requests::Receiver;
use crate::kernel::steps::decided;
use crate::kernel::undo::Proof;
use crate::kernel::waiter::{Outcome, Wait, WaiterNo};
use crate::mutant::{Mutant, is_on};
use crate::name::Name;
use crate::wait_policy::WaitPolicy;

/// After how many command timeouts the engine ends the command of a thread that stands still: while
/// nobody is answered, and while others are.
const READS_WITHIN: u32 = 1;
const READS_LATE_WITHIN: u32 = 3;

impl Line {
    /// Returns the commands that are due. Afterwards the next ones are due later than now.
    ///
    /// `linger_ends`: when the engine releases a lease that lingers.
    pub(super) fn due(
        &mut self,
        name: &Name,
        linger_ends: Option<Instant>,
        ev: &mut LineEvent<'_>,
    ) -> Vec<(Command, Purpose)> {
        let mut out = Vec::new();
        self.end_silent_calls(ev);
        self.refuse_ourselves(ev);
        self.end_overdue(ev);
        self.ask_for_deadlines(ev);
        self.look_after_plain(ev);
        self.ask(&mut out, ev);
        self.refresh(name, &mut out, ev);
        self.confirm(name, &mut out, ev);
        self.recompute(linger_ends, ev);
        let first = self.waiters.first_deadline();
        for (command, _) in &mut out {
            command.wanted_by = first;
        }
        out
    }

    /// Calls give up if Redis has been silent for too long.
    fn end_silent_calls(&mut self, ev: &mut LineEvent<'_>) {
        let limit = ev.limits.unreachable_for;
        // Those that began first give up first.
        let by_start = self.waiters.by_start();
        let silent =
            by_start.take_while(|(_, start)| self.gives_up_at(*start, ev.own, limit) <= ev.now);
        let silent: Vec<(WaiterNo, Instant)> = silent.collect();
        for (no, start) in silent {
            let outcome = Outcome::Failed(self.failure(start).after_long());
            self.end_waiter(no, outcome, ev);
            self.retire_of(no, ev);
        }
    }

    /// This client itself holds the name: that refuses the call at the front, if that counts
    /// refusals.
    fn refuse_ourselves(&mut self, ev: &mut LineEvent<'_>) {
        while let Some(at) = self.refuses_itself_at(ev.own)
            && at <= ev.now
        {
            if let Some(no) = self.count_refusal(Serves::Line, ev.now, ev.now) {
                self.end_waiter(no, Outcome::Refused(None), ev);
                self.retire_of(no, ev);
            }
        }
    }

    /// Returns when the lease of this client counts as a refusal for the call at the front.
    pub(super) fn refuses_itself_at(&self, own: Own) -> Option<Instant> {
        let front = self.waiters.front()?;
        let Wait::Queue(WaitPolicy::Backoff(backoff)) = &front.wait else {
            return None;
        };
        (backoff.limit().is_some() && own.line_waits).then_some(front.retry_at)
    }

    /// The client asks once more, shortly before the deadline of a call, unless it knows enough.
    fn ask_for_deadlines(&mut self, ev: &mut LineEvent<'_>) {
        let holds = ev.own.alone;
        for no in self.waiters.asks_by(ev.now) {
            decided(1);
            let span = self.waiters.change(no, |waiter| {
                waiter.ask_at = Instant::NEVER;
                (waiter.start, waiter.deadline)
            });
            if let Some((start, deadline)) = span
                && !holds
                && !self.last.says_taken(start, deadline)
                && !is_on(Mutant::NobodyAsksForDeadlines)
            {
                self.ask_for_deadline(no, ev);
            }
        }
    }

    /// Plans the last attempts of the calls again, after a refusal had named a later time, or this
    /// client held the name. One whose time has come is made at once.
    pub(super) fn plan_last_attempts(&mut self) {
        for no in self.waiters.have_asked() {
            let last = &self.last;
            self.waiters.change(no, |waiter| {
                waiter.ask_at = last.ask_at(waiter.start, waiter.deadline);
            });
        }
        if let Some(first) = self.waiters.first_ask() {
            self.touch(first, first);
        }
    }

    fn ask_for_deadline(&mut self, no: WaiterNo, ev: &mut LineEvent<'_>) {
        let is_in_line = self.waiters.is_in_line(no);
        let mut needs_own = false;
        for n in self.requests.serving(&[Serves::Line, Serves::One(no)]) {
            let mut request = self.requests.change(n);
            if request.serves == Serves::Line && !is_in_line {
                continue;
            }
            let is_caller_s = request.caller().is_some();
            match &mut request.state {
                RequestState::Due(at) => *at = (*at).min(ev.now),
                RequestState::Queued(place) if !place.refreshing => {
                    place.refresh_at = place.refresh_at.min(ev.now);
                }
                // A caller's connection may be dead: ask on another one.
                RequestState::Sent if is_caller_s && is_in_line => needs_own = true,
                _ => {}
            }
        }
        if needs_own && let Some(waiter) = self.waiters.get(no) {
            let (lock, terms) = (Arc::clone(&waiter.lock), waiter.terms);
            let n = self.request(Serves::One(no), &lock, terms, ev);
            self.requests.change(n).once = true;
            self.set_due(n, ev.now);
        }
    }

    /// Sends the acquiring commands that are due.
    fn ask(&mut self, out: &mut Vec<(Command, Purpose)>, ev: &mut LineEvent<'_>) {
        for n in self.requests.to_ask(ev.now) {
            let Some(request) = self.requests.get(n) else {
                continue;
            };
            // The end of the lease makes somebody ask again.
            let waits_for_end = request.serves == Serves::Line && ev.own.line_waits;
            if waits_for_end || self.receiver(request) == Receiver::Nobody {
                self.requests.remove(n);
                continue;
            }
            if self.requests[n].is_part_over() {
                self.end_part(n, ev);
                continue;
            }
            decided(1);
            let (command, asked) = self.send(n, Sender::Engine, None, ev);
            out.push((command, Purpose::Ask(asked)));
        }
    }

    /// Refreshes all places of a group if one of them is due.
    fn refresh(&mut self, name: &Name, out: &mut Vec<(Command, Purpose)>, ev: &mut LineEvent<'_>) {
        for first in self.requests.to_act(ev.now) {
            let request = &self.requests[first];
            let group = match &request.state {
                // An earlier command may include it.
                RequestState::Queued(place) if !place.refreshing => request.group(),
                _ => continue,
            };
            let Some(group) = group else {
                continue;
            };
            let lock = Arc::clone(&request.lock);
            let places = self.requests.to_refresh(group);
            let wakes = |n: &RequestNo| self.wakes(self.requests[*n].serves);
            let listens = if places.iter().any(wakes) {
                Listens::Inbox
            } else {
                Listens::No
            };
            let mut of = Vec::new();
            for no in places {
                let mut request = self.requests.change(no);
                request.again = Instant::NEVER;
                if let RequestState::Queued(place) = &mut request.state {
                    place.refreshing = true;
                    place.listens = listens;
                    of.push((no, place.id.clone()));
                }
            }
            decided(of.len());
            let ids = of.iter().map(|(_, id)| id.clone()).collect();
            let tokens = self.requests[first]
                .terms
                .tokens(self.waiters.in_line() > 1);
            let what = What::Refresh {
                tokens,
                ids,
                listens,
            };
            out.push((
                Command::new(&lock, what),
                Purpose::Refresh(name.clone(), of),
            ));
        }
    }

    fn confirm(&mut self, name: &Name, out: &mut Vec<(Command, Purpose)>, ev: &mut LineEvent<'_>) {
        for n in self.requests.to_act(ev.now) {
            let terms = self.receiver_terms(&self.requests[n]);
            let mut request = self.requests.change(n);
            let (lock, no) = (Arc::clone(&request.lock), request.no);
            let RequestState::Confirming(grant) = &mut request.state else {
                continue;
            };
            decided(1);
            grant.renewing = true;
            grant.longest = grant.longest.max(terms.ttl);
            let what = What::Renew {
                id: grant.id.clone(),
                ttl: terms.ttl,
                may_shorten: false,
            };
            let work = Purpose::Confirm(name.clone(), no, grant.id.clone(), terms);
            let command = Command::new(&lock, what).acknowledged_by(terms.replicas);
            out.push((command, work));
        }
    }

    /// Computes when the engine must look again.
    fn recompute(&mut self, linger_ends: Option<Instant>, ev: &LineEvent<'_>) {
        (self.next, self.latest) = (Instant::NEVER, Instant::NEVER);
        if let Some(at) = linger_ends {
            self.touch(at, at);
        }
        if !is_on(Mutant::StoppedCallerBlocks) {
            self.touch(self.first_overdue_at(ev), Instant::NEVER);
        }
        let after_plain = self.after_plain;
        self.touch(after_plain, after_plain);
        let [at, latest] = self.requests.next();
        self.touch(at, latest);
        if let Some(at) = self.waiters.first_ask() {
            self.touch(at, at);
        }
        self.touch_silence(ev);
    }
}

/// The callers whose threads stand still.
impl Line {
    /// Returns the requests whose callers stand still. Those for the line keep others waiting; one
    /// that asks for itself may only be late to read its reply, if others are answered.
    fn overdue(&self, ev: &LineEvent<'_>) -> Vec<RequestNo> {
        let [soon, late] = [READS_WITHIN, READS_LATE_WITHIN].map(|times| {
            let timeout = ev.limits.command_timeout.saturating_mul(times);
            (ev.now >= Instant::START.after(timeout).after(GRACE))
                .then(|| ev.now.before(timeout).before(GRACE))
        });
        let mut overdue = Vec::new();
        if let Some(soon) = soon {
            overdue.extend(self.requests.of_callers(true, [Instant::START, soon]));
            let from = if is_on(Mutant::LateReaderIsOverdue) {
                Instant::START
            } else {
                self.last.heard()
            };
            overdue.extend(self.requests.of_callers(false, [from, soon]));
        }
        if let Some(late) = late {
            overdue.extend(self.requests.of_callers(false, [Instant::START, late]));
        }
        overdue.sort_unstable();
        overdue.dedup();
        overdue
    }

    /// Returns when the first of them is overdue, as far as is known.
    pub(super) fn first_overdue_at(&self, ev: &LineEvent<'_>) -> Instant {
        let timeout = ev.limits.command_timeout;
        let at = |sent: Option<Instant>, times| {
            let after = timeout.saturating_mul(times);
            sent.map_or(Instant::NEVER, |sent| sent.after(after).after(GRACE))
        };
        let requests = &self.requests;
        let of_line = requests.first_of_callers(true, Instant::START);
        let own = requests.first_of_callers(false, Instant::START);
        let unheard = requests.first_of_callers(false, self.last.heard());
        let of_all = [
            at(of_line, READS_WITHIN),
            at(unheard, READS_WITHIN),
            at(own, READS_LATE_WITHIN),
        ];
        of_all.into_iter().fold(Instant::NEVER, Instant::min)
    }

    /// The engine ends the commands of callers whose threads stand still.
    pub(super) fn end_overdue(&mut self, ev: &mut LineEvent<'_>) {
        if is_on(Mutant::StoppedCallerBlocks) {
            return;
        }
        for n in self.overdue(ev).into_iter().rev() {
            let Some(flight) = self.requests.change(n).flight.take() else {
                continue;
            };
            if let RequestState::Sent = self.requests[n].state {
                ev.undo(&self.requests[n], &flight.id, Proof::KeySeen);
                self.last.overdue(flight.sent);
                self.due_after_failure(n, ev);
            }
            self.retire(n, ev);
        }
    }
}
