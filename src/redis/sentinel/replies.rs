//! Reads what sentinels reply and announce.

use redis::Value;

use crate::url::HostPort;

/// The channel on which sentinels announce a new master.
pub(crate) const MOVES: &[u8] = b"+switch-master";

/// Reads the reply to GET-MASTER-ADDR-BY-NAME: `Some(None)` if the name is unknown, `None` if the
/// reply is malformed.
pub(crate) fn read_address(answer: Value) -> Option<Option<HostPort>> {
    let items = match answer {
        Value::Nil => return Some(None),
        Value::Array(items) => items,
        _ => return None,
    };
    let [Value::BulkString(host), Value::BulkString(port)] = <[Value; 2]>::try_from(items).ok()?
    else {
        return None;
    };
    let host = String::from_utf8(host).ok()?;
    let port = std::str::from_utf8(&port).ok()?.parse().ok()?;
    (port > 0 && !host.is_empty()).then_some(Some((host, port)))
}

/// Reads the epoch of the configuration in the reply to SENTINEL MASTER; `None` if it has none, as
/// if the user may not ask.
pub(crate) fn read_epoch(answer: Value) -> Option<u64> {
    let fields: Vec<(Value, Value)> = match answer {
        Value::Map(fields) => fields,
        Value::Array(items) => {
            let mut items = items.into_iter();
            std::iter::from_fn(|| items.next().zip(items.next())).collect()
        }
        _ => return None,
    };
    let is_epoch =
        |name: &Value| matches!(name, Value::BulkString(name) if name == b"config-epoch");
    match fields.into_iter().find(|(name, _)| is_epoch(name))?.1 {
        Value::BulkString(epoch) => std::str::from_utf8(&epoch).ok()?.parse().ok(),
        _ => None,
    }
}

/// Reads the reply to SENTINEL MYID; `None` if it is no id, as if the user may not ask.
pub(crate) fn read_id(answer: Value) -> Option<Vec<u8>> {
    match answer {
        Value::BulkString(id) if !id.is_empty() => Some(id),
        _ => None,
    }
}

/// Returns whether an announcement on [`MOVES`] is about this master. The name is followed by the
/// old address and the new one, but not by an epoch.
pub(super) fn is_about(announcement: &[u8], master: &str) -> bool {
    let mut words = announcement.split(|byte| *byte == b' ');
    words.next() == Some(master.as_bytes())
}

#[cfg(test)]
mod tests;
