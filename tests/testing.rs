//! Promise: the server of `leasehold::testing` does what its page says.
#![cfg(feature = "testing")]

use std::any::Any;
use std::io::Read;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::testing::Server;
use leasehold::{Backoff, Client, ClientBuilder, Error, Lost, Renewed, WaitPolicy};
use support::{TempDir, eventually, let_pass, ms};

const NAME: &str = "account:123";

/// Long enough for a machine that is overloaded.
const LONG: Duration = Duration::from_secs(60);

/// Builds clients whose calls succeed on a machine that is overloaded, too.
fn builder(server: &Server) -> ClientBuilder {
    let builder = Client::builder().url(server.url());
    builder.command_timeout(LONG).connect_timeout(LONG)
}

fn patient(server: &Server) -> Client {
    builder(server).build().unwrap()
}

/// A client whose calls give up soon, for calls that must fail.
fn impatient(server: &Server) -> Client {
    let builder = builder(server).command_timeout(ms(300));
    builder.breaker(0).build().unwrap()
}

fn is_taken(server: &Server) -> bool {
    server.is_locked(NAME)
}

/// Waits until a client waits in the queue of the lock.
fn until_waiting(client: &Client) {
    eventually(LONG, || client.mutex(NAME).waiting().unwrap() == 1);
}

/// Waits until a client waits in the queue of the lock and receives messages.
fn until_subscribed(server: &Server, client: &Client) {
    until_waiting(client);
    // The waiter refreshes its place once more after it has subscribed.
    eventually(LONG, || {
        let before = server.commands();
        let_pass(ms(200));
        server.commands() == before
    });
}

/// The message with which a call panics.
fn panic_message(call: impl FnOnce() + Send) -> String {
    thread::scope(|scope| {
        let panic = scope.spawn(call).join().unwrap_err();
        *panic.downcast::<String>().unwrap()
    })
}

#[test]
fn what_a_client_returns_for_a_log_can_be_displayed() {
    let server = Server::start();
    let client = builder(&server).owner("web\n1/7").build().unwrap();
    let (sender, renewals) = leasehold::crossbeam_channel::unbounded();
    let report = client.mutex("re\nport").on_renew(move |renewed: &Renewed| {
        sender.send(renewed.to_string()).unwrap();
    });
    let guard = report.lock().unwrap();
    let _permits = client.semaphore("api", 3).many(2).acquire().unwrap();
    guard.renew().unwrap();

    let held = client.list("re").unwrap()[0].to_string();
    let permits = client.list_permits("api").unwrap()[0].to_string();
    let renewed = renewals.recv().unwrap();
    for (shown, start) in [
        (&held, r"re\nport is held by "),
        (&permits, "api: 2 permits out: "),
        (&renewed, r"re\nport renewed by "),
    ] {
        assert!(shown.starts_with(start), "{shown}");
        assert!(shown.contains("web") && !shown.contains('\n'), "{shown}");
        assert!(shown.contains(", for another "), "{shown}");
    }
    let health = client.health();
    let part = &health.servers[0];
    assert_eq!(
        (part.state.to_string(), part.breaker.to_string()),
        ("working".into(), "closed".into())
    );
}

#[test]
fn outcomes_in_the_line_of_statistics_add_up_to_the_calls() {
    let server = Server::start();
    let (client, other) = (patient(&server), patient(&server));
    let guard = other.mutex(NAME).lock().unwrap();
    for _ in 0..3 {
        assert!(client.mutex(NAME).try_lock().unwrap().is_err());
        let waited = client.mutex(NAME).try_lock_for(ms(50));
        assert!(waited.unwrap().is_err());
    }
    // The client knows that its own thread has the lock: no command is sent.
    assert!(other.mutex(NAME).try_lock().unwrap().is_err());
    drop(guard);
    drop(client.mutex(NAME).lock().unwrap());

    let totals = client.stats().totals;
    assert_eq!(
        (totals.calls(), totals.refused, totals.timed_out),
        (7, 3, 3)
    );
    let line = totals.to_string();
    // The last call waits if the place of the one before is still in the queue.
    let calls = line.split_once(" % after waiting");
    let calls = calls.map(|(acquired, rest)| (acquired.split(',').next().unwrap_or(""), rest));
    let (acquired, rest) = calls.unwrap_or_else(|| panic!("{line}"));
    assert_eq!(acquired, "calls 7 (acquired 1", "{line}");
    let others = "; refused 3; timed out 3; cancelled 0; failed 0), commands to acquire ";
    assert!(rest.starts_with(others), "{line}");
    let totals = other.stats().totals;
    assert_eq!(
        (totals.calls(), totals.acquired(), totals.refused),
        (2, 1, 1)
    );
}

