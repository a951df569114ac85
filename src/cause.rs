//! The last failure of a server, as errors report it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, RedisError};

use crate::advice::advice;
use crate::connect_failure::ConnectFailure;
use crate::error_reply::{is_tls_refusal, library_text};
use crate::escape::Escaped;
use crate::shortage::Shortage;
use crate::violation::Violation;

/// The `command` of `Error::Refused` if the server refuses to log the user on.
pub(crate) const LOG_ON: &str = "the log-on";
/// The `command` of `Error::Refused` if the server refuses the TLS handshake.
pub(crate) const HANDSHAKE: &str = "the TLS handshake";
/// The `command` of `Error::Refused` if the server refuses to wait for replicas.
pub(crate) const WAIT: &str = "WAIT (min_replicas)";

/// The last failure of a server: an error of the connection, or an error reply.
///
/// ```
/// use leasehold::Error;
/// # let error = leasehold::testing::error::unreachable("redis-1:6379", "no reply in 1.0 s");
///
/// if let Error::Unreachable { server, cause, .. } = &error {
///     eprintln!("{server}: {cause}"); // redis-1:6379: no reply in 1.0 s
/// }
/// ```
#[derive(Clone)]
pub struct Cause {
    /// One line.
    text: Arc<str>,
    kind: CauseKind,
    /// The error that `text` describes, if any.
    error: Option<Arc<dyn std::error::Error + Send + Sync>>,
    /// How long the caller waited without being served.
    unserved_for: Option<Duration>,
    /// The error reply that this is; `None` if the server did not reply.
    refusal: Option<Arc<Refusal>>,
}

/// An error reply that may pass.
#[derive(Clone)]
pub(crate) struct Refusal {
    pub(crate) server: String,
    /// The refused command or script.
    pub(crate) command: &'static str,
    /// The text of the reply.
    pub(crate) answer: String,
    /// The server has never run a script of this client, so the reason may last.
    pub(crate) may_last: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CauseKind {
    /// A command was sent, and no reply came.
    NoReply,
    /// Another timeout, such as that of a connection attempt.
    Timeout,
    /// The connection failed, or none could be made.
    Connection,
    /// The server replied, or its state is the reason.
    Server,
    /// The nodes of a cluster replied that the slot is moving between them.
    MovingSlot,
    /// The client itself is the reason, and not the server.
    Client,
    /// The peer sent a reply that Redis never sends.
    Malformed,
    /// The peer is not Redis.
    NotRedis,
}

impl Cause {
    fn new(kind: CauseKind, text: &str) -> Self {
        Self {
            text: Escaped::whole(text.as_bytes()).to_string().into(),
            kind,
            error: None,
            unserved_for: None,
            refusal: None,
        }
    }

    /// An error reply that may pass.
    pub(crate) fn refusal_by(refusal: Refusal) -> Self {
        Self {
            refusal: Some(Arc::new(refusal.clone())),
            ..Self::text(&refusal.answer)
        }
    }

    /// The error reply that this is; `None` if the server did not reply.
    pub(crate) fn refusal(&self) -> Option<&Refusal> {
        self.refusal.as_deref()
    }

    /// Returns this cause as a refusal like `refusal`, which one of several servers replied.
    pub(crate) fn with_refusal(mut self, refusal: &Refusal) -> Self {
        self.refusal = Some(Arc::new(Refusal {
            answer: self.text.to_string(),
            ..refusal.clone()
        }));
        self
    }

    /// How long the caller waited without being served.
    pub(crate) fn time_unserved(&self) -> Duration {
        self.unserved_for.unwrap_or_default()
    }

    /// A failure that is no timeout: the server replied, or its state is the reason.
    pub(crate) fn text(text: impl AsRef<str>) -> Self {
        Self::new(CauseKind::Server, text.as_ref())
    }

    /// The nodes of a cluster replied that no single node has all keys of the call.
    pub(crate) fn of_moving_slot(text: impl AsRef<str>) -> Self {
        Self::new(CauseKind::MovingSlot, text.as_ref())
    }

