//! Waiting for other processes, and measuring how late this machine is.

use std::panic::Location;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, Sender, bounded, never};

pub const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// How often a thread is woken in a call, at most: each time, it may run as late as after a plain
/// wait.
pub const WAKE_UPS: u32 = 3;

/// How much later a bounded call may return, for tests in which a missed bound costs a second or
/// more. The benchmark `bounds` measures how late calls really are.
pub const SLACK: Duration = ms(500);

const PLAIN_WAIT: Duration = ms(20);

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

/// Short plain waits in another thread, one after the other, while the measured call runs.
///
/// How much they overshoot is due to the machine and not to the crate.
pub struct Control {
    /// Dropped to end the waits.
    running: Sender<()>,
    waiting: JoinHandle<Duration>,
}

impl Control {
    pub fn start() -> Self {
        let (ready, started) = bounded(0);
        let (running, is_over) = bounded::<()>(0);
        let waiting = thread::spawn(move || {
            let _ = ready.send(());
            let mut most = Duration::ZERO;
            loop {
                let began = Instant::now();
                let ended = is_over.recv_timeout(PLAIN_WAIT);
                most = most.max(began.elapsed().saturating_sub(PLAIN_WAIT));
                if ended == Err(RecvTimeoutError::Disconnected) {
                    return most;
                }
            }
        });
        let _ = started.recv();
        Self { running, waiting }
    }

    /// Ends the waits, and returns the most by which one exceeded its length.
    pub fn overshoot(self) -> Duration {
        drop(self.running);
        self.waiting.join().expect("a plain wait does not panic")
    }

    /// Times a call that must return within `limit`, in parallel with plain waits.
    pub fn run<T>(limit: Duration, call: impl FnOnce() -> T) -> Timed<T> {
        let control = Self::start();
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
