//! TLS settings: trusted certificate authorities and the client certificate. Feature `tls` only.

use std::fmt;

use redis::{ErrorKind, RedisResult};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::error::Error;

/// The TLS settings of a client, as PEM texts.
#[derive(Clone, Default)]
pub(crate) struct Tls {
    /// The trusted authorities; `None` means those of the system.
    pub(crate) root: Option<Vec<u8>>,
    pub(crate) client: Option<ClientCert>,
}

/// The client certificate with its chain, and its private key, as PEM texts.
#[derive(Clone)]
pub(crate) struct ClientCert {
    pub(crate) chain: Vec<u8>,
    pub(crate) key: Vec<u8>,
}

impl Tls {
    pub(crate) fn is_set(&self) -> bool {
        self.root.is_some() || self.client.is_some()
    }

    /// Checks the PEM texts. Errors name the setting; they never quote a library's message, which
    /// may contain a part of the key.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if let Some(pem) = &self.root {
            check_root(pem)?;
        }
        self.client.as_ref().map_or(Ok(()), check_client)
    }

    /// Returns the configuration for a new connection, from PEM texts that [`check`](Self::check)
    /// has accepted.
    ///
    /// Loads the system's authorities each time, because they may be replaced while a client runs.
    pub(crate) fn client_config(&self) -> RedisResult<ClientConfig> {
        let mut roots = RootCertStore::empty();
        match &self.root {
            Some(pem) => {
                for root in certificates(pem).unwrap_or_default() {
                    roots.add(root)?;
                }
            }
            None => {
                let mut found = rustls_native_certs::load_native_certs();
                // One damaged certificate of the system must not make every connection fail.
                let (added, _) = roots.add_parsable_certificates(found.certs);
                if added == 0
                    && let Some(error) = found.errors.pop()
                {
                    return Err(error.into());
                }
            }
        }
        let config = ClientConfig::builder().with_root_certificates(roots);
        let Some(client) = &self.client else {
            return Ok(config.with_no_client_auth());
        };
        let chain = certificates(&client.chain).unwrap_or_default();
        // The library's error may contain a part of the key.
        let key = PrivateKeyDer::from_pem_slice(&client.key).map_err(|_| {
            (
                ErrorKind::InvalidClientConfig,
                "tls_client_cert cannot be read",
            )
        })?;
        Ok(config.with_client_auth_cert(chain, key)?)
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("root", &self.root.is_some())
            .field("client_cert", &self.client.is_some())
            .finish()
    }
}

/// Installs a crypto provider for the process, unless one is installed. Without it, rustls panics
/// in a program that links two providers and has installed none.
pub(crate) fn install_provider() {
    // An error means that the program or an earlier call has installed one.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Returns the certificates in a PEM text; `None` if there are none or one is damaged.
fn certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let all = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    all.ok().filter(|all| !all.is_empty())
}

fn check_root(pem: &[u8]) -> Result<(), Error> {
    let Some(roots) = certificates(pem) else {
        return wrong("tls_root contains no readable PEM certificate");
    };
    let mut store = RootCertStore::empty();
    for root in roots {
        if store.add(root).is_err() {
            return wrong("tls_root contains a certificate that is not a valid X.509 authority");
        }
    }
    Ok(())
}

fn check_client(client: &ClientCert) -> Result<(), Error> {
    use rustls::{Error as TlsError, InconsistentKeys};
    let Some(chain) = certificates(&client.chain) else {
        return wrong(
            "tls_client_cert: the certificate (its first part) contains no readable PEM \
             certificate",
        );
    };
    let Ok(key) = PrivateKeyDer::from_pem_slice(&client.key) else {
        return wrong(
            "tls_client_cert: the key (its second part) contains no readable PEM private key; \
             decrypt an encrypted key first",
        );
    };
    install_provider();
    let Some(provider) = rustls::crypto::CryptoProvider::get_default() else {
        unreachable!("just installed, or installed by the program")
    };
    match rustls::sign::CertifiedKey::from_der(chain, key, provider) {
        Ok(_) => Ok(()),
        Err(TlsError::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
            wrong("tls_client_cert: the key does not belong to the certificate")
        }
        Err(TlsError::InvalidCertificate(_)) => {
            wrong("tls_client_cert: the certificate (its first part) is not valid X.509")
        }
        Err(_) => wrong(
            "tls_client_cert: the key (its second part) is not supported; \
             expected RSA, ECDSA or Ed25519",
        ),
    }
}

fn wrong<T>(what: &str) -> Result<T, Error> {
    Err(Error::Config(what.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    macro_rules! pem {
        ($file:literal) => {
            include_bytes!(concat!("../tests/support/certificates/", $file))
        };
    }

    fn client(chain: &[u8], key: &[u8]) -> Tls {
        let (chain, key) = (chain.to_vec(), key.to_vec());
        Tls {
            root: None,
            client: Some(ClientCert { chain, key }),
        }
    }

    fn root(pem: &[u8]) -> Tls {
        Tls {
            root: Some(pem.to_vec()),
            client: None,
        }
    }

    #[test]
    fn valid_certificates_pass() {
        root(pem!("ca.pem")).check().unwrap();
        client(pem!("client.pem"), pem!("client.key"))
            .check()
            .unwrap();
    }

    #[test]
    fn errors_name_the_setting_and_keep_the_key_secret() {
        let (certificate, key) = (pem!("client.pem"), pem!("client.key"));
        let torn = &key[..key.len() / 2];
        let bad_start = [b"-----BEGIN ", &key[40..]].concat();
        let no_certificate = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for (tls, word) in [
            (root(b""), "tls_root"),
            (root(key), "tls_root"),
            (root(no_certificate), "tls_root"),
            (client(b"", key), "certificate (its first part)"),
            (client(key, key), "certificate (its first part)"),
            (client(no_certificate, key), "certificate (its first part)"),
            (client(certificate, b""), "key (its second part)"),
            (client(certificate, certificate), "key (its second part)"),
            (client(certificate, torn), "key (its second part)"),
            (client(certificate, &bad_start), "key (its second part)"),
            (
                client(certificate, pem!("server.key")),
                "does not belong to",
            ),
        ] {
            let error = tls.check().unwrap_err().to_string();
            assert!(error.contains(word), "{word}: {error}");
            let text = std::str::from_utf8(key).unwrap();
            let lines = text.lines().filter(|line| !line.starts_with('-'));
            for line in lines {
                assert!(!error.contains(line) && !format!("{tls:?}").contains(line));
            }
        }
    }
}
