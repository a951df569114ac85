//! The subscriber thread: hears releases on one connection and wakes the waiters they are for.

use std::time::Duration;

use crate::clock::Instant;
use crate::error::Cause;
use crate::logging;
use crate::redis::Fault;
use crate::runtime::endpoint::Endpoint;
use crate::runtime::state::Runtime;
use crate::runtime::subscriber::State;
use crate::runtime::subscriber::pubsub::{POLL_EVERY, PubSub};
use crate::wait_policy::RECONNECT;

/// What was published to the control channel must be heard within this.
const HEARD_WITHIN: Duration = Duration::from_secs(1);

/// How long a subscription that nobody uses is kept for the next waiter.
const LINGER: Duration = Duration::from_secs(10);

/// With more than this many lingering, all of them go at the next look around.
const MOST_LINGERING: usize = 1024;

pub(in crate::runtime) fn run(runtime: &Runtime, endpoint: &Endpoint) {
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
