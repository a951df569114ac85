//! What the subscriber and the router tell: grants, releases, lost and new connections.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::kernel::Kernel;
use crate::kernel::context::Context;
use crate::kernel::effects::Effects;
use crate::kernel::entry::LockEntry;
use crate::kernel::failure::Failure;
use crate::kernel::request::{Request, RequestNo, RequestState, Serves};
use crate::kernel::steps::decided;
use crate::mutant::{Mutant, is_on};
use crate::name::Name;
use crate::protocol::place::{Next, TokenBlock, read_grant, read_next, read_refresh};
use crate::protocol::primitive::Primitive;
use crate::random;

/// After a plain release, programs outside the queue have this long to take the lock.
pub(super) const FREE_FOR: Duration = Duration::from_millis(2);

/// The client that a plain release names may have died: the others ask from this time after its
/// message on, at a random moment of the next 20 ms, or of 4 ms for each client that waits.
const OTHERS_AFTER: Duration = Duration::from_millis(20);
const OTHERS_WITHIN: Duration = Duration::from_millis(20);
const FOR_EACH: Duration = Duration::from_millis(4);

impl Kernel {
    /// A message in the client's inbox.
    pub(crate) fn inbox(&self, payload: &[u8], now: Instant, fx: &mut Effects) {
        decided(1);
        if let Some((id, tokens)) = read_grant(payload) {
            self.granted(&id, tokens, now, fx);
        } else if let Some(id) = read_refresh(payload)
            && let Some((name, _)) = self.shared.request_of(&id)
        {
            // A wake-up like a release.
            self.with_existing(&name, now, fx, |entry, cx| entry.look(cx.now, cx));
        }
    }

    /// A grant message.
    pub(crate) fn granted(
        &self,
        id: &HolderId,
        tokens: TokenBlock,
        now: Instant,
        fx: &mut Effects,
    ) {
        if let Some((name, no)) = self.shared.request_of(id) {
            self.with_existing(&name, now, fx, |entry, cx| {
                entry.granted_by_message(no, id, tokens, cx);
            });
            return;
        }
        // Nobody here wants it any more: its release is due now.
        self.with_pending(now, fx, |pending| pending.seen(id));
    }

    /// A message on the release channel of a name.
    pub(crate) fn announced(&self, name: &Name, payload: &[u8], now: Instant, fx: &mut Effects) {
        decided(1);
        self.with_existing(name, now, fx, |entry, cx| entry.announced(payload, cx));
    }

    /// A release of the lease with this id was announced, or its key is missing somewhere. If this
    /// client has it, it is checked at once. Returns whether that is so.
    pub(crate) fn doubt(&self, name: &Name, id: &[u8], now: Instant, fx: &mut Effects) -> bool {
        let doubted = self.with_existing(name, now, fx, |entry, cx| entry.doubt(id, cx));
        doubted == Some(true)
    }

    /// Messages of this name have arrived since then: earlier ones may have been missed.
    pub(crate) fn listening_since(
        &self,
        name: &Name,
        since: Instant,
        now: Instant,
        fx: &mut Effects,
    ) {
        self.with_existing(name, now, fx, |entry, cx| {
            entry.is_listening = true;
            let has_missed = entry.requests.has_missed(since);
            if has_missed && !is_on(Mutant::ListeningRefreshesNothing) {
                entry.look(cx.now, cx);
            }
            // A call may have begun to watch before messages came.
            if !is_on(Mutant::WatchBeginsAfterTheRefusal) {
                entry.end_watches(&Failure::Restart, cx);
            }
        });
    }

