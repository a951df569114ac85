//! Promise: a lock works the same on every kind of deployment.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, ClientBuilder, Error, Lost};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use support::fair::places_in;
use support::{
    Cluster, ClusterSetup, Control, SLACK, Sentinels, Server, Setup, Watchdog, assert_gives_up,
    assert_message_wakes, eventually, ms, watchdog,
};
#[cfg(feature = "tls")]
use support::{free_port, read_pem, tls_server};

const COMMAND_TIMEOUT: Duration = ms(1_000);

/// The limit for everything that must happen; only a failing test waits this long.
const WAIT_LIMIT: Duration = ms(10_000);

/// The servers that store the locks. They are started once for all tests of a deployment, and run
/// until the process ends.
trait Deployment: Send + Sync + Sized {
    fn start() -> Self;

    /// Returns the builder of a client of this deployment.
    fn builder(&self) -> ClientBuilder;

    /// Returns the servers that store a key; the lock is unavailable while they are paused.
    fn owners(&self, key: &str) -> Vec<&Server>;
}

struct SingleServer(Server);

impl Deployment for SingleServer {
    fn start() -> Self {
        Self(Server::start().long_lived())
    }

    fn builder(&self) -> ClientBuilder {
        Client::builder().url(self.0.url())
    }

    fn owners(&self, _: &str) -> Vec<&Server> {
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

    fn owners(&self, _: &str) -> Vec<&Server> {
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

    fn owners(&self, _: &str) -> Vec<&Server> {
        vec![self.0.first_master()]
    }
}

#[cfg(feature = "tls")]
struct Tls {
    server: Server,
    port: u16,
}

/// Server and client present certificates of the tests' own authority.
#[cfg(feature = "tls")]
impl Deployment for Tls {
    fn start() -> Self {
        assert!(
            Server::has_tls(),
            "these tests need a server binary with TLS"
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

    fn owners(&self, _: &str) -> Vec<&Server> {
        vec![&self.server]
    }
}

struct ClusterDeployment(Cluster);

impl Deployment for ClusterDeployment {
    fn start() -> Self {
        Self(Cluster::with(ClusterSetup::steady(3, 0)).long_lived())
    }

    fn builder(&self) -> ClientBuilder {
        Client::builder().url(self.0.url())
    }

    fn owners(&self, key: &str) -> Vec<&Server> {
        vec![self.0.node(self.0.master_of(key))]
    }
}

/// A quorum of N independent servers.
struct Quorum<const N: usize>(Vec<Server>);

impl<const N: usize> Deployment for Quorum<N> {
    fn start() -> Self {
        Self((0..N).map(|_| Server::start().long_lived()).collect())
    }

    fn builder(&self) -> ClientBuilder {
        Client::builder().quorum(self.0.iter().map(Server::url))
    }

    fn owners(&self, _: &str) -> Vec<&Server> {
        self.0.iter().collect()
    }
}

/// A deployment that tests share. A test that disturbs it uses it alone.
struct Shared<D> {
    deployment: LazyLock<D>,
    in_use: RwLock<()>,
}

/// A test's use of a deployment, with a name that no other test uses.
struct TestScope<'a, D> {
    deployment: &'a D,
    _in_use: Result<RwLockReadGuard<'a, ()>, RwLockWriteGuard<'a, ()>>,
    name: &'static str,
    key: String,
    _watchdog: Watchdog,
}

impl<D: Deployment> Shared<D> {
    const fn new() -> Self {
        Self {
            deployment: LazyLock::new(|| support::start_shared(D::start)),
            in_use: RwLock::new(()),
        }
    }

    fn shared_use(&self, name: &'static str) -> TestScope<'_, D> {
        let deployment = &*self.deployment;
        self.scope(deployment, Ok(self.in_use.read()), name)
    }

    fn exclusive_use(&self, name: &'static str) -> TestScope<'_, D> {
        let deployment = &*self.deployment;
        self.scope(deployment, Err(self.in_use.write()), name)
    }

    fn scope<'a>(
        &'a self,
        deployment: &'a D,
        in_use: Result<RwLockReadGuard<'a, ()>, RwLockWriteGuard<'a, ()>>,
        name: &'static str,
    ) -> TestScope<'a, D> {
        TestScope {
            deployment,
            _in_use: in_use,
            name,
            key: format!("lock:{name}"),
            _watchdog: watchdog(ms(120_000)),
        }
    }
}

impl<D: Deployment> TestScope<'_, D> {
    fn builder(&self) -> ClientBuilder {
        self.deployment
            .builder()
            .connect_timeout(COMMAND_TIMEOUT)
            .command_timeout(COMMAND_TIMEOUT)
    }

    fn client(&self) -> Client {
        self.builder().build().unwrap()
    }

    fn owners(&self) -> Vec<&Server> {
        self.deployment.owners(&self.key)
    }

    /// Runs a command on every server that stores the name.
    fn run_on_every_owner(&self, command: &[&str]) {
        for server in self.owners() {
            server.run(command[0], &command[1..]);
        }
    }

    fn is_free(&self) -> bool {
        let owners = self.owners();
        owners.iter().all(|server| server.get(&self.key).is_none())
    }

    /// Returns whether this is true of a majority of the servers that store the name: of the only
    /// one, if it is not a quorum.
    fn is_true_of_a_majority(&self, condition: impl Fn(&Server) -> bool) -> bool {
        let owners = self.owners();
        let count = owners.iter().filter(|server| condition(server)).count();
        count > owners.len() / 2
    }

    /// Waits until a waiter for the name is subscribed on every server that stores it.
    fn wait_until_waiter_sleeps(&self) {
        for server in self.owners() {
            server.wait_until_waiter_sleeps(format!("lock_release:{}", self.name));
        }
    }

    /// Waits until the queue of the name is empty. Over a quorum there is none.
    fn wait_until_nobody_queues(&self) {
        let queue = format!("leasehold:queue:{{{}}}", self.key);
        for server in self.owners() {
            eventually(WAIT_LIMIT, || places_in(server, &queue) == 0);
        }
    }

    /// Calls `act` while the servers that store the name are paused.
    fn while_hung<T>(&self, act: impl FnOnce() -> T) -> T {
        // Also if `act` panics: other tests use these servers.
        struct Hung<'a>(Vec<&'a Server>);
        impl Drop for Hung<'_> {
            fn drop(&mut self) {
                self.0.iter().for_each(|server| server.resume());
            }
        }
        let hung = Hung(self.owners());
        hung.0.iter().for_each(|server| server.pause());
        act()
    }
}

