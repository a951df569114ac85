//! `leasehold top`: shows the held locks, and refreshes the display.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

use leasehold::crossbeam_channel::{never, select};
use leasehold::{Client, Error, Name};
use signal_hook::consts::SIGTSTP;

use crate::args::{ConnectionArgs, Top};
use crate::exit::{Failure, by_signal};
use crate::rate::Rates;
use crate::record::Record;
use crate::row::{Row, Subject};
use crate::screen::Screen;
use crate::signals::{signals, suspend};
use crate::status::OptionalQuery;

pub(crate) fn top(connection: &ConnectionArgs, args: &Top) -> Result<u8, Failure> {
    let mut screen = Screen::new(args);
    let signals = match screen {
        // A signal must not end this process before the terminal is restored.
        Screen::Terminal { .. } => {
            signals().map_err(|error| Failure::system("cannot catch signals", &error))?
        }
        _ => never(),
    };
    let mut watched = Watched {
        client: connection.client()?,
        prefix: args.prefix.as_bytes().to_vec(),
        rates: Rates::default(),
        waiting: OptionalQuery::default(),
        permit_rates: Rates::default(),
        permits: OptionalQuery::default(),
        queued: OptionalQuery::default(),
        longest: OptionalQuery::default(),
    };
    let mut refreshes = 0;
    loop {
        let began = Instant::now();
        match watched.refresh(began) {
            Ok(rows) => screen.show(&rows)?,
            // Redis may be reachable at the next refresh. An error at the first one ends `top`.
            Err(error) if error.is_unreachable() && refreshes > 0 => screen.show_error(&error)?,
            Err(error) => return Err(error.into()),
        }
        refreshes += 1;
        if args.count.is_some_and(|count| refreshes >= count) {
            return Ok(0);
        }
        let next = args.interval.saturating_sub(began.elapsed());
        select! {
            recv(signals) -> signal => match signal {
                Ok(SIGTSTP) => screen.while_left(suspend)?,
                Ok(signal) => return Ok(by_signal(signal)),
                // The thread that receives the signals lives as long as this process.
                Err(_) => {}
            },
            default(next) => {}
        }
    }
}

/// The locks and semaphores that the display shows.
struct Watched {
    client: Client,
    prefix: Vec<u8>,
    /// How often each lock changes holders.
    rates: Rates,
    /// How many clients wait for a lock.
    waiting: OptionalQuery,
    /// How often permits of each semaphore are acquired.
    permit_rates: Rates,
    /// The semaphores with permits out.
    permits: OptionalQuery,
    /// How many calls wait for permits.
    queued: OptionalQuery,
    /// How long the first place in a queue has waited.
    longest: OptionalQuery,
}

impl Watched {
    /// Returns all held locks, those released recently, and all semaphores with permits out.
    ///
    /// Those with the most waiters come first, then those with the most changes of holder.
    fn refresh(&mut self, now: Instant) -> Result<Vec<Row>, Error> {
        let mut rows = self.locks(now)?;
        rows.extend(self.semaphores(now)?);
        // `f64` is not `Ord`, and the screen shows tenths.
        let tenths = |row: &Row| (row.changes * 10.0) as u64;
        // The sort is stable: equally busy locks stay sorted by name.
        rows.sort_by_key(|row| Reverse((row.waiting, tenths(row))));
        Ok(rows)
    }

    fn semaphores(&mut self, now: Instant) -> Result<Vec<Row>, Error> {
        let held = self
            .permits
            .ask(|| self.client.list_permits(&self.prefix))?;
        self.permit_rates.begin_sample(now);
        let held = held.unwrap_or_default();
        let mut rows = Vec::new();
        for name in self.permit_rates.names() {
            if held.iter().all(|held| *held.name() != name) {
                self.permit_rates.add(&name, None, false);
            }
        }
        for held in held {
            let name = held.name();
            let token = held.last_fencing_token().map(u64::from);
            self.permit_rates.add(name, token, true);
            // The length of the queue does not depend on the number of permits.
            let semaphore = self.client.semaphore(name, 1);
            let waiting = self.queued.ask(|| semaphore.waiting())?;
            let longest = match waiting {
                Some(0) => None,
                _ => self.longest.ask(|| semaphore.longest_wait())?.flatten(),
            };
            rows.push(Row {
                waiting,
                longest,
                changes: self.permit_rates.of(name),
                subject: Subject::Semaphore(held),
            });
        }
        self.permit_rates.forget();
        Ok(rows)
    }

    fn locks(&mut self, now: Instant) -> Result<Vec<Row>, Error> {
        let held = self.client.list(&self.prefix)?;
        let mut seen: BTreeMap<Name, Record> = held
            .iter()
            .map(|held| (held.name().clone(), held.into()))
            .collect();
        for name in self.rates.names() {
            if let Entry::Vacant(free) = seen.entry(name) {
                let token = match self.client.mutex(free.key()).last_fencing_token() {
                    // Another program has overwritten the fence of this name.
                    Err(Error::BadFence { .. }) => None,
                    token => token?,
                };
                let name = free.key().clone();
                free.insert(Record {
                    name,
                    holder: None,
                    token,
                });
            }
        }
        self.rates.begin_sample(now);
        let mut rows = Vec::new();
        for (name, record) in seen {
            let token = record.token.map(u64::from);
            self.rates.add(&name, token, record.holder.is_some());
            let waiting = self.waiting.ask(|| self.client.mutex(&name).waiting())?;
            let fair = self.client.fair_mutex(&name);
            // Asked even if `waiting` is 0: that counts subscribed clients, and a call that waits
            // with `Backoff` has a place without a subscription.
            let longest = self.longest.ask(|| fair.longest_wait())?.flatten();
            rows.push(Row {
                waiting,
                longest,
                changes: self.rates.of(&name),
                subject: Subject::Lock(record),
            });
        }
        self.rates.forget();
        Ok(rows)
    }
}
