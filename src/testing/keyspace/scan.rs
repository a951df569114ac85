//! The commands that list keys.

use super::super::reply::Reply;
use super::args::{self, integer, is};
use super::data::{Keyspace, Outcome};
use super::glob;

/// How many keys one SCAN examines, unless its option COUNT sets another number.
const COUNT: usize = 10;

pub(super) fn keys(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    keyspace.remove_expired();
    let keys = keyspace.entries.keys().map(|(_, key)| key);
    let found = keys.filter(|key| glob::matches(&args[1], key));
    Ok(Reply::array(found.cloned().map(Reply::bulk)))
}

pub(super) fn scan(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let cursor: Option<u64> = str::from_utf8(&args[1])
        .ok()
        .and_then(|arg| arg.parse().ok());
    let cursor = cursor.ok_or("ERR invalid cursor")?;
    let (mut count, mut pattern, mut kind) = (COUNT, &b"*"[..], None);
    let (options, rest) = args[2..].as_chunks();
    for [option, value] in options {
        if is(option, "COUNT") {
            let given = usize::try_from(integer(value)?).ok();
            count = given.filter(|count| *count > 0).ok_or_else(args::syntax)?;
        } else if is(option, "MATCH") {
            pattern = value;
        } else if is(option, "TYPE") {
            kind = Some(value);
        } else {
            return Err(args::syntax());
        }
    }
    if !rest.is_empty() {
        return Err(args::syntax());
    }
    keyspace.remove_expired();
    let mut rest = keyspace.entries.range((cursor, Vec::new())..).peekable();
    let (mut found, mut seen, mut last) = (Vec::new(), 0, None);
    // Keys with the same hash are in one page: the cursor is the hash of the next page's first key.
    while let Some(((hash, key), entry)) =
        rest.next_if(|((hash, _), _)| seen < count || last == Some(*hash))
    {
        (seen, last) = (seen + 1, Some(*hash));
        if glob::matches(pattern, key) && kind.is_none_or(|kind| is(kind, entry.value.type_name()))
        {
            found.push(Reply::bulk(key.clone()));
        }
    }
    let next = rest.peek().map_or(0, |((hash, _), _)| *hash);
    Ok(Reply::array([
        Reply::bulk(next.to_string()),
        Reply::array(found),
    ]))
}
