//! Many threads' calls in one write: who finds the connections in use leaves its call to whoever is done with one.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::RedisError;

use crate::clock::Instant;
use crate::error::{Meaning, meaning};
use crate::expected::Expected;
use crate::scripts::Call;
use crate::server::entry::{Answer, Entry, News, Write};
use crate::server::node::Wire;
use crate::server::one::Server;
use crate::server::pool::{Lane, Lent};
use crate::server::quorum::Stake;
use crate::server::sharing::{Given, Joined};

/// How long a call waits to be sent along, before it sees to a connection of its own as if there were
/// no others. Longer than the kernel's tick: a shorter sleep costs the setting of a timer.
const PATIENCE: Duration = Duration::from_millis(5);

/// A longer command, of an unusual name, goes alone: what goes in one write fits into the socket's buffer, so
/// that the one who writes it for others is not held up.
const LONG: usize = 1024;

/// How a call went that found the connections in use.
pub(super) enum Ride<'a> {
    /// It is to be sent over a connection of its own: over this one, where there is one already.
    Alone(Option<Lent<'a>>),
    Sent(Sent),
}

/// A call that was sent along with others.
pub(super) struct Sent {
    /// Before that.
    pub(super) at: Instant,
    /// What came of it.
    pub(super) answer: Answer,
    /// It read for the others: what is wrong with the connection counts once.
    pub(super) has_read: bool,
}

