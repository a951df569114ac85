//! Property: for any bytes from a peer, no decoder panics or reads a grant that is not in them.
//!
//! Nor does a decoder return more bytes or items than it was given.

mod answers;
mod arbitrary;
mod mutations;
mod recordings;
mod values;

use std::env;
use std::thread;

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use redis::Value;

use crate::protocol::reply::Reply;

use answers::check_answers;
use arbitrary::arbitrary;
use mutations::{change, garble};
use recordings::{replies, value};
use values::check_value;

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

/// Decodes `value` with every decoder, and checks the results.
fn check(value: Value) {
    let most = weight(&value);
    check_value(&value, most);
    // An error becomes a `Fault` and is never read as an answer.
    if !matches!(value, Value::ServerError(_)) {
        check_answers(&Reply::from(value), most);
    }
}

/// Returns the most bytes and items that a decoder may return for `value`.
fn weight(value: &Value) -> usize {
    1 + match value {
        Value::BulkString(bytes) => bytes.len(),
        Value::SimpleString(text) => text.len(),
        Value::Array(items) | Value::Push { data: items, .. } => items.iter().map(weight).sum(),
        Value::Map(pairs) => pairs.iter().map(|(k, v)| weight(k) + weight(v)).sum(),
        // An integer, for example: its text is shorter.
        _ => 64,
    }
}

fn run(seed: u64, cases: impl Iterator<Item = u64>) {
    let replies = replies();
    let values: Vec<Value> = replies.iter().map(|reply| value(reply).unwrap()).collect();
    for number in cases {
        let _case = Case { seed, number };
        let mut random = SmallRng::seed_from_u64(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let which = random.random_range(0..replies.len());
        if number % 8 == 1 {
            check(arbitrary(&mut random, 3));
        } else if number % 4 == 0 {
            let mut bytes = replies[which].clone();
            garble(&mut bytes, &mut random);
            if let Some(value) = value(&bytes) {
                // The parser of the redis crate must read the same value. The two are compared as
                // text, because NaN is not equal to itself.
                let read = redis::parse_redis_value(&bytes).unwrap();
                assert_eq!(format!("{value:?}"), format!("{read:?}"));
                check(value);
            }
        } else {
            let mut value = values[which].clone();
            for _ in 0..random.random_range(1..4) {
                change(&mut value, &mut random);
            }
            check(value);
        }
    }
}

#[test]
fn no_decoder_panics_or_reads_a_grant_that_is_not_in_the_reply() {
    let seed = env::var("LEASEHOLD_SEED").ok();
    let seed = seed.map_or(SEED, |seed| seed.parse().unwrap());
    for reply in replies() {
        check(value(&reply).unwrap());
    }
    thread::scope(|scope| {
        for first in 0..THREADS {
            scope.spawn(move || run(seed, (first..CASES).step_by(THREADS as usize)));
        }
    });
}
