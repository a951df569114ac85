//! The crate's one error, and what an error answer of the server means for a lock.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, RedisError, ServerError};

use crate::escape::Escaped;
use crate::lost::Lost;
use crate::server::conn::NoFirstReply;
#[cfg(feature = "tls")]
use crate::server::conn::payload;

/// What stood in the way.
///
/// *Held by another* is not an error but `None`, and an [`unlock`](crate::MutexGuard::unlock) that
/// comes too late is [`AlreadyLost`](crate::Unlocked::AlreadyLost). So an error always means that
/// something needs somebody's attention, and each says what.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// A setting, a URL or a name that cannot work. Nothing was sent, nothing is held. Change what
    /// the text names.
    Config(String),

    /// Redis could not be asked, or did not answer, within the deadline (for `lock`: within
    /// [`unreachable_for`](crate::ClientBuilder::unreachable_for)).
    ///
    /// From a call that locks: you do not hold the lock. A command whose answer is missing may have
    /// taken it all the same; it is undone in the background, and at the latest its ttl ends it.
    /// From [`unlock`](crate::MutexGuard::unlock): the lock may be held for up to its ttl; the
    /// release is repeated in the background. From `renew` and `extend`: you hold it as long as
    /// [`is_held`](crate::MutexGuard::is_held) says so. Try again when Redis is back.
    Unreachable {
        /// Which server, without its password.
        server: String,
        /// The last thing that went wrong.
        cause: Cause,
    },

    /// The server has failed several times in a row, so calls fail at once for a while instead of
    /// waiting for it each time ([`breaker`](crate::ClientBuilder::breaker)). This call sent nothing,
    /// and nothing is held: a call that did send something, before the breaker opened, fails with
    /// [`Unreachable`](Self::Unreachable). Renewals and releases are still sent. Try again after
    /// `retry_in`, or sooner; `lock` waits for that by itself.
    CircuitOpen {
        /// The server, without its password.
        server: String,
        /// How many calls have failed in a row.
        failures: u32,
        /// Why the last of them failed.
        last: Cause,
        /// When the next call is let through, unless the server answers something before.
        retry_in: Duration,
    },

    /// Redis answered, and trying again would not help: a right is missing, a password is wrong, one
    /// side does not trust the other's certificate, memory is full. The command did not run: what you asked for you do not have, and a lease that
    /// was to be renewed is still held for what is left of it. From
    /// [`unlock`](crate::MutexGuard::unlock): the lock stays taken for up to its ttl; the release is
    /// repeated in the background. Mend what the answer names.
    Refused {
        /// The server, without its password.
        server: String,
        /// The command or script that was refused.
        command: &'static str,
        /// What Redis said. Where the user misses a right, the rights that the command needs follow,
        /// since most servers do not say which one it is.
        answer: String,
    },

    /// Fewer replicas than [`min_replicas`](crate::Mutex::min_replicas) asks for acknowledged in
    /// time. From a call that locks: you do not hold the lock; it was taken, and is being undone in
    /// the background. From `renew` and `extend`: you hold it as long as
    /// [`is_held`](crate::MutexGuard::is_held) says so, which this renewal does not lengthen. See
    /// whether the replicas are up and keep up, or ask for fewer of them or for more time.
    NotReplicated {
        /// How many acknowledged.
        acknowledged: usize,
        /// How many were asked for.
        wanted: usize,
    },

    /// The lock's key holds something that is no string. Nothing was changed, nothing is held. Some other program uses the key: rename the lock, set another
    /// [`key_prefix`](crate::ClientBuilder::key_prefix), or delete the key.
    WrongType {
        /// The key in Redis.
        key: String,
    },

    /// The key that keeps the last fencing token holds something else than an integer below 2^53.
    /// Nothing was changed, nothing is held. Delete the key when no token drawn from it can be in use any more.
    BadFence {
        /// The key in Redis.
        key: String,
    },

    /// `lock` under [`WaitPolicy::Backoff`](crate::WaitPolicy::Backoff) was refused as often as the
    /// policy allows. Somebody else holds the lock; nothing of yours is held. Come again later, or
    /// allow more attempts. The `try_` calls say `None` instead.
    AttemptsUsedUp {
        /// How often it was tried.
        attempts: u32,
    },

    /// The lease ended before its holder released it: stop what the lock protects. You do not hold
    /// the lock, somebody else may.
    Lost(Lost),

    /// The client was shut down. Nothing is held, but an attempt that was on its way may be, for up
    /// to its ttl. Make another client.
    Closed,

    /// A thread of ours could not be started. Nothing was sent, nothing is held. The process or the
    /// machine has too many threads.
    Thread {
        /// The thread's name.
        name: &'static str,
        /// What the system said.
        cause: Arc<io::Error>,
    },
}

