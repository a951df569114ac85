//! Promise: a command without a reply leaves no key behind, harms no later holder, and is no loss.

use std::cell::Cell;
use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError, unbounded};
use leasehold::{Client, ClientBuilder, Error, Lost, Mutex, MutexGuard, Taken};
use support::permits::permits_out;
use support::{Proxy, Server, SetOnDrop, Traffic, eventually, expect_unreachable, let_pass, ms};

support::tests![
    renewal_without_a_reply_is_no_loss,
    undos_after_slow_replies_send_about_one_command_a_second_per_name,
    unanswered_set_ttl_and_late_release_leave_no_key_behind,
    acquires_with_dropped_replies_leave_nothing_behind,
    acquires_with_stalled_replies_leave_nothing_behind,
    acquires_on_closed_connections_leave_nothing_behind,
    delayed_acquires_leave_nothing_behind,
    acquires_on_a_paused_server_leave_nothing_behind,
    late_acquire_is_undone_on_the_same_connection,
    late_acquire_and_its_undo_do_not_harm_another_holder,
    late_acquire_and_its_undo_do_not_harm_the_retry,
    acquire_is_undone_over_another_connection_if_its_own_died,
    every_acquiring_command_has_its_own_holder_id,
    unanswered_attempt_of_this_call_is_not_reported_as_another_holder,
    unanswered_permit_of_this_client_is_not_reported_as_anothers,
    unanswered_reader_of_this_client_is_not_reported_as_another_holder,
    permit_whose_release_got_no_reply_is_not_reported_as_anothers,
    reader_whose_release_got_no_reply_is_not_reported_as_another_holder,
    release_on_a_closed_connection_succeeds,
    release_without_a_reply_is_no_loss,
    dropped_release_is_repeated,
    late_release_does_not_harm_the_next_holder,
    late_renewal_restores_no_released_lease,
    unstable_network_causes_no_loss_no_double_holder_and_no_leftover,
    undos_of_one_name_share_a_command_and_remove_only_their_own_lease,
    undos_of_one_set_share_a_command_and_remove_only_their_own_lease,
    undos_of_one_fair_lock_share_a_command_and_keep_other_places
];

const COMMAND_TIMEOUT: Duration = ms(500);

/// Far longer than any test, so that no key expires.
const TTL: Duration = ms(300_000);

/// Far longer than an undo takes once Redis answers, even on a busy machine.
const PATIENCE: Duration = ms(20_000);

fn builder(url: &str) -> ClientBuilder {
    Client::builder()
        .url(url)
        .ttl(TTL)
        .connect_timeout(COMMAND_TIMEOUT)
        .command_timeout(COMMAND_TIMEOUT)
}

fn client(url: &str) -> Client {
    builder(url).build().unwrap()
}

/// Returns a client with an open connection through the proxy.
fn warmed_up_client(proxy: &Proxy) -> Client {
    let client = client(&proxy.url());
    let guard = client.mutex("warm").lock().unwrap();
    guard.unlock().unwrap();
    client
}

fn keys(server: &Server) -> Vec<String> {
    redis::cmd("KEYS")
        .arg("lock:*")
        .query(&mut server.connection())
        .unwrap()
}

/// Asserts that the lease exists in Redis and is held, then renews and releases it.
#[track_caller]
fn assert_untouched_and_release(guard: MutexGuard, server: &Server) {
    assert_eq!(
        server.get(format!("lock:{}", guard.name())).as_deref(),
        Some(guard.holder_id().as_str().as_bytes())
    );
    assert!(guard.is_held());
    if guard.renew().is_err() {
        // The engine's connection may be one whose replies are lost: then it has closed it.
        guard.renew().unwrap();
    }
    guard.unlock().unwrap();
}

/// The output of `MONITOR`: the commands that the server receives.
struct Monitor {
    lines: BufReader<TcpStream>,
}

