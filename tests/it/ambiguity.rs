//! Promise: a command without an answer leaves nothing behind, takes nothing from a later holder, and is no loss.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, TryRecvError, unbounded};
use leasehold::{Client, Error, MutexGuard, Unlocked};
use support::{Proxy, Server, Traffic, eventually, expect_unreachable, let_pass, ms};

support::tests![
    acquires_whose_replies_vanish_leave_nothing_behind,
    acquires_whose_replies_stall_leave_nothing_behind,
    acquires_on_connections_that_end_leave_nothing_behind,
    acquires_that_come_late_leave_nothing_behind,
    acquires_at_a_stopped_server_leave_nothing_behind,
    a_late_acquire_is_undone_at_once,
    a_late_acquire_and_its_undo_leave_another_holder_alone,
    a_late_acquire_and_its_undo_leave_the_retry_alone,
    an_acquire_that_lost_its_undo_is_undone_elsewhere,
    every_acquiring_command_has_a_holder_id_of_its_own,
    our_own_orphan_is_not_another_holder,
    a_release_on_a_connection_that_ends_is_a_release,
    a_release_without_a_reply_is_no_loss,
    a_release_that_vanished_is_repeated,
    a_late_release_leaves_the_next_holder_alone,
    a_late_renewal_brings_nothing_back,
    a_renewal_without_a_reply_is_no_loss,
    nothing_is_lost_doubled_or_left_in_a_storm,
    an_unanswered_extend_leaves_no_key_behind_although_the_release_is_late,
    undos_of_one_name_go_out_together_and_each_removes_its_own,
    undos_of_one_set_go_out_together_and_each_removes_its_own,
    undos_of_one_fair_lock_go_out_together_and_leave_its_queue_to_others
];

support::timed![undos_after_slow_answers_cost_a_name_one_command_a_second];

const COMMAND_TIMEOUT: Duration = ms(200);

/// Far longer than any test, so that no key here goes by itself.
const TTL: Duration = ms(300_000);

/// A second after Redis answers again, on a machine with other things to do.
const SOON: Duration = ms(1_250);

fn client(url: &str) -> Client {
    Client::builder()
        .url(url)
        .ttl(TTL)
        .connect_timeout(COMMAND_TIMEOUT)
        .command_timeout(COMMAND_TIMEOUT)
        .build()
        .unwrap()
}

/// A client through the proxy, with a connection that has just been used.
fn warm(proxy: &Proxy) -> Client {
    let client = client(&proxy.url());
    let guard = client.mutex("warm").lock().unwrap();
    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
    client
}

fn keys(server: &Server) -> Vec<String> {
    redis::cmd("KEYS")
        .arg("lock:*")
        .query(&mut server.connection())
        .unwrap()
}

/// The lease is there, in Redis and by its own clock, and its release is a plain one.
#[track_caller]
fn is_untouched(guard: MutexGuard, server: &Server) {
    assert_eq!(
        server.get(format!("lock:{}", guard.name())).as_deref(),
        Some(guard.holder_id().as_str().as_bytes())
    );
    assert!(guard.is_held());
    guard.renew().unwrap();
    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
}

/// What the server's clients send, by its own account.
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

    /// The next script call on the lock's key.
    fn call(&mut self, name: &str) -> Sent {
        loop {
            let line = self.next_line();
            // `1700000000.123456 [0 127.0.0.1:1234] "EVALSHA" "…" "2" "lock:a" "leasehold:fence:…" "…" …`
            let parts = |keys: u8| line.split_once(&format!(" \"{keys}\" \"lock:{name}\" "));
            let (is_acquire, Some((head, tail))) =
                (parts(2).is_some(), parts(2).or_else(|| parts(1)))
            else {
                continue;
            };
            let (from, command) = head.split_once("] ").unwrap();
            let words: Vec<_> = tail.split('"').skip(1).step_by(2).collect();
            return Sent {
                from: from.rsplit(' ').next().unwrap().to_owned(),
                is_whole: command.starts_with("\"EVAL\""),
                is_acquire,
                id: words[usize::from(is_acquire)].to_owned(),
            };
        }
    }

    fn acquire(&mut self, name: &str) -> Sent {
        loop {
            let sent = self.call(name);
            if sent.is_acquire {
                return sent;
            }
        }
    }
}

/// A script call, as the server saw it.
struct Sent {
    /// The connection's other end.
    from: String,
    /// With the script's source.
    is_whole: bool,
    is_acquire: bool,
    id: String,
}

