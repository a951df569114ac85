//! A release that is repeated until it is sure: when it is tried next, and when it is over. No I/O.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;
use parking_lot::Mutex;

use crate::clock::Instant;
use crate::holder::HolderId;
use crate::kind::{Found, Keys};
use crate::server::{Counted, Size, Tally};
use crate::wait::{Backoff, RECONNECT};

/// Between repetitions while Redis answers that the key is not there: it may yet come, but if it
/// does its own undo follows on the same connection, so there is no hurry.
const NOT_THERE: Backoff =
    Backoff::new(Duration::from_millis(50), Duration::from_secs(5)).jitter(0.3);

/// A release that is not yet sure.
#[derive(Clone, Debug)]
pub(crate) struct Undo {
    pub(crate) keys: Arc<Keys>,
    pub(crate) id: HolderId,
    /// By then the key is gone by itself, or nobody asks any more.
    until: Instant,
    purpose: Purpose,
    pub(crate) next: Instant,
    /// Answers that were missing, in a row.
    missing: u32,
    /// Answers that the key is not ours.
    not_ours: u32,
}

#[derive(Clone, Debug)]
enum Purpose {
    /// Undoes an acquire that may yet run, so that finding nothing proves nothing.
    Acquire,
    /// Repeats the release of a lease that was held, of which any answer is the end.
    Release,
    /// The same, for somebody who wants to know how it ended.
    Told(Arc<Told>),
}

/// Where the servers' findings about a release are counted, for somebody who wants to know how it
/// ended.
#[derive(Debug)]
pub(crate) struct Told {
    /// `None` once it was told.
    open: Mutex<Option<(Tally, Sender<Found>)>>,
}

impl Told {
    pub(crate) fn new(size: Size, told: Sender<Found>) -> Self {
        Self {
            open: Mutex::new(Some((Tally::new(size), told))),
        }
    }

    /// A server has found this.
    pub(crate) fn found(&self, found: Found) {
        let mut slot = self.open.lock();
        let Some((tally, _)) = slot.as_mut() else {
            return;
        };
        tally.count(Some(found), &[]);
        let found = match tally.outcome() {
            Some(Counted::Ours) => Found::Ours,
            Some(Counted::Nobody) => Found::Nobody,
            Some(Counted::Another(_)) => Found::Another,
            Some(Counted::Unknown) | None => return,
        };
        if let Some((_, told)) = slot.take() {
            // Whoever asked may have run out of time.
            let _ = told.send(found);
        }
    }
}

impl Undo {
    pub(crate) fn of_acquire(keys: Arc<Keys>, id: HolderId, until: Instant) -> Self {
        Self::new(keys, id, until, Purpose::Acquire)
    }

    pub(crate) fn of_release(keys: Arc<Keys>, id: HolderId, until: Instant) -> Self {
        Self::new(keys, id, until, Purpose::Release)
    }

    /// What was found is sent to `told`; nothing, if it never was sure.
    pub(crate) fn told(keys: Arc<Keys>, id: HolderId, until: Instant, told: Arc<Told>) -> Self {
        Self::new(keys, id, until, Purpose::Told(told))
    }

    fn new(keys: Arc<Keys>, id: HolderId, until: Instant, purpose: Purpose) -> Self {
        Self {
            keys,
            id,
            until,
            purpose,
            next: Instant::START,
            missing: 0,
            not_ours: 0,
        }
    }

    /// The same about a part of the keys.
    pub(crate) fn part(&self, keys: &Arc<Keys>) -> Self {
        Self {
            keys: Arc::clone(keys),
            ..self.clone()
        }
    }

    pub(crate) fn is_worthwhile(&self, now: Instant) -> bool {
        now < self.until
    }

    /// Notes what came of a try, `None` for no answer that counts; true when it is over.
    pub(crate) fn is_over(&mut self, now: Instant, found: Option<Found>) -> bool {
        let pause = match (found, &self.purpose) {
            (Some(Found::Ours), Purpose::Acquire) | (Some(_), Purpose::Release) => return true,
            (Some(found), Purpose::Told(told)) => {
                // An earlier try without an answer may be what removed the key.
                let found = if self.missing > 0 { Found::Ours } else { found };
                told.found(found);
                return true;
            }
            (Some(_), Purpose::Acquire) => {
                self.not_ours += 1;
                NOT_THERE.pause(self.not_ours - 1)
            }
            (None, _) => {
                self.missing += 1;
                RECONNECT.pause(self.missing - 1)
            }
        };
        self.next = now.after(pause);
        false
    }
}

