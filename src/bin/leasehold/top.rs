//! `leasehold top`: shows the held locks, and refreshes the display.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use leasehold::{Client, Error, HeldPermits, Name};

use crate::args::{Connection, Top};
use crate::exit::{Failure, say};
use crate::json::Object;
use crate::permits;
use crate::rate::Rates;
use crate::record::Record;
use crate::status::{Asked, shown};
use crate::table;

/// The lines and columns assumed for a terminal that does not report its size.
const USUAL: (usize, usize) = (24, 80);

pub(crate) fn top(connection: &Connection, args: &Top) -> Result<u8, Failure> {
    let screen = Screen::new(args);
    let mut watched = Watched {
        client: connection.client()?,
        prefix: args.prefix.as_bytes().to_vec(),
        rates: Rates::default(),
        waiting: Asked::default(),
        permit_rates: Rates::default(),
        permits: Asked::default(),
        queued: Asked::default(),
    };
    let mut refreshes = 0;
    loop {
        let began = Instant::now();
        match watched.refresh(began) {
            Ok(rows) => screen.show(&rows)?,
            // Redis may be reachable at the next refresh. At the first one, this is a failure.
            Err(error) if error.is_unreachable() && refreshes > 0 => screen.complain(&error)?,
            Err(error) => return Err(error.into()),
        }
        refreshes += 1;
        if args.count.is_some_and(|count| refreshes >= count) {
            return Ok(0);
        }
        thread::sleep(args.interval.saturating_sub(began.elapsed()));
    }
}

/// The locks and semaphores that the display shows.
struct Watched {
    client: Client,
    prefix: Vec<u8>,
    rates: Rates,
    waiting: Asked,
    permit_rates: Rates,
    permits: Asked,
    queued: Asked,
}

struct Row {
    subject: Subject,
    waiting: Option<u64>,
    changes: f64,
}

enum Subject {
    Lock(Record),
    Semaphore(HeldPermits),
}

impl Subject {
    fn is_held(&self) -> bool {
        match self {
            Self::Lock(record) => record.holder.is_some(),
            Self::Semaphore(_) => true,
        }
    }

    fn json(&self) -> Object {
        match self {
            Self::Lock(record) => record.json(),
            Self::Semaphore(held) => permits::json(held),
        }
    }

    /// Returns the name, the holder, the time left and the token as text.
    fn cells(&self) -> [String; 4] {
        match self {
            Self::Lock(record) => record.cells(),
            Self::Semaphore(held) => permits::cells(held),
        }
    }
}

impl Watched {
    /// Returns all held locks, those released recently, and all semaphores with permits out; the
    /// busiest first.
    fn refresh(&mut self, now: Instant) -> Result<Vec<Row>, Error> {
        let mut rows = self.locks(now)?;
        rows.extend(self.semaphores(now)?);
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
            rows.push(Row {
                waiting: self.queued.ask(|| semaphore.waiting())?,
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
                let token = self.client.mutex(free.key()).last_fencing_token()?;
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
            rows.push(Row {
                waiting: self.waiting.ask(|| self.client.mutex(&name).waiting())?,
                changes: self.rates.of(&name),
                subject: Subject::Lock(record),
            });
        }
        self.rates.forget();
        Ok(rows)
    }
}

/// The output, and its format.
enum Screen {
    Terminal { interval: Duration },
    Lines,
    Json,
}

impl Screen {
    fn new(args: &Top) -> Self {
        if args.form.json {
            Self::Json
        } else if io::stdout().is_terminal() {
            Self::Terminal {
                interval: args.interval,
            }
        } else {
            Self::Lines
        }
    }

    fn show(&self, rows: &[Row]) -> io::Result<()> {
        let mut out = io::BufWriter::new(io::stdout().lock());
        match self {
            Self::Terminal { interval } => {
                let held = rows.iter().filter(|row| row.subject.is_held());
                let waiting: u64 = rows.iter().filter_map(|row| row.waiting).sum();
                let head = format!(
                    "{} held, {waiting} waiting, every {interval:?}",
                    held.count()
                );
                let cells: Vec<_> = rows.iter().map(cells).collect();
                let header = ["NAME", "HOLDER", "LEFT", "WAITING", "CHANGES/s", "TOKEN"];
                let mut lines = vec![head, String::new()];
                lines.extend(table::lines(header, &cells));
                redraw(&mut out, &lines)?;
            }
            Self::Lines => {
                for row in rows {
                    let cells = table::escaped(&cells(row));
                    writeln!(out, "{}\t{}", since_epoch().as_secs(), cells.join("\t"))?;
                }
            }
            Self::Json => {
                let at = since_epoch().as_millis();
                for row in rows {
                    let mut object = row.subject.json();
                    object
                        .plain("waiting", row.waiting)
                        .plain("changes_per_s", Some(format!("{:.2}", row.changes)))
                        .plain("at_ms", Some(at));
                    writeln!(out, "{}", object.finish())?;
                }
            }
        }
        out.flush()
    }

    fn complain(&self, error: &Error) -> io::Result<()> {
        match self {
            Self::Terminal { .. } => {
                let mut out = io::stdout().lock();
                redraw(&mut out, &[error.to_string()])?;
                out.flush()
            }
            _ => {
                say(&error.to_string());
                Ok(())
            }
        }
    }
}

fn cells(row: &Row) -> [String; 6] {
    let [name, holder, left, token] = row.subject.cells();
    let changes = format!("{:.1}", row.changes);
    [name, holder, left, shown(row.waiting), changes, token]
}

/// Overwrites the screen without clearing it first, which would flicker; omits lines that do not
/// fit.
fn redraw(out: &mut impl Write, lines: &[String]) -> io::Result<()> {
    let (height, width) = size();
    write!(out, "\x1b[H")?;
    for line in lines.iter().take(height.saturating_sub(1)) {
        let line: String = line.chars().take(width).collect();
        // `ESC [ K` clears the rest of the line.
        write!(out, "{line}\x1b[K\r\n")?;
    }
    write!(out, "\x1b[J")
}

fn size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_row > 1 && size.ws_col > 0 => (size.ws_row.into(), size.ws_col.into()),
        _ => USUAL,
    }
}

fn since_epoch() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}
