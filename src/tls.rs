//! TLS settings: trusted certificate authorities and the client certificate. Feature `tls` only.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;
use std::{fmt, fs};

use redis::{RedisError, RedisResult};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{CertificateError, ClientConfig, RootCertStore};

use crate::clock::wall_time;
use crate::connect_failure::ConnectFailure;
use crate::error::Error;
use crate::escape::Escaped;
use crate::violation::payload;

/// The TLS settings of a client.
#[derive(Clone, Default)]
pub(crate) struct Tls {
    /// The trusted authorities; `None` means those of the system.
    pub(crate) root: Option<Pem>,
    pub(crate) client: Option<ClientCert>,
}

/// The client certificate with its chain, and its private key.
#[derive(Clone)]
pub(crate) struct ClientCert {
    pub(crate) chain: Pem,
    pub(crate) key: Pem,
}

/// A PEM text, or the file that contains it.
#[derive(Clone)]
pub(crate) enum Pem {
    Text(Vec<u8>),
    /// Read for each connection: it may be replaced while a client runs.
    File(PathBuf),
}

/// The contents of the PEM texts: the authorities, and the client certificate with its key.
struct Certificates {
    root: Option<RootCertStore>,
    client: Option<OwnCertificate>,
}

/// A part of the text of rustls for a certificate of X.509 version 1. Its type for that is private.
const VERSION_1: &str = "UnsupportedCertVersion";

type OwnCertificate = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

impl Pem {
    fn read(&self) -> Result<Cow<'_, [u8]>, Error> {
        match self {
            Self::Text(pem) => Ok(pem.into()),
            Self::File(path) => fs::read(path)
                .map(Into::into)
                .map_err(|error| Error::Config(format!("cannot read {}: {error}", shown(path)))),
        }
    }

    /// Returns what to add to a message about this text.
    fn place(&self) -> String {
        match self {
            Self::Text(_) => String::new(),
            Self::File(path) => format!(" ({})", shown(path)),
        }
    }
}

fn shown(path: &Path) -> String {
    Escaped::name(path.as_os_str().as_encoded_bytes()).to_string()
}

impl Tls {
    pub(crate) fn is_set(&self) -> bool {
        self.root.is_some() || self.client.is_some()
    }

    /// Checks the PEM texts. Errors name the setting; they never quote a library's message, which
    /// may contain a part of the key.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.read().map(drop)
    }

    /// Reads the files, and checks all PEM texts.
    fn read(&self) -> Result<Certificates, Error> {
        let root = self.root.as_ref();
        let root = root.map(|root| read_root(&root.read()?, &root.place()));
        let client = self.client.as_ref().map(|ClientCert { chain, key }| {
            let place = format!("{}{}", chain.place(), key.place());
            read_client(&chain.read()?, &key.read()?, &place)
        });
        Ok(Certificates {
            root: root.transpose()?,
            client: client.transpose()?,
        })
    }

    /// Returns the configuration for a new connection. Reads the files each time, and the system's
    /// authorities: they may be replaced while a client runs.
    ///
    /// A file that cannot be used now may be usable at the next connection.
    pub(crate) fn client_config(&self) -> RedisResult<ClientConfig> {
        let found = self.read();
        let Certificates { root, client } =
            found.map_err(|error| ConnectFailure::Local(error.to_string()))?;
        let roots = match root {
            Some(roots) => roots,
            None => {
                let mut roots = RootCertStore::empty();
                let mut found = rustls_native_certs::load_native_certs();
                // One damaged certificate of the system must not make every connection fail.
                let (added, _) = roots.add_parsable_certificates(found.certs);
                if added == 0
                    && let Some(error) = found.errors.pop()
                {
                    return Err(error.into());
                }
                roots
            }
        };
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        match client {
            Some((chain, key)) => Ok(config.with_client_auth_cert(chain, key)?),
            None => Ok(config.with_no_client_auth()),
        }
    }

    /// Returns the error of a connection. If a certificate has expired, the error says when.
    pub(crate) fn with_expiry(&self, error: RedisError) -> RedisError {
        let why = match payload(&error) {
            Some(alert @ rustls::Error::AlertReceived(_)) => self
                .expired_client()
                .map(|expired| format!("{alert}; {expired}")),
            Some(error) => expiry(error)
                .map(|end| format!("invalid peer certificate: certificate expired on {end}")),
            None => None,
        };
        why.map_or(error, |why| ConnectFailure::Certificate(why).into())
    }

    /// Returns when the client certificate expired; `None` if it is valid.
    fn expired_client(&self) -> Option<String> {
        let chain = &self.client.as_ref()?.chain;
        let certificates = certificates(&chain.read().ok()?)?;
        let own = certificates.first()?;
        // rustls returns the dates of a certificate only from a verification. It checks them first,
        // so an authority that did not issue the certificate is good enough.
        let mut any = RootCertStore::empty();
        any.add(own.clone()).ok()?;
        let verifier = WebPkiClientVerifier::builder_with_provider(any.into(), provider());
        let verifier = verifier.build().ok()?;
        let now = UnixTime::since_unix_epoch(wall_time().duration_since(UNIX_EPOCH).ok()?);
        let end = expiry(&verifier.verify_client_cert(own, &[], now).err()?)?;
        let place = chain.place();
        Some(format!("the client certificate{place} expired on {end}"))
    }
}

