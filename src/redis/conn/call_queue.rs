//! The queue of combined calls, and which of them are sent together. No I/O.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Instant;

/// The most calls in one write. It limits how many replies one thread reads for other calls.
const MOST: usize = 32;

/// The queue of calls to be combined, in order of arrival. One write takes at most [`MOST`].
#[derive(Debug)]
pub(crate) struct CallQueue<T> {
    waiting: VecDeque<Waiting<T>>,
    tickets: u64,
}

#[derive(Debug)]
struct Waiting<T> {
    ticket: Ticket,
    since: Instant,
    until: Instant,
    call: T,
}

/// Identifies a queued call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

impl<T> Default for CallQueue<T> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            tickets: 0,
        }
    }
}

impl<T> CallQueue<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Queues a call at `now`, with the deadline `until`.
    pub(crate) fn join(&mut self, now: Instant, until: Instant, call: T) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.waiting.push_back(Waiting {
            ticket,
            since: now,
            until,
            call,
        });
        ticket
    }

    pub(crate) fn contains(&self, ticket: Ticket) -> bool {
        self.waiting.iter().any(|waiting| waiting.ticket == ticket)
    }

    /// Returns how long the first call with time left has waited at `now`.
    pub(crate) fn waited(&self, now: Instant) -> Option<Duration> {
        let mut waiting = self.waiting.iter();
        let first = waiting.find(|waiting| waiting.until > now)?;
        Some(first.since.until(now))
    }

    /// Removes a call. Returns false if it was taken out before: it is part of a write, or its
    /// thread must send it alone.
    pub(crate) fn leave(&mut self, ticket: Ticket) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|waiting| waiting.ticket != ticket);
        self.waiting.len() < before
    }

    /// Takes out the calls for one write at `now`: the call whose thread reads the replies, and the
    /// others in order. A call whose deadline has passed stays in the queue: to send it would only
    /// leave something to undo.
    ///
    /// The reader is the call with the latest deadline, because the connection is closed for all
    /// calls of the write when the reader's deadline passes.
    pub(crate) fn take(&mut self, now: Instant) -> Option<(T, Vec<T>)> {
        let has_time = |waiting: &Waiting<T>| waiting.until > now;
        let waiting = self.waiting.iter().enumerate();
        let waiting = waiting.filter(|(_, waiting)| has_time(waiting));
        // `max_by_key` returns the last of several maxima: in reverse, the call that joined first.
        let (reader, _) = waiting.rev().max_by_key(|(_, waiting)| waiting.until)?;
        let reader = self.waiting.remove(reader)?.call;
        let mut others = Vec::with_capacity(self.waiting.len().min(MOST));
        let mut stay = VecDeque::new();
        while others.len() + 1 < MOST
            && let Some(waiting) = self.waiting.pop_front()
        {
            if has_time(&waiting) {
                others.push(waiting.call);
            } else {
                stay.push_back(waiting);
            }
        }
        stay.append(&mut self.waiting);
        self.waiting = stay;
        Some((reader, others))
    }

    /// Takes out the first call whose deadline has not passed at `now`.
    pub(super) fn first(&mut self, now: Instant) -> Option<T> {
        let first = self
            .waiting
            .iter()
            .position(|waiting| waiting.until > now)?;
        Some(self.waiting.remove(first)?.call)
    }

    /// Takes out all calls.
    pub(super) fn dismiss(&mut self) -> impl Iterator<Item = T> + use<T> {
        let all = std::mem::take(&mut self.waiting);
        all.into_iter().map(|waiting| waiting.call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::START.after(Duration::from_millis(ms))
    }

    fn queue(untils: &[u64]) -> (CallQueue<usize>, Vec<Ticket>) {
        let mut queue = CallQueue::default();
        let tickets = untils.iter().enumerate();
        let tickets = tickets.map(|(n, until)| queue.join(at(n as u64), at(*until), n));
        let tickets = tickets.collect();
        (queue, tickets)
    }

    #[test]
    fn calls_are_taken_in_order_and_can_leave() {
        let (mut queue, tickets) = queue(&[1_000, 1_000, 1_000]);
        assert!(queue.leave(tickets[2]));
        assert!(!queue.contains(tickets[2]) && queue.contains(tickets[1]));
        assert_eq!(queue.take(at(10)), Some((0, vec![1])));
        assert!(!queue.leave(tickets[0]), "its thread reads");
        assert!(!queue.leave(tickets[1]), "it is being sent");
        assert!(queue.is_empty());
        assert_eq!(queue.take(at(10)), None);
    }

    #[test]
    fn call_with_the_latest_deadline_reads() {
        let (mut queue, _) = queue(&[100, 1_000, 1_001, 1_001, 1_000]);
        assert_eq!(queue.take(at(10)), Some((2, vec![0, 1, 3, 4])));
    }

    #[test]
    fn call_past_its_deadline_is_not_sent() {
        let (mut queue, tickets) = queue(&[100, 50, 101]);
        assert_eq!(queue.waited(at(100)), Some(Duration::from_millis(98)));
        assert_eq!(queue.take(at(100)), Some((2, vec![])));
        assert_eq!(queue.take(at(100)), None);
        assert_eq!((queue.first(at(100)), queue.waited(at(100))), (None, None));
        assert_eq!(queue.first(at(99)), Some(0));
        assert!(queue.leave(tickets[1]) && queue.is_empty());
    }

    #[test]
    fn write_is_bounded_and_the_rest_keeps_its_order() {
        let (mut queue, _) = queue(&[1_000; 200]);
        assert_eq!(queue.take(at(10)), Some((0, (1..MOST).collect())));
        assert_eq!(queue.first(at(10)), Some(MOST));
    }

    #[test]
    fn all_calls_are_dismissed_at_once() {
        let (mut queue, tickets) = queue(&[1, 2]);
        assert_eq!(queue.dismiss().collect::<Vec<_>>(), [0, 1]);
        assert!(!queue.leave(tickets[0]) && queue.is_empty());
    }
}
