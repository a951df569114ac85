//! The server of a test.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::api::client::Client;
use crate::runtime::live_clients;

use super::foreign::{self, Foreign};
use super::guards::{Cut, Pause, Refusal};
use super::port::Port;
use super::serve::serve;
use super::shared::Shared;
use super::state::ServerState;

/// A Redis in this process, with its own port, data and clock.
///
/// It ends when it is dropped: its thread is joined, and its port is closed. Starting one takes
/// less than 2 ms, so each test can have its own.
///
/// ```
/// use leasehold::testing::Server;
///
/// let server = Server::start();
/// let client = server.client();
/// let guard = client.mutex("account:123").lock()?;
/// assert!(server.is_locked("account:123"));
/// drop(guard);
/// # Ok::<(), leasehold::Error>(())
/// ```
pub struct Server {
    shared: Arc<Shared>,
    url: String,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a server on a free port of this machine.
    ///
    /// ```
    /// use leasehold::testing::Server;
    ///
    /// let server = Server::start();
    /// let reply_time = server.client().ping()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If the system has no port, file descriptor or thread left. A server needs three descriptors,
    /// and one for each connection: a thousand servers need `ulimit -n 4096`.
    pub fn start() -> Self {
        Self::listen(0, None)
            .unwrap_or_else(|error| panic!("cannot start a testing::Server: {error}"))
    }

    /// Starts a server on this port of the machine, and on this Unix socket if one is given.
    ///
    /// It is for a program that takes the place of `redis-server`. Port 0 takes a free one. A file
    /// at the path of the socket is replaced, and removed when the server ends. Tests need neither:
    /// see [`start`](Self::start).
    ///
    /// ```
    /// use leasehold::testing::Server;
    ///
    /// let server = Server::listen(0, None)?;
    /// println!("a Redis for tests is at {}", server.url());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the port is taken, the socket cannot be created, or the system has no file descriptor or
    /// thread left.
    pub fn listen(port: u16, unix_socket: Option<&Path>) -> io::Result<Self> {
        let port = Port::open(port, unix_socket)?;
        let url = format!("redis://127.0.0.1:{}", port.number);
        let (shared, woken) = Shared::new(ServerState::new(port))?;
        let shared = Arc::new(shared);
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("testing-server".into())
            .spawn(move || serve(&of_thread, woken))?;
        Ok(Self {
            shared,
            url,
            thread: Some(thread),
        })
    }

