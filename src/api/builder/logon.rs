//! The settings of a client's credentials and certificates.

use std::path::PathBuf;

use crate::api::builder::ClientBuilder;
use crate::credentials::{Credentials, CredentialsError, CredentialsSource};
#[cfg(feature = "tls")]
use crate::tls::{ClientCert, Pem};

impl ClientBuilder {
    /// Sets a callback that returns the user and password, for passwords that expire.
    ///
    /// The client calls it before each connect, on its own threads and possibly on several at once.
    /// The callback's time counts towards [`connect_timeout`](Self::connect_timeout), so it should
    /// read a value that another part of the program keeps current.
    ///
    /// If the server rejects the credentials, the client asks again at once, and then at each
    /// reconnect. Until then leases are held for as long as they last, waiting calls go on for
    /// [`unreachable_for`](Self::unreachable_for), and other calls fail with
    /// [`Error::Unreachable`](crate::Error::Unreachable). An error of the callback has the same
    /// effect; its text becomes a part of the error, and must not contain a password.
    ///
    /// With Sentinel these are the credentials of the master; see
    /// [`sentinel_credentials`](Self::sentinel_credentials). The URLs must contain no password. A
    /// user in the URL is used with [`Credentials::password`].
    ///
    /// ```
    /// use leasehold::{Client, Credentials};
    /// # fn current_token() -> Result<String, std::io::Error> { Ok("t0ken".into()) }
    ///
    /// let client = Client::builder()
    ///     .url("rediss://redis.internal:6379")
    ///     .credentials(|| Ok(Credentials::new("booking", current_token()?)))
    ///     .build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn credentials(
        mut self,
        ask: impl Fn() -> Result<Credentials, CredentialsError> + Send + Sync + 'static,
    ) -> Self {
        self.credentials = Some(CredentialsSource::new(ask));
        self
    }

    /// Sets a file that contains the password, for passwords that expire.
    ///
    /// The client reads it before each connect, without the line break at its end. Otherwise this
    /// is [`credentials`](Self::credentials) with a callback that reads the file.
    ///
    /// ```
    /// # use leasehold::Client;
    /// let client = Client::builder()
    ///     .url("redis://booking@redis.internal:6379")
    ///     .password_file("/run/secrets/redis")
    ///     .build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn password_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.credentials = Some(CredentialsSource::file(path.into()));
        self
    }

    /// Sets a callback that returns the credentials for the sentinels.
    ///
    /// It is called before each connect to a sentinel, as for
    /// [`credentials`](Self::credentials).
    ///
    /// ```
    /// use leasehold::{Client, Credentials};
    /// # fn token(_of: &str) -> Result<String, std::io::Error> { Ok("t0ken".into()) }
    ///
    /// let client = Client::builder()
    ///     .sentinel(["10.0.0.1", "10.0.0.2", "10.0.0.3"], "mymaster")
    ///     .credentials(|| Ok(Credentials::password(token("master")?)))
    ///     .sentinel_credentials(|| Ok(Credentials::password(token("sentinels")?)))
    ///     .build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn sentinel_credentials(
        mut self,
        ask: impl Fn() -> Result<Credentials, CredentialsError> + Send + Sync + 'static,
    ) -> Self {
        self.sentinel_credentials = Some(CredentialsSource::new(ask));
        self
    }

    /// Sets the certificate authorities to trust, as one or more concatenated PEM certificates.
    ///
    /// They replace the system's authorities for every connection with TLS, including those to
    /// sentinels. Requires a URL with TLS (`rediss://`) and the feature `tls`.
    ///
    /// ```no_run
    /// use leasehold::Client;
    ///
    /// let client = Client::builder()
    ///     .url("rediss://redis.internal:6379")
    ///     .tls_root(std::fs::read("/etc/redis/ca.pem")?)
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "tls")]
    pub fn tls_root(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.tls.root = Some(Pem::Text(pem.into()));
        self
    }

    /// Sets the file of the certificate authorities to trust, as for [`tls_root`](Self::tls_root).
    ///
    /// The client reads it for each connection, so it can be replaced while the client runs.
    ///
    /// ```no_run
    /// use leasehold::Client;
    ///
    /// let client = Client::builder()
    ///     .url("rediss://redis.internal:6379")
    ///     .tls_root_file("/etc/redis/ca.pem")
    ///     .build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[cfg(feature = "tls")]
    pub fn tls_root_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.tls.root = Some(Pem::File(path.into()));
        self
    }

    /// Sets whether the connections to sentinels are encrypted, if they differ from the master.
    ///
    /// By default the sentinels have TLS if the URL says so of the master. `false` reaches
    /// sentinels without TLS, of a master with it, and `true` the reverse. This overrides
    /// `?sentinel_tls=yes` and `?sentinel_tls=no` of the URL, and the schemes of the sentinels.
    /// Without TLS, the user and password for the sentinels are sent unencrypted. [`tls_root`](Self::tls_root) and
    /// [`tls_client_cert`](Self::tls_client_cert) are used for each connection with TLS. Requires
    /// sentinels and the feature `tls`.
    ///
    /// ```
    /// use leasehold::Client;
    ///
    /// let client = Client::builder()
    ///     .url("rediss+sentinel://10.0.0.1,10.0.0.2,10.0.0.3/mymaster")
    ///     .sentinel_tls(false)
    ///     .build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[cfg(feature = "tls")]
    pub fn sentinel_tls(mut self, on: bool) -> Self {
        self.sentinel_tls = Some(on);
        self
    }

    /// Sets the certificate for servers that require one from clients, and its private key, as PEM.
    ///
    /// Intermediate certificates may follow the client's own. The key must not be encrypted; it is
    /// never printed. Requires a URL with TLS (`rediss://`) and the feature `tls`.
    ///
    /// ```no_run
    /// use std::fs::read;
    /// use leasehold::Client;
    ///
    /// let client = Client::builder()
    ///     .url("rediss://redis.internal:6379")
    ///     .tls_root(read("/etc/redis/ca.pem")?)
    ///     .tls_client_cert(read("/etc/redis/client.pem")?, read("/etc/redis/client.key")?)
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "tls")]
    pub fn tls_client_cert(
        mut self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.tls.client = Some(ClientCert {
            chain: Pem::Text(certificate.into()),
            key: Pem::Text(key.into()),
        });
        self
    }

    /// Sets the files of the client certificate and its private key, as for
    /// [`tls_client_cert`](Self::tls_client_cert).
    ///
    /// The client reads them for each connection, so they can be replaced while the client runs.
    /// While one of them is missing, or does not belong to the other, no connection is made;
    /// waiting calls go on for [`unreachable_for`](Self::unreachable_for).
    ///
    /// ```no_run
    /// use leasehold::Client;
    ///
    /// let client = Client::builder()
    ///     .url("rediss://redis.internal:6379")
    ///     .tls_root_file("/etc/redis/ca.pem")
    ///     .tls_client_cert_files("/etc/redis/client.pem", "/etc/redis/client.key")
    ///     .build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[cfg(feature = "tls")]
    pub fn tls_client_cert_files(
        mut self,
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.tls.client = Some(ClientCert {
            chain: Pem::File(certificate.into()),
            key: Pem::File(key.into()),
        });
        self
    }
}
