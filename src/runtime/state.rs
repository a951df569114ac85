//! The state that the client's threads share with each other and with callers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crossbeam_channel::{Receiver, unbounded};

use crate::clock::Instant;
use crate::config::Config;
use crate::error::Error;
use crate::holder_id::HolderId;
use crate::lease::held::HeldLease;
use crate::lease::release::{RecentReleases, Release, ReleaseReport, Unconfirmed};
use crate::logging;
use crate::lost::Lost;
use crate::name::Name;
use crate::process::Process;
use crate::protocol::answer::KeyState;
use crate::protocol::keys::{Key, Keys};
use crate::protocol::primitive::{AtRelease, Primitive};
use crate::queue::local::Waiters;
use crate::redis::cluster::owners::Moved;
use crate::redis::{Cap, Deployment, Majority, Undoable};
use crate::runtime::callbacks::Callbacks;
use crate::runtime::endpoint::{Endpoint, Endpoints};
use crate::runtime::engine::Engine;
use crate::runtime::engine::shared_stats::SharedStats;
use crate::runtime::subscriber::Inbox;
use crate::runtime::subscriber::subscription::{Part, Subscription};
use crate::runtime::timer::Timer;
use crate::runtime::wake::Wake;
use crate::stats::Meters;
use crate::sync::Mutex;
use crate::thread_group::{CALL, ThreadGroup};

/// The shared state of one client. It does not keep the client alive: dropping the last client,
/// lock or guard stops the threads, and the last thread drops this state.
pub(crate) struct Runtime {
    /// The process that made the client.
    pub(crate) process: Process,
    pub(crate) config: Config,
    pub(crate) deployment: Deployment,
    pub(crate) waiters: Waiters,
    pub(crate) meters: Meters,
    pub(crate) shared_stats: SharedStats,
    pub(crate) timer: Timer,
    pub(crate) engine: Engine,
    pub(crate) endpoints: Endpoints,
    pub(crate) callbacks: Arc<Callbacks>,
    /// The threads that run calls that can be cancelled.
    pub(crate) calls: ThreadGroup,
    /// Recent releases, to be repeated at a new master, which may not have them. Kept only if the
    /// master can change.
    pub(crate) released: Mutex<RecentReleases>,
    closed: AtomicBool,
    unconfirmed: Unconfirmed,
    serial: AtomicU64,
    /// For methods without `&Arc<Self>` that start threads.
    me: Weak<Self>,
    bodies: ThreadBodies,
}

/// The functions of the threads that use the whole runtime. The runtime starts these threads, but
/// cannot import their modules, because those import the runtime.
pub(in crate::runtime) struct ThreadBodies {
    pub(in crate::runtime) engine: fn(&Runtime),
    pub(in crate::runtime) subscriber: fn(&Runtime),
}

impl Runtime {
    pub(in crate::runtime) fn new(
        config: Config,
        deployment: Deployment,
        bodies: ThreadBodies,
    ) -> Result<Arc<Self>, Error> {
        let wake = Arc::new(Wake::new()?);
        let shared_stats = SharedStats::new(&config);
        let runtime = Arc::new_cyclic(|me| Self {
            process: Process::current(),
            shared_stats,
            config,
            deployment,
            waiters: Waiters::default(),
            meters: Meters::default(),
            timer: Timer::new(Arc::clone(&wake)),
            engine: Engine::new(wake),
            endpoints: Endpoints::default(),
            callbacks: Arc::default(),
            calls: ThreadGroup::new(CALL),
            released: Mutex::default(),
            closed: AtomicBool::new(false),
            unconfirmed: Unconfirmed::default(),
            serial: AtomicU64::new(0),
            me: Weak::clone(me),
            bodies,
        });
        let later = runtime.callbacks.later();
        runtime.config.dialers.defer_to(later);
        if let Some(slots) = runtime.deployment.slot_map() {
            let me = Weak::clone(&runtime.me);
            slots.follow_with(Box::new(move |moved| {
                if let Some(runtime) = me.upgrade() {
                    runtime.slots_moved(moved);
                }
            }));
        }
        if let Some(sentinels) = runtime.deployment.sentinels() {
            let thread = Arc::clone(&runtime.endpoints.subscriber_thread);
            sentinels.notify_with(Box::new(move || thread.wake()));
        }
        Ok(runtime)
    }

    pub(crate) fn keys(&self, name: Name) -> Keys {
        Keys::new(name, &self.config.key_prefix, &self.config.channel_prefix)
    }

    /// Returns whether calls wait in queues in Redis.
    pub(crate) fn has_queues(&self) -> bool {
        self.config.queues && !self.deployment.is_quorum()
    }

