//! All keys of a server.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use crate::compare::{Tolerance, are_alike, are_equal, sorted};
use crate::kit::{Kit, Reply};
use crate::session::{BATCH_LIMIT, shown_reply};
use crate::words::Command;

/// The commands that read a key of each type.
const READS: [(&str, &[&str]); 5] = [
    ("string", &["GET"]),
    ("hash", &["HGETALL"]),
    ("list", &["LRANGE", "0", "-1"]),
    ("set", &["SMEMBERS"]),
    ("zset", &["ZRANGEBYSCORE", "-inf", "+inf", "WITHSCORES"]),
];

/// How long a fence is kept after a grant, in ms.
const FENCE_TTL: u64 = 90_000_000;

/// The keys that exist.
#[derive(Default)]
pub(crate) struct State(BTreeMap<&'static str, Content>);

struct Content {
    kind: &'static str,
    /// When it expires, in ms since 1970.
    end: Option<i64>,
    value: Reply,
}

/// Returns the commands whose replies [`State::of_real`] takes.
pub(crate) fn dump_commands(keys: &[&str]) -> Vec<Command> {
    let of_key = |key: &&str| {
        let mut commands = vec![command("TYPE", key, &[]), command("PEXPIRETIME", key, &[])];
        commands.extend(READS.map(|(_, read)| command(read[0], key, &read[1..])));
        commands
    };
    keys.iter().flat_map(of_key).collect()
}

fn command(name: &str, key: &str, args: &[&str]) -> Command {
    let words = [name, key].into_iter().chain(args.iter().copied());
    words.map(|word| word.as_bytes().to_vec()).collect()
}

impl State {
    pub(crate) fn of_real(
        keys: &'static [&'static str],
        mut replies: impl Iterator<Item = Reply>,
    ) -> Self {
        let mut next = || replies.next().unwrap();
        let mut state = Self::default();
        for key in keys {
            let Reply::Status(kind) = next() else {
                panic!("no type");
            };
            let Reply::Int(end) = next() else {
                panic!("no end");
            };
            for (of_kind, _) in READS {
                let value = next();
                let end = (end >= 0).then_some(end);
                if of_kind == kind {
                    state.0.insert(key, Content { kind, end, value });
                }
            }
        }
        state
    }

    pub(crate) fn of_kit(kit: &mut Kit, keys: &'static [&'static str], now: u64) -> Self {
        let mut state = Self::default();
        for key in keys {
            let Reply::Status(kind) = kit.run(now, &command("TYPE", key, &[])) else {
                panic!("no type");
            };
            let Reply::Int(left) = kit.run(now, &command("PTTL", key, &[])) else {
                panic!("no ttl");
            };
            let Some((_, read)) = READS.iter().find(|(of_kind, _)| *of_kind == kind) else {
                continue;
            };
            let value = kit.run(now, &command(read[0], key, &read[1..]));
            let end = (left >= 0).then_some((now / 1000).cast_signed() + left);
            state.0.insert(key, Content { kind, end, value });
        }
        state
    }

    /// Returns an error that describes the first difference of the kit's state from the real one.
    pub(crate) fn compare(&self, real: &Self, now: u64) -> Result<(), String> {
        let differs = |key: &&&str| match (real.0.get(**key), self.0.get(**key)) {
            (Some(real), Some(kit)) => {
                let with_any_end = key.starts_with("fence") && kit.is_just_renewed(real, now);
                !kit.is_like(real, now, with_any_end)
            }
            (real, kit) => real.is_some() || kit.is_some(),
        };
        let mut keys = real.0.keys().chain(self.0.keys());
        match keys.find(differs) {
            None => Ok(()),
            Some(key) => Err(format!("{key} differs\nreal: {real}\nkit: {self}")),
        }
    }

    /// Makes the kit's keys exactly those of the real server.
    pub(crate) fn copy_to(&self, kit: &mut Kit, old: &Self, now: u64) {
        for (key, content) in &self.0 {
            let is_same = |old: &Content| old.end == content.end && old.value == content.value;
            if !old.0.get(key).is_some_and(is_same) {
                for command in content.write_commands(key) {
                    kit.run(now, &command);
                }
            }
        }
    }

    /// Returns the commands that write these keys.
    pub(crate) fn write_commands(&self) -> impl Iterator<Item = Command> {
        self.0
            .iter()
            .flat_map(|(key, content)| content.write_commands(key))
    }

    /// Returns when keys, places in queues, readers and permits expire, in ms since 1970.
    pub(crate) fn ends(&self) -> impl Iterator<Item = u64> {
        let ends = self.0.values().filter_map(|content| content.end);
        let ends = ends.filter_map(|end| u64::try_from(end).ok());
        ends.chain(self.0.values().flat_map(Content::members))
    }
}

