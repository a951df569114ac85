//! One connection through the proxy: for each direction, a thread that reads, and one that writes
//! what must wait.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};

use super::proxy::{Shared, State, Traffic};
use super::time::{let_pass, ms};

/// How many bytes of requests are kept, for `connections_that_sent`: those of some dozen calls.
const REMEMBERED: usize = 32 * 1024;

pub(crate) struct Link {
    traffic: Traffic,
    /// The sockets to the client and, once connected, to the server; empty after the end.
    ends: Vec<TcpStream>,
    pub request_bytes: u64,
    first_requests: Vec<u8>,
    /// The directions in which bytes were dropped. Nothing more arrives there: no byte of a TCP
    /// stream is ever missing before others.
    broken: Vec<Direction>,
}

impl Link {
    pub(crate) fn new(client: &TcpStream, traffic: Traffic) -> io::Result<Self> {
        let ends = vec![client.try_clone()?];
        let mut link = Self {
            traffic,
            ends,
            request_bytes: 0,
            first_requests: Vec::new(),
            broken: Vec::new(),
        };
        link.set(traffic);
        Ok(link)
    }

    pub(crate) fn set(&mut self, traffic: Traffic) {
        self.traffic = traffic;
        if traffic == Traffic::Cut {
            self.end();
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        !self.ends.is_empty()
    }

    /// Compares the letters' case, too.
    pub(crate) fn has_sent(&self, text: &str) -> bool {
        let mut windows = self.first_requests.windows(text.len());
        windows.any(|window| window == text.as_bytes())
    }

    fn end(&mut self) {
        for end in self.ends.drain(..) {
            let _ = end.shutdown(Shutdown::Both);
        }
    }

    fn note(&mut self, request: &[u8]) {
        self.request_bytes += request.len() as u64;
        let room = REMEMBERED.saturating_sub(self.first_requests.len());
        self.first_requests
            .extend_from_slice(&request[..room.min(request.len())]);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Request,
    Reply,
}

/// The handling of a chunk.
enum Fate {
    Forward,
    /// Forwards the first reply of the chunk only.
    ForwardOne,
    Trickle,
    Drop,
    End,
}

/// Passes the traffic of the n-th connection on until it ends.
pub(crate) fn serve(shared: &Arc<Shared>, n: usize, client: TcpStream, upstream: SocketAddr) {
    let end = || shared.state.lock().links[n].end();
    let Ok(server) = TcpStream::connect_timeout(&upstream, ms(5_000)) else {
        return end();
    };
    let (Ok(from_server), Ok(to_server), Ok(to_client)) =
        (server.try_clone(), server.try_clone(), client.try_clone())
    else {
        return end();
    };
    {
        let link = &mut shared.state.lock().links[n];
        if !link.is_open() {
            return;
        }
        link.ends.push(server);
    }
    for end in [&to_server, &to_client] {
        // Without TCP_NODELAY a small chunk would wait for the acknowledgement of the last one.
        let _ = end.set_nodelay(true);
    }
    let replies = thread::spawn({
        let shared = Arc::clone(shared);
        move || carry(&shared, n, Direction::Reply, from_server, to_client)
    });
    carry(shared, n, Direction::Request, client, to_server);
    let _ = replies.join();
}

/// Reads on this thread, and writes delayed or held chunks on another, so that a delay is the same
/// for every chunk. This thread writes a chunk that need not wait, which saves most calls two
/// wake-ups.
fn carry(shared: &Arc<Shared>, n: usize, direction: Direction, mut from: TcpStream, to: TcpStream) {
    let Ok(mut direct) = to.try_clone() else {
        return shared.state.lock().links[n].end();
    };
    let (sender, chunks) = unbounded::<(Instant, Vec<u8>)>();
    let unwritten = Arc::new(AtomicUsize::new(0));
    let writing = thread::spawn({
        let shared = Arc::clone(shared);
        let unwritten = Arc::clone(&unwritten);
        move || write_when_due(&shared, n, direction, &chunks, to, &unwritten)
    });
    let mut buffer = [0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        let chunk = &buffer[..read];
        let (delay, passes) = {
            let mut state = shared.state.lock();
            if direction == Direction::Request {
                state.links[n].note(chunk);
                state.note_batch(n, chunk);
            }
            let delay = match direction {
                Direction::Request => state.request_delay,
                Direction::Reply => state.reply_delay,
            };
            let link = &state.links[n];
            let passes = link.traffic == Traffic::Pass && !link.broken.contains(&direction);
            (delay, passes)
        };
        if passes && delay.is_zero() && unwritten.load(Ordering::Acquire) == 0 {
            if direct.write_all(chunk).is_err() {
                break;
            }
            continue;
        }
        unwritten.fetch_add(1, Ordering::Relaxed);
        if sender.send((due(delay), chunk.to_vec())).is_err() {
            break;
        }
    }
    drop(sender);
    let _ = writing.join();
}

/// Writes each chunk once it is due and not held, and then counts it off from `unwritten`.
fn write_when_due(
    shared: &Shared,
    n: usize,
    direction: Direction,
    chunks: &Receiver<(Instant, Vec<u8>)>,
    mut to: TcpStream,
    unwritten: &AtomicUsize,
) {
    'chunks: for (due, chunk) in chunks {
        let mut rest = &chunk[..];
        while !rest.is_empty() {
            let passes = match shared.decide(n, direction, Some(due)) {
                Fate::Forward => rest.len(),
                Fate::ForwardOne => first_reply(rest),
                Fate::Trickle => {
                    let_pass(ms(20));
                    1
                }
                Fate::Drop => break,
                Fate::End => break 'chunks,
            };
            if to.write_all(&rest[..passes]).is_err() {
                break 'chunks;
            }
            rest = &rest[passes..];
        }
        unwritten.fetch_sub(1, Ordering::Release);
    }
    // A stalled network holds the end of a connection back, too.
    shared.decide(n, direction, None);
    shared.state.lock().links[n].end();
}

impl State {
    fn note_batch(&mut self, n: usize, request: &[u8]) {
        let Some((scripts, traffic)) = self.on_batch else {
            return;
        };
        let sent = request
            .windows(7)
            .filter(|window| window == b"EVALSHA")
            .count();
        if sent >= scripts {
            self.on_batch = None;
            self.batch = Some((n, sent));
            self.links[n].set(traffic);
        }
    }
}

/// Returns the length of the first of several complete replies.
fn first_reply(replies: &[u8]) -> usize {
    let line = replies
        .windows(2)
        .position(|end| end == b"\r\n")
        .unwrap_or(0)
        + 2;
    let count = || str::from_utf8(&replies[1..line - 2]).map_or(0, |n| n.parse().unwrap_or(0));
    match replies[0] {
        b'*' => (0..count()).fold(line, |at, _| at + first_reply(&replies[at..])),
        b'$' => line + count() + 2,
        _ => line,
    }
}

fn due(delay: Duration) -> Instant {
    Instant::now() + delay
}

impl Shared {
    /// Waits until the chunk is due and not stalled, and returns what happens to it.
    ///
    /// Without a due time it is the connection's end instead of a chunk.
    fn decide(&self, n: usize, direction: Direction, due: Option<Instant>) -> Fate {
        let mut state = self.state.lock();
        loop {
            let link = &state.links[n];
            if !link.is_open() {
                return Fate::End;
            }
            let stalled = match link.traffic {
                Traffic::Stall => true,
                Traffic::StallRequests => direction == Direction::Request,
                Traffic::StallReplies => direction == Direction::Reply,
                _ => false,
            };
            if stalled {
                self.changed.wait(&mut state);
                continue;
            }
            if due.is_some_and(|due| Instant::now() < due) {
                self.changed
                    .wait_until(&mut state, due.expect("the chunk has a due time"));
                continue;
            }
            if due.is_some() && link.broken.contains(&direction) {
                return Fate::Drop;
            }
            return match (link.traffic, direction) {
                (Traffic::DropBoth, _) | (Traffic::DropReplies, Direction::Reply) => {
                    if due.is_some() {
                        state.links[n].broken.push(direction);
                    }
                    Fate::Drop
                }
                (Traffic::CutOnReply, Direction::Reply) => Fate::End,
                (Traffic::TrickleReplies, Direction::Reply) if due.is_some() => Fate::Trickle,
                (Traffic::StallAfterOneReply, Direction::Reply) => {
                    state.links[n].traffic = Traffic::StallReplies;
                    Fate::ForwardOne
                }
                _ => Fate::Forward,
            };
        }
    }
}
