//! A name that this client holds or waits for: its leases, the waiting calls and the requests.
//!
//! ```text
//! a call ──nobody holds, waits or asks──▶ its own thread asks ──refused──▶ parks at the front
//!    └──otherwise──▶ parks at the end of the line
//!
//! the line: one request for all; it exists while somebody waits and this client does not hold
//!           the name alone. A lease goes to the front; its end makes somebody ask again.
//! own:      calls of kinds whose calls have a place each: one request for each of them.
//! ```
//!
//! All methods run under the lock of the entry's shard.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::kernel::context::Context;
use crate::kernel::failure::{Failure, Refused};
use crate::kernel::few::Few;
use crate::kernel::held::HeldLease;
use crate::kernel::last_reply::LastReply;
use crate::kernel::request::Serves;
use crate::kernel::request_index::Requests;
use crate::kernel::schedule::Item;
use crate::kernel::steps::decided;
use crate::kernel::waiter::{Outcome, Waiter, WaiterNo};
use crate::kernel::waiters::Waiters;
use crate::kernel::watch::Watch;
use crate::mutant::{Mutant, is_on};
use crate::name::Name;
use crate::protocol::primitive::Primitive;

/// How long first commands join the queue after a refusal, a grant or a plain release: they do not
/// overtake.
const CONTENDED_FOR: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct LockEntry {
    pub(crate) name: Name,
    pub(crate) held: Few<Held>,
    pub(super) capacity: usize,
    /// Until when the only lease lingers; `None` if somebody holds it.
    pub(crate) lingers_until: Option<Instant>,
    pub(crate) waiters: Waiters,
    pub(crate) requests: Requests,
    pub(crate) last: LastReply,
    /// When others were last known to want the name; after a plain release, until when no call of
    /// the line asks.
    contended: Instant,
    /// When the calls look that a plain release did not name; `NEVER` if none was announced.
    pub(super) after_plain: Instant,
    /// The last lease that ended here by a confirmed release: its message wakes no line.
    pub(super) released: Option<HolderId>,
    /// The subscriber was told to listen to the messages of this name.
    pub(super) listens: bool,
    /// Messages arrive, as far as is known.
    pub(super) is_listening: bool,
    /// Made when it is first needed.
    extras: Option<Box<Extras>>,
    /// Lower bounds of when the engine must look, and of when it must be awake for that.
    pub(super) next: Instant,
    pub(super) latest: Instant,
    /// Its bounds in the schedule, if it is there.
    pub(super) armed: Option<[Instant; 2]>,
}

/// The parts that few entries have.
#[derive(Debug, Default)]
pub(super) struct Extras {
    /// Calls elsewhere, which nobody asks for here: they try again when the name may be free.
    pub(super) watches: Vec<Watch>,
}

/// A lease of this client.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) lease: Arc<HeldLease>,
    pub(super) is_shared: bool,
}

impl LockEntry {
    pub(super) fn new(name: Name, lock: &dyn Primitive) -> Self {
        let capacity = lock.capacity();
        Self {
            name,
            held: Few::default(),
            capacity,
            lingers_until: None,
            waiters: Waiters::default(),
            requests: Requests::default(),
            last: LastReply::default(),
            contended: Instant::START,
            after_plain: Instant::NEVER,
            released: None,
            listens: false,
            is_listening: false,
            extras: None,
            next: Instant::NEVER,
            latest: Instant::NEVER,
            armed: None,
        }
    }

    pub(super) fn extras(&mut self) -> &mut Extras {
        self.extras.get_or_insert_default()
    }

    pub(super) fn watches(&self) -> &[Watch] {
        self.extras.as_ref().map_or(&[], |extras| &extras.watches)
    }

    // ------------------------------------------------------------------ what is known

    /// Returns the lease that makes Redis refuse a further one, `is_shared` or not.
    pub(super) fn excludes(&self, is_shared: bool) -> Option<&Arc<HeldLease>> {
        if self.held.len() < self.capacity {
            return None;
        }
        let mut held = self.held.iter();
        let found = held.find(|held| !is_shared || !held.is_shared)?;
        Some(&found.lease)
    }

