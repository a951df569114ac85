//! Reads for operators: the keys on a server, and the numbers that belong to a lock.

use std::sync::Arc;
use std::thread;

use crate::clock::Instant;
use crate::error::{Cause, Error};
use crate::health::HealthPart;
use crate::kernel::fault::Fault;
use crate::name::shown;
use crate::protocol::answer::Answer;
use crate::protocol::keys::{Key, Keys};
use crate::protocol::place::entered_ms;
use crate::protocol::primitive::RedisQueue;
use crate::protocol::probe::Probe;
use crate::protocol::reply::{Reply, read_digits};
use crate::redis::Deployment;
use crate::redis::conn::callers::Cap;
use crate::redis::server::Server;
use crate::token::FencingToken;

impl Deployment {
    /// Returns the servers that together hold every name.
    pub(crate) fn all(&self, until: Instant) -> Result<Vec<Arc<Server>>, Fault> {
        match self {
            Self::Cluster(cluster) => cluster.masters(until),
            Self::One(_) | Self::Quorum(_) => Ok(self.fixed().to_vec()),
        }
    }

    /// Probes all servers at once, until `until`. Also returns how many of them must work.
    pub(crate) fn check_health(&self, until: Instant) -> (Vec<HealthPart>, usize) {
        let now = Instant::now();
        // The second half of the time is for the probes.
        let servers = self.all(now.after(now.until(until) / 2));
        let servers = servers.unwrap_or_default().into_iter();
        let servers: Vec<_> = match self {
            Self::One(_) | Self::Quorum(_) => {
                servers.map(|server| (server, Probe::of_server())).collect()
            }
            Self::Cluster(cluster) => {
                let probe = |server| Some(Probe::of_slot(cluster.map.slot_of(&server)?));
                // A node that only redirects have named owns no slot yet.
                servers
                    .filter_map(|server| Some((Arc::clone(&server), probe(server)?)))
                    .collect()
            }
        };
        let mut parts = check_health_of_all(&servers, until);
        let needed = match self {
            Self::One(_) | Self::Cluster(_) => servers.len().max(1),
            Self::Quorum(quorum) => {
                // The servers of a quorum share one breaker.
                let breaker = quorum.health.breaker_state();
                parts.iter_mut().for_each(|part| part.breaker = breaker);
                quorum.size.needed
            }
        };
        (parts, needed)
    }

    /// Returns the last fencing token of a lock, or `None` if there is none. Over a quorum, returns
    /// the highest one. A majority must reply.
    pub(crate) fn last_token(
        &self,
        keys: &Keys,
        until: Instant,
    ) -> Result<Option<FencingToken>, Fault> {
        let Self::Quorum(quorum) = self else {
            let answer = self.call(keys.last_token(), until, Cap::Counted);
            return read_token(answer, &self.primary_owner_of(keys.key(0)), keys);
        };
        let (mut highest, mut answered) = (None, 0);
        let mut fault = Fault::NotRun(Cause::text("no server was asked"));
        for (n, server) in quorum.servers.iter().enumerate() {
            // A server that hangs must leave time for the others.
            let now = Instant::now();
            let part = now.until(until) / (quorum.size.all - n) as u32;
            let end = now.after(part);
            let answer = server.call_or_undo(keys.last_token(), end, Cap::Counted, None);
            let answer = answer.map(|(answer, _)| answer);
            match read_token(answer.map_err(Fault::from), server, keys) {
                Ok(token) => {
                    highest = highest.max(token);
                    answered += 1;
                }
                Err(why) => fault = why.at(server.label()),
            }
        }
        if answered < quorum.size.needed {
            Err(fault)
        } else {
            Ok(highest)
        }
    }

    /// Returns the length of this queue of `key`.
    pub(crate) fn queue_length(
        &self,
        key: Key<'_>,
        queue: &dyn RedisQueue,
        until: Instant,
    ) -> Result<u64, Fault> {
        self.read_on_primary(key, "LLEN", &[queue.key()], until, |reply| reply.count())
    }

    /// Returns how long the first call in this queue of `key` has waited, in ms.
    pub(crate) fn longest_wait(
        &self,
        key: Key<'_>,
        queue: &dyn RedisQueue,
        until: Instant,
    ) -> Result<Option<u64>, Fault> {
        // Each read finds its own node: a migration moves one key after the other, and the new node
        // replies nil for a key that it does not have yet.
        let read = Reply::into_text_or_nil;
        let text = |name, args: &[&[u8]]| self.read_on_primary(key, name, args, until, read);
        let Some(first) = text("LINDEX", &[queue.key(), b"0"])? else {
            return Ok(None);
        };
        // If the first call has left the queue since, the caller's next read finds another one.
        let place = text("HGET", &[queue.places(), &first])?;
        let Some(entered) = place.as_deref().and_then(entered_ms) else {
            return Ok(None);
        };
        let now = self.read_on_primary(key, "TIME", &[], until, read_time)?;
        // If the server's clock was set back, the wait reads as 0.
        Ok(Some(now.saturating_sub(entered)))
    }

