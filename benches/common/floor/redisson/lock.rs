//! `RedissonLock` and `RedissonFairLock`: a hash of the holder. A release of the former wakes one
//! waiter in each process. The latter keeps a queue, and wakes the process of its first entry.

use std::time::Duration;

use redis::{Connection, Script};
use uuid::Uuid;

use super::super::pair::{connect, fresh_id};
use super::channel::Channel;
use super::permits::unix_ms;
use super::readers::{LATCH_MS, LEASE_MS};

/// KEYS: lock. ARGV: lease in ms, id. Answers nil if the lock was acquired, otherwise the ms until
/// its key expires.
const LOCK: &str = "
if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then
  redis.call('HINCRBY', KEYS[1], ARGV[2], 1)
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
  return nil
end
return redis.call('PTTL', KEYS[1])
";

/// KEYS: lock, channel, latch, from which a repeated call reads the answer of the first. ARGV: id,
/// ttl of the latch in ms. Answers nil if the caller did not hold the lock.
const UNLOCK: &str = "
local answered = redis.call('GET', KEYS[3])
if answered then return tonumber(answered) end
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return nil end
redis.call('HINCRBY', KEYS[1], ARGV[1], -1)
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', KEYS[2], 0)
redis.call('SET', KEYS[3], 1, 'PX', ARGV[2])
return 1
";

/// Removes the waiters at the front of the queue whose time is over.
const REMOVE_STALE: &str = "
local function remove_stale(now)
  while true do
    local first = redis.call('LINDEX', KEYS[2], 0)
    if not first then return end
    local ends = redis.call('ZSCORE', KEYS[3], first)
    if not ends or tonumber(ends) > tonumber(now) then return end
    redis.call('ZREM', KEYS[3], first)
    redis.call('LPOP', KEYS[2])
  end
end
";

/// KEYS: lock, queue, ends of the waits. ARGV: lease in ms, id, the time of a waiter in ms, now by
/// the client's clock. Answers as [`LOCK`] does, but with the end of the waiter before.
const LOCK_FAIR: &str = "
remove_stale(ARGV[4])
if redis.call('EXISTS', KEYS[1]) == 0 and (redis.call('EXISTS', KEYS[2]) == 0
  or redis.call('LINDEX', KEYS[2], 0) == ARGV[2]) then
  redis.call('LPOP', KEYS[2])
  redis.call('ZREM', KEYS[3], ARGV[2])
  for _, id in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do
    redis.call('ZINCRBY', KEYS[3], -tonumber(ARGV[3]), id)
  end
  redis.call('HSET', KEYS[1], ARGV[2], 1)
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
  return nil
end
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then
  return redis.error_reply('ERR the caller holds the lock already')
end
if redis.call('ZSCORE', KEYS[3], ARGV[2]) then
  return math.max(0, redis.call('PTTL', KEYS[1]))
end
local last, left = redis.call('LINDEX', KEYS[2], -1), nil
if last and redis.call('ZSCORE', KEYS[3], last) then
  left = tonumber(redis.call('ZSCORE', KEYS[3], last)) - tonumber(ARGV[4])
else
  left = redis.call('PTTL', KEYS[1])
end
if redis.call('ZADD', KEYS[3], left + tonumber(ARGV[3]) + tonumber(ARGV[4]), ARGV[2]) == 1 then
  redis.call('RPUSH', KEYS[2], ARGV[2])
end
return left
";

/// KEYS: lock, queue, ends of the waits, prefix of the channels, latch. ARGV: id, ttl of the latch
/// in ms, now.
const UNLOCK_FAIR: &str = "
local answered = redis.call('GET', KEYS[5])
if answered then return tonumber(answered) end
remove_stale(ARGV[3])
if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return nil
end
redis.call('HINCRBY', KEYS[1], ARGV[1], -1)
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[5], 1, 'PX', ARGV[2])
local first = redis.call('LINDEX', KEYS[2], 0)
if first then redis.call('PUBLISH', KEYS[4] .. ':' .. first, 0) end
return 1
";

/// The original's time of a waiter in the queue of a fair lock, in ms.
const WAITS_MS: u64 = 300_000;

/// A lock for one thread.
pub struct RedissonLock {
    connection: Connection,
    lock: Script,
    unlock: Script,
    id: String,
    lock_keys: Vec<String>,
    /// Without the latch: each release has its own.
    unlock_keys: Vec<String>,
    is_fair: bool,
    released: Channel,
    /// Whether the reply to the deletion of the last latch is still unread.
    is_deleting: bool,
}

impl RedissonLock {
    /// The channel that all threads of a process share.
    pub fn channel(url: &str, name: &str) -> Channel {
        Channel::new(url, format!("redisson_lock__channel:{{{name}}}"))
    }

    pub fn new(url: &str, name: &str, released: Channel) -> Self {
        let channel = format!("redisson_lock__channel:{{{name}}}");
        Self {
            connection: connect(url),
            lock: Script::new(LOCK),
            unlock: Script::new(UNLOCK),
            id: fresh_id(),
            lock_keys: vec![name.to_owned()],
            unlock_keys: vec![name.to_owned(), channel],
            is_fair: false,
            released,
            is_deleting: false,
        }
    }

    pub fn fair(url: &str, name: &str) -> Self {
        let key = |what: &str| format!("redisson_lock_{what}:{{{name}}}");
        let (queue, ends, channel) = (key("queue"), key("timeout"), key("_channel"));
        let lock_keys = vec![name.to_owned(), queue, ends];
        let id = fresh_id();
        let released = Channel::new(url, format!("{channel}:{id}"));
        Self {
            lock: Script::new(&format!("{REMOVE_STALE}{LOCK_FAIR}")),
            unlock: Script::new(&format!("{REMOVE_STALE}{UNLOCK_FAIR}")),
            unlock_keys: lock_keys.iter().cloned().chain([channel]).collect(),
            lock_keys,
            id,
            is_fair: true,
            ..Self::new(url, name, released)
        }
    }

    pub fn run(&mut self, section: impl FnOnce()) {
        if self.is_deleting {
            self.connection.recv_response().unwrap();
        }
        self.released.forget();
        while let Some(left) = self.attempt() {
            let left = u64::try_from(left).ok();
            self.released.wait(left.map(Duration::from_millis));
        }
        section();
        let latch = format!("redisson_unlock_latch:{}", Uuid::new_v4());
        let mut leave = self.unlock.key(&self.unlock_keys);
        leave.key(&latch).arg(&self.id).arg(LATCH_MS);
        if self.is_fair {
            leave.arg(unix_ms());
        }
        let answer: Option<u32> = leave.invoke(&mut self.connection).unwrap();
        assert_eq!(answer, Some(1), "the lock was lost before its release");
        // As in the original, the caller does not wait for this reply.
        let delete = redis::cmd("DEL").arg(&latch).get_packed_command();
        self.connection.send_packed_command(&delete).unwrap();
        self.is_deleting = true;
    }

    /// Returns `None` if the lock was acquired, otherwise how long the caller may wait at most.
    fn attempt(&mut self) -> Option<i64> {
        let mut attempt = self.lock.key(&self.lock_keys);
        attempt.arg(LEASE_MS).arg(&self.id);
        if self.is_fair {
            attempt.arg(WAITS_MS).arg(unix_ms());
        }
        attempt.invoke(&mut self.connection).unwrap()
    }
}
