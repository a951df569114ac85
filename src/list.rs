//! Every lock that is held now, found key by key.

use std::collections::BTreeMap;

use crate::clock::Instant;
use crate::config::Config;
use crate::error::Error;
use crate::holder::Holder;
use crate::kind::{Keys, read_holder};
use crate::name::Name;
use crate::scripts::{Call, Reply};
use crate::server::{Fault, Lane, Server, Wire};
use crate::threads::Shared;

/// How many names are asked about in one write.
const TOGETHER: usize = 64;

/// A lock that somebody held at the moment when Redis was asked, as [`Client::list`](crate::Client::list)
/// saw it.
#[derive(Clone, Debug)]
pub struct Held {
    name: Name,
    holder: Holder,
}

impl Held {
    /// The lock's name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Who held it.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }
}

/// Asks each server page by page, and about what it found there. Of a quorum's, a minority need not
/// answer.
pub(crate) fn list(shared: &Shared, prefix: &[u8]) -> Result<Vec<Held>, Error> {
    let key_prefix = shared.config.key_prefix.as_bytes();
    let pattern = [glob(key_prefix), glob(prefix), b"*".to_vec()].concat();
    let mut found = BTreeMap::new();
    let size = shared.servers.size();
    let mut may_fail = size.all - size.needed;
    for server in twice(shared, |until| shared.servers.all(until))? {
        match collect(shared, &server, &pattern, &mut found) {
            Err(error) if error.is_unreachable() && may_fail > 0 => may_fail -= 1,
            outcome => outcome?,
        }
    }
    let held = found.into_iter();
    let held = held.filter_map(|(name, holder)| Some((name, holder?)));
    Ok(held.map(|(name, holder)| Held { name, holder }).collect())
}

/// What one server knows; a name that was found before is not asked about again.
fn collect(
    shared: &Shared,
    server: &Server,
    pattern: &[u8],
    found: &mut BTreeMap<Name, Option<Holder>>,
) -> Result<(), Error> {
    let mut cursor = b"0".to_vec();
    let mut wire = None;
    loop {
        let (next, page) = twice(shared, |until| server.scan(&cursor, pattern, until))?;
        let names: Vec<Keys> = page
            .iter()
            .filter_map(|key| named(key, &shared.config))
            // A scan may tell of a key twice, and of one that was never a lock here.
            .filter(|keys| {
                !found.contains_key(keys.key(0).name) && shared.servers.check(keys).is_ok()
            })
            .collect();
        for names in names.chunks(TOGETHER) {
            let holders = twice(shared, |until| {
                if shared.servers.size().all > 1 {
                    return names.iter().map(|keys| by_majority(shared, keys)).collect();
                }
                holders(shared, server, &mut wire, names, until)
            })?;
            for (keys, holder) in names.iter().zip(holders) {
                found.insert(keys.key(0).name.clone(), holder);
            }
        }
        cursor = next;
        if cursor == b"0" {
            return Ok(());
        }
    }
}

/// Who holds a name of a quorum. One that no majority can tell of now, as a minority has it and another
/// does not answer, is nobody's as far as is known; that a majority answers at all is seen by scanning.
fn by_majority(shared: &Shared, keys: &Keys) -> Result<Option<Holder>, Fault> {
    // Each has its own time: one that cannot be told takes nothing from the next.
    let until = Instant::now().after(shared.servers.command_timeout());
    match holder(shared, keys, until) {
        Err(Fault::NotNow(_) | Fault::NoAnswer(_)) => Ok(None),
        holder => holder,
    }
}

/// Who holds a name, by the word of whoever keeps it.
fn holder(shared: &Shared, keys: &Keys, until: Instant) -> Result<Option<Holder>, Fault> {
    let answer = shared.servers.call(keys.inspect(), until, Lane::Capped);
    known(answer)
}

fn known(answer: Result<Reply, Fault>) -> Result<Option<Holder>, Fault> {
    match answer {
        Ok(reply) => Ok(read_holder(&reply).flatten()),
        // Something else by now than the string that was found: no lock.
        Err(Fault::Never(Error::WrongType { .. })) => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// Asks once more where there was no answer: it changes nothing, so a connection that had died
/// unnoticed need not fail it. Takes one command timeout at the most.
fn twice<T>(shared: &Shared, mut ask: impl FnMut(Instant) -> Result<T, Fault>) -> Result<T, Error> {
    shared.check_open()?;
    let until = Instant::now().after(shared.servers.command_timeout());
    match ask(until) {
        Err(Fault::NotNow(_) | Fault::NoAnswer(_)) if Instant::now() < until => ask(until),
        answer => answer,
    }
    .map_err(|fault| shared.servers.error(fault))
}

/// Who holds these names, by one write to the server that they were found on. The connection is kept
/// for the next.
fn holders(
    shared: &Shared,
    server: &Server,
    wire: &mut Option<Wire>,
    names: &[Keys],
    until: Instant,
) -> Result<Vec<Option<Holder>>, Fault> {
    let mut used = match wire.take() {
        Some(wire) => wire,
        None => server.wire(until)?,
    };
    let calls: Vec<Call<'_>> = names.iter().map(Keys::inspect).collect();
    let (answers, usable) = server.batch(&mut used, &calls);
    *wire = Some(used).filter(|_| usable);
    let holders = answers
        .into_iter()
        .zip(names)
        .map(|(answer, keys)| match answer {
            // Its slot is moving.
            Err(Fault::Elsewhere(..)) => holder(shared, keys, until),
            answer => known(answer),
        });
    holders.collect()
}

/// The lock whose key this is, if a lock can have it.
fn named(key: &[u8], config: &Config) -> Option<Keys> {
    let name = key.strip_prefix(config.key_prefix.as_bytes())?;
    let keys = Keys::new(name.into(), &config.key_prefix, &config.channel_prefix);
    keys.check().is_ok().then_some(keys)
}

/// A pattern that matches these bytes and no others.
fn glob(bytes: &[u8]) -> Vec<u8> {
    let mut pattern = Vec::with_capacity(bytes.len());
    for byte in bytes {
        if b"*?[]\\".contains(byte) {
            pattern.push(b'\\');
        }
        pattern.push(*byte);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smoke() {
        assert_eq!(glob(b"lock:a"), b"lock:a");
        assert_eq!(glob(b"[a]*?\\\xff"), b"\\[a\\]\\*\\?\\\\\xff");
    }

    #[test]
    fn keys_that_are_no_locks_are_left_out() {
        let name = |key: &[u8], key_prefix: &str| {
            let config = Config {
                key_prefix: key_prefix.into(),
                ..Config::default()
            };
            named(key, &config).map(|keys| keys.key(0).name.clone())
        };
        assert_eq!(name(b"lock:a", "lock:"), Some("a".into()));
        assert_eq!(name(b"lock:", "lock:"), None);
        assert_eq!(name(b"luck:a", "lock:"), None);
        assert_eq!(name(b"a", ""), Some("a".into()));
        assert_eq!(name(b"leasehold:fence:{a}", ""), None);
    }
}
