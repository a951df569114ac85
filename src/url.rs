//! Server addresses and credentials, read from URLs.

mod address;
mod check;
mod explain;
mod foreign;
mod role;
#[cfg(test)]
mod tests;

use std::slice;
use std::sync::Arc;

use redis::ConnectionAddr;

use crate::address_map::AddressMap;
use crate::credentials::CredentialsSource;
use crate::error::Error;
use crate::escape::Escaped;
use crate::resolver::Resolver;
#[cfg(feature = "tls")]
use crate::tls::Tls;
use crate::url::check::{
    UNESCAPED, check_fragment, check_port, check_query, invalid, is_logon_cut_off,
};
use crate::url::foreign::canonical;
use crate::url::role::Role;

pub(crate) use crate::url::address::{Address, Logon};
pub(crate) use crate::url::foreign::cleaned;

/// The most servers of a quorum: local queues record which servers have announced a release in the
/// bits of one `u64`, and an odd number of servers is best.
const MOST_SERVERS: usize = 63;

/// The query parameters of a URL of sentinels.
const SENTINEL_PARAMETERS: [&str; 5] = [
    "db",
    "sentinel_user",
    "sentinel_pass",
    "sentinel_tls",
    "protocol",
];

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

/// The host and port of a server.
pub(crate) type HostPort = (String, u16);

/// The seed nodes of a cluster, and the credentials for all nodes.
pub(crate) struct Nodes {
    seeds: Vec<Address>,
    /// The first seed. Its credentials and TLS settings are those of all nodes.
    pub(crate) data: Address,
}

/// The sentinels of a master, and the credentials for the master.
pub(crate) struct Sentinel {
    pub(crate) sentinels: Vec<Address>,
    /// Whether the caller says that the sentinels have TLS, or that they have none.
    says_tls: bool,
    pub(crate) master: String,
    /// The credentials and TLS settings for the master. The host is a placeholder: the sentinels
    /// report the address.
    pub(crate) data: Address,
}

