//! Server addresses and credentials, read from URLs.

#[cfg(feature = "tls")]
use std::sync::Arc;
use std::time::Duration;

use redis::io::tcp::{TcpSettings, socket2};
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use crate::error::{Error, library_text};
use crate::escape::Escaped;
#[cfg(feature = "tls")]
use crate::tls::Tls;

/// Idle time before TCP keepalive: the kernel notices a dead peer within about half a minute, even
/// if no call reads.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// The query parameters of each kind of URL.
const TCP_PARAMETERS: [&str; 1] = ["protocol"];
const UNIX_PARAMETERS: [&str; 4] = ["db", "user", "pass", "protocol"];
const SENTINEL_PARAMETERS: [&str; 3] = ["sentinel_user", "sentinel_pass", "protocol"];

/// The deployment that a URL describes.
pub(crate) enum Target {
    /// One server.
    Server(Address),
    /// The server that the sentinels report as the master.
    Sentinel(Sentinel),
    /// The masters of a cluster.
    Cluster(Nodes),
    /// Several independent servers; a majority decides.
    Quorum(Vec<Address>),
}

/// The seed nodes of a cluster, and the credentials for all nodes.
pub(crate) struct Nodes {
    pub(crate) seeds: Vec<Address>,
    data: Address,
}

/// The sentinels of a master, and the credentials for the master.
pub(crate) struct Sentinel {
    pub(crate) sentinels: Vec<Address>,
    pub(crate) master: String,
    /// The credentials and TLS settings for the master, whatever its address.
    pub(crate) data: Address,
}

impl Target {
    /// Parses a URL of any supported kind.
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        if let Some((scheme, rest)) = url.split_once("+sentinel://") {
            check_fragment(rest).map_err(|what| sentinel_config(&what))?;
            let parsed = Sentinel::parse(scheme, rest);
            // Only a valid query may contain an @, in the sentinels' password.
            let has_slipped = parsed.is_err() && is_logon_cut_off(rest);
            match has_slipped || is_logon_cut_off(rest.split('?').next().unwrap_or_default()) {
                true => Err(sentinel_config(UNESCAPED)),
                false => parsed.map(Self::Sentinel),
            }
        } else if let Some((scheme, rest)) = url.split_once("+cluster://") {
            check_fragment(rest).map_err(|what| cluster_config(&what))?;
            match is_logon_cut_off(rest) {
                true => Err(cluster_config(UNESCAPED)),
                false => Nodes::parse(scheme, rest).map(Self::Cluster),
            }
        } else {
            Address::parse(url).map(Self::Server)
        }
    }

    /// All addresses, for a common change.
    #[cfg(feature = "tls")]
    fn addresses(&mut self) -> Vec<&mut Address> {
        match self {
            Self::Server(address) => vec![address],
            Self::Sentinel(Sentinel {
                sentinels: hosts,
                data,
                ..
            })
            | Self::Cluster(Nodes { seeds: hosts, data }) => {
                hosts.iter_mut().chain([data]).collect()
            }
            Self::Quorum(addresses) => addresses.iter_mut().collect(),
        }
    }

    /// Sets TLS for every server, including those whose address is learnt later.
    #[cfg(feature = "tls")]
    pub(crate) fn with_tls(mut self, tls: &Tls) -> Result<Self, Error> {
        if tls.is_set() {
            tls.check()?;
            let tls = Arc::new(tls.clone());
            for address in self.addresses() {
                address.set_tls(&tls)?;
            }
        }
        Ok(self)
    }

    /// A quorum of independent servers.
    pub(crate) fn quorum(urls: &[String]) -> Result<Self, Error> {
        let parse = |url: &String| {
            match Self::parse(url)? {
            Self::Server(address) => Ok(address),
            _ => Err(Error::Config(
                "a quorum consists of single servers: it cannot contain a URL of sentinels or a cluster"
                    .into(),
            )),
        }
        };
        let addresses = urls.iter().map(parse).collect::<Result<_, _>>()?;
        Ok(Self::Quorum(addresses))
    }

    /// A cluster with these seed nodes.
    pub(crate) fn cluster(nodes: &[String]) -> Result<Self, Error> {
        let parse = |node: &String| match node.contains("://") {
            true => Address::parse(node),
            false => Address::parse(&format!("redis://{node}")),
        };
        let seeds = nodes.iter().map(parse).collect::<Result<_, _>>()?;
        Nodes::of(seeds).map(Self::Cluster)
    }

    /// A master known to these sentinels.
    pub(crate) fn sentinel(sentinels: &[String], master: &str) -> Result<Self, Error> {
        let (scheme, rest) = master.split_once("://").unwrap_or(("redis", master));
        let (user, name) = rest.rsplit_once('@').unwrap_or(("", rest));
        let (name, db) = name.split_once('/').unwrap_or((name, ""));
        if sentinels.is_empty() {
            return Err(sentinel_config("no sentinel given"));
        }
        if name.is_empty() {
            return Err(sentinel_config("no master name given"));
        }
        let parse = |sentinel: &String| {
            let (scheme, rest) = sentinel.split_once("://").unwrap_or((scheme, sentinel));
            check_port(rest).map_err(config)?;
            Address::parse(&format!("{scheme}://{}", with_sentinel_port(rest)))
        };
        let at = if user.is_empty() { "" } else { "@" };
        Ok(Self::Sentinel(Sentinel {
            sentinels: sentinels.iter().map(parse).collect::<Result<_, _>>()?,
            master: name.to_owned(),
            data: Address::parse(&format!("{scheme}://{user}{at}master/{db}"))?,
        }))
    }

    /// The address without credentials, for messages.
    pub(crate) fn label(&self) -> String {
        match self {
            Self::Server(address) => address.label.clone(),
            Self::Sentinel(sentinel) => sentinel.label(),
            Self::Cluster(nodes) => nodes.label(),
            Self::Quorum(addresses) => {
                let labels: Vec<&str> = addresses.iter().map(|one| one.label.as_str()).collect();
                format!("quorum of {}", labels.join(", "))
            }
        }
    }
}

