//! Calls that find the connections in use, and who of them sends for whom. No I/O.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Instant;

/// So many calls go in one write: whoever reads their answers is kept from its own for no longer.
const MOST: usize = 32;

/// The queue of calls that go along with others, in the order of their coming. A connection that is free takes as many
/// as go in one write.
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
    entry: T,
}

/// Names one of those who wait.
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

    /// Waits from `now` on, with time until `until`.
    pub(crate) fn join(&mut self, now: Instant, until: Instant, entry: T) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.waiting.push_back(Waiting {
            ticket,
            since: now,
            until,
            entry,
        });
        ticket
    }

    pub(crate) fn contains(&self, ticket: Ticket) -> bool {
        self.waiting.iter().any(|waiting| waiting.ticket == ticket)
    }

    /// For how long at `now` the first call has waited that still has time.
    pub(crate) fn waited(&self, now: Instant) -> Option<Duration> {
        let mut waiting = self.waiting.iter();
        let first = waiting.find(|waiting| waiting.until > now)?;
        Some(first.since.until(now))
    }

    /// Waits no longer. False if it was taken out before: it is being sent, or is to send.
    pub(crate) fn leave(&mut self, ticket: Ticket) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|waiting| waiting.ticket != ticket);
        self.waiting.len() < before
    }

    /// Takes out what goes in one write at `now`: the call that reads the answers, and the others in their order. What has
    /// no time left stays: sent, it would only leave something to be undone.
    ///
    /// The call with the most time reads: its deadline ends the connection for the others.
    pub(crate) fn take(&mut self, now: Instant) -> Option<(T, Vec<T>)> {
        let has_time = |waiting: &Waiting<T>| waiting.until > now;
        let waiting = self.waiting.iter().enumerate();
        let waiting = waiting.filter(|(_, waiting)| has_time(waiting));
        // Of several the first.
        let (reader, _) = waiting.rev().max_by_key(|(_, waiting)| waiting.until)?;
        let reader = self.waiting.remove(reader)?.entry;
        let mut others = Vec::with_capacity(self.waiting.len().min(MOST));
        let mut stay = VecDeque::new();
        while others.len() + 1 < MOST
            && let Some(waiting) = self.waiting.pop_front()
        {
            if has_time(&waiting) {
                others.push(waiting.entry);
            } else {
                stay.push_back(waiting);
            }
        }
        stay.append(&mut self.waiting);
        self.waiting = stay;
        Some((reader, others))
    }

    /// Takes out one that still has time at `now`: the first.
    pub(crate) fn first(&mut self, now: Instant) -> Option<T> {
        let first = self
            .waiting
            .iter()
            .position(|waiting| waiting.until > now)?;
        Some(self.waiting.remove(first)?.entry)
    }

    /// Takes out all.
    pub(crate) fn dismiss(&mut self) -> impl Iterator<Item = T> + use<T> {
        let all = std::mem::take(&mut self.waiting);
        all.into_iter().map(|waiting| waiting.entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::START.after(Duration::from_millis(ms))
    }

    fn gather(untils: &[u64]) -> (CallQueue<usize>, Vec<Ticket>) {
        let mut gather = CallQueue::default();
        let tickets = untils.iter().enumerate();
        let tickets = tickets.map(|(n, until)| gather.join(at(n as u64), at(*until), n));
        let tickets = tickets.collect();
        (gather, tickets)
    }

    #[test]
    fn smoke() {
        let (mut gather, tickets) = gather(&[1_000, 1_000, 1_000]);
        assert!(gather.leave(tickets[2]));
        assert!(!gather.contains(tickets[2]) && gather.contains(tickets[1]));
        assert_eq!(gather.take(at(10)), Some((0, vec![1])));
        assert!(!gather.leave(tickets[0]), "it reads");
        assert!(!gather.leave(tickets[1]), "it is being sent");
        assert!(gather.is_empty());
        assert_eq!(gather.take(at(10)), None);
    }

    #[test]
    fn nobody_reads_for_one_who_has_more_time() {
        let (mut gather, _) = gather(&[100, 1_000, 1_001, 1_001, 1_000]);
        assert_eq!(gather.take(at(10)), Some((2, vec![0, 1, 3, 4])));
    }

    #[test]
    fn what_has_no_time_left_is_not_sent() {
        let (mut gather, tickets) = gather(&[100, 50, 101]);
        assert_eq!(gather.waited(at(100)), Some(Duration::from_millis(98)));
        assert_eq!(gather.take(at(100)), Some((2, vec![])));
        assert_eq!(gather.take(at(100)), None);
        assert_eq!(
            (gather.first(at(100)), gather.waited(at(100))),
            (None, None)
        );
        assert_eq!(gather.first(at(99)), Some(0));
        assert!(gather.leave(tickets[1]) && gather.is_empty());
    }

    #[test]
    fn one_write_has_a_bound_and_the_rest_keeps_its_order() {
        let (mut gather, _) = gather(&[1_000; 200]);
        assert_eq!(gather.take(at(10)), Some((0, (1..MOST).collect())));
        assert_eq!(gather.first(at(10)), Some(MOST));
    }

    #[test]
    fn all_are_dismissed_at_once() {
        let (mut gather, tickets) = gather(&[1, 2]);
        assert_eq!(gather.dismiss().collect::<Vec<_>>(), [0, 1]);
        assert!(!gather.leave(tickets[0]) && gather.is_empty());
    }
}
