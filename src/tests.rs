//! Property: for any bytes from a peer, no decoder panics or reads a grant that was not replied.
//!
//! Nor does a decoder return more than it was given.

use std::env;
use std::thread;

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use redis::{Msg, PushKind, Value};

use crate::protocol::answer::{Answer, Refreshed, Wanted, read_grant};
use crate::protocol::redirect::Redirect;
use crate::protocol::reply::Reply;
use crate::protocol::slot::SLOTS;
use crate::protocol::verb::Verb;
use crate::redis::cluster::slots::Layout;
use crate::redis::conn::connector::is_master;
use crate::redis::conn::handshake::Step;
use crate::redis::conn::read_frame;
use crate::redis::inspect::{read_count, read_listeners, read_page};
use crate::redis::sentinel::{is_subscribed, read_place};
use crate::runtime::io::shared_stats;
use crate::runtime::subscriber::pubsub::{Received, read as read_received};

/// The number of replies to decode, over all threads.
const CASES: u64 = 1_000_000;

const THREADS: u64 = 2;

/// The default seed. To run with another: `LEASEHOLD_SEED=7 cargo test --lib decoders`.
const SEED: u64 = 0x1ea5_e401d;

/// The smallest number too large for a token.
const NO_TOKEN: i64 = 1 << 53;

/// Replies of real servers to every script and command in their typical outcomes, one in a line.
/// The integration test `replies` keeps them up to date.
const RECORDINGS: [&str; 2] = [
    include_str!("../tests/it/replies/one_server.txt"),
    include_str!("../tests/it/replies/several_servers.txt"),
];

/// Further replies of Redis 7, of rarer forms.
const RARE: [&str; 36] = [
    // acquire, propose, fair_enter, and the scripts for several names
    "*2\r\n:1\r\n:1764000000000000\r\n",
    "*3\r\n:0\r\n$42\r\nweb:7:123e4567-e89b-12d3-a456-426614174000\r\n:9876\r\n",
    "*3\r\n:0\r\n$1\r\nv\r\n:-1\r\n",
    "*3\r\n:0\r\n$-1\r\n:-2\r\n",
    "*4\r\n:1\r\n:1764000000000000\r\n:1764000000000001\r\n:7\r\n",
    "*4\r\n:0\r\n$1\r\nv\r\n:100\r\n:3\r\n",
    "*2\r\n:2\r\n:1764000000000000\r\n",
    // release, renew, tally
    ":1\r\n",
    ":0\r\n",
    "*2\r\n:1\r\n:3\r\n",
    "$1\r\nv\r\n",
    // inspect
    "*3\r\n$1\r\nv\r\n:9876\r\n$16\r\n1764000000000000\r\n",
    "*3\r\n$1\r\nv\r\n:-1\r\n$-1\r\n",
    "$-1\r\n",
    // fair_refresh
    "*4\r\n:0\r\n:1764000000000000\r\n:-1\r\n:9876\r\n",
    "*2\r\n:0\r\n:-1\r\n",
    // commands
    "+OK\r\n",
    "+PONG\r\n",
    ":2\r\n",
    "*2\r\n$1\r\n0\r\n*2\r\n$6\r\nlock:a\r\n$6\r\nlock:b\r\n",
    "*2\r\n$1\r\nc\r\n:1\r\n",
    "*4\r\n$8\r\nattempts\r\n$1\r\n7\r\n$7\r\nrefused\r\n$1\r\n1\r\n",
    "%1\r\n$8\r\nattempts\r\n$1\r\n7\r\n",
    "*3\r\n$6\r\nmaster\r\n:3129659\r\n*1\r\n\
     *3\r\n$9\r\n127.0.0.1\r\n$4\r\n9001\r\n$7\r\n3129242\r\n",
    "*5\r\n$5\r\nslave\r\n$9\r\n127.0.0.1\r\n:6379\r\n$9\r\nconnected\r\n:3129242\r\n",
    "*2\r\n$9\r\n127.0.0.1\r\n$4\r\n6379\r\n",
    "*2\r\n*4\r\n:0\r\n:8191\r\n*3\r\n$2\r\nh1\r\n:7001\r\n$1\r\ni\r\n\
     *3\r\n$2\r\nh2\r\n:7002\r\n$1\r\nj\r\n\
     *3\r\n:8192\r\n:16383\r\n*4\r\n$-1\r\n:7003\r\n$1\r\nk\r\n*0\r\n",
    // subscriptions
    "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n",
    ">3\r\n$9\r\nsubscribe\r\n$14\r\n+switch-master\r\n:1\r\n",
    "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$65\r\n\
     grant 1764000000000000 web:7:123e4567-e89b-12d3-a456-426614174000\r\n",
    ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$5\r\nprobe\r\n",
    // errors
    "-NOSCRIPT No matching script. Please use EVAL.\r\n",
    "-MOVED 3999 127.0.0.1:6381\r\n",
    "-ASK 3999 :6381\r\n",
    "-BADFENCE 2 the fence is no integer below 2^53\r\n",
    "-ERR Error running script (call to f_6b): @user_script:3: -READONLY You can't write\r\n",
];

