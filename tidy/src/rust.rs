//! Rust sources, line by line. `rustfmt` has put every function's closing brace under its `fn`, and the
//! house puts unit tests at a file's end: that is all the parsing there is.

use crate::{File, Finding, Tree};

/// True if all of a file is test code.
pub fn is_test_file(path: &str) -> bool {
    path.contains("/tests/")
        || path.starts_with("crates/testkit/")
        || path.starts_with("crates/conformance/")
        || path.contains("/examples/")
        || path.contains("/benches/")
        || path.starts_with("fuzz/")
        || ["/tests.rs", "/testing.rs"]
            .iter()
            .any(|end| path.ends_with(end))
}

/// The index of the first line of the file's tests; its number of lines if it has none.
pub fn tests_start(file: &File) -> usize {
    if is_test_file(&file.path) {
        return 0;
    }
    let lines: Vec<_> = file.text.lines().collect();
    let start = lines.windows(2).position(|pair| {
        let shown = ["", "pub(super) ", "pub(crate) "];
        let opens = |line: &str| {
            let mut after = shown.iter().filter_map(|shown| line.strip_prefix(shown));
            after.any(|line| line.starts_with("mod ") && line.ends_with('{'))
        };
        pair[0] == "#[cfg(test)]" && opens(pair[1])
    });
    start.unwrap_or(lines.len())
}

/// A function: the index of its `fn` line, how many lines it has, its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Function {
    /// Index of the line with `fn`.
    pub index: usize,
    /// Lines from there to the closing brace.
    pub lines: usize,
    /// Its name.
    pub name: String,
}

/// The functions of a file.
pub fn functions(file: &File) -> Vec<Function> {
    let lines: Vec<&str> = file.text.lines().collect();
    let mut all = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else {
            continue;
        };
        let indent = line.len() - line.trim_start().len();
        let end = lines[index..].iter().position(|line| {
            let depth = line.len() - line.trim_start().len();
            depth == indent && (line.trim_start() == "}" || line.ends_with(';'))
        });
        let one_line = line.ends_with('}') || line.ends_with(';');
        let length = if one_line {
            1
        } else {
            end.map_or(1, |end| end + 1)
        };
        all.push(Function {
            index,
            lines: length,
            name: name.to_owned(),
        });
    }
    all
}

/// The name behind `fn` on a line that begins a function.
fn function_name(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    let words = [
        "pub",
        "pub(crate)",
        "pub(super)",
        "async",
        "const",
        "unsafe",
    ];
    while let Some((word, after)) = rest.split_once(' ') {
        if word == "fn" {
            let end = after.find(|c: char| !c.is_alphanumeric() && c != '_')?;
            return Some(&after[..end]);
        }
        if !words.contains(&word) {
            return None;
        }
        rest = after;
    }
    None
}

/// A test that runs: its name, and the comments between it and the code above.
pub struct Test<'a> {
    /// The function's name.
    pub name: String,
    /// The lines of its comments, with their marks.
    pub comments: Vec<&'a str>,
}

/// The tests of a file that are not ignored.
pub fn running_tests(file: &File) -> Vec<Test<'_>> {
    let lines: Vec<&str> = file.text.lines().map(str::trim_start).collect();
    let mut all = Vec::new();
    for function in functions(file) {
        let above = lines[..function.index].iter().rev();
        let above = above.take_while(|line| line.starts_with("#[") || line.starts_with("//"));
        let (attributes, comments): (Vec<&str>, Vec<&str>) =
            above.copied().partition(|line| line.starts_with('#'));
        let is_test = |line: &&str| line.contains("test]") || line.contains("test(");
        let is_ignored = |line: &&str| line.starts_with("#[ignore");
        if attributes.iter().any(is_test) && !attributes.iter().any(is_ignored) {
            all.push(Test {
                name: function.name,
                comments,
            });
        }
    }
    all
}

/// Code without comments: `None` for a line that is only a comment.
fn code(line: &str) -> Option<&str> {
    let line = line.trim_start();
    (!line.starts_with("//")).then(|| line.split(" // ").next().unwrap_or(line))
}

