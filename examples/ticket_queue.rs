//! A counter serves customers in the order of their arrival; one dies in the queue and is skipped.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::Client;
use redis::Commands;

use support::child::Child;
use support::data::{connect, key};
use support::run::{Outcome, run};

mod support {
    pub(crate) mod child;
    pub(crate) mod data;
    pub(crate) mod run;
}

/// Calls `one_morning`, with a private Redis unless `REDIS_URL` is set. Your own program would not
/// need this.
fn main() -> ExitCode {
    run(one_morning, &[("customer", customer)])
}

/// Runs in the process of each customer.
fn customer() -> Outcome {
    let client = Client::from_env()?;
    let guard = client.fair_mutex("counter").lock()?;
    // After a pause longer than the lease, another customer may have the lock.
    guard.ensure_held()?;
    let () = connect()?.rpush(key("served"), std::process::id())?;
    println!("was served under token {}", guard.fencing_token());
    guard.unlock()?;
    Ok(())
}

fn one_morning() -> Outcome {
    let counter = Client::from_env()?.fair_mutex("counter");
    let guard = counter.lock()?;
    println!("The counter is still closed.");
    let mut customers = Vec::new();
    for n in 1..=5 {
        customers.push(Child::spawn("customer")?);
        // The next customer arrives only once this one has a place in the queue.
        while counter.waiting()? < n {
            thread::sleep(Duration::from_millis(2));
        }
        println!("  Customer {n} waits.");
    }

    let mut second = customers.remove(1);
    second.kill()?;
    println!("Customer 2 dies in the queue. The counter opens.");
    let opened = Instant::now();
    guard.unlock()?;
    for (customer, n) in customers.iter_mut().zip([1, 3, 4, 5]) {
        let message = customer
            .next()
            .ok_or("a customer ended without being served")??;
        println!(
            "  Customer {n} {message}, {:.1} s later.",
            opened.elapsed().as_secs_f64()
        );
    }

    let ids = customers.iter().map(|customer| customer.process.id());
    let order: Vec<u32> = connect()?.lrange(key("served"), 0, -1)?;
    assert!(order.iter().copied().eq(ids), "first come, first served");
    for mut customer in customers {
        assert!(customer.process.wait()?.success());
    }
    println!("Served in the order of arrival; the dead customer was passed over.");
    Ok(())
}
