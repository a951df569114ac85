//! The address of a server, read from a URL.

#[cfg(feature = "tls")]
use std::sync::Arc;
use std::time::Duration;

use redis::io::tcp::{TcpSettings, socket2};
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use crate::error::{Error, library_text};
use crate::escape::Escaped;
#[cfg(feature = "tls")]
use crate::tls::Tls;

/// A dead peer is noticed by the kernel within about half a minute even where nobody reads.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// What may follow the `?` of a URL.
const TCP_PARAMETERS: [&str; 1] = ["protocol"];
const UNIX_PARAMETERS: [&str; 4] = ["db", "user", "pass", "protocol"];
const SENTINEL_PARAMETERS: [&str; 3] = ["sentinel_user", "sentinel_pass", "protocol"];

/// What a URL leads to.
pub(crate) enum Target {
    /// One server.
    Server(Address),
    /// Whichever server the sentinels say is the master.
    Sentinel(Sentinel),
    /// The masters of a cluster.
    Cluster(Nodes),
    /// Several independent servers, a majority of which decides.
    Quorum(Vec<Address>),
}

/// Some nodes of a cluster, who know the others, and how to log on to any of them.
pub(crate) struct Nodes {
    pub(crate) seeds: Vec<Address>,
    data: Address,
}

/// The sentinels of a master, and how to log on to it.
pub(crate) struct Sentinel {
    pub(crate) sentinels: Vec<Address>,
    pub(crate) master: String,
    /// How to log on to the master, wherever it is.
    pub(crate) data: Address,
}

