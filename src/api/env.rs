//! A client's settings from environment variables.

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::fmt;
use std::num::NonZeroU16;
#[cfg(feature = "tls")]
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::api::builder::ClientBuilder;
use crate::credentials::read_password;
use crate::error::Error;
use crate::logging;
#[cfg(feature = "tls")]
use crate::tls::{ClientCert, Pem, Tls};
use crate::url::{Logon, Target, cleaned};

impl ClientBuilder {
    /// Reads settings from environment variables.
    ///
    /// [`Client::from_env`](crate::Client::from_env) lists the variables. If the servers were set
    /// before:
    ///
    /// - `REDIS_URL`, `REDIS_URLS`, `REDIS_HOST`, `REDIS_PORT` and `REDIS_DB` are not read.
    /// - `REDIS_USERNAME` and `REDIS_PASSWORD`, or the password in the file that
    ///   `REDIS_PASSWORD_FILE` names, fill in each URL without a password.
    /// - `REDIS_TLS_CA`, `REDIS_TLS_CERT` and `REDIS_TLS_KEY` are read only if the URLs use TLS.
    /// - `REDIS_SENTINEL_TLS` is read only if the program has set sentinels, and not whether they
    ///   have TLS.
    ///
    /// Setters called later override the environment. A URL set later gets no user, no password and
    /// no `REDIS_SENTINEL_TLS` from the environment.
    ///
    /// ```
    /// use leasehold::Client;
    ///
    /// let client = Client::builder().with_env()?.owner("nightly").build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if a variable is invalid; the message names it and says why. Rules that
    /// compare two settings, such as `command_timeout` and `min_replicas`, are checked by
    /// [`build`](Self::build), because setters may follow.
    pub fn with_env(self) -> Result<Self, Error> {
        builder(self, |name| std::env::var_os(name))
    }
}

/// Reads each variable with `var`, so that tests need not change the environment.
fn builder(
    mut builder: ClientBuilder,
    var: impl Fn(&str) -> Option<OsString>,
) -> Result<ClientBuilder, Error> {
    let text = |name: &str| -> Result<Option<String>, Error> {
        match var(name).map(OsString::into_string) {
            Some(Ok(value)) => {
                let (value, removed) = as_meant(name, &value);
                if let Some(removed) = removed {
                    logging::warn!(
                        "the environment variable {name} was taken, but {removed}: correct it"
                    );
                }
                Ok(Some(value.to_owned()).filter(|value| !value.is_empty()))
            }
            Some(Err(_)) => Err(expected(name, "text in UTF-8")),
            None => Ok(None),
        }
    };
    let had_source = builder.has_source();
    if !had_source {
        builder = servers(builder, &text)?.source_is_from_env();
    }
    builder = builder.fill_in_logon(logon(&text)?);
    builder = tls(builder, &text, had_source)?;
    for (name, set) in DURATIONS {
        if let Some(value) = text(name)? {
            let value = parsed(name, &value, "a whole number of milliseconds")?;
            let value = Duration::from_millis(value);
            // Checked without the other settings, so that an error can only be about this variable.
            checked(name, set(ClientBuilder::default(), value).check_values())?;
            builder = set(builder, value);
        }
    }
    if let Some(prefix) = text("LOCK_KEY_PREFIX")? {
        builder = builder.key_prefix(prefix);
    }
    Ok(builder)
}

/// Returns the value of a variable as it was most likely meant, and what was removed for that.
///
/// A secret file often ends with a line break, and `docker --env-file` keeps quotes. A quote may be
/// a part of a password or of a prefix.
fn as_meant<'a>(name: &str, value: &'a str) -> (&'a str, Option<&'static str>) {
    let is_secret = ["REDIS_USERNAME", "REDIS_PASSWORD"].contains(&name);
    if name.starts_with("REDIS_") && !is_secret || name.ends_with("_MS") {
        return cleaned(value);
    }
    match value.strip_suffix('\n') {
        Some(line) => (
            line.strip_suffix('\r').unwrap_or(line),
            Some("the line break at its end was removed"),
        ),
        None => (value, None),
    }
}

/// A setter of a duration.
type Set = fn(ClientBuilder, Duration) -> ClientBuilder;

