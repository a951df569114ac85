//! Spinning: if its client has no other call to the server in progress, a call yields its processor
//! for a while before it sleeps. Off by default.
//!
//! A processor that goes idle between a command and its reply can need longer to wake up than a
//! nearby server needs to reply. Asking the socket whether the reply has arrived would cost a
//! system call for each yield. So the time to spin is learned from earlier replies, up to the limit
//! that the user set.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use crate::clock::Instant;

/// A reply that is read within this time, or within a third of the time spun, counts as having
/// arrived before the read: spinning longer gains nothing.
const ARRIVED: Duration = Duration::from_micros(15);

/// A reply that had not arrived adds [`LONGER`] to the time to spin, and one that had arrived
/// subtracts [`SHORTER`], in nanoseconds. So in the end four of five have arrived: a short sleep
/// costs more than a read that is a moment late.
const LONGER: u64 = 1_000;
const SHORTER: u64 = 250;

/// A reply that came after the limit subtracts this, in nanoseconds.
const LATE: u64 = 2_000;

/// A `sched_yield` that took longer than this let another thread run.
const YIELD: Duration = Duration::from_micros(5);

/// How long a call spins before it reads the reply to what it sent.
#[derive(Debug)]
pub(super) struct Spin {
    /// The longest time to spin; zero turns spinning off.
    limit: Duration,
    /// The time to spin, as learned so far, in nanoseconds.
    length: AtomicU64,
    /// How many of the next calls do not spin. A thread that yields to another one runs again only
    /// after that one's time slice, a few milliseconds. A sleeping thread is woken in time.
    skip: AtomicU32,
    /// How many calls will not spin after the next interruption. Each interruption doubles it, and
    /// each call that kept its processor halves it.
    next_skip: AtomicU32,
}

impl Spin {
    const MOST_SKIPPED: u32 = 1 << 16;

    pub(super) const fn new(limit: Duration) -> Self {
        Self {
            limit,
            length: AtomicU64::new(0),
            skip: AtomicU32::new(0),
            next_skip: AtomicU32::new(1),
        }
    }

    /// Spins, then reads a reply with `read`.
    pub(super) fn read<T>(&self, read: impl FnOnce() -> T) -> T {
        if self.limit.is_zero() || self.is_skipped() {
            return read();
        }
        let sent = Instant::now();
        let until = sent.after(Duration::from_nanos(self.length.load(Relaxed)));
        let mut now = sent;
        while now < until {
            thread::yield_now();
            let then = Instant::now();
            if now.until(then) > YIELD {
                self.was_interrupted();
                return read();
            }
            now = then;
        }
        self.kept_its_processor();
        let reply = read();
        self.learn(sent.until(now), now.until(Instant::now()));
        reply
    }

    /// Adjusts the time to spin after a call that spun and slept this long for its reply.
    fn learn(&self, spun: Duration, slept: Duration) {
        let length = self.length.load(Relaxed);
        let length = if slept <= ARRIVED.max(spun / 3) {
            length.saturating_sub(SHORTER)
        } else if spun + slept <= self.limit {
            length + LONGER
        } else {
            length.saturating_sub(LATE)
        };
        self.length.store(length, Relaxed);
    }

    fn is_skipped(&self) -> bool {
        let skip = self.skip.load(Relaxed);
        self.skip.store(skip.saturating_sub(1), Relaxed);
        skip > 0
    }

    fn was_interrupted(&self) {
        let skip = self.next_skip.load(Relaxed);
        self.skip.store(skip, Relaxed);
        self.next_skip
            .store((skip * 2).min(Self::MOST_SKIPPED), Relaxed);
    }

    fn kept_its_processor(&self) {
        let skip = self.next_skip.load(Relaxed);
        self.next_skip.store((skip / 2).max(1), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = micros(150);

    const fn micros(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    fn length(spin: &Spin) -> Duration {
        Duration::from_nanos(spin.length.load(Relaxed))
    }

    /// Returns the time learned from many replies that take 40 µs. `slept` returns how long a read
    /// takes if the reply is due after the given time.
    fn length_for_40_micros(slept: impl Fn(Duration) -> Duration) -> Duration {
        let spin = Spin::new(LIMIT);
        for _ in 0..1_000 {
            let spun = length(&spin);
            spin.learn(spun, slept(micros(40).saturating_sub(spun)));
        }
        length(&spin)
    }

    #[test]
    fn a_call_spins_as_long_as_a_reply_takes() {
        let length = length_for_40_micros(|due| {
            // A thread that sleeps at all takes a while to wake up.
            if due.is_zero() {
                micros(3)
            } else {
                due + micros(25)
            }
        });
        assert!((micros(38)..=micros(42)).contains(&length), "{length:?}");
    }

    #[test]
    fn slow_reads_do_not_make_calls_spin_longer() {
        let length = length_for_40_micros(|due| due + micros(20));
        assert!(length <= micros(62), "{length:?}");
    }

    #[test]
    fn calls_do_not_spin_for_replies_after_the_limit() {
        let spin = Spin::new(LIMIT);
        spin.learn(Duration::ZERO, micros(151));
        assert_eq!(length(&spin), Duration::ZERO);
        spin.length.store(60_000, Relaxed);
        for _ in 0..30 {
            spin.learn(length(&spin), micros(151));
        }
        assert_eq!(length(&spin), Duration::ZERO);
    }

    #[test]
    fn without_a_limit_calls_read_at_once() {
        let spin = Spin::new(Duration::ZERO);
        // With a limit, a call would spin for 584 years.
        spin.length.store(u64::MAX, Relaxed);
        assert_eq!(spin.read(|| 7), 7);
        assert_eq!(spin.length.load(Relaxed), u64::MAX);
    }

    #[test]
    fn calls_spin_less_the_more_often_they_are_interrupted() {
        let spin = Spin::new(LIMIT);
        let interrupted = || {
            spin.was_interrupted();
            (0..).take_while(|_| spin.is_skipped()).count()
        };
        let skipped: Vec<_> = (0..40).map(|_| interrupted()).collect();
        assert_eq!(skipped[..4], [1, 2, 4, 8]);
        assert_eq!(skipped.last(), Some(&65_536));
        (0..3).for_each(|_| spin.kept_its_processor());
        assert_eq!(interrupted(), 8_192);
        (0..99).for_each(|_| spin.kept_its_processor());
        assert_eq!(interrupted(), 1);
    }
}
