//! The open connection of a pipeline, with the commands that are packed for it.

use redis::RedisResult;

use crate::clock::Instant;
use crate::redis::conn::connection::Connection;
use crate::redis::conn::output::Output;
use crate::replicas::Replicas;

/// A connection, by its owner.
pub(super) enum Origin {
    Own(Connection),
    /// The last one of the pool.
    Lent(Connection),
}

impl Origin {
    pub(super) fn get(&self) -> &Connection {
        match self {
            Self::Own(connection) | Self::Lent(connection) => connection,
        }
    }

    pub(super) fn get_mut(&mut self) -> &mut Connection {
        match self {
            Self::Own(connection) | Self::Lent(connection) => connection,
        }
    }
}

pub(super) struct Line {
    pub(super) connection: Origin,
    pub(super) output: Output,
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
            output: Output::default(),
            wait: None,
            has_more: false,
            is_rejected: false,
        }
    }

    /// Writes as much as the socket takes.
    pub(super) fn flush(&mut self) -> RedisResult<()> {
        self.output.flush(self.connection.get_mut())
    }
}
