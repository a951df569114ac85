//! `leasehold status`: shows who holds locks, and how many clients wait for them.

use std::io::{self, Write};

use leasehold::{Error, Held};

use crate::args::{ConnectionArgs, Status, name};
use crate::exit::{Failure, HELD, REFUSED};
use crate::message::say;
use crate::permits::{self, PermitRecord};
use crate::record::Record;
use crate::table::{self, Missing, or_missing};

/// A lock and the length of its queue.
struct Seen {
    record: Record,
    waiting: Result<u64, Missing>,
}

impl Seen {
    fn is_in_use(&self) -> bool {
        let Record { holder, token, .. } = &self.record;
        holder.is_some() || token.is_some() || self.waiting.is_ok_and(|waiting| waiting > 0)
    }
}

pub(crate) fn status(connection: &ConnectionArgs, args: &Status) -> Result<u8, Failure> {
    let client = connection.client()?;
    let mut waiting = OptionalQuery::default();
    let (mut seen, mut permits) = (Vec::new(), Vec::new());
    let mut holders = OptionalQuery::default();
    for text in &args.names {
        let name = name(text);
        let mutex = client.mutex(&name);
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
        let held = holders.ask(|| semaphore.inspect())?.ok().flatten();
        let held = held.as_ref().map_or(&[][..], Held::holders);
        let length = waiting.ask(|| semaphore.waiting())?;
        if held.is_empty() && length.is_ok_and(|length| length > 0) {
            permits.push(PermitRecord {
                name: record.name.clone(),
                holder: None,
                waiting: Some(length),
            });
        }
        permits.extend(held.iter().map(|holder| PermitRecord {
            name: record.name.clone(),
            holder: Some(holder.clone()),
            waiting: Some(length),
        }));
        let waiting = waiting.ask(|| mutex.waiting())?;
        seen.push(Seen { record, waiting });
    }
    let is_held = seen.iter().any(|seen| seen.record.holder.is_some())
        || permits.iter().any(|record| record.holder.is_some());
    let code = if !args.exit_code {
        0
    } else if is_held {
        HELD
    } else if holders.refused {
        // Permits may be out.
        REFUSED
    } else {
        0
    };
    let mut out = io::stdout().lock();
    if args.form.json {
        for seen in &seen {
            let mut json = seen.record.json();
            json.plain("waiting", seen.waiting.ok());
            writeln!(out, "{}", json.finish())?;
        }
        permits::print(&mut out, &permits, true, true)?;
        return Ok(code);
    }
    print_tables(&mut out, &seen, &permits)?;
    Ok(code)
}

/// Prints the locks and the permits. Omits a lock whose name only a semaphore has.
fn print_tables(out: &mut impl Write, seen: &[Seen], permits: &[PermitRecord]) -> io::Result<()> {
    let is_lock =
        |seen: &&Seen| seen.is_in_use() || permits.iter().all(|it| it.name != seen.record.name);
    let row = |seen: &Seen| {
        let [name, holder, left, token] = seen.record.cells();
        [name, holder, left, or_missing(seen.waiting), token]
    };
    let rows: Vec<_> = seen.iter().filter(is_lock).map(row).collect();
    if !rows.is_empty() {
        let header = ["NAME", "HOLDER", "LEFT", "WAITING", "TOKEN"];
        for line in table::lines(header, &rows) {
            writeln!(out, "{line}")?;
        }
    }
    permits::print(out, permits, false, !rows.is_empty())
}

/// A kind of query that Redis may refuse. It is not sent again after that.
#[derive(Default)]
pub(crate) struct OptionalQuery {
    refused: bool,
}

impl OptionalQuery {
    /// Returns the answer. If Redis refuses, prints that once.
    pub(crate) fn ask<T>(
        &mut self,
        ask: impl FnOnce() -> Result<T, Error>,
    ) -> Result<Result<T, Missing>, Error> {
        if self.refused {
            return Ok(Err(Missing::Refused));
        }
        match ask() {
            Ok(answer) => Ok(Ok(answer)),
            // A quorum has no queue, and no semaphores. The name itself is valid: `inspect` has
            // checked it, or a scan has found it.
            Err(Error::Config(_)) => Ok(Err(Missing::Absent)),
            Err(error @ Error::Refused { .. }) if !error.is_retryable() => {
                say(&error.to_string());
                self.refused = true;
                Ok(Err(Missing::Refused))
            }
            Err(error) => Err(error),
        }
    }
}
