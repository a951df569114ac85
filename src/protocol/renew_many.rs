//! The renewal of many leases of one kind by one script.

use std::time::Duration;

use crate::protocol::answer::KeyState;
use crate::protocol::reply::Reply;
use crate::protocol::script::{Arg, Call, Script};
use crate::protocol::verb::Verb;

/// A script that renews many leases of a kind, which may be of the same lock.
#[derive(Debug)]
pub(crate) struct RenewMany {
    pub(crate) script: &'static Script,
    /// The most leases of one call, so that it takes less than 1 ms of Redis's time.
    pub(crate) most: usize,
}

impl RenewMany {
    /// Returns the call that renews each of the leases `ids`. `keys` are those of each lease, in
    /// the same order, as the call that renews it alone has them.
    pub(crate) fn call<'a>(
        &'static self,
        keys: &'a [Vec<u8>],
        ids: &'a [Vec<u8>],
        ttl: Duration,
    ) -> Call<'a> {
        let verb = Verb::RenewMany(ids.len());
        Call::new(verb, self.script, [keys, &[]], [Arg::millis(ttl)]).followed_by(ids)
    }
}

/// Reads the reply about this number of `leases`; `None` if no such script can give it.
pub(super) fn read(reply: Reply, leases: usize) -> Option<Vec<KeyState>> {
    let items = reply.into_list()?;
    if items.len() != leases {
        return None;
    }
    let state = |item: &Reply| match item {
        Reply::Int(1) => Some(KeyState::Ours),
        Reply::Int(0) => Some(KeyState::Gone),
        Reply::Int(2) => Some(KeyState::Foreign),
        _ => None,
    };
    items.iter().map(state).collect()
}
