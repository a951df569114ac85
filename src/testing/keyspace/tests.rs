//! Tests of the commands without a real server. `tests/differential/` compares random commands with
//! one, but cannot show exact times, a scan during deletions, or the kit's own errors.

use super::*;

/// A time at the start of a millisecond, in µs.
const NOW: u64 = 1_700_000_000_000_000;

/// Runs a command, written as words, and returns its reply as redis-cli would write it on one line.
fn run(keyspace: &mut Keyspace, now: u64, command: &str) -> String {
    let args: Vec<Vec<u8>> = command
        .split(' ')
        .map(|arg| arg.trim_matches('"').into())
        .collect();
    shown(&keyspace.execute(now, &args))
}

fn shown(reply: &Reply) -> String {
    match reply {
        Reply::Status(text) => (*text).to_owned(),
        Reply::Int(number) => number.to_string(),
        Reply::Bulk(Some(text)) => format!("\"{}\"", text.escape_ascii()),
        Reply::Bulk(None) | Reply::Array(None) => "nil".to_owned(),
        Reply::Array(Some(items)) => {
            let items: Vec<String> = items.iter().map(shown).collect();
            format!("[{}]", items.join(" "))
        }
        Reply::Error(text) => text.clone(),
    }
}

/// Runs a script of commands and expected replies on an empty keyspace, all at [`NOW`].
#[track_caller]
fn check(steps: &[(&str, &str)]) {
    let mut keyspace = Keyspace::default();
    for (command, reply) in steps {
        assert_eq!(run(&mut keyspace, NOW, command), *reply, "{command}");
    }
}

#[test]
fn a_key_exists_until_the_millisecond_of_its_end_has_passed() {
    let mut keyspace = Keyspace::default();
    let mut at = |micros: u64, command: &str| run(&mut keyspace, NOW + micros, command);
    assert_eq!(at(0, "SET k v PX 10"), "OK");
    assert_eq!(at(0, "PTTL k"), "10");
    assert_eq!(at(10_999, "PTTL k"), "0");
    assert_eq!(at(10_999, "EXISTS k"), "1");
    // EXPIRE deletes a key whose end is this millisecond.
    assert_eq!(at(10_999, "PEXPIRE k 0"), "1");
    assert_eq!(at(10_999, "EXISTS k"), "0");
    assert_eq!(at(20_000, "SET k v PX 10"), "OK");
    assert_eq!(at(31_000, "PTTL k"), "-2");
    assert_eq!(at(31_000, "SET k v PX 10 NX"), "OK");
    assert_eq!(at(42_000, "DBSIZE"), "0");
    assert_eq!(at(42_000, "SET k v PX 10"), "OK");
    assert_eq!(keyspace.keys(NOW + 52_999), [b"k"]);
    assert_eq!(keyspace.keys(NOW + 53_000), Vec::<Vec<u8>>::new());
}

#[test]
fn set_can_keep_the_end_and_reply_with_the_old_value() {
    check(&[
        ("SET k a KEEPTTL GET", "nil"),
        ("PTTL k", "-1"),
        ("SET k b PX 10 GET", "\"a\""),
        ("SET k c get keepttl", "\"b\""),
        ("PTTL k", "10"),
        ("SET k d NX GET KEEPTTL", "\"c\""),
        ("SET k e", "OK"),
        ("PTTL k", "-1"),
        ("SET k f KEEPTTL PX 10", "ERR syntax error"),
        ("SET k f EX 10 KEEPTTL", "ERR syntax error"),
        ("GET k", "\"e\""),
        ("RPUSH l a", "1"),
        ("SET l b KEEPTTL GET", &args::wrong_type()),
        ("TYPE l", "list"),
    ]);
}

