//! Promise: two calls of the kernel that run at once end as if one had come after the other.
//!
//! Each model leads up to one pair, and then runs both in many orders. A mistake in the kernel
//! shows that the model can fail.

use std::sync::Arc;

use shuttle::thread::spawn;

use crate::cancel::CancelToken;
use crate::client::World;
use crate::kernel::call::{Call, Step};
use crate::kernel::engine::Engine;
use crate::kernel::failure::Failure;
use crate::kernel::waiter::Outcome;
use crate::models::{check, fair_mutex, mutex, run};
use crate::mutant::{Mutant, switch_on};

const ORDERS: usize = 100;

/// A mistake is found in the first of these that shows it: a hundred may all miss it.
const ORDERS_WITH_A_MISTAKE: usize = 10_000;

fn holds(model: fn()) {
    switch_on(None);
    check(ORDERS, model);
}

/// Runs a model with a mistake, which it must find.
fn with(mutant: Mutant, model: fn()) {
    switch_on(Some(mutant));
    check(ORDERS_WITH_A_MISTAKE, model);
}

fn leave(world: &World, call: &mut Call) -> Outcome {
    let client = &world.clients[0];
    world.with(client, |now, fx| {
        call.leave(&client.kernel, Failure::Cancelled, now, fx)
    })
}

/// Another server may be the master: the leases of the first client are renewed at once.
fn suspect(world: &World) {
    let client = &world.clients[0];
    world.with(client, |now, fx| client.kernel.moved(&|_| true, now, fx));
}

/// Checks that the first client keeps nothing, neither here nor on the server.
fn check_nothing_is_left(world: &World) {
    let left = world.clients[0].kernel.counts();
    assert_eq!(left, [0; 3], "leases, and calls that wait");
    let other = &world.clients[1];
    let lock = mutex();
    let acquired = world.acquire(other, &lock, None);
    let (lease, token) = acquired.expect("nobody cancels it");
    world.release(other, &lease, token);
}

// The engine's wake-up, and its going to sleep.

fn sleep() {
    run(World::new(1), |world| {
        let call = |_| {
            let world = Arc::clone(world);
            spawn(move || {
                let client = &world.clients[0];
                // A call that can be cancelled leaves its commands to the engine.
                let acquired = world.acquire(client, &mutex(), Some(&CancelToken::new()));
                let (lease, token) = acquired.expect("nobody cancels it");
                world.release(client, &lease, token);
            })
        };
        [0, 1].map(call).into()
    });
}

#[test]
fn engine_sees_what_is_due_before_it_sleeps() {
    holds(sleep);
}

/// `Kernel::engine_sleeps` reads the first item in one critical section, and records the sleep in
/// another.
#[test]
#[should_panic(expected = "deadlock")]
fn sleep_that_is_recorded_later_is_found() {
    with(Mutant::SleepIsReadFirst, sleep);
}

/// `Kernel::engine_sleeps` does not record the sleep.
#[test]
#[should_panic(expected = "deadlock")]
fn sleep_that_is_not_recorded_is_found() {
    with(Mutant::SleepIsNotRecorded, sleep);
}

// A cancellation, and a grant message.

fn grant() {
    let world = Arc::new(World::new(2));
    let [client, other] = &*world.clients else {
        unreachable!("two clients");
    };
    let mut engine = Engine::default();
    world.subscribe(client);
    let (lease, token) = world.acquire(other, &mutex(), None).expect("it is free");
    let mut call = world.call(client, &fair_mutex(), true);
    world.with(client, |now, fx| call.begin(&client.kernel, now, fx));
    world.turn(client, &mut engine);
    world.release(other, &lease, token);
    let receiving = Arc::clone(&world);
    let subscriber = spawn(move || receiving.receive(&receiving.clients[0]));
    if let Outcome::Lease(lease, token) = leave(&world, &mut call) {
        world.release(client, &lease, token);
    }
    subscriber.join().unwrap();
    world.turn(client, &mut engine);
    check_nothing_is_left(&world);
}

#[test]
fn grant_to_a_call_that_leaves_is_released() {
    holds(grant);
}

/// `Call::leave` looks for the outcome before it takes the lock of the shard.
#[test]
#[should_panic(expected = "leases, and calls that wait")]
fn outcome_that_is_looked_for_too_early_is_found() {
    with(Mutant::CancelLooksFirst, grant);
}

