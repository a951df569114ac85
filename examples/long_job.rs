//! A job that takes longer than its lease, once undisturbed and once with the lock taken away.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::crossbeam_channel::{Receiver, bounded, select};
use leasehold::{Client, Error, Lost, Mutex, MutexGuard, Unlocked};

use support::{Outcome, run};

mod support;

const TTL: Duration = Duration::from_secs(1);
const PAGES: u32 = 8;
const PAGE: Duration = Duration::from_millis(300);

fn main() -> ExitCode {
    run(two_jobs, &[])
}

/// Prints page after page for as long as the lock is ours.
fn print_book(guard: &MutexGuard) -> Result<(), Lost> {
    let pages = printer();
    let lost = guard.lost();
    loop {
        select! {
            recv(pages) -> page => match page {
                Ok(page) => println!("  Page {page} of {PAGES}."),
                Err(_) => return Ok(()),
            },
            recv(lost) -> why => {
                // The channel tells the loss once; it ends without a word only when the guard does.
                return Err(why.expect("the guard is still there"));
            }
        }
    }
}

/// A slow machine of some kind: it has another page ready from time to time, and ends behind the last one.
fn printer() -> Receiver<u32> {
    let (sender, pages) = bounded(0);
    thread::spawn(move || {
        for page in 1..=PAGES {
            thread::sleep(PAGE);
            if sender.send(page).is_err() {
                return;
            }
        }
    });
    pages
}

fn two_jobs() -> Outcome {
    let client = Client::from_env()?;
    let mutex = client.mutex("printer").ttl(TTL);
    undisturbed(&mutex)?;
    taken_away(&mutex)
}

fn undisturbed(mutex: &Mutex) -> Outcome {
    println!("A job of {:.1?} under a lease of {TTL:.1?}.", PAGE * PAGES);
    let renewals = Arc::new(AtomicU32::new(0));
    let mutex = mutex.clone().on_renew({
        let renewals = Arc::clone(&renewals);
        move |_| {
            renewals.fetch_add(1, Ordering::Relaxed);
        }
    });

    let began = Instant::now();
    let guard = mutex.lock()?;
    print_book(&guard).map_err(Error::Lost)?;
    let took = began.elapsed();
    assert!(took > 2 * TTL, "the job outlasts the lease");

    // Another process would be turned away just the same.
    assert!(Client::from_env()?.mutex("printer").try_lock()?.is_none());
    assert_eq!(guard.unlock()?, Unlocked::Released);
    let renewals = renewals.load(Ordering::Relaxed);
    assert!(renewals >= 2);
    println!("  Done after {took:.1?}; the lease was renewed {renewals} times meanwhile.");
    Ok(())
}

fn taken_away(mutex: &Mutex) -> Outcome {
    println!("The same job, and an operator who takes the lock away.");
    let guard = mutex.lock()?;
    let operator = thread::spawn(|| -> Outcome<Instant> {
        let client = Client::from_env()?;
        thread::sleep(PAGE * 2 + PAGE / 2);
        assert!(client.mutex("printer").force_unlock()?);
        println!("  The operator forces the lock open.");
        Ok(Instant::now())
    });

    let why = print_book(&guard).expect_err("the job is stopped");
    let stopped = Instant::now();
    let forced = operator.join().expect("the operator does not panic")?;
    assert!(!guard.is_held());
    assert_eq!(guard.unlock()?, Unlocked::AlreadyLost(why));

    let noticed = stopped.saturating_duration_since(forced);
    assert!(noticed < TTL, "the job went on without a lock");
    println!("  The job stops {noticed:.1?} later: {why}.");
    Ok(())
}
