//! Logs on a new connection: HELLO or AUTH, SELECT, and the client's name, in one write.

use std::os::fd::BorrowedFd;

use redis::{
    Cmd, ConnectionAddr, ErrorKind, RedisConnectionInfo, RedisError, RedisResult, ServerError,
    ServerErrorKind, cmd,
};

use super::connection::Connection;
use super::stream::{Deadlines, Progress};
use crate::clock::Instant;
use crate::connect_failure::ConnectFailure;
use crate::error_reply::{is_rejected_logon, library_text, words};
use crate::protocol::reply::Reply;
use crate::url::Address;

/// A command of the log-on. It decides what an error reply means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Hello,
    Auth,
    Select,
    /// Sent if there is nothing else to send.
    Ping,
    /// The server may not know or not permit the command: the connection works without it.
    Optional,
}

/// What a log-on sends.
struct LogOn<'a> {
    redis: &'a RedisConnectionInfo,
    user: Option<&'a str>,
    password: Option<&'a str>,
    /// The name of the connection.
    name: Option<&'a str>,
    /// Whether to send the optional commands.
    with_optional: bool,
}

/// Why a log-on failed.
struct Refusal {
    error: RedisError,
    /// The peer closed the connection.
    is_closed: bool,
}

impl From<RedisError> for Refusal {
    fn from(error: RedisError) -> Self {
        let is_closed = error.is_connection_dropped();
        Self { error, is_closed }
    }
}

