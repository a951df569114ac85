//! The keys of one database, their values, and the commands for keys of any type.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::super::reply::Reply;
use super::args;
use super::value::{Value, ValueKind};

/// A reply, or the text of an error.
pub(super) type Outcome = Result<Reply, String>;

/// The data of one database: a server has several, which SELECT numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keyspace {
    /// In the order of [`place`], so that SCAN can continue after keys were added or deleted.
    pub(super) entries: BTreeMap<(u64, Vec<u8>), Entry>,
    /// The time of the current command in microseconds since 1970.
    pub(super) now_micros: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) value: Value,
    /// When the key expires, in ms since 1970. It exists until that millisecond has passed.
    pub(super) end: Option<i64>,
}

impl Keyspace {
    /// Returns all keys, sorted.
    pub(crate) fn keys(&mut self, now_micros: u64) -> Vec<Vec<u8>> {
        self.now_micros = now_micros;
        self.remove_expired();
        let mut keys: Vec<_> = self.entries.keys().map(|(_, key)| key.clone()).collect();
        keys.sort();
        keys
    }

    pub(super) fn now_ms(&self) -> i64 {
        // µs of 64 bits are less than 2^63 ms.
        i64::try_from(self.now_micros / 1000).unwrap_or(i64::MAX)
    }

    pub(super) fn entry(&mut self, key: &[u8]) -> Option<&mut Entry> {
        let (place, now) = (place(key), self.now_ms());
        if self.entries.get(&place)?.has_expired(now) {
            self.entries.remove(&place);
        }
        self.entries.get_mut(&place)
    }

    /// Returns the value of a key, `None` if there is no such key, or `WRONGTYPE`.
    pub(super) fn find<T: ValueKind>(&mut self, key: &[u8]) -> Result<Option<&mut T>, String> {
        let entry = self.entry(key);
        let value = entry.map(|entry| T::of(&mut entry.value).ok_or_else(args::wrong_type));
        value.transpose()
    }

    /// Returns the value of a key, which is new and empty if there was no such key.
    pub(super) fn find_or_create<T: ValueKind>(&mut self, key: &[u8]) -> Result<&mut T, String> {
        if self.entry(key).is_none() {
            self.insert(key, T::default(), None);
        }
        let found = self.find(key)?;
        Ok(found.expect("the key existed or was just inserted"))
    }

    /// Returns what `read` finds in the value of a key, or `absent`.
    pub(super) fn read<T: ValueKind>(
        &mut self,
        key: &[u8],
        absent: Reply,
        read: impl FnOnce(&T) -> Reply,
    ) -> Outcome {
        let found = self.find(key)?;
        Ok(found.map_or(absent, |value| read(value)))
    }

    /// Changes the value of a key, and deletes the key if that leaves it empty.
    pub(super) fn change<T: ValueKind>(
        &mut self,
        key: &[u8],
        absent: Reply,
        change: impl FnOnce(&mut T) -> Reply,
    ) -> Outcome {
        let Some(value) = self.find::<T>(key)? else {
            return Ok(absent);
        };
        let reply = change(value);
        if value.is_empty() {
            self.entries.remove(&place(key));
        }
        Ok(reply)
    }

    pub(super) fn insert(&mut self, key: &[u8], value: impl ValueKind, end: Option<i64>) {
        let value = value.into_value();
        self.entries.insert(place(key), Entry { value, end });
    }

    pub(super) fn remove_expired(&mut self) {
        let now = self.now_ms();
        self.entries.retain(|_, entry| !entry.has_expired(now));
    }

    pub(super) fn del(&mut self, args: &[Vec<u8>]) -> Outcome {
        let mut removed = 0;
        for key in &args[1..] {
            let is_there = self.entry(key).is_some();
            self.entries.remove(&place(key));
            removed += usize::from(is_there);
        }
        Ok(Reply::count(removed))
    }

    pub(super) fn exists(&mut self, args: &[Vec<u8>]) -> Outcome {
        let keys = args[1..].iter();
        Ok(Reply::count(
            keys.filter(|key| self.entry(key).is_some()).count(),
        ))
    }

    pub(super) fn kind_of(&mut self, args: &[Vec<u8>]) -> Outcome {
        let entry = self.entry(&args[1]);
        Ok(Reply::Status(
            entry.map_or("none", |entry| entry.value.type_name()),
        ))
    }

    pub(super) fn time(&mut self, _: &[Vec<u8>]) -> Outcome {
        let parts = [self.now_micros / 1_000_000, self.now_micros % 1_000_000];
        Ok(Reply::array(
            parts.map(|part| Reply::bulk(part.to_string())),
        ))
    }

    pub(super) fn size(&mut self, _: &[Vec<u8>]) -> Outcome {
        self.remove_expired();
        Ok(Reply::count(self.entries.len()))
    }

    pub(super) fn flush(&mut self, args: &[Vec<u8>]) -> Outcome {
        args::no_options(args, 1)?;
        self.entries.clear();
        Ok(Reply::OK)
    }
}

impl Entry {
    fn has_expired(&self, now: i64) -> bool {
        self.end.is_some_and(|end| now > end)
    }
}

/// Returns the place of a key in the order of SCAN. Its number is the cursor.
pub(super) fn place(key: &[u8]) -> (u64, Vec<u8>) {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    (hasher.finish(), key.to_vec())
}
