//! Promise: a server of a quorum that restarted without its data gets the keys of the leases back,
//! so that restarts one after another end none; and what an operator releases stays released.

use std::time::Duration;

use leasehold::{Client, MutexGuard};
use support::{Server, eventually, ms};

support::tests![
    restarts_of_all_servers_one_after_another_end_no_lease,
    a_lease_without_renewal_keeps_its_majority_after_a_restart,
    a_joined_key_is_released_with_its_lease,
    a_lock_that_was_joined_is_shown_and_released_by_force,
    a_forced_release_reaches_a_member_that_was_healed,
    a_forced_release_needs_no_reply_of_a_member_that_hangs,
    a_forced_release_is_not_healed,
    a_lock_whose_key_was_deleted_everywhere_is_lost,
    a_later_holder_has_a_higher_token_after_restarts
];

const TTL: Duration = ms(3_000);

fn quorum(servers: &[Server]) -> Client {
    let client = Client::builder().quorum(servers.iter().map(Server::url));
    client.ttl(TTL).build().unwrap()
}

fn servers() -> Vec<Server> {
    (0..3).map(|_| Server::start()).collect()
}

fn key(server: &Server, name: &str) -> Option<String> {
    let mut connection = server.connection();
    let get = redis::cmd("GET").arg(format!("lock:{name}")).to_owned();
    get.query(&mut connection).unwrap()
}

/// Waits until a server has the key of each of these locks.
#[track_caller]
fn joined(server: &Server, names: &[String]) {
    eventually(TTL * 5, || {
        names.iter().all(|name| key(server, name).is_some())
    });
}

/// Waits until each server has the key of the lock `a`.
#[track_caller]
fn whole(servers: &[Server]) {
    for server in servers {
        joined(server, &["a".to_owned()]);
    }
}

/// Restarts a server, and waits until it has the key of the lock `a` again.
#[track_caller]
fn healed(server: &mut Server) {
    server.restart();
    joined(server, &["a".to_owned()]);
}

fn restarts_of_all_servers_one_after_another_end_no_lease() {
    let mut servers = servers();
    let names: Vec<String> = (0..8).map(|n| format!("n{n}")).collect();
    let clients: Vec<Client> = names.iter().map(|_| quorum(&servers)).collect();
    let guards: Vec<_> = clients
        .iter()
        .zip(&names)
        .map(|(client, name)| client.mutex(name.as_str()).lock().unwrap())
        .collect();
    // A lock that a majority has granted is held: the last server may be slow to connect.
    for server in &servers {
        joined(server, &names);
    }
    for round in 0..2 {
        for (n, server) in servers.iter_mut().enumerate() {
            server.restart();
            joined(server, &names);
            let held = guards.iter().filter(|guard| guard.is_held()).count();
            assert_eq!(held, guards.len(), "restart of {n} in round {round}");
        }
    }
    for (client, name) in clients.iter().zip(&names) {
        let other = quorum(&servers);
        let refused = other.mutex(name.as_str()).try_lock().unwrap();
        let taken = refused.expect_err("it is held");
        assert!(taken.owner().is_some(), "{taken}");
        assert_eq!(client.stats().totals.lost(), 0);
    }
    for guard in guards {
        guard.unlock().unwrap();
    }
    for (server, name) in servers
        .iter()
        .flat_map(|it| names.iter().map(move |n| (it, n)))
    {
        eventually(ms(5_000), || key(server, name).is_none());
    }
}

/// A lease that is not renewed is checked once it is in doubt: the join lasts as long as it does.
fn a_lease_without_renewal_keeps_its_majority_after_a_restart() {
    let mut servers = servers();
    let client = quorum(&servers);
    let mutex = client.mutex("a").ttl(ms(30_000)).auto_renew(false);
    let guard = mutex.lock().unwrap();
    eventually(ms(10_000), || {
        guard.renew().unwrap();
        servers.iter().all(|server| key(server, "a").is_some())
    });
    servers[0].restart();
    guard.set_ttl(ms(20_000)).unwrap();
    eventually(ms(10_000), || {
        guard.renew().unwrap();
        key(&servers[0], "a").is_some()
    });
    servers[1].restart();
    assert!(guard.is_held());
    let other = quorum(&servers);
    other.mutex("a").try_lock().unwrap().unwrap_err();
    guard.unlock().unwrap();
}

fn a_joined_key_is_released_with_its_lease() {
    let mut servers = servers();
    let client = quorum(&servers);
    let guard = client.mutex("a").lock().unwrap();
    let id = guard.holder_id().as_str().to_owned();
    whole(&servers);
    healed(&mut servers[2]);
    let there = key(&servers[2], "a").unwrap();
    assert_ne!(there, id, "under a number of its own");
    assert_eq!(there[..there.len() - 3], id[..id.len() - 3]);
    guard.unlock().unwrap();
    for server in &servers {
        eventually(ms(5_000), || key(server, "a").is_none());
    }
}

