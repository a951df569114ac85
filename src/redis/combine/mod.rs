//! Many threads' calls in one write: who finds the connections in use leaves its call to whoever is done with one.

pub(crate) mod combiner;

use std::io;
use std::sync::Arc;

use redis::RedisError;

use crate::clock::Instant;
use crate::error::{Meaning, meaning};
use crate::protocol::script::Call;
use crate::redis::combine::combiner::{Batch, Look, PATIENCE};
use crate::redis::conn::call_queue::Ticket;
use crate::redis::conn::callers::Cap;
use crate::redis::conn::combined_call::{Answer, CombinedCall, Delivery, Write};
use crate::redis::conn::pool::{Pool, PooledConnection};
use crate::redis::undoable::Undoable;

/// A longer command, of an unusual name, goes alone: what goes in one write fits into the socket's buffer, so
/// that the one who writes it for others is not held up.
const LONG: usize = 1024;

/// A call that was sent along with others.
pub(in crate::redis) struct Combined {
    /// Before that.
    pub(in crate::redis) at: Instant,
    /// What came of it.
    pub(in crate::redis) answer: Answer,
    /// It read for the others: what is wrong with the connection counts once.
    pub(in crate::redis) has_read: bool,
}

impl Pool {
    /// Sends `call` along with others and waits for its answer. `None` if it was not sent, and must go alone.
    pub(in crate::redis) fn combine(
        &self,
        call: &Call<'_>,
        until: Instant,
        cap_rule: Cap,
        undoable: Option<&Undoable<'_>>,
    ) -> Option<Combined> {
        let mut command = Vec::with_capacity(256);
        call.pack_by_sha(&mut command);
        if command.len() > LONG {
            return None;
        }
        let undoable = undoable.map(|undoable| (Arc::clone(undoable.keys), undoable.id.clone()));
        let entry = CombinedCall::new(command, call.expected(), undoable);
        let joined = Instant::now();
        let (ticket, batch) = self.join(joined, until, cap_rule, &entry)?;
        if let Some(batch) = batch {
            self.send(batch);
        }
        match self.news(&entry, ticket, cap_rule, joined, until)? {
            Delivery::Alone => None,
            Delivery::Read(write) => Some(self.read_all(*write, &entry, until)),
            Delivery::Answer(sent, answer) => Some(Combined {
                at: sent,
                answer,
                has_read: false,
            }),
        }
    }

    /// Waits until a call in the queue was answered, or must read. `None` if it has left the queue.
    fn news(
        &self,
        entry: &CombinedCall,
        ticket: Ticket,
        cap_rule: Cap,
        joined: Instant,
        until: Instant,
    ) -> Option<Delivery> {
        let mut next = joined.after(PATIENCE).min(until);
        loop {
            if let Some(news) = entry.wait(next) {
                return Some(news);
            }
            let is_over = next >= until;
            match self.look(ticket, cap_rule, is_over) {
                Look::Alone => return None,
                Look::Sends(batch) => self.send(*batch),
                // It is on its way, and the thread that reads for it writes its undo.
                Look::Waits if is_over => {
                    let unanswered = || Delivery::Answer(joined, Err(timed_out()));
                    return Some(entry.give_up().unwrap_or_else(unanswered));
                }
                Look::Waits => {}
            }
            next = until;
        }
    }

    /// The connection goes on to those in the queue, or back.
    pub(in crate::redis) fn pass_on(&self, pooled: PooledConnection<'_>) {
        if let Some(batch) = pooled.give_on() {
            self.send(batch);
        }
    }

    /// Sends the calls of several in one write, and has one of them read the answers.
    fn send(&self, batch: Batch<'_>) {
        let Batch {
            mut pooled,
            reader,
            others,
            now: sent,
        } = batch;
        // The reader's is the last: with that it is done.
        let commands = || {
            let others = others.iter().map(|other| other.command.as_slice());
            others.chain(std::iter::once(reader.command.as_slice()))
        };
        let connection = pooled.connection();
        if let Err(error) = connection.send_all(sent.after(self.node.command_timeout), commands()) {
            return fail(pooled, others.iter().chain([&reader]), sent, &error);
        }
        let connection = pooled.hand();
        let write = Box::new(Write {
            connection,
            sent,
            others,
        });
        // If the reader's time has run out, no thread reads, so the connection must be closed.
        if let Err(Delivery::Read(write)) = reader.deliver(Delivery::Read(write)) {
            let pooled = self.pooled(write.connection, Some(sent));
            fail(
                pooled,
                write.others.iter().chain([&reader]),
                sent,
                &timed_out(),
            );
        }
    }

    /// Reads the answers to one write, and delivers each before this thread blocks on the next.
    fn read_all(&self, write: Write, own: &Arc<CombinedCall>, until: Instant) -> Combined {
        let Write {
            connection,
            sent,
            others,
        } = write;
        let mut pooled = self.pooled(connection, Some(sent));
        // No other call of this write has more time.
        let until = sent.after(self.node.command_timeout).min(until);
        let mut unread = others.iter();
        let mut read = Vec::with_capacity(others.len());
        let mut not_now = false;
        let answer = loop {
            let at_hand = pooled.connection().answer_at_hand(false).transpose();
            let value = at_hand.unwrap_or_else(|| {
                deliver_all(sent, read.drain(..));
                pooled.connection().answer(until)
            });
            // The next of the others, and then its own.
            let next = unread.as_slice().first().unwrap_or(own);
            match value.and_then(|value| pooled.connection().check(value, next.expected)) {
                Ok(answer) => {
                    let is_not_now = |error| matches!(meaning(error), Meaning::NotNow);
                    not_now |= answer.as_ref().is_err_and(is_not_now);
                    match unread.next() {
                        Some(other) => read.push((other, Ok(answer))),
                        None => break Ok(answer),
                    }
                }
                Err(error) => break Err(error),
            }
        };
        if let Err(error) = &answer {
            deliver_all(sent, read.drain(..));
            fail(pooled, unread.chain([own]), sent, error);
        } else if not_now {
            let generation = pooled.generation();
            drop(pooled);
            self.suspect(generation);
        } else {
            // First, so that the server has work while the other threads wake up.
            self.pass_on(pooled);
        }
        deliver_all(sent, read);
        Combined {
            at: sent,
            answer,
            has_read: true,
        }
    }
}

/// Delivers the answers to calls that were sent at `sent`. A call that has given up counts as unanswered, and its own
/// thread undoes it.
fn deliver_all<'a, I>(sent: Instant, answers: I)
where
    I: IntoIterator<Item = (&'a Arc<CombinedCall>, Answer)>,
{
    for (entry, answer) in answers {
        let _ = entry.deliver(Delivery::Answer(sent, answer));
    }
}

/// Fails calls that get no answer: writes the undo of each behind its command, and closes the connection.
fn fail<'a, I>(pooled: PooledConnection<'_>, unread: I, sent: Instant, error: &RedisError)
where
    I: Iterator<Item = &'a Arc<CombinedCall>> + Clone,
{
    let undos = unread.clone().filter_map(|entry| {
        let (keys, id) = entry.undoable.as_ref()?;
        Some(keys.release(id.as_str().as_bytes()))
    });
    pooled.keep().undo_behind(undos);
    deliver_all(sent, unread.map(|entry| (entry, Err(error.clone()))));
}

fn timed_out() -> RedisError {
    io::Error::from(io::ErrorKind::TimedOut).into()
}
