//! The calls of the kernel for the subscriber: grants, releases, lost and new connections.

use std::sync::Arc;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::kernel::Kernel;
use crate::kernel::effects::Effects;
#[cfg(feature = "testing")]
use crate::kernel::request::RequestState;
use crate::kernel::steps::decided;
use crate::mutant::{Mutant, is_on};
use crate::name::Name;
use crate::protocol::place::{TokenBlock, read_grant, read_refresh};
use crate::protocol::primitive::Primitive;

impl Kernel {
    /// A message in the client's inbox.
    pub(crate) fn inbox(&self, payload: &[u8], now: Instant, fx: &mut Effects) {
        decided(1);
        if let Some((id, tokens)) = read_grant(payload) {
            self.granted(&id, tokens, now, fx);
        } else if let Some(id) = read_refresh(payload)
            && let Some((name, _)) = self.shared.request_of(&id)
        {
            // A wake-up like a release.
            self.with_existing(&name, now, fx, |entry, cx| entry.look(cx));
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
        if let Some((name, no)) = self.shared.request_of(id) {
            self.with_existing(&name, now, fx, |entry, cx| {
                entry.granted(no, id, tokens, cx);
            });
            return;
        }
        // Nobody here wants it any more: its release is due now.
        self.with_pending(now, fx, |pending| pending.seen(id));
    }

    /// A message on the release channel of a name.
    pub(crate) fn announced(&self, name: &Name, payload: &[u8], now: Instant, fx: &mut Effects) {
        decided(1);
        self.with_existing(name, now, fx, |entry, cx| entry.announced(payload, cx));
    }

    /// A release of the lease with this id was announced, or its key is missing somewhere. If this
    /// client has it, it is checked at once. Returns whether that is so.
    pub(crate) fn doubt(&self, name: &Name, id: &[u8], now: Instant, fx: &mut Effects) -> bool {
        let doubted = self.with_existing(name, now, fx, |entry, cx| entry.doubt(id, cx));
        doubted == Some(true)
    }

    /// Messages of this name have arrived since then: earlier ones may have been missed.
    pub(crate) fn listening_since(
        &self,
        name: &Name,
        since: Instant,
        now: Instant,
        fx: &mut Effects,
    ) {
        self.with_existing(name, now, fx, |entry, cx| {
            entry.listening_since(since, cx);
        });
    }

    /// The messages of these names do not arrive any more.
    #[expect(single_use_lifetimes, reason = "unstable without the name")]
    pub(crate) fn deaf_for<'a>(
        &self,
        names: impl Iterator<Item = &'a Name>,
        now: Instant,
        fx: &mut Effects,
    ) {
        for name in names {
            self.with_existing(name, now, fx, |entry, _| entry.line.is_listening = false);
        }
    }

    /// Another server may be the master of some locks: checks their leases and places, and repeats
    /// recent releases.
    pub(crate) fn moved(
        &self,
        is_moved: &dyn Fn(&dyn Primitive) -> bool,
        now: Instant,
        fx: &mut Effects,
    ) {
        self.for_each(now, fx, |entry, cx| entry.moved(is_moved, cx));
        if !is_on(Mutant::RecentReleasesAreForgotten) {
            self.with_pending(now, fx, |pending| pending.repeat_recent(is_moved, now));
        }
    }
}

impl Kernel {
    /// All parked calls read the clock: the machine was suspended, which their sleeps do not count.
    pub(crate) fn wake_parked(&self, now: Instant, fx: &mut Effects) {
        self.for_each(now, fx, |entry, cx| {
            let waiting = entry.line.waiters.walk().map(|waiter| &waiter.cell);
            let waiting = waiting.chain(entry.watches().iter().map(|watch| &watch.cell));
            for cell in waiting {
                let cell = Arc::clone(cell);
                cx.fx.wake.push(cell);
            }
        });
    }
}

/// For tests that move clocks or take locks away.
#[cfg(feature = "testing")]
impl Kernel {
    /// All parked calls try again.
    pub(crate) fn wake_all(&self, now: Instant, fx: &mut Effects) {
        self.for_each(now, fx, |entry, cx| {
            for no in entry.line.waiters.numbers() {
                entry
                    .line
                    .waiters
                    .change(no, |waiter| waiter.retry_at = now);
            }
            entry.look(cx);
            for n in entry.line.requests.numbers() {
                if let RequestState::Due(_) = entry.line.requests[n].state {
                    entry.line.set_due(n, now);
                }
            }
        });
    }

    /// Checks the lease with this holder id.
    pub(crate) fn suspect(&self, holder: &[u8], now: Instant, fx: &mut Effects) {
        self.for_each(now, fx, |entry, cx| {
            for held in entry.leases.held.iter() {
                if held.lease.id.as_str().as_bytes() == holder {
                    cx.change(&held.lease, |it, now| it.lease.suspect(now));
                }
            }
        });
    }
}
