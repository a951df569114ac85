//! The crate's error type, and the classification of error replies.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, RedisError, ServerError};

use crate::escape::Escaped;
use crate::lost::Lost;
#[cfg(feature = "tls")]
use crate::violation::payload;
use crate::violation::{NoFirstReply, Violation};

/// The reason why a call failed.
///
/// A lock that another holder has is not an error but `None`, and an
/// [`unlock`](crate::MutexGuard::unlock) that comes too late is
/// [`AlreadyLost`](crate::Unlocked::AlreadyLost). Each variant states when it occurs, whether the
/// lock may still be held, and what to do.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// A setting, a URL or a name is invalid.
    ///
    /// Nothing was sent, and nothing is held. Change what the message names.
    Config(String),

    /// Redis was unreachable, or did not answer before the deadline.
    ///
    /// The deadline of `lock` is [`unreachable_for`](crate::ClientBuilder::unreachable_for). Retry
    /// when Redis is reachable again.
    ///
    /// - From a call that locks: you do not hold the lock. A command without a reply may still have
    ///   acquired it. It is undone in the background, and expires after its ttl at the latest.
    /// - From [`unlock`](crate::MutexGuard::unlock): the lock may stay taken for up to its ttl, or
    ///   the longer ttl of an [`extend`](crate::MutexGuard::extend) without a reply. The release is
    ///   repeated in the background.
    /// - From `renew` and `extend`: you hold the lock as long as
    ///   [`is_held`](crate::MutexGuard::is_held) returns true.
    Unreachable {
        /// The server, without its password.
        server: String,
        /// The last failure.
        cause: Cause,
    },

    /// The server's circuit breaker is open, because the server failed several times in a row.
    ///
    /// Calls fail at once instead of waiting for the server each time; see
    /// [`breaker`](crate::ClientBuilder::breaker). This call sent nothing, and nothing is held. A
    /// call that sent something before the breaker opened fails with
    /// [`Unreachable`](Self::Unreachable). Renewals and releases are still sent. Retry after
    /// `retry_in`, or sooner. `lock` waits until the breaker closes.
    CircuitOpen {
        /// The server, without its password.
        server: String,
        /// How many calls failed in a row.
        failures: u32,
        /// The last failure.
        last: Cause,
        /// The time until the next call is sent. Any reply of the server closes the breaker
        /// earlier.
        retry_in: Duration,
    },

    /// Redis refused the command, and a retry would not help.
    ///
    /// A permission is missing, a password is wrong, one side does not trust the other's
    /// certificate, or memory is full. Fix what the message complains about. The command did not
    /// run:
    ///
    /// - From a call that locks: you do not hold the lock.
    /// - From `renew` and `extend`: you hold the lock for the rest of its lease.
    /// - From [`unlock`](crate::MutexGuard::unlock): the lock stays taken for up to its ttl, or the
    ///   longer ttl of an [`extend`](crate::MutexGuard::extend) without a reply. The release is
    ///   repeated in the background.
    Refused {
        /// The server, without its password.
        server: String,
        /// The refused command or script.
        command: &'static str,
        /// The error that Redis replied.
        ///
        /// If a permission is missing, the permissions that the command needs follow, because most
        /// servers do not say which one is missing.
        answer: String,
    },

    /// Too few replicas acknowledged in time; see [`min_replicas`](crate::Mutex::min_replicas).
    ///
    /// Check that the replicas are up and not lagging, or ask for fewer replicas or more time.
    ///
    /// - From a call that locks: you do not hold the lock. It was acquired, and is undone in the
    ///   background.
    /// - From `renew` and `extend`: you hold the lock as long as
    ///   [`is_held`](crate::MutexGuard::is_held) returns true. This renewal does not count.
    NotReplicated {
        /// How many replicas acknowledged.
        acknowledged: usize,
        /// How many replicas had to acknowledge.
        wanted: usize,
    },

    /// The lock's key exists but is not a string: another program uses it.
    ///
    /// Nothing was changed, and nothing is held. Rename the lock, set another
    /// [`key_prefix`](crate::ClientBuilder::key_prefix), or delete the key.
    WrongType {
        /// The key in Redis.
        key: String,
    },

    /// The key of the last fencing token does not contain an integer below 2^53.
    ///
    /// Nothing was changed, and nothing is held. Delete the key once no token drawn from it can be
    /// in use.
    BadFence {
        /// The key in Redis.
        key: String,
    },

    /// `lock` used up the attempts of its [`WaitPolicy::Backoff`](crate::WaitPolicy::Backoff).
    ///
    /// Another holder has the lock, and you do not hold it. Retry later, or allow more attempts.
    /// The `try_` calls return `None` instead.
    AttemptsUsedUp {
        /// How many attempts were made.
        attempts: u32,
    },

    /// The lease ended before its holder released it. Stop what the lock protects.
    ///
    /// You do not hold the lock, and another holder may have it.
    Lost(Lost),

    /// The client was shut down. Make another client.
    ///
    /// You do not hold the lock. An attempt that was in progress may have acquired it, for up to
    /// its ttl.
    Closed,

    /// A background thread could not be started.
    ///
    /// Nothing was sent, and nothing is held. The process or the machine has too many threads.
    Thread {
        /// The thread's name.
        name: &'static str,
        /// The operating system's error.
        cause: Arc<io::Error>,
    },
}

