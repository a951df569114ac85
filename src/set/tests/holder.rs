//! The calls of the holder of a set.

use std::sync::Arc;
use std::time::Duration;

use super::bed::{Bed, NAMES, is_needed};
use crate::kernel::effects::Effects;
use crate::kernel::holder::{Holder, Reports};
use crate::kernel::operation::Wanted;
use crate::lease::status::LeaseStatus;
use crate::lost::Lost;
use crate::mutant::Mutant;
use crate::set::lease::SetLease;
use crate::set::operation::SetOperation;

impl Bed {
    fn operate(&mut self, lease: &SetLease, what: &Wanted) -> Option<SetOperation> {
        let mut fx = Effects::default();
        let operation = lease.operate(what, &self.kernel, self.at(), &mut fx);
        self.carry_out(fx);
        operation
    }
}

#[test]
fn an_operation_ends_with_its_last_part() {
    is_needed(Mutant::OperationEndsWithTheFirst, || {
        let mut bed = Bed::new();
        let lease = bed.held();
        let longer = Wanted::SetTtl(Duration::from_secs(60));
        let operation = bed.operate(&lease, &longer).expect("it is held");
        assert!(operation.result().is_none());
        bed.turn_but(1, &|name| name == "b");
        if operation.result().is_some() {
            return false;
        }
        bed.turn(2_000);
        true
    });
}

#[test]
fn a_set_is_renewed_for_its_holder() {
    let mut bed = Bed::new();
    let lease = bed.held();
    bed.turn(3_000);
    let before = lease.remaining(bed.at()).expect("it is held");
    let operation = bed.operate(&lease, &Wanted::Renew).expect("it is held");
    bed.turn(1);
    assert!(matches!(operation.result(), Some(Ok(()))));
    let after = lease.remaining(bed.at()).expect("it is held");
    assert!(after > before + Duration::from_secs(2));
}

/// A part is lost: what was not sent for the others is never sent, and nobody waits for that.
#[test]
fn an_operation_ends_with_its_set() {
    let mut bed = Bed::new();
    let lease = bed.held();
    bed.server(&["DEL", "lock:a"]);
    let operation = bed.operate(&lease, &Wanted::Renew).expect("it is held");
    bed.turn_but(1, &|name| name != "a");
    assert_eq!(bed.status(&lease), LeaseStatus::Lost(Lost::Deleted));
    assert!(bed.operate(&lease, &Wanted::Renew).is_none());
    operation.cancel();
}

#[test]
fn a_set_that_is_kept_expires() {
    let mut bed = Bed::new();
    let lease = bed.held();
    let told = lease.listen(bed.at(), &mut Effects::default());
    let mut fx = Effects::default();
    let status = lease.keep(&bed.kernel, bed.at(), &mut fx);
    bed.carry_out(fx);
    assert!(matches!(status, Some(LeaseStatus::Held(_))), "{status:?}");
    assert_eq!(bed.status(&lease), LeaseStatus::Released);
    bed.turn(11_000);
    assert_eq!(bed.taken(), NAMES);
    bed.turn(1_001);
    assert!(bed.taken().is_empty());
    assert!(bed.told.is_empty() && told.try_recv().is_err());
    assert_eq!(bed.kernel.counts(), [0; 3]);
}

#[test]
fn a_renewal_is_told_once_all_parts_have_it() {
    is_needed(Mutant::EachPartIsRenewed, || {
        let mut bed = Bed::new();
        bed.holder = Holder {
            reports: Some(Box::new(Reports {
                on_renew: Some(Arc::new(|_| ())),
                ..Reports::default()
            })),
            ..Holder::default()
        };
        let lease = bed.held();
        let first = lease.holder_ids().remove(0);
        assert!(bed.renewed.is_empty());
        for cycle in 1..=3 {
            bed.turn(4_000);
            if bed.renewed.len() != cycle {
                return false;
            }
        }
        let last = bed.renewed.last().expect("there were three");
        assert_eq!(last.id, first);
        assert_eq!(*last.names, NAMES.map(crate::name::Name::from));
        assert_eq!(
            Some(last.until),
            lease.remaining(bed.at()).map(|it| bed.at().after(it))
        );
        true
    });
}
