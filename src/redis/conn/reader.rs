//! Reads replies, in RESP2 and RESP3, from the bytes of a server as they arrive. No I/O.
//!
//! A peer cannot make memory grow by announcing a length: one beyond the limits is rejected before
//! any of its bytes are read.

use std::ops::Range;

use redis::{RedisError, Value};

use crate::protocol::reply::Reply;
use crate::violation::{Violation, ViolationKind};

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

/// A reply that may have n bytes may have n / 16 values: a value takes more memory than its bytes
/// do.
const BYTES_PER_VALUE: usize = 16;

/// The deepest nesting of a reply. The deepest replies known, of HELLO with modules and of CLUSTER
/// SLOTS, have five levels.
const DEEPEST: usize = 16;

/// The smallest buffer for reads, and the largest that an idle connection keeps, in bytes. Most
/// replies are far shorter.
const CHUNK: usize = 2 * 1024;

/// The free bytes below which the buffer is compacted or grown.
const LEAST_ROOM: usize = 512;

const LINE_END: &[u8; 2] = b"\r\n";

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
}

/// The bytes from a server that belong to no reply yet, in a buffer little longer than the longest
/// reply.
#[derive(Default)]
pub(super) struct Reader {
    /// The peer's bytes are those from `start` to `end`. The rest is initialised, but not data.
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    /// The last reply taken out; its bytes stay until more are read.
    last: Range<usize>,
    /// The part that was read of the reply that begins at `start`.
    partial: PartialReply,
    pub(super) limit: Limit,
}

impl Reader {
    /// Takes out the next reply; `None` while a part of it is missing.
    pub(super) fn next(&mut self) -> Result<Option<Reply>, RedisError> {
        let bytes = self.bytes.get(self.start..self.end).unwrap_or_default();
        match self.partial.read(bytes, self.limit) {
            Ok(None) => Ok(None),
            Ok(Some((reply, length))) => {
                self.take(length);
                Ok(Some(reply))
            }
            Err(kind) => Err(Violation::new(kind, bytes).into()),
        }
    }

    /// Takes out the next reply, which has this length.
    fn take(&mut self, length: usize) {
        self.last = self.start..self.start + length;
        self.start += length;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.bytes.len() > CHUNK {
                // A long reply is rare, and there may be many connections: free the buffer. Only
                // the first bytes of the reply stay, as many as a violation quotes.
                let beginning = self.misfit().read;
                self.last = 0..beginning.len();
                self.bytes = beginning.into();
            }
        }
    }

    /// Returns whether bytes have arrived that belong to no reply taken out.
    pub(super) fn is_within_reply(&self) -> bool {
        self.start < self.end
    }

    /// Returns the violation by the last reply, which does not fit the command.
    pub(super) fn misfit(&self) -> Violation {
        let reply = self.bytes.get(self.last.clone()).unwrap_or_default();
        Violation::new(ViolationKind::Malformed, reply)
    }

    /// Returns a violation by the bytes that belong to no reply taken out.
    pub(super) fn violation_by_rest(&self, kind: ViolationKind) -> Violation {
        let bytes = self.bytes.get(self.start..self.end).unwrap_or_default();
        Violation::new(kind, bytes)
    }

    /// Returns where to put the next bytes; never empty.
    pub(super) fn room(&mut self) -> &mut [u8] {
        if self.bytes.len() - self.end < LEAST_ROOM {
            self.make_room();
        }
        self.bytes.get_mut(self.end..).unwrap_or_default()
    }

    /// Records that `count` bytes were written to [`room`](Self::room).
    pub(super) fn filled(&mut self, count: usize) {
        self.end = (self.end + count).min(self.bytes.len());
    }

    fn make_room(&mut self) {
        let held = self.end - self.start;
        // A reply beyond the limit is rejected, so one reply never needs a larger buffer.
        let wanted = (held * 2).clamp(CHUNK, self.limit.0 + CHUNK);
        // With TLS, a record may contain more replies, and all its bytes must go into the buffer.
        let wanted = wanted.max(held + LEAST_ROOM);
        if wanted > self.bytes.len() {
            let mut bytes = vec![0; wanted].into_boxed_slice();
            if let (Some(to), Some(from)) =
                (bytes.get_mut(..held), self.bytes.get(self.start..self.end))
            {
                to.copy_from_slice(from);
            }
            self.bytes = bytes;
        } else {
            self.bytes.copy_within(self.start..self.end, 0);
        }
        (self.start, self.end) = (0, held);
    }
}

