//! The state that the client's threads share with each other and with callers.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread;

use crossbeam_channel::{Receiver, unbounded};

use crate::clock::Instant;
use crate::config::Config;
use crate::error::Error;
use crate::holder_id::HolderId;
use crate::lease::held::HeldLease;
use crate::lease::release::{RecentReleases, Release, ReleaseReport, Unconfirmed};
use crate::lease::status::RenewalRequest;
use crate::logging::{self, contain};
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
use crate::runtime::io::IoRequest;
use crate::runtime::io::renewal_round::{RenewalPart, RenewalRound};
use crate::runtime::io::shared_stats::SharedStats;
use crate::runtime::sentinel_watch::SentinelWatch;
use crate::runtime::subscriber::Inbox;
use crate::runtime::subscriber::subscription::{Part, Subscription};
use crate::runtime::timer::Timer;
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
    pub(crate) endpoints: Endpoints,
    pub(crate) sentinel_watch: SentinelWatch,
    pub(crate) callbacks: Callbacks,
    /// The threads that run calls that can be cancelled.
    pub(crate) calls: ThreadGroup,
    /// Recent releases, to be repeated at a new master, which may not have them. Kept only if the
    /// master can change.
    pub(crate) released: Mutex<RecentReleases>,
    closed: AtomicBool,
    /// How many threads queue a release for the io threads. [`STOPPED`] is added once no release
    /// can be queued any more.
    queueing: AtomicUsize,
    unconfirmed: Unconfirmed,
    serial: AtomicU64,
    /// For methods without `&Arc<Self>` that start threads.
    me: Weak<Self>,
    bodies: ThreadBodies,
}

/// A bit of `Runtime::queueing`, which no number of threads reaches.
const STOPPED: usize = 1 << (usize::BITS - 1);

/// A release that is being queued, so that it precedes `Stop`.
struct Queueing<'a>(&'a AtomicUsize);

impl<'a> Queueing<'a> {
    /// Returns `None` if no release can be queued any more.
    fn begin(queueing: &'a AtomicUsize) -> Option<Self> {
        let before = queueing.fetch_add(1, Ordering::SeqCst);
        let begun = Self(queueing);
        (before & STOPPED == 0).then_some(begun)
    }
}

impl Drop for Queueing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The functions of the threads that use the whole runtime. The runtime starts these threads, but
/// cannot import their modules, because those import the runtime.
pub(in crate::runtime) struct ThreadBodies {
    pub(in crate::runtime) io: fn(&Runtime, &Endpoint),
    /// Sends the renewals that replicas must acknowledge.
    pub(in crate::runtime) acknowledged: fn(&Runtime, &Endpoint, &Receiver<RenewalPart>),
    pub(in crate::runtime) subscriber: fn(&Runtime, &Endpoint),
}

