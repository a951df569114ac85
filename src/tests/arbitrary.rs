//! Arbitrary replies, made of numbers and texts that decoders might read wrongly.

use rand::RngExt as _;
use rand::rngs::SmallRng;

use crate::protocol::reply::Reply;

/// The smallest number too large for a token.
pub(super) const NO_TOKEN: i64 = 1 << 53;

pub(super) const NUMBERS: [i64; 18] = [
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

const TEXTS: [&[u8]; 23] = [
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
    b"grant 0 1 a:123e4567-e89b-12d3-a456-426614174000",
    b"grant +7 1 a:123e4567-e89b-12d3-a456-426614174000",
    b"grant 1764000000000000 +33 a:123e4567-e89b-12d3-a456-426614174000",
    b"grant 1764000000000000 +x a:123e4567-e89b-12d3-a456-426614174000",
    b"grant 1764000000000000 r a:123e4567-e89b-12d3-a456-426614174000",
    b"grant 1764000000000000 3/10 3 a:123e4567-e89b-12d3-a456-426614174000",
    b"refresh a:123e4567-e89b-12d3-a456-426614174000",
    b"grant 9007199254740991 2 a:123e4567-e89b-12d3-a456-426614174000",
];

pub(super) fn pick<T: Copy>(random: &mut SmallRng, from: &[T]) -> T {
    from[random.random_range(0..from.len())]
}

/// Returns a random reply without items: a number, a text, nil, or an empty list, for example.
pub(super) fn scalar(random: &mut SmallRng) -> Reply {
    let text = |random: &mut SmallRng| String::from_utf8_lossy(pick(random, &TEXTS)).into_owned();
    match random.random_range(0..12) {
        0..4 => Reply::Int(pick(random, &NUMBERS)),
        4..8 => Reply::Text(pick(random, &TEXTS).to_vec()),
        8 => Reply::Nil,
        9 => Reply::Status(text(random)),
        10 => pick(
            random,
            &[Reply::Status("OK".into()), Reply::Other].each_ref(),
        )
        .clone(),
        _ => Reply::List(Vec::new()),
    }
}

/// Returns a random reply; lists and pushes are nested at most `depth` deep.
///
/// It contains no error reply.
pub(super) fn arbitrary(random: &mut SmallRng, depth: usize) -> Reply {
    if depth == 0 || random.random_range(0..3) == 0 {
        return scalar(random);
    }
    let count = random.random_range(0..6);
    let items: Vec<Reply> = (0..count).map(|_| arbitrary(random, depth - 1)).collect();
    match random.random_range(0..6) {
        0 => Reply::Push(items),
        _ => Reply::List(items),
    }
}
