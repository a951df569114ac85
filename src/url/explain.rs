//! Advice if only one side of a connection uses TLS, or if the peer has the wrong certificate.

use redis::{ConnectionAddr, RedisError};

#[cfg(feature = "tls")]
use crate::connect_failure::ConnectFailure;
use crate::url::address::Address;
use crate::violation::Violation;
#[cfg(feature = "tls")]
use crate::violation::payload;

impl Address {
    /// Advice for a peer at this address that accepts connections and does not reply.
    pub(crate) fn tls_hint(&self) -> String {
        let who = self.role.noun().unwrap_or("it");
        let scheme = self.role.other_scheme(self.has_tls());
        match self.info.addr() {
            ConnectionAddr::Tcp(..) => format!("; if {who} expects TLS, {scheme}"),
            ConnectionAddr::TcpTls { .. } => format!("; if {who} does not speak TLS, {scheme}"),
            _ => String::new(),
        }
    }

    /// Returns the error of a connection to this address. If the reason is TLS, it says what helps
    /// with a peer of this role, and when a certificate has expired.
    pub(crate) fn explained(&self, error: RedisError) -> RedisError {
        // The usual advice is enough for a server that the caller has named.
        let (Some(who), Some(violation)) = (self.role.noun(), Violation::of(&error)) else {
            return self.with_certificate(error);
        };
        let scheme = self.role.other_scheme(self.has_tls());
        let hint = match violation.speaks_tls() {
            Some(true) => format!("; {who} speaks TLS: {scheme}"),
            Some(false) => format!("; {who} does not speak TLS: {scheme}"),
            None => return error,
        };
        violation.clone().with_hint(hint).into()
    }

    #[cfg(feature = "tls")]
    fn with_certificate(&self, error: RedisError) -> RedisError {
        use rustls::CertificateError::{NotValidForName, NotValidForNameContext};
        let announcement = if self.is_mapped {
            Some("the address map leads here")
        } else {
            self.role.announcement()
        };
        let name = match (payload(&error), announcement) {
            (
                Some(
                    wrong @ rustls::Error::InvalidCertificate(
                        NotValidForName | NotValidForNameContext { .. },
                    ),
                ),
                Some(announcement),
            ) => Some(format!("{wrong}; {announcement}")),
            _ => None,
        };
        match name {
            Some(text) => ConnectFailure::Certificate(text).into(),
            None => self.tls.with_expiry(error),
        }
    }

    #[cfg(not(feature = "tls"))]
    fn with_certificate(&self, error: RedisError) -> RedisError {
        error
    }
}