    /// A timeout, such as that of a connection attempt.
    pub(crate) fn silence(text: impl AsRef<str>) -> Self {
        Self::new(CauseKind::Timeout, text.as_ref())
    }

    /// The client itself is the reason: it reached a limit, or it has retired the server.
    pub(crate) fn of_client(text: impl AsRef<str>) -> Self {
        Self::new(CauseKind::Client, text.as_ref())
    }

    /// Something is missing in this process or on its machine.
    pub(crate) fn of_shortage(shortage: Shortage) -> Self {
        Self {
            error: Some(Arc::new(shortage.clone())),
            ..Self::new(CauseKind::Client, &shortage.to_string())
        }
    }

    /// What is missing here, if that is the reason.
    pub(crate) fn shortage(&self) -> Option<&Shortage> {
        self.error.as_ref()?.downcast_ref()
    }

    /// No reply came, for this long.
    pub(crate) fn no_reply(waited: Duration) -> Self {
        let text = format!("no reply in {}", Rounded(waited));
        Self::new(CauseKind::NoReply, &text)
    }

    /// An error of reading or writing, by a call of `command` that has waited this long.
    pub(crate) fn lost_reply(error: RedisError, waited: Duration, command: &str) -> Self {
        if error.is_timeout() {
            return Self::no_reply(waited);
        }
        // A proxy may close the connection at a command that it does not know.
        let is_bare = error.is_connection_dropped() && Violation::of(&error).is_none();
        let cause = Self::from(error);
        if is_bare {
            Self {
                text: format!("{cause} (no reply to {command})").into(),
                ..cause
            }
        } else {
            cause
        }
    }

    /// A failure to connect; `hint` says what to try.
    pub(crate) fn of_failure(failure: &ConnectFailure, hint: &str) -> Self {
        let kind = match failure {
            ConnectFailure::Silent => CauseKind::Timeout,
            ConnectFailure::Rejected(_) => CauseKind::Server,
            _ => CauseKind::Connection,
        };
        Self::new(kind, &format!("{failure}{hint}"))
    }

    /// An error of a connection attempt, whose timeout is `limit`.
    pub(crate) fn no_connection(error: RedisError, limit: Duration) -> Self {
        if error.is_timeout() {
            Self::silence(format!("no connection in {}", Rounded(limit)))
        } else {
            error.into()
        }
    }

    /// Returns this cause, for a caller that waited this long without being served.
    pub(crate) fn unserved_for(mut self, time: Duration) -> Self {
        self.unserved_for = Some(time).filter(|time| !time.is_zero());
        self
    }

    /// Whether this is only a timeout: an earlier cause is more informative.
    pub(crate) fn is_silence(&self) -> bool {
        matches!(self.kind, CauseKind::NoReply | CauseKind::Timeout)
    }

    /// Whether the connection was refused: nothing listens at the address.
    fn is_refusal(&self) -> bool {
        let error = self.error.as_ref().and_then(|error| error.downcast_ref());
        error.is_some_and(RedisError::is_connection_refusal)
    }

    /// Whether the server replied, or its state is the reason.
    pub(crate) fn is_of_server(&self) -> bool {
        matches!(self.kind, CauseKind::Server | CauseKind::MovingSlot)
    }

    /// Whether the nodes of a cluster replied that the slot is moving between them.
    pub(crate) fn is_of_moving_slot(&self) -> bool {
        self.kind == CauseKind::MovingSlot
    }

    /// Whether the client itself is the reason, and not the server.
    pub(crate) fn is_of_client(&self) -> bool {
        self.kind == CauseKind::Client
    }

    /// Whether the peer sent a reply that Redis never sends.
    pub(crate) fn is_malformed(&self) -> bool {
        matches!(self.kind, CauseKind::Malformed | CauseKind::NotRedis)
    }

