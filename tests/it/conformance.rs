//! Promise: a lock is the same lock wherever Redis runs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, ClientBuilder, Error, Lost, Unlocked};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use support::{
    Cluster, ClusterSetup, Control, Sentinels, Server, Setup, Watchdog, eventually, ms, watchdog,
};
#[cfg(feature = "tls")]
use support::{free_port, read_pem, tls_server};

/// What a call may be later than a plain wait of the same length.
const SLACK: Duration = ms(250);

const COMMAND_TIMEOUT: Duration = ms(1_000);

/// Long enough for anything that is to come, and short enough for a test that fails.
const PATIENCE: Duration = ms(10_000);

/// Where locks are kept. Started once for all tests of a deployment; it ends with the process.
trait Deployment: Send + Sync + Sized {
    fn start() -> Self;

    /// Leads there.
    fn builder(&self) -> ClientBuilder;

    /// The servers that keep a key, and without which nobody can have it.
    fn keepers(&self, key: &str) -> Vec<&Server>;
}

struct One(Server);

impl Deployment for One {
    fn start() -> Self {
        Self(Server::start().long_lived())
    }

    fn builder(&self) -> ClientBuilder {
        Client::builder().url(self.0.url())
    }

    fn keepers(&self, _: &str) -> Vec<&Server> {
        vec![&self.0]
    }
}

struct UnixSocket(Server);

impl Deployment for UnixSocket {
    fn start() -> Self {
        Self(Server::start().long_lived())
    }

    fn builder(&self) -> ClientBuilder {
        Client::builder().url(self.0.unix_url())
    }

    fn keepers(&self, _: &str) -> Vec<&Server> {
        vec![&self.0]
    }
}

struct Sentinel(Sentinels);

impl Deployment for Sentinel {
    fn start() -> Self {
        Self(Sentinels::start(Setup::steady()).long_lived())
    }

    fn builder(&self) -> ClientBuilder {
        Client::builder().url(self.0.url())
    }

    fn keepers(&self, _: &str) -> Vec<&Server> {
        vec![self.0.first_master()]
    }
}

#[cfg(feature = "tls")]
struct Tls {
    server: Server,
    port: u16,
}

/// Each side shows a certificate of an authority of our own.
#[cfg(feature = "tls")]
impl Deployment for Tls {
    fn start() -> Self {
        assert!(
            Server::has_tls(),
            "this suite is for a server's binary with TLS"
        );
        let port = free_port();
        let server = tls_server(port, "server").long_lived();
        Self { server, port }
    }

    fn builder(&self) -> ClientBuilder {
        Client::builder()
            .url(format!("rediss://localhost:{}", self.port))
            .tls_root(read_pem("ca.pem"))
            .tls_client_cert(read_pem("client.pem"), read_pem("client.key"))
    }

    fn keepers(&self, _: &str) -> Vec<&Server> {
        vec![&self.server]
    }
}

struct InCluster(Cluster);

impl Deployment for InCluster {
    fn start() -> Self {
        Self(Cluster::with(ClusterSetup::steady(3, 0)).long_lived())
    }

    fn builder(&self) -> ClientBuilder {
        Client::builder().url(self.0.url())
    }

    fn keepers(&self, key: &str) -> Vec<&Server> {
        vec![self.0.node(self.0.master_of(key))]
    }
}

/// So many independent servers.
struct Quorum<const N: usize>(Vec<Server>);

impl<const N: usize> Deployment for Quorum<N> {
    fn start() -> Self {
        Self((0..N).map(|_| Server::start().long_lived()).collect())
    }

    fn builder(&self) -> ClientBuilder {
        Client::builder().quorum(self.0.iter().map(Server::url))
    }

    fn keepers(&self, _: &str) -> Vec<&Server> {
        self.0.iter().collect()
    }
}

/// A deployment that tests share: those that disturb it have it to themselves.
struct Shared<D> {
    deployment: LazyLock<D>,
    calm: RwLock<()>,
}

/// A test's use of a deployment, and the names that are its own.
struct Place<'a, D> {
    deployment: &'a D,
    _calm: Result<RwLockReadGuard<'a, ()>, RwLockWriteGuard<'a, ()>>,
    name: &'static str,
    key: String,
    _watchdog: Watchdog,
}

