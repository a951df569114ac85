//! The slot map: which node of a cluster owns each slot. Background threads refresh it.

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use redis::{ErrorKind, RedisError, RedisResult};

use crate::clock::{Instant, nap};
use crate::config::Config;
use crate::error::{Cause, Error};
use crate::error_reply::{is_final_at_logon, library_text};
use crate::protocol::keys::Key;
use crate::protocol::slot::SLOTS;
use crate::redis::cluster::slots::{HostPort, Layout};
use crate::redis::conn::connection::Connection;
use crate::redis::fault::Fault;
use crate::redis::first_answer::{Failure, inquire};
use crate::redis::server::Server;
use crate::url::Nodes;
use crate::violation::NoFirstReply;
use crate::wait_policy::Backoff;

/// The pause between consecutive refreshes.
const REFRESH: Backoff =
    Backoff::new(Duration::from_millis(50), Duration::from_millis(250)).jitter(0.3);

/// For how long after the last failure the map is refreshed repeatedly, without a caller.
const KEEP_LOOKING: Duration = Duration::from_secs(3);

/// Nodes learn of a moved slot from each other within about this time. Until then, a node's answer
/// may be older than a redirect we have seen.
const GOSSIP: Duration = Duration::from_secs(2);

/// The most nodes asked for the slots at once.
const MOST_ASKED: usize = 8;

/// The slots whose owner has changed.
pub(crate) struct Moved(Vec<bool>);

impl Moved {
    pub(crate) fn has(&self, key: Key<'_>) -> bool {
        self.0.get(usize::from(key.slot())) == Some(&true)
    }
}

type Follower = dyn Fn(&Moved) + Send + Sync;

/// The nodes of a cluster, and the known owner of each slot.
pub(crate) struct SlotMap {
    me: Weak<Self>,
    nodes: Nodes,
    config: Config,
    known: Mutex<Known>,
    /// Notified after each refresh, successful or not.
    looked: Condvar,
    /// Stands in for the owner of a slot while none is known; nothing is sent to it.
    nobody: Arc<Server>,
    /// The nodes being asked: at most one thread at a time asks a node that hangs.
    asking: Mutex<HashSet<HostPort>>,
    follower: OnceLock<Box<Follower>>,
    closed: AtomicBool,
}

struct Known {
    owners_of: Vec<Option<Arc<Server>>>,
    servers: HashMap<HostPort, Arc<Server>>,
    /// The last layout that a node reported.
    layout: Layout,
    /// Recent redirects, by slot.
    redirects: HashMap<u16, (HostPort, Instant)>,
    stale: bool,
    /// When a call last failed.
    doubted: Instant,
    /// A refresh thread is running.
    looking: bool,
    /// The refresh thread is asking the nodes now.
    asking: bool,
    /// The number of refreshes so far.
    looks: u64,
    /// Consecutive refreshes without a change, each soon after the one before.
    row: u32,
    not_before: Instant,
    /// Why the last refresh failed.
    failure: Option<Fault>,
    /// The node to ask first, if there are more than [`MOST_ASKED`].
    turn: usize,
}

/// Marks a node as being asked until dropped.
struct Asked {
    map: Arc<SlotMap>,
    place: HostPort,
}

impl Asked {
    /// Returns `None` if the node is being asked already.
    fn new(map: Arc<SlotMap>, place: HostPort) -> Option<Self> {
        let is_first = map.asking.lock().insert(place.clone());
        is_first.then(|| Self { map, place })
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.map.asking.lock().remove(&self.place);
    }
}