impl Monitor {
    fn start(server: &Server) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stream.set_read_timeout(Some(ms(10_000))).unwrap();
        stream.write_all(b"MONITOR\r\n").unwrap();
        let mut monitor = Self {
            lines: BufReader::new(stream),
        };
        assert_eq!(monitor.next_line(), "+OK");
        monitor
    }

    fn next_line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Returns the next script call on the lock's key.
    fn call(&mut self, name: &str) -> ScriptCall {
        loop {
            let line = self.next_line();
            // `1700000000.123 [0 127.0.0.1:1] "EVALSHA" "…" "2" "lock:a" "leasehold:fence:…" "…" …`
            let parts = |keys: u8| line.split_once(&format!(" \"{keys}\" \"lock:{name}\" "));
            // An acquire names two keys. A release names three more, for the queue and the readers.
            let (is_acquire, Some((head, tail))) =
                (parts(2).is_some(), parts(2).or_else(|| parts(5)))
            else {
                continue;
            };
            let (from, command) = head.split_once("] ").unwrap();
            let words: Vec<_> = tail.split('"').skip(1).step_by(2).collect();
            return ScriptCall {
                from: from.rsplit(' ').next().unwrap().to_owned(),
                has_source: command.starts_with("\"EVAL\""),
                is_acquire,
                id: words[if is_acquire { 1 } else { 4 }].to_owned(),
            };
        }
    }

    fn acquire(&mut self, name: &str) -> ScriptCall {
        loop {
            let sent = self.call(name);
            if sent.is_acquire {
                return sent;
            }
        }
    }
}

/// A script call as the server received it.
struct ScriptCall {
    /// The client's address.
    from: String,
    /// Sent with EVAL instead of EVALSHA.
    has_source: bool,
    is_acquire: bool,
    id: String,
}

const ATTEMPTS: u64 = 10;

/// Makes attempts that get no reply, each on a connection that works until `change` is called.
fn unanswered_attempts(proxy: &Proxy, change: impl FnOnce()) -> Vec<Client> {
    let clients: Vec<_> = (0..ATTEMPTS).map(|_| warmed_up_client(proxy)).collect();
    change();
    thread::scope(|scope| {
        for (n, client) in clients.iter().enumerate() {
            scope.spawn(move || expect_unreachable(client.mutex(format!("{n}")).try_lock()));
        }
    });
    clients
}

fn assert_nothing_left_behind(traffic: Traffic) {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let _clients = unanswered_attempts(&proxy, || proxy.set_all(traffic));
    // Two acquires by each client, one of them in `warmed_up_client`; each sets two keys.
    assert!(server.calls(&["set"]) >= 2 * 2 * ATTEMPTS, "all have run");
    proxy.set_all(Traffic::Pass);
    eventually(PATIENCE, || keys(&server).is_empty());
}

fn acquires_with_dropped_replies_leave_nothing_behind() {
    assert_nothing_left_behind(Traffic::DropReplies);
}

fn acquires_with_stalled_replies_leave_nothing_behind() {
    assert_nothing_left_behind(Traffic::StallReplies);
}

/// A closed connection cannot carry the undo behind the acquire.
fn acquires_on_closed_connections_leave_nothing_behind() {
    assert_nothing_left_behind(Traffic::CutOnReply);
}

fn delayed_acquires_leave_nothing_behind() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let _clients = unanswered_attempts(&proxy, || proxy.delay(COMMAND_TIMEOUT, COMMAND_TIMEOUT));
    proxy.delay(ms(0), ms(0));
    eventually(PATIENCE, || {
        server.calls(&["set"]) >= 2 * 2 * ATTEMPTS && keys(&server).is_empty()
    });
}

fn acquires_on_a_paused_server_leave_nothing_behind() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let _clients = unanswered_attempts(&proxy, || server.pause());
    server.resume();
    eventually(PATIENCE, || {
        server.calls(&["set"]) >= 2 * 2 * ATTEMPTS && keys(&server).is_empty()
    });
}

/// Lets the stalled acquire run, then the undo behind it. Only that undo is sent with EVAL.
fn run_late_acquire_and_undo(proxy: &Proxy, server: &Server) {
    let before = server.calls(&["eval"]);
    proxy.set_open(Traffic::Pass);
    eventually(PATIENCE, || server.calls(&["eval"]) > before);
}

