//! The wait for the lock, during which signals are handled.

use std::thread;
use std::time::Duration;

use leasehold::crossbeam_channel::{Receiver, bounded, never, select};
use leasehold::{Client, Error};
use signal_hook::consts::SIGTSTP;

use crate::ancestors::Lookout;
use crate::args::Run;
use crate::exit::{self, Failure};
use crate::guard::Guard;
use crate::lock::{LockWait, Take};
use crate::refusal::not_acquired;
use crate::signals::{ends, suspend};

/// The time limit of the client's shutdown after a signal. The shutdown may take one command
/// timeout longer.
const LEAVING: Duration = Duration::from_secs(1);

/// Waits for the lock, and handles signals during the wait.
pub(crate) fn wait(
    client: &Client,
    take: Take,
    args: &Run,
    signals: &Receiver<i32>,
) -> Result<Box<dyn Guard>, Failure> {
    let (answer, answered) = bounded(1);
    let limit = LockWait::of(args);
    let waiting = move || {
        let taken = take(limit);
        // Fails only if a signal has ended the wait. The shutdown of the client releases the lock
        // if this call has acquired it.
        let _ = answer.send(taken);
    };
    thread::Builder::new()
        .name("leasehold-wait".into())
        .spawn(waiting)
        .map_err(|error| Failure::system("cannot start a thread", &error))?;
    let lookout = Lookout::start(client, args)?;
    let refusal = lookout.as_ref().map(|lookout| lookout.refusal.clone());
    let mut refusal = refusal.unwrap_or_else(never);
    loop {
        select! {
            recv(answered) -> taken => {
                // The thread always sends a result, unless it has panicked and printed why.
                let taken = taken.unwrap_or(Err(Error::Closed))?;
                return taken.ok_or_else(|| not_acquired(client, args));
            }
            recv(refusal) -> refused => match refused {
                Ok(failure) => {
                    client.shutdown(LEAVING)?;
                    return Err(failure);
                }
                // The thread has panicked and printed why.
                Err(_) => refusal = never(),
            },
            recv(signals) -> signal => match signal {
                Ok(signal) if ends(signal) => {
                    // Wakes the waiting thread, and undoes its attempt or releases its lock.
                    client.shutdown(LEAVING)?;
                    return Err(Failure::new(exit::by_signal(signal), ""));
                }
                Ok(SIGTSTP) => suspend(),
                // USR1 and USR2 are meant for the command, which does not run yet.
                _ => {}
            }
        }
    }
}
