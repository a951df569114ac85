//! Tables of text.

use crate::escape::Escaped;

/// Returns the cells without characters that a terminal would act on.
pub(crate) fn escaped<const N: usize>(row: &[String; N]) -> [String; N] {
    row.each_ref()
        .map(|cell| Escaped::whole(cell.as_bytes()).to_string())
}

/// Returns the rows as lines, with each column as wide as its longest cell.
pub(crate) fn lines<const N: usize>(header: [&str; N], rows: &[[String; N]]) -> Vec<String> {
    let header = header.map(str::to_owned);
    let rows: Vec<_> = rows.iter().map(escaped).collect();
    let all = || std::iter::once(&header).chain(&rows);
    let mut widths = [0; N];
    for row in all() {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths);
        let line: String = cells
            .map(|(cell, width)| format!("{cell:<width$}  "))
            .collect();
        line.trim_end().to_owned()
    };
    all().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_longest_cell() {
        let rows = [["a".into(), "x".into()], ["tisch-ü".into(), String::new()]];
        assert_eq!(
            lines(["NAME", "B"], &rows),
            ["NAME     B", "a        x", "tisch-ü"]
        );
    }
}