fn lock_is_acquired_and_released<D: Deployment>(test: &TestScope<'_, D>) {
    let (one, two) = (test.client(), test.client());
    assert!(one.ping().is_ok());
    let (ours, theirs) = (one.mutex(test.name), two.mutex(test.name));
    let guard = ours.lock().unwrap();
    guard.ensure_held().unwrap();
    // A first lock over a quorum may leave out a server that connects late.
    let id = guard.holder_id().as_str().as_bytes();
    assert!(test.is_true_of_a_majority(|server| server.get(&test.key).as_deref() == Some(id)));
    let holder = two
        .mutex(test.name)
        .inspect()
        .unwrap()
        .expect("the lock is held");
    assert_eq!(holder.fencing_token(), Some(guard.fencing_token()));
    assert!(theirs.try_lock().unwrap().is_err());
    assert_gives_up(|limit| {
        Control::run(limit, || theirs.try_lock_for(limit)).no_later_than(SLACK)
    });
    // The call that gave up leaves the queue in the background: the release could grant to it.
    test.wait_until_nobody_queues();
    guard.unlock().unwrap();
    assert!(theirs.inspect().unwrap().is_none());
    let guard = theirs.try_lock().unwrap().expect("the lock is free");
    assert!(one.mutex(test.name).force_unlock().unwrap());
    assert_eq!(guard.unlock().unwrap_err().lost(), Some(Lost::Deleted));
}

fn lock_has_one_holder_at_a_time<D: Deployment>(test: &TestScope<'_, D>) {
    const THREADS: usize = 6;
    const SECTIONS: usize = 25;
    let clients: Vec<_> = (0..3).map(|_| test.client()).collect();
    let (inside, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let tokens = parking_lot::Mutex::new(Vec::new());
    let start = Barrier::new(THREADS);
    thread::scope(|scope| {
        for n in 0..THREADS {
            let mutex = clients[n % clients.len()].mutex(test.name);
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
                    guard.unlock().unwrap();
                }
            });
        }
    });
    assert_eq!(done.into_inner(), THREADS * SECTIONS);
    // Tokens rise strictly, in the order of the sections.
    assert!(tokens.into_inner().is_sorted_by(|a, b| a < b));
}

