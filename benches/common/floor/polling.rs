//! A semaphore and a read-write lock by hand, as programs without a queue keep them in Redis: each
//! attempt is a script, and a refused caller asks again after a pause.

use std::thread;
use std::time::Duration;

use redis::{Connection, Script};

use super::pair::{TTL_MS, connect, fresh_id};

/// The pause after a refusal.
pub const POLLS_EVERY: Duration = Duration::from_millis(1);

/// KEYS: holders; ARGV: holder id, ttl in ms, permits.
const ACQUIRE: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[3]) then return 0 end
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
";

const RELEASE: &str = "return redis.call('ZREM', KEYS[1], ARGV[1])";

/// KEYS: readers, writer; ARGV: holder id, ttl in ms.
const READ: &str = "
if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
";

/// The same. A writer that waits for readers keeps further readers out.
const WRITE: &str = "
local writer = redis.call('GET', KEYS[2])
if writer and writer ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
return redis.call('ZCARD', KEYS[1]) == 0 and 1 or 0
";

const STOP_WRITING: &str = "
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[2])
";

/// A semaphore or a read-write lock for one thread.
pub struct Poller {
    connection: Connection,
    /// The number of permits of a semaphore.
    permits: Option<u32>,
    /// Acquires and releases.
    shared: [Script; 2],
    exclusive: [Script; 2],
}

impl Poller {
    const KEYS: [&str; 2] = ["{by-hand}:holders", "{by-hand}:writer"];

    pub fn semaphore(url: &str, permits: u32) -> Self {
        Self::new(url, ACQUIRE, Some(permits))
    }

    pub fn rw_lock(url: &str) -> Self {
        Self::new(url, READ, None)
    }

    fn new(url: &str, acquire: &str, permits: Option<u32>) -> Self {
        Self {
            connection: connect(url),
            permits,
            shared: [acquire, RELEASE].map(Script::new),
            exclusive: [WRITE, STOP_WRITING].map(Script::new),
        }
    }

    /// Runs a section with a permit or as a reader, or else as a writer.
    pub fn run(&mut self, writes: bool, section: impl FnOnce()) {
        let [acquire, release] = if writes {
            &self.exclusive
        } else {
            &self.shared
        };
        let id = fresh_id();
        let mut attempt = acquire.key(&Self::KEYS);
        attempt.arg(&id).arg(TTL_MS).arg(self.permits);
        while attempt.invoke::<u32>(&mut self.connection).unwrap() == 0 {
            thread::sleep(POLLS_EVERY);
        }
        section();
        let mut leave = release.key(&Self::KEYS);
        let left: u32 = leave.arg(&id).invoke(&mut self.connection).unwrap();
        assert_eq!(left, 1, "the lease was lost before its release");
    }
}
