//! The users of a campaign: threads of a process that acquire, hold and release what they use, and
//! report each hold.

use std::ops::Deref;
use std::thread;
use std::time::Duration;

use leasehold::{
    Client, Error, Lease, MutexAllGuard, MutexGuard, RwLockReadGuard, RwLockWriteGuard,
    SemaphorePermit, Taken,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use support::{COMMAND_TIMEOUT, builder, let_pass, ms, parameter, tell_parent};

use super::judge::HeldPeriod;
use super::{FAIR, LIMIT, MUTEX, PERMITS, READ, SET, TTL, WRITE, clock};

/// The threads of each process: a kind, and its names.
const USERS: [(&str, &[&str]); 10] = [
    (MUTEX, &["a"]),
    (MUTEX, &["a"]),
    (MUTEX, &["b"]),
    (FAIR, &["a"]),
    (SET, &["a", "b"]),
    (WRITE, &["a"]),
    (READ, &["a"]),
    (READ, &["b"]),
    (PERMITS, &["a"]),
    (PERMITS, &["a"]),
];

enum Guard {
    One(MutexGuard),
    Set(MutexAllGuard),
    Writer(RwLockWriteGuard),
    Reader(RwLockReadGuard),
    Permit(SemaphorePermit),
}

impl Deref for Guard {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        match self {
            Self::One(guard) => guard,
            Self::Set(guard) => guard,
            Self::Writer(guard) => guard,
            Self::Reader(guard) => guard,
            Self::Permit(permit) => permit,
        }
    }
}

impl Guard {
    fn token_of(&self, name: &str) -> u64 {
        let token = match self {
            Self::Set(guard) => guard.fencing_token_of(name).expect("a name of the set"),
            guard => guard.fencing_token(),
        };
        token.value()
    }

    fn units(&self) -> u32 {
        match self {
            Self::Permit(permit) => permit.count(),
            _ => 1,
        }
    }

    fn release(self) -> Result<(), Error> {
        match self {
            Self::One(guard) => guard.unlock(),
            Self::Set(guard) => guard.unlock(),
            Self::Writer(guard) => guard.unlock(),
            Self::Reader(guard) => guard.unlock(),
            Self::Permit(permit) => permit.release(),
        }
    }
}

/// The role of each process: uses everything until the campaign ends.
pub(super) fn user() {
    let number = |key: &str| parameter(key).parse::<u64>().expect("a number");
    let (seed, ends) = (number("SEED"), number("ENDS"));
    let client = builder(&parameter("URL"));
    let client = client.min_replicas(number("REPLICAS") as usize, COMMAND_TIMEOUT / 2);
    let client = client.build().expect("the URL is valid");
    thread::scope(|scope| {
        for ((kind, names), n) in USERS.into_iter().zip(0..) {
            let client = &client;
            let mut rng = SmallRng::seed_from_u64(seed.wrapping_add(n));
            scope.spawn(move || {
                let mut has_held = false;
                // Each user must acquire at least once, however late.
                while clock() < ends || !has_held {
                    has_held |= use_once(client, kind, names, &mut rng);
                    let_pass(pause(&mut rng));
                }
            });
        }
    });
}

/// Returns how long to wait before the next call. For half a second all users are busy, and queues
/// are long; for the next half they are not, and calls find names free or without a queue.
fn pause(rng: &mut SmallRng) -> Duration {
    let is_busy = (clock() / 500_000_000).is_multiple_of(2);
    ms(rng.random_range(if is_busy { 0..5 } else { 20..120 }))
}

