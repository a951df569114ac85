//! Promise: `list` returns every held lock and nothing else; waiters and last tokens can be
//! queried.

use std::collections::BTreeSet;
use std::thread;

use leasehold::{Client, Error};
use support::fair::PATIENCE;
use support::{Cluster, Proxy, Server, Traffic, connect_to_all, eventually, ms};

support::tests![
    a_dead_connection_is_replaced_and_a_dead_server_is_an_error,
    every_lock_is_listed_with_its_holder,
    a_prefix_is_matched_byte_for_byte,
    keys_that_are_not_locks_are_not_listed,
    thousands_of_locks_are_listed_page_by_page,
    pages_tell_what_they_have_and_how_far_the_scan_is,
    permits_are_listed_page_by_page,
    waiters_are_counted_once_per_client,
    last_fencing_token_is_known_after_the_release,
    locks_of_all_cluster_nodes_are_listed,
    a_quorum_lists_locks_held_on_a_majority,
    keys_on_a_minority_do_not_open_the_circuit_breaker,
    queries_without_a_queue_check_the_name_and_the_client
];

fn set(server: &Server, key: &[u8]) {
    let mut connection = server.connection();
    redis::cmd("SET")
        .arg(key)
        .arg("somebody")
        .exec(&mut connection)
        .unwrap();
}

/// Repeats a call until enough servers have replied within its timeout; returns its answer.
#[track_caller]
fn answered<T>(call: impl Fn() -> Result<T, Error>) -> T {
    let mut answer = None;
    eventually(PATIENCE, || {
        let latest = answer.insert(call());
        !latest.as_ref().is_err_and(Error::is_unreachable)
    });
    answer.expect("the call was made").unwrap()
}

fn names(client: &Client, prefix: &[u8]) -> Vec<Vec<u8>> {
    let held = answered(|| client.list(prefix));
    let names = held.iter().map(|held| held.name().as_bytes().to_vec());
    names.collect()
}

fn every_lock_is_listed_with_its_holder() {
    let server = Server::start();
    let client = server.client();
    assert!(client.list("").unwrap().is_empty());
    let b = client.mutex("b").lock().unwrap();
    let a = client.mutex("a").lock().unwrap();
    let _bytes = client.mutex(b"b\xff*[").lock().unwrap();
    set(&server, b"lock:foreign");

    let held = client.list("").unwrap();
    let found: Vec<&[u8]> = held.iter().map(|held| held.name().as_bytes()).collect();
    assert_eq!(found, [&b"a"[..], b"b", b"b\xff*[", b"foreign"]);
    let [first, second, _, foreign] = held.try_into().unwrap();
    assert_eq!(first.holders()[0].fencing_token(), Some(a.fencing_token()));
    assert_eq!(second.holders()[0].holder_id(), Some(b.holder_id()));
    assert!(second.holders()[0].remaining().unwrap() > ms(5_000));
    assert_eq!(foreign.holders()[0].owner(), None);
    assert_eq!(foreign.holders()[0].remaining(), None);

    drop(b);
    assert_eq!(names(&client, b"b"), [b"b\xff*["]);
    assert_eq!(server.calls(&["keys"]), 0);
}

fn a_prefix_is_matched_byte_for_byte() {
    let server = Server::start();
    let all = [
        &b"a*b"[..],
        b"aXb",
        b"a?",
        b"a[b]",
        b"ab",
        b"a\\",
        b"a\\\\",
        b"\xffa",
    ];
    for name in all {
        set(&server, &[b"lo?k:", name].concat());
        set(&server, &[b"lock:", name].concat());
    }
    let client = Client::builder().url(server.url()).key_prefix("lo?k:");
    let client = client.build().unwrap();
    assert_eq!(names(&client, b"").len(), all.len());
    for prefix in all {
        let expected: BTreeSet<Vec<u8>> = all
            .into_iter()
            .filter(|name| name.starts_with(prefix))
            .map(<[u8]>::to_vec)
            .collect();
        let found: BTreeSet<_> = names(&client, prefix).into_iter().collect();
        assert_eq!(found, expected, "{}", prefix.escape_ascii());
    }
}

fn keys_that_are_not_locks_are_not_listed() {
    let server = Server::start();
    let client = Client::builder().url(server.url()).key_prefix("");
    let client = client.build().unwrap();
    // The lock's fence is a string key too.
    let _guard = client.mutex("a").lock().unwrap();
    set(&server, b"leasehold:mine");
    let mut connection = server.connection();
    let mut push = redis::cmd("RPUSH");
    push.arg("list").arg("x").exec(&mut connection).unwrap();
    assert_eq!(names(&client, b""), [b"a"]);
    assert_eq!(names(&client, b"leasehold:").len(), 0);
}

