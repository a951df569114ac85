//! What can be seen from outside: the keys that there are, and what belongs to one name beside its lock.

use std::sync::Arc;

use crate::clock::Instant;
use crate::error::{Cause, Error};
use crate::name::shown;
use crate::protocol::fair::QueueKeys;
use crate::protocol::kind::Keys;
use crate::protocol::script::Reply;
use crate::redis::conn::callers::Cap;
use crate::redis::fault::Fault;
use crate::redis::server::Server;
use crate::redis::{Deployment, DeploymentKind};
use crate::token::FencingToken;

/// How many keys the server looks at before it answers: it serves nobody else meanwhile.
const LOOKED_AT: &[u8] = b"1000";

impl Deployment {
    /// The servers that have every name among them.
    pub(crate) fn all(&self, until: Instant) -> Result<Vec<Arc<Server>>, Fault> {
        match &self.place {
            DeploymentKind::One(server) => Ok(vec![Arc::clone(server)]),
            DeploymentKind::Cluster(cluster) => cluster.masters(until),
            DeploymentKind::Quorum(quorum) => Ok(quorum.servers().to_vec()),
        }
    }

    /// Asks for a number beside a name's lock; where several servers know one, the highest counts.
    /// `None` where there is none.
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
                    // One that hangs leaves time for those behind it.
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

/// What is known of a name beside who holds it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Gauge {
    /// The last fencing token.
    Token,
    /// How many connections listen for its release.
    Listeners,
    /// How many places there are in the queue of the fair lock.
    FairQueues,
}

impl Server {
    /// One page of the string keys that match `pattern`, and where the next begins; a cursor of `0`
    /// begins, and ends.
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
                let digits = self.command("GET", &[keys.fence()], until, cap_rule, read_string)?;
                match digits.as_deref() {
                    // No token is 0, and the scripts go on from there.
                    None | Some(b"0") => Ok(None),
                    Some(digits) => match FencingToken::parse(digits) {
                        Some(token) => Ok(Some(token.value())),
                        None => Err(Fault::Rejected(Error::BadFence {
                            key: shown(keys.fence()),
                        })),
                    },
                }
            }
            Gauge::FairQueues => {
                let queue = keys.line().map_or(&[][..], QueueKeys::queue);
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

/// Reads a page of SCAN, and where the next begins.
pub(crate) fn read_page(reply: Reply) -> Option<(Vec<u8>, Vec<Vec<u8>>)> {
    let Reply::List(items) = reply else {
        return None;
    };
    let [Reply::Text(next), Reply::List(keys)] = <[Reply; 2]>::try_from(items).ok()? else {
        return None;
    };
    // Up to 64 bits.
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

/// Reads what may be there or not.
#[expect(
    clippy::option_option,
    reason = "there may be none, and a reply may be malformed"
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

/// Reads how many listen on `channel`.
pub(crate) fn read_listeners(reply: &Reply, channel: &[u8]) -> Option<u64> {
    match reply {
        Reply::List(items) => match items.as_slice() {
            [Reply::Text(of), listeners] if of == channel => read_count(listeners),
            _ => None,
        },
        _ => None,
    }
}
