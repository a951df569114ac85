//! Makes connections on a thread of its own, which is left behind when it hangs.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::clock::{Instant, nap};
use crate::error::{Cause, Error, is_final_at_logon};
use crate::server::node::NoWire;
use crate::server::pool::{Pool, State};
use crate::wait::RECONNECT;

/// A name server that says nothing holds a dialer for 10 s and more. So many may hang before a
/// further one waits for one of them.
const LEFT_BEHIND: usize = 8;

const NAME: &str = "leasehold-dial";

/// How the dialing of one server stands; part of its pool's state.
#[derive(Default)]
pub(crate) struct Dialing {
    /// The dialer at work: its number, and since when it has been at this connection.
    current: Option<(u64, Instant)>,
    number: u64,
    left_behind: usize,
    failures: u32,
    /// The pause after a failure, shared by all who want a connection.
    not_before: Option<Instant>,
    pub(crate) failed_times: u64,
    pub(crate) failure: Option<NoWire>,
}

/// Sees to it that somebody dials, if a connection is wanted.
pub(crate) fn ensure(pool: &Arc<Pool>, state: &mut State, now: Instant) -> Result<(), Error> {
    if state.wanted(pool.cap()) == 0 {
        return Ok(());
    }
    let dialing = &mut state.dialing;
    if let Some((_, since)) = dialing.current {
        // Each address of a name, and each answer while logging on, may take the whole timeout.
        let hangs = since.until(now) > pool.node.connect_timeout * 2 + Duration::from_millis(100);
        if !hangs || dialing.left_behind >= LEFT_BEHIND {
            return Ok(());
        }
        dialing.left_behind += 1;
    }
    dialing.number += 1;
    let number = dialing.number;
    let dialer = Arc::clone(pool);
    thread::Builder::new()
        .name(NAME.into())
        .spawn(move || run(&dialer, number))
        .map_err(|error| Error::Thread {
            name: NAME,
            cause: Arc::new(error),
        })?;
    dialing.current = Some((number, now));
    Ok(())
}

fn run(pool: &Pool, number: u64) {
    let mut state = pool.state.lock();
    loop {
        // A failure makes whoever comes next wait too: a server that restarts is not stormed.
        while let Some(at) = state.dialing.not_before {
            let now = Instant::now();
            if now >= at {
                state.dialing.not_before = None;
            } else {
                parking_lot::MutexGuard::unlocked(&mut state, || thread::sleep(nap(now, at)));
            }
        }
        if state.wanted(pool.cap()) == 0 {
            state.dialing.current = None;
            return;
        }
        state.dialing.current = Some((number, Instant::now()));
        let made = parking_lot::MutexGuard::unlocked(&mut state, || {
            let made = pool.node.connect();
            if let Err(error) = &made {
                let server = pool.node.label.as_str();
                log::debug!(server = server; "no connection to {server}: {error}");
            }
            made
        });
        let is_current = state
            .dialing
            .current
            .is_some_and(|(current, _)| current == number);
        match made {
            Ok(wire) => {
                state.dialing.failures = 0;
                state.dialing.failure = None;
                state.idle.push(wire);
            }
            Err(error) => {
                let pause = RECONNECT.pause(state.dialing.failures);
                state.dialing.failures = state.dialing.failures.saturating_add(1);
                state.dialing.not_before = Some(Instant::now().after(pause));
                state.dialing.failed_times += 1;
                let is_final = is_final_at_logon(&error);
                state.dialing.failure = Some(NoWire {
                    cause: Cause::from(error),
                    is_final,
                });
            }
        }
        pool.changed.notify_all();
        if !is_current {
            state.dialing.left_behind -= 1;
            return;
        }
    }
}