impl Error {
    /// Returns whether the failed call may have acquired the lock in Redis.
    ///
    /// That is possible if a command got no reply, or if too few replicas acknowledged it. The
    /// command is undone in the background, and the lock expires after its ttl at the latest.
    pub fn may_be_held(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::NotReplicated { .. })
    }

    /// Returns whether Redis was unreachable, so that the same call may succeed later.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::CircuitOpen { .. })
    }

    /// Returns why the lease ended, if the error is [`Lost`](Self::Lost).
    pub fn lost(&self) -> Option<Lost> {
        match self {
            Self::Lost(lost) => Some(*lost),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(what) => f.write_str(what),
            Self::Unreachable { server, cause } => cause.tell(server, f),
            Self::Refused {
                server,
                command,
                answer,
            } if *command == HANDSHAKE => {
                let advice = advice(answer);
                write!(f, "no TLS connection to {server}: {answer}{advice}")
            }
            Self::CircuitOpen {
                server,
                failures,
                last,
                retry_in,
            } => {
                let plural = if *failures == 1 { "" } else { "s" };
                write!(
                    f,
                    "circuit breaker open after {failures} failure{plural} at {server} \
                     (last: {last}); try again in {}",
                    Rounded(*retry_in)
                )
            }
            Self::Refused {
                server,
                command,
                answer,
            } => {
                let advice = advice(answer);
                write!(f, "{server} refused {command}: {answer}{advice}")
            }
            Self::NotReplicated {
                acknowledged,
                wanted,
            } => write!(
                f,
                "only {acknowledged} of the {wanted} replicas required by min_replicas acknowledged \
                 in time: check that they are up and not lagging, or ask for fewer or for more time"
            ),
            Self::WrongType { key } => write!(
                f,
                "the key {key} exists but is not a string: another program uses it; \
                 rename the lock, set another key_prefix, or delete the key"
            ),
            Self::BadFence { key } => write!(
                f,
                "the key {key} does not contain a fencing token (an integer below 2^53): another \
                 program wrote it; delete it once no token drawn from it can be in use"
            ),
            Self::AttemptsUsedUp { attempts } => {
                write!(
                    f,
                    "the lock was held by another holder at each of {attempts} attempts"
                )
            }
            Self::Lost(lost) => write!(f, "the lock was lost: {lost}"),
            Self::Closed => f.write_str("the client was shut down"),
            Self::Thread { name, cause } => {
                write!(f, "cannot start the thread {name}: {cause}")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreachable { cause, .. } => cause.below(),
            Self::CircuitOpen { last, .. } => last.below(),
            // The message contains the cause itself.
            Self::Thread { cause, .. } => std::error::Error::source(&**cause),
            _ => None,
        }
    }
}

