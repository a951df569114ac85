//! Promise: calls that acquire, inspect and release a lock report the true outcome.

use std::collections::HashSet;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::crossbeam_channel::unbounded;
use leasehold::{Backoff, Client, ClientBuilder, Error, Lost, MutexGuard, WaitPolicy, WithError};
use support::fair::places_in;
use support::{
    Proxy, Server, Traffic, assert_message_wakes, eventually, ms, refusing_url, result_of,
    spawn_call,
};

support::tests![
    another_client_is_refused_then_woken_by_the_release,
    try_lock_of_a_name_this_client_holds_sends_nothing,
    try_lock_does_not_overtake_a_waiting_call_of_its_client,
    calls_without_a_server_are_errors_that_name_it,
    inspect_shows_a_leasehold_holder,
    inspect_shows_value_and_ttl_of_a_foreign_holder,
    force_unlock_takes_the_lock_from_its_holder,
    unlock_fails_if_the_lock_was_lost,
    force_unlock_wakes_waiters_and_a_subscribed_holder,
    force_unlock_deletes_only_the_value_it_read,
    force_unlock_from_spares_a_later_holder,
    name_in_braces_is_refused_by_every_call_if_keys_have_no_prefix,
    set_ttl_lengthens_and_shortens_a_lease,
    a_lost_lease_is_neither_renewed_nor_extended,
    a_kept_lock_is_free_once_its_time_is_over,
    keeping_a_lock_for_a_time_that_is_over_releases_it,
    keeping_a_lock_for_less_than_a_reply_takes_does_not_lose_it,
    a_lock_that_cannot_be_kept_is_an_error,
    a_waiter_that_backs_off_gets_the_lock,
    holder_ids_and_tokens_are_never_used_twice,
    renew_resets_the_lease_to_the_whole_ttl,
    used_up_attempts_are_reported
];

support::timed![
    basic_calls_work_on_a_mutex,
    an_extended_lease_is_renewed_for_its_new_ttl
];

const MINUTE: Duration = Duration::from_secs(60);

/// The limit for events that must happen at once, generous for a busy machine.
const WAIT_LIMIT: Duration = Duration::from_secs(5);

fn builder(server: &Server) -> ClientBuilder {
    Client::builder().url(server.url())
}

fn client(server: &Server) -> Client {
    builder(server).build().unwrap()
}

/// Sets a key without expiry, as another library's client might.
fn foreign_lock(server: &Server, key: &str, value: &str) {
    server.run("SET", &[key, value]);
}

fn basic_calls_work_on_a_mutex() {
    let server = Server::start();
    let client = client(&server);
    assert!(client.ping().unwrap() < WAIT_LIMIT);
    let mutex = client.mutex("a");
    let guard = mutex.lock().unwrap();
    assert!(guard.is_held());
    assert_eq!(guard.name().as_bytes(), b"a");
    assert!(guard.ensure_held().is_ok());
    let remaining = guard.remaining().unwrap();
    assert!(remaining > ms(5_000) && remaining < ms(10_000));
    assert_eq!(
        server.get("lock:a").unwrap(),
        guard.holder_id().as_str().as_bytes()
    );
    assert!(mutex.try_lock().unwrap().is_err());
    assert!(mutex.try_lock_for(ms(50)).unwrap().is_err());
    let lost = guard.lost();
    guard.unlock().unwrap();
    assert!(lost.recv().is_err(), "disconnected without a message");
    drop(mutex.try_lock().unwrap().unwrap());
    assert_eq!(server.get("lock:a"), None);
    drop(mutex.try_lock_for(WAIT_LIMIT).unwrap().unwrap());
    assert_eq!(server.get("lock:a"), None);
}

