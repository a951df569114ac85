//! The permits of semaphores that are out, as text and as JSON.

use std::io::{self, Write};
use std::time::Duration;

use leasehold::{Held, Holder, Name};

use crate::json::Object;
use crate::record::shown_holder;
use crate::table::{self, Missing, or_dash, or_missing, seconds};

/// A semaphore and one of its holders, or `None` if no permit is out; and how many calls wait, if
/// that was asked.
pub(crate) struct PermitRecord {
    pub(crate) name: Name,
    pub(crate) holder: Option<Holder>,
    pub(crate) waiting: Option<Result<u64, Missing>>,
}

impl PermitRecord {
    fn json(&self) -> Object {
        let holder = self.holder.as_ref();
        let mut object = Object::named(&self.name);
        object
            .plain("permits", Some(holder.map_or(0, Holder::permits)))
            .text("owner", holder.and_then(Holder::owner))
            .text("holder", holder.map(shown_holder).as_deref())
            .plain("remaining_ms", left(holder).map(|left| left.as_millis()));
        object
    }

    fn cells(&self) -> [String; 4] {
        let Some(holder) = &self.holder else {
            return [self.name.to_string(), "-".into(), "0".into(), "-".into()];
        };
        [
            self.name.to_string(),
            shown_holder(holder),
            holder.permits().to_string(),
            or_dash(left(Some(holder)).map(seconds)),
        ]
    }
}

fn left(holder: Option<&Holder>) -> Option<Duration> {
    holder.and_then(Holder::remaining)
}

/// Returns the JSON fields of a semaphore as a whole.
pub(crate) fn json(held: &Held) -> Object {
    let mut object = Object::named(held.name());
    object
        .plain("permits", Some(held.permits()))
        .plain("holders", Some(held.holders().len()))
        .plain("fencing_token", held.fencing_token());
    object
}

/// Returns the name, the number of permits and holders, the time until the first of them ends, and
/// the last token, as text.
pub(crate) fn cells(held: &Held) -> [String; 4] {
    let holders = held.holders();
    let left = left(holders.first()).map(seconds);
    [
        held.name().to_string(),
        format!("{} permits, {} holders", held.permits(), holders.len()),
        or_dash(left),
        or_dash(held.fencing_token()),
    ]
}

/// Returns a record for each holder.
pub(crate) fn records(held: &[Held]) -> Vec<PermitRecord> {
    let of = |held: &Held| {
        let record = |holder: &Holder| PermitRecord {
            name: held.name().clone(),
            holder: Some(holder.clone()),
            waiting: None,
        };
        held.holders().iter().map(record).collect::<Vec<_>>()
    };
    held.iter().flat_map(of).collect()
}

/// Prints the records as JSON objects, or as a table if there are any. An empty line precedes the
/// table if it `follows` another one.
pub(crate) fn print(
    out: &mut impl Write,
    records: &[PermitRecord],
    as_json: bool,
    follows: bool,
) -> io::Result<()> {
    if as_json {
        for record in records {
            let mut object = record.json();
            if let Some(waiting) = record.waiting {
                object.plain("waiting", waiting.ok());
            }
            writeln!(out, "{}", object.finish())?;
        }
        return Ok(());
    }
    if records.is_empty() {
        return Ok(());
    }
    if follows {
        writeln!(out)?;
    }
    let rows = || {
        let rows = records.iter();
        rows.filter_map(|record| Some((record.cells(), record.waiting?)))
    };
    let lines = match rows().next() {
        Some(_) => {
            let rows = rows().map(|([name, holder, permits, left], waiting)| {
                [name, holder, permits, left, or_missing(waiting)]
            });
            let header = ["SEMAPHORE", "HOLDER", "PERMITS", "LEFT", "WAITING"];
            table::lines(header, &rows.collect::<Vec<_>>())
        }
        None => {
            let rows: Vec<_> = records.iter().map(PermitRecord::cells).collect();
            table::lines(["SEMAPHORE", "HOLDER", "PERMITS", "LEFT"], &rows)
        }
    };
    lines.iter().try_for_each(|line| writeln!(out, "{line}"))
}
