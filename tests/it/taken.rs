//! Promise: a refused attempt names the holder, from the reply that refused it, and never
//! shows an id with which the lock can be released.

use std::thread;
use std::time::Duration;

use leasehold::{Client, HolderId, Taken};
use support::fair::{places_in, push_place, wait_for_queue_length};
use support::{Child, Server, eventually, ms, parameter, spawn_call, tell_parent};

support::roles![holder];

support::tests![
    a_name_that_a_waiting_set_keeps_is_held_since_it_keeps_it,
    a_call_that_gives_up_says_who_has_the_lock_then,
    each_kind_names_the_owner_in_another_process,
    readers_are_named_as_readers_and_a_writer_as_its_owner,
    permits_are_counted,
    a_set_names_the_lock_that_is_taken,
    another_thread_of_this_client_has_the_lock,
    behind_another_call_of_this_client_the_last_refusal_is_told,
    a_foreign_value_is_escaped_and_cut,
    a_free_lock_with_a_queue_is_said_to_be_free,
    a_time_that_the_fence_does_not_tell_is_not_known,
    a_quorum_names_the_holder_of_a_majority_or_nobody,
    a_refusal_takes_one_request
];

const TTL: Duration = ms(60_000);

fn client(server: &Server, owner: &str) -> Client {
    let builder = Client::builder().url(server.url()).owner(owner).ttl(TTL);
    builder.build().unwrap()
}

/// A child's role: holds locks of every kind until its input ends.
fn holder() {
    let client = Client::builder().url(parameter("URL")).owner("worker-3");
    let client = client.ttl(TTL).build().unwrap();
    let _mutex = client.mutex("mutex").lock().unwrap();
    let _fair = client.fair_mutex("fair").lock().unwrap();
    let _write = client.rw_lock("write").write().unwrap();
    let _set = client.mutex_all(["set a", "set b"]).lock().unwrap();
    tell_parent("held");
    thread::park();
}

/// Asserts that the refusal names this owner, with a hold that is a moment old.
#[track_caller]
fn assert_owner(taken: &Taken, owner: &str) {
    assert_eq!(taken.owner(), Some(owner), "{taken}");
    assert!(!taken.is_this_client() && !taken.is_shared(), "{taken}");
    assert_eq!(taken.permits_out(), None);
    assert!(taken.held_for().is_some_and(|time| time < TTL), "{taken:?}");
    assert_remaining(taken, TTL);
    let text = taken.to_string();
    let start = format!("{} is held by {owner}, for ", taken.name());
    assert!(text.starts_with(&start), "{text}");
    assert!(text.ends_with(" more without a renewal"), "{text}");
}

#[track_caller]
fn assert_remaining(taken: &Taken, most: Duration) {
    let remaining = taken.remaining();
    let is_plausible = |left| left > Duration::ZERO && left <= most;
    assert!(remaining.is_some_and(is_plausible), "{taken:?}");
}

/// Asserts that nothing shows the part of the id that others cannot guess.
#[track_caller]
fn assert_hides(taken: &Taken, id: &HolderId) {
    let (_, uuid) = id.as_str().rsplit_once(':').unwrap();
    let shown = format!("{taken} {taken:?}");
    assert!(!shown.contains(&uuid[..8]), "{shown}");
}

/// Attempts of every kind, under the names that [`holder`] holds.
fn attempts(client: &Client) -> Vec<Taken> {
    let soon = ms(200);
    let (mutex, fair) = (client.mutex("mutex"), client.fair_mutex("fair"));
    let (lock, set) = (client.rw_lock("write"), client.mutex_all(["set b", "z"]));
    vec![
        mutex.try_lock().unwrap().unwrap_err(),
        mutex.try_lock_for(soon).unwrap().unwrap_err(),
        mutex.try_with(|_| ()).unwrap().unwrap_err(),
        fair.try_lock().unwrap().unwrap_err(),
        fair.try_lock_for(soon).unwrap().unwrap_err(),
        lock.try_read().unwrap().unwrap_err(),
        lock.try_write().unwrap().unwrap_err(),
        lock.try_read_for(soon).unwrap().unwrap_err(),
        lock.try_write_for(soon).unwrap().unwrap_err(),
        set.try_lock().unwrap().unwrap_err(),
        set.try_lock_for(soon).unwrap().unwrap_err(),
        // Locks of another kind share the name.
        client.mutex("write").try_lock().unwrap().unwrap_err(),
        client.rw_lock("mutex").try_read().unwrap().unwrap_err(),
    ]
}

