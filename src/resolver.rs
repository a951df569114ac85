//! The addresses of host names, and which of them lead to the server that takes writes.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::sync::{Condvar, Mutex};

use crate::clock::{Instant, nap};
use crate::escape::Escaped;
use crate::logging;
use crate::shortage::Shortage;
use crate::thread_group::ThreadGroup;

/// How long after the last answer of DNS an address may be used although DNS does not answer. It
/// may have been given to another server since.
const KEEP_ADDRESS: Duration = Duration::from_secs(60);

/// How often a name is looked up while connections to its addresses are in use. So the last answer
/// of DNS is never much older when DNS and all connections fail.
const LOOK_UP_EVERY: Duration = Duration::from_secs(30);

/// No address of a name has answered a write.
const NONE: usize = usize::MAX;

/// The host names of a client's servers.
#[derive(Debug)]
pub(crate) struct Resolver {
    threads: ThreadGroup,
    names: Mutex<HashMap<(String, u16), Arc<HostName>>>,
}

/// A host name with a port.
#[derive(Debug)]
pub(crate) struct HostName {
    host: String,
    port: u16,
    threads: ThreadGroup,
    state: Mutex<KnownAddresses>,
    /// Notified when a look-up has ended.
    looked_up: Condvar,
    /// The index of the address that last answered a write.
    writer: AtomicUsize,
    /// When the next look-up is due, in nanoseconds since the start.
    due: AtomicU64,
}

#[derive(Debug, Default)]
struct KnownAddresses {
    /// Every address that a connection was made to. The index identifies it.
    seen: Vec<SocketAddr>,
    /// The addresses of servers that take no writes now, the last of them last.
    refused: Vec<SocketAddr>,
    /// When DNS last answered.
    answered: Option<Instant>,
    /// Since when a thread looks the name up.
    asking_since: Option<Instant>,
    /// How many look-ups of threads have ended, and the result of the last.
    ended: u64,
    result: Option<Result<Vec<SocketAddr>, String>>,
    /// A warning about the current outage of DNS was logged.
    has_warned: bool,
}

/// The address of a connection that was made to a host name.
#[derive(Debug)]
pub(crate) struct Peer {
    name: Arc<HostName>,
    address: SocketAddr,
    index: usize,
}

impl Default for Resolver {
    fn default() -> Self {
        Self::new(&ThreadGroup::default())
    }
}

impl Resolver {
    /// Returns a resolver whose look-ups run on threads of this group.
    pub(crate) fn new(threads: &ThreadGroup) -> Self {
        Self {
            threads: threads.clone(),
            names: Mutex::default(),
        }
    }

    /// Returns the name, or `None` if `host` is an address.
    pub(crate) fn name(&self, host: &str, port: u16) -> Option<Arc<HostName>> {
        if host.parse::<IpAddr>().is_ok() {
            return None;
        }
        let mut names = self.names.lock();
        let name = names.entry((host.to_owned(), port));
        let name = name.or_insert_with(|| {
            Arc::new(HostName {
                host: host.to_owned(),
                port,
                threads: self.threads.clone(),
                state: Mutex::default(),
                looked_up: Condvar::new(),
                writer: AtomicUsize::new(NONE),
                due: AtomicU64::new(0),
            })
        });
        Some(Arc::clone(name))
    }
}

