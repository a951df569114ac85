//! A server whose replies the test chooses, for replies that no real server sends.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, LazyLock};
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;

use super::port;
use super::scripts::NAMED;

/// A request as the client sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The number of the connection that carried the request, from 0.
    pub connection: usize,
    pub words: Vec<Vec<u8>>,
}

impl Request {
    /// Returns the command in capitals, or the name of the script that it runs.
    pub fn name(&self) -> String {
        let verb = String::from_utf8_lossy(&self.words[0]).to_ascii_uppercase();
        match (verb.as_str(), self.words.get(1)) {
            ("EVALSHA", Some(sha)) => script(&String::from_utf8_lossy(sha)),
            ("EVAL", Some(source)) => {
                script(redis::Script::new(&String::from_utf8_lossy(source)).get_hash())
            }
            _ => verb,
        }
    }

    /// Returns the arguments of a script call, without its keys.
    pub fn args(&self) -> &[Vec<u8>] {
        let keys: usize = String::from_utf8_lossy(&self.words[2]).parse().unwrap();
        &self.words[3 + keys..]
    }
}

fn script(sha: &str) -> String {
    static NAMES: LazyLock<HashMap<String, &str>> = LazyLock::new(|| {
        let sha = |source: &str| redis::Script::new(source).get_hash().to_owned();
        let named = NAMED.iter();
        named.map(|(name, source)| (sha(source), *name)).collect()
    });
    NAMES
        .get(sha)
        .map_or_else(|| sha.to_owned(), |name| (*name).to_owned())
}

type Reply = dyn Fn(&Request, &mut TcpStream) -> io::Result<()> + Send + Sync;

type Serve = dyn Fn(usize, TcpStream, &Mutex<Seen>) + Send + Sync;

#[derive(Default)]
struct Seen {
    streams: Vec<TcpStream>,
    requests: Vec<Request>,
    /// Connections that the client has closed.
    closed: Vec<usize>,
    is_over: bool,
}

pub struct FakeServer {
    port: u16,
    seen: Arc<Mutex<Seen>>,
    accepting: Option<JoinHandle<()>>,
}

impl FakeServer {
    /// Starts a server that replies to each request with the bytes that `reply` returns.
    ///
    /// If it returns `None`, the server sends the [`default_reply`], or nothing if there is none.
    pub fn start(reply: impl Fn(&Request) -> Option<Vec<u8>> + Send + Sync + 'static) -> Self {
        Self::with_writer(move |request, client| {
            let bytes = reply(request).or_else(|| default_reply(request));
            client.write_all(&bytes.unwrap_or_default())
        })
    }

    /// Starts a server that lets `reply` write the answer to each request, however long that takes.
    pub fn with_writer(
        reply: impl Fn(&Request, &mut TcpStream) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let reply: Box<Reply> = Box::new(reply);
        Self::serving(move |connection, stream, seen| serve(connection, stream, seen, &*reply))
    }

    /// Starts a server that ignores requests and sends `bytes` on each connection, once or
    /// endlessly.
    pub fn sending(bytes: &'static [u8], is_endless: bool) -> Self {
        Self::serving(move |_, mut stream, _| {
            let bytes = bytes.repeat(if is_endless { 1_000 } else { 1 });
            while stream.write_all(&bytes).is_ok() && is_endless {}
            // Closing with unread requests would reset the connection and lose the bytes written.
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        })
    }

    /// Starts a server that sends `bytes` once on each connection, when the client has sent
    /// something.
    pub fn answering(bytes: &'static [u8]) -> Self {
        Self::serving(move |_, mut stream, _| {
            // Any result will do: the client may be gone.
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(bytes);
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        })
    }

