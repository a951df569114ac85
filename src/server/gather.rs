//! Calls that find the connections in use, and who of them sends for whom. No I/O.

use std::collections::VecDeque;

use crate::clock::Instant;

/// So many calls go in one write: whoever reads their answers is kept from its own for no longer.
const MOST: usize = 32;

/// What waits, in the order of its coming. A connection that comes back goes to one of those who wait
/// (see [`next`](Self::next)), who sends what has gathered by then along with its own call.
#[derive(Debug)]
pub(crate) struct Gather<T> {
    waiting: VecDeque<Waiting<T>>,
    tickets: u64,
}

#[derive(Debug)]
struct Waiting<T> {
    ticket: Ticket,
    until: Instant,
    entry: T,
}

/// Names one of those who wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

impl<T> Default for Gather<T> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            tickets: 0,
        }
    }
}

impl<T> Gather<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Waits from now on, with time until `until`.
    pub(crate) fn join(&mut self, until: Instant, entry: T) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.waiting.push_back(Waiting {
            ticket,
            until,
            entry,
        });
        ticket
    }

    /// Waits no longer. False if it was taken out before: it is being sent, or is to send.
    pub(crate) fn leave(&mut self, ticket: Ticket) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|waiting| waiting.ticket != ticket);
        self.waiting.len() < before
    }

    /// Takes out who gets a connection at `now`, and reads for those who go along: the one with the most
    /// time, since its deadline ends the connection under the others.
    pub(crate) fn next(&mut self, now: Instant) -> Option<T> {
        let waiting = self.waiting.iter().enumerate();
        let waiting = waiting.filter(|(_, waiting)| waiting.until > now);
        // Of several the first.
        let (last, _) = waiting.rev().max_by_key(|(_, waiting)| waiting.until)?;
        Some(self.waiting.remove(last)?.entry)
    }

    /// Takes out what is sent along at `now`, by one who has a connection. What has no time left
    /// stays: sent, it would only leave something to be undone.
    pub(crate) fn take(&mut self, now: Instant) -> Vec<T> {
        let mut taken = Vec::with_capacity(self.waiting.len().min(MOST));
        let mut stay = VecDeque::new();
        while taken.len() + 1 < MOST
            && let Some(waiting) = self.waiting.pop_front()
        {
            if waiting.until > now {
                taken.push(waiting.entry);
            } else {
                stay.push_back(waiting);
            }
        }
        stay.append(&mut self.waiting);
        self.waiting = stay;
        taken
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
    use std::time::Duration;

    fn at(ms: u64) -> Instant {
        Instant::START.after(Duration::from_millis(ms))
    }

    fn gather(untils: &[u64]) -> (Gather<usize>, Vec<Ticket>) {
        let mut gather = Gather::default();
        let tickets = untils.iter().enumerate();
        let tickets = tickets.map(|(n, until)| gather.join(at(*until), n));
        let tickets = tickets.collect();
        (gather, tickets)
    }

    #[test]
    fn smoke() {
        let (mut gather, tickets) = gather(&[1_000, 1_000, 1_000]);
        assert_eq!(gather.next(at(10)), Some(0));
        assert!(!gather.leave(tickets[0]), "it is to send");
        assert!(gather.leave(tickets[2]));
        assert_eq!(gather.take(at(10)), [1]);
        assert!(!gather.leave(tickets[1]), "it is being sent");
        assert!(gather.is_empty());
        assert_eq!(gather.next(at(10)), None);
    }

    #[test]
    fn nobody_reads_for_one_who_has_more_time() {
        let (mut gather, _) = gather(&[100, 1_000, 1_001, 1_001, 1_000]);
        assert_eq!(gather.next(at(10)), Some(2));
        assert_eq!(gather.take(at(10)), [0, 1, 3, 4]);
    }

    #[test]
    fn what_has_no_time_left_is_not_sent() {
        let (mut gather, tickets) = gather(&[100, 50, 101]);
        assert_eq!(gather.take(at(100)), [2]);
        assert_eq!(gather.next(at(100)), None);
        assert!(gather.leave(tickets[0]) && gather.leave(tickets[1]));
    }

    #[test]
    fn one_write_has_a_bound_and_the_rest_keeps_its_order() {
        let (mut gather, _) = gather(&[1_000; 200]);
        let mut sent = vec![gather.next(at(10)).unwrap()];
        sent.extend(gather.take(at(10)));
        assert_eq!(sent, (0..MOST).collect::<Vec<_>>());
        assert_eq!(gather.next(at(10)), Some(MOST));
    }

    #[test]
    fn all_are_dismissed_at_once() {
        let (mut gather, tickets) = gather(&[1, 2]);
        assert_eq!(gather.dismiss().collect::<Vec<_>>(), [0, 1]);
        assert!(!gather.leave(tickets[0]) && gather.is_empty());
    }
}
