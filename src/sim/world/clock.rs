//! The clocks of the clients.

use std::time::Duration;

use super::NEVER;
use crate::clock::Instant;
use crate::sim::server::Time;

/// The clock of a client.
#[derive(Clone, Debug)]
pub(in crate::sim) struct Clock {
    /// By how much it is too fast, in millionths.
    drift: i64,
    /// The time by the wall clock at the start, in µs.
    wall: u64,
    /// When it stood still, from and until. The wall clock went on.
    pauses: Vec<[Time; 2]>,
}

impl Clock {
    pub(in crate::sim) fn new(drift: i64, wall: u64) -> Self {
        Self {
            drift,
            wall,
            pauses: Vec::new(),
        }
    }

    pub(in crate::sim) fn pause(&mut self, from: Time, until: Time) {
        self.pauses.push([from, until]);
    }

    /// Returns what the clock shows at `time`.
    pub(in crate::sim) fn at(&self, time: Time) -> Instant {
        if time == NEVER {
            return Instant::NEVER;
        }
        Instant::from_nanos(self.nanos(time - self.stood_still(time)))
    }

    /// Returns what the wall clock showed at the start, by what it shows at `time`.
    pub(in crate::sim) fn wall_at_start(&self, time: Time) -> Duration {
        let stood_still = self.nanos(self.stood_still(time));
        Duration::from_nanos(stood_still) + Duration::from_micros(self.wall)
    }

    fn stood_still(&self, time: Time) -> Time {
        let pauses = self.pauses.iter();
        let stood = pauses.map(|[from, until]| time.clamp(*from, *until) - from);
        stood.sum()
    }

    fn nanos(&self, time: Time) -> u64 {
        (time as i64 * (1_000_000 + self.drift) / 1000) as u64
    }

    /// Returns the first time at which the clock shows at least `instant`.
    pub(in crate::sim) fn time_of(&self, instant: Instant) -> Time {
        if instant == Instant::NEVER {
            return NEVER;
        }
        let rate = (1_000_000 + self.drift) as u128;
        let mut time = (u128::from(instant.as_nanos()) * 1000).div_ceil(rate) as Time;
        for [from, until] in &self.pauses {
            if time > *from {
                time += until - from;
            }
        }
        time
    }
}
