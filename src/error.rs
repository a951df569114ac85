//! The crate's error type.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::advice::advice;
use crate::cause::{HANDSHAKE, LOG_ON, Rounded, WAIT};
use crate::error_reply::is_permission_error_in_script;
use crate::lost::Lost;
use crate::shortage::{Missing, Shortage};

pub use crate::cause::Cause;

/// The reason why a call failed.
///
/// A lock that another holder has is not an error but [`Taken`](crate::Taken). An
/// [`unlock`](crate::MutexGuard::unlock) that comes too late is [`Lost`](Self::Lost). Each variant
/// states when it occurs, whether the lock may still be held, and what to do.
///
/// ```
/// use leasehold::Error;
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
///
/// match client.mutex("account:123").lock() {
///     Ok(guard) => println!("transferring under token {}", guard.fencing_token()),
///     Err(Error::Refused { answer, .. }) => eprintln!("ask the operator: {answer}"),
///     Err(error) if error.is_retryable() => eprintln!("try again later: {error}"),
///     Err(error) => return Err(error),
/// }
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// A setting, a URL, a name or an argument is invalid.
    ///
    /// Change what the message names. No command was sent with it.
    ///
    /// - From a call that locks: you do not hold the lock. If the address leads to two servers that
    ///   take writes, the message names them, and the call may have sent commands before.
    /// - From [`set_ttl`](crate::Lease::set_ttl): the ttl is unchanged, and you hold the lock
    ///   as long as [`is_held`](crate::Lease::is_held) returns true.
    /// - From [`keep_for`](crate::Lease::keep_for): nothing has changed, and you hold the lock as
    ///   long as `is_held` returns true.
    Config(String),

    /// Redis was unreachable, or did not answer before the deadline.
    ///
    /// The deadline of `lock` is [`unreachable_for`](crate::ClientBuilder::unreachable_for). Retry
    /// when Redis is reachable again.
    ///
    /// - From a call that locks: you do not hold the lock. A command without a reply may still have
    ///   acquired it. It is undone in the background, and expires after its ttl at the latest.
    /// - From [`unlock`](crate::MutexGuard::unlock): the lock was held until then, so what was done
    ///   under it stands: do not repeat it. The lock may stay taken for up to its ttl, or for
    ///   longer after a renewal or [`set_ttl`](crate::Lease::set_ttl) without a reply:
    ///   `unlock` states the limit. The release is repeated in the background.
    /// - From `renew` and `set_ttl`: you hold the lock as long as
    ///   [`is_held`](crate::Lease::is_held) returns true.
    #[non_exhaustive]
    Unreachable {
        /// The server, without its password.
        server: String,
        /// The last failure.
        cause: Cause,
    },

    /// The server's circuit breaker is open, because several attempts in a row failed.
    ///
    /// Calls that do not wait, such as `try_lock`, fail at once; see
    /// [`breaker`](crate::ClientBuilder::breaker). `try_lock_for` waits for the breaker to close
    /// and fails at its deadline. `lock` keeps waiting, and fails with
    /// [`Unreachable`](Self::Unreachable), or a [`Refused`](Self::Refused) that may pass, after
    /// [`unreachable_for`](crate::ClientBuilder::unreachable_for). So does a call that sent
    /// something before the breaker opened. This call sent nothing, and nothing is held. Renewals,
    /// releases and reads are still sent. Retry after `retry_in`.
    #[non_exhaustive]
    CircuitOpen {
        /// The server, without its password.
        server: String,
        /// How many attempts failed in a row; see [`breaker`](crate::ClientBuilder::breaker).
        failures: u32,
        /// The last failure.
        last: Cause,
        /// The time until the next call is sent, at most 1 s. The answer to a write closes the
        /// breaker earlier.
        retry_in: Duration,
    },

    /// Redis refused the command.
    ///
    /// If `retried_for` is `None`, a retry would not help: a permission is missing, a password is
    /// wrong, one side does not trust the other's certificate, the server lacks a command, or
    /// memory is full. Fix what the message complains about. Otherwise the reason may pass: Redis
    /// loads its data, say, or a proxy failed. The call was repeated for that time, at most
    /// [`unreachable_for`](crate::ClientBuilder::unreachable_for). Try again later.
    ///
    /// - From a call that locks: you do not hold the lock. A command that was repeated may have
    ///   run, and is undone in the background. So is the lock if the refused command was `WAIT`,
    ///   for [`min_replicas`](crate::Mutex::min_replicas).
    /// - From `renew` and `set_ttl`: you hold the lock as long as
    ///   [`is_held`](crate::Lease::is_held) returns true.
    /// - From [`unlock`](crate::MutexGuard::unlock): the lock stays taken for up to its ttl, or for
    ///   longer after a renewal or [`set_ttl`](crate::Lease::set_ttl) without a reply. The
    ///   release is repeated in the background.
    #[non_exhaustive]
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
        /// How long the call was refused and repeated; `None` if a retry would not help.
        retried_for: Option<Duration>,
    },

    /// Too few replicas acknowledged in time; see [`min_replicas`](crate::Mutex::min_replicas).
    ///
    /// Check that the replicas are up and not lagging, or ask for fewer replicas or more time.
    ///
    /// - From a call that locks: you do not hold the lock. It was acquired, and is undone in the
    ///   background.
    /// - From `renew` and `set_ttl`: you hold the lock as long as
    ///   [`is_held`](crate::Lease::is_held) returns true. This renewal does not count.
    #[non_exhaustive]
    NotReplicated {
        /// The master, without its password.
        server: String,
        /// How many replicas acknowledged.
        acknowledged: usize,
        /// How many replicas had to acknowledge.
        wanted: usize,
    },

    /// A key of the lock has the wrong type: another program wrote it.
    ///
    /// It can be the key in this error, or another key of leasehold for the same lock: the
    /// server does not tell which. A call that acquires holds nothing after this error, but
    /// another holder can: do not delete a key before `TYPE` shows that it is the wrong one.
    /// The key of a lock is a string, and so are the keys of the last fencing tokens
    /// (`leasehold:fence:…`, `leasehold:permits-fence:…`). The other keys are lists
    /// (`leasehold:queue:…`, `leasehold:permits-queue:…`), hashes (`leasehold:places:…`,
    /// `leasehold:permits-places:…`) and sorted sets (`leasehold:readers:…`,
    /// `leasehold:permits:…`).
    ///
    /// Delete only the key of the wrong type, rename the lock, or set another
    /// [`key_prefix`](crate::ClientBuilder::key_prefix).
    #[non_exhaustive]
    WrongType {
        /// The server, without its password.
        server: String,
        /// The key of the lock in Redis; with several names, that of one of them.
        key: String,
    },

    /// The key of the last fencing token does not contain an integer below 2^53.
    ///
    /// From a call that locks: you do not hold the lock. Delete the key once no token drawn from it
    /// can be in use.
    #[non_exhaustive]
    BadFence {
        /// The server, without its password.
        server: String,
        /// The key in Redis.
        key: String,
    },

    /// `lock` used up the attempts of its [`WaitPolicy::Backoff`](crate::WaitPolicy::Backoff).
    ///
    /// Another holder has the lock, and you do not hold it. Retry later, or allow more attempts.
    /// The `try_` calls return [`Taken`](crate::Taken) instead.
    #[non_exhaustive]
    AttemptsUsedUp {
        /// How many attempts were made.
        attempts: u32,
    },

    /// The lease ended before its holder released it. Stop what the lock protects.
    ///
    /// You do not hold the lock, and another holder may have it.
    ///
    /// From [`unlock`](crate::MutexGuard::unlock): the lease had ended before, so what was done
    /// under it may have overlapped with another holder.
    Lost(Lost),

    /// The client was shut down. Make another client.
    ///
    /// You do not hold the lock. An attempt that was in progress may have acquired it, for up to
    /// its ttl. A call that began after the shutdown has acquired nothing.
    Closed,

    /// The client was made before `fork`, and this process is the child. Make another client here.
    ///
    /// The same holds for the [`CancelToken`](crate::CancelToken) of a call.
    /// The call did nothing. The parent's client, and the locks that it holds, go on as before:
    /// see [threads](crate::guide::threads).
    Forked,

    /// The call was cancelled by its [`CancelToken`](crate::CancelToken).
    ///
    /// You do not hold the lock. What the call has sent is undone in the background: it leaves the
    /// queue, and a lock that it is still granted is released.
    Cancelled,

    /// This process or its machine has no file descriptor or memory left for a connection.
    ///
    /// A call that waits for a lock goes on, and tries again. The server is not the reason:
    /// neither its circuit breaker nor [`Client::health`](crate::Client::health) counts it. What a
    /// call says about the lock is as for [`Thread`](Self::Thread).
    #[non_exhaustive]
    Shortage {
        /// What is missing, and what to do.
        missing: &'static str,
        /// The operating system's error.
        cause: Arc<io::Error>,
    },

    /// A background thread could not be started: the process or the machine has too many.
    ///
    /// A call that waits for a lock goes on, and tries again.
    ///
    /// - From a call that locks: you do not hold the lock.
    /// - From `renew` and `set_ttl`: you hold the lock as long as
    ///   [`is_held`](crate::Lease::is_held) returns true.
    /// - From [`unlock`](crate::MutexGuard::unlock): the release is repeated in the background.
    #[non_exhaustive]
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
    /// That is possible if a command got no reply, if too few replicas acknowledged it, if Redis
    /// refused `WAIT`, which asks for their acknowledgement, or after a refusal that may pass. The
    /// command is undone in the background, and the lock expires after its ttl at the latest.
    /// Also true for [`Cancelled`](Self::Cancelled) and [`Closed`](Self::Closed), which do not tell
    /// whether the call had sent a command: a call that began after the token was cancelled or the
    /// client was shut down sent none. Every [`Unreachable`](Self::Unreachable) counts, even if no
    /// connection was ever made: the error does not tell whether a command was sent.
    ///
    /// The other errors are about the last attempt of the call. If an earlier attempt got no reply,
    /// it may have acquired the lock although this returns false: for example if a call that waits
    /// is [`Refused`](Self::Refused) after an outage.
    ///
    /// ```
    /// # let error = leasehold::testing::error::unreachable("redis-1:6379", "no reply in 1.0 s");
    /// if error.may_be_held() {
    ///     eprintln!("{error}: another try may find the lock taken until its ttl has passed");
    /// }
    /// # assert!(error.may_be_held());
    /// ```
    pub fn may_be_held(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. }
                | Self::NotReplicated { .. }
                | Self::Refused { command: WAIT, .. }
                | Self::Refused {
                    retried_for: Some(_),
                    ..
                }
                | Self::Cancelled
                | Self::Closed
        )
    }

    /// Returns whether the same call may succeed later without a change by an operator.
    ///
    /// True if Redis was unreachable or refused for a reason that may pass, if too few replicas
    /// acknowledged in time, or if the attempts of a
    /// [`WaitPolicy::Backoff`](crate::WaitPolicy::Backoff) are used up. False for
    /// [`Cancelled`](Self::Cancelled): a cancelled token cancels every later call, too.
    ///
    /// Only calls that lock may be repeated. An [`unlock`](crate::MutexGuard::unlock) is repeated
    /// in the background, and what was done under the lock must not be done again.
    ///
    /// ```
    /// # let server = leasehold::testing::Server::start();
    /// # let client = server.client();
    /// match client.mutex("report").lock() {
    ///     Err(error) if error.is_retryable() => println!("later: {error}"),
    ///     outcome => drop(outcome?),
    /// }
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn is_retryable(&self) -> bool {
        self.is_unreachable()
            || matches!(
                self,
                Self::NotReplicated { .. }
                    | Self::AttemptsUsedUp { .. }
                    | Self::Shortage { .. }
                    | Self::Thread { .. }
            )
    }

    /// Returns the server that failed or refused the call, without its password.
    ///
    /// `None` if the error is not about a server.
    ///
    /// ```
    /// # let error = leasehold::testing::error::unreachable("redis-1:6379", "no reply in 1.0 s");
    /// if let Some(server) = error.server() {
    ///     eprintln!("check {server}"); // check redis-1:6379
    /// }
    /// # assert_eq!(error.server(), Some("redis-1:6379"));
    /// ```
    pub fn server(&self) -> Option<&str> {
        match self {
            Self::Unreachable { server, .. }
            | Self::CircuitOpen { server, .. }
            | Self::Refused { server, .. }
            | Self::NotReplicated { server, .. }
            | Self::WrongType { server, .. }
            | Self::BadFence { server, .. } => Some(server),
            _ => None,
        }
    }

    /// Returns the message without the server, for a text that already names it.
    pub(crate) fn without_server(&self) -> String {
        match self {
            Self::Refused {
                command, answer, ..
            } => format!("{command} refused: {answer}"),
            Self::WrongType { key, .. } => wrong_type(key, ""),
            Self::BadFence { key, .. } => bad_fence(key, ""),
            error => error.to_string(),
        }
    }

    /// Returns whether Redis was unreachable or did not serve the call for a reason that may pass.
    ///
    /// True for [`Unreachable`](Self::Unreachable), [`CircuitOpen`](Self::CircuitOpen), and
    /// [`Refused`](Self::Refused) for a reason that may pass: the same outage causes all three, so a
    /// program answers them alike. The same call may succeed later.
    ///
    /// ```
    /// # let error = leasehold::testing::error::unreachable("redis-1:6379", "no reply in 1.0 s");
    /// // The status of an HTTP request that needs the lock.
    /// let status = if error.is_unreachable() { 503 } else { 500 };
    /// # assert_eq!(status, 503);
    /// ```
    pub fn is_unreachable(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. }
                | Self::CircuitOpen { .. }
                | Self::Refused {
                    retried_for: Some(_),
                    ..
                }
        )
    }

    /// Returns whether the user lacks a permission that a script needs.
    pub(crate) fn lacks_right(&self) -> bool {
        match self {
            Self::Refused {
                command, answer, ..
            } => {
                // Without the right to log on or to send WAIT, nothing is known about scripts.
                ![LOG_ON, WAIT].contains(command)
                    && (answer.starts_with("NOPERM") || is_permission_error_in_script(answer))
            }
            _ => false,
        }
    }

    /// Returns why the lease ended, if the error is [`Lost`](Self::Lost).
    ///
    /// ```
    /// # let error = leasehold::Error::from(leasehold::Lost::Taken);
    /// if let Some(lost) = error.lost() {
    ///     eprintln!("roll back: {lost}"); // roll back: another holder has the lock
    /// }
    /// # assert_eq!(error.lost(), Some(leasehold::Lost::Taken));
    /// ```
    pub fn lost(&self) -> Option<Lost> {
        match self {
            Self::Lost(lost) => Some(*lost),
            _ => None,
        }
    }
}