fn each_kind_names_the_owner_in_another_process() {
    let server = Server::start();
    let holder = Child::spawn("taken::holder", &[("URL", &server.url())]);
    holder.wait_for_line("held");
    for taken in attempts(&client(&server, "here")) {
        assert_owner(&taken, "worker-3");
    }
}

fn readers_are_named_as_readers_and_a_writer_as_its_owner() {
    let server = Server::start();
    let (one, two) = (client(&server, "one"), client(&server, "two"));
    let reading = one.rw_lock("a").read().unwrap();
    for taken in [
        two.rw_lock("a").try_write().unwrap().unwrap_err(),
        two.rw_lock("a")
            .try_write_for(ms(200))
            .unwrap()
            .unwrap_err(),
        two.mutex("a").try_lock().unwrap().unwrap_err(),
        two.fair_mutex("a").try_lock().unwrap().unwrap_err(),
    ] {
        assert!(taken.is_shared() && !taken.is_this_client(), "{taken}");
        assert_eq!((taken.owner(), taken.held_for()), (None, None), "{taken}");
        assert_remaining(&taken, TTL);
        assert!(
            taken.to_string().starts_with("a is held by readers; "),
            "{taken}"
        );
        assert_hides(&taken, reading.holder_id());
    }
    // Readers of this client: others may read for longer.
    let taken = one.rw_lock("a").try_write().unwrap().unwrap_err();
    assert!(taken.is_shared() && taken.is_this_client(), "{taken}");
    assert_eq!(taken.remaining(), None, "{taken}");
    drop(reading);
    let writing = one.rw_lock("a").write().unwrap();
    let taken = two.rw_lock("a").try_read().unwrap().unwrap_err();
    assert_owner(&taken, "one");
    assert_hides(&taken, writing.holder_id());
}

fn permits_are_counted() {
    let server = Server::start();
    let (one, two) = (client(&server, "one"), client(&server, "two"));
    let three = one.semaphore("a", 4).many(3).acquire().unwrap();
    let pair = two.semaphore("a", 4).many(2);
    for taken in [
        pair.try_acquire().unwrap().unwrap_err(),
        pair.try_acquire_for(ms(200)).unwrap().unwrap_err(),
        one.semaphore("a", 4)
            .many(2)
            .try_acquire()
            .unwrap()
            .unwrap_err(),
    ] {
        assert_eq!(taken.permits_out(), Some(3), "{taken}");
        assert_eq!((taken.owner(), taken.held_for()), (None, None), "{taken}");
        assert_remaining(&taken, TTL);
        let text = taken.to_string();
        let start = "a has 3 of 4 permits out, too many for 2 more; the first end in ";
        assert!(text.starts_with(start), "{text}");
        assert_hides(&taken, three.holder_id());
    }
    let _fourth = two.semaphore("a", 4).acquire().unwrap();
    let text = pair.try_acquire().unwrap().unwrap_err().to_string();
    assert!(
        text.starts_with("a has all 4 permits out; the first end in "),
        "{text}"
    );
}

fn a_set_names_the_lock_that_is_taken() {
    let server = Server::start();
    let (one, two) = (client(&server, "one"), client(&server, "two"));
    let guard = one.mutex("b").lock().unwrap();
    let set = two.mutex_all(["a", "b", "c"]);
    for taken in [
        set.try_lock().unwrap().unwrap_err(),
        set.try_lock_for(ms(200)).unwrap().unwrap_err(),
    ] {
        assert_eq!(*taken.name(), *"b");
        assert_owner(&taken, "one");
        assert_hides(&taken, guard.holder_id());
    }
    // This client holds a name itself: no request is needed.
    let _own = two.mutex("c").lock().unwrap();
    let taken = set.try_lock().unwrap().unwrap_err();
    assert_eq!(*taken.name(), *"c");
    assert!(taken.is_this_client(), "{taken}");
}

