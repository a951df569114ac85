//! A quorum: a call goes to several independent servers, and the majority decides its answer.

pub(crate) mod member;
pub(crate) mod permits;
pub(crate) mod pipelined_connection;
pub(crate) mod round;
pub(crate) mod tokens;
pub(crate) mod votes;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Instant;
use crate::config::Config;
use crate::error::Error;
use crate::holder::HolderId;
use crate::logging;
use crate::protocol::answer::Answer;
use crate::protocol::script::Call;
use crate::redis::conn::callers::Cap;
use crate::redis::conn::connector::Connector;
use crate::redis::fault::Fault;
use crate::redis::health::ServerHealth;
use crate::redis::quorum::member::Member;
use crate::redis::quorum::permits::Permits;
use crate::redis::quorum::round::Round;
use crate::redis::quorum::tokens::Tokens;
use crate::redis::quorum::votes::Majority;
use crate::redis::server::Server;
use crate::redis::undoable::Undoable;
use crate::url::Address;

/// The most servers: local queues note which of them announced a release in the bits of one `u64`.
const MOST_SERVERS: usize = 63;

/// How many of this client's most recently abandoned acquiring attempts are remembered.
const MAX_ABANDONED: usize = 256;

/// Several independent servers.
pub(crate) struct Quorum {
    pub(super) servers: Vec<Arc<Server>>,
    /// The addresses of all servers, for messages.
    pub(super) label: String,
    pub(super) size: Majority,
    pub(super) tokens: Tokens,
    permits: Permits,
    /// The health of the majority, with one circuit breaker for all servers.
    pub(super) condition: ServerHealth,
    pub(super) command_timeout: Duration,
    /// Holder ids of the attempts that failed last: a key with such an id is not held by anyone.
    abandoned: Mutex<VecDeque<HolderId>>,
}

impl Quorum {
    pub(crate) fn new(
        addresses: Vec<Address>,
        label: String,
        config: &Config,
    ) -> Result<Self, Error> {
        check(&addresses)?;
        let size = Majority::of(addresses.len());
        if size.all.is_multiple_of(2) {
            logging::warn!(
                "a quorum of {} servers needs {} of them, as many as one of {} servers: \
                 use an odd number",
                size.all,
                size.needed,
                size.all + 1
            );
        }
        let servers = addresses.into_iter().enumerate().map(|(index, address)| {
            let member = Some(Member::new(index, config.max_connections));
            let connector = Connector::to_server(address, None, config);
            Arc::new(Server::new(connector, config, member))
        });
        Ok(Self {
            servers: servers.collect(),
            label,
            size,
            tokens: Tokens::default(),
            permits: Permits::new(config.max_connections),
            condition: ServerHealth::new(config.breaker_after),
            command_timeout: config.command_timeout,
            abandoned: Mutex::default(),
        })
    }

    /// Closes the circuit breaker if, with a server that has recovered, a majority is up again.
    pub(crate) fn member_is_up(&self) {
        let answering = self.members().filter(|(_, member)| !member.is_down());
        if answering.count() >= self.size.needed {
            self.condition.reset();
        }
    }

    pub(in crate::redis) fn members(&self) -> impl Iterator<Item = (&Server, &Member)> {
        let members = self
            .servers
            .iter()
            .map(|server| (&**server, server.member.as_ref()));
        members.filter_map(|(server, member)| Some((server, member?)))
    }

    /// When the majority stopped replying; see [`ServerHealth::silent_since`].
    pub(crate) fn silent_since(&self, now: Instant, start: Instant) -> Instant {
        let each = |server: &Arc<Server>| server.condition.silent_since(now, start);
        let mut since: Vec<Instant> = self.servers.iter().map(each).collect();
        // The servers that replied most recently come first.
        since.sort_unstable_by(|a, b| b.cmp(a));
        since.get(self.size.needed - 1).copied().unwrap_or(now)
    }

    /// Records an attempt of this client that is being undone.
    pub(in crate::redis) fn note_abandoned(&self, id: &HolderId) {
        let mut abandoned = self.abandoned.lock();
        if abandoned.len() == MAX_ABANDONED {
            abandoned.pop_front();
        }
        abandoned.push_back(id.clone());
    }

    /// Returns whether `value` is the holder id of an attempt of this client that is being undone.
    pub(in crate::redis) fn is_abandoned(&self, value: &[u8]) -> bool {
        let abandoned = self.abandoned.lock();
        abandoned.iter().any(|id| id.as_str().as_bytes() == value)
    }

    /// Sends `call` to all servers and waits at most until `until` for enough replies to decide it.
    ///
    /// If an acquiring call fails, this round or the servers' io threads release what it may have
    /// left behind. The caller has nothing to undo.
    pub(crate) fn call(
        &self,
        call: Call<'_>,
        until: Instant,
        cap_rule: Cap,
        undoable: Option<&Undoable<'_>>,
    ) -> Result<(Answer, Instant), Fault> {
        let asked = Instant::now();
        if cap_rule == Cap::Counted {
            self.condition.admit(&self.label)?;
        }
        let _permit = self.permits.take(cap_rule, until)?;
        let answer = Round::new(self, Some(call), until, undoable).run();
        match &answer {
            Err(Fault::NotRun(cause) | Fault::Unknown(cause)) => {
                let had_time = asked.until(until) >= self.command_timeout / 10 * 9;
                if self.condition.failed(Some(cause), had_time) {
                    logging::warn!(
                        "no majority has answered again and again, calls fail at once: {cause}"
                    );
                }
            }
            _ => {
                self.condition.answered(Instant::now());
            }
        }
        answer
    }

    /// Pings all servers; succeeds if a majority replies.
    pub(crate) fn ping(&self, until: Instant) -> Result<(), Fault> {
        let _permit = self.permits.take(Cap::Counted, until)?;
        Round::new(self, None, until, None).run().map(drop)
    }

    pub(crate) fn close(&self) {
        for server in &self.servers {
            server.close();
        }
    }
}

fn check(addresses: &[Address]) -> Result<(), Error> {
    let wrong = |what: String| Err(Error::Config(format!("the quorum cannot work: {what}")));
    if addresses.is_empty() || addresses.len() > MOST_SERVERS {
        return wrong(format!(
            "it has {} servers; expected 1 to {MOST_SERVERS}, best 3 or 5",
            addresses.len()
        ));
    }
    for (n, address) in addresses.iter().enumerate() {
        if addresses
            .iter()
            .take(n)
            .any(|other| other.label == address.label)
        {
            return wrong(format!(
                "{} is named twice: each server has one vote",
                address.label
            ));
        }
    }
    Ok(())
}
