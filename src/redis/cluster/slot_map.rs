//! The slot map: which node of a cluster owns each slot. A background thread refreshes it.
//!
//! ```text
//!        a caller, a failure, a redirect          the pause REFRESH is over
//! +------+                          +---------+                          +----------+
//! | idle | -----------------------> | pausing | -----------------------> | fetching |
//! +------+                          +---------+                          +----------+
//!    ^                                   ^   stale again, or a master failed   |
//!    |                                   +-- or a slot moved less than --------+
//!    |                                       KEEP_REFRESHING ago, and that one |
//!    |                                       has not replied since, or nodes   |
//!    |                                       disagree without a majority       |
//!    +-------------------------------------------------------------------------+
//!                                     otherwise
//! ```

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use crate::clock::{Instant, nap, sleep};
use crate::config::Config;
use crate::error::Cause;
use crate::kernel::fault::Fault;
use crate::logging::contain;
use crate::protocol::redirect::Redirect;
use crate::redis::cluster::owners::{Change, Moved, Owners};
use crate::redis::conn::connector::Connector;
use crate::redis::server::Server;
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::url::{HostPort, Nodes};
use crate::wait_policy::Backoff;

/// The pause between consecutive refreshes.
const REFRESH: Backoff =
    Backoff::new(Duration::from_millis(50), Duration::from_millis(250)).jitter(0.3);

/// How long after the last failure or redirect the map is refreshed repeatedly, even if no call
/// waits for it.
const KEEP_REFRESHING: Duration = Duration::from_secs(3);

/// The most nodes asked for the slots at once.
const MOST_ASKED: usize = 5;

type Follower = dyn Fn(&Moved) + Send + Sync;

/// The nodes of a cluster, and the known owner of each slot.
pub(crate) struct SlotMap {
    me: Weak<Self>,
    pub(super) nodes: Nodes,
    pub(in crate::redis) config: Config,
    known: Mutex<KnownSlots>,
    /// Notified after each refresh, successful or not.
    refreshed: Condvar,
    /// Stands in for the owner of a slot while none is known. Its address is that of the first
    /// seed.
    nobody: Arc<Server>,
    /// The nodes being asked now.
    pub(super) in_flight: Mutex<HashSet<HostPort>>,
    follower: OnceLock<Box<Follower>>,
    closed: AtomicBool,
}

struct KnownSlots {
    owners: Owners,
    state: State,
    stale: bool,
    /// When a call last failed, or a redirect last named another owner.
    suspected: Instant,
    /// The number of refreshes so far.
    refreshes: u64,
    /// How many refreshes in a row moved no slot; 0 again after [`KEEP_REFRESHING`] without one.
    row: u32,
    not_before: Instant,
    /// Why the last refresh failed.
    failure: Option<Fault>,
    /// The node to ask first, if there are more than [`MOST_ASKED`].
    turn: usize,
}

/// The state of the refresh thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// There is no thread.
    Idle,
    Pausing,
    Fetching,
}

