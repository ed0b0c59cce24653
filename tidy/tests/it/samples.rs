//! Every rule finds what it is there for.

use staves_tidy::{File, Tree, circles, docs, ratchet, rust, trailing_blanks, words};

fn tree(files: &[(&str, &str)]) -> Tree {
    let files = files.iter().map(|(path, text)| File {
        path: (*path).to_owned(),
        text: (*text).to_owned(),
    });
    Tree {
        root: env!("CARGO_MANIFEST_DIR").into(),
        files: files.collect(),
    }
}

#[test]
fn blanks_are_found_with_their_line() {
    let found = trailing_blanks(&tree(&[("a.md", "one\ntwo \nthree\t\n")]));
    assert_eq!(found.iter().map(|f| f.line).collect::<Vec<_>>(), [2, 3]);
    assert!(found[0].to_string().starts_with("a.md:2: "));
}

#[test]
fn dead_links_and_dead_anchors_are_found() {
    let text = "[a](Cargo.toml) [b](gone.md) [c](#here) [d](#gone) [e](https://x.invalid/)\n# Here\n\n\
                ```\n[f](gone.md)\n```\n";
    let found = docs::dead_links(&tree(&[("a.md", text)]));
    let what: Vec<_> = found.iter().map(|f| f.text.split('\'').nth(1)).collect();
    assert_eq!(what, [Some("gone.md"), Some("#gone")]);
}

#[test]
fn tests_that_are_not_there_are_found() {
    let doc = "`a/tests/x.rs::it_is_there` `a/tests/x.rs::m01_there` `a/tests/x.rs::it_is_gone` `b.rs::x`";
    let code = "fn it_is_there() {\n}\nm01_there: Bug, 1;\n";
    let found = docs::missing_tests(&tree(&[("a.md", doc), ("a/tests/x.rs", code)]));
    assert_eq!(found.len(), 2, "{found:?}");
}

#[test]
fn scenarios_that_are_not_there_are_found() {
    let doc = (
        "a.md",
        "`chaos/scenarios/here.txt`, `chaos/scenarios/gone.txt`",
    );
    let found = docs::missing_scenarios(&tree(&[doc, ("chaos/scenarios/here.txt", "")]));
    assert_eq!(found.len(), 1);
    assert!(found[0].text.contains("gone.txt"));
}

#[test]
fn metrics_that_are_not_there_are_found() {
    let page = (
        "docs/how-to/monitor.md",
        "rate(staves_a_total[1m]) / staves_b_total\n",
    );
    let code = (
        "crates/node/src/metrics.rs",
        "page.counter(\"staves_a_total\")",
    );
    let found = docs::unknown_metrics(&tree(&[page, code]));
    assert_eq!(found.len(), 1);
    assert!(found[0].text.contains("staves_b_total"));
}

#[test]
fn rows_count_for_tests_that_run() {
    let code = "//! D1 here\n// D2\nfn d3_a() {\n}\n\n#[cfg(test)]\nmod tests {\n    // D4, not beside a test\n\n    \
                /// Row D5: it runs.\n    #[test]\n    fn x7_x() {\n    }\n\n    /// D6\n    #[tokio::test]\n    \
                async fn h3() {\n    }\n\n    #[test]\n    #[ignore = \"slow\"]\n    fn d7_x() {\n    }\n}\n";
    let found = docs::untested_rows(&tree(&[("crates/a/src/x.rs", code)]));
    let tested = ["D5", "D6", "H3", "X7"];
    let rows = docs::ROWS.iter().filter(|row| !found.contains(row));
    let mut rows: Vec<_> = rows.copied().collect();
    rows.sort_unstable();
    assert_eq!(rows, tested);
}

#[test]
fn strays_and_leftovers_are_found() {
    let code = format!("{} {{ x() }}\n// {}{}: later\n", "unsafe", "TO", "DO");
    let inside = ("crates/store/src/a.rs", code.as_str());
    let kernel = ("crates/erasure/src/kernel/a.rs", code.as_str());
    let outside = ("crates/net/src/a.rs", code.as_str());
    let beside = ("crates/erasure/src/code.rs", code.as_str());
    let tree = tree(&[inside, kernel, outside, beside]);
    let found = rust::stray_unsafe(&tree);
    let mut files: Vec<_> = found.iter().map(|f| f.file.as_str()).collect();
    files.sort_unstable();
    assert_eq!(files, [beside.0, outside.0]);
    assert_eq!(rust::ownerless_todos(&tree).len(), 4);
}

