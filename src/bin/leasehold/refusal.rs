//! The message of a run that did not get its lock: the holder, how long it has held the lock, and
//! when its lease ends.

use std::thread;
use std::time::Duration;

use leasehold::crossbeam_channel::bounded;
use leasehold::{Client, Taken};

use crate::ancestors::Ancestors;
use crate::args::Run;
use crate::exit::Failure;

/// How long to wait at most for Redis to report whether an ancestor holds the lock.
const ASKING: Duration = Duration::from_secs(1);

/// The limit after `--wait`: the run should end soon after that time.
const ASKING_AFTER_WAIT: Duration = Duration::from_millis(100);

/// How long a run that has waited may take to leave the queue.
const LEAVING_AFTER_WAIT: Duration = Duration::from_millis(100);

/// Returns the outcome of a run that did not get its lock, once it has left the queue.
pub(crate) fn not_acquired(client: &Client, args: &Run, taken: &Taken) -> Failure {
    let ancestor = held_by_ancestor(client, args);
    if args.wait.is_some() {
        // Otherwise this process could end before its place is removed.
        let _ = client.shutdown(LEAVING_AFTER_WAIT);
    }
    let code = args.not_acquired_exit;
    ancestor.unwrap_or_else(|| match code {
        // Cron sends a mail for any output.
        0 => Failure::new(code, ""),
        _ => Failure::outcome(code, taken.to_string()),
    })
}

/// Returns the failure of a run that waits for an ancestor; `None` if it does not, or if no reply
/// arrives in time.
fn held_by_ancestor(client: &Client, args: &Run) -> Option<Failure> {
    let ancestors = Ancestors::of_environment();
    if ancestors.is_empty() {
        return None;
    }
    let (answer, answered) = bounded(1);
    let (client, args_of_run) = (client.clone(), args.clone());
    // If no thread can be started, the answer is missing, as if Redis did not reply.
    let _ = thread::Builder::new().spawn(move || {
        let refusal = ancestors.refusal(&client, &args_of_run);
        let _ = answer.send(refusal.ok().flatten());
    });
    let limit = match args.wait {
        Some(_) => ASKING_AFTER_WAIT,
        None => ASKING,
    };
    answered.recv_timeout(limit).ok().flatten()
}
