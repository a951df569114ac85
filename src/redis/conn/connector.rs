//! Makes connections to one Redis server.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::{ErrorKind, RedisError, RedisResult};

use crate::clock::Instant;
use crate::config::Config;
use crate::connect_failure::ConnectFailure;
use crate::error::Cause;
use crate::error_reply::is_final_at_logon;
use crate::protocol::reply::Reply;
use crate::redis::cluster::slot_map::SlotMap;
use crate::redis::conn::connection::Connection;
use crate::redis::conn::stream::{Deadlines, Progress};
use crate::redis::sentinel::Sentinels;
use crate::shortage::Shortage;
use crate::thread_group::ThreadGroup;
use crate::url::{Address, Sentinel};

/// How to connect to a server.
pub(crate) struct Connector {
    kind: ConnectorKind,
    /// The cluster of which the server is a node. It learns of failures: another node may take over
    /// soon.
    cluster: Option<Weak<SlotMap>>,
    pub(crate) label: String,
    connection_name: String,
    pub(super) connect_timeout: Duration,
    pub(crate) command_timeout: Duration,
    pub(super) dialers: ThreadGroup,
    /// Its reference count is the number of open connections plus one.
    open: Arc<()>,
    /// The server has accepted the last connection, and has sent nothing on it.
    awaits_first: AtomicBool,
    /// The server has replied on an earlier connection.
    has_replied: AtomicBool,
}

/// The address of a server, or where to ask for it.
enum ConnectorKind {
    Server(Box<Address>),
    Sentinels(Arc<Sentinels>),
}

impl Connector {
    /// Returns a connector to one server, which may be a node of a `cluster`.
    pub(in crate::redis) fn to_server(
        address: Address,
        cluster: Option<Weak<SlotMap>>,
        config: &Config,
    ) -> Self {
        let label = address.label.clone();
        let kind = ConnectorKind::Server(Box::new(address));
        Self::with(label, kind, cluster, config)
    }

    /// Returns a connector to the master that the sentinels name.
    pub(in crate::redis) fn to_master(sentinel: Sentinel, config: &Config) -> Self {
        let label = sentinel.label();
        let sentinels = Arc::new(Sentinels::new(sentinel, &config.dialers));
        Self::with(label, ConnectorKind::Sentinels(sentinels), None, config)
    }

    fn with(
        label: String,
        kind: ConnectorKind,
        cluster: Option<Weak<SlotMap>>,
        config: &Config,
    ) -> Self {
        Self {
            kind,
            cluster,
            label,
            connection_name: config.connection_name(),
            connect_timeout: config.connect_timeout,
            command_timeout: config.command_timeout,
            dialers: config.dialers.clone(),
            open: Arc::default(),
            awaits_first: AtomicBool::new(false),
            has_replied: AtomicBool::new(false),
        }
    }

    /// Returns whether the server is a node of a cluster.
    pub(crate) fn is_member(&self) -> bool {
        self.cluster.is_some()
    }

    /// Reports a failed command or connection to the cluster, if there is one.
    pub(crate) fn failed(&self) {
        if let Some(cluster) = self.cluster.as_ref().and_then(Weak::upgrade) {
            cluster.suspect();
        }
    }

    pub(crate) fn sentinels(&self) -> Option<&Arc<Sentinels>> {
        match &self.kind {
            ConnectorKind::Server(_) => None,
            ConnectorKind::Sentinels(sentinels) => Some(sentinels),
        }
    }