/// Returns what to do about a common error reply, with a leading separator.
fn advice(answer: &str) -> &'static str {
    // The first match counts.
    const ADVICE: [(&str, &str); 21] = [
        // The needed permissions were appended, with names that may contain any of the words below.
        (" needs +", ""),
        (
            "MOVED ",
            "; this is a node of a cluster: use redis+cluster://…",
        ),
        (
            "cluster support disabled",
            "; this is not a cluster: use redis://…",
        ),
        // The alert with which a TLS server answers plain text.
        (
            r#"begins "\x15\x03"#,
            "; the server speaks TLS: use rediss://…",
        ),
        (
            "OOM",
            "; Redis has reached maxmemory: free memory or raise the limit (held locks can still be \
             released)",
        ),
        (
            "NOAUTH",
            "; the server wants a password: put it into the URL",
        ),
        (
            "Authentication required",
            "; the server wants a password: put it into the URL",
        ),
        (
            "not valid for name",
            "; the URL must name the server as its certificate does",
        ),
        (
            "invalid peer certificate: certificate expired",
            "; the server needs a new certificate",
        ),
        (
            "invalid peer certificate",
            "; this client does not trust the server: pass its authority to \
             ClientBuilder::tls_root",
        ),
        // The text of rustls for a reply without TLS.
        (
            "received corrupt message",
            "; if the server does not speak TLS at this port, use redis://",
        ),
        (
            "alert: CertificateRequired",
            "; the server wants a client certificate: ClientBuilder::tls_client_cert",
        ),
        (
            "alert: HandshakeFailure",
            "; if the server wants a client certificate: ClientBuilder::tls_client_cert",
        ),
        (
            "fatal alert",
            "; the server rejects the client certificate: an authority that the server trusts must \
             issue it",
        ),
        ("WRONGPASS", "; check user and password in the URL"),
        (
            "authentication failed",
            "; check user and password in the URL",
        ),
        (
            "no permissions",
            "; to log on, a user needs +select where the URL names a database, and at a sentinel \
             +sentinel|get-master-addr-by-name",
        ),
        (
            "READONLY",
            "; this is a replica: point the URL at the master",
        ),
        ("LOADING", "; Redis is still loading its data"),
        (
            "MISCONF",
            "; Redis cannot save its data and refuses writes: see its log",
        ),
        (
            "NOREPLICAS",
            "; too few replicas are in sync for min-replicas-to-write",
        ),
    ];
    ADVICE
        .iter()
        .find(|(word, _)| answer.contains(word))
        .map_or("", |(_, advice)| advice)
}

/// The `command` of [`Error::Refused`] if the server refuses to log on the user.
const LOG_ON: &str = "the log-on";
const HANDSHAKE: &str = "the TLS handshake";

/// The last failure of a server: an error of the connection, or an error reply.
#[derive(Clone)]
pub struct Cause {
    /// One line.
    text: Arc<str>,
    kind: CauseKind,
    /// The error that `text` describes, if any.
    error: Option<Arc<dyn std::error::Error + Send + Sync>>,
    /// How long the caller waited without being served.
    unserved_for: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CauseKind {
    /// A command was sent, and no reply came.
    NoReply,
    /// Another timeout, such as of connecting.
    Timeout,
    /// The connection failed, or none could be made.
    Connection,
    /// The server replied, or its state is the reason.
    Server,
    /// The client itself is the reason, and not the server.
    Client,
    /// The peer sent what no Redis sends.
    Malformed,
    /// The peer is no Redis.
    NotRedis,
}

impl Cause {
    fn new(kind: CauseKind, text: &str) -> Self {
        Self {
            text: Escaped::whole(text.as_bytes()).to_string().into(),
            kind,
            error: None,
            unserved_for: None,
        }
    }

    pub(crate) fn text(text: impl AsRef<str>) -> Self {
        Self::new(CauseKind::Server, text.as_ref())
    }

    /// Time ran out.
    pub(crate) fn silence(text: impl AsRef<str>) -> Self {
        Self::new(CauseKind::Timeout, text.as_ref())
    }

    /// The client's own limits are the reason.
    pub(crate) fn of_client(text: impl AsRef<str>) -> Self {
        Self::new(CauseKind::Client, text.as_ref())
    }

