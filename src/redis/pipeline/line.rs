//! The open connection of a pipeline, with the commands that are packed for it.

use redis::RedisResult;

use crate::clock::Instant;
use crate::redis::conn::connection::Connection;
use crate::redis::conn::output::Output;
use crate::redis::conn::pool::IsLent;
use crate::replicas::Replicas;

pub(super) struct Line {
    pub(super) connection: Connection,
    /// It is the last one of the pool.
    pub(super) is_lent: IsLent,
    pub(super) output: Output,
    /// The WAIT behind the last batch, and when its reply began to be the next one.
    pub(super) wait: Option<(Replicas, Instant)>,
    /// The last turn has left replies in the buffer.
    pub(super) has_more: bool,
    /// The server has replied that it cannot serve now: nothing more is sent.
    pub(super) is_rejected: bool,
}

impl Line {
    pub(super) fn new(connection: Connection, is_lent: IsLent) -> Self {
        Self {
            connection,
            is_lent,
            output: Output::default(),
            wait: None,
            has_more: false,
            is_rejected: false,
        }
    }

    /// Writes as much as the socket takes.
    pub(super) fn flush(&mut self) -> RedisResult<()> {
        self.output.flush(&mut self.connection)
    }
}