/// The variables that contain milliseconds, each with its setter.
const DURATIONS: [(&str, Set); 4] = [
    ("LOCK_TTL_MS", ClientBuilder::ttl),
    ("LOCK_CONNECT_TIMEOUT_MS", ClientBuilder::connect_timeout),
    ("LOCK_COMMAND_TIMEOUT_MS", ClientBuilder::command_timeout),
    ("LOCK_UNREACHABLE_FOR_MS", ClientBuilder::unreachable_for),
];

const DEFAULT_HOST: &str = "127.0.0.1";
const DEFAULT_PORT: u16 = 6379;

/// Sets the servers.
fn servers(
    builder: ClientBuilder,
    text: &impl Fn(&str) -> Result<Option<String>, Error>,
) -> Result<ClientBuilder, Error> {
    match (text("REDIS_URL")?, text("REDIS_URLS")?) {
        (Some(_), Some(_)) => Err(both_set("REDIS_URL", "REDIS_URLS")),
        (Some(url), None) => {
            checked("REDIS_URL", Target::parse(&url))?;
            Ok(builder.url(url))
        }
        (None, Some(urls)) => {
            let is_separator = |c: char| c == ',' || c.is_whitespace();
            let urls = urls.split(is_separator).filter(|url| !url.is_empty());
            let urls: Vec<_> = urls.map(str::to_owned).collect();
            if urls.is_empty() {
                return Err(expected("REDIS_URLS", "one URL or several"));
            }
            checked("REDIS_URLS", Target::quorum(&urls))?;
            Ok(builder.quorum(urls))
        }
        (None, None) => {
            let host = text("REDIS_HOST")?;
            let url = assemble(host.as_deref(), text)?;
            let server = checked("REDIS_HOST", Target::parse(&url))?;
            if host.is_none() {
                logging::info!(
                    "none of the environment variables REDIS_URL, REDIS_URLS and REDIS_HOST is \
                     set: using redis://{}",
                    server.label()
                );
            }
            Ok(builder.url(url))
        }
    }
}

/// Reads the credentials for servers whose URL has no password.
fn logon(text: &impl Fn(&str) -> Result<Option<String>, Error>) -> Result<Logon, Error> {
    let logon = Logon {
        user: text("REDIS_USERNAME")?,
        password: text("REDIS_PASSWORD")?,
        password_file: text("REDIS_PASSWORD_FILE")?.map(Into::into),
    };
    let Some(path) = &logon.password_file else {
        return Ok(logon);
    };
    if logon.password.is_some() {
        return Err(both_set("REDIS_PASSWORD", "REDIS_PASSWORD_FILE"));
    }
    // Each connect reads the file again; an unusable file is an error now, too.
    checked("REDIS_PASSWORD_FILE", read_password(path))?;
    Ok(logon)
}

/// Sets whether sentinels have TLS, and the PEM files.
///
/// The variables are ignored if the builder had a URL without TLS. If the environment sets such a
/// URL, `build` fails: the files suggest encryption, but the connections would not be encrypted.
#[cfg(feature = "tls")]
fn tls(
    mut builder: ClientBuilder,
    text: &impl Fn(&str) -> Result<Option<String>, Error>,
    had_source: bool,
) -> Result<ClientBuilder, Error> {
    if builder.lacks_sentinel_tls()
        && let Some(on) = text("REDIS_SENTINEL_TLS")?
    {
        builder = builder.fill_in_sentinel_tls(match &*on {
            "yes" => true,
            "no" => false,
            _ => return Err(expected("REDIS_SENTINEL_TLS", "yes or no")),
        });
    }
    if had_source && !builder.has_tls() {
        return Ok(builder);
    }
    let file = |name: &str| Ok::<_, Error>(text(name)?.map(PathBuf::from));
    if let Some(root) = file("REDIS_TLS_CA")? {
        let tls = Tls {
            root: Some(Pem::File(root.clone())),
            client: None,
        };
        checked("REDIS_TLS_CA", tls.check())?;
        builder = builder.tls_root_file(root);
    }
    match (file("REDIS_TLS_CERT")?, file("REDIS_TLS_KEY")?) {
        (Some(chain), Some(key)) => {
            let client = Some(ClientCert {
                chain: Pem::File(chain.clone()),
                key: Pem::File(key.clone()),
            });
            checked(
                "REDIS_TLS_CERT with REDIS_TLS_KEY",
                Tls { root: None, client }.check(),
            )?;
            Ok(builder.tls_client_cert_files(chain, key))
        }
        (None, None) => Ok(builder),
        _ => Err(Error::Config(
            "the environment variables REDIS_TLS_CERT and REDIS_TLS_KEY need each other: \
             set both of them"
                .into(),
        )),
    }
}

