//! The subscriber thread: hears releases on one connection and wakes the waiters they are for.

pub(crate) mod pubsub;
pub(crate) mod subscription;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::clock::{Instant, LONGEST_SLEEP};
use crate::error::{Cause, Error};
use crate::logging;
use crate::name::Name;
use crate::protocol::expected::Expected;
use crate::protocol::kind::Key;
use crate::random;
use crate::redis::{Cap, Fault, Server, ServerHealth};
use crate::runtime::Runtime;
use crate::runtime::endpoint::Endpoint;
use crate::runtime::worker::Worker;
use crate::wait_policy::RECONNECT;

use crate::runtime::subscriber::pubsub::{POLL_EVERY, PubSub};
use crate::runtime::subscriber::subscription::Live;
pub(crate) use crate::runtime::subscriber::subscription::{Part, Subscription};

/// What was published to the control channel must be heard within this.
const HEARD_WITHIN: Duration = Duration::from_secs(1);

/// How long a subscription that nobody uses is kept for the next waiter.
const LINGER: Duration = Duration::from_secs(10);

/// With more than this many lingering, all of them go at the next look around.
const MOST_LINGERING: usize = 1024;

const PROBE: &[u8] = b"probe";

pub(crate) struct Subscriber {
    /// The channel that wakes the thread: nothing else interrupts a read.
    control: Vec<u8>,
    state: Mutex<State>,
    /// Publishing is refused: then nobody of this user's can announce a release, and waiters look
    /// again by themselves.
    mute: AtomicBool,
    /// Rung at the end, for a thread that pauses between two attempts to connect.
    ending: Condvar,
    /// How hearing goes.
    pub(crate) condition: ServerHealth,
    worker: Worker,
}

#[derive(Default)]
struct State {
    channels: HashMap<Vec<u8>, Channel>,
    /// Wanted, and not yet asked for on this connection.
    queue: Vec<Vec<u8>>,
    up: bool,
    /// When the first probe was published that has not been heard since.
    unheard: Option<Instant>,
    stopping: bool,
}

#[derive(Debug)]
struct Channel {
    name: Name,
    live: Arc<Live>,
    users: usize,
    /// Since when nobody has used it.
    idle: Option<Instant>,
    /// It was heard on, on this connection or one before.
    was_live: bool,
}

impl Default for Subscriber {
    fn default() -> Self {
        Self {
            control: format!("leasehold:{}", random::uuid()).into_bytes(),
            state: Mutex::default(),
            mute: AtomicBool::new(false),
            ending: Condvar::new(),
            condition: ServerHealth::new(0),
            worker: Worker::new("leasehold-subscriber"),
        }
    }
}

impl Endpoint {
    /// Wants to hear the releases of a name. Once they are heard, the name's first waiter is told to
    /// look: a release between its last look and then was not heard.
    pub(crate) fn subscribe<'a>(
        self: Arc<Self>,
        runtime: &Arc<Runtime>,
        key: Key<'a>,
        until: Instant,
    ) -> Result<Part<'a>, Error> {
        let this = &self.subscriber;
        if !this.worker.is_started() {
            let (runtime, endpoint) = (Arc::clone(runtime), Arc::clone(&self));
            this.worker.start(move || run(&runtime, &endpoint))?;
        }
        let mut state = this.state.lock();
        let known = state.channels.get_mut(key.channel).map(|channel| {
            channel.users += 1;
            channel.idle = None;
            Arc::clone(&channel.live)
        });
        let is_new = known.is_none();
        let live = known.unwrap_or_else(|| {
            let channel = Channel {
                name: key.name.clone(),
                live: Arc::default(),
                users: 1,
                idle: None,
                was_live: false,
            };
            let live = Arc::clone(&channel.live);
            state.channels.insert(key.channel.to_vec(), channel);
            live
        });
        if is_new {
            state.queue.push(key.channel.to_vec());
        }
        let wake = is_new && state.up;
        drop(state);
        if wake && self.server.member.is_some() {
            // One of several may hang, and the others be enough.
            self.io.wake();
        } else if wake {
            this.wake(&self.server, b"subscribe", until);
        }
        self.io.probe();
        Ok(Part {
            endpoint: self,
            key,
            live,
        })
    }
}

impl Subscriber {
    /// Where grants are told, too.
    pub(crate) fn inbox(&self) -> &[u8] {
        &self.control
    }

    /// Whether anybody waits to hear a release.
    pub(crate) fn is_used(&self) -> bool {
        let state = self.state.lock();
        state.channels.values().any(|channel| channel.users > 0)
    }

    /// One of the names whose releases somebody waits to hear.
    pub(crate) fn waited(&self) -> Option<Name> {
        let state = self.state.lock();
        let waited = state.channels.values().find(|channel| channel.users > 0);
        waited.map(|channel| channel.name.clone())
    }

    /// Whether releases on `channel` are heard.
    pub(crate) fn hears(&self, channel: &[u8]) -> bool {
        let state = self.state.lock();
        let heard = state.channels.get(channel);
        heard.is_some_and(|heard| heard.live.is_on())
    }

    /// Interrupts the thread's read. Where that fails it looks around soon by itself.
    fn wake(&self, server: &Server, why: &[u8], until: Instant) -> bool {
        let args: [&[u8]; 2] = [&self.control, why];
        let read = |reply| Some(reply).filter(|reply| Expected::Count.fits(reply));
        let published = server.command("PUBLISH", &args, until, Cap::Exempt, read);
        match &published {
            Ok(_) => self.mute.store(false, Ordering::SeqCst),
            Err(Fault::Rejected(error)) if !self.mute.swap(true, Ordering::SeqCst) => {
                logging::warn!(
                    "releases cannot be announced, waiters look again by themselves: {error}"
                );
            }
            Err(fault) => logging::debug!("the subscriber could not be woken: {fault}"),
        }
        published.is_ok()
    }

