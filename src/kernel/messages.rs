//! What the subscriber and the router tell: grants, releases, lost and new connections.

use std::time::Duration;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::kernel::entry::LockEntry;
use crate::kernel::mutant::{Mutant, is_on};
use crate::kernel::request::{RequestState, Serves};
use crate::kernel::{Context, Effects, Kernel};
use crate::name::Name;
use crate::protocol::place::{TokenBlock, read_grant, read_refresh};
use crate::wait_policy::jittered;

/// After a release that left the lock free, programs outside the queue have this long to take it.
pub(super) const OPEN_FOR: Duration = Duration::from_millis(2);

/// The client that is named there has this long to get it, before others ask.
const GRANTED_WITHIN: Duration = Duration::from_millis(20);

/// A message on the release channel of a name.
#[derive(Debug, PartialEq)]
enum Announcement<'a> {
    /// The holder with this value has released the lock, and nobody was granted it.
    Released(&'a [u8]),
    /// The lock was left free for a moment. Contains the first id of the queue, if it is known.
    Plain(Option<HolderId>),
}

impl<'a> Announcement<'a> {
    fn read(payload: &'a [u8]) -> Self {
        if let Some(id) = payload.strip_prefix(b"next ") {
            return Self::Plain(HolderId::parse(id));
        }
        match payload.strip_prefix(b"open ") {
            Some(_) => Self::Plain(None),
            None => Self::Released(payload),
        }
    }
}

impl Kernel {
    /// A message in the client's inbox.
    pub(crate) fn inbox(&self, payload: &[u8], now: Instant, fx: &mut Effects) {
        if let Some((id, tokens)) = read_grant(payload) {
            self.granted(&id, tokens, now, fx);
        } else if let Some(id) = read_refresh(payload)
            && let Some((name, _)) = self.table.request_of(&id)
        {
            // A wake-up like a release.
            self.with_existing(&name, now, fx, |entry, cx| entry.look(cx.now, cx));
        }
    }

    /// A grant message.
    pub(crate) fn granted(
        &self,
        id: &HolderId,
        tokens: TokenBlock,
        now: Instant,
        fx: &mut Effects,
    ) {
        if let Some((name, no)) = self.table.request_of(id) {
            self.with_existing(&name, now, fx, |entry, cx| {
                entry.granted_by_message(no, id, tokens, cx);
            });
            return;
        }
        // Nobody here wants it any more: its release is due now.
        let mut pending = self.pending.lock();
        pending.seen(id, true);
        let at = pending.next();
        self.put_pending(at, fx);
    }

    /// A message on the release channel of a name.
    pub(crate) fn announced(&self, name: &Name, payload: &[u8], now: Instant, fx: &mut Effects) {
        self.with_existing(name, now, fx, |entry, cx| entry.announced(payload, cx));
    }

    /// Messages of this name arrive from now on: earlier ones may have been missed.
    pub(crate) fn listening(&self, name: &Name, now: Instant, fx: &mut Effects) {
        self.with_existing(name, now, fx, |entry, cx| {
            entry.is_listening = true;
            if !is_on(Mutant::ListeningRefreshesNothing) {
                entry.look(cx.now, cx);
            }
        });
    }

    /// The subscriber has lost its connection.
    pub(crate) fn deaf(&self, now: Instant, fx: &mut Effects) {
        self.for_each(now, fx, |entry, _| entry.is_listening = false);
    }

    /// Another server may be the master: checks every lease and every place, and repeats recent
    /// releases.
    pub(crate) fn moved(&self, now: Instant, fx: &mut Effects) {
        self.for_each(now, fx, |entry, cx| {
            for held in &entry.held {
                held.lease.suspect(cx.now, cx.fx);
                held.lease.rearm(cx.kernel, cx.now, cx.fx);
            }
            entry.look(cx.now, cx);
        });
        let mut pending = self.pending.lock();
        pending.repeat_recent(now);
        let at = pending.next();
        self.put_pending(at, fx);
    }
}

