//! Random numbers, on every thread until its very end: `rand::rng()` panics once its thread-local is gone.

use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rand::rngs::{SmallRng, SysRng};
use rand::{Rng, RngExt, SeedableRng, TryRng};
use uuid::{Builder, Uuid};

static GENERATOR: LazyLock<Mutex<SmallRng>> = LazyLock::new(|| {
    let seeded = SmallRng::try_from_rng(&mut SysRng);
    Mutex::new(seeded.unwrap_or_else(|_| SmallRng::seed_from_u64(by_clock())))
});

/// Differs between the processes of a machine, where the system has no random numbers to give.
fn by_clock() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanos = now.map_or(0, |now| now.as_nanos() as u64);
    nanos ^ u64::from(std::process::id()) << 32
}

/// A number from 0 to 1, for jitter.
pub(crate) fn chance() -> f64 {
    GENERATOR.lock().random()
}

/// Random bytes from the system: whoever knows a holder id can release its lock, so it must not be guessed.
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
    fn smoke() {
        let drawn: Vec<f64> = (0..100).map(|_| chance()).collect();
        assert!(drawn.iter().all(|chance| (0.0..1.0).contains(chance)));
        assert!(drawn.iter().any(|chance| *chance != drawn[0]));
        assert_ne!(uuid(), uuid());
        assert_eq!(uuid().get_version_num(), 4);
    }
}