#[test]
fn a_container_without_items_does_not_exist() {
    check(&[
        ("RPUSH l a", "1"),
        ("LPOP l", "\"a\""),
        ("HSET h f v", "1"),
        ("HDEL h f", "1"),
        ("ZADD z 1 m", "1"),
        ("ZREMRANGEBYSCORE z -inf +inf", "1"),
        ("SADD s m", "1"),
        ("SREM s m", "1"),
        ("RPUSH l a a", "2"),
        ("LREM l 0 a", "2"),
        ("KEYS *", "[]"),
    ]);
}

#[test]
fn members_of_a_sorted_set_are_listed_by_index() {
    check(&[
        ("ZADD z 2 b 1 a 3 c", "3"),
        ("ZRANGE z 0 0 WITHSCORES", "[\"a\" \"1\"]"),
        ("ZRANGE z -1 -1 WITHSCORES", "[\"c\" \"3\"]"),
        ("ZRANGE z 1 9", "[\"b\" \"c\"]"),
        ("ZRANGE z 0 -9", "[]"),
        ("ZRANGE none 0 -1", "[]"),
        ("ZRANGE z 0 1 BYSCORE", "ERR syntax error"),
    ]);
}

#[test]
fn unknown_command_is_named() {
    check(&[
        (
            "GETDEL k",
            "ERR unknown command 'GETDEL': leasehold::testing has no such command",
        ),
        ("get k k", "ERR wrong number of arguments for 'get' command"),
    ]);
}

#[test]
fn scan_returns_every_key_that_is_there_throughout() {
    let mut keyspace = Keyspace::default();
    for n in 0..100 {
        run(&mut keyspace, NOW, &format!("SET key:{n} v"));
    }
    let (mut cursor, mut seen) = (b"0".to_vec(), Vec::new());
    loop {
        let command = [b"SCAN".to_vec(), cursor, b"COUNT".to_vec(), b"7".to_vec()];
        let Reply::Array(Some(page)) = keyspace.execute(NOW, &command) else {
            panic!("no page");
        };
        let [Reply::Bulk(Some(next)), Reply::Array(Some(keys))] = &page[..] else {
            panic!("{page:?}");
        };
        assert!(keys.len() <= 7, "a larger page than asked for");
        for key in keys {
            let Reply::Bulk(Some(key)) = key else {
                panic!()
            };
            // Deleting what was listed must not hide another key.
            keyspace.execute(NOW, &[b"DEL".to_vec(), key.clone()]);
            seen.push(key.clone());
        }
        if next == b"0" {
            break;
        }
        cursor = next.clone();
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 100);
}

#[test]
fn patterns_match_as_in_redis() {
    for (pattern, text, is_match) in [
        ("*", "", true),
        ("lock:*", "lock:a", true),
        ("lock:*", "locks", false),
        ("*a*b", "xaxxbab", true),
        ("?x", "ax", true),
        ("[a-c]x[^d]", "bxe", true),
        ("[c-a]", "b", true),
        ("[^a]", "a", false),
        ("[a", "a", true),
        ("\\*", "*", true),
        ("\\*", "a", false),
        ("[\\]]", "]", true),
        ("a\\", "a\\", true),
    ] {
        let found = glob::matches(pattern.as_bytes(), text.as_bytes());
        assert_eq!(found, is_match, "{pattern} {text}");
    }
}

#[test]
fn an_option_that_the_kit_lacks_is_refused_by_name() {
    let mut keyspace = Keyspace::default();
    for (command, named) in [
        ("SET k v xx", "SET XX"),
        ("ZADD z GT 1 m", "ZADD GT"),
        ("ZADD z XX CH 1 m", "ZADD CH"),
        ("FLUSHALL ASYNC", "FLUSHALL ASYNC"),
    ] {
        let expected = format!(
            "ERR {named}: the server of leasehold::testing does not know this command, or these \
             arguments; test this with a real server"
        );
        assert_eq!(run(&mut keyspace, NOW, command), expected);
    }
    assert_eq!(run(&mut keyspace, NOW, "DBSIZE"), "0");
}
