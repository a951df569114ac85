//! Lists the held locks, or the permits that are out, by scanning the keys of every server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::cause::Rounded;
use crate::client::query::query;
use crate::clock::Instant;
use crate::config::Config;
use crate::error::{Cause, Error};
use crate::held::Held;
use crate::holder::Holder;
use crate::name::{Name, shown};
use crate::protocol::answer::Answer;
use crate::protocol::keys::Keys;
use crate::protocol::mutex::MutexKeys;
use crate::protocol::permits_out::PermitsOut;
use crate::protocol::primitive::Primitive;
use crate::protocol::reply::read_digits;
use crate::protocol::script::Call;
use crate::protocol::semaphore::{self, SemaphoreKeys};
use crate::redis::{Cap, Fault, NodeFault, Server};
use crate::runtime::Runtime;

/// The most holders that an inspection of a semaphore returns.
pub(crate) const MOST_HOLDERS: u32 = 10_000;

/// How many keys a server examines for a page of a scan: it serves no other client meanwhile.
const KEYS_PER_PAGE: usize = 1_000;

/// How long the server may take for all pages. It sends a million keys in a few seconds.
const LONGEST_SCAN: Duration = Duration::from_secs(600);

/// How many names are inspected in one write.
const NAMES_PER_WRITE: usize = 64;

/// A page of a scan, as [`Client::list_pages`](crate::Client::list_pages) and
/// [`Client::list_permits_pages`](crate::Client::list_permits_pages) find it.
///
/// ```
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
/// # let _guard = client.mutex("account:123").lock()?;
/// # let mut shown = Vec::new();
/// client.list_pages("account:", |page| {
///     for held in page.found {
///         println!("{} is held; {:.0} % are scanned", held.name(), page.progress * 100.0);
///         # shown.push(held.name().clone());
///     }
/// })?;
/// # assert_eq!(shown, ["account:123"]);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct ListPage<'a> {
    /// The locks on this page. Most pages have none.
    pub found: &'a [Held],
    /// How much of the keys is scanned: 1 at the end.
    ///
    /// An estimate: it may decrease while the server resizes its table of keys. In a cluster, it
    /// counts the nodes whose scan has ended.
    pub progress: f64,
    /// How long the server took for this page, including the way there and back.
    ///
    /// The server serves no other client meanwhile, so a scan that pauses 19 times as long after
    /// each page takes at most 5 % of the server's time.
    pub took: Duration,
}