    /// No reply came, for this long.
    pub(crate) fn no_reply(waited: Duration) -> Self {
        let text = format!("no reply in {}", Rounded(waited));
        Self::new(CauseKind::NoReply, &text)
    }

    /// An error of reading or writing, by a call that has waited this long.
    pub(crate) fn lost_reply(error: RedisError, waited: Duration) -> Self {
        match error.is_timeout() {
            true => Self::no_reply(waited),
            false => error.into(),
        }
    }

    /// The peer accepted a connection and did not reply on it; `hint` says what to try.
    pub(crate) fn no_first_reply(event: NoFirstReply, hint: &str) -> Self {
        let kind = match event {
            NoFirstReply::Silent => CauseKind::Timeout,
            NoFirstReply::Closed => CauseKind::Connection,
        };
        Self::new(kind, &format!("{event}{hint}"))
    }

    /// An error of connecting, which may take this long.
    pub(crate) fn no_connection(error: RedisError, limit: Duration) -> Self {
        match error.is_timeout() {
            true => Self::silence(format!("no connection in {}", Rounded(limit))),
            false => error.into(),
        }
    }

    /// The same, for a caller that was not served for this long.
    pub(crate) fn unserved_for(mut self, time: Duration) -> Self {
        self.unserved_for = Some(time).filter(|time| !time.is_zero());
        self
    }

    /// Whether it says only that time ran out: an earlier cause tells more.
    pub(crate) fn is_silence(&self) -> bool {
        matches!(self.kind, CauseKind::NoReply | CauseKind::Timeout)
    }

    /// Whether the client itself is the reason, and not the server.
    pub(crate) fn is_of_client(&self) -> bool {
        self.kind == CauseKind::Client
    }

    /// Whether the peer sent what no Redis sends.
    pub(crate) fn is_malformed(&self) -> bool {
        matches!(self.kind, CauseKind::Malformed | CauseKind::NotRedis)
    }

    /// Whether the peer is surely no Redis.
    pub(crate) fn is_not_redis(&self) -> bool {
        self.kind == CauseKind::NotRedis
    }

    /// This cause, as the last of `count` malformed replies in a row.
    pub(crate) fn last_malformed(&self, count: u32) -> Self {
        let text = format!("this does not look like Redis: {count} times in a row, {self}");
        Self::new(CauseKind::NotRedis, &text)
    }

    /// The same text, about a peer as in `cause`.
    pub(crate) fn with_kind_of(self, cause: &Self) -> Self {
        let kind = cause.kind;
        Self { kind, ..self }
    }

    /// Returns which step of connecting the server refused.
    pub(crate) fn refused_step(&self) -> &'static str {
        let error = self.error.as_ref();
        match error.and_then(|error| error.downcast_ref()) {
            Some(error) if is_tls_refusal(error) => HANDSHAKE,
            _ => LOG_ON,
        }
    }

    /// Returns the cause with the name of its server, one of several.
    pub(crate) fn at(mut self, server: &str) -> Self {
        self.text = format!("{server}: {self}").into();
        if self.kind == CauseKind::NoReply {
            // The text now says more than that.
            self.kind = CauseKind::Timeout;
        }
        self
    }

    /// Records this cause in `said`; a mere timeout is returned with the recorded cause instead.
    pub(crate) fn or_said_before(self, said: &mut Option<Self>) -> Self {
        match said {
            Some(before) if self.is_silence() => {
                Self::new(before.kind, &format!("{self}; before that: {before}"))
            }
            _ => {
                *said = Some(self.clone()).filter(|cause| !cause.is_silence());
                self
            }
        }
    }

    /// Returns the first source of this cause that adds something to its text.
    ///
    /// Sources from which on a text is repeated, or must be escaped, are left out: a caller prints
    /// them without escaping.
    fn below(&self) -> Option<&(dyn std::error::Error + 'static)> {
        let mut said = self.text.to_string();
        let mut first = None;
        let mut next = self.error.as_ref()?.source();
        while let Some(error) = next {
            let text = error.to_string();
            let escaped = Escaped::said(&text).to_string();
            match said.contains(&text) || escaped != text {
                true => first = None,
                false => first = first.or(Some(error)),
            }
            said.push_str(&text);
            next = error.source();
        }
        first
    }