    /// As a waiter does to have its subscription made.
    pub(crate) fn wake_now(&self, server: &Server) {
        let until = Instant::now().after(server.command_timeout());
        self.wake(server, b"subscribe", until);
    }

    /// Publishes what the thread must hear within a second, if its connection is alive and leads to
    /// the server that takes the locks.
    pub(crate) fn probe(&self, server: &Server) {
        let sent = Instant::now();
        let mut state = self.state.lock();
        if !state.up {
            return;
        }
        // Before it is sent: it may be heard before the answer to the sending is.
        state.unheard.get_or_insert(sent);
        drop(state);
        if !self.wake(server, PROBE, sent.after(server.command_timeout())) {
            let mut state = self.state.lock();
            state.unheard = state.unheard.filter(|first| *first != sent);
        }
    }

    pub(crate) fn stop(&self, server: &Server, until: Instant) {
        let mut state = self.state.lock();
        state.stopping = true;
        let up = state.up;
        drop(state);
        self.ending.notify_all();
        if up {
            self.wake(server, b"stop", until);
        }
    }

    pub(crate) fn join(&self, until: Instant) -> bool {
        self.worker.join(until)
    }

    pub(crate) fn is_through(&self) -> bool {
        self.worker.is_through()
    }

    fn is_stopping(&self) -> bool {
        self.state.lock().stopping
    }

    /// Sleeps for `pause`, or until the end.
    fn pause(&self, pause: Duration) {
        let mut state = self.state.lock();
        if !state.stopping {
            self.ending.wait_for(&mut state, pause.min(LONGEST_SLEEP));
        }
    }
}

fn run(runtime: &Runtime, endpoint: &Endpoint) {
    let mut failures = 0;
    while !endpoint.subscriber.is_stopping() && !endpoint.server.is_retired() {
        match listen(runtime, endpoint, &mut failures) {
            Ok(()) => return,
            Err(why) => {
                let mut state = endpoint.subscriber.state.lock();
                state.up = false;
                for channel in state.channels.values() {
                    channel.live.set(None);
                }
                drop(state);
                if endpoint.server.is_retired() {
                    return;
                }
                endpoint
                    .subscriber
                    .condition
                    .failed(Some(&Cause::text(why.clone())), false);
                runtime.deployment.doubt();
                // One warning for an outage, however long it lasts.
                logging::record!(
                    if failures == 0 { log::Level::Warn } else { log::Level::Debug },
                    server = endpoint.server.label();
                    "releases are not heard, waiters look again by themselves; reconnecting: {why}"
                );
            }
        }
        // The first failure after a good connection is tried again at once.
        if failures > 0 {
            endpoint.subscriber.pause(RECONNECT.pause(failures - 1));
        }
        failures += 1;
    }
}

/// Connects, subscribes to all that is wanted, and hears until the connection fails or the end.
fn listen(runtime: &Runtime, endpoint: &Endpoint, failures: &mut u32) -> Result<(), String> {
    let this = &endpoint.subscriber;
    let timeout = endpoint.server.command_timeout();
    let connection = endpoint
        .server
        .connection(Instant::now().after(timeout))
        .map_err(|fault: Fault| fault.to_string())?;
    let mut line = PubSub::new(runtime, endpoint, connection);
    let wanted: Vec<Vec<u8>> = {
        let mut state = this.state.lock();
        state.queue.clear();
        state.channels.retain(|_, channel| channel.users > 0);
        state.channels.keys().cloned().collect()
    };
    // Where the control channel is refused nothing wakes the thread, and no probe is heard.
    let up = line.subscribe(std::slice::from_ref(&this.control))?;
    {
        let mut state = this.state.lock();
        state.up = up;
        state.unheard = None;
    }
    line.subscribe(&wanted)?;
    *failures = 0;
    let mut tidied = Instant::now();
    this.condition.answered(Instant::now());
    logging::debug!(server = endpoint.server.label(); "hearing releases");
    loop {
        let now = Instant::now();
        let mut state = this.state.lock();
        if state.stopping {
            return Ok(());
        }
        if state
            .unheard
            .is_some_and(|sent| sent.until(now) > HEARD_WITHIN)
        {
            return Err("the probe was not heard".into());
        }
        if !line.is_current() {
            return Err("the master has moved".into());
        }
        // What was queued before this connection was up woke nobody.
        let wanted = std::mem::take(&mut state.queue);
        let unused = if tidied.until(now) >= POLL_EVERY {
            tidied = now;
            take_unused(&mut state, now)
        } else {
            Vec::new()
        };
        drop(state);
        line.unsubscribe(&unused)?;
        line.subscribe(&wanted)?;
        line.hear()?;
    }
}

/// Takes out the channels that nobody has used for long.
fn take_unused(state: &mut State, now: Instant) -> Vec<Vec<u8>> {
    let idle = state
        .channels
        .values()
        .filter(|channel| channel.users == 0)
        .count();
    let linger = if idle > MOST_LINGERING {
        Duration::ZERO
    } else {
        LINGER
    };
    let unused = state.channels.extract_if(|_, channel| {
        let over =
            channel.users == 0 && channel.idle.is_some_and(|since| since.until(now) >= linger);
        if over {
            channel.live.set(None);
        }
        over
    });
    unused.map(|(channel, _)| channel).collect()
}
