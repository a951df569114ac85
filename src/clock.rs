//! The clock for leases and deadlines. On Linux and Android it advances during suspend.

use std::num::NonZeroU64;
#[cfg(feature = "testing")]
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[cfg(any(target_os = "linux", target_os = "android"))]
use rustix::time::{ClockId, Timespec, clock_gettime};

/// The longest single sleep. The clock behind sleeps stops during suspend, so after a resume a
/// thread reads this clock again within a second.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// A point in time, as the time since a fixed start, which is the default. Sums saturate at
/// [`Instant::NEVER`].
///
/// The number is 1 plus the nanoseconds, enough for 584 years: with `Option`, it has the size of a
/// `u64`, because each lease and each name has many of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Instant(NonZeroU64);

impl Default for Instant {
    fn default() -> Self {
        Self::START
    }
}

impl Instant {
    /// Later than any other instant: a deadline that never passes.
    pub(crate) const NEVER: Self = Self(NonZeroU64::MAX);

    /// Before any other instant.
    pub(crate) const START: Self = Self(NonZeroU64::MIN);

    pub(crate) fn now() -> Self {
        Self::START.after(since_start() + suspended())
    }

    pub(crate) const fn from_nanos(nanos: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(nanos))
    }

    /// Nanoseconds since the start.
    pub(crate) const fn as_nanos(self) -> u64 {
        self.0.get() - 1
    }

    /// The instant `wait` later.
    pub(crate) const fn after(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(nanos(wait)))
    }

    /// The instant `lead` earlier.
    pub(crate) const fn before(self, lead: Duration) -> Self {
        let left = self.as_nanos().saturating_sub(nanos(lead));
        Self(NonZeroU64::MIN.saturating_add(left))
    }

    /// Returns the time from here until `later`; zero if that has passed.
    pub(crate) const fn until(self, later: Self) -> Duration {
        Duration::from_nanos(later.0.get().saturating_sub(self.0.get()))
    }
}

const fn nanos(time: Duration) -> u64 {
    match time.as_nanos() {
        nanos if nanos < u64::MAX as u128 => nanos as u64,
        _ => u64::MAX,
    }
}

/// Returns how long to sleep from `now` towards `at`: at most [`LONGEST_SLEEP`].
pub(crate) fn nap(now: Instant, at: Instant) -> Duration {
    now.until(at).min(LONGEST_SLEEP)
}

/// Sleeps for `pause`, between attempts. No other thread can wake this one.
pub(crate) fn sleep(pause: Duration) {
    thread::sleep(pause);
}

/// Returns for how much of its time this clock was ahead of sleeps, which do not count a suspend.
/// May be too little, by as long as this thread stands still meanwhile.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn suspended_for() -> Duration {
    let since_start = since_start();
    let awake = of_timespec(clock_gettime(ClockId::Monotonic));
    suspended() + since_start.saturating_sub(awake)
}

/// Returns for how much of its time this clock was ahead of sleeps, which do not count a suspend.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn suspended_for() -> Duration {
    suspended()
}

/// The time added by `testing::suspend`, in nanoseconds.
#[cfg(feature = "testing")]
static SUSPENDED: AtomicU64 = AtomicU64::new(0);

#[cfg(feature = "testing")]
fn suspended() -> Duration {
    Duration::from_nanos(SUSPENDED.load(Ordering::SeqCst))
}

#[cfg(not(feature = "testing"))]
const fn suspended() -> Duration {
    Duration::ZERO
}

/// Moves this clock ahead, for the whole process.
#[cfg(feature = "testing")]
pub(crate) fn suspend(time: Duration) {
    // Enough for 584 years.
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let _ = SUSPENDED.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |before| {
        Some(before.saturating_add(nanos))
    });
}

/// Returns what the wall clock showed at [`Instant::START`], by what it shows now. It rises if that
/// clock is set ahead, and if the other one has stood still.
pub(crate) fn wall_at_start() -> Duration {
    // The wall clock first: if the thread is preempted in between, it is not ahead.
    let wall = wall_time().duration_since(UNIX_EPOCH).unwrap_or_default();
    wall.saturating_sub(since_start())
}

/// Returns the wall clock, which can jump: for reports, seeds, proposed tokens, and doubts.
pub(crate) fn wall_time() -> SystemTime {
    SystemTime::now()
}

/// Returns the time since a fixed start; ignores `suspend`.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn since_start() -> Duration {
    of_timespec(clock_gettime(ClockId::Boottime))
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn of_timespec(time: Timespec) -> Duration {
    // Neither part is negative on these clocks, and the nanoseconds are below one second.
    Duration::new(
        time.tv_sec.try_into().unwrap_or(0),
        time.tv_nsec.try_into().unwrap_or(0),
    )
}

/// Returns the time since a fixed start; ignores `suspend`.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn since_start() -> Duration {
    use std::sync::OnceLock;
    static START: OnceLock<std::time::Instant> = OnceLock::new();
    // Starts at one day, so that `Instant::START` is long past even in a new process.
    START.get_or_init(std::time::Instant::now).elapsed() + Duration::from_secs(86_400)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn until_is_zero_for_the_past() {
        let now = Instant::now();
        assert!(Instant::now() >= now);
        assert_eq!(
            now.until(now.after(Duration::from_secs(3))),
            Duration::from_secs(3)
        );
        assert_eq!(now.after(Duration::from_secs(3)).until(now), Duration::ZERO);
    }

    #[test]
    fn far_deadlines_saturate_at_never() {
        assert_eq!(Instant::now().after(Duration::MAX), Instant::NEVER);
        assert_eq!(nap(Instant::now(), Instant::NEVER), LONGEST_SLEEP);
        assert_eq!(Instant::START.before(LONGEST_SLEEP), Instant::START);
        let (second, two) = (Instant::START.after(LONGEST_SLEEP), 2 * LONGEST_SLEEP);
        assert_eq!(second.after(LONGEST_SLEEP), Instant::START.after(two));
        assert_eq!(second.before(LONGEST_SLEEP), Instant::START);
    }
}
