//! Plain words: comments that open with the thing, and type names that mean one thing.

use std::collections::BTreeMap;

use crate::ratchet::home;
use crate::rust::is_test_file;
use crate::{File, Tree};

/// The words that open a question. A comment that opens with one describes its reader, not the item.
const QUESTION_WORDS: [&str; 14] = [
    "What",
    "Whatever",
    "Who",
    "Whom",
    "Whose",
    "Whoever",
    "Whether",
    "Which",
    "Whichever",
    "How",
    "Where",
    "Wherever",
    "When",
    "Why",
];

/// The times that one type name may be defined in the whole checkout.
const NAME_USES_MAX: usize = 2;

/// The doc comments of a file that open with a question word: index of the line, and its text.
pub fn question_openings(file: &File) -> Vec<(usize, &str)> {
    let mut all = Vec::new();
    let mut above = None;
    for (index, line) in file.text.lines().enumerate() {
        let (mark, text) = match line.trim_start().split_at_checked(3) {
            Some((mark @ ("///" | "//!"), text)) => (Some(mark), text.trim()),
            _ => (None, ""),
        };
        let opens = mark.is_some() && mark != above;
        let word = text
            .split(|c: char| !c.is_alphabetic())
            .find(|w| !w.is_empty());
        if opens && word.is_some_and(|word| QUESTION_WORDS.contains(&word)) {
            all.push((index, text));
        }
        above = mark;
    }
    all
}

/// The types that a file defines at its outermost level, outside of tests: index of the line, and name.
fn types(file: &File) -> Vec<(usize, &str)> {
    let mut all = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let shown = ["pub ", "pub(crate) ", "pub(super) "];
        let line = shown
            .iter()
            .find_map(|s| line.strip_prefix(s))
            .unwrap_or(line);
        let kinds = ["struct ", "enum ", "trait ", "type "];
        let Some(rest) = kinds.iter().find_map(|kind| line.strip_prefix(kind)) else {
            continue;
        };
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
        all.push((index, &rest[..end.unwrap_or(rest.len())]));
    }
    all
}

/// The definitions of a type name beyond [`NAME_USES_MAX`], each name with the places of all of them.
pub fn overused_names(tree: &Tree) -> BTreeMap<&str, Vec<String>> {
    let mut by_name: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for file in tree.ending(".rs").filter(|f| !is_test_file(&f.path)) {
        for (index, name) in types(file) {
            let place = format!("{}:{}: {name}", file.path, index + 1);
            by_name.entry(name).or_default().push(place);
        }
    }
    by_name.retain(|_, places| places.len() > NAME_USES_MAX);
    by_name
}

/// The definitions that are too many: those of each overused name beyond the allowed.
pub fn excess(names: &BTreeMap<&str, Vec<String>>) -> usize {
    names.values().map(|p| p.len() - NAME_USES_MAX).sum()
}

/// The type names that a crate defines more than once, outside of tests: crate and name, with the places.
pub fn shared_names(tree: &Tree) -> BTreeMap<(String, &str), Vec<String>> {
    let mut by_name: BTreeMap<(String, &str), Vec<String>> = BTreeMap::new();
    for file in tree.ending(".rs").filter(|f| !is_test_file(&f.path)) {
        for (index, name) in types(file) {
            let place = format!("{}:{}: {name}", file.path, index + 1);
            by_name
                .entry((home(&file.path), name))
                .or_default()
                .push(place);
        }
    }
    by_name.retain(|_, places| places.len() > 1);
    by_name
}
