//! `leasehold status`: shows who holds locks, and how many clients wait for them.

use std::io::{self, Write};

use leasehold::Error;

use crate::args::{Connection, Status, name};
use crate::exit::{Failure, say};
use crate::record::Record;
use crate::table;

pub(crate) fn status(connection: &Connection, args: &Status) -> Result<u8, Failure> {
    let client = connection.client()?;
    let (mut waiting, mut queued) = (Waiting::default(), Waiting::default());
    let mut seen = Vec::new();
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
        let waiting = waiting.ask(|| mutex.waiting())?;
        seen.push((record, waiting, queued.ask(|| fair.waiting())?));
    }
    let mut out = io::stdout().lock();
    if args.form.json {
        for (record, waiting, queued) in &seen {
            let mut json = record.json();
            json.number("waiting", *waiting).number("queued", *queued);
            writeln!(out, "{}", json.finish())?;
        }
        return Ok(0);
    }
    let rows: Vec<_> = seen
        .iter()
        .map(|(record, waiting, queued)| {
            [
                record.name(),
                record.holder(),
                record.left(),
                shown(*waiting),
                shown(*queued),
                record.token(),
            ]
        })
        .collect();
    for line in table::lines(
        ["NAME", "HOLDER", "LEFT", "WAITING", "QUEUED", "TOKEN"],
        &rows,
    ) {
        writeln!(out, "{line}")?;
    }
    Ok(0)
}

/// Asks for numbers of waiters, until Redis refuses because the user may not ask.
#[derive(Default)]
pub(crate) struct Waiting {
    refused: bool,
}

impl Waiting {
    /// Returns the number; `None` if Redis refuses, which is printed once.
    pub(crate) fn ask(
        &mut self,
        waiting: impl FnOnce() -> Result<u64, Error>,
    ) -> Result<Option<u64>, Error> {
        if self.refused {
            return Ok(None);
        }
        match waiting() {
            Ok(waiting) => Ok(Some(waiting)),
            // A quorum has no queue. The name itself is valid: `inspect` has checked it.
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

pub(crate) fn shown(waiting: Option<u64>) -> String {
    waiting.map_or_else(|| "?".into(), |waiting| waiting.to_string())
}
