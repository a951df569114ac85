//! The bytes to and from a server: over TCP, a unix socket, or TLS on TCP.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use redis::{ConnectionAddr, ErrorKind, RedisResult};

use super::input::Input;
use super::socket::Socket;
#[cfg(feature = "tls")]
use super::tls::TlsStream;
use crate::clock::Instant;
use crate::url::Address;

pub(super) enum Stream {
    Plain(Socket),
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream>),
}

impl Stream {
    /// Connects by `until`, with the handshake if TLS is used. `accepted` is called in between.
    /// Bytes that arrive directly after the handshake go to `input`.
    #[cfg_attr(
        not(feature = "tls"),
        expect(unused_variables, reason = "no handshake")
    )]
    pub(super) fn connect(
        address: &Address,
        input: &mut Input,
        until: Instant,
        accepted: impl FnOnce(),
    ) -> RedisResult<Self> {
        let info = &address.info;
        match info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                check_host(host)?;
                let socket = Socket::connect_tcp(host, *port, info.tcp_settings(), until)?;
                accepted();
                Ok(Self::Plain(socket))
            }
            ConnectionAddr::Unix(path) => {
                let socket = Socket::connect_unix(path, until)?;
                accepted();
                Ok(Self::Plain(socket))
            }
            #[cfg(feature = "tls")]
            ConnectionAddr::TcpTls { host, port, .. } => {
                check_host(host)?;
                let config = address.tls.client_config()?;
                let socket = Socket::connect_tcp(host, *port, info.tcp_settings(), until)?;
                accepted();
                let stream = TlsStream::open(socket, host, config, input, until)?;
                Ok(Self::Tls(Box::new(stream)))
            }
            _ => Err((
                ErrorKind::InvalidClientConfig,
                "this kind of address needs leasehold's feature `tls`",
            )
                .into()),
        }
    }

    /// Reads some bytes by `until`; bytes already there are read even after it. Afterwards no byte
    /// that was read is held outside of `input`. A closed connection is an error.
    pub(in crate::redis) fn read(&mut self, input: &mut Input, until: Instant) -> io::Result<()> {
        match self {
            Self::Plain(socket) => match socket.read(input.room(), until)? {
                0 => Err(io::ErrorKind::UnexpectedEof.into()),
                count => {
                    input.filled(count);
                    Ok(())
                }
            },
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.read(input, until),
        }
    }

    pub(in crate::redis) fn write(&mut self, bytes: &[u8], until: Instant) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.write_all(bytes, until),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.write_all(bytes, until),
        }
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
