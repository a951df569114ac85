//! The patterns of KEYS, SCAN and PUBSUB CHANNELS: `*`, `?`, `[a-z]`, `[^…]`, and `\`, after which
//! any character stands for itself.

/// Returns whether a pattern matches the whole text.
pub(crate) fn matches(mut pattern: &[u8], mut text: &[u8]) -> bool {
    // The pattern behind the last `*`, and the text from which that was tried last.
    let mut star: Option<(&[u8], &[u8])> = None;
    loop {
        if let [b'*', rest @ ..] = pattern {
            star = Some((rest, text));
            pattern = rest;
            continue;
        }
        let step = match text {
            [] if pattern.is_empty() => return true,
            [] => None,
            [byte, ..] => one(pattern, *byte),
        };
        if let Some(rest) = step {
            (pattern, text) = (rest, &text[1..]);
            continue;
        }
        // The `*` takes one byte more.
        let Some((rest, [_, from @ ..])) = star else {
            return false;
        };
        star = Some((rest, from));
        (pattern, text) = (rest, from);
    }
}

/// Returns the pattern behind its first element, which must match the byte.
fn one(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    match pattern {
        [] => None,
        [b'?', rest @ ..] => Some(rest),
        [b'[', rest @ ..] => class(rest, byte),
        [b'\\', literal, rest @ ..] | [literal, rest @ ..] => (*literal == byte).then_some(rest),
    }
}

/// Returns the pattern behind a class, which must contain the byte. The end of the pattern also
/// ends a class.
fn class(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    let inverted = pattern.strip_prefix(b"^");
    let mut rest = inverted.unwrap_or(pattern);
    let mut contains = false;
    loop {
        rest = match rest {
            [b'\\', literal, rest @ ..] => {
                contains |= *literal == byte;
                rest
            }
            [b']', rest @ ..] => {
                return (contains != inverted.is_some()).then_some(rest);
            }
            [] => return (contains != inverted.is_some()).then_some(rest),
            [from, b'-', to, rest @ ..] => {
                contains |= (*from.min(to)..=*from.max(to)).contains(&byte);
                rest
            }
            [literal, rest @ ..] => {
                contains |= *literal == byte;
                rest
            }
        };
    }
}