impl From<Shortage> for Error {
    fn from(Shortage { missing, cause }: Shortage) -> Self {
        match missing {
            Missing::Thread(name) => Self::Thread { name, cause },
            Missing::ForConnection(missing) => Self::Shortage { missing, cause },
        }
    }
}

impl From<Lost> for Error {
    fn from(lost: Lost) -> Self {
        Self::Lost(lost)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(what) => f.write_str(what),
            Self::Unreachable { server, cause } => cause.write_message(server, f),
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
                     (last: {last}); try again in {}{}",
                    Rounded(*retry_in),
                    advice(&last.to_string())
                )
            }
            Self::Refused {
                server,
                command,
                answer,
                retried_for,
            } => write_refusal(f, server, command, answer, *retried_for),
            Self::NotReplicated {
                server,
                acknowledged: done,
                wanted,
            } => write!(
                f,
                "only {done} of the {wanted} replicas required by min_replicas acknowledged to \
                 {server} in time: check that they are up and not lagging, or ask for fewer or \
                 for more time"
            ),
            Self::WrongType { server, key } => {
                f.write_str(&wrong_type(key, &format!(" at {server}")))
            }
            Self::BadFence { server, key } => {
                f.write_str(&bad_fence(key, &format!(" at {server}")))
            }
            Self::AttemptsUsedUp { attempts } => {
                write!(
                    f,
                    "the lock was held by another holder at each of {attempts} attempts"
                )
            }
            Self::Lost(lost) => write!(f, "the lock was lost: {lost}"),
            Self::Closed => f.write_str("the client was shut down"),
            Self::Forked => {
                f.write_str("this client was made before fork: make one in the child process")
            }
            Self::Cancelled => f.write_str("the call was cancelled"),
            Self::Shortage { missing, cause } => write!(f, "{missing} ({cause})"),
            Self::Thread { name, cause } => {
                write!(f, "cannot start the thread {name}: {cause}")
            }
        }
    }
}

