//! The state that the client's threads share with each other and with callers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::clock::{Instant, wall_at_start};
use crate::config::Config;
use crate::error::Error;
use crate::kernel::effects::Effects;
use crate::kernel::{Kernel, Limits};
use crate::logging;
use crate::name::Name;
use crate::process::Process;
use crate::protocol::answer::Answer;
use crate::protocol::keys::Keys;
use crate::protocol::primitive::Primitive;
use crate::quorum::messages::Messages;
use crate::redis::cluster::owners::Moved;
use crate::redis::{Deployment, Fault};
use crate::runtime::callbacks::Callbacks;
use crate::runtime::endpoint::{Endpoint, Endpoints};
use crate::runtime::engine::shared_stats::SharedStats;
use crate::runtime::engine::{Engine, engine_loop};
#[cfg(feature = "testing")]
use crate::runtime::live_clients;
use crate::runtime::subscriber::listen;
use crate::runtime::subscriber::subscription::Subscriptions;
use crate::runtime::wake::Wake;
use crate::stats::Meters;
use crate::sync::Mutex;

/// The longest pause of a call that waits without a queue in Redis.
const BACKSTOP: Duration = Duration::from_secs(1);

/// The shared state of one client. It does not keep the client alive: dropping the last client,
/// lock or guard stops the threads, and the last thread drops this state.
pub(crate) struct Runtime {
    /// The process that made the client.
    pub(crate) process: Process,
    pub(crate) config: Config,
    pub(crate) deployment: Deployment,
    pub(crate) kernel: Kernel,
    pub(crate) meters: Meters,
    pub(crate) shared_stats: SharedStats,
    pub(crate) engine: Engine,
    pub(crate) endpoints: Endpoints,
    pub(in crate::runtime) subscriptions: Subscriptions,
    /// Over a quorum: which servers send messages, and what they have announced.
    pub(in crate::runtime) messages: Mutex<Messages>,
    pub(crate) callbacks: Arc<Callbacks>,
    closed: AtomicBool,
    /// For methods without `&Arc<Self>` that start threads.
    me: Weak<Self>,
}

impl Runtime {
    /// Returns the runtime of a new client; no thread runs yet.
    ///
    /// # Errors
    ///
    /// [`Error::Shortage`] if the system has no file descriptor left.
    pub(crate) fn new(config: Config, deployment: Deployment) -> Result<Arc<Self>, Error> {
        let engine = Engine::new(Wake::new()?);
        let kernel = Kernel::new(limits(&config, &deployment), &config.owner);
        let (shared_stats, size) = (SharedStats::new(&config), deployment.size());
        let runtime = Arc::new_cyclic(|me| Self {
            process: Process::current(),
            shared_stats,
            config,
            deployment,
            kernel,
            meters: Meters::default(),
            engine,
            endpoints: Endpoints::default(),
            subscriptions: Subscriptions::default(),
            messages: Mutex::new(Messages::new(size)),
            callbacks: Arc::default(),
            closed: AtomicBool::new(false),
            me: Weak::clone(me),
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
        #[cfg(feature = "testing")]
        live_clients::add(&runtime);
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
        self.check_not_closed()
    }

    /// Returns [`Error::Closed`] once the client is shut down. For the process that made it.
    pub(crate) fn check_not_closed(&self) -> Result<(), Error> {
        if self.is_closed() {
            Err(Error::Closed)
        } else {
            Ok(())
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Refuses new work from now on, and ends all waiting calls and all leases. Returns to the
    /// first caller how many calls it has ended.
    pub(crate) fn close(&self) -> Option<usize> {
        self.close_by(|now, fx| self.kernel.close(now, fx))
    }

    pub(in crate::runtime) fn close_by(
        &self,
        close: impl FnOnce(Instant, &mut Effects),
    ) -> Option<usize> {
        if self.closed.swap(true, Ordering::SeqCst) {
            return None;
        }
        let woken = self.decide_here(|_, fx| {
            close(Instant::now(), fx);
            fx.closed
        });
        // A call without a connection has nothing to undo.
        self.deployment.end_connecting();
        self.engine.close();
        Some(woken)
    }

    /// Starts the threads that every lease needs. Called before the first lease is acquired: if the
    /// system has no threads left, the caller gets an error and not a lease without renewal.
    pub(crate) fn start(self: &Arc<Self>) -> Result<(), Error> {
        self.engine.worker.start(|| {
            for server in self.deployment.fixed() {
                self.endpoints.of(server);
            }
            let me = Arc::clone(self);
            move || {
                logging::defer_to(me.callbacks.later());
                engine_loop::run(&me);
            }
        })?;
        match self.deployment.sentinels() {
            Some(_) => self.start_subscriber(),
            None => Ok(()),
        }
    }

    /// Starts the thread that receives messages, unless it was started before.
    pub(in crate::runtime) fn start_subscriber(&self) -> Result<(), Error> {
        self.endpoints.subscriber_thread.start(|| {
            let me = Weak::clone(&self.me);
            move || {
                if let Some(me) = me.upgrade() {
                    logging::defer_to(me.callbacks.later());
                    listen::run(&me);
                }
            }
        })
    }

    /// Checks the leases, the places and the recent releases of locks that moved to other servers:
    /// the last writes of the old servers may be missing there.
    fn follow(&self, is_moved: &dyn Fn(&dyn Primitive) -> bool) {
        self.decide_here(|kernel, fx| kernel.moved(is_moved, Instant::now(), fx));
    }

    /// Handles the move of the master that the sentinels watch.
    pub(in crate::runtime) fn master_moved(&self) {
        if !self.is_closed() {
            self.follow(&|_| true);
        }
    }

    /// Handles the move of cluster slots to other nodes.
    fn slots_moved(&self, moved: &Moved) {
        if self.is_closed() {
            return;
        }
        let is_moved = |lock: &dyn Primitive| {
            let keys = lock.keys();
            (0..keys.names.len()).any(|n| moved.has(keys.key(n)))
        };
        // The old node sends no more messages for these names, and the stand-in for an unknown
        // owner never does.
        self.move_subscriptions(is_moved);
        if moved.has_any() {
            self.follow(&is_moved);
        }
        self.endpoints.sweep();
        logging::debug!(server = self.deployment.label(); "the map of the cluster's slots has changed");
    }

    /// Records what became of a probe of a subscription.
    pub(in crate::runtime) fn probed(
        &self,
        endpoint: &Endpoint,
        begun: Instant,
        end: Result<Answer, Fault>,
    ) {
        if let Some(is_mute) = endpoint.subscriber.probed(&endpoint.server, begun, end) {
            self.note_mute(endpoint, is_mute);
        }
    }
}

/// Returns what the kernel must know of the settings.
fn limits(config: &Config, deployment: &Deployment) -> Limits {
    Limits {
        command_timeout: deployment.command_timeout(),
        unreachable_for: config.unreachable_for,
        backstop: BACKSTOP,
        may_fail_over: deployment.may_fail_over(),
        replies_are_final: !deployment.may_fail_over() && !deployment.is_quorum(),
        // One thread counts the replies of all servers.
        engine_sends: deployment.is_quorum(),
        wall: wall_at_start().as_micros() as u64,
    }
}
