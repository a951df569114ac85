//! The end of a round: undoes an acquire, or repeats a release, at some of the servers.

use crate::clock::Instant;
use crate::redis::quorum::round::{Round, Slot};
use crate::redis::undoable::{Undoable, Vote};

impl Round<'_> {
    /// Undoes an acquiring call on every server that did not certainly refuse it. If the connection
    /// works, the release follows the call on it.
    ///
    /// Returns the slots of the servers that granted the call, and do not have its key any more.
    pub(super) fn undo(&mut self) -> Vec<usize> {
        let mut without_key = Vec::new();
        let (Some(undoable), Some(_)) = (self.undoable, self.sent) else {
            return without_key;
        };
        self.members.note_abandoned(undoable.id);
        let granted = self.send_undo(undoable);
        // Waits for the servers that granted: then this client's next attempt does not meet its own
        // key.
        for n in granted {
            let has_time = Instant::now() < self.until;
            let Some(Slot {
                member,
                connection: Some(connection),
                ..
            }) = self.slots.get_mut(n).filter(|_| has_time)
            else {
                continue;
            };
            let (pending, answer) = connection.receive(self.until);
            member.settle(pending, answer.as_ref().ok());
            match answer {
                Ok(answer) if answer.as_ref().is_ok_and(|answer| !answer.is_done()) => {
                    without_key.push(n);
                }
                Ok(_) => {}
                Err(error) => self.lose(n, error),
            }
        }
        without_key
    }

    /// Sends the release to every server that did not certainly refuse the call. Returns the
    /// indices of those that granted it and will reply.
    fn send_undo(&mut self, undoable: &Undoable<'_>) -> Vec<usize> {
        let mut granted = Vec::new();
        for n in 0..self.slots.len() {
            let Some(slot) = self.slots.get_mut(n) else {
                continue;
            };
            let member = slot.member;
            let vote = undoable.vote(member.index);
            if matches!(vote, Vote::NotAsked | Vote::Refused) {
                continue;
            }
            let release = undoable.pending_release();
            let Some(connection) = &mut slot.connection else {
                member.undo(release);
                continue;
            };
            let pending = connection.pending_reply_to(release, member.index);
            match connection.send(&undoable.release(), pending, self.until) {
                Ok(()) if vote == Vote::Granted => granted.push(n),
                Ok(()) => {}
                Err(error) => self.lose(n, error),
            }
        }
        granted
    }

    /// Has the engine send the release to the servers that are not in the round, except those
    /// that certainly granted nothing: `Member::undo` skips these.
    pub(super) fn repeat(&self) {
        let Some(undoable) = self.undoable else {
            return;
        };
        for (server, member) in self.members.each() {
            let is_it = |slot: &Slot<'_>| std::ptr::eq(slot.server, server);
            if !self.slots.iter().any(is_it) {
                member.undo(undoable.pending_release());
            }
        }
    }
}
