//! Wakes a thread that sleeps in `poll`: a pipe, and a flag that saves writes to it.

use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::iter;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task;
use std::time::Duration;
use std::vec;

use rustix::io::ioctl_fionbio;

use crate::clock::sleep;
use crate::error::Error;
use crate::logging;
use crate::redis::wait_for_sockets;
use crate::shortage::Shortage;

/// The pause after a failure of `poll`, which only a lack of memory causes.
const POLL_AGAIN: Duration = Duration::from_millis(10);

/// The wake-up of one thread. That thread has an inbox, which others fill before they wake it, and
/// in each turn of its loop it
///
/// 1. sleeps until this can be read, or for a limited time,
/// 2. calls [`drain`](Self::drain),
/// 3. and reads its inbox.
#[derive(Debug)]
pub(in crate::runtime) struct Wake<P = Pipe> {
    pipe: P,
    /// A byte has been written, or is about to be, that the thread has not read.
    is_armed: AtomicBool,
}

impl Wake {
    /// # Errors
    ///
    /// [`Error::Shortage`] if the system has no pipe left.
    pub(in crate::runtime) fn new() -> Result<Self, Error> {
        let pipe = Pipe::new().map_err(Shortage::of_pipe)?;
        Ok(Self::of(pipe))
    }
}

impl<P: Signal> Wake<P> {
    const fn of(pipe: P) -> Self {
        Self {
            pipe,
            is_armed: AtomicBool::new(false),
        }
    }

    /// Wakes the thread. Call it after the inbox has been filled.
    pub(in crate::runtime) fn wake(&self) {
        if !self.is_armed.swap(true, Ordering::SeqCst) {
            self.pipe.write();
        }
    }

    /// Takes the wake-ups that have arrived, without blocking.
    ///
    /// The pipe comes before the flag. The other way round, a byte that is written in between would
    /// be read here, the flag would stay set, and nobody would wake the thread any more.
    pub(in crate::runtime) fn drain(&self) {
        self.pipe.read();
        self.is_armed.store(false, Ordering::SeqCst);
    }
}

impl Wake {
    /// Sleeps until this can be read, one of the `sockets` can be read, or written if that is
    /// wanted, or `left` is over, if that is given. Returns whether the thread was woken, and which
    /// of the sockets are ready.
    ///
    /// If the system cannot wait, logs that of `thread`, and pauses.
    pub(in crate::runtime) fn wait<'a>(
        &'a self,
        sockets: impl Iterator<Item = (BorrowedFd<'a>, bool)>,
        left: Option<Duration>,
        thread: &str,
    ) -> (bool, vec::IntoIter<bool>) {
        let wake = iter::once((self.pipe.reader.as_fd(), false));
        let ready = wait_for_sockets(wake.chain(sockets), left).unwrap_or_else(|error| {
            logging::error!("the {thread} cannot wait for its sockets: {error}");
            sleep(POLL_AGAIN);
            Vec::new()
        });
        let mut ready = ready.into_iter();
        (ready.next() == Some(true), ready)
    }
}

/// For the pools, which know nothing of the threads of the client.
impl task::Wake for Wake {
    fn wake(self: Arc<Self>) {
        Self::wake(&self);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        Self::wake(self);
    }
}

/// The channel that carries the bytes; the model of the tests has its own.
pub(in crate::runtime) trait Signal {
    fn write(&self);

    /// Reads all bytes that have arrived.
    fn read(&self);
}

#[derive(Debug)]
pub(in crate::runtime) struct Pipe {
    reader: PipeReader,
    writer: PipeWriter,
}

impl Pipe {
    fn new() -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        // A thread that finds the pipe empty must not block, and neither must one that finds it
        // full.
        ioctl_fionbio(&reader, true)?;
        ioctl_fionbio(&writer, true)?;
        Ok(Self { reader, writer })
    }
}

impl Signal for Pipe {
    fn write(&self) {
        // Fails only if the pipe is full, and the thread then wakes in any case.
        let _ = (&self.writer).write(&[0]);
    }

    fn read(&self) {
        // More bytes than one come only from threads that were paused within `wake`. If some are
        // left, the next sleep ends at once.
        let _ = (&self.reader).read(&mut [0; 64]);
    }
}

#[cfg(test)]
mod tests;