impl Connection {
    /// Connects and logs on within `deadlines`: name resolution, all addresses, TLS and the log-on
    /// together. Name resolution and a callback for credentials cannot be interrupted, so this may
    /// block for longer: only the client's own threads call it, and no thread of a user. `name`
    /// becomes the name of the connection. `progress` is called after each step of connecting.
    pub(crate) fn open(
        address: &Address,
        name: Option<&str>,
        deadlines: impl Into<Deadlines>,
        progress: impl Fn(Progress<'_>),
    ) -> RedisResult<Self> {
        let deadlines = deadlines.into();
        let open = || {
            Self::open_as_now(address, name, deadlines, &progress)
                .map_err(|error| address.explained(error))
        };
        match open() {
            // The password may have changed after it was read.
            Err(error) if address.credentials.is_some() && is_rejected_logon(&error) => open()
                .map_err(|error| {
                    if is_rejected_logon(&error) {
                        ConnectFailure::Rejected(library_text(&error)).into()
                    } else {
                        error
                    }
                }),
            opened => opened,
        }
    }

    /// Connects and logs on with the credentials of now.
    ///
    /// A proxy may close the connection at a command that it does not know. If that happens, this
    /// connects again without the optional commands, and the next connections omit them, too.
    fn open_as_now(
        address: &Address,
        name: Option<&str>,
        deadlines: Deadlines,
        progress: &impl Fn(Progress<'_>),
    ) -> RedisResult<Self> {
        let (user, password) = address.logon()?;
        let mut what = LogOn {
            redis: address.info.redis_settings(),
            user: user.as_deref(),
            password: password.as_deref(),
            name,
            with_optional: address.sends_optional(),
        };
        let mut opened = Self::open_once(address, &what, deadlines, progress)?;
        if what.with_optional
            && let Err(refusal) = &opened
            && refusal.is_closed
        {
            what.with_optional = false;
            match Self::open_once(address, &what, deadlines, progress) {
                Ok(Ok(connection)) => {
                    address.omit_optional();
                    opened = Ok(connection);
                }
                // This error names the command, unless the server itself said why before.
                Ok(Err(named)) if refusal.error.kind() == ErrorKind::Io => opened = Err(named),
                _ => {}
            }
        }
        let has_no_password = what.user.is_some() && what.password.is_none_or(str::is_empty);
        opened.map_err(|Refusal { error, .. }| {
            if has_no_password && is_rejected_logon(&error) {
                (
                    ErrorKind::AuthenticationFailed,
                    "Password authentication failed for a user without a password",
                    library_text(&error),
                )
                    .into()
            } else {
                error
            }
        })
    }

    /// Connects, and logs on once. The outer error is that of connecting.
    fn open_once(
        address: &Address,
        what: &LogOn<'_>,
        deadlines: Deadlines,
        progress: &impl Fn(Progress<'_>),
    ) -> RedisResult<Result<Self, Refusal>> {
        let accepted = |socket: BorrowedFd<'_>| progress(Progress::Accepted(socket));
        let mut connection = Self::connect(address, deadlines, accepted)?;
        let is_plain = !matches!(address.info.addr(), ConnectionAddr::TcpTls { .. });
        if !is_plain {
            progress(Progress::Secured);
        }
        Ok(
            match connection.log_on_as(what, deadlines.ready_by, is_plain) {
                Ok(()) if connection.has_surplus() => Err(connection.surplus().into()),
                Ok(()) => Ok(connection),
                Err(refusal) => Err(refusal),
            },
        )
    }

    /// Logs on. With `awaits_first`, the peer has not sent anything yet.
    fn log_on_as(
        &mut self,
        what: &LogOn<'_>,
        until: Instant,
        awaits_first: bool,
    ) -> Result<(), Refusal> {
        let steps = commands(what);
        let size = if what.with_optional {
            steps.len().max(1)
        } else {
            // One by one: an error then names the command at which the peer closes the connection.
            1
        };
        for (n, steps) in steps.chunks(size).enumerate() {
            let sent = self.log_on(steps, until, awaits_first && n == 0);
            match (sent, steps) {
                (Err(refusal), [(_, command)]) => return Err(refusal.at(command)),
                (sent, _) => sent?,
            }
        }
        Ok(())
    }

    /// Sends these commands and reads their replies.
    fn log_on(
        &mut self,
        commands: &[(Step, Cmd)],
        until: Instant,
        awaits_first: bool,
    ) -> Result<(), Refusal> {
        // If writing fails, the server may have sent the reason before it closed the connection.
        let sent = self.write(until, |buffer| {
            for (_, command) in commands {
                command.write_packed_command(buffer);
            }
        });
        let mut ignored: Option<ServerError> = None;
        for (n, (step, _)) in commands.iter().enumerate() {
            let answer = match self.answer(until) {
                Ok(answer) => answer,
                Err(error) => {
                    let is_closed = error.is_connection_dropped();
                    let error = match ignored {
                        Some(why) if is_closed => why.into(),
                        _ if n == 0 && awaits_first => ConnectFailure::mark(error),
                        _ => error,
                    };
                    return Err(Refusal { error, is_closed });
                }
            };
            let error = match step.read(answer).ok_or_else(|| self.malformed())? {
                Ok(()) => continue,
                Err(error) => error,
            };
            if let Some(refusal) = step.refusal(&error) {
                return Err(refusal.into());
            }
            // A missing permission for an optional command closes no connection.
            if error.code() != "NOPERM" {
                ignored = Some(error);
            }
        }
        Ok(sent?)
    }
}

impl Refusal {
    /// Returns this refusal; if the peer closed the connection and said nothing, the error names
    /// `command`.
    fn at(mut self, command: &Cmd) -> Self {
        if !self.is_closed || self.error.kind() != ErrorKind::Io {
            return self;
        }
        let command = verb(command);
        self.error = match ConnectFailure::unheard(&self.error) {
            Some(_) => ConnectFailure::ClosedUnheard(Some(command)).into(),
            None => ConnectFailure::ClosedAt(command).into(),
        };
        self
    }
}

/// Returns the name of a command of the log-on.
fn verb(command: &Cmd) -> &'static str {
    let first = command.args_iter().next();
    let is =
        |verb: &&&str| matches!(first, Some(redis::Arg::Simple(word)) if word == verb.as_bytes());
    let verbs = ["HELLO", "AUTH", "SELECT", "PING", "CLIENT"];
    verbs.iter().find(is).copied().unwrap_or("the log-on")
}

/// Returns an error reply to AUTH. A server that does not know the command repeats its arguments:
/// they contain the password.
fn without_arguments(error: &ServerError) -> String {
    let text = words(error);
    match text.find(", with args") {
        Some(end) => text.get(..end).unwrap_or_default().to_owned(),
        None => text,
    }
}

/// Returns the commands that a new connection sends first.
fn commands(what: &LogOn<'_>) -> Vec<(Step, Cmd)> {
    let redis = what.redis;
    let user = what.user;
    // A user without a password logs on with an empty one. Otherwise the connection would have the
    // permissions of another user, `default`.
    let password = what.password.or_else(|| user.map(|_| ""));
    let mut commands = Vec::with_capacity(5);
    if redis.protocol().supports_resp3() {
        let mut hello = cmd("HELLO");
        hello.arg("3");
        if let Some(password) = password {
            hello
                .arg("AUTH")
                .arg(user.unwrap_or("default"))
                .arg(password);
        }
        commands.push((Step::Hello, hello));
    } else if let Some(password) = password {
        let mut auth = cmd("AUTH");
        auth.arg(user).arg(password);
        commands.push((Step::Auth, auth));
    }
    if redis.db() != 0 {
        let mut select = cmd("SELECT");
        select.arg(redis.db());
        commands.push((Step::Select, select));
    }
    if what.with_optional {
        let mut client = |what: &[&str]| {
            let mut client = cmd("CLIENT");
            client.arg(what);
            commands.push((Step::Optional, client));
        };
        for (what, value) in [("LIB-NAME", redis.lib_name()), ("LIB-VER", redis.lib_ver())] {
            if let Some(value) = value {
                client(&["SETINFO", what, value]);
            }
        }
        if let Some(name) = what.name {
            client(&["SETNAME", name]);
        }
    } else if commands.is_empty() {
        // A peer counts as Redis once it has replied.
        commands.push((Step::Ping, cmd("PING")));
    }
    commands
}

impl Step {
    /// Reads the reply to the command; `None` for one that Redis does not send.
    pub(crate) fn read(self, answer: Reply) -> Option<Result<(), ServerError>> {
        match (self, answer) {
            (_, Reply::Error(error)) => Some(Err(error)),
            (Self::Hello, Reply::List(_)) => Some(Ok(())),
            (Self::Hello, _) => None,
            (Self::Ping, Reply::Status(_)) => Some(Ok(())),
            (_, Reply::Status(text)) if text == "OK" => Some(Ok(())),
            _ => None,
        }
    }

    /// Returns why this error reply prevents the connection; `None` if the log-on continues.
    pub(crate) fn refusal(self, error: &ServerError) -> Option<RedisError> {
        let text = error.details().unwrap_or_default();
        // The server sends these errors to a new connection before it reads a command.
        if text.contains("max number of clients") || error.code() == "DENIED" {
            return Some(error.clone().into());
        }
        match self {
            Self::Hello if text.starts_with("unknown command") => Some(
                (
                    ErrorKind::RESP3NotSupported,
                    "Redis Server doesn't support HELLO command therefore resp3 cannot be used",
                )
                    .into(),
            ),
            Self::Hello => Some(error.clone().into()),
            Self::Auth => Some(
                (
                    ErrorKind::AuthenticationFailed,
                    "Password authentication failed",
                    without_arguments(error),
                )
                    .into(),
            ),
            Self::Select => Some(
                (
                    ServerErrorKind::ResponseError.into(),
                    "Redis server refused to switch database",
                    text.to_owned(),
                )
                    .into(),
            ),
            Self::Optional | Self::Ping => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{Shutdown, TcpListener};
    use std::thread;
    use std::time::Duration;

    use super::*;

    use crate::redis::conn::read_reply;

    /// Logs on to a server that sends `reply` and then ends the connection.
    fn error_after(reply: &'static [u8]) -> RedisError {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0]).unwrap();
            stream.write_all(reply).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            // Closed with unread bytes in it, the connection would lose the reply.
            stream
        });
        let address = Address::parse(&url).unwrap();
        let until = Instant::now().after(Duration::from_secs(30));
        let opened = Connection::open(&address, None, until, |_| ());
        let _open = server.join().unwrap();
        opened.err().expect("an error")
    }

    #[test]
    fn bytes_behind_the_log_on_are_quoted() {
        let error = error_after(b"+OK\r\n+OK\r\n$3\r\nwho\r\n").to_string();
        assert!(error.contains(r"$3\r\nwho\r\n"), "{error}");
    }

    #[test]
    fn connection_lost_after_an_optional_command_is_not_a_missing_permission() {
        let error =
            error_after(b"-NOPERM this user has no permissions to run 'client|setinfo'\r\n");
        assert!(error.is_connection_dropped(), "{error}");
        // Such a server may close the connection because of what it replied.
        let error = error_after(b"-NOAUTH Authentication required.\r\n");
        assert_eq!(error.code(), Some("NOAUTH"), "{error}");
    }

    fn commands_of(url: &str, name: Option<&str>) -> Vec<String> {
        let address = Address::parse(url).unwrap();
        let (user, password) = address.logon().unwrap();
        let what = LogOn {
            redis: address.info.redis_settings(),
            user: user.as_deref(),
            password: password.as_deref(),
            name,
            with_optional: address.sends_optional(),
        };
        let commands = commands(&what);
        let words = |(_, command): &(Step, Cmd)| {
            let words = command.args_iter().filter_map(|arg| match arg {
                redis::Arg::Simple(word) => Some(String::from_utf8_lossy(word).into_owned()),
                _ => None,
            });
            words.collect::<Vec<_>>().join(" ")
        };
        commands.iter().map(words).collect()
    }

    fn error(line: &str) -> ServerError {
        match read_reply(format!("-{line}\r\n").as_bytes()) {
            Ok(Some(Reply::Error(error))) => error,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn handshake_sends_login_database_and_name() {
        let version = concat!("CLIENT SETINFO LIB-VER ", env!("CARGO_PKG_VERSION"));
        let info = ["CLIENT SETINFO LIB-NAME leasehold", version];
        assert_eq!(commands_of("redis://h", None), info);
        assert_eq!(
            commands_of("redis://ann:s3cret@h/2", Some("me")),
            [
                "AUTH ann s3cret",
                "SELECT 2",
                info[0],
                info[1],
                "CLIENT SETNAME me"
            ]
        );
        assert_eq!(
            commands_of("redis://:s3cret@h?protocol=3", None)[0],
            "HELLO 3 AUTH default s3cret"
        );
        assert_eq!(commands_of("redis://h?protocol=resp3", None)[0], "HELLO 3");
        for (url, first) in [
            ("redis://ann@h", "AUTH ann "),
            ("redis://ann@h?protocol=3", "HELLO 3 AUTH ann "),
        ] {
            assert_eq!(commands_of(url, None)[0], first, "{url}");
        }
    }

    #[test]
    fn refusal_depends_on_the_step() {
        let wrong = error("WRONGPASS invalid username-password pair or user is disabled.");
        let refusal = Step::Auth.refusal(&wrong).unwrap();
        assert_eq!(refusal.kind(), ErrorKind::AuthenticationFailed);
        let full = error("ERR max number of clients reached");
        let steps = [Step::Hello, Step::Auth, Step::Select, Step::Optional];
        for step in steps {
            let refusal = step.refusal(&full).unwrap();
            assert!(
                refusal.to_string().contains("max number of clients"),
                "{refusal}"
            );
            assert_ne!(refusal.kind(), ErrorKind::AuthenticationFailed);
        }
        let right =
            error("NOPERM this user has no permissions to run the 'client|setname' command");
        assert!(Step::Optional.refusal(&right).is_none());
    }
}
