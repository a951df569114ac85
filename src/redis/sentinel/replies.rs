//! Reads what sentinels reply and announce.

use redis::{PushKind, Value};

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

/// Returns true if `answer` confirms the subscription to [`MOVES`].
pub(crate) fn is_subscribed(answer: &Value) -> bool {
    let items = match answer {
        Value::Array(items) => match items.as_slice() {
            [Value::BulkString(kind), rest @ ..] if kind == b"subscribe" => rest,
            _ => return false,
        },
        Value::Push {
            kind: PushKind::Subscribe,
            data,
        } => data,
        _ => return false,
    };
    matches!(items, [Value::BulkString(channel), Value::Int(1)] if channel == MOVES)
}

/// Returns whether an announcement on [`MOVES`] is about this master. The name is followed by the
/// old address and the new one, but not by an epoch.
pub(super) fn is_about(announcement: &[u8], master: &str) -> bool {
    let mut words = announcement.split(|byte| *byte == b' ');
    words.next() == Some(master.as_bytes())
}

/// Returns whether `answer` is a reply to PING on a subscription. A refusal counts, too: it proves
/// that the sentinel lives.
pub(crate) fn is_pong(answer: &Value) -> bool {
    match answer {
        Value::SimpleString(_) | Value::ServerError(_) => true,
        Value::Array(items) => {
            matches!(items.first(), Some(Value::BulkString(kind)) if kind == b"pong")
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Value {
        redis::parse_redis_value(text.as_bytes()).unwrap()
    }

    #[test]
    fn malformed_replies_give_no_address() {
        let read = |text: &str| read_address(parsed(text));
        let known = read("*2\r\n$2\r\nh1\r\n$4\r\n6379\r\n");
        assert_eq!(known, Some(Some(("h1".into(), 6379))));
        assert_eq!(read("*-1\r\n"), Some(None));
        for text in [
            ":1\r\n",
            "+OK\r\n",
            "*0\r\n",
            "*2\r\n$0\r\n\r\n$4\r\n6379\r\n",
            "*2\r\n$2\r\nh1\r\n$1\r\n0\r\n",
            "*2\r\n$2\r\nh1\r\n$5\r\n70000\r\n",
            "*2\r\n$2\r\nh1\r\n:6379\r\n",
            "*3\r\n$2\r\nh1\r\n$4\r\n6379\r\n$4\r\n6379\r\n",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn the_epoch_is_read_from_either_protocol() {
        let pairs = "$4\r\nname\r\n$1\r\nm\r\n$12\r\nconfig-epoch\r\n$2\r\n17\r\n";
        assert_eq!(read_epoch(parsed(&format!("*4\r\n{pairs}"))), Some(17));
        assert_eq!(read_epoch(parsed(&format!("%2\r\n{pairs}"))), Some(17));
        for text in [
            "-NOPERM no\r\n",
            "*1\r\n$12\r\nconfig-epoch\r\n",
            "*2\r\n$12\r\nconfig-epoch\r\n$2\r\n-1\r\n",
            "*2\r\n$1\r\nh\r\n$4\r\n6379\r\n",
        ] {
            assert_eq!(read_epoch(parsed(text)), None, "{text}");
        }
    }

    #[test]
    fn an_announcement_is_about_the_master_that_it_names_first() {
        assert!(is_about(b"m h 1 h 2", "m"));
        assert!(!is_about(b"another m 1 h 2", "m"));
        assert!(!is_about(b"", "m"));
    }
}