fn late_acquire_is_undone_on_the_same_connection() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = warmed_up_client(&proxy);
    proxy.set_open(Traffic::Stall);
    expect_unreachable(client.mutex("a").try_lock());
    let mut monitor = Monitor::start(&server);
    run_late_acquire_and_undo(&proxy, &server);
    assert_eq!(server.get("lock:a"), None);
    let acquire = monitor.acquire("a");
    let behind = loop {
        let sent = monitor.call("a");
        if sent.from == acquire.from {
            break sent;
        }
    };
    assert!(!behind.is_acquire && behind.has_source);
    assert_eq!(behind.id, acquire.id);
}

fn late_acquire_and_its_undo_do_not_harm_another_holder() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = warmed_up_client(&proxy);
    proxy.set_open(Traffic::Stall);
    expect_unreachable(client.mutex("a").try_lock());
    let other = self::client(&server.url());
    let guard = other.mutex("a").try_lock().unwrap().unwrap();
    run_late_acquire_and_undo(&proxy, &server);
    assert_untouched_and_release(guard, &server);
}

fn late_acquire_and_its_undo_do_not_harm_the_retry() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = warmed_up_client(&proxy);
    proxy.set_open(Traffic::Stall);
    let guard = client.mutex("a").try_lock_for(ms(5_000)).unwrap().unwrap();
    run_late_acquire_and_undo(&proxy, &server);
    assert_untouched_and_release(guard, &server);
}

/// The connection is cut, so the undo that was written behind the acquire never arrives. The client
/// repeats the undo over another connection until it finds the key.
fn acquire_is_undone_over_another_connection_if_its_own_died() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = warmed_up_client(&proxy);
    proxy.set_open(Traffic::Stall);
    let mut monitor = Monitor::start(&server);
    expect_unreachable(client.mutex("a").try_lock());
    let id = monitor.call("a").id;
    proxy.cut();
    for _ in 0..3 {
        let undo = monitor.call("a");
        assert!(!undo.is_acquire);
        assert_eq!(undo.id, id, "the undo is repeated");
    }
    server.run("SET", &["lock:a", &id, "PX", &TTL.as_millis().to_string()]);
    eventually(PATIENCE, || server.get("lock:a").is_none());
}

fn every_acquiring_command_has_its_own_holder_id() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    // Without queues, each attempt is an acquire.
    let client = builder(&proxy.url()).queues(false).build().unwrap();
    client.mutex("warm").lock().unwrap().unlock().unwrap();
    let mut monitor = Monitor::start(&server);
    let (mut ids, mut unanswered) = (HashSet::new(), 0);
    for _ in 0..5 {
        proxy.set_open(Traffic::DropReplies);
        let guard = client.mutex("a").try_lock_for(ms(20_000)).unwrap().unwrap();
        let mut attempts = 0;
        loop {
            let id = monitor.acquire("a").id;
            attempts += 1;
            let is_last = id == guard.holder_id().as_str();
            assert!(ids.insert(id), "the id was used before");
            if is_last {
                break;
            }
        }
        unanswered += attempts - 1;
        assert_untouched_and_release(guard, &server);
    }
    // A round proves nothing if its first attempt used a connection that was opened later.
    assert!(unanswered > 0, "no attempt was repeated");
}

/// The next attempt of a call may find the key of its unanswered attempt before the undo runs.
/// That key is not another holder's.
fn unanswered_attempt_of_this_call_is_not_reported_as_another_holder() {
    let server = Server::start();
    let call = |client: &Client| {
        let guard = client.mutex("a").try_lock()?;
        Ok(guard.map(|guard| assert_untouched_and_release(guard, &server)))
    };
    after_an_unanswered_attempt(&server, call, || server.get("lock:a").is_none());
}

fn unanswered_permit_of_this_client_is_not_reported_as_anothers() {
    let server = Server::start();
    let call = |client: &Client| {
        let permit = client.semaphore("a", 1).try_acquire()?;
        Ok(permit.map(|permit| permit.release().unwrap()))
    };
    after_an_unanswered_attempt(&server, call, || permits_out(&server) == 0);
}