    /// Whether a reply was larger than the limits.
    pub(crate) fn is_too_large(&self) -> bool {
        let error = self.error.as_ref().and_then(|error| error.downcast_ref());
        error.is_some_and(Violation::is_too_large)
    }

    /// Whether the peer is certainly not Redis.
    pub(crate) fn is_not_redis(&self) -> bool {
        self.kind == CauseKind::NotRedis
    }

    /// Returns this cause as the last of `count` malformed replies in a row.
    pub(crate) fn last_malformed(&self, count: u32) -> Self {
        let text = format!("this does not look like Redis: {count} times in a row, {self}");
        Self::new(CauseKind::NotRedis, &text)
    }

    /// Returns this cause, but with the kind of `cause`.
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

    /// Returns this cause with `server` in front, for an error about several servers.
    pub(crate) fn at(mut self, server: &str) -> Self {
        self.text = format!("{server}: {self}").into();
        if self.kind == CauseKind::NoReply {
            // The message of `NoReply` leaves out the text, which now names one of the servers.
            self.kind = CauseKind::Timeout;
        }
        self
    }

    /// Returns this cause. If it is a timeout, appends the cause in `said`, if there is one.
    ///
    /// Records a cause that is no timeout in `said`.
    pub(crate) fn or_said_before(self, said: &mut Option<Self>) -> Self {
        match said {
            Some(before) if self.is_silence() && before.shortage().is_some() => before.clone(),
            Some(before) if self.is_silence() => {
                Self::new(before.kind, &format!("{self}; before that: {before}"))
            }
            _ => {
                *said = Some(self.clone()).filter(|cause| !cause.is_silence());
                self
            }
        }
    }

    /// Returns the refusal in `said`, if there is one: this cause only says that no time was left.
    pub(crate) fn or_refusal_before(self, said: Option<&Self>) -> Self {
        let refusal = said.filter(|said| said.refusal.is_some());
        refusal.cloned().unwrap_or(self)
    }

    /// Writes the message of a call to `server` that failed for this cause.
    pub(crate) fn write_message(&self, server: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let advice = advice(&self.text);
        let shows_time = !self.is_of_client() && !self.is_malformed();
        let Some(time) = self.unserved_for.filter(|_| shows_time) else {
            return write!(f, "the call to {server} failed: {self}{advice}");
        };
        let time = Rounded(time);
        match self.kind {
            CauseKind::NoReply => return write!(f, "no reply from {server} for {time}"),
            _ if self.is_refusal() => write!(f, "could not connect to {server}")?,
            CauseKind::Timeout | CauseKind::Connection => write!(f, "no reply from {server}")?,
            _ => write!(f, "{server} did not serve the call")?,
        }
        write!(f, " for {time} (last: {self}){advice}")
    }
}

impl From<RedisError> for Cause {
    fn from(error: RedisError) -> Self {
        match ConnectFailure::of(&error) {
            Some(ConnectFailure::Certificate(_)) | None => {}
            Some(failure) => return Self::of_failure(failure, ""),
        }
        if error.is_timeout() {
            // The operating system's text is "resource temporarily unavailable".
            return Self::silence("timed out");
        }
        let kind = match (Violation::of(&error), error.kind()) {
            (Some(violation), _) if violation.is_not_redis() => CauseKind::NotRedis,
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

/// Its text contains those of its sources, so it names none.
impl std::error::Error for Cause {}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_reported_with_the_failure_before_it() {
        let mut said = None;
        Cause::text("READONLY").or_said_before(&mut said);
        let cause = Cause::silence("no answer in time").or_said_before(&mut said);
        assert_eq!(
            cause.to_string(),
            "no answer in time; before that: READONLY"
        );
        let silent = Cause::of_failure(&ConnectFailure::Silent, "");
        let cause = silent.or_said_before(&mut said).to_string();
        assert!(cause.ends_with("; before that: READONLY"), "{cause}");
        let cause = Cause::text("LOADING").or_said_before(&mut said);
        assert_eq!(cause.to_string(), "LOADING");
    }
}