impl SlotMap {
    pub(super) fn new(nodes: Nodes, config: &Config) -> Arc<Self> {
        // Errors name the stand-in as the first of the seeds, which the address map may replace.
        let first = nodes.addresses().next();
        let first = first.map(|(host, port)| nodes.data.at(&host, port));
        let first = first.unwrap_or_else(|| nodes.data.clone());
        let nobody = Connector::to_server(first, Some(Weak::new()), config);
        let nobody = Server::new(nobody, config, None);
        Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            nodes,
            config: config.clone(),
            known: Mutex::new(KnownSlots {
                owners: Owners::none(),
                state: State::Idle,
                stale: true,
                suspected: Instant::START,
                refreshes: 0,
                row: 0,
                not_before: Instant::START,
                failure: None,
                turn: 0,
            }),
            refreshed: Condvar::new(),
            nobody: Arc::new(nobody),
            in_flight: Mutex::default(),
            follower: OnceLock::new(),
            closed: AtomicBool::new(false),
        })
    }

    /// Calls `follower` for all slots that move from now on.
    pub(crate) fn follow_with(&self, follower: Box<Follower>) {
        // Set once, when the client is built.
        let _ = self.follower.set(follower);
    }

    /// Returns the known owner of a slot, or the stand-in `nobody`.
    pub(crate) fn owner_of(&self, slot: u16) -> Arc<Server> {
        let known = self.known.lock();
        Arc::clone(known.owners.owner_of(slot).unwrap_or(&self.nobody))
    }

    /// Returns a slot that the server owns.
    pub(in crate::redis) fn slot_of(&self, server: &Arc<Server>) -> Option<u16> {
        self.known.lock().owners.slot_of(server)
    }

    /// Returns every known master that owns a slot, and the nodes that ASK redirects have named.
    pub(in crate::redis) fn masters(&self) -> Vec<Arc<Server>> {
        self.known.lock().owners.masters().cloned().collect()
    }

    /// Returns the owner of a slot, at the latest by `until`. If no owner is known or it is
    /// failing, refreshes the map first, unless the owner's breaker will reject the call at once.
    pub(in crate::redis) fn find_owner(
        &self,
        slot: u16,
        until: Instant,
        is_stopped_by_breaker: bool,
    ) -> Result<Arc<Server>, Fault> {
        let known_owner = || self.known.lock().owners.owner_of(slot).cloned();
        let answers_at_once = |owner: &Arc<Server>| {
            let health = &owner.health;
            !health.is_failing() || is_stopped_by_breaker && health.rejects_calls()
        };
        if let Some(owner) = known_owner().filter(answers_at_once) {
            return Ok(owner);
        }
        loop {
            let failure = self.refresh(until);
            if let Some(owner) = known_owner() {
                return Ok(owner);
            }
            let failure = failure
                .unwrap_or_else(|| Fault::NotRun(Cause::text(format!("no node owns slot {slot}"))));
            let is_not_redis = failure.cause().is_some_and(Cause::is_not_redis);
            if is_not_redis || matches!(failure, Fault::Rejected(_)) {
                return Err(failure);
            }
            if Instant::now() >= until || self.is_closed() {
                self.nobody.failed();
                return Err(failure);
            }
        }
    }

    /// Refreshes the map, and waits until `until` at most for that. Returns the reason if the map
    /// was not refreshed.
    pub(super) fn refresh(&self, until: Instant) -> Option<Fault> {
        let mut known = self.known.lock();
        known.stale = true;
        // A refresh under way may have asked before this call.
        let enough = known.refreshes + 1 + u64::from(known.state == State::Fetching);
        while known.refreshes < enough && !self.is_closed() {
            self.ensure_refresh(&mut known);
            let now = Instant::now();
            if now >= until || known.state == State::Idle {
                let silence =
                    || Fault::NotRun(Cause::silence("no node reported the slots in time"));
                return known.failure.clone().or_else(|| Some(silence()));
            }
            self.refreshed.wait_for(&mut known, nap(now, until));
        }
        known.failure.clone()
    }

    /// Records a failure and refreshes the map in the background.
    pub(in crate::redis) fn suspect(&self) {
        let mut known = self.known.lock();
        known.suspected = Instant::now();
        known.stale = true;
        self.ensure_refresh(&mut known);
    }

    /// Returns the server to which `server` redirects a call for `slot`.
    pub(crate) fn redirected(
        &self,
        slot: u16,
        server: &Arc<Server>,
        redirect: &Redirect,
    ) -> Arc<Server> {
        match redirect {
            Redirect::Moved(host, port) => self.moved(slot, self.address(server, host, *port)),
            Redirect::Ask(host, port) => self.at(&self.address(server, host, *port)),
            Redirect::TryAgain => self.owner_of(slot),
        }
    }

    /// Records a redirect: `slot` is now at `address`. If the map does not say so, refreshes it.
    fn moved(&self, slot: u16, address: HostPort) -> Arc<Server> {
        let mut known = self.known.lock();
        let make = |address: &HostPort| self.make_server(address);
        let (server, moved) = known
            .owners
            .redirected(slot, address, Instant::now(), &make);
        if let Some(moved) = moved {
            // Other slots will have moved, too.
            known.suspected = Instant::now();
            known.stale = true;
            self.ensure_refresh(&mut known);
            drop(known);
            self.notify(&moved);
        }
        server
    }

    /// Returns the address to which `server` redirects. An empty host, or `?`, means its own host.
    fn address(&self, server: &Arc<Server>, host: &str, port: u16) -> HostPort {
        let known = self.known.lock();
        let host = match host {
            "" | "?" => known.owners.host_of(server).unwrap_or_default(),
            host => host,
        };
        (host.to_owned(), port)
    }

    /// Returns the address of a server for an error. If the server has never replied, and is none
    /// of the seeds, says that the nodes have announced it.
    pub(crate) fn label_of(&self, server: &Server) -> String {
        let label = server.label();
        let is_label = |(host, port): HostPort| self.nodes.data.at(&host, port).label == label;
        let is_seed = || self.nodes.addresses().any(is_label);
        if server.pool.connector.has_replied() || is_seed() {
            label.to_owned()
        } else {
            format!("the nodes of the cluster announce {label}")
        }
    }

    /// Returns the server at `address`, created if necessary.
    fn at(&self, address: &HostPort) -> Arc<Server> {
        let make = |address: &HostPort| self.make_server(address);
        self.known.lock().owners.at(address, &make)
    }

    fn make_server(&self, (host, port): &HostPort) -> Arc<Server> {
        let address = self.nodes.data.at(host, *port);
        let cluster = Some(Weak::clone(&self.me));
        let connector = Connector::to_server(address, cluster, &self.config);
        let server = Server::new(connector, &self.config, None);
        if self.is_closed() {
            server.pool.close();
        }
        Arc::new(server)
    }

    /// Starts a refresh thread unless one runs. Callers do not ask the nodes themselves: that can
    /// take the whole `connect_timeout`, longer than a caller may have.
    fn ensure_refresh(&self, known: &mut KnownSlots) {
        if known.state != State::Idle || self.is_closed() {
            return;
        }
        let Some(this) = self.me.upgrade() else {
            return;
        };
        match self
            .config
            .dialers
            .spawn(move || this.refresh_while_stale())
        {
            Ok(()) => known.state = State::Pausing,
            Err(shortage) => {
                known.failure = Some(Fault::NotRun(Cause::of_shortage(shortage)));
            }
        }
    }

    /// The refresh thread.
    fn refresh_while_stale(self: Arc<Self>) {
        let mut known = self.known.lock();
        while known.stale && !self.is_closed() {
            let now = Instant::now();
            let pause = now.until(known.not_before);
            if !pause.is_zero() {
                MutexGuard::unlocked(&mut known, || sleep(pause));
                continue;
            }
            if known.not_before.until(now) > KEEP_REFRESHING {
                known.row = 0;
            }
            known.stale = false;
            known.state = State::Fetching;
            let before = known.owners.begin_refresh();
            let nodes = known.nodes_to_ask(self.nodes.addresses());
            let reports = MutexGuard::unlocked(&mut known, || self.ask_nodes(nodes, &before));
            let change = reports.map(|(members, reports)| {
                let make = |address: &HostPort| self.make_server(address);
                known.owners.learn(reports, members, now, &make)
            });
            let change = known.note(change, Instant::now());
            self.refreshed.notify_all();
            MutexGuard::unlocked(&mut known, || {
                for server in &change.retired {
                    server.pool.retire();
                }
                if let Some(moved) = &change.moved {
                    self.notify(moved);
                }
            });
            // A replica may be about to take over from a node that does not answer.
            let is_recent = known.suspected.until(Instant::now()) < KEEP_REFRESHING;
            let is_failing = |server: &Arc<Server>| server.health.is_failing();
            known.stale |= is_recent && (change.is_split || known.owners.masters().any(is_failing));
        }
        known.state = State::Idle;
        self.refreshed.notify_all();
    }

    fn notify(&self, moved: &Moved) {
        let Some(follower) = self.follower.get() else {
            return;
        };
        // The follower may drop the last reference to a lease, and so a user's closure, whose drop
        // may panic.
        contain(|| follower(moved));
    }

    /// Advice for a node that accepts connections and does not reply; empty once one has replied.
    pub(super) fn tls_hint(&self) -> String {
        match self.known.lock().owners.masters().next() {
            None => self.nodes.data.tls_hint(),
            Some(_) => String::new(),
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Ends the calls that wait for a connection, except those exempt from the cap, like releases.
    pub(in crate::redis) fn end_connecting(&self) {
        for server in self.masters() {
            server.pool.close();
        }
    }

    /// Closes the idle connections; those in use are closed when they are returned.
    pub(in crate::redis) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.end_connecting();
        self.refreshed.notify_all();
    }
}

