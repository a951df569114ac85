//! TLS over a socket. rustls does no I/O itself, so each read and write gets the deadline of the
//! call.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use redis::RedisResult;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use super::reader::Reader;
use super::socket::Socket;
use crate::clock::Instant;
use crate::connect_failure::ConnectFailure;
use crate::violation::{Violation, ViolationKind};

/// The types of the TLS records that a server can send first:
/// <https://www.rfc-editor.org/rfc/rfc8446#section-5.1>.
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;

/// How many of a peer's first bytes an error can quote.
const SHOWN: usize = 40;

pub(super) struct TlsStream {
    socket: Socket,
    tls: ClientConnection,
}

/// The socket with a deadline, as rustls reads and writes it.
struct Timed<'a> {
    socket: &'a Socket,
    until: Instant,
}

impl Read for Timed<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.socket.read(bytes, self.until)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.write(bytes, self.until)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl TlsStream {
    /// Performs the handshake by `until`. Bytes that arrive directly after it go to `reader`.
    pub(in crate::redis) fn open(
        socket: Socket,
        host: &str,
        config: ClientConfig,
        reader: &mut Reader,
        until: Instant,
    ) -> RedisResult<Self> {
        let name = ServerName::try_from(host)?.to_owned();
        let tls = ClientConnection::new(Arc::new(config), name)?;
        let mut stream = Self { socket, tls };
        // If sending fails, the peer may have closed the connection. The loop then reads until the
        // peer's reason has arrived: an alert, or the first plaintext, such as an error reply.
        let mut sent = stream.send(until);
        stream.check_first(until)?;
        while stream.tls.is_handshaking() || (sent.is_err() && !reader.is_within_reply()) {
            stream.receive(until)?;
            stream.take_plaintext(reader)?;
            sent = stream.send(until);
        }
        Ok(stream)
    }

    /// Returns an error unless the first byte that the peer sends begins a TLS record.
    fn check_first(&self, until: Instant) -> RedisResult<()> {
        let mut first = [0; SHOWN];
        let count = self.socket.peek(&mut first, until);
        let first = match count.map_err(|error| ConnectFailure::mark(error.into()))? {
            0 => {
                return Err(ConnectFailure::mark(
                    io::Error::from(io::ErrorKind::UnexpectedEof).into(),
                ));
            }
            count => first.get(..count).unwrap_or(&first),
        };
        match first {
            [ALERT | HANDSHAKE, ..] => Ok(()),
            _ => Err(Violation::new(ViolationKind::NotTls, first).into()),
        }
    }

    /// Reads from the socket once. Returns how many bytes of plaintext are available.
    fn receive(&mut self, until: Instant) -> io::Result<usize> {
        let mut socket = Timed {
            socket: &self.socket,
            until,
        };
        if self.tls.read_tls(&mut socket)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match self.tls.process_new_packets() {
            Ok(state) => Ok(state.plaintext_bytes_to_read()),
            Err(error) => {
                // The alert tells the server the reason; the connection ends in any case.
                let _ = self.send(until);
                Err(io::Error::new(io::ErrorKind::InvalidData, error))
            }
        }
    }

    /// Writes what rustls has ready to the socket.
    fn send(&mut self, until: Instant) -> io::Result<()> {
        while self.tls.wants_write() {
            let mut socket = Timed {
                socket: &self.socket,
                until,
            };
            self.tls.write_tls(&mut socket)?;
        }
        Ok(())
    }

    /// Reads at least one byte of plaintext by `until`, and all that has arrived.
    pub(in crate::redis) fn read(&mut self, reader: &mut Reader, until: Instant) -> io::Result<()> {
        while self.receive(until)? == 0 {
            // Only a part of a record came, or a message of TLS itself.
            if Instant::now() >= until {
                return Err(super::socket::timed_out());
            }
        }
        self.take_plaintext(reader)
    }

