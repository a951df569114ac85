//! An acquire and a release, written by hand with the `redis` crate: by the scripts of the client
//! under test, and by the commands of other crates.

use std::sync::LazyLock;
use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::{Connection, IntoConnectionInfo, Script, ScriptInvocation};
use support::scripts::granted;
use uuid::Uuid;

/// The script by which a `Mutex` of the client under test acquires a lock.
pub use support::scripts::ACQUIRE;
/// The script by which a `Mutex` of that client releases a lock.
pub use support::scripts::COHORT_RELEASE as RELEASE;
/// The release script of a lock without a queue.
pub use support::scripts::RELEASE as RELEASE_WITHOUT_QUEUE;

/// The release script of other crates.
const COMPARE_AND_DELETE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                                  return redis.call('DEL', KEYS[1]) else return 0 end";

pub(super) const TTL_MS: u64 = 10_000;

/// Opens a connection with the same settings as the client under test.
pub fn connect(url: &str) -> Connection {
    let timeout = Duration::from_secs(1);
    let info = url.into_connection_info().unwrap();
    let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
    let connection = redis::Client::open(info)
        .unwrap()
        .get_connection_with_timeout(timeout)
        .unwrap();
    connection.set_read_timeout(Some(timeout)).unwrap();
    connection.set_write_timeout(Some(timeout)).unwrap();
    connection
}

/// One name, and the scripts that lock it.
pub(super) struct Named {
    acquire: Script,
    release: Script,
    lock: String,
    fence: String,
    /// The keys of the release script after the lock key.
    further_keys: Vec<String>,
    channel: String,
}

impl Named {
    pub(super) fn new(name: &str, acquire: &str, release: &str) -> Self {
        let lock = format!("lock:{name}");
        Self {
            acquire: Script::new(acquire),
            release: Script::new(release),
            fence: format!("leasehold:fence:{{{lock}}}"),
            // Only a script that uses the queue reads KEYS[4].
            further_keys: if release.contains("KEYS[4]") {
                queue_keys(&lock)[1..].to_vec()
            } else {
                Vec::new()
            },
            channel: channel(name),
            lock,
        }
    }

    pub(super) fn acquire(&self, id: &str) -> ScriptInvocation<'_> {
        let mut call = self.acquire.key(&self.lock);
        call.key(&self.fence).arg(id).arg(TTL_MS);
        call
    }

    pub(super) fn release(&self, id: &str) -> ScriptInvocation<'_> {
        let mut call = self.release.key(&self.lock);
        for key in &self.further_keys {
            call.key(key);
        }
        call.arg(id).arg(&self.channel);
        call
    }
}

/// Returns the keys of a script that uses the queue of a lock. The first is `lock` itself.
pub(super) fn queue_keys(lock: &str) -> Vec<String> {
    let others = ["fence", "queue", "places", "readers"];
    let others = others.map(|what| format!("leasehold:{what}:{{{lock}}}"));
    [lock.to_owned()].into_iter().chain(others).collect()
}

/// Returns a new holder id: every acquisition needs its own.
pub(super) fn fresh_id() -> String {
    static OWNER: LazyLock<String> = LazyLock::new(|| format!("bench/{}", std::process::id()));
    format!("{}:{}", *OWNER, Uuid::new_v4())
}

/// One name, locked by scripts over one connection.
pub struct Hand {
    connection: Connection,
    named: Named,
}

impl Hand {
    /// Uses the scripts that the client under test sends.
    pub fn new(url: &str, name: &str) -> Self {
        Self::with(url, name, ACQUIRE, RELEASE)
    }

    pub fn with(url: &str, name: &str, acquire: &str, release: &str) -> Self {
        Self {
            connection: connect(url),
            named: Named::new(name, acquire, release),
        }
    }

    /// Acquires the lock under a new id; `None` if it is held.
    pub fn acquire(&mut self) -> Option<String> {
        let id = fresh_id();
        let answer: redis::Value = (self.named.acquire(&id))
            .invoke(&mut self.connection)
            .unwrap();
        granted(&answer).map(|_| id)
    }