    /// Reads data of `key` that is stored on one server only: over a quorum, on the first.
    pub(crate) fn read_on_primary<T>(
        &self,
        key: Key<'_>,
        name: &'static str,
        args: &[&[u8]],
        until: Instant,
        read: impl Fn(Reply) -> Option<T>,
    ) -> Result<T, Fault> {
        let ask = |server: &Server, asking| {
            server.node_command(name, args, until, Cap::Counted, asking, &read)
        };
        match self {
            Self::Cluster(cluster) => cluster.ask_owner(key.slot(), until, ask),
            Self::One(_) | Self::Quorum(_) => Ok(ask(&self.primary_owner_of(key), false)?),
        }
    }
}

/// Probes each server on a thread of its own. This thread probes the first one, and then those for
/// which no thread can be started.
fn check_health_of_all(servers: &[(Arc<Server>, Probe)], until: Instant) -> Vec<HealthPart> {
    thread::scope(|scope| {
        let asked = servers.iter().enumerate().map(|(n, (server, probe))| {
            let check = move || server.check_health(probe, until);
            let spawn = || thread::Builder::new().spawn_scoped(scope, check).ok();
            let thread = if n == 0 { None } else { spawn() };
            (check, thread)
        });
        let asked: Vec<_> = asked.collect();
        let parts = asked
            .into_iter()
            .filter_map(|(check, thread)| match thread {
                Some(thread) => thread.join().ok(),
                None => Some(check()),
            });
        parts.collect()
    })
}

impl Server {
    /// Returns one page of the keys of this type that match `pattern`, and the next cursor. Cursor
    /// `0` starts a scan and ends it. The server examines about `count` keys for the page.
    pub(crate) fn scan(
        &self,
        cursor: &[u8],
        kind: &[u8],
        pattern: &[u8],
        count: usize,
        until: Instant,
    ) -> Result<(Vec<u8>, Vec<Vec<u8>>), Fault> {
        let mut digits = itoa::Buffer::new();
        let args: [&[u8]; 7] = [
            cursor,
            b"MATCH",
            pattern,
            b"COUNT",
            digits.format(count).as_bytes(),
            b"TYPE",
            kind,
        ];
        self.command("SCAN", &args, until, Cap::Counted, read_page)
    }
}

/// Reads the last fencing token of a lock from the answer of `server`.
fn read_token(
    answer: Result<Answer, Fault>,
    server: &Server,
    keys: &Keys,
) -> Result<Option<FencingToken>, Fault> {
    let fence = match answer {
        Ok(Answer::Fence(fence)) => fence,
        Ok(_) => None,
        // No digits are a bad fence, too.
        Err(Fault::Rejected(Error::WrongType { .. })) => Some(Vec::new()),
        Err(fault) => return Err(fault),
    };
    match fence.as_deref() {
        // A counter of 0 is valid but no token: the scripts continue from it.
        None | Some(b"0") => Ok(None),
        Some(digits) => match FencingToken::parse(digits) {
            Some(token) => Ok(Some(token)),
            None => Err(Fault::Rejected(Error::BadFence {
                server: server.label().to_owned(),
                key: shown(keys.fence()),
            })),
        },
    }
}

/// Reads the reply of TIME, in ms.
fn read_time(reply: Reply) -> Option<u64> {
    let items = reply.into_list()?.into_iter();
    let mut numbers = items.map(|item| read_digits::<u64>(&item.into_text()?));
    let (seconds, micros) = (numbers.next()??, numbers.next()??);
    seconds.checked_mul(1_000)?.checked_add(micros / 1_000)
}

/// Reads a page of SCAN and the next cursor.
pub(crate) fn read_page(reply: Reply) -> Option<(Vec<u8>, Vec<Vec<u8>>)> {
    let [next, keys] = <[Reply; 2]>::try_from(reply.into_list()?).ok()?;
    let (next, keys) = (next.into_text()?, keys.into_list()?);
    // A cursor has up to 64 bits.
    let is_cursor = (1..=20).contains(&next.len()) && next.iter().all(u8::is_ascii_digit);
    let keys = keys.into_iter().map(Reply::into_text);
    let keys = keys.collect::<Option<_>>()?;
    is_cursor.then_some((next, keys))
}
