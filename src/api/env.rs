//! A client's settings from environment variables.

use std::ffi::OsString;
use std::str::FromStr;
use std::time::Duration;

use crate::api::builder::ClientBuilder;
use crate::error::Error;
#[cfg(feature = "tls")]
use crate::escape::Escaped;
use crate::logging;

impl ClientBuilder {
    /// Adds the settings that environment variables contain.
    ///
    /// [`Client::from_env`](crate::Client::from_env) lists the variables. If a URL was set before,
    /// the variables that say where Redis is are not read, and `REDIS_TLS_CA`, `REDIS_TLS_CERT` and
    /// `REDIS_TLS_KEY` only if that URL is one with TLS. Setters called later override the
    /// environment.
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
    /// [`Error::Config`]: a variable cannot be used; the message names it and says what it expects.
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
            Some(Ok(value)) => Ok(Some(value).filter(|value| !value.is_empty())),
            Some(Err(_)) => Err(expected(name, "text in UTF-8")),
            None => Ok(None),
        }
    };
    let had_place = builder.has_place();
    if had_place {
        // An error here is not about a variable.
        builder.clone().check()?;
    } else {
        builder = servers(builder, &text)?;
    }
    builder = tls(builder, &text, had_place)?;
    for (name, set) in DURATIONS {
        if let Some(value) = text(name)? {
            builder = checked(name, set(builder, millis(name, &value)?))?;
        }
    }
    if let Some(prefix) = text("LOCK_KEY_PREFIX")? {
        builder = checked("LOCK_KEY_PREFIX", builder.key_prefix(prefix))?;
    }
    if let Some(name) = text("LOCK_CONNECTION_NAME")? {
        builder = checked("LOCK_CONNECTION_NAME", builder.connection_name(name))?;
    }
    Ok(builder)
}

/// Sets a duration.
type Set = fn(ClientBuilder, Duration) -> ClientBuilder;

/// The variables that contain milliseconds. The ttl comes before the interval, which it bounds.
const DURATIONS: [(&str, Set); 5] = [
    ("LOCK_TTL_MS", ClientBuilder::ttl),
    ("LOCK_RENEW_INTERVAL_MS", ClientBuilder::renew_every),
    ("LOCK_CONNECT_TIMEOUT_MS", ClientBuilder::connect_timeout),
    ("LOCK_COMMAND_TIMEOUT_MS", ClientBuilder::command_timeout),
    ("LOCK_UNREACHABLE_FOR_MS", ClientBuilder::unreachable_for),
];

const DEFAULT_HOST: &str = "127.0.0.1";
const DEFAULT_PORT: u16 = 6379;

/// The variables that describe one server, if there is no URL.
const PARTS: [&str; 5] = [
    "REDIS_HOST",
    "REDIS_PORT",
    "REDIS_USERNAME",
    "REDIS_PASSWORD",
    "REDIS_DB",
];

/// Sets the servers.
fn servers(
    builder: ClientBuilder,
    text: &impl Fn(&str) -> Result<Option<String>, Error>,
) -> Result<ClientBuilder, Error> {
    match (text("REDIS_URL")?, text("REDIS_URLS")?) {
        (Some(_), Some(_)) => Err(Error::Config(
            "the environment variables REDIS_URL and REDIS_URLS are both set: \
             set only one of them"
                .into(),
        )),
        (Some(url), None) => checked("REDIS_URL", builder.url(url)),
        (None, Some(urls)) => {
            let is_separator = |c: char| c == ',' || c.is_whitespace();
            let urls = urls.split(is_separator).filter(|url| !url.is_empty());
            let urls: Vec<_> = urls.collect();
            if urls.is_empty() {
                return Err(expected("REDIS_URLS", "one URL or several"));
            }
            checked("REDIS_URLS", builder.quorum(urls))
        }
        (None, None) => {
            let url = assemble(text)?;
            let mut is_any_set = false;
            for name in PARTS {
                is_any_set |= text(name)?.is_some();
            }
            if !is_any_set {
                logging::info!(
                    "none of the environment variables REDIS_URL, REDIS_URLS and REDIS_HOST is \
                     set: using redis://{DEFAULT_HOST}:{DEFAULT_PORT}"
                );
            }
            checked("REDIS_HOST", builder.url(url))
        }
    }
}