    pub fn release(&mut self, id: &str) {
        let answer = self.named.release(id).invoke(&mut self.connection);
        assert_eq!(answer, Ok(1), "the lock was lost before its release");
    }

    /// Acquires and releases the lock.
    pub fn pair(&mut self) {
        let id = self.acquire().expect("the name is free");
        self.release(&id);
    }

    /// Like `pair`, but sends `WAIT` for one replica in the same write as the acquire.
    pub fn acknowledged_pair(&mut self) {
        let id = fresh_id();
        let (answer, acknowledged): (redis::Value, usize) = redis::pipe()
            .invoke_script(&self.named.acquire(&id))
            .cmd("WAIT")
            .arg(1)
            .arg(100)
            .query(&mut self.connection)
            .unwrap();
        assert!(granted(&answer).is_some());
        assert_eq!(acknowledged, 1);
        self.release(&id);
    }
}

pub fn channel(name: &str) -> String {
    format!("lock_release:{name}")
}

/// One name, locked as other crates do: by `SET NX PX` and a compare-and-delete, with no fencing
/// token and no message to waiters.
pub struct Bare {
    connection: Connection,
    release: Script,
    key: String,
    expires: bool,
}

impl Bare {
    pub fn new(url: &str, name: &str) -> Self {
        Self {
            connection: connect(url),
            release: Script::new(COMPARE_AND_DELETE),
            key: format!("lock:{name}"),
            expires: true,
        }
    }

    /// A lock that ends only by its release: the default of redis-py.
    pub fn endless(url: &str, name: &str) -> Self {
        Self {
            expires: false,
            ..Self::new(url, name)
        }
    }

    /// Acquires the lock under a new id; `None` if it is held.
    pub fn acquire(&mut self) -> Option<String> {
        let id = Uuid::new_v4().to_string();
        let mut set = redis::cmd("SET");
        set.arg(&self.key).arg(&id).arg("NX");
        if self.expires {
            set.arg("PX").arg(TTL_MS);
        }
        let set: Option<String> = set.query(&mut self.connection).unwrap();
        set.is_some().then_some(id)
    }

    pub fn release(&mut self, id: &str) {
        let deleted: i64 = self
            .release
            .key(&self.key)
            .arg(id)
            .invoke(&mut self.connection)
            .unwrap();
        assert_eq!(deleted, 1, "the lock was lost before its release");
    }

    pub fn pair(&mut self) {
        let id = self.acquire().expect("the name is free");
        self.release(&id);
    }
}

/// The same on the servers of a quorum: each command goes to all of them before the first reply is
/// read.
pub struct BareQuorum {
    servers: Vec<Connection>,
    release: Script,
    key: String,
}

impl BareQuorum {
    pub fn new(urls: &[&str], name: &str) -> Self {
        let release = Script::new(COMPARE_AND_DELETE);
        let mut servers: Vec<Connection> = urls.iter().map(|url| connect(url)).collect();
        for server in &mut servers {
            release.prepare_invoke().load(server).unwrap();
        }
        Self {
            servers,
            release,
            key: format!("lock:{name}"),
        }
    }

    pub fn pair(&mut self, section: impl FnOnce()) {
        let id = Uuid::new_v4().to_string();
        let mut set = redis::cmd("SET");
        set.arg(&self.key).arg(&id).arg("NX").arg("PX").arg(TTL_MS);
        self.on_majority(&set);
        section();
        let mut release = redis::cmd("EVALSHA");
        release.arg(self.release.get_hash()).arg(1);
        self.on_majority(release.arg(&self.key).arg(&id));
    }

    fn on_majority(&mut self, command: &redis::Cmd) {
        let packed = command.get_packed_command();
        for server in &mut self.servers {
            server.send_packed_command(&packed).unwrap();
        }
        let done = |server: &mut Connection| {
            let answer = server.recv_response().unwrap();
            matches!(answer, redis::Value::Okay | redis::Value::Int(1))
        };
        let done = self.servers.iter_mut().map(done).filter(|done| *done);
        assert!(done.count() > 2, "no majority of 5 has the lock");
    }
}
