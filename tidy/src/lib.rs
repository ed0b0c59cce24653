//! The habits of the house that a program can check. `cargo test -p staves-tidy` runs it, in a second.
//!
//! **Path of the data.** [`Tree::read`] reads every text file of the checkout once. [`rust`] looks at
//! Rust sources line by line (they are formatted, so that lines are enough), [`docs`] at Markdown. A rule
//! is a function from the tree to [`Finding`]s; the tests say that there are none. What cannot be none
//! yet is counted instead, and [`ratchet`] holds the counts: they may only fall.
//!
//! **Not here.** What `rustfmt`, `clippy` and the compiler check already.

pub mod circles;
pub mod docs;
pub mod ratchet;
pub mod rust;
pub mod words;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Something that breaks a rule.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Finding {
    /// Path within the checkout.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// The fault, the reason and the remedy.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.text)
    }
}

/// A text file.
pub struct File {
    /// Path within the checkout, with `/`.
    pub path: String,
    /// All of it.
    pub text: String,
}

impl File {
    /// A finding in this file; `index` counts lines from 0.
    pub fn finding(&self, index: usize, text: impl Into<String>) -> Finding {
        Finding {
            file: self.path.clone(),
            line: index + 1,
            text: text.into(),
        }
    }
}

/// The checkout's text files.
pub struct Tree {
    /// The root folder.
    pub root: PathBuf,
    /// In order of path.
    pub files: Vec<File>,
}

/// Endings of the files that are looked at.
const ENDINGS: [&str; 6] = [".rs", ".md", ".toml", ".txt", ".py", ".yml"];

impl Tree {
    /// The checkout that this crate lies in.
    pub fn read() -> Tree {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .expect("this crate lies in the checkout's root")
            .to_owned();
        let mut files = Vec::new();
        collect(&root, "", &mut files);
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Tree { root, files }
    }

    /// The files whose name ends so.
    pub fn ending(&self, ending: &str) -> impl Iterator<Item = &File> {
        self.files
            .iter()
            .filter(move |file| file.path.ends_with(ending))
    }

    /// The file at a path within the checkout.
    pub fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }
}

fn collect(root: &Path, under: &str, files: &mut Vec<File>) {
    let Ok(entries) = fs::read_dir(root.join(under)) else {
        return; // it went away while we looked: a build's own folder
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if under.is_empty() {
            name.clone()
        } else {
            format!("{under}/{name}")
        };
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_dir {
            let skipped = ["target", "corpus", "artifacts"].contains(&name.as_str());
            if !name.starts_with('.') && !skipped {
                collect(root, &path, files);
            }
        } else if ENDINGS.iter().any(|ending| name.ends_with(ending)) {
            // What is not UTF-8 is no text of ours.
            if let Ok(text) = fs::read_to_string(entry.path()) {
                files.push(File { path, text });
            }
        }
    }
}

/// No line ends in a blank.
pub fn trailing_blanks(tree: &Tree) -> Vec<Finding> {
    let lines = tree.files.iter().flat_map(|file| {
        let lines = file.text.split('\n').enumerate();
        lines
            .filter(|(_, line)| line.ends_with([' ', '\t', '\r']))
            .map(|(index, _)| {
                file.finding(
                    index,
                    "the line ends in a blank; differences get noisy; delete it",
                )
            })
    });
    lines.collect()
}
