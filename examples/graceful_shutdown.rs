//! A service gets SIGTERM: it releases all its locks at once, so that no other process waits for a
//! ttl.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::crossbeam_channel::select;
use leasehold::{Client, Error};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;

use support::child::Child;
use support::run::{Outcome, run};

mod support {
    pub(crate) mod child;
    pub(crate) mod run;
}

const ORDERS: [&str; 4] = ["order 1", "order 2", "order 3", "order 4"];

/// Calls `warehouse`, with a private Redis unless `REDIS_URL` is set. Your own program would not
/// need this.
fn main() -> ExitCode {
    run(warehouse, &[("service", service)])
}

/// Runs in a separate process.
fn service() -> Outcome {
    let mut signals = Signals::new([SIGTERM])?;
    let client = Client::from_env()?;
    thread::scope(|scope| {
        let workers = ORDERS.map(|order| scope.spawn(|| pack(&client, order)));
        let latecomer = scope.spawn(|| wait_until_shutdown(&client));

        signals.forever().next();
        println!("asked to end");
        // `shutdown` tells the holders and releases their locks at once, without waiting for them.
        // If the work must not be interrupted, make the locks with `cancel_on(&token)`. Here, call
        // `token.cancel()`, which ends the calls that wait, and join the workers. Then shut the
        // client down. The documentation of `Client::shutdown` shows this.
        let report = client.shutdown(Duration::from_secs(5));
        println!("{} locks released", report.released);
        assert_eq!(report.released, ORDERS.len());
        assert!(report.is_clean());

        for worker in workers {
            worker.join().expect("no worker panics")?;
        }
        latecomer.join().expect("the latecomer does not panic")
    })
}

/// Works in small steps until the lock is no longer held.
fn pack(client: &Client, order: &str) -> Outcome {
    let guard = client.mutex(order).lock()?;
    println!("{order} is being packed");
    let lost = guard.lost();
    loop {
        select! {
            recv(lost) -> why => {
                println!("{order} is put down: {}", why?);
                return Ok(());
            }
            default(Duration::from_millis(50)) => {} // one step of the work
        }
    }
}

/// Waits for a lock that another worker holds, until the client is shut down.
fn wait_until_shutdown(client: &Client) -> Outcome {
    // Starts after the order's worker has the lock: this call must wait.
    while client.mutex(ORDERS[0]).inspect()?.is_none() {
        thread::sleep(Duration::from_millis(5));
    }
    println!("one more worker waits for {}", ORDERS[0]);
    match client.mutex(ORDERS[0]).lock() {
        Err(Error::Closed) => {
            println!("the waiting worker goes home");
            Ok(())
        }
        other => Err(format!("the waiting worker got {other:?}").into()),
    }
}

fn warehouse() -> Outcome {
    let client = Client::from_env()?;
    println!("A service with five workers.");
    let mut service = Child::spawn("service")?;
    for _ in 0..=ORDERS.len() {
        println!("  {}.", service.next().ok_or("the service has ended")??);
    }
    for order in ORDERS {
        assert!(client.mutex(order).inspect()?.is_some(), "{order} is held");
    }

    println!("It is sent SIGTERM.");
    let asked = Instant::now();
    let id = i32::try_from(service.process.id())
        .ok()
        .and_then(Pid::from_raw);
    kill_process(id.ok_or("the process id is invalid")?, Signal::TERM)?;
    for line in &mut service {
        println!("  {}.", line?);
    }
    let status = service.process.wait()?;
    println!("It ended after {:.1?}, with {status}.", asked.elapsed());
    assert!(status.success());

    for order in ORDERS {
        assert!(client.mutex(order).inspect()?.is_none(), "{order} is free");
    }
    println!("All {} orders are free for another service.", ORDERS.len());
    Ok(())
}
