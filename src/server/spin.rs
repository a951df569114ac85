//! Staying awake: for about as long as a trip to a server nearby takes, while nobody else wants the processor.
//!
//! A processor that goes idle between a command and its answer needs longer to come back than a server nearby needs to
//! answer, above all in a virtual machine. So a call that is alone gives way (`sched_yield`) again and again before it
//! reads, as an adaptive mutex does before it sleeps: a lock and an unlock take 0.6 to 0.7 times what the same scripts
//! take without this (`--bench uncontended`). Whoever else wants the processor gets it, and the next calls sleep at once.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use crate::clock::Instant;

/// Where answers take longer than this, sleeping costs little beside it.
const NEAR: Duration = Duration::from_micros(150);

/// An answer that is read in this time was there before, or in a third of the time before: where reading takes long, to
/// wait longer does not make it shorter.
const AT_ONCE: Duration = Duration::from_micros(15);

/// What an answer that was not there yet adds to the time that the next is waited for, in nanoseconds, and what one that
/// was there takes from it. So four of five are there: to sleep for a moment costs more than to look a moment late.
const LONGER: u64 = 1_000;
const SHORTER: u64 = 250;

/// What an answer takes from it that came so late that nobody should wait awake for it.
const FAR: u64 = 2_000;

/// A `sched_yield` that took longer let somebody else run.
const ALONE: Duration = Duration::from_micros(5);

/// For how long one that waits for the answer to what was just sent stays awake.
#[derive(Debug)]
pub(super) struct Spin {
    /// In nanoseconds.
    length: AtomicU64,
    restraint: Restraint,
}

/// When not to give way, because others make use of it: a processor that was given up comes back after a slice of the
/// scheduler, a few milliseconds, where a thread that sleeps is woken in time.
#[derive(Debug)]
pub(super) struct Restraint {
    /// A `sched_yield` that took longer let somebody else run who matters.
    brief: Duration,
    /// How many use it at a time: what disturbs one of them disturbs the others too.
    users: u32,
    calm: AtomicU32,
    /// How often somebody made use of it since then.
    disturbed: AtomicU32,
    /// How many do without from now on.
    without: AtomicU32,
}

impl Default for Spin {
    fn default() -> Self {
        Self {
            length: AtomicU64::new(0),
            restraint: Restraint::new(ALONE, 1),
        }
    }
}

impl Spin {
    /// Reads an answer with `read`, when it is likely to be there.
    pub(super) fn read<T>(&self, read: impl FnOnce() -> T) -> T {
        let sent = Instant::now();
        let until = sent.after(Duration::from_nanos(self.length.load(Relaxed)));
        let Some(now) = self.restraint.give_way(sent, |now| now >= until) else {
            return read();
        };
        let answer = read();
        self.learn(sent.until(now), now.until(Instant::now()));
        answer
    }

    /// An answer that was waited for awake for so long was there after such a sleep.
    fn learn(&self, awake: Duration, asleep: Duration) {
        let length = self.length.load(Relaxed);
        let length = if asleep <= AT_ONCE.max(awake / 3) {
            length.saturating_sub(SHORTER)
        } else if awake + asleep <= NEAR {
            length + LONGER
        } else {
            length.saturating_sub(FAR)
        };
        self.length.store(length, Relaxed);
    }
}

impl Restraint {
    /// The most that do without, however often somebody was disturbed.
    const MOST: u32 = u16::MAX as u32;

    /// So many times in a row each user gives way undisturbed, and all is forgotten. Of two processes that hand a lock to
    /// each other, each is disturbed by the other as often as not.
    const CALM: u32 = 16;

    pub(super) const fn new(brief: Duration, users: u32) -> Self {
        Self {
            brief,
            users,
            calm: AtomicU32::new(0),
            disturbed: AtomicU32::new(0),
            without: AtomicU32::new(0),
        }
    }

    /// Lets others run from `now` on, again and again until it `is_over`. Returns when it is, or `None` where one had
    /// better sleep.
    pub(super) fn give_way(
        &self,
        mut now: Instant,
        mut is_over: impl FnMut(Instant) -> bool,
    ) -> Option<Instant> {
        if !self.lets() {
            return None;
        }
        let mut has_given_way = false;
        while !is_over(now) {
            thread::yield_now();
            let then = Instant::now();
            if now.until(then) > self.brief {
                self.disturbed();
                return None;
            }
            now = then;
            has_given_way = true;
        }
        if has_given_way {
            self.undisturbed();
        }
        Some(now)
    }

