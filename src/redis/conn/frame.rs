//! Finds the end of a reply, in RESP2 and RESP3, as its bytes arrive. No I/O.
//!
//! A peer cannot make memory grow by announcing a length: one beyond the limits is rejected before
//! any of its bytes are read.

use crate::violation::ViolationKind;

/// The most bytes of a reply to a command that lists what is in Redis, and of a message. Lists are
/// read in pages.
const MOST_BYTES: usize = 1024 * 1024;

/// How many bytes any other reply may have in addition to those of the commands that were sent.
/// Scripts that change locks return little more than 1 KiB of a value that others wrote, and less
/// for each name than the name takes in the command. Many connections may get such a reply at the
/// same time.
const USUAL_BYTES: usize = 32 * 1024;

/// The most bytes of a line of text: a status, an error, or a big number.
const LONGEST_TEXT: usize = 64 * 1024;

/// The most bytes of a line that is a number or a length.
const LONGEST_NUMBER: usize = 64;

/// A reply that may have n bytes may have n / 16 values: a parsed value takes more memory than its
/// bytes do.
const BYTES_PER_VALUE: usize = 16;

/// The deepest nesting of a reply. The deepest replies known, of HELLO with modules and of CLUSTER
/// SLOTS, have five levels.
const DEEPEST: usize = 16;

pub(super) const LINE_END: &[u8; 2] = b"\r\n";

/// The most bytes that the next replies may have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit(usize);

impl Default for Limit {
    fn default() -> Self {
        Self(USUAL_BYTES)
    }
}

impl Limit {
    pub(super) const MOST: Self = Self(MOST_BYTES);

    /// Raises the limit for the replies to commands of this many bytes.
    pub(super) fn raise_for(&mut self, commands: usize) {
        let wanted = USUAL_BYTES.saturating_add(commands);
        self.0 = self.0.max(wanted.min(MOST_BYTES));
    }

    pub(super) fn bytes(self) -> usize {
        self.0
    }
}

/// The progress through a reply whose end is still missing.
#[derive(Debug, Default)]
pub(super) struct FrameScan {
    /// The position of the next value.
    at: usize,
    /// The first line of that value does not end before this position.
    sought: usize,
    /// How many values are missing on each open level.
    missing: [usize; DEEPEST],
    depth: usize,
    /// How many values the reply has announced so far.
    values: usize,
}

/// The content of a value after its first line.
enum Body {
    /// Nothing behind the line.
    Line,
    /// This many bytes, and a line end.
    Bytes(usize),
    /// This many values.
    Values(usize),
}

impl FrameScan {
    /// Returns whether [`end`](Self::end) would start at the first byte of the reply.
    pub(super) fn is_new(&self) -> bool {
        self.at == 0 && self.sought == 0
    }

    /// Returns the length of the reply at the start of `bytes`; `None` while a part is missing.
    /// Then it must be called again with the same bytes and more after them.
    pub(super) fn end(
        &mut self,
        bytes: &[u8],
        limit: Limit,
    ) -> Result<Option<usize>, ViolationKind> {
        while let Some(&kind) = bytes.get(self.at) {
            let Some(next) = self.value(kind, bytes, limit)? else {
                break;
            };
            if next > limit.bytes() {
                return Err(ViolationKind::TooLarge);
            }
            self.at = next;
            if self.depth == 0 {
                return Ok(Some(next));
            }
        }
        // All these bytes belong to this reply.
        if bytes.len() > limit.bytes() {
            return Err(ViolationKind::TooLarge);
        }
        Ok(None)
    }