const ATTEMPTS: u64 = 10;

/// Attempts that get no answer, each with a connection that was good until the traffic is `changed`.
fn attempts_in_vain(proxy: &Proxy, change: impl FnOnce()) -> Vec<Client> {
    let clients: Vec<_> = (0..ATTEMPTS).map(|_| warm(proxy)).collect();
    change();
    thread::scope(|scope| {
        for (n, client) in clients.iter().enumerate() {
            scope.spawn(move || expect_unreachable(client.mutex(format!("{n}")).try_lock()));
        }
    });
    clients
}

fn leave_nothing_behind(traffic: Traffic) {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let _clients = attempts_in_vain(&proxy, || proxy.set_all(traffic));
    // Each of them, and one before for every client.
    assert!(server.calls(&["set"]) >= 2 * 2 * ATTEMPTS, "they all ran");
    proxy.set_all(Traffic::Pass);
    eventually(SOON, || keys(&server).is_empty());
}

fn acquires_whose_replies_vanish_leave_nothing_behind() {
    leave_nothing_behind(Traffic::DropReplies);
}

fn acquires_whose_replies_stall_leave_nothing_behind() {
    leave_nothing_behind(Traffic::StallReplies);
}

/// There the undo cannot be written behind the acquire.
fn acquires_on_connections_that_end_leave_nothing_behind() {
    leave_nothing_behind(Traffic::CutOnReply);
}

fn acquires_that_come_late_leave_nothing_behind() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let _clients = attempts_in_vain(&proxy, || proxy.delay(COMMAND_TIMEOUT, COMMAND_TIMEOUT));
    proxy.delay(ms(0), ms(0));
    eventually(SOON, || {
        server.calls(&["set"]) >= 2 * 2 * ATTEMPTS && keys(&server).is_empty()
    });
}

fn acquires_at_a_stopped_server_leave_nothing_behind() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let _clients = attempts_in_vain(&proxy, || server.pause());
    server.resume();
    eventually(SOON, || {
        server.calls(&["set"]) >= 2 * 2 * ATTEMPTS && keys(&server).is_empty()
    });
}

/// Lets the late acquire on the stalled connection run, and the undo behind it. Only that one is sent whole.
fn let_run_late(proxy: &Proxy, server: &Server) {
    let before = server.calls(&["eval"]);
    proxy.set_open(Traffic::Pass);
    eventually(ms(5_000), || server.calls(&["eval"]) > before);
}

fn a_late_acquire_is_undone_at_once() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = warm(&proxy);
    proxy.set_open(Traffic::Stall);
    expect_unreachable(client.mutex("a").try_lock());
    let mut monitor = Monitor::start(&server);
    let_run_late(&proxy, &server);
    assert_eq!(server.get("lock:a"), None);
    let acquire = monitor.acquire("a");
    let behind = loop {
        let sent = monitor.call("a");
        if sent.from == acquire.from {
            break sent;
        }
    };
    assert!(!behind.is_acquire && behind.is_whole);
    assert_eq!(behind.id, acquire.id);
}

/// The one that comes late finds the lock in other hands, and its undo leaves it there.
fn a_late_acquire_and_its_undo_leave_another_holder_alone() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = warm(&proxy);
    proxy.set_open(Traffic::Stall);
    expect_unreachable(client.mutex("a").try_lock());
    let other = self::client(&server.url());
    let guard = other.mutex("a").try_lock().unwrap().unwrap();
    let_run_late(&proxy, &server);
    is_untouched(guard, &server);
}

fn a_late_acquire_and_its_undo_leave_the_retry_alone() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = warm(&proxy);
    proxy.set_open(Traffic::Stall);
    let guard = client.mutex("a").try_lock_for(ms(5_000)).unwrap().unwrap();
    let_run_late(&proxy, &server);
    is_untouched(guard, &server);
}

/// Its connection died, and with it the undo behind it: what is left is the undo that is repeated elsewhere, which has
/// found nothing so far.
fn an_acquire_that_lost_its_undo_is_undone_elsewhere() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = warm(&proxy);
    proxy.set_open(Traffic::Stall);
    let mut monitor = Monitor::start(&server);
    expect_unreachable(client.mutex("a").try_lock());
    let id = monitor.call("a").id;
    proxy.cut();
    for _ in 0..3 {
        let undo = monitor.call("a");
        assert!(!undo.is_acquire);
        assert_eq!(undo.id, id, "it goes on");
    }
    server.run("SET", &["lock:a", &id, "PX", &TTL.as_millis().to_string()]);
    eventually(SOON, || server.get("lock:a").is_none());
}

