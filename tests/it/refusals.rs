//! Promise: an error that a server or proxy replies once in a while ends no call that waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use leasehold::{Client, ClientBuilder, Error};
use support::{
    FakeServer, Recorder, Request, SLACK, Server, assert_released, eventually, free_port, ms,
};

support::tests![
    each_error_once_in_fifty_replies_ends_no_call,
    errors_without_end_are_reported_after_unreachable_for,
    one_member_that_replies_with_errors_costs_a_quorum_nothing,
    errors_of_a_node_end_no_call_in_a_cluster,
    shorter_ttl_that_a_node_may_have_set_counts,
    release_that_an_earlier_node_may_have_run_is_no_loss,
    renewals_outlast_errors,
    call_whose_reply_was_replaced_by_an_error_is_undone,
    server_that_never_ran_a_script_is_given_up_after_three_tries,
    reasons_that_last_are_final_at_once
];

/// What managed services, proxies and servers reply once in a while.
const PASSING: [&str; 19] = [
    "upstream failure",
    "no upstream host",
    "ERR Script attempted to access a non local key in a cluster node",
    "ERR Internal error",
    "ERR max number of clients reached",
    "ERR backend unavailable",
    "ERR Proxy error",
    "IOERR error or timeout reading to target instance",
    "TIMEOUT",
    "NOMASTERLINK Can't SYNC while not connected with my master",
    "UNBLOCKED force unblock from blocking operation, instance state changed",
    "LOADING Redis is loading the dataset in memory",
    "BUSY Redis is busy running a script.",
    "READONLY You can't write against a read only replica.",
    "MASTERDOWN Link with MASTER is down",
    "CLUSTERDOWN The cluster is down",
    "NOREPLICAS Not enough good replicas to write.",
    "MISCONF Redis is configured to save RDB snapshots",
    "Error Server closed the connection",
];

fn is_script(request: &Request) -> bool {
    request.words[0].starts_with(b"EVAL")
}

/// Replaces every `n`th reply to a script by the next of the errors.
fn replace_every(proxy: &Recorder, n: usize, errors: Vec<&'static str>) {
    let mut replies = 0;
    proxy.replace(move |request| {
        replies += usize::from(is_script(request));
        let is_replaced = is_script(request) && replies % n == 0;
        is_replaced.then(|| format!("-{}", errors[replies / n % errors.len()]))
    });
}

fn builder(port: u16) -> ClientBuilder {
    Client::builder().url(format!("redis://127.0.0.1:{port}"))
}

/// Acquires and releases each kind of lock once.
fn use_each_kind(client: &Client) {
    assert_released(client.mutex("mutex").lock().unwrap().unlock());
    assert_released(client.fair_mutex("fair").lock().unwrap().unlock());
    let rw = client.rw_lock("rw");
    assert_released(rw.read().unwrap().unlock());
    assert_released(rw.write().unwrap().unlock());
    assert_released(client.semaphore("permits", 2).acquire().unwrap().release());
    assert_released(
        client
            .mutex_all(["set-a", "set-b"])
            .lock()
            .unwrap()
            .unlock(),
    );
}

/// Two clients contend, so that some calls wait in queues.
fn each_error_once_in_fifty_replies_ends_no_call() {
    let server = Server::start();
    let proxy = Recorder::to(server.port());
    let clients = [(); 2].map(|()| builder(proxy.port()).build().unwrap());
    use_each_kind(&clients[0]);
    replace_every(&proxy, 50, PASSING.to_vec());
    let replaced = || {
        let exchanges = proxy.exchanges();
        let errors = exchanges.iter().filter(|exchange| {
            let reply = exchange.reply.as_deref().unwrap_or_default();
            PASSING.iter().any(|text| reply == format!("-{text}"))
        });
        errors.count()
    };
    std::thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| {
                while replaced() < PASSING.len() + 2 {
                    (0..5).for_each(|_| use_each_kind(client));
                }
            });
        }
    });
    // What was acquired under a replaced reply is undone, long before its ttl has passed.
    let is_lock = |key: &Vec<u8>| key.starts_with(b"lock:");
    eventually(ms(10_000), || !server.keys().iter().any(is_lock));
}

fn one_member_that_replies_with_errors_costs_a_quorum_nothing() {
    let servers = [(); 3].map(|()| Server::start());
    let proxies = servers.each_ref().map(|server| Recorder::to(server.port()));
    let url = |proxy: &Recorder| format!("redis://127.0.0.1:{}", proxy.port());
    // On a busy machine, a release that is refused twice may be repeated too late.
    let client = Client::builder()
        .quorum(proxies.each_ref().map(url))
        .command_timeout(ms(10_000))
        .build()
        .unwrap();
    assert_released(client.mutex("a").lock().unwrap().unlock());
    for proxy in &proxies {
        replace_every(proxy, 7, PASSING.to_vec());
    }
    for _ in 0..60 {
        assert_released(client.mutex("a").lock().unwrap().unlock());
    }
    let is_free = |server: &Server| server.get("lock:a").is_none();
    eventually(ms(10_000), || servers.iter().all(is_free));
}