impl HostName {
    /// Returns the addresses in the order in which to try them.
    ///
    /// The look-up blocks, unless an address has answered a write and DNS has answered within
    /// [`KEEP_ADDRESS`]: if the look-up then fails or takes longer than `patience`, this returns
    /// that address.
    pub(crate) fn addresses(self: &Arc<Self>, patience: Duration) -> io::Result<Vec<SocketAddr>> {
        let mut state = self.state.lock();
        let now = Instant::now();
        let writer = self.writer(&state);
        let Some(kept) = writer.filter(|_| state.keeps_address(now)) else {
            drop(state);
            let found = look_up(&self.host, self.port)?;
            let mut state = self.state.lock();
            self.note_answer(&mut state);
            return Ok(state.in_order(found, self.writer(&state)));
        };
        let ended = state.ended;
        let Ok(since) = self.start_look_up(&mut state, now) else {
            // No thread can be started now.
            return Ok(vec![kept]);
        };
        let until = since.after(patience);
        while state.ended == ended && Instant::now() < until {
            let wait = nap(Instant::now(), until);
            self.looked_up.wait_for(&mut state, wait);
        }
        let why = match state.result.clone().filter(|_| state.ended != ended) {
            Some(Ok(found)) => return Ok(state.in_order(found, self.writer(&state))),
            Some(Err(why)) => why,
            None => "DNS does not answer".into(),
        };
        let has_warned = std::mem::replace(&mut state.has_warned, true);
        // A logger is a user's code.
        drop(state);
        if !has_warned {
            let host = Escaped::said(&self.host).to_string();
            logging::warn!(
                "the name {host} does not resolve ({why}): connecting to {kept}, which last \
                 answered a write, for at most {KEEP_ADDRESS:?} after the last answer of DNS"
            );
        }
        Ok(vec![kept])
    }

    /// Records a connection to `address`.
    pub(crate) fn peer(self: &Arc<Self>, address: SocketAddr) -> Peer {
        let mut state = self.state.lock();
        let index = state.seen.iter().position(|seen| *seen == address);
        let index = index.unwrap_or_else(|| {
            state.seen.push(address);
            state.seen.len() - 1
        });
        Peer {
            name: Arc::clone(self),
            address,
            index,
        }
    }

    fn writer(&self, state: &KnownAddresses) -> Option<SocketAddr> {
        let index = self.writer.load(Ordering::Relaxed);
        state.seen.get(index).copied()
    }

    fn note_answer(&self, state: &mut KnownAddresses) {
        let now = Instant::now();
        state.answered = Some(now);
        state.has_warned = false;
        let due = now.after(LOOK_UP_EVERY).as_nanos();
        self.due.store(due, Ordering::Relaxed);
    }

    /// Starts a thread that looks the name up, unless one does already. Returns since when.
    fn start_look_up(
        self: &Arc<Self>,
        state: &mut KnownAddresses,
        now: Instant,
    ) -> Result<Instant, Shortage> {
        if let Some(since) = state.asking_since {
            return Ok(since);
        }
        let this = Arc::clone(self);
        self.threads.spawn(move || {
            let found = look_up(&this.host, this.port);
            let mut state = this.state.lock();
            if found.is_ok() {
                this.note_answer(&mut state);
            }
            state.asking_since = None;
            state.ended += 1;
            state.result = Some(found.map_err(|error| error.to_string()));
            this.looked_up.notify_all();
        })?;
        state.asking_since = Some(now);
        Ok(now)
    }
}

impl KnownAddresses {
    /// Returns whether DNS has answered so recently that the last address may be used.
    fn keeps_address(&self, now: Instant) -> bool {
        self.answered
            .is_some_and(|answered| answered.until(now) < KEEP_ADDRESS)
    }

    /// Returns the addresses that were found: first the one that last answered a write, and last
    /// those of servers that take no writes.
    fn in_order(&self, mut found: Vec<SocketAddr>, writer: Option<SocketAddr>) -> Vec<SocketAddr> {
        let refusal = |address: &SocketAddr| {
            let refused = self.refused.iter().position(|other| other == address);
            refused.map_or(0, |n| n + 1)
        };
        found.sort_by_key(|address| (Some(*address) != writer, refusal(address)));
        found.dedup();
        found
    }
}