fn every_acquiring_command_has_a_holder_id_of_its_own() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = warm(&proxy);
    let mut monitor = Monitor::start(&server);
    let mut ids = HashSet::new();
    for _ in 0..5 {
        proxy.set_open(Traffic::DropReplies);
        let guard = client.mutex("a").try_lock_for(ms(20_000)).unwrap().unwrap();
        let mut attempts = 0;
        loop {
            let id = monitor.acquire("a").id;
            attempts += 1;
            let is_last = id == guard.holder_id().as_str();
            assert!(ids.insert(id), "used before");
            if is_last {
                break;
            }
        }
        assert!(attempts > 1, "the first had no answer");
        is_untouched(guard, &server);
    }
}

/// What an attempt without a reply has left behind is not undone yet when the next attempt of the same call finds it:
/// nobody but ourselves holds the lock.
fn our_own_orphan_is_not_another_holder() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = client(&proxy.url());
    let (told, renewals) = unbounded();
    let _guard = client
        .mutex("renewed")
        .renew_every(ms(100))
        .on_renew(move |_| {
            let _ = told.send(());
        })
        .lock()
        .unwrap();
    // The thread that renews, and undoes, has taken the only connection there is.
    renewals.recv().unwrap();
    let _ = client.mutex("warm").lock().unwrap().unlock().unwrap();
    assert_eq!(proxy.connections(), 2);
    proxy.set_nth(0, Traffic::Stall);
    proxy.set_nth(1, Traffic::CutOnReply);
    match client.mutex("a").try_lock() {
        Ok(Some(guard)) => is_untouched(guard, &server),
        Ok(None) => panic!("nobody holds it but we ourselves"),
        Err(error) => assert!(error.is_unreachable(), "{error:?}"),
    }
    proxy.set_nth(0, Traffic::Pass);
    eventually(SOON, || server.get("lock:a").is_none());
}

fn a_release_on_a_connection_that_ends_is_a_release() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = client(&proxy.url());
    let (told, losses) = unbounded();
    let mutex = client
        .mutex("a")
        .on_lost(move |lost| told.send(*lost).unwrap());
    let guard = mutex.lock().unwrap();
    let lost = guard.lost();
    proxy.set_open(Traffic::CutOnReply);
    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
    assert_eq!(server.get("lock:a"), None);
    assert_eq!(lost.recv(), Err(crossbeam_channel::RecvError));

    // It finds the next holder already there, and that is no loss either.
    let guard = mutex.lock().unwrap();
    let other = self::client(&server.url());
    proxy.set_open(Traffic::CutOnReply);
    let next = thread::scope(|scope| {
        let waiting = scope.spawn(|| other.mutex("a").lock().unwrap());
        eventually(ms(5_000), || server.subscribers("lock_release:a") > 0);
        assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
        waiting.join().unwrap()
    });
    is_untouched(next, &server);
    drop((client, mutex));
    assert_eq!(losses.try_recv(), Err(TryRecvError::Disconnected));
}

fn a_release_without_a_reply_is_no_loss() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = client(&proxy.url());
    let (told, losses) = unbounded();
    let mutex = client
        .mutex("a")
        .on_lost(move |lost| told.send(*lost).unwrap());
    let guard = mutex.lock().unwrap();
    let lost = guard.lost();
    proxy.set_all(Traffic::DropReplies);
    expect_unreachable(guard.unlock());
    assert_eq!(lost.recv(), Err(crossbeam_channel::RecvError));
    proxy.set_all(Traffic::Pass);
    let other = self::client(&server.url());
    is_untouched(other.mutex("a").lock().unwrap(), &server);
    drop((client, mutex));
    assert_eq!(losses.try_recv(), Err(TryRecvError::Disconnected));
}

/// The release never got there: it is repeated until it does.
fn a_release_that_vanished_is_repeated() {
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
    eventually(SOON, || keys(&server).is_empty());
}

fn a_late_release_leaves_the_next_holder_alone() {
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
    eventually(ms(5_000), || server.calls(&["evalsha"]) > before);
    is_untouched(next, &server);
}

