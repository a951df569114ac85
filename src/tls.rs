//! What TLS is set up with: whom to trust, and who we are. Only with the feature `tls`.

use std::fmt;

use redis::{ErrorKind, RedisResult};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::error::Error;

/// As PEM. `None` and empty: the system's authorities, and no certificate of our own.
#[derive(Clone, Default)]
pub(crate) struct Tls {
    pub(crate) root: Option<Vec<u8>>,
    pub(crate) client: Option<ClientCert>,
}

#[derive(Clone)]
pub(crate) struct ClientCert {
    pub(crate) chain: Vec<u8>,
    pub(crate) key: Vec<u8>,
}

impl Tls {
    pub(crate) fn is_set(&self) -> bool {
        self.root.is_some() || self.client.is_some()
    }

    /// Errors name the setting. None repeats what a library says of the PEM, which may hold a part of
    /// the key.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if let Some(pem) = &self.root {
            check_root(pem)?;
        }
        self.client.as_ref().map_or(Ok(()), check_client)
    }

    /// What a new connection is encrypted with. Reads the system's authorities anew each time where none were given: they
    /// may be replaced while a client lives. The PEM was checked before.
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
                if let Some(error) = found.errors.pop() {
                    return Err(error.into());
                }
                for root in found.certs {
                    roots.add(root)?;
                }
            }
        }
        let config = ClientConfig::builder().with_root_certificates(roots);
        let Some(client) = &self.client else {
            return Ok(config.with_no_client_auth());
        };
        let chain = certificates(&client.chain).unwrap_or_default();
        // Whatever this says may hold a part of the key.
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

/// With two providers in a program's tree rustls picks none and panics.
pub(crate) fn install_provider() {
    // An error means that the program has chosen one itself.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// The certificates in a PEM text; `None` if there are none, or one is damaged.
fn certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let all = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    all.ok().filter(|all| !all.is_empty())
}

fn check_root(pem: &[u8]) -> Result<(), Error> {
    let Some(roots) = certificates(pem) else {
        return wrong("tls_root holds no certificate in PEM that can be read");
    };
    let mut store = RootCertStore::empty();
    for root in roots {
        if store.add(root).is_err() {
            return wrong("tls_root holds a certificate that is none of an authority (X.509)");
        }
    }
    Ok(())
}

fn check_client(client: &ClientCert) -> Result<(), Error> {
    use rustls::{Error as Tls, InconsistentKeys};
    let Some(chain) = certificates(&client.chain) else {
        return wrong(
            "tls_client_cert: the certificate (its first part) holds none in PEM that can be read",
        );
    };
    let Ok(key) = PrivateKeyDer::from_pem_slice(&client.key) else {
        return wrong(
            "tls_client_cert: the key (its second part) holds no private key in PEM that can be read; \
             one that is encrypted must be decrypted first",
        );
    };
    install_provider();
    let Some(provider) = rustls::crypto::CryptoProvider::get_default() else {
        unreachable!("just installed, or by somebody else before")
    };
    match rustls::sign::CertifiedKey::from_der(chain, key, provider) {
        Ok(_) => Ok(()),
        Err(Tls::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
            wrong("tls_client_cert: the key is not that of the certificate")
        }
        Err(Tls::InvalidCertificate(_)) => {
            wrong("tls_client_cert: the certificate (its first part) is not one of X.509")
        }
        Err(_) => wrong(
            "tls_client_cert: the key (its second part) is of no kind that can be used: RSA, ECDSA or Ed25519",
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
    fn smoke() {
        root(pem!("ca.pem")).check().unwrap();
        client(pem!("client.pem"), pem!("client.key"))
            .check()
            .unwrap();
    }

    #[test]
    fn errors_say_which_it_is_and_keep_the_key() {
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
            (client(certificate, pem!("server.key")), "not that of"),
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
