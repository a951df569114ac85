//! The lock of one name, whose calls wait in the queues of their clients.

use std::sync::Arc;
use std::time::Duration;

use crate::holder::HolderId;
use crate::protocol::answer::Wanted;
use crate::protocol::keys::Keys;
use crate::protocol::primitive::{Acquire, Primitive};
use crate::protocol::script::{Arg, Call, Script, script};
use crate::protocol::verb::Verb;

pub(super) static ACQUIRE: Script = script!("acquire", "get time set del pttl", "last_token");
pub(super) static PROPOSE: Script = script!("propose", "get set del pttl", "last_token");
pub(super) static RELEASE: Script = script!("release", "get del pttl pexpire set", "rewrite");
pub(super) static RENEW: Script = script!("renew", "get pttl pexpire set del", "rewrite");
/// It also takes several names.
pub(super) static UNDO: Script = script!("undo", "get del pttl pexpire set", "rewrite");

/// The keys and calls of a [`Mutex`](crate::Mutex).
#[derive(Debug)]
pub(crate) struct MutexKeys(Keys);

impl MutexKeys {
    pub(crate) fn of(keys: Keys) -> Arc<dyn Primitive> {
        Arc::new(Self(keys))
    }
}

impl Primitive for MutexKeys {
    fn keys(&self) -> &Keys {
        &self.0
    }

    fn acquire<'a>(&'a self, request: Acquire<'a>) -> Call<'a> {
        match request.proposed {
            None => acquire(&self.0, &request),
            Some(token) => propose(&self.0, &request, token),
        }
    }

    fn release<'a>(&'a self, value: &'a [u8], counts: bool) -> Call<'a> {
        let counted = match counts {
            true => Arg::Number(1),
            false => Arg::Absent,
        };
        let channel = Arg::Bytes(&self.0.channels[0]);
        let args = [Arg::Bytes(value), channel, counted, Arg::Absent];
        let verb = Verb::Release { counts };
        Call::new(verb, &RELEASE, [&self.0.locks, &[]], args)
    }

    fn undo<'a>(&'a self, arguments: &'a [Vec<u8>]) -> Call<'a> {
        undo(&self.0, arguments)
    }

    fn renew<'a>(&'a self, id: &'a HolderId, ttl: Duration, may_shorten: bool) -> Call<'a> {
        renew(&self.0, id, ttl, may_shorten)
    }
}

/// Acquires the lock and reserves tokens.
pub(super) fn acquire<'a>(keys: &'a Keys, request: &Acquire<'a>) -> Call<'a> {
    let reserved = match request.tokens {
        // One token is the script's default: most acquires need no further argument.
        0 | 1 => Arg::Absent,
        several => Arg::Number(several),
    };
    let wanted = Wanted {
        reserved: request.tokens.saturating_sub(1),
        ..Wanted::ONE
    };
    let args = [
        Arg::id(request.id),
        Arg::millis(request.ttl),
        reserved,
        Arg::Absent,
    ];
    let keys: [&[Vec<u8>]; 2] = [&keys.locks, &keys.fences];
    Call::new(Verb::Acquire(wanted), &ACQUIRE, keys, args)
}

/// Acquires the lock on one server of a quorum, under a token that the client proposes.
pub(super) fn propose<'a>(keys: &'a Keys, request: &Acquire<'a>, token: u64) -> Call<'a> {
    let reserved = request.tokens.saturating_sub(1);
    let last = match reserved {
        0 => Arg::Absent,
        reserved => Arg::Number(token.saturating_add(reserved)),
    };
    let wanted = Wanted {
        names: keys.names.len(),
        reserved,
        proposed: Some(token),
        ..Wanted::ONE
    };
    let args = [
        Arg::id(request.id),
        Arg::millis(request.ttl),
        Arg::Number(token),
        last,
    ];
    let keys: [&[Vec<u8>]; 2] = [&keys.locks, &keys.fences];
    Call::new(Verb::Acquire(wanted), &PROPOSE, keys, args)
}

/// Releases the lock if one of several holder ids holds it.
pub(super) fn undo<'a>(keys: &'a Keys, arguments: &'a [Vec<u8>]) -> Call<'a> {
    let verb = Verb::Undo(keys.undone_ids(arguments));
    Call {
        rest: arguments,
        ..Call::new(verb, &UNDO, [&keys.locks, &[]], Default::default())
    }
}

pub(super) fn renew<'a>(
    keys: &'a Keys,
    id: &'a HolderId,
    ttl: Duration,
    may_shorten: bool,
) -> Call<'a> {
    let shortens = Arg::Number(may_shorten.into());
    let args = [Arg::id(id), Arg::millis(ttl), shortens, Arg::Absent];
    Call::new(Verb::Renew, &RENEW, [&keys.locks, &[]], args)
}