#[test]
fn lock_is_taken_and_released() {
    let server = Server::start();
    let client = patient(&server);
    let guard = client.mutex(NAME).lock().unwrap();
    assert!(is_taken(&server));
    assert!(patient(&server).mutex(NAME).try_lock().unwrap().is_err());
    guard.unlock().unwrap();
    assert_eq!(server.keys(), ["leasehold:fence:{lock:account:123}"]);
}

#[test]
fn every_kind_of_lock_works() {
    let server = Server::start();
    let client = patient(&server);
    let all = client.mutex_all(["a", "b"]).lock().unwrap();
    assert!(client.mutex("b").try_lock().unwrap().is_err());
    drop(all);
    let fair = client.fair_mutex(NAME).lock().unwrap();
    assert!(client.mutex(NAME).try_lock().unwrap().is_err());
    assert_eq!(client.list("").unwrap().len(), 1);
    fair.renew().unwrap();
    fair.unlock().unwrap();
}

#[test]
fn permits_are_granted_and_end() {
    let server = Server::start();
    let (holder, client) = (patient(&server), patient(&server));
    let semaphore = client.semaphore(NAME, 2);
    let of_holder = holder.semaphore(NAME, 2).many(2).auto_renew(false);
    let both = of_holder.acquire().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| semaphore.acquire().unwrap());
        eventually(LONG, || semaphore.waiting().unwrap() == 1);
        both.release().unwrap();
        let permit = waiter.join().unwrap();
        assert_eq!(semaphore.available().unwrap(), 1);
        permit.release().unwrap();
    });
    let crashed = of_holder.ttl(LONG).acquire().unwrap();
    assert!(semaphore.try_acquire().unwrap().is_err());
    server.advance(LONG + ms(1));
    assert_eq!(semaphore.available().unwrap(), 2);
    assert!(semaphore.try_acquire().unwrap().is_ok());
    drop(crashed);
}

#[test]
fn several_servers_are_a_quorum() {
    let servers = [(); 3].map(|()| Server::start());
    let client = Client::quorum(servers.iter().map(Server::url)).unwrap();
    let _cut = servers[0].cut();
    let guard = client.mutex(NAME).try_lock_for(LONG).unwrap().unwrap();
    assert!(!is_taken(&servers[0]) && is_taken(&servers[1]) && is_taken(&servers[2]));
    guard.unlock().unwrap();
}

#[test]
fn both_protocols_and_all_databases_are_served() {
    let server = Server::start();
    for path in ["/2", "?protocol=resp3"] {
        let client = || Client::open(format!("{}{path}", server.url())).unwrap();
        let (client, other) = (client(), client());
        let guard = client.mutex(NAME).lock().unwrap();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| other.mutex(NAME).lock().map(drop));
            until_waiting(&client);
            drop(guard);
            waiter.join().unwrap().unwrap();
        });
    }
    let _in_database_2 = Client::open(format!("{}/2", server.url()))
        .unwrap()
        .mutex(NAME)
        .lock()
        .unwrap();
    assert!(patient(&server).mutex(NAME).try_lock().unwrap().is_ok());
}

