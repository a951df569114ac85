//! When keys expire.

use super::args::{integer, invalid_expire, is};
use super::{Keyspace, Outcome, Reply, place};

pub(super) fn pttl(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    Ok(Reply::Int(left(keyspace, &args[1])))
}

pub(super) fn ttl(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let left = left(keyspace, &args[1]);
    Ok(Reply::Int(match left {
        // To the nearest second, as Redis does.
        0.. => left.saturating_add(500) / 1000,
        _ => left,
    }))
}

/// Returns a key's remaining time in ms: -1 without an expiry, -2 if it does not exist.
fn left(keyspace: &mut Keyspace, key: &[u8]) -> i64 {
    let now = keyspace.now_ms();
    match keyspace.entry(key) {
        None => -2,
        Some(entry) => entry.end.map_or(-1, |end| end - now),
    }
}

pub(super) fn pexpire(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let now = keyspace.now_ms();
    set_end(keyspace, args, "pexpire", |ms| ms.checked_add(now))
}

pub(super) fn expire(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let now = keyspace.now_ms();
    set_end(keyspace, args, "expire", |s| {
        s.checked_mul(1000)?.checked_add(now)
    })
}

pub(super) fn pexpireat(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    set_end(keyspace, args, "pexpireat", Some)
}

fn set_end(
    keyspace: &mut Keyspace,
    args: &[Vec<u8>],
    command: &str,
    end: impl Fn(i64) -> Option<i64>,
) -> Outcome {
    let condition = Condition::parse(&args[3..])?;
    let end = end(integer(&args[2])?).ok_or_else(|| invalid_expire(command))?;
    let now = keyspace.now_ms();
    let Some(entry) = keyspace.entry(&args[1]) else {
        return Ok(Reply::Int(0));
    };
    if !condition.allows(entry.end, end) {
        return Ok(Reply::Int(0));
    }
    entry.end = Some(end);
    // A key that expires in this millisecond still exists, but cannot be made to.
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

/// The conditions that EXPIRE and its siblings take since Redis 7.0.
#[derive(Default)]
struct Condition {
    only_without: bool,
    only_with: bool,
    only_later: bool,
    only_earlier: bool,
}

impl Condition {
    fn parse(args: &[Vec<u8>]) -> Result<Self, String> {
        let mut condition = Self::default();
        for arg in args {
            let option = match arg {
                arg if is(arg, "NX") => &mut condition.only_without,
                arg if is(arg, "XX") => &mut condition.only_with,
                arg if is(arg, "GT") => &mut condition.only_later,
                arg if is(arg, "LT") => &mut condition.only_earlier,
                _ => {
                    let arg = String::from_utf8_lossy(arg).replace(['\r', '\n'], " ");
                    return Err(format!("ERR Unsupported option {arg}"));
                }
            };
            *option = true;
        }
        let Self {
            only_without,
            only_with,
            only_later,
            only_earlier,
        } = condition;
        if only_without && (only_with || only_later || only_earlier) {
            let error = "ERR NX and XX, GT or LT options at the same time are not compatible";
            return Err(error.to_owned());
        }
        if only_later && only_earlier {
            return Err("ERR GT and LT options at the same time are not compatible".to_owned());
        }
        Ok(condition)
    }

    /// Returns whether a key's end may change. A key without an end counts as endless.
    fn allows(&self, current: Option<i64>, new: i64) -> bool {
        match current {
            None => !self.only_with && !self.only_later,
            Some(current) => {
                let is_barred = self.only_without
                    || (self.only_later && new <= current)
                    || (self.only_earlier && new >= current);
                !is_barred
            }
        }
    }
}
