//! The address of one server, read from a URL.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::io::tcp::{TcpSettings, socket2};
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use crate::address_map::AddressMap;
use crate::connect_failure::ConnectFailure;
use crate::credentials::{Credentials, CredentialsSource};
use crate::error::Error;
use crate::error_reply::library_text;
use crate::escape::Escaped;
use crate::resolver::Resolver;
#[cfg(feature = "tls")]
use crate::tls::Tls;
use crate::url::check::{check_places, check_query, invalid, one_database};
use crate::url::foreign::{canonical, scheme_advice};
use crate::url::role::Role;

/// Idle time before TCP keepalive: the kernel notices a dead peer within half a minute, even if no
/// call reads.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Probes of TCP keepalive without an answer until the kernel closes the connection. Linux would
/// send 9.
const PROBES: u32 = 3;

/// The query parameters of each kind of URL.
const TCP_PARAMETERS: [&str; 2] = ["db", "protocol"];
const UNIX_PARAMETERS: [&str; 4] = ["db", "user", "pass", "protocol"];

/// The address of a server, with credentials and TLS settings.
#[derive(Clone)]
pub(crate) struct Address {
    pub(crate) info: ConnectionInfo,
    /// The address without credentials, for messages.
    pub(crate) label: String,
    /// Where the credentials come from, if they are asked for before each connect.
    pub(crate) credentials: Option<CredentialsSource>,
    /// The peer closes a connection on which an optional command is sent. The addresses made from
    /// this one share it.
    closes_on_optional: Arc<AtomicBool>,
    /// Finds the addresses of the host. All addresses of a client share it.
    pub(crate) resolver: Arc<Resolver>,
    /// Replaces the addresses made from this one.
    pub(super) map: AddressMap,
    pub(super) role: Role,
    /// Whether the map has replaced the announced address by this one.
    #[cfg(feature = "tls")]
    pub(super) is_mapped: bool,
    #[cfg(feature = "tls")]
    pub(crate) tls: Arc<Tls>,
}

/// A user and a password, or the file with the password.
#[derive(Clone, Default)]
pub(crate) struct Logon {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    /// Read before each connect.
    pub(crate) password_file: Option<PathBuf>,
}

