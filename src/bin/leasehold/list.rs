//! `leasehold list`: prints the held locks.

use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use leasehold::Held;

use crate::args::{ConnectionArgs, List};
use crate::exit::Failure;
use crate::permits;
use crate::record::Record;
use crate::screen::CLEAR_LINE;
use crate::status::OptionalQuery;
use crate::table;

pub(crate) fn list(connection: &ConnectionArgs, args: &List) -> Result<u8, Failure> {
    let (client, prefix) = (connection.client()?, args.prefix.as_bytes());
    let mut progress = Progress::new();
    let held = client.list_pages(prefix, |page| progress.show(page.progress / 2.0));
    let held = held.inspect_err(|_| progress.clear())?;
    let records: Vec<Record> = held.iter().map(Record::from).collect();
    let permits = client.list_permits_pages(prefix, |page| {
        progress.show(0.5 + page.progress / 2.0);
    });
    progress.clear();
    let permits = OptionalQuery::default()
        .ask(|| permits)?
        .unwrap_or_default();
    let permits = permits::records(&permits);
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
            holder: held.holders().first().cloned(),
            token: held.fencing_token(),
        }
    }
}

/// When the progress is first shown, and how often it changes.
const SHOW_EVERY: Duration = Duration::from_millis(200);

/// The progress of a scan, in the last line of the terminal.
struct Progress {
    /// When to show it next; `None` if standard error is no terminal.
    next: Option<Instant>,
    is_shown: bool,
}

impl Progress {
    fn new() -> Self {
        let is_terminal = io::stderr().is_terminal();
        Self {
            next: is_terminal.then(|| Instant::now() + SHOW_EVERY),
            is_shown: false,
        }
    }

    fn show(&mut self, scanned: f64) {
        let now = Instant::now();
        if self.next.is_some_and(|next| next <= now) {
            self.next = Some(now + SHOW_EVERY);
            self.is_shown = true;
            let percent = scanned * 100.0;
            // It is not worth an error.
            let _ = write!(
                io::stderr(),
                "\r{percent:.0} % of the keys scanned{CLEAR_LINE}"
            );
        }
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            let _ = write!(io::stderr(), "\r{CLEAR_LINE}");
        }
    }
}