    /// Whether one may give way.
    fn lets(&self) -> bool {
        let without = self.without.load(Relaxed);
        if without > 0 {
            // Of several at a time some may not be counted.
            self.without.store(without - 1, Relaxed);
        }
        without == 0
    }

    /// Twice as many as the last time do without.
    fn disturbed(&self) {
        self.calm.store(0, Relaxed);
        if self.without.load(Relaxed) == 0 {
            let times = self.disturbed.load(Relaxed);
            self.disturbed.store(times.saturating_add(1), Relaxed);
            let factor = 1u32.checked_shl(times).unwrap_or(Self::MOST);
            let without = self.users.saturating_mul(factor);
            self.without.store(without.min(Self::MOST), Relaxed);
        }
    }

    /// One gave way, and nobody took long.
    fn undisturbed(&self) {
        if self.disturbed.load(Relaxed) == 0 {
            return;
        }
        let calm = self.calm.load(Relaxed) + 1;
        if calm >= self.users.saturating_mul(Self::CALM) {
            self.calm.store(0, Relaxed);
            self.disturbed.store(0, Relaxed);
        } else {
            self.calm.store(calm, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn micros(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    fn length(spin: &Spin) -> Duration {
        Duration::from_nanos(spin.length.load(Relaxed))
    }

    /// After many answers that take 40 µs, of which `asleep` says how long the read of one takes that is still missing for
    /// so long.
    fn length_for_40_micros(asleep: impl Fn(Duration) -> Duration) -> Duration {
        let spin = Spin::default();
        for _ in 0..1_000 {
            let awake = length(&spin);
            spin.learn(awake, asleep(micros(40).saturating_sub(awake)));
        }
        length(&spin)
    }

    #[test]
    fn it_gets_as_long_as_an_answer_takes() {
        let length = length_for_40_micros(|missing| {
            // Who sleeps at all needs a while to wake up.
            if missing.is_zero() {
                micros(3)
            } else {
                missing + micros(25)
            }
        });
        assert!((micros(38)..=micros(42)).contains(&length), "{length:?}");
    }

    #[test]
    fn a_read_that_takes_long_is_not_waited_for_longer() {
        let length = length_for_40_micros(|missing| missing + micros(20));
        assert!(length <= micros(62), "{length:?}");
    }

    #[test]
    fn who_is_far_away_is_waited_for_asleep() {
        let spin = Spin::default();
        spin.learn(Duration::ZERO, micros(400));
        assert_eq!(length(&spin), Duration::ZERO);
        spin.length.store(60_000, Relaxed);
        for _ in 0..30 {
            spin.learn(length(&spin), micros(400));
        }
        assert_eq!(length(&spin), Duration::ZERO);
    }

    #[test]
    fn the_more_are_disturbed_the_more_do_without() {
        let restraint = Restraint::new(ALONE, 2);
        let mut without = Vec::new();
        for _ in 0..40 {
            restraint.disturbed();
            // At the same time.
            restraint.disturbed();
            without.push((0..).take_while(|_| !restraint.lets()).count());
        }
        assert_eq!(without[..4], [2, 4, 8, 16]);
        assert_eq!(without.last(), Some(&65_535));
        let calm = || restraint.disturbed.load(Relaxed) == 0;
        let undisturbed = |times| (0..times).for_each(|_| restraint.undisturbed());
        undisturbed(31);
        restraint.disturbed();
        undisturbed(31);
        assert!(!calm(), "not in a row");
        undisturbed(1);
        assert!(calm());
    }

    #[test]
    fn a_processor_that_comes_back_late_is_not_given_up_again() {
        let once = |restraint: &Restraint| {
            let mut times = 0;
            restraint.give_way(Instant::START, |_| {
                times += 1;
                times > 1
            })
        };
        let restraint = Restraint::new(Duration::ZERO, 1);
        assert!(once(&restraint).is_none());
        assert!(!restraint.lets() && restraint.lets());
        let patient = Restraint::new(Duration::MAX, 1);
        assert!(once(&patient).is_some() && patient.lets());
    }
}
