//! The subscriber thread: receives releases on one connection and wakes the waiters they concern.
//!
//! ```text
//!    a failure: after a pause, unless it is the first since a subscription
//!      +---+
//!      |   v       subscribed            message
//!   +------------+ ----------> +-----------+ --+
//!   | connecting |             | listening |   |
//!   +------------+ <---------- +-----------+ <-+
//!      ^     a failure, a lost probe, or the server may have been replaced: without a pause
//!      | a waiter         +------+
//!      +----------------- | idle | <--- instead of connecting, while no call waits
//!                         +------+
//!
//! From any of them: --> ended, by a stop, or if the server owns no slot of its cluster any more
//! ```

use std::time::Duration;

use crate::clock::{Instant, LONGEST_SLEEP};
use crate::error::Cause;
use crate::logging;
use crate::runtime::endpoint::Endpoint;
use crate::runtime::state::Runtime;
use crate::runtime::subscriber::SubscriberState;
use crate::runtime::subscriber::pubsub::{POLL_EVERY, PubSub};
use crate::wait_policy::RECONNECT;

/// How long a probe on the control channel may take to arrive.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long an unused subscription is kept for the next waiter.
const LINGER: Duration = Duration::from_secs(10);

/// If more than this many subscriptions are unused, all of them are cancelled.
const MAX_LINGERING: usize = 1024;

/// After this many messages in a row that reached no subscriber at the server that grants, the
/// thread subscribes again.
const MAX_UNHEARD: u32 = 2;

/// How often that is tried. A proxy in front of several servers can lead the messages and the
/// subscription to different ones each time, and these pass the messages on.
const MOVE_EVERY: Duration = Duration::from_secs(30);

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

pub(in crate::runtime) fn run(runtime: &Runtime, endpoint: &Endpoint) {
    let mut failures = 0;
    while !endpoint.subscriber.is_stopping() && !endpoint.server.is_retired() {
        let Err(ended) = listen(runtime, endpoint, &mut failures) else {
            return;
        };
        let this = &endpoint.subscriber;
        let mut state = this.state.lock();
        state.up = false;
        state.is_idle = !state.is_used();
        // The next waiter is not reached by messages until this thread has subscribed again.
        state.has_tried = !state.is_idle;
        for channel in state.channels.values() {
            *channel.live.lock() = None;
        }
        let is_idle = state.is_idle;
        drop(state);
        if this.is_stopping() || endpoint.server.is_retired() {
            return;
        }
        let (is_failure, why) = match ended {
            Ended::Failed(why) => (true, why),
            Ended::MayBeReplaced => (false, "the server may have been replaced".into()),
        };
        if is_idle {
            runtime.deployment.suspect();
            logging::debug!(
                server = endpoint.server.label();
                "the subscription to releases has ended, and no call waits: {why}"
            );
            this.sleep_while_idle(&endpoint.server);
            continue;
        }
        this.health.failed(Some(&Cause::text(&why)), false);
        runtime.deployment.suspect();
        // One warning for each outage that a waiter notices, however long it lasts. No warning for
        // `MayBeReplaced`: this thread gives up a connection that works, and may do so again and
        // again while the server refuses calls.
        logging::record!(
            if is_failure && failures == 0 { log::Level::Warn } else { log::Level::Debug },
            server = endpoint.server.label();
            "no subscription to releases, waiters retry on a timer; reconnecting: {why}"
        );
        // A working connection that ends is replaced without a pause.
        if failures > 0 {
            let pause = RECONNECT.pause(failures - 1);
            this.ending.park_timeout(pause.min(LONGEST_SLEEP));
        }
        failures += u32::from(is_failure);
    }
}

