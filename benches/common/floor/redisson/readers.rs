//! `RedissonReadLock` and `RedissonWriteLock`: a hash of holders, and a key for each hold of a
//! reader. While others read, a reader always acquires the lock, even if a writer waits.

use std::time::Duration;

use redis::{Connection, Script};
use uuid::Uuid;

use super::super::pair::{connect, fresh_id};
use super::channel::Channel;

/// KEYS: lock, channel, prefix of the caller's timeout keys, prefix of all timeout keys. ARGV: id,
/// lease in ms. Answers nil if the lock was acquired, otherwise the ms until its key expires.
const READ: &str = "
local mode = redis.call('HGET', KEYS[1], 'mode')
if not mode then
  redis.call('HSET', KEYS[1], 'mode', 'read')
  redis.call('HSET', KEYS[1], ARGV[1], 1)
  redis.call('SET', KEYS[3] .. ':1', 1)
  redis.call('PEXPIRE', KEYS[3] .. ':1', ARGV[2])
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return nil
end
if mode == 'read' or redis.call('HEXISTS', KEYS[1], ARGV[1] .. ':write') == 1 then
  local hold = KEYS[3] .. ':' .. redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
  redis.call('SET', hold, 1)
  redis.call('PEXPIRE', hold, ARGV[2])
  local left = redis.call('PTTL', KEYS[1])
  redis.call('PEXPIRE', KEYS[1], math.max(left, tonumber(ARGV[2])))
  return nil
end
return redis.call('PTTL', KEYS[1])
";

/// KEYS: as above, then the latch, from which a repeated call reads the answer of the first. ARGV:
/// id, lease, ttl of the latch, both in ms. Answers 1 if the lock is free now, 0 if others still
/// hold it, nil if the caller did not hold it.
const STOP_READING: &str = "
local answered = redis.call('GET', KEYS[5])
if answered then return tonumber(answered) end
local function answer(free)
  redis.call('SET', KEYS[5], free, 'PX', ARGV[3])
  return free
end
local mode = redis.call('HGET', KEYS[1], 'mode')
if not mode then
  redis.call('PUBLISH', KEYS[2], 0)
  answer(1)
  return nil
end
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return nil end
local holds = redis.call('HINCRBY', KEYS[1], ARGV[1], -1)
if holds == 0 then redis.call('HDEL', KEYS[1], ARGV[1]) end
redis.call('DEL', KEYS[3] .. ':' .. holds + 1)
if redis.call('HLEN', KEYS[1]) > 1 then
  local left = -3
  for _, id in ipairs(redis.call('HKEYS', KEYS[1])) do
    for hold = tonumber(redis.call('HGET', KEYS[1], id)) or 0, 1, -1 do
      local timeout = KEYS[4] .. ':' .. id .. ':rwlock_timeout:' .. hold
      left = math.max(left, redis.call('PTTL', timeout))
    end
  end
  if left > 0 then
    redis.call('PEXPIRE', KEYS[1], left)
    return answer(0)
  end
  if mode == 'write' then return answer(0) end
end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', KEYS[2], 0)
return answer(1)
";

/// KEYS, ARGV and answers as for [`READ`]. The original lets a writer acquire the lock again. Here
/// that is an error, since no candidate does it.
const WRITE: &str = "
local mode = redis.call('HGET', KEYS[1], 'mode')
if not mode then
  redis.call('HSET', KEYS[1], 'mode', 'write')
  redis.call('HSET', KEYS[1], ARGV[1], 1)
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return nil
end
if mode == 'write' and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
  return redis.error_reply('ERR the caller writes already')
end
return redis.call('PTTL', KEYS[1])
";

/// KEYS and ARGV as for [`STOP_READING`]. Answers 1, or nil if the caller did not hold the lock.
const STOP_WRITING: &str = "
local answered = redis.call('GET', KEYS[5])
if answered then return tonumber(answered) end
if redis.call('HGET', KEYS[1], 'mode') ~= 'write' then return nil end
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return nil end
redis.call('HINCRBY', KEYS[1], ARGV[1], -1)
redis.call('HDEL', KEYS[1], ARGV[1])
if redis.call('HLEN', KEYS[1]) == 1 then
  redis.call('DEL', KEYS[1])
  redis.call('PUBLISH', KEYS[2], 1)
else
  redis.call('HSET', KEYS[1], 'mode', 'read')
end
redis.call('SET', KEYS[5], 1, 'PX', ARGV[3])
return 1
";

/// The original's lease of a lock whose holder sets none.
pub(super) const LEASE_MS: u64 = 30_000;

/// The time of all attempts of a release: four, each with a timeout of 3 s and a pause of 1 to 2 s,
/// counted as 1.5 s. The latch must last until the last attempt.
pub(super) const LATCH_MS: u64 = 18_000;

/// A read-write lock for one thread.
pub struct RedissonReaders {
    connection: Connection,
    /// The scripts that acquire and release as a reader.
    shared: [Script; 2],
    /// The same as a writer.
    exclusive: [Script; 2],
    id: String,
    keys: [String; 4],
    /// The prefix of the latches: each release has its own.
    latches: String,
    released: Channel,
    /// Whether the reply to the deletion of the last latch is still unread.
    is_deleting: bool,
}

impl RedissonReaders {
    pub fn new(url: &str, name: &str) -> Self {
        let (id, tag) = (fresh_id(), format!("{{{name}}}"));
        let channel = format!("redisson_rwlock:{tag}");
        let timeouts = format!("{tag}:{id}:rwlock_timeout");
        Self {
            connection: connect(url),
            shared: [READ, STOP_READING].map(Script::new),
            exclusive: [WRITE, STOP_WRITING].map(Script::new),
            id,
            latches: format!("redisson_unlock_latch:{tag}"),
            keys: [name.to_owned(), channel.clone(), timeouts, tag],
            released: Channel::new(url, channel),
            is_deleting: false,
        }
    }

    /// Runs a section as a writer if `writes` is true, otherwise as a reader.
    pub fn run(&mut self, writes: bool, section: impl FnOnce()) {
        let ([acquire, release], id) = if writes {
            (&self.exclusive, format!("{}:write", self.id))
        } else {
            (&self.shared, self.id.clone())
        };
        if self.is_deleting {
            self.connection.recv_response().unwrap();
        }
        self.released.forget();
        let mut attempt = acquire.key(&self.keys);
        attempt.arg(&id).arg(LEASE_MS);
        while let Some(left) = attempt.invoke::<Option<i64>>(&mut self.connection).unwrap() {
            let left = u64::try_from(left).ok();
            self.released.wait(left.map(Duration::from_millis));
        }
        section();
        let latch = format!("{}:{}", self.latches, Uuid::new_v4());
        let mut leave = release.key(&self.keys);
        leave.key(&latch).arg(&id).arg(LEASE_MS).arg(LATCH_MS);
        let answer: Option<u32> = leave.invoke(&mut self.connection).unwrap();
        assert!(answer.is_some(), "the lock was lost before its release");
        // As in the original, the caller does not wait for this reply.
        let delete = redis::cmd("DEL").arg(&latch).get_packed_command();
        self.connection.send_packed_command(&delete).unwrap();
        self.is_deleting = true;
    }
}
