//! The lock of one name without a queue in Redis: calls wait in the local queue of their client.

use std::sync::Arc;
use std::time::Duration;

use crate::holder_id::HolderId;
use crate::protocol::answer::Wanted;
use crate::protocol::keys::Keys;
use crate::protocol::primitive::{Acquire, AtRelease, Primitive};
use crate::protocol::renew_many::RenewMany;
use crate::protocol::script::{Arg, Call, Script, script};
use crate::protocol::verb::Verb;

pub(super) static ACQUIRE: Script = script!("acquire", "take_free", "draw_free", "end_free");
/// The same, only if the lock before has its holder.
pub(super) static ACQUIRE_AFTER: Script =
    script!("acquire_after" in "acquire", "after", "take_free", "draw_free", "end_free");
pub(super) static PROPOSE: Script = script!("propose", "last_token");
pub(super) static RELEASE: Script = script!("release", "rewrite");
pub(super) static RENEW: Script = script!("renew", "rewrite");
static RENEW_EACH: Script = script!("renew_many", "rewrite");
/// Also serves all other locks of one name that have one holder.
pub(super) static RENEW_MANY: RenewMany = RenewMany {
    script: &RENEW_EACH,
    most: 100,
};
/// Also serves locks of several names.
pub(super) static UNDO: Script = script!("undo", "rewrite");

/// The keys and calls of a [`Mutex`](crate::Mutex) over a quorum. A list of the held locks uses
/// them to inspect any name.
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
        acquire(&self.0, &request, [&ACQUIRE, &PROPOSE])
    }

    fn release<'a>(&'a self, value: &'a [u8], _: AtRelease) -> Call<'a> {
        let args = [Arg::Bytes(value), Arg::Bytes(&self.0.channels[0])];
        Call::new(Verb::Release, &RELEASE, [&self.0.locks, &[]], args)
    }

    fn undo<'a>(&'a self, arguments: &'a [Vec<u8>]) -> Call<'a> {
        let verb = Verb::Undo(self.0.undone_ids(arguments));
        Call::new(verb, &UNDO, [&self.0.locks, &[]], []).followed_by(arguments)
    }

    fn renew<'a>(&'a self, id: &'a HolderId, ttl: Duration, may_shorten: bool) -> Call<'a> {
        renew(&self.0, &RENEW, id, ttl, may_shorten)
    }

    fn renew_many(&self) -> Option<&'static RenewMany> {
        Some(&RENEW_MANY)
    }
}

/// Acquires by the first script, or by the second if the client proposes the token.
pub(super) fn acquire<'a>(
    keys: &'a Keys,
    request: &Acquire<'a>,
    [acquire, propose]: [&'static Script; 2],
) -> Call<'a> {
    let wanted = Wanted {
        after: request.after.is_some(),
        reserved: request.tokens.saturating_sub(1),
        proposed: request.proposed,
    };
    // One token is the default of the scripts: most acquires need no further argument.
    let unless_one = |number| match wanted.reserved {
        0 => Arg::Absent,
        _ => Arg::Number(number),
    };
    let (script, [first, second]) = match request.proposed {
        None if request.after.is_some() => (&ACQUIRE_AFTER, [Arg::Absent; 2]),
        None => (acquire, [unless_one(request.tokens), Arg::Absent]),
        Some(token) => {
            let last = token.saturating_add(wanted.reserved);
            let last = if request.joins {
                Arg::Number(0)
            } else {
                unless_one(last)
            };
            (propose, [Arg::Number(token), last])
        }
    };
    let args = [Arg::id(request.id), Arg::millis(request.ttl), first, second];
    let keys: [&[Vec<u8>]; 2] = [&keys.locks, &keys.fences];
    Call {
        after: request.after,
        ..Call::new(Verb::Acquire(wanted), script, keys, args)
    }
}

pub(super) fn renew<'a>(
    keys: &'a Keys,
    script: &'static Script,
    id: &'a HolderId,
    ttl: Duration,
    may_shorten: bool,
) -> Call<'a> {
    let shortens = Arg::Number(may_shorten.into());
    let args = [Arg::id(id), Arg::millis(ttl), shortens];
    Call::new(Verb::Renew, script, [&keys.locks, &[]], args)
}
