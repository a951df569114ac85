//! Finds two servers behind one address that both take writes, such as two masters behind a
//! balancer: each would grant the same locks.
//!
//! ```text
//!                 two, twice in a row          each second: two
//!   unknown ------------------------> two servers --------+
//!     |  ^                               |   ^            |
//!     +--+                               |   +------------+
//!   a new connection:                    |
//!   one, or not known                    | one, not known, or a connection has ended
//!     ^                                  |
//!     +----------------------------------+
//! ```

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use redis::{Cmd, RedisResult};

use crate::clock::{Instant, nap, sleep};
use crate::error::Error;
use crate::logging;
use crate::protocol::reply::Reply;
use crate::random;
use crate::redis::conn::callers::Cap;
use crate::redis::conn::connection::Connection;
use crate::redis::conn::pool::Pool;
use crate::redis::conn::pool_state::PoolState;

/// How often two connections are compared.
const EVERY: Duration = Duration::from_secs(1);

/// How long a new connection waits for an older one that is in use.
const WAITS: Duration = Duration::from_millis(50);

/// How often the dialer looks for one in that time.
const LOOKS_EVERY: Duration = Duration::from_millis(1);

/// How often a dialer looks, each second, for a connection that was not compared.
pub(super) const MOST_COMPARISONS: u32 = 5;

/// How long a key of a check lasts, in ms.
const LASTS_MS: u32 = 5_000;

/// The values of such a key.
const BY_NEWER: &str = "1";
const BY_OLDER: &str = "2";

/// The result of comparing the servers behind two connections.
pub(in crate::redis) enum Compared {
    /// They are one, or it is not known: the server of the newer one refuses the write.
    NotTwo,
    /// The server of the older one refuses the write that the other one accepts.
    OlderRefuses,
    /// The older connection gets no reply.
    OlderIsSilent,
    /// Both take writes, and do not share them.
    Two,
}

/// The result of writing a key that must not exist.
enum Write {
    Done,
    /// The key exists.
    Exists,
    /// The server has replied with an error.
    Refused,
}

impl PoolState {
    /// Takes an idle connection of this generation that was compared. It counts as in use.
    fn take_older(&mut self, generation: u64) -> Option<Connection> {
        let is_it = |it: &Connection| it.generation == generation && it.is_compared;
        let n = self.idle.iter().position(is_it)?;
        self.out += 1;
        Some(self.idle.remove(n))
    }

    /// Takes an idle connection that was not compared, and one that was. Both count as in use.
    ///
    /// Threads may have taken all that were compared out of the pool. If none was seen for a while,
    /// another one stands for them.
    fn take_pair(&mut self, generation: u64) -> Option<(Connection, Connection)> {
        let is_new = |it: &Connection| it.generation == generation && !it.is_compared;
        if !self.idle.iter().any(is_new) {
            return None;
        }
        if self.comparisons + 2 <= MOST_COMPARISONS
            && self.idle.iter().filter(|it| is_new(it)).count() > 1
            && !self.idle.iter().any(|it| it.is_compared)
            && let Some(first) = self.idle.iter_mut().find(|it| is_new(it))
        {
            first.is_compared = true;
        }
        let older = self.take_older(generation)?;
        let n = self.idle.iter().position(is_new)?;
        self.out += 1;
        Some((self.idle.remove(n), older))
    }
}

impl Pool {
    /// Compares a new connection with an older one, if there is one, at most once a second: a later
    /// one is compared by [`compare_idle`](Self::compare_idle). Returns `None` if their servers are
    /// two: both connections are kept then, to be compared again.
    pub(super) fn check_writable(
        self: &Arc<Self>,
        mut connection: Connection,
    ) -> RedisResult<Option<Connection>> {
        let now = Instant::now();
        let older = {
            let mut state = self.state.lock();
            if self.connector.is_member() || !state.has_connection() {
                connection.is_compared = true;
                return Ok(Some(connection));
            }
            if self.next_comparison(&state).is_none_or(|at| now < at) {
                return Ok(Some(connection));
            }
            state.compared = Some(now);
            state.take_older(connection.generation)
        };
        match older.or_else(|| self.wait_for_older(connection.generation)) {
            Some(older) => self.compare_two(connection, older),
            None => Ok(Some(connection)),
        }
    }