impl Nodes {
    /// Parses the part after the scheme: `[user:password@]host[:port],…[/][?…]`.
    fn parse(scheme: &str, rest: &str) -> Result<Self, Error> {
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, db) = place.split_once('/').unwrap_or((place, ""));
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (format!("{user}@"), hosts),
            None => (String::new(), authority),
        };
        let parse = |host: &str| Address::parse(&format!("{scheme}://{user}{host}/{db}?{query}"));
        Self::of(hosts.split(',').map(parse).collect::<Result<_, _>>()?)
    }

    /// Checks that all `seeds` can be nodes of one cluster.
    fn of(seeds: Vec<Address>) -> Result<Self, Error> {
        let Some(first) = seeds.first() else {
            return Err(cluster_config("no node given"));
        };
        let logon = |seed: &Address| {
            let redis = seed.info.redis_settings();
            let has_tls = matches!(seed.info.addr(), ConnectionAddr::TcpTls { .. });
            let user = redis.username().map(str::to_owned);
            (user, redis.password().map(str::to_owned), has_tls)
        };
        for seed in &seeds {
            if seed.info.redis_settings().db() != 0 {
                return Err(cluster_config("a cluster has only database 0"));
            }
            if let ConnectionAddr::Unix(_) = seed.info.addr() {
                return Err(cluster_config(
                    "a cluster node needs a host and a port, not a socket path",
                ));
            }
            if logon(seed) != logon(first) {
                return Err(cluster_config(
                    "all nodes of a cluster must have the same user, password and TLS setting",
                ));
            }
        }
        let data = first.clone();
        Ok(Self { seeds, data })
    }

    /// The addresses without credentials, for messages.
    pub(crate) fn label(&self) -> String {
        format!("cluster {}", labels(&self.seeds))
    }

    /// The host and port of each seed.
    pub(crate) fn places(&self) -> impl Iterator<Item = (String, u16)> {
        self.seeds.iter().filter_map(|seed| match seed.info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Some((host.clone(), *port))
            }
            _ => None,
        })
    }

    /// Advice for a node that accepts connections and does not reply.
    pub(crate) fn tls_hint(&self) -> &'static str {
        self.data.tls_hint()
    }

    /// The address of a node that another node reported.
    pub(crate) fn at(&self, host: &str, port: u16) -> Address {
        self.data.at(host, port)
    }
}

fn cluster_config(what: &str) -> Error {
    Error::Config(format!(
        "invalid URL: {what}; expected redis+cluster://[user:password@]host[:port],host[:port]"
    ))
}