impl SlotMap {
    pub(in crate::redis) fn new(nodes: Nodes, config: &Config) -> Result<Arc<Self>, Error> {
        let Some((host, port)) = nodes.places().next() else {
            return Err(Error::Config("the cluster has no node".into()));
        };
        let nobody = Server::member(nodes.at(&host, port), Arc::new(|| ()), config);
        Ok(Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            nodes,
            config: config.clone(),
            known: Mutex::new(Known {
                owners_of: vec![None; usize::from(SLOTS)],
                servers: HashMap::new(),
                layout: Layout::default(),
                redirects: HashMap::new(),
                stale: true,
                doubted: Instant::START,
                looking: false,
                asking: false,
                looks: 0,
                row: 0,
                not_before: Instant::START,
                failure: None,
                turn: 0,
            }),
            looked: Condvar::new(),
            nobody: Arc::new(nobody),
            asking: Mutex::default(),
            follower: OnceLock::new(),
            closed: AtomicBool::new(false),
        }))
    }

    /// Calls `follower` for all slots that move from now on.
    pub(crate) fn follow_with(&self, follower: Box<Follower>) {
        // Set once, when the client is built.
        let _ = self.follower.set(follower);
    }

    /// Returns the known owner of a slot, or a stand-in that nothing can be sent to.
    pub(in crate::redis) fn owner_of(&self, slot: u16) -> Arc<Server> {
        let known = self.known.lock();
        Arc::clone(known.keeper(slot).unwrap_or(&self.nobody))
    }

    /// Returns every known master that owns a slot.
    pub(in crate::redis) fn masters(&self) -> Vec<Arc<Server>> {
        self.known.lock().servers.values().cloned().collect()
    }

    /// Returns the owner of a slot, at the latest by `until`. If no owner is known or it is
    /// failing, refreshes the map first.
    pub(in crate::redis) fn keeper(&self, slot: u16, until: Instant) -> Result<Arc<Server>, Fault> {
        let keeper = self.known.lock().keeper(slot).cloned();
        if let Some(keeper) = keeper.filter(|keeper| !keeper.is_failing()) {
            return Ok(keeper);
        }
        loop {
            let failure = self.look(until);
            if let Some(keeper) = self.known.lock().keeper(slot).cloned() {
                return Ok(keeper);
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

    /// Refreshes the map and waits for that until `until`. Returns why the refresh failed, if it
    /// did.
    pub(in crate::redis) fn look(&self, until: Instant) -> Option<Fault> {
        let mut known = self.known.lock();
        known.stale = true;
        // A refresh under way may have asked before this call.
        let enough = known.looks + 1 + u64::from(known.asking);
        while known.looks < enough && !self.is_closed() {
            self.ensure_look(&mut known);
            let now = Instant::now();
            if now >= until || !known.looking {
                let silence =
                    || Fault::NotRun(Cause::silence("no node reported the slots in time"));
                return known.failure.clone().or_else(|| Some(silence()));
            }
            self.looked.wait_for(&mut known, nap(now, until));
        }
        known.failure.clone()
    }

    /// Records a failure and refreshes the map in the background.
    pub(in crate::redis) fn doubt(&self) {
        let mut known = self.known.lock();
        known.doubted = Instant::now();
        known.stale = true;
        self.ensure_look(&mut known);
    }

    /// Records a redirect: `slot` is now at `place`. Refreshes the map if that is news.
    pub(in crate::redis) fn moved(&self, slot: u16, place: HostPort) -> Option<Arc<Server>> {
        let mut known = self.known.lock();
        let server = self.server_at(&mut known, &place);
        known.redirects.insert(slot, (place, Instant::now()));
        let keeper = known.owners_of.get_mut(usize::from(slot))?;
        let before = keeper.replace(Arc::clone(&server));
        if before.is_some_and(|before| !Arc::ptr_eq(&before, &server)) {
            // Other slots will have moved, too.
            known.stale = true;
            self.ensure_look(&mut known);
            drop(known);
            let mut moved = vec![false; usize::from(SLOTS)];
            if let Some(is_moved) = moved.get_mut(usize::from(slot)) {
                *is_moved = true;
            }
            self.tell(&Moved(moved));
        }
        Some(server)
    }

    /// Returns where a redirect from `server` leads; an empty host means the same host.
    pub(in crate::redis) fn place(&self, server: &Arc<Server>, host: &str, port: u16) -> HostPort {
        if !host.is_empty() {
            return (host.to_owned(), port);
        }
        let known = self.known.lock();
        let own = known
            .servers
            .iter()
            .find(|(_, known)| Arc::ptr_eq(known, server));
        (
            own.map_or_else(String::new, |((host, _), _)| host.clone()),
            port,
        )
    }

    /// Returns the server at `place`, created if necessary.
    pub(in crate::redis) fn at(&self, place: &HostPort) -> Arc<Server> {
        self.server_at(&mut self.known.lock(), place)
    }

    fn server_at(&self, known: &mut Known, place: &HostPort) -> Arc<Server> {
        if let Some(server) = known.servers.get(place) {
            return Arc::clone(server);
        }
        let address = self.nodes.at(&place.0, place.1);
        let map = Weak::clone(&self.me);
        let doubt = move || {
            if let Some(map) = map.upgrade() {
                map.doubt();
            }
        };
        let server = Arc::new(Server::member(address, Arc::new(doubt), &self.config));
        if self.is_closed() {
            server.close();
        }
        known.servers.insert(place.clone(), Arc::clone(&server));
        server
    }

    /// Starts a refresh thread unless one runs. Callers do not refresh: resolving a host name can
    /// take longer than their time limit.
    fn ensure_look(&self, known: &mut Known) {
        if known.looking || self.is_closed() {
            return;
        }
        let Some(this) = self.me.upgrade() else {
            return;
        };
        match self.config.dialers.spawn(move || this.look_while_stale()) {
            Ok(()) => known.looking = true,
            Err(error) => {
                let cause = Cause::text(format!(
                    "cannot start a thread to refresh the slots: {error}"
                ));
                known.failure = Some(Fault::NotRun(cause));
            }
        }
    }

    fn look_while_stale(&self) {
        let mut known = self.known.lock();
        while known.stale && !self.is_closed() {
            let now = Instant::now();
            let pause = now.until(known.not_before);
            if !pause.is_zero() {
                MutexGuard::unlocked(&mut known, || thread::sleep(pause));
                continue;
            }
            if known.not_before.until(now) > KEEP_LOOKING {
                known.row = 0;
            }
            known.stale = false;
            known.asking = true;
            let places = known.whom_to_ask(self.nodes.places());
            let asked = MutexGuard::unlocked(&mut known, || self.ask_all(places));
            let (moved, retired) = match asked {
                Ok(layout) => {
                    known.failure = None;
                    self.learn(&mut known, layout, now)
                }
                Err(fault) => {
                    known.failure = Some(fault);
                    (None, Vec::new())
                }
            };
            known.row = if moved.is_some() { 0 } else { known.row + 1 };
            known.not_before = Instant::now().after(REFRESH.pause(known.row));
            known.asking = false;
            known.looks += 1;
            self.looked.notify_all();
            MutexGuard::unlocked(&mut known, || {
                for server in &retired {
                    server.retire();
                }
                if let Some(moved) = moved {
                    self.tell(&moved);
                }
            });
            // A replica may be about to take over from a node that does not answer.
            let is_recent = known.doubted.until(Instant::now()) < KEEP_LOOKING;
            known.stale |= is_recent && known.servers.values().any(|server| server.is_failing());
        }
        known.looking = false;
        self.looked.notify_all();
    }

    /// Applies the layout that a node reported when asked at `asked`. Returns the slots that have
    /// moved, and the servers that own none any more.
    fn learn(
        &self,
        known: &mut Known,
        layout: Layout,
        asked: Instant,
    ) -> (Option<Moved>, Vec<Arc<Server>>) {
        let Known {
            redirects, servers, ..
        } = known;
        redirects.retain(|_, (place, at)| {
            let has_failed = servers.get(place).is_some_and(|server| server.is_failing());
            at.until(asked) < GOSSIP && !has_failed
        });
        let redirects = redirects.clone();
        // Usually nothing has changed, and many clients may refresh at once.
        if redirects.is_empty() && known.layout == layout {
            return (None, Vec::new());
        }
        let mut moved = None;
        for (slots, place) in &layout.masters {
            let master = self.server_at(known, place);
            for slot in slots.clone() {
                let n = usize::from(slot);
                let redirect = redirects.get(&slot);
                let server = redirect.map(|(place, _)| self.server_at(known, place));
                let server = server.as_ref().unwrap_or(&master);
                // The node has not heard of the move yet, nor of what moved with it.
                known.stale |= !Arc::ptr_eq(server, &master);
                // A slot without a reported owner stays: its last owner redirects calls if
                // necessary.
                let Some(keeper) = known.owners_of.get_mut(n) else {
                    continue;
                };
                if keeper
                    .as_ref()
                    .is_some_and(|before| Arc::ptr_eq(before, server))
                {
                    continue;
                }
                if keeper.replace(Arc::clone(server)).is_some()
                    && let Some(is_moved) = moved
                        .get_or_insert_with(|| vec![false; usize::from(SLOTS)])
                        .get_mut(n)
                {
                    *is_moved = true;
                }
            }
        }
        let mut kept: Vec<*const Server> =
            known.owners_of.iter().flatten().map(Arc::as_ptr).collect();
        kept.sort_unstable();
        kept.dedup();
        let retired = known
            .servers
            .extract_if(|_, server| !kept.contains(&Arc::as_ptr(server)));
        let retired: Vec<_> = retired.map(|(_, server)| server).collect();
        if !retired.is_empty() {
            // Followers must stop using a retired server even if all its slots moved earlier.
            moved.get_or_insert_with(|| vec![false; usize::from(SLOTS)]);
        }
        known.layout = layout;
        (moved.map(Moved), retired)
    }

    fn tell(&self, moved: &Moved) {
        let Some(follower) = self.follower.get() else {
            return;
        };
        // The user's logger may panic.
        let _ = catch_unwind(AssertUnwindSafe(|| follower(moved)));
    }

    /// Advice for a node that accepts connections and does not reply; empty once one has replied.
    fn tls_hint(&self) -> &'static str {
        match self.known.lock().servers.is_empty() {
            true => self.nodes.tls_hint(),
            false => "",
        }
    }

    /// Returns the layout from the first node that knows the slots.
    fn ask_all(&self, places: Vec<HostPort>) -> Result<Layout, Fault> {
        let timeout = self.config.connect_timeout;
        let asked: Vec<Asked> = places
            .into_iter()
            .filter_map(|place| Asked::new(self.me.upgrade()?, place))
            .collect();
        let places: Vec<HostPort> = asked.iter().map(|asked| asked.place.clone()).collect();
        let asks = asked
            .into_iter()
            .map(|asked| move || asked.map.ask(&asked.place, timeout));
        inquire(&self.config.dialers, asks, timeout, is_final).map_err(|failure| match failure {
            Failure::Refused(error) => Fault::Rejected(refused(self.nodes.label(), &error)),
            Failure::Silent(Some((n, error))) => {
                let (host, port) = &places[n];
                let cause = match NoFirstReply::of(&error) {
                    Some(event) => Cause::no_first_reply(event, self.tls_hint()),
                    None => error.into(),
                };
                Fault::NotRun(cause.at(&format!("{host}:{port}")))
            }
            Failure::Silent(None) => {
                Fault::NotRun(Cause::silence("no node of the cluster answered in time"))
            }
        })
    }

    /// Asks one node for the slots, over a new connection.
    fn ask(&self, place: &HostPort, timeout: Duration) -> RedisResult<Layout> {
        let until = Instant::now().after(timeout);
        let mut connection =
            Connection::open(&self.nodes.at(&place.0, place.1), None, until, || ())?;
        let mut ask = redis::cmd("CLUSTER");
        ask.arg("SLOTS");
        let answer = connection
            .trip(until, |buffer| ask.write_packed_command(buffer))?
            .extract_error()?;
        Layout::read(answer, place)
            .ok_or_else(|| (ErrorKind::Client, "the node knows of no slots").into())
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Closes the idle connections; those in use are closed when they are returned.
    pub(in crate::redis) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        for server in self.masters() {
            server.close();
        }
        self.looked.notify_all();
    }
}

impl Known {
    fn keeper(&self, slot: u16) -> Option<&Arc<Server>> {
        self.owners_of.get(usize::from(slot))?.as_ref()
    }

    /// Returns the nodes to ask: all, or the next [`MOST_ASKED`] in rotation.
    fn whom_to_ask(&mut self, seeds: impl Iterator<Item = HostPort>) -> Vec<HostPort> {
        let mut places: Vec<HostPort> = self.servers.keys().cloned().chain(seeds).collect();
        places.extend(self.layout.replicas.iter().cloned());
        places.sort();
        places.dedup();
        if places.len() > MOST_ASKED {
            let turn = self.turn % places.len();
            places.rotate_left(turn);
            places.truncate(MOST_ASKED);
            self.turn += MOST_ASKED;
        }
        places
    }
}

fn refused(server: String, error: &RedisError) -> Error {
    let rights = match error.code() {
        Some("NOPERM") => "; CLUSTER SLOTS needs +cluster|slots",
        _ => "",
    };
    Error::Refused {
        server,
        command: "CLUSTER SLOTS",
        answer: format!("{}{rights}", library_text(error)),
    }
}

/// Returns true for an error that lasts until somebody changes a setting.
fn is_final(error: &RedisError) -> bool {
    let text = error.to_string();
    is_final_at_logon(error) || text.contains("cluster support disabled")
}
