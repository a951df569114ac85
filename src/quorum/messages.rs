//! Which servers of a quorum send the messages of a name, and which have announced a release of it.

use std::borrow::Cow;

use crate::holder_id::HolderId;
use crate::kernel::bounds::{Bound, at_most};
use crate::majority::Majority;
use crate::majority::Member;
use crate::mutant::{Mutant, is_on};
use crate::name::{Name, NameTable};

/// How many releases of a name that too few servers have announced are remembered.
const MOST_HEARD: usize = 8;

/// The names whose messages a client wants: those that it is subscribed for. The kernel is called
/// under its lock, so that it learns of all changes in their order.
#[derive(Debug)]
pub(crate) struct Messages {
    size: Majority,
    names: NameTable<OfName>,
    /// The keys of leases of this client that others have released.
    deleted: Vec<(Member, HolderId)>,
}

#[derive(Debug, Default)]
struct OfName {
    /// The servers whose messages arrive. A bit for each: there are at most 63.
    live: u64,
    /// The last releases that servers have announced, and which servers.
    heard: Vec<(Box<[u8]>, u64)>,
}

impl Messages {
    pub(crate) fn new(size: Majority) -> Self {
        Self {
            size,
            names: NameTable::default(),
            deleted: Vec::new(),
        }
    }

    /// Counts the servers of a name from the beginning: somebody wants its messages, maybe again.
    pub(crate) fn want(&mut self, name: &Name) {
        self.names.insert(name.clone(), OfName::default());
    }

    /// The messages of a name arrive from a server from now on. Returns whether with it, those of a
    /// majority do.
    pub(crate) fn listening(&mut self, server: Member, name: &Name) -> bool {
        let Some(of) = self.names.get_mut(name) else {
            return false;
        };
        let had_enough = is_enough(of.live, self.size.needed);
        of.live |= 1 << server;
        !had_enough && is_enough(of.live, self.size.needed)
    }

    /// No messages arrive from a server any more. Returns the names of which those of a majority
    /// arrive no more.
    pub(crate) fn deaf(&mut self, server: Member) -> Vec<Name> {
        let mut deaf = Vec::new();
        for (name, of) in &mut self.names {
            let had_enough = is_enough(of.live, self.size.needed);
            of.live &= !(1 << server);
            if had_enough && !is_enough(of.live, self.size.needed) {
                deaf.push(name.clone());
            }
        }
        deaf.sort_unstable();
        deaf
    }

    /// A server has announced a release. Returns whether it is the last of the majority that is
    /// needed.
    pub(crate) fn heard(&mut self, server: Member, name: &Name, payload: &[u8]) -> bool {
        let Some(of) = self.names.get_mut(name) else {
            return false;
        };
        let release = &*released(payload);
        let needed = if is_on(Mutant::AllMustAnnounce) {
            self.size.all
        } else {
            self.size.needed
        };
        let known = of.heard.iter().position(|(known, _)| **known == *release);
        let servers = known.map_or(0, |n| of.heard.remove(n).1) | 1 << server;
        if is_enough(servers, needed) {
            return true;
        }
        // Some never come: those of minorities, and of the servers that announce late.
        of.heard
            .truncate(at_most(Bound::Heard, MOST_HEARD).saturating_sub(1));
        of.heard.insert(0, (release.into(), servers));
        false
    }

    /// A server has announced the release of a lease that this client has: somebody else has
    /// released its key there.
    pub(crate) fn deleted(&mut self, server: Member, payload: &[u8]) {
        self.deleted
            .extend(HolderId::parse(payload).map(|id| (server, id)));
    }

    /// Returns the keys of leases of this client that others have released, and where.
    pub(crate) fn take_deleted(&mut self) -> Vec<(Member, HolderId)> {
        std::mem::take(&mut self.deleted)
    }

    /// Nobody wants the messages of a name any more.
    pub(crate) fn forget(&mut self, name: &Name) {
        self.names.remove(name);
    }
}

/// Returns the id of the lease whose key was released: at each member, it may have a number of its
/// own. Another payload stays as it is.
pub(crate) fn released(payload: &[u8]) -> Cow<'_, [u8]> {
    match HolderId::parse(payload) {
        Some(id) if !is_on(Mutant::MessageIsNotTranslated) => Cow::Owned(id.base().as_str().into()),
        _ => Cow::Borrowed(payload),
    }
}

fn is_enough(servers: u64, needed: usize) -> bool {
    servers.count_ones() as usize >= needed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages() -> (Messages, Name) {
        let (mut messages, name) = (Messages::new(Majority::of(3)), Name::from("a"));
        messages.want(&name);
        (messages, name)
    }

    #[test]
    fn a_majority_begins_and_ends_once() {
        let (mut messages, name) = messages();
        assert!(!messages.listening(0, &name));
        assert!(!messages.listening(0, &name));
        assert!(messages.listening(2, &name));
        assert!(!messages.listening(1, &name));
        assert!(messages.deaf(0).is_empty());
        assert_eq!(messages.deaf(1), std::slice::from_ref(&name));
        assert!(messages.deaf(2).is_empty());
        assert!(!messages.listening(2, &name));
        assert!(messages.listening(0, &name));
    }

    #[test]
    fn a_name_that_is_wanted_anew_is_told_anew() {
        let (mut messages, name) = messages();
        messages.listening(0, &name);
        assert!(messages.listening(1, &name));
        messages.want(&name);
        assert!(!messages.listening(0, &name));
        assert!(messages.listening(1, &name));
    }

    #[test]
    fn a_name_that_nobody_wants_is_not_kept() {
        let (mut messages, name) = messages();
        messages.forget(&name);
        for server in 0..3 {
            assert!(!messages.listening(server, &name));
            assert!(!messages.heard(server, &name, b"x"));
        }
        assert!(messages.names.is_empty());
    }

    #[test]
    fn a_release_counts_once_a_majority_has_announced_it() {
        // Also if the server said that it sends none: another client's user may publish.
        let (mut messages, name) = messages();
        assert!(!messages.heard(0, &name, b"x"));
        assert!(!messages.heard(0, &name, b"x"));
        assert!(!messages.heard(1, &name, b"y"));
        assert!(messages.heard(1, &name, b"x"));
        assert!(
            !messages.heard(2, &name, b"x"),
            "the next one of this value"
        );
    }

    #[test]
    fn the_ids_of_one_lease_are_counted_together() {
        let (mut messages, name) = messages();
        let id = HolderId::fresh("o");
        let joined = id.numbered(2);
        let is_heard = [&id, &joined].map(|id| {
            let payload = id.as_str().as_bytes();
            assert_eq!(*released(payload), *id.base().as_str().as_bytes());
            messages.heard(usize::from(id.number()), &name, payload)
        });
        assert_eq!(is_heard, [false, true]);
        messages.deleted(2, joined.as_str().as_bytes());
        assert_eq!(messages.take_deleted(), [(2, joined)]);
        assert!(messages.take_deleted().is_empty());
        assert_eq!(*released(b"foreign"), *b"foreign");
    }

    #[test]
    fn the_oldest_of_too_many_is_forgotten() {
        let (mut messages, name) = messages();
        for release in 0..=MOST_HEARD as u8 {
            assert!(!messages.heard(0, &name, &[release]));
        }
        assert!(!messages.heard(1, &name, &[0]));
        assert!(messages.heard(1, &name, &[2]));
    }
}