impl Runtime {
    pub(in crate::runtime) fn new(
        config: Config,
        deployment: Deployment,
        bodies: ThreadBodies,
    ) -> Arc<Self> {
        let sentinels = deployment.sentinels();
        let sentinel_watch = SentinelWatch::new(sentinels.map_or(0, |sentinels| sentinels.len()));
        let shared_stats = SharedStats::new(&config);
        let runtime = Arc::new_cyclic(|me| Self {
            process: Process::current(),
            shared_stats,
            config,
            deployment,
            waiters: Waiters::default(),
            meters: Meters::default(),
            timer: Timer::default(),
            endpoints: Endpoints::default(),
            sentinel_watch,
            callbacks: Callbacks::default(),
            calls: ThreadGroup::new(CALL),
            released: Mutex::default(),
            closed: AtomicBool::new(false),
            queueing: AtomicUsize::new(0),
            unconfirmed: Unconfirmed::default(),
            serial: AtomicU64::new(0),
            me: Weak::clone(me),
            bodies,
        });
        if let Some(slots) = runtime.deployment.slot_map() {
            let me = Weak::clone(&runtime.me);
            slots.follow_with(Box::new(move |moved| {
                if let Some(runtime) = me.upgrade() {
                    runtime.slots_moved(moved);
                }
            }));
        }
        runtime
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

    /// Stops queueing releases for the io threads, which are about to end. Waits for those that
    /// other threads are queueing.
    pub(crate) fn stop_queueing(&self) {
        self.queueing.fetch_or(STOPPED, Ordering::SeqCst);
        while self.queueing.load(Ordering::SeqCst) != STOPPED {
            // No I/O: it takes some microseconds.
            thread::yield_now();
        }
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
        self.timer.worker.start(|| {
            let me = Arc::clone(self);
            move || me.run_timer()
        })?;
        for server in self.deployment.fixed() {
            self.start_io(&self.endpoints.of(server))?;
        }
        self.sentinel_watch.start(|n| {
            let me = Arc::clone(self);
            move || {
                let follow = || me.follow(|_| true);
                me.sentinel_watch
                    .run(n, &me.deployment, me.config.connect_timeout, follow);
            }
        })
    }

    fn start_io(self: &Arc<Self>, endpoint: &Arc<Endpoint>) -> Result<(), Error> {
        endpoint.io.worker.start(|| {
            let (me, endpoint) = (Arc::clone(self), Arc::clone(endpoint));
            move || (me.bodies.io)(&me, &endpoint)
        })
    }

    fn run_timer(&self) {
        while let Some(due) = self.timer.next_due() {
            let now = Instant::now();
            let mut due_renewals: Vec<(Arc<HeldLease>, RenewalRequest)> = Vec::new();
            for hold in due {
                contain(|| {
                    if let Some(request) = hold.lease(|lease| lease.begin_due_renewal(now)) {
                        due_renewals.push((Arc::clone(&hold), request));
                    }
                    self.reschedule(&hold);
                    // The last reference may own a user's closure, whose drop may panic.
                    drop(hold);
                });
            }
            if !due_renewals.is_empty() {
                self.renew(due_renewals);
            }
        }
    }

    /// Returns the endpoints that own a key now, as far as is known, and how many of them decide.
    /// Starts their io threads.
    pub(in crate::runtime) fn endpoints_of(&self, key: Key<'_>) -> (Vec<Arc<Endpoint>>, Majority) {
        let (deployment, size) = self.deployment.owners_of(key);
        let me = self.me.upgrade();
        let endpoint = |server| {
            let endpoint = self.endpoints.of(server);
            if let Some(me) = &me
                && let Err(error) = me.start_io(&endpoint)
            {
                // A lease that is not renewed expires by this machine's clock, and its holder sees
                // that.
                logging::error!("cannot renew or undo leases: {error}");
            }
            endpoint
        };
        (deployment.iter().map(endpoint).collect(), size)
    }

    /// Subscribes to the releases of a name.
    pub(crate) fn subscribe<'a>(
        self: &Arc<Self>,
        key: Key<'a>,
        until: Instant,
    ) -> Result<Subscription<'a>, Error> {
        let (endpoints, size) = self.endpoints_of(key);
        let part = |endpoint: Arc<Endpoint>| {
            endpoint.subscriber.worker.start(|| {
                let (me, endpoint) = (Arc::clone(self), Arc::clone(&endpoint));
                move || (me.bodies.subscriber)(&me, &endpoint)
            })?;
            Ok(Part::subscribe(endpoint, key, until))
        };
        let parts: Result<_, Error> = endpoints.into_iter().map(part).collect();
        Ok(Subscription::of(parts?, size))
    }

    /// Returns how this client receives grants of a name.
    pub(crate) fn inbox(&self, key: Key<'_>) -> Inbox {
        let endpoint = self.endpoints.known(&self.deployment.primary_owner_of(key));
        endpoint.map_or_else(Inbox::default, |endpoint| endpoint.subscriber.inbox())
    }

    /// Queues the renewals that are due, in one batch for each server.
    fn renew(&self, due: Vec<(Arc<HeldLease>, RenewalRequest)>) {
        let mut batches: Vec<(Arc<Endpoint>, Vec<_>)> = Vec::new();
        for (hold, request) in due {
            let keys = Arc::clone(hold.renewed_keys());
            let round = Arc::new(RenewalRound::new(hold, request, self.size_of(&keys)));
            for keys in keys.parts() {
                for owner in self.endpoints_of(keys.key(0)).0 {
                    let part = RenewalPart::new(&round, keys);
                    match batches
                        .iter_mut()
                        .find(|(endpoint, _)| Arc::ptr_eq(endpoint, &owner))
                    {
                        Some((_, batch)) => batch.push(part),
                        None => batches.push((owner, vec![part])),
                    }
                }
            }
        }
        for (endpoint, batch) in batches {
            self.renew_at(&endpoint, batch);
        }
    }

    /// Queues renewals at one server. Those that replicas must acknowledge get separate threads.
    pub(in crate::runtime) fn renew_at(&self, endpoint: &Arc<Endpoint>, parts: Vec<RenewalPart>) {
        let mut plain = Vec::new();
        for part in parts {
            match (part.round.hold.replicas, self.me.upgrade()) {
                (Some(replicas), Some(me)) => {
                    let owner = Arc::clone(endpoint);
                    let body =
                        move |parts: &Receiver<_>| (me.bodies.acknowledged)(&me, &owner, parts);
                    if let Err((part, error)) = endpoint.acknowledged.renew(replicas, part, body) {
                        plain.push(part);
                        if let Some(error) = error {
                            logging::error!(
                                server = endpoint.server.label();
                                "renewals that wait for replicas delay other renewals: {error}"
                            );
                        }
                    }
                }
                _ => plain.push(part),
            }
        }
        if plain.is_empty() {
            return;
        }
        if let Err(request) = endpoint.io.send(IoRequest::Renew(plain))
            && let IoRequest::Renew(parts) = *request
        {
            // The server was replaced, and its io thread has ended: this thread was paused for
            // seconds after it had looked up the owner.
            for part in parts {
                let keys = Arc::clone(&part.keys);
                if let Some(owner) = self.other_owner(keys.key(0), endpoint) {
                    self.renew_at(&owner, vec![part]);
                }
            }
        }
    }

    /// Returns how many replies a call for these keys gets, and how many it needs: those of a
    /// majority of the servers, or one for each part.
    fn size_of(&self, keys: &Arc<dyn Primitive>) -> Majority {
        match keys.is_split() {
            true => Majority::each(keys.parts().len()),
            false => self.deployment.size(),
        }
    }

    /// Sends a release to all servers of its keys, and repeats it until its effect is certain.
    ///
    /// After [`stop_queueing`](Self::stop_queueing), sends it only once, on the calling thread. A
    /// release that was sent before is then not repeated.
    pub(crate) fn release(&self, mut release: Release) {
        // Recursive: a look-up of the owners below can find that slots have moved, and then repeats
        // releases.
        let Some(_queueing) = Queueing::begin(&self.queueing) else {
            if !release.was_sent {
                self.release_once(&release);
            } else if release.may_end_lease {
                self.note_unconfirmed(release.id, self.deployment.size().all);
            }
            return;
        };
        if release.may_precede_acquire {
            self.endpoints.note_unanswered(&mut release);
        }
        for part in release.keys.parts() {
            for owner in self.endpoints_of(part.key(0)).0 {
                self.endpoints.note_release(&release.id);
                let mut part = release.part(part);
                if let Some(member) = &owner.server.member {
                    part = part.at_server(member.index);
                }
                self.release_at(&owner, part);
            }
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

    /// Queues a release at one server.
    pub(in crate::runtime) fn release_at(&self, endpoint: &Endpoint, release: Release) {
        if let Err(request) = endpoint.io.send(IoRequest::Release(release))
            && let IoRequest::Release(release) = *request
        {
            // As in `renew_at`.
            if let Some(owner) = self.other_owner(release.keys.key(0), endpoint) {
                self.release_at(&owner, release);
                return;
            }
            if release.may_end_lease && !release.is_counted {
                self.note_unconfirmed(release.id.clone(), 1);
            }
            self.endpoints.forget_release(release);
        }
    }

    /// Returns the owner of a key whose job the io thread of `endpoint` did not take. Returns
    /// `None` if `endpoint` still owns the key: its thread has ended with the client.
    fn other_owner(&self, key: Key<'_>, endpoint: &Endpoint) -> Option<Arc<Endpoint>> {
        let (owners, _) = self.endpoints_of(key);
        let is_owner = owners.iter().any(|owner| std::ptr::eq(&**owner, endpoint));
        owners.into_iter().next().filter(|_| !is_owner)
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
