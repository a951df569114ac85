//! The calls of a lock of one name that is not fair.

use std::time::Duration;

use crate::holder::HolderId;
use crate::protocol::answer::Wanted;
use crate::protocol::keys::Keys;
use crate::protocol::script::{ACQUIRE, Arg, Call, FENCE, INSPECT, PROPOSE, RELEASE, RENEW, UNDO};
use crate::protocol::verb::Verb;

/// A release that does not count the subscribers.
const RELEASES: Verb = Verb::Release { counts: false };

/// Acquires the lock and reserves `block` fencing tokens.
pub(super) fn acquire<'a>(keys: &'a Keys, id: &'a HolderId, ttl: Duration, block: u64) -> Call<'a> {
    let reserved = match block {
        // One token is the script's default: most acquires need no further argument.
        0 | 1 => Arg::Absent,
        several => Arg::Number(several),
    };
    let args = [Arg::id(id), Arg::millis(ttl), reserved, Arg::Absent];
    let wanted = Wanted {
        names: 1,
        tokens: 1,
        reserved: block.saturating_sub(1),
        proposed: None,
    };
    Call::new(
        Verb::Acquire(wanted),
        &ACQUIRE,
        [&keys.locks, &keys.fences],
        args,
    )
}

/// Acquires the lock on one server of a quorum, under a token that the client proposes.
/// Reserves `block` tokens.
pub(super) fn propose<'a>(
    keys: &'a Keys,
    id: &'a HolderId,
    ttl: Duration,
    token: u64,
    block: u64,
) -> Call<'a> {
    let last = match block {
        0 | 1 => Arg::Absent,
        several => Arg::Number(token.saturating_add(several - 1)),
    };
    let args = [Arg::id(id), Arg::millis(ttl), Arg::Number(token), last];
    let wanted = Wanted {
        names: keys.names.len(),
        tokens: 1,
        reserved: block.saturating_sub(1),
        proposed: Some(token),
    };
    Call::new(
        Verb::Acquire(wanted),
        &PROPOSE,
        [&keys.locks, &keys.fences],
        args,
    )
}

pub(super) fn release<'a>(keys: &'a Keys, value: &'a [u8]) -> Call<'a> {
    let args = [Arg::Bytes(value), Arg::Absent, Arg::Absent, Arg::Absent];
    Call {
        rest: &keys.channels,
        ..Call::new(RELEASES, &RELEASE, [&keys.locks, &[]], args)
    }
}

/// Releases the lock; the reply includes the number of subscribers that received the wake-up.
pub(super) fn release_and_count<'a>(keys: &'a Keys, id: &'a HolderId) -> Call<'a> {
    let channel = Arg::Bytes(&keys.channels[0]);
    let args = [Arg::id(id), channel, Arg::Number(1), Arg::Absent];
    let verb = Verb::Release { counts: true };
    Call::new(verb, &RELEASE, [&keys.locks, &[]], args)
}

/// Releases the lock if one of several holder ids holds it; its script also takes several names.
pub(super) fn undo<'a>(keys: &'a Keys, arguments: &'a [Vec<u8>]) -> Call<'a> {
    // The other arguments are a wake channel for each lock.
    let ids = arguments.len().saturating_sub(keys.locks.len());
    Call {
        rest: arguments,
        ..Call::new(
            Verb::Undo(ids),
            &UNDO,
            [&keys.locks, &[]],
            Default::default(),
        )
    }
}

pub(super) fn renew<'a>(
    keys: &'a Keys,
    id: &'a HolderId,
    ttl: Duration,
    may_shorten: bool,
) -> Call<'a> {
    let args = [
        Arg::id(id),
        Arg::millis(ttl),
        Arg::Number(may_shorten.into()),
        Arg::Absent,
    ];
    Call::new(Verb::Renew, &RENEW, [&keys.locks, &[]], args)
}

pub(super) fn inspect(keys: &Keys) -> Call<'_> {
    Call::new(
        Verb::Inspect,
        &INSPECT,
        [&keys.locks, &keys.fences],
        Default::default(),
    )
}

pub(super) fn last_token(keys: &Keys) -> Call<'_> {
    Call::new(
        Verb::ReadFence,
        &FENCE,
        [&keys.fences, &[]],
        Default::default(),
    )
}
