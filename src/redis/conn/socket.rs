//! A socket whose reads and writes end by a deadline: to the millisecond, even if signals interrupt
//! them or bytes trickle in.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::{Domain, Protocol, SockAddr, Socket as RawSocket, Type};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::clock::{Instant, LONGEST_SLEEP, nap};

/// How long a read blocks before it continues with `poll`: the kernel rounds a socket's own timeout
/// up by as much as an eighth, and restarts it after each byte. Longer than almost every reply
/// takes, so that nearly every read is one system call.
const SOCKET_TIMEOUT: Duration = Duration::from_millis(20);

/// With less time left than this, a read does not block: the kernel may round [`SOCKET_TIMEOUT`] up
/// by one tick of its clock, at most 10 ms.
const TOO_SHORT_TO_BLOCK: Duration = Duration::from_millis(40);

/// The longest step of connecting to a unix socket, which blocks while the server's queue is full.
/// Short, because the kernel rounds longer timeouts up by more.
const UNIX_STEP: Duration = Duration::from_millis(50);

pub(super) struct Socket(OwnedFd);

impl Socket {
    /// Connects to one of the addresses by `until`, and returns which one. They are tried in this
    /// order and side by side: each `delay` after the one before, or as soon as that one fails.
    pub(super) fn connect_tcp(
        addresses: &[SocketAddr],
        settings: &TcpSettings,
        delay: Duration,
        until: Instant,
    ) -> io::Result<(Self, SocketAddr)> {
        let mut failure = timed_out();
        let mut left = addresses.iter();
        let mut next_at = Instant::now();
        let mut pending: Vec<(OwnedFd, SocketAddr)> = Vec::new();
        loop {
            let now = Instant::now();
            if now >= next_at || pending.is_empty() {
                match left.next() {
                    Some(address) => match begin_connect(address) {
                        Ok(socket) => {
                            pending.push((socket, *address));
                            next_at = now.after(delay);
                        }
                        Err(error) => failure = error,
                    },
                    None if pending.is_empty() => return Err(failure),
                    None => next_at = Instant::NEVER,
                }
                continue;
            }
            if now >= until {
                return Err(timed_out());
            }
            let polled = pending
                .iter()
                .map(|(fd, _)| PollFd::new(fd, PollFlags::OUT));
            let mut polled: Vec<_> = polled.collect();
            wait_for(&mut polled, Some(nap(now, until.min(next_at))))?;
            let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
            let Some(ready) = polled.iter().position(is_ready) else {
                continue;
            };
            let (socket, address) = pending.swap_remove(ready);
            let socket = RawSocket::from(socket);
            match socket.take_error()? {
                None => {
                    socket.set_nonblocking(false)?;
                    return Ok((Self::of_tcp(socket, settings)?, address));
                }
                Some(error) => {
                    failure = error;
                    next_at = now;
                }
            }
        }
    }

    fn of_tcp(socket: RawSocket, settings: &TcpSettings) -> io::Result<Self> {
        socket.set_tcp_nodelay(settings.nodelay())?;
        socket.set_read_timeout(Some(SOCKET_TIMEOUT))?;
        if let Some(keepalive) = settings.keepalive() {
            socket.set_tcp_keepalive(keepalive)?;
        }
        Ok(Self(socket.into()))
    }

