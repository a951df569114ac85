//! Hashes.

use super::super::reply::Reply;
use super::args::{self, integer, parse_integer};
use super::data::{Keyspace, Outcome};
use super::value::HashValue;

pub(super) fn hget(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    keyspace.read(&args[1], Reply::NIL, |hash: &HashValue| {
        Reply::Bulk(hash.get(&args[2]).cloned())
    })
}

pub(super) fn hset(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let (pairs, rest) = args[2..].as_chunks();
    if !rest.is_empty() {
        return Err(args::wrong_number("hset"));
    }
    let hash: &mut HashValue = keyspace.find_or_create(&args[1])?;
    let mut added = 0;
    for [field, value] in pairs {
        let old = hash.insert(field.clone(), value.clone());
        added += usize::from(old.is_none());
    }
    Ok(Reply::count(added))
}

pub(super) fn hdel(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    keyspace.change(&args[1], Reply::Int(0), |hash: &mut HashValue| {
        let fields = args[2..].iter();
        Reply::count(fields.filter_map(|field| hash.remove(field)).count())
    })
}

pub(super) fn hincrby(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let (key, field) = (&args[1], &args[2]);
    let by = integer(&args[3])?;
    let hash: Option<&mut HashValue> = keyspace.find(key)?;
    let old = match hash.and_then(|hash| hash.get(field)) {
        Some(value) => parse_integer(value).ok_or("ERR hash value is not an integer")?,
        None => 0,
    };
    let new = old.checked_add(by).ok_or_else(args::overflow)?;
    let hash: &mut HashValue = keyspace.find_or_create(key)?;
    hash.insert(field.clone(), new.to_string().into_bytes());
    Ok(Reply::Int(new))
}

pub(super) fn hgetall(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    keyspace.read(&args[1], Reply::array([]), |hash: &HashValue| {
        let pairs = hash.iter().flat_map(|(field, value)| [field, value]);
        Reply::array(pairs.cloned().map(Reply::bulk))
    })
}

pub(super) fn hvals(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    keyspace.read(&args[1], Reply::array([]), |hash: &HashValue| {
        Reply::array(hash.values().cloned().map(Reply::bulk))
    })
}

pub(super) fn hlen(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    keyspace.read(&args[1], Reply::Int(0), |hash: &HashValue| {
        Reply::count(hash.len())
    })
}
