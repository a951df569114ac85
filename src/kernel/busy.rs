//! The replies that keep a request waiting although nobody is known to have the lock.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::error::Cause;
use crate::kernel::context::Context;
use crate::kernel::entry::LockEntry;
use crate::kernel::failure::{Failure, Refused};
use crate::kernel::request::{Busy, Flight, RequestNo, Serves};
use crate::kernel::requests::Receiver;
use crate::kernel::waiter::{Outcome, Wait};
use crate::mutant::{Mutant, is_on};
use crate::protocol::refusal::RefusedName;

/// Returns why a call fails that began at `since`, if nobody was known to have the lock until now.
pub(crate) fn no_holder_since(since: Instant, cause: &'static str) -> Failure {
    Failure::Unreachable {
        since: Some(since),
        cause: Some(Cause::text(cause)),
    }
}

impl LockEntry {
    /// Nothing was taken, and nobody is known to have the lock: the next command comes after the
    /// pause.
    pub(super) fn busy(
        &mut self,
        n: RequestNo,
        flight: &Flight,
        (pause, cause): (Duration, &'static str),
        sent: Instant,
        cx: &mut Context<'_>,
    ) {
        cx.forget_attempt(&flight.id);
        if pause.is_zero() {
            return self.ask_again(n, sent, cx);
        }
        let by = Arc::new(RefusedName {
            name: 0,
            holder: Vec::new(),
            remaining: Some(Duration::ZERO),
            detail: None,
        });
        let refused = self.last.busy(sent, cx.now, by);
        self.note_waited(n, cx);
        if self.requests[n].is_part_over() {
            return self.refuse_part(n, refused, cx);
        }
        let at = cx.now.after(pause);
        let mut request = self.requests.change(n);
        request.failures = 0;
        request.again = Instant::NEVER;
        let since = request.busy.map_or(sent, |busy| busy.since);
        let is_too_long = since.until(cx.now) >= cx.shared.limits.unreachable_for;
        request.busy = (!is_too_long).then_some(Busy { since, until: at });
        drop(request);
        if is_too_long {
            self.fail(n, false, no_holder_since(since, cause), cx);
            return;
        }
        self.set_due(n, at);
        // A call that waits for its first reply only leaves if no time is left for another attempt.
        if let Receiver::Waiter(no) = self.receiver(&self.requests[n])
            && self.requests[n].serves == Serves::One(no)
            && let Some(waiter) = self.waiters.get(no)
            && waiter.wait == Wait::Once
            && at >= waiter.deadline
        {
            self.end_waiter(no, Outcome::Refused(Some(refused)), cx);
            self.retire_own(no, cx);
        }
    }

    /// The command said nothing about the lock: the next one is sent at once.
    fn ask_again(&mut self, n: RequestNo, sent: Instant, cx: &mut Context<'_>) {
        if let Some(part) = &mut self.requests.change(n).part {
            part.is_sent = false;
        }
        if is_on(Mutant::TooLowIsRefused) {
            return self.due_after_refusal(n, None, cx);
        }
        self.last.answered(sent, cx.now);
        self.set_due(n, cx.now);
    }

    /// A part was not granted: its call ends, if it has not left.
    fn refuse_part(&mut self, n: RequestNo, refused: Refused, cx: &mut Context<'_>) {
        let receiver = self.receiver(&self.requests[n]);
        self.set_due(n, cx.now);
        if let Receiver::Waiter(no) = receiver {
            self.end_waiter(no, Outcome::Refused(Some(refused)), cx);
            self.retire_own(no, cx);
        }
    }
}