fn another_client_is_refused_then_woken_by_the_release() {
    let server = Server::start();
    let (one, two) = (client(&server), client(&server));
    let guard = one.mutex("a").lock().unwrap();
    assert!(two.mutex("a").try_lock().unwrap().is_err());
    assert!(two.mutex("a").try_lock_for(ms(300)).unwrap().is_err());
    let mutex = two.mutex("a");
    let waiter = spawn_call(move || mutex.lock().unwrap().fencing_token());
    eventually(WAIT_LIMIT, || two.stats().waiting == 1);
    server.wait_until_waiter_sleeps("lock_release:a");
    assert!(waiter.is_empty());
    let first = guard.fencing_token();
    let second = assert_message_wakes(&two, || {
        guard.unlock().unwrap();
        result_of(&waiter)
    });
    assert!(second > first);
}

fn try_lock_of_a_name_this_client_holds_sends_nothing() {
    let server = Server::start();
    let client = client(&server);
    let mutex = client.mutex("a").auto_renew(false);
    let guard = mutex.lock().unwrap();
    let before = server.script_calls();
    for _ in 0..100 {
        assert!(mutex.try_lock().unwrap().is_err());
        assert!(client.mutex("a").try_lock().unwrap().is_err());
        assert!(mutex.try_lock_for(Duration::ZERO).unwrap().is_err());
        assert!(mutex.try_with(|_| ()).unwrap().is_err());
    }
    assert_eq!(server.script_calls(), before);
    drop(guard);
    assert!(mutex.try_lock().unwrap().is_ok());
}

/// The lock is free, and the waiting call does not know it yet: Redis announces no deletion.
fn try_lock_does_not_overtake_a_waiting_call_of_its_client() {
    let server = Server::start();
    let without_queues = builder(&server).queues(false).build().unwrap();
    for one in [client(&server), without_queues] {
        let two = client(&server);
        let guard = two.mutex("a").lock().unwrap();
        let mutex = one.mutex("a");
        let waiter = spawn_call(move || mutex.lock().unwrap().fencing_token());
        eventually(WAIT_LIMIT, || one.stats().waiting == 1);
        server.wait_until_waiter_sleeps("lock_release:a");
        server.run("DEL", &["lock:a"]);
        assert!(one.mutex_all(["a", "b"]).try_lock().unwrap().is_err());
        assert!(one.mutex("a").try_lock().unwrap().is_err());
        assert!(result_of(&waiter) > guard.fencing_token());
    }
}

fn calls_without_a_server_are_errors_that_name_it() {
    let url = refusing_url();
    let server = url.replace("redis://", "");
    let client = Client::builder()
        .url(url)
        .command_timeout(ms(200))
        .unreachable_for(ms(400))
        // Each call must try the server itself, so the breaker is off.
        .breaker(0)
        .build()
        .unwrap();
    let mutex = client.mutex("a");
    for error in [
        client.ping().unwrap_err(),
        mutex.lock().unwrap_err(),
        mutex.try_lock().unwrap_err(),
        mutex.try_lock_for(ms(100)).unwrap_err(),
        mutex.with(|_| ()).unwrap_err().into(),
        mutex.try_with(|_| ()).unwrap_err().into(),
        mutex.inspect().unwrap_err(),
        mutex.force_unlock().unwrap_err(),
    ] {
        assert!(error.is_unreachable(), "{error}");
        assert!(error.to_string().contains(&server), "{error}");
    }
}

fn inspect_shows_a_leasehold_holder() {
    let server = Server::start();
    let mutex = client(&server).mutex("a");
    assert!(mutex.inspect().unwrap().is_none());
    let booking = builder(&server).owner("booking:7").build().unwrap();
    let guard = booking.mutex("a").ttl(MINUTE).lock().unwrap();
    let holder = mutex.inspect().unwrap().unwrap();
    assert_eq!(holder.owner(), Some("booking:7"));
    assert_eq!(holder.holder_id(), Some(guard.holder_id()));
    assert_eq!(holder.value(), guard.holder_id().as_str().as_bytes());
    assert_eq!(holder.fencing_token(), Some(guard.fencing_token()));
    let remaining = holder.remaining().unwrap();
    assert!(
        remaining > MINUTE / 2 && remaining <= MINUTE,
        "{remaining:?}"
    );
    drop(guard);
    assert!(mutex.inspect().unwrap().is_none());
}

