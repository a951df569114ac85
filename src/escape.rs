//! Escapes text from outside for printing: names, keys, values and replies of a server.

use std::fmt;

/// How many characters of a name or key are printed at most, so that log lines and errors stay
/// readable. A byte that is not UTF-8 counts as one.
const SHOWN: usize = 128;

/// How many characters of a server's own text are printed at most.
const SAID: usize = 1024;

/// Returns true if a terminal only prints `c`: no control character, and none that hides or
/// reorders its neighbours, such as U+202E. <https://trojansource.codes>
pub(crate) fn is_printable(c: char) -> bool {
    match c {
        ' '..='~' => true,
        ..='\u{9f}' => false,
        // `escape_debug` escapes format characters, separators and unassigned code points.
        c => c.escape_debug().len() == 1,
    }
}

/// Arbitrary bytes to print. `Display` escapes everything that is not printable and truncates long
/// text. Escaping twice changes nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Escaped<'a> {
    bytes: &'a [u8],
    most: usize,
}

impl<'a> Escaped<'a> {
    /// Prints all bytes.
    pub(crate) fn whole(bytes: &'a [u8]) -> Self {
        let most = usize::MAX;
        Self { bytes, most }
    }

    /// Prints a name, key or value.
    pub(crate) fn name(bytes: &'a [u8]) -> Self {
        let most = SHOWN;
        Self { bytes, most }
    }

    /// Prints a server's own text.
    pub(crate) fn said(text: &'a str) -> Self {
        let (bytes, most) = (text.as_bytes(), SAID);
        Self { bytes, most }
    }
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut = |f: &mut fmt::Formatter<'_>| write!(f, "… ({} bytes)", self.bytes.len());
        let mut printed = 0;
        for chunk in self.bytes.utf8_chunks() {
            for c in chunk.valid().chars() {
                if printed >= self.most {
                    return cut(f);
                }
                match c {
                    c if is_printable(c) => write!(f, "{c}")?,
                    c if c.is_ascii() => write!(f, "{}", (c as u8).escape_ascii())?,
                    c => write!(f, "{}", c.escape_unicode())?,
                }
                printed += 1;
            }
            if !chunk.invalid().is_empty() && printed >= self.most {
                return cut(f);
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
    fn text_is_kept_escaped_or_cut() {
        assert_eq!(whole("tisch-ü \\ \"{名}\""), "tisch-ü \\ \"{名}\"");
        assert_eq!(whole("\x1b[2J\n\u{9b}\u{202e}"), r"\x1b[2J\n\u{9b}\u{202e}");
        assert_eq!(Escaped::whole(b"a\xffb\xc3").to_string(), r"a\xffb\xc3");
        for byte in [b'x', b'\xff'] {
            let long = Escaped::name(&[byte; 70_000]).to_string();
            assert!(
                long.len() < 600 && long.ends_with("(70000 bytes)"),
                "{long}"
            );
        }
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
            assert_eq!(whole(&escaped), escaped, "escaping twice changes nothing");
        }
    }
}
