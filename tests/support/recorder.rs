//! A proxy that records all traffic: each request with its reply, and each message to a subscriber.
//! It can lose or replace replies.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;

use super::fake_server::{Request, read};
use super::port;

/// A request and its reply, or a message to a subscriber.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// Without words if this is a message to a subscriber.
    pub request: Request,
    /// The reply as text; `None` until it arrives, and for a request that never reached the server.
    pub reply: Option<String>,
    /// The client did not get the reply, or the server did not get the request.
    pub is_lost: bool,
}

impl Exchange {
    pub fn is_message(&self) -> bool {
        self.request.words.is_empty()
    }
}

pub struct Recorder {
    port: u16,
    state: Arc<Mutex<State>>,
    accepting: Option<JoinHandle<()>>,
}

type Replace = dyn FnMut(&Request) -> Option<String> + Send;

#[derive(Default)]
struct State {
    exchanges: Vec<Exchange>,
    connections: Vec<Connection>,
    /// The name of a request after which its connection passes nothing, and whether the server gets
    /// it.
    loses: Option<(String, bool)>,
    /// Returns what the client gets instead of the reply to a request, if not the reply itself.
    replaces: Option<Box<Replace>>,
    is_over: bool,
}

struct Connection {
    ends: [TcpStream; 2],
    /// The connection has subscribed: what arrives are messages, not replies to requests.
    is_subscriber: bool,
    /// The connection passes nothing in either direction.
    is_lost: bool,
}