/// The set is granted `b`, in whose queue it waited, and keeps `a` while `c` is held. The last
/// token of `a` is old.
fn a_name_that_a_waiting_set_keeps_is_held_since_it_keeps_it() {
    let server = Server::start();
    let (one, two) = (client(&server, "one"), client(&server, "two"));
    let an_hour_ago = server.micros() - 3_600_000_000;
    let fence = "leasehold:fence:{lock:a}";
    server.run("SET", &[fence, &an_hour_ago.to_string()]);
    let held = one.mutex("b").lock().unwrap();
    let _last = one.mutex("c").lock().unwrap();
    let waiting = spawn_call({
        let set = two.mutex_all(["a", "b", "c"]);
        move || set.try_lock_for(ms(4_000)).map(|outcome| outcome.map(drop))
    });
    eventually(TTL, || places_in(&server, "leasehold:queue:{lock:b}") == 1);
    drop(held);
    // No attempt before that: it would draw a token.
    eventually(TTL, || server.get("lock:a").is_some());
    let taken = one.mutex("a").try_lock().unwrap().unwrap_err();
    assert_eq!(taken.owner(), Some("two"), "{taken}");
    assert!(taken.held_for().is_some_and(|time| time < TTL), "{taken}");
    let taken = support::result_of(&waiting).unwrap().unwrap_err();
    assert_eq!(*taken.name(), *"c");
    assert_owner(&taken, "one");
}

fn another_thread_of_this_client_has_the_lock() {
    let server = Server::start();
    let client = client(&server, "one");
    let guard = client.mutex("a").lock().unwrap();
    let before = server.script_calls();
    for taken in [
        client.mutex("a").try_lock().unwrap().unwrap_err(),
        client.mutex("a").try_with(|_| ()).unwrap().unwrap_err(),
        thread::scope(|scope| {
            let other = scope.spawn(|| client.mutex("a").try_lock().unwrap());
            other.join().unwrap().unwrap_err()
        }),
    ] {
        assert!(
            taken.is_this_client() && taken.owner() == Some("one"),
            "{taken}"
        );
        assert!(taken.held_for().is_some_and(|time| time < TTL), "{taken:?}");
        assert_remaining(&taken, TTL);
        assert!(
            taken
                .to_string()
                .starts_with("a is held by this client, one, for "),
            "{taken}"
        );
        assert_hides(&taken, guard.holder_id());
    }
    assert_eq!(server.script_calls(), before, "no request");
    let taken = client
        .mutex("a")
        .try_lock_for(ms(200))
        .unwrap()
        .unwrap_err();
    assert!(taken.is_this_client(), "{taken}");
}

fn behind_another_call_of_this_client_the_last_refusal_is_told() {
    let server = Server::start();
    let (one, two) = (client(&server, "one"), client(&server, "two"));
    let guard = one.mutex("a").lock().unwrap();
    let waiting = spawn_call({
        let mutex = two.mutex("a");
        move || mutex.lock().map(drop)
    });
    wait_for_queue_length(&server, 1);
    // Until the reply has arrived.
    eventually(TTL, || two.stats().waiting == 1);
    let taken = two.mutex("a").try_lock().unwrap().unwrap_err();
    assert_owner(&taken, "one");
    drop(guard);
    support::result_of(&waiting).unwrap();
}

fn a_foreign_value_is_escaped_and_cut() {
    let server = Server::start();
    server.run("SET", &["lock:a", "\u{1b}[2J a secret of somebody"]);
    server.run("SET", &["lock:b", "a short secret"]);
    let client = client(&server, "one");
    for taken in [
        client.mutex("a").try_lock().unwrap().unwrap_err(),
        client
            .mutex("a")
            .try_lock_for(ms(200))
            .unwrap()
            .unwrap_err(),
        client.rw_lock("a").try_read().unwrap().unwrap_err(),
    ] {
        assert_eq!(
            (taken.owner(), taken.held_for(), taken.remaining()),
            (None, None, None)
        );
        let text = taken.to_string();
        assert_eq!(
            text,
            r"a is held by another program (\x1b[2J a s…); without an end"
        );
        assert!(!format!("{taken:?}").contains("secret"));
    }
    let taken = client.mutex("b").try_lock().unwrap().unwrap_err();
    assert_eq!(
        taken.to_string(),
        "b is held by another program; without an end"
    );
}

/// The holder of the place does not listen, so no grant reaches it, but it is first.
fn a_free_lock_with_a_queue_is_said_to_be_free() {
    let server = Server::start();
    let client = client(&server, "one");
    push_place(&server, "other:place", "1", "l nobody-listens");
    let taken = client.fair_mutex("a").try_lock().unwrap().unwrap_err();
    assert_eq!(
        taken.to_string(),
        "a is free, but other calls are ahead in its queue"
    );
    assert_eq!((taken.owner(), taken.remaining()), (None, None));
}

