//! The data of the test kit's server: the commands that scripts, client and tests use, as Redis 7
//! runs them.
//!
//! Nothing here does I/O or reads a clock. Each command gets the server's time, which never falls.

pub(super) mod args;
mod expiry;
pub(super) mod glob;
mod hashes;
mod lists;
mod scan;
mod sets;
mod sorted_sets;
mod strings;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use self::hashes::HashValue;
use self::lists::ListValue;
use self::sets::SetValue;
use self::sorted_sets::SortedSetValue;
use self::strings::StringValue;
use super::reply::Reply;

/// A reply, or the text of an error.
type Outcome = Result<Reply, String>;

/// A command: its name, its arity and its implementation.
///
/// As in Redis, the arity counts the name. A negative arity is a least number of arguments.
type Command = (
    &'static str,
    isize,
    fn(&mut Keyspace, &[Vec<u8>]) -> Outcome,
);

/// The commands that the crate's scripts and tests use.
const COMMANDS: &[Command] = &[
    ("GET", 2, strings::get),
    ("SET", -3, strings::set),
    ("INCR", 2, strings::incr),
    ("MGET", -2, strings::mget),
    ("DEL", -2, Keyspace::del),
    ("EXISTS", -2, Keyspace::exists),
    ("TYPE", 2, Keyspace::kind_of),
    ("TIME", 1, Keyspace::time),
    ("DBSIZE", 1, Keyspace::size),
    ("FLUSHALL", -1, Keyspace::flush),
    ("PTTL", 2, expiry::pttl),
    ("PEXPIRE", -3, expiry::pexpire),
    ("PEXPIREAT", -3, expiry::pexpireat),
    ("PERSIST", 2, expiry::persist),
    ("HGET", 3, hashes::hget),
    ("HSET", -4, hashes::hset),
    ("HDEL", -3, hashes::hdel),
    ("HINCRBY", 4, hashes::hincrby),
    ("HGETALL", 2, hashes::hgetall),
    ("HVALS", 2, hashes::hvals),
    ("HLEN", 2, hashes::hlen),
    ("LINDEX", 3, lists::lindex),
    ("LPOP", -2, lists::lpop),
    ("RPUSH", -3, lists::rpush),
    ("LPUSH", -3, lists::lpush),
    ("LREM", 4, lists::lrem),
    ("LLEN", 2, lists::llen),
    ("LRANGE", 4, lists::lrange),
    ("SADD", -3, sets::sadd),
    ("SREM", -3, sets::srem),
    ("SCARD", 2, sets::scard),
    ("SMEMBERS", 2, sets::smembers),
    ("ZADD", -4, sorted_sets::zadd),
    ("ZINCRBY", 4, sorted_sets::zincrby),
    ("ZRANGEBYSCORE", -4, sorted_sets::zrangebyscore),
    ("ZREM", -3, sorted_sets::zrem),
    ("ZSCORE", 3, sorted_sets::zscore),
    ("ZREMRANGEBYSCORE", 4, sorted_sets::zremrangebyscore),
    ("KEYS", 2, scan::keys),
    ("SCAN", -2, scan::scan),
];

/// The data of one server.
#[derive(Debug, Default)]
pub(crate) struct Keyspace {
    /// In the order of [`place`], so that SCAN can continue after keys were added or deleted.
    entries: BTreeMap<(u64, Vec<u8>), Entry>,
    /// The time of the current command in microseconds since 1970.
    now_micros: u64,
}

#[derive(Debug)]
struct Entry {
    value: Value,
    /// When the key expires, in ms since 1970. It exists until that millisecond has passed.
    end: Option<i64>,
}

#[derive(Debug)]
enum Value {
    String(StringValue),
    Hash(HashValue),
    List(ListValue),
    Set(SetValue),
    SortedSet(SortedSetValue),
}

/// A type of values.
trait Kind: Default {
    fn of(value: &mut Value) -> Option<&mut Self>;
    fn into_value(self) -> Value;
    fn is_empty(&self) -> bool;
}

/// Implements [`Kind`] for the type of a variant of [`Value`].
macro_rules! kind {
    ($type:ty, $variant:ident, $is_empty:expr) => {
        impl Kind for $type {
            fn of(value: &mut Value) -> Option<&mut Self> {
                match value {
                    Value::$variant(it) => Some(it),
                    _ => None,
                }
            }

            fn into_value(self) -> Value {
                Value::$variant(self)
            }

            fn is_empty(&self) -> bool {
                $is_empty(self)
            }
        }
    };
}

// An empty string is a value; an empty container does not exist.
kind!(StringValue, String, |_| false);
kind!(HashValue, Hash, HashValue::is_empty);
kind!(ListValue, List, ListValue::is_empty);
kind!(SetValue, Set, SetValue::is_empty);
kind!(SortedSetValue, SortedSet, SortedSetValue::is_empty);