/// A file's code without its comments and its tests.
pub fn production(file: &File) -> String {
    let lines = file.text.lines().take(tests_start(file));
    lines
        .filter_map(code)
        .fold(String::new(), |text, line| text + line + "\n")
}

/// The files that may decide by the kind of a pool: the map's rules, and the node's table of services.
const KIND_HOMES: [&str; 2] = ["crates/model/", "crates/node/src/host/services.rs"];

/// The lines of a file outside of those, tests apart, that decide by the kind of a pool: that match on it or ask for it.
pub fn pool_kind_decisions(file: &File) -> usize {
    let is_home = KIND_HOMES.iter().any(|home| file.path.starts_with(home));
    if is_home || is_test_file(&file.path) {
        return 0;
    }
    let (kind, asks) = (concat!("Pool", "Kind::"), concat!(".is_", "cache()"));
    let made = ["kind: ", "=> "].map(|before| format!("{before}{kind}"));
    let decides = |line: &&str| {
        let is_made = made.iter().any(|made| line.contains(made));
        line.contains(asks) || (line.contains(kind) && !is_made)
    };
    production(file).lines().filter(decides).count()
}

/// The calls that end the process where an error could have been returned, outside of tests.
pub fn panicking_calls(file: &File) -> usize {
    let lines = file.text.lines().take(tests_start(file));
    let calls = ["unwrap()", "expect("].map(|call| format!(".{call}"));
    lines
        .filter_map(code)
        .map(|line| {
            calls
                .iter()
                .map(|call| line.matches(call).count())
                .sum::<usize>()
        })
        .sum()
}

/// The places where the compiler lets `unsafe` be: memory that is handed out, instructions that not
/// every machine has, and one question to the kernel that no library asks.
const UNSAFE_HOMES: [&str; 3] = [
    "crates/store/",
    "crates/erasure/src/kernel/",
    "crates/files/src/folder/lease.rs",
];

/// `unsafe` lives in [`UNSAFE_HOMES`], and nowhere else.
pub fn stray_unsafe(tree: &Tree) -> Vec<Finding> {
    let forms = ["{", "fn", "impl", "extern"].map(|what| format!("{} {what}", "unsafe"));
    let allow = format!("allow({}_code)", "unsafe");
    let mut all = Vec::new();
    for file in tree
        .ending(".rs")
        .filter(|file| !UNSAFE_HOMES.iter().any(|home| file.path.starts_with(home)))
    {
        for (index, line) in file.text.lines().enumerate() {
            let Some(line) = code(line) else { continue };
            if line.contains(&allow) || forms.iter().any(|form| line.contains(form)) {
                let text = "unsafe code outside crates/store and the kernels; a small place is all that can be \
                            reviewed; find a safe way, or move it there with its reason";
                all.push(file.finding(index, text));
            }
        }
    }
    all
}

/// Work left over has a row of its own in the documents: `TODO(word)` and a table row `| word |`.
pub fn ownerless_todos(tree: &Tree) -> Vec<Finding> {
    let marks =
        ["TO", "FIX"].map(|start| format!("{start}{}", if start == "TO" { "DO" } else { "ME" }));
    let mut all = Vec::new();
    for file in tree.ending(".rs") {
        for (index, line) in file.text.lines().enumerate() {
            let Some(mark) = marks.iter().find(|mark| line.contains(*mark)) else {
                continue;
            };
            let owner = line
                .split_once(&format!("{mark}("))
                .and_then(|(_, rest)| rest.split_once(')'))
                .map(|(word, _)| format!("| {word} |"));
            let owned =
                owner.is_some_and(|row| tree.ending(".md").any(|doc| doc.text.contains(&row)));
            if !owned {
                let text = format!(
                    "{mark} without an owner; nobody will do it; do it now, or write {mark}(word) and a \
                     table row '| word |' in a document under docs/"
                );
                all.push(file.finding(index, text));
            }
        }
    }
    all
}
