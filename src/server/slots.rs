//! The slots of a cluster: which one a key is in, and which node keeps each. No I/O.

use std::ops::RangeInclusive;

use redis::Value;

/// How many there are.
pub(crate) const SLOTS: u16 = 16_384;

/// The address of a node: host and port.
pub(crate) type Place = (String, u16);

/// The slot of a key.
pub(crate) fn slot(key: &[u8]) -> u16 {
    crc16::State::<crc16::XMODEM>::calculate(hashed(key)) % SLOTS
}

/// What stands between a key's first opening brace and the next closing one, if anything does.
pub(crate) fn hash_tag(key: &[u8]) -> Option<&[u8]> {
    let open = key.iter().position(|&b| b == b'{')?;
    let rest = key.get(open + 1..)?;
    let length = rest.iter().position(|&b| b == b'}')?;
    rest.get(..length).filter(|tag| !tag.is_empty())
}

fn hashed(key: &[u8]) -> &[u8] {
    hash_tag(key).unwrap_or(key)
}

/// What a node says of its cluster.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Layout {
    pub(crate) masters: Vec<(RangeInclusive<u16>, Place)>,
    /// They know the slots as well.
    pub(crate) replicas: Vec<Place>,
}

impl Layout {
    /// Reads the answer to CLUSTER SLOTS of the node at `asked`; `None` if it is none, or names no
    /// slot.
    pub(crate) fn read(answer: Value, asked: &Place) -> Option<Self> {
        let Value::Array(ranges) = answer else {
            return None;
        };
        let mut layout = Self::default();
        let mut slots = 0;
        for range in ranges {
            let Value::Array(fields) = range else {
                return None;
            };
            let mut fields = fields.into_iter();
            let first = number(&fields.next()?)?;
            let last = number(&fields.next()?)?;
            slots += u32::from(last.checked_sub(first)?) + 1;
            // Each slot is kept by one master.
            if last >= SLOTS || slots > u32::from(SLOTS) {
                return None;
            }
            let master = place(fields.next()?, asked)?;
            layout.masters.push((first..=last, master));
            layout
                .replicas
                .extend(fields.filter_map(|node| place(node, asked)));
        }
        layout.replicas.sort();
        layout.replicas.dedup();
        Some(layout).filter(|layout| !layout.masters.is_empty())
    }
}

fn number(value: &Value) -> Option<u16> {
    match value {
        Value::Int(n) => u16::try_from(*n).ok(),
        _ => None,
    }
}

/// A node that does not know how it is reached names no host: then it is where it was asked.
fn place(node: Value, asked: &Place) -> Option<Place> {
    let Value::Array(fields) = node else {
        return None;
    };
    let port = number(fields.get(1)?)?;
    let host = match fields.first()? {
        Value::BulkString(host) => String::from_utf8(host.clone()).ok()?,
        Value::SimpleString(host) => host.clone(),
        Value::Nil => String::new(),
        _ => return None,
    };
    if host.is_empty() || host == "?" {
        Some((asked.0.clone(), port))
    } else {
        Some((host, port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smoke() {
        // As `CLUSTER KEYSLOT` says.
        assert_eq!(slot(b"123456789"), 0x31C3);
        assert_eq!(slot(b"lock:x"), 5259);
        assert_eq!(slot(b"lock_release:x"), 15969);
        assert_eq!(slot(b"{x}1"), slot(b"2{x}}"));
        assert_eq!(slot(b"{}x"), slot(b"{}x"));
    }

    #[test]
    fn hash_tags() {
        assert_eq!(hash_tag(b"a{b}c{d}"), Some(&b"b"[..]));
        assert_eq!(hash_tag(b"a{{b}}"), Some(&b"{b"[..]));
        for none in ["", "a", "{", "}", "{}", "a{}{b}", "}a{", "a}b"] {
            assert_eq!(hash_tag(none.as_bytes()), None, "{none}");
        }
    }

    fn asked() -> Place {
        ("asked".into(), 1)
    }

    fn parsed(text: &str) -> Option<Layout> {
        Layout::read(redis::parse_redis_value(text.as_bytes()).unwrap(), &asked())
    }

    #[test]
    fn a_layout() {
        let node = |host: &str, port: u16| format!("*3\r\n{host}:{port}\r\n$1\r\ni\r\n");
        let named = "$1\r\nh\r\n";
        let range = |first: u16, last: u16, nodes: &[String]| {
            let (n, nodes) = (nodes.len() + 2, nodes.concat());
            format!("*{n}\r\n:{first}\r\n:{last}\r\n{nodes}")
        };
        let (one, two) = (node(named, 7), node("$0\r\n\r\n", 8));
        let (nil, unknown) = (node("$-1\r\n", 9), node("$1\r\n?\r\n", 10));
        let text = format!(
            "*2\r\n{}{}",
            range(0, 10, &[one, two]),
            range(12, 16383, &[nil, unknown])
        );
        let layout = parsed(&text).unwrap();
        let at = |host: &str, port| (host.to_owned(), port);
        assert_eq!(
            layout.masters,
            [(0..=10, at("h", 7)), (12..=16383, at("asked", 9))]
        );
        assert_eq!(layout.replicas, [at("asked", 8), at("asked", 10)]);
    }

    #[test]
    fn what_is_no_layout() {
        for text in [
            "*0\r\n",
            ":1\r\n",
            "*1\r\n:1\r\n",
            "*1\r\n*2\r\n:0\r\n:5\r\n",
            "*1\r\n*3\r\n:5\r\n:0\r\n*2\r\n$1\r\nh\r\n:7\r\n",
            "*2\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$1\r\nh\r\n:7\r\n*3\r\n:0\r\n:0\r\n*2\r\n$1\r\ni\r\n:7\r\n",
            "*1\r\n*3\r\n:0\r\n:16384\r\n*2\r\n$1\r\nh\r\n:7\r\n",
            "*1\r\n*3\r\n:0\r\n:5\r\n*2\r\n$1\r\nh\r\n:70000\r\n",
        ] {
            assert_eq!(parsed(text), None, "{text}");
        }
    }
}
