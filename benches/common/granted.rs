//! Queue and grant by hand: whoever finds the lock taken gets a place in a list, and the release makes the first of
//! them the owner and tells it, through a subscriber thread that all waiters share. Nobody sees to those who died.

use crossbeam_channel::Receiver;
use redis::{Connection, Script};
use uuid::Uuid;

use super::between::Side;
use super::hand::{TTL_MS, connect};
use super::woken::subscribe;

/// The token is drawn as `acquire.lua` draws it, by owner and grantee alike.
const DRAW: &str = "
local function draw()
  local last = redis.call('GET', KEYS[3])
  local time = redis.call('TIME')
  local token = time[1] * 1000000 + time[2]
  if last and tonumber(last) >= token then token = tonumber(last) + 1 end
  redis.call('SET', KEYS[3], token, 'EX', 86400)
  return token
end
";

/// KEYS: lock, queue, fence; ARGV: holder id, ttl, inbox.
const ENTER: &str = "
if redis.call('LLEN', KEYS[2]) == 0 and redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  return draw()
end
redis.call('RPUSH', KEYS[2], ARGV[3] .. ' ' .. ARGV[1])
return 0
";

/// KEYS: lock, queue, fence; ARGV: holder id, ttl.
const LEAVE: &str = "
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local next = redis.call('LPOP', KEYS[2])
if not next then return redis.call('DEL', KEYS[1]) end
local inbox, id = string.match(next, '^(%S+) (%S+)$')
redis.call('SET', KEYS[1], id, 'PX', ARGV[2])
redis.call('PUBLISH', inbox, id .. ' ' .. string.format('%.0f', draw()))
return 1
";

pub(crate) struct Granted {
    connection: Connection,
    enter: Script,
    leave: Script,
    keys: [String; 3],
    inbox: String,
    messages: Receiver<Vec<u8>>,
    id: Option<String>,
}

impl Granted {
    pub(crate) fn new(url: &str) -> Self {
        let lock = "lock:granted-by-hand";
        let inbox = format!("bench:{}", Uuid::new_v4());
        Self {
            connection: connect(url),
            enter: Script::new(&format!("{DRAW}{ENTER}")),
            leave: Script::new(&format!("{DRAW}{LEAVE}")),
            keys: [
                lock.to_owned(),
                format!("leasehold:queue:{{{lock}}}"),
                format!("leasehold:fence:{{{lock}}}"),
            ],
            messages: subscribe(url, inbox.clone()),
            inbox,
            id: None,
        }
    }
}

impl Side for Granted {
    fn take(&mut self) {
        let id = format!("bench/{}:{}", std::process::id(), Uuid::new_v4());
        let mut call = self.enter.prepare_invoke();
        call.key(&self.keys).arg(&id).arg(TTL_MS).arg(&self.inbox);
        let token: u64 = call.invoke(&mut self.connection).unwrap();
        if token == 0 {
            let grant = self.messages.recv().expect("the subscriber lives on");
            assert!(grant.starts_with(id.as_bytes()), "nobody else's");
        }
        self.id = Some(id);
    }

    fn let_go(&mut self) {
        let id = self.id.take().expect("it was taken");
        let mut call = self.leave.prepare_invoke();
        call.key(&self.keys).arg(&id).arg(TTL_MS);
        let left: i64 = call.invoke(&mut self.connection).unwrap();
        assert_eq!(left, 1, "it was ours");
    }
}
