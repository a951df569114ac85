//! Replies of Redis: those recorded from servers, and rarer forms.

use support::recorded_reply;

use crate::protocol::reply::Reply;
use crate::redis::conn::read_reply;

/// Replies of real servers to every script and command in their typical outcomes, one in a line.
/// The integration test `replies` keeps them up to date.
const RECORDINGS: [&str; 2] = [
    include_str!("../../tests/it/replies/one_server.txt"),
    include_str!("../../tests/it/replies/several_servers.txt"),
];

/// Further replies of Redis 7, of rarer forms.
const RARE: [&str; 41] = [
    // acquire, propose, queue_enter, and the scripts for several names
    "$16\r\n1764000000000000\r\n",
    "*2\r\n:1\r\n:1764000000000000\r\n",
    "*3\r\n:0\r\n$42\r\nweb:7:123e4567-e89b-12d3-a456-426614174000\r\n:9876\r\n",
    "*3\r\n:0\r\n$1\r\nv\r\n:-1\r\n",
    "*3\r\n:0\r\n$-1\r\n:-2\r\n",
    "*4\r\n:1\r\n:1764000000000000\r\n:1764000000000001\r\n:7\r\n",
    "*4\r\n:0\r\n$1\r\nv\r\n:100\r\n:3\r\n",
    "*2\r\n:2\r\n:1764000000000000\r\n",
    // release, renew, add_stats
    ":1\r\n",
    ":0\r\n",
    "*2\r\n:1\r\n:3\r\n",
    "$1\r\nv\r\n",
    // inspect
    "*3\r\n$1\r\nv\r\n:9876\r\n$16\r\n1764000000000000\r\n",
    "*3\r\n$1\r\nv\r\n:-1\r\n$-1\r\n",
    "$-1\r\n",
    // queue_refresh
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
    "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$67\r\n\
     grant 1764000000000000 1 web:7:123e4567-e89b-12d3-a456-426614174000\r\n",
    "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$69\r\n\
     grant 1764000000000000 +33 web:7:123e4567-e89b-12d3-a456-426614174000\r\n",
    "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$67\r\n\
     grant 1764000000000000 r web:7:123e4567-e89b-12d3-a456-426614174000\r\n",
    "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$72\r\n\
     grant 1764000000000000 3/10 3 web:7:123e4567-e89b-12d3-a456-426614174000\r\n",
    "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$50\r\n\
     refresh web:7:123e4567-e89b-12d3-a456-426614174000\r\n",
    ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$5\r\nprobe\r\n",
    // errors
    "-NOSCRIPT No matching script. Please use EVAL.\r\n",
    "-MOVED 3999 127.0.0.1:6381\r\n",
    "-ASK 3999 :6381\r\n",
    "-BADFENCE 2 the fence is no integer below 2^53\r\n",
    "-ERR Error running script (call to f_6b): @user_script:3: -READONLY You can't write\r\n",
];

pub(super) fn replies() -> Vec<Vec<u8>> {
    let lines = RECORDINGS.iter().flat_map(|text| text.lines());
    let recorded = lines.map(|line| recorded_reply(line).1);
    let rare = RARE.iter().map(|reply| reply.as_bytes().to_vec());
    recorded.chain(rare).collect()
}

/// Reads one reply as a connection does; `None` if it is incomplete or malformed. Asserts that a
/// reply is rejected if its first line announces more than 1 MiB of text or 64 Ki items.
pub(super) fn read(bytes: &[u8]) -> Option<Reply> {
    let read = read_reply(bytes);
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
