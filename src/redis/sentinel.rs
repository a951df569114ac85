//! The address of the master, as the sentinels report it.

use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, PushKind, RedisResult, Value};

use crate::clock::Instant;
use crate::error::Cause;
use crate::error_reply::is_final_at_logon;
use crate::redis::conn::connection::Connection;
use crate::redis::first_answer::{NoAnswer, first_answer};
use crate::sync::Mutex;
use crate::thread_group::ThreadGroup;
use crate::url::{Address, HostPort, Sentinel};

/// The sentinels of one master, and the master address they reported.
pub(crate) struct Sentinels {
    pub(super) sentinel: Sentinel,
    dialers: ThreadGroup,
    known: Mutex<KnownMaster>,
}

/// The channel on which sentinels announce a new master.
const MOVES: &[u8] = b"+switch-master";

/// The known address of the master.
#[derive(Default)]
struct KnownMaster {
    /// The last reported address.
    address: Option<HostPort>,
    /// The master may have moved: ask the sentinels before connecting.
    suspected: bool,
    /// The number of announcements. A reply is out of date if one came after its question.
    announced: u64,
    /// How many times a report named another address than before.
    moves: u64,
}

impl KnownMaster {
    /// Records the address. Returns true if it differs from the last one.
    fn learn(&mut self, address: HostPort) -> bool {
        let has_moved = self.address.as_ref().is_some_and(|known| *known != address);
        self.address = Some(address);
        self.suspected = false;
        self.moves += u64::from(has_moved);
        has_moved
    }

    /// Returns the address after the sentinels were asked, and whether it differs from the last
    /// one. `announced` is the number of announcements before the question.
    fn settle(
        &mut self,
        asked: RedisResult<HostPort>,
        announced: u64,
    ) -> RedisResult<(HostPort, bool)> {
        match (asked, self.address.clone()) {
            (Err(error), None) => Err(error),
            (Err(error), Some(_)) if is_final_at_logon(&error) => Err(error),
            // An announcement in the meantime is newer than the reply.
            (Ok(_), Some(known)) if self.announced != announced => Ok((known, false)),
            (Err(_), Some(known)) => Ok((known, false)),
            (Ok(address), _) => Ok((address.clone(), self.learn(address))),
        }
    }
}