impl Target {
    /// Parses a URL of any supported kind.
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        let url = &*canonical(url);
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        let (scheme, kind) = scheme.rsplit_once('+').unwrap_or_default();
        let wrong: fn(String) -> Error = match kind {
            "sentinel" => sentinel_config,
            "cluster" => cluster_config,
            "quorum" => quorum_config,
            _ => return Address::parse(url).map(Self::Server),
        };
        check_fragment(rest).map_err(wrong)?;
        let parsed = match kind {
            "sentinel" => Sentinel::parse(scheme, rest).map(Self::Sentinel),
            "cluster" => (addresses(scheme, rest).and_then(Nodes::of)).map(Self::Cluster),
            _ => quorum_servers(scheme, rest).map(Self::Quorum),
        };
        // After the hosts, an @ is valid only in the query, in a user or password of the sentinels.
        // In an invalid URL, it more likely ends an unescaped user or password.
        let has_stray_at = parsed.is_err() && is_logon_cut_off(rest);
        if has_stray_at || is_logon_cut_off(rest.split('?').next().unwrap_or_default()) {
            Err(wrong(UNESCAPED.into()))
        } else {
            parsed
        }
    }

    /// Returns every address, for a change to all of them.
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

    /// Sets what finds the addresses of all hosts.
    pub(crate) fn with_resolver(mut self, resolver: Resolver) -> Self {
        let resolver = Arc::new(resolver);
        for address in self.addresses() {
            address.resolver = Arc::clone(&resolver);
        }
        self
    }

    /// Fills in the credentials of servers without a password. Sentinels have their own.
    pub(crate) fn fill_in_logon(mut self, logon: &Logon) -> Self {
        for address in self.servers() {
            address.fill_in_logon(logon);
        }
        self
    }

    /// Returns the addresses whose credentials are those of the servers that keep the locks.
    fn servers(&mut self) -> &mut [Address] {
        match self {
            Self::Server(data)
            | Self::Sentinel(Sentinel { data, .. })
            | Self::Cluster(Nodes { data, .. }) => slice::from_mut(data),
            Self::Quorum(addresses) => addresses,
        }
    }

    /// Sets where the credentials of the servers come from.
    pub(crate) fn with_credentials(mut self, source: &CredentialsSource) -> Result<Self, Error> {
        set_source(self.servers(), source, "credentials")?;
        Ok(self)
    }

    /// Sets where the credentials of the sentinels come from.
    pub(crate) fn with_sentinel_credentials(
        mut self,
        source: &CredentialsSource,
    ) -> Result<Self, Error> {
        let Self::Sentinel(sentinel) = &mut self else {
            return Err(Error::Config(
                "sentinel_credentials needs sentinels: ClientBuilder::sentinel, or a URL with \
                 redis+sentinel://"
                    .into(),
            ));
        };
        set_source(&mut sentinel.sentinels, source, "sentinel_credentials")?;
        Ok(self)
    }

    /// Sets where addresses that sentinels or nodes announce are reached.
    pub(crate) fn with_address_map(mut self, map: &AddressMap) -> Result<Self, Error> {
        match &mut self {
            Self::Sentinel(Sentinel { data, .. }) | Self::Cluster(Nodes { data, .. }) => {
                data.map = map.clone();
                Ok(self)
            }
            Self::Server(_) | Self::Quorum(_) => Err(Error::Config(
                "address_map needs sentinels or a cluster: other servers announce no addresses"
                    .into(),
            )),
        }
    }

    /// Returns whether the connections to any server or sentinel are encrypted.
    #[cfg(feature = "tls")]
    pub(crate) fn has_tls(&mut self) -> bool {
        let mut addresses = self.addresses().into_iter();
        addresses.any(|address| address.has_tls())
    }

    /// Sets whether the connections to the sentinels are encrypted. Those to the master stay as
    /// they are.
    #[cfg(feature = "tls")]
    pub(crate) fn with_sentinel_tls(mut self, on: bool) -> Result<Self, Error> {
        let Self::Sentinel(sentinel) = &mut self else {
            return Err(Error::Config(
                "sentinel_tls (REDIS_SENTINEL_TLS) needs sentinels: ClientBuilder::sentinel, or a \
                 URL with redis+sentinel://"
                    .into(),
            ));
        };
        for address in &mut sentinel.sentinels {
            address.encrypt(on);
        }
        sentinel.set_roles();
        Ok(self)
    }

    /// Sets the certificates for every server with TLS, including those whose address is learnt
    /// later. Fails if a server has no TLS: the certificates suggest encryption. Only the sentinels
    /// may all differ from their master in that.
    #[cfg(feature = "tls")]
    pub(crate) fn with_tls(mut self, tls: &Tls) -> Result<Self, Error> {
        if !tls.is_set() {
            return Ok(self);
        }
        tls.check()?;
        let has_tls = self.has_tls();
        let mut plain = self.addresses().into_iter();
        let plain = plain.find(|address| !address.has_tls());
        match plain.map(|address| address.label.clone()) {
            _ if !has_tls => return Err(self.needs_tls()),
            Some(_) if self.has_tls_for_one_side() => {}
            Some(label) => {
                return Err(Error::Config(format!(
                    "tls_root (REDIS_TLS_CA) and tls_client_cert (REDIS_TLS_CERT) are set, and \
                     other servers have TLS, but {label} has none: set up TLS there, and write \
                     rediss:// for it, too"
                )));
            }
            None => {}
        }
        let tls = Arc::new(tls.clone());
        for address in self.addresses() {
            address.set_tls(&tls);
        }
        Ok(self)
    }

    /// Returns whether all sentinels have TLS and their master has none, or the reverse.
    #[cfg(feature = "tls")]
    fn has_tls_for_one_side(&self) -> bool {
        let Self::Sentinel(Sentinel {
            sentinels, data, ..
        }) = self
        else {
            return false;
        };
        let mut sentinels = sentinels.iter();
        sentinels.all(|sentinel| sentinel.has_tls() != data.has_tls())
    }

    /// The error for certificates without any TLS.
    #[cfg(feature = "tls")]
    fn needs_tls(&self) -> Error {
        let sentinels = match self {
            Self::Sentinel(_) => {
                "; if only the sentinels have TLS, set sentinel_tls=yes, and if only the master has \
                 it, use rediss+sentinel:// with sentinel_tls=no"
            }
            _ => "",
        };
        Error::Config(format!(
            "tls_root (REDIS_TLS_CA) and tls_client_cert (REDIS_TLS_CERT) need a URL with TLS: \
             rediss://…, rediss+sentinel://…, rediss+cluster://… or rediss+quorum://…; if the servers \
             have no TLS, remove them{sentinels}"
        ))
    }

    /// Returns whether these are sentinels of which the caller does not say whether they have TLS.
    pub(crate) fn lacks_sentinel_tls(&self) -> bool {
        matches!(self, Self::Sentinel(sentinel) if !sentinel.says_tls)
    }

    /// Returns the quorum of the independent servers that these URLs name.
    pub(crate) fn quorum(urls: &[String]) -> Result<Self, Error> {
        let parse = |url: &String| match Self::parse(url)? {
            Self::Server(address) => Ok(address),
            _ => Err(Error::Config(
                "a quorum consists of single servers: \
                 it cannot contain a URL of sentinels or a cluster"
                    .into(),
            )),
        };
        let addresses = urls.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        check_quorum(&addresses)?;
        Ok(Self::Quorum(addresses))
    }

    /// Returns the cluster with these seed nodes, each `host[:port]` or a URL.
    pub(crate) fn cluster(nodes: &[String]) -> Result<Self, Error> {
        let parse = |node: &String| {
            if node.contains("://") {
                Address::parse(node)
            } else {
                Address::parse(&format!("redis://{node}"))
            }
        };
        let seeds = nodes.iter().map(parse).collect::<Result<_, _>>()?;
        Nodes::of(seeds).map(Self::Cluster)
    }

    /// Returns the master that these sentinels monitor.
    ///
    /// Each sentinel is `[scheme://][user:password@]host[:port]`; `master` is
    /// `[scheme://][user:password@]name[/db][?…]`.
    pub(crate) fn sentinel(sentinels: &[String], master: &str) -> Result<Self, Error> {
        let (own_scheme, rest) = master.split_once("://").unwrap_or(("", master));
        let scheme = if own_scheme.is_empty() {
            "redis"
        } else {
            own_scheme
        };
        let (logon, name) = split_logon(rest);
        let (name, query) = name.split_at(name.find('?').unwrap_or(name.len()));
        let (name, db) = name.split_once('/').unwrap_or((name, ""));
        if sentinels.is_empty() {
            return Err(sentinel_config("no sentinel given"));
        }
        if name.is_empty() {
            return Err(sentinel_config("no master name given"));
        }
        let parse = |sentinel: &String| {
            let (scheme, rest) = sentinel.split_once("://").unwrap_or((scheme, sentinel));
            sentinel_address(scheme, "", rest.strip_suffix('/').unwrap_or(rest))
        };
        let says_tls = sentinels.iter().any(|sentinel| sentinel.contains("://"));
        let sentinels = sentinels.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        if own_scheme.is_empty() && sentinels.iter().any(Address::has_tls) {
            return Err(Error::Config(
                "the sentinels have TLS, and nothing says whether their master has: write its name \
                 as rediss://name, or as redis://name if it has none"
                    .into(),
            ));
        }
        let data = Address::parse(&format!("{scheme}://{logon}master/{db}{query}"))?;
        let sentinel = Sentinel::new(sentinels, says_tls, name, data);
        Ok(Self::Sentinel(sentinel))
    }

    /// The address without credentials, for messages.
    pub(crate) fn label(&self) -> String {
        match self {
            Self::Server(address) => address.label.clone(),
            Self::Sentinel(sentinel) => sentinel.label(),
            Self::Cluster(nodes) => nodes.label(),
            Self::Quorum(addresses) => format!("quorum of {}", labels(addresses, ", ")),
        }
    }
}