/// The part of a reply that was read before its end arrived.
#[derive(Debug, Default)]
struct PartialReply {
    /// The position of the next value.
    at: usize,
    /// The first line of that value does not end before this position.
    sought: usize,
    /// How many values the reply has announced so far.
    values: usize,
    /// The lists that miss values, from the outermost to the innermost.
    open: Vec<OpenList>,
}

#[derive(Debug)]
struct OpenList {
    /// The first byte of its line.
    kind: u8,
    /// How many of its values are missing; never zero.
    missing: usize,
    items: Vec<Reply>,
}

/// The value that a line begins, and the form in which it goes on.
enum Line {
    Value(Reply),
    /// A list with this many values.
    List(usize),
}

impl PartialReply {
    /// Returns the reply at the start of `bytes`, and its length; `None` while a part is missing.
    /// Then it must be called again with the same bytes and more after them.
    fn read(
        &mut self,
        bytes: &[u8],
        limit: Limit,
    ) -> Result<Option<(Reply, usize)>, ViolationKind> {
        while let Some(&kind) = bytes.get(self.at) {
            let Some((line, next)) = self.line(kind, bytes, limit)? else {
                break;
            };
            if next > limit.0 {
                return Err(ViolationKind::TooLarge);
            }
            self.at = next;
            let value = match line {
                Line::Value(value) => value,
                Line::List(count) => match self.open(kind, count, limit)? {
                    Some(empty) => empty,
                    None => continue,
                },
            };
            if let Some(reply) = self.close(value) {
                (self.at, self.sought, self.values) = (0, 0, 0);
                return Ok(Some((reply, next)));
            }
        }
        // All these bytes belong to this reply.
        if bytes.len() > limit.0 {
            return Err(ViolationKind::TooLarge);
        }
        Ok(None)
    }

