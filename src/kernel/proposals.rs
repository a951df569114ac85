//! The replies of a quorum that keep a request waiting: tokens that are too low, and split votes.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::error::Cause;
use crate::kernel::bounds::{Bound, at_most};
use crate::kernel::context::Context;
use crate::kernel::entry::LockEntry;
use crate::kernel::fault::Fault;
use crate::kernel::request::{Flight, RequestNo, Serves};
use crate::kernel::requests::Receiver;
use crate::kernel::waiter::{Failure, Outcome, Refused, Wait};
use crate::mutant::{Mutant, is_on};
use crate::protocol::refusal::RefusedName;
use crate::wait_policy::Backoff;

/// The most tokens that a request proposes, one after the other.
const MOST_PROPOSALS: usize = 8;

/// The pause after a split vote: long enough for one of several calls to finish before the next
/// ones try.
pub(crate) const SPLIT_PAUSE: Backoff =
    Backoff::new(Duration::from_millis(5), Duration::from_millis(100)).jitter(0.9);

/// Returns why a call fails that began at `since`, and that split votes have refused until now.
pub(crate) fn no_holder_since(since: Instant) -> Failure {
    let cause = "the servers keep keys of several holders, none of them on a majority: look for \
                 keys without an expiry";
    Failure::Unreachable {
        since: Some(since),
        cause: Some(Cause::text(cause)),
    }
}

impl LockEntry {
    /// The servers have seen a higher token than the proposed one: the next one is above that.
    pub(super) fn too_low(
        &mut self,
        n: RequestNo,
        flight: &Flight,
        counter: u64,
        sent: Instant,
        cx: &mut Context<'_>,
    ) {
        cx.kernel.table.forget_id(&flight.id);
        let mut request = self.requests.change(n);
        request.rounds.above = counter;
        request.rounds.too_low += 1;
        if let Some(part) = &mut request.part {
            // It has taken nothing, and says nothing.
            part.is_sent = false;
        }
        let is_too_often = request.rounds.too_low >= at_most(Bound::Proposals, MOST_PROPOSALS);
        drop(request);
        if is_on(Mutant::TooLowIsRefused) {
            return self.due_after_refusal(n, None, cx);
        }
        if !is_too_often {
            self.last.answered(sent, cx.now);
            return self.set_due(n, cx.now);
        }
        self.requests.change(n).rounds.too_low = 0;
        let cause = Cause::text("other clients used higher fencing tokens each time");
        self.not_answered(n, false, sent, Fault::NotRun(cause), cx);
    }

    /// Several calls each hold the lock on some servers, and none on a majority.
    pub(super) fn split(
        &mut self,
        n: RequestNo,
        flight: &Flight,
        sent: Instant,
        cx: &mut Context<'_>,
    ) {
        cx.kernel.table.forget_id(&flight.id);
        let by = Arc::new(RefusedName {
            name: 0,
            holder: Vec::new(),
            remaining: Some(Duration::ZERO),
            detail: None,
        });
        let refused = self.last.split(sent, cx.now, by);
        self.note_waited(n, cx);
        if self.requests[n].is_part_over() {
            return self.refuse_part(n, refused, cx);
        }
        let mut request = self.requests.change(n);
        request.failures = 0;
        request.again = Instant::NEVER;
        let pause = SPLIT_PAUSE.pause(request.rounds.splits);
        request.rounds.splits = request.rounds.splits.saturating_add(1);
        let since = *request.rounds.split_since.get_or_insert(sent);
        let at = cx.now.after(pause);
        request.rounds.pauses_until = Some(at);
        let is_too_long = since.until(cx.now) >= cx.kernel.limits.unreachable_for;
        if is_too_long {
            request.rounds.split_since = None;
            let failure = no_holder_since(since);
            drop(request);
            self.fail(n, false, failure, cx);
            return;
        }
        drop(request);
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

    /// A split vote has refused a part: its call ends, if it has not left.
    fn refuse_part(&mut self, n: RequestNo, refused: Refused, cx: &mut Context<'_>) {
        let receiver = self.receiver(&self.requests[n]);
        self.set_due(n, cx.now);
        if let Receiver::Waiter(no) = receiver {
            self.end_waiter(no, Outcome::Refused(Some(refused)), cx);
            self.retire_own(no, cx);
        }
    }
}
