//! A cluster with a secret, from the shell.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Cluster;
use crate::staves;

fn file(folder: &Path, letter: &str, mode: u32) -> PathBuf {
    let path = folder.join(format!("{letter}-{mode:o}"));
    std::fs::write(&path, format!("{}\n", letter.repeat(32))).expect("a file");
    let mode = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(&path, mode).expect("it is ours");
    path
}

#[test]
fn tools_prove_the_secret_and_nodes_another() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = [("n", 0o600), ("c", 0o600), ("c", 0o644)];
    let files = files.map(|(letter, mode)| file(folder.path(), letter, mode));
    let [nodes, clients, open] = files.each_ref().map(|path| path.to_str().expect("text"));
    let flags = ["--secret-file", nodes, "--client-secret-file", clients];
    // Its `run` proves the secret of clients.
    let cluster = Cluster::start_with(2, &flags);
    let native = &cluster.nodes[0].native;
    for key in ["a", "b", "c", "d"] {
        let ran = cluster.run(0, &["cache", "put", key, "1"]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    }
    let ask = |secret: &[&str]| {
        let mut all = vec!["--cluster", native, "status"];
        all.extend(secret);
        staves(&all)
    };
    assert_eq!(ask(&["--secret-file", nodes]).code, Some(0));
    let ran = ask(&[]);
    // As docs/reference/errors.md has it: `denied`, not `unreachable`.
    assert!(
        ran.code == Some(1) && ran.stderr.contains("--secret-file"),
        "{}",
        ran.stderr
    );
    let ran = ask(&["--secret-file", open]);
    assert!(
        ran.code != Some(0) && ran.stderr.contains("chmod 600"),
        "{}",
        ran.stderr
    );
    let mut by_variable = Command::new(env!("CARGO_BIN_EXE_staves"));
    by_variable.args(["--cluster", native, "node", "list"]);
    let ran = by_variable.env("STAVES_SECRET_FILE", clients).output();
    assert!(ran.expect("it runs").status.success());
    // A configuration is checked with the files that it names.
    let ran = staves(&["config", "check", "--secret-file", "/nonexistent"]);
    assert!(
        ran.code != Some(0) && ran.stderr.contains("/nonexistent"),
        "{}",
        ran.stderr
    );
    // A client's secret makes no node.
    let mut up = vec!["up", "--join", native, "--secret-file", clients];
    up.extend(["--listen", "127.0.0.1:0", "--resp", "127.0.0.1:0"]);
    up.extend(["--admin", "127.0.0.1:0", "--memory", "64MiB"]);
    let ran = staves(&up);
    let text = "not the secret of this cluster's nodes";
    assert!(
        ran.code != Some(0) && ran.stderr.contains(text),
        "{}",
        ran.stderr
    );
    let log = std::fs::read_to_string(cluster.folder.path().join("0.log")).expect("its log");
    let lines = log.matches("a connection without the secret was refused");
    assert_eq!(lines.count(), 1, "one line a minute");
}

/// The flag of a node and the option of a tool have one name and one variable: each goes where it is meant.
#[test]
fn the_secret_of_a_configuration_has_its_origin() {
    let shown = |flags: &[&str], variable: bool| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_staves"));
        command.args(["config", "show"]).args(flags);
        if variable {
            command.env("STAVES_SECRET_FILE", "/from/variable");
        }
        let ran = command.output().expect("it runs");
        let text = String::from_utf8(ran.stdout).expect("text");
        let line = text.lines().find(|line| line.contains("secret_file"));
        line.expect("the key is shown").to_owned()
    };
    assert!(shown(&[], false).contains("is not set"));
    let line = shown(&[], true);
    assert!(
        line.contains("/from/variable") && line.contains("STAVES_SECRET_FILE"),
        "{line}"
    );
    for variable in [false, true] {
        let line = shown(&["--secret-file", "/from/flag"], variable);
        assert!(
            line.contains("/from/flag") && line.contains("--secret-file"),
            "{line}"
        );
    }
}
