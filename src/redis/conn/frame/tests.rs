//! Tests of finding the end of a reply.

use super::*;

const WHOLE: [&[u8]; 22] = [
    b"+OK\r\n",
    b"+\r\n",
    b"+a\rb\r\n",
    b"-ERR what\r\n",
    b":-12\r\n",
    b"$-1\r\n",
    b"$0\r\n\r\n",
    b"$5\r\na\r\nb\n\r\n",
    b"*-1\r\n",
    b"*0\r\n",
    b"*2\r\n:1\r\n*2\r\n*0\r\n$1\r\nx\r\n",
    b"_\r\n",
    b",1.5\r\n",
    b"#t\r\n",
    b"(123456789012345678901234567890\r\n",
    b"!3\r\nERR\r\n",
    b"=7\r\ntxt:abc\r\n",
    b"%1\r\n+a\r\n:1\r\n",
    b"~2\r\n:1\r\n:2\r\n",
    b">3\r\n+message\r\n$1\r\nc\r\n$1\r\np\r\n",
    b"|1\r\n+a\r\n:1\r\n*1\r\n:1\r\n",
    b"*1\r\n%1\r\n+a\r\n~1\r\n|0\r\n#f\r\n",
];

fn end(bytes: &[u8]) -> Result<Option<usize>, ViolationKind> {
    FrameScan::default().end(bytes, Limit::MOST)
}

#[test]
fn end_of_a_complete_reply_is_found() {
    for reply in WHOLE {
        let shown = reply.escape_ascii();
        assert_eq!(end(reply), Ok(Some(reply.len())), "{shown}");
        let more = [reply, b"+more\r\n"].concat();
        assert_eq!(end(&more), Ok(Some(reply.len())), "{shown}");
        let value = redis::parse_redis_value(reply);
        assert!(value.is_ok(), "{shown}: {value:?}");
    }
}

#[test]
fn the_end_is_found_however_the_bytes_come_in() {
    use rand::{RngExt as _, SeedableRng as _, rngs::SmallRng};
    let mut random = SmallRng::seed_from_u64(7);
    for round in 0..20_000 {
        let reply = WHOLE[random.random_range(0..WHOLE.len())];
        let bytes = [reply, WHOLE[random.random_range(0..WHOLE.len())]].concat();
        let mut scan = FrameScan::default();
        let mut seen = 0;
        let found = loop {
            seen = (seen + random.random_range(1..5)).min(bytes.len());
            match scan.end(&bytes[..seen], Limit::MOST).unwrap() {
                None => assert!(seen < reply.len(), "{round}: {}", reply.escape_ascii()),
                Some(end) => break end,
            }
        };
        assert_eq!(found, reply.len(), "{round}: {}", reply.escape_ascii());
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
    let refused = FrameScan::default().end(whole.as_bytes(), limit);
    assert_eq!(refused, Err(ViolationKind::TooLarge));
    limit.raise_for(whole.len());
    let end = FrameScan::default().end(whole.as_bytes(), limit);
    assert_eq!(end, Ok(Some(whole.len())));
    limit.raise_for(usize::MAX);
    assert_eq!(limit.bytes(), MOST_BYTES);
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
