//! The keys and channels of a lock in Redis, and the calls that only read them.

use std::fmt;

use crate::error::Error;
use crate::holder_id::HolderId;
use crate::name::{Listed, Name, shown};
use crate::protocol::one_or_many::OneOrMany;
use crate::protocol::script::{Call, Script, script};
use crate::protocol::slot::{hash_tag, slot};
use crate::protocol::verb::Verb;

pub(super) static INSPECT: Script = script!("inspect");
pub(super) static FENCE: Script = script!("fence");

/// The names of one lock, usually a single one, and the keys and channel of each, in the same
/// order.
#[derive(Debug)]
pub(crate) struct Keys {
    pub(crate) names: OneOrMany<Name>,
    pub(super) locks: OneOrMany<Vec<u8>>,
    pub(super) fences: OneOrMany<Vec<u8>>,
    pub(super) channels: OneOrMany<Vec<u8>>,
}

/// How a deployment distributes the keys of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// All on one server, or on the master that sentinels name; over a quorum, on each server.
    OneServer,
    /// Spread over the slots of a cluster.
    Slots,
}

/// One of the names of a lock, with its key and its channel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key<'a> {
    pub(crate) name: &'a Name,
    pub(crate) lock: &'a [u8],
    pub(crate) channel: &'a [u8],
}

impl Key<'_> {
    /// The slot that the key has in a cluster.
    pub(crate) fn slot(self) -> u16 {
        slot(self.lock)
    }
}

impl Keys {
    pub(crate) fn new(name: Name, key_prefix: &str, channel_prefix: &str) -> Self {
        Self::of(&[name], key_prefix, channel_prefix)
    }

    pub(super) fn of(names: &[Name], key_prefix: &str, channel_prefix: &str) -> Self {
        let prefixed = |prefix: &str| -> OneOrMany<Vec<u8>> {
            let bytes = names.iter().map(Name::as_bytes);
            bytes
                .map(|name| [prefix.as_bytes(), name].concat())
                .collect()
        };
        let locks = prefixed(key_prefix);
        Self {
            fences: locks
                .iter()
                .map(|lock| sibling_key(lock, "fence"))
                .collect(),
            channels: prefixed(channel_prefix),
            locks,
            names: names.iter().cloned().collect(),
        }
    }

    /// Returns the name at index `n`, with its key and channel.
    ///
    /// # Panics
    ///
    /// If `n` is not below the number of names.
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

    /// Reads the holder of a lock of one name.
    pub(crate) fn inspect(&self) -> Call<'_> {
        Call::new(Verb::Inspect, &INSPECT, [&self.locks, &self.fences], [])
    }

    /// Reads the last fencing token of a lock of one name.
    pub(crate) fn last_token(&self) -> Call<'_> {
        Call::new(Verb::ReadFence, &FENCE, [&self.fences, &[]], [])
    }

    /// The wake channels, then the holder ids: the arguments of an undo.
    pub(crate) fn undo_arguments(&self, ids: &[&HolderId]) -> Vec<Vec<u8>> {
        let channels = self.channels.iter().cloned();
        let ids = ids.iter().map(|id| id.as_str().into());
        channels.chain(ids).collect()
    }

    /// The number of holder ids in the arguments of an undo.
    pub(super) fn undone_ids(&self, arguments: &[Vec<u8>]) -> usize {
        arguments.len().saturating_sub(self.channels.len())
    }

    /// Checks that a lock can have these names.
    ///
    /// # Errors
    ///
    /// `Error::Config` if one of these holds:
    ///
    /// * There is no name, or a name is invalid.
    /// * A lock key begins with `leasehold:`, as the other keys of leasehold do.
    /// * A lock key would share its other keys with another lock key.
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
            if let Some(inner) = same_siblings(lock, name) {
                return Err(Error::Config(format!(
                    "the key {} would share its queue and its tokens with the key {}: choose \
                     another name, or a key_prefix that begins with a letter",
                    shown(lock),
                    shown(inner)
                )));
            }
        }
        Ok(())
    }

    /// Checks that the keys of each name share a cluster slot, as a script call requires.
    ///
    /// # Errors
    ///
    /// `Error::Config` for a lock key with a closing brace and no hash tag.
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

impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Listed(&self.names).fmt(f)
    }
}

/// Returns another key of the same name, in the cluster slot of the lock key unless
/// [`Keys::check_slots`] rejects that.
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

/// Returns the lock key of another name with the same prefix, if its sibling keys are those of
/// `lock`: `x` and `{x}` without a prefix.
fn same_siblings<'a>(lock: &'a [u8], name: &Name) -> Option<&'a [u8]> {
    let inner = lock.strip_prefix(b"{")?.strip_suffix(b"}")?;
    let prefix = lock.strip_suffix(name.as_bytes())?;
    let is_lock = inner.len() > prefix.len() && inner.starts_with(prefix);
    (is_lock && hash_tag(lock).is_some() && hash_tag(inner).is_none()).then_some(inner)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn keys(name: &str) -> Keys {
        Keys::new(name.into(), "lock:", "lock_release:")
    }

    #[test]
    fn no_two_names_share_a_key() {
        let longer = |names: Vec<String>| -> Vec<String> {
            let add = |name: &String| ["a", "{", "}"].map(|letter| format!("{name}{letter}"));
            names.iter().flat_map(add).collect()
        };
        let mut names = vec![String::new()];
        let mut all = Vec::new();
        for _ in 0..6 {
            names = longer(names);
            all.extend(names.clone());
        }
        for prefix in ["", "lock:", "{", "}", "{a", "{a}"] {
            let mut fences = HashMap::new();
            for name in &all {
                let keys = Keys::new(name.as_str().into(), prefix, "lock_release:");
                if keys.check().is_ok() {
                    let other = fences.insert(keys.fence().to_vec(), name);
                    assert_eq!(other, None, "{prefix:?} {name:?}");
                }
            }
            let rejected = all.len() - fences.len();
            assert!(rejected * 3 < all.len(), "{prefix:?} {rejected}");
        }
        assert!(Keys::new("{a}".into(), "", "c:").check().is_err());
        assert!(Keys::new("{a}b".into(), "", "c:").check().is_ok());
        assert!(Keys::new("{a}".into(), "lock:", "c:").check().is_ok());
    }

    #[test]
    fn a_name_has_a_lock_key_a_fence_and_a_channel() {
        let keys = keys("a");
        assert_eq!(*keys.locks, [b"lock:a".to_vec()]);
        assert_eq!(*keys.fences, [b"leasehold:fence:{lock:a}".to_vec()]);
        assert_eq!(*keys.channels, [b"lock_release:a".to_vec()]);
    }

    #[test]
    fn a_hash_tag_of_the_name_is_kept() {
        assert_eq!(keys("{u1}:a").fences[0], b"leasehold:fence:lock:{u1}:a");
        assert_eq!(keys("{}a").fences[0], b"leasehold:fence:{lock:{}a}");
        assert_eq!(keys("a{b").fences[0], b"leasehold:fence:{lock:a{b}");
    }

    /// Tries all names of one to seven of the characters `a{}`, behind several prefixes. Only a
    /// lock key with a closing brace and without a hash tag is rejected.
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
                    let is_valid = !lock.contains('}') || hash_tag(lock.as_bytes()).is_some();
                    assert_eq!(keys.check_slots().is_ok(), is_valid, "{lock}");
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
}
