//! A network between client and server that misbehaves on demand.

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
    /// Held back in both directions, ends of connections too, until this changes: a network that is down.
    Stall,
    /// Requests are held back until this changes; replies pass.
    StallRequests,
    /// Replies are held back until this changes; requests pass.
    StallReplies,
    /// Requests pass, and the first of the replies; those behind it are held back until this changes.
    OneReply,
    /// Requests pass, replies vanish: the command runs and nobody hears of it.
    DropReplies,
    /// Whatever is sent vanishes, in both directions.
    Vanish,
    /// Requests pass; replies come byte by byte, 20 ms apart.
    TrickleReplies,
    /// Requests pass, the first reply ends the connection in its place.
    CutOnReply,
    /// The connection is ended at once.
    Cut,
}

/// Connections are counted from 0, in the order in which they were accepted.
pub struct Proxy {
    port: u16,
    wires: Arc<Wires>,
    accepting: Option<JoinHandle<()>>,
}

/// Shared with the threads that carry the bytes.
pub(crate) struct Wires {
    upstream: SocketAddr,
    pub state: Mutex<State>,
    /// Wakes those who hold bytes back.
    pub changed: Condvar,
}

pub(crate) struct State {
    pub links: Vec<Link>,
    pub request_delay: Duration,
    pub reply_delay: Duration,
    /// For connections that are still to come.
    next: Traffic,
    /// The number of scripts in one write, and the traffic from that write on for the connection that sends it.
    pub on_batch: Option<(usize, Traffic)>,
    /// The connection that sent it, and the number of scripts in it.
    pub batch: Option<(usize, usize)>,
    over: bool,
}

impl Proxy {
    pub fn new(server: &Server) -> Self {
        Self::to(server.port())
    }

    pub fn to(port: u16) -> Self {
        let listener = port::bind();
        let own = port::number(&listener);
        let state = State {
            links: Vec::new(),
            request_delay: Duration::ZERO,
            reply_delay: Duration::ZERO,
            next: Traffic::Pass,
            on_batch: None,
            batch: None,
            over: false,
        };
        let wires = Arc::new(Wires {
            upstream: SocketAddr::from(([127, 0, 0, 1], port)),
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let accepting = thread::spawn({
            let wires = Arc::clone(&wires);
            move || accept(&listener, &wires)
        });
        Self {
            port: own,
            wires,
            accepting: Some(accepting),
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// For every connection, there and to come.
    pub fn all(&self, traffic: Traffic) {
        self.change(|state| {
            state.next = traffic;
            for link in &mut state.links {
                link.set(traffic);
            }
        });
    }

    /// For those there are, and not for those to come.
    pub fn present(&self, traffic: Traffic) {
        self.change(|state| {
            for link in &mut state.links {
                link.set(traffic);
            }
        });
    }

    /// For those to come, and not for those there are.
    pub fn newcomers(&self, traffic: Traffic) {
        self.change(|state| state.next = traffic);
    }

    /// For the n-th connection, which must be there.
    pub fn nth(&self, n: usize, traffic: Traffic) {
        self.change(|state| state.links[n].set(traffic));
    }

    /// For the first connection that sends at least `scripts` of them in one write, from that write on.
    pub fn on_batch(&self, scripts: usize, traffic: Traffic) {
        self.change(|state| state.on_batch = Some((scripts, traffic)));
    }

    /// The connection that [`on_batch`](Self::on_batch) found, and how many scripts it sent in that write.
    pub fn batch(&self) -> Option<(usize, usize)> {
        self.wires.state.lock().batch
    }

    /// Ends all connections that there are; new ones are accepted as before.
    pub fn cut(&self) {
        self.present(Traffic::Cut);
    }

    /// Holds every chunk back for so long, requests and replies; chunks keep their distance, as on a long line.
    pub fn delay(&self, requests: Duration, replies: Duration) {
        self.change(|state| {
            state.request_delay = requests;
            state.reply_delay = replies;
        });
    }

    /// How many connections it has accepted so far.
    pub fn connections(&self) -> usize {
        self.wires.state.lock().links.len()
    }

    /// How many of them are still open.
    pub fn open(&self) -> usize {
        self.wires
            .state
            .lock()
            .links
            .iter()
            .filter(|link| link.is_open())
            .count()
    }

    /// Bytes that clients have sent, over all connections.
    pub fn request_bytes(&self) -> u64 {
        self.wires
            .state
            .lock()
            .links
            .iter()
            .map(|link| link.request_bytes)
            .sum()
    }

    /// The same for each connection.
    pub fn request_bytes_of_each(&self) -> Vec<u64> {
        let state = self.wires.state.lock();
        state.links.iter().map(|link| link.request_bytes).collect()
    }

    /// The open connections whose first few requests contain the text: `"SUBSCRIBE"`, `"EVALSHA"`.
    pub fn that_said(&self, text: &str) -> Vec<usize> {
        let state = self.wires.state.lock();
        let links = state.links.iter().enumerate();
        links
            .filter(|(_, link)| link.is_open() && link.has_said(text))
            .map(|(n, _)| n)
            .collect()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.wires.state.lock());
        self.wires.changed.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.change(|state| state.over = true);
        self.all(Traffic::Cut);
        // Gets the thread out of `accept`, to see that it is over.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

fn accept(listener: &TcpListener, wires: &Arc<Wires>) {
    for client in listener.incoming().flatten() {
        let n = {
            let mut state = wires.state.lock();
            if state.over {
                return;
            }
            let Ok(link) = Link::new(&client, state.next) else {
                continue;
            };
            state.links.push(link);
            state.links.len() - 1
        };
        let wires = Arc::clone(wires);
        // On a thread of its own, since the server may be slow to accept.
        thread::spawn(move || serve(&wires, n, client, wires.upstream));
    }
}
