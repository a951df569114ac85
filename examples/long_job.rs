//! A job that takes longer than the ttl of its lock: once undisturbed, and once with the lock
//! forced open.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::crossbeam_channel::{Receiver, bounded, select};
use leasehold::{Client, Error, Lost, Mutex, MutexGuard};

use support::run::{Outcome, run};

mod support {
    pub(crate) mod run;
}

const TTL: Duration = Duration::from_secs(1);
const PAGES: u32 = 8;
const TIME_PER_PAGE: Duration = Duration::from_millis(300);

/// Calls `two_jobs`, with a private Redis unless `REDIS_URL` is set. Your own program would not
/// need this.
fn main() -> ExitCode {
    run(two_jobs, &[])
}

/// Prints page after page; stops with an error if the lock is lost.
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
                // Without a loss, the channel disconnects only when the guard is dropped.
                return Err(why.expect("the guard still exists"));
            }
        }
    }
}

/// A slow printer: sends the number of each page on a channel, and disconnects after the last one.
fn printer() -> Receiver<u32> {
    let (sender, pages) = bounded(0);
    thread::spawn(move || {
        for page in 1..=PAGES {
            thread::sleep(TIME_PER_PAGE);
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
    let length = TIME_PER_PAGE * PAGES;
    println!("A job of {length:.1?} under a lock with a ttl of {TTL:.1?}.");
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
    assert!(took > 2 * TTL, "the job was shorter than two ttls");

    // The lease was renewed all the time, so another client still cannot get the lock.
    assert!(Client::from_env()?.mutex("printer").try_lock()?.is_err());
    guard.unlock()?;
    let renewals = renewals.load(Ordering::Relaxed);
    assert!(renewals >= 2);
    println!("  Done after {took:.1?}; the lease was renewed {renewals} times.");
    Ok(())
}

fn taken_away(mutex: &Mutex) -> Outcome {
    println!("The same job, and an operator who forces the lock open.");
    let guard = mutex.lock()?;
    let operator = thread::spawn(|| -> Outcome<Instant> {
        let client = Client::from_env()?;
        thread::sleep(TIME_PER_PAGE * 2 + TIME_PER_PAGE / 2);
        assert!(client.mutex("printer").force_unlock()?);
        println!("  The operator forces the lock open.");
        Ok(Instant::now())
    });

    let why = print_book(&guard).expect_err("the job is stopped");
    let stopped = Instant::now();
    let forced = operator.join().expect("the operator does not panic")?;
    assert!(!guard.is_held());
    assert_eq!(guard.unlock().unwrap_err().lost(), Some(why));

    let noticed = stopped.saturating_duration_since(forced);
    assert!(noticed < TTL, "the job went on without a lock");
    println!("  The job stops {noticed:.1?} later: {why}.");
    Ok(())
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use leasehold::testing::Server;

    #[test]
    fn book_is_printed_to_the_end_while_the_lock_is_held() {
        let server = Server::start();
        let guard = server.client().mutex("printer").lock().unwrap();
        assert_eq!(print_book(&guard), Ok(()));
        guard.unlock().unwrap();
    }

    #[test]
    fn printing_stops_when_the_lock_is_lost() {
        let server = Server::start();
        let guard = server.client().mutex("printer").lock().unwrap();
        server.lose("printer");
        assert_eq!(print_book(&guard), Err(Lost::Deleted));
    }
}
