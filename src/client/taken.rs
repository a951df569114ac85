//! A refused call's knowledge about the holder of the lock.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::holder::READERS;
use crate::holder_id::HolderId;
use crate::kernel::failure::Refused;
use crate::kernel::held::HeldLease;
use crate::protocol::primitive::Primitive;
use crate::protocol::refusal::RefusedName;
use crate::taken::{HoldEnd, Refusal, Taken, TakenBy};

/// A fence lasts for a day after the grant that wrote it, so an older token is not the holder's.
const LONGEST_AGE: Duration = Duration::from_secs(86_400);

/// How much of a foreign value is shown, in bytes, unless that is more than a third of it: anyone
/// who knows the value can release the lock.
const SHOWN: usize = 8;

/// Returns what is known about the holder of one of `locks`, which `last` refused to a call: its
/// own lease `held` of the lock with this index, if this client has it.
pub(super) fn taken(
    locks: &[Arc<dyn Primitive>],
    held: Option<(usize, Arc<HeldLease>)>,
    last: Option<&Refused>,
    now: Instant,
) -> Taken {
    let is_this_client = held.is_some();
    let (name, (by, held_for, end)) = match held {
        Some((held, lease)) => (held, of_this_client(&lease, now)),
        None => {
            let name = last.map_or(0, |last| last.by.name);
            (name, of_refusal(&*locks[name], last, now))
        }
    };
    Taken::new(Refusal {
        name: locks[name].keys().key(0).name.as_given(),
        by,
        is_this_client,
        held_for,
        end,
    })
}

fn of_refusal(
    lock: &dyn Primitive,
    last: Option<&Refused>,
    now: Instant,
) -> (TakenBy, Option<Duration>, HoldEnd) {
    let Some(last) = last.filter(|last| last.is_said) else {
        return (TakenBy::Unknown, None, HoldEnd::Unknown);
    };
    let said = &last.by;
    let end = match last.until {
        Instant::NEVER => HoldEnd::Never,
        until => HoldEnd::In(now.until(until)),
    };
    if let Some((wanted, all)) = lock.permits() {
        let out = said.detail;
        return (TakenBy::Permits { out, all, wanted }, None, end);
    }
    let by = holder_of(said);
    let age = (said.detail.map(Duration::from_millis)).filter(|_| matches!(by, TakenBy::Owner(_)));
    let held_for = age.map(|age| age.saturating_add(last.arrived.until(now)));
    let end = match by {
        TakenBy::Queue => HoldEnd::Unknown,
        _ => end,
    };
    (by, held_for.filter(|age| *age < LONGEST_AGE), end)
}

fn holder_of(said: &RefusedName) -> TakenBy {
    match &*said.holder {
        [] => TakenBy::Queue,
        READERS => TakenBy::Readers,
        value => match HolderId::parse(value) {
            Some(id) => TakenBy::Owner(id.owner().into()),
            None if value.len() < 3 * SHOWN => TakenBy::Foreign([].into()),
            None => TakenBy::Foreign(value.get(..SHOWN).unwrap_or_default().into()),
        },
    }
}

/// Returns what this client knows about a lease of its own.
fn of_this_client(lease: &Arc<HeldLease>, now: Instant) -> (TakenBy, Option<Duration>, HoldEnd) {
    let held_for = lease.since().map(|since| since.until(now));
    if lease.renewed_as().is_shared() {
        // Readers of other clients may hold it for longer.
        return (TakenBy::Readers, held_for, HoldEnd::Unknown);
    }
    let end = match lease.remaining(now) {
        Some(left) => HoldEnd::In(left),
        None => HoldEnd::Unknown,
    };
    (TakenBy::Owner(lease.id.owner().into()), held_for, end)
}