/// Connects, subscribes to all wanted channels, and receives until a failure or `stop`.
fn listen(runtime: &Runtime, endpoint: &Endpoint, failures: &mut u32) -> Result<(), Ended> {
    let this = &endpoint.subscriber;
    let timeout = endpoint.server.command_timeout();
    let connection = endpoint.server.connection(Instant::now().after(timeout));
    let connection = connection.map_err(|fault| fault.to_string())?;
    let mut pubsub = PubSub::new(runtime, endpoint, connection);
    let wanted: Vec<Vec<u8>> = {
        let mut state = this.state.lock();
        state.queue.clear();
        state.channels.retain(|_, channel| channel.users > 0);
        state.channels.keys().cloned().collect()
    };
    // Without the control channel nothing can wake the thread, and no probe arrives.
    let up = pubsub.subscribe(std::slice::from_ref(&this.control))?;
    {
        let mut state = this.state.lock();
        state.up = up;
        state.has_tried = true;
        state.probe_sent = None;
        state.unheard = 0;
    }
    pubsub.subscribe(&wanted)?;
    *failures = 0;
    let mut tidied = Instant::now();
    this.health.answered(Instant::now());
    logging::debug!(server = endpoint.server.label(); "subscribed to releases");
    loop {
        let now = Instant::now();
        let mut state = this.state.lock();
        if state.stopping {
            return Ok(());
        }
        let is_late = |sent: Instant| sent.until(now) > PROBE_TIMEOUT;
        if state.probe_sent.is_some_and(is_late) {
            return Err(format!("no probe arrived within {PROBE_TIMEOUT:?}").into());
        }
        let may_move = state.moved.is_none_or(|at| at.until(now) >= MOVE_EVERY);
        if state.unheard >= MAX_UNHEARD && may_move {
            state.moved = Some(now);
            return Err(Ended::MayBeReplaced);
        }
        if !pubsub.is_current() {
            return Err(Ended::MayBeReplaced);
        }
        let mut unused = Vec::new();
        if tidied.until(now) >= POLL_EVERY {
            tidied = now;
            unused = take_unused(&mut state, now);
        }
        // Includes channels that were queued before this connection was up, without a wake-up.
        let wanted = std::mem::take(&mut state.queue);
        drop(state);
        pubsub.unsubscribe(&unused)?;
        pubsub.subscribe(&wanted)?;
        pubsub.receive()?;
    }
}

/// Removes and returns the channels that have been unused for `LINGER`. If more than
/// `MAX_LINGERING` are unused, removes all of these.
fn take_unused(state: &mut SubscriberState, now: Instant) -> Vec<Vec<u8>> {
    let channels = state.channels.values();
    let idle = channels.filter(|channel| channel.users == 0).count();
    let linger = match idle > MAX_LINGERING {
        true => Duration::ZERO,
        false => LINGER,
    };
    let unused = state.channels.extract_if(|_, channel| {
        let over =
            channel.users == 0 && channel.idle.is_some_and(|since| since.until(now) >= linger);
        if over {
            *channel.live.lock() = None;
        }
        over
    });
    let unused = unused.map(|(channel, _)| channel).collect();
    // A removed channel can still be queued if it was added and left since the last pass. A
    // subscription to it would never be cancelled.
    let SubscriberState {
        channels, queue, ..
    } = state;
    queue.retain(|channel| channels.contains_key(channel));
    unused
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::keys::Keys;
    use crate::runtime::subscriber::Subscriber;

    /// A call adds a channel and leaves, while very many other channels are unused.
    #[test]
    fn an_unused_channel_is_not_subscribed_after_its_removal() {
        let subscriber = Subscriber::default();
        for n in 0..=MAX_LINGERING {
            let keys = Keys::new(n.to_string().into(), "lock:", "r:");
            subscriber.add_user(keys.key(0));
            subscriber.remove_user(keys.key(0).channel);
        }
        let mut state = subscriber.state.lock();
        let unused = take_unused(&mut state, Instant::now());
        assert_eq!(unused.len(), MAX_LINGERING + 1);
        assert!(state.queue.is_empty(), "a removed channel is wanted");
    }
}
