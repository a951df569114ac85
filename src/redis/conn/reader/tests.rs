//! Tests of reading replies.

use super::*;

fn text(text: &str) -> Reply {
    Reply::Text(text.into())
}

fn status(text: &str) -> Reply {
    Reply::Status(text.into())
}

fn list(items: impl IntoIterator<Item = Reply>) -> Reply {
    Reply::List(items.into_iter().collect())
}

/// Replies, with what is read from them. `None` for an error.
fn whole() -> Vec<(&'static [u8], Option<Reply>)> {
    let one = || Reply::Int(1);
    vec![
        (b"+OK\r\n", Some(status("OK"))),
        (b"+\r\n", Some(status(""))),
        (b"+a\rb\r\n", Some(status("a\rb"))),
        (b"-ERR what\r\n", None),
        (b":-12\r\n", Some(Reply::Int(-12))),
        (b":007\r\n", Some(Reply::Int(7))),
        (b":9223372036854775807\r\n", Some(Reply::Int(i64::MAX))),
        (b"$-1\r\n", Some(Reply::Nil)),
        (b"$0\r\n\r\n", Some(text(""))),
        (b"$5\r\na\r\nb\n\r\n", Some(text("a\r\nb\n"))),
        (b"*-1\r\n", Some(Reply::Nil)),
        (b"*0\r\n", Some(list([]))),
        (
            b"*2\r\n:1\r\n*2\r\n*0\r\n$1\r\nx\r\n",
            Some(list([one(), list([list([]), text("x")])])),
        ),
        (b"_\r\n", Some(Reply::Nil)),
        (b",1.5\r\n", Some(Reply::Other)),
        (b"#t\r\n", Some(Reply::Other)),
        (b"(123456789012345678901234567890\r\n", Some(Reply::Other)),
        (b"!3\r\nERR\r\n", None),
        (b"=7\r\ntxt:abc\r\n", Some(Reply::Other)),
        (b"%1\r\n+a\r\n:1\r\n", Some(list([status("a"), one()]))),
        (b"~2\r\n:1\r\n:2\r\n", Some(Reply::Other)),
        (
            b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\np\r\n",
            Some(Reply::Push(vec![text("message"), text("c"), text("p")])),
        ),
        (b"|1\r\n+a\r\n:1\r\n*1\r\n:1\r\n", Some(Reply::Other)),
        (
            b"*1\r\n%1\r\n+a\r\n~1\r\n|0\r\n#f\r\n",
            Some(list([list([status("a"), Reply::Other])])),
        ),
    ]
}

/// Reads the reply at the start of `bytes`; returns its length.
fn end(bytes: &[u8]) -> Result<Option<usize>, ViolationKind> {
    let read = PartialReply::default().read(bytes, Limit::MOST)?;
    Ok(read.map(|(_, length)| length))
}

#[test]
fn complete_reply_is_read() {
    for (bytes, expected) in whole() {
        let shown = bytes.escape_ascii();
        let more = [bytes, b"+more\r\n"].concat();
        for given in [bytes, &more] {
            let (reply, length) = PartialReply::default()
                .read(given, Limit::MOST)
                .unwrap()
                .unwrap();
            assert_eq!(length, bytes.len(), "{shown}");
            match &expected {
                Some(expected) => assert_eq!(reply, *expected, "{shown}"),
                None => assert!(matches!(reply, Reply::Error(_)), "{shown}"),
            }
        }
        assert!(redis::parse_redis_value(bytes).is_ok(), "{shown}");
    }
}

#[test]
fn reply_is_read_however_the_bytes_come_in() {
    use rand::{RngExt as _, SeedableRng as _, rngs::SmallRng};
    let mut random = SmallRng::seed_from_u64(7);
    let whole = whole();
    let mut partial = PartialReply::default();
    for round in 0..20_000 {
        let (first, expected) = &whole[random.random_range(0..whole.len())];
        let bytes = [*first, whole[random.random_range(0..whole.len())].0].concat();
        let mut seen = 0;
        let (reply, length) = loop {
            seen = (seen + random.random_range(1..5)).min(bytes.len());
            match partial.read(&bytes[..seen], Limit::MOST).unwrap() {
                None => assert!(seen < first.len(), "{round}: {}", first.escape_ascii()),
                Some(read) => break read,
            }
        };
        assert_eq!(length, first.len(), "{round}: {}", first.escape_ascii());
        if let Some(expected) = expected {
            assert_eq!(reply, *expected, "{round}");
        }
    }
}