impl Error {
    /// Whether the lock may be taken although this call says that it failed: by a command whose
    /// answer never came, or that too few replicas acknowledged. It is undone in the background; its ttl ends it at the latest.
    pub fn may_be_held(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::NotReplicated { .. })
    }

    /// Whether Redis could not be asked, so that the same call may succeed later.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::CircuitOpen { .. })
    }

    /// Why the lease ended, if that is what this error says.
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
                    "circuit breaker open after {failures} failure{plural} at {server} (last: {last}); \
                     try again in {}",
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
                "{acknowledged} of the {wanted} replicas that min_replicas asks for acknowledged in time: \
                 see whether they are up and keep up, or ask for fewer or for more time"
            ),
            Self::WrongType { key } => write!(
                f,
                "the key {key} holds something that is no string: another program uses it; \
                 rename the lock, set another key_prefix, or delete the key"
            ),
            Self::BadFence { key } => write!(
                f,
                "the key {key} holds no fencing token (an integer below 2^53): another program wrote it; \
                 delete it when no token drawn from it can be in use"
            ),
            Self::AttemptsUsedUp { attempts } => {
                write!(
                    f,
                    "somebody else held the lock at each of {attempts} attempts"
                )
            }
            Self::Lost(lost) => write!(f, "the lock is lost: {lost}"),
            Self::Closed => f.write_str("the client was shut down"),
            Self::Thread { name, cause } => {
                write!(f, "the thread {name} could not be started: {cause}")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreachable { cause, .. } => cause.below(),
            Self::CircuitOpen { last, .. } => last.below(),
            // The text says what the cause itself does.
            Self::Thread { cause, .. } => std::error::Error::source(&**cause),
            _ => None,
        }
    }
}

