//! The token with which a thread cancels the calls of others.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::mem;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::clock::Instant;
use crate::parker::Parker;
use crate::process::Process;
use crate::sync::{AtomicBool, Mutex, Thread, ThreadId};

/// Cancels calls that acquire a lock, from another thread.
///
/// A setter such as [`Mutex::cancel_on`](crate::Mutex::cancel_on) gives the token to a lock. Once
/// the token is [cancelled](Self::cancel), every call that still waits for such a lock or asks
/// Redis for it fails with [`Error::Cancelled`](crate::Error::Cancelled), and so does every later
/// call that acquires it. Locks without the token, and locks that are held already, are not
/// affected. All clones of a token are cancelled together.
///
/// A token belongs to the process that made it. In a fork of that process it cancels nothing, and
/// calls with it fail with [`Error::Forked`](crate::Error::Forked): make another token there.
///
/// ```
/// use std::thread;
/// use leasehold::{CancelToken, Error};
///
/// # let server = leasehold::testing::Server::start();
/// # let client = server.client();
/// let token = CancelToken::new();
/// let report = client.mutex("report").cancel_on(&token);
/// # let _other = server.hold("report");
/// let waiting = thread::spawn(move || report.lock().map(drop));
/// token.cancel(); // the user has closed the window
/// assert!(matches!(waiting.join().unwrap(), Err(Error::Cancelled)));
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
pub struct CancelToken(Arc<CancelChannel>);

struct CancelChannel {
    process: Process,
    is_cancelled: AtomicBool,
    /// Dropped by `cancel`, which disconnects the receiver. Nothing is ever sent.
    sender: Mutex<Option<Sender<Infallible>>>,
    receiver: Receiver<Infallible>,
    /// The threads that sleep in a call with the token.
    asleep: Mutex<HashMap<ThreadId, Thread>>,
}

impl CancelToken {
    /// Returns a token that is not cancelled.
    ///
    /// ```
    /// # use leasehold::CancelToken;
    /// assert!(!CancelToken::new().is_cancelled());
    /// ```
    pub fn new() -> Self {
        let (sender, receiver) = bounded(0);
        Self(Arc::new(CancelChannel {
            process: Process::current(),
            is_cancelled: AtomicBool::new(false),
            sender: Mutex::new(Some(sender)),
            receiver,
            asleep: Mutex::default(),
        }))
    }

    /// Cancels all calls that acquire a lock with this token, including every later one.
    ///
    /// Returns without waiting for those calls to end. Cancelling again does nothing.
    ///
    /// ```
    /// # use leasehold::CancelToken;
    /// let token = CancelToken::new();
    /// token.clone().cancel();
    /// assert!(token.is_cancelled());
    /// ```
    pub fn cancel(&self) {
        self.0.is_cancelled.store(true, Ordering::SeqCst);
        if self.process().is_forked() {
            return;
        }
        let sender = self.0.sender.lock().take();
        // Wakes threads of the program: not under the lock.
        drop(sender);
        let asleep = mem::take(&mut *self.0.asleep.lock());
        asleep.values().for_each(Thread::unpark);
    }

    /// Returns whether the token is cancelled.
    ///
    /// ```
    /// # use leasehold::CancelToken;
    /// let token = CancelToken::new();
    /// assert!(!token.is_cancelled());
    /// ```
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled.load(Ordering::SeqCst)
    }

    /// Returns a channel that is disconnected when the token is cancelled, for use with `select!`.
    ///
    /// It never receives a message. A clone of the receiver is also disconnected when all clones of
    /// the token, and all locks with it, have been dropped.
    ///
    /// ```
    /// # use leasehold::CancelToken;
    /// use leasehold::crossbeam_channel::select;
    ///
    /// let token = CancelToken::new();
    /// # token.cancel();
    /// # let lost = leasehold::crossbeam_channel::never::<leasehold::Lost>();
    /// select! {
    ///     recv(token.receiver()) -> _ => println!("the user has closed the window"),
    ///     recv(lost) -> why => println!("the lock was lost: {why:?}"),
    /// }
    /// ```
    pub fn receiver(&self) -> &Receiver<Infallible> {
        &self.0.receiver
    }

    /// Sleeps like [`Parker::park`], at most until the token is cancelled.
    pub(crate) fn park(&self, parker: &Parker, until: Instant) {
        let thread = parker.thread();
        // `cancel` changes the flag before it takes the list: it wakes a thread that is in the list
        // already, and one that comes later sees the flag.
        self.0.asleep.lock().insert(thread.id(), thread.clone());
        parker.park_unless(|| self.is_cancelled(), until);
        self.0.asleep.lock().remove(&thread.id());
    }

    /// The process that made the token.
    pub(crate) fn process(&self) -> Process {
        self.0.process
    }
}

impl Drop for CancelToken {
    fn drop(&mut self) {
        if self.process().is_forked() {
            // Disconnecting the channel takes its lock, which a thread of the parent may have held.
            std::mem::forget(Arc::clone(&self.0));
        }
    }
}

impl Default for CancelToken {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelToken")
            .field("is_cancelled", &self.is_cancelled())
            .finish()
    }
}

// A panic cannot leave a token half-changed.
impl UnwindSafe for CancelToken {}
impl RefUnwindSafe for CancelToken {}

#[cfg(test)]
mod tests;