    /// Writes the message of a call to `server` that failed for this cause.
    fn tell(&self, server: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let advice = advice(&self.text);
        let is_waited_out = !self.is_of_client() && !self.is_malformed();
        let Some(time) = self.unserved_for.filter(|_| is_waited_out) else {
            return write!(f, "the call to {server} failed: {self}{advice}");
        };
        let time = Rounded(time);
        match self.kind {
            CauseKind::NoReply => write!(f, "no reply from {server} for {time}"),
            CauseKind::Timeout | CauseKind::Connection => {
                write!(
                    f,
                    "no reply from {server} for {time} (last: {self}){advice}"
                )
            }
            _ => {
                write!(
                    f,
                    "{server} did not serve the call for {time} (last: {self}){advice}"
                )
            }
        }
    }
}

impl From<RedisError> for Cause {
    fn from(error: RedisError) -> Self {
        if let Some(event) = NoFirstReply::of(&error) {
            return Self::no_first_reply(event, "");
        }
        if error.is_timeout() {
            // The operating system's text is "resource temporarily unavailable".
            return Self::silence("timed out");
        }
        let kind = match (Violation::of(&error), error.kind()) {
            (Some(violation), _) if violation.is_not_resp() => CauseKind::NotRedis,
            (Some(_), _) => CauseKind::Malformed,
            (None, ErrorKind::Io | ErrorKind::Parse) => CauseKind::Connection,
            (None, _) => CauseKind::Server,
        };
        Self {
            error: Some(Arc::new(error.clone())),
            ..Self::new(kind, &library_text(&error))
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.text, f)
    }
}

/// A duration as messages show it: in milliseconds below a second, else in tenths of a second.
pub(crate) struct Rounded(pub(crate) Duration);

impl fmt::Display for Rounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_millis() {
            millis @ ..1_000 => write!(f, "{millis} ms"),
            _ => write!(f, "{:.1} s", self.0.as_secs_f64()),
        }
    }
}

/// The meaning of an error reply. In each case the command did not run.
#[derive(Debug)]
pub(crate) enum Meaning {
    /// The server does not have the script: send its source.
    NoScript,
    /// The server cannot run commands now: connect again and retry.
    NotNow,
    /// A key exists but is not a string.
    WrongType,
    /// A script found no token in the fencing key.
    BadFence,
    /// The user lacks a permission.
    NoRight,
    /// A retry would not help.
    Never,
}

/// Classifies an error reply.
///
/// Redis 6.2 wraps an error inside a script in an `ERR` text, so this searches that text too.
pub(crate) fn meaning(answer: &ServerError) -> Meaning {
    const NOT_NOW: [&str; 8] = [
        "READONLY",
        "LOADING",
        "MASTERDOWN",
        "CLUSTERDOWN",
        "TRYAGAIN",
        "NOREPLICAS",
        "BUSY",
        "MISCONF",
    ];
    let is = |word: &str| match answer.code() {
        "ERR" => answer.details().is_some_and(|text| {
            text.contains("script")
                && text
                    .split(|c: char| !c.is_ascii_uppercase())
                    .any(|w| w == word)
        }),
        code => code == word,
    };
    if is("NOSCRIPT") {
        Meaning::NoScript
    } else if is("BADFENCE") {
        Meaning::BadFence
    } else if is("WRONGTYPE") {
        Meaning::WrongType
    } else if is_about_rights(answer) {
        Meaning::NoRight
    } else if NOT_NOW.iter().any(|word| is(word)) {
        Meaning::NotNow
    } else {
        Meaning::Never
    }
}

/// Returns whether the user lacks a permission.
///
/// Inside a script this is an `ERR` with one of these texts; the first is that of Redis 7.2 and
/// Valkey.
fn is_about_rights(answer: &ServerError) -> bool {
    const IN_SCRIPT: [&str; 4] = [
        "ACL failure in script",
        "can't run this command",
        "can't access at least one of the keys",
        "can't publish to the channel",
    ];
    let is_told = |text: &str| IN_SCRIPT.iter().any(|words| text.contains(words));
    answer.code() == "NOPERM" || answer.details().is_some_and(is_told)
}