impl Keyspace {
    /// Runs a command. `args` begins with the command's name.
    pub(crate) fn execute(&mut self, now_micros: u64, args: &[Vec<u8>]) -> Reply {
        self.now_micros = now_micros;
        let Some(name) = args.first() else {
            return Reply::Error("ERR empty command".to_owned());
        };
        let known = COMMANDS
            .iter()
            .find(|(known, ..)| name.eq_ignore_ascii_case(known.as_bytes()));
        let Some((name, arity, run)) = known else {
            let name = name.escape_ascii();
            return Reply::Error(format!(
                "ERR unknown command '{name}': leasehold::testing has no such command"
            ));
        };
        let is_complete = match *arity {
            least if least < 0 => args.len() >= least.unsigned_abs(),
            exact => args.len() == exact.unsigned_abs(),
        };
        let outcome = match is_complete {
            true => run(self, args),
            false => Err(args::wrong_number(name)),
        };
        outcome.unwrap_or_else(Reply::Error)
    }

    /// Returns all keys, sorted.
    pub(crate) fn keys(&mut self, now_micros: u64) -> Vec<Vec<u8>> {
        self.now_micros = now_micros;
        self.remove_expired();
        let mut keys: Vec<_> = self.entries.keys().map(|(_, key)| key.clone()).collect();
        keys.sort();
        keys
    }

    fn now_ms(&self) -> i64 {
        // µs of 64 bits are less than 2^63 ms.
        i64::try_from(self.now_micros / 1000).unwrap_or(i64::MAX)
    }

    fn entry(&mut self, key: &[u8]) -> Option<&mut Entry> {
        let (place, now) = (place(key), self.now_ms());
        if self.entries.get(&place)?.has_expired(now) {
            self.entries.remove(&place);
        }
        self.entries.get_mut(&place)
    }

    /// Returns the value of a key, `None` if there is no such key, or `WRONGTYPE`.
    fn find<T: Kind>(&mut self, key: &[u8]) -> Result<Option<&mut T>, String> {
        let entry = self.entry(key);
        let value = entry.map(|entry| T::of(&mut entry.value).ok_or_else(args::wrong_type));
        value.transpose()
    }

    /// Returns the value of a key, which is new and empty if there was no such key.
    fn find_or_create<T: Kind>(&mut self, key: &[u8]) -> Result<&mut T, String> {
        if self.entry(key).is_none() {
            self.insert(key, T::default(), None);
        }
        let found = self.find(key)?;
        Ok(found.expect("the key existed or was just inserted"))
    }

    /// Returns what `read` finds in the value of a key, or `absent`.
    fn read<T: Kind>(
        &mut self,
        key: &[u8],
        absent: Reply,
        read: impl FnOnce(&T) -> Reply,
    ) -> Outcome {
        let found = self.find(key)?;
        Ok(found.map_or(absent, |value| read(value)))
    }

    /// Changes the value of a key, and deletes the key if that leaves it empty.
    fn change<T: Kind>(
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

    fn insert(&mut self, key: &[u8], value: impl Kind, end: Option<i64>) {
        let value = value.into_value();
        self.entries.insert(place(key), Entry { value, end });
    }

    fn remove_expired(&mut self) {
        let now = self.now_ms();
        self.entries.retain(|_, entry| !entry.has_expired(now));
    }

    fn del(&mut self, args: &[Vec<u8>]) -> Outcome {
        let mut removed = 0;
        for key in &args[1..] {
            let is_there = self.entry(key).is_some();
            self.entries.remove(&place(key));
            removed += usize::from(is_there);
        }
        Ok(Reply::count(removed))
    }

    fn exists(&mut self, args: &[Vec<u8>]) -> Outcome {
        let keys = args[1..].iter();
        Ok(Reply::count(
            keys.filter(|key| self.entry(key).is_some()).count(),
        ))
    }

    fn kind_of(&mut self, args: &[Vec<u8>]) -> Outcome {
        let entry = self.entry(&args[1]);
        Ok(Reply::Status(
            entry.map_or("none", |entry| entry.value.type_name()),
        ))
    }

    fn time(&mut self, _: &[Vec<u8>]) -> Outcome {
        let parts = [self.now_micros / 1_000_000, self.now_micros % 1_000_000];
        Ok(Reply::array(
            parts.map(|part| Reply::bulk(part.to_string())),
        ))
    }

    fn size(&mut self, _: &[Vec<u8>]) -> Outcome {
        self.remove_expired();
        Ok(Reply::count(self.entries.len()))
    }

    fn flush(&mut self, args: &[Vec<u8>]) -> Outcome {
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

impl Value {
    fn type_name(&self) -> &'static str {
        match self {
            Self::String(_) => "string",
            Self::Hash(_) => "hash",
            Self::List(_) => "list",
            Self::Set(_) => "set",
            Self::SortedSet(_) => "zset",
        }
    }
}

/// Returns the place of a key in the order of SCAN. Its number is the cursor.
fn place(key: &[u8]) -> (u64, Vec<u8>) {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    (hasher.finish(), key.to_vec())
}
