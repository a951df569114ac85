//! The channels of each server to which the client is subscribed, and the thread that receives
//! their messages.

mod link;
pub(crate) mod listen;
pub(crate) mod pubsub;
mod releases;
mod sentinels;
pub(crate) mod subscription;
pub(crate) mod thread;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::clock::Instant;
use crate::logging;
use crate::name::Name;
use crate::protocol::answer::Answer;
use crate::protocol::primitive::Primitive;
use crate::random;
use crate::redis::{Fault, Request, Server, ServerHealth};
use crate::runtime::subscriber::thread::SubscriberThread;
use crate::sync::Mutex;

/// The message of a probe, which the engine publishes on the client's inbox.
const PROBE: &[u8] = b"probe";

/// How long a probe may take to arrive: until the next one.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long an unused subscription is kept for the next waiter.
const LINGER: Duration = Duration::from_secs(10);

/// If more than this many subscriptions are unused, all of them are cancelled.
const MAX_LINGERING: usize = 1024;

/// After this many probes in a row that reached no subscriber at the server that grants, the thread
/// subscribes again.
const MAX_UNHEARD: u32 = 2;

/// How often that is tried. A proxy in front of several servers can lead the messages and the
/// subscription to different ones each time, and these pass the messages on.
const MOVE_EVERY: Duration = Duration::from_secs(30);

/// The subscriptions at one server.
pub(crate) struct Subscriber {
    /// The client's inbox: the channel on which it receives grants and probes.
    inbox: Vec<u8>,
    state: Mutex<SubscriberState>,
    /// The server refuses PUBLISH. No client of this Redis user can then announce a release, so
    /// waiters retry on a timer.
    mute: AtomicBool,
    /// The health of the connection.
    pub(crate) health: ServerHealth,
    /// The thread that receives the messages of all servers.
    thread: Arc<SubscriberThread>,
}

#[derive(Default)]
struct SubscriberState {
    channels: HashMap<Vec<u8>, Channel>,
    /// Channels for which no SUBSCRIBE was sent on this connection yet.
    queue: Vec<Vec<u8>>,
    /// How many channels have no users.
    unused: usize,
    /// When to look for channels that have had none for long; `None` only without channels.
    tidy_at: Option<Instant>,
    /// The subscription to the inbox is confirmed, and its connection has not failed.
    up: bool,
    /// The thread has subscribed to the inbox, or has failed to.
    has_tried: bool,
    /// The generation of the connection.
    generation: u64,
    /// When the oldest probe that is still missing was sent; `None` if none is.
    probe_sent: Option<Instant>,
    /// How many probes in a row were received by nobody, although this client is subscribed: the
    /// address leads to another server than before.
    unheard: u32,
    /// When the thread last subscribed again because of that.
    moved: Option<Instant>,
}

/// Why a connection has ended.
enum Ended {
    /// A call has found that the server cannot serve now, the sentinels name another master, or
    /// the address leads to another server by now.
    MayBeReplaced,
    Failed(String),
}

impl From<String> for Ended {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

impl SubscriberState {
    /// Returns whether a call waits.
    fn is_used(&self) -> bool {
        self.channels.len() > self.unused
    }

    /// Keeps only the channels to which a new connection must subscribe.
    fn forget_unused(&mut self) {
        self.queue.clear();
        self.channels.retain(|_, channel| !channel.users.is_empty());
        self.unused = 0;
    }

    /// Returns the names whose messages arrive.
    fn live_names(&self) -> Vec<Name> {
        let channels = self.channels.values();
        let live = channels.filter(|channel| channel.live_since.is_some());
        live.flat_map(Channel::names).cloned().collect()
    }

    /// Returns why the connection must be given up, if it must.
    fn must_end(&self, server: &Server, now: Instant) -> Option<Ended> {
        if (self.probe_sent).is_some_and(|sent| sent.until(now) >= PROBE_TIMEOUT) {
            let why = format!("no probe arrived within {PROBE_TIMEOUT:?}");
            return Some(Ended::Failed(why));
        }
        let may_move = self.moved.is_none_or(|at| at.until(now) >= MOVE_EVERY);
        let is_unheard = self.unheard >= MAX_UNHEARD && may_move;
        (is_unheard || !server.is_current(self.generation)).then_some(Ended::MayBeReplaced)
    }

