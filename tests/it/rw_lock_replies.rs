//! Promise: after any sequence of calls, and of lost replies, Redis and the guards agree with a
//! model of the read-write lock in memory.

use std::ops::Deref;

use leasehold::{Error, FencingToken, Lease, RwLock, RwLockReadGuard, RwLockWriteGuard};
use rand::RngExt;
use rand::rngs::SmallRng;
use redis::Connection;
use support::fair::PATIENCE;
use support::random_calls::{Ended, Model, compare_random_calls, ended, patient, take_any};
use support::{Proxy, Server, eventually, ms};

support::tests![random_calls_keep_to_the_model];

/// The number of calls, over all threads. For a longer run:
/// `LEASEHOLD_STEPS=100000 cargo test --all-features --test it -- rw_lock_replies::`.
const STEPS: usize = 20_000;

/// Returns the value of the lock's key, and the readers' holder ids, sorted.
const STATE: &str = "
local readers = redis.call('ZRANGE', KEYS[2], 0, -1)
table.sort(readers)
return {redis.call('GET', KEYS[1]) or '', readers, redis.call('LLEN', KEYS[3])}
";

/// How many guards a session has at a time, at most.
const MOST_HELD: usize = 8;

enum Guard {
    Reader(RwLockReadGuard),
    Writer(RwLockWriteGuard),
}

impl Deref for Guard {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        match self {
            Self::Reader(guard) => guard,
            Self::Writer(guard) => guard,
        }
    }
}

impl Guard {
    fn unlock(self) -> Result<(), Error> {
        match self {
            Self::Reader(guard) => guard.unlock(),
            Self::Writer(guard) => guard.unlock(),
        }
    }
}

/// One name, the clients that use it, and what the model knows.
struct Session {
    name: String,
    redis: Connection,
    held: Vec<Guard>,
    locks: Vec<RwLock>,
    written: Option<FencingToken>,
    read: Option<FencingToken>,
}

impl Model for Session {
    fn start(server: &Server, proxy: &Proxy, name: String) -> Self {
        let lock = |_| {
            let client = patient(proxy).build().unwrap();
            client.rw_lock(&*name).ttl(ms(120_000))
        };
        Self {
            locks: (0..3).map(lock).collect(),
            redis: server.connection(),
            name,
            held: Vec::new(),
            written: None,
            read: None,
        }
    }

    fn call(&mut self, rng: &mut SmallRng, loses: bool) -> Ended {
        let of = rng.random_range(0..self.locks.len());
        let kind = if self.held.len() < MOST_HELD {
            rng.random_range(0..10)
        } else {
            9
        };
        match kind {
            kind @ 0..6 => {
                // A call with a deadline may have had no time for its reply.
                let waits = rng.random_ratio(1, 40);
                return match kind {
                    0..4 => self.read(of, waits, loses || waits),
                    _ => self.write(of, waits, loses || waits),
                };
            }
            6 => self.downgrade(),
            7 => {
                if let Some(guard) = take_any(&mut self.held, rng) {
                    let renewed = guard.renew();
                    assert!(renewed.is_ok() || loses, "{renewed:?}");
                    self.held.push(guard);
                }
            }
            _ => {
                if let Some(guard) = take_any(&mut self.held, rng) {
                    guard.unlock().unwrap();
                }
            }
        }
        Ended::WithReply
    }

    /// Redis must have exactly the holders of the model, and nobody waits.
    fn difference(&mut self) -> Option<String> {
        let mut ids: Vec<String> = self
            .held
            .iter()
            .map(|guard| guard.holder_id().to_string())
            .collect();
        ids.sort();
        let expected = match (ids.is_empty(), self.writes()) {
            (true, _) => (String::new(), ids),
            (false, true) => (ids.remove(0), ids),
            (false, false) => ("leasehold:readers".to_owned(), ids),
        };
        let (value, readers, waiting) = self.state();
        // A call that gave up leaves the queue in the background.
        if waiting > 0 {
            eventually(PATIENCE, || self.state().2 == 0);
        }
        let found = (value, readers);
        (found != expected).then(|| format!("{found:?}, not {expected:?}"))
    }
}

impl Session {
    fn writes(&self) -> bool {
        self.held
            .iter()
            .any(|guard| matches!(guard, Guard::Writer(_)))
    }

    fn read(&mut self, of: usize, waits: bool, loses: bool) -> Ended {
        let lock = &self.locks[of];
        let guard = if waits {
            lock.try_read_for(ms(10))
        } else {
            lock.try_read()
        };
        let ended = ended(&guard, waits);
        match guard {
            Ok(Ok(guard)) => {
                assert!(!self.writes(), "a writer holds it");
                let token = guard.fencing_token();
                assert!(Some(token) >= self.written && Some(token) >= self.read);
                self.read = Some(token);
                self.held.push(Guard::Reader(guard));
            }
            Ok(Err(_)) => assert!(loses || self.writes(), "refused without a writer"),
            Err(error) => assert!(loses, "{error}"),
        }
        ended
    }

    fn write(&mut self, of: usize, waits: bool, loses: bool) -> Ended {
        let lock = &self.locks[of];
        let guard = if waits {
            lock.try_write_for(ms(10))
        } else {
            lock.try_write()
        };
        let ended = ended(&guard, waits);
        match guard {
            Ok(Ok(guard)) => {
                assert!(self.held.is_empty(), "others hold it");
                let token = guard.fencing_token();
                assert!(Some(token) > self.written && Some(token) > self.read);
                self.written = Some(token);
                self.held.push(Guard::Writer(guard));
            }
            Ok(Err(_)) => assert!(loses || !self.held.is_empty(), "refused without a holder"),
            Err(error) => assert!(loses, "{error}"),
        }
        ended
    }

    fn downgrade(&mut self) {
        match self.held.pop() {
            Some(Guard::Writer(guard)) => self.held.push(Guard::Reader(guard.downgrade())),
            other => self.held.extend(other),
        }
    }

    fn state(&mut self) -> (String, Vec<String>, usize) {
        let key = |what: &str| format!("leasehold:{what}:{{lock:{}}}", self.name);
        let mut eval = redis::cmd("EVAL");
        eval.arg(STATE).arg(3).arg(format!("lock:{}", self.name));
        eval.arg(key("readers")).arg(key("queue"));
        eval.query(&mut self.redis).unwrap()
    }
}

fn random_calls_keep_to_the_model() {
    compare_random_calls::<Session>(STEPS);
}
