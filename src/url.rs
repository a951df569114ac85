//! The address of a server, read from a URL.

use std::time::Duration;

use redis::io::tcp::{TcpSettings, socket2};
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use crate::error::Error;

/// A dead peer is noticed by the kernel within about half a minute even where nobody reads.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Where a server is and how to log on to it.
#[derive(Clone)]
pub(crate) struct Address {
    pub(crate) info: ConnectionInfo,
    /// For people: no user, no password.
    pub(crate) label: String,
}

impl Address {
    /// Reads `redis://`, `rediss://`, `redis+unix://` and the same as `valkey`. No error holds any
    /// part of the URL, since any part of a mistyped one may be the password.
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        let scheme = url.split_once("://").map(|(scheme, _)| scheme);
        let known = [
            "redis",
            "rediss",
            "redis+unix",
            "valkey",
            "valkeys",
            "valkey+unix",
            "unix",
        ];
        match scheme {
            None => return Err(config("it has no scheme".into())),
            Some(scheme) if !known.contains(&scheme) => {
                return Err(config("its scheme is none of ours".into()));
            }
            Some("rediss" | "valkeys") if !cfg!(feature = "tls") => {
                return Err(config("TLS needs leasehold's feature `tls`".into()));
            }
            #[cfg(feature = "tls")]
            Some("rediss" | "valkeys") => {
                // With two providers in a program's tree rustls picks none and panics. An error
                // means that the program has chosen one itself.
                let _ = rustls::crypto::ring::default_provider().install_default();
            }
            Some(_) => {}
        }
        let info = url
            .into_connection_info()
            .map_err(|error| config(error.to_string()))?;
        let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(
            socket2::TcpKeepalive::new()
                .with_time(KEEPALIVE)
                .with_interval(KEEPALIVE / 3),
        );
        let redis = info
            .redis_settings()
            .clone()
            .set_lib_name("leasehold", env!("CARGO_PKG_VERSION"));
        let label = label(info.addr());
        Ok(Self {
            info: info.set_tcp_settings(tcp).set_redis_settings(redis),
            label,
        })
    }
}

fn label(addr: &ConnectionAddr) -> String {
    match addr {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. }
            if host.contains(':') =>
        {
            format!("[{host}]:{port}")
        }
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            format!("{host}:{port}")
        }
        ConnectionAddr::Unix(path) => path.display().to_string(),
        _ => "server".into(),
    }
}

fn config(what: String) -> Error {
    Error::Config(format!(
        "the URL cannot be used: {what}; expected redis://[user:password@]host[:port][/db], rediss://…, \
         or redis+unix:///path[?db=0&user=…&pass=…]"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smoke() {
        let address =
            Address::parse("redis://ann:s3cret@db.example:6380/2?protocol=resp3").unwrap();
        assert_eq!(address.label, "db.example:6380");
        assert_eq!(address.info.redis_settings().db(), 2);
        assert_eq!(address.info.redis_settings().username(), Some("ann"));
        assert!(address.info.tcp_settings().nodelay());
        assert_eq!(
            Address::parse("valkey://[::1]").unwrap().label,
            "[::1]:6379"
        );
    }

    #[cfg(unix)]
    #[test]
    fn unix_sockets() {
        let address = Address::parse("redis+unix:///run/redis.sock?db=3&user=u&pass=p%40").unwrap();
        assert_eq!(address.label, "/run/redis.sock");
        assert_eq!(address.info.redis_settings().password(), Some("p@"));
        assert_eq!(address.info.redis_settings().db(), 3);
    }

    #[test]
    fn errors_name_what_is_wrong_and_keep_the_password() {
        let wrong = [
            "",
            "s3cret",
            "http://u:s3cret@h",
            "redis://",
            "redis://u:s3cret@h:99999",
            "redis://u:s3cret@h/s3cret",
            "redis://u:s3cret@h?protocol=9",
            "redis://u:s3cret@0.0.0.0",
            "s3cret://h",
        ];
        for url in wrong {
            let Err(error) = Address::parse(url) else {
                panic!("{url} was taken")
            };
            assert!(matches!(error, Error::Config(_)));
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn tls_names_its_feature() {
        let Err(error) = Address::parse("rediss://h") else {
            panic!("taken")
        };
        assert!(error.to_string().contains("`tls`"), "{error}");
    }
}