    fn serving(serve: impl Fn(usize, TcpStream, &Mutex<Seen>) + Send + Sync + 'static) -> Self {
        let listener = port::bind();
        let port = port::number(&listener);
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let accepting = thread::spawn({
            let (seen, serve): (_, Arc<Serve>) = (Arc::clone(&seen), Arc::new(serve));
            move || accept(&listener, &seen, &serve)
        });
        Self {
            port,
            seen,
            accepting: Some(accepting),
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns all requests with this name so far.
    pub fn requests(&self, name: &str) -> Vec<Request> {
        let mut requests = self.seen.lock().requests.clone();
        requests.retain(|request| request.name() == name);
        requests
    }

    /// Returns whether a release or undo of this holder id was sent, alone or in a batch.
    pub fn has_undo_of(&self, id: &[u8]) -> bool {
        const UNDOING: [&str; 4] = ["release", "queue_release", "undo", "queue_undo"];
        let requests = &self.seen.lock().requests;
        let mut undos = requests
            .iter()
            .filter(|request| UNDOING.contains(&request.name().as_str()));
        undos.any(|undo| undo.args().iter().any(|arg| arg == id))
    }

    /// Returns whether the client has closed this connection.
    pub fn is_closed(&self, connection: usize) -> bool {
        self.seen.lock().closed.contains(&connection)
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        let mut seen = self.seen.lock();
        seen.is_over = true;
        for stream in seen.streams.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        drop(seen);
        // This connection ends the thread's wait in `accept`.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

fn accept(listener: &TcpListener, seen: &Arc<Mutex<Seen>>, serve: &Arc<Serve>) {
    let mut serving = Vec::new();
    for stream in listener.incoming().flatten() {
        let mut state = seen.lock();
        if state.is_over {
            break;
        }
        let Ok(both) = stream.try_clone() else {
            continue;
        };
        let connection = state.streams.len();
        state.streams.push(both);
        drop(state);
        let (seen, serve) = (Arc::clone(seen), Arc::clone(serve));
        serving.push(thread::spawn(move || serve(connection, stream, &seen)));
    }
    for thread in serving {
        let _ = thread.join();
    }
}

fn serve(connection: usize, stream: TcpStream, seen: &Mutex<Seen>, reply: &Reply) {
    let Ok(mut writing) = stream.try_clone() else {
        return;
    };
    let mut reading = BufReader::new(stream);
    while let Some(words) = read(&mut reading) {
        let request = Request { connection, words };
        seen.lock().requests.push(request.clone());
        if reply(&request, &mut writing).is_err() {
            break;
        }
    }
    seen.lock().closed.push(connection);
}

pub(crate) fn read(from: &mut impl BufRead) -> Option<Vec<Vec<u8>>> {
    let count = header(from, '*')?;
    (0..count)
        .map(|_| {
            let mut word = vec![0; header(from, '$')? + 2];
            from.read_exact(&mut word).ok()?;
            word.truncate(word.len() - 2);
            Some(word)
        })
        .collect()
}

fn header(from: &mut impl BufRead, mark: char) -> Option<usize> {
    let mut line = String::new();
    from.read_line(&mut line).ok()?;
    line.strip_prefix(mark)?.trim_end().parse().ok()
}

/// Returns the reply of an empty server to the commands that open a connection.
pub fn default_reply(request: &Request) -> Option<Vec<u8>> {
    let reply = match request.name().as_str() {
        "CLIENT" | "SELECT" | "AUTH" => "+OK\r\n".to_owned(),
        "PING" => "+PONG\r\n".to_owned(),
        "PUBLISH" => ":1\r\n".to_owned(),
        "probe" => ":0\r\n".to_owned(),
        // Compares two connections.
        "SET" => "-ERR unknown command\r\n".to_owned(),
        "HELLO" => "-ERR unknown command\r\n".to_owned(),
        "SUBSCRIBE" => {
            let channel = String::from_utf8_lossy(&request.words[1]);
            let length = channel.len();
            format!("*3\r\n$9\r\nsubscribe\r\n${length}\r\n{channel}\r\n:1\r\n")
        }
        _ => return None,
    };
    Some(reply.into_bytes())
}
