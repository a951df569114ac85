//! The queue of calls that wait for their own connection, first come, first served. No I/O.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};

/// Whether `max_connections` limits a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cap {
    /// Waits while `max_connections` connections are in use.
    Counted,
    /// Does not wait for that: releases, renewals, health checks, and the threads of the client.
    Exempt,
    /// Exempt, too, for a thread that takes the connection out of the pool. If others use the
    /// pool's connections (`leaves_one`), it leaves them the last one, and waits for a new one.
    Kept { leaves_one: bool },
}

/// Unparks a thread that waits for a connection.
struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Returns the waker of this thread, which parks.
pub(in crate::redis) fn this_thread() -> Waker {
    Waker::from(Arc::new(Parked(thread::current())))
}

/// The queue, with a waker for each call. Each list is in the order of the numbers: thousands may
/// wait, so a call is found by a binary search.
#[derive(Debug)]
pub(super) struct Callers<T> {
    counted: VecDeque<Caller<T>>,
    exempt: VecDeque<Caller<T>>,
    kept: VecDeque<Caller<T>>,
    numbers: u64,
}

#[derive(Debug)]
struct Caller<T> {
    number: Number,
    cap_rule: Cap,
    waker: T,
}

/// Identifies a queued call: later calls have higher numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::redis) struct Number(u64);

impl<T> Default for Callers<T> {
    fn default() -> Self {
        Self {
            counted: VecDeque::new(),
            exempt: VecDeque::new(),
            kept: VecDeque::new(),
            numbers: 0,
        }
    }
}

impl<T> Callers<T> {
    fn list(&mut self, cap_rule: Cap) -> &mut VecDeque<Caller<T>> {
        match cap_rule {
            Cap::Counted => &mut self.counted,
            Cap::Exempt => &mut self.exempt,
            Cap::Kept { .. } => &mut self.kept,
        }
    }

    pub(in crate::redis) fn join(&mut self, cap_rule: Cap, waker: T) -> Number {
        self.numbers += 1;
        let number = Number(self.numbers);
        self.list(cap_rule).push_back(Caller {
            number,
            cap_rule,
            waker,
        });
        number
    }

    pub(in crate::redis) fn leave(&mut self, number: Number) {
        for list in [&mut self.counted, &mut self.exempt, &mut self.kept] {
            if let Ok(n) = list.binary_search_by_key(&number, |caller| caller.number) {
                list.remove(n);
            }
        }
    }

    pub(in crate::redis) fn is_empty(&self) -> bool {
        self.counted.is_empty() && self.exempt.is_empty() && self.kept.is_empty()
    }

    pub(in crate::redis) fn count(&self, cap_rule: Cap) -> usize {
        match cap_rule {
            Cap::Counted => self.counted.len(),
            Cap::Exempt => self.exempt.len(),
            // Only threads of the client keep a connection: there are few.
            kept => self.kept.iter().filter(|it| it.cap_rule == kept).count(),
        }
    }

    /// Returns how many of the calls keep their connection.
    pub(super) fn keeping(&self) -> usize {
        self.kept.len()
    }

    /// Returns how many of the next connections go to the calls ahead of `number`, or ahead of a
    /// call that is not queued. Returns `None` if the cap, which allows `room` more connections,
    /// leaves none for the call.
    pub(super) fn before(
        &self,
        number: Option<Number>,
        cap_rule: Cap,
        room: usize,
    ) -> Option<usize> {
        let ahead = |list: &VecDeque<Caller<T>>| match number {
            Some(number) => list.partition_point(|caller| caller.number < number),
            None => list.len(),
        };
        // Those that keep a connection may have to leave the idle ones to the calls behind them.
        let (free, capped) = (ahead(&self.exempt), ahead(&self.counted));
        let may = cap_rule != Cap::Counted || capped < room;
        may.then_some(free + capped.min(room))
    }

    /// Returns the wakers of the calls that can use the next connections, in order.
    pub(super) fn next(&self, room: usize) -> impl Iterator<Item = &T> {
        let counted = self.counted.range(..room.min(self.counted.len()));
        let lists = [counted, self.exempt.range(..), self.kept.range(..)];
        let mut lists = lists.map(Iterator::peekable);
        std::iter::from_fn(move || {
            let firsts = lists.iter_mut().enumerate();
            let firsts = firsts.filter_map(|(n, list)| Some((list.peek()?.number, n)));
            let (_, first) = firsts.min()?;
            lists[first].next().map(|caller| &caller.waker)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_get_connections_in_order() {
        let mut callers = Callers::default();
        let first = callers.join(Cap::Counted, 'a');
        let second = callers.join(Cap::Exempt, 'b');
        assert_eq!(callers.before(Some(first), Cap::Counted, 1), Some(0));
        assert_eq!(callers.before(Some(second), Cap::Exempt, 1), Some(1));
        callers.leave(first);
        assert_eq!(callers.before(Some(second), Cap::Exempt, 1), Some(0));
        assert_eq!(
            (callers.count(Cap::Counted), callers.count(Cap::Exempt)),
            (0, 1)
        );
    }

    #[test]
    fn call_that_keeps_its_connection_lets_others_go_ahead() {
        let mut callers = Callers::default();
        callers.join(Cap::Kept { leaves_one: true }, ());
        assert_eq!(callers.before(None, Cap::Counted, 1), Some(0));
        assert_eq!(callers.before(None, Cap::Exempt, 1), Some(0));
    }

    #[test]
    fn newcomer_does_not_overtake_waiting_calls() {
        let mut callers = Callers::default();
        callers.join(Cap::Counted, ());
        callers.join(Cap::Exempt, ());
        assert_eq!(callers.before(None, Cap::Counted, 5), Some(2));
        assert_eq!(callers.before(None, Cap::Exempt, 5), Some(2));
    }

    #[test]
    fn full_cap_delays_only_counted_calls() {
        let mut callers = Callers::default();
        let first = callers.join(Cap::Counted, 'a');
        let second = callers.join(Cap::Counted, 'b');
        let release = callers.join(Cap::Exempt, 'c');
        assert_eq!(callers.before(Some(first), Cap::Counted, 0), None);
        assert_eq!(callers.before(Some(second), Cap::Counted, 1), None);
        assert_eq!(callers.before(Some(release), Cap::Exempt, 0), Some(0));
        assert_eq!(callers.before(None, Cap::Counted, 2), None);
        assert!(callers.next(1).eq(&['a', 'c']));
        assert!(callers.next(0).eq(&['c']));
    }
}