/// The releases of the last while, to be repeated where another server becomes the master: it may
/// know these leases, and not that they were released.
#[derive(Debug, Default)]
pub(crate) struct Released {
    last: VecDeque<Undo>,
    /// In all of them.
    names: usize,
}

impl Released {
    /// As many names as come in the seconds in which two servers are masters. What is older has come
    /// to the new one, or its ttl ends it.
    const MOST: usize = 4096;

    pub(crate) fn note(&mut self, undo: Undo) {
        self.names += undo.keys.names.len();
        self.last.push_back(undo);
        while self.names > Self::MOST
            && let Some(oldest) = self.last.pop_front()
        {
            self.names -= oldest.keys.names.len();
        }
    }

    pub(crate) fn take(&mut self, is_moved: impl Fn(&Keys) -> bool) -> Vec<Undo> {
        let (moved, rest) = std::mem::take(&mut self.last)
            .into_iter()
            .partition::<Vec<_>, _>(|undo| is_moved(&undo.keys));
        self.names = rest.iter().map(|undo| undo.keys.names.len()).sum();
        self.last = rest.into();
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::Name;
    use crossbeam_channel::unbounded;

    fn parts() -> (Arc<Keys>, HolderId, Instant) {
        let keys = Keys::new("a".into(), "lock:", "lock_release:");
        (
            Arc::new(keys),
            HolderId::fresh("o"),
            Instant::START.after(Duration::from_secs(10)),
        )
    }

    #[test]
    fn smoke() {
        let (keys, id, until) = parts();
        let mut undo = Undo::of_acquire(keys, id, until);
        assert!(
            !undo.is_over(Instant::START, Some(Found::Nobody)),
            "it may yet run"
        );
        assert!(!undo.is_over(Instant::START, None));
        assert!(undo.next > Instant::START);
        assert!(undo.is_over(Instant::START, Some(Found::Ours)));
        assert!(undo.is_worthwhile(Instant::START) && !undo.is_worthwhile(until));
    }

    #[test]
    fn an_undo_that_finds_nothing_gets_rare() {
        let (keys, id, until) = parts();
        let mut undo = Undo::of_acquire(keys, id, until);
        let mut tries = 0;
        while undo.is_worthwhile(undo.next) {
            let now = undo.next;
            tries += 1;
            undo.is_over(now, Some(Found::Nobody));
        }
        assert!((7..=14).contains(&tries), "{tries}");
    }

    #[test]
    fn the_last_releases_are_kept() {
        let (keys, id, until) = parts();
        let mut released = Released::default();
        for _ in 0..=Released::MOST {
            released.note(Undo::of_release(Arc::clone(&keys), id.clone(), until));
        }
        assert_eq!(released.take(|_| true).len(), Released::MOST);
        assert!(released.take(|_| true).is_empty());
        let names = ["a", "b"].map(Name::from).to_vec();
        let two = Arc::new(Keys::all(names, "lock:", "r:"));
        for keys in [&two, &two, &keys] {
            released.note(Undo::of_release(Arc::clone(keys), id.clone(), until));
        }
        assert_eq!(released.names, 5);
        assert_eq!(released.take(|keys| keys.names.len() > 1).len(), 2);
        assert_eq!(released.names, 1);
    }

    #[test]
    fn any_answer_ends_a_release() {
        let (keys, id, until) = parts();
        assert!(
            Undo::of_release(Arc::clone(&keys), id.clone(), until)
                .is_over(until, Some(Found::Another))
        );
        let (sender, answers) = unbounded();
        let told = || Arc::new(Told::new(Size::of(1), sender.clone()));
        assert!(
            Undo::told(Arc::clone(&keys), id.clone(), until, told())
                .is_over(until, Some(Found::Nobody))
        );
        assert_eq!(answers.recv(), Ok(Found::Nobody));
        let mut twice = Undo::told(keys, id, until, told());
        assert!(!twice.is_over(until, None));
        assert!(twice.is_over(until, Some(Found::Nobody)));
        assert_eq!(answers.recv(), Ok(Found::Ours), "the first try removed it");
    }
}
