//! The keys and channels of a lock in Redis, and their cluster slots.

use std::fmt;
use std::slice;
use std::sync::Arc;

use crate::error::Error;
use crate::name::{Name, shown};
use crate::protocol::one_or_many::OneOrMany;
use crate::protocol::slot::{hash_tag, slot};

/// The names of one lock, usually a single one, and the keys and channel of each, in the same
/// order.
#[derive(Debug)]
pub(crate) struct Keys {
    pub(crate) names: OneOrMany<Name>,
    pub(super) locks: OneOrMany<Vec<u8>>,
    pub(super) fences: OneOrMany<Vec<u8>>,
    pub(super) channels: OneOrMany<Vec<u8>>,
    /// The queue of a fair lock, which has one name; `None` for other locks.
    queue: Option<Box<QueueKeys>>,
    /// The keys of each slot, if they lie in several slots of a cluster; empty otherwise.
    parts: Vec<Arc<Self>>,
}

/// One of the names of a lock, with its key and its channel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key<'a> {
    pub(crate) name: &'a Name,
    lock: &'a [u8],
    pub(crate) channel: &'a [u8],
}

/// The kind of a lock: it decides which scripts are called.
#[derive(Clone, Copy, Debug)]
pub(super) enum LockKind<'a> {
    /// One name.
    Mutex,
    /// Several names, or none.
    All,
    Fair(&'a QueueKeys),
}

impl Key<'_> {
    /// The slot that the key has in a cluster.
    pub(crate) fn slot(self) -> u16 {
        slot(self.lock)
    }
}

impl Keys {
    pub(crate) fn new(name: Name, key_prefix: &str, channel_prefix: &str) -> Self {
        let lock = [key_prefix.as_bytes(), name.as_bytes()].concat();
        let channel = [channel_prefix.as_bytes(), name.as_bytes()].concat();
        Self {
            fences: OneOrMany::One(sibling_key(&lock, "fence")),
            locks: OneOrMany::One(lock),
            channels: OneOrMany::One(channel),
            names: OneOrMany::One(name),
            queue: None,
            parts: Vec::new(),
        }
    }

    /// Turns the keys of one name into those of a fair lock.
    pub(crate) fn fair(self) -> Self {
        let queue = QueueKeys::new(&self.locks[0], self.fence());
        Self {
            queue: Some(Box::new(queue)),
            ..self
        }
    }

    /// The queue of a fair lock; `None` for other locks.
    pub(crate) fn queue(&self) -> Option<&QueueKeys> {
        self.queue.as_deref()
    }