    /// Removes and returns the channels that have been unused for `LINGER`, if `tidy_at` has come,
    /// and sets that again. If more than `MAX_LINGERING` are unused, removes all of these.
    fn take_unused(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let are_too_many = self.unused > MAX_LINGERING;
        if self.tidy_at.is_none_or(|at| now < at) && !are_too_many {
            return Vec::new();
        }
        let is_over = |since: Instant| are_too_many || since.until(now) >= LINGER;
        let unused = self
            .channels
            .extract_if(|_, channel| channel.idle.is_some_and(is_over));
        let unused: Vec<Vec<u8>> = unused.map(|(channel, _)| channel).collect();
        self.unused -= unused.len();
        let idle = self.channels.values().filter_map(|channel| channel.idle);
        let oldest = idle.min().unwrap_or(now);
        self.tidy_at = (!self.channels.is_empty()).then(|| oldest.after(LINGER));
        // A removed channel can still be queued if it was added and left since the last look. A
        // subscription to it would never be cancelled.
        let channels = &self.channels;
        self.queue.retain(|channel| channels.contains_key(channel));
        unused
    }
}

#[derive(Debug, Default)]
struct Channel {
    /// The names for whose messages calls wait, and the lock of each. All semaphores share one
    /// channel.
    users: Vec<(Name, Arc<dyn Primitive>)>,
    /// When the subscription was confirmed, or the last message arrived; `None` while it is not.
    live_since: Option<Instant>,
    /// When its last user left; `None` while it has users.
    idle: Option<Instant>,
}

impl Channel {
    fn names(&self) -> impl Iterator<Item = &Name> {
        self.users.iter().map(|(name, _)| name)
    }
}

impl Subscriber {
    pub(crate) fn new(thread: Arc<SubscriberThread>) -> Self {
        Self {
            inbox: format!("leasehold:{}", random::uuid()).into_bytes(),
            state: Mutex::default(),
            mute: AtomicBool::new(false),
            health: ServerHealth::new(0),
            thread,
        }
    }

    /// Adds a name whose messages come on a channel. Wakes the thread to subscribe to a new one.
    /// Returns since when its messages arrive, if they do: the confirmation or the last message.
    fn add_user(&self, channel: &[u8], name: &Name, lock: &Arc<dyn Primitive>) -> Option<Instant> {
        let is_mute = self.mute.load(Ordering::SeqCst);
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let user = (name.clone(), Arc::clone(lock));
        if let Some(known) = state.channels.get_mut(channel) {
            known.users.push(user);
            let was_unused = known.idle.take().is_some();
            state.unused -= usize::from(was_unused);
            let live_since = known.live_since.filter(|_| !is_mute);
            // Without a connection, the thread may have waited until a call waits.
            if was_unused && !state.up {
                drop(guard);
                self.thread.wake();
            }
            return live_since;
        }
        let users = vec![user];
        let new = Channel {
            users,
            ..Channel::default()
        };
        state.channels.insert(channel.to_vec(), new);
        state.queue.push(channel.to_vec());
        (state.tidy_at).get_or_insert_with(|| Instant::now().after(LINGER));
        drop(guard);
        self.thread.wake();
        None
    }

    fn remove_user(&self, channel: &[u8], name: &Name) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if let Some(channel) = state.channels.get_mut(channel)
            && let Some(n) = channel.users.iter().position(|(known, _)| known == name)
        {
            channel.users.swap_remove(n);
            if channel.users.is_empty() {
                channel.idle = Some(Instant::now());
                state.unused += 1;
            }
        }
        let are_too_many = state.unused > MAX_LINGERING;
        drop(guard);
        if are_too_many {
            self.thread.wake();
        }
    }

    /// Returns the names whose messages arrive.
    pub(in crate::runtime) fn live_names(&self) -> Vec<Name> {
        self.state.lock().live_names()
    }

    /// Returns the client's inbox, and whether the thread has tried to subscribe to it.
    pub(crate) fn inbox(&self) -> (Vec<u8>, bool) {
        (self.inbox.clone(), self.state.lock().has_tried)
    }

    /// Returns a lock for whose messages a call waits, if there is one.
    pub(crate) fn used_by(&self) -> Option<Arc<dyn Primitive>> {
        let state = self.state.lock();
        let mut users = state.channels.values().flat_map(|channel| &channel.users);
        users.next().map(|(_, lock)| Arc::clone(lock))
    }

