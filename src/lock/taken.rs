//! A refused call's knowledge about the holder of the lock.

use std::time::Duration;

use crate::clock::Instant;
use crate::holder::READERS;
use crate::holder_id::HolderId;
use crate::lease::held::HeldLease;
use crate::lease::status::LeaseStatus;
use crate::lock::attempt::Attempt;
use crate::lock::waiting_call::WaitingCall;
use crate::protocol::refusal::RefusedName;
use crate::queue::answers::LastRefusal;
use crate::taken::{HoldEnd, Refusal, Taken, TakenBy};

/// A fence lasts for a day after the grant that wrote it, so an older token is not the holder's.
const LONGEST_AGE: Duration = Duration::from_secs(86_400);

/// How much of a foreign value is shown, in bytes, unless that is more than a third of it: anyone
/// who knows the value can release the lock.
const SHOWN: usize = 8;

impl Attempt<'_> {
    /// Returns the known facts about the holder, after the `last` refusal of the name with this
    /// index.
    pub(crate) fn taken(&self, name: usize, last: Option<&LastRefusal>) -> Taken {
        let now = Instant::now();
        let (name, (by, held_for, end), is_this_client) = match self.held_by_this_client() {
            Some((held, lease)) => (held, of_this_client(&lease, now), true),
            None => (name, self.of_refusal(last, now), false),
        };
        Taken::new(Refusal {
            name: self.keys.key(name).name.as_given(),
            by,
            is_this_client,
            held_for,
            end,
        })
    }

    fn of_refusal(
        &self,
        last: Option<&LastRefusal>,
        now: Instant,
    ) -> (TakenBy, Option<Duration>, HoldEnd) {
        let Some((last, (said, arrived))) = last.and_then(|last| Some((last, last.said.as_ref()?)))
        else {
            return (TakenBy::Unknown, None, HoldEnd::Unknown);
        };
        let end = match last.until {
            Instant::NEVER => HoldEnd::Never,
            until => HoldEnd::In(now.until(until)),
        };
        if let Some((wanted, all)) = self.keys.permits() {
            let out = said.detail;
            return (TakenBy::Permits { out, all, wanted }, None, end);
        }
        let by = holder_of(said);
        let age = (said.detail.map(Duration::from_millis)).filter(|_| is_owner(&by));
        let held_for = age.map(|age| age.saturating_add(arrived.until(now)));
        let end = match by {
            TakenBy::Queue => HoldEnd::Unknown,
            _ => end,
        };
        (by, held_for.filter(|age| *age < LONGEST_AGE), end)
    }
}

impl WaitingCall<'_> {
    /// Returns the known facts about the holder of the lock that the call waited for.
    pub(crate) fn taken(&self) -> Taken {
        let answers = self.queue().answers();
        self.attempt.taken(self.name_index, answers.last_refusal())
    }
}

fn is_owner(by: &TakenBy) -> bool {
    matches!(by, TakenBy::Owner(_))
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
fn of_this_client(lease: &HeldLease, now: Instant) -> (TakenBy, Option<Duration>, HoldEnd) {
    let held_for = lease.since().map(|since| since.until(now));
    if lease.is_shared() {
        // Readers of other clients may hold it for longer.
        return (TakenBy::Readers, held_for, HoldEnd::Unknown);
    }
    let end = match lease.status(now) {
        LeaseStatus::Held(left) => HoldEnd::In(left),
        LeaseStatus::Lost(_) | LeaseStatus::Released => HoldEnd::Unknown,
    };
    (TakenBy::Owner(lease.id.owner().into()), held_for, end)
}