fn inspect_shows_value_and_ttl_of_a_foreign_holder() {
    let server = Server::start();
    let mutex = client(&server).mutex("a");
    foreign_lock(&server, "lock:a", "v");
    let holder = mutex.inspect().unwrap().unwrap();
    assert_eq!(holder.value(), b"v");
    assert_eq!(holder.owner(), None);
    assert_eq!(holder.holder_id(), None);
    assert_eq!(holder.remaining(), None, "the key has no expiry");
    assert_eq!(holder.fencing_token(), None, "no token was granted");
    server.run("PEXPIRE", &["lock:a", "60000"]);
    let holder = mutex.inspect().unwrap().unwrap();
    assert!(
        holder
            .remaining()
            .is_some_and(|left| left > MINUTE / 2 && left <= MINUTE)
    );
}

fn force_unlock_takes_the_lock_from_its_holder() {
    let server = Server::start();
    let (one, two) = (client(&server), client(&server));
    assert!(!two.mutex("a").force_unlock().unwrap(), "the lock is free");
    let mutex = one.mutex("a").ttl(MINUTE).renew_every(ms(300));
    let guard = mutex.lock().unwrap();
    assert!(two.mutex("a").force_unlock().unwrap());
    assert_eq!(server.get("lock:a"), None);
    assert_eq!(guard.lost().recv_timeout(WAIT_LIMIT), Ok(Lost::Deleted));
    assert_eq!(guard.unlock().unwrap_err().lost(), Some(Lost::Deleted));

    foreign_lock(&server, "lock:a", "");
    assert!(two.mutex("a").force_unlock().unwrap());
    assert_eq!(server.get("lock:a"), None);
}

/// Without a prefix, the names `{x}` and `x` would share a queue, and a grant for one would ignore
/// the holder of the other.
fn name_in_braces_is_refused_by_every_call_if_keys_have_no_prefix() {
    let server = Server::start();
    let client = builder(&server).key_prefix("").build().unwrap();
    let _held = client.fair_mutex("x").lock().unwrap();
    let holder = client.fair_mutex("x").inspect().unwrap().unwrap();
    let (fair, semaphore) = (client.fair_mutex("{x}"), client.semaphore("{x}", 1));
    for answer in [
        fair.try_lock().map(drop),
        fair.inspect().map(drop),
        fair.force_unlock_from(&holder).map(drop),
        client.mutex("{x}").lock().map(drop),
        client.mutex_all(["{x}", "y"]).lock().map(drop),
        client.rw_lock("{x}").read().map(drop),
        semaphore.acquire().map(drop),
        semaphore
            .force_release(holder.holder_id().unwrap())
            .map(drop),
    ] {
        assert!(matches!(answer, Err(Error::Config(_))), "{answer:?}");
    }
    drop(client.mutex("{x}y").lock().unwrap());
}

fn force_unlock_from_spares_a_later_holder() {
    let server = Server::start();
    let [one, two] = [(); 2].map(|()| client(&server));
    let operator = client(&server).mutex("a");
    let first = one.mutex("a").lock().unwrap();
    let inspected = operator.inspect().unwrap().expect("it is held");
    drop(first);
    let second = two.mutex("a").lock().unwrap();
    assert!(!operator.force_unlock_from(&inspected).unwrap());
    assert!(second.ensure_held().is_ok());
    let inspected = operator.inspect().unwrap().expect("it is held");
    assert_eq!(inspected.holder_id(), Some(second.holder_id()));
    assert!(operator.force_unlock_from(&inspected).unwrap());
    assert!(operator.inspect().unwrap().is_none());
}

fn unlock_fails_if_the_lock_was_lost() {
    let server = Server::start();
    let client = client(&server);
    let work_under_a_lock = |is_lost: bool| -> Result<(), Error> {
        let guard = client.mutex("a").lock()?;
        if is_lost {
            client.mutex("a").force_unlock()?;
        }
        guard.unlock()
    };
    assert!(matches!(work_under_a_lock(false), Ok(())));
    let error = work_under_a_lock(true).unwrap_err();
    assert_eq!(error.lost(), Some(Lost::Deleted));
}