fn unanswered_reader_of_this_client_is_not_reported_as_another_holder() {
    let server = Server::start();
    let has_read = Cell::new(false);
    let call = |client: &Client| {
        let lock = client.rw_lock("a");
        // The unanswered read may still hold the lock, which does not exclude this one.
        drop(lock.try_read()?.expect("readers share"));
        has_read.set(true);
        let guard = lock.try_write()?;
        Ok(guard.map(|guard| guard.unlock().unwrap()))
    };
    // A round in which the second read got no reply in time proves nothing.
    assert!((0..5).any(|_| {
        after_an_unanswered_attempt(&server, call, || server.get("lock:a").is_none());
        has_read.get()
    }));
}

/// Makes a call whose first attempt gets no reply. The undo of that attempt arrives only after the
/// call has ended.
#[track_caller]
fn after_an_unanswered_attempt(
    server: &Server,
    call: impl FnOnce(&Client) -> Result<Result<(), Taken>, Error>,
    is_undone: impl FnMut() -> bool,
) {
    let proxy = Proxy::new(server);
    let (client, [io, calls]) = client_with_two_connections(&proxy);
    proxy.set_nth(io, Traffic::Stall);
    proxy.set_nth(calls, Traffic::CutOnReply);
    assert_not_refused(call(&client));
    proxy.set_nth(io, Traffic::Pass);
    eventually(PATIENCE, is_undone);
}

/// Returns a client with two connections: the first in the result is that of the engine, which
/// renews, undoes and repeats. The server knows the scripts: each is sent once.
fn client_with_two_connections(proxy: &Proxy) -> (Client, [usize; 2]) {
    let client = client(&proxy.url());
    proxy.delay(ms(0), ms(50));
    while proxy.connections() < 2 {
        thread::scope(|scope| {
            (0..2).for_each(|_| drop(scope.spawn(|| client.ping().unwrap())));
        });
    }
    proxy.delay(ms(0), ms(0));
    let (report, renewals) = unbounded();
    let mutex = client.mutex("renewed").renew_every(ms(100));
    let mutex = mutex.on_renew(move |_| {
        let _ = report.send(());
    });
    let guard = mutex.lock().unwrap();
    renewals.recv().unwrap();
    client.shared_stats().unwrap();
    let calls = proxy.connections_that_sent("HGETALL")[0];
    drop(client.mutex("warm").lock().unwrap());
    drop(client.semaphore("warm", 1).acquire().unwrap());
    drop(client.rw_lock("warm").read().unwrap());
    drop(guard);
    assert_eq!(proxy.connections(), 2);
    (client, [1 - calls, calls])
}

#[track_caller]
fn assert_not_refused(outcome: Result<Result<(), Taken>, Error>) {
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(_)) => panic!("only this client holds the lock"),
        Err(error) => assert!(error.is_unreachable(), "{error:?}"),
    }
}

fn permit_whose_release_got_no_reply_is_not_reported_as_anothers() {
    after_an_unanswered_release(
        |client| client.semaphore("a", 1).try_acquire().unwrap().unwrap(),
        |permit| permit.release(),
        |client| Ok(client.semaphore("a", 1).try_acquire()?.map(drop)),
        |server| permits_out(server) == 0,
    );
}

fn reader_whose_release_got_no_reply_is_not_reported_as_another_holder() {
    after_an_unanswered_release(
        |client| client.rw_lock("a").try_read().unwrap().unwrap(),
        |guard| guard.unlock(),
        |client| Ok(client.rw_lock("a").try_write()?.map(drop)),
        |server| server.get("lock:a").is_none(),
    );
}