impl Recorder {
    pub fn to(port: u16) -> Self {
        let listener = port::bind();
        let own = port::number(&listener);
        let state: Arc<Mutex<State>> = Arc::default();
        let accepting = thread::spawn({
            let state = Arc::clone(&state);
            move || accept(&listener, &state, SocketAddr::from(([127, 0, 0, 1], port)))
        });
        Self {
            port: own,
            state,
            accepting: Some(accepting),
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns all exchanges so far, in the order of the requests.
    pub fn exchanges(&self) -> Vec<Exchange> {
        self.state.lock().exchanges.clone()
    }

    /// Drops the reply to the next command or script of this name, and all later traffic of its
    /// connection.
    pub fn lose_reply_to(&self, name: &str) {
        self.state.lock().loses = Some((name.to_owned(), true));
    }

    /// Sends, in place of the server's reply to a request, the line that `replace` returns for it.
    ///
    /// The server has run the request. Replaces an earlier `replace`.
    pub fn replace(&self, replace: impl FnMut(&Request) -> Option<String> + Send + 'static) {
        self.state.lock().replaces = Some(Box::new(replace));
    }

    /// Drops the next command or script of this name, and all later traffic of its connection.
    pub fn lose(&self, name: &str) {
        self.state.lock().loses = Some((name.to_owned(), false));
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        state.is_over = true;
        for end in state.connections.iter().flat_map(|one| &one.ends) {
            let _ = end.shutdown(Shutdown::Both);
        }
        drop(state);
        // Unblocks the accepting thread.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

fn accept(listener: &TcpListener, state: &Arc<Mutex<State>>, upstream: SocketAddr) {
    let mut serving = Vec::new();
    for client in listener.incoming().flatten() {
        if state.lock().is_over {
            break;
        }
        let Ok(server) = TcpStream::connect(upstream) else {
            continue;
        };
        let cloned = |end: &TcpStream| end.try_clone().expect("a socket can be cloned");
        let connection = {
            let mut state = state.lock();
            state.connections.push(Connection {
                ends: [cloned(&client), cloned(&server)],
                is_subscriber: false,
                is_lost: false,
            });
            state.connections.len() - 1
        };
        for end in [&client, &server] {
            let _ = end.set_nodelay(true);
        }
        let (from_client, to_client) = (cloned(&client), client);
        let (from_server, to_server) = (cloned(&server), server);
        let [of_requests, of_replies] = [Arc::clone(state), Arc::clone(state)];
        serving.push(thread::spawn(move || {
            pass_requests(&of_requests, connection, from_client, to_server);
        }));
        serving.push(thread::spawn(move || {
            pass_replies(&of_replies, connection, from_server, to_client);
        }));
    }
    for thread in serving {
        let _ = thread.join();
    }
}

fn pass_requests(state: &Mutex<State>, connection: usize, from: TcpStream, mut to: TcpStream) {
    let mut from = BufReader::new(from);
    while let Some(words) = read(&mut from) {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in &words {
            bytes.extend(format!("${}\r\n", word.len()).into_bytes());
            bytes.extend(word);
            bytes.extend(b"\r\n");
        }
        let passes = state.lock().add(Request { connection, words });
        if passes && to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

fn pass_replies(state: &Mutex<State>, connection: usize, from: TcpStream, mut to: TcpStream) {
    let mut from = BufReader::new(from);
    let mut bytes = Vec::new();
    while let Some(reply) = reply(&mut from, &mut bytes) {
        let passes = state.lock().add_reply(connection, reply, &mut bytes);
        if passes && to.write_all(&bytes).is_err() {
            break;
        }
        bytes.clear();
    }
    let _ = to.shutdown(Shutdown::Both);
}

impl State {
    /// Returns whether the server gets the request.
    fn add(&mut self, request: Request) -> bool {
        let connection = &mut self.connections[request.connection];
        let mut passes = !connection.is_lost;
        let name = request.name();
        connection.is_subscriber |= name == "SUBSCRIBE";
        if let Some((_, is_passed)) = self.loses.take_if(|(lost, _)| passes && *lost == name) {
            connection.is_lost = true;
            passes = is_passed;
        }
        self.exchanges.push(Exchange {
            request,
            reply: None,
            is_lost: connection.is_lost,
        });
        passes
    }

    /// Returns whether the client gets the reply. Puts another reply in place of `bytes` if it is
    /// replaced.
    fn add_reply(&mut self, connection: usize, reply: String, bytes: &mut Vec<u8>) -> bool {
        let by = &self.connections[connection];
        let is_answered = |exchange: &&mut Exchange| {
            exchange.request.connection == connection && exchange.reply.is_none()
        };
        match self.exchanges.iter_mut().find(is_answered) {
            Some(exchange) if !by.is_subscriber => {
                let replace = self.replaces.as_mut();
                let other = replace.and_then(|replace| replace(&exchange.request));
                if let Some(line) = &other {
                    *bytes = format!("{line}\r\n").into_bytes();
                }
                exchange.reply = Some(other.unwrap_or(reply));
                return !exchange.is_lost;
            }
            _ => {}
        }
        let words = Vec::new();
        self.exchanges.push(Exchange {
            request: Request { connection, words },
            reply: Some(reply),
            is_lost: by.is_lost,
        });
        !by.is_lost
    }
}

/// Reads one reply and returns its bytes, and a text that shows the types.
fn reply(from: &mut impl BufRead, bytes: &mut Vec<u8>) -> Option<String> {
    let start = bytes.len();
    from.read_until(b'\n', bytes).ok()?;
    let line = String::from_utf8_lossy(bytes.get(start..)?).into_owned();
    let (kind, rest) = line.trim_end().split_at_checked(1)?;
    let mut items = |count: usize| {
        (0..count)
            .map(|_| reply(from, bytes))
            .collect::<Option<Vec<_>>>()
    };
    Some(match kind {
        "*" | "$" if rest == "-1" => "nil".to_owned(),
        "_" => "nil".to_owned(),
        "*" => format!("[{}]", items(rest.parse().ok()?)?.join(", ")),
        "~" => format!("set [{}]", items(rest.parse().ok()?)?.join(", ")),
        ">" => format!("push [{}]", items(rest.parse().ok()?)?.join(", ")),
        "%" => {
            let items = items(2 * rest.parse::<usize>().ok()?)?;
            let pairs = items.chunks(2).map(|pair| pair.join(": "));
            format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
        }
        "$" => {
            let length: u64 = rest.parse().ok()?;
            let start = bytes.len();
            from.take(length + 2).read_to_end(bytes).ok()?;
            let text = bytes.get(start..start + usize::try_from(length).ok()?)?;
            format!("\"{}\"", text.escape_ascii())
        }
        "-" => format!("-{rest}"),
        // Numbers, statuses and booleans take one line and are distinguishable.
        _ => rest.to_owned(),
    })
}