impl Content {
    /// Returns whether a fence has just got a new expiry on one of the servers.
    ///
    /// A grant renews the expiry if the last token is not below the clock. If the clock is about
    /// there, one server may renew it and the other not.
    fn is_just_renewed(&self, real: &Self, now: u64) -> bool {
        let renewed = (now / 1000 + FENCE_TTL).cast_signed();
        let ends = [self.end, real.end].into_iter().flatten();
        ends.map(|end| end.abs_diff(renewed))
            .any(|off| off <= BATCH_LIMIT / 1000)
    }

    fn is_like(&self, real: &Self, now: u64, with_any_end: bool) -> bool {
        let read = READS.iter().find(|(kind, _)| *kind == self.kind);
        let (_, read) = read.expect("every type has a command");
        let ends = [self.end, real.end].map(|end| Reply::Int(end.unwrap_or(-1)));
        // A member of a sorted set may end in another millisecond, and so be in another position.
        let values = [&real.value, &self.value].map(|value| match self.kind {
            "zset" => sorted(value, 2),
            _ => value.clone(),
        });
        self.kind == real.kind
            && are_equal(read[0].as_bytes(), &values[0], &values[1], now)
            && (with_any_end || are_alike(&ends[0], &ends[1], Tolerance { now, ttls: true }))
    }

    fn write_commands(&self, key: &str) -> Vec<Command> {
        let (name, is_swapped) = match self.kind {
            "string" => ("SET", false),
            "hash" => ("HSET", false),
            "list" => ("RPUSH", false),
            "set" => ("SADD", false),
            _ => ("ZADD", true),
        };
        let mut items = match &self.value {
            Reply::Array(Some(items)) => items.clone(),
            single => vec![single.clone()],
        };
        if is_swapped {
            items.chunks_mut(2).for_each(<[Reply]>::reverse);
        }
        let mut write = command(name, key, &[]);
        for item in items {
            let Reply::Bulk(Some(item)) = item else {
                panic!("no item: {item:?}");
            };
            write.push(item);
        }
        let mut commands = vec![command("DEL", key, &[]), write];
        if let Some(end) = self.end {
            commands.push(command("PEXPIREAT", key, &[&end.to_string()]));
        }
        commands
    }

    /// Returns the times at which members expire: the values of a hash begin with
    /// `refreshed provisional`, and a score of a sorted set is an end.
    fn members(&self) -> Vec<u64> {
        let Reply::Array(Some(items)) = &self.value else {
            return Vec::new();
        };
        let end = |item: &Reply| {
            let Reply::Bulk(Some(text)) = item else {
                return None;
            };
            let text = str::from_utf8(text).ok()?;
            if self.kind == "zset" {
                return text.parse::<u64>().ok();
            }
            let mut words = text.split(' ');
            let (refreshed, provisional) = (words.next()?, words.next()?);
            refreshed
                .parse::<u64>()
                .ok()?
                .checked_add(provisional.parse().ok()?)
        };
        items.iter().filter_map(end).collect()
    }
}

impl Display for State {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (key, content) in &self.0 {
            let value = shown_reply(&content.value);
            write!(f, "\n{key} until {:?}: {value}", content.end)?;
        }
        Ok(())
    }
}
