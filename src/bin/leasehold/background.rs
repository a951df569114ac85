//! Work that may wait for Redis, until a signal ends it.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::crossbeam_channel::{Receiver, Sender, at, bounded, never, select};
use signal_hook::consts::SIGTSTP;

use crate::message::shorten_flush;
use crate::signals::{ONE_SIGNAL, ends};
use crate::stops::suspend;

/// How long the work may go on after the first signal: 100 ms of the second are left to exit.
const AFTER_SIGNAL: Duration = Duration::from_millis(900);

/// Starts `act` on another thread, or runs it on this one if none can be started. Returns a channel
/// that receives the result.
pub(crate) fn start<T, F>(name: &str, act: F) -> Receiver<T>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    let (tell, result) = bounded(1);
    let work = Arc::new(Mutex::new(Some((act, tell))));
    let shared = Arc::clone(&work);
    let thread = thread::Builder::new().name(name.into());
    if thread.spawn(move || run(&shared)).is_err() {
        run(&work);
    }
    result
}

fn run<T>(work: &Mutex<Option<(impl FnOnce() -> T, Sender<T>)>>) {
    let work = work.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some((act, tell)) = work {
        // Fails if a signal has ended the wait for the result.
        let _ = tell.send(act());
    }
}

/// Returns the result, or `None` if there was none a while after the `first` signal or before the
/// second one. All signals of 250 ms count as one.
///
/// `first` is the time of the first signal if it has arrived already.
pub(crate) fn wait_for<T>(
    result: &Receiver<T>,
    signals: &Receiver<i32>,
    mut first: Option<Instant>,
) -> Option<T> {
    loop {
        if first.is_some() {
            shorten_flush();
        }
        let limit = first.map_or_else(never, |first| at(first + AFTER_SIGNAL));
        select! {
            recv(result) -> result => return result.ok(),
            recv(limit) -> _ => return None,
            recv(signals) -> signal => match (signal, first) {
                (Ok(signal), None) if ends(signal) => first = Some(Instant::now()),
                // A service manager may send HUP right after TERM.
                (Ok(signal), Some(first)) if ends(signal) && first.elapsed() >= ONE_SIGNAL => {
                    return None;
                }
                (Ok(SIGTSTP), _) => suspend(),
                _ => {}
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use leasehold::crossbeam_channel::unbounded;
    use signal_hook::consts::{SIGHUP, SIGTERM, SIGUSR1};

    use super::*;

    #[test]
    fn a_second_signal_after_a_while_ends_the_wait_at_once() {
        let (_tell, result) = bounded::<()>(1);
        let (send, signals) = unbounded();
        let began = Instant::now();
        for signal in [SIGTERM, SIGUSR1, SIGHUP] {
            send.send(signal).unwrap();
        }
        assert_eq!(wait_for(&result, &signals, None), None);
        assert!(began.elapsed() >= AFTER_SIGNAL, "{:?}", began.elapsed());
        send.send(SIGHUP).unwrap();
        let second = Instant::now();
        let first = second.checked_sub(ONE_SIGNAL);
        assert!(first.is_some(), "the machine has run for a second");
        assert_eq!(wait_for(&result, &signals, first), None);
        let limit = AFTER_SIGNAL - ONE_SIGNAL;
        assert!(second.elapsed() < limit, "{:?}", second.elapsed());
    }

    #[test]
    fn the_result_arrives() {
        let result = start("leasehold-test", || 7);
        assert_eq!(wait_for(&result, &never(), None), Some(7));
    }
}
