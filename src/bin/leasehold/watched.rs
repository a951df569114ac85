//! The locks and semaphores that `leasehold top` shows.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::mem;
use std::time::Instant;

use leasehold::{Client, Error, Held, Holder, Name};

use crate::rate::Rates;
use crate::record::Record;
use crate::row::{Row, Subject};
use crate::status::OptionalQuery;

/// The locks and semaphores that the display shows.
pub(crate) struct Watched {
    client: Client,
    /// The names of locks, and those of semaphores, that a scan has found since the last refresh.
    found: [BTreeSet<Name>; 2],
    /// How often each lock changes holders.
    rates: Rates,
    /// How many places the queue of a lock has.
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
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            found: Default::default(),
            rates: Rates::default(),
            waiting: OptionalQuery::default(),
            permit_rates: Rates::default(),
            permits: OptionalQuery::default(),
            queued: OptionalQuery::default(),
            longest: OptionalQuery::default(),
        }
    }

    /// Adds names that a scan has found.
    pub(crate) fn add(&mut self, locks: Vec<Name>, semaphores: Vec<Name>) {
        let [known_locks, known_semaphores] = &mut self.found;
        known_locks.extend(locks);
        known_semaphores.extend(semaphores);
    }

    /// Returns all known locks that are held or were released recently, and all known semaphores
    /// with permits out. Asks for each by its name.
    ///
    /// Those with the most waiters come first, then those with the most changes of holder.
    pub(crate) fn refresh(&mut self, now: Instant) -> Result<Vec<Row>, Error> {
        let [locks, semaphores] = mem::take(&mut self.found);
        let mut rows = self.locks(now, locks)?;
        rows.extend(self.semaphores(now, semaphores)?);
        // `f64` is not `Ord`, and the screen shows tenths.
        let tenths = |row: &Row| (row.changes * 10.0) as u64;
        // The sort is stable: equally busy locks stay sorted by name.
        rows.sort_by_key(|row| Reverse((row.waiting.ok(), tenths(row))));
        Ok(rows)
    }

    fn locks(&mut self, now: Instant, mut names: BTreeSet<Name>) -> Result<Vec<Row>, Error> {
        let known: BTreeSet<Name> = self.rates.names().into_iter().collect();
        names.extend(known.iter().cloned());
        self.rates.begin_sample(now);
        let mut rows = Vec::new();
        for name in names {
            let holder = self.holder(&name)?;
            if holder.is_none() && !known.contains(&name) {
                continue;
            }
            let token = match &holder {
                Some(holder) => holder.fencing_token(),
                None => match self.client.mutex(&name).last_fencing_token() {
                    // Another program has overwritten the fence of this name.
                    Err(Error::BadFence { .. }) => None,
                    token => token?,
                },
            };
            self.rates
                .add(&name, token.map(u64::from), holder.is_some());
            let waiting = self.waiting.ask(|| self.client.mutex(&name).waiting())?;
            let longest = match waiting {
                Ok(0) => None,
                _ => {
                    let asked = self
                        .longest
                        .ask(|| self.client.fair_mutex(&name).longest_wait());
                    asked?.ok().flatten()
                }
            };
            rows.push(Row {
                waiting,
                longest,
                changes: self.rates.of(&name),
                subject: Subject::Lock(Record {
                    name,
                    holder,
                    token,
                }),
            });
        }
        self.rates.forget();
        Ok(rows)
    }

    fn holder(&self, name: &Name) -> Result<Option<Holder>, Error> {
        match self.client.mutex(name).inspect() {
            // Another program has replaced the key by one that is no string.
            Err(Error::WrongType { .. }) => Ok(None),
            holder => holder,
        }
    }

    fn semaphores(&mut self, now: Instant, mut names: BTreeSet<Name>) -> Result<Vec<Row>, Error> {
        names.extend(self.permit_rates.names());
        self.permit_rates.begin_sample(now);
        let mut rows = Vec::new();
        for name in names {
            // The queries do not depend on the number of permits.
            let semaphore = self.client.semaphore(&name, 1);
            let held = self.permits.ask(|| semaphore.inspect())?.ok().flatten();
            let token = held.as_ref().and_then(Held::fencing_token);
            self.permit_rates
                .add(&name, token.map(u64::from), held.is_some());
            let Some(held) = held else {
                continue;
            };
            let waiting = self.queued.ask(|| semaphore.waiting())?;
            let longest = match waiting {
                Ok(0) => None,
                _ => self
                    .longest
                    .ask(|| semaphore.longest_wait())?
                    .ok()
                    .flatten(),
            };
            rows.push(Row {
                waiting,
                longest,
                changes: self.permit_rates.of(&name),
                subject: Subject::Semaphore(held),
            });
        }
        self.permit_rates.forget();
        Ok(rows)
    }
}
