//! `leasehold top`: shows the held locks, and refreshes the display.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use leasehold::Error;
use leasehold::crossbeam_channel::{Receiver, at, never, select};
use signal_hook::consts::SIGTSTP;

use crate::args::{ConnectionArgs, Top};
use crate::background;
use crate::exit::{Failure, by_signal};
use crate::row::Row;
use crate::scan::{self, Scanned};
use crate::screen::Screen;
use crate::signals::{is_process_1, signals};
use crate::stops::{self, suspend};
use crate::watched::Watched;

/// How long the first refresh waits for the first scan, unless `--count` limits the refreshes.
const FIRST_SCAN: Duration = Duration::from_secs(1);

pub(crate) fn top(connection: &ConnectionArgs, args: &Top) -> Result<u8, Failure> {
    let screen = Screen::new(args);
    // A signal must not end this process before the terminal is restored.
    let signals = if matches!(screen, Screen::Terminal { .. }) || is_process_1() {
        signals().map_err(|error| Failure::system("cannot catch signals", &error))?
    } else {
        never()
    };
    let client = connection.client()?;
    let prefix = args.prefix.as_bytes().to_vec();
    let scanned = scan::start(client.clone(), prefix, args.interval)?;
    let mut display = Display {
        screen,
        signals,
        scanned,
        progress: Some(0.0),
        has_page: false,
        error: None,
    };
    match display.show_all(Watched::new(client), args) {
        Err(Stop::Signal(signal)) => Ok(by_signal(signal)),
        Err(Stop::Failure(failure)) => Err(failure),
        Ok(()) => Ok(0),
    }
}

/// Why the display ends before its last refresh.
enum Stop {
    Signal(i32),
    Failure(Failure),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failure(error.into())
    }
}

/// An error of writing to standard output.
impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Failure(error.into())
    }
}

/// The screen, and what reaches it while it waits.
struct Display {
    screen: Screen,
    signals: Receiver<i32>,
    scanned: Receiver<Scanned>,
    /// How much of the keys is scanned, during the first scan.
    progress: Option<f64>,
    /// The scan has found a page.
    has_page: bool,
    /// Why the latest scan has failed, if it has.
    error: Option<Error>,
}

impl Display {
    fn show_all(&mut self, mut watched: Watched, args: &Top) -> Result<(), Stop> {
        let first = Instant::now() + FIRST_SCAN.max(args.interval);
        // Without `--count`, the display is filled while the first scan goes on. The first page
        // tells that Redis answers.
        while self.progress.is_some() {
            let limit = (self.has_page && args.count.is_none()).then_some(first);
            if limit.is_some_and(|limit| limit <= Instant::now()) {
                break;
            }
            self.wait_for_scan(&mut watched, limit)?;
        }
        if let Some(error) = self.error.take() {
            return Err(error.into());
        }
        let mut refreshes = 0;
        loop {
            let began = Instant::now();
            let refreshed = background::start("leasehold-top", move || {
                let rows = watched.refresh(began);
                (watched, rows)
            });
            let rows;
            (watched, rows) = self.wait_for(&refreshed)?;
            self.show(rows)?;
            refreshes += 1;
            if args.count.is_some_and(|count| refreshes >= count) {
                return Ok(());
            }
            let next = began + args.interval;
            while Instant::now() < next {
                self.wait_for_scan(&mut watched, Some(next))?;
            }
        }
    }

    fn show(&mut self, rows: Result<Vec<Row>, Error>) -> Result<(), Stop> {
        // If no name is known, only the scan asks Redis.
        let rows = match self.error.take() {
            Some(error) => Err(error),
            None => rows,
        };
        match rows {
            Ok(rows) => self.screen.show(&rows, self.progress)?,
            // Redis may be reachable at the next refresh.
            Err(error) if error.is_unreachable() => self.screen.show_error(&error)?,
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Waits until the scan tells something, or until `limit`.
    fn wait_for_scan(&mut self, watched: &mut Watched, limit: Option<Instant>) -> Result<(), Stop> {
        let limit = limit.map_or_else(never, at);
        select! {
            recv(self.scanned) -> scanned => match scanned {
                Ok(Scanned::Page { locks, semaphores, progress }) => {
                    watched.add(locks, semaphores);
                    self.error = None;
                    self.has_page = true;
                    self.progress = self.progress.map(|_| progress);
                }
                Ok(Scanned::End(outcome)) => {
                    self.progress = None;
                    self.error = outcome.err();
                }
                // The thread has panicked and printed why.
                Err(_) => return Err(Error::Closed.into()),
            },
            recv(self.signals) -> signal => self.signalled(signal.ok())?,
            recv(limit) -> _ => {}
        }
        Ok(())
    }

    /// Waits for a refresh.
    fn wait_for<T>(&mut self, refreshed: &Receiver<T>) -> Result<T, Stop> {
        loop {
            select! {
                // The thread sends nothing if it has panicked and printed why.
                recv(refreshed) -> refreshed => return Ok(refreshed.map_err(|_| Error::Closed)?),
                recv(self.signals) -> signal => self.signalled(signal.ok())?,
            }
        }
    }

    fn signalled(&mut self, signal: Option<i32>) -> Result<(), Stop> {
        match signal {
            Some(SIGTSTP) if stops::is_pending() => Ok(self.screen.while_left(suspend)?),
            Some(SIGTSTP) => Ok(()),
            Some(signal) => Err(Stop::Signal(signal)),
            // The thread that receives the signals lives as long as this process.
            None => Ok(()),
        }
    }
}
