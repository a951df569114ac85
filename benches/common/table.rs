//! Prints tables.

use crate::samples::Samples;

/// Prints a row for each name: the p50 and p99 of its pairs of acquire and release, in µs.
pub fn print_pairs(names: &[impl AsRef<str>], samples: &[Samples]) {
    let rows = names.iter().zip(samples).map(|(name, times)| {
        let [p50, p99, _] = times.range();
        let name = name.as_ref().to_owned();
        vec![name, format!("{p50:.1}"), format!("{p99:.1}")]
    });
    print_table(
        &["acquire + release", "p50 µs", "p99 µs"],
        &rows.collect::<Vec<_>>(),
    );
}

/// Prints a table, with the first column aligned left and the others right.
pub fn print_table(heads: &[&str], rows: &[Vec<String>]) {
    let heads: Vec<String> = heads.iter().map(|head| (*head).to_owned()).collect();
    let widths: Vec<usize> = (0..heads.len())
        .map(|n| {
            let column = [&heads].into_iter().chain(rows).map(|row| row[n].chars());
            column.map(Iterator::count).max().unwrap_or(0)
        })
        .collect();
    println!();
    for row in [&heads].into_iter().chain(rows) {
        let cells = row.iter().zip(&widths).enumerate();
        let line: Vec<String> = cells
            .map(|(n, (cell, width))| match n {
                0 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            })
            .collect();
        println!("{}", line.join("  ").trim_end());
    }
    println!();
}
