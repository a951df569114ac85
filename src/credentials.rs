//! The user and password of a log-on, and where they come from.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::connect_failure::ConnectFailure;
use crate::error::Error;
use crate::escape::Escaped;

/// The user and password with which a connection logs on to a server.
///
/// [`ClientBuilder::credentials`](crate::ClientBuilder::credentials) asks for them before each
/// connect. `Debug` shows neither of them.
///
/// ```
/// use leasehold::Credentials;
///
/// let of_the_url = Credentials::password("s3cret");
/// let own = Credentials::new("booking", "s3cret");
/// assert_ne!(of_the_url, own);
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub(crate) user: Option<String>,
    pub(crate) password: String,
}

impl Credentials {
    /// Returns the credentials of a user.
    ///
    /// An empty password logs on a user that needs none (`nopass`).
    ///
    /// ```
    /// # use leasehold::Credentials;
    /// let credentials = Credentials::new("booking", "s3cret");
    /// ```
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self {
            user: Some(user.into()),
            password: password.into(),
        }
    }

    /// Returns a password for the user of the URL, or for the user `default` if the URL has none.
    ///
    /// ```
    /// # use leasehold::Credentials;
    /// let credentials = Credentials::password("s3cret");
    /// ```
    pub fn password(password: impl Into<String>) -> Self {
        Self {
            user: None,
            password: password.into(),
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

/// The error of a callback that has no credentials now.
pub(crate) type CredentialsError = Box<dyn std::error::Error + Send + Sync>;

type Ask = dyn Fn() -> Result<Credentials, CredentialsError> + Send + Sync;

/// Where the credentials come from; asked before each connect. A clone is the same source.
#[derive(Clone)]
pub(crate) struct CredentialsSource(Arc<Ask>);

impl CredentialsSource {
    pub(crate) fn new(
        ask: impl Fn() -> Result<Credentials, CredentialsError> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(ask))
    }

    /// Returns the source that reads a password from a file each time.
    pub(crate) fn file(path: PathBuf) -> Self {
        Self::new(move || Ok(Credentials::password(read_password(&path)?)))
    }

    /// Returns the credentials of now. A panic of the callback counts as its failure.
    pub(crate) fn ask(&self) -> Result<Credentials, ConnectFailure> {
        let failed = |why: String| ConnectFailure::Local(format!("no credentials: {why}"));
        let asked = catch_unwind(AssertUnwindSafe(|| (self.0)()));
        let asked = asked.map_err(|_| failed("the callback panicked".into()))?;
        let credentials = asked.map_err(|error| failed(error.to_string()))?;
        if credentials.user.is_none() && credentials.password.is_empty() {
            Err(failed("the password is empty".into()))
        } else {
            Ok(credentials)
        }
    }
}

/// Returns the password in a file, without the line break at its end.
pub(crate) fn read_password(path: &Path) -> Result<String, Error> {
    let shown = || Escaped::name(path.as_os_str().as_encoded_bytes()).to_string();
    let read = std::fs::read(path).map_err(|error| {
        Error::Config(format!(
            "cannot read the password file {}: {error}",
            shown()
        ))
    })?;
    let wrong = |what: &str| Error::Config(format!("the password file {} {what}", shown()));
    let mut password = String::from_utf8(read).map_err(|_| wrong("is not text in UTF-8"))?;
    if password.ends_with('\n') {
        password.pop();
        if password.ends_with('\r') {
            password.pop();
        }
    }
    if password.is_empty() {
        Err(wrong("is empty"))
    } else {
        Ok(password)
    }
}
