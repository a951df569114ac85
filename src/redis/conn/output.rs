//! Commands that are packed, and written to a connection as far as its socket takes them.

use redis::RedisResult;

use crate::redis::conn::connection::Connection;

/// A buffer larger than this, in bytes, is not kept.
const LARGE: usize = 16 * 1024;

/// The bytes for one connection, which are written without waiting.
#[derive(Default)]
pub(crate) struct Output {
    /// The packed bytes; those before `start` are written.
    bytes: Vec<u8>,
    start: usize,
    /// The bytes packed and written in all.
    packed: u64,
    written: u64,
}

impl Output {
    /// Packs a command. Returns how many bytes were packed up to its last one.
    pub(crate) fn pack(&mut self, pack: impl FnOnce(&mut Vec<u8>)) -> u64 {
        let before = self.bytes.len();
        pack(&mut self.bytes);
        self.packed += (self.bytes.len() - before) as u64;
        self.packed
    }

    /// Returns whether all that was packed is written.
    pub(crate) fn is_written(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns how many bytes are packed and not written.
    pub(crate) fn unwritten(&self) -> u64 {
        self.packed - self.written
    }

    /// Returns how many bytes were written in all.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Writes as much as the socket takes.
    pub(crate) fn flush(&mut self, connection: &mut Connection) -> RedisResult<()> {
        while let Some(left) = self.bytes.get(self.start..)
            && !left.is_empty()
        {
            let count = connection.write_some(left)?;
            if count == 0 {
                break;
            }
            self.start += count;
            self.written += count as u64;
        }
        // With TLS, the last bytes may still be here, encrypted.
        if self.start == self.bytes.len() && connection.flush()? {
            self.bytes.clear();
            self.start = 0;
            if self.bytes.capacity() > LARGE {
                self.bytes = Vec::new();
            }
        } else if self.start > LARGE {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        Ok(())
    }
}