impl LockEntry {
    fn granted_by_message(
        &mut self,
        no: u64,
        id: &HolderId,
        tokens: TokenBlock,
        cx: &mut Context<'_>,
    ) {
        let Some(n) = self
            .index_of(no)
            .filter(|n| self.requests[*n].id() == Some(id))
        else {
            return;
        };
        let request = &self.requests[n];
        let seen = match (&request.state, &request.flight) {
            (RequestState::Queued(place), _) => place.seen,
            // A grant proves that the command has run.
            (RequestState::Sent, Some(flight)) => flight.sent,
            _ => return,
        };
        self.grant(n, id, tokens, seen, cx);
    }

    fn announced(&mut self, payload: &[u8], cx: &mut Context<'_>) {
        if is_on(Mutant::ReleaseMessagesAreIgnored) {
            return;
        }
        match Announcement::read(payload) {
            Announcement::Released(value) => {
                let is_ours = |id: &HolderId| id.as_str().as_bytes() == value;
                let held = self.held.iter().find(|held| is_ours(&held.lease.id));
                let checks = is_on(Mutant::OwnReleaseIsSuspicious);
                if let Some(held) = held.filter(|held| checks || held.lease.is_open()) {
                    // Somebody else has released it.
                    held.lease.suspect(cx.now, cx.fx);
                    held.lease.rearm(cx.kernel, cx.now, cx.fx);
                    return;
                }
                // The end of a lease of this client makes its line ask: the message is for others.
                let is_own = held.is_some() || self.released.as_ref().is_some_and(is_ours);
                self.last.cut(cx.now);
                self.wake(cx, |_, serves| {
                    (!is_own || serves != Serves::Line).then_some(Duration::ZERO)
                });
            }
            Announcement::Plain(next) => {
                self.last.cut(cx.now);
                let others = GRANTED_WITHIN * 2;
                self.wake(cx, |id, _| {
                    let is_next = id.is_some() && id == next.as_ref();
                    // From once to twice the time of the client that is named.
                    let pause = jittered(others).max(GRANTED_WITHIN);
                    Some(if is_next { OPEN_FOR } else { pause })
                });
            }
        }
    }

    /// The lock may be free, or a message may have been missed: every request looks at `at`.
    pub(super) fn look(&mut self, at: Instant, cx: &mut Context<'_>) {
        let pause = cx.now.until(at);
        self.wake(cx, |_, _| Some(pause));
    }

    /// Makes the requests look after the pause that `pause` returns for them.
    fn wake(
        &mut self,
        cx: &mut Context<'_>,
        pause: impl Fn(Option<&HolderId>, Serves) -> Option<Duration>,
    ) {
        for n in 0..self.requests.len() {
            let serves = self.requests[n].serves;
            let has_caller = self.requests[n].caller().is_some();
            if !has_caller && !self.wakes(serves) {
                continue;
            }
            let request = &mut self.requests[n];
            let Some(pause) = pause(request.id(), serves) else {
                continue;
            };
            let at = cx.now.after(pause);
            match &mut request.state {
                RequestState::Due(due) => *due = (*due).min(at),
                RequestState::Queued(place) if place.refreshing => request.again = true,
                RequestState::Queued(place) => place.refresh_at = place.refresh_at.min(at),
                // It takes effect when the command ends.
                RequestState::Sent => request.again = true,
                RequestState::Won(_) | RequestState::Confirming(_) => continue,
            }
            self.touch(at, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_message_is_plain_if_it_says_so() {
        let id = HolderId::fresh("o");
        let next = format!("next {}", id.as_str());
        let read = Announcement::read(next.as_bytes());
        assert_eq!(read, Announcement::Plain(Some(id)));
        assert_eq!(Announcement::read(b"open x"), Announcement::Plain(None));
        assert_eq!(Announcement::read(b"x"), Announcement::Released(b"x"));
    }
}
