//! The ids that were granted, and what each has at each of several servers.

use std::collections::HashMap;
use std::time::Duration;

use crate::clock::Instant;
use crate::holder_id::HolderId;
use crate::kernel::engine::ServerNo;
use crate::kernel::undo::Proof;

/// The state of an id's command at one server, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtServer {
    NotSent,
    /// It was sent, and has no reply yet.
    Asked,
    /// It has run, and took, confirmed or released the key.
    Yes,
    /// It has run and did nothing, or it never runs.
    No,
    /// It may have run, or may run later.
    Unknown,
}

impl AtServer {
    /// Returns the reply that ends a release there; `None` if there is nothing to release.
    pub(crate) fn ends_by(self) -> Option<Proof> {
        match self {
            Self::NotSent | Self::No => None,
            Self::Unknown => Some(Proof::KeySeen),
            Self::Yes | Self::Asked => Some(Proof::AnyAnswer),
        }
    }
}

/// How many ids are known at least before old ones are looked for.
const FEW: usize = 64;

/// The ids that were granted, until they are released.
#[derive(Debug, Default)]
pub(crate) struct GrantedIds {
    ids: HashMap<HolderId, OfId>,
    /// How many were left when old ones were last looked for.
    left: usize,
}

#[derive(Debug)]
struct OfId {
    at: Box<[AtServer]>,
    /// The longest ttl of its commands.
    longest: Duration,
    /// When its keys have expired, although nobody has released it.
    forget_at: Instant,
}

impl GrantedIds {
    pub(crate) fn insert(
        &mut self,
        id: &HolderId,
        at: Box<[AtServer]>,
        ttl: Duration,
        [now, forget_at]: [Instant; 2],
    ) {
        if self.ids.len() >= 2 * self.left.max(FEW) {
            self.ids.retain(|_, of| of.forget_at > now);
            self.left = self.ids.len();
        }
        let of = OfId {
            at,
            longest: ttl,
            forget_at,
        };
        self.ids.insert(id.clone(), of);
    }

    /// A command gives the keys of an id this ttl.
    pub(crate) fn prolong(&mut self, id: &HolderId, ttl: Duration, forget_at: Instant) {
        if let Some(of) = self.ids.get_mut(id) {
            of.longest = of.longest.max(ttl);
            of.forget_at = of.forget_at.max(forget_at);
        }
    }

    /// Returns for how long the keys of an id may exist if no release arrives. A delayed command
    /// may run just before a key expires, and set its longest ttl once more.
    pub(crate) fn may_last(&self, id: &HolderId) -> Duration {
        let of = self.ids.get(id);
        of.map_or(Duration::ZERO, |of| of.longest.saturating_mul(2))
    }

    /// Records what has become known after the grant.
    pub(crate) fn note(
        &mut self,
        id: &HolderId,
        server: ServerNo,
        at: AtServer,
        forget_at: Instant,
    ) {
        if let Some(of) = self.ids.get_mut(id) {
            of.at[server] = at;
            of.forget_at = of.forget_at.max(forget_at);
        }
    }

    /// Returns what an id has at each server.
    pub(crate) fn of(&self, id: &HolderId) -> Option<&[AtServer]> {
        self.ids.get(id).map(|of| &*of.at)
    }

    pub(crate) fn remove(&mut self, id: &HolderId) {
        self.ids.remove(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_whose_keys_have_expired_are_forgotten() {
        let at = |ms| Instant::START.after(Duration::from_millis(ms));
        let id = |n: u64| {
            let text = format!("o:00000000-0000-4000-8000-{n:012x}");
            HolderId::parse(text.as_bytes()).unwrap()
        };
        let mut granted = GrantedIds::default();
        let ttl = Duration::from_millis(50);
        for n in 0..10_000 {
            let times = [at(n), at(n + 100)];
            granted.insert(&id(n), Box::new([AtServer::Yes]), ttl, times);
            granted.prolong(&id(0), ttl, at(n + 100));
            assert!(granted.of(&id(0)).is_some(), "it is renewed");
            let young = id(n.saturating_sub(99));
            assert!(granted.of(&young).is_some(), "its key may last");
            assert!(granted.ids.len() <= 2 * 101 + 1);
        }
    }
}
