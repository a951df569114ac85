//! The thread of a server: waits for its sockets, and serves them one after the other.

use std::io::{PipeReader, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::port::Listener;
use super::shared::Shared;
use super::state::{FOREIGN_TTL, ServerState};

/// How often foreign holders renew their leases.
const RENEW_EVERY: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// The pause before the thread accepts connections again after the process had no file descriptor
/// left. The connections that wait keep the listener ready: without a pause the thread would spin.
const ACCEPT_AGAIN_AFTER: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// A socket that the thread waits for. This value keeps it open meanwhile: the system could give
/// the number of a closed descriptor to another file.
enum PolledSocket {
    Listener(Arc<Listener>),
    Connection {
        id: u64,
        socket: Arc<OwnedFd>,
        has_output: bool,
    },
}

impl PolledSocket {
    fn poll_fd(&self) -> PollFd<'_> {
        let (fd, flags): (BorrowedFd<'_>, _) = match self {
            Self::Listener(listener) => (listener.as_fd(), PollFlags::IN),
            Self::Connection {
                socket,
                has_output: false,
                ..
            } => (socket.as_fd(), PollFlags::IN),
            Self::Connection { socket, .. } => (socket.as_fd(), PollFlags::IN | PollFlags::OUT),
        };
        PollFd::from_borrowed_fd(fd, flags)
    }
}

/// Serves until the server stops. Then its sockets are closed.
pub(super) fn serve(shared: &Shared, mut woken: PipeReader) {
    let mut sockets = Vec::new();
    let mut can_accept = true;
    loop {
        // Drops the clones of the listeners before the round is announced. A closed port refuses
        // connections only when the last clone is dropped, and `Shared::change` returns when the
        // round is announced.
        sockets.clear();
        let mut state = shared.state.lock();
        state.rounds += 1;
        shared.round.notify_all();
        if state.is_stopping {
            state.connections.clear();
            state.port.end();
            return;
        }
        state.renew_foreign(FOREIGN_TTL);
        list_sockets(&state, can_accept, &mut sockets);
        let timeout = if can_accept {
            (!state.foreign.is_empty()).then_some(&RENEW_EVERY)
        } else {
            Some(&ACCEPT_AGAIN_AFTER)
        };
        drop(state);

        let mut polled = vec![PollFd::new(&woken, PollFlags::IN)];
        polled.extend(sockets.iter().map(PolledSocket::poll_fd));
        // Fails if a signal arrived: then nothing is ready.
        let _ = poll(&mut polled, timeout);
        let ready: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(polled);

        let (is_woken, ready) = match ready.split_first() {
            Some((woken, ready)) => (*woken, ready),
            None => continue,
        };
        if is_woken {
            let _ = woken.read(&mut [0; 64]);
        }
        can_accept = handle(&mut shared.state.lock(), &sockets, ready);
    }
}

/// Lists the sockets to wait for: none while the server is paused.
fn list_sockets(state: &ServerState, can_accept: bool, sockets: &mut Vec<PolledSocket>) {
    if state.faults.pauses > 0 {
        return;
    }
    if can_accept {
        let listeners = state.port.listeners().map(Arc::clone);
        sockets.extend(listeners.map(PolledSocket::Listener));
    }
    for (id, connection) in &state.connections {
        sockets.push(PolledSocket::Connection {
            id: *id,
            socket: Arc::clone(&connection.socket),
            has_output: !connection.output.is_empty(),
        });
    }
}

/// Serves the sockets that are ready; returns false if connections could not be accepted.
fn handle(state: &mut ServerState, sockets: &[PolledSocket], ready: &[bool]) -> bool {
    let mut can_accept = true;
    // A test may have begun a fault since the sockets were ready.
    if state.faults.pauses > 0 {
        return can_accept;
    }
    for (socket, _) in sockets.iter().zip(ready).filter(|(_, ready)| **ready) {
        match socket {
            PolledSocket::Listener(listener) => can_accept &= state.accept(listener),
            PolledSocket::Connection { id, .. } => state.receive(*id),
        }
    }
    can_accept
}
