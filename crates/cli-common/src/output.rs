//! Answers on stdout: tables for people, JSON for programs. Progress, warnings and errors on stderr.
//!
//! A reader that has gone (`staves status --check 2>&1 | head -1`) changes nothing of what a command does, and so not its
//! exit code. The macros of the standard library would panic there, so that programs print by this file alone.

use std::io::Write;

use anyhow::Context;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

pub use staves_model::units::{bytes, count, number};

use crate::options::Format;

/// Writes to stdout. A reader that has gone (`staves status | head -1`) is no error; a full disk is.
pub fn print(text: &str) -> anyhow::Result<()> {
    written(std::io::stdout().write_all(text.as_bytes()))
}

/// Writes what is not written yet.
pub fn flush() -> anyhow::Result<()> {
    written(std::io::stdout().flush())
}

/// The result of writing to stdout; a reader that has gone is no error.
pub fn written(result: std::io::Result<()>) -> anyhow::Result<()> {
    match result {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write the answer to standard output"),
    }
}

/// Writes a line to stdout.
pub fn line(text: impl std::fmt::Display) -> anyhow::Result<()> {
    print(&format!("{text}\n"))
}

/// Writes a line to stderr, for people beside the answer. If nobody reads it, it is not written.
pub fn say(text: impl std::fmt::Display) {
    show(format_args!("{}\n", harmless(&text.to_string())));
}

/// The same without an end of line.
pub fn show(text: impl std::fmt::Display) {
    let _ = std::io::stderr().write_all(text.to_string().as_bytes());
}

/// The text without what a terminal would obey: names of files and texts of other processes come through here.
fn harmless(text: &str) -> String {
    let obeyed = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(obeyed) {
        return text.to_owned();
    }
    let shown = text.chars().map(|c| match obeyed(c) {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    });
    shown.collect()
}

/// Answers with a value as JSON, or with what `table` makes of it.
pub fn answer<T: Serialize>(
    format: Format,
    value: &T,
    table: impl FnOnce(&T) -> String,
) -> anyhow::Result<()> {
    match format {
        Format::Json => line(serde_json::to_string_pretty(value)?),
        Format::Table => line(harmless(&table(value))),
    }
}

/// Writes one of many answers: a line of JSON, or what `table` makes of it. False if nobody reads them any more.
pub fn next_answer<T: Serialize>(
    format: Format,
    value: &T,
    table: impl FnOnce(&T) -> String,
) -> anyhow::Result<bool> {
    let text = match format {
        Format::Json => serde_json::to_string(value)?,
        Format::Table => harmless(&table(value)),
    };
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        result => written(result).map(|()| true),
    }
}

/// Puts a warning beside an answer. Programs have nothing to read on stderr but an error.
pub fn warn(format: Format, answer: &mut serde_json::Value, warning: String) {
    match format {
        Format::Table => say(format_args!("staves: warning: {warning}")),
        Format::Json => answer["warning"] = warning.into(),
    }
}

/// Answers a command that changed something: an object for programs, a line for people, and its warning if it has one.
pub fn changed(
    format: Format,
    mut object: serde_json::Value,
    line: String,
    warning: Option<String>,
) -> anyhow::Result<()> {
    if let Some(warning) = warning {
        warn(format, &mut object, warning);
    }
    answer(format, &object, |_| line)
}

/// Puts a value into an object. JSON has no bytes: those that are no text are written in hexadecimal.
pub fn put_value(object: &mut serde_json::Value, value: &[u8]) {
    match std::str::from_utf8(value) {
        Ok(text) => object["value"] = text.into(),
        Err(_) => {
            let hex = value.iter().map(|byte| format!("{byte:02x}"));
            object["value_hex"] = hex.collect::<String>().into();
        }
    }
}

/// A column of a table: its heading, and the cell of a row.
pub type Column<T> = (&'static str, fn(&T) -> String);

/// A table of these columns, a row for each item.
pub fn columns<'a, T: 'a>(columns: &[Column<T>], rows: impl IntoIterator<Item = &'a T>) -> String {
    let headings: Vec<&str> = columns.iter().map(|(heading, _)| *heading).collect();
    let row = |item: &'a T| columns.iter().map(|(_, cell)| cell(item)).collect();
    table(&headings, rows.into_iter().map(row))
}

/// A table without lines. Columns whose heading ends in a blank are numbers, and stand to the right.
pub fn table(headings: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(
        headings
            .iter()
            .map(|heading| heading.trim_end().to_uppercase()),
    );
    table.add_rows(rows);
    for (column, heading) in table.column_iter_mut().zip(headings) {
        column.set_padding((0, 2));
        if heading.ends_with(' ') {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect::<Vec<_>>()
        .join("\n")
}

/// Two columns, for one thing's properties.
pub fn properties<K: AsRef<str>>(pairs: impl IntoIterator<Item = (K, String)>) -> String {
    let pairs: Vec<(K, String)> = pairs.into_iter().collect();
    let width = pairs
        .iter()
        .map(|(key, _)| key.as_ref().len())
        .max()
        .unwrap_or(0);
    let lines = pairs
        .iter()
        .map(|(key, value)| format!("{:width$}  {value}", key.as_ref()));
    lines.collect::<Vec<_>>().join("\n")
}

/// The text, or a dash if there is none.
pub fn or_dash(text: Option<String>) -> String {
    text.filter(|text| !text.is_empty())
        .unwrap_or_else(|| "-".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_to_the_right_and_no_line_trails() {
        let rows =
            [("a", "1"), ("long", "1000")].map(|(a, b)| vec![a.into(), b.into(), "-".into()]);
        let text = table(&["name", "keys ", "zone"], rows);
        assert_eq!(text, "NAME  KEYS  ZONE\na        1  -\nlong  1000  -");
    }

    /// Regression: the names of a source's files went to the terminal as they are.
    #[test]
    fn a_terminal_is_shown_no_control_characters() {
        let name = "esc\u{1b}[31mRED\u{1b}]0;owned\u{7}";
        assert_eq!(
            harmless(name),
            "esc\\u{1b}[31mRED\\u{1b}]0;owned\\u{7}",
            "no colour, no title"
        );
        assert_eq!(harmless("a\tb\nü"), "a\tb\nü");
    }
}
