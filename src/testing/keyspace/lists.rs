//! Lists.

use super::super::reply::Reply;
use super::args::{self, integer};
use super::data::{Keyspace, Outcome};
use super::value::ListValue;

pub(super) fn lindex(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let Some(list) = keyspace.find::<ListValue>(&args[1])? else {
        return Ok(Reply::NIL);
    };
    let index = from_start(integer(&args[2])?, list.len());
    let item = usize::try_from(index)
        .ok()
        .and_then(|index| list.get(index));
    Ok(Reply::Bulk(item.cloned()))
}

pub(super) fn llen(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    keyspace.read(&args[1], Reply::Int(0), |list: &ListValue| {
        Reply::count(list.len())
    })
}

pub(super) fn lrange(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let (first, last) = (integer(&args[2])?, integer(&args[3])?);
    keyspace.read(&args[1], Reply::array([]), |list: &ListValue| {
        let (first, count) = first_and_count(first, last, list.len());
        let items = list.iter().skip(first).take(count);
        Reply::array(items.cloned().map(Reply::bulk))
    })
}

/// Returns the index of the first of the items from `first` to `last`, and their number, which may
/// be too high at the end of the list.
pub(super) fn first_and_count(first: i64, last: i64, len: usize) -> (usize, usize) {
    // `None` for an index before the start of the list: `first` is then the start, and `last`
    // selects nothing.
    let index = |index| usize::try_from(from_start(index, len)).ok();
    let first = index(first).unwrap_or(0);
    let count = index(last).map_or(0, |last| last.saturating_add(1).saturating_sub(first));
    (first, count)
}

pub(super) fn rpush(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let list: &mut ListValue = keyspace.find_or_create(&args[1])?;
    list.extend(args[2..].iter().cloned());
    Ok(Reply::count(list.len()))
}

pub(super) fn lpush(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let list: &mut ListValue = keyspace.find_or_create(&args[1])?;
    for item in &args[2..] {
        list.push_front(item.clone());
    }
    Ok(Reply::count(list.len()))
}

pub(super) fn lpop(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    args::no_options(args, 2)?;
    keyspace.change(&args[1], Reply::NIL, |list: &mut ListValue| {
        Reply::Bulk(list.pop_front())
    })
}

pub(super) fn lrem(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let count = integer(&args[2])?;
    let most = match count {
        0 => usize::MAX,
        _ => usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX),
    };
    keyspace.change(&args[1], Reply::Int(0), |list: &mut ListValue| {
        let matches = |(index, item)| (item == &args[3]).then_some(index);
        let indexes = list.iter().enumerate();
        let removed: Vec<usize> = if count < 0 {
            indexes.rev().filter_map(matches).take(most).collect()
        } else {
            indexes.filter_map(matches).take(most).collect()
        };
        let mut index = 0..;
        list.retain(|_| !removed.contains(&index.next().unwrap_or(0)));
        Reply::count(removed.len())
    })
}

/// Counts a negative index from the end; the result is negative if it is before the start.
fn from_start(index: i64, len: usize) -> i64 {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    if index < 0 { index + len } else { index }
}
