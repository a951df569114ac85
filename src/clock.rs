//! The clock that leases are measured by: it goes on while the machine is suspended, where the system has such a clock.

use std::time::Duration;

/// No thread sleeps longer than this at a time: a sleep is measured by a clock that stands still
/// while the machine is suspended, so a resumed machine looks at this clock again within a second.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// A point in time, as the time since the machine started. Sums saturate: too far is never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Instant(Duration);

impl Instant {
    /// Later than any other instant: what has no end ends then.
    pub(crate) const NEVER: Self = Self(Duration::MAX);

    /// Before any other instant.
    pub(crate) const START: Self = Self(Duration::ZERO);

    pub(crate) fn now() -> Self {
        Self(since_start())
    }

    pub(crate) const fn from_nanos(nanos: u64) -> Self {
        Self(Duration::from_nanos(nanos))
    }

    /// Nanoseconds since the start, enough for 584 years.
    pub(crate) fn as_nanos(self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }

    /// The instant `wait` later.
    pub(crate) const fn after(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(wait))
    }

    /// The instant `lead` earlier.
    pub(crate) const fn before(self, lead: Duration) -> Self {
        Self(self.0.saturating_sub(lead))
    }

    /// How long it is from here until `later`; zero if that is past.
    pub(crate) const fn until(self, later: Self) -> Duration {
        later.0.saturating_sub(self.0)
    }
}

/// How long to sleep from `now` for something due at `at`: never longer than [`LONGEST_SLEEP`].
pub(crate) fn nap(now: Instant, at: Instant) -> Duration {
    now.until(at).min(LONGEST_SLEEP)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn since_start() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    // Neither part is ever negative on this clock, and the nanoseconds are below a second.
    Duration::new(
        time.tv_sec.try_into().unwrap_or(0),
        time.tv_nsec.try_into().unwrap_or(0),
    )
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn since_start() -> Duration {
    use std::sync::OnceLock;
    static START: OnceLock<std::time::Instant> = OnceLock::new();
    // A day ahead, so that `before` does not saturate in the first moments of a process.
    START.get_or_init(std::time::Instant::now).elapsed() + Duration::from_secs(86_400)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smoke() {
        let now = Instant::now();
        assert!(Instant::now() >= now);
        assert_eq!(
            now.until(now.after(Duration::from_secs(3))),
            Duration::from_secs(3)
        );
        assert_eq!(now.after(Duration::from_secs(3)).until(now), Duration::ZERO);
    }

    #[test]
    fn too_far_is_never() {
        assert_eq!(Instant::now().after(Duration::MAX), Instant::NEVER);
        assert_eq!(nap(Instant::now(), Instant::NEVER), LONGEST_SLEEP);
    }
}
