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
            json.plain("waiting", *waiting).plain("queued", *queued);
            writeln!(out, "{}", json.finish())?;
        }
        return Ok(0);
    }
    let rows = seen.iter().map(|(record, waiting, queued)| {
        let [name, holder, left, token] = record.cells();
        [name, holder, left, shown(*waiting), shown(*queued), token]
    });
    let header = ["NAME", "HOLDER", "LEFT", "WAITING", "QUEUED", "TOKEN"];
    for line in table::lines(header, &rows.collect::<Vec<_>>()) {
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
