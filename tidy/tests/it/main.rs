//! The rules on this checkout, and each rule on a sample that breaks it.

mod samples;

use std::sync::LazyLock;

use staves_tidy::{Finding, Tree, docs, ratchet, rust, trailing_blanks};

static TREE: LazyLock<Tree> = LazyLock::new(Tree::read);

const RATCHETS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/ratchets.txt");

fn none(findings: Vec<Finding>) {
    let lines: Vec<_> = findings.iter().map(Finding::to_string).collect();
    assert!(lines.is_empty(), "\n{}\n", lines.join("\n"));
}

#[test]
fn no_line_ends_in_a_blank() {
    none(trailing_blanks(&TREE));
}

#[test]
fn no_link_is_dead() {
    none(docs::dead_links(&TREE));
}

#[test]
fn every_test_that_a_document_names_is_there() {
    let tree = &*TREE;
    let promises = tree.file("docs/PROMISES.md").expect("docs/PROMISES.md");
    assert!(
        docs::named_tests(promises).len() > 20,
        "docs/PROMISES.md names its tests as `path/file.rs::name`"
    );
    none(docs::missing_tests(tree));
    none(docs::missing_scenarios(tree));
}

#[test]
fn every_row_of_the_papers_has_a_test() {
    let untested = docs::untested_rows(&TREE);
    assert!(
        untested.is_empty(),
        "no running test names {untested:?}; a row is done when a test fails without it; put the row into the \
         name of that test (fn d1_...) or into the comment above it"
    );
}

#[test]
fn every_planted_bug_is_told_and_hunted() {
    none(docs::untold_bugs(&TREE));
}

#[test]
fn every_metric_that_the_documents_name_is_there() {
    let text = &TREE
        .file("docs/how-to/monitor.md")
        .expect("the page about monitoring")
        .text;
    assert!(text.contains("alert:"), "it has alerts");
    none(docs::unknown_metrics(&TREE));
}

#[test]
fn unsafe_code_stays_in_the_store() {
    none(rust::stray_unsafe(&TREE));
}

#[test]
fn nothing_is_left_to_nobody() {
    none(rust::ownerless_todos(&TREE));
}

#[test]
fn counts_only_fall() {
    let counts = ratchet::count(&TREE);
    if std::env::var_os("STAVES_BLESS").is_some() {
        std::fs::write(RATCHETS, ratchet::written(&counts)).expect("ratchets.txt can be written");
    }
    let allowed = std::fs::read_to_string(RATCHETS).expect("ratchets.txt can be read");
    let risen = ratchet::risen(&counts, &allowed);
    assert!(
        risen.is_empty(),
        "\n{}\n\nIf it must be: STAVES_BLESS=1 cargo test -p staves-tidy, and say why in the commit.\n",
        risen.join("\n")
    );
}
