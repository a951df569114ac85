//! The open connection of a pipeline, and what is packed and not written on it.

use redis::RedisResult;

use crate::clock::Instant;
use crate::redis::conn::connection::Connection;
use crate::redis::quorum::pipelined_connection::PipelinedConnection;
use crate::replicas::Replicas;

/// A buffer larger than this, in bytes, is not kept.
const LARGE: usize = 16 * 1024;

/// A connection, by its owner.
pub(super) enum Origin {
    Own(Connection),
    /// The last one of the pool.
    Lent(Connection),
    /// One that the calls of a quorum use.
    OfMember(PipelinedConnection),
}

impl Origin {
    pub(super) fn get(&self) -> &Connection {
        match self {
            Self::Own(connection) | Self::Lent(connection) => connection,
            Self::OfMember(connection) => connection.connection(),
        }
    }

    pub(super) fn get_mut(&mut self) -> &mut Connection {
        match self {
            Self::Own(connection) | Self::Lent(connection) => connection,
            Self::OfMember(connection) => connection.connection_mut(),
        }
    }
}

pub(super) struct Line {
    pub(super) connection: Origin,
    /// The packed commands; the bytes before `start` are written.
    output: Vec<u8>,
    start: usize,
    /// The bytes packed and written in all.
    packed: u64,
    pub(super) written: u64,
    /// The WAIT behind the last batch, and when its reply began to be the next one.
    pub(super) wait: Option<(Replicas, Instant)>,
    /// The last turn has left replies in the buffer.
    pub(super) has_more: bool,
    /// The server has replied that it cannot serve now: nothing more is sent.
    pub(super) is_rejected: bool,
}

impl Line {
    pub(super) fn new(connection: Origin) -> Self {
        Self {
            connection,
            output: Vec::new(),
            start: 0,
            packed: 0,
            written: 0,
            wait: None,
            has_more: false,
            is_rejected: false,
        }
    }

    /// Packs a command. Returns how many bytes were packed up to its last one.
    pub(super) fn pack(&mut self, pack: impl FnOnce(&mut Vec<u8>)) -> u64 {
        let before = self.output.len();
        pack(&mut self.output);
        self.packed += (self.output.len() - before) as u64;
        self.packed
    }

    /// Returns whether all that was packed is written.
    pub(super) fn is_written(&self) -> bool {
        self.output.is_empty()
    }

    /// Returns how many bytes are packed and not written.
    pub(super) fn unwritten(&self) -> u64 {
        self.packed - self.written
    }

    /// Writes what the socket takes.
    pub(super) fn flush(&mut self) -> RedisResult<()> {
        let connection = self.connection.get_mut();
        while let Some(left) = self.output.get(self.start..)
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
        if self.start == self.output.len() && connection.flush()? {
            self.output.clear();
            self.start = 0;
            if self.output.capacity() > LARGE {
                self.output = Vec::new();
            }
        } else if self.start > LARGE {
            self.output.drain(..self.start);
            self.start = 0;
        }
        Ok(())
    }
}