fn force_unlock_wakes_waiters_and_a_subscribed_holder() {
    let server = Server::start();
    let (one, two, operator) = (client(&server), client(&server), client(&server));
    let mutex = one.mutex("a").ttl(MINUTE);
    let guard = mutex.lock().unwrap();
    let waiter_of_holder = spawn_call({
        let mutex = mutex.clone();
        move || mutex.lock().map(drop)
    });
    let waiter_of_other = spawn_call(move || two.mutex("a").lock().map(drop));
    eventually(WAIT_LIMIT, || server.subscribers("lock_release:a") == 2);
    server.wait_until_waiter_sleeps("lock_release:a");
    assert!(operator.mutex("a").force_unlock().unwrap());
    // The other waiter may acquire the lock before the holder checks its key.
    assert!(matches!(
        guard.lost().recv_timeout(WAIT_LIMIT),
        Ok(Lost::Deleted | Lost::Taken)
    ));
    result_of(&waiter_of_holder).unwrap();
    result_of(&waiter_of_other).unwrap();
}

fn force_unlock_deletes_only_the_value_it_read() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = Client::builder()
        .url(proxy.url())
        .command_timeout(MINUTE)
        .build()
        .unwrap();
    foreign_lock(&server, "lock:a", "seen");
    // Loads the script and opens the connection.
    assert!(client.mutex("a").inspect().unwrap().is_some());
    let before = server.script_calls();
    proxy.set_all(Traffic::StallReplies);
    let forced = spawn_call(move || client.mutex("a").force_unlock());
    eventually(WAIT_LIMIT, || server.script_calls() > before);
    foreign_lock(&server, "lock:a", "newer");
    proxy.set_all(Traffic::Pass);
    assert!(!result_of(&forced).unwrap());
    assert_eq!(server.get("lock:a").unwrap(), b"newer");
}

fn renew_resets_the_lease_to_the_whole_ttl() {
    let server = Server::start();
    let mutex = client(&server).mutex("a").ttl(MINUTE).auto_renew(false);
    let guard = mutex.lock().unwrap();
    server.run("PEXPIRE", &["lock:a", "20000"]);
    let first = guard.remaining().unwrap();
    eventually(WAIT_LIMIT, || guard.remaining().unwrap() + ms(300) < first);
    let old_end = Instant::now() + guard.remaining().unwrap();
    guard.renew().unwrap();
    let left = guard.remaining().unwrap();
    assert!(Instant::now() + left >= old_end + ms(200));
    assert!(server.pttl("lock:a") > 30_000);
}

fn set_ttl_lengthens_and_shortens_a_lease() {
    let server = Server::start();
    let mutex = client(&server).mutex("a").ttl(MINUTE).auto_renew(false);
    let guard = mutex.lock().unwrap();
    guard.set_ttl(MINUTE * 10).unwrap();
    assert!(guard.remaining().unwrap() > MINUTE * 9);
    assert!(server.pttl("lock:a") > 540_000);
    guard.set_ttl(MINUTE / 2).unwrap();
    let left = guard.remaining().unwrap();
    assert!(left < MINUTE / 2 && left > MINUTE / 6, "{left:?}");
    let left = server.pttl("lock:a");
    assert!(left <= 30_000 && left > 10_000, "{left} ms");
    guard.renew().unwrap();
    let left = server.pttl("lock:a");
    assert!(left <= 30_000, "renewed for the new ttl, {left} ms");
    guard.unlock().unwrap();
}

fn an_extended_lease_is_renewed_for_its_new_ttl() {
    let server = Server::start();
    let (renewed, renewals) = unbounded();
    let mutex = client(&server)
        .mutex("a")
        .ttl(ms(600))
        .renew_every(ms(100))
        .on_renew(move |renewal| {
            let _ = renewed.send(renewal.clone());
        });
    let guard = mutex.lock().unwrap();
    let renewal = renewals.recv_timeout(WAIT_LIMIT).unwrap();
    assert!(renewal.remaining() < ms(600));
    assert_eq!(renewal.holder_id(), guard.holder_id());
    assert_eq!(renewal.fencing_token(), guard.fencing_token());
    assert_eq!(renewal.name().as_bytes(), b"a");
    guard.set_ttl(MINUTE).unwrap();
    let deadline = Instant::now() + WAIT_LIMIT;
    while renewals.recv_deadline(deadline).unwrap().remaining() < MINUTE / 2 {}
    assert!(server.pttl("lock:a") > 30_000);
}