#[test]
fn foreign_holder_keeps_the_lock_until_it_is_dropped() {
    let server = Server::start();
    let client = builder(&server).build().unwrap();
    let foreign = server.hold(NAME);
    assert!(client.mutex(NAME).try_lock().unwrap().is_err());
    let holder = client.mutex(NAME).inspect().unwrap().unwrap();
    assert_eq!(holder.owner(), Some("somebody-else"));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| client.mutex(NAME).lock().unwrap().fencing_token());
        until_subscribed(&server, &client);
        drop(foreign);
        let token = waiter.join().unwrap();
        assert!(token > holder.fencing_token().unwrap());
    });
    let totals = client.stats().totals;
    assert!(totals.wakes > totals.spurious_wakes, "no message came");
}

#[test]
fn foreign_holder_hands_a_fair_lock_to_the_first_in_line() {
    let server = Server::start();
    let client = patient(&server);
    let foreign = server.hold(NAME);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| client.fair_mutex(NAME).lock().map(drop));
        eventually(LONG, || client.fair_mutex(NAME).waiting().unwrap() == 1);
        drop(foreign);
        waiter.join().unwrap().unwrap();
    });
}

#[test]
fn foreign_holder_renews_its_lease_and_a_forgotten_one_does_not() {
    let server = Server::start();
    let foreign = server.hold(NAME);
    for time in [ms(9_000), ms(10_000), LONG * 60] {
        server.advance(time);
        assert!(is_taken(&server));
    }
    foreign.forget();
    assert!(is_taken(&server));
    server.advance(ms(10_000));
    assert!(!is_taken(&server));
    // The server's clock moves ahead by 100 years at most.
    let _foreign = server.hold(NAME);
    server.advance(Duration::MAX);
    assert!(is_taken(&server));
}

/// Makes the server unreachable until the result is dropped.
fn cut_or_pause(server: &Server, is_cut: bool) -> Box<dyn Any> {
    if is_cut {
        Box::new(server.cut())
    } else {
        Box::new(server.pause())
    }
}

#[test]
fn foreign_holder_cannot_renew_while_the_server_is_unreachable() {
    let server = Server::start();
    for is_cut in [true, false] {
        let foreign = server.hold(NAME);
        let fault = cut_or_pause(&server, is_cut);
        server.advance(ms(10_000));
        assert!(!is_taken(&server), "its lease has run out");
        drop(fault);
        let _next = patient(&server).mutex(NAME).lock().unwrap();
        drop(foreign);
        assert!(is_taken(&server), "it releases only its own lease");
    }
}

#[test]
fn foreign_holder_cannot_release_while_the_server_is_unreachable() {
    let server = Server::start();
    for is_cut in [true, false] {
        let foreign = server.hold(NAME);
        let fault = cut_or_pause(&server, is_cut);
        drop(foreign);
        drop(fault);
        assert!(is_taken(&server), "its release did not arrive");
        server.advance(ms(10_000));
        assert!(!is_taken(&server), "its lease has run out");
    }
}

#[test]
fn foreign_holder_cannot_take_a_key_of_another_type() {
    let server = Server::start();
    let mut connection = redis::Client::open(server.url()).unwrap();
    let key = format!("lock:{NAME}");
    redis::cmd("HSET")
        .arg(&[&*key, "a", "1"])
        .exec(&mut connection)
        .unwrap();
    let message = panic_message(|| drop(server.hold(NAME)));
    assert!(message.contains("account:123: WRONGTYPE"), "{message}");
}

#[test]
fn foreign_holder_cannot_take_a_lock_that_is_taken() {
    let server = Server::start();
    let _first = server.hold(NAME);
    let message = panic_message(|| drop(server.hold(NAME)));
    assert!(message.contains("account:123: somebody-else:"), "{message}");
}

#[test]
fn foreign_holder_excludes_readers_and_writers() {
    let server = Server::start();
    let lock = patient(&server).rw_lock(NAME);
    let foreign = server.hold(NAME);
    assert!(lock.try_read().unwrap().is_err() && lock.try_write().unwrap().is_err());
    drop(foreign);
    let reading = lock.read().unwrap();
    assert!(is_taken(&server));
    assert!(!panic_message(|| drop(server.hold(NAME))).is_empty());
    drop(reading);
    assert!(!is_taken(&server));
}

