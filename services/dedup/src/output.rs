//! The one place that writes to the terminal: results to stdout, complaints to stderr.

use std::io::Write;

/// Prints a line of a result. A reader that went away (`| head`) is no reason to fail.
pub fn say(line: impl AsRef<str>) {
    writeln!(std::io::stdout().lock(), "{}", line.as_ref()).ok();
}

/// Prints an error and its causes as one line.
pub fn complain(error: &anyhow::Error) {
    let text = format!("{error:#}");
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    writeln!(std::io::stderr().lock(), "dedup: {}", lines.join("; ")).ok();
}

/// Prints rows in columns as wide as their widest cell; the first row is the header.
pub fn table<const N: usize>(rows: &[[String; N]]) {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    for row in rows {
        let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        say(cells.join("  ").trim_end());
    }
}
