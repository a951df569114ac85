//! Calls for a plain lock of a name that a set of the same client has.

use std::sync::Arc;

use super::bed::{Bed, TTL, is_needed};
use crate::kernel::call::{Call, Step};
use crate::kernel::effects::Effects;
use crate::kernel::unlock::Unlocked;
use crate::kernel::waiter::CallTerms;
use crate::kernel::waiter::Outcome;
use crate::mutant::Mutant;

/// The next sets of the client would otherwise get the name first each time.
#[test]
fn the_line_has_a_place_in_redis_beside_a_part() {
    is_needed(Mutant::LineWaitsForParts, || {
        let mut bed = Bed::new();
        let lease = bed.held();
        let wants = CallTerms::endless(&Arc::clone(&bed.names.at_once()[0]), TTL);
        let (mut call, mut fx) = (Call::new(&bed.kernel, wants, bed.at()), Effects::default());
        let now = bed.at();
        let mut step = call.begin(&bed.kernel, now, &mut fx);
        while let Step::Send(command, _) = &step {
            let end = bed.run(command);
            step = call.replied(&bed.kernel, end, now, now, &mut fx);
        }
        assert!(matches!(step, Step::Park(_)), "{step:?}");
        bed.turn(1);
        let has_place = bed.queue("a") == 1;
        assert_eq!(bed.unlock(&lease), Unlocked::Released);
        bed.turn(2_000);
        let step = call.woken(&bed.kernel, bed.at(), &mut fx);
        assert!(matches!(step, Step::Done(Outcome::Lease(..))), "{step:?}");
        has_place
    });
}