    /// Records a new connection of this generation. Returns the channels to subscribe to, the inbox
    /// first.
    fn connected(&self, generation: u64) -> Vec<Vec<u8>> {
        let mut state = self.state.lock();
        state.generation = generation;
        state.probe_sent = None;
        state.unheard = 0;
        state.forget_unused();
        let used = state.channels.keys().cloned();
        std::iter::once(self.inbox.clone()).chain(used).collect()
    }

    /// Records that no message arrives any more. Returns the names for which messages arrived, and
    /// whether a call waits.
    fn disconnected(&self) -> (Vec<Name>, bool) {
        let mut state = self.state.lock();
        state.up = false;
        let names = state.live_names();
        state.forget_unused();
        for channel in state.channels.values_mut() {
            channel.live_since = None;
        }
        // Messages do not reach the next waiter until the thread has subscribed again.
        state.has_tried = state.is_used();
        (names, state.has_tried)
    }

    /// Records that the server has confirmed the subscription to the inbox, or has refused one.
    fn inbox_answered(&self, is_confirmed: bool) {
        let mut state = self.state.lock();
        state.up |= is_confirmed;
        state.has_tried = true;
        self.health.answered(Instant::now());
    }

    /// Records that a probe is published at `now`, to the inbox. The thread receives it before the
    /// next one, if its connection is alive and leads to the server that grants the locks. If an
    /// earlier one has shown that it does not, the thread connects again. Returns false if there is
    /// no connection to probe.
    pub(in crate::runtime) fn begin_probe(&self, server: &Server, now: Instant) -> bool {
        self.check(server, now);
        let mut state = self.state.lock();
        if state.up {
            // Before it is sent: the probe may arrive before the reply to PUBLISH.
            state.probe_sent.get_or_insert(now);
        }
        state.up
    }

    /// Returns the command that publishes a probe.
    pub(in crate::runtime) fn probe(&self) -> Request<'_> {
        Request::Publish {
            channel: &self.inbox,
            message: PROBE,
        }
    }

    /// Records what became of the probe that was begun at `begun`. Returns whether the server
    /// refuses PUBLISH, if that has changed.
    pub(in crate::runtime) fn probed(
        &self,
        server: &Server,
        begun: Instant,
        published: Result<Answer, Fault>,
    ) -> Option<bool> {
        let was_mute = match published {
            Ok(receivers) => {
                let was_mute = self.mute.swap(false, Ordering::SeqCst);
                self.note_receivers(matches!(receivers, Answer::Count(1..)));
                self.check(server, begun);
                return was_mute.then_some(false);
            }
            Err(Fault::Rejected(error)) => {
                let was_mute = self.mute.swap(true, Ordering::SeqCst);
                if !was_mute {
                    logging::warn!("cannot publish releases, waiters retry on a timer: {error}");
                }
                Some(true).filter(|_| !was_mute)
            }
            Err(fault) => {
                logging::debug!("could not probe the subscription: {fault}");
                None
            }
        };
        // A probe that was not published does not count as lost.
        let mut state = self.state.lock();
        state.probe_sent = state.probe_sent.filter(|first| *first != begun);
        was_mute
    }

    /// Wakes the thread if the connection must be given up.
    fn check(&self, server: &Server, now: Instant) {
        let state = self.state.lock();
        if state.up && state.must_end(server, now).is_some() {
            drop(state);
            self.thread.wake();
        }
    }

    /// Records whether a probe was received at the server to which it was published. It arrives in
    /// either case if that server replicates to the one to which this client is subscribed.
    fn note_receivers(&self, is_heard: bool) {
        let mut state = self.state.lock();
        state.unheard = if state.up && !is_heard {
            state.unheard.saturating_add(1)
        } else {
            0
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::keys::Keys;
    use crate::protocol::mutex::MutexKeys;

    /// A call adds a channel and leaves, while very many other channels are unused.
    #[test]
    fn an_unused_channel_is_not_subscribed_after_its_removal() {
        let subscriber = Subscriber::new(Arc::default());
        for n in 0..=MAX_LINGERING {
            let lock = MutexKeys::of(Keys::new(n.to_string().into(), "lock:", "r:"));
            let key = lock.keys().key(0);
            subscriber.add_user(key.channel, key.name, &lock);
            subscriber.remove_user(key.channel, key.name);
        }
        let mut state = subscriber.state.lock();
        let unused = state.take_unused(Instant::now());
        assert_eq!(unused.len(), MAX_LINGERING + 1);
        assert!(state.queue.is_empty(), "a removed channel is wanted");
    }
}
