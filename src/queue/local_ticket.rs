//! A waiting call's entry in the local queue of a name. No I/O.

use std::cell::{Cell, OnceCell};
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::config::LeaseTerms;
use crate::lease::held::{HeldLease, Holding};
use crate::name::Name;
use crate::parker::Parker;
use crate::queue::answers::Answers;
use crate::queue::local::Waiters;
use crate::queue::local_queue::{HandedOff, LocalQueue};
use crate::queue::position::{Position, Queue};
use crate::token::FencingToken;

/// A waiter's entry in the local queue of a name; dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct QueueTicket<'a> {
    waiters: &'a Waiters,
    name: &'a Name,
    id: u64,
    parker: OnceCell<Parker>,
    /// The waiter has left. A later queue of the name may give its id to another waiter.
    has_left: Cell<bool>,
}

impl Waiters {
    /// Joins the end of the queue of `name`.
    ///
    /// A lease may be handed to the waiter under `handoff_terms`. Releases wake it if
    /// `wakes_on_release` is true.
    pub(crate) fn join<'a>(
        &'a self,
        name: &'a Name,
        handoff_terms: Option<LeaseTerms>,
        wakes_on_release: bool,
    ) -> QueueTicket<'a> {
        let mut names = self.names.lock();
        let queue = names.entry(name.clone()).or_default();
        let id = queue.join(handoff_terms, wakes_on_release);
        QueueTicket {
            waiters: self,
            name,
            id,
            parker: OnceCell::new(),
            has_left: Cell::new(false),
        }
    }
}

impl QueueTicket<'_> {
    fn with_queue<T>(&self, act: impl FnOnce(&mut LocalQueue) -> T) -> T {
        let mut names = self.waiters.names.lock();
        // The waiter keeps the queue in the table until it leaves. No caller uses this after that.
        act(names
            .get_mut(self.name)
            .expect("a queue with a waiter in it"))
    }

    /// Records that the waiter shares a place in Redis with other calls of this client.
    pub(crate) fn share_place(&self) {
        self.with_queue(|queue| queue.share_place(self.id));
    }

    /// Takes the lease that was handed to the waiter, if one was, and leaves the queue with it.
    ///
    /// Returns the hand-off as an error if the lease was lost before the waiter woke.
    pub(crate) fn take(
        &self,
        now: Instant,
        max_hold: Duration,
        holding: impl FnOnce(FencingToken) -> Holding,
    ) -> Option<Result<Arc<HeldLease>, HandedOff>> {
        let taken = self.with_queue(|queue| queue.take(self.id, now, max_hold, holding));
        self.has_left.set(matches!(taken, Some(Ok(_))));
        taken
    }

    /// Returns whether other calls of this client share a place in Redis and wait for the name.
    pub(crate) fn others_share_place(&self) -> bool {
        let names = self.waiters.names.lock();
        let queue = names.get(self.name);
        queue.is_some_and(|queue| queue.others_share_place(self.id))
    }

    /// Leaves the queue.
    ///
    /// Returns a lease that was handed to the waiter; the caller must pass it on.
    pub(crate) fn leave(&self) -> Option<HandedOff> {
        if self.has_left.replace(true) {
            return None;
        }
        let mut names = self.waiters.names.lock();
        let queue = names.get_mut(self.name)?;
        let handed = queue.leave(self.id);
        if queue.is_idle() {
            names.remove(self.name);
        }
        handed
    }
}

impl Queue for QueueTicket<'_> {
    fn position(&self, _now: Instant, must_try: bool) -> Position {
        self.with_queue(|queue| queue.position(self.id, must_try))
    }

    fn parker(&self) -> &Parker {
        self.parker.get_or_init(|| {
            let parker = Parker::new();
            self.with_queue(|queue| {
                if let Some(waiter) = queue.waiter(self.id) {
                    let woken_early = std::mem::take(&mut waiter.woken_early);
                    waiter.parker = Some(parker.clone());
                    if woken_early {
                        waiter.wake();
                    }
                }
            });
            parker
        })
    }

    fn about_to_try(&self, now: Instant) -> bool {
        self.with_queue(|queue| {
            let others_wait = queue.waiters.len() > 1;
            if others_wait {
                // For the others: this waiter is busy until its reply arrives.
                queue.answers_mut().asked(now);
            }
            others_wait
        })
    }

    fn answers(&self) -> Answers {
        self.with_queue(|queue| queue.answers())
    }

    fn update_answers(&self, act: &mut dyn FnMut(&mut Answers)) {
        self.with_queue(|queue| act(queue.answers_mut()));
    }
}

impl Drop for QueueTicket<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}
