//! `staves config` and the command line itself.

use std::fs;

use crate::{staves, staves_with};

#[test]
fn the_example_is_a_sound_configuration() {
    let example = staves(&["config", "example"]);
    assert_eq!(example.code, Some(0));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("staves.toml");
    fs::write(&path, &example.stdout).expect("written");
    let path = path.to_str().expect("text");
    let check = staves(&["config", "check", path]);
    assert_eq!(
        (check.code, check.stdout.as_str()),
        (Some(0), "the configuration is sound\n")
    );
}

#[test]
fn a_slip_is_named_with_file_line_and_suggestion() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("staves.toml");
    fs::write(&path, "zone = 'a'\nmemroy = '1GiB'\n").expect("written");
    let path = path.to_str().expect("text");
    for command in [
        ["config", "check", path],
        ["config", "show", path],
        ["up", "--config", path],
    ] {
        let ran = staves(&command);
        assert_eq!(
            (ran.code, ran.stdout.as_str()),
            (Some(1), ""),
            "{command:?}"
        );
        let expected = format!("staves: {path}:2: unknown key 'memroy'; did you mean 'memory'?\n");
        assert_eq!(ran.stderr, expected, "{command:?}");
    }
}

#[test]
fn flags_go_over_variables() {
    let env = [
        ("STAVES_ZONE", "south"),
        ("STAVES_MEMORY", "2GiB"),
        ("STAVES_MEMROY", "1"),
    ];
    let shown = staves_with(&env, &["config", "show", "--zone", "north"]);
    assert_eq!(shown.code, Some(0), "{}", shown.stderr);
    let has = |key: &str, origin: &str| {
        shown
            .stdout
            .lines()
            .any(|line| line.starts_with(key) && line.ends_with(origin))
    };
    assert!(has("zone = \"north\"", "# --zone"), "{}", shown.stdout);
    assert!(
        has("memory = \"2GiB\"", "# STAVES_MEMORY"),
        "{}",
        shown.stdout
    );
    assert!(
        shown.stderr.contains("did you mean STAVES_MEMORY?"),
        "{}",
        shown.stderr
    );
    let json = staves(&["config", "show", "-o", "json"]);
    let entries: serde_json::Value = serde_json::from_str(&json.stdout).expect("JSON");
    assert_eq!(entries[0]["key"], "data");
}

#[test]
fn a_wrong_command_line_is_2() {
    for args in [
        &["frobnicate"][..],
        &[],
        &["status", "--deadline", "soon"],
        &["status", "--cluster", "nowhere"],
        &["pool", "create", "p", "--memory", "lots"],
        &["pool", "set", "cache"],
        &["demo", "--nodes", "2"],
        &["-o", "xml", "status"],
    ] {
        let ran = staves(args);
        assert_eq!(
            (ran.code, ran.stdout.as_str()),
            (Some(2), ""),
            "{args:?}: {}",
            ran.stderr
        );
    }
}

#[test]
fn help_and_version_are_0() {
    for args in [
        &["--help"][..],
        &["--version"],
        &["up", "--help"],
        &["help", "node", "drain"],
    ] {
        let ran = staves(args);
        assert_eq!(ran.code, Some(0), "{args:?}");
        assert!(!ran.stdout.is_empty(), "{args:?}");
    }
}