/// The text of a library's error, without the name of its kind; an error answer as Redis wrote it.
pub(crate) fn library_text(error: &RedisError) -> String {
    let source = std::error::Error::source(error);
    if let Some(answer) = source.and_then(|source| source.downcast_ref()) {
        return words(answer);
    }
    let kind = format!(" - {:?}", error.kind());
    let text = error.to_string().replacen(&kind, "", 1);
    Escaped::said(&text).to_string()
}

/// Returns an error reply as Redis sent it, with unprintable characters escaped.
pub(crate) fn words(answer: &ServerError) -> String {
    let text = match answer.details() {
        Some(text) => format!("{} {text}", answer.code()),
        None => answer.code().into(),
    };
    Escaped::said(&text).to_string()
}

/// Returns whether an error of logging on lasts until a setting is changed.
pub(crate) fn is_final_at_logon(error: &RedisError) -> bool {
    let kinds = [
        ErrorKind::AuthenticationFailed,
        ErrorKind::InvalidClientConfig,
        ErrorKind::MasterNameNotFoundBySentinel,
        ErrorKind::RESP3NotSupported,
    ];
    let codes = ["NOAUTH", "WRONGPASS", "NOPERM"];
    // The `redis` crate keeps only the text of a refused `SELECT`, not its code.
    let texts = ["Authentication required", "DB index", "has no permissions"];
    kinds.contains(&error.kind())
        || is_tls_refusal(error)
        || error.code().is_some_and(|code| codes.contains(&code))
        || error
            .detail()
            .is_some_and(|detail| texts.iter().any(|text| detail.contains(text)))
}

/// Returns whether one side rejected the other's certificate, or the lack of one.
#[cfg(feature = "tls")]
fn is_tls_refusal(error: &RedisError) -> bool {
    use rustls::AlertDescription as Alert;
    match payload(error) {
        Some(rustls::Error::InvalidCertificate(_)) => true,
        Some(rustls::Error::AlertReceived(alert)) => matches!(
            alert,
            Alert::CertificateRequired
                | Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::UnknownCA
                | Alert::AccessDenied
                // The alert of TLS 1.2 if the client has no certificate.
                | Alert::HandshakeFailure
        ),
        _ => false,
    }
}

