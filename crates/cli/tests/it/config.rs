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
        let expected = format!(
            "staves: {path}:2: unknown key 'memroy'; did you mean 'memory'? (bad-configuration)\n"
        );
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
        &["status", "--deadline", "5"],
        &["node", "drain", "1", "--wait", "5"],
        &["pool", "create", "p", "--memory", "100"],
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
fn a_number_without_a_unit_is_told_what_to_say() {
    let ran = staves(&["status", "--deadline", "5"]);
    assert!(ran.stderr.contains("say 5s or 5ms"), "{}", ran.stderr);
    let ran = staves(&["up", "--memory", "100"]);
    assert_eq!(ran.code, Some(2));
    let said = "staves: --memory: '100' has no unit; say 100MiB";
    assert!(ran.stderr.starts_with(said), "{}", ran.stderr);
    let ran = staves_with(&[("STAVES_MEMORY", "100")], &["up"]);
    assert_eq!(ran.code, Some(1), "the command line is not wrong");
    let said = "staves: STAVES_MEMORY: '100' has no unit; say 100MiB";
    assert!(ran.stderr.starts_with(said), "{}", ran.stderr);
    let ran = staves_with(&[("STAVES_DEADLINE", "5")], &["status"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("say 5s or 5ms"), "{}", ran.stderr);
    let shown = staves(&["config", "show", "--lease-ms", "600"]);
    assert!(
        shown.stdout.contains("lease_ms = 600"),
        "{}{}",
        shown.stdout,
        shown.stderr
    );
}

#[test]
fn what_up_refuses_the_check_refuses_in_the_same_words() {
    // A flag whose value is none is a wrong command line; the rest does not hold together.
    let (wrong, unsound) = ((2, "(usage)\n"), (1, "(bad-configuration)\n"));
    for (flags, (exit_code, word)) in [
        (&["--log", "no such level"][..], wrong),
        (&["--log", "info,staves_net=loud"], wrong),
        (&["--listen", "0.0.0.0:1600"], unsound),
        (&["--scheme", "1+200"], wrong),
        (&["--pool", "a\nb"], unsound),
        (&["--resp", "127.0.0.1:1600"], unsound),
        (&["--memory", "100"], wrong),
    ] {
        let check = staves(&[&["config", "check"], flags].concat());
        assert_eq!(check.code, Some(exit_code), "{flags:?}: {}", check.stderr);
        let up = staves(&[&["up"], flags].concat());
        assert_eq!(up.code, Some(exit_code), "{flags:?}: {}", up.stderr);
        assert_eq!(check.stderr, up.stderr, "{flags:?}");
        assert!(check.stderr.ends_with(word), "{}", check.stderr);
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

#[test]
fn errors_are_objects_where_answers_are() {
    let object = |ran: &crate::Ran| -> serde_json::Value {
        assert_eq!(ran.stdout, "");
        assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
        serde_json::from_str(&ran.stderr).expect("JSON on stderr")
    };
    let cases: [(&[&str], &str, i32, &str); 6] = [
        (
            &["status", "--deadline", "-1s"],
            "usage",
            2,
            "'-1s' for '--deadline <TIME>'",
        ),
        (&["explain", "nonsense"], "not-found", 3, "'nonsense'"),
        (&["status", "--nonsense"], "usage", 2, "'--nonsense'"),
        (&["nonsense"], "usage", 2, "'nonsense'"),
        (
            &["status", "--cluster", "127.0.0.1:1"],
            "unreachable",
            4,
            "127.0.0.1:1",
        ),
        (&["up", "--memory", "1MiB"], "bad-configuration", 1, "16MiB"),
    ];
    for (args, code, exit_code, named) in cases {
        for form in [&["-o", "json"][..], &["-ojson"], &["--output=json"]] {
            let ran = staves(&[args, form].concat());
            let error = &object(&ran)["error"];
            assert_eq!(ran.code, Some(exit_code), "{args:?}");
            assert_eq!(
                (error["code"].as_str(), error["exit_code"].as_i64()),
                (Some(code), Some(exit_code.into()))
            );
            let message = error["message"].as_str().expect("a text");
            assert!(message.contains(named), "{error}");
            assert!(!message.contains("For more"), "{error}");
        }
        let ran = staves_with(&[("STAVES_OUTPUT", "json")], args);
        assert_eq!(object(&ran)["error"]["code"], code);
        let plain = staves(args);
        assert_eq!(plain.code, Some(exit_code));
        assert!(
            !plain.stderr.starts_with('{') && plain.stderr.contains(named),
            "{}",
            plain.stderr
        );
    }
}

#[test]
fn codes_are_explained() {
    let one = staves(&["explain", "out-of-memory"]);
    assert_eq!(one.code, Some(0), "{}", one.stderr);
    assert!(
        one.stdout.contains("-OOM") && one.stdout.contains("what to do"),
        "{}",
        one.stdout
    );
    let one = staves(&["explain", "out-of-memory", "-o", "json"]);
    let one: serde_json::Value = serde_json::from_str(&one.stdout).expect("JSON");
    assert_eq!(
        (one["number"].as_u64(), one["resp"].as_str()),
        (Some(20), Some("OOM"))
    );
    let all = staves(&["explain", "-o", "json"]);
    let all: Vec<serde_json::Value> = serde_json::from_str(&all.stdout).expect("JSON");
    assert!(
        staves_wire::ErrorCode::ALL
            .iter()
            .all(|code| all.iter().any(|row| row["code"] == code.word()))
    );
    // Words that only a client of Redis meets, and numbers.
    for (wanted, said) in [
        ("MOVED", "redis-cli -c"),
        ("-CROSSSLOT", "several hash slots"),
        ("loading", "not joined its cluster"),
        ("12", "deadline"),
    ] {
        let ran = staves(&["explain", wanted]);
        assert_eq!(ran.code, Some(0), "{wanted}: {}", ran.stderr);
        assert!(ran.stdout.contains(said), "{wanted}: {}", ran.stdout);
    }
    let unknown = staves(&["explain", "ASK"]);
    assert_eq!(unknown.code, Some(3));
    assert!(
        unknown.stderr.contains("LOADING, MOVED"),
        "{}",
        unknown.stderr
    );
    let slip = staves(&["explain", "not-fuond"]);
    assert_eq!(slip.code, Some(3));
    assert!(
        slip.stderr.contains("did you mean 'not-found'?"),
        "{}",
        slip.stderr
    );
}

/// Regression: a device without an end was read until the memory was full, and a pipe that nobody wrote to held the command, whatever signal
/// came.
#[test]
fn files_that_have_no_end_or_no_writer_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = folder.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo runs").success());
    let pipe = pipe.to_str().expect("text");
    for (command, why) in [
        (
            ["config", "check", "/dev/zero"].as_slice(),
            "it has more than",
        ),
        (&["config", "check", pipe], "it is a pipe"),
        (&["up", "--secret-file", pipe], "it is a pipe"),
        (&["node", "list", "--secret-file", pipe], "it is a pipe"),
        (
            &["node", "list", "--secret-file", "/dev/zero"],
            "it has more than",
        ),
        (&["config", "check", "/dev"], "it is a folder"),
    ] {
        let ran = staves(command);
        assert_eq!(ran.code, Some(1), "{command:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(why), "{command:?}: {}", ran.stderr);
    }
}

/// A log that is larger than the node's memory has no bound that holds, and a small one holds up every write.
#[test]
fn an_absurd_size_of_the_log_is_refused() {
    for size in ["100TiB", "1KiB"] {
        let ran = staves(&["config", "check", "--log-bytes-max", size]);
        assert_eq!(ran.code, Some(1), "{size}: {}", ran.stderr);
        assert!(
            ran.stderr.contains("at most memory"),
            "{size}: {}",
            ran.stderr
        );
    }
}