    /// Connects within `connect_timeout`, and logs on within `limit` since then, which is not
    /// shorter; before that, asking the sentinels may take as long as `connect_timeout`. Name
    /// resolution cannot be interrupted, so this may block for longer: only a dialer calls it.
    ///
    /// The first call that waits for the connection gives up at `soonest`. Calls `accepted` with
    /// the socket when the peer has accepted the connection, and `moved` if the sentinels name
    /// another master than before.
    pub(super) fn connect(
        &self,
        soonest: Instant,
        limit: Duration,
        accepted: &dyn Fn(BorrowedFd<'_>),
        moved: impl FnOnce(),
    ) -> RedisResult<Connection> {
        match &self.kind {
            ConnectorKind::Server(address) => {
                let now = Instant::now();
                let deadlines = Deadlines {
                    soonest,
                    until: now.after(self.connect_timeout),
                    ready_by: now.after(limit),
                };
                let connection = self.log_on(address, deadlines, accepted);
                connection.inspect_err(|_| self.failed())
            }
            ConnectorKind::Sentinels(sentinels) => {
                let open = |master: &Address, until: Instant, is_only: bool| {
                    let ready_by = if is_only {
                        until.max(Instant::now().after(limit))
                    } else {
                        until
                    };
                    let deadlines = Deadlines {
                        soonest,
                        until,
                        ready_by,
                    };
                    self.open_master(master, deadlines, accepted)
                };
                let (connection, has_moved) = sentinels.connect(self.connect_timeout, &open)?;
                if has_moved {
                    moved();
                }
                Ok(connection)
            }
        }
    }

    /// Asks the sentinels whether the master has moved. Returns true if it has.
    pub(in crate::redis) fn look_for_master(&self) -> bool {
        let open =
            |master: &Address, until: Instant, _| self.open_master(master, until.into(), &|_| ());
        let sentinels = self.sentinels();
        sentinels.is_some_and(|sentinels| sentinels.look(self.connect_timeout, &open))
    }

    /// Counts a move of the master, after the connections to the old one were given up.
    pub(in crate::redis) fn moved(&self) {
        if let Some(sentinels) = self.sentinels() {
            sentinels.moved();
        }
    }

    /// Connects to an address that sentinels name. Fails unless it is a master.
    fn open_master(
        &self,
        address: &Address,
        deadlines: Deadlines,
        accepted: &dyn Fn(BorrowedFd<'_>),
    ) -> RedisResult<Connection> {
        let connection = self.log_on(address, deadlines, accepted)?;
        check_role(connection, deadlines.ready_by)
    }

    /// Returns why no connection could be made.
    pub(super) fn no_connection(&self, error: RedisError, limit: Duration) -> Cause {
        if let Some(shortage) = Shortage::of(&error) {
            return Cause::of_shortage(shortage);
        }
        let is_final = is_final_at_logon(&error);
        let cause = match ConnectFailure::unheard(&error) {
            Some(failure) => Cause::of_failure(failure, &self.tls_hint()),
            None => Cause::no_connection(error, limit),
        };
        if is_final {
            cause
        } else {
            self.with_announced(cause)
        }
    }

    /// Adds to the cause the address that the sentinels name, if it is about that one. Says who
    /// names it unless a master has replied before: the address may be one that only others can
    /// reach.
    fn with_announced(&self, cause: Cause) -> Cause {
        let master = self.sentinels().and_then(|sentinels| sentinels.trying());
        match master {
            Some(master) if self.has_replied() => cause.at(&format!("the master at {master}")),
            Some(master) => cause.at(&format!("the sentinels name {master} as the master")),
            None => cause,
        }
    }

    /// Returns whether the server has ever replied.
    pub(in crate::redis) fn has_replied(&self) -> bool {
        self.has_replied.load(Ordering::Relaxed)
    }

    /// Returns why no connection was ready in time.
    pub(super) fn no_connection_yet(&self) -> Cause {
        let of_sentinels =
            |sentinels: &Arc<Sentinels>| sentinels.trying().is_none() && sentinels.awaits_first();
        let awaits_first =
            self.awaits_first.load(Ordering::Relaxed) || self.sentinels().is_some_and(of_sentinels);
        self.with_announced(if awaits_first {
            Cause::of_failure(&ConnectFailure::Silent, &self.tls_hint())
        } else {
            Cause::silence("no connection in time")
        })
    }

    /// Returns advice for a server that accepts connections and does not reply; empty once it has
    /// replied.
    fn tls_hint(&self) -> String {
        if self.has_replied() {
            return String::new();
        }
        match &self.kind {
            ConnectorKind::Server(address) => address.tls_hint(),
            ConnectorKind::Sentinels(sentinels) => sentinels.tls_hint(),
        }
    }

    /// Returns how many connections are open.
    pub(crate) fn connections(&self) -> u64 {
        Arc::strong_count(&self.open) as u64 - 1
    }

    fn log_on(
        &self,
        address: &Address,
        deadlines: Deadlines,
        accepted: &dyn Fn(BorrowedFd<'_>),
    ) -> RedisResult<Connection> {
        let awaits_first = |awaits| self.awaits_first.store(awaits, Ordering::Relaxed);
        let progress = |progress: Progress<'_>| match progress {
            Progress::Accepted(socket) => {
                awaits_first(true);
                accepted(socket);
            }
            Progress::Secured => awaits_first(false),
        };
        let name = Some(self.connection_name.as_str());
        let opened = Connection::open(address, name, deadlines, progress);
        // A server that was silent still is: a call may give up just before it gets this error.
        awaits_first(opened.as_ref().is_err_and(ConnectFailure::is_silence));
        let mut connection = opened?;
        self.has_replied.store(true, Ordering::Relaxed);
        connection.open = Some(Arc::clone(&self.open));
        Ok(connection)
    }
}

/// Fails unless the server's role is master. If the reply to ROLE is an error, as for a user who
/// may not run it, the sentinels are trusted.
fn check_role(mut connection: Connection, until: Instant) -> RedisResult<Connection> {
    let role = connection.trip(until, |buffer| {
        redis::cmd("ROLE").write_packed_command(buffer);
    })?;
    match is_master(role) {
        Some(true) => Ok(connection),
        Some(false) => Err((ErrorKind::Client, "this server is a replica").into()),
        None => Err(connection.malformed()),
    }
}

/// Reads the reply to ROLE; `None` for one that Redis does not send.
pub(crate) fn is_master(answer: Reply) -> Option<bool> {
    let role = match answer {
        Reply::Error(_) => return Some(true),
        Reply::List(role) => role.into_iter().next()?,
        _ => return None,
    };
    match role {
        Reply::Text(role) if role == b"master" => Some(true),
        Reply::Text(role) if role == b"slave" || role == b"sentinel" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::redis::conn::read_reply;

    #[test]
    fn reply_that_is_no_role_is_malformed() {
        let read = |text: &str| is_master(read_reply(text.as_bytes()).unwrap().unwrap());
        assert_eq!(read("*3\r\n$6\r\nmaster\r\n:9\r\n*0\r\n"), Some(true));
        assert_eq!(read("*1\r\n$5\r\nslave\r\n"), Some(false));
        assert_eq!(read("-NOPERM no\r\n"), Some(true), "ROLE is not permitted");
        for text in [":1\r\n", "$-1\r\n", "*0\r\n", "+OK\r\n", "*1\r\n:1\r\n"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
