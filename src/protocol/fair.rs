//! The fair lock: the calls of its scripts, and how long its grants and places last.

use std::slice;
use std::time::Duration;

use crate::holder::HolderId;
use crate::protocol::answer::Wanted;
use crate::protocol::keys::{Keys, QueueKeys};
use crate::protocol::script::{
    Arg, Call, FAIR_ENTER, FAIR_REFRESH, FAIR_RELEASE, FAIR_UNDO, Script,
};
use crate::protocol::verb::Verb;

/// The longest provisional time. A waiter that died delays the others for at most this long.
const PROVISIONAL: Duration = Duration::from_secs(3);

/// The longest time between two refreshes of a place.
const REFRESH: Duration = Duration::from_secs(1);

/// How long a grant lasts until its first renewal, and a place in the queue without a refresh.
pub(crate) fn provisional(ttl: Duration) -> Duration {
    ttl.min(PROVISIONAL)
}

/// How long after one refresh the next is sent: a tenth early, for threads that wake late.
pub(crate) fn refresh_every(ttl: Duration) -> Duration {
    (ttl / 4).min(REFRESH) / 10 * 9
}

impl QueueKeys {
    /// Acquires the lock, or joins the end of the queue; grants are published to `inbox`.
    /// Without an inbox, the call does not join the queue.
    pub(crate) fn enter<'a>(
        &'a self,
        keys: &'a Keys,
        id: &'a HolderId,
        ttl: Duration,
        inbox: Option<&'a Vec<u8>>,
    ) -> Call<'a> {
        let args = [
            Arg::id(id),
            Arg::millis(ttl),
            Arg::Number(inbox.is_some().into()),
            Arg::Absent,
        ];
        let wanted = Wanted {
            names: 1,
            tokens: 1,
            reserved: 0,
            proposed: None,
        };
        Call {
            rest: inbox.map_or(&[], slice::from_ref),
            ..call(keys, self, Verb::Acquire(wanted), &FAIR_ENTER, args)
        }
    }

    /// Refreshes the places of `ids`; later grants to them are published to `inbox`.
    pub(crate) fn refresh<'a>(
        &'a self,
        keys: &'a Keys,
        inbox: &'a [u8],
        ids: &'a [Vec<u8>],
    ) -> Call<'a> {
        let args = [Arg::Bytes(inbox), Arg::Absent, Arg::Absent, Arg::Absent];
        Call {
            rest: ids,
            ..call(keys, self, Verb::Refresh(ids.len()), &FAIR_REFRESH, args)
        }
    }
}

/// Releases the lock and passes it to the next waiter, or removes a place from the queue.
pub(super) fn release<'a>(keys: &'a Keys, queue: &'a QueueKeys, value: &'a [u8]) -> Call<'a> {
    let args = [Arg::Bytes(value), Arg::Absent, Arg::Absent, Arg::Absent];
    let verb = Verb::Release { counts: false };
    Call {
        rest: &keys.channels,
        ..call(keys, queue, verb, &FAIR_RELEASE, args)
    }
}

/// Releases the lock or removes the place of each of several holder ids.
pub(super) fn undo<'a>(keys: &'a Keys, queue: &'a QueueKeys, arguments: &'a [Vec<u8>]) -> Call<'a> {
    let ids = arguments.len().saturating_sub(keys.locks.len());
    Call {
        rest: arguments,
        ..call(keys, queue, Verb::Undo(ids), &FAIR_UNDO, Default::default())
    }
}

fn call<'a>(
    keys: &'a Keys,
    queue: &'a QueueKeys,
    verb: Verb,
    script: &'static Script,
    args: [Arg<'a>; 4],
) -> Call<'a> {
    Call::new(verb, script, [&keys.locks, queue.keys()], args)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn a_place_is_refreshed_three_times_within_its_provisional_time() {
        assert_eq!(provisional(ms(10_000)), ms(3_000));
        assert_eq!(provisional(ms(500)), ms(500));
        assert_eq!(refresh_every(ms(10_000)), ms(900));
        assert_eq!(refresh_every(ms(400)), ms(90));
    }
}
