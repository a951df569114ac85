//! Promise: in whatever order its threads run, one holds the lock, and no call is forgotten.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::thread;
use shuttle::{Config, Runner};

use crate::cancel::CancelToken;
use crate::client::World;
use crate::name::Name;
use crate::protocol::cohort::CohortKeys;
use crate::protocol::fair::FairMutexKeys;
use crate::protocol::keys::Keys;
use crate::protocol::primitive::Primitive;

/// The threads of the clients: two of the first one, one of the second one.
const THREADS: [usize; 3] = [0, 0, 1];

/// How often each acquires the lock.
const TIMES: u32 = 2;

type Lock = fn() -> Arc<dyn Primitive>;

pub(crate) fn mutex() -> Arc<dyn Primitive> {
    CohortKeys::of(keys())
}

pub(crate) fn fair_mutex() -> Arc<dyn Primitive> {
    FairMutexKeys::of(keys())
}

fn keys() -> Keys {
    Keys::new(Name::from("a"), "lock:", "lock_release:")
}

/// The orders are the same in each run. `make sim` chooses others, with `SHUTTLE_RANDOM_SEED`.
pub(crate) const SEED: u64 = 1;

/// Runs a model in many orders of its threads: random ones, and those with few changes.
pub(crate) fn check(orders: usize, model: impl Fn() + Send + Sync + Copy + 'static) {
    let config = || {
        let mut config = Config::new();
        // A script of Lua needs more than the usual stack of a thread.
        config.stack_size = 512 * 1024;
        config
    };
    Runner::new(RandomScheduler::new_from_seed(SEED, orders), config()).run(model);
    Runner::new(PctScheduler::new_from_seed(SEED, 3, orders), config()).run(model);
}

/// Runs `clients` with their engines and subscribers until `calls` have returned.
pub(crate) fn run(world: World, calls: impl FnOnce(&Arc<World>) -> Vec<thread::JoinHandle<()>>) {
    let world = Arc::new(world);
    let mut own = Vec::new();
    for n in 0..world.clients.len() {
        let (engine, subscriber) = (Arc::clone(&world), Arc::clone(&world));
        own.push(thread::spawn(move || engine.run_engine(&engine.clients[n])));
        own.push(thread::spawn(move || {
            subscriber.run_subscriber(&subscriber.clients[n])
        }));
    }
    for call in calls(&world) {
        call.join().expect("no panic");
    }
    world.end();
    for thread in own {
        thread.join().expect("no panic");
    }
}

/// Threads of clients acquire and release the lock, each several times.
fn contend(world: &Arc<World>, clients: [usize; 3], lock: Lock) -> Vec<thread::JoinHandle<()>> {
    let inside = Arc::new(AtomicU32::new(0));
    // One for each client: a lock of one is never used by another.
    let locks = [lock(), lock()];
    let call = |client: usize| {
        let (world, inside) = (Arc::clone(world), Arc::clone(&inside));
        let lock = Arc::clone(&locks[client]);
        thread::spawn(move || {
            let client = &world.clients[client];
            for _ in 0..TIMES {
                let acquired = world.acquire(client, &lock, None);
                let (lease, token) = acquired.expect("nobody cancels it");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                thread::yield_now();
                inside.fetch_sub(1, Ordering::SeqCst);
                world.release(client, &lease, token);
            }
        })
    };
    clients.map(call).into()
}

#[test]
fn threads_of_two_clients_share_a_mutex() {
    check(ORDERS, || {
        run(World::new(2), |world| contend(world, THREADS, mutex))
    });
}

#[test]
fn threads_of_two_clients_share_a_fair_mutex() {
    check(ORDERS, || {
        run(World::new(2), |world| contend(world, THREADS, fair_mutex))
    });
}

/// The grant may be on its way when the call leaves: the others still get the lock.
#[test]
fn a_call_that_is_cancelled_takes_no_grant_with_it() {
    check(ORDERS, || {
        run(World::new(2), |world| {
            let mut threads = contend(world, THREADS, fair_mutex);
            let cancel = CancelToken::new();
            let (leaving, leaves) = (Arc::clone(world), cancel.clone());
            threads.push(thread::spawn(move || {
                let client = &leaving.clients[1];
                if let Some((lease, token)) = leaving.acquire(client, &fair_mutex(), Some(&leaves))
                {
                    leaving.release(client, &lease, token);
                }
            }));
            threads.push(thread::spawn(move || cancel.cancel()));
            threads
        });
    });
}

/// The lease that the closed client holds, or is about to be granted, is released: others get it.
#[test]
fn a_shutdown_takes_no_grant_with_it() {
    check(ORDERS, || {
        run(World::new(2), |world| {
            let mut threads = contend(world, [0, 0, 0], mutex);
            let closed = Arc::clone(world);
            threads.push(thread::spawn(move || {
                let (client, lock) = (&closed.clients[1], mutex());
                for _ in 0..TIMES {
                    if let Some((lease, token)) = closed.acquire(client, &lock, None) {
                        closed.release(client, &lease, token);
                    }
                }
            }));
            let closing = Arc::clone(world);
            threads.push(thread::spawn(move || {
                closing.close(&closing.clients[1]);
            }));
            threads
        });
    });
}

/// These models find a wake-up that is lost.
#[test]
#[should_panic(expected = "deadlock")]
fn a_wake_up_that_is_not_passed_on_is_found() {
    check(ORDERS, || {
        let mut world = World::new(2);
        world.forgets_wake_ups = true;
        run(world, |world| contend(world, THREADS, mutex));
    });
}

const ORDERS: usize = 1_000;