const NUMBERS: [i64; 18] = [
    0,
    1,
    -1,
    2,
    3,
    -2,
    -3,
    99,
    6_379,
    16_383,
    16_384,
    70_000,
    1_764_000_000_000_000,
    NO_TOKEN - 64,
    NO_TOKEN - 1,
    NO_TOKEN,
    i64::MIN,
    i64::MAX,
];

const TEXTS: [&[u8]; 18] = [
    b"",
    b"v",
    b"c",
    b"0",
    b"7",
    b"+7",
    b"h:\xff",
    b"6379",
    b"70000",
    b"master",
    b"message",
    b"subscribe",
    b"+switch-master",
    b"99999999999999999999999",
    b"9007199254740992",
    b"grant 0 a:123e4567-e89b-12d3-a456-426614174000",
    b"grant +7 a:123e4567-e89b-12d3-a456-426614174000",
    b"grant 9007199254740992 a:123e4567-e89b-12d3-a456-426614174000",
];

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

fn pick<T: Copy>(random: &mut SmallRng, from: &[T]) -> T {
    from[random.random_range(0..from.len())]
}

/// Returns any value that is not a list, or an empty list.
fn scalar(random: &mut SmallRng) -> Value {
    let text = |random: &mut SmallRng| String::from_utf8_lossy(pick(random, &TEXTS)).into_owned();
    match random.random_range(0..12) {
        0..4 => Value::Int(pick(random, &NUMBERS)),
        4..8 => Value::BulkString(pick(random, &TEXTS).to_vec()),
        8 => Value::Nil,
        9 => Value::SimpleString(text(random)),
        10 => pick(
            random,
            &[Value::Okay, Value::Boolean(true), Value::Double(1.0)].each_ref(),
        )
        .clone(),
        _ => Value::Array(Vec::new()),
    }
}

/// Returns any value, with lists in lists at most `depth` deep.
fn arbitrary(random: &mut SmallRng, depth: usize) -> Value {
    if depth == 0 || random.random_range(0..3) == 0 {
        return scalar(random);
    }
    let count = random.random_range(0..6);
    let items: Vec<Value> = (0..count).map(|_| arbitrary(random, depth - 1)).collect();
    match random.random_range(0..6) {
        0 => Value::Map(items.into_iter().map(|key| (key, scalar(random))).collect()),
        1 => Value::Push {
            kind: PushKind::Message,
            data: items,
        },
        _ => Value::Array(items),
    }
}

