//! The state that the client's threads share with each other and with callers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crossbeam_channel::{Receiver, unbounded};
use parking_lot::Mutex;

use crate::clock::Instant;
use crate::config::Config;
use crate::error::Error;
use crate::lease::held::HeldLease;
use crate::lease::state::{Due, RenewalRequest};
use crate::lease::undo::{ReleaseReport, Released, Undo};
use crate::logging;
use crate::lost::Lost;
use crate::name::Name;
use crate::protocol::kind::{Key, KeyState, Keys};
use crate::queue::local::Waiters;
use crate::redis::cluster::slot_map::Moved;
use crate::redis::{Deployment, Majority};
use crate::runtime::callbacks::Callbacks;
use crate::runtime::endpoint::{Endpoint, Endpoints};
use crate::runtime::io::renewal_round::{RenewalPart, RenewalRound};
use crate::runtime::io::shared_stats::SharedStats;
use crate::runtime::sentinel_watch::SentinelWatch;
use crate::runtime::subscriber::subscription::{Part, Subscription};
use crate::runtime::timer::Timer;
use crate::runtime::worker::contain;
use crate::stats::{Meters, Wake};

/// What the threads work on. Nothing here keeps the client alive: the last client, lock or guard to
/// go stops the threads, and with them this goes.
pub(crate) struct Runtime {
    pub(crate) config: Config,
    pub(crate) deployment: Deployment,
    pub(crate) waiters: Waiters,
    pub(crate) meters: Meters,
    pub(crate) tally: SharedStats,
    pub(crate) timer: Timer,
    pub(crate) endpoints: Endpoints,
    pub(crate) switches: SentinelWatch,
    pub(crate) callbacks: Callbacks,
    /// What was released lately; only kept where the master may be replaced.
    pub(crate) released: Mutex<Released>,
    closed: AtomicBool,
    serial: AtomicU64,
    /// For threads that are started from others of ours.
    me: Weak<Self>,
    bodies: ThreadBodies,
}

/// What the threads run that use the whole runtime. The runtime starts these threads, so it gets
/// their code as values: an import would be a cycle.
pub(in crate::runtime) struct ThreadBodies {
    pub(in crate::runtime) io: fn(&Runtime, &Endpoint),
    pub(in crate::runtime) acknowledged: fn(&Runtime, &Endpoint, &Receiver<Option<RenewalPart>>),
    pub(in crate::runtime) subscriber: fn(&Runtime, &Endpoint),
}

