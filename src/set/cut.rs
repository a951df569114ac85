//! The cut of a waiting set: it keeps the names below the one that it waits for, and no others.
//!
//! ```text
//! waits for n, has 0 to n − 1 ──j of them is lost──▶ leaves n, gives up all above j, waits for j
//! ```
//!
//! All sets wait in one order, so none of them waits for another that waits for it.

use crate::clock::Instant;
use crate::kernel::Kernel;
use crate::kernel::effects::Effects;
use crate::mutant::{Mutant, is_on};
use crate::set::lease::SetLease;

/// Gives up the parts from the name `j` on, which is lost.
pub(super) fn cut(lease: &SetLease, j: usize, kernel: &Kernel, now: Instant, fx: &mut Effects) {
    let mut above = lease.take(j..);
    if is_on(Mutant::CutKeepsTheUpper) {
        above.truncate(1);
    }
    for (part, _) in above {
        kernel.give_up_part(&part, now, fx);
    }
}

/// Gives up all parts of a set that is not held.
pub(super) fn give_up(lease: &SetLease, kernel: &Kernel, now: Instant, fx: &mut Effects) {
    lease.end();
    cut(lease, 0, kernel, now, fx);
}
