//! Permits by hand: the scripts that the client under test sends, and the simplest queue that
//! grants first come, first served and detects no dead holder or waiter.

use crossbeam_channel::Receiver;
use redis::{Connection, Script};
use support::scripts;
use uuid::Uuid;

use super::mutex::subscribe;
use super::own_queue::OwnQueue;
use super::pair::{connect, fresh_id};
use crate::ping_pong::Side;

/// The scripts by which a `Semaphore` of the client under test acquires and releases.
const SCRIPTS: [&str; 2] = [scripts::PERMITS.enter, scripts::PERMITS.release];

/// A semaphore, acquired and released by the client's own scripts over one connection.
pub struct PermitHand {
    queue: OwnQueue,
    want: String,
}

impl PermitHand {
    pub fn new(url: &str, name: &str, permits: u32) -> Self {
        let keys = [
            "permits",
            "permits-fence",
            "permits-queue",
            "permits-places",
        ];
        let keys = keys.map(|what| format!("leasehold:{what}:{{lock:{name}}}"));
        Self {
            queue: OwnQueue::new(url, SCRIPTS, keys.to_vec()),
            want: format!("1/{permits}"),
        }
    }

    pub fn acquire(&mut self) -> String {
        let id = format!("1 {}", fresh_id());
        self.queue.acquire(&id, &self.want);
        id
    }

    pub fn pair(&mut self) {
        let id = self.acquire();
        self.queue.release(&id, "leasehold:grants");
    }
}

/// KEYS: count, queue; ARGV: permits, inbox.
const ENTER: &str = "
local out = tonumber(redis.call('GET', KEYS[1]) or 0)
if out < tonumber(ARGV[1]) and redis.call('LLEN', KEYS[2]) == 0 then
  return redis.call('INCR', KEYS[1])
end
redis.call('RPUSH', KEYS[2], ARGV[2])
return 0
";

/// KEYS: count, queue.
const LEAVE: &str = "
local next = redis.call('LPOP', KEYS[2])
if next then return redis.call('PUBLISH', next, 'granted') end
return redis.call('DECR', KEYS[1])
";

/// The simplest queue: a counter, and a list of inboxes.
pub struct SimpleQueue {
    connection: Connection,
    enter: Script,
    leave: Script,
    permits: u32,
    inbox: String,
    granted: Receiver<Vec<u8>>,
}

impl SimpleQueue {
    const KEYS: [&str; 2] = ["{permits-by-hand}:count", "{permits-by-hand}:queue"];

    pub fn new(url: &str, permits: u32) -> Self {
        let inbox = format!("bench:{}", Uuid::new_v4());
        Self {
            connection: connect(url),
            enter: Script::new(ENTER),
            leave: Script::new(LEAVE),
            permits,
            granted: subscribe(url, inbox.clone()),
            inbox,
        }
    }
}

impl Side for SimpleQueue {
    fn take(&mut self) {
        let mut call = self.enter.prepare_invoke();
        call.key(&Self::KEYS).arg(self.permits).arg(&self.inbox);
        let out: u32 = call.invoke(&mut self.connection).unwrap();
        if out == 0 {
            self.granted.recv().expect("the subscriber runs to the end");
        }
    }

    fn release(&mut self) {
        let mut call = self.leave.prepare_invoke();
        let () = call.key(&Self::KEYS).invoke(&mut self.connection).unwrap();
    }
}
