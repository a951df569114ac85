//! One flat JSON object, written by hand: a crate would be more than this.

use std::fmt::{self, Display, Write};

/// An object in the making.
pub(crate) struct Object(String);

impl Object {
    pub(crate) fn new() -> Self {
        Self(String::from("{"))
    }

    /// A number, or null.
    pub(crate) fn number(&mut self, key: &str, value: Option<impl Display>) -> &mut Self {
        match value {
            Some(value) => self.raw(key, value),
            None => self.raw(key, "null"),
        }
    }

    pub(crate) fn boolean(&mut self, key: &str, value: bool) -> &mut Self {
        self.raw(key, value)
    }

    /// A string, or null.
    pub(crate) fn text(&mut self, key: &str, value: Option<&str>) -> &mut Self {
        match value {
            Some(value) => self.raw(key, Quoted(value)),
            None => self.raw(key, "null"),
        }
    }

    /// A string of hexadecimal digits, two for a byte.
    pub(crate) fn hex(&mut self, key: &str, bytes: &[u8]) -> &mut Self {
        let digits = bytes.iter().fold(String::new(), |mut digits, byte| {
            // Writing to a string cannot fail, here and below.
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
                // DEL and the C1 controls are harmless to JSON and not to a terminal.
                c if c.is_control() => write!(f, "\\u{:04x}", u32::from(c))?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smoke() {
        let mut object = Object::new();
        object
            .text("a", Some("x\"\\\n\u{9b}ü"))
            .text("b", None)
            .number("c", Some(7))
            .boolean("d", true)
            .hex("e", b"\x00\xff");
        assert_eq!(
            object.finish(),
            r#"{"a":"x\"\\\u000a\u009bü","b":null,"c":7,"d":true,"e":"00ff"}"#
        );
        assert_eq!(Object::new().finish(), "{}");
    }
}