#[test]
fn loss_is_told_even_if_no_renewal_is_near() {
    let server = Server::start();
    let client = patient(&server);
    let guard = client.mutex(NAME).ttl(LONG * 60).lock().unwrap();
    server.lose(NAME);
    assert!(!is_taken(&server));
    assert_eq!(guard.lost().recv_timeout(LONG), Ok(Lost::Deleted));
    let message = panic_message(|| server.lose(NAME));
    assert_eq!(
        message,
        "nobody has account:123 (key lock:account:123 of database 0)"
    );
}

#[test]
fn lost_lock_goes_to_a_waiter() {
    let server = Server::start();
    let holder = patient(&server);
    let client = builder(&server).build().unwrap();
    let guard = holder.mutex(NAME).ttl(LONG * 60).lock().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| client.mutex(NAME).lock().unwrap().unlock().unwrap());
        until_subscribed(&server, &client);
        server.lose(NAME);
        waiter.join().unwrap();
    });
    let totals = client.stats().totals;
    assert!(totals.wakes > totals.spurious_wakes, "no message came");
    // The reason varies: the waiter may have the lock when the holder's client asks Redis.
    assert!(guard.lost().recv_timeout(LONG).is_ok());
}

#[test]
fn advance_ends_leases_and_raises_tokens() {
    let server = Server::start();
    let client = patient(&server);
    let mutex = client.mutex(NAME).ttl(ms(900));
    let guard = mutex.lock().unwrap();
    let before = guard.fencing_token().value();
    server.advance(ms(900));
    assert!(!is_taken(&server));
    // The client learns it from the next renewal, or from its own clock if this machine was slow.
    assert!(guard.lost().recv_timeout(LONG).is_ok());
    let after = mutex.lock().unwrap().fencing_token().value();
    assert!(after - before >= 900_000, "tokens are the server's µs");
}

/// Runs `test` with the loss of a guard of each kind, renewed or not. No renewal is near.
fn for_each_kind(test: impl Fn(&Server, &crossbeam_channel::Receiver<Lost>)) {
    for renews in [true, false] {
        let server = Server::start();
        let client = patient(&server);
        let ttl = LONG * 60;
        let mutex = client.mutex(NAME).ttl(ttl).auto_renew(renews);
        let fair = client.fair_mutex(NAME).ttl(ttl).auto_renew(renews);
        let set = client.mutex_all([NAME, "other"]).ttl(ttl);
        let set = set.auto_renew(renews);
        let rw = client.rw_lock(NAME).ttl(ttl).auto_renew(renews);
        let permits = client.semaphore(NAME, 2).ttl(ttl).auto_renew(renews);
        let check = |lost, is_held: &dyn Fn() -> bool| {
            assert!(is_held());
            test(&server, &lost);
            assert!(!is_held());
        };
        let guard = mutex.lock().unwrap();
        check(guard.lost(), &|| guard.is_held());
        let guard = fair.lock().unwrap();
        check(guard.lost(), &|| guard.is_held());
        let guard = set.lock().unwrap();
        check(guard.lost(), &|| guard.is_held());
        drop(guard);
        let guard = rw.write().unwrap();
        check(guard.lost(), &|| guard.is_held());
        let guard = rw.read().unwrap();
        check(guard.lost(), &|| guard.is_held());
        let guard = permits.acquire().unwrap();
        check(guard.lost(), &|| guard.is_held());
    }
}

#[test]
fn advance_ends_a_lease_of_any_kind_at_once() {
    for_each_kind(|server, lost| {
        server.advance(LONG * 60);
        assert!(lost.recv_timeout(LONG).is_ok());
    });
}

#[test]
fn lose_takes_a_lock_of_any_kind_at_once() {
    for_each_kind(|server, lost| {
        server.lose(NAME);
        assert_eq!(lost.recv_timeout(LONG), Ok(Lost::Deleted));
    });
}