/// Makes a call after a release that the network lost. The repeated release arrives after the call.
#[track_caller]
fn after_an_unanswered_release<T>(
    hold: impl FnOnce(&Client) -> T,
    release: impl FnOnce(T) -> Result<(), Error>,
    call: impl FnOnce(&Client) -> Result<Result<(), Taken>, Error>,
    is_released: impl Fn(&Server) -> bool,
) {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let (client, [io, calls]) = client_with_two_connections(&proxy);
    let held = hold(&client);
    proxy.set_nth(io, Traffic::Stall);
    proxy.set_nth(calls, Traffic::DropBoth);
    expect_unreachable(release(held));
    assert!(!is_released(&server), "the release is lost");
    // The call opens a connection. The engine still waits for a reply on the stalled one.
    assert_not_refused(call(&client));
    eventually(PATIENCE, || is_released(&server));
}

/// Returns a mutex and the losses that its callback receives.
fn reporting_losses(client: &Client) -> (Mutex, Receiver<Lost>) {
    let (report, losses) = unbounded();
    let mutex = client.mutex("a");
    let mutex = mutex.on_lost(move |lost| report.send(*lost).unwrap());
    (mutex, losses)
}

/// Asserts that the callback was never called. Its client and its mutex must be dropped before.
#[track_caller]
fn assert_no_loss_reported(losses: &Receiver<Lost>) {
    assert_eq!(losses.try_recv(), Err(TryRecvError::Disconnected));
}

fn release_on_a_closed_connection_succeeds() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = client(&proxy.url());
    let (mutex, losses) = reporting_losses(&client);
    let guard = mutex.lock().unwrap();
    let lost = guard.lost();
    proxy.set_open(Traffic::CutOnReply);
    guard.unlock().unwrap();
    assert_eq!(server.get("lock:a"), None);
    assert_eq!(lost.recv(), Err(crossbeam_channel::RecvError));

    // The repeated release finds the next holder's key, which is no loss either.
    let guard = mutex.lock().unwrap();
    let other = self::client(&server.url());
    proxy.set_open(Traffic::CutOnReply);
    let next = thread::scope(|scope| {
        let waiting = scope.spawn(|| other.mutex("a").lock().unwrap());
        eventually(PATIENCE, || server.subscribers("lock_release:a") > 0);
        guard.unlock().unwrap();
        waiting.join().unwrap()
    });
    assert_untouched_and_release(next, &server);
    drop((client, mutex));
    assert_no_loss_reported(&losses);
}

fn release_without_a_reply_is_no_loss() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = client(&proxy.url());
    let (mutex, losses) = reporting_losses(&client);
    let guard = mutex.lock().unwrap();
    let lost = guard.lost();
    proxy.set_all(Traffic::DropReplies);
    expect_unreachable(guard.unlock());
    assert_eq!(lost.recv(), Err(crossbeam_channel::RecvError));
    proxy.set_all(Traffic::Pass);
    let other = self::client(&server.url());
    assert_untouched_and_release(other.mutex("a").lock().unwrap(), &server);
    drop((client, mutex));
    assert_no_loss_reported(&losses);
}

fn dropped_release_is_repeated() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = client(&proxy.url());
    let [one, two] = ["a", "b"].map(|name| client.mutex(name).lock().unwrap());
    proxy.set_all(Traffic::DropBoth);
    expect_unreachable(one.unlock());
    drop(two);
    assert_eq!(keys(&server).len(), 2);
    proxy.set_all(Traffic::Pass);
    proxy.cut();
    eventually(PATIENCE, || keys(&server).is_empty());
}

fn late_release_does_not_harm_the_next_holder() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = client(&proxy.url());
    let guard = client.mutex("a").lock().unwrap();
    proxy.set_open(Traffic::Stall);
    expect_unreachable(guard.unlock());
    let other = self::client(&server.url());
    let next = other.mutex("a").lock().unwrap();
    let before = server.calls(&["evalsha"]);
    proxy.set_open(Traffic::Pass);
    eventually(PATIENCE, || server.calls(&["evalsha"]) > before);
    assert_untouched_and_release(next, &server);
}

