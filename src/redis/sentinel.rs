//! Where the master is, as the sentinels say.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::{ErrorKind, PushKind, RedisResult, Value};

use crate::clock::Instant;
use crate::dialers::Dialers;
use crate::error::{Cause, is_final_at_logon};
use crate::redis::conn::connection::Connection;
use crate::redis::first_answer::{Failure, inquire};
use crate::url::{Address, Sentinel};

/// The sentinels of one master, and what is known from them.
pub(crate) struct Sentinels {
    sentinel: Sentinel,
    dialers: Dialers,
    known: Mutex<Known>,
}

pub(crate) type HostPort = (String, u16);

/// The channel on which sentinels announce a new master.
const MOVES: &[u8] = b"+switch-master";

/// What is known of the master's place.
#[derive(Default)]
struct Known {
    /// Where it was when last heard of.
    place: Option<HostPort>,
    /// It may not be there any more: the sentinels are to be asked before it is gone to.
    doubted: bool,
    /// How often its place was announced: what was asked before an announcement is older.
    announced: u64,
    /// How often it was found in another place than before.
    moves: u64,
}

impl Known {
    /// True if it is another place than before.
    fn learn(&mut self, place: HostPort) -> bool {
        let has_moved = self.place.as_ref().is_some_and(|known| *known != place);
        self.place = Some(place);
        self.doubted = false;
        self.moves += u64::from(has_moved);
        has_moved
    }
}

impl Sentinels {
    pub(crate) fn new(sentinel: Sentinel, dialers: &Dialers) -> Self {
        Self {
            sentinel,
            dialers: dialers.clone(),
            known: Mutex::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.sentinel.sentinels.len()
    }

    /// How to reach the master: where it was last heard of unless that is doubted, else where the
    /// first sentinel that knows it says. All are asked at once, so that a dead one costs nothing;
    /// where all are silent, the place that is doubted is better than none. The second part is true
    /// if the master has moved, and nobody was told before.
    pub(crate) fn master(self: &Arc<Self>, timeout: Duration) -> RedisResult<(Address, bool)> {
        let announced = {
            let known = self.known.lock();
            match &known.place {
                Some((host, port)) if !known.doubted => {
                    return Ok((self.sentinel.at(host, *port), false));
                }
                _ => known.announced,
            }
        };
        let asked = self.ask_all(timeout);
        let mut known = self.known.lock();
        let has_moved = match asked {
            // What was announced meanwhile is newer.
            Ok(place) => known.announced == announced && known.learn(place),
            Err(error) if is_final_at_logon(&error) || known.place.is_none() => return Err(error),
            Err(_) => false,
        };
        match &known.place {
            Some((host, port)) => Ok((self.sentinel.at(host, *port), has_moved)),
            None => unreachable!("just learnt, or seen to be there"),
        }
    }

    /// What the first sentinel that knows the master says.
    fn ask_all(self: &Arc<Self>, timeout: Duration) -> RedisResult<HostPort> {
        let ask = |n| {
            let this = Arc::clone(self);
            move || this.ask(n, timeout)
        };
        let asks = (0..self.len()).map(ask);
        inquire(&self.dialers, asks, timeout, is_final_at_logon).map_err(|failure| match failure {
            Failure::Refused(error) | Failure::Silent(Some((_, error))) => error,
            Failure::Silent(None) => (ErrorKind::Io, "no sentinel answered in time").into(),
        })
    }

    /// Asks one sentinel.
    fn ask(&self, n: usize, timeout: Duration) -> RedisResult<HostPort> {
        let until = Instant::now().after(timeout);
        let mut connection = self.connect(n, until)?;
        let mut ask = redis::cmd("SENTINEL");
        ask.arg("GET-MASTER-ADDR-BY-NAME")
            .arg(&self.sentinel.master);
        let answer = connection
            .trip(until, |buffer| ask.write_packed_command(buffer))?
            .extract_error()?;
        match read_place(answer) {
            Some(Some(place)) => Ok(place),
            None => Err(connection.malformed()),
            Some(None) => Err((
                ErrorKind::MasterNameNotFoundBySentinel,
                "the sentinels know no master of this name",
                self.sentinel.master.clone(),
            )
                .into()),
        }
    }

    /// A connection to one sentinel.
    fn connect(&self, n: usize, until: Instant) -> RedisResult<Connection> {
        let sentinels = &self.sentinel.sentinels;
        let address = sentinels
            .get(n)
            .ok_or((ErrorKind::Client, "no such sentinel"))?;
        Connection::open(address, None, until, || ())
    }

    /// Advice for a sentinel or a master that accepts connections and does not reply.
    pub(crate) fn tls_hint(&self) -> &'static str {
        self.sentinel.data.tls_hint()
    }

