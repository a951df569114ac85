//! TLS over a socket. rustls does no I/O itself, so each read and write gets the deadline of the
//! call.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use redis::{RedisError, RedisResult};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use super::input::Input;
use super::socket::Socket;
use crate::clock::Instant;
use crate::violation::NoFirstReply;

pub(in crate::redis) struct TlsStream {
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
    /// Performs the handshake by `until`.
    pub(in crate::redis) fn open(
        socket: Socket,
        host: &str,
        config: ClientConfig,
        until: Instant,
    ) -> RedisResult<Self> {
        let name = ServerName::try_from(host)?.to_owned();
        let tls = ClientConnection::new(Arc::new(config), name)?;
        let mut stream = Self { socket, tls };
        let mut is_first = true;
        while stream.tls.is_handshaking() {
            // A peer that closed the connection has sent the reason before; it is read next.
            let sent = stream.send(until);
            if stream.tls.is_handshaking() || sent.is_err() {
                let received = stream.receive(until).map_err(RedisError::from);
                match is_first {
                    true => received.map_err(NoFirstReply::mark)?,
                    false => received?,
                };
                is_first = false;
            }
        }
        // The last message of the handshake.
        stream.send(until)?;
        Ok(stream)
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

    pub(in crate::redis) fn read(&mut self, input: &mut Input, until: Instant) -> io::Result<()> {
        while self.receive(until)? == 0 {
            // Only a part of a record came, or a message of TLS itself.
            if Instant::now() >= until {
                return Err(super::socket::timed_out());
            }
        }
        // All of it: `poll` does not see the bytes that rustls holds.
        loop {
            match self.tls.reader().read(input.room()) {
                Ok(0) => return Ok(()),
                Ok(count) => input.filled(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    pub(in crate::redis) fn write_all(
        &mut self,
        mut bytes: &[u8],
        until: Instant,
    ) -> io::Result<()> {
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