fn a_lock_that_was_joined_is_shown_and_released_by_force() {
    let mut servers = servers();
    let client = quorum(&servers);
    let guard = client.mutex("a").lock().unwrap();
    whole(&servers);
    servers.iter_mut().for_each(healed);
    // Each server has another id of the lease by now.
    let other = quorum(&servers);
    let shown = other.mutex("a").inspect().unwrap().expect("it is held");
    assert_eq!(shown.holder_id(), Some(guard.holder_id()));
    let listed = other.list("").unwrap();
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert!(other.mutex("a").force_unlock().unwrap());
    let told = guard.lost();
    told.recv_timeout(TTL * 2).expect("it is lost");
    for server in &servers {
        eventually(ms(5_000), || key(server, "a").is_none());
    }
    assert!(other.mutex("a").try_lock().unwrap().is_ok());
}

/// Returns a guard whose client renews nothing: it is as if the holder were dead.
fn held_by_the_dead(client: &Client, servers: &mut [Server], healed: &[usize]) -> MutexGuard {
    let mutex = client.mutex("a").ttl(ms(60_000)).auto_renew(false);
    let guard = mutex.lock().unwrap();
    let renewed_at_all = |servers: &[Server]| {
        eventually(ms(10_000), || {
            guard.renew().unwrap();
            servers.iter().all(|server| key(server, "a").is_some())
        });
    };
    renewed_at_all(servers);
    for n in healed {
        servers[*n].restart();
        renewed_at_all(servers);
    }
    guard
}

/// Too few of the others decide that it is released, and its reply is the last one.
fn a_forced_release_reaches_a_member_that_was_healed() {
    for healed in [&[2][..], &[0], &[0, 1], &[0, 1, 2]] {
        let mut servers = servers();
        let client = quorum(&servers);
        let _guard = held_by_the_dead(&client, &mut servers, healed);
        assert!(quorum(&servers).mutex("a").force_unlock().unwrap());
        for (n, server) in servers.iter().enumerate() {
            assert_eq!(key(server, "a"), None, "at {n}, healed {healed:?}");
        }
    }
}

fn a_forced_release_needs_no_reply_of_a_member_that_hangs() {
    let mut servers = servers();
    let client = quorum(&servers);
    let _guard = held_by_the_dead(&client, &mut servers, &[0]);
    let other = quorum(&servers);
    other.mutex("b").lock().unwrap().unlock().unwrap();
    servers[2].pause();
    assert!(other.mutex("a").force_unlock().unwrap());
    for server in &servers[..2] {
        assert_eq!(key(server, "a"), None);
    }
    servers[2].resume();
}

/// A connection that breaks at the same time makes a forced release look like a restart, at one
/// server.
fn a_forced_release_is_not_healed() {
    let servers = servers();
    let client = quorum(&servers);
    let guard = client.mutex("a").lock().unwrap();
    whole(&servers);
    let other = quorum(&servers);
    assert!(other.mutex("a").force_unlock().unwrap());
    let mut connection = servers[0].connection();
    let kill = redis::cmd("CLIENT")
        .arg("KILL")
        .arg("TYPE")
        .arg("normal")
        .exec(&mut connection);
    drop(kill);
    let told = guard.lost();
    told.recv_timeout(TTL * 2).expect("it is lost");
    assert!(other.mutex("a").try_lock().unwrap().is_ok());
}

fn a_lock_whose_key_was_deleted_everywhere_is_lost() {
    let servers = servers();
    let client = quorum(&servers);
    let guard = client.mutex("a").lock().unwrap();
    let told = guard.lost();
    whole(&servers);
    for server in &servers {
        let mut connection = server.connection();
        redis::cmd("FLUSHALL").exec(&mut connection).unwrap();
    }
    told.recv_timeout(TTL * 2).expect("it is lost");
    assert!(!guard.is_held());
    for server in &servers {
        eventually(ms(5_000), || key(server, "a").is_none());
    }
}

/// The counter of each server is as high as the last token of the lease again.
fn a_later_holder_has_a_higher_token_after_restarts() {
    let mut servers = servers();
    let client = quorum(&servers);
    let guard = client.mutex("a").lock().unwrap();
    let before = guard.fencing_token();
    whole(&servers);
    for (n, server) in servers.iter_mut().enumerate() {
        healed(server);
        let mut connection = server.connection();
        let fence: u64 = redis::cmd("GET")
            .arg("leasehold:fence:{lock:a}")
            .query(&mut connection)
            .unwrap();
        assert!(fence >= before.value(), "{fence} at {n}, {before}");
    }
    guard.unlock().unwrap();
    let next = quorum(&servers).mutex("a").lock().unwrap();
    assert!(next.fencing_token() > before);
}