    /// Returns the URL, for [`ClientBuilder::url`](crate::ClientBuilder::url).
    ///
    /// ```
    /// use std::time::Duration;
    /// use leasehold::{Client, testing::Server};
    ///
    /// let server = Server::start();
    /// let timeout = Duration::from_millis(100);
    /// let client = Client::builder().url(server.url()).command_timeout(timeout).build()?;
    /// # client.ping()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns a new client of this server, with the default settings.
    ///
    /// For other settings, call `Client::builder().url(server.url())`.
    ///
    /// ```
    /// # use leasehold::testing::Server;
    /// # let server = Server::start();
    /// // Two clients of one server are like two processes.
    /// let (one, two) = (server.client(), server.client());
    /// let guard = one.mutex("seat:12A").lock()?;
    /// assert!(two.mutex("seat:12A").try_lock()?.is_err());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn client(&self) -> Client {
        match Client::open(&self.url) {
            Ok(client) => client,
            Err(error) => unreachable!("{} is a valid URL: {error}", self.url),
        }
    }

    /// Moves the server's clock ahead: leases and queues that end within `time` expire.
    ///
    /// The clock moves by a millisecond more, because a key of Redis exists until the end of its
    /// last millisecond. It moves by 100 years at most, in all calls together.
    ///
    /// The clock of this process does not move: see [`suspend`](super::suspend). The clients of the
    /// test's process immediately check the leases that have expired, and their waiting calls try
    /// again. Redis announces no expiry: a client elsewhere notices the end of its lease at its
    /// next renewal, and a waiting call at its next refresh, after at most 0.9 s.
    ///
    /// A [`Foreign`] holder renews its lease while the time passes.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::testing::Server;
    /// # let server = Server::start();
    /// server.hold("seat:12A").forget();
    /// assert!(server.is_locked("seat:12A"));
    /// server.advance(Duration::from_secs(10));
    /// assert!(!server.is_locked("seat:12A"));
    /// ```
    pub fn advance(&self, time: Duration) {
        let expired = self
            .shared
            .change(|state| state.ended_by(|state| state.advance(time)));
        let address = self.url.trim_start_matches("redis://");
        for client in live_clients::all() {
            for holder in &expired {
                client.suspect_lease(holder);
            }
            client.wake_waiters_of(address);
        }
    }

    /// Lets another client acquire a lock, with a ttl of 10 s.
    ///
    /// The name is that of a lock of a client with the default prefixes, in database 0. The other
    /// client excludes every lock of the name: of an [`RwLock`](crate::RwLock), both readers and
    /// writers. It does not affect a semaphore of the name.
    ///
    /// ```
    /// # use leasehold::testing::Server;
    /// # let server = Server::start();
    /// # let client = server.client();
    /// let somebody = server.hold("account:123");
    /// assert!(client.mutex("account:123").try_lock()?.is_err());
    /// drop(somebody);
    /// assert!(client.mutex("account:123").try_lock()?.is_ok());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If the lock is taken, or its key is of another type.
    #[track_caller]
    pub fn hold(&self, name: &str) -> Foreign {
        match Foreign::hold(&self.shared, name) {
            Ok(foreign) => foreign,
            Err(reason) => panic!("nobody else can acquire {name}: {reason}"),
        }
    }

    /// Takes a lock away from its holder, as if the holder had released it.
    ///
    /// Deletes the lock's key, and grants the lock to the first in its queue. If no call waits
    /// there, announces that the lock is free. All readers of a read-write lock, and all holders of
    /// permits of a semaphore, lose theirs. To take the permits of one holder only, call
    /// [`Semaphore::force_release`](crate::Semaphore::force_release): the holder learns of that at
    /// its next renewal.
    ///
    /// The name is that of a lock or semaphore of a client with the default prefixes, in database
    /// 0. If a lock and a semaphore share it, the holders of both lose. When this returns, they
    /// have lost their keys. A holder that is a client of this process then checks the lock with
    /// one round trip: wait for [`lost`](crate::Lease::lost).
    ///
    /// ```
    /// # use leasehold::testing::Server;
    /// # let server = Server::start();
    /// # let client = server.client();
    /// use leasehold::Lost;
    ///
    /// let guard = client.mutex("account:123").lock()?;
    /// server.lose("account:123");
    /// assert_eq!(guard.lost().recv(), Ok(Lost::Deleted));
    /// assert!(!guard.is_held());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// A client in another process notices the loss at its next renewal, or at once if it receives
    /// the announcement. It receives one only if a call of it waits for the lock, or did shortly
    /// before.
    ///
    /// # Panics
    ///
    /// If nobody has the lock.
    #[track_caller]
    pub fn lose(&self, name: &str) {
        assert!(
            foreign::lose(&self.shared, name),
            "nobody has {name} (key lock:{name} of database 0)"
        );
    }

    /// Stops answering until the guard is dropped, as a stopped process does.
    ///
    /// Connections stay open, new ones are not accepted, and nothing is run. When this returns,
    /// nothing more is answered. Commands that arrive meanwhile run when the guard is dropped, even
    /// if their callers no longer wait.
    ///
    /// ```
    /// # use leasehold::testing::Server;
    /// # let server = Server::start();
    /// # let client = server.client();
    /// let guard = client.mutex("seat:12A").lock()?;
    /// let pause = server.pause();
    /// assert!(guard.is_held()); // the lease lasts, whether Redis answers or not
    /// drop(pause);
    /// drop(guard);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn pause(&self) -> Pause {
        Pause::begin(&self.shared)
    }

    /// Breaks all connections and refuses new ones, until the guard is dropped. The data stays.
    ///
    /// New connections to the Unix socket of [`listen`](Self::listen) are closed at once.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::testing::Server;
    /// # let server = Server::start();
    /// # let client = server.client();
    /// let outage = server.cut();
    /// let limit = Duration::from_millis(20);
    /// let error = client.mutex("seat:12A").try_lock_for(limit).unwrap_err();
    /// assert!(error.is_unreachable());
    /// ```
    ///
    /// # Panics
    ///
    /// If the process has no file descriptor left: the server needs one to reserve its port.
    pub fn cut(&self) -> Cut {
        Cut::begin(&self.shared)
    }

    /// Answers every script with an error, and runs none, until the guard is dropped.
    ///
    /// ```
    /// # use leasehold::testing::Server;
    /// # let server = Server::start();
    /// # let client = server.client();
    /// let refusal = server.refuse("OOM command not allowed when used memory > 'maxmemory'.");
    /// assert!(client.mutex("account:123").try_lock().is_err());
    /// drop(refusal);
    /// assert!(client.mutex("account:123").try_lock().is_ok());
    /// ```
    pub fn refuse(&self, error: &str) -> Refusal {
        Refusal::begin(&self.shared, error)
    }

    /// Runs the next `count` scripts without a reply.
    ///
    /// Their connections stay open, and get no later replies either. The script takes effect, but
    /// its caller receives no reply. The caller waits for it until its deadline, or for the
    /// [command timeout](crate::ClientBuilder::command_timeout).
    ///
    /// `count` replaces an earlier count; 0 ends the fault.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::testing::Server;
    /// # let server = Server::start();
    /// # let client = server.client();
    /// server.drop_replies(1);
    /// let limit = Duration::from_millis(20);
    /// let error = client.mutex("seat:12A").try_lock_for(limit).unwrap_err();
    /// assert!(error.may_be_held());
    /// ```
    pub fn drop_replies(&self, count: u64) {
        self.shared
            .change(|state| state.faults.replies_to_drop = count);
    }

    /// Loses the next `count` messages that scripts publish to subscribed clients.
    ///
    /// They are those of releases, and of grants to calls that wait in a queue. A message without
    /// receivers does not count.
    ///
    /// `count` replaces an earlier count; 0 ends the fault.
    ///
    /// ```
    /// # use leasehold::testing::Server;
    /// # let server = Server::start();
    /// # let client = server.client();
    /// let guard = client.mutex("seat:12A").lock()?;
    /// server.drop_messages(1);
    /// drop(guard); // a call that waits finds the lock free at its next refresh
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn drop_messages(&self, count: u64) {
        self.shared
            .change(|state| state.database.lock().messages_to_drop = count);
    }

    /// Returns the keys that exist, sorted.
    ///
    /// A name that was ever locked leaves its last fencing token for 24 to 25 hours, in
    /// `leasehold:fence:{lock:<name>}`.
    ///
    /// ```
    /// # use leasehold::testing::Server;
    /// # let server = Server::start();
    /// # let client = server.client();
    /// let guard = client.mutex("seat:12A").lock()?;
    /// assert!(server.keys().contains(&"lock:seat:12A".to_owned()));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn keys(&self) -> Vec<String> {
        let mut state = self.shared.state.lock();
        state.prepare(0);
        state.database.lock().keys()
    }

    /// Returns whether a lock is held, by any client or by a [`Foreign`] holder.
    ///
    /// The name is like that of [`hold`](Self::hold).
    ///
    /// ```
    /// # use leasehold::testing::Server;
    /// # let server = Server::start();
    /// let guard = server.client().mutex("account:123").lock()?;
    /// assert!(server.is_locked("account:123"));
    /// drop(guard);
    /// assert!(!server.is_locked("account:123"));
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn is_locked(&self, name: &str) -> bool {
        foreign::is_locked(&self.shared, name)
    }

    /// Returns how many commands clients have sent. One that runs a script counts once.
    ///
    /// The count includes those that open a connection, such as `HELLO`, those that check it, and
    /// renewals. To test that nothing polls, compare two readings while the program waits.
    ///
    /// ```
    /// # use leasehold::testing::Server;
    /// # let server = Server::start();
    /// # let client = server.client();
    /// let guard = client.mutex("seat:12A").lock()?;
    /// let before = server.commands();
    /// drop(guard);
    /// println!("the release took {} commands", server.commands() - before);
    /// # assert!(server.commands() > before);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn commands(&self) -> u64 {
        self.shared.state.lock().calls.values().sum()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed when it happened.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}
