//! Volumes as block devices: a machine that cannot have them. Those that can are in `guest.rs`.

use std::path::Path;

use crate::{Ran, staves_with};

/// Runs the program on a machine in a folder.
fn on(root: &Path, args: &[&str]) -> Ran {
    let root = root.to_string_lossy();
    staves_with(&[("STAVES_MACHINE_ROOT", &root)], args)
}

/// Without a cluster: what the machine lacks is said before one is asked.
#[test]
fn a_machine_that_cannot_have_devices_says_why_and_what_to_do_instead() {
    let folder = tempfile::tempdir().expect("a folder");
    let ran = on(folder.path(), &["volume", "attach", "disk"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    let parts = ["modprobe nbd", "nbdfuse", "nbd://HOST:PORT/disk"];
    for part in parts {
        assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
    }
    // The machine itself.
    let ran = staves_with(&[], &["volume", "attach", "disk", "-o", "json"]);
    let error: serde_json::Value = serde_json::from_str(&ran.stderr).expect("JSON");
    let text = error.to_string();
    let has_nbd = Path::new("/sys/block/nbd0").exists();
    assert_eq!(text.contains("modprobe nbd"), !has_nbd, "{text}");
    let ran = staves_with(&[], &["volume", "attach"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
}
