//! Promise: after any sequence of calls, and of lost replies, Redis and the guards agree with a model
//! of the read-write lock in memory.

use std::env;
use std::thread;

use leasehold::{
    Client, Error, FencingToken, HolderId, RwLock, RwLockReadGuard, RwLockWriteGuard, Unlocked,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use redis::Connection;
use support::fair::PATIENCE;
use support::{Proxy, Server, Traffic, eventually, ms};

support::tests![random_calls_keep_to_the_model];

/// The number of calls, over all threads. For a longer run:
/// `LEASEHOLD_STEPS=100000 cargo test --all-features --test it -- rw_lock_replies::`.
const STEPS: usize = 20_000;

const THREADS: usize = 3;

/// One call in this many loses its reply.
const LOSES: u32 = 100;

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

impl Guard {
    fn id(&self) -> &HolderId {
        match self {
            Self::Reader(guard) => guard.holder_id(),
            Self::Writer(guard) => guard.holder_id(),
        }
    }

    fn renew(&self) -> Result<(), Error> {
        match self {
            Self::Reader(guard) => guard.renew(),
            Self::Writer(guard) => guard.renew(),
        }
    }

    fn unlock(self) -> Result<Unlocked, Error> {
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
    /// Dropped last: the guards are released through it.
    proxy: Proxy,
    written: Option<FencingToken>,
    read: Option<FencingToken>,
    rng: SmallRng,
}

impl Session {
    fn start(server: &Server, n: usize, seed: u64) -> Self {
        let proxy = Proxy::new(server);
        let name = format!("name {n}");
        // Long: no call fails because this machine is slow.
        let client = || {
            Client::builder()
                .command_timeout(ms(10_000))
                .url(proxy.url())
        };
        let lock = |_| client().build().unwrap().rw_lock(&*name).ttl(ms(120_000));
        Self {
            locks: (0..3).map(lock).collect(),
            redis: server.connection(),
            proxy,
            name,
            held: Vec::new(),
            written: None,
            read: None,
            rng: SmallRng::seed_from_u64(seed + n as u64),
        }
    }

    fn writes(&self) -> bool {
        self.held
            .iter()
            .any(|guard| matches!(guard, Guard::Writer(_)))
    }

    /// Makes a random call, whose reply may be lost, and compares its outcome with the model.
    fn step(&mut self) {
        let mut loses = self.rng.random_ratio(1, LOSES);
        if loses {
            self.proxy.set_open(Traffic::CutOnReply);
        }
        let of = self.rng.random_range(0..self.locks.len());
        let kind = match self.held.len() < MOST_HELD {
            true => self.rng.random_range(0..10),
            false => 9,
        };
        match kind {
            kind @ 0..6 => {
                // A call with a deadline may have had no time for its reply.
                let waits = self.rng.random_ratio(1, 200);
                loses |= waits;
                match kind {
                    0..4 => self.read(of, waits, loses),
                    _ => self.write(of, waits, loses),
                }
            }
            6 => self.downgrade(),
            7 => {
                if let Some(guard) = self.any_guard() {
                    let renewed = guard.renew();
                    assert!(renewed.is_ok() || loses, "{renewed:?}");
                    self.held.push(guard);
                }
            }
            _ => {
                if let Some(guard) = self.any_guard() {
                    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
                }
            }
        }
        if loses {
            self.proxy.set_all(Traffic::Pass);
        }
        match loses {
            // The effects of a call without a reply are undone in the background.
            true => eventually(PATIENCE, || self.agrees()),
            false => assert!(self.agrees(), "{:?}", self.state()),
        }
    }

    fn any_guard(&mut self) -> Option<Guard> {
        let count = self.held.len();
        (count > 0).then(|| self.held.swap_remove(self.rng.random_range(0..count)))
    }

    fn read(&mut self, of: usize, waits: bool, loses: bool) {
        let lock = &self.locks[of];
        let guard = match waits {
            true => lock.try_read_for(ms(10)),
            false => lock.try_read(),
        };
        match guard {
            Ok(Some(guard)) => {
                assert!(!self.writes(), "beside a writer");
                let token = guard.fencing_token();
                assert!(Some(token) >= self.written && Some(token) >= self.read);
                self.read = Some(token);
                self.held.push(Guard::Reader(guard));
            }
            Ok(None) => assert!(loses || self.writes(), "refused without a writer"),
            Err(error) => assert!(loses, "{error}"),
        }
    }

    fn write(&mut self, of: usize, waits: bool, loses: bool) {
        let lock = &self.locks[of];
        let guard = match waits {
            true => lock.try_write_for(ms(10)),
            false => lock.try_write(),
        };
        match guard {
            Ok(Some(guard)) => {
                assert!(self.held.is_empty(), "beside others");
                let token = guard.fencing_token();
                assert!(Some(token) > self.written && Some(token) > self.read);
                self.written = Some(token);
                self.held.push(Guard::Writer(guard));
            }
            Ok(None) => assert!(loses || !self.held.is_empty(), "refused without a holder"),
            Err(error) => assert!(loses, "{error}"),
        }
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

    /// Returns whether Redis has exactly the holders of the model, and nobody waits.
    fn agrees(&mut self) -> bool {
        let mut ids: Vec<String> = self
            .held
            .iter()
            .map(|guard| guard.id().to_string())
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
        (value, readers) == expected
    }
}

fn random_calls_keep_to_the_model() {
    let number = |key| Some(env::var(key).ok()?.parse::<usize>().unwrap());
    let steps = number("LEASEHOLD_STEPS").unwrap_or(STEPS) / THREADS;
    let seed = number("LEASEHOLD_SEED").map_or_else(rand::random, |seed| seed as u64);
    println!("LEASEHOLD_SEED={seed} repeats this run");
    let server = Server::start();
    thread::scope(|scope| {
        for n in 0..THREADS {
            let mut session = Session::start(&server, n, seed);
            scope.spawn(move || {
                for _ in 0..steps {
                    session.step();
                }
            });
        }
    });
}
