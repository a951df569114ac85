//! Tests of the values for tests.

use super::*;

/// Has no arm for "others", so that it does not compile for a variant without a constructor.
fn constructor(lost: Lost) -> fn() -> Lost {
    match lost {
        Lost::Expired => expired,
        Lost::Taken => taken,
        Lost::Deleted => deleted,
        Lost::MaxHold => max_hold,
        Lost::ShutDown => shut_down,
    }
}

#[test]
fn every_variant_has_a_constructor() {
    for lost in [expired(), taken(), deleted(), max_hold(), shut_down()] {
        assert_eq!(constructor(lost)(), lost);
    }
}
