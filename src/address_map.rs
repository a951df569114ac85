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

    /// Returns the map of these pairs: an announced `host:port`, and where it is reached.
    pub(crate) fn of_pairs(pairs: &[(String, String)]) -> Result<Self, Error> {
        let pair = |(from, to): &(String, String)| Ok((host_port(from)?, host_port(to)?));
        let pairs: Result<Vec<_>, Error> = pairs.iter().map(pair).collect();
        let pairs = pairs?;
        Ok(Self::new(move |host, port| {
            let mut pairs = pairs.iter();
            let pair = pairs.find(|((from, number), _)| from == host && *number == port);
            pair.map(|(_, to)| to.clone())
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

/// Reads `host:port` or `[IPv6]:port`.
fn host_port(text: &str) -> Result<(String, u16), Error> {
    let parts = text.rsplit_once(':').and_then(|(host, port)| {
        let port = port.parse().ok().filter(|port| *port > 0)?;
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let host = bare.or_else(|| Some(host).filter(|host| !host.contains(':')))?;
        (!host.is_empty()).then(|| (host.to_owned(), port))
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
    fn text_that_is_no_address_is_an_error() {
        for text in ["", "a", "a:", ":1", "a:0", "a:70000", "::1:6379", "[]:1"] {
            assert!(pairs(text, "b:1").is_err(), "{text}");
            assert!(pairs("b:1", text).is_err(), "{text}");
        }
    }
}