/// Acquires, holds and releases once, and reports that. Returns false if the call ended without the
/// lock.
fn use_once(client: &Client, kind: &str, names: &[&str], rng: &mut SmallRng) -> bool {
    let asked = clock();
    let guard = match acquire(client, kind, names, rng) {
        Ok(Ok(guard)) => guard,
        Ok(Err(_)) => return false,
        Err(error) => {
            assert!(error.is_retryable(), "{kind} {names:?}: {error:?}");
            let_pass(ms(20));
            return false;
        }
    };
    hold(&guard, kind, names, asked, rng);
    let released = match guard {
        Guard::Writer(guard) if rng.random_ratio(1, 4) => {
            let guard = Guard::Reader(guard.downgrade());
            hold(&guard, READ, names, asked, rng);
            guard.release()
        }
        guard => guard.release(),
    };
    let is_known = match &released {
        Ok(_) | Err(Error::Lost(_)) => true,
        Err(error) => error.is_unreachable(),
    };
    assert!(is_known, "{kind} {names:?}: {released:?}");
    true
}

/// Holds for a while, and reports until when it was certain to.
fn hold(guard: &Guard, kind: &str, names: &[&str], asked: u64, rng: &mut SmallRng) {
    let got = clock();
    // Most are short; a few outlive their first lease.
    let lasts = match rng.random_range(0..200) {
        0 => TTL / 2,
        1..10 => ms(20),
        _ => ms(rng.random_range(0..=2)),
    };
    let ends = got + lasts.as_nanos() as u64;
    let renews = rng.random_ratio(1, 20);
    let mut until = got;
    loop {
        let now = clock();
        if !guard.is_held() {
            break;
        }
        until = now;
        if now >= ends {
            break;
        }
        if renews {
            // A renewal without a reply is no loss yet.
            let _ = guard.renew();
        }
        let_pass(ms(1));
    }
    for name in names {
        let hold = HeldPeriod {
            kind: kind.to_owned(),
            name: (*name).to_owned(),
            units: guard.units(),
            token: guard.token_of(name),
            asked,
            got,
            until,
        };
        tell_parent(&hold.line());
    }
}

fn acquire(
    client: &Client,
    kind: &str,
    names: &[&str],
    rng: &mut SmallRng,
) -> Result<Result<Guard, Taken>, Error> {
    let ttl = if rng.random() { TTL } else { TTL / 3 };
    let limit = match rng.random_range(0..10) {
        0..4 => Some(ms(rng.random_range(1..300))),
        _ => None,
    };
    let name = names[0];
    let guard = match kind {
        MUTEX => {
            let mutex = client.mutex(name).ttl(ttl);
            within(limit, || mutex.lock(), |limit| mutex.try_lock_for(limit))?.map(Guard::One)
        }
        FAIR => {
            let mutex = client.fair_mutex(name).ttl(ttl);
            within(limit, || mutex.lock(), |limit| mutex.try_lock_for(limit))?.map(Guard::One)
        }
        SET => {
            let set = client.mutex_all(names.iter().copied()).ttl(ttl);
            within(limit, || set.lock(), |limit| set.try_lock_for(limit))?.map(Guard::Set)
        }
        WRITE => {
            let lock = client.rw_lock(name).ttl(ttl);
            within(limit, || lock.write(), |limit| lock.try_write_for(limit))?.map(Guard::Writer)
        }
        READ => {
            let lock = client.rw_lock(name).ttl(ttl);
            within(limit, || lock.read(), |limit| lock.try_read_for(limit))?.map(Guard::Reader)
        }
        PERMITS => {
            let all = client.semaphore(name, LIMIT).ttl(ttl);
            let all = all.many(rng.random_range(1..=2));
            within(limit, || all.acquire(), |limit| all.try_acquire_for(limit))?.map(Guard::Permit)
        }
        _ => unreachable!("no kind is called {kind}"),
    };
    Ok(guard)
}

fn within<G>(
    limit: Option<Duration>,
    wait: impl Fn() -> Result<G, Error>,
    wait_for: impl Fn(Duration) -> Result<Result<G, Taken>, Error>,
) -> Result<Result<G, Taken>, Error> {
    match limit {
        Some(limit) => wait_for(limit),
        None => wait().map(Ok),
    }
}
