//! Promise: every guard gives access to its lease, and a lease that is kept is over for its guard.

use std::ops::Deref;
use std::time::Duration;

use leasehold::crossbeam_channel::TryRecvError;
use leasehold::{Client, Error, Lease, Lost};
use support::{Server, assert_released, ms};

support::tests![
    every_guard_gives_access_to_its_lease,
    a_kept_lease_is_over_for_its_guard,
    a_release_after_keeping_does_nothing,
    a_section_can_keep_its_lock,
    a_lease_that_cannot_be_kept_for_so_long_stays
];

const MINUTE: Duration = Duration::from_secs(60);

/// The locks of [`guards`], by their names.
const LOCKS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// Acquires a lock of each kind, and a permit.
fn guards(client: &Client) -> Vec<(&'static str, Box<dyn Deref<Target = Lease>>)> {
    vec![
        ("a", Box::new(client.mutex("a").lock().unwrap())),
        ("b", Box::new(client.fair_mutex("b").lock().unwrap())),
        ("c", Box::new(client.mutex_all(["c", "d"]).lock().unwrap())),
        ("e", Box::new(client.rw_lock("e").read().unwrap())),
        ("f", Box::new(client.rw_lock("f").write().unwrap())),
        ("a", Box::new(client.semaphore("a", 1).acquire().unwrap())),
    ]
}

fn assert_taken(server: &Server) {
    for name in LOCKS {
        assert!(!server.is_free(name), "{name}");
    }
    let semaphore = server.client().semaphore("a", 1);
    assert_eq!(semaphore.available().unwrap(), 0);
}

fn every_guard_gives_access_to_its_lease() {
    let server = Server::start();
    let client = server.client();
    let use_lease = |lease: &Lease, name: &str| {
        assert_eq!(lease.name(), name);
        assert!(lease.holder_id().to_string().contains(':'), "{lease:?}");
        assert!(lease.fencing_token().value() > 0);
        assert!(lease.is_held() && lease.remaining() > Some(ms(0)));
        lease.ensure_held().unwrap();
        lease.renew().unwrap();
        lease.set_ttl(MINUTE).unwrap();
        assert!(lease.remaining() > Some(MINUTE / 2));
        assert_eq!(lease.lost().try_recv(), Err(TryRecvError::Empty));
    };
    for (name, guard) in &guards(&client) {
        use_lease(guard, name);
    }
    assert!(LOCKS.iter().all(|name| server.is_free(name)));
}

fn a_kept_lease_is_over_for_its_guard() {
    let server = Server::start();
    let client = server.client();
    for (name, guard) in guards(&client) {
        let before = guard.lost();
        guard.keep_for(MINUTE).unwrap();
        assert_eq!(before.try_recv(), Err(TryRecvError::Disconnected), "{name}");
        assert_eq!(guard.lost().try_recv(), Err(TryRecvError::Disconnected));
        assert!(!guard.is_held() && guard.remaining().is_none(), "{name}");
        for outcome in [
            guard.ensure_held(),
            guard.renew(),
            guard.set_ttl(ms(100)),
            guard.keep_for(ms(0)),
            guard.keep_for(2 * MINUTE),
        ] {
            assert_eq!(outcome.unwrap_err().lost(), Some(Lost::Kept), "{name}");
        }
    }
    assert_taken(&server);
    let stats = client.stats();
    assert_eq!((stats.held, stats.totals.released), (0, 6), "{stats:?}");
}

fn a_release_after_keeping_does_nothing() {
    let server = Server::start();
    let client = server.client();
    let lock = client.mutex("a").lock().unwrap();
    let fair = client.fair_mutex("b").lock().unwrap();
    let set = client.mutex_all(["c", "d"]).lock().unwrap();
    let reading = client.rw_lock("e").read().unwrap();
    let writing = client.rw_lock("f").write().unwrap();
    let permit = client.semaphore("a", 1).acquire().unwrap();
    let leases: [&Lease; 6] = [&lock, &fair, &set, &reading, &writing, &permit];
    for lease in leases {
        lease.keep_for(MINUTE).unwrap();
    }
    assert_released(lock.unlock());
    assert_released(fair.unlock());
    assert_released(set.unlock());
    assert_released(reading.unlock());
    assert_released(writing.downgrade().unlock());
    assert_released(permit.release());
    assert_taken(&server);
}

fn a_section_can_keep_its_lock() {
    let server = Server::start();
    let mutex = server.client().mutex("a");
    let kept = mutex.with(|guard| guard.keep_for(MINUTE));
    kept.expect("the lock was not lost").expect("Redis answers");
    assert!(!server.is_free("a"));
}

fn a_lease_that_cannot_be_kept_for_so_long_stays() {
    let server = Server::start();
    for (name, guard) in guards(&server.client()) {
        let error = guard.keep_for(Duration::MAX).unwrap_err();
        assert!(matches!(error, Error::Config(_)), "{name}: {error:?}");
        guard.ensure_held().unwrap();
    }
    assert!(LOCKS.iter().all(|name| server.is_free(name)));
}
