//! Markdown: links that lead somewhere, tests that are there, rows that have tests.

use crate::rust::{Test, functions, running_tests};
use crate::{File, Finding, Tree};

/// Relative links lead to files that exist and to headings that exist.
pub fn dead_links(tree: &Tree) -> Vec<Finding> {
    let mut all = Vec::new();
    for file in tree.ending(".md") {
        for (index, target) in links(&file.text) {
            if let Some(what) = dead(tree, file, target) {
                let text =
                    format!("the link '{target}' leads nowhere: {what}; correct or delete it");
                all.push(file.finding(index, text));
            }
        }
    }
    all
}

/// The targets of `[text](target)`, outside of code blocks.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut all = Vec::new();
    let mut fenced = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced || line.starts_with("    ") {
            continue;
        }
        let targets = line
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split_once(')'));
        all.extend(targets.map(|(target, _)| (index, target)));
    }
    all
}

fn dead(tree: &Tree, from: &File, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let folder = from.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let path = if path.is_empty() {
        from.path.clone()
    } else {
        join(folder, path)
    };
    if tree.file(&path).is_none() && !tree.root.join(&path).exists() {
        return Some(format!("there is no {path}"));
    }
    let text = &tree.file(&path).filter(|_| !anchor.is_empty())?.text;
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let mut anchors = headings.map(|line| slug(line.trim_start_matches('#').trim()));
    (!anchors.any(|a| a == anchor)).then(|| format!("{path} has no heading '#{anchor}'"))
}

fn join(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." | "" => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// A heading as the end of a link names it.
fn slug(heading: &str) -> String {
    let kept = heading.chars().filter_map(|c| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c.to_ascii_lowercase()),
        _ => None,
    });
    kept.collect()
}

/// The tests that a document names, as `` `path/file.rs::name` ``.
pub fn named_tests(file: &File) -> Vec<(usize, &str, &str)> {
    let mut all = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let spans = line.split('`').skip(1).step_by(2);
        let tests =
            spans.filter_map(|span| span.split_once(".rs::").map(|(p, name)| (span, p, name)));
        all.extend(tests.map(|(span, path, name)| (index, &span[..path.len() + 3], name)));
    }
    all
}

/// A document names no test that is not there.
pub fn missing_tests(tree: &Tree) -> Vec<Finding> {
    let mut all = Vec::new();
    for doc in tree.ending(".md") {
        for (index, path, name) in named_tests(doc) {
            // A function, or a line of a macro's list that becomes one.
            let there = tree.file(path).is_some_and(|file| {
                functions(file).iter().any(|f| f.name == name)
                    || file
                        .text
                        .lines()
                        .any(|line| line.trim_start().starts_with(&format!("{name}: ")))
            });
            if !there {
                let text = format!(
                    "the test '{name}' is not in {path}; a promise without a test is a hope; name the test \
                     that shows it, or take the promise back"
                );
                all.push(doc.finding(index, text));
            }
        }
    }
    all
}

/// A document names no chaos scenario that is not there.
pub fn missing_scenarios(tree: &Tree) -> Vec<Finding> {
    let mut all = Vec::new();
    for doc in tree.ending(".md") {
        for (index, line) in doc.text.lines().enumerate() {
            let spans = line.split('`').skip(1).step_by(2);
            let named = spans.filter(|span| span.starts_with("chaos/scenarios/"));
            for path in named.filter(|path| tree.file(path).is_none()) {
                let text = format!("there is no scenario {path}; name one that is, or write it");
                all.push(doc.finding(index, text));
            }
        }
    }
    all
}

/// The metrics that the page about monitoring names are there.
pub fn unknown_metrics(tree: &Tree) -> Vec<Finding> {
    let mut all = Vec::new();
    let pages = tree
        .files
        .iter()
        .filter(|f| f.path == "docs/how-to/monitor.md");
    for page in pages {
        for (index, line) in page.text.lines().enumerate() {
            let words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
            for name in words.filter(|word| word.starts_with("staves_")) {
                // A histogram's buckets, sum and count stand under names of their own.
                let parts = ["_bucket", "_sum", "_count"];
                let whole = parts.iter().find_map(|part| name.strip_suffix(part));
                let named = |name: &str| {
                    let quoted = format!("\"{name}\"");
                    tree.ending(".rs").any(|file| file.text.contains(&quoted))
                };
                if !named(name) && !whole.is_some_and(named) {
                    let text = format!(
                        "no source names the metric {name}; an alert on it never rings; correct the name"
                    );
                    all.push(page.finding(index, text));
                }
            }
        }
    }
    all
}

/// The rows of the five papers that have landed. (H8 has not: buckets do not split yet. Of logs: those that a test of its own shows.)
pub const ROWS: [&str; 32] = [
    "D1", "D2", "D3", "D4", "D5", "D6", "D7", "D8", "D9", "D10", "D11", "X1", "X2", "X3", "X4",
    "X5", "X6", "X7", "H1", "H2", "H3", "H4", "H5", "H6", "H7", "H9", "H10", "H11", "L1", "L2",
    "L4", "L6",
];

/// Planted bugs that docs/reference/planted-bugs.md does not list, and those whose row in `staves_hunts::hunt` is missing.
pub fn untold_bugs(tree: &Tree) -> Vec<Finding> {
    let (Some(bugs), Some(page)) = (
        tree.file("crates/model/src/mutant.rs"),
        tree.file("docs/reference/planted-bugs.md"),
    ) else {
        return Vec::new();
    };
    let hunters = || {
        tree.ending(".rs")
            .filter(|f| f.text.contains("staves_hunts::"))
    };
    let (mut findings, mut list) = (Vec::new(), "");
    for (index, line) in bugs.text.lines().enumerate() {
        if let Some(name) = line.trim().strip_suffix(": [") {
            list = name;
        }
        let Some((name, number)) = line.trim().split_once(" = ") else {
            continue;
        };
        if !number
            .trim_end_matches(',')
            .bytes()
            .all(|b| b.is_ascii_digit())
        {
            continue;
        }
        if !page.text.contains(&format!("| `{name}` |")) {
            findings.push(bugs.finding(index, format!("{name} is not in {}", page.path)));
        }
        let row = format!("Mutant::{name},");
        if list == "TESTED" && !hunters().any(|file| file.text.contains(&row)) {
            findings.push(bugs.finding(index, format!("no test hunts {name}")));
        }
    }
    findings
}

/// The rows that no running test names, in its name (`fn d1_...`) or in the comment above it (`D1`).
/// A comment elsewhere does not count: it fails when nothing else does.
pub fn untested_rows(tree: &Tree) -> Vec<&'static str> {
    let files = tree.ending(".rs").filter(|f| !f.path.starts_with("tidy/"));
    let tests: Vec<Test> = files.flat_map(running_tests).collect();
    let mut rows = ROWS.to_vec();
    rows.retain(|row| !tests.iter().any(|test| names_row(test, row)));
    rows
}

fn names_row(test: &Test, row: &str) -> bool {
    let lower = row.to_ascii_lowercase();
    let mut words = test
        .comments
        .iter()
        .flat_map(|line| line.split(|c: char| !c.is_alphanumeric()));
    test.name.split('_').any(|part| part == lower) || words.any(|word| word == row)
}
