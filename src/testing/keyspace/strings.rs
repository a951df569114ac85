//! Strings.

use super::args::{self, integer, invalid_expire, is};
use super::{Keyspace, Outcome, Reply};

pub(super) type StringValue = Vec<u8>;

/// The options of SET.
#[derive(Default)]
struct Options<'a> {
    only_if_absent: bool,
    only_if_present: bool,
    get: bool,
    keep_ttl: bool,
    /// Which of EX, PX, EXAT and PXAT, and its number.
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
    let old = match options.get {
        true => get(keyspace, &args[..2])?,
        false => Reply::NIL,
    };
    let current = keyspace.entry(key).map(|entry| entry.end);
    let is_barred = match current {
        Some(_) => options.only_if_absent,
        None => options.only_if_present,
    };
    if is_barred {
        return Ok(old);
    }
    let kept = current.flatten().filter(|_| options.keep_ttl);
    keyspace.insert(key, value.clone(), end.or(kept));
    Ok(if options.get { old } else { Reply::OK })
}

impl<'a> Options<'a> {
    fn parse(args: &'a [Vec<u8>]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let unit = ["EX", "PX", "EXAT", "PXAT"]
                .into_iter()
                .find(|unit| is(arg, unit));
            // The same unit may be given again; the last number counts.
            let is_other = |given: &(&str, _)| Some(given.0) != unit;
            if is(arg, "NX") && !options.only_if_present {
                options.only_if_absent = true;
            } else if is(arg, "XX") && !options.only_if_absent {
                options.only_if_present = true;
            } else if is(arg, "GET") {
                options.get = true;
            } else if is(arg, "KEEPTTL") && options.expiry.is_none() {
                options.keep_ttl = true;
            } else if let Some(unit) = unit
                && !options.keep_ttl
                && !options.expiry.as_ref().is_some_and(is_other)
            {
                options.expiry = Some((unit, args.next().ok_or_else(args::syntax)?));
            } else {
                return Err(args::syntax());
            }
        }
        Ok(options)
    }
}

/// Returns when a key set now expires, in ms since 1970.
fn end_of(unit: &str, number: &[u8], now: i64) -> Result<i64, String> {
    let number = integer(number)?;
    let ms = match unit {
        "EX" | "EXAT" => number.checked_mul(1000),
        _ => Some(number),
    };
    let is_absolute = unit.ends_with("AT");
    ms.filter(|ms| *ms > 0)
        .and_then(|ms| ms.checked_add(if is_absolute { 0 } else { now }))
        .ok_or_else(|| invalid_expire("set"))
}
