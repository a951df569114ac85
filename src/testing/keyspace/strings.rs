//! Strings.

use super::super::reply::Reply;
use super::args::{self, integer, invalid_expire, is};
use super::data::{Keyspace, Outcome};
use super::value::StringValue;

/// The options of SET.
#[derive(Default)]
struct Options<'a> {
    only_if_absent: bool,
    keeps_end: bool,
    replies_old: bool,
    /// Which of EX, PX and PXAT, and its number.
    expiry: Option<(&'static str, &'a [u8])>,
}

pub(super) fn get(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let found: Option<&mut StringValue> = keyspace.find(&args[1])?;
    Ok(Reply::Bulk(found.cloned()))
}

pub(super) fn mget(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let keys = args[1..].iter();
    Ok(Reply::array(keys.map(|key| {
        // A value of another type reads as nil.
        let found: Option<&mut StringValue> = keyspace.find(key).unwrap_or_default();
        Reply::Bulk(found.cloned())
    })))
}

pub(super) fn incr(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let found: Option<&mut StringValue> = keyspace.find(&args[1])?;
    let old = found.map_or(Ok(0), |value| integer(value))?;
    let new = old.checked_add(1).ok_or_else(args::overflow)?;
    *keyspace.find_or_create::<StringValue>(&args[1])? = new.to_string().into_bytes();
    Ok(Reply::Int(new))
}

pub(super) fn set(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let (key, value) = (&args[1], &args[2]);
    let options = Options::parse(&args[3..])?;
    let end = match options.expiry {
        Some((unit, number)) => Some(end_of(unit, number, keyspace.now_ms())?),
        None => None,
    };
    let reply = if options.replies_old {
        let old: Option<&mut StringValue> = keyspace.find(key)?;
        Reply::Bulk(old.cloned())
    } else {
        Reply::OK
    };
    let end = match keyspace.entry(key) {
        Some(_) if options.only_if_absent => {
            return Ok(if options.replies_old {
                reply
            } else {
                Reply::NIL
            });
        }
        Some(entry) if options.keeps_end => entry.end,
        _ => end,
    };
    keyspace.insert(key, value.clone(), end);
    Ok(reply)
}

impl<'a> Options<'a> {
    fn parse(args: &'a [Vec<u8>]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut rest = args.iter();
        while let Some(arg) = rest.next() {
            let unit = ["EX", "PX", "PXAT"].into_iter().find(|unit| is(arg, unit));
            // The same unit may be given again; the last number counts.
            let is_other = |given: &(&str, _)| Some(given.0) != unit;
            match unit {
                None if is(arg, "NX") => options.only_if_absent = true,
                None if is(arg, "GET") => options.replies_old = true,
                None if is(arg, "KEEPTTL") && options.expiry.is_none() => options.keeps_end = true,
                None if is(arg, "KEEPTTL") => return Err(args::syntax()),
                None => return Err(args::unknown_part(b"SET", arg)),
                Some(_) if options.keeps_end || options.expiry.as_ref().is_some_and(is_other) => {
                    return Err(args::syntax());
                }
                Some(unit) => options.expiry = Some((unit, rest.next().ok_or_else(args::syntax)?)),
            }
        }
        Ok(options)
    }
}

/// Returns when a key set now expires, in ms since 1970.
fn end_of(unit: &str, number: &[u8], now: i64) -> Result<i64, String> {
    let number = integer(number)?;
    let ms = match unit {
        "EX" => number.checked_mul(1000),
        _ => Some(number),
    };
    let is_absolute = unit == "PXAT";
    ms.filter(|ms| *ms > 0)
        .and_then(|ms| ms.checked_add(if is_absolute { 0 } else { now }))
        .ok_or_else(|| invalid_expire("set"))
}
