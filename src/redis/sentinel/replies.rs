//! Reads what sentinels reply and announce.

use crate::protocol::redirect::is_host;
use crate::protocol::reply::{Reply, read_digits};
use crate::url::HostPort;

/// The channel on which sentinels announce a new master.
pub(crate) const MOVES: &[u8] = b"+switch-master";

/// Reads the reply to GET-MASTER-ADDR-BY-NAME: `Some(None)` if the name is unknown, `None` if the
/// reply is malformed.
pub(crate) fn read_address(answer: Reply) -> Option<Option<HostPort>> {
    if answer == Reply::Nil {
        return Some(None);
    }
    let [host, port] = <[Reply; 2]>::try_from(answer.into_list()?).ok()?;
    let host = String::from_utf8(host.into_text()?).ok()?;
    let port = read_digits(&port.into_text()?)?;
    (port > 0 && !host.is_empty() && is_host(&host)).then_some(Some((host, port)))
}

/// Reads the epoch of the configuration in the reply to SENTINEL MASTER; `None` if it has none, as
/// if the user may not ask.
pub(crate) fn read_epoch(answer: Reply) -> Option<u64> {
    let mut items = answer.into_list()?.into_iter();
    let mut fields = std::iter::from_fn(|| items.next().zip(items.next()));
    let is_epoch = |name: &Reply| matches!(name, Reply::Text(name) if name == b"config-epoch");
    let (_, epoch) = fields.find(|(name, _)| is_epoch(name))?;
    read_digits(&epoch.into_text()?)
}

/// Reads the reply to SENTINEL MYID; `None` if it is no id, as if the user may not ask.
pub(crate) fn read_id(answer: Reply) -> Option<Vec<u8>> {
    answer.into_text().filter(|id| !id.is_empty())
}

/// Returns whether an announcement on [`MOVES`] is about this master. The name is followed by the
/// old address and the new one, but not by an epoch.
pub(super) fn is_about(announcement: &[u8], master: &str) -> bool {
    let mut words = announcement.split(|byte| *byte == b' ');
    words.next() == Some(master.as_bytes())
}

#[cfg(test)]
mod tests;