#[test]
fn a_count_that_rises_is_told_with_its_place() {
    let long = format!("fn long() {{\n{}}}\n", "    x();\n".repeat(70));
    let calls = "fn a() {\n    b().unwrap();\n    // c().unwrap()\n}\n\n#[cfg(test)]\nmod tests {\n    fn d() {\n        e().unwrap();\n    }\n}\n";
    let counts = ratchet::count(&tree(&[
        ("crates/net/src/long.rs", &long),
        ("crates/net/src/calls.rs", calls),
    ]));
    assert_eq!(counts["longest-function"].number, 72);
    assert_eq!(counts["long-functions"].number, 1);
    assert_eq!(counts["panicking-calls crates/net"].number, 1);
    assert_eq!(counts["files-without-opening"].number, 2);
    let allowed = ratchet::written(&counts);
    assert!(ratchet::risen(&counts, &allowed).is_empty());
    let lower = allowed.replace("long-functions 1", "long-functions 0");
    let risen = ratchet::risen(&counts, &lower);
    assert_eq!(risen.len(), 1);
    assert!(
        risen[0].contains("crates/net/src/long.rs:1: long has 72 lines"),
        "{}",
        risen[0]
    );
}

#[test]
fn comments_that_open_with_a_question_word_are_found() {
    let code = "//! Who reads this.\n//! What else.\n\n/// A room. Which is large.\n/// Where it goes on.\n\
                struct A;\n    /// **Whether** it is so.\n    b: bool,\n// Why not\n/// Whenever\n/// How\n";
    let file = File {
        path: "a.rs".to_owned(),
        text: code.to_owned(),
    };
    let lines: Vec<_> = words::question_openings(&file)
        .iter()
        .map(|f| f.0)
        .collect();
    assert_eq!(lines, [0, 6]);
}

#[test]
fn the_third_type_of_one_name_is_found() {
    let one = (
        "crates/a/src/a.rs",
        "pub struct Room;\nenum Two {\n}\n    struct Room;\n",
    );
    let two = (
        "crates/b/src/b.rs",
        "pub(crate) enum Room {\n}\ntrait Two: Send {\n}\n",
    );
    let three = ("crates/c/src/c.rs", "type Room = u8;\n");
    let test = ("crates/c/tests/it/c.rs", "struct Two;\n");
    let tree = tree(&[one, two, three, test]);
    let names = words::overused_names(&tree);
    assert_eq!(names.keys().collect::<Vec<_>>(), [&"Room"]);
    assert_eq!(words::excess(&names), 1);
    assert!(
        words::shared_names(&tree).is_empty(),
        "each in a crate of its own"
    );
}

#[test]
fn two_types_of_one_crate_with_one_name_are_found() {
    let files = [
        ("crates/a/src/a.rs", "struct Room;\n"),
        ("crates/a/src/b.rs", "enum Room {\n}\n"),
        ("crates/a/src/tests.rs", "struct Own;\n"),
        ("crates/b/src/a.rs", "struct Own;\n"),
    ];
    let tree = tree(&files);
    let names = words::shared_names(&tree);
    assert_eq!(
        names.keys().collect::<Vec<_>>(),
        [&("crates/a".to_owned(), "Room")]
    );
}

#[test]
fn decisions_by_the_kind_of_a_pool_are_found_outside_of_their_homes() {
    let code = "if pool.is_cache() {\n    matches!(kind, PoolKind::Cache);\n// PoolKind::Files\nlet new = Pool {\n    \
                kind: PoolKind::Cache,\n};\n#[cfg(test)]\nmod tests {\n    pool.is_cache();\n}\n";
    let decisions = |path: &str| {
        rust::pool_kind_decisions(&File {
            path: path.to_owned(),
            text: code.to_owned(),
        })
    };
    assert_eq!(decisions("crates/node/src/host.rs"), 2);
    assert_eq!(decisions("crates/node/src/host/services.rs"), 0);
    assert_eq!(decisions("crates/model/src/ring.rs"), 0);
}

#[test]
fn a_circle_of_four_files_is_found_and_one_of_three_is_not() {
    let files = [
        ("crates/a/src/lib.rs", "mod a;\nmod b;\npub use a::A;\n"),
        (
            "crates/a/src/a.rs",
            "use crate::b::{self, B};\n// use crate::e::E;\n",
        ),
        (
            "crates/a/src/b.rs",
            "use std::fmt;\nuse super::{\n    a::A,\n    c::deep::{C, Deep as D},\n};\n",
        ),
        (
            "crates/a/src/c/deep.rs",
            "fn f() {\n    super::super::e::g();\n}\n",
        ),
        (
            "crates/a/src/e.rs",
            "use crate::a::*;\n#[cfg(test)]\nmod tests {\n    use crate::f::F;\n}\n",
        ),
        ("crates/a/src/f.rs", "use crate::e;\n"),
        ("crates/b/src/a.rs", "use crate::b;\n"),
        ("crates/b/src/b.rs", "use crate::c;\n"),
        ("crates/b/src/c.rs", "use crate::a;\n"),
    ];
    let tree = tree(&files);
    let found = circles::large_circles(&tree);
    let modules = ["a", "b", "c/deep", "e"].map(str::to_owned).to_vec();
    assert_eq!(
        found.into_iter().collect::<Vec<_>>(),
        [("crates/a", modules)]
    );
}
