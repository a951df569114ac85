//! A client's settings from environment variables.

use std::ffi::OsString;
use std::str::FromStr;
use std::time::Duration;

use crate::api::builder::ClientBuilder;
use crate::error::Error;

impl ClientBuilder {
    /// Adds the settings that environment variables contain.
    ///
    /// [`Client::from_env`](crate::Client::from_env) lists the variables. If a URL was set before,
    /// `REDIS_URL` and its companions are not read. Setters called later override the environment.
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
    if builder.has_place() {
        // An error here is not about a variable.
        builder.clone().check()?;
    } else {
        let (url, source) = match text("REDIS_URL")? {
            Some(url) => (url, "REDIS_URL"),
            None => (assemble(&text)?, "REDIS_HOST"),
        };
        builder = checked(source, builder.url(url))?;
    }
    if let Some(ttl) = text("LOCK_TTL_MS")? {
        builder = checked("LOCK_TTL_MS", builder.ttl(millis("LOCK_TTL_MS", &ttl)?))?;
    }
    if let Some(interval) = text("LOCK_RENEW_INTERVAL_MS")? {
        let interval = millis("LOCK_RENEW_INTERVAL_MS", &interval)?;
        builder = checked("LOCK_RENEW_INTERVAL_MS", builder.renew_every(interval))?;
    }
    if let Some(prefix) = text("LOCK_KEY_PREFIX")? {
        builder = checked("LOCK_KEY_PREFIX", builder.key_prefix(prefix))?;
    }
    if let Some(name) = text("LOCK_CONNECTION_NAME")? {
        builder = checked("LOCK_CONNECTION_NAME", builder.connection_name(name))?;
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
    let host = text("REDIS_HOST")?.unwrap_or_else(|| "127.0.0.1".into());
    let port: u16 = text("REDIS_PORT")?.map_or(Ok(6379), |port| {
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