    /// Waits for an older connection that is in use. It counts as in use.
    fn wait_for_older(self: &Arc<Self>, generation: u64) -> Option<Connection> {
        let until = Instant::now().after(WAITS);
        let pooled = self.acquire_connection(until, Cap::Exempt).ok()?;
        let older = pooled.into_connection();
        if older.generation == generation {
            return Some(older);
        }
        self.give_back(older);
        None
    }

    /// Returns when connections may be compared again. They are not once they have led to two
    /// servers, which [`watch_two`](Self::watch_two) goes on comparing.
    fn next_comparison(&self, state: &PoolState) -> Option<Instant> {
        if state.two_servers.is_some() || self.is_over() {
            return None;
        }
        Some(state.compared.map_or(Instant::START, |at| at.after(EVERY)))
    }

    /// Returns when the dialer must look for a connection that was not compared, if it must.
    pub(super) fn compares_at(&self, state: &PoolState) -> Option<Instant> {
        if state.comparisons == 0 {
            None
        } else {
            self.next_comparison(state)
        }
    }

    /// Compares a connection that was made within a second of another one.
    pub(super) fn compare_idle(self: &Arc<Self>) {
        let generation = self.generation();
        let until = Instant::now().after(WAITS);
        let pair = loop {
            let mut state = self.state.lock();
            if let Some(pair) = state.take_pair(generation) {
                state.compared = Some(Instant::now());
                break pair;
            }
            let are_all_here = state.out == 0;
            if are_all_here || Instant::now() >= until || state.wants_connection(self.cap) {
                state.compared = Some(Instant::now());
                state.comparisons = if are_all_here {
                    0
                } else {
                    state.comparisons.saturating_sub(1)
                };
                return;
            }
            drop(state);
            sleep(LOOKS_EVERY);
        };
        let (newer, older) = pair;
        // A user's logger may panic.
        match catch_unwind(AssertUnwindSafe(|| self.compare_two(newer, older))) {
            Ok(Ok(Some(newer))) => self.give_back(newer),
            _ => self.lost(),
        }
    }

    /// Compares two connections; the older one is in use, and was compared.
    fn compare_two(
        self: &Arc<Self>,
        mut newer: Connection,
        mut older: Connection,
    ) -> RedisResult<Option<Connection>> {
        let timeout = self.connector.command_timeout;
        let compared = match compare(&mut newer, &mut older, timeout) {
            Ok(compared) => compared,
            Err(error) => {
                self.give_back(older);
                return Err(error);
            }
        };
        newer.is_compared = older.is_compared;
        match compared {
            Compared::NotTwo => self.give_back(older),
            Compared::OlderRefuses => {
                drop(older);
                self.lost();
                newer.generation = self.leave_for_new(newer.generation);
            }
            Compared::OlderIsSilent => {
                drop(older);
                self.lost();
                self.forget_idle();
            }
            // Another master has taken over meanwhile.
            Compared::Two if self.has_left(newer.generation) => self.give_back(older),
            Compared::Two => {
                self.lost();
                self.found_two(newer, older);
                return Ok(None);
            }
        }
        Ok(Some(newer))
    }