impl KnownSlots {
    /// Records the result of a refresh.
    fn note(&mut self, change: Result<Change, Fault>, now: Instant) -> Change {
        let (change, failure) = match change {
            Ok(change) => (change, None),
            Err(fault) => (Change::default(), Some(fault)),
        };
        self.failure = failure;
        self.stale |= change.is_behind;
        self.row = if change.moved.is_some() {
            0
        } else {
            self.row + 1
        };
        self.not_before = now.after(REFRESH.pause(self.row));
        self.state = State::Pausing;
        self.refreshes += 1;
        change
    }

    /// Returns the nodes to ask: all, or the next [`MOST_ASKED`] in rotation, masters first.
    fn nodes_to_ask(&mut self, seeds: impl Iterator<Item = HostPort>) -> Vec<HostPort> {
        let mut nodes = Vec::new();
        let groups = self.owners.nodes(seeds);
        let has_turns = groups.iter().map(Vec::len).sum::<usize>() > MOST_ASKED;
        for mut group in groups {
            if has_turns && !group.is_empty() {
                let turn = self.turn % group.len();
                group.rotate_left(turn);
            }
            nodes.append(&mut group);
        }
        nodes.truncate(MOST_ASKED);
        self.turn = self.turn.wrapping_add(MOST_ASKED);
        nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::url::Target;

    #[test]
    fn redirect_without_a_host_leads_to_the_host_of_its_server() {
        let Ok(Target::Cluster(nodes)) = Target::parse("redis+cluster://127.0.0.1:1") else {
            panic!("this URL has a cluster");
        };
        let map = SlotMap::new(nodes, &Config::default());
        let server = map.at(&("10.0.0.1".into(), 1));
        for (host, expected) in [
            ("", "10.0.0.1"),
            ("?", "10.0.0.1"),
            ("10.0.0.2", "10.0.0.2"),
        ] {
            assert_eq!(map.address(&server, host, 2), (expected.into(), 2));
        }
    }
}
