//! Histories that must pass and histories that must not, as files that other checkers read too.

use std::path::Path;

use staves_history::record::{self, Checked};

fn checked(folder: &str) -> Vec<(String, Checked)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(folder);
    let mut all: Vec<(String, Checked)> = std::fs::read_dir(folder)
        .expect("the folder is there")
        .map(|entry| {
            let path = entry.expect("it can be listed").path();
            let text = std::fs::read(&path).expect("it can be read");
            let records = record::read(&text[..]).unwrap_or_else(|e| panic!("{path:?}: {e}"));
            (path.display().to_string(), record::check(&records, 100_000))
        })
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

#[test]
fn known_bad_histories_are_rejected() {
    let all = checked("bad");
    assert!(all.len() >= 12, "{} of them", all.len());
    for (name, checked) in all {
        assert_eq!(checked.bad.len(), 1, "{name}: {checked:?}");
    }
}

#[test]
fn known_good_histories_pass() {
    let all = checked("good");
    assert!(all.len() >= 5, "{} of them", all.len());
    for (name, checked) in all {
        let (bad, undecided) = (checked.bad, checked.undecided);
        assert!(
            bad.is_empty() && undecided.is_empty(),
            "{name}: {bad:?} {undecided:?}"
        );
    }
}