impl Runtime {
    pub(in crate::runtime) fn new(
        config: Config,
        deployment: Deployment,
        bodies: ThreadBodies,
    ) -> Arc<Self> {
        let switches = SentinelWatch::new(
            deployment
                .sentinels()
                .map_or(0, |sentinels| sentinels.len()),
        );
        let tally = SharedStats::new(&config);
        let runtime = Arc::new_cyclic(|me| Self {
            tally,
            config,
            deployment,
            waiters: Waiters::default(),
            meters: Meters::default(),
            timer: Timer::default(),
            endpoints: Endpoints::default(),
            switches,
            callbacks: Callbacks::default(),
            released: Mutex::default(),
            closed: AtomicBool::new(false),
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

    pub(crate) fn keys_of_all(&self, names: Vec<Name>) -> Keys {
        let keys = Keys::all(names, &self.config.key_prefix, &self.config.channel_prefix);
        match self.deployment.slot_map() {
            None => keys,
            Some(_) => keys.by_slot(),
        }
    }

    /// Errors once the client is shut down.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if self.is_closed() {
            Err(Error::Closed)
        } else {
            Ok(())
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Refuses new work from now on; true for the first call.
    pub(crate) fn close(&self) -> bool {
        !self.closed.swap(true, Ordering::SeqCst)
    }

    pub(crate) fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed)
    }

    /// Starts the threads that every lease needs. Before the first lease is asked for: then a
    /// machine that gives no more threads costs an error, not a lease without renewal.
    pub(crate) fn start(self: &Arc<Self>) -> Result<(), Error> {
        self.timer.start(|| {
            let me = Arc::clone(self);
            move || me.run_timer()
        })?;
        for server in self.deployment.fixed() {
            self.start_io(&self.endpoints.of(server))?;
        }
        self.switches.start(|n| {
            let me = Arc::clone(self);
            move || {
                let follow = || me.follow(|_| true);
                me.switches
                    .run(n, &me.deployment, me.config.connect_timeout, follow);
            }
        })
    }

    fn start_io(self: &Arc<Self>, endpoint: &Arc<Endpoint>) -> Result<(), Error> {
        endpoint.io.start(|| {
            let (me, endpoint) = (Arc::clone(self), Arc::clone(endpoint));
            move || (me.bodies.io)(&me, &endpoint)
        })
    }

    fn run_timer(&self) {
        while let Some(due) = self.timer.next_due() {
            let now = Instant::now();
            let mut asks: Vec<(Arc<HeldLease>, RenewalRequest)> = Vec::new();
            for hold in due {
                contain(|| {
                    if let Some(ask) = hold.lease(|lease| lease.ask_if_due(now)) {
                        asks.push((Arc::clone(&hold), ask));
                    }
                    self.reschedule(&hold);
                    drop(hold);
                });
            }
            if !asks.is_empty() {
                self.renew(asks);
            }
        }
    }

    /// Whether `site` keeps a name now, as far as is known.
    pub(crate) fn owns(&self, endpoint: &Endpoint, key: Key<'_>) -> bool {
        self.deployment.owns(&endpoint.server, key)
    }

    /// The sites that keep a name now, as far as is known, and how many of them a majority takes.
    pub(in crate::runtime) fn endpoints_of(&self, key: Key<'_>) -> (Vec<Arc<Endpoint>>, Majority) {
        let (deployment, size) = self.deployment.owners_of(key);
        let me = self.me.upgrade();
        let endpoint = |server| {
            let endpoint = self.endpoints.of(server);
            if let Some(me) = &me
                && let Err(error) = me.start_io(&endpoint)
            {
                // A lease that is not renewed for that is lost by its own clock, and its holder told.
                logging::error!("nothing is renewed or undone: {error}");
            }
            endpoint
        };
        (deployment.iter().map(endpoint).collect(), size)
    }

    /// Wants to hear the releases of a name.
    pub(crate) fn subscribe<'a>(
        self: &Arc<Self>,
        key: Key<'a>,
        until: Instant,
    ) -> Result<Subscription<'a>, Error> {
        let (endpoints, size) = self.endpoints_of(key);
        let part = |endpoint: Arc<Endpoint>| {
            endpoint.subscriber.start(|| {
                let (me, endpoint) = (Arc::clone(self), Arc::clone(&endpoint));
                move || (me.bodies.subscriber)(&me, &endpoint)
            })?;
            Ok(Part::subscribe(endpoint, key, until))
        };
        let parts: Result<_, Error> = endpoints.into_iter().map(part).collect();
        Ok(Subscription::of(parts?, size))
    }

    /// Where grants of a name are told to this client.
    pub(crate) fn inbox(&self, key: Key<'_>) -> Vec<u8> {
        let endpoint = self.endpoints.known(&self.deployment.primary_owner_of(key));
        endpoint.map_or_else(Vec::new, |endpoint| endpoint.subscriber.inbox().to_vec())
    }

    /// Asks for the renewals that are due.
    fn renew(&self, asks: Vec<(Arc<HeldLease>, RenewalRequest)>) {
        let mut batches: Vec<(Arc<Endpoint>, Vec<_>)> = Vec::new();
        for (hold, ask) in asks {
            let keys = Arc::clone(&hold.keys);
            let ballot = Arc::new(RenewalRound::new(hold, ask, self.size_of(&keys)));
            for part in keys.parts() {
                for owner_of in self.endpoints_of(part.key(0)).0 {
                    let paper = RenewalPart::new(&ballot, part);
                    match batches
                        .iter_mut()
                        .find(|(endpoint, _)| Arc::ptr_eq(endpoint, &owner_of))
                    {
                        Some((_, batch)) => batch.push(paper),
                        None => batches.push((owner_of, vec![paper])),
                    }
                }
            }
        }
        for (endpoint, batch) in batches {
            self.renew_at(&endpoint, batch);
        }
    }

    /// Asks for renewals: those that replicas must acknowledge on threads of their own.
    pub(in crate::runtime) fn renew_at(&self, endpoint: &Arc<Endpoint>, papers: Vec<RenewalPart>) {
        let mut plain = Vec::new();
        for paper in papers {
            match (paper.ballot.hold.replicas, self.me.upgrade()) {
                (Some(replicas), Some(me)) => {
                    let it = Arc::clone(endpoint);
                    let body =
                        move |papers: &Receiver<_>| (me.bodies.acknowledged)(&me, &it, papers);
                    if let Err((paper, error)) = endpoint.acknowledged.renew(replicas, paper, body)
                    {
                        plain.push(paper);
                        if let Some(error) = error {
                            logging::error!(
                                server = endpoint.server.label();
                                "renewals that wait for replicas delay others: {error}"
                            );
                        }
                    }
                }
                _ => plain.push(paper),
            }
        }
        if !plain.is_empty() {
            endpoint.io.renew(plain);
        }
    }

    /// Somebody waits until the keepers of these names are asked again.
    pub(crate) fn watch(&self, keys: &Arc<Keys>) {
        for part in keys.parts() {
            for owner_of in self.endpoints_of(part.key(0)).0 {
                owner_of.io.watch();
            }
        }
    }

    /// How many answers there are about these keys, and how many of them it takes: a majority of the
    /// servers, or one for each part.
    fn size_of(&self, keys: &Arc<Keys>) -> Majority {
        match keys.parts().len() {
            1 => self.deployment.size(),
            parts => Majority::each(parts),
        }
    }

    /// Repeats a release until it is sure.
    pub(crate) fn undo(&self, undo: Undo) {
        for part in undo.keys.parts() {
            let (endpoints_of, _) = self.endpoints_of(part.key(0));
            for owner_of in endpoints_of {
                self.endpoints.note_undo(&undo.id);
                let part = undo.part(part);
                owner_of.io.undo(match &owner_of.server.member {
                    Some(member) => part.at_server(member.index),
                    None => part,
                });
            }
        }
    }

    /// Releases all `holds` until `until`. The receiver gets what was found for each that was
    /// answered, and is disconnected at the end.
    pub(crate) fn release(&self, holds: Vec<Arc<HeldLease>>, until: Instant) -> Receiver<KeyState> {
        let (told, found) = unbounded();
        for hold in holds {
            let keys = Arc::clone(&hold.keys);
            let told = Arc::new(ReleaseReport::new(self.size_of(&keys), told.clone()));
            let undo = Undo::told(keys, hold.id.clone(), until, told);
            self.undo(undo.with_receipt(hold.votes.clone()));
        }
        found
    }

    /// Tells a loss to the waiters and the callbacks, once. Those who listen on the guard's channel
    /// were told when it was noticed.
    pub(crate) fn announce_loss(&self, hold: &Arc<HeldLease>) {
        let Some((lost, on_lost)) = hold.take_unannounced_loss() else {
            return;
        };
        self.meters.lost(lost);
        self.timer.forget(hold);
        self.waiters.ended(hold, false);
        if hold.keys.names.len() > 1 && matches!(lost, Lost::Deleted | Lost::Taken) {
            // The others are of no more use to anybody.
            let until = Instant::now().after(hold.lease(|lease| lease.key_may_last()));
            let (keys, id) = (Arc::clone(&hold.keys), hold.id.clone());
            let undo = Undo::of_release(keys, id, until);
            self.undo(undo.with_receipt(hold.votes.clone()));
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

    /// Other servers keep these names now: what those before did last may not have come to them.
    fn follow(&self, is_moved: impl Fn(Key<'_>) -> bool) {
        let is_moved = |keys: &Keys| (0..keys.names.len()).any(|n| is_moved(keys.key(n)));
        for hold in self.timer.all() {
            if is_moved(&hold.keys) {
                hold.lease(|lease| lease.suspect(Instant::now()));
                self.reschedule(&hold);
            }
        }
        let released = self.released.lock().take(is_moved);
        for undo in released {
            self.undo(undo);
        }
    }

    /// Other nodes of the cluster keep these slots now.
    fn slots_moved(&self, moved: &Moved) {
        if self.is_closed() {
            return;
        }
        self.follow(|key| moved.has(key));
        // Those who wait hear of no release any more, and may have missed one.
        for name in self.waiters.waiting() {
            if moved.has(self.keys(name.clone()).key(0)) {
                self.waiters.wake_to_retry(&name, Wake::Reconnect);
            }
        }
        self.endpoints.sweep();
        logging::debug!(server = self.deployment.label(); "slots of the cluster have moved");
    }

    /// Looks after a lease from now on: sets the timer to what is due next, or tells its loss.
    pub(crate) fn reschedule(&self, hold: &Arc<HeldLease>) {
        let now = Instant::now();
        hold.status(now);
        match hold.lease(|lease| lease.due(now)) {
            Due::At(at) => self.timer.watch(hold, at, at),
            Due::Between(at, by) => self.timer.watch(hold, at, by),
            Due::RenewalRequest => self.timer.watch(hold, now, now),
            Due::Nothing => self.announce_loss(hold),
        }
    }
}
