//! One connection of the subscriber thread, to a server or to a sentinel: when it is made, and when
//! it ends.
//!
//! ```text
//!           it is wanted             a job has connected
//!   +------+ -------> +------------+ ------> +-----------+ --+
//!   | none |          | connecting |         | listening |   | message, reply
//!   +------+ <------- +------------+         +-----------+ <-+
//!      |  ^   failure                              |
//!      |  +----------------------------------------+ failure, or the peer may have been replaced
//!      +---+
//!  a pause, unless it is the first failure since a success
//! ```
//!
//! A connection is a success once it has delivered a message or has lived for 5 s: a server or
//! proxy may answer SUBSCRIBE on each, and then close it.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;

use crossbeam_channel::{Receiver, TryRecvError};

use crate::clock::Instant;
use crate::redis::Connection;
use crate::runtime::endpoint::Endpoint;
use crate::runtime::state::Runtime;
use crate::runtime::subscriber::Ended;
use crate::runtime::subscriber::pubsub::{PubSub, Received};
use crate::wait_policy::{LIVES, RECONNECT, SHORT_LIVED};

/// The server or sentinel at the other end of a connection.
pub(super) trait Peer {
    /// Returns the server, if it is none of the sentinels.
    fn endpoint(&self) -> Option<&Arc<Endpoint>>;

    /// Returns whether there must be a connection.
    fn is_wanted(&self) -> bool;

    /// Returns a job that connects.
    fn connect(&self, runtime: &Runtime) -> ConnectJob;

    /// Subscribes on a new connection.
    fn connected(&mut self, connection: Connection) -> Result<PubSub, String>;

    fn handle(&mut self, runtime: &Runtime, received: Received) -> Result<(), Ended>;

    /// Sends what must be sent by now. Returns when to call this again, although no other thread
    /// has woken this one.
    fn turn(&mut self, pubsub: &mut PubSub) -> Result<Instant, Ended>;

    /// Records the end of a connection, or of an attempt to make one; `is_first` unless another
    /// one has failed since the last success. Returns whether this one counts as a failure.
    fn ended(&mut self, runtime: &Runtime, ended: &Ended, is_first: bool) -> bool;
}

pub(super) type ConnectJob = Box<dyn FnOnce() -> Result<Connection, String> + Send>;

pub(super) struct Link {
    peer: Box<dyn Peer>,
    /// The socket may have something to read.
    pub(super) is_ready: bool,
    connecting: Option<Receiver<Result<Connection, String>>>,
    pubsub: Option<PubSub>,
    /// When the turn of the peer is due.
    turn_at: Instant,
    /// When the connection was made.
    made: Option<Instant>,
    /// How many attempts to connect have failed since a connection was made.
    failures: u32,
    /// How many connections have ended early since the last success.
    short_lived: u32,
    /// There was a failure since the last success.
    is_failing: bool,
    /// The end of the pause after a failure.
    retry_at: Option<Instant>,
}

impl Link {
    pub(super) fn new(peer: impl Peer + 'static) -> Self {
        Self {
            peer: Box::new(peer),
            is_ready: false,
            connecting: None,
            pubsub: None,
            turn_at: Instant::START,
            made: None,
            failures: 0,
            short_lived: 0,
            is_failing: false,
            retry_at: None,
        }
    }

    pub(super) fn endpoint(&self) -> Option<&Arc<Endpoint>> {
        self.peer.endpoint()
    }

    /// Returns the socket to wait for, and whether it must take more bytes.
    pub(super) fn socket(&self) -> Option<(BorrowedFd<'_>, bool)> {
        let pubsub = self.pubsub.as_ref();
        pubsub.map(|pubsub| (pubsub.as_fd(), pubsub.has_unsent()))
    }

    /// Returns when the next [`turn`](Self::turn) is due, although nothing has arrived.
    pub(super) fn due(&self) -> Instant {
        match &self.pubsub {
            Some(pubsub) => pubsub.due().min(self.turn_at),
            None => self.retry_at.unwrap_or(Instant::NEVER),
        }
    }

    /// Does what there is to do; `is_woken` if other threads may have changed that.
    pub(super) fn turn(&mut self, runtime: &Runtime, is_woken: bool) {
        let begun = self.begin();
        if let Err(ended) = begun.and_then(|()| self.listen(runtime, is_woken)) {
            self.end(runtime, &ended);
        }
        self.retry_at = self.retry_at.filter(|at| *at > Instant::now());
        let is_needed = self.pubsub.is_none() && self.connecting.is_none();
        if is_needed && self.retry_at.is_none() && self.peer.is_wanted() {
            let (thread, job) = (
                &runtime.endpoints.subscriber_thread,
                self.peer.connect(runtime),
            );
            self.connecting = Some(thread.delegate(&runtime.config.dialers, job));
        }
    }

    /// Takes the connection that a job has made, if it has, and subscribes on it.
    fn begin(&mut self) -> Result<(), Ended> {
        let made = match self.connecting.as_ref().map(Receiver::try_recv) {
            None | Some(Err(TryRecvError::Empty)) => return Ok(()),
            Some(Ok(made)) => made,
            Some(Err(TryRecvError::Disconnected)) => Err("no thread could connect".into()),
        };
        self.connecting = None;
        let connection = made?;
        (self.made, self.failures) = (Some(Instant::now()), 0);
        self.pubsub = Some(self.peer.connected(connection)?);
        self.turn_at = Instant::START;
        Ok(())
    }

    fn listen(&mut self, runtime: &Runtime, is_woken: bool) -> Result<(), Ended> {
        let Some(pubsub) = &mut self.pubsub else {
            return Ok(());
        };
        while let Some(received) = pubsub.next(&mut self.is_ready)? {
            if matches!(received, Received::Message(..)) {
                (self.short_lived, self.is_failing) = (0, false);
            }
            self.peer.handle(runtime, received)?;
        }
        if is_woken || self.turn_at <= Instant::now() {
            self.turn_at = self.peer.turn(pubsub)?;
        }
        Ok(())
    }

    fn end(&mut self, runtime: &Runtime, ended: &Ended) {
        self.pubsub = None;
        self.is_ready = false;
        let now = Instant::now();
        let made = self.made.take();
        if made.is_some_and(|made| made.until(now) >= LIVES) {
            (self.short_lived, self.is_failing) = (0, false);
        }
        // A working connection that ends is replaced without a pause.
        let (count, pauses) = match made {
            Some(_) => (&mut self.short_lived, SHORT_LIVED),
            None => (&mut self.failures, RECONNECT),
        };
        let pause = count.checked_sub(1).map(|n| pauses.pause(n));
        self.retry_at = pause.map(|pause| now.after(pause));
        if self.peer.ended(runtime, ended, !self.is_failing) {
            *count = count.saturating_add(1);
            self.is_failing = true;
        }
    }
}