/// Changes one thing somewhere in `value`.
fn change(value: &mut Value, random: &mut SmallRng) {
    let items = match value {
        Value::Array(items) | Value::Push { data: items, .. } if !items.is_empty() => items,
        Value::Map(pairs) if !pairs.is_empty() => {
            let pair = random.random_range(0..pairs.len());
            match random.random_range(0..3) {
                0 => drop(pairs.remove(pair)),
                1 => change(&mut pairs[pair].0, random),
                _ => change(&mut pairs[pair].1, random),
            }
            return;
        }
        value => return *value = scalar(random),
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
fn garble(bytes: &mut Vec<u8>, random: &mut SmallRng) {
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

/// Returns the most bytes and items that a decoder may return for `value`.
fn weight(value: &Value) -> usize {
    1 + match value {
        Value::BulkString(bytes) => bytes.len(),
        Value::SimpleString(text) => text.len(),
        Value::Array(items) | Value::Push { data: items, .. } => items.iter().map(weight).sum(),
        Value::Map(pairs) => pairs.iter().map(|(k, v)| weight(k) + weight(v)).sum(),
        _ => 64,
    }
}

const fn is_token(number: u64) -> bool {
    number > 0 && number < NO_TOKEN as u64
}

/// Returns the integers of a list; empty for anything else.
fn numbers(reply: &Reply) -> Vec<i64> {
    let Reply::List(items) = reply else {
        return Vec::new();
    };
    let number = |item: &Reply| match item {
        Reply::Int(number) => Some(*number),
        _ => None,
    };
    items.iter().filter_map(number).collect()
}

fn check_acquired(reply: &Reply, wanted: Wanted) {
    match Verb::Acquire(wanted).read(reply.clone()) {
        Some(Answer::Granted(tokens)) => {
            let tokens = tokens.iter().map(|token| token.value());
            assert!(
                tokens
                    .clone()
                    .all(|token| is_token(token) && is_token(token + wanted.reserved))
            );
            assert!(
                tokens
                    .clone()
                    .all(|token| wanted.proposed.is_none_or(|ours| ours == token))
            );
            assert_eq!(tokens.len(), wanted.tokens);
            let granted = std::iter::once(1).chain(tokens.map(|token| token as i64));
            assert!(granted.eq(numbers(reply)), "{reply:?}");
        }
        Some(Answer::Refused(refusal)) => {
            assert!(refusal.name < wanted.names);
            assert_eq!(numbers(reply).first(), Some(&0));
        }
        Some(Answer::TooLow(last)) => assert!(is_token(last) && wanted.proposed <= Some(last)),
        None => {}
        other => panic!("{other:?} of {reply:?}"),
    }
}

fn check_lease(reply: &Reply, most: usize) {
    let release = |counts| Verb::Release { counts }.read(reply.clone());
    for answer in [Verb::Renew.read(reply.clone()), release(false)] {
        if let Some(Answer::Ours(heard)) = answer {
            assert!(heard.is_none() && *reply == Reply::Int(1), "{reply:?}");
        }
    }
    if let Some(Answer::Ours(heard)) = release(true) {
        let said = heard.map(|heard| heard as i64).unwrap();
        assert_eq!(numbers(reply), [1, said]);
    }
    if let Some(Answer::Holder(Some(holder))) = Verb::Inspect.read(reply.clone()) {
        assert!(holder.value().len() <= most);
        assert!(
            holder
                .fencing_token()
                .is_none_or(|token| is_token(token.value()))
        );
    }
}

fn check_refreshed(reply: &Reply, places: usize) {
    let Some(Answer::Places(found)) = Verb::Refresh(places).read(reply.clone()) else {
        return;
    };
    let said = found.iter().map(|place| match place {
        Refreshed::Waiting(_) => 0,
        Refreshed::Gone => -1,
        Refreshed::Granted(token) => {
            assert!(is_token(token.value()));
            token.value() as i64
        }
    });
    let mut numbers = numbers(reply);
    assert!(numbers.pop().is_some_and(|ttl| ttl >= -2), "{reply:?}");
    assert!(said.clone().eq(numbers), "{reply:?}");
    assert!(found.len() == places && said.filter(|said| *said > 0).count() <= 1);
}

fn check_grant(payload: &[u8]) {
    if let Some((id, token)) = read_grant(payload) {
        let said = format!(" {id}", id = id.as_str()).into_bytes();
        let digits = payload.strip_suffix(&*said).unwrap();
        let digits = digits.strip_prefix(b"grant ").unwrap();
        assert!(digits.iter().all(u8::is_ascii_digit) && is_token(token.value()));
    }
}

fn check_command(reply: &Reply, most: usize) {
    if let Some((cursor, keys)) = read_page(reply.clone()) {
        assert!(cursor.len() <= 20 && cursor.iter().all(u8::is_ascii_digit));
        assert!(cursor.len() + keys.iter().map(Vec::len).sum::<usize>() <= most);
    }
    if let Some(Answer::Fence(Some(text))) = Verb::ReadFence.read(reply.clone()) {
        assert!(text.len() <= most);
    }
    assert_eq!(
        read_count(reply).is_some(),
        matches!(reply, Reply::Int(0..))
    );
    if let Some(listeners) = read_listeners(reply, b"c") {
        assert_eq!(numbers(reply), [listeners as i64]);
    }
    let is_list = matches!(reply, Reply::List(_));
    assert!(is_list || shared_stats::read(reply).is_none(), "{reply:?}");
    for verb in [Verb::AddStats, Verb::Asking, Verb::Count, Verb::Ping] {
        let is_said = match verb {
            Verb::AddStats => matches!(reply, Reply::Int(0 | 1)),
            Verb::Count => matches!(reply, Reply::Int(0..)),
            Verb::Ping => matches!(reply, Reply::Status(said) if said == "PONG"),
            _ => matches!(reply, Reply::Status(said) if said == "OK"),
        };
        assert_eq!(verb.read(reply.clone()).is_some(), is_said, "{reply:?}");
    }
    check_undone(reply, 1);
    check_undone(reply, 3);
}

fn check_undone(reply: &Reply, ids: usize) {
    let Some(Answer::Undone(undone)) = Verb::Undo(ids).read(reply.clone()) else {
        return;
    };
    assert!(undone.removed.iter().all(|id| *id < ids), "{reply:?}");
    if ids > 1 {
        let said = undone.removed.iter().map(|id| *id as i64 + 1);
        let skipped = usize::from(undone.other.is_none());
        assert!(
            said.eq(numbers(reply).into_iter().skip(skipped)),
            "{reply:?}"
        );
    }
}

/// Reads what a value says at its first place, if it is a list with a text there.
fn first_text(value: &Value) -> Option<&[u8]> {
    match value {
        Value::Array(items) => match items.first() {
            Some(Value::BulkString(text)) => Some(text),
            _ => None,
        },
        _ => None,
    }
}

/// The channel in the confirmation of a SUBSCRIBE.
fn confirmed_channel(value: &Value) -> Option<&[u8]> {
    let channel = match value {
        Value::Array(items) => {
            let is_subscribe = first_text(value)?.eq_ignore_ascii_case(b"subscribe");
            items.get(1).filter(|_| is_subscribe)?
        }
        Value::Push {
            kind: PushKind::Subscribe,
            data,
        } => data.first()?,
        _ => return None,
    };
    match channel {
        Value::BulkString(channel) => Some(channel),
        _ => None,
    }
}

fn check_roles(value: &Value) {
    let is_error = matches!(value, Value::ServerError(_));
    if is_master(value.clone()) == Some(true) {
        assert!(
            is_error || first_text(value) == Some(b"master"),
            "{value:?}"
        );
    }
    if is_subscribed(value) {
        assert_eq!(confirmed_channel(value), Some(&b"+switch-master"[..]));
    }
    for step in [
        Step::Hello,
        Step::AuthWithUser,
        Step::Auth,
        Step::Select,
        Step::Optional,
    ] {
        match step.read(value.clone()) {
            Some(Ok(())) if step == Step::Hello => assert!(matches!(value, Value::Map(_))),
            Some(Ok(())) => assert_eq!(*value, Value::Okay),
            Some(Err(error)) => drop(step.refusal(&error, true)),
            None => {}
        }
    }
}

fn check_messages(value: &Value, most: usize) {
    if let Some(message) = Msg::from_owned_value(value.clone()) {
        assert!(message.get_payload_bytes().len() <= most);
        let _ = message.get_channel::<Vec<u8>>();
    }
    match read_received(value.clone(), "SUBSCRIBE", b"c") {
        Some(Received::Message(_, payload)) => {
            let is_push = matches!(
                value,
                Value::Push {
                    kind: PushKind::Message,
                    ..
                }
            );
            assert!(
                is_push || first_text(value) == Some(b"message"),
                "{value:?}"
            );
            check_grant(&payload);
        }
        Some(Received::Done) => assert_eq!(confirmed_channel(value), Some(&b"c"[..])),
        Some(Received::Refused(_)) => assert!(matches!(value, Value::ServerError(_))),
        Some(Received::Other) => assert!(matches!(value, Value::Push { .. })),
        None => {}
    }
}

fn check_value(value: &Value, most: usize) {
    let asked = ("asked".to_owned(), 1);
    if let Some(layout) = Layout::read(value.clone(), &asked) {
        let slots = layout
            .masters
            .iter()
            .map(|(slots, _)| slots.clone().count());
        assert!(slots.sum::<usize>() <= usize::from(SLOTS));
        assert!(layout.masters.len() + layout.replicas.len() <= most);
        let masters = layout.masters.iter().map(|(_, place)| place);
        assert!(masters.chain(&layout.replicas).all(|place| place.1 > 0));
    }
    if let Some(Some((host, port))) = read_place(value.clone()) {
        assert!(host.len() <= most && port > 0);
    }
    check_roles(value);
    check_messages(value, most);
    if let Value::ServerError(error) = value {
        if let Some(Redirect::Moved(host, port) | Redirect::Ask(host, port)) = Redirect::read(error)
        {
            let said = error.details().unwrap_or_default();
            let mut words = said.split(' ');
            assert!(
                words
                    .next()
                    .is_some_and(|slot| slot.parse().is_ok_and(|slot: u16| slot < SLOTS))
            );
            assert!(
                port > 0 && words.next().is_some_and(|place| place.starts_with(&host)),
                "{said}"
            );
        }
        let _ = (
            crate::error_reply::meaning(error),
            crate::error_reply::words(error),
        );
    }
}

fn check(value: Value) {
    let most = weight(&value);
    check_value(&value, most);
    let reply = match value {
        Value::ServerError(_) => return,
        value => Reply::from(value),
    };
    let one = Wanted {
        names: 1,
        tokens: 1,
        reserved: 63,
        proposed: None,
    };
    let proposed = Some(1_764_000_000_000_000);
    check_acquired(&reply, one);
    check_acquired(&reply, Wanted { proposed, ..one });
    check_acquired(
        &reply,
        Wanted {
            names: 3,
            tokens: 3,
            reserved: 0,
            ..one
        },
    );
    check_acquired(
        &reply,
        Wanted {
            names: 3,
            proposed,
            ..one
        },
    );
    check_lease(&reply, most);
    check_refreshed(&reply, 1);
    check_refreshed(&reply, 3);
    check_command(&reply, most);
    if let Reply::Text(payload) = &reply {
        check_grant(payload);
    }
}

/// Reads one reply as a connection does; `None` if it is incomplete or malformed. A reply that
/// announces more than the limits is an error before it comes.
fn value(bytes: &[u8]) -> Option<Value> {
    let read = read_frame(bytes);
    let end = bytes.windows(2).position(|two| two == b"\r\n");
    let line = end.and_then(|end| str::from_utf8(&bytes[..end]).ok());
    let most = [("$", 1 << 20), ("*", 64 << 10)];
    let announced = |(kind, most): &(&str, u64)| {
        let number = line.and_then(|line| line.strip_prefix(kind)?.parse().ok());
        number.is_some_and(|number: u64| number > *most)
    };
    assert!(read.is_err() || !most.iter().any(announced), "{line:?}");
    read.ok().flatten()
}

/// The bytes that `escape_ascii` has escaped.
fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next() {
                Some(b'r') => b'\r',
                Some(b'n') => b'\n',
                Some(b't') => b'\t',
                Some(b'x') => {
                    let digits: Vec<u8> = rest.by_ref().take(2).collect();
                    u8::from_str_radix(str::from_utf8(&digits).unwrap(), 16).unwrap()
                }
                Some(same) => same,
                None => panic!("{text}"),
            },
            byte => byte,
        });
    }
    bytes
}

fn replies() -> Vec<Vec<u8>> {
    let lines = RECORDINGS.iter().flat_map(|text| text.lines());
    let recorded = lines.map(|line| unescaped(line.split_once(": ").unwrap().1));
    let rare = RARE.iter().map(|reply| reply.as_bytes().to_vec());
    recorded.chain(rare).collect()
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
                // The client library reads the same, as text: no number equals NaN.
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
fn no_decoder_panics_or_reads_a_grant_that_was_not_replied() {
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
