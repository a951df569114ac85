//! Tests of pipelines against a peer that replies what the test wants.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::task::Wake;
use std::thread::{self, Thread};
use std::time::Duration;

use super::*;
use crate::config::Config;
use crate::protocol::keys::Keys;
use crate::redis::conn::callers::Cap;
use crate::redis::conn::connector::Connector;
use crate::redis::conn::socket::wait_for_sockets;
use crate::url::Address;

const LONG: Duration = Duration::from_secs(60);

struct ThisThread(Thread);

impl Wake for ThisThread {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A job with a number: a publication of this many bytes, or a script.
struct Numbered {
    number: usize,
    message: Vec<u8>,
    keys: Option<(Keys, Option<Replicas>)>,
}

impl Job for Numbered {
    fn with_request<T>(&self, act: impl FnOnce(Request<'_>) -> T) -> T {
        act(match &self.keys {
            Some((keys, _)) => Request::Call(keys.inspect()),
            None => Request::Publish {
                channel: b"c",
                message: &self.message,
            },
        })
    }

    fn replicas(&self) -> Option<Replicas> {
        self.keys.as_ref().and_then(|(_, replicas)| *replicas)
    }

    fn wanted_by(&self) -> Instant {
        Instant::NEVER
    }

    fn is_over(&self, _: Instant) -> bool {
        self.number == usize::MAX
    }
}

fn publication(number: usize, bytes: usize) -> Numbered {
    Numbered {
        number,
        message: vec![b'x'; bytes],
        keys: None,
    }
}

fn call(number: usize, replicas: Option<Replicas>) -> Numbered {
    let keys = Keys::new("a".into(), "lock:", "r:");
    Numbered {
        number,
        message: Vec::new(),
        keys: Some((keys, replicas)),
    }
}

fn accept(listener: &TcpListener) -> TcpStream {
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(b"+OK\r\n+OK\r\n+OK\r\n").unwrap();
    stream
}

struct Fixture {
    listener: TcpListener,
    pipeline: Pipeline<Numbered>,
    ended: Vec<Ended<Numbered>>,
}

impl Fixture {
    fn new(command_timeout: Duration) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let config = Config {
            connect_timeout: LONG,
            command_timeout,
            ..Config::default()
        };
        let connector = Connector::to_server(Address::parse(&url).unwrap(), None, &config);
        let server = Arc::new(Server::new(connector, &config, None));
        let waker = Waker::from(Arc::new(ThisThread(thread::current())));
        Self {
            listener,
            pipeline: Pipeline::new(server, waker),
            ended: Vec::new(),
        }
    }

    /// Has the pool make its first connection, and returns the peer's end.
    fn fill_pool(&self) -> TcpStream {
        let server = &self.pipeline.server;
        thread::scope(|scope| {
            let listener = &self.listener;
            let accepting = scope.spawn(|| accept(listener));
            let pooled = server.acquire_connection(Instant::now().after(LONG), Cap::Counted, false);
            let pooled = pooled.unwrap_or_else(|fault| panic!("{fault}"));
            server.pool.pass_on(pooled);
            accepting.join().unwrap()
        })
    }

    fn is_open(&self) -> bool {
        matches!(self.pipeline.link, Link::Open(_))
    }

    /// Pushes jobs and opens a connection of the pipeline's own. Returns the peer's end of it.
    fn open(&mut self, jobs: impl IntoIterator<Item = Numbered>) -> TcpStream {
        jobs.into_iter().for_each(|job| self.pipeline.push(job));
        self.turn();
        let peer = accept(&self.listener);
        let until = Instant::now().after(LONG);
        while !self.is_open() && Instant::now() < until {
            thread::park_timeout(Duration::from_millis(100));
            self.turn();
        }
        peer
    }

    fn turn(&mut self) {
        self.pipeline.turn(Instant::now(), true);
        self.ended.append(&mut self.pipeline.ended);
    }

