//! A quorum: a call goes to several independent servers, and a majority of them decides its answer.

pub(crate) mod draining;
pub(crate) mod member;
pub(crate) mod members;
pub(crate) mod permits;
pub(crate) mod pipelined_connection;
pub(crate) mod round;
pub(crate) mod tokens;
pub(crate) mod votes;

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Instant;
use crate::config::Config;
use crate::logging;
use crate::protocol::answer::Answer;
use crate::protocol::script::Call;
use crate::redis::conn::callers::Cap;
use crate::redis::conn::connector::Connector;
use crate::redis::fault::Fault;
use crate::redis::health::ServerHealth;
use crate::redis::quorum::member::Member;
use crate::redis::quorum::members::Members;
use crate::redis::quorum::permits::Permits;
use crate::redis::quorum::round::Round;
use crate::redis::server::Server;
use crate::redis::undoable::Undoable;
use crate::url::Address;

/// Several independent servers as one deployment.
pub(crate) struct Quorum {
    pub(super) members: Members,
    /// The addresses of all servers, for messages.
    pub(super) label: String,
    permits: Permits,
    /// The health of the majority, with one circuit breaker for all servers.
    pub(super) health: ServerHealth,
    pub(super) command_timeout: Duration,
}

impl Quorum {
    pub(crate) fn new(addresses: Vec<Address>, label: String, config: &Config) -> Self {
        let servers = addresses.into_iter().enumerate().map(|(index, address)| {
            let member = Some(Member::new(index, config.max_connections));
            let connector = Connector::to_server(address, None, config);
            Arc::new(Server::new(connector, config, member))
        });
        let members = Members::new(servers.collect());
        let size = members.size;
        if size.all.is_multiple_of(2) {
            logging::warn!(
                "a quorum of {} servers needs {} of them, as many as one of {} servers: \
                 use an odd number",
                size.all,
                size.needed,
                size.all + 1
            );
        }
        Self {
            members,
            label,
            permits: Permits::new(config.max_connections),
            health: ServerHealth::new(config.breaker_after),
            command_timeout: config.command_timeout,
        }
    }

    /// Closes the circuit breaker if a majority is up again. Call this when a server has recovered.
    pub(crate) fn member_is_up(&self) {
        let up = self.members.each().filter(|(_, member)| !member.is_down());
        if up.count() >= self.members.size.needed && self.health.reset() {
            self.log_closed_breaker();
        }
    }

    fn log_closed_breaker(&self) {
        logging::info!(
            "a majority of the {} answers again: its circuit breaker is closed",
            self.label
        );
    }

    /// Sends `call` to all servers and waits at most until `until` for enough replies to decide it.
    ///
    /// If an acquiring call fails, the round or the engine releases what the call may
    /// have acquired. The caller has nothing to undo.
    pub(crate) fn call(
        &self,
        call: Call<'_>,
        until: Instant,
        cap_rule: Cap,
        undoable: Option<&Undoable<'_>>,
    ) -> Result<(Answer, Instant), Fault> {
        let is_write = call.verb.writes();
        let _admission = match call.verb.is_stopped_by_breaker() {
            true => Some(self.health.admit(&self.label)?),
            false => None,
        };
        let _permit = self.permits.take(cap_rule, until)?;
        let mut round = Round::new(&self.members, Some(call), until, undoable);
        let answer = round.run();
        match &answer {
            Err(Fault::NotRun(cause) | Fault::Unknown(cause))
                if !round.has_answers() && cause.shortage().is_none() =>
            {
                // A call with a shorter deadline does not count towards the breaker: the servers
                // may have had too little time to reply.
                let counts = is_write && round.had_time(self.command_timeout);
                if self.health.failed(Some(cause), counts) {
                    logging::warn!(
                        "circuit breaker open for the {} ({cause}): calls that do not wait fail at \
                         once until a majority answers a write",
                        self.label
                    );
                }
            }
            // A majority refuses writes.
            Err(fault) if fault.refuses_writes() => {}
            // A majority has answered.
            _ if round.was_sent() && is_write && self.health.answered(Instant::now()) => {
                self.log_closed_breaker();
            }
            _ => {}
        }
        answer
    }

    /// Pings all servers; succeeds if a majority replies.
    pub(crate) fn ping(&self, until: Instant) -> Result<(), Fault> {
        let _permit = self.permits.take(Cap::Counted, until)?;
        Round::new(&self.members, None, until, None).run().map(drop)
    }

    pub(crate) fn close(&self) {
        for server in &self.members.servers {
            server.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    use super::*;

    use crate::holder_id::HolderId;
    use crate::protocol::keys::Keys;
    use crate::protocol::mutex::MutexKeys;
    use crate::redis::quorum::pipelined_connection::PipelinedConnection;

    /// Longer than the breaker stays open.
    const LONG: Duration = Duration::from_secs(60);

    /// Opens an idle connection to a member of a quorum. Returns the peer's end of it.
    pub(super) fn add_idle_connection(server: &Server, listener: &TcpListener) -> TcpStream {
        thread::scope(|scope| {
            let accepting = scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(b"+OK\r\n+OK\r\n+OK\r\n").unwrap();
                stream
            });
            let connection = server.connection(Instant::now().after(LONG));
            let connection = connection.unwrap_or_else(|fault| panic!("{fault:?}"));
            let member = server.member.as_ref().unwrap();
            member.put_back(PipelinedConnection::new(connection));
            accepting.join().unwrap()
        })
    }

    /// The server keeps its other connections, and later calls do not skip it.
    #[test]
    fn server_is_not_down_if_a_call_gave_it_too_little_time() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let config = Config {
            command_timeout: Duration::from_millis(500),
            connect_timeout: LONG,
            ..Config::default()
        };
        let address = Address::parse(&url).unwrap();
        let quorum = Quorum::new(vec![address], "quorum of one".into(), &config);
        let server = &quorum.members.servers[0];
        let member = server.member.as_ref().unwrap();
        let keys = MutexKeys::of(Keys::new("a".into(), "lock:", "lock_release:"));
        let id = HolderId::fresh("x");
        let mut silent = Vec::new();
        for (time, is_down) in [
            (Duration::from_millis(20), false),
            (config.command_timeout * 2, true),
        ] {
            silent.push(add_idle_connection(server, &listener));
            let call = keys.renew(&id, LONG, false);
            let outcome = quorum.call(call, Instant::now().after(time), Cap::Counted, None);
            assert!(outcome.is_err());
            assert_eq!(member.is_down(), is_down, "{time:?}");
        }
    }
}
