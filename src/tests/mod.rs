//! Property: for any bytes from a peer, no decoder panics or reads a grant that is not in them.
//!
//! Nor does a decoder return more bytes or items than it was given.

mod answers;
mod arbitrary;
mod mutations;
mod other_replies;
mod recordings;

use std::env;
use std::thread;

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use redis::Value;

use crate::protocol::reply::Reply;

use answers::check_answers;
use arbitrary::arbitrary;
use mutations::{change, garble};
use other_replies::check_reply;
use recordings::{read, replies};

/// The number of replies to decode, over all threads.
const CASES: u64 = 1_000_000;

const THREADS: u64 = 2;

/// The default seed. To run with another:
/// `LEASEHOLD_SEED=7 cargo test --all-features --lib no_decoder`.
const SEED: u64 = 0x1ea5_e401d;

/// Prints the number of the current case on a panic.
struct Case {
    seed: u64,
    number: u64,
}

impl Drop for Case {
    fn drop(&mut self) {
        if thread::panicking() {
            let Self { seed, number } = self;
            eprintln!("case {number} of LEASEHOLD_SEED={seed}");
        }
    }
}

/// Decodes `reply` with every decoder, and checks the results.
fn check(reply: &Reply) {
    let most = weight(reply);
    check_reply(reply, most);
    // An error becomes a `Fault` and is never read as an answer.
    if !matches!(reply, Reply::Error(_)) {
        check_answers(reply, most);
    }
}

/// Returns what the redis crate has read.
fn as_reply(value: Value) -> Reply {
    match value {
        Value::Nil => Reply::Nil,
        Value::Int(n) => Reply::Int(n),
        Value::BulkString(text) => Reply::Text(text),
        Value::SimpleString(text) => Reply::Status(text),
        Value::Okay => Reply::Status("OK".into()),
        Value::Array(items) => Reply::List(items.into_iter().map(as_reply).collect()),
        Value::Map(pairs) => {
            let items = pairs.into_iter().flat_map(|(key, value)| [key, value]);
            Reply::List(items.map(as_reply).collect())
        }
        Value::ServerError(error) => Reply::Error(error),
        _ => Reply::Other,
    }
}

/// Returns the most bytes and items that a decoder may return for `reply`.
fn weight(reply: &Reply) -> usize {
    1 + match reply {
        Reply::Text(bytes) => bytes.len(),
        Reply::Status(text) => text.len(),
        Reply::List(items) | Reply::Push(items) => items.iter().map(weight).sum(),
        // An integer, for example: its text is shorter.
        _ => 64,
    }
}

fn run(seed: u64, cases: impl Iterator<Item = u64>) {
    let replies = replies();
    let read_replies: Vec<Reply> = replies.iter().map(|reply| read(reply).unwrap()).collect();
    for number in cases {
        let _case = Case { seed, number };
        let mut random = SmallRng::seed_from_u64(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let which = random.random_range(0..replies.len());
        if number % 8 == 1 {
            check(&arbitrary(&mut random, 3));
        } else if number % 4 == 0 {
            let mut bytes = replies[which].clone();
            garble(&mut bytes, &mut random);
            if let Some(reply) = read(&bytes) {
                // The parser of the redis crate must read the same, except pushes, whose kinds it
                // translates.
                if !matches!(reply, Reply::Push(_)) {
                    assert_eq!(reply, as_reply(redis::parse_redis_value(&bytes).unwrap()));
                }
                check(&reply);
            }
        } else {
            let mut reply = read_replies[which].clone();
            for _ in 0..random.random_range(1..4) {
                change(&mut reply, &mut random);
            }
            check(&reply);
        }
    }
}

#[test]
fn no_decoder_panics_or_reads_a_grant_that_is_not_in_the_reply() {
    let seed = env::var("LEASEHOLD_SEED").ok();
    let seed = seed.map_or(SEED, |seed| seed.parse().unwrap());
    for reply in replies() {
        check(&read(&reply).unwrap());
    }
    thread::scope(|scope| {
        for first in 0..THREADS {
            scope.spawn(move || run(seed, (first..CASES).step_by(THREADS as usize)));
        }
    });
}
