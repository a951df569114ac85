//! Durations, waiting for what another process does, and how late this machine is at the moment.

use std::panic::Location;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::never;

pub const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Lets `time` go by, where nothing can be waited for.
pub fn let_pass(time: Duration) {
    let _ = never::<()>().recv_timeout(time);
}

/// Asks again until it is so; fails the test when it is not within the given time.
/// Only for the state of something outside of the test, which has no channel to tell it on.
#[track_caller]
pub fn eventually(within: Duration, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + within;
    let mut pause = Duration::from_micros(500);
    while !so() {
        assert!(
            Instant::now() < deadline,
            "not so within {within:?}, asked at {}",
            Location::caller()
        );
        thread::sleep(pause);
        pause = (pause * 2).min(ms(20));
    }
}

/// A plain wait of the same length in a thread beside the call that is measured: what it overshoots is the machine's
/// doing and not ours.
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

    /// How much longer than asked for the plain wait took.
    pub fn overshoot(self) -> Duration {
        self.waiting.join().expect("a plain wait does not panic")
    }

    /// Times a call that is to return within `limit`, with the plain wait beside it.
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
    /// How much later the call was than the plain wait, were it to take the whole limit.
    pub fn beyond(&self) -> Duration {
        self.took.saturating_sub(self.limit + self.overshoot)
    }

    /// The value, if the call was back at most `slack` later than a plain wait.
    #[track_caller]
    pub fn no_later_than(self, slack: Duration) -> T {
        assert!(
            self.beyond() <= slack,
            "took {:?} of {:?}, where a plain wait overshoots by {:?} and {slack:?} more are allowed",
            self.took,
            self.limit,
            self.overshoot,
        );
        self.value
    }
}
