//! Addresses at which no server replies.

use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;
use redis::io::tcp::socket2::{Domain, Socket, Type};

use super::port;
use super::time::ms;

/// Accepts connections and never replies on them.
pub struct BlackHole {
    port: u16,
    /// `None` once this is dropped.
    accepted: Arc<Mutex<Option<Vec<TcpStream>>>>,
    accepting: Option<JoinHandle<()>>,
}

impl BlackHole {
    pub fn start() -> Self {
        let listener = port::bind();
        let port = port::number(&listener);
        let accepted = Arc::new(Mutex::new(Some(Vec::new())));
        let accepting = thread::spawn({
            let accepted = Arc::clone(&accepted);
            move || {
                for stream in listener.incoming().flatten() {
                    match &mut *accepted.lock() {
                        Some(streams) => streams.push(stream),
                        None => return,
                    }
                }
            }
        });
        Self {
            port,
            accepted,
            accepting: Some(accepting),
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The number of connections accepted so far.
    pub fn connections(&self) -> usize {
        self.accepted.lock().as_ref().map_or(0, Vec::len)
    }
}

impl Drop for BlackHole {
    fn drop(&mut self) {
        for stream in self.accepted.lock().take().into_iter().flatten() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        // This connection ends the thread's wait in `accept`.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

/// An address at which connection requests get no answer: the queue of its listener is full.
pub struct Swallowing {
    _listener: Socket,
    _queued: Vec<Socket>,
}

impl Swallowing {
    pub fn at(address: SocketAddr) -> Self {
        let new =
            || Socket::new(Domain::for_address(address), Type::STREAM, None).expect("a socket");
        let listener = new();
        listener.bind(&address.into()).expect("the address is free");
        listener.listen(0).expect("it is bound");
        let connect = || {
            let socket = new();
            socket.set_nonblocking(true).expect("it is open");
            // In progress, or queued.
            let _ = socket.connect(&address.into());
            socket
        };
        let queued: Vec<Socket> = (0..4).map(|_| connect()).collect();
        let swallows = || TcpStream::connect_timeout(&address, ms(50)).is_err();
        assert!(swallows(), "the queue is full");
        Self {
            _listener: listener,
            _queued: queued,
        }
    }
}

/// Returns the URL of a port that refuses connections.
pub fn refusing_url() -> String {
    format!("redis://127.0.0.1:{}", port::free())
}
