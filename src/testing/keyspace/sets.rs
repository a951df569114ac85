//! Sets: the data type of Redis, not sets of locks. Only the crate's own tests use them.

use super::super::reply::Reply;
use super::data::{Keyspace, Outcome};
use super::value::SetValue;

pub(super) fn sadd(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    let set: &mut SetValue = keyspace.find_or_create(&args[1])?;
    let members = args[2..].iter();
    Ok(Reply::count(
        members.filter(|member| set.insert(member.to_vec())).count(),
    ))
}

pub(super) fn srem(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    keyspace.change(&args[1], Reply::Int(0), |set: &mut SetValue| {
        let members = args[2..].iter();
        Reply::count(members.filter(|member| set.remove(*member)).count())
    })
}

pub(super) fn scard(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    keyspace.read(&args[1], Reply::Int(0), |set: &SetValue| {
        Reply::count(set.len())
    })
}

pub(super) fn smembers(keyspace: &mut Keyspace, args: &[Vec<u8>]) -> Outcome {
    keyspace.read(&args[1], Reply::array([]), |set: &SetValue| {
        Reply::array(set.iter().cloned().map(Reply::bulk))
    })
}