fn a_late_renewal_brings_nothing_back() {
    let server = Server::start();
    let other = client(&server.url());
    for is_taken_again in [false, true] {
        let proxy = Proxy::new(&server);
        let client = client(&proxy.url());
        let (told, renewals) = unbounded();
        let (lost, losses) = unbounded();
        let guard = client
            .mutex("a")
            .renew_every(ms(100))
            .on_renew(move |_| told.send(()).unwrap())
            .on_lost(move |why| lost.send(*why).unwrap())
            .lock()
            .unwrap();
        // The thread that renews has taken the only connection there is.
        renewals.recv().unwrap();
        assert_eq!(proxy.connections(), 1);
        proxy.set_open(Traffic::Stall);
        let before = proxy.request_bytes();
        eventually(ms(5_000), || proxy.request_bytes() > before);
        assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
        let next = is_taken_again.then(|| other.mutex("a").lock().unwrap());
        let before = server.calls(&["evalsha"]);
        proxy.set_open(Traffic::Pass);
        eventually(ms(5_000), || server.calls(&["evalsha"]) > before);
        match next {
            Some(next) => is_untouched(next, &server),
            None => assert_eq!(server.get("lock:a"), None),
        }
        // What it found says nothing once the release was sent.
        drop(client);
        assert_eq!(
            losses.recv_timeout(ms(5_000)),
            Err(RecvTimeoutError::Disconnected)
        );
    }
}

fn a_renewal_without_a_reply_is_no_loss() {
    let server = Server::start();
    for traffic in [
        Traffic::DropReplies,
        Traffic::CutOnReply,
        Traffic::DropBoth,
        Traffic::Cut,
    ] {
        let proxy = Proxy::new(&server);
        let client = client(&proxy.url());
        let (told, renewals) = unbounded();
        let guard = client
            .mutex("a")
            .ttl(ms(3_000))
            .renew_every(ms(100))
            .on_renew(move |_| told.send(()).unwrap())
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
        is_untouched(guard, &server);
    }
}

