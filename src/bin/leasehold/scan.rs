//! The scan for held names, which runs beside the display of `leasehold top`.

use std::thread;
use std::time::{Duration, Instant};

use leasehold::crossbeam_channel::{Receiver, Sender, bounded};
use leasehold::{Client, Error, Held, ListPage, Name};

use crate::exit::Failure;
use crate::status::OptionalQuery;

/// How many times as long as the server took for a page the scan pauses after it. So scans take at
/// most a twentieth of the server's time, as the longest pause does not depend on the interval.
const PAUSES: u32 = 19;

/// How many pages may wait for the display.
const PAGES_AHEAD: usize = 16;

/// What a scan tells the display.
pub(crate) enum Scanned {
    /// The names that were found on a page, and how much of the keys is scanned.
    Page {
        locks: Vec<Name>,
        semaphores: Vec<Name>,
        progress: f64,
    },
    /// A scan of all keys has ended.
    End(Result<(), Error>),
}

/// Starts a thread that scans again and again, at most once in an `interval`.
pub(crate) fn start(
    client: Client,
    prefix: Vec<u8>,
    interval: Duration,
) -> Result<Receiver<Scanned>, Failure> {
    let (tell, scanned) = bounded(PAGES_AHEAD);
    let scan = move || {
        let mut permits = OptionalQuery::default();
        loop {
            let began = Instant::now();
            let outcome = scan_once(&client, &prefix, &mut permits, &tell);
            if tell.send(Scanned::End(outcome)).is_err() {
                return;
            }
            thread::sleep(interval.saturating_sub(began.elapsed()));
        }
    };
    thread::Builder::new()
        .name("leasehold-scan".into())
        .spawn(scan)
        .map_err(|error| Failure::system("cannot start a thread", &error))?;
    Ok(scanned)
}

fn scan_once(
    client: &Client,
    prefix: &[u8],
    permits: &mut OptionalQuery,
    tell: &Sender<Scanned>,
) -> Result<(), Error> {
    // Sending fails once the program ends.
    client.list_pages(prefix, |page| {
        let _ = tell.send(Scanned::Page {
            locks: page.found.iter().map(Held::name).cloned().collect(),
            semaphores: Vec::new(),
            progress: page.progress / 2.0,
        });
        pause(page);
    })?;
    // A refusal is printed, and the display goes on without semaphores.
    let _held_or_refused = permits.ask(|| {
        client.list_permits_pages(prefix, |page| {
            let _ = tell.send(Scanned::Page {
                locks: Vec::new(),
                semaphores: page.found.iter().map(Held::name).cloned().collect(),
                progress: 0.5 + page.progress / 2.0,
            });
            pause(page);
        })
    })?;
    Ok(())
}

fn pause(page: &ListPage<'_>) {
    thread::sleep(page.took.saturating_mul(PAUSES));
}
