//! Text from outside, as people see it: names, keys and values that anybody may have written, and what a server says.

use std::fmt;

/// The longest part of a name or a key that is printed, in characters; a log line or an error stays readable.
const SHOWN: usize = 128;

/// The longest part of a server's own text that is printed, in characters.
const SAID: usize = 1024;

/// Whether a terminal only prints `c`: no control character, and none that hides or reorders its neighbours, as
/// U+202E does. <https://trojansource.codes>
pub(crate) fn is_printable(c: char) -> bool {
    match c {
        ' '..='~' => true,
        ..='\u{9f}' => false,
        // The standard library escapes what Unicode calls a format character, a separator, or unassigned.
        c => c.escape_debug().len() == 1,
    }
}

/// Bytes that may be anything: printable text as it is, the rest escaped, a long end cut. Escaping twice changes nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Escaped<'a> {
    bytes: &'a [u8],
    most: usize,
}

impl<'a> Escaped<'a> {
    /// All of it.
    pub(crate) fn whole(bytes: &'a [u8]) -> Self {
        let most = usize::MAX;
        Self { bytes, most }
    }

    /// A name, a key, or a value.
    pub(crate) fn name(bytes: &'a [u8]) -> Self {
        let most = SHOWN;
        Self { bytes, most }
    }

    /// A server's own text.
    pub(crate) fn said(text: &'a str) -> Self {
        let (bytes, most) = (text.as_bytes(), SAID);
        Self { bytes, most }
    }
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut printed = 0;
        for chunk in self.bytes.utf8_chunks() {
            for c in chunk.valid().chars() {
                if printed >= self.most {
                    return write!(f, "… ({} bytes)", self.bytes.len());
                }
                match c {
                    c if is_printable(c) => write!(f, "{c}")?,
                    c if c.is_ascii() => write!(f, "{}", (c as u8).escape_ascii())?,
                    c => write!(f, "{}", c.escape_unicode())?,
                }
                printed += 1;
            }
            write!(f, "{}", chunk.invalid().escape_ascii())?;
            printed += chunk.invalid().len();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(text: &str) -> String {
        Escaped::whole(text.as_bytes()).to_string()
    }

    #[test]
    fn smoke() {
        assert_eq!(whole("tisch-ü \\ \"{名}\""), "tisch-ü \\ \"{名}\"");
        assert_eq!(whole("\x1b[2J\n\u{9b}\u{202e}"), r"\x1b[2J\n\u{9b}\u{202e}");
        assert_eq!(Escaped::whole(b"a\xffb\xc3").to_string(), r"a\xffb\xc3");
        let long = Escaped::name(&[b'x'; 70_000]).to_string();
        assert!(
            long.len() < 200 && long.ends_with("(70000 bytes)"),
            "{long}"
        );
    }

    #[test]
    fn nothing_that_steers_a_terminal_or_reorders_text_is_printed() {
        let ranges = [
            ('\0', '\x1f'),
            ('\x7f', '\u{9f}'),
            ('\u{61c}', '\u{61c}'),
            ('\u{200b}', '\u{200f}'),
            ('\u{2028}', '\u{202e}'),
            ('\u{2060}', '\u{206f}'),
            ('\u{feff}', '\u{feff}'),
            ('\u{e0001}', '\u{e007f}'),
        ];
        for c in ranges.into_iter().flat_map(|(first, last)| first..=last) {
            let escaped = whole(&c.to_string());
            assert!(escaped.is_ascii() && escaped.starts_with('\\'), "{c:?}");
            assert_eq!(whole(&escaped), escaped, "once is enough");
        }
    }
}