    /// Has all calls that lock fail from now on, until a later comparison finds no two servers.
    fn found_two(self: &Arc<Self>, newer: Connection, older: Connection) {
        if self.state.lock().two_servers.is_some() {
            // Another dialer has compared other connections meanwhile.
            return;
        }
        let server = self.connector.label.clone();
        let text = format!(
            "two servers behind {server} take writes, {} and {}, so a lock could have two holders: \
             the address must lead to one master (see \"Balancers\" in docs/operations.md)",
            older.ends(),
            newer.ends(),
        );
        logging::error!(server = server.as_str(); "{text}");
        self.state.lock().two_servers = Some(text);
        self.are_two.store(true, Ordering::Relaxed);
        let pool = Arc::clone(self);
        let spawned = (self.connector.dialers).spawn(move || pool.watch_two(newer, older));
        if spawned.is_err() {
            // The next connection finds them again.
            self.forget_two();
        }
    }

    /// Compares the connections each second until they lead to one server, or one has ended.
    fn watch_two(&self, mut newer: Connection, mut older: Connection) {
        let generation = older.generation;
        let timeout = self.connector.command_timeout;
        loop {
            let until = Instant::now().after(EVERY);
            loop {
                // Before the check, so that a later change wakes this thread.
                self.state.lock().watcher = Some(thread::current());
                let now = Instant::now();
                if now >= until || self.has_left(generation) {
                    break;
                }
                thread::park_timeout(nap(now, until));
            }
            let are_two = !self.has_left(generation)
                && matches!(compare(&mut newer, &mut older, timeout), Ok(Compared::Two));
            if !are_two {
                break;
            }
        }
        self.forget_two();
        // Connections to either server may be left.
        self.leave(generation);
        if !self.is_closed() {
            let server = self.connector.label.as_str();
            logging::info!(server = server; "{server} is no longer known to be two servers");
        }
    }

    /// Returns whether the pool has given up the connections of this generation.
    fn has_left(&self, generation: u64) -> bool {
        self.is_over() || !self.is_current(generation)
    }

    fn forget_two(&self) {
        self.are_two.store(false, Ordering::Relaxed);
        let mut state = self.state.lock();
        (state.two_servers, state.watcher) = (None, None);
    }

    /// Returns an error if two servers behind the address take writes.
    pub(in crate::redis) fn check_one(&self) -> Result<(), Error> {
        if !self.are_two.load(Ordering::Relaxed) {
            return Ok(());
        }
        match self.state.lock().two_servers.clone() {
            Some(text) => Err(Error::Config(text)),
            None => Ok(()),
        }
    }
}

/// Compares the servers of two connections. Fails if the newer one does.
///
/// One server may lose the key before the second write: by FLUSHALL, by an eviction, or because
/// the key expires while this process stands still. The newer connection then reads what the older
/// one wrote, or nothing.
fn compare(
    newer: &mut Connection,
    older: &mut Connection,
    timeout: Duration,
) -> RedisResult<Compared> {
    for _ in 0..2 {
        let key = format!("leasehold:fence:probe:{}", random::uuid());
        if !matches!(write(newer, &key, BY_NEWER, timeout)?, Write::Done) {
            return Ok(Compared::NotTwo);
        }
        match write(older, &key, BY_OLDER, timeout) {
            Ok(Write::Done) => {}
            Ok(Write::Exists) => return Ok(Compared::NotTwo),
            Ok(Write::Refused) => return Ok(Compared::OlderRefuses),
            Err(_) => return Ok(Compared::OlderIsSilent),
        }
        if !has_own(newer, &key, timeout)? {
            return Ok(Compared::NotTwo);
        }
    }
    Ok(Compared::Two)
}

/// Writes a key unless it exists on the server.
fn write(
    connection: &mut Connection,
    key: &str,
    value: &str,
    timeout: Duration,
) -> RedisResult<Write> {
    let mut set = redis::cmd("SET");
    (set.arg(key).arg(value).arg("NX")).arg("PX").arg(LASTS_MS);
    match reply(connection, &set, timeout)? {
        Reply::Status(text) if text == "OK" => Ok(Write::Done),
        Reply::Nil => Ok(Write::Exists),
        Reply::Error(_) => Ok(Write::Refused),
        _ => Err(connection.malformed()),
    }
}