impl Peer {
    /// Records that the server at this address has answered a write.
    pub(crate) fn wrote(&self) {
        let name = &self.name;
        if name.writer.load(Ordering::Relaxed) != self.index {
            let mut state = name.state.lock();
            state.refused.retain(|refused| *refused != self.address);
            name.writer.store(self.index, Ordering::Relaxed);
        }
        let now = Instant::now();
        let due = name.due.load(Ordering::Relaxed);
        if now.as_nanos() >= due {
            let next = now.after(LOOK_UP_EVERY).as_nanos();
            let is_first = (name.due)
                .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
            if is_first {
                // If no thread can be started now, one may be in 30 s.
                let _ = name.start_look_up(&mut name.state.lock(), now);
            }
        }
    }

    /// Records that the server at this address takes no writes: the other addresses of the name are
    /// tried first.
    pub(crate) fn refused(&self) {
        let mut state = self.name.state.lock();
        state.refused.retain(|refused| *refused != self.address);
        state.refused.push(self.address);
        let writer = &self.name.writer;
        let _ = writer.compare_exchange(self.index, NONE, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Blocks until the system has resolved the name.
fn look_up(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let found: Vec<_> = (host, port).to_socket_addrs()?.collect();
    if found.is_empty() {
        Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("{host} has no address"),
        ))
    } else {
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> SocketAddr {
        ([10, 0, 0, last], 6379).into()
    }

    #[test]
    fn writer_is_first_and_refusing_addresses_are_last() {
        let mut known = KnownAddresses::default();
        let [a, b, c] = [1, 2, 3].map(address);
        let found = || vec![a, b, c];
        assert_eq!(known.in_order(found(), None), [a, b, c]);
        assert_eq!(known.in_order(found(), Some(c)), [c, a, b]);
        known.refused = vec![a];
        assert_eq!(known.in_order(found(), None), [b, c, a]);
        known.refused = vec![b, a];
        assert_eq!(known.in_order(found(), Some(a)), [a, c, b]);
        assert_eq!(known.in_order(vec![a, a, b], None), [b, a]);
        assert_eq!(known.in_order(found(), Some(address(9))), [c, b, a]);
    }

    #[test]
    fn address_is_kept_for_a_minute_after_the_last_answer() {
        let at = |seconds| Instant::START.after(Duration::from_secs(seconds));
        let mut known = KnownAddresses::default();
        assert!(!known.keeps_address(at(0)), "DNS has never answered");
        known.answered = Some(at(10));
        assert!(known.keeps_address(at(69)));
        assert!(!known.keeps_address(at(70)));
    }

    /// The last answer of DNS would otherwise be as old as the connections.
    #[test]
    fn writes_look_the_name_up_again_when_that_is_due() {
        let threads = ThreadGroup::default();
        let name = Resolver::new(&threads).name("localhost", 6379).unwrap();
        let peer = name.peer(address(1));
        let in_a_minute = || Instant::now().after(Duration::from_secs(60));
        let looked_up = || {
            peer.wrote();
            assert_eq!(threads.wait(in_a_minute()), 0);
            name.state.lock().ended
        };
        assert_eq!(looked_up(), 1, "never looked up");
        assert!(name.state.lock().keeps_address(Instant::now()));
        assert_eq!(looked_up(), 1, "just looked up");
        name.due.store(0, Ordering::Relaxed);
        assert_eq!(looked_up(), 2);
    }

    #[test]
    fn demoted_writer_is_not_first_any_more() {
        let resolver = Resolver::default();
        let name = resolver.name("db.example", 6379).unwrap();
        // No look-up is due.
        name.due.store(u64::MAX, Ordering::Relaxed);
        let [one, two] = [1, 2].map(|last| name.peer(address(last)));
        one.wrote();
        assert_eq!(name.writer(&name.state.lock()), Some(address(1)));
        one.refused();
        assert_eq!(name.writer(&name.state.lock()), None);
        two.wrote();
        one.refused();
        assert_eq!(name.writer(&name.state.lock()), Some(address(2)));
        one.wrote();
        assert!(name.state.lock().refused.is_empty());
        assert!(resolver.name("10.0.0.1", 1).is_none());
        let again = resolver.name("db.example", 6379).unwrap();
        assert!(Arc::ptr_eq(&again, &name));
    }
}
