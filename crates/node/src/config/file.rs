//! The TOML file: read, and taken apart into lines, keys and texts.

use std::path::Path;

use staves_net::read_small_file;
use toml::de::{DeTable, DeValue};

use super::error::ConfigError;

/// Longest file that is taken for a configuration.
const FILE_BYTES_MAX: usize = 1 << 20;

/// Reads the file.
pub(super) fn read(path: &Path) -> Result<String, ConfigError> {
    let unreadable = |reason: String| ConfigError::Unreadable {
        path: path.to_owned(),
        reason,
    };
    let bytes = read_small_file(path, FILE_BYTES_MAX).map_err(|e| unreadable(e.to_string()))?;
    String::from_utf8(bytes).map_err(|_| unreadable("it is no text".to_owned()))
}

/// A line, a key, and its value as text or why it is none.
pub(super) type Pair = (usize, String, Result<String, String>);

/// The file's pairs, in the order of their lines.
pub(super) fn pairs(path: &Path, text: &str) -> Result<Vec<Pair>, ConfigError> {
    let table = DeTable::parse(text).map_err(|error| ConfigError::Syntax {
        path: path.to_owned(),
        line: error.span().map_or(1, |span| line_of(text, span.start)),
        reason: error.message().to_owned(),
    })?;
    let mut pairs: Vec<Pair> = table
        .get_ref()
        .iter()
        .map(|(key, value)| {
            let line = line_of(text, key.span().start);
            (line, key.get_ref().to_string(), as_text(value.get_ref()))
        })
        .collect();
    pairs.sort_by_key(|(line, ..)| *line);
    Ok(pairs)
}

fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()
        .iter()
        .take(offset)
        .filter(|b| **b == b'\n')
        .count()
        + 1
}

fn as_text(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) => match number.radix() {
            10 => Ok(number.as_str().replace('_', "")),
            _ => Err(format!("'{number}' must be written as a decimal number")),
        },
        DeValue::Float(number) => Ok(number.to_string()),
        DeValue::Boolean(yes) => Ok(yes.to_string()),
        DeValue::Array(items) => {
            let items: Result<Vec<String>, String> =
                items.iter().map(|item| as_text(item.get_ref())).collect();
            Ok(items?.join(","))
        }
        DeValue::Datetime(_) => Err("a date is no value of any key".into()),
        DeValue::Table(_) => {
            Err("a table is no value of any key: all keys stand at the top".into())
        }
    }
}