#[test]
fn advance_ends_only_leases_whose_time_is_over() {
    let server = Server::start();
    let client = patient(&server);
    let rw = client.rw_lock(NAME);
    let short = rw.clone().ttl(LONG).read().unwrap();
    let long = rw.ttl(LONG * 60).read().unwrap();
    server.advance(LONG);
    assert!(short.lost().recv_timeout(LONG).is_ok());
    assert!(long.is_held());
    long.unlock().unwrap();
}

#[test]
fn lost_permits_go_to_a_call_that_waits() {
    let server = Server::start();
    let (holder, client) = (patient(&server), patient(&server));
    let two = holder.semaphore(NAME, 3).many(2).acquire().unwrap();
    let one = holder.semaphore(NAME, 3).acquire().unwrap();
    let semaphore = client.semaphore(NAME, 3).many(3);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| semaphore.acquire().unwrap());
        eventually(LONG, || semaphore.waiting().unwrap() == 1);
        server.lose(NAME);
        let permits = waiter.join().unwrap();
        assert!(two.lost().recv_timeout(LONG).is_ok());
        assert!(one.lost().recv_timeout(LONG).is_ok());
        assert!(permits.is_held());
    });
}

#[test]
fn advance_makes_waiting_calls_try_again() {
    let server = Server::start();
    let client = builder(&server).build().unwrap();
    // With this ttl, neither a renewal nor the waiter's own clock is near.
    let holder = patient(&server).mutex(NAME).ttl(LONG * 60).lock().unwrap();
    thread::scope(|scope| {
        let (acquired, acquires) = crossbeam_channel::bounded(1);
        // The waiter itself asks again long after the end of this test.
        let pauses = Backoff::new(LONG * 2, LONG * 2);
        let mutex = client.mutex(NAME).wait_policy(WaitPolicy::Backoff(pauses));
        let deadline = LONG * 3;
        scope.spawn(move || acquired.send(mutex.try_lock_for(deadline).unwrap().is_ok()));
        // The attempt was refused.
        eventually(LONG, || client.stats().waiting == 1);
        server.advance(LONG * 60);
        // Long before the last attempt, which is shortly before the deadline.
        assert_eq!(acquires.recv_timeout(LONG), Ok(true));
    });
    assert!(holder.lost().recv_timeout(LONG).is_ok());
}

#[test]
fn lost_fair_lock_goes_to_the_first_in_line_at_once() {
    let server = Server::start();
    let client = patient(&server);
    let guard = patient(&server).fair_mutex(NAME).lock().unwrap();
    let (ended, end) = crossbeam_channel::bounded::<()>(0);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let guard = client.fair_mutex(NAME).lock().unwrap();
            // Holds the lock until the test has looked at the keys.
            let _ = end.recv();
            guard.unlock().unwrap()
        });
        eventually(LONG, || client.fair_mutex(NAME).waiting().unwrap() == 1);
        server.lose(NAME);
        assert!(is_taken(&server), "the server has granted it");
        drop(ended);
        waiter.join().unwrap();
    });
    assert!(guard.lost().recv_timeout(LONG).is_ok());
}

#[test]
fn paused_server_answers_nothing() {
    let server = Server::start();
    let client = impatient(&server);
    drop(client.mutex(NAME).lock().unwrap());
    let pause = server.pause();
    let (commands, keys) = (server.commands(), server.keys());
    let error = client.mutex(NAME).try_lock().unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert_eq!((server.commands(), server.keys()), (commands, keys));
    let second = server.pause();
    drop(pause);
    assert!(client.ping().is_err());
    drop(second);
    assert!(client.mutex(NAME).try_lock_for(LONG).unwrap().is_ok());
}

#[test]
fn cut_server_refuses_connections_and_keeps_its_data() {
    let server = Server::start();
    let client = patient(&server);
    let guard = client.mutex(NAME).lock().unwrap();
    let cuts = [server.cut(), server.cut()];
    for cut in cuts {
        let error = impatient(&server).ping().unwrap_err();
        assert!(error.to_string().contains("refused"), "{error}");
        drop(cut);
    }
    assert!(is_taken(&server));
    // The first call may find a connection that the cut has closed.
    eventually(LONG, || client.ping().is_ok());
    guard.unlock().unwrap();
}