    /// Returns whether this client has a lease that excludes all others.
    pub(crate) fn holds_alone(&self) -> bool {
        self.excludes(true).is_some()
    }

    /// Returns whether the line waits for the end of a lease of this client, which can be handed to
    /// it. Beside any other lease it asks Redis, and takes its place there: otherwise the next call
    /// for a part, or for a fair lock, would go first each time.
    pub(crate) fn line_waits(&self) -> bool {
        let lease = self.excludes(true);
        lease.is_some_and(|it| it.fits_line() || is_on(Mutant::LineWaitsForParts))
    }

    pub(crate) fn holds(&self, id: &HolderId) -> bool {
        self.held.iter().any(|held| held.lease.id == *id)
    }

    /// Returns whether the line asks, waits, or has what it waits for.
    pub(super) fn line_is_busy(&self) -> bool {
        self.waiters.in_line() > 0 || self.line_waits() || self.line_request().is_some()
    }

    /// Records that others wanted the name at `at`, or that it is left to other programs until
    /// then.
    pub(super) fn note_contended(&mut self, at: Instant) {
        self.contended = self.contended.max(at);
    }

    pub(super) fn contended_until(&self) -> Instant {
        match self.contended {
            Instant::START => Instant::START,
            contended => contended.after(CONTENDED_FOR),
        }
    }

    /// Returns from when on the line may ask.
    pub(super) fn asks_from(&self) -> Instant {
        self.contended
    }

    /// Returns whether a call of this client waits for the name, as far as Redis has said: then a
    /// call that does not wait is refused, so that it does not get the name first. A call that
    /// waits only behind the first command of another one has not been refused by anybody. Walks
    /// over the calls up to the first such one.
    pub(super) fn is_waited_for(&self, now: Instant) -> bool {
        let is_said = self.last.has_refused() && !self.last.has_failed();
        is_said && self.waiters.walk().any(|waiter| waiter.is_ahead(now))
    }

    /// Returns what Redis last said about the holder, unless its lease has ended since.
    pub(super) fn last_holder(&self, now: Instant) -> Option<Refused> {
        self.last.refusal().filter(|refused| now < refused.until)
    }

    /// Returns the refusal of a call that does not wait, if Redis need not be asked for it: this
    /// client has the lock, or a call of it waits for that.
    pub(super) fn refuses_once(
        &self,
        lock: &dyn Primitive,
        now: Instant,
    ) -> Option<Option<Refused>> {
        let own = self.excludes(lock.is_shared());
        if own.is_some_and(|lease| lease.covers(now)) {
            return Some(None);
        }
        self.is_waited_for(now).then(|| self.last_holder(now))
    }

    /// Returns what a call reports at its deadline.
    pub(super) fn at_deadline(
        &self,
        lock: &dyn Primitive,
        [start, deadline]: [Instant; 2],
        now: Instant,
    ) -> Outcome {
        let own = self.excludes(lock.is_shared());
        if own.is_some_and(|lease| lease.covers(now)) {
            return Outcome::Refused(None);
        }
        if self.last.says_taken(start, deadline) {
            Outcome::Refused(self.last.refusal())
        } else {
            Outcome::Failed(self.failure(start))
        }
    }

    /// Returns why a call that began at `start` fails.
    pub(super) fn failure(&self, start: Instant) -> Failure {
        self.last.failure(start, self.requests.under_way())
    }

    /// Returns why a call for a part fails, which began at `start` and does not wait.
    pub(super) fn failure_of_part(&self, start: Instant) -> Failure {
        if self.last.has_failed() {
            self.failure(start)
        } else {
            Failure::Restart
        }
    }

    /// Returns when a call gives up because of what Redis says, or because it is silent.
    pub(super) fn gives_up_at(&self, start: Instant, unreachable_for: Duration) -> Instant {
        if self.holds_alone() {
            Instant::NEVER
        } else {
            let under_way = self.requests.under_way();
            self.last.gives_up_at(start, under_way, unreachable_for)
        }
    }