/// Sets the PEM files for TLS.
///
/// They are ignored if the program itself has set a URL without TLS. They are an error with such a
/// URL from the environment: its connections would not be encrypted, as the files suggest.
#[cfg(feature = "tls")]
fn tls(
    mut builder: ClientBuilder,
    text: &impl Fn(&str) -> Result<Option<String>, Error>,
    is_url_of_program: bool,
) -> Result<ClientBuilder, Error> {
    if is_url_of_program && !builder.has_tls() {
        return Ok(builder);
    }
    let file = |name: &'static str| -> Result<Option<Vec<u8>>, Error> {
        let Some(path) = text(name)? else {
            return Ok(None);
        };
        let read = std::fs::read(&path).map_err(|error| {
            let path = Escaped::name(path.as_bytes());
            Error::Config(format!(
                "the environment variable {name} cannot be used: cannot read {path}: {error}"
            ))
        });
        read.map(Some)
    };
    if let Some(authorities) = file("REDIS_TLS_CA")? {
        builder = checked("REDIS_TLS_CA", builder.tls_root(authorities))?;
    }
    match (file("REDIS_TLS_CERT")?, file("REDIS_TLS_KEY")?) {
        (Some(certificate), Some(key)) => {
            checked("REDIS_TLS_CERT", builder.tls_client_cert(certificate, key))
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
    _is_url_of_program: bool,
) -> Result<ClientBuilder, Error> {
    for name in ["REDIS_TLS_CA", "REDIS_TLS_CERT", "REDIS_TLS_KEY"] {
        if text(name)?.is_some() {
            return Err(Error::Config(format!(
                "the environment variable {name} cannot be used: \
                 this program was built without the feature `tls` of leasehold"
            )));
        }
    }
    Ok(builder)
}

/// Returns `builder` if its settings are valid. They were valid without the variable `name`, so an
/// error is about its value.
fn checked(name: &str, builder: ClientBuilder) -> Result<ClientBuilder, Error> {
    match builder.clone().check() {
        Ok(_) => Ok(builder),
        Err(error) => Err(Error::Config(format!(
            "the environment variable {name} cannot be used: {error}"
        ))),
    }
}

/// Returns the URL that `REDIS_HOST` and its companions describe.
fn assemble(text: &impl Fn(&str) -> Result<Option<String>, Error>) -> Result<String, Error> {
    let host = text("REDIS_HOST")?.unwrap_or_else(|| DEFAULT_HOST.into());
    let port: u16 = text("REDIS_PORT")?.map_or(Ok(DEFAULT_PORT), |port| {
        parsed("REDIS_PORT", &port, "a port number")
    })?;
    let db: u32 = text("REDIS_DB")?.map_or(Ok(0), |db| {
        parsed("REDIS_DB", &db, "the number of a database")
    })?;
    let host = match host.contains(':') && !host.starts_with('[') {
        true => format!("[{host}]"),
        false => host,
    };
    let user = text("REDIS_USERNAME")?.map_or_else(String::new, |user| encode(&user));
    let password = text("REDIS_PASSWORD")?
        .map_or_else(String::new, |password| format!(":{}", encode(&password)));
    let at = match user.is_empty() && password.is_empty() {
        true => "",
        false => "@",
    };
    Ok(format!("redis://{user}{password}{at}{host}:{port}/{db}"))
}

/// Percent-encodes everything except characters that are plain in every part of a URL.
fn encode(text: &str) -> String {
    use std::fmt::Write as _;
    text.bytes().fold(String::new(), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() {
            encoded.push(byte.into());
        } else {
            // Writing to a string cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
        encoded
    })
}

fn millis(name: &str, value: &str) -> Result<Duration, Error> {
    parsed(name, value, "a whole number of milliseconds").map(Duration::from_millis)
}

fn parsed<T: FromStr>(name: &str, value: &str, what: &str) -> Result<T, Error> {
    value.parse().map_err(|_| expected(name, what))
}

/// The value is not repeated: it may be a password that ended up in the wrong variable.
fn expected(name: &str, what: &str) -> Error {
    Error::Config(format!(
        "the environment variable {name} cannot be used; it expects {what}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(vars: &[(&str, &str)]) -> Result<ClientBuilder, Error> {
        super::builder(ClientBuilder::default(), |name| {
            vars.iter()
                .find(|(var, _)| *var == name)
                .map(|(_, value)| value.into())
        })
    }

    #[test]
    fn variables_make_the_url_and_the_settings() {
        let shown = format!("{:?}", read(&[]).unwrap());
        assert!(shown.contains("127.0.0.1:6379"), "{shown}");
        let vars = [
            ("REDIS_HOST", "::1"),
            ("REDIS_PORT", "7"),
            ("REDIS_DB", "3"),
            ("LOCK_TTL_MS", "250"),
        ];
        let shown = format!("{:?}", read(&vars).unwrap());
        assert!(
            shown.contains("[::1]:7") && shown.contains("250ms"),
            "{shown}"
        );
    }

    #[test]
    fn url_of_the_builder_precedes_the_variables() {
        let set = || ClientBuilder::default().url("redis://here:1");
        let read = |builder, vars: &[(&str, &str)]| {
            super::builder(builder, |name| {
                let var = vars.iter().find(|(var, _)| *var == name);
                var.map(|(_, value)| value.into())
            })
        };
        let vars = [("REDIS_URL", "http://x"), ("LOCK_KEY_PREFIX", "mine:")];
        let shown = format!("{:?}", read(set(), &vars).unwrap());
        assert!(
            shown.contains("here:1") && shown.contains("mine:"),
            "{shown}"
        );
        let error = read(ClientBuilder::default().url("http://x"), &[]).unwrap_err();
        assert!(!error.to_string().contains("LOCK_"), "{error}");
    }

    #[test]
    fn several_urls_make_a_quorum() {
        let three = "redis://one:1,redis://two:2\n redis://three:3 ";
        let shown = format!("{:?}", read(&[("REDIS_URLS", three)]).unwrap());
        for server in ["one:1", "two:2", "three:3"] {
            assert!(shown.contains(server), "{shown}");
        }
        let both = [("REDIS_URLS", three), ("REDIS_URL", "redis://one:1")];
        let error = read(&both).unwrap_err().to_string();
        assert!(error.contains("REDIS_URL and REDIS_URLS"), "{error}");
    }

    #[test]
    fn timeouts_are_read() {
        let vars = [
            ("LOCK_CONNECT_TIMEOUT_MS", "1111"),
            ("LOCK_COMMAND_TIMEOUT_MS", "2222"),
            ("LOCK_UNREACHABLE_FOR_MS", "3333"),
        ];
        let shown = format!("{:?}", read(&vars).unwrap());
        for setting in [
            "connect_timeout: 1.111s",
            "command_timeout: 2.222s",
            "unreachable_for: 3.333s",
        ] {
            assert!(shown.contains(setting), "{shown}");
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn tls_files_belong_to_a_url_with_tls() {
        let file = |name: &str| {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/certificates/");
            format!("{folder}{name}")
        };
        let (ca, cert, key) = (file("ca.pem"), file("client.pem"), file("client.key"));
        let url = ("REDIS_URL", "rediss://here:1");
        let ca = ("REDIS_TLS_CA", ca.as_str());
        let [cert, key] = [("REDIS_TLS_CERT", &*cert), ("REDIS_TLS_KEY", &*key)];
        let shown = format!("{:?}", read(&[url, ca, cert, key]).unwrap());
        assert!(
            shown.contains("Tls { root: true, client_cert: true }"),
            "{shown}"
        );

        let plain = ("REDIS_URL", "redis://here:1");
        let missing = ("REDIS_TLS_CA", "/no/such\u{1b}file");
        let not_ca = ("REDIS_TLS_CA", key.1);
        for (vars, word) in [
            (vec![plain, ca], "REDIS_TLS_CA"),
            (vec![url, missing], r"cannot read /no/such\x1bfile"),
            (vec![url, not_ca], "REDIS_TLS_CA"),
            (vec![url, cert], "REDIS_TLS_KEY"),
            (vec![url, key], "REDIS_TLS_CERT"),
        ] {
            let error = read(&vars).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }

        let read = |url: &str| {
            super::builder(ClientBuilder::default().url(url), |name| {
                (name == "REDIS_TLS_CA").then(|| ca.1.into())
            })
        };
        let shown = format!("{:?}", read("rediss://here:1").unwrap());
        assert!(shown.contains("root: true"), "{shown}");
        let shown = format!("{:?}", read("redis://here:1").unwrap());
        assert!(shown.contains("root: false"), "{shown}");
    }

    #[test]
    fn password_of_any_bytes_is_kept_and_never_shown() {
        let password = "p@ss:w/rd?#%ü";
        let url =
            assemble(&|name: &str| Ok((name == "REDIS_PASSWORD").then(|| password.to_owned())))
                .unwrap();
        let address = crate::url::Address::parse(&url).unwrap();
        assert_eq!(address.info.redis_settings().password(), Some(password));
        let shown = format!(
            "{:?}",
            read(&[("REDIS_PASSWORD", "s3cret"), ("REDIS_USERNAME", "zoe")]).unwrap()
        );
        assert!(
            !shown.contains("s3cret") && !shown.contains("zoe"),
            "{shown}"
        );
    }

    #[test]
    fn invalid_value_is_an_error_that_names_its_variable() {
        for (name, value) in [
            ("REDIS_URL", "http://x"),
            ("REDIS_HOST", "a b"),
            ("REDIS_PORT", "70000"),
            ("REDIS_DB", "-1"),
            ("LOCK_TTL_MS", "10s"),
            ("LOCK_RENEW_INTERVAL_MS", "20000"),
            ("LOCK_CONNECT_TIMEOUT_MS", "0"),
            ("LOCK_COMMAND_TIMEOUT_MS", "1s"),
            ("LOCK_UNREACHABLE_FOR_MS", "0"),
            ("REDIS_URLS", " , "),
            ("REDIS_URLS", "redis://one redis+cluster://two"),
            ("LOCK_TTL_MS", "5"),
            ("LOCK_CONNECTION_NAME", "a b"),
            ("LOCK_RENEW_INTERVAL_MS", ""),
        ] {
            match read(&[(name, value)]) {
                Ok(_) => assert!(value.is_empty(), "{name}={value} was accepted"),
                Err(error) => assert!(error.to_string().contains(name), "{error}"),
            }
        }
    }
}