impl Sentinel {
    /// Parses the part after the scheme: `[user:password@]host[:port],…/name[/db][?…]`.
    fn parse(scheme: &str, rest: &str) -> Result<Self, Error> {
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = place.split_once('/').unwrap_or((place, ""));
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (format!("{user}@"), hosts),
            None => (String::new(), authority),
        };
        let (master, db) = path.split_once('/').unwrap_or((path, ""));
        if master.is_empty() {
            return Err(sentinel_config("no master name given"));
        }
        check_query(query, &SENTINEL_PARAMETERS).map_err(|what| sentinel_config(&what))?;
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
        let data = Address::parse(&format!("{scheme}://{user}master/{db}{protocol}"))?;
        let parse = |host: &str| {
            check_port(host).map_err(|what| sentinel_config(&what))?;
            Address::parse(&format!("{scheme}://{logon}{}", with_sentinel_port(host)))
        };
        let sentinels = hosts.split(',').map(parse).collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            sentinels,
            master: master.to_owned(),
            data,
        })
    }

    fn label(&self) -> String {
        format!("{} of sentinels {}", self.master, labels(&self.sentinels))
    }

    /// The address of the master that a sentinel reported.
    pub(crate) fn at(&self, host: &str, port: u16) -> Address {
        self.data.at(host, port)
    }
}

fn labels(addresses: &[Address]) -> String {
    let labels: Vec<&str> = addresses
        .iter()
        .map(|address| address.label.as_str())
        .collect();
    labels.join(",")
}

/// Adds the default sentinel port if none is given.
fn with_sentinel_port(host: &str) -> String {
    let port = host.rsplit_once(':').map(|(_, port)| port);
    match port.is_some_and(|port| port.parse::<u16>().is_ok()) {
        true => host.to_owned(),
        false => format!("{host}:26379"),
    }
}

fn sentinel_config(what: &str) -> Error {
    Error::Config(format!(
        "invalid URL: {what}; expected redis+sentinel://[user:password@]host[:port],host[:port]/name[/db]\
         [?sentinel_user=…&sentinel_pass=…]"
    ))
}

/// The address of a server, with credentials and TLS settings.
#[derive(Clone)]
pub(crate) struct Address {
    pub(crate) info: ConnectionInfo,
    /// The address without credentials, for messages.
    pub(crate) label: String,
    #[cfg(feature = "tls")]
    pub(crate) tls: Arc<Tls>,
}

impl Address {
    /// Parses `redis://`, `rediss://`, `redis+unix://` and their `valkey` forms. No error contains
    /// any part of the URL: any part of a mistyped one may be the password.
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
            None => return Err(config("no scheme".into())),
            Some(scheme) if !known.contains(&scheme) => {
                return Err(config("unsupported scheme".into()));
            }
            Some("rediss" | "valkeys") if !cfg!(feature = "tls") => {
                return Err(config("TLS needs leasehold's `tls` feature".into()));
            }
            #[cfg(feature = "tls")]
            Some("rediss" | "valkeys") => crate::tls::install_provider(),
            Some(_) => {}
        }
        check_places(url).map_err(config)?;
        let info = url
            .into_connection_info()
            .map_err(|error| config(library_text(&error)))?;
        let known = match info.addr() {
            ConnectionAddr::Unix(_) => &UNIX_PARAMETERS[..],
            _ => &TCP_PARAMETERS[..],
        };
        let query = url.split_once('?').map_or("", |(_, query)| query);
        check_query(query, known).map_err(config)?;
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
            #[cfg(feature = "tls")]
            tls: Arc::default(),
        })
    }

    /// Advice for a peer at this address that accepts connections and does not reply.
    pub(crate) fn tls_hint(&self) -> &'static str {
        match self.info.addr() {
            ConnectionAddr::Tcp(..) => "; if it expects TLS, use rediss://",
            ConnectionAddr::TcpTls { .. } => "; if it does not speak TLS, use redis://",
            _ => "",
        }
    }

    /// Another address with the same credentials and TLS settings.
    fn at(&self, host: &str, port: u16) -> Self {
        let host = host.to_owned();
        let addr = match self.info.addr() {
            ConnectionAddr::TcpTls {
                insecure,
                tls_params,
                ..
            } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        Self {
            label: label(&addr),
            info: self.info.clone().set_addr(addr),
            #[cfg(feature = "tls")]
            tls: Arc::clone(&self.tls),
        }
    }

    #[cfg(feature = "tls")]
    fn set_tls(&mut self, tls: &Arc<Tls>) -> Result<(), Error> {
        if !matches!(self.info.addr(), ConnectionAddr::TcpTls { .. }) {
            return Err(Error::Config(
                "tls_root and tls_client_cert need a URL with TLS: rediss://…, rediss+sentinel://… or rediss+cluster://…"
                    .into(),
            ));
        }
        self.tls = Arc::clone(tls);
        Ok(())
    }
}