    /// Moves all plaintext to `reader`: `poll` does not see the bytes that rustls holds.
    fn take_plaintext(&mut self, reader: &mut Reader) -> io::Result<()> {
        loop {
            match self.tls.reader().read(reader.room()) {
                Ok(0) => return Ok(()),
                Ok(count) => reader.filled(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes as much of `bytes` as is taken without waiting; returns how much. That is only
    /// encrypted: see [`flush`](Self::flush).
    pub(super) fn write_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.flush()? {
            // Zero if the buffer of rustls is full.
            self.tls.writer().write(bytes)
        } else {
            Ok(0)
        }
    }

    /// Writes what is encrypted, without waiting; returns whether all of it is written.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        match self.send(Instant::START) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(super) fn write_all(&mut self, mut bytes: &[u8], until: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            // As much as fits into the buffer of rustls.
            let count = self.tls.writer().write(bytes)?;
            bytes = bytes.get(count..).unwrap_or_default();
            self.send(until)?;
        }
        Ok(())
    }
}

impl AsFd for TlsStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::{TcpListener, TcpStream};
    use std::sync::{Arc, mpsc};
    use std::thread;
    use std::time::Duration;

    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::{ServerConfig, ServerConnection};

    use crate::clock::Instant;
    use crate::config::Config;
    use crate::protocol::reply::Reply;
    use crate::redis::conn::connection::Connection;
    use crate::redis::conn::connector::Connector;
    use crate::tls::{Pem, Tls, provider};
    use crate::url::Address;

    macro_rules! pem {
        ($file:literal) => {
            include_bytes!(concat!("../../../tests/support/certificates/", $file))
        };
    }

    /// Longer than a handshake takes on any machine.
    const LONG: Duration = Duration::from_secs(30);

    /// Performs the handshake of TLS 1.2 and sends `text` in one write with its last message.
    fn serve(mut stream: TcpStream, text: &[u8]) -> TcpStream {
        let chain = CertificateDer::pem_slice_iter(pem!("server.pem"));
        let key = PrivateKeyDer::from_pem_slice(pem!("server.key")).unwrap();
        let config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS12])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain.map(Result::unwrap).collect(), key)
            .unwrap();
        let mut tls = ServerConnection::new(config.into()).unwrap();
        while tls.is_handshaking() {
            tls.read_tls(&mut stream).unwrap();
            tls.process_new_packets().unwrap();
            if tls.is_handshaking() {
                tls.write_tls(&mut stream).unwrap();
            }
        }
        std::io::Write::write_all(&mut tls.writer(), text).unwrap();
        let mut last = Vec::new();
        while tls.wants_write() {
            tls.write_tls(&mut last).unwrap();
        }
        std::io::Write::write_all(&mut stream, &last).unwrap();
        stream
    }

    fn address_of(listener: &TcpListener) -> Address {
        let port = listener.local_addr().unwrap().port();
        let mut address = Address::parse(&format!("rediss://localhost:{port}")).unwrap();
        address.tls = Arc::new(Tls {
            root: Some(Pem::Text(pem!("ca.pem").to_vec())),
            client: None,
        });
        address
    }

    #[test]
    fn reply_sent_with_the_last_message_of_the_handshake_is_read() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let (over, is_over) = mpsc::channel::<()>();
        let address = address_of(&listener);
        let server = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let _open = serve(stream, b"-ERR max number of clients reached\r\n");
            let _ = is_over.recv();
        });
        let until = Instant::now().after(LONG);
        let mut connection = Connection::connect(&address, until, |_| ()).unwrap();
        let read = connection.receive(until);
        assert!(matches!(read, Ok(Reply::Error(_))), "{read:?}");
        drop(over);
        server.join().unwrap();
    }

    /// A TLS terminator whose Redis is down is such a peer.
    #[test]
    fn peer_that_is_silent_after_the_handshake_is_not_said_to_speak_no_tls() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let config = Config {
            connect_timeout: LONG,
            ..Config::default()
        };
        let connector = Connector::to_server(address_of(&listener), None, &config);
        thread::scope(|scope| {
            let connecting =
                scope.spawn(|| connector.connect(Instant::NEVER, LONG, &|_| (), || ()));
            let mut stream = serve(listener.accept().unwrap().0, b"");
            // The log-on arrives: the client has completed the handshake.
            stream.read_exact(&mut [0]).unwrap();
            let cause = connector.no_connection_yet().to_string();
            assert!(!cause.contains("redis://"), "{cause}");
            drop((stream, listener));
            let error = connecting.join().unwrap().err().unwrap();
            let cause = connector.no_connection(error, LONG).to_string();
            assert!(!cause.contains("redis://"), "{cause}");
        });
    }
}