impl Nodes {
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
        let mut data = first.clone();
        data.role = Role::Node {
            seeds: seeds.iter().filter_map(host_port).collect(),
            is_announced: false,
        };
        Ok(Self { seeds, data })
    }

    /// The addresses without credentials, for messages.
    pub(crate) fn label(&self) -> String {
        format!("cluster {}", labels(&self.seeds, ","))
    }

    /// The host and port of each seed.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = HostPort> {
        self.seeds.iter().filter_map(host_port)
    }
}

impl Sentinel {
    fn new(sentinels: Vec<Address>, says_tls: bool, master: &str, data: Address) -> Self {
        let mut this = Self {
            sentinels,
            says_tls,
            master: master.to_owned(),
            data,
        };
        this.set_roles();
        this
    }

    /// Notes at each address which side it is, for the advice in errors.
    fn set_roles(&mut self) {
        for sentinel in &mut self.sentinels {
            sentinel.role = Role::Sentinel;
        }
        self.data.role = Role::Master {
            sentinels_have_tls: self.sentinels.iter().any(Address::has_tls),
        };
    }

    /// Parses the part after the scheme: `[user:password@]host[:port],…/name[/db][?…]`.
    fn parse(scheme: &str, rest: &str) -> Result<Self, Error> {
        let [logon, hosts, path, query] = parts(rest);
        let (master, db) = path.split_once('/').unwrap_or((path, ""));
        if master.is_empty() {
            return Err(sentinel_config("no master name given"));
        }
        check_query(query, &SENTINEL_PARAMETERS).map_err(sentinel_config)?;
        let value = |name: &str| {
            query
                .split('&')
                .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
        };
        let of_data = ["db", "protocol"].map(|name| match value(name) {
            Some(value) => format!("&{name}={value}"),
            None => String::new(),
        });
        let of_data = of_data.concat();
        let data = Address::parse(&format!("{scheme}://{logon}master/{db}?{of_data}"))?;
        let logon = match (value("sentinel_user"), value("sentinel_pass")) {
            (None, None) => String::new(),
            (user, password) => format!("{}:{}@", user.unwrap_or(""), password.unwrap_or("")),
        };
        let tls = value("sentinel_tls");
        let scheme = match tls {
            None => scheme,
            Some("yes") => "rediss",
            Some("no") => "redis",
            Some(_) => return Err(sentinel_config("the parameter `sentinel_tls` is yes or no")),
        };
        let parse = |host| sentinel_address(scheme, &logon, host);
        let sentinels = hosts.split(',').map(parse).collect::<Result<_, _>>()?;
        Ok(Self::new(sentinels, tls.is_some(), master, data))
    }

