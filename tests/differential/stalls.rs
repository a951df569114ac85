//! A server that stalls in the middle of a script does not make a key expire earlier than a holder
//! relies on.

use crate::compare::micros;
use crate::kit::Reply;
use crate::real::Real;
use crate::scripts::Script;
use crate::words::Command;

/// A Lua function that returns the reply to `TIME` about 0.2 s late.
///
/// It counts because it cannot measure the time: the only clock of a script is `TIME`, which some
/// servers stop while a script runs.
const STALLED: &str = "local function stalled(time)
  for _ = 1, 5e7 do end
  return time
end
";

/// By how much earlier an unchanged end may be measured, in ms: `PTTL` rounds.
const TOLERANCE_MS: u64 = 5;

#[test]
fn second_reader_makes_neither_key_expire_earlier() {
    check(
        &["lock", "readers"],
        &["queue_enter/5 lock fence queue places readers id0 10000 r 0"],
        "queue_enter/5 lock fence queue places readers id1 9950 r 0",
    );
}

#[test]
fn writer_that_becomes_a_reader_does_not_expire_earlier() {
    check(
        &["lock"],
        &["queue_enter/5 lock fence queue places readers id0 10000 1 0"],
        "renew_shared/2 lock readers id0 1000",
    );
}

#[test]
fn second_permit_does_not_make_the_permits_expire_earlier() {
    check(
        &["permits"],
        &["permits queue_enter/4 permits fence queue places 1_id0 10000 1/3 0"],
        "permits queue_enter/4 permits fence queue places 1_id1 9950 1/3 0",
    );
}

#[test]
fn renewal_of_one_permit_does_not_make_the_permits_expire_earlier() {
    check(
        &["permits"],
        &[
            "permits queue_enter/4 permits fence queue places 1_id0 10000 1/3 0",
            "permits queue_enter/4 permits fence queue places 1_id1 1000 1/3 0",
        ],
        "permits_renew/1 permits 1_id1 9950",
    );
}

#[test]
fn renewal_of_many_permits_does_not_make_them_expire_earlier() {
    check(
        &["permits"],
        &[
            "permits queue_enter/4 permits fence queue places 1_id0 10000 1/3 0",
            "permits queue_enter/4 permits fence queue places 1_id1 1000 1/3 0",
            "permits queue_enter/4 permits fence queue places 1_id2 1000 1/3 0",
        ],
        "permits_renew_many/2 permits permits 9950 1_id1 1_id2",
    );
}

#[test]
fn readers_renewed_together_do_not_expire_earlier() {
    check(
        &["lock", "readers"],
        &[
            "queue_enter/5 lock fence queue places readers id0 10000 r 0",
            "queue_enter/5 lock fence queue places readers id1 1000 r 0",
            "queue_enter/5 lock fence queue places readers id2 1000 r 0",
        ],
        "renew_shared_many/4 lock readers lock readers 9950 id1 id2",
    );
}

/// Checks that a call during which the server stalls makes none of these keys expire earlier.
///
/// A call is the name of a script, a slash, the number of keys, the keys and the arguments. In a
/// key or an argument, `_` stands for a space.
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
    let load_stalled = |source: &str| {
        let stalled = source.replace("redis.call('TIME')", "stalled(redis.call('TIME'))");
        if stalled == source {
            // A script without `TIME` keeps its digest, which the assertion below refuses.
            real.load(source)
        } else {
            real.load(&format!("{STALLED}{stalled}"))
        }
    };
    let stalled_scripts = Script::all(load_stalled);
    let digest = |scripts| called(scripts, stalled).digest().to_vec();
    assert!(
        digest(&scripts) != digest(&stalled_scripts),
        "no call of TIME was found to stall at: {stalled}"
    );
    let ends: Vec<u64> = keys.iter().map(|key| end(&mut real, key)).collect();
    call(&mut real, &stalled_scripts, stalled);
    for (key, before) in keys.iter().zip(ends) {
        let after = end(&mut real, key);
        assert!(
            after + TOLERANCE_MS >= before,
            "{key} expires {} ms earlier",
            before - after
        );
    }
}

fn command(scripts: &[Script], call: &str) -> Command {
    let (_, args) = call.split_once('/').unwrap();
    let args = args
        .split(' ')
        .map(|arg| arg.replace('_', " ").into_bytes());
    [b"EVALSHA".to_vec(), called(scripts, call).digest().to_vec()]
        .into_iter()
        .chain(args)
        .collect()
}

fn called<'a>(scripts: &'a [Script], call: &str) -> &'a Script {
    let (name, _) = call.split_once('/').unwrap();
    scripts.iter().find(|script| script.name == name).unwrap()
}

/// Returns when a key expires, in ms since 1970.
///
/// If the server pauses between `TIME` and `PTTL`, the result is too early, never too late. So the
/// latest of five results counts.
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