/// What to do about an answer that people meet, with a leading separator.
fn advice(answer: &str) -> &'static str {
    // The first that is found counts.
    const ADVICE: [(&str, &str); 20] = [
        // The rights that are needed were added to the answer, with names that may hold any word.
        (" needs +", ""),
        (
            "MOVED ",
            "; this is a node of a cluster: use redis+cluster://…",
        ),
        (
            "cluster support disabled",
            "; this is no cluster: use redis://…",
        ),
        (
            "OOM",
            "; Redis is at maxmemory: free some or raise it (held locks can still be released)",
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
            "; this client does not trust the server: give its authority to ClientBuilder::tls_root",
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
            "; the server does not take the client certificate: it must come from an authority that the server trusts",
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
            "; Redis cannot save and refuses writes: look at its log",
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

/// What a log-on that is refused for good is called in [`Error::Refused`].
const LOG_ON: &str = "the log-on";
const HANDSHAKE: &str = "the TLS handshake";

/// The last thing that went wrong with a server: an error of the connection, or an answer that
/// says "not now".
#[derive(Clone)]
pub struct Cause {
    /// One line.
    text: Arc<str>,
    kind: CauseKind,
    /// What `text` was read from, if it was.
    error: Option<Arc<dyn std::error::Error + Send + Sync>>,
    /// For how long the caller was not served, if it waited for that.
    unserved_for: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CauseKind {
    /// A command was sent, and no reply came.
    NoReply,
    /// Time ran out in another way.
    Timeout,
    /// The connection failed, or none could be made.
    Connection,
    /// The server replied, or its state is the reason.
    Server,
    /// The client itself is the reason, and not the server.
    Client,
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
        Self::new(CauseKind::Connection, &format!("{event}{hint}"))
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

    /// What was refused, where no connection was made for good.
    pub(crate) fn refused_step(&self) -> &'static str {
        let error = self.error.as_ref();
        match error.and_then(|error| error.downcast_ref()) {
            Some(error) if is_tls_refusal(error) => HANDSHAKE,
            _ => LOG_ON,
        }
    }

    /// The same, of this one of several servers.
    pub(crate) fn at(mut self, server: &str) -> Self {
        self.text = format!("{server}: {self}").into();
        if self.kind == CauseKind::NoReply {
            // The text now says more than that.
            self.kind = CauseKind::Timeout;
        }
        self
    }

    /// Notes what was said; where nothing was, repeats what was said before.
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

    /// The first error below this cause, unless it or one below it only repeats what was said, or says
    /// what must be escaped: whoever prints it would not.
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

    /// As the message of a call to `server` that came to nothing.
    fn tell(&self, server: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let advice = advice(&self.text);
        let Some(time) = self.unserved_for.filter(|_| !self.is_of_client()) else {
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
            CauseKind::Server | CauseKind::Client => {
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
            // The system says "resource temporarily unavailable" here.
            return Self::silence("timed out");
        }
        let kind = match error.kind() {
            ErrorKind::Io | ErrorKind::Parse => CauseKind::Connection,
            _ => CauseKind::Server,
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

/// What an error answer means. In each case the command did not run.
#[derive(Debug)]
pub(crate) enum Meaning {
    /// The server does not know the script: send it whole.
    NoScript,
    /// This server, or this connection, is no good now: connect again and try again.
    NotNow,
    /// A key holds something that is no string.
    WrongType,
    /// Our own script found no token in the fencing key.
    BadFence,
    /// The user may not do that.
    NoRight,
    /// Trying again would not help.
    Never,
}

/// Sorts an error answer. A 6.2 server wraps what happens inside a script in an ERR text, so the
/// words are looked for there too.
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

/// Whether the user misses a right. What happens in a script is an ERR, in these words: the first are
/// those of Redis 7.2 and Valkey.
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

/// An error answer as Redis wrote it, but for what is not printable.
pub(crate) fn words(answer: &ServerError) -> String {
    let text = match answer.details() {
        Some(text) => format!("{} {text}", answer.code()),
        None => answer.code().into(),
    };
    Escaped::said(&text).to_string()
}

/// Whether an error while logging on stays until somebody changes a setting.
pub(crate) fn is_final_at_logon(error: &RedisError) -> bool {
    let kinds = [
        ErrorKind::AuthenticationFailed,
        ErrorKind::InvalidClientConfig,
        ErrorKind::MasterNameNotFoundBySentinel,
        ErrorKind::RESP3NotSupported,
    ];
    let codes = ["NOAUTH", "WRONGPASS", "NOPERM"];
    // The library keeps only the text of a refused SELECT, not its code.
    let texts = ["Authentication required", "DB index", "has no permissions"];
    kinds.contains(&error.kind())
        || is_tls_refusal(error)
        || error.code().is_some_and(|code| codes.contains(&code))
        || error
            .detail()
            .is_some_and(|detail| texts.iter().any(|text| detail.contains(text)))
}

/// Whether one side does not trust the other's certificate, or misses it.
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
                // What TLS 1.2 says where the client has no certificate.
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
    fn smoke() {
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
    fn a_missing_right_is_told_from_what_scripts_say_too() {
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
    fn what_was_said_before_is_not_forgotten() {
        let mut said = None;
        Cause::text("READONLY").or_said_before(&mut said);
        let cause = Cause::silence("no answer in time").or_said_before(&mut said);
        assert_eq!(
            cause.to_string(),
            "no answer in time; before that: READONLY"
        );
        let cause = Cause::text("LOADING").or_said_before(&mut said);
        assert_eq!(cause.to_string(), "LOADING");
    }

    #[test]
    fn no_text_occurs_twice_in_a_chain() {
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
    fn what_kept_a_call_waiting_decides_how_its_error_begins() {
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
    fn texts_say_what_to_do() {
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
