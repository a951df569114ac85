//! A TCP proxy between client and server that delays, drops or cuts traffic on demand.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::link::{Link, serve};
use super::port;
use super::server::Server;

/// What happens to the bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    Pass,
    /// Bytes and the ends of connections are held back in both directions until the traffic
    /// changes: a network that is down.
    Stall,
    /// Requests are held back until the traffic changes; replies pass.
    StallRequests,
    /// Replies are held back until the traffic changes; requests pass.
    StallReplies,
    /// Requests and the next reply pass; later replies are held back until the traffic changes.
    StallAfterOneReply,
    /// Requests pass, replies are dropped: the command runs and the client never learns of it.
    /// After the first, the connection gives none back, whatever traffic follows.
    DropReplies,
    /// All bytes are dropped, in both directions, and all that follow on the connection.
    DropBoth,
    /// Requests pass; replies arrive byte by byte, 20 ms apart.
    TrickleReplies,
    /// Requests pass; instead of the next reply, the connection is closed.
    CutOnReply,
    /// The connection is closed at once.
    Cut,
}

/// A proxy to one server. Connections are numbered from 0 in the order of their acceptance.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

/// The state shared with the threads that copy bytes.
pub(crate) struct Shared {
    pub state: Mutex<State>,
    /// Wakes the threads that hold bytes back.
    pub changed: Condvar,
}

pub(crate) struct State {
    /// The server of future connections.
    upstream: SocketAddr,
    pub links: Vec<Link>,
    pub request_delay: Duration,
    pub reply_delay: Duration,
    /// The traffic of future connections.
    next: Traffic,
    /// If a connection sends at least this many scripts in one write, it gets this traffic from
    /// that write on.
    pub on_batch: Option<(usize, Traffic)>,
    /// The connection that sent such a write, and the number of scripts in the write.
    pub batch: Option<(usize, usize)>,
    /// The proxy has been dropped and accepts no more connections.
    is_dropped: bool,
}

impl Proxy {
    pub fn new(server: &Server) -> Self {
        Self::to(server.port())
    }

    pub fn to(port: u16) -> Self {
        let listener = port::bind();
        let own = port::number(&listener);
        let state = State {
            upstream: SocketAddr::from(([127, 0, 0, 1], port)),
            links: Vec::new(),
            request_delay: Duration::ZERO,
            reply_delay: Duration::ZERO,
            next: Traffic::Pass,
            on_batch: None,
            batch: None,
            is_dropped: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let accepting = thread::spawn({
            let shared = Arc::clone(&shared);
            move || accept(&listener, &shared)
        });
        Self {
            port: own,
            shared,
            accepting: Some(accepting),
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Forwards future connections to the server at another port.
    pub fn forward_to(&self, port: u16) {
        self.change(|state| state.upstream = SocketAddr::from(([127, 0, 0, 1], port)));
    }

    /// Sets the traffic of every open and future connection.
    pub fn set_all(&self, traffic: Traffic) {
        self.change(|state| {
            state.next = traffic;
            for link in &mut state.links {
                link.set(traffic);
            }
        });
    }

    /// Sets the traffic of the open connections only.
    pub fn set_open(&self, traffic: Traffic) {
        self.change(|state| {
            for link in &mut state.links {
                link.set(traffic);
            }
        });
    }

    /// Sets the traffic of future connections only.
    pub fn set_future(&self, traffic: Traffic) {
        self.change(|state| state.next = traffic);
    }

    /// Sets the traffic of connection `n`, which must already have been accepted.
    pub fn set_nth(&self, n: usize, traffic: Traffic) {
        self.change(|state| state.links[n].set(traffic));
    }

    /// Sets the traffic of the first connection that sends at least `scripts` scripts in one write,
    /// from that write on.
    pub fn set_on_batch(&self, scripts: usize, traffic: Traffic) {
        self.change(|state| state.on_batch = Some((scripts, traffic)));
    }

    /// Returns the connection that [`set_on_batch`](Self::set_on_batch) found, and the number of
    /// scripts in its write.
    pub fn found_batch(&self) -> Option<(usize, usize)> {
        self.shared.state.lock().batch
    }

    /// Closes all open connections; new ones are accepted as before.
    pub fn cut(&self) {
        self.set_open(Traffic::Cut);
    }

    /// Delays every chunk of requests, and every chunk of replies, by these times. The chunks keep
    /// their spacing, as on a link with a high latency.
    pub fn delay(&self, requests: Duration, replies: Duration) {
        self.change(|state| {
            state.request_delay = requests;
            state.reply_delay = replies;
        });
    }

    /// Returns the number of connections accepted so far.
    pub fn connections(&self) -> usize {
        self.shared.state.lock().links.len()
    }

    /// Returns the number of accepted connections that are still open.
    pub fn open_connections(&self) -> usize {
        self.shared
            .state
            .lock()
            .links
            .iter()
            .filter(|link| link.is_open())
            .count()
    }

    /// Returns the number of bytes that clients have sent, over all connections.
    pub fn request_bytes(&self) -> u64 {
        self.shared
            .state
            .lock()
            .links
            .iter()
            .map(|link| link.request_bytes)
            .sum()
    }

    /// Returns the number of bytes that clients have sent, by connection.
    pub fn request_bytes_by_connection(&self) -> Vec<u64> {
        let state = self.shared.state.lock();
        state.links.iter().map(|link| link.request_bytes).collect()
    }

    /// Returns the open connections whose first 32 KiB of requests contain the text, such as
    /// `"SUBSCRIBE"` or `"EVALSHA"`. The comparison is case-sensitive.
    pub fn connections_that_sent(&self, text: &str) -> Vec<usize> {
        let state = self.shared.state.lock();
        let links = state.links.iter().enumerate();
        links
            .filter(|(_, link)| link.is_open() && link.has_sent(text))
            .map(|(n, _)| n)
            .collect()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.shared.state.lock());
        self.shared.changed.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.change(|state| state.is_dropped = true);
        self.set_all(Traffic::Cut);
        // Unblocks the accepting thread, which then checks `is_dropped`.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for client in listener.incoming().flatten() {
        let (n, upstream) = {
            let mut state = shared.state.lock();
            if state.is_dropped {
                return;
            }
            let Ok(link) = Link::new(&client, state.next) else {
                continue;
            };
            state.links.push(link);
            (state.links.len() - 1, state.upstream)
        };
        let shared = Arc::clone(shared);
        // On its own thread, since the server may be slow to accept.
        thread::spawn(move || serve(&shared, n, client, upstream));
    }
}