/// Returns whether a key still has the value that the newer connection has written.
fn has_own(newer: &mut Connection, key: &str, timeout: Duration) -> RedisResult<bool> {
    let mut get = redis::cmd("GET");
    get.arg(key);
    match reply(newer, &get, timeout)? {
        Reply::Text(value) => Ok(value == BY_NEWER.as_bytes()),
        Reply::Nil | Reply::Error(_) => Ok(false),
        _ => Err(newer.malformed()),
    }
}

fn reply(connection: &mut Connection, command: &Cmd, timeout: Duration) -> RedisResult<Reply> {
    let until = Instant::now().after(timeout);
    connection.trip(until, |buffer| command.write_packed_command(buffer))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    use crate::config::Config;
    use crate::redis::conn::connector::Connector;
    use crate::url::Address;

    const LONG: Duration = Duration::from_secs(60);

    /// Returns a pool, and two of its connections, to peers that send these replies.
    fn pool_and_pair(
        replies: [&str; 2],
    ) -> (Arc<Pool>, [Connection; 2], [TcpStream; 2], TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let address = Address::parse(&url).unwrap();
        let mut peers = Vec::new();
        let pair = replies.map(|replies| {
            let until = Instant::now().after(LONG);
            let mut connection = Connection::connect(&address, until, |_| ()).unwrap();
            connection.is_compared = true;
            let mut peer = listener.accept().unwrap().0;
            peer.write_all(replies.as_bytes()).unwrap();
            peers.push(peer);
            connection
        });
        let connector = Connector::to_server(address, None, &Config::default());
        let pool = Arc::new(Pool::new(connector, 4));
        pool.state.lock().out = 1;
        (pool, pair, peers.try_into().unwrap(), listener)
    }

    /// The older connection leads to a replica now, and sentinels have named a further master
    /// meanwhile.
    #[test]
    fn connection_of_a_generation_that_was_left_keeps_it() {
        let (pool, [newer, older], _peers, _listener) =
            pool_and_pair(["+OK\r\n", "-READONLY no\r\n"]);
        assert!(pool.leave(newer.generation));
        let newer = pool.compare_two(newer, older).unwrap().unwrap();
        assert_ne!(newer.generation, pool.generation());
    }

    #[test]
    fn two_servers_are_not_reported_once_their_generation_was_left() {
        let two = ["+OK\r\n$1\r\n1\r\n+OK\r\n$1\r\n1\r\n", "+OK\r\n+OK\r\n"];
        let (pool, [newer, older], _peers, _listener) = pool_and_pair(two);
        assert!(pool.leave(newer.generation));
        assert!(pool.compare_two(newer, older).unwrap().is_some());
        assert!(pool.check_one().is_ok());
        assert_eq!(pool.connector.dialers.wait(Instant::now()), 0);
    }

    #[test]
    fn two_servers_are_reported_and_watched_once() {
        let (pool, [newer, older], _peers, _listener) = pool_and_pair([""; 2]);
        pool.found_two(newer, older);
        assert!(pool.check_one().is_err());
        assert_eq!(pool.connector.dialers.wait(Instant::now()), 1);
        // Another dialer has compared other connections meanwhile.
        let (_, [newer, older], _more_peers, _other) = pool_and_pair([""; 2]);
        pool.found_two(newer, older);
        assert_eq!(pool.connector.dialers.wait(Instant::now()), 1);
        // No further connections are compared.
        let (_, [mut newer, _older], _no_peers, _none) = pool_and_pair([""; 2]);
        newer.is_compared = false;
        pool.state.lock().comparisons = 1;
        assert!(pool.compares_at(&pool.state.lock()).is_none());
        let newer = pool.check_writable(newer).unwrap().unwrap();
        assert!(!newer.is_compared);
        assert!(pool.state.lock().compared.is_none());
        pool.close();
        assert_eq!(pool.connector.dialers.wait(Instant::now().after(LONG)), 0);
        assert!(pool.check_one().is_ok());
    }
}