impl<D: Deployment> Shared<D> {
    const fn new() -> Self {
        Self {
            deployment: LazyLock::new(|| support::start_shared(D::start)),
            calm: RwLock::new(()),
        }
    }

    fn calm(&self, name: &'static str) -> Place<'_, D> {
        let deployment = &*self.deployment;
        self.place(deployment, Ok(self.calm.read()), name)
    }

    fn alone(&self, name: &'static str) -> Place<'_, D> {
        let deployment = &*self.deployment;
        self.place(deployment, Err(self.calm.write()), name)
    }

    fn place<'a>(
        &'a self,
        deployment: &'a D,
        calm: Result<RwLockReadGuard<'a, ()>, RwLockWriteGuard<'a, ()>>,
        name: &'static str,
    ) -> Place<'a, D> {
        Place {
            deployment,
            _calm: calm,
            name,
            key: format!("lock:{name}"),
            _watchdog: watchdog(ms(120_000)),
        }
    }
}

impl<D: Deployment> Place<'_, D> {
    fn builder(&self) -> ClientBuilder {
        self.deployment
            .builder()
            .connect_timeout(COMMAND_TIMEOUT)
            .command_timeout(COMMAND_TIMEOUT)
    }

    fn client(&self) -> Client {
        self.builder().build().unwrap()
    }

    fn keepers(&self) -> Vec<&Server> {
        self.deployment.keepers(&self.key)
    }

    /// On every server that keeps the name.
    fn everywhere(&self, command: &[&str]) {
        for server in self.keepers() {
            server.run(command[0], &command[1..]);
        }
    }

    fn is_free(&self) -> bool {
        let keepers = self.keepers();
        keepers.iter().all(|server| server.get(&self.key).is_none())
    }

    /// Returns when somebody waits for the name on every server that keeps it.
    fn wait_until_waiter_sleeps(&self) {
        for server in self.keepers() {
            server.wait_until_waiter_sleeps(format!("lock_release:{}", self.name));
        }
    }

    /// Acts while no server that keeps the name says anything.
    fn while_hung<T>(&self, act: impl FnOnce() -> T) -> T {
        let keepers = self.keepers();
        for server in &keepers {
            server.pause();
        }
        let result = act();
        for server in &keepers {
            server.resume();
        }
        result
    }
}

fn locks_and_unlocks<D: Deployment>(place: &Place<'_, D>) {
    let (one, two) = (place.client(), place.client());
    assert!(one.ping().is_ok());
    let (ours, theirs) = (one.mutex(place.name), two.mutex(place.name));
    let guard = ours.lock().unwrap();
    guard.ensure_held().unwrap();
    for server in place.keepers() {
        let value = server.get(&place.key).expect("every keeper has it");
        assert_eq!(value, guard.holder_id().as_str().as_bytes());
    }
    let holder = two
        .mutex(place.name)
        .inspect()
        .unwrap()
        .expect("the lock is held");
    assert_eq!(holder.fencing_token(), Some(guard.fencing_token()));
    assert!(theirs.try_lock().unwrap().is_none());
    let timed = Control::run(ms(200), || theirs.try_lock_for(ms(200)));
    assert!(timed.no_later_than(SLACK).unwrap().is_none());
    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
    assert!(theirs.inspect().unwrap().is_none());
    let guard = theirs.try_lock().unwrap().expect("the lock is free");
    assert!(one.mutex(place.name).force_unlock().unwrap());
    assert_eq!(
        guard.unlock().unwrap(),
        Unlocked::AlreadyLost(Lost::Deleted)
    );
}

