//! Where addresses that sentinels or nodes of a cluster announce are reached from this machine.

use std::fmt;
use std::sync::Arc;

use crate::error::Error;
use crate::escape::Escaped;

type Lookup = dyn Fn(&str, u16) -> Option<(String, u16)> + Send + Sync;

/// Replaces announced addresses; by default none.
#[derive(Clone, Default)]
pub(crate) struct AddressMap(Option<Arc<Lookup>>);

impl AddressMap {
    pub(crate) fn new(
        lookup: impl Fn(&str, u16) -> Option<(String, u16)> + Send + Sync + 'static,
    ) -> Self {
        Self(Some(Arc::new(lookup)))
    }

    /// Returns the map of these pairs: an announced `host:port`, and where it is reached. A pair of
    /// `*` and a name is for all other addresses, and keeps their ports.
    pub(crate) fn of_pairs(pairs: &[(String, String)]) -> Result<Self, Error> {
        let (mut exact, mut others) = (Vec::new(), None);
        for (from, to) in pairs {
            if from == "*" {
                others = Some(name(to)?)
            } else {
                exact.push((host_port(from)?, host_port(to)?))
            }
        }
        Ok(Self::new(move |host, port| {
            let mut pairs = exact.iter();
            let pair = pairs.find(|((from, number), _)| from == host && *number == port);
            let others = || Some((others.clone()?, port));
            pair.map(|(_, to)| to.clone()).or_else(others)
        }))
    }

    /// Returns where an announced address is reached, if that is another address.
    pub(crate) fn replacement(&self, host: &str, port: u16) -> Option<(String, u16)> {
        self.0.as_ref()?(host, port)
    }
}

impl fmt::Debug for AddressMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "set" } else { "none" })
    }
}

/// Reads a host: a name, an IPv4 address, or an IPv6 address in brackets.
fn host(text: &str) -> Option<String> {
    let bare = text
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let host = bare.or_else(|| Some(text).filter(|host| !host.contains(':')))?;
    (!host.is_empty() && host != "*").then(|| host.to_owned())
}

/// Reads the host that stands for all addresses.
fn name(text: &str) -> Result<String, Error> {
    host(text).ok_or_else(|| {
        let text = Escaped::said(text);
        Error::Config(format!(
            "address_map: {text} is not a host, such as redis.internal (* keeps the port)"
        ))
    })
}

/// Reads `host:port` or `[IPv6]:port`.
fn host_port(text: &str) -> Result<(String, u16), Error> {
    let parts = text.rsplit_once(':').and_then(|(before, port)| {
        let port = port.parse().ok().filter(|port| *port > 0)?;
        Some((host(before)?, port))
    });
    parts.ok_or_else(|| {
        let text = Escaped::said(text);
        Error::Config(format!(
            "address_map: {text} is not host:port, such as 10.0.0.7:6379"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(from: &str, to: &str) -> Result<AddressMap, Error> {
        AddressMap::of_pairs(&[(from.into(), to.into())])
    }

    #[test]
    fn only_the_addresses_of_the_pairs_are_replaced() {
        let map = pairs("10.0.0.7:6379", "[::1]:7001").unwrap();
        assert_eq!(
            map.replacement("10.0.0.7", 6379),
            Some(("::1".into(), 7001))
        );
        for other in [("10.0.0.7", 6380), ("10.0.0.8", 6379)] {
            assert_eq!(map.replacement(other.0, other.1), None);
        }
        assert_eq!(AddressMap::default().replacement("10.0.0.7", 6379), None);
    }

    #[test]
    fn one_name_for_all_keeps_their_ports() {
        let all = [("*", "db.example"), ("10.0.0.7:6379", "[::1]:7001")];
        let all = all.map(|(from, to)| (from.to_owned(), to.to_owned()));
        let map = AddressMap::of_pairs(&all).unwrap();
        for (host, port, reached) in [
            ("10.0.0.7", 6379, ("::1", 7001)),
            ("10.0.0.7", 6380, ("db.example", 6380)),
            ("10.0.0.8", 6379, ("db.example", 6379)),
        ] {
            let (name, number) = reached;
            assert_eq!(map.replacement(host, port), Some((name.into(), number)));
        }
        for wrong in ["", "db.example:1", "*", "::1"] {
            let error = pairs("*", wrong).err().unwrap().to_string();
            assert!(error.contains("keeps the port"), "{error}");
        }
        assert!(pairs("*:1", "b:1").is_err());
    }

    #[test]
    fn text_that_is_no_address_is_an_error() {
        for text in ["", "a", "a:", ":1", "a:0", "a:70000", "::1:6379", "[]:1"] {
            assert!(pairs(text, "b:1").is_err(), "{text}");
            assert!(pairs("b:1", text).is_err(), "{text}");
        }
    }
}
