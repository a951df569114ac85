//! The bytes read from a server and not yet parsed, in a buffer little longer than the longest
//! reply.

use std::ops::Range;

use redis::{RedisError, Value};

use super::frame::{FrameScan, Limit};
use super::short_reply;
use crate::violation::{Violation, ViolationKind};

/// The smallest buffer for reads, and the largest that an idle connection keeps, in bytes. Most
/// replies are far shorter.
const CHUNK: usize = 2 * 1024;

/// The free bytes below which the buffer is compacted or grown.
const LEAST_ROOM: usize = 512;

#[derive(Default)]
pub(super) struct Input {
    /// The peer's bytes are those from `start` to `end`. The rest is initialised, but not data.
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    /// The last reply taken out; its bytes stay until more are read.
    last: Range<usize>,
    /// The progress through the reply that begins at `start`.
    scan: FrameScan,
    pub(super) limit: Limit,
}

impl Input {
    /// Takes out the next reply; `None` while a part of it is missing.
    pub(super) fn next(&mut self) -> Result<Option<Value>, RedisError> {
        let bytes = self.bytes.get(self.start..self.end).unwrap_or_default();
        if self.scan.is_new()
            && let Some((value, end)) = short_reply::read(bytes)
        {
            self.take(end);
            return Ok(Some(value));
        }
        let end = match self.scan.end(bytes, self.limit) {
            Ok(None) => return Ok(None),
            Ok(Some(end)) => end,
            Err(kind) => return Err(Violation::new(kind, bytes).into()),
        };
        let reply = bytes.get(..end).unwrap_or_default();
        let Ok(value) = redis::parse_redis_value(reply) else {
            return Err(Violation::new(ViolationKind::Malformed, reply).into());
        };
        self.scan = FrameScan::default();
        self.take(end);
        Ok(Some(value))
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
        let wanted = (held * 2).clamp(CHUNK, self.limit.bytes() + CHUNK);
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

/// Reads one reply as a connection does; `None` if it is incomplete.
#[cfg(test)]
pub(crate) fn read_frame(mut bytes: &[u8]) -> Result<Option<Value>, RedisError> {
    let mut input = Input {
        limit: Limit::MOST,
        ..Input::default()
    };
    while !bytes.is_empty() {
        let room = input.room();
        let (now, later) = bytes.split_at(bytes.len().min(room.len()));
        room[..now.len()].copy_from_slice(now);
        input.filled(now.len());
        bytes = later;
    }
    let value = input.next();
    assert!(input.bytes.len() <= Limit::MOST.bytes() + CHUNK);
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_left_beyond_the_limit_of_one_reply() {
        let mut input = Input::default();
        // TLS decrypts a record at a time, and all of it is moved before the next reply is read.
        let record = 16 * 1024;
        while input.end < input.limit.bytes() + record {
            let room = input.room().len();
            assert!(room > 0, "at {} bytes", input.end);
            input.filled(room);
        }
    }
}
