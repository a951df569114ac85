//! Makes every variant of [`Lost`], for mocks, fakes and tests of how a program handles a loss.

use crate::lost::Lost;

/// Returns [`Lost::Expired`].
///
/// ```
/// use leasehold::{Lost, testing::lost};
///
/// assert_eq!(lost::expired(), Lost::Expired);
/// ```
pub const fn expired() -> Lost {
    Lost::Expired
}

/// Returns [`Lost::Taken`].
///
/// ```
/// use leasehold::{Lost, testing::lost};
///
/// assert_eq!(lost::taken(), Lost::Taken);
/// ```
pub const fn taken() -> Lost {
    Lost::Taken
}

/// Returns [`Lost::Deleted`].
///
/// ```
/// use leasehold::{Lost, testing::lost};
///
/// assert_eq!(lost::deleted(), Lost::Deleted);
/// ```
pub const fn deleted() -> Lost {
    Lost::Deleted
}

/// Returns [`Lost::MaxHold`].
///
/// ```
/// use leasehold::{Lost, testing::lost};
///
/// assert_eq!(lost::max_hold(), Lost::MaxHold);
/// ```
pub const fn max_hold() -> Lost {
    Lost::MaxHold
}

/// Returns [`Lost::ShutDown`].
///
/// ```
/// use leasehold::{Lost, testing::lost};
///
/// assert_eq!(lost::shut_down(), Lost::ShutDown);
/// ```
pub const fn shut_down() -> Lost {
    Lost::ShutDown
}

/// Returns [`Lost::Forked`].
///
/// ```
/// use leasehold::{Lost, testing::lost};
///
/// assert_eq!(lost::forked(), Lost::Forked);
/// ```
pub const fn forked() -> Lost {
    Lost::Forked
}

/// Returns [`Lost::Kept`].
///
/// ```
/// use leasehold::{Lost, testing::lost};
///
/// assert_eq!(lost::kept(), Lost::Kept);
/// ```
pub const fn kept() -> Lost {
    Lost::Kept
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has no wildcard arm, so it does not compile if a variant has no constructor.
    fn constructor(lost: Lost) -> fn() -> Lost {
        match lost {
            Lost::Expired => expired,
            Lost::Taken => taken,
            Lost::Deleted => deleted,
            Lost::MaxHold => max_hold,
            Lost::ShutDown => shut_down,
            Lost::Forked => forked,
            Lost::Kept => kept,
        }
    }

    #[test]
    fn every_variant_has_a_constructor() {
        let all = [
            expired(),
            taken(),
            deleted(),
            max_hold(),
            shut_down(),
            forked(),
            kept(),
        ];
        for lost in all {
            assert_eq!(constructor(lost)(), lost);
        }
    }
}
