//! Waits for state outside of the test, and measures how late this machine wakes its threads.

use std::panic::Location;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{RecvTimeoutError, Sender, bounded, never};

pub const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Returns the time of this machine's clock, as the servers of the tests have it.
pub fn micros_since_1970() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    since.as_micros().try_into().unwrap()
}

/// Returns a text of as many bytes as a token has, and with the first digits of the next ones.
pub fn nearly_a_token() -> String {
    let token = micros_since_1970().to_string();
    format!("{}00 damage", &token[..7])
}

/// The largest number of wake-ups of threads that a measured call needs, one after the other. Each
/// may be as late as the end of a plain wait of [`Control`].
pub const WAKE_UPS: u32 = 3;

/// How much later a call may return than its limit and the machine's delays explain. For tests in
/// which a broken bound delays a call by a second or more. The benchmark `bounds` measures how late
/// calls really are.
pub const SLACK: Duration = ms(500);

/// The length of a plain wait, which involves no code of the crate.
const PLAIN_WAIT: Duration = ms(20);

/// Sleeps for `time`. Use [`eventually`] to wait for something that must happen.
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

/// Plain waits in another thread, one after the other, while the measured call runs.
///
/// If a plain wait takes longer than its length, the machine is the cause, not the crate.
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
            let mut overshoot = Duration::ZERO;
            loop {
                let began = Instant::now();
                let ended = is_over.recv_timeout(PLAIN_WAIT);
                overshoot = overshoot.max(began.elapsed().saturating_sub(PLAIN_WAIT));
                if ended == Err(RecvTimeoutError::Disconnected) {
                    return overshoot;
                }
            }
        });
        let _ = started.recv();
        Self { running, waiting }
    }

    /// Ends the waits, and returns the longest time by which one of them exceeded its length.
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
    /// The longest time by which a plain wait exceeded its length.
    pub overshoot: Duration,
}

impl<T> Timed<T> {
    /// Returns how much longer the call took than the limit plus [`WAKE_UPS`] times the overshoot.
    pub fn overrun(&self) -> Duration {
        self.took
            .saturating_sub(self.limit + WAKE_UPS * self.overshoot)
    }

    /// Returns the value; fails the test if the [overrun](Self::overrun) is more than `slack`.
    #[track_caller]
    pub fn no_later_than(self, slack: Duration) -> T {
        assert!(
            self.overrun() <= slack,
            "took {:?}; allowed: a limit of {:?}, {WAKE_UPS} times an overshoot of {:?}, and \
             {slack:?} more",
            self.took,
            self.limit,
            self.overshoot,
        );
        self.value
    }
}