    /// Returns where the next value begins; `None` while a part of this one is missing.
    fn value(
        &mut self,
        kind: u8,
        bytes: &[u8],
        limit: Limit,
    ) -> Result<Option<usize>, ViolationKind> {
        let (is_text, factor, more) = match kind {
            b'+' | b'-' | b'(' => (true, 0, 0),
            b':' | b',' | b'#' | b'_' | b'$' | b'!' | b'=' => (false, 0, 0),
            b'*' | b'~' | b'>' => (false, 1, 0),
            b'%' => (false, 2, 0),
            // The value that the attributes describe follows them.
            b'|' => (false, 2, 1),
            _ if self.at == 0 => return Err(ViolationKind::NotResp),
            _ => return Err(ViolationKind::Malformed),
        };
        let Some(line_end) = self.line_end(bytes, is_text)? else {
            return Ok(None);
        };
        let line = bytes.get(self.at + 1..line_end).unwrap_or_default();
        let next = line_end + LINE_END.len();
        match body(kind, line)? {
            Body::Line => self.close(),
            Body::Bytes(length) => {
                let end = next.saturating_add(length);
                if end > limit.bytes() {
                    return Err(ViolationKind::TooLarge);
                }
                let Some(behind) = bytes.get(end..end + LINE_END.len()) else {
                    return Ok(None);
                };
                if behind != LINE_END {
                    return Err(ViolationKind::Malformed);
                }
                self.close();
                return Ok(Some(end + LINE_END.len()));
            }
            Body::Values(count) => {
                self.open(count.saturating_mul(factor).saturating_add(more), limit)?;
            }
        }
        Ok(Some(next))
    }

    /// Returns where the first line of the value ends; `None` while its end is missing.
    fn line_end(&mut self, bytes: &[u8], is_text: bool) -> Result<Option<usize>, ViolationKind> {
        let from = self.sought.max(self.at + 1);
        let rest = bytes.get(from..).unwrap_or_default();
        let found = rest.windows(LINE_END.len()).position(|two| two == LINE_END);
        let end = found.map_or(bytes.len(), |n| from + n);
        if is_text && end - self.at > LONGEST_TEXT {
            return Err(ViolationKind::TooLarge);
        }
        if !is_text && end - self.at > LONGEST_NUMBER {
            return Err(ViolationKind::Malformed);
        }
        if found.is_none() {
            // The last byte may be the first half of the line end.
            self.sought = end - 1;
        }
        Ok(found.map(|_| end))
    }

    /// Opens a level for an aggregate of `count` values.
    fn open(&mut self, count: usize, limit: Limit) -> Result<(), ViolationKind> {
        self.values = self.values.saturating_add(count);
        if self.values > limit.bytes() / BYTES_PER_VALUE {
            return Err(ViolationKind::TooLarge);
        }
        if count == 0 {
            self.close();
            return Ok(());
        }
        let level = self
            .missing
            .get_mut(self.depth)
            .ok_or(ViolationKind::TooLarge)?;
        *level = count;
        self.depth += 1;
        Ok(())
    }

    /// Ends a value, and the aggregates whose last value it is.
    fn close(&mut self) {
        while let Some(above) = self.depth.checked_sub(1)
            && let Some(missing) = self.missing.get_mut(above)
        {
            *missing -= 1;
            if *missing > 0 {
                return;
            }
            self.depth = above;
        }
    }
}

/// Returns what follows the first line of a value; `line` is without the type byte.
fn body(kind: u8, line: &[u8]) -> Result<Body, ViolationKind> {
    match (kind, line) {
        (b'$' | b'*', b"-1") => Ok(Body::Line),
        (b'$' | b'!' | b'=', line) => length(line).map(Body::Bytes),
        (b'*' | b'~' | b'>' | b'%' | b'|', line) => length(line).map(Body::Values),
        _ => Ok(Body::Line),
    }
}

fn length(line: &[u8]) -> Result<usize, ViolationKind> {
    if line.is_empty() || !line.iter().all(u8::is_ascii_digit) {
        return Err(ViolationKind::Malformed);
    }
    let text = str::from_utf8(line).map_err(|_| ViolationKind::Malformed)?;
    text.parse().map_err(|_| ViolationKind::TooLarge)
}

#[cfg(test)]
mod tests;