    pub(super) fn connect_unix(path: &Path, until: Instant) -> io::Result<Self> {
        let socket = RawSocket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_read_timeout(Some(SOCKET_TIMEOUT))?;
        let address = SockAddr::unix(path)?;
        loop {
            let left = Instant::now().until(until);
            if left.is_zero() {
                return Err(timed_out());
            }
            socket.set_write_timeout(Some(left.min(UNIX_STEP).max(Duration::from_millis(1))))?;
            match socket.connect(&address) {
                Ok(()) => return Ok(Self(socket.into())),
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
                    ) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for bytes until `until`, and reads those that have arrived. Bytes already there are
    /// read even after `until`.
    pub(in crate::redis) fn read(&self, bytes: &mut [u8], until: Instant) -> io::Result<usize> {
        self.receive(bytes, until, RecvFlags::empty())
    }

    /// Like [`read`](Self::read), but leaves the bytes for the next read.
    #[cfg(feature = "tls")]
    pub(super) fn peek(&self, bytes: &mut [u8], until: Instant) -> io::Result<usize> {
        self.receive(bytes, until, RecvFlags::PEEK)
    }

    fn receive(&self, bytes: &mut [u8], until: Instant, how: RecvFlags) -> io::Result<usize> {
        let mut left = Instant::now().until(until);
        let mut blocks = left >= TOO_SHORT_TO_BLOCK;
        loop {
            if !blocks && !left.is_zero() {
                wait(&self.0, PollFlags::IN, left)?;
            }
            let flags = if blocks {
                how
            } else {
                how | RecvFlags::DONTWAIT
            };
            match recv(&self.0, &mut *bytes, flags) {
                Ok((count, _)) => return Ok(count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if left.is_zero() => return Err(timed_out()),
                Err(Errno::AGAIN) => blocks = false,
                Err(error) => return Err(error.into()),
            }
            left = Instant::now().until(until);
            blocks &= left >= TOO_SHORT_TO_BLOCK;
        }
    }

    /// Writes at least a part of `bytes`, by `until`.
    pub(in crate::redis) fn write(&self, bytes: &[u8], until: Instant) -> io::Result<usize> {
        loop {
            match send(&self.0, bytes, flags_of_send()) {
                Ok(count) => return Ok(count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let left = Instant::now().until(until);
                    if left.is_zero() {
                        return Err(timed_out());
                    }
                    wait(&self.0, PollFlags::OUT, left)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(super) fn write_all(&self, mut bytes: &[u8], until: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            let count = self.write(bytes, until)?;
            bytes = bytes.get(count..).unwrap_or_default();
        }
        Ok(())
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns the flags for sending what the socket takes at once.
///
/// A closed peer must be an error and not a signal. On systems without `NOSIGNAL`, the socket was
/// created with an equivalent option.
pub(crate) fn flags_of_send() -> SendFlags {
    #[cfg(not(target_vendor = "apple"))]
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    #[cfg(target_vendor = "apple")]
    let flags = SendFlags::DONTWAIT;
    flags
}

/// Starts to connect to `address`, without waiting.
fn begin_connect(address: &SocketAddr) -> io::Result<OwnedFd> {
    let socket = RawSocket::new(
        Domain::for_address(*address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_nonblocking(true)?;
    match socket.connect(&(*address).into()) {
        // A signal that interrupts the call does not end the attempt.
        Err(error) if ![Errno::INPROGRESS, Errno::INTR].contains(&errno(&error)) => Err(error),
        _ => Ok(socket.into()),
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Waits until the socket is ready for `what`, for at most `left`, and possibly less.
fn wait(socket: &OwnedFd, what: PollFlags, left: Duration) -> io::Result<()> {
    wait_for(
        &mut [PollFd::new(socket, what)],
        Some(left.min(LONGEST_SLEEP)),
    )
}

/// Waits until one of the sockets can be read, or written if that is wanted, for at most `left` if
/// that is given. Returns which of them are ready.
#[expect(single_use_lifetimes, reason = "unstable without the name")]
pub(crate) fn wait_for_sockets<'a>(
    sockets: impl Iterator<Item = (BorrowedFd<'a>, bool)>,
    left: Option<Duration>,
) -> io::Result<Vec<bool>> {
    let polled = sockets.map(|(socket, is_written)| {
        let flags = if is_written {
            PollFlags::IN | PollFlags::OUT
        } else {
            PollFlags::IN
        };
        PollFd::from_borrowed_fd(socket, flags)
    });
    let mut polled: Vec<_> = polled.collect();
    wait_for(&mut polled, left)?;
    Ok(polled.iter().map(|fd| !fd.revents().is_empty()).collect())
}

fn wait_for(sockets: &mut [PollFd<'_>], left: Option<Duration>) -> io::Result<()> {
    let timeout = left.map(|left| Timespec {
        tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: left.subsec_nanos().into(),
    });
    match poll(sockets, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

pub(in crate::redis) fn timed_out() -> io::Error {
    io::ErrorKind::TimedOut.into()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::TcpListener;

    use support::Swallowing;

    use super::*;

    #[test]
    fn attempts_that_lose_are_closed_and_the_winner_waits_for_its_bytes() {
        let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let addresses = listeners.each_ref().map(|one| one.local_addr().unwrap());
        let settings = TcpSettings::default();
        let until = Instant::now().after(Duration::from_secs(30));
        let connected = Socket::connect_tcp(&addresses, &settings, Duration::ZERO, until);
        let (socket, winner) = connected.unwrap();
        for (listener, address) in listeners.iter().zip(addresses) {
            let (mut peer, _) = listener.accept().unwrap();
            if address == winner {
                let soon = Instant::now().after(Duration::from_millis(60));
                let error = socket.read(&mut [0], soon).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::TimedOut);
                assert!(Instant::now() >= soon, "the read has not waited");
            } else {
                assert_eq!(peer.read(&mut [0]).unwrap(), 0, "{address} is still open");
            }
        }
    }

    #[test]
    fn attempts_end_at_the_deadline_however_many_there_are() {
        let address = ([127, 0, 0, 1], support::free_port()).into();
        let _swallowing = Swallowing::at(address);
        let addresses = [address; 40];
        let began = Instant::now();
        let until = began.after(Duration::from_millis(100));
        let delay = Duration::from_millis(10);
        let connected = Socket::connect_tcp(&addresses, &TcpSettings::default(), delay, until);
        assert_eq!(connected.err().unwrap().kind(), io::ErrorKind::TimedOut);
        let took = began.until(Instant::now());
        assert!(took >= Duration::from_millis(100) && took < Duration::from_secs(10));
    }
}