fn a_lost_lease_is_neither_renewed_nor_extended() {
    let server = Server::start();
    let mutex = client(&server).mutex("a").ttl(MINUTE);
    let calls: [fn(&MutexGuard) -> Option<Error>; 2] = [
        |guard| guard.renew().err(),
        |guard| guard.set_ttl(MINUTE).err(),
    ];
    for call in calls {
        let guard = mutex.lock().unwrap();
        let (first, second) = (guard.lost(), guard.lost());
        foreign_lock(&server, "lock:a", "v");
        let error = call(&guard).expect("an error");
        assert_eq!(error.lost(), Some(Lost::Taken), "{error}");
        assert_eq!(server.get("lock:a").unwrap(), b"v");
        assert_eq!(server.pttl("lock:a"), -1);
        assert!(!guard.is_held());
        assert_eq!(guard.remaining(), None);
        assert_eq!(guard.ensure_held().unwrap_err().lost(), Some(Lost::Taken));
        for lost in [first, second, guard.lost()] {
            assert_eq!(lost.recv_timeout(WAIT_LIMIT), Ok(Lost::Taken));
            assert!(
                lost.recv().is_err(),
                "the channel is disconnected after the message"
            );
        }
        assert_eq!(guard.unlock().unwrap_err().lost(), Some(Lost::Taken));
        server.run("DEL", &["lock:a"]);
    }
}

fn backoff() -> Backoff {
    Backoff::new(ms(1), ms(5)).attempts(3)
}

fn used_up_attempts_are_reported() {
    let server = Server::start();
    let client = client(&server);
    let mutex = client
        .mutex("a")
        .wait_policy(WaitPolicy::Backoff(backoff()));
    foreign_lock(&server, "lock:a", "v");
    // The place is given up in the background.
    let has_left = || places_in(&server, "leasehold:queue:{lock:a}") == 0;
    assert!(mutex.try_lock_for(MINUTE).unwrap().is_err());
    eventually(MINUTE, has_left);
    let before = server.script_calls();
    assert!(mutex.try_lock_for(MINUTE).unwrap().is_err());
    eventually(MINUTE, has_left);
    match mutex.lock() {
        Err(Error::AttemptsUsedUp { attempts: 3, .. }) => {}
        other => panic!("{other:?}"),
    }
    eventually(MINUTE, has_left);
    // Two attempts and a refresh of the place, which leaves the queue at the end.
    assert_eq!(server.script_calls() - before, 2 * 4);
    assert!(matches!(
        mutex.with(|_| ()),
        Err(WithError::NotAcquired(Error::AttemptsUsedUp {
            attempts: 3,
            ..
        }))
    ));
    assert_eq!(server.get("lock:a").unwrap(), b"v");
    assert_eq!(server.subscribers("lock_release:a"), 0);
}

fn a_waiter_that_backs_off_gets_the_lock() {
    let server = Server::start();
    let (one, two) = (client(&server), client(&server));
    let guard = one.mutex("a").lock().unwrap();
    let patient = Backoff::new(ms(1), ms(20));
    let mutex = two.mutex("a").wait_policy(WaitPolicy::Backoff(patient));
    let waiter = spawn_call(move || mutex.lock().map(drop));
    let before = server.script_calls();
    eventually(WAIT_LIMIT, || server.script_calls() >= before + 5);
    drop(guard);
    result_of(&waiter).unwrap();
}

fn holder_ids_and_tokens_are_never_used_twice() {
    let server = Server::start();
    let client = client(&server);
    let (mut ids, mut tokens) = (HashSet::new(), HashSet::new());
    for _ in 0..100 {
        let guard = client.mutex("a").lock().unwrap();
        assert!(ids.insert(guard.holder_id().clone()));
        assert!(tokens.insert(guard.fencing_token()));
    }
}

