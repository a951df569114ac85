//! Reads what an operator can see: the keys on a server, and numbers stored beside a lock.

use std::sync::Arc;

use crate::clock::Instant;
use crate::error::{Cause, Error};
use crate::name::shown;
use crate::protocol::keys::{Keys, QueueKeys};
use crate::protocol::script::Reply;
use crate::redis::conn::callers::Cap;
use crate::redis::fault::Fault;
use crate::redis::server::Server;
use crate::redis::{Deployment, DeploymentKind};
use crate::token::FencingToken;

/// The keys a server examines per SCAN call: it serves nobody else meanwhile.
const LOOKED_AT: &[u8] = b"1000";

impl Deployment {
    /// Returns the servers that together hold every name.
    pub(crate) fn all(&self, until: Instant) -> Result<Vec<Arc<Server>>, Fault> {
        match &self.place {
            DeploymentKind::One(server) => Ok(vec![Arc::clone(server)]),
            DeploymentKind::Cluster(cluster) => cluster.masters(until),
            DeploymentKind::Quorum(quorum) => Ok(quorum.servers().to_vec()),
        }
    }

    /// Reads a number stored beside a lock, or `None` if there is none. Over a quorum, the highest
    /// counts.
    pub(crate) fn number(
        &self,
        keys: &Keys,
        what: Gauge,
        until: Instant,
    ) -> Result<Option<u64>, Fault> {
        match &self.place {
            DeploymentKind::One(server) => server.number(keys, what, until),
            DeploymentKind::Cluster(cluster) => {
                cluster.ask_keeper(keys.key(0).slot(), until, |server| {
                    server.number(keys, what, until)
                })
            }
            DeploymentKind::Quorum(quorum) => {
                let (mut highest, mut told) = (None, 0);
                let mut fault = Fault::NotRun(Cause::text("no server was asked"));
                for (n, server) in quorum.servers().iter().enumerate() {
                    // A server that hangs must leave time for the others.
                    let now = Instant::now();
                    let part = now.until(until) / (quorum.size().all - n) as u32;
                    match server.number(keys, what, now.after(part)) {
                        Ok(number) => {
                            highest = highest.max(number);
                            told += 1;
                        }
                        Err(why) => fault = why.at(server.label()),
                    }
                }
                if told < quorum.size().needed {
                    return Err(fault);
                }
                Ok(highest)
            }
        }
    }
}

/// A number stored beside a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Gauge {
    /// The last fencing token.
    Token,
    /// The number of connections subscribed to its releases.
    Listeners,
    /// The length of the fair lock's queue.
    FairQueues,
}

impl Server {
    /// Returns one page of the string keys that match `pattern`, and the next cursor. Cursor `0`
    /// starts a scan and ends it.
    pub(crate) fn scan(
        &self,
        cursor: &[u8],
        pattern: &[u8],
        until: Instant,
    ) -> Result<(Vec<u8>, Vec<Vec<u8>>), Fault> {
        let args: [&[u8]; 7] = [
            cursor, b"MATCH", pattern, b"COUNT", LOOKED_AT, b"TYPE", b"string",
        ];
        self.command("SCAN", &args, until, Cap::Counted, read_page)
    }

    fn number(&self, keys: &Keys, what: Gauge, until: Instant) -> Result<Option<u64>, Fault> {
        let cap_rule = Cap::Counted;
        match what {
            Gauge::Token => {
                let bad = || {
                    Fault::Rejected(Error::BadFence {
                        key: shown(keys.fence()),
                    })
                };
                let reply = match self.call_or_undo(keys.last_token(), until, cap_rule, None) {
                    Ok((reply, _)) => reply,
                    Err(Fault::Rejected(Error::WrongType { .. })) => return Err(bad()),
                    Err(fault) => return Err(fault),
                };
                match read_string(reply).flatten().as_deref() {
                    // A counter of 0 is valid but no token: the scripts count on from it.
                    None | Some(b"0") => Ok(None),
                    Some(digits) => match FencingToken::parse(digits) {
                        Some(token) => Ok(Some(token.value())),
                        None => Err(bad()),
                    },
                }
            }
            Gauge::FairQueues => {
                let queue = keys.queue().map_or(&[][..], QueueKeys::queue);
                let read = |reply: Reply| read_count(&reply);
                self.command("LLEN", &[queue], until, cap_rule, read)
                    .map(Some)
            }
            Gauge::Listeners => {
                let channel = keys.key(0).channel;
                let args: [&[u8]; 2] = [b"NUMSUB", channel];
                let read = |reply| read_listeners(&reply, channel);
                self.command("PUBSUB", &args, until, cap_rule, read)
                    .map(Some)
            }
        }
    }
}

/// Reads a page of SCAN and the next cursor.
pub(crate) fn read_page(reply: Reply) -> Option<(Vec<u8>, Vec<Vec<u8>>)> {
    let Reply::List(items) = reply else {
        return None;
    };
    let [Reply::Text(next), Reply::List(keys)] = <[Reply; 2]>::try_from(items).ok()? else {
        return None;
    };
    // A cursor has up to 64 bits.
    let is_cursor = (1..=20).contains(&next.len()) && next.iter().all(u8::is_ascii_digit);
    let keys = keys.into_iter().map(read_text).collect::<Option<_>>()?;
    is_cursor.then_some((next, keys))
}

fn read_text(reply: Reply) -> Option<Vec<u8>> {
    match reply {
        Reply::Text(text) => Some(text),
        _ => None,
    }
}

/// Reads a string or nil.
#[expect(
    clippy::option_option,
    reason = "outer None: malformed; inner None: no value"
)]
pub(crate) fn read_string(reply: Reply) -> Option<Option<Vec<u8>>> {
    match reply {
        Reply::Nil => Some(None),
        reply => read_text(reply).map(Some),
    }
}

pub(crate) fn read_count(reply: &Reply) -> Option<u64> {
    match reply {
        Reply::Int(count) => u64::try_from(*count).ok(),
        _ => None,
    }
}

/// Reads the number of subscribers of `channel`.
pub(crate) fn read_listeners(reply: &Reply, channel: &[u8]) -> Option<u64> {
    match reply {
        Reply::List(items) => match items.as_slice() {
            [Reply::Text(of), listeners] if of == channel => read_count(listeners),
            _ => None,
        },
        _ => None,
    }
}