/// Returns when the certificate expired, if that is the error.
fn expiry(error: &rustls::Error) -> Option<String> {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::ExpiredContext {
            not_after, ..
        }) => i64::try_from(not_after.as_secs()).ok().map(date),
        _ => None,
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

/// Returns the crypto provider that the program has installed, or else ring. Installs none: that is
/// the program's choice. Constructors of rustls that take no provider may install one.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    let installed = CryptoProvider::get_default().cloned();
    installed.unwrap_or_else(|| rustls::crypto::ring::default_provider().into())
}

/// Returns the certificates in a PEM text; `None` if there are none or one is damaged.
fn certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let all = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    all.ok().filter(|all| !all.is_empty())
}

fn read_root(pem: &[u8], place: &str) -> Result<RootCertStore, Error> {
    let Some(roots) = certificates(pem) else {
        return wrong("tls_root contains no readable PEM certificate", place);
    };
    let mut store = RootCertStore::empty();
    for root in roots {
        if store.add(root).is_err() {
            return wrong(
                "tls_root contains a certificate that is not a valid X.509 authority",
                place,
            );
        }
    }
    Ok(store)
}

/// The messages are this crate's: those of the library may contain a part of the key.
fn read_client(chain: &[u8], key: &[u8], place: &str) -> Result<OwnCertificate, Error> {
    use rustls::{Error as TlsError, InconsistentKeys};
    let Some(chain) = certificates(chain) else {
        return wrong(
            "tls_client_cert: the certificate (its first part) contains no readable PEM \
             certificate",
            place,
        );
    };
    let Ok(key) = PrivateKeyDer::from_pem_slice(key) else {
        return wrong(
            "tls_client_cert: the key (its second part) contains no readable PEM private key; \
             decrypt an encrypted key first",
            place,
        );
    };
    let own = (chain.clone(), key.clone_key());
    let what = match rustls::sign::CertifiedKey::from_der(chain, key, &provider()) {
        Ok(_) => return Ok(own),
        Err(TlsError::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
            "tls_client_cert: the key does not belong to the certificate"
        }
        Err(TlsError::InvalidCertificate(CertificateError::BadEncoding)) => {
            "tls_client_cert: the certificate (its first part) is not valid X.509"
        }
        Err(error) if error.to_string().contains(VERSION_1) => {
            "tls_client_cert: the certificate (its first part) is X.509 version 1, which is not \
             supported: issue one of version 3 (`openssl x509 -req` does with -extfile)"
        }
        Err(TlsError::InvalidCertificate(_)) => {
            "tls_client_cert: the certificate (its first part) is not valid X.509, or has a part \
             that is not supported"
        }
        Err(_) => {
            "tls_client_cert: the key (its second part) is not supported; expected RSA, ECDSA or \
             Ed25519"
        }
    };
    wrong(what, place)
}

fn wrong<T>(what: &str, place: &str) -> Result<T, Error> {
    Err(Error::Config(format!("{what}{place}")))
}

/// Returns a time as a date and a time of day, in UTC.
fn date(unix: i64) -> String {
    let (mut day, second) = (unix.div_euclid(86_400), unix.rem_euclid(86_400));
    let mut year = 1970 + day / 366;
    while days(year + 1, 1, 1) <= day {
        year += 1;
    }
    let mut month = 12;
    while days(year, month, 1) > day {
        month -= 1;
    }
    day = day - days(year, month, 1) + 1;
    let (hours, minutes) = (second / 3_600, second / 60 % 60);
    let seconds = second % 60;
    format!("{year}-{month:02}-{day:02} {hours:02}:{minutes:02}:{seconds:02} UTC")
}

/// Returns the number of days from 1 January 1970 to a day of the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> i64 {
    // Years that begin in March, so that a leap day is the last day.
    let year = year - i64::from(month <= 2);
    let month = (month + 9) % 12;
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    year * 365 + leap_days + (month * 153 + 2) / 5 + day - 1 - 719_468
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
        let [chain, key] = [chain, key].map(|pem| Pem::Text(pem.to_vec()));
        Tls {
            root: None,
            client: Some(ClientCert { chain, key }),
        }
    }

    fn root(pem: &[u8]) -> Tls {
        Tls {
            root: Some(Pem::Text(pem.to_vec())),
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

    #[test]
    fn a_certificate_of_version_1_is_not_called_invalid() {
        let tls = client(pem!("version-1.pem"), pem!("version-1.key"));
        let error = tls.check().unwrap_err().to_string();
        assert!(error.contains("X.509 version 1"), "{error}");
        assert!(error.contains("issue one of version 3"), "{error}");
        assert!(!error.contains("not valid"), "{error}");
        // As a trusted authority, such a certificate is supported.
        root(pem!("version-1.pem")).check().unwrap();
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (unix, expected) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (951_868_799, "2000-02-29 23:59:59 UTC"),
            (951_868_800, "2000-03-01 00:00:00 UTC"),
            (1_735_689_599, "2024-12-31 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
            (253_402_300_799, "9999-12-31 23:59:59 UTC"),
        ] {
            assert_eq!(date(unix), expected);
        }
    }
}
