//! A hand-written queue and grant. A process that finds the lock held joins a list. The release
//! makes the first entry the owner and publishes the grant to its inbox. The waiter receives it
//! from a subscriber thread, over a channel, or reads the subscription itself.
//!
//! The scripts are minimal ones, which do not detect dead waiters, or those of the client under
//! test, which do.

use redis::{Connection, Script, Value, cmd};
use support::scripts;
use uuid::Uuid;

use super::mutex::subscribe;
use super::pair::{TTL_MS, channel, connect, fresh_id, queue_keys};
use crate::ping_pong::Side;

/// Draws the token like `acquire.lua`, for the first owner and for a granted one.
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
if redis.call('LLEN', KEYS[2]) == 0
  and redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
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

/// One name, locked by scripts that grant the lock to the first waiter of a queue.
pub struct Granted {
    connection: Connection,
    enter: Script,
    leave: Script,
    keys: Vec<String>,
    /// The arguments of `enter` after the id and the ttl, and those of `leave` after the id.
    arguments: [Vec<String>; 2],
    receive: Receive,
    id: Option<String>,
}

/// Blocks until a message arrives, and returns it.
type Receive = Box<dyn FnMut() -> Vec<u8> + Send>;

fn over_subscriber_thread(url: &str, inbox: &str) -> Receive {
    let messages = subscribe(url, inbox.to_owned());
    Box::new(move || messages.recv().expect("the subscriber runs until the end"))
}

/// The waiter reads the subscription itself, so that a grant wakes no other thread. No other waiter
/// uses this inbox, so each message is a grant to this one.
fn on_waiting_thread(url: &str, inbox: &str) -> Receive {
    let mut connection = connect(url);
    connection.set_read_timeout(None).unwrap();
    let subscribe = cmd("SUBSCRIBE").arg(inbox).get_packed_command();
    connection.send_packed_command(&subscribe).unwrap();
    connection.recv_response().unwrap();
    Box::new(move || match connection.recv_response().unwrap() {
        Value::Array(items) => match items.into_iter().next_back() {
            Some(Value::BulkString(payload)) => payload,
            other => unreachable!("no payload: {other:?}"),
        },
        other => unreachable!("no message: {other:?}"),
    })
}

impl Granted {
    pub fn new(url: &str) -> Self {
        Self::with_subscription(url, over_subscriber_thread)
    }

    pub fn on_waiting_thread(url: &str) -> Self {
        Self::with_subscription(url, on_waiting_thread)
    }

    fn with_subscription(url: &str, how: fn(url: &str, inbox: &str) -> Receive) -> Self {
        let key = |what: &str| format!("leasehold:{what}:{{lock:granted-by-hand}}");
        let inbox = format!("bench:{}", Uuid::new_v4());
        Self {
            connection: connect(url),
            enter: Script::new(&format!("{DRAW}{ENTER}")),
            leave: Script::new(&format!("{DRAW}{LEAVE}")),
            keys: vec!["lock:granted-by-hand".into(), key("queue"), key("fence")],
            receive: how(url, &inbox),
            arguments: [vec![inbox], vec![TTL_MS.to_string()]],
            id: None,
        }
    }

    /// Uses the scripts that the client under test sends.
    pub fn with_client_scripts(url: &str) -> Self {
        let lock = "lock:granted-by-client-scripts";
        let inbox = format!("bench:{}", Uuid::new_v4());
        Self {
            connection: connect(url),
            enter: Script::new(scripts::LOCKS.enter),
            leave: Script::new(scripts::LOCKS.release),
            keys: queue_keys(lock),
            receive: over_subscriber_thread(url, &inbox),
            // Wants one token. The mark `l`: a grant reaches it while its client listens.
            arguments: [vec!["1".into(), format!("l {inbox}")], vec![channel(lock)]],
            id: None,
        }
    }
}

impl Side for Granted {
    fn take(&mut self) {
        let id = fresh_id();
        let mut call = self.enter.prepare_invoke();
        let [arguments, _] = &self.arguments;
        call.key(&self.keys).arg(&id).arg(TTL_MS).arg(arguments);
        let is_queued = match call.invoke(&mut self.connection).unwrap() {
            Value::Array(items) => matches!(items[..], [Value::Int(0), ..]),
            token => token == Value::Int(0),
        };
        if is_queued {
            let grant = String::from_utf8((self.receive)()).expect("ids are text");
            assert!(grant.contains(&id), "a grant to another waiter: {grant}");
        }
        self.id = Some(id);
    }

    fn release(&mut self) {
        let id = self.id.take().expect("the lock is held");
        let mut call = self.leave.prepare_invoke();
        let [_, arguments] = &self.arguments;
        call.key(&self.keys).arg(&id).arg(arguments);
        let left: i64 = call.invoke(&mut self.connection).unwrap();
        assert_eq!(left, 1, "the lock was lost before its release");
    }
}
