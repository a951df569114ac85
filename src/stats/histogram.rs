//! A histogram of durations, to which any thread can add without a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The number of buckets for each power of two of microseconds. With 16 of them, a quantile is at
/// most a sixteenth too high, after rounding up to microseconds.
const PARTS: u64 = 1 << PARTS_BITS;
const PARTS_BITS: u32 = 4;

/// The last power of two with its own buckets is 2^41 µs, for durations of up to 50 days. Longer
/// durations count in the last bucket.
const LAST: u32 = 41;

const BUCKETS: usize = ((LAST - PARTS_BITS + 2) as usize) << PARTS_BITS;

/// The counts of durations, by bucket.
#[derive(Debug)]
pub(crate) struct Histogram {
    counts: [AtomicU64; BUCKETS],
    /// In nanoseconds.
    max: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: [const { AtomicU64::new(0) }; BUCKETS],
            max: AtomicU64::new(0),
        }
    }
}

impl Histogram {
    pub(crate) fn record(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        if let Some(count) = self.counts.get(bucket(nanos)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        // A new maximum is rare, and a read is cheaper than a write.
        if nanos > self.max.load(Ordering::Relaxed) {
            self.max.fetch_max(nanos, Ordering::Relaxed);
        }
    }

    /// Adds the current counts to `buckets`.
    pub(crate) fn add_to(&self, buckets: &mut Buckets) {
        for (sum, count) in buckets.counts.iter_mut().zip(&self.counts) {
            *sum += count.load(Ordering::Relaxed);
        }
        buckets.max = buckets.max.max(self.max.load(Ordering::Relaxed));
    }
}

/// A snapshot of one histogram, or the sum of several.
#[derive(Clone, Debug)]
pub(crate) struct Buckets {
    counts: Vec<u64>,
    /// In nanoseconds.
    max: u64,
}

impl Default for Buckets {
    fn default() -> Self {
        Self {
            counts: vec![0; BUCKETS],
            max: 0,
        }
    }
}

impl Buckets {
    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub(crate) fn max(&self) -> Duration {
        Duration::from_nanos(self.max)
    }

    /// Returns the duration that the share `part` of all durations did not exceed; zero without
    /// any.
    pub(crate) fn quantile(&self, part: f64) -> Duration {
        // At least rank 1, the shortest duration, even for `part` 0.
        let rank = (self.count() as f64 * part).ceil().max(1.0) as u64;
        let mut below = 0;
        let bucket = self.counts.iter().position(|count| {
            below += count;
            below >= rank
        });
        bucket.map_or(Duration::ZERO, |n| end(n).min(self.max()))
    }

    /// Returns what was counted since `before`: the upper end of each bucket, and its count.
    #[cfg(any(feature = "metrics", test))]
    pub(crate) fn since(&self, before: &Self) -> impl Iterator<Item = (Duration, u64)> {
        let pairs = self.counts.iter().zip(&before.counts).enumerate();
        pairs
            .map(|(n, (now, then))| (end(n).min(self.max()), now.saturating_sub(*then)))
            .filter(|(_, count)| *count > 0)
    }
}

/// Returns the bucket of a duration, rounded up to microseconds: a bucket's end is never shorter
/// than the durations in it.
fn bucket(nanos: u64) -> usize {
    let micros = nanos.div_ceil(1000);
    let Some(power) = micros.checked_ilog2().filter(|power| *power >= PARTS_BITS) else {
        return micros as usize;
    };
    if power > LAST {
        return BUCKETS - 1;
    }
    let shift = power - PARTS_BITS;
    (u64::from(shift) * PARTS + (micros >> shift)) as usize
}

/// Returns the longest duration of a bucket.
fn end(bucket: usize) -> Duration {
    let bucket = bucket as u64;
    let shift = (bucket / PARTS).saturating_sub(1);
    let first = bucket - shift * PARTS;
    Duration::from_micros(((first + 1) << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    fn counted(times: impl IntoIterator<Item = Duration>) -> Buckets {
        let histogram = Histogram::default();
        times.into_iter().for_each(|took| histogram.record(took));
        let mut buckets = Buckets::default();
        histogram.add_to(&mut buckets);
        buckets
    }

    #[test]
    fn quantiles_of_short_durations_are_exact() {
        let buckets = counted((1..=10).map(us));
        assert_eq!(buckets.count(), 10);
        assert_eq!(buckets.quantile(0.5), us(5));
        assert_eq!(buckets.quantile(0.99), us(10));
        assert_eq!(buckets.max(), us(10));
    }

    #[test]
    fn buckets_cover_all_durations_in_order() {
        let mut before = 0;
        for power in 0..62 {
            for micros in [1_u64 << power, (1 << power) * 3 / 2, (2 << power) - 1] {
                let nanos = micros.saturating_mul(1000);
                let n = bucket(nanos);
                assert!(n >= before && n < BUCKETS, "{micros}");
                before = n;
                if micros >> LAST < 2 {
                    let end = end(n);
                    assert!(end >= us(micros), "{micros}: {end:?}");
                    assert!(end <= us(micros + micros / PARTS), "{micros}: {end:?}");
                }
            }
        }
        assert_eq!(bucket(u64::MAX), bucket(1000 << (LAST + 1)));
        assert!(end(bucket(1_001)) >= Duration::from_nanos(1_001));
        let ends: Vec<_> = (0..BUCKETS).map(end).collect();
        assert!(ends.windows(2).all(|pair| pair[0] < pair[1]));
        for (n, end) in ends.iter().enumerate() {
            assert_eq!(bucket(end.as_nanos() as u64), n, "{end:?}");
        }
    }

    #[test]
    fn quantiles_of_few_durations_and_of_none() {
        assert_eq!(counted([]).quantile(0.5), Duration::ZERO);
        let one = counted([us(1_000_003)]);
        assert_eq!(one.quantile(0.5), us(1_000_003), "never above the maximum");
        assert_eq!(one.quantile(0.99), us(1_000_003));
        // 98 short durations and two long ones: the 99th is long.
        let skewed = counted((0..100).map(|n| if n < 98 { us(10) } else { us(5_000) }));
        assert_eq!(skewed.quantile(0.5), us(10));
        assert_eq!(skewed.quantile(0.99), us(5_000));
    }

    #[test]
    fn histograms_add_up_and_snapshots_subtract() {
        let (one, two) = (Histogram::default(), Histogram::default());
        one.record(us(7));
        two.record(us(9));
        let mut before = Buckets::default();
        one.add_to(&mut before);
        two.add_to(&mut before);
        assert_eq!((before.count(), before.max()), (2, us(9)));
        two.record(us(9));
        two.record(us(3));
        let mut now = Buckets::default();
        one.add_to(&mut now);
        two.add_to(&mut now);
        let since: Vec<_> = now.since(&before).collect();
        assert_eq!(since, [(us(3), 1), (us(9), 1)]);
    }
}
