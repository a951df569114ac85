//! A real server, and one connection to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::iter;
use std::net::TcpStream;

use support::{Server, ms};

use crate::kit::Reply;

pub(crate) struct Real {
    _server: Server,
    stream: BufReader<TcpStream>,
    subscriber: BufReader<TcpStream>,
}

impl Real {
    pub(crate) fn start() -> Self {
        let server = Server::start().long_lived();
        let connect = || {
            let stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
            stream.set_nodelay(true).unwrap();
            stream.set_read_timeout(Some(ms(60_000))).unwrap();
            BufReader::new(stream)
        };
        Self {
            stream: connect(),
            subscriber: connect(),
            _server: server,
        }
    }

    /// Compiles a script and returns its digest.
    pub(crate) fn load(&mut self, source: &str) -> String {
        let command = ["SCRIPT", "LOAD", source].map(|word| word.as_bytes().to_vec());
        match &self.run(&[command.to_vec()])[..] {
            [Reply::Bulk(Some(digest))] => String::from_utf8_lossy(digest).into_owned(),
            other => panic!("no digest: {other:?}"),
        }
    }

    pub(crate) fn subscribe(&mut self, channel: &str) {
        let command = ["SUBSCRIBE", channel].map(|word| word.as_bytes().to_vec());
        send(&mut self.subscriber, &[command.to_vec()]);
        receive(&mut self.subscriber);
    }

    /// Returns the messages published since the last call.
    pub(crate) fn messages(&mut self) -> Reply {
        send(&mut self.subscriber, &[vec![b"PING".to_vec()]]);
        // Without a subscription, the reply to `PING` is a status.
        let pongs = [
            Reply::Status("PONG"),
            Reply::array([Reply::bulk("pong"), Reply::bulk("")]),
        ];
        let mut next =
            || Some(receive(&mut self.subscriber)).filter(|reply| !pongs.contains(reply));
        Reply::array(iter::from_fn(&mut next))
    }

    /// Sends commands in one write and returns their replies.
    pub(crate) fn run(&mut self, commands: &[Vec<Vec<u8>>]) -> Vec<Reply> {
        send(&mut self.stream, commands);
        commands.iter().map(|_| receive(&mut self.stream)).collect()
    }
}

fn send(stream: &mut BufReader<TcpStream>, commands: &[Vec<Vec<u8>>]) {
    let mut request = Vec::new();
    for command in commands {
        write!(request, "*{}\r\n", command.len()).unwrap();
        for arg in command {
            write!(request, "${}\r\n", arg.len()).unwrap();
            request.extend_from_slice(arg);
            request.extend_from_slice(b"\r\n");
        }
    }
    stream.get_mut().write_all(&request).unwrap();
}

fn receive(stream: &mut BufReader<TcpStream>) -> Reply {
    let mut line = Vec::new();
    stream.read_until(b'\n', &mut line).unwrap();
    let line = String::from_utf8_lossy(&line);
    let (mark, line) = line.trim_end_matches("\r\n").split_at(1);
    let length = || usize::try_from(line.parse::<i64>().unwrap()).ok();
    match mark {
        "+" => Reply::Status(status(line)),
        "-" => Reply::Error(line.to_owned()),
        ":" => Reply::Int(line.parse().unwrap()),
        "$" => Reply::Bulk(length().map(|length| {
            let mut bytes = vec![0; length + 2];
            stream.read_exact(&mut bytes).unwrap();
            bytes.truncate(length);
            bytes
        })),
        "*" => Reply::Array(length().map(|items| (0..items).map(|_| receive(stream)).collect())),
        _ => panic!("no reply begins with {mark:?}"),
    }
}

fn status(text: &str) -> &'static str {
    let known = [
        "OK", "PONG", "none", "string", "list", "hash", "set", "zset",
    ];
    let found = known.into_iter().find(|known| *known == text);
    found.unwrap_or_else(|| panic!("unexpected status {text}"))
}
