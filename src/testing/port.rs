//! The port of a server, and its listening sockets.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redis::io::tcp::socket2::{Domain, Socket, Type};
use rustix::net::sockopt::{set_socket_reuseport, set_tcp_nodelay};

/// How many connections may wait to be accepted, while the server is paused.
const BACKLOG: i32 = 1024;

/// A listening socket.
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Returns a connection, if one waits.
    pub(super) fn accept(&self) -> io::Result<OwnedFd> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                // Fails if the peer has closed the connection already, which its next read shows.
                let _ = set_tcp_nodelay(&stream, true);
                Ok(stream.into())
            }
            Self::Unix(listener) => Ok(listener.accept()?.0.into()),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }
}

/// The port of a server, which keeps its number while it refuses connections.
pub(super) struct Port {
    pub(super) number: u16,
    tcp: Option<Arc<Listener>>,
    unix: Option<Arc<Listener>>,
    /// The file of the Unix socket.
    unix_path: Option<PathBuf>,
    /// Bound and not listening: connections are refused, and no other program gets the port.
    reserved: Option<Socket>,
}

impl Port {
    /// Opens a port of this machine; 0 takes a free one.
    pub(super) fn open(number: u16, unix: Option<&Path>) -> io::Result<Self> {
        let tcp = listen(bind(number, false)?)?;
        let unix_path = unix.map(Path::to_owned);
        let unix = match &unix_path {
            Some(path) => {
                // A server that was killed has left its socket there. Redis replaces it, too.
                let _ = fs::remove_file(path);
                let listener = UnixListener::bind(path)?;
                listener.set_nonblocking(true)?;
                Some(Arc::new(Listener::Unix(listener)))
            }
            None => None,
        };
        Ok(Self {
            number: tcp.local_addr()?.port(),
            tcp: Some(Arc::new(Listener::Tcp(tcp))),
            unix,
            unix_path,
            reserved: None,
        })
    }

    pub(super) fn listeners(&self) -> impl Iterator<Item = &Arc<Listener>> {
        self.tcp.iter().chain(&self.unix)
    }

    /// Refuses connections over TCP, as soon as the last clone of the listener is dropped. The Unix
    /// socket still accepts them: the caller must close them.
    pub(super) fn close(&mut self) -> io::Result<()> {
        if let Some(tcp) = &self.tcp {
            set_socket_reuseport(tcp, true)?;
            self.reserved = Some(bind(self.number, true)?);
            self.tcp = None;
        }
        Ok(())
    }

    pub(super) fn reopen(&mut self) -> io::Result<()> {
        if let Some(socket) = self.reserved.take() {
            let listener = listen(socket)?;
            set_socket_reuseport(&listener, false)?;
            self.tcp = Some(Arc::new(Listener::Tcp(listener)));
        }
        Ok(())
    }

    /// Closes everything for good.
    pub(super) fn end(&mut self) {
        (self.tcp, self.unix, self.reserved) = (None, None, None);
        if let Some(path) = self.unix_path.take() {
            // Fails if the file is gone already.
            let _ = fs::remove_file(path);
        }
    }
}

fn listen(socket: Socket) -> io::Result<TcpListener> {
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Binds a port. Two sockets can have it if `is_shared` for both: one keeps it reserved while the
/// other is closed.
fn bind(number: u16, is_shared: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    // A port that was just closed has old connections that linger.
    socket.set_reuse_address(true)?;
    set_socket_reuseport(&socket, is_shared)?;
    socket.bind(&SocketAddrV4::new(Ipv4Addr::LOCALHOST, number).into())?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_of_a_server_cannot_be_opened_again() {
        let mut port = Port::open(0, None).unwrap();
        for _ in 0..2 {
            let second = Port::open(port.number, None);
            let error = second.err().map(|error| error.kind());
            assert_eq!(error, Some(io::ErrorKind::AddrInUse));
            port.close().unwrap();
            port.reopen().unwrap();
        }
    }
}
