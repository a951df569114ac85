//! Random changes of a reply, as it is read and as bytes.

use rand::RngExt as _;
use rand::rngs::SmallRng;

use crate::protocol::reply::Reply;

use super::arbitrary::{NUMBERS, pick, scalar};

/// Changes one thing somewhere in `reply`.
pub(super) fn change(reply: &mut Reply, random: &mut SmallRng) {
    let items = match reply {
        Reply::List(items) | Reply::Push(items) if !items.is_empty() => items,
        reply => return *reply = scalar(random),
    };
    let (n, m) = (
        random.random_range(0..items.len()),
        random.random_range(0..items.len()),
    );
    match random.random_range(0..10) {
        0 => drop(items.remove(n)),
        1 => items.insert(n, scalar(random)),
        2 => items.push(items[n].clone()),
        3 => items.swap(n, m),
        4 => items[n] = scalar(random),
        _ => change(&mut items[n], random),
    }
}

/// Changes, removes, inserts or duplicates a few bytes, or replaces a number.
pub(super) fn garble(bytes: &mut Vec<u8>, random: &mut SmallRng) {
    const BYTES: &[u8] = b"+-:$*%~>|_#,(!=\r\n0123456789x\xff";
    for _ in 0..random.random_range(1..4) {
        let from = random.random_range(0..=bytes.len());
        let to = (from + random.random_range(0..6)).min(bytes.len());
        match random.random_range(0..5) {
            4 => {
                let is_digit = |byte: &&u8| byte.is_ascii_digit();
                let begin = from + bytes[from..].iter().take_while(|b| !is_digit(b)).count();
                let end = begin + bytes[begin..].iter().take_while(is_digit).count();
                bytes.splice(begin..end, pick(random, &NUMBERS).to_string().into_bytes());
            }
            0 => drop(bytes.drain(from..to)),
            1 => bytes.extend_from_within(from..to),
            2 => bytes.insert(from, pick(random, BYTES)),
            _ if from < to => bytes[from] = pick(random, BYTES),
            _ => {}
        }
    }
}
