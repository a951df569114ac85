//! Tables of text.

use std::fmt::Display;
use std::time::Duration;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::escape::Escaped;

/// Returns the cell for a value; `-` if it is missing.
pub(crate) fn or_dash(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".into(), |value| value.to_string())
}

/// Why a number is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// Redis refused to report it.
    Refused,
    /// A quorum does not have it.
    Absent,
}

/// Returns the cell for a number; `?` if Redis refused to report it, `-` if there is none.
pub(crate) fn or_missing(number: Result<u64, Missing>) -> String {
    match number {
        Ok(number) => number.to_string(),
        Err(Missing::Refused) => "?".into(),
        Err(Missing::Absent) => "-".into(),
    }
}

pub(crate) fn seconds(time: Duration) -> String {
    format!("{:.1}s", time.as_secs_f64())
}

/// Returns the cells with all characters escaped that are not printable.
pub(crate) fn escaped<const N: usize>(row: &[String; N]) -> [String; N] {
    row.each_ref()
        .map(|cell| Escaped::whole(cell.as_bytes()).to_string())
}

/// Returns the header and the rows as lines, with each column as wide as its widest cell. Escapes
/// the rows, not the header.
pub(crate) fn lines<const N: usize>(header: [&str; N], rows: &[[String; N]]) -> Vec<String> {
    let header = header.map(str::to_owned);
    let rows: Vec<_> = rows.iter().map(escaped).collect();
    let all = || std::iter::once(&header).chain(&rows);
    let mut widths = [0; N];
    for row in all() {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.width());
        }
    }
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths);
        let line: String = cells
            .map(|(cell, width)| format!("{cell}{:1$}  ", "", width - cell.width()))
            .collect();
        line.trim_end().to_owned()
    };
    all().map(line).collect()
}

/// Returns the longest start of the line that fits into this number of terminal columns.
pub(crate) fn cut(line: &str, columns: usize) -> &str {
    let mut left = columns;
    let end = line.char_indices().find_map(|(at, c)| {
        let width = c.width().unwrap_or(0);
        if width > left {
            return Some(at);
        }
        left -= width;
        None
    });
    line.get(..end.unwrap_or(line.len())).unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["a".into(), "x".into()], ["tisch-ü".into(), String::new()]];
        assert_eq!(
            lines(["NAME", "B"], &rows),
            ["NAME     B", "a        x", "tisch-ü"]
        );
    }

    #[test]
    fn wide_characters_take_two_columns() {
        let rows = [["東京".into(), "x".into()], ["abcde".into(), "y".into()]];
        assert_eq!(
            lines(["N", "B"], &rows),
            ["N      B", "東京   x", "abcde  y"]
        );
        assert_eq!(cut("東京", 3), "東");
        assert_eq!(cut("東京", 4), "東京");
        assert_eq!(cut("abc", 2), "ab");
        assert_eq!(cut("", 0), "");
    }
}
