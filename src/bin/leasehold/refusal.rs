//! The message of a run that did not get its lock: the holder, how long it has held the lock, and
//! when its lease ends.

use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold::crossbeam_channel::bounded;
use leasehold::{Client, FencingToken, Holder, Name};

use crate::ancestors::Ancestors;
use crate::args::{Run, name};
use crate::exit::Failure;
use crate::record::shown_holder;

/// How long to wait at most for Redis to report the holder.
const ASKING: Duration = Duration::from_secs(1);

/// The limit after `--wait`: the run should end soon after that time.
const ASKING_AFTER_WAIT: Duration = Duration::from_millis(100);

/// Redis keeps a token for a day. If one seems to be older, the clocks of the server and of this
/// machine differ.
const DAY: Duration = Duration::from_secs(86_400);

/// Returns the outcome of a run that did not get its lock.
pub(crate) fn not_acquired(client: &Client, args: &Run) -> Failure {
    let code = args.not_acquired_exit;
    let ancestors = Ancestors::of_environment();
    if code == 0 && ancestors.is_empty() {
        // Cron sends a mail for any output.
        return Failure::new(code, "");
    }
    let names: Vec<Name> = args.names().into_iter().map(name).collect();
    let (answer, answered) = bounded(1);
    let (client, args_of_run) = (client.clone(), args.clone());
    // If no thread can be started, the answer is missing, as if Redis did not reply.
    let _ = thread::Builder::new().spawn(move || {
        let refusal = ancestors.refusal(&client, &args_of_run);
        let _ = answer.send(match refusal {
            Ok(Some(refusal)) => Some(refusal),
            // Cron sends a mail for any output.
            _ if code == 0 => None,
            _ => held_by_others(&client, &args_of_run).map(|text| Failure::outcome(code, text)),
        });
    });
    let limit = match args.wait {
        Some(_) => ASKING_AFTER_WAIT,
        None => ASKING,
    };
    let known = answered.recv_timeout(limit).ok().flatten();
    // If nothing is known, no reply arrived in time, or nobody holds the lock now.
    known.unwrap_or_else(|| match code {
        0 => Failure::new(code, ""),
        _ => Failure::outcome(code, unknown(&names, args.permits)),
    })
}

/// Returns the message about a holder of one of the names; `None` if they are free, or if the query
/// fails.
fn held_by_others(client: &Client, args: &Run) -> Option<String> {
    let mut names = args.names().into_iter().map(name);
    match args.permits {
        Some(permits) => names
            .next()
            .and_then(|name| permits_out(client, &name, permits)),
        None => names.find_map(|name| held(client, &name)),
    }
}

/// Returns the message if the holder is unknown.
fn unknown(names: &[Name], permits: Option<u32>) -> String {
    match (names, permits) {
        ([name], Some(_)) => format!("no permit of {name} is free, or other calls wait for one"),
        ([name], None) => format!("{name} is held by another holder, or other calls wait for it"),
        _ => "one of the names is held by another holder, or other calls wait for it".into(),
    }
}

/// Returns the message about a name that is held; `None` if it is free, or if the query fails.
fn held(client: &Client, name: &Name) -> Option<String> {
    let holder = client.mutex(name).inspect().ok()??;
    let now = SystemTime::now();
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    Some(held_by(name, &holder, now))
}

/// `now` is the time since 1970.
fn held_by(name: &Name, holder: &Holder, now: Duration) -> String {
    let mut text = format!("{name} is held by {}", shown_holder(holder));
    // If the holder is another program or readers, the token is that of an earlier holder.
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

/// Returns how long ago this token was drawn, and so how long its holder has had the lock.
///
/// A token is the server's clock in µs at the grant, or more if that clock was ahead before. Over a
/// quorum it is the clock of the holder's client.
fn held_for(token: FencingToken, now: Duration) -> Option<Duration> {
    let held = now.checked_sub(Duration::from_micros(token.value()))?;
    (held <= DAY).then_some(held)
}

/// Returns the message about the permits that are out; `None` if there are none, or if the query
/// fails.
fn permits_out(client: &Client, name: &Name, permits: u32) -> Option<String> {
    let held = client.semaphore(name, permits).inspect().ok()??;
    let first = held.holders().first()?;
    Some(format!(
        "no permit of {name} is free, or other calls wait for one: {} of {permits} are out, \
         {} of them held by {}, whose lease ends in {} unless it is renewed",
        held.permits(),
        first.permits(),
        shown_holder(first),
        shown_seconds(first.remaining()?)
    ))
}

fn shown_seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
