//! Reads the replies that callers of a quorum left unread on a connection, without waiting.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use crate::clock::Instant;
use crate::redis::conn::connection::MOST_READS;
use crate::redis::quorum::member::Member;
use crate::redis::quorum::pipelined_connection::PipelinedConnection;

/// A connection whose unread replies are read. A ping behind them measures the latency.
pub(crate) struct Draining {
    connection: PipelinedConnection,
    /// When the replies, or that to the ping, are late.
    pub(crate) until: Instant,
    /// When the ping was sent.
    pinged: Option<Instant>,
}

/// The result of a turn for a connection.
pub(crate) enum Drained {
    Waits(Box<Draining>),
    /// The calls have it again.
    Kept,
    Failed,
}

impl Draining {
    /// Begins at `now` to read the replies, which may take `timeout`.
    pub(crate) fn new(
        connection: PipelinedConnection,
        now: Instant,
        timeout: Duration,
    ) -> Box<Self> {
        Box::new(Self {
            connection,
            until: now.after(timeout),
            pinged: None,
        })
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.connection.connection().as_fd()
    }

    /// Reads what has arrived at `now`. The reply to the ping may take `timeout`, too.
    pub(crate) fn turn(
        mut self: Box<Self>,
        member: &Member,
        now: Instant,
        timeout: Duration,
    ) -> Drained {
        let mut reads = MOST_READS;
        loop {
            if self.connection.pending() == 0 {
                if let Some(pinged) = self.pinged {
                    member.set_latency(pinged.until(Instant::now()));
                    member.keep(self.connection);
                    return Drained::Kept;
                }
                self.pinged = Some(now);
                self.until = now.after(timeout);
                if self.connection.ping(Instant::START).is_err() {
                    return Drained::Failed;
                }
            }
            let (pending, answer) = match self.connection.receive_at_hand(&mut reads) {
                Some(received) => received,
                None if now < self.until => return Drained::Waits(self),
                None => break,
            };
            let Ok(answer) = answer else {
                member.settle(pending, None);
                break;
            };
            member.settle(pending, Some(&answer));
        }
        member.settle_all(self.connection);
        Drained::Failed
    }
}
