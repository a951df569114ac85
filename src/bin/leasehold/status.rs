//! `leasehold status`: shows who holds locks, and how many clients wait for them.

use std::io::{self, Write};

use leasehold::Error;

use crate::args::{Connection, Status, name};
use crate::exit::{Failure, HELD};
use crate::message::say;
use crate::permits::{self, PermitRecord};
use crate::record::Record;
use crate::table::{self, or_unknown};

pub(crate) fn status(connection: &Connection, args: &Status) -> Result<u8, Failure> {
    let client = connection.client()?;
    let (mut waiting, mut queued) = (Asked::default(), Asked::default());
    let (mut seen, mut permits) = (Vec::new(), Vec::new());
    let mut holders = Asked::default();
    for text in &args.names {
        let name = name(text);
        let (mutex, fair) = (client.mutex(&name), client.fair_mutex(&name));
        let holder = mutex.inspect()?;
        let token = match &holder {
            Some(holder) => holder.fencing_token(),
            None => mutex.last_fencing_token()?,
        };
        let record = Record {
            name,
            holder,
            token,
        };
        // The queries do not depend on the number of its permits.
        let semaphore = client.semaphore(&record.name, 1);
        let held = holders.ask(|| semaphore.holders())?.unwrap_or_default();
        let length = queued.ask(|| semaphore.waiting())?;
        if held.is_empty() && length.is_some_and(|length| length > 0) {
            permits.push(PermitRecord {
                name: record.name.clone(),
                holder: None,
                queued: length,
            });
        }
        permits.extend(held.into_iter().map(|holder| PermitRecord {
            name: record.name.clone(),
            holder: Some(holder),
            queued: length,
        }));
        let waiting = waiting.ask(|| mutex.waiting())?;
        seen.push((record, waiting, queued.ask(|| fair.waiting())?));
    }
    let is_held = seen.iter().any(|(record, ..)| record.holder.is_some())
        || permits.iter().any(|record| record.holder.is_some());
    let code = if args.exit_code && is_held { HELD } else { 0 };
    let mut out = io::stdout().lock();
    if args.form.json {
        for (record, waiting, queued) in &seen {
            let mut json = record.json();
            json.plain("waiting", *waiting).plain("queued", *queued);
            writeln!(out, "{}", json.finish())?;
        }
        permits::print(&mut out, &permits, true, true)?;
        return Ok(code);
    }
    let rows = seen.iter().map(|(record, waiting, queued)| {
        let [name, holder, left, token] = record.cells();
        let [waiting, queued] = [*waiting, *queued].map(or_unknown);
        [name, holder, left, waiting, queued, token]
    });
    let header = ["NAME", "HOLDER", "LEFT", "WAITING", "QUEUED", "TOKEN"];
    for line in table::lines(header, &rows.collect::<Vec<_>>()) {
        writeln!(out, "{line}")?;
    }
    permits::print(&mut out, &permits, false, true)?;
    Ok(code)
}

/// Asks what the user may not be permitted to ask, until Redis refuses.
#[derive(Default)]
pub(crate) struct Asked {
    refused: bool,
}

impl Asked {
    /// Returns the answer; `None` if Redis refuses, which is printed once.
    pub(crate) fn ask<T>(
        &mut self,
        ask: impl FnOnce() -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        if self.refused {
            return Ok(None);
        }
        match ask() {
            Ok(answer) => Ok(Some(answer)),
            // A quorum has no queue, and no semaphores. The name itself is valid: `inspect` has
            // checked it.
            Err(Error::Config(_)) => Ok(None),
            Err(error @ Error::Refused { .. }) => {
                say(&error.to_string());
                self.refused = true;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}