    /// Returns what the next value is, and where the one behind it begins; `None` while a part of
    /// it is missing.
    fn line(
        &mut self,
        kind: u8,
        bytes: &[u8],
        limit: Limit,
    ) -> Result<Option<(Line, usize)>, ViolationKind> {
        let is_text = match kind {
            b'+' | b'-' | b'(' => true,
            b':' | b',' | b'#' | b'_' | b'$' | b'!' | b'=' => false,
            b'*' | b'~' | b'%' | b'|' => false,
            // A push is no part of another value.
            b'>' if self.open.is_empty() => false,
            _ if self.at == 0 => return Err(ViolationKind::NotResp),
            _ => return Err(ViolationKind::Malformed),
        };
        let Some(line_end) = self.line_end(bytes, is_text)? else {
            return Ok(None);
        };
        let line = bytes.get(self.at + 1..line_end).unwrap_or_default();
        let mut next = line_end + LINE_END.len();
        let read = match (kind, line) {
            (b'$' | b'*', b"-1") => Line::Value(Reply::Nil),
            (b'$' | b'!' | b'=', _) => {
                let Some(body) = body(bytes, next, length(line)?, limit)? else {
                    return Ok(None);
                };
                next += body.len() + LINE_END.len();
                match kind {
                    b'$' => Line::Value(Reply::Text(body.to_vec())),
                    _ => Line::Value(rare(bytes.get(self.at..next).unwrap_or_default())?),
                }
            }
            (b'*' | b'~' | b'>', _) => Line::List(length(line)?),
            (b'%', _) => Line::List(length(line)?.saturating_mul(2)),
            // The value that the attributes describe follows them.
            (b'|', _) => Line::List(length(line)?.saturating_mul(2).saturating_add(1)),
            (b':', _) => Line::Value(Reply::Int(number(line)?)),
            (b'+', _) => Line::Value(Reply::Status(text(line)?.to_owned())),
            _ => Line::Value(rare(bytes.get(self.at..next).unwrap_or_default())?),
        };
        Ok(Some((read, next)))
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

    /// Begins a list of `count` values; returns it if that is zero.
    fn open(
        &mut self,
        kind: u8,
        count: usize,
        limit: Limit,
    ) -> Result<Option<Reply>, ViolationKind> {
        self.values = self.values.saturating_add(count);
        if self.values > limit.0 / BYTES_PER_VALUE {
            return Err(ViolationKind::TooLarge);
        }
        if count == 0 {
            return Ok(Some(list(kind, Vec::new())));
        }
        if self.open.len() == DEEPEST {
            return Err(ViolationKind::TooLarge);
        }
        self.open.push(OpenList {
            kind,
            missing: count,
            // More are announced than may ever come.
            items: Vec::with_capacity(count.min(8)),
        });
        Ok(None)
    }

    /// Adds a value to the innermost list, and ends the lists whose last value it is. Returns the
    /// reply if nothing is missing.
    fn close(&mut self, mut value: Reply) -> Option<Reply> {
        while let Some(mut innermost) = self.open.pop() {
            innermost.items.push(value);
            innermost.missing -= 1;
            if innermost.missing > 0 {
                self.open.push(innermost);
                return None;
            }
            value = list(innermost.kind, innermost.items);
        }
        Some(value)
    }
}

/// Returns the list that began with a line of this kind.
fn list(kind: u8, items: Vec<Reply>) -> Reply {
    match kind {
        // RESP2 sends a flat list in place of a map.
        b'*' | b'%' => Reply::List(items),
        b'>' => Reply::Push(items),
        _ => Reply::Other,
    }
}

/// Returns the text of this length at `from`, after checking the line end behind it; `None` while a
/// part is missing.
fn body(
    bytes: &[u8],
    from: usize,
    length: usize,
    limit: Limit,
) -> Result<Option<&[u8]>, ViolationKind> {
    let end = from.saturating_add(length);
    if end > limit.0 {
        return Err(ViolationKind::TooLarge);
    }
    match bytes.get(end..end + LINE_END.len()) {
        None => Ok(None),
        Some(behind) if behind == LINE_END => Ok(bytes.get(from..end)),
        Some(_) => Err(ViolationKind::Malformed),
    }
}

/// Reads a value without items that is neither a number nor a text, from all of its bytes. Only the
/// `redis` crate can make its errors.
fn rare(bytes: &[u8]) -> Result<Reply, ViolationKind> {
    match redis::parse_redis_value(bytes) {
        Ok(Value::ServerError(error)) => Ok(Reply::Error(error)),
        Ok(Value::Nil) => Ok(Reply::Nil),
        Ok(_) => Ok(Reply::Other),
        Err(_) => Err(ViolationKind::Malformed),
    }
}

fn text(line: &[u8]) -> Result<&str, ViolationKind> {
    str::from_utf8(line).map_err(|_| ViolationKind::Malformed)
}

fn number(line: &[u8]) -> Result<i64, ViolationKind> {
    text(line)?.parse().map_err(|_| ViolationKind::Malformed)
}

fn length(line: &[u8]) -> Result<usize, ViolationKind> {
    if line.is_empty() || !line.iter().all(u8::is_ascii_digit) {
        return Err(ViolationKind::Malformed);
    }
    text(line)?.parse().map_err(|_| ViolationKind::TooLarge)
}

/// Reads one reply as a connection does; `None` if it is incomplete.
#[cfg(test)]
pub(crate) fn read_reply(mut bytes: &[u8]) -> Result<Option<Reply>, RedisError> {
    let mut reader = Reader {
        limit: Limit::MOST,
        ..Reader::default()
    };
    while !bytes.is_empty() {
        let room = reader.room();
        let (now, later) = bytes.split_at(bytes.len().min(room.len()));
        room[..now.len()].copy_from_slice(now);
        reader.filled(now.len());
        bytes = later;
    }
    let reply = reader.next();
    assert!(reader.bytes.len() <= MOST_BYTES + CHUNK);
    reply
}

#[cfg(test)]
mod tests;
