//! The error replies with which a node of a cluster names another node.

use redis::ServerError;

use crate::protocol::slot::SLOTS;

/// The longest name of a host, in bytes: DNS has none that is longer.
const LONGEST_HOST: usize = 253;

/// Returns whether a server may announce this host. To look up and log a name of 100 kB takes a
/// tenth of a second, by which a call would miss its deadline.
pub(crate) const fn is_host(host: &str) -> bool {
    host.len() <= LONGEST_HOST
}

/// The target to which a node of a cluster redirects a call that it did not run. An empty host
/// means the node's own host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// The node at this address owns the slot now.
    Moved(String, u16),
    /// The slot is migrating to this address, and the key is already there or does not exist.
    Ask(String, u16),
    /// The slot is migrating, and no single node has all keys of the call.
    TryAgain,
}

impl Redirect {
    /// Reads an error reply; `None` if it is no redirect, or a malformed one.
    pub(crate) fn read(answer: &ServerError) -> Option<Self> {
        let place = || {
            let mut words = answer.details()?.split(' ');
            let slot: u16 = words.next()?.parse().ok()?;
            let (host, port) = words.next()?.rsplit_once(':')?;
            let port: u16 = port.parse().ok()?;
            (slot < SLOTS && port > 0 && is_host(host)).then(|| (host.to_owned(), port))
        };
        match answer.code() {
            "MOVED" => place().map(|(host, port)| Self::Moved(host, port)),
            "ASK" => place().map(|(host, port)| Self::Ask(host, port)),
            "TRYAGAIN" => Some(Self::TryAgain),
            _ => None,
        }
    }

    /// Returns whether an error reply is a redirect that no node can send.
    pub(crate) fn is_malformed(answer: &ServerError) -> bool {
        matches!(answer.code(), "MOVED" | "ASK") && Self::read(answer).is_none()
    }
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;

    fn error(text: &str) -> ServerError {
        match redis::parse_redis_value(format!("-{text}\r\n").as_bytes()) {
            Ok(Value::ServerError(error)) => error,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn redirects_name_a_node() {
        let read = |text| Redirect::read(&error(text));
        let moved = |host: &str, port| Some(Redirect::Moved(host.into(), port));
        assert_eq!(read("MOVED 16383 127.0.0.1:6381"), moved("127.0.0.1", 6381));
        assert_eq!(read("MOVED 0 ::1:65535"), moved("::1", 65_535));
        assert_eq!(read("MOVED 0 :6381"), moved("", 6381), "the same host");
        assert_eq!(read("ASK 1 h:1"), Some(Redirect::Ask("h".into(), 1)));
        assert_eq!(read("TRYAGAIN Multiple keys"), Some(Redirect::TryAgain));
        assert_eq!(read("CLUSTERDOWN"), None);
        assert!(!Redirect::is_malformed(&error("MOVED 0 :6381")));
        assert!(!Redirect::is_malformed(&error("ERR MOVED")));
    }

    #[test]
    fn malformed_redirects_are_not_followed() {
        for text in [
            "MOVED",
            "MOVED 1",
            "MOVED x h:1",
            "MOVED -1 h:1",
            "MOVED 16384 h:1",
            "MOVED 1 6381",
            "MOVED 1 h:0",
            "MOVED 1 h:70000",
            "MOVED 1 h:",
            "ASK 16384 h:1",
            "ASK 1 h",
        ] {
            assert_eq!(Redirect::read(&error(text)), None, "{text}");
            assert!(Redirect::is_malformed(&error(text)), "{text}");
        }
    }

    #[test]
    fn host_longer_than_any_name_is_malformed() {
        for verb in ["MOVED", "ASK"] {
            let of = |length| error(&format!("{verb} 1 {}:1", "h".repeat(length)));
            assert!(!Redirect::is_malformed(&of(253)));
            assert!(Redirect::is_malformed(&of(254)));
        }
    }
}