fn one_holder_at_a_time<D: Deployment>(place: &Place<'_, D>) {
    const THREADS: usize = 6;
    const SECTIONS: usize = 25;
    let clients: Vec<_> = (0..3).map(|_| place.client()).collect();
    let (inside, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let tokens = parking_lot::Mutex::new(Vec::new());
    let start = Barrier::new(THREADS);
    thread::scope(|scope| {
        for n in 0..THREADS {
            let mutex = clients[n % clients.len()].mutex(place.name);
            let (inside, done, tokens, start) = (&inside, &done, &tokens, &start);
            scope.spawn(move || {
                start.wait();
                for _ in 0..SECTIONS {
                    let guard = mutex.lock().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    tokens.lock().push(guard.fencing_token());
                    thread::yield_now();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    done.fetch_add(1, Ordering::SeqCst);
                    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
                }
            });
        }
    });
    assert_eq!(done.into_inner(), THREADS * SECTIONS);
    // In the order of the sections, and no token twice.
    assert!(tokens.into_inner().is_sorted_by(|a, b| a < b));
}

/// Longer than any look around: it is the release that wakes.
fn a_release_wakes<D: Deployment>(place: &Place<'_, D>) {
    let one = place.client();
    let two = place.builder().backstop(ms(60_000)).build().unwrap();
    // The first wait subscribes, the second finds the subscription there.
    for _ in 0..2 {
        let guard = one.mutex(place.name).ttl(ms(60_000)).lock().unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                two.mutex(place.name)
                    .lock()
                    .map(|guard| (guard, Instant::now()))
            });
            place.wait_until_waiter_sleeps();
            let released = Instant::now();
            assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
            let (_guard, got) = waiting.join().unwrap().unwrap();
            assert!(got - released < ms(5_000), "{:?}", got - released);
        });
    }
}

fn a_foreign_holder_is_waited_out<D: Deployment>(place: &Place<'_, D>) {
    let client = place.client();
    place.everywhere(&["SET", &place.key, "somebody else", "NX", "PX", "400"]);
    assert!(client.mutex(place.name).try_lock().unwrap().is_none());
    let start = Instant::now();
    let guard = client.mutex(place.name).lock().unwrap();
    assert!(start.elapsed() < ms(1_400), "{:?}", start.elapsed());
    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
}

fn a_lease_is_renewed<D: Deployment>(place: &Place<'_, D>) {
    let (renewed, renewals) = crossbeam_channel::unbounded();
    let mutex = place.client().mutex(place.name).ttl(ms(900));
    let mutex = mutex.on_renew(move |_| {
        let _ = renewed.send(());
    });
    let guard = mutex.lock().unwrap();
    let start = Instant::now();
    while start.elapsed() < ms(2_000) {
        renewals
            .recv_timeout(PATIENCE)
            .expect("the lease is renewed");
    }
    guard.ensure_held().unwrap();
    assert!(
        place
            .client()
            .mutex(place.name)
            .try_lock()
            .unwrap()
            .is_none()
    );
    guard.renew().unwrap();
    guard.extend(ms(20_000)).unwrap();
    assert!(guard.remaining().unwrap() > ms(19_000));
    for server in place.keepers() {
        assert!(server.pttl(&place.key) > 19_000);
    }
    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
}

fn a_loss_is_told<D: Deployment>(place: &Place<'_, D>) {
    let client = place.client();
    let mutex = client.mutex(place.name).ttl(ms(1_500));
    for (command, loss) in [
        (vec!["DEL", &place.key], Lost::Deleted),
        (
            vec!["SET", &place.key, "a thief", "PX", "1200"],
            Lost::Taken,
        ),
    ] {
        let guard = mutex.lock().unwrap();
        let lost = guard.lost();
        place.everywhere(&command);
        assert_eq!(lost.recv_timeout(PATIENCE), Ok(loss));
        assert!(!guard.is_held());
        assert_eq!(guard.unlock().unwrap(), Unlocked::AlreadyLost(loss));
    }
}

fn tokens_rise<D: Deployment>(place: &Place<'_, D>) {
    let (one, two) = (place.client(), place.client());
    let first = one.mutex(place.name).lock().unwrap();
    place.everywhere(&["DEL", &place.key]);
    let second = two.mutex(place.name).lock().unwrap();
    assert!(second.fencing_token() > first.fencing_token());
    let before = second.fencing_token();
    assert_eq!(second.unlock().unwrap(), Unlocked::Released);
    let short = one.mutex(place.name).ttl(ms(50)).auto_renew(false).lock();
    let short = short.unwrap();
    assert!(short.fencing_token() > before);
    eventually(PATIENCE, || place.is_free());
    let last = two.mutex(place.name).lock().unwrap();
    assert!(last.fencing_token() > short.fencing_token());
}