/// Returns the reply to `CLUSTER SLOTS` that names one node for all slots.
fn all_slots_at(port: u16) -> String {
    format!("*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:{port}\r\n$1\r\ni")
}

/// A cluster of one node, which a proxy makes of a server.
fn errors_of_a_node_end_no_call_in_a_cluster() {
    let server = Server::start();
    let proxy = Recorder::to(server.port());
    let port = proxy.port();
    let mut replies = 0;
    proxy.replace(move |request| {
        replies += usize::from(is_script(request));
        match request.name().as_str() {
            "CLUSTER" => Some(all_slots_at(port)),
            _ if is_script(request) && replies % 5 == 0 => {
                Some(format!("-{}", PASSING[replies / 5 % PASSING.len()]))
            }
            _ => None,
        }
    });
    // On a busy machine, a release that is refused once may be repeated too late.
    let client = Client::builder()
        .url(format!("redis+cluster://127.0.0.1:{port}"))
        .command_timeout(ms(10_000))
        .build()
        .unwrap();
    (0..20).for_each(|_| assert_released(client.mutex("a").lock().unwrap().unlock()));
    eventually(ms(10_000), || server.get("lock:a").is_none());
}

/// The node sets the ttl, and a proxy replies with an error. The owner that the node then names
/// cannot be reached.
fn shorter_ttl_that_a_node_may_have_set_counts() {
    let server = Server::start();
    let proxy = Recorder::to(server.port());
    let (port, nowhere) = (proxy.port(), free_port());
    let is_refused = Arc::new(AtomicBool::new(false));
    let refuses = Arc::clone(&is_refused);
    proxy.replace(move |request| {
        let refuses = refuses.load(Ordering::SeqCst);
        let owner = if refuses { nowhere } else { port };
        match request.name().as_str() {
            "CLUSTER" => Some(all_slots_at(owner)),
            _ => (refuses && is_script(request)).then(|| "-upstream failure".to_owned()),
        }
    });
    let client = Client::builder()
        .url(format!("redis+cluster://127.0.0.1:{port}"))
        .command_timeout(ms(500))
        .build()
        .unwrap();
    let mutex = client.mutex("a").ttl(ms(60_000)).auto_renew(false);
    let guard = mutex.lock().unwrap();
    is_refused.store(true, Ordering::SeqCst);
    assert!(guard.set_ttl(ms(5_000)).unwrap_err().is_unreachable());
    let left = guard.remaining();
    assert!(left.is_none_or(|left| left <= ms(5_000)), "{left:?}");
}

/// The first node runs the release, and a proxy replies with an error. The node that owns the slot
/// then finds nothing to release.
fn release_that_an_earlier_node_may_have_run_is_no_loss() {
    let servers = [Server::start(), Server::start()];
    let proxies = servers.each_ref().map(|one| Recorder::to(one.port()));
    let [first, second] = proxies.each_ref().map(Recorder::port);
    let is_refused = Arc::new(AtomicBool::new(false));
    for proxy in &proxies {
        let (port, refuses) = (proxy.port(), Arc::clone(&is_refused));
        proxy.replace(move |request| {
            let refuses = refuses.load(Ordering::SeqCst);
            let owner = if refuses { second } else { first };
            match request.name().as_str() {
                "CLUSTER" => Some(all_slots_at(owner)),
                _ if port == second => None,
                _ => (refuses && is_script(request)).then(|| "-upstream failure".to_owned()),
            }
        });
    }
    let url = format!("redis+cluster://127.0.0.1:{first}");
    let client = Client::builder().url(url).build().unwrap();
    // The node knows the scripts from now on.
    assert_released(client.mutex("a").lock().unwrap().unlock());
    let guard = client.mutex("a").ttl(ms(60_000)).lock().unwrap();
    is_refused.store(true, Ordering::SeqCst);
    assert_released(guard.unlock());
    assert!(servers[0].get("lock:a").is_none());
}

fn renewals_outlast_errors() {
    let server = Server::start();
    let proxy = Recorder::to(server.port());
    let client = builder(proxy.port()).build().unwrap();
    let guard = client.mutex("a").ttl(ms(1_500)).renew_every(ms(100)).lock();
    let guard = guard.unwrap();
    replace_every(&proxy, 3, PASSING.to_vec());
    let start = Instant::now();
    eventually(ms(10_000), || start.elapsed() > ms(3_000));
    guard.ensure_held().unwrap();
    // A renewal whose reply was replaced has run, or is repeated.
    eventually(ms(5_000), || guard.renew().is_ok());
    assert_released(guard.unlock());
}

