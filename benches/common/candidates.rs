//! The candidates: the locks of this crate, hand-written pollers, a hand-written queue, and the
//! locks of redis-py and Redisson by hand.

use std::process;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use leasehold::{Client, Error, MutexGuard, RwLock, Semaphore};

use crate::fleet::{Locker, Lockers, Section};
use crate::floor::fair::Granted;
use crate::floor::line::Line;
use crate::floor::pair::Bare;
use crate::floor::polling::{POLLS_EVERY, Poller};
use crate::floor::redisson::{RedissonLock, RedissonPermits, RedissonReaders};
use crate::ping_pong::Side;

/// The name that all of them lock.
pub const NAME: &str = "contended";

/// For how long the mutex lingers that is a candidate of its own.
const LINGERS: Duration = Duration::from_micros(200);

/// In place of a token, marks the sections that write under a read-write lock.
pub const WRITE: u64 = 1;
pub const READ: u64 = 0;

/// Opens a candidate. The threads of a process share one client; each poller has its own
/// connection.
pub fn open(kind: &str, url: &str) -> Lockers {
    match kind {
        "mutex" | "linger" => {
            let mutex = Client::open(url).unwrap().mutex(NAME);
            let mutex = match kind {
                "linger" => mutex.linger(LINGERS),
                _ => mutex,
            };
            Box::new(move || {
                let mutex = mutex.clone();
                Box::new(move |section| ours(mutex.lock().unwrap(), section))
            })
        }
        "fair" => {
            let mutex = Client::open(url).unwrap().fair_mutex(NAME);
            Box::new(move || {
                let mutex = mutex.clone();
                Box::new(move |section| ours(mutex.lock().unwrap(), section))
            })
        }
        "poller" => polling(url, Bare::new, POLLS_EVERY),
        "spinner" => polling(url, Bare::new, Duration::ZERO),
        // redis-py's lock: its defaults are no expiry, and this pause.
        "redis-py" => polling(url, Bare::endless, Duration::from_millis(100)),
        "redis-py-tuned" => polling(url, Bare::new, POLLS_EVERY),
        "redisson" => {
            let (url, released) = (url.to_owned(), RedissonLock::channel(url, NAME));
            Box::new(move || redisson(RedissonLock::new(&url, NAME, released.clone())))
        }
        "redisson-fair" => {
            let url = url.to_owned();
            Box::new(move || redisson(RedissonLock::fair(&url, NAME)))
        }
        "line" => {
            let line = Arc::new(Line::default());
            Box::new(move || {
                let line = Arc::clone(&line);
                Box::new(move |section| {
                    line.run(|| section.run(0));
                    Ok(())
                })
            })
        }
        "granted" => granted(url, Granted::new),
        "granted-directly" => granted(url, Granted::on_waiting_thread),
        _ => unreachable!("unknown kind {kind}"),
    }
}

/// The bare commands. A refused caller asks again after the pause.
fn polling(url: &str, open: fn(&str, &str) -> Bare, pause: Duration) -> Lockers {
    let url = url.to_owned();
    Box::new(move || {
        let mut bare = open(&url, NAME);
        Box::new(move |section| {
            let id = loop {
                match bare.acquire() {
                    Some(id) => break id,
                    None if pause.is_zero() => {}
                    None => thread::sleep(pause),
                }
            };
            section.run(0);
            bare.release(&id);
            Ok(())
        })
    })
}

fn redisson(mut lock: RedissonLock) -> Locker {
    Box::new(move |section| {
        lock.run(|| section.run(0));
        Ok(())
    })
}

fn granted(url: &str, new: fn(&str) -> Granted) -> Lockers {
    let url = url.to_owned();
    Box::new(move || {
        let mut granted = new(&url);
        Box::new(move |section| {
            granted.take();
            section.run(0);
            granted.release();
            Ok(())
        })
    })
}

/// Holds permits; `mark` stands in place of a token.
pub fn permits(semaphore: Semaphore, mark: u64) -> Lockers {
    Box::new(move || {
        let semaphore = semaphore.clone();
        Box::new(move |section: &Section| {
            let permit = semaphore.acquire().map_err(|error| error.to_string())?;
            section.run(mark);
            released(permit.release())
        })
    })
}

/// Holds one of this many permits of a semaphore by hand.
pub fn polled_permits(url: &str, permits: u32) -> Lockers {
    let url = url.to_owned();
    Box::new(move || {
        let mut poller = Poller::semaphore(&url, permits);
        Box::new(move |section: &Section| {
            poller.run(false, || section.run(0));
            Ok(())
        })
    })
}

/// Holds `wanted` of this many permits of Redisson's semaphore by hand; `mark` stands in place of a
/// token.
pub fn redisson_permits(url: &str, permits: u32, wanted: u32, mark: u64) -> Lockers {
    let url = url.to_owned();
    Box::new(move || {
        let mut redisson = RedissonPermits::new(&url, NAME, permits, wanted);
        Box::new(move |section: &Section| {
            redisson.run(|| section.run(mark));
            Ok(())
        })
    })
}

/// Returns a counter of a thread's sections, from whose numbers it decides whether to write. Each
/// process starts at another number, so that they do not all write at the same time.
pub fn numbered() -> impl FnMut() -> u64 {
    let mut n = u64::from(process::id()) * 7;
    move || {
        n += 1;
        n
    }
}

/// Writes in each section for whose number `writes` returns true, and reads in all others.
pub fn readers(lock: RwLock, writes: fn(u64) -> bool) -> Lockers {
    Box::new(move || {
        let (lock, mut number) = (lock.clone(), numbered());
        Box::new(move |section: &Section| {
            if writes(number()) {
                let guard = lock.write().map_err(|error| error.to_string())?;
                section.run(WRITE);
                return released(guard.unlock());
            }
            let guard = lock.read().map_err(|error| error.to_string())?;
            section.run(READ);
            released(guard.unlock())
        })
    })
}

/// The same with a read-write lock by hand.
pub fn polling_readers(url: &str, writes: fn(u64) -> bool) -> Lockers {
    let url = url.to_owned();
    Box::new(move || {
        let (mut poller, mut number) = (Poller::rw_lock(&url), numbered());
        Box::new(move |section: &Section| {
            let writes = writes(number());
            let mark = if writes { WRITE } else { READ };
            poller.run(writes, || section.run(mark));
            Ok(())
        })
    })
}

/// The same with Redisson's read-write lock by hand.
pub fn redisson_readers(url: &str, writes: fn(u64) -> bool) -> Lockers {
    let url = url.to_owned();
    Box::new(move || {
        let (mut redisson, mut number) = (RedissonReaders::new(&url, NAME), numbered());
        Box::new(move |section: &Section| {
            let writes = writes(number());
            let mark = if writes { WRITE } else { READ };
            redisson.run(writes, || section.run(mark));
            Ok(())
        })
    })
}

fn ours(guard: MutexGuard, section: &Section) -> Result<(), String> {
    section.run(guard.fencing_token().value());
    released(guard.unlock())
}

pub fn released(answer: Result<(), Error>) -> Result<(), String> {
    answer.map_err(|error| error.to_string())
}