fn deadlines_are_kept_while_it_hangs<D: Deployment>(place: &Place<'_, D>) {
    let used = place.client();
    let holder = place.client();
    let guard = holder.mutex(place.name).ttl(ms(700)).lock().unwrap();
    let lost = guard.lost();
    assert!(used.mutex(place.name).try_lock().unwrap().is_none());
    let fresh = place.client();
    place.while_hung(|| {
        for client in [&used, &fresh] {
            let limit = ms(300);
            let timed = Control::run(limit, || client.mutex(place.name).try_lock_for(limit));
            match timed.no_later_than(SLACK) {
                Err(Error::Unreachable { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
        // By our own clock, whatever the sockets do.
        assert_eq!(lost.recv_timeout(PATIENCE), Ok(Lost::Expired));
        assert!(!guard.is_held());
        let timed = Control::run(COMMAND_TIMEOUT, || guard.unlock());
        assert_eq!(
            timed.no_later_than(SLACK).unwrap(),
            Unlocked::AlreadyLost(Lost::Expired)
        );
        let impatient = place.builder().unreachable_for(ms(500)).build().unwrap();
        let limit = ms(500) + COMMAND_TIMEOUT;
        let timed = Control::run(limit, || impatient.mutex(place.name).lock());
        assert!(timed.no_later_than(SLACK).unwrap_err().is_unreachable());
    });
    eventually(PATIENCE, || place.is_free());
    drop(used.mutex(place.name).lock().unwrap());
}

/// An acquire that runs after its caller has gone is undone, long before its ttl ends it.
fn what_no_answer_came_to_is_undone<D: Deployment>(place: &Place<'_, D>) {
    let client = place.client();
    drop(client.mutex(place.name).lock().unwrap());
    let error = place.while_hung(|| {
        let mutex = client.mutex(place.name).ttl(ms(60_000));
        mutex.try_lock_for(ms(200)).unwrap_err()
    });
    assert!(error.may_be_held(), "{error}");
    // Nobody else is in the way.
    let other = place.client();
    let guard = other.mutex(place.name).try_lock_for(PATIENCE).unwrap();
    assert_eq!(
        guard.expect("the acquire was undone").unlock().unwrap(),
        Unlocked::Released
    );

    // A release without an answer is repeated.
    let guard = client.mutex(place.name).ttl(ms(60_000)).lock().unwrap();
    let outcome = place.while_hung(|| guard.unlock());
    assert!(outcome.unwrap_err().may_be_held());
    eventually(PATIENCE, || place.is_free());
}

fn a_shutdown_lets_go<D: Deployment>(place: &Place<'_, D>) {
    let client = place.client();
    let guard = Arc::new(client.mutex(place.name).lock().unwrap());
    let report = client.shutdown(PATIENCE).unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.released(), 1);
    assert!(place.is_free());
    assert_eq!(guard.lost().recv_timeout(PATIENCE), Ok(Lost::ShutDown));
}

macro_rules! conforms {
    ($module:ident, $deployment:ty) => {
        pub(crate) mod $module {
            use super::*;

            static SHARED: Shared<$deployment> = Shared::new();

            conforms!(calm: locks_and_unlocks, one_holder_at_a_time, a_release_wakes, a_foreign_holder_is_waited_out,
                a_lease_is_renewed, a_loss_is_told, tokens_rise, a_shutdown_lets_go);
            conforms!(alone: deadlines_are_kept_while_it_hangs, what_no_answer_came_to_is_undone);

            support::tests!(one_holder_at_a_time, a_loss_is_told, tokens_rise, a_shutdown_lets_go, what_no_answer_came_to_is_undone);
            support::roughly_timed!(locks_and_unlocks, a_release_wakes, a_foreign_holder_is_waited_out, a_lease_is_renewed, deadlines_are_kept_while_it_hangs);
        }
    };
    ($how:ident: $($test:ident),*) => {
        $(
            fn $test() {
                super::$test(&SHARED.$how(stringify!($test)));
            }
        )*
    };
}

conforms!(one, One);
conforms!(unix_socket, UnixSocket);
#[cfg(feature = "tls")]
conforms!(tls, Tls);
conforms!(sentinel, Sentinel);
conforms!(cluster, InCluster);
conforms!(quorum_of_3, Quorum<3>);
conforms!(quorum_of_5, Quorum<5>);
