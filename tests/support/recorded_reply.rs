//! The lines of a file of recorded replies: a request, a colon, and the reply with escapes.

/// Returns the request and the bytes of the reply that a line records.
pub fn recorded_reply(line: &str) -> (&str, Vec<u8>) {
    let (request, reply) = line.split_once(": ").unwrap_or_default();
    (request, unescaped(reply))
}

/// Returns the bytes that `escape_ascii` has escaped.
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