    /// Returns an error if this client cannot keep such a name.
    pub(crate) fn check(&self, keys: &Arc<dyn Primitive>) -> Result<(), Error> {
        keys.check()?;
        self.deployment.check(keys)?;
        match keys.needs_queues() {
            Some((kind, why)) if self.deployment.is_quorum() => Err(Error::Config(format!(
                "{kind} needs one server, Sentinel or Cluster: {why}"
            ))),
            Some((kind, _)) if !self.config.queues => Err(Error::Config(format!(
                "{kind} needs queues in Redis, and this client was built with queues(false): use \
                 a Mutex, or a client with queues and a Redis user with the permissions for them"
            ))),
            _ => Ok(()),
        }
    }

    /// Returns [`Error::Forked`] in a child of the process that made the client, and
    /// [`Error::Closed`] once the client is shut down.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        self.process.check()?;
        if self.is_closed() {
            Err(Error::Closed)
        } else {
            Ok(())
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Refuses new work from now on; returns true to the first caller.
    pub(crate) fn close(&self) -> bool {
        !self.closed.swap(true, Ordering::SeqCst)
    }

    /// Records a lease that this number of `servers` may still have when the threads end.
    pub(crate) fn note_unconfirmed(&self, id: HolderId, servers: usize) {
        self.unconfirmed.note(id, servers);
    }

    /// Returns how many leases were not confirmed to be released when the threads ended.
    pub(crate) fn unconfirmed(&self) -> usize {
        self.unconfirmed.count(self.deployment.size())
    }

    pub(crate) fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed)
    }

    /// Starts the threads that every lease needs. Called before the first lease is acquired: if the
    /// system has no threads left, the caller gets an error and not a lease without renewal.
    pub(crate) fn start(self: &Arc<Self>) -> Result<(), Error> {
        self.engine.worker.start(|| {
            let me = Arc::clone(self);
            move || {
                logging::defer_to(me.callbacks.later());
                (me.bodies.engine)(&me);
            }
        })?;
        for server in self.deployment.fixed() {
            self.endpoints.of(server);
        }
        match self.deployment.sentinels() {
            Some(_) => self.start_subscriber(),
            None => Ok(()),
        }
    }

    fn start_subscriber(self: &Arc<Self>) -> Result<(), Error> {
        self.endpoints.subscriber_thread.start(|| {
            let me = Arc::clone(self);
            move || {
                logging::defer_to(me.callbacks.later());
                (me.bodies.subscriber)(&me);
            }
        })
    }

    /// Returns the endpoints that own a key now, as far as is known, and how many of them decide.
    fn endpoints_of(&self, key: Key<'_>) -> (Vec<Arc<Endpoint>>, Majority) {
        let (owners, size) = self.deployment.owners_of(key);
        let endpoints = owners.iter().map(|server| self.endpoints.of(server));
        (endpoints.collect(), size)
    }

    /// Subscribes to the releases of a name.
    pub(crate) fn subscribe<'a>(self: &Arc<Self>, key: Key<'a>) -> Result<Subscription<'a>, Error> {
        self.start_subscriber()?;
        let (endpoints, size) = self.endpoints_of(key);
        let parts = endpoints.into_iter();
        let parts = parts.map(|endpoint| Part::subscribe(endpoint, key));
        let subscription = Subscription::of(parts.collect(), size);
        self.engine.probe();
        Ok(subscription)
    }

    /// Returns how this client receives grants of a name.
    pub(crate) fn inbox(&self, key: Key<'_>) -> Inbox {
        let endpoint = self.endpoints.known(&self.deployment.primary_owner_of(key));
        endpoint.map_or_else(Inbox::default, |endpoint| endpoint.subscriber.inbox())
    }

    /// Returns how many replies a call for these keys gets, and how many it needs: those of a
    /// majority of the servers, or one for each part.
    pub(in crate::runtime) fn size_of(&self, keys: &Arc<dyn Primitive>) -> Majority {
        match keys.is_split() {
            true => Majority::each(keys.parts().len()),
            false => self.deployment.size(),
        }
    }

    /// Sends a release to all servers of its keys, and repeats it until its effect is certain.
    ///
    /// Once the engine has ended, sends it only once, on the calling thread. A release that was
    /// sent before is then not repeated.
    pub(crate) fn release(&self, mut release: Release) {
        if release.may_precede_acquire {
            self.endpoints.note_unanswered(&mut release);
        }
        let servers = self.deployment.size().all;
        let parts = release.keys.parts().iter().flat_map(|keys| {
            let part = release.part(keys);
            (0..servers).map(move |server| (server, part.clone().at_server(server)))
        });
        let parts: Vec<_> = parts.collect();
        for _ in &parts {
            self.endpoints.note_release(&release.id);
        }
        let Err(parts) = self.engine.release(parts) else {
            return;
        };
        for (_, part) in parts {
            self.endpoints.forget_release(part);
        }
        if !release.was_sent {
            self.release_once(&release);
        } else if release.may_end_lease {
            self.note_unconfirmed(release.id, servers);
        }
    }

    /// Sends a release once, and waits for its reply for at most the command timeout.
    fn release_once(&self, release: &Release) {
        let now = Instant::now();
        let until = now.after(self.deployment.command_timeout());
        for keys in release.keys.parts() {
            let undoable = Undoable {
                keys,
                id: &release.id,
                ttl: now.until(release.until),
                votes: release.votes.as_ref(),
            };
            let answer = self.deployment.call_or_undo(
                keys.release(release.id.as_str().as_bytes(), AtRelease::Usual),
                until,
                Cap::Exempt,
                Some(&undoable),
            );
            match answer {
                Ok((answer, _)) => {
                    if let (Some(report), Some(found)) = (&release.report, answer.key_state()) {
                        report.found(found);
                    }
                }
                // A place in a queue expires without a release.
                Err(_) if !release.may_end_lease => {}
                Err(fault) => {
                    self.note_unconfirmed(release.id.clone(), self.deployment.size().all);
                    logging::warn!(
                        name:% = keys, holder:% = release.id.short();
                        "cannot release {keys} after the shutdown: {fault}; the key may stay for \
                         {:?}",
                        undoable.ttl
                    );
                }
            }
        }
    }

    /// Releases all `holds`, trying until `until`. The receiver gets the result for each lease that
    /// got a reply, and is disconnected at the end.
    pub(crate) fn release_all(
        &self,
        holds: &[Arc<HeldLease>],
        until: Instant,
    ) -> Receiver<KeyState> {
        let (sender, found) = unbounded();
        for hold in holds {
            let report = ReleaseReport::new(self.size_of(&hold.keys), sender.clone());
            self.release(Release {
                report: Some(Arc::new(report)),
                is_counted: true,
                ..hold.to_release(until)
            });
        }
        found
    }

    /// Ends all leases of a client that is closed, and returns them. Accepts no more. The channels
    /// of all come first, since to announce each loss takes time.
    pub(crate) fn lose_all(&self) -> Vec<Arc<HeldLease>> {
        let held = self.timer.drain();
        for hold in &held {
            hold.lose(Lost::ShutDown, Instant::now());
        }
        held
    }

    /// Announces a loss to waiters and callbacks, once. The guard's channel announced it earlier,
    /// when the loss was detected.
    pub(crate) fn announce_loss(&self, hold: &Arc<HeldLease>) {
        let Some((lost, on_lost)) = hold.take_unannounced_loss() else {
            return;
        };
        self.meters.lost(lost);
        self.timer.forget(hold);
        self.waiters.ended(hold, None);
        if hold.keys.outlives_its_loss() && matches!(lost, Lost::Deleted | Lost::Taken) {
            // The remaining names protect nothing alone: release them.
            self.release(hold.to_lasting_release(Instant::now()));
        }
        if let Some(on_lost) = on_lost {
            self.callbacks.run(Box::new(move || on_lost(&lost)));
        }
        logging::warn!(
            name:% = hold.keys, holder:% = hold.id.short(), token = hold.token().value(),
            outcome:% = lost, ttl_ms = hold.ttl_ms(), trace_id = hold.trace_id().as_deref();
            "lost {}: {lost} (holder {}, token {})", hold.keys, hold.id.short(), hold.token()
        );
    }

    /// Checks leases and repeats recent releases of keys that moved to other servers: the last
    /// writes of the old servers may be missing there.
    fn follow(&self, is_moved: impl Fn(Key<'_>) -> bool) {
        let is_moved = |keys: &Keys| (0..keys.names.len()).any(|n| is_moved(keys.key(n)));
        for hold in self.timer.all() {
            if is_moved(&hold.keys) {
                self.suspect(&hold);
            }
        }
        let released = self.released.lock().take(is_moved);
        for release in released {
            self.release(release);
        }
    }

    /// Handles the move of the master that the sentinels watch.
    pub(in crate::runtime) fn master_moved(&self) {
        if !self.is_closed() {
            self.follow(|_| true);
        }
    }

    /// Asks Redis at once whether a lease is still held.
    pub(in crate::runtime) fn suspect(&self, hold: &Arc<HeldLease>) {
        hold.lease(|lease| lease.suspect(Instant::now()));
        self.reschedule(hold);
    }

    /// Handles the move of cluster slots to other nodes.
    fn slots_moved(&self, moved: &Moved) {
        if self.is_closed() {
            return;
        }
        self.follow(|key| moved.has(key));
        // Waiters for these names receive no more messages from the old node, and may have missed a
        // release.
        for name in self.waiters.waiting() {
            if moved.has(self.keys(name.clone()).key(0)) {
                self.waiters.wake_to_retry(&name);
            }
        }
        self.endpoints.sweep();
        logging::debug!(server = self.deployment.label(); "slots of the cluster have moved");
    }

    /// Schedules what is due next for a lease, or announces its loss.
    pub(crate) fn reschedule(&self, hold: &Arc<HeldLease>) {
        let now = Instant::now();
        // Records the loss of a lease that has expired.
        hold.status(now);
        if !self.timer.schedule(hold, now) {
            self.announce_loss(hold);
        }
    }
}
