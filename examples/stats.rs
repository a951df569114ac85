//! A client's statistics: for uncontended locks, for a contended one, and shared by several
//! clients.

use std::env;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Client, Error};
use rand::RngExt;

use support::run::{Outcome, run};

mod support {
    pub(crate) mod run;
}

/// The contention rate above which an operator should look for the contended lock.
const TOO_MUCH: f64 = 0.05;

const WORKERS: usize = 8;
const TURNS: usize = 20;

/// Calls `two_services`, with a private Redis unless `REDIS_URL` is set. Your own program would not
/// need this.
fn main() -> ExitCode {
    run(two_services, &[])
}

/// Returns a client that shares its statistics.
fn client() -> Outcome<Client> {
    let prefix = env::var("LOCK_KEY_PREFIX")?;
    Ok(Client::builder()
        .url(env::var("REDIS_URL")?)
        .shared_stats(true)
        .key_prefix(prefix)
        .build()?)
}

fn two_services() -> Outcome {
    let (quiet, busy) = (client()?, client()?);
    let before = quiet.shared_stats()?.released;
    println!("A service whose workers have a lock each:");
    work(&quiet, |worker| format!("shelf:{worker}"))?;
    report(&quiet);
    assert_eq!(quiet.stats().totals.contention_rate(), 0.0);

    println!("A service whose workers share one:");
    work(&busy, |_| "warehouse".into())?;
    report(&busy);
    assert!(busy.stats().totals.contention_rate() > TOO_MUCH);

    // Each client adds its new counts every two seconds.
    let turns = (2 * WORKERS * TURNS) as u64;
    let deadline = Instant::now() + Duration::from_secs(10);
    while quiet.shared_stats()?.released - before < turns {
        assert!(
            Instant::now() < deadline,
            "the shared totals are incomplete"
        );
        thread::sleep(Duration::from_millis(100));
    }
    println!("Together:\n  {}", quiet.shared_stats()?);
    Ok(())
}

fn work(client: &Client, lock_name: impl Fn(usize) -> String) -> Outcome {
    thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|worker| {
                let mutex = client.mutex(lock_name(worker));
                scope.spawn(move || {
                    for _ in 0..TURNS {
                        let _guard = mutex.lock()?;
                        thread::sleep(Duration::from_micros(rand::rng().random_range(0..2_000)));
                    }
                    Ok::<_, Error>(())
                })
            })
            .collect();
        for worker in workers {
            worker.join().expect("no worker panics")?;
        }
        Ok(())
    })
}

fn report(client: &Client) {
    let stats = client.stats();
    println!("  {stats}");
    if stats.totals.contention_rate() > TOO_MUCH {
        println!(
            "  Contended: {:.0} % of all locks had to wait; the median wait is {:.1?}.",
            stats.totals.contention_rate() * 100.0,
            stats.wait.p50
        );
    }
}
