//! Combined calls: a call that finds the connections in use is sent by a thread that returns one.

pub(crate) mod combiner;

use std::sync::Arc;

use redis::RedisError;

use crate::clock::Instant;
use crate::error_reply::meaning;
use crate::protocol::script::{Call, ScriptForm};
use crate::redis::combine::combiner::{Batch, COMBINE_WAIT, NextStep};
use crate::redis::conn::call_queue::Ticket;
use crate::redis::conn::callers::Cap;
use crate::redis::conn::combined_call::{CombinedCall, Delivery, Write};
use crate::redis::conn::connection::{CallResult, Connection};
use crate::redis::conn::pool::{Pool, PooledConnection};
use crate::redis::conn::socket::timed_out;
use crate::sync::Mutex;

/// Commands longer than this, in bytes, are not combined: only unusually long names need them. A
/// batch must fit into the socket's buffer, so that its sender does not block for other calls.
const LONG: usize = 1024;

/// A call that was sent in a batch.
pub(in crate::redis) struct Combined {
    /// The instant before the batch was sent.
    pub(in crate::redis) at: Instant,
    /// The reply, or why there is none.
    pub(in crate::redis) answer: CallResult,
    /// Whether this call's thread read the replies: a connection that fails counts once.
    pub(in crate::redis) has_read: bool,
    pub(in crate::redis) behind: Behind,
}

impl Combined {
    /// Returns whether the server has not run the script: the call needs its own connection.
    pub(in crate::redis) fn must_be_sent_again(&self) -> bool {
        let reply = self.answer.as_ref();
        reply.is_ok_and(|reply| ScriptForm::Digest.after(reply).is_some())
    }
}

/// Where the undo of a call goes that got no reply.
pub(in crate::redis) enum Behind {
    /// The connection has ended. It is closed once all calls of the write have dropped it.
    Connection(Arc<Mutex<Connection>>),
    /// The call has stopped waiting: the thread that reads the replies writes it.
    Reader(Arc<CombinedCall>),
}

impl Pool {
    /// Sends `call` in a batch and waits for its reply. Returns `None` if the call was not sent and
    /// needs its own connection.
    pub(in crate::redis) fn combine(
        &self,
        call: &Call<'_>,
        until: Instant,
        cap_rule: Cap,
    ) -> Option<Combined> {
        let mut command = Vec::with_capacity(256);
        call.pack(ScriptForm::Digest, &mut command);
        if command.len() > LONG {
            return None;
        }
        let combined = CombinedCall::new(command, call.verb);
        let joined = Instant::now();
        let (ticket, batch) = self.join(joined, until, cap_rule, &combined)?;
        if let Some(batch) = batch {
            self.send(batch);
        }
        match self.wait_for_delivery(&combined, ticket, cap_rule, joined, until)? {
            Delivery::Alone => None,
            Delivery::Read(write) => Some(self.read_all(*write, &combined, until)),
            Delivery::Answer(sent, answer, connection) => Some(Combined {
                at: sent,
                answer,
                has_read: false,
                behind: connection.map_or(Behind::Reader(combined), Behind::Connection),
            }),
        }
    }

    /// Waits until a queued call is answered or must read. Returns `None` if it has left the queue.
    fn wait_for_delivery(
        &self,
        combined: &CombinedCall,
        ticket: Ticket,
        cap_rule: Cap,
        joined: Instant,
        until: Instant,
    ) -> Option<Delivery> {
        let mut next = joined.after(COMBINE_WAIT).min(until);
        loop {
            if let Some(delivery) = combined.wait(next) {
                return Some(delivery);
            }
            let is_over = next >= until;
            match self.next_step(ticket, cap_rule, is_over) {
                NextStep::Alone => return None,
                NextStep::Sends(batch) => self.send(*batch),
                // The call is in a batch, and may run: it counts as unanswered.
                NextStep::Waits if is_over => {
                    let unanswered = || Delivery::Answer(joined, Err(timed_out().into()), None);
                    return Some(combined.give_up().unwrap_or_else(unanswered));
                }
                NextStep::Waits => {}
            }
            next = until;
        }
    }