/// Adds 3,000 locks and as many other keys.
fn fill(server: &Server) {
    let mut pipe = redis::pipe();
    for n in 0..3_000 {
        pipe.cmd("SET")
            .arg(format!("lock:{n:05}"))
            .arg("x")
            .ignore();
        pipe.cmd("SET").arg(format!("other:{n}")).arg("x").ignore();
    }
    let () = pipe.query(&mut server.connection()).unwrap();
}

fn thousands_of_locks_are_listed_page_by_page() {
    let server = Server::start();
    fill(&server);
    let found = names(&server.client(), b"");
    assert_eq!(found.len(), 3_000);
    assert!(found.is_sorted());
    assert!(server.calls(&["scan"]) >= 6);
}

fn pages_tell_what_they_have_and_how_far_the_scan_is() {
    let server = Server::start();
    fill(&server);
    let (mut pages, mut paged) = (Vec::new(), BTreeSet::new());
    let held = server.client().list_pages("", |page| {
        assert!(page.took > ms(0));
        pages.push(page.progress);
        paged.extend(page.found.iter().map(|held| held.name().clone()));
    });
    assert_eq!(held.unwrap().len(), 3_000);
    assert_eq!(paged.len(), 3_000);
    assert!(pages.is_sorted() && pages[0] > 0.0, "{pages:?}");
    assert_eq!(pages.last(), Some(&1.0));
}

fn permits_are_listed_page_by_page() {
    let server = Server::start();
    let client = server.client();
    let _permits: Vec<_> = (0..3)
        .map(|n| client.semaphore(format!("s{n}"), 2).acquire().unwrap())
        .collect();
    let (mut progress, mut paged) = (0.0, Vec::new());
    let held = client.list_permits_pages("s", |page| {
        progress = page.progress;
        paged.extend(page.found.iter().map(|held| held.name().to_string()));
    });
    paged.sort();
    assert_eq!(paged, ["s0", "s1", "s2"]);
    assert_eq!((held.unwrap().len(), progress), (3, 1.0));
    let held = client.semaphore("s0", 2).inspect().unwrap().unwrap();
    assert_eq!((held.permits(), held.holders().len()), (1, 1));
    assert!(client.semaphore("free", 2).inspect().unwrap().is_none());
}

fn a_dead_connection_is_replaced_and_a_dead_server_is_an_error() {
    let server = Server::start();
    let proxy = Proxy::new(&server);
    let client = Client::builder()
        .url(proxy.url())
        .command_timeout(ms(2_000));
    let client = client.build().unwrap();
    let _guard = client.mutex("a").lock().unwrap();
    assert_eq!(names(&client, b""), [b"a"]);
    let waiting = || client.mutex("a").waiting().unwrap();
    for _ in 0..2 {
        // Leaves an idle connection for the next call.
        assert_eq!(waiting(), 0);
        proxy.set_open(Traffic::CutOnReply);
        assert_eq!(names(&client, b""), [b"a"]);
    }
    assert_eq!(waiting(), 0);
    proxy.set_open(Traffic::CutOnReply);
    assert_eq!(waiting(), 0);
    proxy.set_all(Traffic::Stall);
    let error = client.list("").unwrap_err();
    assert!(error.is_unreachable(), "{error}");
    let error = client.mutex("a").waiting().unwrap_err();
    assert!(error.is_unreachable(), "{error}");
}

fn waiters_are_counted_once_per_client() {
    let server = Server::start();
    let clients = [server.client(), server.client()];
    let watcher = server.client();
    let guard = watcher.mutex("a").lock().unwrap();
    assert_eq!(watcher.mutex("a").waiting().unwrap(), 0);
    thread::scope(|scope| {
        for client in &clients {
            for _ in 0..2 {
                scope.spawn(|| client.mutex("a").lock().unwrap().unlock().unwrap());
            }
        }
        for client in &clients {
            support::eventually(ms(10_000), || client.stats().waiting == 2);
        }
        support::eventually(ms(10_000), || watcher.mutex("a").waiting().unwrap() == 2);
        drop(guard);
    });
    assert_eq!(watcher.mutex("b").waiting().unwrap(), 0);
}

fn last_fencing_token_is_known_after_the_release() {
    let server = Server::start();
    let client = server.client();
    let mutex = client.mutex("a");
    assert_eq!(mutex.last_fencing_token().unwrap(), None);
    let guard = mutex.lock().unwrap();
    let token = guard.fencing_token();
    assert_eq!(mutex.last_fencing_token().unwrap(), Some(token));
    drop(guard);
    assert_eq!(mutex.last_fencing_token().unwrap(), Some(token));
    set(&server, b"leasehold:fence:{lock:a}");
    let error = mutex.last_fencing_token().unwrap_err();
    assert!(matches!(error, Error::BadFence { .. }), "{error}");
    client.shutdown(ms(1_000));
    assert!(matches!(client.list(""), Err(Error::Closed)));
    assert!(matches!(mutex.waiting(), Err(Error::Closed)));
}