/// The error for a user or password containing a character that ends that part of the URL.
const UNESCAPED: &str = "a character of the user or password is not escaped \
     (write / as %2F, ? as %3F, # as %23, @ as %40 and % as %25)";

/// Returns an error for a URL that the `redis` crate would misread, or reject without a reason.
fn check_places(url: &str) -> Result<(), String> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    check_fragment(rest)?;
    // A path may contain an @.
    if scheme.ends_with("unix") {
        return Ok(());
    }
    match is_logon_cut_off(rest) {
        true => Err(UNESCAPED.into()),
        false => check_port(rest),
    }
}

/// Returns true if an `@` follows the first `/`, `?` or `#`: the user or password then contains one
/// of these unescaped.
fn is_logon_cut_off(rest: &str) -> bool {
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    rest.get(end..).is_some_and(|behind| behind.contains('@'))
}

/// Returns an error for a fragment: the `redis` crate ignores most of them.
fn check_fragment(rest: &str) -> Result<(), String> {
    match rest.split_once('#') {
        None => Ok(()),
        Some((_, "insecure")) => Err(
            "#insecure is not supported, the server's certificate is always checked: remove it, and pass \
             a private certificate authority to ClientBuilder::tls_root"
                .into(),
        ),
        Some((_, fragment)) if fragment.contains('@') => Err(UNESCAPED.into()),
        Some(_) => Err("the part after # has no meaning: remove it, or write # as %23".into()),
    }
}

/// Returns an error for an invalid port.
fn check_port(rest: &str) -> Result<(), String> {
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    // The colons in brackets belong to an IPv6 address.
    let behind = host.rsplit(']').next().unwrap_or_default();
    match behind.split_once(':') {
        None | Some((_, "")) => Ok(()),
        Some((_, more)) if more.contains(':') => {
            Err("an IPv6 address must be in brackets, as in redis://[::1]:6379".into())
        }
        Some((_, port)) => match port.parse() {
            Ok(1..=u16::MAX) => Ok(()),
            _ if port.bytes().all(|byte| byte.is_ascii_digit()) => {
                Err("its port must be between 1 and 65535".into())
            }
            _ => Err(
                "its port is not a number (a user and password before the host end with @)".into(),
            ),
        },
    }
}

/// Returns an error for an unknown parameter, which would have no effect. The error names it only
/// if it cannot be a piece of a password whose `?` or `&` is not escaped.
fn check_query(query: &str, known: &[&str]) -> Result<(), String> {
    let query = query.split('#').next().unwrap_or_default();
    let mut may_be_secret = query.contains('@');
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, has_value) = match pair.split_once('=') {
            Some((name, _)) => (name, true),
            None => (pair, false),
        };
        if !known.contains(&name) {
            let is_plain = name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
            let parameter = if may_be_secret || !has_value || !is_plain {
                "(not repeated here: it may be a piece of a password; write ? as %3F, & as %26 and @ as %40)"
                    .into()
            } else {
                format!("`{name}`")
            };
            return Err(format!(
                "unknown parameter {parameter}; this kind of URL has: {}",
                known.join(", ")
            ));
        }
        may_be_secret |= name == "pass" || name == "sentinel_pass";
    }
    Ok(())
}

fn label(addr: &ConnectionAddr) -> String {
    let label = match addr {
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
    };
    // The host may come from a sentinel or a cluster node.
    Escaped::said(&label).to_string()
}

