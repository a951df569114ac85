//! A server that stands still in the middle of a script brings no end nearer that a holder counts
//! on.

use crate::compare::micros;
use crate::kit::Reply;
use crate::real::Real;
use crate::scripts::Script;
use crate::words::Command;

/// A function that stands still behind `TIME`, for about 0.2 s: scripts have no clock but `TIME`,
/// which some servers do not move on while a script runs.
const STALLED: &str = "local function stalled(time)
  for _ = 1, 5e7 do end
  return time
end
";

/// By how much an end that has not changed may seem to differ: `PTTL` rounds.
const TOLERANCE_MS: u64 = 5;

#[test]
fn second_reader_brings_the_end_of_the_mark_no_nearer() {
    check(
        &["lock", "readers"],
        &["shared queue_enter/5 lock fence queue places readers id0 10000 r 0"],
        "shared queue_enter/5 lock fence queue places readers id1 9950 r 0",
    );
}

#[test]
fn writer_that_becomes_a_reader_ends_no_sooner() {
    check(
        &["lock"],
        &["shared queue_enter/5 lock fence queue places readers id0 10000 1 0"],
        "renew_shared/2 lock readers id0 1000",
    );
}

#[test]
fn second_permit_brings_the_end_of_the_permits_no_nearer() {
    check(
        &["permits"],
        &["permits queue_enter/4 permits fence queue places 1_id0 10000 1/3 0"],
        "permits queue_enter/4 permits fence queue places 1_id1 9950 1/3 0",
    );
}

#[test]
fn renewal_brings_the_end_of_the_permits_no_nearer() {
    check(
        &["permits"],
        &[
            "permits queue_enter/4 permits fence queue places 1_id0 10000 1/3 0",
            "permits queue_enter/4 permits fence queue places 1_id1 1000 1/3 0",
        ],
        "permits_renew/1 permits 1_id1 9950",
    );
}

/// Checks that a call on which the server stands still brings the end of none of these keys nearer.
///
/// A call is the name of a script, a slash, the number of keys, the keys and the arguments. `_`
/// stands for a space.
fn check(keys: &[&str], before: &[&str], stalled: &str) {
    let mut real = Real::start();
    let scripts = Script::all(|source| real.load(source));
    let call = |real: &mut Real, scripts: &[Script], call: &str| {
        let reply = real.run(&[command(scripts, call)]).remove(0);
        assert!(!matches!(reply, Reply::Error(_)), "{call}: {reply:?}");
    };
    for before in before {
        call(&mut real, &scripts, before);
    }
    let mut real_stalled = |source: &str| {
        let source = source.replace("redis.call('TIME')", "stalled(redis.call('TIME'))");
        real.load(&format!("{STALLED}{source}"))
    };
    let slow = Script::all(&mut real_stalled);
    let ends: Vec<u64> = keys.iter().map(|key| end(&mut real, key)).collect();
    call(&mut real, &slow, stalled);
    for (key, before) in keys.iter().zip(ends) {
        let after = end(&mut real, key);
        assert!(
            after + TOLERANCE_MS >= before,
            "{key} ends {} ms sooner",
            before - after
        );
    }
}

fn command(scripts: &[Script], call: &str) -> Command {
    let (name, args) = call.split_once('/').unwrap();
    let script = scripts.iter().find(|script| script.name == name).unwrap();
    let args = args
        .split(' ')
        .map(|arg| arg.replace('_', " ").into_bytes());
    [b"EVALSHA".to_vec(), script.digest().to_vec()]
        .into_iter()
        .chain(args)
        .collect()
}

/// Returns when a key expires, in ms since 1970.
///
/// A server that pauses between `TIME` and `PTTL` makes the end seem nearer, never farther.
fn end(real: &mut Real, key: &str) -> u64 {
    let words = |words: &[&str]| words.iter().map(|word| word.as_bytes().to_vec()).collect();
    let sample = |_| {
        let replies = real.run(&[words(&["TIME"]), words(&["PTTL", key])]);
        let now = micros(&replies[0]).expect("TIME replies with the time") / 1000;
        let Reply::Int(left @ 0..) = replies[1] else {
            panic!("{key} does not expire: {:?}", replies[1]);
        };
        (now + left).cast_unsigned()
    };
    (0..5).map(sample).max().expect("a sample")
}