#[test]
fn cut_server_closes_connections_to_its_unix_socket_and_removes_it_at_its_end() {
    let folder = TempDir::create();
    let path = folder.join("redis.sock");
    let server = Server::listen(0, Some(&path)).unwrap();
    let cut = server.cut();
    let mut stream = UnixStream::connect(&path).unwrap();
    // macOS refuses this for a connection that is closed already.
    let _ = stream.set_read_timeout(Some(LONG));
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "it is closed");
    drop(cut);
    let client = Client::open(format!("redis+unix://{}", path.display())).unwrap();
    client.ping().unwrap();
    drop((client, server));
    assert!(!path.exists(), "no socket is left");
}

#[test]
fn refused_script_does_not_run() {
    let server = Server::start();
    let client = patient(&server);
    let refusals = [server.refuse("-OOM first"), server.refuse("NOPERM second")];
    for (refusal, code) in refusals.into_iter().rev().zip(["NOPERM", "OOM"]) {
        match client.mutex(NAME).try_lock() {
            Err(Error::Refused { answer, .. }) => assert!(answer.starts_with(code), "{answer}"),
            other => panic!("{other:?}"),
        }
        client.ping().unwrap();
        drop(refusal);
    }
    assert!(!is_taken(&server));
    assert!(client.mutex(NAME).try_lock().unwrap().is_ok());
}

#[test]
fn lock_whose_reply_is_lost_is_taken_and_undone() {
    let server = Server::start();
    let client = builder(&server).command_timeout(ms(2_000)).build().unwrap();
    let other = patient(&server);
    // The server has the script from now on: a caller that must send its source runs nothing.
    drop(other.mutex(NAME).lock().unwrap());
    let tokens = other.mutex(NAME).last_fencing_token().unwrap();
    server.drop_replies(1);
    let error = client.mutex(NAME).try_lock().unwrap_err();
    assert!(error.may_be_held(), "{error}");
    eventually(LONG, || !is_taken(&server));
    assert!(
        other.mutex(NAME).last_fencing_token().unwrap() > tokens,
        "it ran"
    );
}

#[test]
fn lost_message_wakes_nobody() {
    let server = Server::start();
    let client = builder(&server).build().unwrap();
    let foreign = server.hold(NAME);
    server.drop_messages(1);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| client.mutex(NAME).lock().map(drop));
        until_subscribed(&server, &client);
        drop(foreign);
        waiter.join().unwrap().unwrap();
    });
    let totals = client.stats().totals;
    assert_eq!(totals.wakes, totals.spurious_wakes);
}

#[test]
fn waiting_threads_of_a_client_share_their_refreshes() {
    let server = Server::start();
    let client = patient(&server);
    let foreign = server.hold(NAME);
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| client.mutex(NAME).lock().map(drop).unwrap());
        }
        until_waiting(&client);
        eventually(LONG, || client.stats().waiting == 16);
        // The first waiter refreshes the place once more after it has subscribed.
        eventually(LONG, || {
            let before = server.commands();
            let_pass(ms(200));
            server.commands() == before
        });
        let (began, before) = (Instant::now(), server.commands());
        // Longer than 0.9 s: in this time, each thread would send a refresh of its own.
        let_pass(ms(1_000));
        eventually(LONG, || server.commands() > before);
        let sent = server.commands() - before;
        let took = began.elapsed().as_millis();
        // A refresh every 0.9 s for all threads, and a probe of the subscription every second.
        // A script that is sent for the first time takes two commands.
        let most = took / 900 + 1 + took / 1_000 + 1 + 2;
        assert!(u128::from(sent) <= most, "{sent} commands");
        drop(foreign);
    });
}

