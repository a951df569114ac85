//! The wait for the lock, during which signals are handled.

use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold::crossbeam_channel::{Receiver, bounded, select};
use leasehold::{Client, Error, FencingToken, Holder, Name};
use signal_hook::consts::SIGTSTP;

use crate::args::{Run, name};
use crate::exit::{self, Failure};
use crate::guard::Guard;
use crate::lock::{Lock, Patience};
use crate::record::shown_holder;
use crate::signals::{ends, suspend};

/// How long a release may take after a signal.
const LEAVING: Duration = Duration::from_secs(1);

/// How long the question who has the lock may take. It comes after the end of the wait.
const ASKING: Duration = Duration::from_millis(100);

/// The longest time for which a lock can have been held by its token: tokens are kept for a day.
const DAY: Duration = Duration::from_secs(86_400);

/// Waits for the lock, and handles signals during the wait.
pub(crate) fn take(
    client: &Client,
    lock: Box<dyn Lock>,
    args: &Run,
    signals: &Receiver<i32>,
) -> Result<Box<dyn Guard>, Failure> {
    let (answer, answered) = bounded(1);
    let patience = Patience::of(args);
    let waiting = move || {
        let taken = lock.take(patience);
        // After a signal the receiver is gone: dropping a guard that arrives then releases the
        // lock.
        let _ = answer.send(taken);
    };
    thread::Builder::new()
        .name("leasehold-wait".into())
        .spawn(waiting)
        .map_err(|error| Failure::system("cannot start a thread", &error))?;
    loop {
        select! {
            recv(answered) -> taken => {
                // The thread always sends a result, unless it has panicked and printed why.
                let taken = taken.unwrap_or(Err(Error::Closed))?;
                return taken.ok_or_else(|| not_acquired(client, args));
            }
            recv(signals) -> signal => match signal {
                Ok(signal) if ends(signal) => {
                    // Wakes the waiting thread, and undoes its attempt.
                    client.shutdown(LEAVING)?;
                    return Err(Failure::new(exit::by_signal(signal), ""));
                }
                Ok(SIGTSTP) => suspend(),
                _ => {}
            }
        }
    }
}

fn not_acquired(client: &Client, args: &Run) -> Failure {
    let code = args.not_acquired_exit;
    if code == 0 {
        // Cron sends a mail for any output.
        return Failure::new(code, "");
    }
    let names: Vec<Name> = args.names().into_iter().map(name).collect();
    if let (Some(_), [name, ..]) = (args.permits, names.as_slice()) {
        let text = format!("no permit of {name} is free, or other calls wait for one");
        return Failure::outcome(code, text);
    }
    Failure::outcome(code, why_not_acquired(client, names))
}

/// Says who has the lock, and for how long.
fn why_not_acquired(client: &Client, names: Vec<Name>) -> String {
    let (answer, answered) = bounded(1);
    let (first, client) = (names.first().cloned(), client.clone());
    // If no thread can be started, the answer is missing, as if Redis did not reply.
    let _ = thread::Builder::new().spawn(move || {
        let seen = names.into_iter().find_map(|name| {
            let holder = client.mutex(&name).inspect().ok()??;
            Some((name, holder))
        });
        let _ = answer.send(seen);
    });
    match answered.recv_timeout(ASKING) {
        Ok(Some((name, holder))) => {
            let now = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            held_by(&name, &holder, now)
        }
        // The holder is unknown: there was no reply, or the lock was released just now.
        _ => match first {
            Some(name) => format!("{name} is held by another holder"),
            None => "the lock is held by another holder".into(),
        },
    }
}

/// `now` is the time since 1970.
fn held_by(name: &Name, holder: &Holder, now: Duration) -> String {
    let mut text = format!("{name} is held by {}", shown_holder(holder));
    // The token of a foreign holder is that of an earlier one.
    let token = holder.fencing_token().filter(|_| holder.owner().is_some());
    if let Some(held) = token.and_then(|token| held_for(token, now)) {
        text += &format!(", for about {} now", shown_seconds(held));
    }
    text + &match holder.remaining() {
        Some(left) => format!(
            "; its lease ends in {} unless it is renewed",
            shown_seconds(left)
        ),
        None => "; the lock does not expire".into(),
    }
}

/// Returns for how long the holder with this token has had the lock.
///
/// A token is the server's clock in µs at the grant, or more if that clock was ahead before.
fn held_for(token: FencingToken, now: Duration) -> Option<Duration> {
    let held = now.checked_sub(Duration::from_micros(token.value()))?;
    (held <= DAY).then_some(held)
}

fn shown_seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