    /// Takes turns until this many jobs have ended; returns their numbers and ends.
    fn ended(&mut self, count: usize) -> Vec<(usize, Result<Answer, Fault>)> {
        let until = Instant::now().after(LONG);
        while self.ended.len() < count && Instant::now() < until {
            let left = Instant::now().until(self.pipeline.next()).min(LONG);
            wait_for_sockets(self.pipeline.socket().into_iter(), Some(left)).unwrap();
            self.turn();
        }
        let ended = self.ended.drain(..);
        let ended = ended.map(|ended| (ended.job.number, ended.end.map_err(Fault::from)));
        ended.collect()
    }
}

#[test]
fn only_a_command_that_was_written_to_its_end_may_have_run() {
    let mut fixture = Fixture::new(LONG);
    // Far more than the sockets buffer.
    let peer = fixture.open([
        publication(0, 10),
        publication(1, 64 << 20),
        publication(2, 1),
    ]);
    drop(peer);
    let ended = fixture.ended(2);
    assert!(matches!(ended[0], (0, Err(Fault::Unknown(_)))), "{ended:?}");
    assert!(matches!(ended[1], (1, Err(Fault::NotRun(_)))), "{ended:?}");
}

#[test]
fn late_reply_ends_the_connection_and_the_next_command_gets_another_one() {
    let mut fixture = Fixture::new(Duration::from_millis(100));
    let mut peer = fixture.open([publication(0, 1), publication(1, 1)]);
    peer.write_all(b":1\r\n").unwrap();
    let ended = fixture.ended(2);
    assert!(matches!(ended[0], (0, Ok(Answer::Count(1)))), "{ended:?}");
    assert!(matches!(ended[1], (1, Err(Fault::Unknown(_)))), "{ended:?}");
    assert!(!fixture.is_open());
    let mut peer = fixture.open([publication(2, 1)]);
    peer.write_all(b":2\r\n").unwrap();
    assert!(matches!(fixture.ended(1)[0], (2, Ok(Answer::Count(2)))));
}

/// The process was stopped, for example.
#[test]
fn reply_that_has_arrived_counts_although_it_is_read_late() {
    let mut fixture = Fixture::new(Duration::from_millis(50));
    let mut peer = fixture.open([publication(0, 1)]);
    peer.write_all(b":1\r\n").unwrap();
    let socket = fixture.pipeline.socket().unwrap();
    while !wait_for_sockets([(socket.0, false)].into_iter(), Some(LONG)).unwrap()[0] {}
    let late = Instant::now().after(LONG);
    fixture.pipeline.turn(late, false);
    fixture.ended.append(&mut fixture.pipeline.ended);
    assert!(matches!(fixture.ended(1)[0], (0, Ok(Answer::Count(1)))));
}

#[test]
fn last_connection_of_the_pool_is_given_back_after_the_last_reply() {
    let mut fixture = Fixture::new(LONG);
    let mut peer = fixture.fill_pool();
    let server = Arc::clone(&fixture.pipeline.server);
    for number in 0..3 {
        fixture.pipeline.push(publication(number, 1));
        fixture.turn();
        assert!(fixture.is_open());
        assert!(server.pool.state.lock().idle.is_empty());
        peer.write_all(b":1\r\n").unwrap();
        assert_eq!(fixture.ended(1)[0].0, number);
        assert!(!fixture.is_open());
        assert_eq!(server.pool.state.lock().idle.len(), 1);
    }
    assert_eq!(server.connections(), 1);
    assert_eq!(server.pool.state.lock().out, 0);
}

#[test]
fn one_wait_follows_each_batch_and_the_next_batch_comes_after_its_reply() {
    let replicas = Some(Replicas {
        wanted: 1,
        within: Duration::from_secs(1),
    });
    let mut fixture = Fixture::new(LONG);
    let mut peer = fixture.open([call(0, replicas), call(1, replicas)]);
    fixture.pipeline.push(call(2, replicas));
    fixture.turn();
    let mut received = vec![0; 64 * 1024];
    let count = peer.read(&mut received).unwrap();
    let text = String::from_utf8_lossy(&received[..count]).into_owned();
    assert_eq!(text.matches("EVALSHA").count(), 2, "{text}");
    assert!(
        text.ends_with("*3\r\n$4\r\nWAIT\r\n$1\r\n1\r\n$4\r\n1000\r\n"),
        "{text}"
    );
    peer.write_all(b"$-1\r\n$-1\r\n:1\r\n").unwrap();
    assert_eq!(fixture.ended(2).len(), 2);
    let count = peer.read(&mut received).unwrap();
    let text = String::from_utf8_lossy(&received[..count]).into_owned();
    assert_eq!(
        (
            text.matches("EVALSHA").count(),
            text.matches("WAIT").count()
        ),
        (1, 1)
    );
}

#[test]
fn script_that_the_server_does_not_know_ends_and_can_be_sent_with_its_source() {
    let mut fixture = Fixture::new(LONG);
    let mut peer = fixture.open([call(0, None)]);
    peer.write_all(b"-NOSCRIPT No matching script.\r\n")
        .unwrap();
    while fixture.ended.is_empty() {
        fixture.turn();
    }
    let ended = fixture.ended.remove(0);
    assert!(matches!(ended.end, Err(NodeFault::NoScript)));
    fixture.pipeline.push_by_source(vec![ended.job]);
    while fixture
        .pipeline
        .sent
        .front()
        .is_none_or(|sent| sent.queued.form != ScriptForm::Source)
    {
        fixture.turn();
    }
    peer.write_all(b"$-1\r\n").unwrap();
    assert_eq!(fixture.ended(1)[0].0, 0);
}

#[test]
fn replies_in_the_buffer_are_taken_without_a_sleep() {
    let count = MOST_IN_TURN + 10;
    let mut fixture = Fixture::new(LONG);
    let mut peer = fixture.open((0..count).map(|n| publication(n, 1)));
    while fixture.pipeline.sent.len() < count {
        fixture.turn();
    }
    peer.write_all(&b":1\r\n".repeat(count)).unwrap();
    while fixture.ended.len() < MOST_IN_TURN {
        fixture.turn();
    }
    assert_eq!(fixture.pipeline.next(), Instant::START);
    assert_eq!(fixture.ended(count).len(), count);
}

#[test]
fn reply_that_nobody_waits_for_ends_the_connection() {
    let mut fixture = Fixture::new(LONG);
    let mut peer = fixture.open([publication(0, 1)]);
    peer.write_all(b":1\r\n:1\r\n").unwrap();
    assert_eq!(fixture.ended(1).len(), 1);
    while fixture.is_open() {
        fixture.turn();
    }
    assert!(!fixture.pipeline.server.health.is_failing());
}

/// The rest of the reply would be taken for that to the next command.
#[test]
fn part_of_a_reply_that_nobody_waits_for_ends_the_connection() {
    let mut fixture = Fixture::new(LONG);
    let _peer = fixture.fill_pool();
    let server = Arc::clone(&fixture.pipeline.server);
    let until = Instant::now().after(LONG);
    // The pipeline gets its own connection, which stays open.
    let _in_use = server.acquire_connection(until, Cap::Counted, false).ok();
    let mut peer = fixture.open([publication(0, 1)]);
    peer.write_all(b":1\r\n").unwrap();
    assert_eq!(fixture.ended(1).len(), 1);
    assert!(fixture.is_open());
    fixture.pipeline.push(publication(1, 1));
    fixture.turn();
    peer.write_all(b":1\r\n:").unwrap();
    assert_eq!(fixture.ended(1).len(), 1);
    fixture.turn();
    assert!(!fixture.is_open());
}

#[test]
fn last_connection_is_not_kept_for_a_useless_command() {
    let mut fixture = Fixture::new(LONG);
    let _peer = fixture.fill_pool();
    fixture.pipeline.push(publication(usize::MAX, 1));
    fixture.turn();
    assert!(!fixture.is_open());
    let server = &fixture.pipeline.server;
    assert_eq!(server.pool.state.lock().idle.len(), 1);
}

#[test]
fn useless_command_is_not_sent() {
    let mut fixture = Fixture::new(LONG);
    let mut peer = fixture.open([publication(usize::MAX, 1), publication(0, 1)]);
    peer.write_all(b":1\r\n").unwrap();
    let ended = fixture.ended(2);
    let useless = (usize::MAX, Err(()));
    let ends = ended.into_iter();
    let ends: Vec<_> = ends
        .map(|(n, end)| (n, end.map(drop).map_err(drop)))
        .collect();
    assert_eq!(ends, [useless, (0, Ok(()))]);
    assert!(!fixture.pipeline.is_busy());
}
