//! The address of a server, read from a URL.

use std::time::Duration;

use redis::io::tcp::{TcpSettings, socket2};
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use crate::error::Error;

/// A dead peer is noticed by the kernel within about half a minute even where nobody reads.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Where the locks are kept.
pub(crate) enum Deployment {
    One(Box<Target>),
    /// On several independent servers.
    Quorum(Vec<Address>),
}

impl Deployment {
    /// Reads the URLs of a quorum's servers.
    pub(crate) fn quorum(urls: &[String]) -> Result<Self, Error> {
        let parse = |url: &String| match Target::parse(url)? {
            Target::Server(address) => Ok(address),
            Target::Sentinel(_) => Err(Error::Config(
                "a quorum is made of single servers: a URL of sentinels cannot be one of them"
                    .into(),
            )),
        };
        urls.iter()
            .map(parse)
            .collect::<Result<_, _>>()
            .map(Self::Quorum)
    }

    /// For people: no user, no password.
    pub(crate) fn label(&self) -> String {
        match self {
            Self::One(target) => target.label(),
            Self::Quorum(addresses) => {
                let labels: Vec<&str> = addresses.iter().map(|one| one.label.as_str()).collect();
                format!("quorum of {}", labels.join(", "))
            }
        }
    }
}

/// What a URL leads to.
pub(crate) enum Target {
    /// One server.
    Server(Address),
    /// Whichever server the sentinels say is the master.
    Sentinel(Sentinel),
}

/// The sentinels of a master, and how to log on to it.
pub(crate) struct Sentinel {
    pub(crate) sentinels: Vec<Address>,
    pub(crate) master: String,
    /// How to log on to the master, wherever it is.
    pub(crate) data: ConnectionInfo,
}

impl Target {
    /// Reads a URL of any of our kinds.
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        match url.split_once("+sentinel://") {
            Some((scheme, rest)) => Sentinel::parse(scheme, rest).map(Self::Sentinel),
            None => Address::parse(url).map(Self::Server),
        }
    }

    /// For people: no user, no password.
    pub(crate) fn label(&self) -> String {
        match self {
            Self::Server(address) => address.label.clone(),
            Self::Sentinel(sentinel) => sentinel.label(),
        }
    }
}

impl Sentinel {
    /// Reads what follows the scheme: `[user:password@]host[:port],…/name[/db][?…]`.
    fn parse(scheme: &str, rest: &str) -> Result<Self, Error> {
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = place.split_once('/').unwrap_or((place, ""));
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (format!("{user}@"), hosts),
            None => (String::new(), authority),
        };
        let (master, db) = path.split_once('/').unwrap_or((path, ""));
        if master.is_empty() {
            return Err(sentinel_config("it names no master"));
        }
        let value = |name: &str| {
            query
                .split('&')
                .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
        };
        let logon = match (value("sentinel_user"), value("sentinel_pass")) {
            (None, None) => String::new(),
            (user, password) => format!("{}:{}@", user.unwrap_or(""), password.unwrap_or("")),
        };
        let protocol =
            value("protocol").map_or_else(String::new, |protocol| format!("?protocol={protocol}"));
        let data = Address::parse(&format!("{scheme}://{user}master/{db}{protocol}"))?.info;
        let parse = |host: &str| {
            let has_port = host
                .rsplit_once(':')
                .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
            let port = if has_port { "" } else { ":26379" };
            Address::parse(&format!("{scheme}://{logon}{host}{port}"))
        };
        let sentinels = hosts.split(',').map(parse).collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            sentinels,
            master: master.to_owned(),
            data,
        })
    }

    fn label(&self) -> String {
        let hosts: Vec<&str> = self
            .sentinels
            .iter()
            .map(|sentinel| sentinel.label.as_str())
            .collect();
        format!("{} of sentinels {}", self.master, hosts.join(","))
    }

    /// The master, at the address that a sentinel gave.
    pub(crate) fn at(&self, host: &str, port: u16) -> ConnectionInfo {
        let addr = match self.data.addr() {
            ConnectionAddr::TcpTls {
                insecure,
                tls_params,
                ..
            } => ConnectionAddr::TcpTls {
                host: host.to_owned(),
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host.to_owned(), port),
        };
        self.data.clone().set_addr(addr)
    }
}

fn sentinel_config(what: &str) -> Error {
    Error::Config(format!(
        "the URL cannot be used: {what}; expected redis+sentinel://[user:password@]host[:port],host[:port]/name[/db]\
         [?sentinel_user=…&sentinel_pass=…]"
    ))
}

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
         redis+unix:///path[?db=0&user=…&pass=…], or redis+sentinel://…/name"
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

    #[test]
    fn sentinels() {
        let url = "redis+sentinel://ann:s3cret@h1,h2:26380,[::1]/mymaster/2?sentinel_pass=t0p&protocol=resp3";
        let Ok(Target::Sentinel(sentinel)) = Target::parse(url) else {
            panic!("not taken")
        };
        assert_eq!(
            sentinel.label(),
            "mymaster of sentinels h1:26379,h2:26380,[::1]:26379"
        );
        assert_eq!(sentinel.data.redis_settings().username(), Some("ann"));
        assert_eq!(sentinel.data.redis_settings().db(), 2);
        for address in &sentinel.sentinels {
            assert_eq!(address.info.redis_settings().password(), Some("t0p"));
            assert_eq!(address.info.redis_settings().db(), 0);
        }
        let master = sentinel.at("10.0.0.7", 6400);
        assert_eq!(label(master.addr()), "10.0.0.7:6400");
        assert_eq!(master.redis_settings().password(), Some("s3cret"));
        for wrong in [
            "redis+sentinel://h1,h2",
            "redis+sentinel://h1,,h2/m",
            "http+sentinel://h/m",
            "redis+sentinel:///m",
        ] {
            assert!(Target::parse(wrong).is_err(), "{wrong}");
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