fn locks_of_all_cluster_nodes_are_listed() {
    let cluster = Cluster::start(3, 0);
    let client = Client::open(cluster.url()).unwrap();
    let names: Vec<String> = (0..30).map(|n| format!("n{n:02}")).collect();
    let guards: Vec<_> = names
        .iter()
        .map(|name| client.mutex(name).lock().unwrap())
        .collect();
    // A client that does not know the slots yet.
    let other = Client::open(cluster.url()).unwrap();
    let held = other.list("n").unwrap();
    let found: Vec<String> = held.iter().map(|held| held.name().to_string()).collect();
    assert_eq!(found, names);
    for (held, guard) in held.iter().zip(&guards) {
        assert_eq!(held.holders()[0].holder_id(), Some(guard.holder_id()));
        let mutex = other.mutex(held.name());
        let token = mutex.last_fencing_token().unwrap();
        assert_eq!(token, Some(guard.fencing_token()));
    }
    thread::scope(|scope| {
        let waiting = scope.spawn(|| client.mutex("n07").try_lock_for(ms(20_000)));
        let third = Client::open(cluster.url()).unwrap();
        let fourth = scope.spawn(move || third.mutex("n07").try_lock_for(ms(20_000)).is_ok());
        // The client that holds the lock hands it to its own waiter.
        support::eventually(ms(10_000), || other.mutex("n07").waiting().unwrap() == 1);
        drop(guards);
        assert!(waiting.join().unwrap().is_ok() && fourth.join().unwrap());
    });
}

/// While a server is dead, the other two answer, but do not decide whether such a name is held.
fn keys_on_a_minority_do_not_open_the_circuit_breaker() {
    let mut servers = [(); 3].map(|()| Server::start());
    let urls = servers.each_ref().map(Server::url);
    let quorum = Client::builder().quorum(urls).command_timeout(ms(500));
    let client = quorum.breaker(3).build().unwrap();
    connect_to_all(&client, &servers);
    for n in 0..5 {
        set(&servers[1], format!("lock:{n}").as_bytes());
    }
    servers[0].kill();
    let error = client.mutex("0").inspect().unwrap_err().to_string();
    assert!(error.contains("do not agree"), "{error}");
    assert_eq!(names(&client, b""), [b""; 0]);
    let taken = client.mutex("free").try_lock();
    assert!(
        !matches!(taken, Err(Error::CircuitOpen { .. })),
        "{taken:?}"
    );
}

/// While a server is dead, each call lasts as long as the command timeout, which is short.
fn a_quorum_lists_locks_held_on_a_majority() {
    let mut servers = [(); 3].map(|()| Server::start());
    let urls = || servers.each_ref().map(Server::url);
    let quorum = || Client::builder().quorum(urls()).command_timeout(ms(500));
    let client = quorum().build().unwrap();
    connect_to_all(&client, &servers);
    let a = client.mutex("a").lock().unwrap();
    let _b = client.mutex("b").lock().unwrap();
    for (server, key) in servers
        .iter()
        .flat_map(|server| [(server, "lock:a"), (server, "lock:b")])
    {
        // A majority has granted it when `lock` returns; the third server may do so later.
        eventually(PATIENCE, || server.get(key).is_some());
    }
    // A key on a minority of the servers is not a lock.
    set(&servers[1], b"lock:minority");
    let watcher = quorum().build().unwrap();
    assert_eq!(names(&watcher, b""), [b"a", b"b"]);
    servers[0].kill();
    assert_eq!(names(&watcher, b""), [b"a", b"b"]);
    let token = answered(|| watcher.mutex("a").last_fencing_token());
    assert_eq!(token, Some(a.fencing_token()));
    let error = watcher.mutex("a").waiting().unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error}");
    servers[1].kill();
    assert!(watcher.list("").unwrap_err().is_unreachable());
}

/// A quorum keeps no queues, so these queries send nothing.
fn queries_without_a_queue_check_the_name_and_the_client() {
    let servers = [(); 3].map(|()| Server::start());
    let urls = servers.each_ref().map(Server::url);
    let client = Client::builder().quorum(urls).build().unwrap();
    let (good, bad) = (client.mutex("a"), client.mutex(""));
    assert_eq!(good.longest_wait().unwrap(), None);
    assert!(matches!(bad.longest_wait(), Err(Error::Config(_))));
    client.shutdown(ms(1_000));
    assert!(matches!(good.longest_wait(), Err(Error::Closed)));
}
