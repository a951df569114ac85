//! Every lock that is held now, found key by key.

use std::collections::BTreeMap;

use crate::clock::Instant;
use crate::config::Config;
use crate::error::Error;
use crate::holder::Holder;
use crate::kind::{Keys, read_holder};
use crate::name::Name;
use crate::scripts::Call;
use crate::server::{Fault, Server, Wire};
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

/// Asks each server page by page, and about what it found there.
pub(crate) fn list(shared: &Shared, prefix: &[u8]) -> Result<Vec<Held>, Error> {
    let key_prefix = shared.config.key_prefix.as_bytes();
    let pattern = [glob(key_prefix), glob(prefix), b"*".to_vec()].concat();
    let mut found = BTreeMap::new();
    for server in shared.servers.all() {
        let mut cursor = b"0".to_vec();
        let mut wire = None;
        loop {
            let (next, page) = twice(shared, |until| server.scan(&cursor, &pattern, until))?;
            let names: Vec<Keys> = page
                .iter()
                .filter_map(|key| named(key, &shared.config))
                // A scan may tell of a key twice.
                .filter(|keys| !found.contains_key(&keys.name))
                .collect();
            for names in names.chunks(TOGETHER) {
                let holders = twice(shared, |until| holders(&server, &mut wire, names, until))?;
                for (keys, holder) in names.iter().zip(holders) {
                    if let Some(holder) = holder {
                        found.insert(keys.name.clone(), holder);
                    }
                }
            }
            cursor = next;
            if cursor == b"0" {
                break;
            }
        }
    }
    let held = found
        .into_iter()
        .map(|(name, holder)| Held { name, holder });
    Ok(held.collect())
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
    let holders = answers.into_iter().map(|answer| match answer {
        Ok(reply) => Ok(read_holder(reply).flatten()),
        // Something else by now than the string that was found: no lock.
        Err(Fault::Never(Error::WrongType { .. })) => Ok(None),
        Err(fault) => Err(fault),
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
            named(key, &config).map(|keys| keys.name)
        };
        assert_eq!(name(b"lock:a", "lock:"), Some("a".into()));
        assert_eq!(name(b"lock:", "lock:"), None);
        assert_eq!(name(b"luck:a", "lock:"), None);
        assert_eq!(name(b"a", ""), Some("a".into()));
        assert_eq!(name(b"leasehold:fence:{a}", ""), None);
    }
}
