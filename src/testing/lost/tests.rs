//! Tests of the functions that make a `Lost`.

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
