//! Reads a short reply in one pass: a number, a string, or a flat list of them, as scripts return.
//!
//! Nearly all replies have this form. All others take two passes: one finds the end of the frame,
//! the next one parses it. For a short reply, two passes cost several times as much as all other
//! work on it.

use redis::Value;

use super::frame::LINE_END;

/// The longest list that is read here, in values. A refusal has at most five, and a grant of n
/// locks has n + 1.
const MOST_VALUES: i64 = 8;

/// The longest string that is read here, in bytes. Of a value that another program wrote, scripts
/// return at most 1088 bytes and a hash of 40.
const LONGEST: usize = 2 * 1024;

/// The most digits of a number that is read here: every such number fits into an `i64`.
const MOST_DIGITS: usize = 18;

/// Returns the reply at the start of `bytes` and its length. Returns `None` for a reply that is
/// incomplete, malformed, or of another form.
pub(in crate::redis) fn read(bytes: &[u8]) -> Option<(Value, usize)> {
    let (value, rest) = match bytes.split_first()? {
        (b'*', rest) => list(rest)?,
        _ => scalar(bytes)?,
    };
    Some((value, bytes.len() - rest.len()))
}

fn list(bytes: &[u8]) -> Option<(Value, &[u8])> {
    let (count, mut rest) = number(bytes)?;
    if !(0..=MOST_VALUES).contains(&count) {
        return None;
    }
    let mut items = Vec::with_capacity(usize::try_from(count).ok()?);
    for _ in 0..count {
        let (item, after) = scalar(rest)?;
        items.push(item);
        rest = after;
    }
    Some((Value::Array(items), rest))
}

fn scalar(bytes: &[u8]) -> Option<(Value, &[u8])> {
    let (&kind, rest) = bytes.split_first()?;
    if !matches!(kind, b':' | b'$') {
        return None;
    }
    let (number, rest) = number(rest)?;
    match (kind, number) {
        (b':', number) => Some((Value::Int(number), rest)),
        (_, -1) => Some((Value::Nil, rest)),
        (_, length) => {
            let length = usize::try_from(length).ok()?;
            let (text, rest) = rest.split_at_checked(length)?;
            let rest = rest.strip_prefix(LINE_END)?;
            (length <= LONGEST).then(|| (Value::BulkString(text.to_vec()), rest))
        }
    }
}

/// Reads a number and the line end after it.
fn number(bytes: &[u8]) -> Option<(i64, &[u8])> {
    let (digits, is_negative) = match bytes.strip_prefix(b"-") {
        Some(digits) => (digits, true),
        None => (bytes, false),
    };
    let count = digits
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    let (digits, rest) = digits.split_at_checked(count)?;
    if !(1..=MOST_DIGITS).contains(&count) {
        return None;
    }
    let number = digits
        .iter()
        .fold(0, |number, digit| number * 10 + i64::from(digit - b'0'));
    let rest = rest.strip_prefix(LINE_END)?;
    Some((if is_negative { -number } else { number }, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_replies_are_read_as_redis_rs_reads_them() {
        for reply in [
            &b":1\r\n"[..],
            b":-1\r\n",
            b":007\r\n",
            b":999999999999999999\r\n",
            b"$-1\r\n",
            b"$0\r\n\r\n",
            b"$5\r\na\r\nb\n\r\n",
            b"*0\r\n",
            b"*2\r\n:1\r\n:1764000000000000\r\n",
            b"*4\r\n:0\r\n$1\r\nv\r\n:100\r\n:3\r\n",
            b"*3\r\n:0\r\n$-1\r\n:-2\r\n",
        ] {
            let shown = reply.escape_ascii();
            let expected = redis::parse_redis_value(reply).unwrap();
            let followed = [reply, b":2\r\n"].concat();
            assert_eq!(read(&followed), Some((expected, reply.len())), "{shown}");
            for end in 0..reply.len() {
                assert_eq!(read(&reply[..end]), None, "{shown} up to {end}");
            }
        }
    }

    #[test]
    fn other_forms_are_left_to_the_parser() {
        let long = format!("$2049\r\n{}\r\n", "x".repeat(2049));
        for reply in [
            &b"+OK\r\n"[..],
            b"-ERR\r\n",
            b"*-1\r\n",
            b"$-2\r\n",
            b":+1\r\n",
            b": 1\r\n",
            b":\r\n",
            b":-\r\n",
            b":1000000000000000000\r\n",
            b"$1\r\nxyz\r\n",
            b"*9\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
            b"*1\r\n*0\r\n",
            b"%1\r\n:1\r\n:1\r\n",
            long.as_bytes(),
        ] {
            assert_eq!(read(reply), None, "{}", reply.escape_ascii());
        }
    }
}