    pub(super) fn kind(&self) -> LockKind<'_> {
        match &self.queue {
            Some(queue) => LockKind::Fair(queue),
            None if self.names.len() == 1 => LockKind::Mutex,
            None => LockKind::All,
        }
    }

    /// Returns the keys of several names, sorted and without duplicates: every client then tries
    /// them in the same order.
    pub(crate) fn all(mut names: Vec<Name>, key_prefix: &str, channel_prefix: &str) -> Self {
        names.sort_unstable();
        names.dedup();
        let each = names
            .into_iter()
            .map(|name| Self::new(name, key_prefix, channel_prefix));
        Self::join(&each.collect::<Vec<_>>())
    }

    fn join(each: &[Self]) -> Self {
        let all = |part: fn(&Self) -> &OneOrMany<Vec<u8>>| {
            let all = each.iter().flat_map(|keys| part(keys).iter());
            all.cloned().collect()
        };
        let names = each.iter().flat_map(|keys| keys.names.iter());
        Self {
            names: names.cloned().collect(),
            locks: all(|keys| &keys.locks),
            fences: all(|keys| &keys.fences),
            channels: all(|keys| &keys.channels),
            queue: None,
            parts: Vec::new(),
        }
    }

    /// Sorts the names by cluster slot and groups them into [`parts`](Self::parts), one for each
    /// slot.
    ///
    /// Changes nothing if all names are in one slot.
    pub(crate) fn by_slot(self) -> Self {
        let keys_of = |n: usize| {
            let one = |several: &OneOrMany<Vec<u8>>| several.get(n).cloned().map(OneOrMany::One);
            Some(Self {
                names: OneOrMany::One(self.names.get(n)?.clone()),
                locks: one(&self.locks)?,
                fences: one(&self.fences)?,
                channels: one(&self.channels)?,
                queue: None,
                parts: Vec::new(),
            })
        };
        let mut each: Vec<Self> = (0..self.names.len()).filter_map(keys_of).collect();
        each.sort_by_key(|keys| keys.key(0).slot());
        let same = |a: &Self, b: &Self| a.key(0).slot() == b.key(0).slot();
        let parts: Vec<_> = each
            .chunk_by(same)
            .map(|part| Arc::new(Self::join(part)))
            .collect();
        if parts.len() < 2 {
            return self;
        }
        Self {
            parts,
            ..Self::join(&each)
        }
    }

    /// The groups of names that one script call can take: those of each slot in a cluster, all of
    /// them elsewhere.
    pub(crate) fn parts(self: &Arc<Self>) -> &[Arc<Self>] {
        if self.parts.is_empty() {
            slice::from_ref(self)
        } else {
            &self.parts
        }
    }

    /// Returns the n-th name with its key and channel.
    ///
    /// # Panics
    ///
    /// If there are not more than `n` names.
    pub(crate) fn key(&self, n: usize) -> Key<'_> {
        Key {
            name: &self.names[n],
            lock: &self.locks[n],
            channel: &self.channels[n],
        }
    }

    /// The key that holds the last fencing token of the first name.
    pub(crate) fn fence(&self) -> &[u8] {
        &self.fences[0]
    }

    /// Checks that a lock can have these names.
    ///
    /// # Errors
    ///
    /// `Error::Config` if there is no name, a name is invalid, or a key would collide with
    /// leasehold's.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.names.is_empty() {
            return Err(Error::Config(
                "mutex_all was given no name: pass at least one".into(),
            ));
        }
        for (name, lock) in self.names.iter().zip(&*self.locks) {
            name.check()?;
            if lock.starts_with(b"leasehold:") {
                return Err(Error::Config(format!(
                    "the key {} begins with leasehold:, which is reserved for internal keys: \
                     choose another name or key_prefix",
                    shown(lock)
                )));
            }
        }
        Ok(())
    }

    /// Checks that the keys of each name share a cluster slot, as a script call requires.
    ///
    /// # Errors
    ///
    /// `Error::Config` for a name with a closing brace and no hash tag.
    pub(crate) fn check_slots(&self) -> Result<(), Error> {
        let mut keys = self.locks.iter().zip(&*self.fences).zip(&*self.names);
        match keys.find(|((lock, fence), _)| slot(lock) != slot(fence)) {
            None => Ok(()),
            Some((_, name)) => Err(Error::Config(format!(
                "the keys of {name} would be in different slots of the cluster: remove the }} from \
                 the name, or begin the name with a hash tag such as {{x}}"
            ))),
        }
    }
}

/// At most two names, then the number of the others: there can be a thousand.
impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.names {
            [] => f.write_str("nothing"),
            [name] => name.fmt(f),
            [first, second] => write!(f, "{first} and {second}"),
            [first, second, more @ ..] => write!(f, "{first}, {second} and {} more", more.len()),
        }
    }
}

/// The keys of a fair lock beyond the lock itself.
#[derive(Debug)]
pub(crate) struct QueueKeys {
    /// The fence, the queue, and the places: the holder id of each waiter with its refresh time.
    keys: [Vec<u8>; 3],
}

impl QueueKeys {
    fn new(lock: &[u8], fence: &[u8]) -> Self {
        Self {
            keys: [
                fence.to_vec(),
                sibling_key(lock, "queue"),
                sibling_key(lock, "places"),
            ],
        }
    }

    pub(super) fn keys(&self) -> &[Vec<u8>] {
        &self.keys
    }

    /// The list of the waiters' holder ids, first in line first.
    pub(crate) fn queue(&self) -> &[u8] {
        let [_, queue, _] = &self.keys;
        queue
    }
}

