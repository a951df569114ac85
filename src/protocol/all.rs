//! The calls of a lock of several names: the arguments of the plain lock, for scripts that take all
//! names or none.

use std::time::Duration;

use crate::holder::HolderId;
use crate::protocol::answer::Wanted;
use crate::protocol::keys::Keys;
use crate::protocol::mutex;
use crate::protocol::script::{ACQUIRE_ALL, Call, PROPOSE_ALL, RELEASE_ALL, RENEW_ALL};
use crate::protocol::verb::Verb;

/// Acquires all names and draws one fencing token for each.
pub(super) fn acquire<'a>(keys: &'a Keys, id: &'a HolderId, ttl: Duration) -> Call<'a> {
    let wanted = Wanted {
        names: keys.names.len(),
        tokens: keys.names.len(),
        reserved: 0,
        proposed: None,
    };
    Call {
        verb: Verb::Acquire(wanted),
        script: &ACQUIRE_ALL,
        ..mutex::acquire(keys, id, ttl, 1)
    }
}

/// Acquires all names on one server of a quorum, under a token that the client proposes.
pub(super) fn propose<'a>(keys: &'a Keys, id: &'a HolderId, ttl: Duration, token: u64) -> Call<'a> {
    Call {
        script: &PROPOSE_ALL,
        ..mutex::propose(keys, id, ttl, token, 1)
    }
}

pub(super) fn release<'a>(keys: &'a Keys, value: &'a [u8]) -> Call<'a> {
    Call {
        script: &RELEASE_ALL,
        ..mutex::release(keys, value)
    }
}

pub(super) fn renew<'a>(
    keys: &'a Keys,
    id: &'a HolderId,
    ttl: Duration,
    may_shorten: bool,
) -> Call<'a> {
    Call {
        script: &RENEW_ALL,
        ..mutex::renew(keys, id, ttl, may_shorten)
    }
}
