//! Many threads' calls in one write: who finds the connections in use leaves its call to whoever is done with one.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::RedisError;

use crate::clock::Instant;
use crate::error::{Meaning, meaning};
use crate::scripts::Call;
use crate::server::entry::{Answer, Entry, News, Write};
use crate::server::node::{Wire, reply};
use crate::server::one::Server;
use crate::server::pool::{Joined, Lane, Lent};
use crate::server::quorum::Stake;

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
    /// It was sent at that instant, and this came of it.
    Sent(Instant, Answer),
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
        // Replicas are waited for on the connection, and ASKING is about the command behind it.
        if call.replicas.is_some() || call.asking {
            return Ride::Alone(None);
        }
        let mut command = Vec::with_capacity(256);
        call.pack_by_sha(&mut command);
        if command.len() > LONG {
            return Ride::Alone(None);
        }
        let stake = stake.map(|stake| (Arc::clone(stake.keys), stake.id.clone()));
        let entry = Entry::new(command, stake);
        let joined = Instant::now();
        let ticket = match self.pool.join(until, lane, &entry) {
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
                    None => return Ride::Sent(joined, Err(timed_out())),
                },
            };
            return match news {
                News::Alone => Ride::Alone(None),
                News::Read(write) => self.read_all(*write, &entry, until),
                News::Answer(sent, answer) => Ride::Sent(sent, answer),
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
            undo(
                lent,
                std::iter::once(next).chain(others.iter().map(|other| &**other)),
            );
            for other in others {
                tell(&other, News::Answer(sent, Err(timed_out())));
            }
        }
    }

    fn send_next(&self, lent: Lent<'_>) -> Option<(Arc<Entry>, News)> {
        let (mut lent, next) = lent.give_on()?;
        let now = Instant::now();
        let others = self.pool.take(now);
        let commands = || {
            let others = others.iter().map(|other| other.command.as_slice());
            std::iter::once(next.command.as_slice()).chain(others)
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
                undo(
                    lent,
                    std::iter::once(&*next).chain(others.iter().map(|other| &**other)),
                );
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
        let mut read = || {
            let answer = match &broken {
                Some(error) => Err(RedisError::clone(error)),
                None => receive(lent.wire(), until),
            };
            match &answer {
                Ok(Err(error)) => not_now |= matches!(meaning(error), Meaning::NotNow),
                Ok(Ok(_)) => {}
                Err(error) => broken = Some(error.clone()),
            }
            answer
        };
        let answer = read();
        let answers: Vec<_> = others.iter().map(|_| read()).collect();
        let mut next = None;
        if broken.is_some() {
            let unread = others.iter().zip(&answers);
            let unread = unread.filter(|(_, answer)| answer.is_err());
            let own = Some(own).filter(|_| answer.is_err());
            undo(
                lent,
                own.into_iter().chain(unread.map(|(other, _)| &**other)),
            );
        } else if not_now {
            let generation = lent.generation();
            drop(lent);
            self.leave(generation);
        } else {
            // First, so that the server has something to do meanwhile.
            next = self.send_next(lent);
        }
        for (other, answer) in others.iter().zip(answers) {
            tell(other, News::Answer(sent, answer));
        }
        if let Some((next, news)) = next {
            self.tell_next(&next, news);
        }
        Ride::Sent(sent, answer)
    }
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
fn receive(wire: &mut Wire, until: Instant) -> Answer {
    let left = Instant::now().until(until);
    if left.is_zero() {
        return Err(timed_out());
    }
    wire.set_timeout(left)?;
    Ok(reply(wire.receive()?))
}

fn timed_out() -> RedisError {
    io::Error::from(io::ErrorKind::TimedOut).into()
}
