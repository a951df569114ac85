//! The role of the peer at an address. Errors about TLS depend on it.

use std::sync::Arc;

/// The role of the peer at an address.
#[derive(Clone, Default)]
pub(super) enum Role {
    /// A server that the caller has named.
    #[default]
    Server,
    Sentinel,
    /// The master that sentinels name.
    Master {
        sentinels_have_tls: bool,
    },
    /// A node of a cluster.
    Node {
        /// The nodes that the caller has named.
        seeds: Arc<[(String, u16)]>,
        #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "no TLS"))]
        is_announced: bool,
    },
}

impl Role {
    /// Returns the role of the peer at another address, which sentinels or nodes may announce.
    pub(super) fn at(&self, host: &str, port: u16) -> Self {
        match self {
            Self::Node { seeds, .. } => Self::Node {
                is_announced: !seeds.iter().any(|seed| *seed == (host.to_owned(), port)),
                seeds: Arc::clone(seeds),
            },
            other => other.clone(),
        }
    }

    /// Returns who announces the address, in words that select an advice.
    #[cfg(feature = "tls")]
    pub(super) fn announcement(&self) -> Option<&'static str> {
        match self {
            Self::Master { .. } => Some("the sentinels name this address"),
            Self::Node {
                is_announced: true, ..
            } => Some("the nodes of the cluster announce this address"),
            _ => None,
        }
    }

    /// Returns the word for the peer; `None` if the caller has named it.
    pub(super) fn noun(&self) -> Option<&'static str> {
        match self {
            Self::Sentinel => Some("the sentinel"),
            Self::Master { .. } => Some("the master"),
            Self::Server | Self::Node { .. } => None,
        }
    }

    /// Returns what to write so that this side uses TLS if it does not, and the reverse. The other
    /// side stays as it is.
    pub(super) fn other_scheme(&self, has_tls: bool) -> &'static str {
        match (self, has_tls) {
            (Self::Server | Self::Node { .. }, false) => "use rediss://",
            (Self::Server | Self::Node { .. }, true) => "use redis://",
            (Self::Sentinel, false) => "set sentinel_tls=yes",
            (Self::Sentinel, true) => "set sentinel_tls=no",
            (Self::Master { sentinels_have_tls }, false) if *sentinels_have_tls => {
                "use rediss+sentinel://, with sentinel_tls=yes"
            }
            (Self::Master { .. }, false) => "use rediss+sentinel://, with sentinel_tls=no",
            (Self::Master { sentinels_have_tls }, true) if *sentinels_have_tls => {
                "use redis+sentinel://, with sentinel_tls=yes"
            }
            (Self::Master { .. }, true) => "use redis+sentinel://, with sentinel_tls=no",
        }
    }
}
