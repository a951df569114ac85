//! Random numbers that also work in destructors of thread-locals, where `rand::rng()` panics.

use std::sync::LazyLock;
use std::time::UNIX_EPOCH;

use parking_lot::Mutex;
use rand::rngs::{SmallRng, SysRng};
use rand::{Rng, RngExt, SeedableRng, TryRng};
use uuid::{Builder, Uuid};

use crate::clock::wall_time;

static GENERATOR: LazyLock<Mutex<SmallRng>> = LazyLock::new(|| {
    let seeded = SmallRng::try_from_rng(&mut SysRng);
    Mutex::new(seeded.unwrap_or_else(|_| SmallRng::seed_from_u64(by_clock())))
});

/// A seed that differs between the processes of a machine, if the system has no random numbers.
fn by_clock() -> u64 {
    let now = wall_time().duration_since(UNIX_EPOCH);
    let nanos = now.map_or(0, |now| now.as_nanos() as u64);
    nanos ^ u64::from(std::process::id()) << 32
}

/// Returns a number from 0 (inclusive) to 1 (exclusive), for jitter.
pub(crate) fn chance() -> f64 {
    GENERATOR.lock().random()
}

/// Returns a random UUID. Its bytes come from the system: anyone who knows a holder id can release
/// the lock, so it must not be predictable.
pub(crate) fn uuid() -> Uuid {
    let mut bytes = [0; 16];
    if SysRng.try_fill_bytes(&mut bytes).is_err() {
        GENERATOR.lock().fill_bytes(&mut bytes);
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
        assert_ne!(uuid(), uuid());
        assert_eq!(uuid().get_version_num(), 4);
    }
}