/// Returns another key of the same name, in the cluster slot of the lock key.
///
/// It never equals a lock key: [`Keys::check`] rejects lock keys that begin with `leasehold:`.
pub(crate) fn sibling_key(lock: &[u8], what: &str) -> Vec<u8> {
    let what = what.as_bytes();
    if hash_tag(lock).is_some() {
        [b"leasehold:", what, b":", lock].concat()
    } else {
        [b"leasehold:", what, b":{", lock, b"}"].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(name: &str) -> Keys {
        Keys::new(name.into(), "lock:", "lock_release:")
    }

    #[test]
    fn a_name_has_a_lock_key_a_fence_and_a_channel() {
        let keys = keys("a");
        assert_eq!(*keys.locks, [b"lock:a".to_vec()]);
        assert_eq!(*keys.fences, [b"leasehold:fence:{lock:a}".to_vec()]);
        assert_eq!(*keys.channels, [b"lock_release:a".to_vec()]);
    }

    #[test]
    fn several_names_are_sorted_and_each_is_there_once() {
        let all = |names: &[&str]| {
            let names = names.iter().map(|name| Name::from(*name)).collect();
            Keys::all(names, "lock:", "r:")
        };
        let keys = all(&["b", "c", "a", "b"]);
        assert_eq!(*keys.names, ["a", "b", "c"].map(Name::from));
        assert_eq!(keys.locks[2], b"lock:c");
        assert_eq!(keys.to_string(), "a, b and 1 more");
        assert_eq!(all(&["b", "a"]).to_string(), "a and b");
        assert!(matches!(all(&["a", "a"]).names, OneOrMany::One(_)));
        let error = all(&[]).check().unwrap_err().to_string();
        assert!(error.contains("no name"), "{error}");
        assert!(all(&["a", ""]).check().is_err());
    }

    #[test]
    fn in_a_cluster_names_are_grouped_by_slot() {
        let names = ["{x}1", "a", "b", "{x}2"].map(Name::from).to_vec();
        let keys = Arc::new(Keys::all(names, "lock:", "r:").by_slot());
        let slots: Vec<u16> = (0..4).map(|n| keys.key(n).slot()).collect();
        assert!(slots.is_sorted());
        assert_eq!(keys.parts().len(), 3);
        let parts = keys.parts().iter().flat_map(|part| part.names.iter());
        assert!(parts.eq(keys.names.iter()), "in the same order");
        let one_slot = ["{x}1", "{x}2"].map(Name::from).to_vec();
        let keys = Arc::new(Keys::all(one_slot, "lock:", "r:").by_slot());
        assert_eq!(keys.parts().len(), 1);
    }

    #[test]
    fn a_hash_tag_of_the_name_is_kept() {
        assert_eq!(keys("{u1}:a").fences[0], b"leasehold:fence:lock:{u1}:a");
        assert_eq!(keys("{}a").fences[0], b"leasehold:fence:{lock:{}a}");
        assert_eq!(keys("a{b").fences[0], b"leasehold:fence:{lock:a{b}");
    }

    /// Tries all names of up to seven of the characters `a{}`. Only a name with a closing brace and
    /// without a hash tag is rejected.
    #[test]
    fn all_keys_of_a_name_are_in_one_slot_or_the_name_is_rejected() {
        let mut names = vec![String::new()];
        for _ in 0..7 {
            let longer = |name: &String| ["a", "{", "}"].map(|next| format!("{name}{next}"));
            names = names.iter().flat_map(longer).collect();
            for name in &names {
                for prefix in ["lock:", "", "{t}", "}", "{"] {
                    let keys = Keys::new(name.as_str().into(), prefix, "r:");
                    let lock = [prefix, name].concat();
                    let can_be = !lock.contains('}') || hash_tag(lock.as_bytes()).is_some();
                    assert_eq!(keys.check_slots().is_ok(), can_be, "{lock}");
                }
            }
        }
        let error = keys("a}b").check_slots().unwrap_err().to_string();
        assert!(
            error.contains("a}b") && error.contains("hash tag"),
            "{error}"
        );
    }

    #[test]
    fn a_lock_key_in_the_reserved_namespace_is_rejected() {
        let name = "leasehold:fence:{lock:a}";
        assert!(Keys::new(name.into(), "", "r:").check().is_err());
        assert!(Keys::new(name.into(), "lock:", "r:").check().is_ok());
    }

    #[test]
    fn all_keys_of_a_fair_lock_are_in_one_slot() {
        for name in ["a", "{u1}:a", "a{b"] {
            let keys = Keys::new(name.into(), "lock:", "lock_release:").fair();
            let slots = keys.queue().unwrap().keys().iter().map(|key| slot(key));
            assert!(
                slots.into_iter().all(|slot| slot == keys.key(0).slot()),
                "{name}"
            );
        }
        let keys = Keys::new("a".into(), "lock:", "r:").fair();
        assert_eq!(keys.queue().unwrap().queue(), b"leasehold:queue:{lock:a}");
    }
}