fn config(what: String) -> Error {
    Error::Config(format!(
        "invalid URL: {what}; expected redis://[user:password@]host[:port][/db], rediss://…, \
         redis+unix:///path[?db=0&user=…&pass=…], redis+sentinel://…/name, or redis+cluster://host,host"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_gives_address_and_credentials() {
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
    fn a_socket_path_gives_address_and_credentials() {
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
                panic!("{url} was accepted")
            };
            assert!(matches!(error, Error::Config(_)));
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn each_mistake_in_a_url_says_what_to_do() {
        let unescaped = "%2F";
        for (url, word) in [
            ("redis://h:70000", "between 1 and 65535"),
            ("redis://h:0/1", "between 1 and 65535"),
            ("redis://:pw@[::1]:70000", "between 1 and 65535"),
            ("redis+cluster://h1,h2:70000", "between 1 and 65535"),
            ("redis+sentinel://h1,h2:70000/m", "between 1 and 65535"),
            ("redis://h:s3cret", "end with @"),
            ("redis://::1:6379", "brackets"),
            ("redis://u:s3/cret@h", unescaped),
            ("redis://u:12/s3cret@h", unescaped),
            ("redis://u:s3?cret@h", unescaped),
            ("redis://u:12?s3cret@h", unescaped),
            ("redis://u:s3#cret@h", unescaped),
            ("redis://u:12#s3cret@h:1/2", unescaped),
            ("redis+cluster://u:s3/cret@h1,h2", unescaped),
            ("redis+cluster://u:12?s3cret@h1,h2", unescaped),
            ("redis+cluster://u:12#s3cret@h1,h2", unescaped),
            ("redis+sentinel://u:s3/cret@h1,h2/m", unescaped),
            ("redis+sentinel://u:12/s3cret@h1,h2/m", unescaped),
            ("redis+sentinel://u:12?s3cret@h1,h2/m", unescaped),
            ("redis+sentinel://u:12#s3cret@h1,h2/m", unescaped),
            ("redis://h/1#s3cret", "%23"),
            ("redis+unix:///run/s3#cret.sock", "%23"),
            ("redis://h/#insecure", "tls_root"),
            ("redis+sentinel://h/m#insecure", "tls_root"),
            ("redis+cluster://h#insecure", "tls_root"),
            #[cfg(feature = "tls")]
            ("rediss://h/#insecure", "tls_root"),
        ] {
            let Err(Error::Config(text)) = Target::parse(url) else {
                panic!("{url} was accepted")
            };
            assert!(text.contains(word), "{url}: {text}");
            let is_told =
                text.contains("s3") || text.contains("cret") || text.contains("InvalidClient");
            assert!(!is_told, "{url}: {text}");
        }
        for url in [
            "redis://:p@ss@h:1/2",
            "redis://u:p%2F%3F%23%40%25@h",
            "redis+unix:///run/redis@1.sock?pass=p@",
            "redis+sentinel://u:p@ss@h1,h2/m?sentinel_pass=p@ss",
            "redis+cluster://u:p@ss@h1,[::1]:7000",
            "redis://h:",
        ] {
            assert!(Target::parse(url).is_ok(), "{url}");
        }
    }

    #[test]
    fn an_unknown_parameter_is_named_unless_it_may_be_secret() {
        for (url, word, known) in [
            ("redis://h?timeout=5", "`timeout`", "protocol"),
            ("redis://h/2?protocol=3&db=3", "`db`", "protocol"),
            ("redis+unix:///s?db=3&password=s3cret", "`password`", "pass"),
            (
                "redis+sentinel://h/m?sentinel_password=s3cret",
                "`sentinel_password`",
                "sentinel_pass",
            ),
            ("redis+unix:///s?pass=top&s3cret=x", "%26", "pass"),
            ("redis+unix:///s?pass=top&s3cret", "%26", "pass"),
            ("redis://u:12?s3cret=1@h", "%3F", "redis://"),
            ("redis://h?s3cret", "not repeated", "protocol"),
            (
                "redis+sentinel://h/m?sentinel_pass=top&s3cret=x",
                "%26",
                "sentinel_pass",
            ),
        ] {
            let Err(Error::Config(text)) = Target::parse(url) else {
                panic!("{url} was accepted")
            };
            assert!(text.contains(word) && text.contains(known), "{url}: {text}");
            assert!(!text.contains("s3cret"), "{url}: {text}");
        }
        for url in [
            "redis://h?",
            "redis://h?protocol=resp3&",
            "redis+sentinel://h/m?sentinel_user=u",
        ] {
            assert!(Target::parse(url).is_ok(), "{url}");
        }
    }

    #[test]
    fn a_sentinel_url_gives_sentinels_master_and_passwords() {
        let url = "redis+sentinel://ann:s3cret@h1,h2:26380,[::1]/mymaster/2?sentinel_pass=t0p&protocol=resp3";
        let Ok(Target::Sentinel(sentinel)) = Target::parse(url) else {
            panic!("rejected")
        };
        assert_eq!(
            sentinel.label(),
            "mymaster of sentinels h1:26379,h2:26380,[::1]:26379"
        );
        assert_eq!(sentinel.data.info.redis_settings().username(), Some("ann"));
        assert_eq!(sentinel.data.info.redis_settings().db(), 2);
        for address in &sentinel.sentinels {
            assert_eq!(address.info.redis_settings().password(), Some("t0p"));
            assert_eq!(address.info.redis_settings().db(), 0);
        }
        let master = sentinel.at("10.0.0.7", 6400);
        assert_eq!(master.label, "10.0.0.7:6400");
        assert_eq!(master.info.redis_settings().password(), Some("s3cret"));
        for wrong in [
            "redis+sentinel://h1,h2",
            "redis+sentinel://h1,,h2/m",
            "http+sentinel://h/m",
            "redis+sentinel:///m",
        ] {
            assert!(Target::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_cluster_url_gives_nodes_and_credentials() {
        let url = "redis+cluster://ann:s3cret@h1,h2:7001,[::1]:7002/?protocol=resp3";
        let Ok(Target::Cluster(nodes)) = Target::parse(url) else {
            panic!("rejected")
        };
        assert_eq!(nodes.label(), "cluster h1:6379,h2:7001,[::1]:7002");
        assert_eq!(nodes.places().nth(2), Some(("::1".into(), 7002)));
        let node = nodes.at("10.0.0.7", 7009);
        assert_eq!(node.label, "10.0.0.7:7009");
        assert_eq!(node.info.redis_settings().password(), Some("s3cret"));
        assert!(Target::parse("valkey+cluster://h1,h2/0").is_ok());
        for wrong in [
            "redis+cluster://",
            "redis+cluster://h1,,h2",
            "redis+cluster://h1,h2/1",
            "redis+cluster://h1:99999",
            "redis+unix+cluster:///s3cret",
            "http+cluster://h1",
        ] {
            let Err(error) = Target::parse(wrong) else {
                panic!("{wrong} was accepted")
            };
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn nodes_and_sentinels_can_be_given_in_parts() {
        let nodes = ["h1:7000".into(), "h2".into()];
        let Ok(Target::Cluster(cluster)) = Target::cluster(&nodes) else {
            panic!("rejected")
        };
        assert_eq!(cluster.label(), "cluster h1:7000,h2:6379");
        let nodes = ["redis://ann:s3cret@h1".into(), "redis://:s3cret@h2".into()];
        let Err(error) = Target::cluster(&nodes) else {
            panic!("accepted")
        };
        assert!(!error.to_string().contains("s3cret"), "{error}");
        assert!(Target::cluster(&[]).is_err());

        let hosts = ["h1".into(), "redis://:t0p@h2:26380".into()];
        let master = "redis://ann:s3cret@mymaster/2";
        let Ok(Target::Sentinel(sentinel)) = Target::sentinel(&hosts, master) else {
            panic!("rejected")
        };
        assert_eq!(sentinel.label(), "mymaster of sentinels h1:26379,h2:26380");
        assert_eq!(sentinel.data.info.redis_settings().username(), Some("ann"));
        assert_eq!(sentinel.data.info.redis_settings().db(), 2);
        let passwords = sentinel.sentinels.iter();
        let passwords =
            passwords.map(|one| one.info.redis_settings().password().map(str::to_owned));
        assert_eq!(passwords.collect::<Vec<_>>(), [None, Some("t0p".into())]);
        assert!(Target::sentinel(&hosts, "mymaster").is_ok());
        assert!(Target::sentinel(&[], "m").is_err() && Target::sentinel(&hosts, "").is_err());
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn tls_names_its_feature() {
        let Err(error) = Address::parse("rediss://h") else {
            panic!("accepted")
        };
        assert!(error.to_string().contains("`tls`"), "{error}");
    }
}
