//! Checks that the members of a quorum are different servers.
//!
//! Every acquiring call has a fresh holder id, so a server whose lock key contains it has run this
//! very call before: under the name of another member, or because a proxy sent the call twice.

use std::time::Duration;

use crate::clock::Instant;
use crate::error::{Cause, Error};
use crate::protocol::verb::Verb;
use crate::redis::fault::Fault;
use crate::redis::quorum::round::{Round, Slot};
use crate::redis::undoable::Vote;

/// How long the replies that the outcome does not need may take, or as long as the outcome took if
/// that is longer. Only the first call of a client waits for them.
const REST_WITHIN: Duration = Duration::from_millis(50);

impl Round<'_> {
    /// Reads, for a short time, the replies that the outcome does not need, if a server among them
    /// may be the same as another member.
    pub(super) fn check_names(&mut self) {
        let is_acquire = matches!(self.verb, Verb::Acquire(_));
        if !is_acquire || !self.votes.is_won() || !self.must_check_names() {
            return;
        }
        let began = Instant::now();
        let took = self.sent.unwrap_or(began).until(began);
        let until = self.until.min(began.after(REST_WITHIN.max(took)));
        loop {
            for n in 0..self.slots.len() {
                if let Some(answer) = self.read_one(n, began) {
                    self.count(n, answer);
                }
            }
            let has_unread = self.slots.iter().any(|slot| slot.unread().is_some());
            if !has_unread || Instant::now() >= until || self.wait(until).is_err() {
                return;
            }
        }
    }

    fn must_check_names(&self) -> bool {
        let members = self.members.each();
        members.fold(false, |must, (_, member)| member.take_name_check() | must)
    }

    /// Undoes an acquiring call whose id a server had in the lock key before it ran the call.
    ///
    /// Returns the fault of the call. It is final if another member is the same server: that member
    /// granted the call, and loses the key by the release that is sent to the first one.
    pub(super) fn undo_own_id(&mut self) -> Option<Fault> {
        let first = *self.with_own_id.first()?;
        let server = self.slots.get(first)?.server;
        let is_released = self.release_at(first);
        let without_key = self.undo();
        let other = without_key.iter().find(|n| !self.with_own_id.contains(n));
        let other = other.and_then(|n| self.slots.get(*n));
        Some(match other.filter(|_| is_released) {
            Some(other) => Fault::Rejected(Error::Config(format!(
                "the quorum names one server twice, as {} and as {}: name independent servers",
                server.label(),
                other.server.label()
            ))),
            None => Fault::NotRun(Cause::text("the acquire script ran twice").at(server.label())),
        })
    }

    /// Releases the lock at the n-th server; returns whether the lock was held there.
    fn release_at(&mut self, n: usize) -> bool {
        let Some(undoable) = self.undoable else {
            return false;
        };
        let Some(Slot {
            member,
            connection: Some(connection),
            ..
        }) = self.slots.get_mut(n)
        else {
            return false;
        };
        let pending = connection.pending_reply_to(undoable.pending_release(), member.index);
        let sent = connection.send(&undoable.release(), pending, self.until);
        let answer = sent.and_then(|()| {
            let (pending, answer) = connection.receive(self.until);
            member.settle(pending, answer.as_ref().ok());
            answer
        });
        match answer {
            Ok(Ok(answer)) if answer.is_done() => {
                if let Some(votes) = undoable.votes {
                    votes.note(member.index, Vote::Refused);
                }
                true
            }
            Ok(_) => false,
            Err(error) => {
                self.lose(n, error);
                false
            }
        }
    }
}
