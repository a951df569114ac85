//! A writer of flat JSON objects: too little to be worth a dependency.

use std::fmt::{self, Display, Write};

use leasehold::Name;

use crate::escape::is_printable;

/// A JSON object under construction.
pub(crate) struct Object(String);

impl Object {
    pub(crate) fn new() -> Self {
        Self(String::from("{"))
    }

    /// Returns an object with the name of a lock.
    pub(crate) fn named(name: &Name) -> Self {
        let bytes = name.as_bytes();
        let text = str::from_utf8(bytes).ok();
        let mut object = Self::new();
        object.text("name", text);
        if text.is_none() {
            object.hex("name_hex", bytes);
        }
        object
    }

    /// Adds a number or a boolean, or null.
    pub(crate) fn plain(&mut self, key: &str, value: Option<impl Display>) -> &mut Self {
        match value {
            Some(value) => self.raw(key, value),
            None => self.raw(key, "null"),
        }
    }

    /// Adds a string, or null.
    pub(crate) fn text(&mut self, key: &str, value: Option<&str>) -> &mut Self {
        match value {
            Some(value) => self.raw(key, Quoted(value)),
            None => self.raw(key, "null"),
        }
    }

    /// Adds bytes as a string of hexadecimal digits, two for each byte.
    pub(crate) fn hex(&mut self, key: &str, bytes: &[u8]) -> &mut Self {
        let digits = bytes.iter().fold(String::new(), |mut digits, byte| {
            // Writing to a string cannot fail, here and in `raw`.
            let _ = write!(digits, "{byte:02x}");
            digits
        });
        self.text(key, Some(&digits))
    }

    pub(crate) fn finish(&self) -> String {
        format!("{}}}", self.0)
    }

    fn raw(&mut self, key: &str, value: impl Display) -> &mut Self {
        let comma = if self.0.len() > 1 { "," } else { "" };
        let _ = write!(self.0, "{comma}{}:{value}", Quoted(key));
        self
    }
}

struct Quoted<'a>(&'a str);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                c if is_printable(c) => f.write_char(c)?,
                // JSON allows some characters unescaped that a terminal would act on.
                c => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        write!(f, "\\u{unit:04x}")?;
                    }
                }
            }
        }
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_escape_their_strings() {
        let mut object = Object::new();
        object
            .text("a", Some("x\"\\\n\u{9b}ü\u{202e}\u{e0041}"))
            .text("b", None)
            .plain("c", Some(7))
            .plain("d", Some(true))
            .hex("e", b"\x00\xff");
        assert_eq!(
            object.finish(),
            r#"{"a":"x\"\\\u000a\u009bü\u202e\udb40\udc41","b":null,"c":7,"d":true,"e":"00ff"}"#
        );
        assert_eq!(Object::new().finish(), "{}");
    }
}
