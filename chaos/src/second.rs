//! The second opinion: Porcupine, a checker of others, on the same history.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, bail};
use staves_history::record::Checked;

/// Seconds that it may take for all keys of a history.
const PATIENCE: &str = "60s";

/// The checker's program, built once; `None` without Go.
fn program() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT
        .get_or_init(|| {
            build()
                .inspect_err(|e| eprintln!("no second opinion: {e:#}"))
                .ok()
        })
        .as_deref()
}

fn build() -> anyhow::Result<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("porcupine");
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let to = own.with_file_name("staves-porcupine");
    let out = Command::new("go")
        .args(["build", "-o"])
        .arg(&to)
        .arg(".")
        .current_dir(source)
        .output()
        .context("go does not run here")?;
    if !out.status.success() {
        bail!("go build: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(to)
}

/// True if there is one.
pub fn is_there() -> bool {
    program().is_some()
}

/// The second checker's judgement of each key that is not fine: "bad" or "unknown".
pub fn judge(history: &Path) -> anyhow::Result<Option<Vec<(String, String)>>> {
    let Some(program) = program() else {
        return Ok(None);
    };
    let out = Command::new(program)
        .arg("-timeout")
        .arg(PATIENCE)
        .arg(history)
        .output();
    let out = out.context("porcupine does not run")?;
    if !out.status.success() {
        bail!("porcupine: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    let text = String::from_utf8_lossy(&out.stdout);
    let pair = |line: &str| {
        line.split_once(' ')
            .map(|(verdict, key)| (key.to_owned(), verdict.to_owned()))
    };
    Ok(Some(text.lines().filter_map(pair).collect()))
}

/// The disagreements with our own checker. An undecided judgement of either is none.
pub fn opinion(history: &Path, ours: &Checked) -> anyhow::Result<Vec<String>> {
    let Some(theirs) = judge(history)? else {
        return Ok(Vec::new());
    };
    let decided = |key: &str| !ours.undecided.iter().any(|k| k == key);
    let bad_here = |key: &str| ours.bad.iter().any(|(k, _)| k == key);
    let mut other = Vec::new();
    for (key, verdict) in theirs.iter().filter(|(key, _)| decided(key)) {
        if verdict == "bad" && !bad_here(key) {
            other.push(format!(
                "key {key}: Porcupine finds no order, our checker finds one"
            ));
        }
    }
    for (key, _) in &ours.bad {
        if !theirs.iter().any(|(k, _)| k == key) {
            other.push(format!(
                "key {key}: Porcupine finds an order, our checker finds none"
            ));
        }
    }
    Ok(other)
}

/// For [`crate::run::run`]: disagreements, and trouble of its own.
pub fn of_run(history: &Path) -> Vec<String> {
    let look = || -> anyhow::Result<Vec<String>> {
        let file = std::fs::File::open(history)?;
        let records = staves_history::record::read(std::io::BufReader::new(file))?;
        opinion(history, &crate::judge::histories(&records).0)
    };
    look().unwrap_or_else(|error| vec![format!("the second opinion could not be had: {error:#}")])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both must reject what is known to be bad, for the same keys, and nothing else.
    #[test]
    fn both_checkers_agree_on_all_known_histories() {
        if !is_there() {
            return staves_testkit::tools::skip("Porcupine cannot be built here (it needs Go)");
        }
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/history/tests");
        let mut bad = 0;
        for folder in ["bad", "good"] {
            for file in std::fs::read_dir(tests.join(folder)).expect("the folder is there") {
                let path = file.expect("it can be listed").path();
                let text = std::fs::read(&path).expect("it can be read");
                let records = staves_history::record::read(&text[..]).expect("it is a history");
                let ours = staves_history::record::check(&records, 100_000);
                let other = opinion(&path, &ours).expect("it runs");
                assert!(other.is_empty(), "{path:?}: {other:?}");
                let theirs = judge(&path).expect("it runs").expect("it is there");
                assert_eq!(theirs.len(), ours.bad.len(), "{path:?}: {theirs:?}");
                bad += theirs.len();
            }
        }
        assert!(bad >= 12, "{bad}");
    }
}