impl Target {
    /// Reads a URL of any of our kinds.
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        if let Some((scheme, rest)) = url.split_once("+sentinel://") {
            check_fragment(rest).map_err(|what| sentinel_config(&what))?;
            let parsed = Sentinel::parse(scheme, rest);
            // Only a query that is valid may hold an @: the sentinels' password.
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

    /// All that it names.
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

    /// The same with this TLS, which then belongs to how each server is logged on to: those whose
    /// address is learnt later too.
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

    /// Several independent servers.
    pub(crate) fn quorum(urls: &[String]) -> Result<Self, Error> {
        let parse = |url: &String| {
            match Self::parse(url)? {
            Self::Server(address) => Ok(address),
            _ => Err(Error::Config(
                "a quorum is made of single servers: a URL of sentinels or of a cluster cannot be one of them"
                    .into(),
            )),
        }
        };
        let addresses = urls.iter().map(parse).collect::<Result<_, _>>()?;
        Ok(Self::Quorum(addresses))
    }

    /// A cluster, by some of its nodes.
    pub(crate) fn cluster(nodes: &[String]) -> Result<Self, Error> {
        let parse = |node: &String| match node.contains("://") {
            true => Address::parse(node),
            false => Address::parse(&format!("redis://{node}")),
        };
        let seeds = nodes.iter().map(parse).collect::<Result<_, _>>()?;
        Nodes::of(seeds).map(Self::Cluster)
    }

    /// A master, by its sentinels.
    pub(crate) fn sentinel(sentinels: &[String], master: &str) -> Result<Self, Error> {
        let (scheme, rest) = master.split_once("://").unwrap_or(("redis", master));
        let (user, name) = rest.rsplit_once('@').unwrap_or(("", rest));
        let (name, db) = name.split_once('/').unwrap_or((name, ""));
        if sentinels.is_empty() {
            return Err(sentinel_config("it names no sentinel"));
        }
        if name.is_empty() {
            return Err(sentinel_config("it names no master"));
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

    /// For people: no user, no password.
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
    /// Reads what follows the scheme: `[user:password@]host[:port],…[/][?…]`.
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

    /// The nodes of a cluster that is asked at any of `seeds`.
    fn of(seeds: Vec<Address>) -> Result<Self, Error> {
        let Some(first) = seeds.first() else {
            return Err(cluster_config("it names no node"));
        };
        let logon = |seed: &Address| {
            let redis = seed.info.redis_settings();
            let has_tls = matches!(seed.info.addr(), ConnectionAddr::TcpTls { .. });
            let user = redis.username().map(str::to_owned);
            (user, redis.password().map(str::to_owned), has_tls)
        };
        for seed in &seeds {
            if seed.info.redis_settings().db() != 0 {
                return Err(cluster_config("a cluster has no database but 0"));
            }
            if let ConnectionAddr::Unix(_) = seed.info.addr() {
                return Err(cluster_config("a node of a cluster has a host and a port"));
            }
            if logon(seed) != logon(first) {
                return Err(cluster_config(
                    "all nodes of a cluster have the same user, password and TLS",
                ));
            }
        }
        let data = first.clone();
        Ok(Self { seeds, data })
    }

    /// For people: no user, no password.
    pub(crate) fn label(&self) -> String {
        format!("cluster {}", labels(&self.seeds))
    }

    /// Where each seed is.
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

    /// A node, at the address that another one gave.
    pub(crate) fn at(&self, host: &str, port: u16) -> Address {
        self.data.at(host, port)
    }
}

fn cluster_config(what: &str) -> Error {
    Error::Config(format!(
        "the URL cannot be used: {what}; expected redis+cluster://[user:password@]host[:port],host[:port]"
    ))
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

    /// The master, at the address that a sentinel gave.
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

/// Adds the port that sentinels mostly have, where none is given.
fn with_sentinel_port(host: &str) -> String {
    let port = host.rsplit_once(':').map(|(_, port)| port);
    match port.is_some_and(|port| port.parse::<u16>().is_ok()) {
        true => host.to_owned(),
        false => format!("{host}:26379"),
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
    #[cfg(feature = "tls")]
    pub(crate) tls: Arc<Tls>,
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
                return Err(config("its scheme is not supported".into()));
            }
            Some("rediss" | "valkeys") if !cfg!(feature = "tls") => {
                return Err(config("TLS needs leasehold's feature `tls`".into()));
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

    /// The same way to log on, at another address.
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

/// What is wrong where a character of the user or the password ends the part of the URL that they
/// are in.
const UNESCAPED: &str = "a character of the user or password is not escaped \
     (write / as %2F, ? as %3F, # as %23, @ as %40 and % as %25)";

/// Errors for a URL that the library would misread, or reject without saying why.
fn check_places(url: &str) -> Result<(), String> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    check_fragment(rest)?;
    // A path may hold an @.
    if scheme.ends_with("unix") {
        return Ok(());
    }
    match is_logon_cut_off(rest) {
        true => Err(UNESCAPED.into()),
        false => check_port(rest),
    }
}

/// Whether what follows the scheme has an `@` behind the first `/`, `?` or `#`, none of which may be in front of it.
fn is_logon_cut_off(rest: &str) -> bool {
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    rest.get(end..).is_some_and(|behind| behind.contains('@'))
}

/// Errors for a `#`: the library takes no notice of most that follows one.
fn check_fragment(rest: &str) -> Result<(), String> {
    match rest.split_once('#') {
        None => Ok(()),
        Some((_, "insecure")) => Err(
            "#insecure is not supported, the server's certificate is always checked: remove it, and give \
             a private authority to ClientBuilder::tls_root"
                .into(),
        ),
        Some((_, fragment)) if fragment.contains('@') => Err(UNESCAPED.into()),
        Some(_) => Err("it has a part behind #, which means nothing: remove it, or write # as %23".into()),
    }
}

/// Errors for a port that is none, in what follows the scheme.
fn check_port(rest: &str) -> Result<(), String> {
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    // Within brackets there are colons of an address.
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
                "its port is not a number (in front of a host, a user and password end with @)"
                    .into(),
            ),
        },
    }
}

/// Errors for a parameter that is not known, which would change nothing. It is named only where it
/// cannot be a piece of a password whose `?` or `&` was not encoded.
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
                "a parameter (not repeated here: it may be a piece of a password, where ? is written %3F, & %26 and @ %40)"
                    .into()
            } else {
                format!("the parameter `{name}`")
            };
            return Err(format!(
                "{parameter} is not known; those of this kind of URL are: {}",
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
    // A sentinel or a node of a cluster may have named the host.
    Escaped::said(&label).to_string()
}

fn config(what: String) -> Error {
    Error::Config(format!(
        "the URL cannot be used: {what}; expected redis://[user:password@]host[:port][/db], rediss://…, \
         redis+unix:///path[?db=0&user=…&pass=…], redis+sentinel://…/name, or redis+cluster://host,host"
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
    fn each_mistake_in_a_url_is_told_what_to_do() {
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
                panic!("{url} was taken")
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
                panic!("{url} was taken")
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
    fn sentinels() {
        let url = "redis+sentinel://ann:s3cret@h1,h2:26380,[::1]/mymaster/2?sentinel_pass=t0p&protocol=resp3";
        let Ok(Target::Sentinel(sentinel)) = Target::parse(url) else {
            panic!("not taken")
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
    fn clusters() {
        let url = "redis+cluster://ann:s3cret@h1,h2:7001,[::1]:7002/?protocol=resp3";
        let Ok(Target::Cluster(nodes)) = Target::parse(url) else {
            panic!("not taken")
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
                panic!("{wrong} was taken")
            };
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn in_parts() {
        let nodes = ["h1:7000".into(), "h2".into()];
        let Ok(Target::Cluster(cluster)) = Target::cluster(&nodes) else {
            panic!("not taken")
        };
        assert_eq!(cluster.label(), "cluster h1:7000,h2:6379");
        let nodes = ["redis://ann:s3cret@h1".into(), "redis://:s3cret@h2".into()];
        let Err(error) = Target::cluster(&nodes) else {
            panic!("taken")
        };
        assert!(!error.to_string().contains("s3cret"), "{error}");
        assert!(Target::cluster(&[]).is_err());

        let hosts = ["h1".into(), "redis://:t0p@h2:26380".into()];
        let master = "redis://ann:s3cret@mymaster/2";
        let Ok(Target::Sentinel(sentinel)) = Target::sentinel(&hosts, master) else {
            panic!("not taken")
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
            panic!("taken")
        };
        assert!(error.to_string().contains("`tls`"), "{error}");
    }
}