fn late_renewal_restores_no_released_lease() {
    let server = Server::start();
    let other = client(&server.url());
    for is_taken_again in [false, true] {
        let proxy = Proxy::new(&server);
        let client = client(&proxy.url());
        let (report, renewals) = unbounded();
        let (lost, losses) = unbounded();
        let guard = client
            .mutex("a")
            .renew_every(ms(100))
            .on_renew(move |_| _ = report.send(()))
            .on_lost(move |why| lost.send(*why).unwrap())
            .lock()
            .unwrap();
        // The engine, which renews, has taken the only connection.
        renewals.recv().unwrap();
        assert_eq!(proxy.connections(), 1);
        proxy.set_open(Traffic::Stall);
        let before = proxy.request_bytes();
        eventually(PATIENCE, || proxy.request_bytes() > before);
        guard.unlock().unwrap();
        let next = is_taken_again.then(|| other.mutex("a").lock().unwrap());
        let before = server.calls(&["evalsha"]);
        proxy.set_open(Traffic::Pass);
        eventually(PATIENCE, || server.calls(&["evalsha"]) > before);
        match next {
            Some(next) => assert_untouched_and_release(next, &server),
            None => assert_eq!(server.get("lock:a"), None),
        }
        // A renewal that finds no key after the release was sent reports no loss.
        drop(client);
        assert_eq!(
            losses.recv_timeout(PATIENCE),
            Err(RecvTimeoutError::Disconnected)
        );
    }
}

/// A callback can run after the test, once nobody receives.
fn renewal_without_a_reply_is_no_loss() {
    let server = Server::start();
    for traffic in [
        Traffic::DropReplies,
        Traffic::CutOnReply,
        Traffic::DropBoth,
        Traffic::Cut,
    ] {
        let proxy = Proxy::new(&server);
        let client = client(&proxy.url());
        let (report, renewals) = unbounded();
        let guard = client
            .mutex("a")
            .ttl(ms(10_000))
            .renew_every(ms(100))
            .on_renew(move |_| _ = report.send(()))
            .lock()
            .unwrap();
        let lost = guard.lost();
        for _ in 0..3 {
            renewals.recv().unwrap();
            proxy.set_open(traffic);
            while renewals.try_recv().is_ok() {}
        }
        renewals.recv().unwrap();
        assert_eq!(lost.try_recv(), Err(TryRecvError::Empty), "{traffic:?}");
        assert_untouched_and_release(guard, &server);
    }
}

/// All network faults in turn. No program deletes keys and no ttl ends, so no lease may be lost,
/// and each name has at most one holder.
fn unstable_network_causes_no_loss_no_double_holder_and_no_leftover() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let clients = [warmed_up_client(&proxy), client(&proxy.url())];
    let inside: [AtomicU32; 3] = Default::default();
    let over = AtomicBool::new(false);
    let taken = AtomicU32::new(0);
    thread::scope(|scope| {
        let _end = SetOnDrop(&over);
        for n in 0..9 {
            let (client, inside) = (&clients[n % 2], &inside[n % 3]);
            let (over, taken) = (&over, &taken);
            scope.spawn(move || {
                let mutex = client.mutex(format!("{}", n % 3));
                while !over.load(Ordering::Relaxed) {
                    let guard = match mutex.try_lock_for(ms(150)) {
                        Ok(Ok(guard)) => guard,
                        Ok(Err(_)) => continue,
                        Err(error) => {
                            assert!(error.is_unreachable(), "{error:?}");
                            continue;
                        }
                    };
                    taken.fetch_add(1, Ordering::Relaxed);
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                    thread::yield_now();
                    assert!(guard.is_held());
                    inside.fetch_sub(1, Ordering::SeqCst);
                    if let Err(error) = guard.unlock() {
                        assert!(error.is_unreachable(), "{error:?}");
                    }
                }
            });
        }
        let storm = [
            Traffic::CutOnReply,
            Traffic::Stall,
            Traffic::DropReplies,
            Traffic::Cut,
            Traffic::StallRequests,
            Traffic::DropBoth,
            Traffic::StallReplies,
        ];
        for traffic in storm.into_iter().cycle().take(5 * storm.len()) {
            proxy.set_open(traffic);
            let_pass(ms(50));
            proxy.set_open(Traffic::Pass);
            let_pass(ms(20));
        }
    });
    assert!(taken.into_inner() > 20, "some calls got the lock");
    eventually(PATIENCE, || keys(&server).is_empty());
}

