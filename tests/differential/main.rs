//! The test kit against a real server: the same random commands, and the same replies.
//!
//! `LEASEHOLD_STEPS` sets the number of commands of each test, and `LEASEHOLD_SEED` repeats those
//! of an earlier run.

mod compare;
mod kit;
mod real;
mod scripts;
mod session;
mod stalls;
mod state;
#[expect(dead_code, unused_imports, reason = "the test kit uses a part of it")]
#[path = "../../src/sync.rs"]
mod sync;
mod words;

use std::env;

use kit::{Kit, Reply};
use rand::RngExt;
use scripts::Script;
use session::Session;

/// How many commands each test compares.
const STEPS: u64 = 100_000;

/// Templates of all commands of the kit: see [`words::Words::command`].
const COMMANDS: &[&str] = &[
    "GET $string",
    "SET $string $value",
    "SET $string $value $set-option*",
    "SET $string $value PX $ms",
    "INCR $string",
    "MGET $key+",
    "DEL $key+",
    "EXISTS $key+",
    "TYPE $key",
    "TIME",
    "DBSIZE",
    "PTTL $key",
    "PEXPIRE $key $ms",
    "PEXPIREAT $key $when",
    "PERSIST $key",
    "HGET $hash $member",
    "HSET $hash $pair+",
    "HDEL $hash $member+",
    "HINCRBY $hash $member $integer",
    "HGETALL $hash",
    "HVALS $hash",
    "HLEN $hash",
    "LINDEX $list $integer",
    "LPOP $list",
    "RPUSH $list $member+",
    "LPUSH $list $member+",
    "LREM $list $count $member",
    "LLEN $list",
    "LRANGE $list $integer $integer",
    "SADD $set $member+",
    "SREM $set $member+",
    "SCARD $set",
    "SMEMBERS $set",
    "ZADD $zset $scored+",
    "ZADD $zset XX $scored+",
    "ZINCRBY $zset $score $member",
    "ZRANGE $zset $integer $integer",
    "ZRANGE $zset $integer $integer WITHSCORES",
    "ZRANGEBYSCORE $zset $bound $bound $range-option*",
    "ZREM $zset $member+",
    "ZSCORE $zset $member",
    "ZREMRANGEBYSCORE $zset $bound $bound",
    "KEYS $pattern",
    "SCAN 0 COUNT 1000 MATCH $pattern",
    "SCAN 0 COUNT 1000 TYPE $type",
    "SCAN 0 COUNT $integer",
];

#[test]
fn random_commands_have_the_replies_of_a_real_server() {
    Session::start(&words::KEYS).run(steps(), seed(), |words| {
        // Rarely: it removes what all other commands have written.
        if words.rng.random_ratio(1, 500) {
            return words.command("FLUSHALL");
        }
        let template = words.choose(COMMANDS);
        words.command(template)
    });
}

#[test]
fn random_calls_of_scripts_have_the_replies_of_a_real_server() {
    let mut session = Session::start(&scripts::KEYS);
    let scripts = Script::all(|source| session.load(source));
    for channel in scripts::CHANNELS {
        session.subscribe(channel);
    }
    session.run(steps(), seed(), |words| {
        scripts::random_call(&scripts, words)
    });
    for script in &scripts {
        let has_succeeded = session.succeeded.contains(script.digest());
        assert!(has_succeeded, "{} has only failed", script.name);
    }
}

#[test]
fn every_script_is_compared() {
    let unlisted = scripts::unlisted();
    assert!(
        unlisted.is_empty(),
        "not in tests/differential/scripts.rs: {unlisted:?}"
    );
}

#[test]
fn kit_has_every_command_that_a_script_calls() {
    let calls = scripts::calls();
    assert!(calls.len() > 50, "only {calls:?}");
    let mut kit = Kit::new();
    let unknown = calls.iter().filter(|(_, command)| !kit.knows(command));
    let unknown: Vec<String> = unknown
        .map(|(script, command)| format!("{script} calls {command}"))
        .collect();
    assert!(
        unknown.is_empty(),
        "the test kit lacks commands: {unknown:?}"
    );
}

#[test]
fn command_that_the_kit_lacks_is_found() {
    let source = "redis.call('GETDEL', KEYS[1]) redis.pcall(\"GET\", KEYS[1])";
    let mut calls = scripts::commands_in(source);
    assert_eq!(calls, ["GETDEL", "GET"]);
    let mut kit = Kit::new();
    calls.retain(|command| !kit.knows(command));
    assert_eq!(calls, ["GETDEL"]);
}

#[test]
fn holders_that_end_together_may_be_listed_in_either_order() {
    let holder = |id: &str, ttl: i64| [Reply::bulk(id), Reply::Int(ttl)];
    let listed = |holders: [[Reply; 2]; 2]| {
        let head = [Reply::Int(2), Reply::bulk("7")];
        Reply::Array(Some([&head[..], &holders.concat()].concat()))
    };
    let real = listed([holder("b", 3000), holder("a", 3000)]);
    let now = 1_800_000_000_000_000;
    let are_equal = |kit: Reply| compare::are_equal(b"EVALSHA", &real, &kit, now);
    assert!(are_equal(listed([holder("a", 2999), holder("b", 3000)])));
    assert!(!are_equal(listed([holder("a", 2000), holder("b", 3000)])));
    assert!(!are_equal(listed([holder("c", 3000), holder("b", 3000)])));
}

#[test]
#[should_panic(expected = "redis.call(command, KEYS[1])")]
fn call_of_a_command_that_is_not_written_there_is_found() {
    scripts::commands_in("local command = 'GET' redis.call(command, KEYS[1])");
}

#[test]
#[should_panic(expected = "redis.call call('GET')")]
fn second_name_of_the_function_is_found() {
    scripts::commands_in("local call = redis.pcall call('GET')");
}

fn steps() -> u64 {
    variable("LEASEHOLD_STEPS").unwrap_or(STEPS)
}

fn seed() -> u64 {
    variable("LEASEHOLD_SEED").unwrap_or_else(rand::random)
}

fn variable(name: &str) -> Option<u64> {
    let value = env::var(name).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name} is no number: {value}")),
    )
}