/// Returns the semaphores whose names begin with `prefix` and that have permits out. Calls `act`
/// with each page of them.
///
/// Scans each server page by page and inspects the semaphores on each page.
pub(crate) fn list_permits(
    runtime: &Runtime,
    prefix: &[u8],
    act: impl FnMut(&ListPage<'_>),
) -> Result<Vec<Held>, Error> {
    runtime.check_open()?;
    if runtime.deployment.size().all > 1 {
        // A quorum keeps no semaphores.
        return Ok(Vec::new());
    }
    let pattern = semaphore::pattern_of_all();
    let mut found = BTreeMap::new();
    let inspect = |_: &Server, keys: &[Vec<u8>]| {
        let mut held = Vec::new();
        for key in keys {
            if let Some(permits) = inspect_permits(runtime, key, prefix)? {
                // `SCAN` may return a key twice.
                let name = permits.name().clone();
                if permits.permits() > 0 && found.insert(name, permits.clone()).is_none() {
                    held.push(permits);
                }
            }
        }
        Ok(held)
    };
    each_page(runtime, b"zset", &pattern, inspect, act)?;
    Ok(found.into_values().collect())
}

/// Returns the permits of the semaphore with this key; `None` if no semaphore whose name begins
/// with `prefix` can have it.
fn inspect_permits(runtime: &Runtime, key: &[u8], prefix: &[u8]) -> Result<Option<Held>, Error> {
    let config = &runtime.config;
    let lock = semaphore::lock_of(key, &config.key_prefix, &config.channel_prefix);
    let Some(lock) = lock.filter(|lock| lock.names[0].as_bytes().starts_with(prefix)) else {
        return Ok(None);
    };
    let name = lock.names[0].clone();
    let keys = SemaphoreKeys::of(lock, 1, 1);
    let permits = query(runtime, |until| {
        let call = keys.inspect_permits(MOST_HOLDERS);
        match runtime.deployment.call(call, until, Cap::Counted) {
            Ok(Answer::Permits(permits)) => Ok(permits),
            // The key was replaced after the scan by one that is no sorted set.
            Ok(_) | Err(Fault::Rejected(Error::WrongType { .. })) => Ok(PermitsOut::default()),
            Err(fault) => Err(fault),
        }
    })?;
    Ok(Some(permits.of(name)))
}

/// Returns the held locks whose names begin with `prefix`. Calls `act` with each page of them.
///
/// Scans each server page by page and inspects the names on each page. Over a quorum, a minority of
/// the servers may fail.
pub(crate) fn list(
    runtime: &Runtime,
    prefix: &[u8],
    act: impl FnMut(&ListPage<'_>),
) -> Result<Vec<Held>, Error> {
    runtime.check_open()?;
    let key_prefix = runtime.config.key_prefix.as_bytes();
    let pattern = [glob(key_prefix), glob(prefix), b"*".to_vec()].concat();
    let mut found = BTreeMap::new();
    let inspect =
        |server: &Server, keys: &[Vec<u8>]| inspect_names(runtime, server, keys, &mut found);
    each_page(runtime, b"string", &pattern, inspect, act)?;
    Ok(found.into_values().flatten().collect())
}

/// Adds to `found` the names of these keys of one server, except those that it contains already.
/// Returns those that are held.
fn inspect_names(
    runtime: &Runtime,
    server: &Server,
    keys: &[Vec<u8>],
    found: &mut BTreeMap<Name, Option<Held>>,
) -> Result<Vec<Held>, Error> {
    let mut held = Vec::new();
    let names: Vec<Arc<dyn Primitive>> = keys
        .iter()
        .filter_map(|key| named(key, &runtime.config))
        // Other servers of a quorum have the same names, and `SCAN` may return a key twice. In a
        // cluster, a name whose keys would be in different slots cannot be a lock.
        .filter(|keys| {
            !found.contains_key(keys.key(0).name) && runtime.deployment.check(keys).is_ok()
        })
        .collect();
    for names in names.chunks(NAMES_PER_WRITE) {
        let holders = query(runtime, |until| holders(runtime, server, names, until))?;
        // A name that no majority decides is asked for again if another server has its key.
        for (keys, holder) in names.iter().zip(holders) {
            let Some(holder) = holder else { continue };
            let name = keys.key(0).name.clone();
            let of = |holder: Holder| Held::of_lock(name.clone(), holder.is_shared(), vec![holder]);
            let lock = holder.map(of);
            if found.insert(name, lock.clone()).is_none() {
                held.extend(lock);
            }
        }
    }
    Ok(held)
}

/// Calls `act` with each page of what `inspect` finds in the keys of all servers.
///
/// These are the keys of this type that match `pattern`.
///
/// Over a quorum, a minority of the servers may fail.
fn each_page(
    runtime: &Runtime,
    kind: &[u8],
    pattern: &[u8],
    mut inspect: impl FnMut(&Server, &[Vec<u8>]) -> Result<Vec<Held>, Error>,
    mut act: impl FnMut(&ListPage<'_>),
) -> Result<(), Error> {
    let deployment = &runtime.deployment;
    let mut may_fail = deployment.size().all - deployment.size().needed;
    let servers = query(runtime, |until| deployment.all(until))?;
    for (n, server) in servers.iter().enumerate() {
        let act = |keys: &[Vec<u8>], progress, took| {
            act(&ListPage {
                found: &inspect(server, keys)?,
                progress: (n as f64 + progress) / servers.len() as f64,
                took,
            });
            Ok(())
        };
        match each_page_of(runtime, server, kind, pattern, act) {
            Err(error) if error.is_unreachable() && may_fail > 0 => may_fail -= 1,
            outcome => outcome?,
        }
    }
    Ok(())
}

/// Calls `act` with each page of the keys of one server, the share of them that is scanned, and the
/// time that the page took. Asks for fewer keys if a page is too large.
///
/// Fails if the scan does not end: a cursor comes twice in a row, or the pages take too long.
fn each_page_of(
    runtime: &Runtime,
    server: &Server,
    kind: &[u8],
    pattern: &[u8],
    mut act: impl FnMut(&[Vec<u8>], f64, Duration) -> Result<(), Error>,
) -> Result<(), Error> {
    let (mut cursor, mut count) = (b"0".to_vec(), KEYS_PER_PAGE);
    let mut spent = Duration::ZERO;
    loop {
        let mut asked = Instant::START;
        let (next, keys) = query(runtime, |until| {
            asked = Instant::now();
            loop {
                match server.scan(&cursor, kind, pattern, count, until) {
                    Err(Fault::Unknown(cause)) if cause.is_too_large() && count > 1 => {
                        count = count.div_ceil(10);
                    }
                    answer => return answer,
                }
            }
        })?;
        let took = asked.until(Instant::now());
        spent += took;
        let is_over = next == b"0";
        if !is_over && (next == cursor || spent >= LONGEST_SCAN) {
            return Err(runtime.deployment.unreachable(Cause::text(format!(
                "SCAN does not end at {}: it is at cursor {} after {} of replies",
                server.label(),
                shown(&next),
                Rounded(spent)
            ))));
        }
        let progress = match runtime.deployment.slot_map() {
            Some(_) if !is_over => 0.0,
            _ => progress(&next),
        };
        act(&keys, progress, took)?;
        if is_over {
            return Ok(());
        }
        cursor = next;
        count = (count * 2).min(KEYS_PER_PAGE);
    }
}

/// Returns how much of the table of keys is scanned if this is the next cursor.
///
/// The cursor is a number whose bits are in reverse order: see
/// <https://github.com/redis/redis/blob/7.0.15/src/dict.c#L846>. A node of a cluster adds the slot,
/// so this is about a server that has all slots.
fn progress(cursor: &[u8]) -> f64 {
    match read_digits::<u64>(cursor) {
        None | Some(0) => 1.0,
        Some(cursor) => cursor.reverse_bits() as f64 / 2_f64.powi(64),
    }
}

/// Returns the holder of a name over a quorum: `Some(None)` if the name is free.
///
/// Returns `None` if no majority can tell: a minority has the key, and another server does not
/// answer.
///
/// The name then counts as free unless a later server's scan leads to an answer. If no majority
/// answers at all, the scans of the silent servers fail, and with them the list.
fn by_majority(runtime: &Runtime, keys: &Keys) -> Result<Option<Option<Holder>>, Fault> {
    // Each name has its own deadline, so that one without a reply leaves the next ones their time.
    let until = Instant::now().after(runtime.deployment.command_timeout());
    match runtime.deployment.call(keys.inspect(), until, Cap::Counted) {
        Err(Fault::NotRun(_) | Fault::Unknown(_)) => Ok(None),
        answer => known(answer).map(Some),
    }
}

fn known(answer: Result<Answer, Fault>) -> Result<Option<Holder>, Fault> {
    match answer {
        Ok(answer) => Ok(answer.holder()),
        // The key was replaced after the scan by one that is not a string, so it is not a lock.
        Err(Fault::Rejected(Error::WrongType { .. })) => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// Returns the holder of each of `names`, as [`by_majority`] does. Asks `server`, which has their
/// keys, in one write, unless it is one of a quorum.
fn holders(
    runtime: &Runtime,
    server: &Server,
    names: &[Arc<dyn Primitive>],
    until: Instant,
) -> Result<Vec<Option<Option<Holder>>>, Fault> {
    let deployment = &runtime.deployment;
    if deployment.size().all > 1 {
        let names = names.iter();
        return names.map(|keys| by_majority(runtime, keys)).collect();
    }
    let calls: Vec<Call<'_>> = names.iter().map(|keys| keys.inspect()).collect();
    let (answers, _) = server.calls(&calls, until, Cap::Counted, None)?;
    let holders = answers.into_iter().zip(calls).map(|(answer, call)| {
        let answer = match answer {
            Err(NodeFault::Redirected(..) | NodeFault::NoScript) => {
                deployment.call(call, until, Cap::Counted)
            }
            answer => answer.map_err(Fault::from),
        };
        known(answer).map(Some)
    });
    holders.collect()
}

/// Returns the lock with this key, or `None` if no lock can have it.
fn named(key: &[u8], config: &Config) -> Option<Arc<dyn Primitive>> {
    let name = key.strip_prefix(config.key_prefix.as_bytes())?;
    let keys = Keys::new(name.into(), &config.key_prefix, &config.channel_prefix);
    keys.check().is_ok().then(|| MutexKeys::of(keys))
}

/// Returns a glob pattern that matches exactly these bytes.
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
    fn patterns_escape_special_characters() {
        assert_eq!(glob(b"lock:a"), b"lock:a");
        assert_eq!(glob(b"[a]*?\\\xff"), b"\\[a\\]\\*\\?\\\\\xff");
    }

    #[test]
    fn progress_is_read_from_the_cursor() {
        // The cursors of a scan over a table of eight places, in their order.
        let cursors = ["4", "2", "6", "1", "5", "3", "7", "0"];
        assert_eq!(
            cursors.map(|cursor| progress(cursor.as_bytes())),
            [1, 2, 3, 4, 5, 6, 7, 8].map(|n| f64::from(n) / 8.0)
        );
    }

    #[test]
    fn keys_that_are_not_locks_are_left_out() {
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