#[test]
fn another_protocol_is_known_by_its_first_byte() {
    for bytes in [
        &b"SSH-2.0-OpenSSH"[..],
        b"HTTP/1.1 400",
        b"\x15\x03\x01",
        b"\0",
        b"\r\n",
    ] {
        assert_eq!(
            end(bytes),
            Err(ViolationKind::NotResp),
            "{}",
            bytes.escape_ascii()
        );
    }
}

#[test]
fn malformed_reply_is_refused() {
    for bytes in [
        &b"*1\r\nx"[..],
        b"$\r\n",
        b"$x\r\n",
        b"$+1\r\n",
        b"$-2\r\n",
        b"*-2\r\n",
        b"%-1\r\n",
        b"!-1\r\n",
        b"$1\r\nxyz\r\n",
        b"*1 \r\n",
        b":\r\n",
        b":x\r\n",
        b": 1\r\n",
        b":9223372036854775808\r\n",
        b"+\xff\r\n",
        b"#x\r\n",
        b"*1\r\n>0\r\n",
    ] {
        assert_eq!(
            end(bytes),
            Err(ViolationKind::Malformed),
            "{}",
            bytes.escape_ascii()
        );
    }
    let endless = [b":", &[b'1'; LONGEST_NUMBER][..]].concat();
    assert_eq!(end(&endless), Err(ViolationKind::Malformed));
}

#[test]
fn reply_beyond_the_limits_is_refused_before_its_end_arrives() {
    for bytes in [
        &b"$1000000000000\r\n"[..],
        b"$99999999999999999999999999\r\n",
        b"*1000000000\r\n",
        b"%18446744073709551615\r\n",
        b"|18446744073709551615\r\n",
    ] {
        assert_eq!(
            end(bytes),
            Err(ViolationKind::TooLarge),
            "{}",
            bytes.escape_ascii()
        );
    }
    let two = [
        b"*2\r\n*40000\r\n",
        &b":1\r\n".repeat(40_000)[..],
        b"*40000\r\n",
    ]
    .concat();
    assert_eq!(
        end(&two),
        Err(ViolationKind::TooLarge),
        "the limit counts the values of both inner arrays together"
    );
    assert_eq!(end(&b"*1\r\n".repeat(DEEPEST)), Ok(None));
    assert_eq!(
        end(&b"*1\r\n".repeat(DEEPEST + 1)),
        Err(ViolationKind::TooLarge)
    );
    let endless = [b"+", &[b'x'; LONGEST_TEXT][..]].concat();
    assert_eq!(end(&endless[..LONGEST_TEXT]), Ok(None));
    assert_eq!(end(&endless), Err(ViolationKind::TooLarge));
    let many = [
        b"*9\r\n",
        &format!("$200000\r\n{}\r\n", "x".repeat(200_000))
            .into_bytes()
            .repeat(6)[..],
    ]
    .concat();
    assert_eq!(end(&many), Err(ViolationKind::TooLarge));
}

#[test]
fn limit_of_a_usual_reply_rises_by_the_length_of_the_command() {
    let whole = format!(
        "${}\r\n{}\r\n",
        2 * USUAL_BYTES,
        "x".repeat(2 * USUAL_BYTES)
    );
    let mut limit = Limit::default();
    let refused = PartialReply::default().read(whole.as_bytes(), limit);
    assert_eq!(refused, Err(ViolationKind::TooLarge));
    limit.raise_for(whole.len());
    let read = PartialReply::default().read(whole.as_bytes(), limit);
    assert_eq!(read.unwrap().unwrap().1, whole.len());
    limit.raise_for(usize::MAX);
    assert_eq!(limit.0, MOST_BYTES);
}

#[test]
fn arbitrary_bytes_cause_no_panic_and_no_end_outside_them() {
    use rand::{RngExt as _, SeedableRng as _, rngs::SmallRng};
    const BYTES: &[u8] = b"+-:$*%~>|_#,(!=\r\n\r\n0123\r\n9x";
    let mut random = SmallRng::seed_from_u64(11);
    for _ in 0..100_000 {
        let length = random.random_range(0..40);
        let bytes: Vec<u8> = (0..length)
            .map(|_| BYTES[random.random_range(0..BYTES.len())])
            .collect();
        if let Ok(Some(found)) = end(&bytes) {
            assert!(found <= bytes.len() && found > 0);
        }
    }
}

#[test]
fn room_is_left_beyond_the_limit_of_one_reply() {
    let mut reader = Reader::default();
    // TLS decrypts a record at a time, and all of it is moved before the next reply is read.
    let record = 16 * 1024;
    while reader.end < reader.limit.0 + record {
        let room = reader.room().len();
        assert!(room > 0, "at {} bytes", reader.end);
        reader.filled(room);
    }
}
