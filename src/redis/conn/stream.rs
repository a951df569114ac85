//! The bytes to and from a server: over TCP, a unix socket, or TLS on TCP.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use redis::{ConnectionAddr, ErrorKind, RedisResult};

use super::reader::Reader;
use super::socket::Socket;
#[cfg(feature = "tls")]
use super::tls::TlsStream;
use crate::clock::Instant;
use crate::resolver::Peer;
use crate::url::Address;

/// The time between the starts of the attempts to connect to two addresses of a name, as RFC 8305
/// recommends; shorter if the time for all of them is short.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// When a connection must be made.
#[derive(Clone, Copy)]
pub(crate) struct Deadlines {
    /// When the first call that waits for it gives up. The addresses of a name are tried faster if
    /// that is soon.
    pub(super) soonest: Instant,
    /// When the peer must have accepted the connection.
    pub(super) until: Instant,
    /// When connecting ends, with the handshake and the log-on.
    pub(super) ready_by: Instant,
}

/// How far a connection that is being made has got.
pub(crate) enum Progress<'a> {
    /// The peer has accepted it, and has not sent anything yet.
    Accepted(BorrowedFd<'a>),
    /// The TLS handshake has succeeded.
    Secured,
}

impl From<Instant> for Deadlines {
    fn from(until: Instant) -> Self {
        Self {
            soonest: until,
            until,
            ready_by: until,
        }
    }
}

/// The shortest such time that RFC 8305 allows.
const SHORTEST_DELAY: Duration = Duration::from_millis(10);

pub(super) enum Stream {
    Plain(Socket),
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream>),
}

impl Stream {
    /// Connects within `deadlines`, with the handshake if TLS is used. `accepted` is called in
    /// between. Returns the address, too, if the host is a name. Bytes that arrive directly after
    /// the handshake go to `reader`.
    #[cfg_attr(
        not(feature = "tls"),
        expect(unused_variables, reason = "no handshake")
    )]
    pub(super) fn connect(
        address: &Address,
        reader: &mut Reader,
        deadlines: Deadlines,
        accepted: impl FnOnce(BorrowedFd<'_>),
    ) -> RedisResult<(Self, Option<Peer>)> {
        let info = &address.info;
        match info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                check_host(host)?;
                let (socket, peer) = connect_tcp(address, host, *port, deadlines)?;
                accepted(socket.as_fd());
                Ok((Self::Plain(socket), peer))
            }
            ConnectionAddr::Unix(path) => {
                let socket = Socket::connect_unix(path, deadlines.until)?;
                accepted(socket.as_fd());
                Ok((Self::Plain(socket), None))
            }
            #[cfg(feature = "tls")]
            ConnectionAddr::TcpTls { host, port, .. } => {
                check_host(host)?;
                let config = address.tls.client_config()?;
                let (socket, peer) = connect_tcp(address, host, *port, deadlines)?;
                accepted(socket.as_fd());
                let stream = TlsStream::open(socket, host, config, reader, deadlines.ready_by)?;
                Ok((Self::Tls(Box::new(stream)), peer))
            }
            _ => Err((
                ErrorKind::InvalidClientConfig,
                "this kind of address needs leasehold's feature `tls`",
            )
                .into()),
        }
    }

    /// Reads some bytes by `until`; bytes already there are read even after it. Afterwards no byte
    /// that was read is held outside of `reader`. A closed connection is an error.
    pub(in crate::redis) fn read(&mut self, reader: &mut Reader, until: Instant) -> io::Result<()> {
        match self {
            Self::Plain(socket) => match socket.read(reader.room(), until)? {
                0 => Err(io::ErrorKind::UnexpectedEof.into()),
                count => {
                    reader.filled(count);
                    Ok(())
                }
            },
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.read(reader, until),
        }
    }

    pub(in crate::redis) fn write(&mut self, bytes: &[u8], until: Instant) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.write_all(bytes, until),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.write_all(bytes, until),
        }
    }

    /// Writes as much of `bytes` as is taken without waiting; returns how much.
    pub(super) fn write_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => or_nothing(socket.write(bytes, Instant::START)),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.write_some(bytes),
        }
    }

    /// Writes what was taken before, without waiting; returns whether all of it is written.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        match self {
            Self::Plain(_) => Ok(true),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.flush(),
        }
    }
}

/// Returns zero in place of a write that would have to wait.
pub(super) fn or_nothing(written: io::Result<usize>) -> io::Result<usize> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(0),
        written => written,
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Plain(socket) => socket.as_fd(),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.as_fd(),
        }
    }
}

/// Connects to one of the addresses of a host.
fn connect_tcp(
    address: &Address,
    host: &str,
    port: u16,
    Deadlines { soonest, until, .. }: Deadlines,
) -> io::Result<(Socket, Option<Peer>)> {
    let now = Instant::now();
    let settings = address.info.tcp_settings();
    let Some(name) = address.resolver.name(host, port) else {
        let ip: IpAddr = host.parse().map_err(|_| io::ErrorKind::InvalidInput)?;
        let address = SocketAddr::new(ip, port);
        let (socket, _) = Socket::connect_tcp(&[address], settings, ATTEMPT_DELAY, until)?;
        return Ok((socket, None));
    };
    let addresses = name.addresses(now.until(until) / 2)?;
    let count = u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
    let left = Instant::now().until(soonest.min(until));
    // Half of the time is left for the last address.
    let delay = (left / count / 2).clamp(SHORTEST_DELAY, ATTEMPT_DELAY);
    let (socket, address) = Socket::connect_tcp(&addresses, settings, delay, until)?;
    Ok((socket, Some(name.peer(address))))
}

/// Rejects a wildcard address: a node may announce the address on which it listens, and connecting
/// to that one leads to this machine.
fn check_host(host: &str) -> RedisResult<()> {
    match host {
        "0.0.0.0" | "::" => Err((
            ErrorKind::InvalidClientConfig,
            "Cannot connect to a wildcard address (0.0.0.0 or ::)",
        )
            .into()),
        _ => Ok(()),
    }
}