    /// The addresses without credentials, for messages.
    pub(crate) fn label(&self) -> String {
        format!(
            "{} of sentinels {}",
            Escaped::said(&self.master),
            labels(&self.sentinels, ",")
        )
    }
}

/// Returns the host and port of a server that has them.
fn host_port(address: &Address) -> Option<HostPort> {
    match address.info.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            Some((host.clone(), *port))
        }
        _ => None,
    }
}

/// Returns the parts of a URL of several hosts, after the scheme: the user and password with the
/// `@` after them, the hosts, the path and the query. Those that are missing are empty.
fn parts(rest: &str) -> [&str; 4] {
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (logon, hosts) = split_logon(authority);
    [logon, hosts, path, query]
}

/// Parses `[user:password@]host[:port],…[/path][?…]`. All parts except `host[:port]` apply to each
/// address.
fn addresses(scheme: &str, rest: &str) -> Result<Vec<Address>, Error> {
    let [logon, hosts, path, query] = parts(rest);
    let parse = |host: &str| Address::parse(&format!("{scheme}://{logon}{host}/{path}?{query}"));
    hosts.split(',').map(parse).collect()
}

/// Parses the part of a quorum's URL after the scheme.
fn quorum_servers(scheme: &str, rest: &str) -> Result<Vec<Address>, Error> {
    let servers = addresses(scheme, rest)?;
    let is_socket = |server: &Address| matches!(server.info.addr(), ConnectionAddr::Unix(_));
    if servers.iter().any(is_socket) {
        Err(quorum_config(
            "a server of a quorum needs a host and a port, not a socket path",
        ))
    } else {
        check_quorum(&servers).map(|()| servers)
    }
}

/// Returns an error if no quorum can consist of these servers.
fn check_quorum(addresses: &[Address]) -> Result<(), Error> {
    let wrong = |what: String| Err(Error::Config(format!("the quorum cannot work: {what}")));
    if addresses.is_empty() || addresses.len() > MOST_SERVERS {
        return wrong(format!(
            "it has {} servers; expected 1 to {MOST_SERVERS}, best 3 or 5",
            addresses.len()
        ));
    }
    for (n, address) in addresses.iter().enumerate() {
        if addresses
            .iter()
            .take(n)
            .any(|other| other.label == address.label)
        {
            return wrong(format!(
                "{} is named twice: each server has one vote",
                address.label
            ));
        }
    }
    Ok(())
}

/// Sets where the credentials of these servers come from; `setting` is the builder's.
fn set_source(
    addresses: &mut [Address],
    source: &CredentialsSource,
    setting: &str,
) -> Result<(), Error> {
    for address in addresses {
        if address.has_password() {
            return Err(Error::Config(format!(
                "{setting} is set, and the URL of {} contains a password: remove one of them",
                address.label
            )));
        }
        address.credentials = Some(source.clone());
    }
    Ok(())
}

/// Splits after the last `@`, which ends the user and password. Without an `@`, the first part is
/// empty.
fn split_logon(authority: &str) -> (&str, &str) {
    authority.split_at(authority.rfind('@').map_or(0, |at| at + 1))
}

/// Parses the address of a sentinel, whose port is 26379 if none is given.
fn sentinel_address(scheme: &str, logon: &str, host: &str) -> Result<Address, Error> {
    check_port(host).map_err(sentinel_config)?;
    // A colon without a port means the default port.
    let host = host.strip_suffix(':').unwrap_or(host);
    let port = host.rsplit_once(':').map(|(_, port)| port);
    let has_port = port.is_some_and(|port| port.parse::<u16>().is_ok());
    let port = if has_port { "" } else { ":26379" };
    Address::parse(&format!("{scheme}://{logon}{host}{port}"))
}

fn labels(addresses: &[Address], separator: &str) -> String {
    let labels = addresses.iter().map(|address| address.label.as_str());
    labels.collect::<Vec<_>>().join(separator)
}

fn cluster_config(what: impl AsRef<str>) -> Error {
    invalid(
        what,
        "redis+cluster://[user:password@]host[:port],host[:port]",
    )
}

fn quorum_config(what: impl AsRef<str>) -> Error {
    invalid(
        what,
        "redis+quorum://[user:password@]host[:port],host[:port],host[:port][/db]",
    )
}

fn sentinel_config(what: impl AsRef<str>) -> Error {
    invalid(
        what,
        "redis+sentinel://[user:password@]host[:port],host[:port]/name[/db]\
         [?sentinel_user=…&sentinel_pass=…&sentinel_tls=yes|no]",
    )
}