// The end of an undo, and a call that leaves something to undo.

fn undo() {
    let world = Arc::new(World::new(2));
    let [client, other] = &*world.clients else {
        unreachable!("two clients");
    };
    let mut engine = Engine::default();
    world.acquire(other, &mutex(), None).expect("it is free");
    let [mut first, mut second] = [(); 2].map(|()| {
        let mut call = world.call(client, &fair_mutex(), true);
        world.with(client, |now, fx| call.begin(&client.kernel, now, fx));
        call
    });
    world.turn(client, &mut engine);
    leave(&world, &mut first);
    let undone = world.send_due(client, &mut engine);
    assert_eq!(undone.len(), 1);
    let leaving = Arc::clone(&world);
    let second = spawn(move || {
        leave(&leaving, &mut second);
    });
    for sent in undone {
        world.ended(client, &mut engine, sent);
    }
    second.join().unwrap();
    assert_eq!(client.kernel.counts(), [0; 3]);
}

#[test]
fn undo_ends_while_a_call_leaves() {
    holds(undo);
}

/// `Engine::ended` has the lock of the pending releases while it takes that of the shard.
#[test]
#[should_panic(expected = "deadlock")]
fn locks_in_the_wrong_order_are_found() {
    with(Mutant::UndoneUnderPending, undo);
}

// A release, and a renewal.

fn renewal() {
    let world = Arc::new(World::new(2));
    let client = &world.clients[0];
    let (lease, token) = world.acquire(client, &mutex(), None).expect("it is free");
    suspect(&world);
    let renewing = Arc::clone(&world);
    let engine = spawn(move || {
        let mut engine = Engine::default();
        renewing.turn(&renewing.clients[0], &mut engine);
    });
    world.release(client, &lease, token);
    engine.join().unwrap();
    check_nothing_is_left(&world);
}

#[test]
fn renewal_of_a_lease_that_is_released_tells_no_loss() {
    holds(renewal);
}

/// `HeldLease::answered` does not look whether the lease is being released.
#[test]
#[should_panic(expected = "nothing takes a lease away")]
fn loss_of_a_released_lease_is_found() {
    with(Mutant::ReleasedIsLost, renewal);
}

// A suspicion, and the end of a renewal.

fn suspicion() {
    let world = Arc::new(World::new(1));
    let client = &world.clients[0];
    let mut engine = Engine::default();
    world.acquire(client, &mutex(), None).expect("it is free");
    suspect(&world);
    let renewed = world.send_due(client, &mut engine);
    assert_eq!(renewed.len(), 1);
    let suspecting = Arc::clone(&world);
    let router = spawn(move || suspect(&suspecting));
    for sent in renewed {
        world.ended(client, &mut engine, sent);
    }
    router.join().unwrap();
    let renewed = world.send_due(client, &mut engine);
    assert_eq!(renewed.len(), 1, "renewals after the suspicion");
}

#[test]
fn suspicion_is_followed_by_a_renewal() {
    holds(suspicion);
}

/// `HeldLease::change` puts the lease into the schedule after it has dropped the lease's lock.
#[test]
#[should_panic(expected = "renewals after the suspicion")]
fn lease_that_is_scheduled_later_is_found() {
    with(Mutant::LeaseIsScheduledLate, suspicion);
}

// The end of the client, and a reply that grants.

fn end() {
    let world = Arc::new(World::new(1));
    let client = &world.clients[0];
    let mut call = world.call(client, &mutex(), false);
    let Step::Send(command, _) = world.with(client, |now, fx| call.begin(&client.kernel, now, fx))
    else {
        panic!("nobody asks");
    };
    let sent = world.now();
    let granted = Ok(world.run(client, &command));
    let ending = Arc::clone(&world);
    let closing = spawn(move || ending.close(&ending.clients[0]));
    let step = world.with(client, |now, fx| {
        call.replied(&client.kernel, granted, sent, now, fx)
    });
    closing.join().unwrap();
    if let Step::Done(Outcome::Lease(lease, _)) = step {
        let left = lease.remaining(world.now());
        assert_eq!(left, None, "a closed client has a lease");
    }
}

#[test]
fn closed_client_has_no_lease() {
    holds(end);
}

/// The grant does not look whether the client is closed.
#[test]
#[should_panic(expected = "a closed client has a lease")]
fn lease_of_a_closed_client_is_found() {
    with(Mutant::ClosedClientGives, end);
}