#[cfg(not(feature = "tls"))]
fn is_tls_refusal(_: &RedisError) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(line: &str) -> ServerError {
        match redis::parse_redis_value(format!("-{line}\r\n").as_bytes()) {
            Ok(redis::Value::ServerError(error)) => error,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn temporary_errors_are_told_from_permanent_ones() {
        for line in [
            "READONLY You can't write against a read only replica.",
            "LOADING Redis is loading the dataset in memory",
            "BUSY Redis is busy running a script.",
            "MISCONF Redis is configured to save RDB snapshots",
            "NOREPLICAS Not enough good replicas to write.",
            "ERR Error running script (call to f_6b): @user_script:3: @user_script: 3: -READONLY You can't write",
        ] {
            assert!(matches!(meaning(&answer(line)), Meaning::NotNow), "{line}");
        }
        for line in [
            "OOM command not allowed",
            "NOAUTH Authentication required.",
            "ERR unknown command",
        ] {
            assert!(matches!(meaning(&answer(line)), Meaning::Never), "{line}");
        }
    }

    #[test]
    fn script_errors_are_read_bare_and_wrapped() {
        assert!(matches!(
            meaning(&answer("NOSCRIPT No matching script.")),
            Meaning::NoScript
        ));
        assert!(matches!(
            meaning(&answer("BADFENCE not a token")),
            Meaning::BadFence
        ));
        let wrapped = "ERR Error running script (call to f_1): @user_script:2: WRONGTYPE Operation against a key";
        assert!(matches!(meaning(&answer(wrapped)), Meaning::WrongType));
    }

    #[test]
    fn a_missing_permission_is_recognised_inside_scripts() {
        for line in [
            "NOPERM this user has no permissions to run the 'evalsha' command",
            "ERR The user executing the script can't run this command or subcommand script: f_1, on @user_script:9.",
            "ERR ACL failure in script: User app has no permissions to run the 'get' command",
            "ERR Error running script (call to f_1): @user_script:2: The user executing the script can't access \
             at least one of the keys mentioned in the command arguments",
        ] {
            assert!(matches!(meaning(&answer(line)), Meaning::NoRight), "{line}");
        }
    }

    #[test]
    fn a_timeout_is_reported_with_the_failure_before_it() {
        let mut said = None;
        Cause::text("READONLY").or_said_before(&mut said);
        let cause = Cause::silence("no answer in time").or_said_before(&mut said);
        assert_eq!(
            cause.to_string(),
            "no answer in time; before that: READONLY"
        );
        let silent = Cause::no_first_reply(NoFirstReply::Silent, "");
        let cause = silent.or_said_before(&mut said).to_string();
        assert!(cause.ends_with("; before that: READONLY"), "{cause}");
        let cause = Cause::text("LOADING").or_said_before(&mut said);
        assert_eq!(cause.to_string(), "LOADING");
    }

    #[test]
    fn an_error_and_its_sources_repeat_no_text() {
        let io = || io::Error::from_raw_os_error(111);
        let errors = [
            Error::Unreachable {
                server: "h:1".into(),
                cause: RedisError::from(io()).into(),
            },
            Error::CircuitOpen {
                server: "h:1".into(),
                failures: 5,
                last: RedisError::from(io::Error::other(Nested)).into(),
                retry_in: Duration::from_millis(900),
            },
            Error::Thread {
                name: "leasehold-io",
                cause: Arc::new(io::Error::other(Nested)),
            },
        ];
        for error in &errors {
            let mut said = error.to_string();
            let mut next = std::error::Error::source(error);
            while let Some(source) = next {
                let text = source.to_string();
                assert!(!said.contains(&text), "{said}: {text}");
                said = format!("{said}: {text}");
                next = source.source();
            }
        }
        let below = std::error::Error::source(&errors[1]).map(ToString::to_string);
        assert_eq!(below.as_deref(), Some("the cause of that"));
    }

    /// An error with a cause that it does not repeat.
    #[derive(Debug)]
    struct Nested;

    impl fmt::Display for Nested {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("it failed")
        }
    }

    impl std::error::Error for Nested {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            static BELOW: Below = Below;
            Some(&BELOW)
        }
    }

    #[derive(Debug)]
    struct Below;

    impl fmt::Display for Below {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the cause of that")
        }
    }

    impl std::error::Error for Below {}

    #[test]
    fn the_message_of_an_unserved_call_states_time_and_cause() {
        let unreachable = |cause: Cause| {
            let server = "redis-1:6379".into();
            let cause = cause.unserved_for(Duration::from_secs(10));
            Error::Unreachable { server, cause }.to_string()
        };
        assert_eq!(
            unreachable(Cause::no_reply(Duration::from_secs(1))),
            "no reply from redis-1:6379 for 10.0 s"
        );
        let mut said = None;
        Cause::text("LOADING").or_said_before(&mut said);
        let silence = Cause::no_reply(Duration::from_millis(40)).or_said_before(&mut said);
        assert_eq!(
            unreachable(silence),
            "redis-1:6379 did not serve the call for 10.0 s \
             (last: no reply in 40 ms; before that: LOADING); Redis is still loading its data"
        );
        assert_eq!(
            unreachable(Cause::of_client("all connections were in use")),
            "the call to redis-1:6379 failed: all connections were in use"
        );
    }

    #[test]
    fn messages_say_what_to_do() {
        let full = Error::Refused {
            server: "h:1".into(),
            command: "acquire",
            answer: "OOM command not allowed".into(),
        };
        assert!(full.to_string().contains("maxmemory"), "{full}");
        let error = Error::Unreachable {
            server: "h:1".into(),
            cause: Cause::text("READONLY …"),
        };
        assert!(error.to_string().contains("replica"), "{error}");
        assert!(error.may_be_held());
    }
}
