//! Counts that may only fall. `ratchets.txt` holds them, a name and a number a line.

use std::collections::BTreeMap;

use crate::circles::large_circles;
use crate::rust::{functions, panicking_calls, pool_kind_decisions};
use crate::words::{excess, overused_names, question_openings, shared_names};
use crate::{File, Tree};

/// A function that does not fit a screen.
const LONG_FUNCTION: usize = 60;
/// A file that is more than one noun.
const LONG_FILE: usize = 400;

/// One count, and where it comes from.
#[derive(Default)]
pub struct Count {
    /// The number or the length.
    pub number: usize,
    /// The worst place or places, `file:line: what`.
    pub places: Vec<String>,
}

/// Every count there is, by name.
pub type Counts = BTreeMap<String, Count>;

/// Counts the tree.
pub fn count(tree: &Tree) -> Counts {
    let mut counts = Counts::new();
    for name in [
        "files-without-opening",
        "long-files",
        "long-functions",
        "longest-file",
        "longest-function",
        "overused-type-names",
        "question-openings",
    ] {
        counts.entry(name.to_owned()).or_default();
    }
    let names = overused_names(tree);
    let overused = Count {
        number: excess(&names),
        places: names.into_values().flatten().collect(),
    };
    counts.insert("overused-type-names".to_owned(), overused);
    let shared = shared_names(tree).into_values();
    let shared: Vec<_> = shared.map(|places| places.join(", ")).collect();
    let shared = Count {
        number: shared.len(),
        places: shared,
    };
    counts.insert("type-names-shared-in-a-crate".to_owned(), shared);
    for file in tree.ending(".rs") {
        count_lengths(&mut counts, file);
        for (index, text) in question_openings(file) {
            add(&mut counts, "question-openings", file, index, text);
        }
        if !file.text.starts_with("//!") {
            add(
                &mut counts,
                "files-without-opening",
                file,
                0,
                "it does not open with '//!'",
            );
        }
        for (name, number) in [
            ("panicking-calls", panicking_calls(file)),
            ("pool-kind-decisions", pool_kind_decisions(file)),
        ] {
            if number > 0 {
                let name = format!("{name} {}", home(&file.path));
                let count = counts.entry(name).or_default();
                count.number += number;
                count.places.push(format!("{}: {number}", file.path));
            }
        }
    }
    for (folder, modules) in large_circles(tree) {
        let name = format!("largest-module-circle {folder}");
        let circle = Count {
            number: modules.len(),
            places: vec![modules.join(", ")],
        };
        counts.insert(name, circle);
    }
    counts
}

/// The crate that a path lies in, as its folder.
pub fn home(path: &str) -> String {
    let depth = if path.starts_with("crates/") { 2 } else { 1 };
    path.split('/').take(depth).collect::<Vec<_>>().join("/")
}

fn count_lengths(counts: &mut Counts, file: &File) {
    let lines = file.text.lines().count();
    raise(counts, "longest-file", lines, &file.path);
    if lines > LONG_FILE {
        let what = format!("{lines} lines, more than {LONG_FILE}");
        add(counts, "long-files", file, 0, &what);
    }
    for function in functions(file) {
        let (name, lines) = (&function.name, function.lines);
        let place = format!("{}:{}: {name}", file.path, function.index + 1);
        raise(counts, "longest-function", lines, &place);
        if lines > LONG_FUNCTION {
            let what = format!("{name} has {lines} lines, more than {LONG_FUNCTION}");
            add(counts, "long-functions", file, function.index, &what);
        }
    }
}

fn add(counts: &mut Counts, name: &str, file: &File, index: usize, what: &str) {
    let count = counts.entry(name.to_owned()).or_default();
    count.number += 1;
    count
        .places
        .push(format!("{}:{}: {what}", file.path, index + 1));
}

fn raise(counts: &mut Counts, name: &str, number: usize, place: &str) {
    let count = counts.entry(name.to_owned()).or_default();
    if number > count.number {
        *count = Count {
            number,
            places: vec![place.to_owned()],
        };
    }
}

/// The counts as `ratchets.txt` has them.
pub fn written(counts: &Counts) -> String {
    let lines = counts
        .iter()
        .map(|(name, count)| format!("{name} {}\n", count.number));
    lines.collect()
}

/// The counts that rose above `allowed` (a `ratchets.txt`), each with its places.
pub fn risen(counts: &Counts, allowed: &str) -> Vec<String> {
    let allowed: BTreeMap<&str, usize> = allowed
        .lines()
        .filter_map(|line| line.rsplit_once(' '))
        .filter_map(|(name, number)| Some((name, number.parse().ok()?)))
        .collect();
    let mut all = Vec::new();
    for (name, count) in counts {
        let max = allowed.get(name.as_str()).copied().unwrap_or(0);
        if count.number > max {
            all.push(format!(
                "{name} is {} and may be {max}; these counts only fall; undo the rise in one of:\n    {}",
                count.number,
                count.places.join("\n    ")
            ));
        }
    }
    all
}