    /// The messages of these names do not arrive any more.
    #[expect(single_use_lifetimes, reason = "unstable without the name")]
    pub(crate) fn deaf_for<'a>(
        &self,
        names: impl Iterator<Item = &'a Name>,
        now: Instant,
        fx: &mut Effects,
    ) {
        for name in names {
            self.with_existing(name, now, fx, |entry, _| entry.is_listening = false);
        }
    }

    /// Another server may be the master of some locks: checks their leases and places, and repeats
    /// recent releases.
    pub(crate) fn moved(
        &self,
        is_moved: &dyn Fn(&dyn Primitive) -> bool,
        now: Instant,
        fx: &mut Effects,
    ) {
        self.for_each(now, fx, |entry, cx| {
            for held in entry.held.iter() {
                if is_moved(&*held.lease.lock) {
                    cx.change(&held.lease, |it, now| it.lease.suspect(now));
                }
            }
            if entry.requests.walk().any(|it| is_moved(&*it.lock)) {
                entry.look(cx.now, cx);
            }
            let is_place = |it: &Request| matches!(it.state, RequestState::Queued(_));
            let place = entry.requests.walk().find(|it| is_place(it));
            if let Some(n) = place.map(|request| request.no)
                && is_on(Mutant::MovedPlacesAreForgotten)
            {
                entry.set_due(n, cx.now);
            }
        });
        if !is_on(Mutant::RecentReleasesAreForgotten) {
            self.with_pending(now, fx, |pending| pending.repeat_recent(is_moved, now));
        }
    }
}

/// For tests that move clocks or take locks away.
impl Kernel {
    /// All parked calls read the clock: the machine was suspended, which their sleeps do not count.
    pub(crate) fn wake_parked(&self, now: Instant, fx: &mut Effects) {
        self.for_each(now, fx, |entry, cx| {
            let waiting = entry.waiters.walk().map(|waiter| &waiter.cell);
            let waiting = waiting.chain(entry.watches().iter().map(|watch| &watch.cell));
            for cell in waiting {
                let cell = Arc::clone(cell);
                cx.fx.wake.push(cell);
            }
        });
    }
}

#[cfg(feature = "testing")]
impl Kernel {
    /// All parked calls try again.
    pub(crate) fn wake_all(&self, now: Instant, fx: &mut Effects) {
        self.for_each(now, fx, |entry, cx| {
            for no in entry.waiters.numbers() {
                entry.waiters.change(no, |waiter| waiter.retry_at = now);
            }
            entry.look(cx.now, cx);
            for n in entry.requests.numbers() {
                if let RequestState::Due(_) = entry.requests[n].state {
                    entry.set_due(n, now);
                }
            }
        });
    }

    /// Checks the lease with this holder id.
    pub(crate) fn suspect(&self, holder: &[u8], now: Instant, fx: &mut Effects) {
        self.for_each(now, fx, |entry, cx| {
            for held in entry.held.iter() {
                if held.lease.id.as_str().as_bytes() == holder {
                    cx.change(&held.lease, |it, now| it.lease.suspect(now));
                }
            }
        });
    }
}

impl LockEntry {
    fn granted_by_message(
        &mut self,
        no: u64,
        id: &HolderId,
        tokens: TokenBlock,
        cx: &mut Context<'_>,
    ) {
        let Some(n) = (self.requests.existing(no)).filter(|n| self.requests[*n].id() == Some(id))
        else {
            return;
        };
        let request = &self.requests[n];
        let seen = match (&request.state, &request.flight) {
            (RequestState::Queued(place), _) => place.seen,
            // A grant proves that the command has run.
            (RequestState::Sent, Some(flight)) => flight.sent,
            _ => return,
        };
        self.requests.change(n).woken = true;
        self.grant(n, id, tokens, seen, cx);
    }

    pub(super) fn announced(&mut self, payload: &[u8], cx: &mut Context<'_>) {
        if is_on(Mutant::ReleaseMessagesAreIgnored) {
            return;
        }
        if let Some(next) = read_next(payload) {
            self.announced_plain(&next, cx);
        } else {
            self.announced_release(payload, cx);
        }
    }

    /// Returns whether a command of this client had this id, which became no lease.
    fn is_own_attempt(&self, id: &[u8], cx: &Context<'_>) -> bool {
        cx.shared.own_id(id).is_some_and(|id| {
            cx.shared.request_of(&id).is_some() || cx.shared.pending.lock().has_had(&id)
        })
    }

    /// Checks the open lease of this client with this id, if there is one: somebody else has
    /// released it. Returns whether there is one.
    fn doubt(&self, id: &[u8], cx: &mut Context<'_>) -> bool {
        let mut held = self.held.iter().map(|held| &held.lease);
        let found = held.find(|lease| lease.id.as_str().as_bytes() == id);
        let Some(lease) = found.filter(|lease| lease.is_open()) else {
            return false;
        };
        cx.change(lease, |it, now| it.lease.suspect(now));
        true
    }