impl Sentinels {
    pub(crate) fn new(sentinel: Sentinel, dialers: &ThreadGroup) -> Self {
        Self {
            sentinel,
            dialers: dialers.clone(),
            known: Mutex::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.sentinel.sentinels.len()
    }

    /// Returns the address of the master, and whether it has just been found to have moved.
    ///
    /// Uses the last known address unless it is suspected; else asks all sentinels at once, so that
    /// a dead one costs no time, and takes the first answer. If no sentinel answers, a suspected
    /// address is better than none.
    pub(super) fn master(self: &Arc<Self>, timeout: Duration) -> RedisResult<(Address, bool)> {
        let announced = {
            let known = self.known.lock();
            match &known.address {
                Some((host, port)) if !known.suspected => {
                    return Ok((self.sentinel.data.at(host, *port), false));
                }
                _ => known.announced,
            }
        };
        let asked = self.ask_all(timeout);
        let ((host, port), has_moved) = self.known.lock().settle(asked, announced)?;
        Ok((self.sentinel.data.at(&host, port), has_moved))
    }

    /// Returns the address from the first sentinel that knows the master.
    fn ask_all(self: &Arc<Self>, timeout: Duration) -> RedisResult<HostPort> {
        let ask = |n| {
            let this = Arc::clone(self);
            move || this.ask(n, timeout)
        };
        let asks = (0..self.len()).map(ask);
        first_answer(&self.dialers, asks, timeout, is_final_at_logon).map_err(|failure| {
            match failure {
                NoAnswer::Refused(error) | NoAnswer::Silent(Some((_, error))) => error,
                NoAnswer::Silent(None) => (ErrorKind::Io, "no sentinel answered in time").into(),
            }
        })
    }

    /// Asks one sentinel for the master, over a new connection.
    fn ask(&self, n: usize, timeout: Duration) -> RedisResult<HostPort> {
        let until = Instant::now().after(timeout);
        let mut connection = self.connect(n, until)?;
        let mut ask = redis::cmd("SENTINEL");
        ask.arg("GET-MASTER-ADDR-BY-NAME")
            .arg(&self.sentinel.master);
        let answer = connection
            .trip(until, |buffer| ask.write_packed_command(buffer))?
            .extract_error()?;
        match read_address(answer) {
            Some(Some(address)) => Ok(address),
            None => Err(connection.malformed()),
            Some(None) => Err((
                ErrorKind::MasterNameNotFoundBySentinel,
                "the sentinels know no master with this name",
                self.sentinel.master.clone(),
            )
                .into()),
        }
    }

    /// Connects to one sentinel.
    fn connect(&self, n: usize, until: Instant) -> RedisResult<Connection> {
        let sentinels = &self.sentinel.sentinels;
        let address = sentinels
            .get(n)
            .ok_or((ErrorKind::Client, "no such sentinel"))?;
        Connection::open(address, None, until, |_| ())
    }

    /// How many times the master was found to have moved.
    pub(crate) fn moves(&self) -> u64 {
        self.known.lock().moves
    }

    /// Records that the master may have moved.
    pub(super) fn suspect(&self) {
        self.known.lock().suspected = true;
    }

    /// Handles an announcement on `+switch-master`. Returns true if our master has moved and that
    /// is news, or if its new address is malformed.
    fn switched(&self, announcement: &[u8]) -> bool {
        let text = String::from_utf8_lossy(announcement);
        let mut words = text.split(' ');
        if words.next() != Some(self.sentinel.master.as_str()) {
            return false;
        }
        // The name is followed by the old host and port, then the new ones.
        let (host, port) = (words.nth(2), words.next());
        let address = host
            .zip(port)
            .and_then(|(host, port)| read_host_and_port(host, port));
        let mut known = self.known.lock();
        known.announced += 1;
        match address {
            Some(address) => known.learn(address),
            None => {
                known.suspected = true;
                true
            }
        }
    }

    /// Subscribes to one sentinel. The second value is true if the master moved while
    /// there was no subscription.
    pub(crate) fn listen(&self, n: usize, timeout: Duration) -> Result<(Connection, bool), Cause> {
        let until = Instant::now().after(timeout);
        let mut connection = self.connect(n, until)?;
        let mut subscribe = redis::cmd("SUBSCRIBE");
        subscribe.arg(MOVES);
        connection.write(until, |buffer| subscribe.write_packed_command(buffer))?;
        // In RESP3 the confirmation is a push.
        if !is_subscribed(&connection.receive(until)?.extract_error()?) {
            return Err(connection.malformed().into());
        }
        let known = self.known.lock().address.clone();
        let has_moved =
            known.is_some_and(|known| self.ask(n, timeout).is_ok_and(|address| address != known));
        if has_moved {
            // This sentinel may be the one that is out of date.
            self.suspect();
        }
        Ok((connection, has_moved))
    }

    /// Waits at most `timeout` for an announcement. Returns true if the master has moved.
    pub(crate) fn wait_for_move(
        &self,
        connection: &mut Connection,
        timeout: Duration,
    ) -> Result<bool, Cause> {
        match connection.message(Instant::now().after(timeout)) {
            Ok((_, announcement)) => Ok(self.switched(&announcement)),
            Err(error) if error.is_timeout() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Reads the reply to GET-MASTER-ADDR-BY-NAME: `Some(None)` if the name is unknown, `None` if the
/// reply is malformed.
pub(crate) fn read_address(answer: Value) -> Option<Option<HostPort>> {
    let items = match answer {
        Value::Nil => return Some(None),
        Value::Array(items) => items,
        _ => return None,
    };
    let [Value::BulkString(host), Value::BulkString(port)] = <[Value; 2]>::try_from(items).ok()?
    else {
        return None;
    };
    let host = String::from_utf8(host).ok()?;
    let address = read_host_and_port(&host, std::str::from_utf8(&port).ok()?)?;
    Some(Some(address))
}

fn read_host_and_port(host: &str, port: &str) -> Option<HostPort> {
    let port = port.parse().ok().filter(|port| *port > 0)?;
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

/// Returns true if `answer` confirms the subscription to [`MOVES`].
pub(crate) fn is_subscribed(answer: &Value) -> bool {
    let items = match answer {
        Value::Array(items) => match items.as_slice() {
            [Value::BulkString(kind), rest @ ..] if kind == b"subscribe" => rest,
            _ => return false,
        },
        Value::Push {
            kind: PushKind::Subscribe,
            data,
        } => data,
        _ => return false,
    };
    matches!(items, [Value::BulkString(channel), Value::Int(1)] if channel == MOVES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread_group::DIALER;
    use crate::url::Target;

    fn sentinels() -> Sentinels {
        match Target::parse("redis+sentinel://127.0.0.1:1,127.0.0.1:2/m") {
            Ok(Target::Sentinel(sentinel)) => Sentinels::new(sentinel, &ThreadGroup::new(DIALER)),
            _ => panic!("the URL was rejected"),
        }
    }

    #[test]
    fn a_move_announced_twice_counts_once() {
        let sentinels = sentinels();
        assert!(
            !sentinels.switched(b"m h 1 h 2"),
            "the first address is not a move"
        );
        assert!(sentinels.switched(b"m h 2 h 3"));
        assert!(!sentinels.switched(b"m h 2 h 3"));
        assert!(!sentinels.switched(b"another h 3 h 4"));
        assert_eq!(sentinels.moves(), 1);
        assert!(sentinels.switched(b"m nonsense"));
        assert!(sentinels.known.lock().suspected);
    }

    #[test]
    fn a_reply_older_than_an_announcement_counts_only_if_no_address_is_known() {
        let sentinels = sentinels();
        assert!(sentinels.switched(b"m nonsense"));
        let address: HostPort = ("h".into(), 1);
        let mut known = sentinels.known.lock();
        let settled = known.settle(Ok(address.clone()), 0).unwrap();
        assert_eq!(settled, (address.clone(), false));
        known.announced += 1;
        let newer = known.settle(Ok(("h".into(), 2)), 1).unwrap();
        assert_eq!(newer, (address, false));
    }

    #[test]
    fn malformed_replies_give_no_address() {
        let read = |text: &str| read_address(redis::parse_redis_value(text.as_bytes()).unwrap());
        let known = read("*2\r\n$2\r\nh1\r\n$4\r\n6379\r\n");
        assert_eq!(known, Some(Some(("h1".into(), 6379))));
        assert_eq!(read("*-1\r\n"), Some(None));
        for text in [
            ":1\r\n",
            "+OK\r\n",
            "*0\r\n",
            "*2\r\n$0\r\n\r\n$4\r\n6379\r\n",
            "*2\r\n$2\r\nh1\r\n$1\r\n0\r\n",
            "*2\r\n$2\r\nh1\r\n$5\r\n70000\r\n",
            "*2\r\n$2\r\nh1\r\n:6379\r\n",
            "*3\r\n$2\r\nh1\r\n$4\r\n6379\r\n$4\r\n6379\r\n",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn a_suspected_address_is_used_if_no_sentinel_answers() {
        let sentinels = Arc::new(sentinels());
        assert!(sentinels.master(Duration::from_millis(1)).is_err());
        sentinels.switched(b"m h 1 10.0.0.7 2");
        sentinels.suspect();
        let (master, has_moved) = sentinels.master(Duration::from_millis(1)).unwrap();
        assert_eq!(master.label, "10.0.0.7:2");
        assert!(!has_moved);
    }
}