impl Server {
    /// Waits until `call` is sent along with others, or may be sent alone.
    pub(super) fn ride(
        &self,
        call: &Call<'_>,
        until: Instant,
        lane: Lane,
        stake: Option<&Stake<'_>>,
    ) -> Ride<'_> {
        let mut command = Vec::with_capacity(256);
        call.pack_by_sha(&mut command);
        if command.len() > LONG {
            return Ride::Alone(None);
        }
        let stake = stake.map(|stake| (Arc::clone(stake.keys), stake.id.clone()));
        let entry = Entry::new(command, call.expected(), stake);
        let joined = Instant::now();
        let ticket = match self.pool.join(joined, until, lane, &entry) {
            Joined::Waits(ticket) => ticket,
            Joined::Alone(lent) => return Ride::Alone(lent),
        };
        let mut patience = joined.after(PATIENCE).min(until);
        loop {
            let news = match entry.wait(patience) {
                Some(news) => news,
                None if self.pool.leave_off(ticket, lane, patience >= until) => {
                    return Ride::Alone(None);
                }
                None if patience < until => {
                    patience = until;
                    continue;
                }
                None => match entry.give_up() {
                    Some(news) => news,
                    // It is on its way, and whoever reads for it writes its undo.
                    None => return sent_along(joined, Err(timed_out())),
                },
            };
            return match news {
                News::Alone => Ride::Alone(None),
                News::Read(write) => self.read_all(*write, &entry, until),
                News::Answer(sent, answer) => sent_along(sent, answer),
            };
        }
    }

    /// The connection goes on to those who wait: what has gathered is sent in one write, and one of
    /// them reads for all. Or it goes back.
    pub(super) fn pass_on(&self, lent: Lent<'_>) {
        if let Some((next, news)) = self.send_next(lent) {
            self.tell_next(&next, news);
        }
    }

    /// Has `next` read what was sent for it and others. Where its time ran out meanwhile nobody does, so
    /// that the connection is of no more use.
    fn tell_next(&self, next: &Entry, news: News) {
        if let Err(News::Read(write)) = next.tell(news) {
            let Write { wire, sent, others } = *write;
            let lent = self.pool.lent_to_several(wire);
            undo(lent, others.iter().map(|other| &**other).chain([next]));
            for other in others {
                tell(&other, News::Answer(sent, Err(timed_out())));
            }
        }
    }

    fn send_next(&self, lent: Lent<'_>) -> Option<(Arc<Entry>, News)> {
        let Given {
            mut lent,
            next,
            others,
            now,
        } = lent.give_on()?;
        // Its own is the last: with that it is done with reading.
        let commands = || {
            let others = others.iter().map(|other| other.command.as_slice());
            others.chain(std::iter::once(next.command.as_slice()))
        };
        let wire = lent.wire();
        let timeout = wire.set_timeout(self.command_timeout());
        match timeout.and_then(|()| wire.send_all(commands())) {
            Ok(()) => {
                let write = Write {
                    wire: lent.hand(),
                    sent: now,
                    others,
                };
                Some((next, News::Read(Box::new(write))))
            }
            Err(error) => {
                undo(lent, others.iter().map(|other| &**other).chain([&*next]));
                for other in others {
                    tell(&other, News::Answer(now, Err(error.clone())));
                }
                Some((next, News::Answer(now, Err(error))))
            }
        }
    }

    /// Reads the answers to all that was sent together, and tells each what came of it.
    fn read_all(&self, write: Write, own: &Entry, until: Instant) -> Ride<'_> {
        let Write { wire, sent, others } = write;
        let mut lent = self.pool.lent_to_several(wire);
        // Nobody who waits for it has more time.
        let until = sent.after(self.command_timeout()).min(until);
        let mut broken = None;
        let mut not_now = false;
        let mut read = |entry: &Entry| {
            let answer = match &broken {
                Some(error) => Err(RedisError::clone(error)),
                None => receive(lent.wire(), entry.expected, until),
            };
            match &answer {
                Ok(Err(error)) => not_now |= matches!(meaning(error), Meaning::NotNow),
                Ok(Ok(_)) => {}
                Err(error) => broken = Some(error.clone()),
            }
            answer
        };
        let answers: Vec<_> = others.iter().map(|other| read(other)).collect();
        let answer = read(own);
        let mut next = None;
        if broken.is_some() {
            let unread = others.iter().zip(&answers);
            let unread = unread.filter(|(_, answer)| answer.is_err());
            let own = Some(own).filter(|_| answer.is_err());
            undo(lent, unread.map(|(other, _)| &**other).chain(own));
        } else if not_now {
            let generation = lent.generation();
            drop(lent);
            self.leave(generation);
        } else {
            // First, so that the server has something to do meanwhile.
            next = self.send_next(lent);
        }
        if let Some((next, news)) = next {
            // Before the others, each of whom may take the processor: somebody must read.
            self.tell_next(&next, news);
        }
        for (other, answer) in others.iter().zip(answers) {
            tell(other, News::Answer(sent, answer));
        }
        Ride::Sent(Sent {
            at: sent,
            answer,
            has_read: true,
        })
    }
}

/// For a call that another has read for.
fn sent_along<'a>(at: Instant, answer: Answer) -> Ride<'a> {
    Ride::Sent(Sent {
        at,
        answer,
        has_read: false,
    })
}

/// Who waits no longer has taken it for unanswered, and undoes it.
fn tell(entry: &Entry, answer: News) {
    let _ = entry.tell(answer);
}

/// Writes the undo of each behind its command, on a connection that is of no more use.
fn undo<'a, I: Iterator<Item = &'a Entry>>(lent: Lent<'_>, unread: I) {
    let undos = unread.filter_map(|entry| {
        let (keys, id) = entry.stake.as_ref()?;
        Some(keys.release(id.as_str().as_bytes()))
    });
    lent.keep().undo_behind(undos);
}

/// Reads one answer in what time is left: each read has a timeout of its own.
fn receive(wire: &mut Wire, expected: Expected, until: Instant) -> Answer {
    let left = Instant::now().until(until);
    if left.is_zero() {
        return Err(timed_out());
    }
    wire.set_timeout(left)?;
    wire.answer_to(expected)
}

fn timed_out() -> RedisError {
    io::Error::from(io::ErrorKind::TimedOut).into()
}
