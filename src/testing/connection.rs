//! A connection of a client to the server.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv, send};

use crate::redis::conn::socket::flags_of_send;

use super::resp::Protocol;

/// How many bytes are read at once.
const CHUNK: usize = 16 * 1024;

pub(super) struct ClientConnection {
    pub(super) socket: Arc<OwnedFd>,
    /// Received and not yet served: part of a request.
    pub(super) input: Vec<u8>,
    /// Replies and messages that the socket has not taken yet.
    pub(super) output: Vec<u8>,
    pub(super) protocol: Protocol,
    /// The number of the database that the client has selected.
    pub(super) database: u32,
    pub(super) name: Vec<u8>,
    /// How many channels the client is subscribed to.
    pub(super) channels: usize,
    /// A fault dropped a reply. Nothing more is sent: the client would take a later reply for the
    /// dropped one.
    pub(super) is_mute: bool,
    /// The connection closes once `output` is sent.
    pub(super) is_ending: bool,
}

impl ClientConnection {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self {
            socket: Arc::new(socket),
            input: Vec::new(),
            output: Vec::new(),
            protocol: Protocol::default(),
            database: 0,
            name: Vec::new(),
            channels: 0,
            is_mute: false,
            is_ending: false,
        }
    }

    /// Reads what has arrived. Returns false if the peer has closed the connection, or if the
    /// connection is broken.
    pub(super) fn receive(&mut self) -> bool {
        let mut bytes = [0; CHUNK];
        loop {
            match recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return false,
                Ok((_, count)) => {
                    self.input
                        .extend_from_slice(bytes.get(..count).unwrap_or(&bytes));
                    if count < CHUNK {
                        return true;
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Sends as much as the socket takes. Returns false if the connection is broken or has ended.
    pub(super) fn send(&mut self) -> bool {
        if self.is_mute {
            self.output.clear();
        }
        let mut sent = 0;
        while let Some(rest) = self.output.get(sent..).filter(|rest| !rest.is_empty()) {
            match send(&self.socket, rest, flags_of_send()) {
                Ok(count) => sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => return false,
            }
        }
        self.output.drain(..sent);
        !(self.is_ending && self.output.is_empty())
    }
}