    // ------------------------------------------------------------------ the schedule

    /// Notes that the engine must look at the entry at `at`, and be awake for that by `latest`.
    pub(super) fn touch(&mut self, at: Instant, latest: Instant) {
        self.next = self.next.min(at);
        self.latest = self.latest.min(latest);
    }

    /// Re-arms the entry after a change. Returns true if nothing is left in it.
    pub(super) fn rearm(&mut self, cx: &mut Context<'_>) -> bool {
        // Only a call that has not begun to ask takes a lease that lingers.
        if self.is_wanted() {
            self.end_linger(cx);
        }
        let is_idle = self.held.is_empty()
            && self.waiters.is_empty()
            && self.watches().is_empty()
            && self.requests.is_empty();
        // Most entries only have a lease: the room for others would be most of their size.
        if self.requests.is_empty() {
            self.requests = Requests::default();
        }
        if self.waiters.is_empty() {
            self.waiters = Waiters::default();
        }
        if !self.listens
            && let Some(lock) = self.listener()
        {
            self.listens = true;
            let change = cx.shared.next_serial();
            cx.fx.listen.push((lock, change));
        }
        if is_idle && cx.now >= self.contended_until() {
            if self.armed.is_some() {
                cx.unschedule(&Item::Entry(self.name.clone()));
            }
            if self.listens {
                let change = cx.shared.next_serial();
                cx.fx.unlisten.push((self.name.clone(), change));
            }
            return true;
        }
        if is_idle {
            (self.next, self.latest) = (self.contended_until(), Instant::NEVER);
        }
        if let Some(at) = self.refuses_itself_at() {
            self.touch(at, at);
        }
        let bounds = [self.next, self.latest];
        if self.armed != Some(bounds) && !(self.armed.is_none() && self.next == Instant::NEVER) {
            self.armed = Some(bounds);
            cx.put(Item::Entry(self.name.clone()), bounds);
        } else if self.latest < Instant::NEVER && !is_on(Mutant::WakeUpIsPromisedOnce) {
            // An earlier promise to wake the engine may be that of a thread which stands still.
            cx.wake_engine_by(self.latest);
        }
        false
    }

    // ------------------------------------------------------------------ the parked calls

    /// Returns the lock of a call that needs messages. One that nobody has refused needs none,
    /// unless it has a place nevertheless.
    fn listener(&self) -> Option<Arc<dyn Primitive>> {
        let woken = self.waiters.listener(self.requests.has_place());
        let watch = self.watches().iter().find(|watch| watch.wakes);
        let watch = watch.map(|watch| &watch.lock);
        woken.map(|waiter| &waiter.lock).or(watch).cloned()
    }

    /// Returns whether release messages wake a parked call that a request serves.
    pub(super) fn wakes(&self, serves: Serves) -> bool {
        match serves {
            Serves::Line => self.waiters.first_woken().is_some(),
            Serves::One(no) => (self.waiters.get(no)).is_some_and(|waiter| waiter.wait.is_woken()),
            Serves::Nobody => false,
        }
    }

    /// Removes a waiting call from its list. Its pause holds nobody else up.
    pub(super) fn remove_waiter(&mut self, no: WaiterNo, cx: &Context<'_>) -> Option<Waiter> {
        let was_in_line = self.waiters.is_in_line(no);
        let waiter = self.waiters.remove(no)?;
        if was_in_line {
            self.end_pause(waiter.retry_at, cx);
        }
        Some(waiter)
    }

    /// Ends a parked call: its outcome is stored, and its thread is woken.
    pub(super) fn end_waiter(&mut self, no: WaiterNo, outcome: Outcome, cx: &mut Context<'_>) {
        if let Some(waiter) = self.remove_waiter(no, cx) {
            decided(1);
            *waiter.cell.outcome.lock() = Some(outcome);
            cx.fx.wake.push(waiter.cell);
        }
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