fn unanswered_set_ttl_and_late_release_leave_no_key_behind() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let ttl = ms(500);
    let builder = builder(&proxy.url()).command_timeout(ms(200));
    let client = builder.build().unwrap();
    let guard = client.mutex("a").ttl(ttl).lock().unwrap();
    // Loads the script. Both calls below end before this renewal's lease does.
    guard.renew().unwrap();
    proxy.set_all(Traffic::DropReplies);
    expect_unreachable(guard.set_ttl(ms(3_600_000)));
    let left: i64 = redis::cmd("PTTL")
        .arg("lock:a")
        .query(&mut server.connection())
        .unwrap();
    assert!(left > 3_000_000, "the set_ttl ran: {left} ms");
    proxy.set_all(Traffic::DropBoth);
    expect_unreachable(guard.unlock());
    // The release must be repeated for longer than twice the configured ttl, because the unanswered
    // `set_ttl` made the key last for an hour.
    let_pass(2 * ttl);
    assert_eq!(keys(&server), ["lock:a"], "no release came through");
    proxy.set_all(Traffic::Pass);
    eventually(PATIENCE, || keys(&server).is_empty());
}

/// The number of unanswered calls in parallel. Some of them may find no connection.
const CALLS: usize = 6;

/// Makes several unanswered calls for a lock that includes "a", then restores the network.
///
/// Returns the holder ids that a single command then undoes. The connections of the calls are cut;
/// new ones work.
fn many_unanswered_calls(
    server: &Server,
    proxy: &Proxy,
    client: &Client,
    call: impl Fn() -> Result<bool, Error> + Sync,
) -> Vec<String> {
    // While replies are slow, each of the calls opens a connection.
    proxy.delay(ms(0), ms(50));
    let together = Barrier::new(CALLS);
    thread::scope(|scope| {
        for n in 0..CALLS {
            let (client, together) = (client, &together);
            scope.spawn(move || {
                together.wait();
                drop(client.mutex(format!("warm-{n}")).lock().unwrap());
            });
        }
    });
    proxy.delay(ms(0), ms(0));
    proxy.set_all(Traffic::Stall);
    thread::scope(|scope| {
        for _ in 0..CALLS {
            scope.spawn(|| expect_unreachable(call()));
        }
    });
    let mut monitor = Monitor::start(server);
    proxy.set_future(Traffic::Pass);
    proxy.cut();
    loop {
        let line = monitor.next_line();
        // Skips undos of `warm-…`, since those calls may have timed out too.
        if !line.contains("\"lock:a\"") {
            continue;
        }
        let words = line.split('"').skip(1).step_by(2);
        let ids: Vec<String> = words
            .filter(|word| word.starts_with("late:"))
            .map(str::to_owned)
            .collect();
        if ids.len() > 1 {
            return ids;
        }
    }
}

/// Waits until the server has run another undo of a [`late_client`]'s acquires of "a". The client
/// makes no call meanwhile, and its leases are renewed much later.
fn wait_for_undo(server: &Server) {
    let mut monitor = Monitor::start(server);
    loop {
        let line = monitor.next_line();
        if line.contains("\"lock:a\"") && line.contains("\"late:") {
            break;
        }
    }
    // The server has run the command once it answers another one.
    server.run("PING", &[]);
}

fn late_client(proxy: &Proxy) -> Client {
    Client::builder()
        .url(proxy.url())
        .owner("late")
        .ttl(TTL)
        .connect_timeout(COMMAND_TIMEOUT)
        .command_timeout(COMMAND_TIMEOUT)
        .build()
        .unwrap()
}

