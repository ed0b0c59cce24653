//! The commands in the documents are commands of the program.

use std::fs;
use std::path::{Path, PathBuf};

use crate::staves;

fn pages() -> Vec<PathBuf> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut pages = vec![root.join("README.md")];
    for folder in ["docs", "docs/how-to", "docs/explanation", "docs/reference"] {
        let entries = fs::read_dir(root.join(folder)).expect("a folder of documents");
        let paths = entries.map(|entry| entry.expect("readable").path());
        pages.extend(paths.filter(|path| path.extension().is_some_and(|e| e == "md")));
    }
    pages
}

/// The indented lines that call the program, without comments and redirections.
fn commands(text: &str) -> Vec<Vec<String>> {
    let calls = text
        .lines()
        .filter_map(|line| line.strip_prefix("    staves "));
    let words = calls.map(|call| {
        let call = call.split(" # ").next().unwrap_or(call);
        let words = call.split_whitespace().map(str::to_owned);
        words.take_while(|word| word != ">").collect()
    });
    words.collect()
}

/// `STAVES_BLESS=1 cargo test -p staves --test it reference` writes the files anew.
#[test]
fn the_reference_is_what_the_program_prints() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference"));
    for page in ["commands", "config", "metrics", "errors"] {
        let printed = staves(&["reference", page]);
        assert_eq!(printed.code, Some(0), "{}", printed.stderr);
        let path = folder.join(format!("{page}.md"));
        if std::env::var_os("STAVES_BLESS").is_some() {
            fs::write(&path, &printed.stdout).expect("written");
        }
        let written = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            written == printed.stdout,
            "docs/reference/{page}.md is not what 'staves reference {page}' prints; write it anew: \
             STAVES_BLESS=1 cargo test -p staves --test it reference"
        );
    }
}

#[test]
fn every_command_in_the_documents_is_one() {
    let mut count = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).expect("readable");
        for words in commands(&text) {
            // The words are looked at before the help is printed, and nothing else is done.
            let mut args: Vec<&str> = words.iter().map(String::as_str).collect();
            args.push("--help");
            let ran = staves(&args);
            let (page, stderr) = (page.display(), &ran.stderr);
            assert_eq!(ran.code, Some(0), "{page}: staves {args:?}: {stderr}");
            count += 1;
        }
    }
    assert!(count > 20, "only {count} commands were found");
    let wrong = staves(&["status", "--no-such-flag", "--help"]);
    assert_eq!(wrong.code, Some(2), "a wrong flag is seen");
}

#[test]
fn the_configuration_in_the_documents_is_sound() {
    let page = pages()
        .into_iter()
        .find(|page| page.ends_with("how-to/three-machines.md"));
    let text = fs::read_to_string(page.expect("the page")).expect("readable");
    let (_, block) = text.split_once("```toml\n").expect("a configuration");
    let (block, _) = block.split_once("```").expect("its end");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("staves.toml");
    fs::write(&path, block).expect("written");
    let ran = staves(&["config", "check", path.to_str().expect("text")]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
}
