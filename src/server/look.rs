//! What can be seen from outside: the keys that there are, and what belongs to one name beside its lock.

use std::sync::Arc;

use crate::clock::Instant;
use crate::error::{Cause, Error};
use crate::fair::Line;
use crate::kind::Keys;
use crate::name::shown;
use crate::scripts::Reply;
use crate::server::fault::Fault;
use crate::server::one::Server;
use crate::server::pool::Lane;
use crate::server::{Place, Servers};

/// How many keys the server looks at before it answers: it serves nobody else meanwhile.
const LOOKED_AT: &[u8] = b"1000";

impl Servers {
    /// The servers that have every name among them.
    pub(crate) fn all(&self, until: Instant) -> Result<Vec<Arc<Server>>, Fault> {
        match &self.place {
            Place::One(server) => Ok(vec![Arc::clone(server)]),
            Place::Cluster(cluster) => cluster.masters(until),
            Place::Quorum(quorum) => Ok(quorum.servers().to_vec()),
        }
    }

    /// Asks for a number beside a name's lock; where several servers know one, the highest counts.
    /// `None` where there is none.
    pub(crate) fn number(
        &self,
        keys: &Keys,
        what: Beside,
        until: Instant,
    ) -> Result<Option<u64>, Fault> {
        match &self.place {
            Place::One(server) => server.number(keys, what, until),
            Place::Cluster(cluster) => cluster.ask_keeper(keys.key(0).slot(), until, |server| {
                server.number(keys, what, until)
            }),
            Place::Quorum(quorum) => {
                let (mut highest, mut told) = (None, 0);
                let mut fault = Fault::NotNow(Cause::text("no server was asked"));
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
pub(crate) enum Beside {
    /// The last fencing token.
    Token,
    /// How many connections listen for its release.
    Listeners,
    /// How many places there are in the queue of the fair lock.
    Places,
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
        let reply = self.command("SCAN", &args, until, Lane::Capped)?;
        if let Reply::List(mut items) = reply
            && let [Reply::Text(next), Reply::List(keys)] = items.as_mut_slice()
        {
            let keys = std::mem::take(keys)
                .into_iter()
                .filter_map(|key| match key {
                    Reply::Text(key) => Some(key),
                    _ => None,
                });
            return Ok((std::mem::take(next), keys.collect()));
        }
        Err(unreadable("SCAN"))
    }

    fn number(&self, keys: &Keys, what: Beside, until: Instant) -> Result<Option<u64>, Fault> {
        match what {
            Beside::Token => match self.command("GET", &[keys.fence()], until, Lane::Capped)? {
                Reply::Nil => Ok(None),
                Reply::Text(digits) => std::str::from_utf8(&digits)
                    .ok()
                    .and_then(|digits| digits.parse().ok())
                    .map(Some)
                    .ok_or_else(|| {
                        Fault::Never(Error::BadFence {
                            key: shown(keys.fence()),
                        })
                    }),
                _ => Err(unreadable("GET")),
            },
            Beside::Places => {
                let queue = keys.line().map_or(&[][..], Line::queue);
                match self.command("LLEN", &[queue], until, Lane::Capped)? {
                    Reply::Int(places) => Ok(u64::try_from(places).ok()),
                    _ => Err(unreadable("LLEN")),
                }
            }
            Beside::Listeners => {
                let args: [&[u8]; 2] = [b"NUMSUB", keys.key(0).channel];
                match self.command("PUBSUB", &args, until, Lane::Capped)? {
                    Reply::List(items) => match items.as_slice() {
                        [_, Reply::Int(listeners)] => Ok(u64::try_from(*listeners).ok()),
                        _ => Err(unreadable("PUBSUB NUMSUB")),
                    },
                    _ => Err(unreadable("PUBSUB NUMSUB")),
                }
            }
        }
    }
}

fn unreadable(command: &str) -> Fault {
    Fault::NotNow(Cause::text(format!(
        "{command} gave an answer that is not its own"
    )))
}