    /// The holder with this value has released the lock, and nobody was granted it.
    fn announced_release(&mut self, value: &[u8], cx: &mut Context<'_>) {
        if self.doubt(value, cx) {
            return;
        }
        let is_ours = |id: &HolderId| id.as_str().as_bytes() == value;
        let held = self.held.iter().find(|held| is_ours(&held.lease.id));
        // The end of a lease of this client makes its line ask: the message is for others.
        let is_own = held.is_some() || self.released.as_ref().is_some_and(is_ours);
        // The end of an attempt of this client says nothing of other holders.
        let was_later = if is_own || self.is_own_attempt(value, cx) {
            self.last.cut(cx.now)
        } else {
            self.last.released(cx.now)
        };
        if was_later {
            self.plan_last_attempts();
        }
        if !is_own {
            return self.look(cx.now, cx);
        }
        for n in self.requests.later_than(cx.now) {
            if self.requests[n].serves != Serves::Line {
                self.wake(n, cx.now, cx);
            }
        }
    }

    /// The lock was left free for a moment, and one place must ask for it before the others. Those
    /// are postponed if they had still to ask after the last such message: the lock was held since.
    fn announced_plain(&mut self, next: &Next, cx: &mut Context<'_>) {
        if self.last.released(cx.now) {
            self.plan_last_attempts();
        }
        self.note_contended(cx.now.after(FREE_FOR));
        let within = OTHERS_WITHIN.max(FOR_EACH * next.waiting);
        let others = OTHERS_AFTER + within.mul_f64(random::chance());
        let first = next.first.as_ref();
        let first = first.filter(|_| !is_on(Mutant::NamedPlaceAsksLater));
        let first = first.and_then(|id| cx.shared.request_of(id));
        let first = first.map(|(_, no)| no);
        if let Some(n) = first.and_then(|no| self.requests.existing(no)) {
            self.wake(n, cx.now.after(FREE_FOR), cx);
        }
        let at = cx.now.after(others);
        self.after_plain = if is_on(Mutant::PlainReleasesAddUp) {
            self.after_plain.min(at)
        } else {
            at
        };
        self.touch(self.after_plain, self.after_plain);
        if !is_on(Mutant::WatchesAreNotEnded) {
            self.end_watches(&Failure::Restart, cx);
        }
    }

    /// The client that the last plain release has named may have died: the others ask.
    pub(super) fn look_after_plain(&mut self, cx: &mut Context<'_>) {
        if self.after_plain > cx.now {
            return;
        }
        self.after_plain = Instant::NEVER;
        let mut others = self.requests.unplaced_later_than(cx.now);
        // A refresh includes all places of its group.
        others.extend(self.requests.first_places());
        for n in others {
            self.wake(n, cx.now, cx);
        }
    }

    /// The lock may be free, or a message may have been missed: every request looks at `at`, and
    /// so do the calls that watch it.
    pub(super) fn look(&mut self, at: Instant, cx: &mut Context<'_>) {
        if !is_on(Mutant::WatchesAreNotEnded) {
            self.end_watches(&Failure::Restart, cx);
        }
        for n in self.requests.later_than(at) {
            self.wake(n, at, cx);
        }
    }

    /// Makes a request look at `at`, if messages wake its call.
    fn wake(&mut self, n: RequestNo, at: Instant, cx: &Context<'_>) {
        let has_caller = self.requests[n].caller().is_some();
        if !has_caller && !self.wakes(self.requests[n].serves) {
            return;
        }
        let mut request = self.requests.change(n);
        // Calls that each hold a part of a lock would all ask in the same moment again.
        let at = at.max(request.busy.map_or(cx.now, |busy| busy.until));
        match &mut request.state {
            RequestState::Due(due) => *due = (*due).min(at),
            RequestState::Queued(place) if place.refreshing => {
                request.again = request.again.min(at);
            }
            RequestState::Queued(place) => place.refresh_at = place.refresh_at.min(at),
            // It takes effect when the command ends.
            RequestState::Sent => request.again = request.again.min(at),
            RequestState::Won(_) | RequestState::Confirming(_) => return,
        }
        request.woken = true;
        drop(request);
        decided(1);
        self.touch(at, at);
    }
}