#[test]
fn what_the_server_is_not_is_refused_by_name() {
    let server = Server::start();
    let port = server.url().rsplit_once(':').unwrap().1;
    let urls = [
        format!("redis+cluster://127.0.0.1:{port}"),
        format!("redis+sentinel://127.0.0.1:{port}/mymaster"),
        format!("redis://:secret@127.0.0.1:{port}"),
        format!("redis://:secret@127.0.0.1:{port}?protocol=resp3"),
    ];
    for url in urls {
        let client = Client::open(&url).unwrap();
        let error = client.mutex(NAME).try_lock().unwrap_err();
        assert!(error.to_string().contains("leasehold::testing"), "{error}");
    }
    let client = patient(&server);
    let replicated = client.mutex(NAME).min_replicas(1, ms(100));
    let error = replicated.try_lock().unwrap_err();
    assert!(error.to_string().contains("leasehold::testing"), "{error}");
}

/// The errors of Redis 7.0.
#[test]
fn numbers_in_arguments_are_read_as_redis_reads_them() {
    let server = Server::start();
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    for (command, expected) in [
        ("SELECT 15", None),
        ("SELECT 16", Some("DB index is out of range")),
        ("SELECT -1", Some("DB index is out of range")),
        ("SELECT 01", Some("value is not an integer or out of range")),
        ("EVAL return 0", None),
        ("EVAL return -1", Some("Number of keys can't be negative")),
        (
            "EVAL return +0",
            Some("value is not an integer or out of range"),
        ),
    ] {
        let mut words = command.split(' ');
        let mut command = redis::cmd(words.next().unwrap());
        words.for_each(|word| {
            command.arg(word);
        });
        let reply: redis::RedisResult<redis::Value> = command.query(&mut connection);
        let error = reply.err().map(|error| error.to_string());
        match expected {
            Some(text) => assert!(error.unwrap_or_default().contains(text), "{text}"),
            None => assert_eq!(error, None),
        }
    }
}

#[test]
fn guards_may_be_dropped_after_their_server() {
    let server = Server::start();
    let url = server.url().to_owned();
    let foreign = server.hold(NAME);
    let refusal = server.refuse("OOM");
    let (pause, cut) = (server.pause(), server.cut());
    drop(server);
    // A drop that waits for the server's thread panics after a minute.
    drop((foreign, refusal, pause, cut));
    let address = url.trim_start_matches("redis://");
    assert!(TcpStream::connect(address).is_err(), "its port is closed");
}

#[test]
fn servers_are_independent() {
    let servers = [Server::start(), Server::start()];
    let _foreign = servers[0].hold(NAME);
    let began = Instant::now();
    servers[0].advance(LONG);
    let _pause = servers[0].pause();
    assert!(patient(&servers[1]).mutex(NAME).lock().is_ok());
    assert!(began.elapsed() < LONG);
}

/// The replies of Redis 7.0.
#[test]
fn client_kill_closes_the_connections_of_the_type() {
    let server = Server::start();
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let mut kill = |args: &str| {
        let mut command = redis::cmd("CLIENT");
        command.arg("KILL").arg(args.split(' ').collect::<Vec<_>>());
        let reply: redis::RedisResult<u32> = command.query(&mut connection);
        reply.map_err(|error| error.to_string())
    };
    let mut subscriber = client.get_connection().unwrap();
    let mut subscriber = subscriber.as_pubsub();
    subscriber.subscribe("c").unwrap();
    let mut other = client.get_connection().unwrap();
    for kind in ["master", "replica", "slave"] {
        assert_eq!(kill(&format!("TYPE {kind}")), Ok(0), "{kind}");
    }
    for (args, text) in [
        ("TYPE x", "Unknown client type 'x'"),
        ("TYPE normal SKIPME", "syntax error"),
        ("TYPE normal SKIPME x", "syntax error"),
    ] {
        let error = kill(args).unwrap_err();
        assert!(error.contains(text), "{args}: {error}");
    }
    assert_eq!(kill("TYPE normal SKIPME yes"), Ok(1));
    let pinged: redis::RedisResult<()> = redis::cmd("PING").query(&mut other);
    assert!(pinged.is_err(), "it is closed");
    assert_eq!(kill("TYPE pubsub"), Ok(1));
    assert!(subscriber.get_message().is_err(), "it is closed");
    assert_eq!(kill("TYPE normal SKIPME no"), Ok(1));
    assert!(kill("TYPE normal").is_err(), "the caller is closed");
}