fn a_kept_lock_is_free_once_its_time_is_over() {
    let server = Server::start();
    let (one, two) = (client(&server), client(&server));
    let at_least = ms(2_000);
    // Renewals would keep the lock for ever.
    let mutex = one.mutex("a").ttl(MINUTE).renew_every(ms(100));
    let fair = one.fair_mutex("b").ttl(MINUTE).renew_every(ms(100));
    let began = Instant::now();
    let (guard, of_fair) = (mutex.lock().unwrap(), fair.lock().unwrap());
    let set = one.mutex_all(["c", "d"]).lock().unwrap();
    let semaphore = one.semaphore("e", 1).ttl(MINUTE).renew_every(ms(100));
    let rw = |name: &str| one.rw_lock(name).ttl(MINUTE).renew_every(ms(100));
    let permit = semaphore.acquire().unwrap();
    let (reading, writing) = (rw("f").read().unwrap(), rw("g").write().unwrap());
    let downgraded = rw("h").write().unwrap().downgrade();
    let lost = guard.lost();
    guard.keep_for(at_least).unwrap();
    assert!(lost.recv().is_err(), "a kept lock is not lost");
    of_fair.keep_for(at_least).unwrap();
    set.keep_for(at_least).unwrap();
    permit.keep_for(at_least).unwrap();
    reading.keep_for(at_least).unwrap();
    writing.keep_for(at_least).unwrap();
    downgraded.keep_for(at_least).unwrap();
    for name in ["a", "b", "c", "d", "f", "g", "h"] {
        // Taken, unless this machine was paused until the time was over.
        assert!(!server.is_free(name) || began.elapsed() >= at_least);
    }
    assert!(semaphore.available().unwrap() == 0 || began.elapsed() >= at_least);
    let waiter = {
        let mutex = mutex.clone();
        thread::spawn(move || mutex.lock().map(drop))
    };
    drop(two.mutex("a").lock().unwrap());
    assert!(began.elapsed() >= at_least);
    waiter.join().unwrap().unwrap();
    for name in ["b", "c", "d"] {
        drop(two.mutex(name).lock().unwrap());
    }
    drop(two.semaphore("e", 1).acquire().unwrap());
    for name in ["f", "g", "h"] {
        drop(two.rw_lock(name).write().unwrap());
    }
    assert!(began.elapsed() < MINUTE, "{:?}", began.elapsed());
    assert_eq!(one.stats().held, 0);
}

fn keeping_a_lock_for_less_than_a_reply_takes_does_not_lose_it() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = Client::open(proxy.url()).unwrap();
    let mutex = client.mutex("a").ttl(MINUTE);
    let began = Instant::now();
    let guard = mutex.lock().unwrap();
    let lost = guard.lost();
    proxy.delay(ms(0), ms(200));
    guard.keep_for(began.elapsed() + ms(50)).unwrap();
    assert!(lost.recv().is_err(), "a kept lock is not lost");
}

fn keeping_a_lock_for_a_time_that_is_over_releases_it() {
    let server = Server::start();
    let client = client(&server);
    client.mutex("a").lock().unwrap().keep_for(ms(0)).unwrap();
    assert!(server.is_free("a"));
}

fn a_lock_that_cannot_be_kept_is_an_error() {
    let server = Server::start();
    let client = client(&server);
    let mutex = client.mutex("a");
    let error = mutex.lock().unwrap().keep_for(Duration::MAX).unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error:?}");
    assert!(server.is_free("a"));

    let guard = mutex.lock().unwrap();
    server.run("SET", &["lock:a", "somebody"]);
    let error = guard.keep_for(MINUTE).unwrap_err();
    assert!(matches!(error, Error::Lost(Lost::Taken)), "{error:?}");
    server.run("DEL", &["lock:a"]);

    let guard = mutex.lock().unwrap();
    server.pause();
    let error = guard.keep_for(MINUTE).unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert_eq!(client.stats().held, 0);
    server.resume();
}