impl Address {
    /// Parses `redis://`, `rediss://`, `redis+unix://` and their `valkey` forms. Any part of a
    /// mistyped URL may be the password, so errors contain at most the name of a parameter.
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        let url = &*canonical(url);
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
            None => return Err(config("no scheme")),
            Some(scheme) if !known.contains(&scheme) => {
                return Err(config(
                    scheme_advice(scheme).unwrap_or("unsupported scheme"),
                ));
            }
            Some("rediss" | "valkeys") if !cfg!(feature = "tls") => {
                return Err(config("TLS needs leasehold's `tls` feature"));
            }
            Some(_) => {}
        }
        check_places(url).map_err(config)?;
        let info = url
            .into_connection_info()
            .map_err(|error| config(library_text(&error)))?;
        let query = url.split_once('?').map_or("", |(_, query)| query);
        let mut db = info.redis_settings().db();
        if let ConnectionAddr::Unix(_) = info.addr() {
            check_query(query, &UNIX_PARAMETERS).map_err(config)?;
        } else {
            check_query(query, &TCP_PARAMETERS).map_err(config)?;
            db = one_database(db, query).map_err(config)?;
        }
        let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(
            socket2::TcpKeepalive::new()
                .with_time(KEEPALIVE)
                .with_interval(KEEPALIVE / PROBES)
                .with_retries(PROBES),
        );
        let redis = info
            .redis_settings()
            .clone()
            .set_db(db)
            .set_lib_name("leasehold", env!("CARGO_PKG_VERSION"));
        let label = label(info.addr());
        Ok(Self {
            info: info.set_tcp_settings(tcp).set_redis_settings(redis),
            label,
            credentials: None,
            closes_on_optional: Arc::default(),
            resolver: Arc::default(),
            map: AddressMap::default(),
            role: Role::default(),
            #[cfg(feature = "tls")]
            is_mapped: false,
            #[cfg(feature = "tls")]
            tls: Arc::default(),
        })
    }

    /// Returns the user and the password for a connection that is made now. Asks a callback or
    /// reads a file if the credentials come from there.
    pub(crate) fn logon(&self) -> Result<(Option<String>, Option<String>), ConnectFailure> {
        let redis = self.info.redis_settings();
        let user = redis.username().map(str::to_owned);
        match &self.credentials {
            None => Ok((user, redis.password().map(str::to_owned))),
            Some(source) => {
                let Credentials {
                    user: own,
                    password,
                } = source.ask()?;
                Ok((own.or(user), Some(password)))
            }
        }
    }

    /// Returns whether connections to this address send commands that not every server needs to
    /// know.
    pub(crate) fn sends_optional(&self) -> bool {
        !self.closes_on_optional.load(Ordering::Relaxed)
    }

    /// Records that the peer closes connections at optional commands.
    pub(crate) fn omit_optional(&self) {
        self.closes_on_optional.store(true, Ordering::Relaxed);
    }

    /// Another address, which a sentinel or a node announces, with the same credentials and TLS
    /// settings.
    pub(crate) fn at(&self, host: &str, port: u16) -> Self {
        let Some((reached, at)) = self.map.replacement(host, port) else {
            return self.of(host, port);
        };
        if (reached.as_str(), at) == (host, port) {
            return self.of(host, port);
        }
        let Self {
            label: announced,
            role,
            ..
        } = self.of(host, port);
        let mut address = self.of(&reached, at);
        address.role = role;
        #[cfg(feature = "tls")]
        {
            address.is_mapped = true;
        }
        address.label = format!("{announced} (reached at {})", address.label);
        address
    }

    fn of(&self, host: &str, port: u16) -> Self {
        let mut addr = self.info.addr().clone();
        match &mut addr {
            ConnectionAddr::TcpTls {
                host: name,
                port: number,
                ..
            } => (*name, *number) = (host.to_owned(), port),
            plain => *plain = ConnectionAddr::Tcp(host.to_owned(), port),
        }
        Self {
            label: label(&addr),
            role: self.role.at(host, port),
            info: self.info.clone().set_addr(addr),
            ..self.clone()
        }
    }

    pub(super) fn has_password(&self) -> bool {
        self.info.redis_settings().password().is_some()
    }

    /// If there is no password, sets it, and the user if there is none.
    pub(super) fn fill_in_logon(&mut self, logon: &Logon) {
        if self.has_password() {
            return;
        }
        if let Some(path) = &logon.password_file {
            self.credentials = Some(CredentialsSource::file(path.clone()));
        }
        let mut redis = self.info.redis_settings().clone();
        if let (None, Some(user)) = (redis.username(), &logon.user) {
            redis = redis.set_username(user);
        }
        if let Some(password) = &logon.password {
            redis = redis.set_password(password);
        }
        self.info = self.info.clone().set_redis_settings(redis);
    }

    pub(super) fn has_tls(&self) -> bool {
        matches!(self.info.addr(), ConnectionAddr::TcpTls { .. })
    }

    /// Sets whether connections to this address are encrypted.
    #[cfg(feature = "tls")]
    pub(super) fn encrypt(&mut self, on: bool) {
        let addr = match self.info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                match (host.clone(), *port) {
                    (host, port) if on => ConnectionAddr::TcpTls {
                        host,
                        port,
                        insecure: false,
                        tls_params: None,
                    },
                    (host, port) => ConnectionAddr::Tcp(host, port),
                }
            }
            other => other.clone(),
        };
        self.info = self.info.clone().set_addr(addr);
    }

    #[cfg(feature = "tls")]
    pub(super) fn set_tls(&mut self, tls: &Arc<Tls>) {
        self.tls = Arc::clone(tls);
    }
}

fn label(addr: &ConnectionAddr) -> String {
    let label = match addr {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            if host.contains(':') {
                format!("[{host}]:{port}")
            } else {
                format!("{host}:{port}")
            }
        }
        ConnectionAddr::Unix(path) => path.display().to_string(),
        _ => "server".into(),
    };
    // The host may come from a sentinel or a cluster node.
    Escaped::said(&label).to_string()
}

fn config(what: impl AsRef<str>) -> Error {
    invalid(
        what,
        "redis://[user:password@]host[:port][/db], rediss://…, \
         redis+unix:///path[?db=0&user=…&pass=…], redis+sentinel://…/name, \
         redis+cluster://host,host, or redis+quorum://host,host,host",
    )
}
