//! The output of `leasehold top`, and its format.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold::Error;

use crate::args::Top;
use crate::escape::Escaped;
use crate::message::say;
use crate::row::Row;
use crate::settings::in_options;
use crate::table::{self, or_dash, or_missing, seconds};

/// The lines and columns assumed for a terminal that does not report its size.
const USUAL: (usize, usize) = (24, 80);

// Control sequences of xterm, which all common terminals know.
// <https://invisible-island.net/xterm/ctlseqs/ctlseqs.html>
const ENTER_ALTERNATE_SCREEN: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE_ALTERNATE_SCREEN: &str = "\x1b[?25h\x1b[?1049l";
const TO_THE_TOP: &str = "\x1b[H";
pub(crate) const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// The output, and its format. Dropping it leaves the alternate screen.
pub(crate) enum Screen {
    Terminal {
        interval: Duration,
        /// The alternate screen is on: earlier contents of the terminal are hidden.
        is_entered: bool,
    },
    Lines,
    Json,
}

impl Screen {
    pub(crate) fn new(args: &Top) -> Self {
        if args.form.json {
            Self::Json
        } else if io::stdout().is_terminal() {
            Self::Terminal {
                interval: args.interval,
                is_entered: false,
            }
        } else {
            Self::Lines
        }
    }

    /// Shows the locks; `scanned` is how much of the keys is scanned, during the first scan.
    pub(crate) fn show(&mut self, rows: &[Row], scanned: Option<f64>) -> io::Result<()> {
        let mut out = io::BufWriter::new(io::stdout().lock());
        match self {
            Self::Terminal {
                interval,
                is_entered,
            } => redraw(&mut out, is_entered, &lines(rows, *interval, scanned))?,
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
                        .plain("waiting", row.waiting.ok())
                        .plain("longest_wait_ms", row.longest.map(|wait| wait.as_millis()))
                        .plain("changes_per_s", Some(format!("{:.2}", row.changes)))
                        .plain("at_ms", Some(at));
                    writeln!(out, "{}", object.finish())?;
                }
            }
        }
        out.flush()
    }

    /// Shows that the locks cannot be read at present.
    pub(crate) fn show_error(&mut self, error: &Error) -> io::Result<()> {
        match self {
            Self::Terminal { is_entered, .. } => {
                let mut out = io::BufWriter::new(io::stdout().lock());
                let text = in_options(&error.to_string());
                let text = Escaped::whole(text.as_bytes()).to_string();
                redraw(&mut out, is_entered, &[text])?;
                out.flush()
            }
            _ => {
                say(&error.to_string());
                Ok(())
            }
        }
    }

    /// Runs `act` while the alternate screen is off.
    pub(crate) fn while_left(&mut self, act: impl FnOnce()) -> io::Result<()> {
        self.leave()?;
        act();
        Ok(())
    }

    fn leave(&mut self) -> io::Result<()> {
        if let Self::Terminal { is_entered, .. } = self
            && std::mem::take(is_entered)
        {
            let mut out = io::stdout().lock();
            out.write_all(LEAVE_ALTERNATE_SCREEN.as_bytes())?;
            out.flush()?;
        }
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Fails only if the terminal is gone.
        let _ = self.leave();
    }
}

fn lines(rows: &[Row], interval: Duration, scanned: Option<f64>) -> Vec<String> {
    let held = rows.iter().filter(|row| row.subject.is_held());
    let waiting: u64 = rows.iter().filter_map(|row| row.waiting.ok()).sum();
    let mut head = format!(
        "{} held, {waiting} waiting, every {interval:?}",
        held.count()
    );
    if let Some(scanned) = scanned {
        head += &format!(", {:.0} % of the keys scanned", scanned * 100.0);
    }
    let cells: Vec<_> = rows.iter().map(cells).collect();
    let header = [
        "NAME",
        "HOLDER",
        "LEFT",
        "WAITING",
        "LONGEST",
        "CHANGES/s",
        "TOKEN",
    ];
    let mut lines = vec![head, String::new()];
    lines.extend(table::lines(header, &cells));
    lines
}

fn cells(row: &Row) -> [String; 7] {
    let [name, holder, left, token] = row.subject.cells();
    let changes = format!("{:.1}", row.changes);
    let longest = or_dash(row.longest.map(seconds));
    let waiting = or_missing(row.waiting);
    [name, holder, left, waiting, longest, changes, token]
}

/// Overwrites the screen without clearing it first, which would flicker; omits lines that do not
/// fit.
fn redraw(out: &mut impl Write, is_entered: &mut bool, lines: &[String]) -> io::Result<()> {
    if !*is_entered {
        *is_entered = true;
        out.write_all(ENTER_ALTERNATE_SCREEN.as_bytes())?;
    }
    let (height, width) = size();
    write!(out, "{TO_THE_TOP}")?;
    for line in lines.iter().take(height.saturating_sub(1)) {
        write!(out, "{}{CLEAR_LINE}\r\n", table::cut(line, width))?;
    }
    write!(out, "{CLEAR_BELOW}")
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