/// The waiter would also get the lock when it asks by itself: after 0.9 s, over a quorum 0.75 s.
fn release_wakes_a_waiter<D: Deployment>(test: &TestScope<'_, D>) {
    let one = test.client();
    let two = test.builder().build().unwrap();
    // The first wait subscribes, the second finds the subscription there.
    for _ in 0..2 {
        let guard = one.mutex(test.name).ttl(ms(60_000)).lock().unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| two.mutex(test.name).lock().unwrap());
            eventually(WAIT_LIMIT, || two.stats().waiting == 1);
            test.wait_until_waiter_sleeps();
            assert_message_wakes(&two, || {
                guard.unlock().unwrap();
                drop(waiting.join().unwrap());
            });
        });
    }
}

fn lock_waits_until_a_foreign_holder_expires<D: Deployment>(test: &TestScope<'_, D>) {
    let client = test.client();
    // Connects to the servers that store the name: in a cluster, both names have the same slot.
    let warm = client.mutex(format!("warm{{{}}}", test.key));
    drop(warm.lock().unwrap());
    let mutex = client.mutex(test.name);
    let ttl = ms(2_000);
    let set = ["SET", &test.key, "another program", "NX", "PX", "2000"];
    let timed = Control::run(ttl, || {
        test.run_on_every_owner(&set);
        assert!(mutex.try_lock().unwrap().is_err());
        mutex.lock().unwrap()
    });
    assert!(timed.took > ttl / 2, "{:?}", timed.took);
    let guard = timed.no_later_than(2 * SLACK);
    guard.unlock().unwrap();
}

fn lease_is_renewed<D: Deployment>(test: &TestScope<'_, D>) {
    let (renewed, renewals) = crossbeam_channel::unbounded();
    let mutex = test.client().mutex(test.name).ttl(ms(900));
    let mutex = mutex.on_renew(move |_| {
        let _ = renewed.send(());
    });
    let guard = mutex.lock().unwrap();
    let start = Instant::now();
    while start.elapsed() < ms(2_000) {
        renewals
            .recv_timeout(WAIT_LIMIT)
            .expect("the lease is renewed");
    }
    guard.ensure_held().unwrap();
    assert!(test.client().mutex(test.name).try_lock().unwrap().is_err());
    guard.renew().unwrap();
    guard.set_ttl(ms(20_000)).unwrap();
    assert!(guard.remaining().unwrap() > ms(17_000));
    // On a busy machine, the key may have expired on a minority of a quorum's servers, which got a
    // renewal late. No renewal restores it there.
    assert!(test.is_true_of_a_majority(|server| server.pttl(&test.key) > 10_000));
    guard.unlock().unwrap();
}

fn loss_is_reported<D: Deployment>(test: &TestScope<'_, D>) {
    let client = test.client();
    let mutex = client.mutex(test.name).ttl(ms(1_500));
    for (command, loss) in [
        (vec!["DEL", &test.key], Lost::Deleted),
        (vec!["SET", &test.key, "a thief", "PX", "1200"], Lost::Taken),
    ] {
        let guard = mutex.lock().unwrap();
        let lost = guard.lost();
        test.run_on_every_owner(&command);
        assert_eq!(lost.recv_timeout(WAIT_LIMIT), Ok(loss));
        assert!(!guard.is_held());
        assert_eq!(guard.unlock().unwrap_err().lost(), Some(loss));
    }
}

fn fencing_tokens_rise<D: Deployment>(test: &TestScope<'_, D>) {
    let (one, two) = (test.client(), test.client());
    let first = one.mutex(test.name).lock().unwrap();
    test.run_on_every_owner(&["DEL", &test.key]);
    let second = two.mutex(test.name).lock().unwrap();
    assert!(second.fencing_token() > first.fencing_token());
    let before = second.fencing_token();
    second.unlock().unwrap();
    let short = one.mutex(test.name).ttl(ms(50)).auto_renew(false).lock();
    let short = short.unwrap();
    assert!(short.fencing_token() > before);
    eventually(WAIT_LIMIT, || test.is_free());
    let last = two.mutex(test.name).lock().unwrap();
    assert!(last.fencing_token() > short.fencing_token());
}

