//! The handle of a server's subscriber thread, and the channels that it is subscribed to.

pub(crate) mod listen;
pub(crate) mod pubsub;
pub(crate) mod subscription;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::clock::{Instant, LONGEST_SLEEP};
use crate::logging;
use crate::name::Name;
use crate::protocol::answer::Answer;
use crate::protocol::keys::Key;
use crate::protocol::verb::Verb;
use crate::queue::parker::Parker;
use crate::random;
use crate::redis::{Cap, Fault, Request, Server, ServerHealth};
use crate::runtime::worker::Worker;
use crate::sync::Mutex;

/// What is published on the control channel: a probe, and a message that has the thread look for
/// new channels.
pub(in crate::runtime) const PROBE: &[u8] = b"probe";
pub(in crate::runtime) const WAKE: &[u8] = b"subscribe";

pub(crate) struct Subscriber {
    /// The client's inbox, and the channel on which the thread is woken: nothing else interrupts
    /// its read.
    control: Vec<u8>,
    state: Mutex<SubscriberState>,
    /// The server refuses PUBLISH. No client of this Redis user can then announce a release, so
    /// waiters retry on a timer.
    mute: AtomicBool,
    /// Unparked for a thread that is idle or pauses between two attempts to connect: by `stop`, by
    /// a retirement of the server, and by the first waiter.
    ending: Parker,
    /// The health of the subscriber connection.
    pub(crate) health: ServerHealth,
    pub(in crate::runtime) worker: Worker,
}

#[derive(Default)]
struct SubscriberState {
    channels: HashMap<Vec<u8>, Channel>,
    /// Channels for which no SUBSCRIBE was sent on this connection yet.
    queue: Vec<Vec<u8>>,
    /// The subscription to the control channel is confirmed, and its connection has not failed.
    up: bool,
    /// The thread has subscribed to the control channel, or has failed to.
    has_tried: bool,
    /// When the oldest probe that is still missing was sent; `None` if none is.
    probe_sent: Option<Instant>,
    /// How many messages on the control channel, in a row, were received by nobody, although this
    /// thread is subscribed: the address leads to another server than before.
    unheard: u32,
    /// When the thread last subscribed again because of that.
    moved: Option<Instant>,
    /// The thread has no connection, and sleeps until a call waits.
    is_idle: bool,
    stopping: bool,
}

impl SubscriberState {
    /// Returns whether a call waits.
    fn is_used(&self) -> bool {
        self.channels.values().any(|channel| channel.users > 0)
    }
}

/// How a client receives grants of a name.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    /// The channel; empty if there is none.
    pub(crate) channel: Vec<u8>,
    /// As far as is known, messages arrive.
    pub(crate) is_live: bool,
    /// Messages do not arrive yet, because the subscriber thread has not tried to subscribe.
    pub(crate) is_starting: bool,
}

#[derive(Debug)]
struct Channel {
    /// The name that first used it.
    name: Name,
    /// Other names have used it, too.
    has_several_names: bool,
    live: Arc<Live>,
    /// The number of waiters that use it.
    users: usize,
    /// When its last user left; `None` while it has users.
    idle: Option<Instant>,
}

impl Default for Subscriber {
    fn default() -> Self {
        Self {
            control: format!("leasehold:{}", random::uuid()).into_bytes(),
            state: Mutex::default(),
            mute: AtomicBool::new(false),
            ending: Parker::new(),
            health: ServerHealth::new(0),
            worker: Worker::new("leasehold-subscriber"),
        }
    }
}

impl Subscriber {
    /// Counts a user of a name's channel. Returns whether the thread must be woken to subscribe.
    fn add_user(&self, key: Key<'_>) -> (Arc<Live>, bool) {
        let mut state = self.state.lock();
        if std::mem::take(&mut state.is_idle) {
            self.ending.unpark();
        }
        if let Some(channel) = state.channels.get_mut(key.channel) {
            channel.users += 1;
            channel.idle = None;
            channel.has_several_names |= channel.name != *key.name;
            return (Arc::clone(&channel.live), false);
        }
        let channel = Channel {
            name: key.name.clone(),
            has_several_names: false,
            live: Arc::default(),
            users: 1,
            idle: None,
        };
        let live = Arc::clone(&channel.live);
        state.channels.insert(key.channel.to_vec(), channel);
        state.queue.push(key.channel.to_vec());
        (live, state.up)
    }

    fn remove_user(&self, channel: &[u8]) {
        let mut state = self.state.lock();
        if let Some(channel) = state.channels.get_mut(channel) {
            channel.users -= 1;
            if channel.users == 0 {
                channel.idle = Some(Instant::now());
            }
        }
    }

    /// Returns how this client receives grants.
    pub(crate) fn inbox(&self) -> Inbox {
        let state = self.state.lock();
        Inbox {
            channel: self.control.clone(),
            is_live: state.up && !self.mute.load(Ordering::SeqCst),
            is_starting: !state.has_tried,
        }
    }