fn wrong_type(key: &str, at: &str) -> String {
    format!(
        "the key {key}{at} or a key of leasehold for the same lock (leasehold:*) has the wrong \
         type: another program wrote it; find it with TYPE and delete only that one, rename the \
         lock, or set another key_prefix"
    )
}

fn bad_fence(key: &str, at: &str) -> String {
    format!(
        "the key {key}{at} does not contain a fencing token (an integer below 2^53): another \
         program wrote it; delete it once no token drawn from it can be in use"
    )
}

fn write_refusal(
    f: &mut fmt::Formatter<'_>,
    server: &str,
    command: &str,
    answer: &str,
    retried_for: Option<Duration>,
) -> fmt::Result {
    let advice = advice(answer);
    match command {
        HANDSHAKE => write!(f, "no TLS connection to {server}: {answer}{advice}"),
        _ => {
            write!(f, "{server} refused {command}")?;
            if let Some(time) = retried_for.filter(|time| !time.is_zero()) {
                write!(f, " for {}", Rounded(time))?;
            }
            write!(f, ": {answer}{advice}")
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // The message contains the cause itself.
            Self::Shortage { cause, .. } | Self::Thread { cause, .. } => {
                std::error::Error::source(&**cause)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use redis::RedisError;

    use super::*;

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
                name: "leasehold-engine",
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
        let below = std::error::Error::source(&errors[2]).map(ToString::to_string);
        assert_eq!(below.as_deref(), Some("the cause of that"));
    }

    #[test]
    fn an_error_says_whether_to_retry_and_which_server_failed() {
        let server = || "h:1".to_owned();
        let unreachable = Error::Unreachable {
            server: server(),
            cause: Cause::text("LOADING"),
        };
        assert!(unreachable.is_retryable());
        assert_eq!(unreachable.server(), Some("h:1"));
        let refused = Error::Refused {
            server: server(),
            command: "EVALSHA",
            answer: "NOPERM".into(),
            retried_for: None,
        };
        assert!(!refused.is_retryable());
        assert_eq!(refused.server(), Some("h:1"));
        assert!(Error::AttemptsUsedUp { attempts: 3 }.is_retryable());
        for error in [
            Error::NotReplicated {
                server: server(),
                acknowledged: 0,
                wanted: 1,
            },
            Error::WrongType {
                server: server(),
                key: "lock:a".into(),
            },
            Error::BadFence {
                server: server(),
                key: "leasehold:fence:{lock:a}".into(),
            },
        ] {
            let text = error.to_string();
            assert!(text.contains(" h:1 "), "{text}");
            assert_eq!(error.server(), Some("h:1"), "{text}");
        }
        let lost = Error::from(Lost::Taken);
        assert_eq!((lost.lost(), lost.server()), (Some(Lost::Taken), None));
        assert!(!lost.is_retryable() && !Error::Closed.is_retryable());
    }

    #[test]
    fn a_text_that_names_the_server_itself_gets_the_error_without_it() {
        let server = || "h:1".to_owned();
        let key = || "lock:a".to_owned();
        for (error, words) in [
            (
                Error::Refused {
                    server: server(),
                    command: "acquire",
                    answer: "OOM".into(),
                    retried_for: None,
                },
                "acquire refused: OOM",
            ),
            (
                Error::WrongType {
                    server: server(),
                    key: key(),
                },
                "the key lock:a or a key of leasehold",
            ),
            (
                Error::BadFence {
                    server: server(),
                    key: key(),
                },
                "the key lock:a does not contain a fencing token",
            ),
        ] {
            let text = error.without_server();
            assert!(text.starts_with(words) && !text.contains("h:1"), "{text}");
        }
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
            retried_for: None,
        };
        assert!(full.to_string().contains("maxmemory"), "{full}");
        let error = Error::Unreachable {
            server: "h:1".into(),
            cause: Cause::text("READONLY …"),
        };
        assert!(error.to_string().contains("replica"), "{error}");
        assert!(error.may_be_held());
    }

    #[test]
    fn an_error_says_whether_the_lock_may_be_held() {
        for error in [Error::Cancelled, Error::Closed] {
            assert!(error.may_be_held(), "the call may have sent a command");
        }
        let refused = |command| Error::Refused {
            server: "h:1".into(),
            command,
            answer: "NOPERM".into(),
            retried_for: None,
        };
        let error = refused(WAIT);
        assert!(error.may_be_held(), "the lock was acquired before WAIT");
        for error in [
            refused("acquire"),
            Error::from(Lost::Taken),
            Error::Config("no name".into()),
            Error::AttemptsUsedUp { attempts: 3 },
        ] {
            assert!(!error.may_be_held(), "{error}");
        }
    }
}
