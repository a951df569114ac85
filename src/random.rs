//! Random numbers that also work in destructors of thread-locals, where `rand::rng()` panics, and
//! in a fork, where a copied generator would repeat the parent's numbers.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicU64, Ordering};

use rand::TryRng;
use rand::rngs::SysRng;
use uuid::{Builder, Uuid};

use crate::clock::wall_time;

/// How often a number was drawn without the system's generator.
static DRAWN: AtomicU64 = AtomicU64::new(0);

#[cfg(sim)]
thread_local! {
    /// The state of this thread's generator, once a test has seeded it.
    static SEEDED: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
}

/// Makes all numbers and ids of this thread depend on `seed` alone; `None` ends that.
#[cfg(sim)]
pub(crate) fn seed(seed: Option<u64>) {
    SEEDED.set(seed);
}

#[cfg(sim)]
fn seeded_bits() -> Option<u64> {
    let state = SEEDED.get()?.wrapping_add(0x9e37_79b9_7f4a_7c15);
    SEEDED.set(Some(state));
    // SplitMix64.
    let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    Some(z ^ z >> 31)
}

/// Returns 64 random bits from the system, without a lock or a state that a fork could copy.
fn bits() -> u64 {
    #[cfg(sim)]
    if let Some(bits) = seeded_bits() {
        return bits;
    }
    SysRng.try_next_u64().unwrap_or_else(|_| by_clock())
}

/// A number that differs between the processes of a machine, if the system has no random numbers.
fn by_clock() -> u64 {
    let mut hasher = DefaultHasher::new();
    let drawn = DRAWN.fetch_add(1, Ordering::Relaxed);
    (wall_time(), std::process::id(), drawn).hash(&mut hasher);
    hasher.finish()
}

/// Returns a number from 0 (inclusive) to 1 (exclusive), for jitter.
pub(crate) fn chance() -> f64 {
    // A double has 53 bits.
    (bits() >> 11) as f64 / (1_u64 << 53) as f64
}

/// Returns a random UUID. Its bytes come from the system: anyone who knows a holder id can release
/// the lock, so it must not be predictable.
pub(crate) fn uuid() -> Uuid {
    #[cfg(sim)]
    if let (Some(high), Some(low)) = (seeded_bits(), seeded_bits()) {
        let bytes = (u128::from(high) << 64 | u128::from(low)).to_le_bytes();
        return Builder::from_random_bytes(bytes).into_uuid();
    }
    let mut bytes = [0; 16];
    if SysRng.try_fill_bytes(&mut bytes).is_err() {
        bytes = (u128::from(by_clock()) << 64 | u128::from(by_clock())).to_le_bytes();
    }
    Builder::from_random_bytes(bytes).into_uuid()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_ids_vary() {
        let drawn: Vec<f64> = (0..100).map(|_| chance()).collect();
        assert!(drawn.iter().all(|chance| (0.0..1.0).contains(chance)));
        assert!(drawn.iter().any(|chance| *chance != drawn[0]));
        assert_ne!(by_clock(), by_clock());
        assert_ne!(uuid(), uuid());
        assert_eq!(uuid().get_version_num(), 4);
    }
}
