//! The options that say where Redis is, and how long it may take.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use leasehold::{Client, ClientBuilder};

use crate::args::duration::duration;
use crate::exit::{Failure, USAGE};
use crate::server_variables::SERVER_VARIABLES;

#[derive(Args, Debug)]
pub(crate) struct ConnectionArgs {
    /// The server, such as `redis://host:6379/0`, in place of the environment's; several servers as
    /// `redis+cluster://host,host`, `redis+sentinel://host,host/name` or
    /// `redis+quorum://host,host,host`. Other users of the machine can read command lines: put the
    /// password into REDIS_PASSWORD, and a user into REDIS_USERNAME. These variables fill in a URL
    /// without a password
    #[arg(long, global = true, help_heading = "Redis")]
    url: Option<String>,

    /// The file that contains the password; read again for each connection, so that the password
    /// can be changed while a command runs
    #[arg(long, global = true, value_name = "FILE", help_heading = "Redis")]
    password_file: Option<PathBuf>,

    /// Where an address that sentinels or nodes of a cluster announce is reached from here, as
    /// `announced:port=reached:port`, or `*=NAME` for all other addresses, with their ports. Can be
    /// given several times
    #[arg(
        long, global = true, value_name = "A=B", value_parser = pair, help_heading = "Redis"
    )]
    address_map: Vec<(String, String)>,

    /// The prefix of lock keys [default: lock:]
    #[arg(long, global = true, value_name = "PREFIX", help_heading = "Redis")]
    key_prefix: Option<String>,

    /// The prefix of the channels on which releases are published [default: lock_release:]
    #[arg(long, global = true, value_name = "PREFIX", help_heading = "Redis")]
    channel_prefix: Option<String>,

    /// The longest time to open one connection [default: 1s]
    #[arg(
        long, global = true, value_name = "TIME", value_parser = duration, help_heading = "Redis"
    )]
    connect_timeout: Option<Duration>,

    /// The longest time to wait for the reply to one command [default: 1s]
    #[arg(
        long, global = true, value_name = "TIME", value_parser = duration, help_heading = "Redis"
    )]
    command_timeout: Option<Duration>,

    /// How long Redis may be unreachable before a wait for a lock fails. With `run --no-wait`, for
    /// how long to try to reach Redis [default: 10s; with --no-wait, one attempt]
    #[arg(
        long, global = true, value_name = "TIME", value_parser = duration, help_heading = "Redis"
    )]
    pub(crate) unreachable_for: Option<Duration>,

    /// The PEM file of the certificate authorities to trust in place of the system's. Needs a URL
    /// with TLS, such as `rediss://host`
    #[arg(long, global = true, value_name = "FILE", help_heading = "Redis")]
    tls_ca: Option<PathBuf>,

    /// Whether sentinels have TLS, if they differ from their master: `yes` or `no` [default: as the
    /// URL says, else REDIS_SENTINEL_TLS]
    #[arg(
        long, global = true, value_name = "yes|no", value_parser = yes_or_no,
        help_heading = "Redis"
    )]
    sentinel_tls: Option<bool>,

    /// The PEM file of the client certificate. Needs --tls-key
    #[arg(long, global = true, value_name = "FILE", help_heading = "Redis")]
    tls_cert: Option<PathBuf>,

    /// The PEM file of the private key for --tls-cert
    #[arg(long, global = true, value_name = "FILE", help_heading = "Redis")]
    tls_key: Option<PathBuf>,
}

impl ConnectionArgs {
    pub(crate) fn builder(&self) -> Result<ClientBuilder, Failure> {
        let mut builder = Client::builder();
        if let Some(url) = &self.url {
            builder = builder.url(url);
        }
        builder = self.with_tls(self.with_sentinel_tls(builder)?.with_env()?)?;
        if let Some(path) = &self.password_file {
            check_readable("--password-file", path)?;
            builder = builder.password_file(path);
        }
        if !self.address_map.is_empty() {
            builder = builder.address_map(self.address_map.iter().cloned());
        }
        if let Some(prefix) = &self.key_prefix {
            builder = builder.key_prefix(prefix);
        }
        if let Some(prefix) = &self.channel_prefix {
            builder = builder.channel_prefix(prefix);
        }
        if let Some(timeout) = self.connect_timeout {
            builder = builder.connect_timeout(timeout);
        }
        if let Some(timeout) = self.command_timeout {
            builder = builder.command_timeout(timeout);
        }
        if let Some(limit) = self.unreachable_for {
            builder = builder.unreachable_for(limit);
        }
        Ok(builder)
    }

    /// Returns whether neither an option nor a variable names a server.
    pub(crate) fn is_default(&self) -> bool {
        let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        self.url.is_none() && !SERVER_VARIABLES.into_iter().any(is_set)
    }

    pub(crate) fn client(&self) -> Result<Client, Failure> {
        Ok(self.builder()?.build()?)
    }

    #[cfg(feature = "tls")]
    fn with_sentinel_tls(&self, builder: ClientBuilder) -> Result<ClientBuilder, Failure> {
        Ok(match self.sentinel_tls {
            Some(on) => builder.sentinel_tls(on),
            None => builder,
        })
    }

    #[cfg(not(feature = "tls"))]
    fn with_sentinel_tls(&self, builder: ClientBuilder) -> Result<ClientBuilder, Failure> {
        match self.sentinel_tls {
            None => Ok(builder),
            Some(_) => Err(without_tls()),
        }
    }

    #[cfg(feature = "tls")]
    fn with_tls(&self, mut builder: ClientBuilder) -> Result<ClientBuilder, Failure> {
        if let Some(authorities) = &self.tls_ca {
            check_readable("--tls-ca", authorities)?;
            builder = builder.tls_root_file(authorities);
        }
        match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => {
                check_readable("--tls-cert", certificate)?;
                check_readable("--tls-key", key)?;
                Ok(builder.tls_client_cert_files(certificate, key))
            }
            (None, None) => Ok(builder),
            _ => Err(Failure::new(
                USAGE,
                "--tls-cert and --tls-key need each other",
            )),
        }
    }

    #[cfg(not(feature = "tls"))]
    fn with_tls(&self, builder: ClientBuilder) -> Result<ClientBuilder, Failure> {
        match (&self.tls_ca, &self.tls_cert, &self.tls_key) {
            (None, None, None) => Ok(builder),
            _ => Err(without_tls()),
        }
    }
}

#[cfg(not(feature = "tls"))]
fn without_tls() -> Failure {
    Failure::new(
        USAGE,
        "this program was built without TLS: build it with the feature `tls`",
    )
}

fn yes_or_no(text: &str) -> Result<bool, &'static str> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("expected yes or no"),
    }
}

/// Reads `A=B`.
fn pair(text: &str) -> Result<(String, String), &'static str> {
    let (from, to) = text
        .split_once('=')
        .ok_or("expected A=B, with an address on each side")?;
    Ok((from.to_owned(), to.to_owned()))
}

/// Fails if the file cannot be read now. Each connection reads it again.
fn check_readable(option: &str, path: &Path) -> Result<(), Failure> {
    let read = std::fs::read(path).map(drop);
    read.map_err(|error| {
        let path = path.display();
        Failure::new(USAGE, format!("cannot read {path} ({option}): {error}"))
    })
}
