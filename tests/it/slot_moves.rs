//! Promise: a queue keeps its order while its slot moves to another node of a cluster.

use std::sync::Mutex;
use std::thread;

use leasehold::Client;
use support::fair::{PATIENCE, granted, places_in};
use support::{Cluster, assert_released, client, eventually};

use crate::cluster::shared;

support::tests![
    permit_released_in_a_moving_slot_keeps_the_order,
    lock_released_in_a_moving_slot_keeps_the_order,
    reader_released_in_a_moving_slot_keeps_the_order
];

/// Makes three calls wait for what is held, one after the other, and releases it while the slot
/// moves. Asserts that they are granted it in their order.
#[track_caller]
fn assert_order_is_kept<G>(
    cluster: &Cluster,
    name: &str,
    queue: &str,
    release: impl FnOnce(),
    wait: impl Fn(&Client) -> G + Sync,
) {
    let slot = cluster.slot(&format!("lock:{name}"));
    let order = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for n in 0..3 {
            let (order, wait) = (&order, &wait);
            let client = client(&cluster.url());
            scope.spawn(move || {
                let guard = wait(&client);
                order.lock().unwrap().push(n);
                drop(guard);
            });
            eventually(PATIENCE, || places_in(cluster.node(0), queue) == n + 1);
        }
        cluster.begin_migration(slot, 0, 1);
        release();
        cluster.move_keys(slot, 0, 1);
        cluster.end_migration(slot, 0, 1);
    });
    cluster.move_slot(slot, 1, 0);
    assert_eq!(order.into_inner().unwrap(), [0, 1, 2]);
}

fn permit_released_in_a_moving_slot_keeps_the_order() {
    let cluster = shared();
    let name = cluster.name_owned_by("permits in order", 0);
    let held = client(&cluster.url()).semaphore(&*name, 1).acquire();
    let held = held.unwrap();
    let queue = format!("leasehold:permits-queue:{{lock:{name}}}");
    let release = || assert_released(held.release());
    assert_order_is_kept(cluster, &name, &queue, release, |client| {
        granted(client.semaphore(&*name, 1).try_acquire_for(PATIENCE))
    });
}

fn lock_released_in_a_moving_slot_keeps_the_order() {
    let cluster = shared();
    let name = cluster.name_owned_by("locks in order", 0);
    let held = client(&cluster.url()).fair_mutex(&*name).lock().unwrap();
    let queue = format!("leasehold:queue:{{lock:{name}}}");
    let release = || assert_released(held.unlock());
    assert_order_is_kept(cluster, &name, &queue, release, |client| {
        granted(client.fair_mutex(&*name).try_lock_for(PATIENCE))
    });
}

/// The key of the readers ends with the last reader, and does not exist in the moving slot then.
fn reader_released_in_a_moving_slot_keeps_the_order() {
    let cluster = shared();
    let name = cluster.name_owned_by("readers in order", 0);
    let held = client(&cluster.url()).rw_lock(&*name).read().unwrap();
    let queue = format!("leasehold:queue:{{lock:{name}}}");
    let release = || assert_released(held.unlock());
    assert_order_is_kept(cluster, &name, &queue, release, |client| {
        granted(client.rw_lock(&*name).try_write_for(PATIENCE))
    });
}
