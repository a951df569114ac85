//! The commands that read, set and remove the expiry of a key.

use super::super::reply::Reply;
use super::args::{self, integer, invalid_expire};
use super::data::{Keyspace, Outcome, place};

/// Returns a key's remaining time in ms: -1 without an expiry, -2 if it does not exist.
pub(super) fn pttl(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let now = keyspace.now_ms();
    Ok(Reply::Int(match keyspace.entry(&args[1]) {
        None => -2,
        Some(entry) => entry.end.map_or(-1, |end| end - now),
    }))
}

pub(super) fn pexpire(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let now = keyspace.now_ms();
    set_end(keyspace, args, |ms| ms.checked_add(now))
}

pub(super) fn pexpireat(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    set_end(keyspace, args, Some)
}

fn set_end(keyspace: &mut Keyspace, args: &[Vec<u8>], end: impl Fn(i64) -> Option<i64>) -> Outcome {
    args::no_options(args, 3)?;
    let end = end(integer(&args[2])?).ok_or_else(|| invalid_expire("pexpire"))?;
    let now = keyspace.now_ms();
    let Some(entry) = keyspace.entry(&args[1]) else {
        return Ok(Reply::Int(0));
    };
    entry.end = Some(end);
    // As in Redis: a key whose expiry is the current millisecond still exists, but setting that
    // expiry now deletes the key at once.
    if end <= now {
        keyspace.entries.remove(&place(&args[1]));
    }
    Ok(Reply::Int(1))
}

pub(super) fn persist(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let entry = keyspace.entry(&args[1]);
    let end = entry.and_then(|entry| entry.end.take());
    Ok(Reply::flag(end.is_some()))
}