/// The script has run before the proxy replies with the error.
fn call_whose_reply_was_replaced_by_an_error_is_undone() {
    let server = Server::start();
    let proxy = Recorder::to(server.port());
    let client = builder(proxy.port()).ttl(ms(60_000)).build().unwrap();
    let other = server.client();
    use_each_kind(&client);
    for text in [
        "LOADING Redis is loading",
        "BUSY Redis is busy",
        "upstream failure",
    ] {
        let calls: [&dyn Fn(&Client); 5] = [
            &|client| drop(client.mutex("a").lock().unwrap()),
            &|client| drop(client.fair_mutex("a").lock().unwrap()),
            &|client| drop(client.rw_lock("b").read().unwrap()),
            &|client| drop(client.semaphore("c", 1).acquire().unwrap()),
            &|client| drop(client.mutex_all(["d", "e"]).lock().unwrap()),
        ];
        for call in calls {
            let is_replaced = Arc::new(AtomicBool::new(false));
            let once = Arc::clone(&is_replaced);
            proxy.replace(move |request| {
                let is_first = is_script(request) && !once.swap(true, Ordering::SeqCst);
                is_first.then(|| format!("-{text}"))
            });
            let start = Instant::now();
            call(&client);
            call(&other);
            assert!(start.elapsed() < ms(20_000), "{text}: not undone");
            assert!(is_replaced.load(Ordering::SeqCst), "{text}");
        }
    }
}

fn errors_without_end_are_reported_after_unreachable_for() {
    let server = Server::start();
    let proxy = Recorder::to(server.port());
    let limit = ms(1_500);
    let client = builder(proxy.port()).unreachable_for(limit).build();
    let client = client.unwrap();
    use_each_kind(&client);
    replace_every(&proxy, 1, vec!["ERR upstream failure"]);
    let start = Instant::now();
    let error = client.mutex("a").lock().unwrap_err();
    let took = start.elapsed();
    assert!((limit - ms(100)..limit + SLACK).contains(&took), "{took:?}");
    assert!(matches!(&error, Error::Refused { .. }), "{error:?}");
    assert!(error.is_retryable() && error.is_unreachable(), "{error:?}");
    assert!(error.may_be_held());
    assert_eq!(client.stats().open_breakers, 1, "refusals are failures");
    let text = error.to_string();
    assert!(text.contains("refused acquire for 1."), "{text}");
    assert!(text.ends_with(": ERR upstream failure"), "{text}");
    let error = client.mutex("a").try_lock().unwrap_err();
    assert!(error.is_unreachable(), "{error:?}");
}

fn server_that_never_ran_a_script_is_given_up_after_three_tries() {
    let server = FakeServer::start(|request| {
        is_script(request).then(|| b"-ERR scripts are not for you\r\n".to_vec())
    });
    // On a busy machine, a call that stands still for the command timeout would be asked for again.
    let client = Client::builder()
        .url(server.url())
        .command_timeout(ms(10_000))
        .build()
        .unwrap();
    let error = client.mutex("a").lock().unwrap_err();
    assert!(!error.is_retryable(), "{error:?}");
    assert!(error.to_string().contains("not for you"), "{error}");
    // A try does not count if the refusal of an undo has ended its connection first: on a busy
    // machine, some do not.
    let tries = server.requests("acquire").len();
    assert!((3..10).contains(&tries), "{tries} tries");
}

fn reasons_that_last_are_final_at_once() {
    for text in [
        "NOPERM this user has no permissions to run the 'evalsha' command",
        "NOAUTH Authentication required.",
        "DENIED Redis is running in protected mode",
        "CROSSSLOT Keys in request don't hash to the same slot",
        "ERR unknown command 'EVALSHA', with args beginning with: ",
        "ERR unsupported command 'EVALSHA'",
        "ERR wrong number of arguments for 'evalsha' command",
        "OOM command not allowed when used memory > 'maxmemory'.",
    ] {
        let tries = Arc::new(AtomicUsize::new(0));
        let server = FakeServer::start({
            let tries = Arc::clone(&tries);
            move |request| {
                is_script(request).then(|| {
                    tries.fetch_add(1, Ordering::SeqCst);
                    format!("-{text}\r\n").into_bytes()
                })
            }
        });
        let client = Client::open(server.url()).unwrap();
        let error = client.mutex("a").lock().unwrap_err();
        assert!(!error.is_retryable() && !error.may_be_held(), "{error:?}");
        assert!(error.to_string().contains(text.trim_end()), "{error}");
        assert_eq!(tries.load(Ordering::SeqCst), 1, "{text}");
    }
}