/// Sets the key as a late acquire would, and asserts that another client then gets the lock, which
/// it can only after the undo.
fn run_acquire_late(server: &Server, name: &str, id: &str) {
    let ttl = TTL.as_millis().to_string();
    server.run("SET", &[&format!("lock:{name}"), id, "PX", &ttl]);
    let other = Client::builder().url(server.url()).build().unwrap();
    let guard = other.mutex(name).try_lock_for(PATIENCE).unwrap();
    assert!(guard.is_ok(), "the undo removes the key");
}

fn undos_of_one_name_share_a_command_and_remove_only_their_own_lease() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = late_client(&proxy);
    let call = || client.mutex("a").try_lock().map(|guard| guard.is_ok());
    let ids = many_unanswered_calls(&server, &proxy, &client, call);
    for id in ids.iter().rev().take(2) {
        run_acquire_late(&server, "a", id);
    }
    let guard = client.mutex("a").lock().unwrap();
    wait_for_undo(&server);
    assert_untouched_and_release(guard, &server);
}

fn undos_of_one_set_share_a_command_and_remove_only_their_own_lease() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = late_client(&proxy);
    let set = || client.mutex_all(["a", "b"]);
    let call = || set().try_lock().map(|guard| guard.is_ok());
    let ids = many_unanswered_calls(&server, &proxy, &client, call);
    run_acquire_late(&server, "a", &ids[1]);
    let guard = set().lock().unwrap();
    wait_for_undo(&server);
    guard.ensure_held().unwrap();
    guard.unlock().unwrap();
}

fn undos_of_one_fair_lock_share_a_command_and_keep_other_places() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = late_client(&proxy);
    let fair = |client: &Client| client.fair_mutex("a");
    let call = || fair(&client).try_lock().map(|guard| guard.is_ok());
    let ids = many_unanswered_calls(&server, &proxy, &client, call);
    let other = self::client(&server.url());
    thread::scope(|scope| {
        let guard = fair(&other).lock().unwrap();
        let (key, queue, places) = (
            "lock:a",
            "leasehold:queue:{lock:a}",
            "leasehold:places:{lock:a}",
        );
        // As if one acquire had run late and queued behind the holder.
        server.run("RPUSH", &[queue, &ids[0]]);
        server.run("HSET", &[places, &ids[0], "9007199254740991 3000 "]);
        let waiter = scope.spawn(|| fair(&other).try_lock_for(PATIENCE).unwrap());
        eventually(PATIENCE, || other.stats().waiting == 1);
        guard.unlock().unwrap();
        let guard = waiter
            .join()
            .unwrap()
            .expect("the undo removes the late place from the queue");
        guard.unlock().unwrap();
        // As if another acquire had run late and got the lock.
        let ttl = TTL.as_millis().to_string();
        server.run("SET", &[key, &ids[1], "PX", &ttl]);
        eventually(PATIENCE, || server.get(key).is_none());
    });
}

/// Replies that arrive after the calls' deadlines: each call may have acquired the lock. Once the
/// network is fast again, the client sends about one undo command a second for each name, however
/// many calls there were.
fn undos_after_slow_replies_send_about_one_command_a_second_per_name() {
    const NAMES: u64 = 4;
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = late_client(&proxy);
    proxy.delay(ms(0), ms(12));
    let (began, calls) = (Instant::now(), AtomicU64::new(0));
    thread::scope(|scope| {
        for n in 0..NAMES {
            let (mutex, calls) = (client.mutex(format!("{n}")), &calls);
            scope.spawn(move || {
                while began.elapsed() < ms(1_000) {
                    let _ = mutex.try_lock_for(ms(5));
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    proxy.delay(ms(0), ms(0));
    let calls = calls.into_inner();
    assert!(calls > 20 * NAMES, "{calls} calls");
    let sent = || server.script_calls();
    // Undos are repeated less often until they are 0.8 s old.
    let_pass(ms(1_000));
    let (before, began) = (sent(), Instant::now());
    let_pass(ms(1_000));
    eventually(PATIENCE, || sent() > before);
    let sent = sent() - before;
    let seconds = began.elapsed().as_secs() + 1;
    assert!(sent <= 2 * NAMES * seconds, "{sent} within {seconds} s");
}