    /// Sends the queued calls over the connection, or returns it to the pool.
    pub(in crate::redis) fn pass_on(&self, pooled: PooledConnection<'_>) {
        if let Some(batch) = pooled.put_back_or_batch() {
            self.send(batch);
        }
    }

    /// Sends a batch in one write and has one of its threads read the replies.
    fn send(&self, batch: Batch<'_>) {
        let Batch {
            mut pooled,
            reader,
            others,
            now: sent,
        } = batch;
        // The reader's own command is last: it reads its own reply after all others.
        let until = sent.after(self.connector.command_timeout);
        let written = pooled.connection().write(until, |buffer| {
            for call in others.iter().chain([&reader]) {
                buffer.extend_from_slice(&call.command);
            }
        });
        if let Err(error) = written {
            self.forget_idle();
            drop(fail(pooled, others.iter().chain([&reader]), sent, &error));
            return;
        }
        let connection = pooled.into_connection();
        let write = Box::new(Write {
            connection,
            sent,
            others,
        });
        // If the reader's deadline has passed, no thread reads: the connection must be closed.
        if let Err(Delivery::Read(write)) = reader.deliver(Delivery::Read(write)) {
            let pooled = self.pooled(write.connection, Some(sent));
            let calls = write.others.iter().chain([&reader]);
            drop(fail(pooled, calls, sent, &timed_out().into()));
        }
    }

    /// Reads the replies to one write. It delivers those it has before it blocks on the socket, for
    /// the next reply or for the next write.
    fn read_all(&self, write: Write, own: &Arc<CombinedCall>, until: Instant) -> Combined {
        let Write {
            connection,
            sent,
            others,
        } = write;
        let mut pooled = self.pooled(connection, Some(sent));
        // The reader has the latest deadline of the batch.
        let until = sent.after(self.connector.command_timeout).min(until);
        let mut unread = others.iter();
        let mut read = Vec::with_capacity(others.len());
        let mut not_serving = false;
        let answer = loop {
            let at_hand = pooled.connection().answer_at_hand(&mut 0).transpose();
            let value = at_hand.unwrap_or_else(|| {
                deliver_all(sent, read.drain(..));
                pooled.connection().answer(until)
            });
            // The others' replies come first, then its own.
            let next = unread.as_slice().first().unwrap_or(own);
            match value.and_then(|value| pooled.connection().meaning_of(value, next.verb)) {
                Ok(answer) => {
                    not_serving |= answer
                        .as_ref()
                        .is_err_and(|error| meaning(error).may_pass());
                    match unread.next() {
                        Some(other) => read.push((other, Ok(answer))),
                        None => break Ok(answer),
                    }
                }
                Err(error) => break Err(error),
            }
        };
        deliver_all(sent, read);
        let mut behind = Behind::Reader(Arc::clone(own));
        if let Err(error) = &answer {
            behind = Behind::Connection(fail(pooled, unread, sent, error));
        } else if not_serving {
            pooled.reject();
        } else {
            self.pass_on(pooled);
        }
        Combined {
            at: sent,
            answer,
            has_read: true,
            behind,
        }
    }
}

/// Delivers the replies to calls that were sent at `sent`. A call that has given up counts as
/// unanswered, and its own thread undoes it.
fn deliver_all<'a, I>(sent: Instant, answers: I)
where
    I: IntoIterator<Item = (&'a Arc<CombinedCall>, CallResult)>,
{
    for (combined, answer) in answers {
        let _ = combined.deliver(Delivery::Answer(sent, answer, None));
    }
}

/// Fails calls that get no reply. Returns the connection, on which each writes its undo behind the
/// commands; the last one closes it.
fn fail<'a, I>(
    pooled: PooledConnection<'_>,
    unread: I,
    sent: Instant,
    error: &RedisError,
) -> Arc<Mutex<Connection>>
where
    I: IntoIterator<Item = &'a Arc<CombinedCall>>,
{
    let connection = Arc::new(Mutex::new(pooled.keep()));
    for combined in unread {
        let shared = Some(Arc::clone(&connection));
        let answer = Delivery::Answer(sent, Err(error.clone()), shared);
        if combined.deliver(answer).is_err() {
            combined.failed(&connection);
        }
    }
    connection
}

#[cfg(test)]
mod tests;