/// Everything at once. Nobody here deletes keys or outlives a ttl, so no lease may ever be lost, and at most one is
/// held at a time.
fn nothing_is_lost_doubled_or_left_in_a_storm() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let clients = [warm(&proxy), client(&proxy.url())];
    let inside: [AtomicU32; 3] = Default::default();
    let over = AtomicBool::new(false);
    let taken = AtomicU32::new(0);
    thread::scope(|scope| {
        for n in 0..9 {
            let (client, inside) = (&clients[n % 2], &inside[n % 3]);
            let (over, taken) = (&over, &taken);
            scope.spawn(move || {
                let mutex = client.mutex(format!("{}", n % 3));
                while !over.load(Ordering::Relaxed) {
                    let guard = match mutex.try_lock_for(ms(150)) {
                        Ok(Some(guard)) => guard,
                        Ok(None) => continue,
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
                    match guard.unlock() {
                        Ok(unlocked) => assert_eq!(unlocked, Unlocked::Released),
                        Err(error) => assert!(error.is_unreachable(), "{error:?}"),
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
        over.store(true, Ordering::Relaxed);
    });
    assert!(taken.into_inner() > 20, "there were quiet moments");
    eventually(SOON, || keys(&server).is_empty());
}

fn an_unanswered_extend_leaves_no_key_behind_although_the_release_is_late() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = client(&proxy.url());
    let ttl = ms(1_000);
    let guard = client.mutex("a").ttl(ttl).lock().unwrap();
    // From now on the server knows the script.
    guard.renew().unwrap();
    proxy.set_all(Traffic::DropReplies);
    expect_unreachable(guard.extend(ms(3_600_000)));
    let left: i64 = redis::cmd("PTTL")
        .arg("lock:a")
        .query(&mut server.connection())
        .unwrap();
    assert!(left > 3_000_000, "the extend ran: {left} ms");
    proxy.set_all(Traffic::DropBoth);
    expect_unreachable(guard.unlock());
    // Longer than the ttl, and than twice the ttl.
    let_pass(3 * ttl);
    assert_eq!(keys(&server), ["lock:a"], "no release came through");
    proxy.set_all(Traffic::Pass);
    eventually(ms(10_000), || keys(&server).is_empty());
}

/// How many calls at a time go unanswered below. Some of them may find no connection.
const CALLS: usize = 6;

/// Several calls for the lock "a", or for one that includes it, go unanswered, their connections end, and the next
/// connections work. Returns the holder ids that are then undone in one command.
fn many_in_vain(
    server: &Server,
    proxy: &Proxy,
    client: &Client,
    call: impl Fn() -> Result<bool, Error> + Sync,
) -> Vec<String> {
    // Answers that take their time give each of the calls a connection.
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
        // The calls above, too, may have timed out: those have locks of their own.
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

/// One of the acquires runs late: another client, which looks no more until it is woken, gets the lock.
fn runs_late(server: &Server, names: &[&str], id: &str) {
    for name in names {
        let (key, ttl) = (format!("lock:{name}"), TTL.as_millis().to_string());
        server.run("SET", &[&key, id, "PX", &ttl]);
    }
    let other = Client::builder()
        .url(server.url())
        .backstop(TTL)
        .build()
        .unwrap();
    let guards: Vec<_> = names
        .iter()
        .map(|name| other.mutex(*name).try_lock_for(10 * SOON).unwrap())
        .collect();
    assert!(
        guards.iter().all(Option::is_some),
        "it is removed, and told"
    );
}

fn undos_of_one_name_go_out_together_and_each_removes_its_own() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = late_client(&proxy);
    let call = || client.mutex("a").try_lock().map(|guard| guard.is_some());
    let ids = many_in_vain(&server, &proxy, &client, call);
    for id in ids.iter().rev().take(2) {
        runs_late(&server, &["a"], id);
    }
    let guard = client.mutex("a").lock().unwrap();
    let_pass(ms(2_000));
    is_untouched(guard, &server);
}

fn undos_of_one_set_go_out_together_and_each_removes_its_own() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = late_client(&proxy);
    let set = || client.mutex_all(["a", "b"]);
    let call = || set().try_lock().map(|guard| guard.is_some());
    let ids = many_in_vain(&server, &proxy, &client, call);
    runs_late(&server, &["a", "b"], &ids[1]);
    let guard = set().lock().unwrap();
    let_pass(ms(2_000));
    guard.ensure_held().unwrap();
    assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
}

fn undos_of_one_fair_lock_go_out_together_and_leave_its_queue_to_others() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = late_client(&proxy);
    let fair = |client: &Client| client.fair_mutex("a");
    let call = || fair(&client).try_lock().map(|guard| guard.is_some());
    let ids = many_in_vain(&server, &proxy, &client, call);
    let other = self::client(&server.url());
    thread::scope(|scope| {
        let guard = fair(&other).lock().unwrap();
        let (key, queue, places) = (
            "lock:a",
            "leasehold:queue:{lock:a}",
            "leasehold:places:{lock:a}",
        );
        // As if an acquire had run late behind the holder, and another in its place.
        server.run("RPUSH", &[queue, &ids[0]]);
        server.run("HSET", &[places, &ids[0], "9007199254740991 3000 "]);
        let waiter = scope.spawn(|| fair(&other).try_lock_for(10 * SOON).unwrap());
        eventually(SOON, || other.stats().waiting == 1);
        assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
        let guard = waiter
            .join()
            .unwrap()
            .expect("the late one is out of the queue");
        assert_eq!(guard.unlock().unwrap(), Unlocked::Released);
        let ttl = TTL.as_millis().to_string();
        server.run("SET", &[key, &ids[1], "PX", &ttl]);
        eventually(10 * SOON, || server.get(key).is_none());
    });
}

/// Answers that are slower than the calls are patient: each of them may have been an acquire. Once the network is as it
/// was, an idle client asks about a name no more than once a second or so, however many there were.
fn undos_after_slow_answers_cost_a_name_one_command_a_second() {
    const NAMES: u64 = 4;
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = late_client(&proxy);
    proxy.delay(ms(0), ms(12));
    let began = Instant::now();
    thread::scope(|scope| {
        for n in 0..NAMES {
            let mutex = client.mutex(format!("{n}"));
            scope.spawn(move || {
                while began.elapsed() < ms(4_000) {
                    let _ = mutex.try_lock_for(ms(5));
                }
            });
        }
    });
    proxy.delay(ms(0), ms(0));
    let sent = || server.calls(&["evalsha", "eval"]);
    // Until the youngest of them are old enough to be rare.
    let_pass(ms(2_500));
    let before = sent();
    let_pass(ms(4_000));
    let sent = sent() - before;
    assert!(sent > 0, "they are still undone");
    assert!(sent <= 8 * NAMES, "{sent} in four seconds");
}
