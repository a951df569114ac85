//! `RedissonPermitExpirableSemaphore`: the number of permits is set before the first use, and each
//! permit ends by its holder's clock.

use std::time::{Duration, SystemTime};

use redis::{Connection, Script};

use super::super::pair::{TTL_MS, connect, fresh_id};
use super::channel::Channel;

/// Returns the permits of dead holders. KEYS: free permits, ends of those that are out, channel;
/// ARGV: now by the client's clock, …
const TAKE_BACK: &str = "
local function take_back(most)
  local ended = redis.call('ZRANGEBYSCORE', KEYS[2], 0, ARGV[1], 'LIMIT', 0, most)
  if #ended == 0 then return end
  redis.call('ZREM', KEYS[2], unpack(ended))
  local free = redis.call('INCRBY', KEYS[1], #ended)
  if free > 0 then redis.call('PUBLISH', KEYS[3], free) end
end
";

/// ARGV: now, the permits' end, the end that stands for none, an id for each permit. Answers `OK`
/// if the permits were acquired. Otherwise answers `:` with the next end, or nil.
const ACQUIRE: &str = "
local wanted = #ARGV - 3
take_back(wanted)
local free = redis.call('GET', KEYS[1])
if free and tonumber(free) >= wanted then
  redis.call('DECRBY', KEYS[1], wanted)
  for n = 4, #ARGV do redis.call('ZADD', KEYS[2], ARGV[2], ARGV[n]) end
  local left = redis.call('PTTL', KEYS[1])
  if left > 0 then redis.call('PEXPIRE', KEYS[2], left) end
  return 'OK'
end
local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
if first[1] and first[2] ~= ARGV[3] then return ':' .. first[2] end
return nil
";

/// The release of a single permit. ARGV: now, its id.
const RELEASE_ONE: &str = "
local ends = redis.call('ZSCORE', KEYS[2], ARGV[2])
if redis.call('ZREM', KEYS[2], ARGV[2]) ~= 1 then return 0 end
redis.call('PUBLISH', KEYS[3], redis.call('INCRBY', KEYS[1], 1))
return tonumber(ends) > tonumber(ARGV[1]) and 1 or 0
";

/// The release of several, or of none if one of them has ended. ARGV: now, their ids.
const RELEASE_ALL: &str = "
for n = 2, #ARGV do
  local ends = redis.call('ZSCORE', KEYS[2], ARGV[n])
  if not ends or tonumber(ends) <= tonumber(ARGV[1]) then return 0 end
end
take_back(-1)
local removed = redis.call('ZREM', KEYS[2], unpack(ARGV, 2))
redis.call('INCRBY', KEYS[1], removed)
redis.call('PUBLISH', KEYS[3], removed)
return removed
";

/// The original's end of a permit without a lease, in ms.
const NEVER: u64 = 922_337_203_685_477;

/// Permits of one semaphore, the same number each time.
pub struct RedissonPermits {
    connection: Connection,
    acquire: Script,
    release: Script,
    keys: [String; 3],
    wanted: u32,
    released: Channel,
}

impl RedissonPermits {
    pub fn new(url: &str, name: &str, permits: u32, wanted: u32) -> Self {
        let mut connection = connect(url);
        let mut set = redis::cmd("SET");
        let set = set.arg(name).arg(permits).arg("NX");
        set.exec(&mut connection).unwrap();
        let channel = format!("redisson_sc:{{{name}}}");
        Self {
            connection,
            acquire: Script::new(&format!("{TAKE_BACK}{ACQUIRE}")),
            release: match wanted {
                1 => Script::new(RELEASE_ONE),
                _ => Script::new(&format!("{TAKE_BACK}{RELEASE_ALL}")),
            },
            keys: [
                name.to_owned(),
                format!("{{{name}}}:timeout"),
                channel.clone(),
            ],
            wanted,
            released: Channel::new(url, channel),
        }
    }

    /// Runs a section with the permits.
    pub fn run(&mut self, section: impl FnOnce()) {
        self.released.forget();
        let ids = loop {
            let ids: Vec<String> = (0..self.wanted).map(|_| fresh_id()).collect();
            let now = unix_ms();
            let mut attempt = self.acquire.key(&self.keys);
            attempt.arg(now).arg(now + TTL_MS).arg(NEVER).arg(&ids);
            let answer: Option<String> = attempt.invoke(&mut self.connection).unwrap();
            match answer.as_deref() {
                Some("OK") => break ids,
                Some(end) => {
                    let end: u64 = end[1..].parse().expect("the end of a permit in ms");
                    let left = Duration::from_millis(end.saturating_sub(unix_ms()));
                    self.released.wait(Some(left));
                }
                None => self.released.wait(None),
            }
        };
        section();
        let mut leave = self.release.key(&self.keys);
        let left: Result<u32, _> = leave.arg(unix_ms()).arg(&ids).invoke(&mut self.connection);
        assert_eq!(left, Ok(self.wanted), "the permits were lost");
    }
}

pub(super) fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(now.expect("a year after 1970").as_millis()).expect("a clock of this age")
}