fn a_time_that_the_fence_does_not_tell_is_not_known() {
    let server = Server::start();
    let (one, two) = (client(&server, "one"), client(&server, "two"));
    let _guard = one.mutex("a").lock().unwrap();
    let fence = "leasehold:fence:{lock:a}";
    let held_for = || {
        let taken = two.mutex("a").try_lock().unwrap().unwrap_err();
        assert_eq!(taken.owner(), Some("one"), "{taken}");
        taken.held_for()
    };
    assert!(held_for().is_some());
    let ahead = server.micros() + 60_000_000;
    for token in [ahead, 7] {
        server.run("SET", &[fence, &token.to_string()]);
        assert_eq!(held_for(), None, "{token}");
    }
    server.run("DEL", &[fence]);
    assert_eq!(held_for(), None);
}

fn a_quorum_names_the_holder_of_a_majority_or_nobody() {
    let servers = [(); 3].map(|()| Server::start());
    let quorum = |owner| {
        let builder = Client::builder().quorum(servers.iter().map(Server::url));
        builder.owner(owner).ttl(TTL).build().unwrap()
    };
    let (one, two) = (quorum("one"), quorum("two"));
    let guard = one.mutex("a").lock().unwrap();
    for taken in [
        two.mutex("a").try_lock().unwrap().unwrap_err(),
        two.mutex("a").try_lock_for(ms(200)).unwrap().unwrap_err(),
    ] {
        assert_eq!(
            (taken.owner(), taken.held_for()),
            (Some("one"), None),
            "{taken}"
        );
        assert_remaining(&taken, TTL);
        assert_hides(&taken, guard.holder_id());
    }
    for (server, value) in servers.iter().zip(["x", "y", "z"]) {
        server.run("SET", &["lock:b", value]);
    }
    let taken = two.mutex("b").try_lock().unwrap().unwrap_err();
    assert_eq!(taken.to_string(), "b is taken; it is not known by whom");
}

fn a_refusal_takes_one_request() {
    let server = Server::start();
    let (one, two) = (client(&server, "one"), client(&server, "two"));
    let _mutex = one.mutex("a").lock().unwrap();
    let _permit = one.semaphore("a", 1).acquire().unwrap();
    let _set = one.mutex_all(["b", "c"]).lock().unwrap();
    let _reading = one.rw_lock("d").read().unwrap();
    let attempts: [&dyn Fn() -> Taken; 5] = [
        &|| two.mutex("a").try_lock().unwrap().unwrap_err(),
        &|| two.fair_mutex("a").try_lock().unwrap().unwrap_err(),
        &|| two.semaphore("a", 1).try_acquire().unwrap().unwrap_err(),
        &|| two.mutex_all(["b", "c"]).try_lock().unwrap().unwrap_err(),
        &|| two.rw_lock("d").try_write().unwrap().unwrap_err(),
    ];
    for (n, attempt) in attempts.iter().enumerate() {
        // The first call of a script sends it twice.
        attempt();
        let before = server.script_calls();
        attempt();
        // A set sends one for each name, in one write.
        let requests = if n == 3 { 2 } else { 1 };
        assert_eq!(server.script_calls() - before, requests, "{n}");
    }
}

/// The holder changes while the call waits, and its last refresh tells the next holder.
fn a_call_that_gives_up_says_who_has_the_lock_then() {
    let server = Server::start();
    let [one, two, three] = ["one", "two", "three"].map(|owner| client(&server, owner));
    let first = one.fair_mutex("a").lock().unwrap();
    thread::scope(|scope| {
        let second = scope.spawn(|| two.fair_mutex("a").lock().unwrap());
        wait_for_queue_length(&server, 1);
        let third = scope.spawn(|| three.fair_mutex("a").try_lock_for(ms(2_000)).unwrap());
        wait_for_queue_length(&server, 2);
        drop(first);
        let guard = second.join().unwrap();
        let taken = third.join().unwrap().unwrap_err();
        assert_eq!(taken.owner(), Some("two"), "{taken}");
        assert_remaining(&taken, TTL);
        assert_hides(&taken, guard.holder_id());
    });
    // The time left counts from the end of the call, not from the refusal.
    // The second begins before the refusal, whose whole ms can be one too many.
    server.run("SET", &["lock:b", "foreign", "PX", "60000"]);
    let mutex = three.mutex("b");
    let taken = mutex.try_lock_for(ms(1_000)).unwrap().unwrap_err();
    assert_remaining(&taken, TTL - ms(900));
}
