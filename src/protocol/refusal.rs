//! A refused name in a reply, and its holder.

use std::time::Duration;

use crate::holder::READERS;
use crate::protocol::reply::Reply;

/// The name that was refused: another call holds it, or other waiters are ahead in its queue.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RefusedName {
    /// The index of the name, from 0.
    pub(crate) name: usize,
    /// The value of its key; empty if the reply contains none.
    pub(crate) holder: Vec<u8>,
    /// The remaining ttl; `None` if the key does not expire.
    pub(crate) remaining: Option<Duration>,
    /// For how many ms the holder has held it; for a semaphore, how many permits are out. `None` if
    /// the reply does not say.
    pub(crate) detail: Option<u64>,
}

impl RefusedName {
    /// Returns whether it names the holder. A refusal because of permits or readers does not.
    pub(crate) fn names_holder(&self) -> bool {
        !self.holder.is_empty() && self.holder != READERS
    }
}

/// Reads the last number of a refusal: negative if it is not known.
#[expect(
    clippy::option_option,
    reason = "the number may be unknown, and the reply malformed"
)]
pub(super) fn read_detail(number: &Reply) -> Option<Option<u64>> {
    Some(u64::try_from(number.int()?).ok())
}
