//! The wire format: requests as clients send them, and replies.

use super::reply::Reply;

/// The most bytes of a word, and the most words of a request. Requests with more are rejected.
const MOST_BYTES: usize = 512 * 1024 * 1024;

/// The words of a command, and the length of the request in bytes.
type Request = (Vec<Vec<u8>>, usize);

/// Reads the request at the start of `input`; `None` while a part of it is missing.
///
/// # Errors
///
/// The text of an error reply: the peer does not speak the protocol, and the connection must end.
pub(super) fn read_request(input: &[u8]) -> Result<Option<Request>, &'static str> {
    let mut at = 0;
    let Some(count) = read_length(input, b'*', &mut at)? else {
        return Ok(None);
    };
    let mut words = Vec::with_capacity(count.min(64));
    for _ in 0..count {
        let Some(length) = read_length(input, b'$', &mut at)? else {
            return Ok(None);
        };
        let Some(word) = input.get(at..at + length) else {
            return Ok(None);
        };
        if input.len() < at + length + 2 {
            return Ok(None);
        }
        words.push(word.to_vec());
        at += length + 2;
    }
    Ok(Some((words, at)))
}

/// Reads a line such as `$3`, and moves `at` past it.
fn read_length(input: &[u8], mark: u8, at: &mut usize) -> Result<Option<usize>, &'static str> {
    let rest = input.get(*at..).unwrap_or_default();
    match rest.first() {
        None => return Ok(None),
        Some(first) if *first != mark => return Err("ERR Protocol error: expected '*' or '$'"),
        Some(_) => {}
    }
    let Some(end) = rest.windows(2).take(32).position(|two| two == b"\r\n") else {
        return match rest.len() {
            ..32 => Ok(None),
            _ => Err("ERR Protocol error: too big count string"),
        };
    };
    let digits = rest.get(1..end).unwrap_or_default();
    let length = std::str::from_utf8(digits)
        .ok()
        .and_then(|digits| digits.parse().ok());
    *at += end + 2;
    match length {
        Some(length) if length <= MOST_BYTES => Ok(Some(length)),
        _ => Err("ERR Protocol error: invalid bulk length"),
    }
}

/// How replies are encoded, which a connection chooses with HELLO.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Protocol {
    #[default]
    Resp2,
    Resp3,
}

impl Protocol {
    pub(super) const fn version(self) -> i64 {
        match self {
            Self::Resp2 => 2,
            Self::Resp3 => 3,
        }
    }

    pub(super) fn write(self, reply: &Reply, out: &mut Vec<u8>) {
        match reply {
            Reply::Status(text) => line('+', text, out),
            // A line end would end the reply.
            Reply::Error(text) => line('-', text.replace(['\r', '\n'], " "), out),
            Reply::Int(number) => line(':', number, out),
            Reply::Bulk(Some(bytes)) => {
                line('$', bytes.len(), out);
                out.extend_from_slice(bytes);
                out.extend_from_slice(b"\r\n");
            }
            Reply::Bulk(None) | Reply::Array(None) if self == Self::Resp3 => {
                out.extend_from_slice(b"_\r\n");
            }
            Reply::Bulk(None) => out.extend_from_slice(b"$-1\r\n"),
            Reply::Array(None) => out.extend_from_slice(b"*-1\r\n"),
            Reply::Array(Some(items)) => self.write_many('*', items.len(), items, out),
        }
    }

    /// Writes a message or the confirmation of a subscription.
    pub(super) fn write_push(self, items: &[Reply], out: &mut Vec<u8>) {
        let mark = match self {
            Self::Resp2 => '*',
            Self::Resp3 => '>',
        };
        self.write_many(mark, items.len(), items, out);
    }

    /// Writes alternating keys and values.
    pub(super) fn write_map(self, items: &[Reply], out: &mut Vec<u8>) {
        match self {
            Self::Resp2 => self.write_many('*', items.len(), items, out),
            Self::Resp3 => self.write_many('%', items.len() / 2, items, out),
        }
    }

    fn write_many(self, mark: char, count: usize, items: &[Reply], out: &mut Vec<u8>) {
        line(mark, count, out);
        for item in items {
            self.write(item, out);
        }
    }
}

fn line(mark: char, text: impl std::fmt::Display, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("{mark}{text}\r\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_when_its_last_byte_has_arrived() {
        let request = b"*2\r\n$3\r\nGET\r\n$2\r\n\r\n\r\n*1\r\n";
        let whole = request.len() - 4;
        for end in 0..whole {
            assert_eq!(read_request(&request[..end]), Ok(None), "{end}");
        }
        let words = vec![b"GET".to_vec(), b"\r\n".to_vec()];
        assert_eq!(read_request(request), Ok(Some((words, whole))));
    }

    #[test]
    fn another_protocol_is_refused() {
        for sent in [
            "GET / HTTP/1.1\r\n",
            "*1\r\n:1\r\n",
            "*x\r\n",
            "*1\r\n$-1\r\n",
        ] {
            assert!(read_request(sent.as_bytes()).is_err(), "{sent}");
        }
        assert!(read_request(&[b'*'; 40]).is_err());
    }

    #[test]
    fn replies_are_encoded_for_either_protocol() {
        let reply = Reply::Array(Some(vec![
            Reply::Status("OK"),
            Reply::Int(-1),
            Reply::bulk("a"),
            Reply::Bulk(None),
            Reply::Error("ERR two\nlines".into()),
        ]));
        let encoded = |protocol: Protocol| {
            let mut out = Vec::new();
            protocol.write(&reply, &mut out);
            String::from_utf8(out).unwrap()
        };
        let resp2 = "*5\r\n+OK\r\n:-1\r\n$1\r\na\r\n$-1\r\n-ERR two lines\r\n";
        assert_eq!(encoded(Protocol::Resp2), resp2);
        assert_eq!(encoded(Protocol::Resp3), resp2.replace("$-1", "_"));
        let mut out = Vec::new();
        Protocol::Resp3.write_map(&[Reply::bulk("a"), Reply::Int(1)], &mut out);
        Protocol::Resp3.write_push(&[], &mut out);
        assert_eq!(out, b"%1\r\n$1\r\na\r\n:1\r\n>0\r\n");
    }
}
