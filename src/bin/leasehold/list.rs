//! `leasehold list`: prints the held locks.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

use leasehold::Held;

use crate::args::{ConnectionArgs, List};
use crate::exit::Failure;
use crate::permits;
use crate::record::Record;
use crate::table;

pub(crate) fn list(connection: &ConnectionArgs, args: &List) -> Result<u8, Failure> {
    let (client, prefix) = (connection.client()?, args.prefix.as_bytes());
    let held = client.list(prefix)?;
    let records: Vec<Record> = held.iter().map(Record::from).collect();
    let permits = permits::records(&permits::held(&client, prefix)?);
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.form.json {
        for record in &records {
            writeln!(out, "{}", record.json().finish())?;
        }
    } else if !records.is_empty() {
        let rows: Vec<_> = records.iter().map(Record::cells).collect();
        for line in table::lines(["NAME", "HOLDER", "LEFT", "TOKEN"], &rows) {
            writeln!(out, "{line}")?;
        }
    }
    permits::print(&mut out, &permits, args.form.json, !records.is_empty())?;
    out.flush()?;
    Ok(0)
}

impl From<&Held> for Record {
    fn from(held: &Held) -> Self {
        Self {
            name: held.name().clone(),
            holder: Some(held.holder().clone()),
            token: held.holder().fencing_token(),
        }
    }
}