    /// Returns a name whose channel has a user, if there is one.
    pub(crate) fn used_name(&self) -> Option<Name> {
        let state = self.state.lock();
        let used = state.channels.values().find(|channel| channel.users > 0);
        used.map(|channel| channel.name.clone())
    }

    /// Returns true if the subscription to `channel` is confirmed.
    pub(crate) fn is_subscribed(&self, channel: &[u8]) -> bool {
        let state = self.state.lock();
        let channel = state.channels.get(channel);
        channel.is_some_and(|channel| channel.live.lock().is_some())
    }

    /// Publishes `why` on the control channel, which interrupts the thread's read. Returns false if
    /// that fails: the thread then checks for work by itself within `POLL_EVERY`.
    pub(in crate::runtime) fn wake(&self, server: &Server, why: &[u8], until: Instant) -> bool {
        let args: [&[u8]; 2] = [&self.control, why];
        let read = |reply| Verb::Count.read(reply);
        self.published(server.command("PUBLISH", &args, until, Cap::Exempt, read))
    }

    /// Returns the command that publishes `message` on the control channel.
    pub(in crate::runtime) fn message<'a>(&'a self, message: &'a [u8]) -> Request<'a> {
        Request::Publish {
            channel: &self.control,
            message,
        }
    }

    /// Notes what became of a message on the control channel; returns whether it was published.
    pub(in crate::runtime) fn published(&self, published: Result<Answer, Fault>) -> bool {
        match &published {
            Ok(receivers) => {
                self.mute.store(false, Ordering::SeqCst);
                self.note_receivers(matches!(receivers, Answer::Count(1..)));
            }
            Err(Fault::Rejected(error)) if !self.mute.swap(true, Ordering::SeqCst) => {
                logging::warn!("cannot publish releases, waiters retry on a timer: {error}");
            }
            Err(fault) => logging::debug!("could not wake the subscriber: {fault}"),
        }
        published.is_ok()
    }

    /// Records whether a message on the control channel was received at the server to which it was
    /// published. It arrives in either case if that server replicates to the one to which this
    /// thread is subscribed.
    fn note_receivers(&self, is_heard: bool) {
        let mut state = self.state.lock();
        state.unheard = match state.up && !is_heard {
            true => state.unheard.saturating_add(1),
            false => 0,
        };
    }

    /// Sleeps until a call waits, or the thread must end.
    fn sleep_while_idle(&self, server: &Server) {
        let is_idle = || {
            let state = self.state.lock();
            state.is_idle && !state.stopping
        };
        while is_idle() && !server.is_retired() {
            self.ending.park_timeout(LONGEST_SLEEP);
        }
    }

    /// Wakes a thread that has no connection, because its server was replaced.
    pub(in crate::runtime) fn retire(&self) {
        self.ending.unpark();
    }

    /// Notes that a probe is sent at `now`; the thread must receive it within a second, if its
    /// connection is alive and leads to the server that grants the locks. Returns false if there is
    /// no connection to probe.
    pub(in crate::runtime) fn begin_probe(&self, now: Instant) -> bool {
        let mut state = self.state.lock();
        if state.up {
            // Before it is sent: the probe may arrive before the reply to PUBLISH.
            state.probe_sent.get_or_insert(now);
        }
        state.up
    }

    /// Notes what became of the probe that was begun at `begun`.
    pub(in crate::runtime) fn probed(&self, begun: Instant, published: Result<Answer, Fault>) {
        if !self.published(published) {
            // A probe that was not published does not count as lost.
            let mut state = self.state.lock();
            state.probe_sent = state.probe_sent.filter(|first| *first != begun);
        }
    }

    pub(crate) fn stop(&self, server: &Server, until: Instant) {
        let mut state = self.state.lock();
        state.stopping = true;
        let up = state.up;
        drop(state);
        self.ending.unpark();
        if up {
            self.wake(server, b"stop", until);
        }
    }

    fn is_stopping(&self) -> bool {
        self.state.lock().stopping
    }
}

/// When the subscription to a channel was confirmed; `None` while it is not.
type Live = Mutex<Option<Instant>>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::keys::Keys;
    use crate::protocol::primitive::Primitive;
    use crate::protocol::semaphore::SemaphoreKeys;

    /// All semaphores share one channel. Once its subscription is confirmed, the waiters of all of
    /// them are woken.
    #[test]
    fn a_channel_has_several_names_once_a_second_one_uses_it() {
        let subscriber = Subscriber::default();
        let keys = ["a", "b"].map(|name| {
            let lock = Keys::new(name.into(), "lock:", "r:");
            SemaphoreKeys::of(lock, 2, 1)
        });
        let use_channel = |n: usize| {
            subscriber.add_user(keys[n].keys().key(0));
            let state = subscriber.state.lock();
            let mut channels = state.channels.values();
            channels.any(|channel| channel.has_several_names)
        };
        assert_eq!([0, 0, 1, 0].map(use_channel), [false, false, true, true]);
    }
}