fn deadlines_are_kept_while_servers_hang<D: Deployment>(test: &TestScope<'_, D>) {
    let used = test.client();
    let holder = test.client();
    let guard = holder.mutex(test.name).ttl(ms(700)).lock().unwrap();
    let lost = guard.lost();
    assert!(used.mutex(test.name).try_lock().unwrap().is_err());
    let fresh = test.client();
    test.while_hung(|| {
        for client in [&used, &fresh] {
            let limit = ms(300);
            let timed = Control::run(limit, || client.mutex(test.name).try_lock_for(limit));
            match timed.no_later_than(SLACK) {
                Err(Error::Unreachable { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
        // The client learns of the loss from its own clock: no server replies.
        assert_eq!(lost.recv_timeout(WAIT_LIMIT), Ok(Lost::Expired));
        assert!(!guard.is_held());
        let timed = Control::run(COMMAND_TIMEOUT, || guard.unlock());
        assert_eq!(
            timed.no_later_than(SLACK).unwrap_err().lost(),
            Some(Lost::Expired)
        );
        let impatient = test.builder().unreachable_for(ms(500)).build().unwrap();
        let limit = ms(500) + COMMAND_TIMEOUT;
        let timed = Control::run(limit, || impatient.mutex(test.name).lock());
        assert!(timed.no_later_than(SLACK).unwrap_err().is_unreachable());
    });
    eventually(WAIT_LIMIT, || test.is_free());
    drop(used.mutex(test.name).lock().unwrap());
}

/// An acquire that runs after its call has failed is undone long before its ttl expires.
fn unanswered_acquire_is_undone_and_release_repeated<D: Deployment>(test: &TestScope<'_, D>) {
    let client = test.client();
    drop(client.mutex(test.name).lock().unwrap());
    let error = test.while_hung(|| {
        let mutex = client.mutex(test.name).ttl(ms(60_000));
        mutex.try_lock_for(ms(200)).unwrap_err()
    });
    assert!(error.may_be_held(), "{error}");
    let other = test.client();
    let guard = other.mutex(test.name).try_lock_for(WAIT_LIMIT).unwrap();
    guard.expect("the acquire was undone").unlock().unwrap();

    // A release without a reply is repeated.
    let guard = client.mutex(test.name).ttl(ms(60_000)).lock().unwrap();
    let outcome = test.while_hung(|| guard.unlock());
    assert!(outcome.unwrap_err().may_be_held());
    eventually(WAIT_LIMIT, || test.is_free());
}

fn shutdown_releases_the_lock<D: Deployment>(test: &TestScope<'_, D>) {
    let client = test.client();
    let guard = Arc::new(client.mutex(test.name).lock().unwrap());
    let report = client.shutdown(WAIT_LIMIT);
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.released, 1);
    assert!(test.is_free());
    assert_eq!(guard.lost().recv_timeout(WAIT_LIMIT), Ok(Lost::ShutDown));
}

macro_rules! conforms {
    ($module:ident, $deployment:ty) => {
        pub(crate) mod $module {
            use super::*;

            static SHARED: Shared<$deployment> = Shared::new();

            conforms!(
                shared_use:
                lock_is_acquired_and_released,
                lock_has_one_holder_at_a_time,
                release_wakes_a_waiter,
                lock_waits_until_a_foreign_holder_expires,
                lease_is_renewed,
                loss_is_reported,
                fencing_tokens_rise,
                shutdown_releases_the_lock
            );
            conforms!(
                exclusive_use:
                deadlines_are_kept_while_servers_hang,
                unanswered_acquire_is_undone_and_release_repeated
            );

            support::tests!(
                lock_is_acquired_and_released,
                release_wakes_a_waiter,
                lock_waits_until_a_foreign_holder_expires,
                lease_is_renewed,
                deadlines_are_kept_while_servers_hang,
                lock_has_one_holder_at_a_time,
                loss_is_reported,
                fencing_tokens_rise,
                shutdown_releases_the_lock,
                unanswered_acquire_is_undone_and_release_repeated
            );
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

conforms!(one, SingleServer);
conforms!(unix_socket, UnixSocket);
#[cfg(feature = "tls")]
conforms!(tls, Tls);
conforms!(sentinel, Sentinel);
conforms!(cluster, ClusterDeployment);
conforms!(quorum_of_3, Quorum<3>);
conforms!(quorum_of_5, Quorum<5>);