    /// How often the master was found to have moved.
    pub(crate) fn moves(&self) -> u64 {
        self.known.lock().moves
    }

    /// The master may be no longer where it was.
    pub(crate) fn doubt(&self) {
        self.known.lock().doubted = true;
    }

    /// What a sentinel announced on `+switch-master`; true if it is our master that has moved, and
    /// no other sentinel has said so before.
    fn switched(&self, announcement: &[u8]) -> bool {
        let text = String::from_utf8_lossy(announcement);
        let mut words = text.split(' ');
        if words.next() != Some(self.sentinel.master.as_str()) {
            return false;
        }
        // Behind the name: the old host and port, then the new ones.
        let (host, port) = (words.nth(2), words.next());
        let place = host
            .zip(port)
            .and_then(|(host, port)| read_host_and_port(host, port));
        let mut known = self.known.lock();
        known.announced += 1;
        match place {
            Some(place) => known.learn(place),
            None => {
                known.doubted = true;
                true
            }
        }
    }

    /// Listens to one sentinel; also true if the master has moved while nobody did.
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
        let known = self.known.lock().place.clone();
        let has_moved =
            known.is_some_and(|known| self.ask(n, timeout).is_ok_and(|place| place != known));
        if has_moved {
            // This one may be the one that is behind.
            self.doubt();
        }
        Ok((connection, has_moved))
    }

    /// Waits for as long as `patience`; true if the master has moved.
    pub(crate) fn hears_of_move(
        &self,
        connection: &mut Connection,
        patience: Duration,
    ) -> Result<bool, Cause> {
        match connection.message(Instant::now().after(patience)) {
            Ok((_, announcement)) => Ok(self.switched(&announcement)),
            Err(error) if error.is_timeout() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Reads the answer to GET-MASTER-ADDR-BY-NAME: `Some(None)` where the name is not known, `None` for
/// one that no sentinel gives.
pub(crate) fn read_place(answer: Value) -> Option<Option<HostPort>> {
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
    let place = read_host_and_port(&host, std::str::from_utf8(&port).ok()?)?;
    Some(Some(place))
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
    use crate::url::Target;

    fn sentinels() -> Sentinels {
        match Target::parse("redis+sentinel://127.0.0.1:1,127.0.0.1:2/m") {
            Ok(Target::Sentinel(sentinel)) => Sentinels::new(sentinel, &Dialers::default()),
            _ => panic!("not taken"),
        }
    }

    #[test]
    fn a_move_is_one_however_many_announce_it() {
        let sentinels = sentinels();
        assert!(!sentinels.switched(b"m h 1 h 2"), "nobody was at the first");
        assert!(sentinels.switched(b"m h 2 h 3"));
        assert!(!sentinels.switched(b"m h 2 h 3"));
        assert!(!sentinels.switched(b"another h 3 h 4"));
        assert_eq!(sentinels.moves(), 1);
        assert!(sentinels.switched(b"m nonsense"));
        assert!(sentinels.known.lock().doubted);
    }

    #[test]
    fn no_place_is_read_from_what_no_sentinel_answers() {
        let read = |text: &str| read_place(redis::parse_redis_value(text.as_bytes()).unwrap());
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
    fn a_place_that_is_doubted_is_better_than_none() {
        let sentinels = Arc::new(sentinels());
        assert!(sentinels.master(Duration::from_millis(1)).is_err());
        sentinels.switched(b"m h 1 10.0.0.7 2");
        sentinels.doubt();
        let (master, has_moved) = sentinels.master(Duration::from_millis(1)).unwrap();
        assert_eq!(master.label, "10.0.0.7:2");
        assert!(!has_moved);
    }
}