#[cfg(not(feature = "tls"))]
fn tls(
    builder: ClientBuilder,
    text: &impl Fn(&str) -> Result<Option<String>, Error>,
    had_source: bool,
) -> Result<ClientBuilder, Error> {
    let names: &[&str] = if !had_source {
        &[
            "REDIS_TLS_CA",
            "REDIS_TLS_CERT",
            "REDIS_TLS_KEY",
            "REDIS_SENTINEL_TLS",
        ]
    } else if builder.lacks_sentinel_tls() {
        // If that URL has no TLS, the files are ignored. If it has, `build` fails.
        &["REDIS_SENTINEL_TLS"]
    } else {
        &[]
    };
    for name in names {
        if text(name)?.is_some() {
            let why = "this program was built without the feature `tls` of leasehold";
            return Err(unusable(name, why));
        }
    }
    Ok(builder)
}

/// Returns `value`, or an error that blames the variable `name`. So the check of `value` must not
/// depend on another setting.
fn checked<T>(name: &str, value: Result<T, Error>) -> Result<T, Error> {
    value.map_err(|error| unusable(name, error))
}

fn unusable(name: &str, why: impl fmt::Display) -> Error {
    Error::Config(format!(
        "the environment variable {name} cannot be used: {why}"
    ))
}

/// Returns the URL made of this `REDIS_HOST`, `REDIS_PORT` and `REDIS_DB`.
fn assemble(
    host: Option<&str>,
    text: &impl Fn(&str) -> Result<Option<String>, Error>,
) -> Result<String, Error> {
    let host = host.unwrap_or(DEFAULT_HOST);
    if host.contains("://") {
        let why = "it contains a URL; put that into REDIS_URL";
        return Err(unusable("REDIS_HOST", why));
    }
    let (host, own_port) = split_port(host);
    let own_port = own_port.map(|port| {
        let what = "a host, or a host and a port number";
        parsed("REDIS_HOST", port, what).map(NonZeroU16::get)
    });
    let port = text("REDIS_PORT")?;
    let is_service = port.as_ref().is_some_and(|port| port.starts_with("tcp://"));
    let port = port.map(|port| {
        // Kubernetes sets `tcp://10.0.0.1:6379` for a Service that is called `redis`.
        let number = match port.strip_prefix("tcp://") {
            Some(address) => address.rsplit(':').next().unwrap_or_default(),
            None => &port,
        };
        parsed("REDIS_PORT", number, "a port number").map(NonZeroU16::get)
    });
    let port = match (own_port.transpose()?, port.transpose()?) {
        (Some(own), Some(port)) if own != port && !is_service => {
            return Err(Error::Config(
                "the environment variables REDIS_HOST and REDIS_PORT name different ports: set \
                 only one of them"
                    .into(),
            ));
        }
        (own, port) => own.or(port).unwrap_or(DEFAULT_PORT),
    };
    let db: u32 = text("REDIS_DB")?.map_or(Ok(0), |db| {
        parsed("REDIS_DB", &db, "the number of a database")
    })?;
    // A URL has brackets around an IPv6 address.
    let host = if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]")
    } else {
        host.to_owned()
    };
    Ok(format!("redis://{host}:{port}/{db}"))
}

/// Splits `host:port`. An IPv6 address without brackets has no port.
fn split_port(host: &str) -> (&str, Option<&str>) {
    let behind = host.rsplit(']').next().unwrap_or_default();
    match behind.split_once(':') {
        Some((_, port)) if !port.contains(':') => {
            let end = host.len() - port.len() - 1;
            (host.get(..end).unwrap_or(host), Some(port))
        }
        _ => (host, None),
    }
}

fn parsed<T: FromStr>(name: &str, value: &str, what: &str) -> Result<T, Error> {
    value.parse().map_err(|_| expected(name, what))
}

/// Returns an error that does not repeat the value: it may be a password in the wrong variable.
fn expected(name: &str, what: &str) -> Error {
    Error::Config(format!(
        "the environment variable {name} cannot be used; it expects {what}"
    ))
}

fn both_set(one: &str, other: &str) -> Error {
    Error::Config(format!(
        "the environment variables {one} and {other} are both set: set only one of them"
    ))
}
