//! Waiting for other processes, and measuring how late this machine is.

use std::panic::Location;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::never;

pub const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// How often a thread is woken in a call, at most: each time, it may run as late as after a plain
/// wait.
pub const WAKE_UPS: u32 = 3;

/// Sleeps for `time`, for tests that assert that nothing happens meanwhile.
pub fn let_pass(time: Duration) {
    let _ = never::<()>().recv_timeout(time);
}

/// Polls a condition until it holds; fails the test if it does not hold within `within`.
///
/// Only for state outside of the test, which cannot be awaited on a channel.
#[track_caller]
pub fn eventually(within: Duration, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + within;
    let mut pause = Duration::from_micros(500);
    while !holds() {
        assert!(
            Instant::now() < deadline,
            "the condition at {} did not hold within {within:?}",
            Location::caller()
        );
        thread::sleep(pause);
        pause = (pause * 2).min(ms(20));
    }
}

/// A plain wait in another thread, as long as the measured call's limit.
///
/// How much it overshoots is due to the machine and not to the crate.
pub struct Control {
    waiting: JoinHandle<Duration>,
}

impl Control {
    pub fn start(limit: Duration) -> Self {
        let (ready, started) = crossbeam_channel::bounded(0);
        let waiting = thread::spawn(move || {
            let _ = ready.send(());
            let began = Instant::now();
            let_pass(limit);
            began.elapsed().saturating_sub(limit)
        });
        let _ = started.recv();
        Self { waiting }
    }

    /// Returns by how much the plain wait exceeded its limit.
    pub fn overshoot(self) -> Duration {
        self.waiting.join().expect("a plain wait does not panic")
    }

    /// Times a call that must return within `limit`, in parallel with a plain wait.
    pub fn run<T>(limit: Duration, call: impl FnOnce() -> T) -> Timed<T> {
        let control = Self::start(limit);
        let began = Instant::now();
        let value = call();
        let took = began.elapsed();
        Timed {
            value,
            took,
            limit,
            overshoot: control.overshoot(),
        }
    }
}

pub struct Timed<T> {
    pub value: T,
    pub took: Duration,
    pub limit: Duration,
    pub overshoot: Duration,
}

impl<T> Timed<T> {
    /// Returns by how much the call exceeded the limit and [`WAKE_UPS`] plain waits' overshoot.
    pub fn overrun(&self) -> Duration {
        self.took
            .saturating_sub(self.limit + WAKE_UPS * self.overshoot)
    }

    /// Returns the value; fails the test if the call was more than `slack` later than
    /// [`WAKE_UPS`] plain waits overshoot.
    #[track_caller]
    pub fn no_later_than(self, slack: Duration) -> T {
        assert!(
            self.overrun() <= slack,
            "took {:?} with a limit of {:?}; {WAKE_UPS} plain waits overshoot by {:?} each, and \
             {slack:?} more are allowed",
            self.took,
            self.limit,
            self.overshoot,
        );
        self.value
    }
}
